"""Result of a multistart: one row per start, the optima of the starts, and the best fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from castfit._support.json_codec import check_shapes, rebuild_fields, rebuild_value
from castfit._support.progress_line import duration
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr
from castfit._support.status import SOLVED
from castfit._support.views import views
from castfit.drive.run.optima import ObjectiveMeasure, Optimum, StoppingEstimate, group_optima
from castfit.drive.run.run_result import (
    FitAnswer,
    SavedResult,
    SearchResult,
    Trial,
    build_columns,
    format_counts,
    objective_measure,
    optima_lines,
)
from castfit.result.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CONTINUITY_TOL = 1e-6  # largest gap of a trajectory that counts as continuous, in units of the states' sizes


@dataclass(frozen=True, repr=False)
class StartRow(Trial):
    """One start and where it led: a row of the table; see `Trial` for how it ended.

    start : where the fit began, by name, natural scale
    gap : largest continuity defect
    draws : how many starts were drawn until one could be evaluated; evaluations, failures and time are those of all
    failures : number of failed evaluations by cause
    """

    index: int
    start: Mapping[str, float]
    gap: float = np.nan
    draws: int = 0
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    time: float = field(default=0.0, kw_only=True)

    @property
    def name(self) -> str:
        """Name of the start in messages."""
        return f"{self.index}"

    @property
    def rank(self) -> tuple[bool, bool, float, int]:
        """The lower the better: solutions, then continuous trajectories, then by objective; no two are equal."""
        objective = self.objective if np.isfinite(self.objective) else np.inf
        return not self.success, not self.gap <= _CONTINUITY_TOL, objective, self.index

    def in_current_measure(self, merit: ObjectiveMeasure | None) -> StartRow:
        """Return the row of a file in the measure of its problem, if that is known: earlier versions had others."""
        if not np.isnan(self.objective) or np.isnan(self.chi2):
            return self
        if merit is None:
            return replace(self, objective=self.chi2)
        return replace(self, objective=merit.at_height(self.chi2), measure=merit.measure)

    def with_draw(self, outcome: Any) -> StartRow:
        """Return the row after another draw, with the outcome of its task added to the outcomes of earlier draws."""
        row = self.with_outcome(outcome)
        if not isinstance(outcome, FitAnswer):
            return replace(row, draws=self.draws + (row.status != "not_run"))
        result = outcome.result
        return replace(
            row,
            gap=result.gaps,
            draws=self.draws + 1,
            evaluations=dict(Counter(self.evaluations) + Counter(outcome.evaluations)),
            failures=dict(Counter(self.failures) + Counter(result.failures)),
            time=self.time + result.time,
        )


@with_old_names(last="last_row", found="n_found")
@add_brief_repr
@dataclass(frozen=True)
class MultistartProgress:
    """Progress of a multistart after a start, as passed to a callback.

    finished, total : number of starts that have ended, and of all starts
    last_row : row of the start that ended last
    best : best row so far
    n_found : number of starts that ended in the best optimum
    failed : number of starts that did not succeed
    seconds : seconds since the run began
    seconds_left : expected seconds of the other starts at the same pace
    """

    finished: int
    total: int
    last_row: StartRow
    best: StartRow
    n_found: int
    failed: int
    seconds: float
    seconds_left: float

    @property
    def sentence(self) -> str:
        """The state of things in one line."""
        times = "once" if self.n_found == 1 else f"{self.n_found} times"
        lowest = f"best {self.best.measure} = {self.best.objective:.6g}, found {times}"
        best = lowest if self.best.success else "none succeeded"
        failed = f", {self.failed} failed" if self.failed else ""
        left_text = f", about {duration(self.seconds_left)} left" if self.finished < self.total else ""
        pace = f"{self.seconds:.0f} s{left_text}"
        return f"{self.finished} of {self.total} starts: {best}{failed}; {pace}"


@with_old_names(described="is_adequate")
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class MultistartResult(SearchResult, SavedResult):
    """Result of a multistart.

    Attributes
    ----------
    best : Result or None
        The best fit; if none succeeded, the best point of all.  None if no start came to any end.
    starts : tuple of StartRow
        One row per start, in the order in which they were drawn.
    optima : tuple of Optimum
        The optima, the lowest first, and the starts that found them.
    outlook : Outlook
        Whether more starts are worth it.
    drawn : tuple of dict
        The starts that were drawn first, before any had to be drawn again.
    message : str
        How the run ended, in words; names the starts that were lost.
    time : float
        Seconds that the run took; after a resumed run those of its last part.
    transcription, solver : str
    header : dict
        The problem's fingerprint and the options, for `save`.
    merit : Merit
        What fits are compared by, and which differences of it are none.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.multistart(problem, starts=3, limits={"k1": (0, 1e-4), "k2": (0, 1e-3)}, rng=0)
    >>> found.best.success
    True
    >>> [round(row.chi2, 3) for row in found.starts]
    [21.867, 21.867, 21.867]
    """

    _driver, _contents = "multistart", "a multistart"

    starts: tuple[StartRow, ...]
    optima: tuple[Optimum, ...]
    outlook: StoppingEstimate
    drawn: tuple[dict[str, float], ...]
    message: str
    time: float
    transcription: str
    solver: str
    header: Mapping[str, Any]
    merit: ObjectiveMeasure

    @classmethod
    def from_rows(
        cls, best: Result | None, starts: Iterable[StartRow], *, merit: ObjectiveMeasure, **other_fields: Any
    ) -> MultistartResult:
        """Gather the rows into optima, and judge."""
        rows = tuple(sorted(starts, key=lambda row: row.index))
        found_optima = group_optima({row.index: (row.objective, row.values) for row in rows if row.success}, merit)
        n_finished = sum(row.finished for row in rows)
        return cls(
            best=best,
            starts=rows,
            optima=found_optima,
            outlook=StoppingEstimate.from_optima(found_optima, n_finished),
            merit=merit,
            **other_fields,
        )

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot the objective of all starts, the lowest first; see `castfit.plots.waterfall`.

        Parameters
        ----------
        path : str or Path, optional
            Where to write the figure; the ending decides on the format.
        """
        return views().plots.waterfall(self, path)

    @property
    def measure(self) -> str:
        """Measure by which fits are compared.

        "chi2" if the standard deviations are known, "PEtab's objective" for PEtab problems, "-2 log L" otherwise.
        """
        return objective_measure(self.starts)

    @property
    def is_adequate(self) -> bool:
        """Whether the best fit is a solution that describes the data, as far as was tested."""
        return self.best is not None and self.best.is_adequate

    @property
    def floor(self) -> float:
        """Level of the measure below which differences may be rounding; see `merit`."""
        return self.merit.floor

    @property
    def statuses(self) -> dict[str, int]:
        """Number of starts by status."""
        return dict(Counter(row.status for row in self.starts).most_common())

    @property
    def failures(self) -> dict[str, int]:
        """Causes of failed evaluations and their counts, over all starts and draws."""
        counts: Counter[str] = Counter()
        for row in self.starts:
            counts.update(row.failures)
        return dict(counts.most_common())

    @property
    def table(self) -> dict[str, NDArray[Any]]:
        """All starts as columns, each (n_starts,), for instance for ``pandas.DataFrame(result.table)``.

        ``start`` (number), ``status``, ``chi2`` (or what else is the `measure`), ``optimum`` (-1 where there is none),
        ``draws``, ``iterations``, ``evaluations`` (of values), ``time``; for each quantity k where it began,
        ``start k``, and where it ended.
        """
        optimum_index = {i: k for k, optimum in enumerate(self.optima) for i in optimum.starts}
        cells: dict[str, Callable[[StartRow], Any]] = {
            "start": lambda row: row.index,
            "status": lambda row: row.status,
            self.measure: lambda row: row.objective,
            "optimum": lambda row: optimum_index.get(row.index, -1),
            "draws": lambda row: row.draws,
            "iterations": lambda row: row.iterations,
            "evaluations": lambda row: row.evaluations.get("values", 0),
            "time": lambda row: row.time,
        }
        # A column of where a quantity ended also where no start came to an end.
        absent = dict.fromkeys((name for row in self.starts for name in row.start), np.nan)
        return build_columns(
            self.starts, cells, start=lambda row: row.start, values=lambda row: {**absent, **row.values}
        )

    def _records(self) -> Iterable[Mapping[str, Any]]:
        best = None if self.best is None else min(self.starts, key=lambda row: row.rank)
        plan = StartPlan.from_starts(self.drawn, self.merit, self.transcription, self.solver)
        rows = ({"row": row, **({"result": self.best} if row is best else {})} for row in self.starts)
        return [{"plan": plan}, *rows, {"end": {"message": self.message, "time": self.time}}]

    @classmethod
    def _restored(cls, header: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> MultistartResult | None:
        checkpoint_state = CheckpointState.from_records(records)
        if checkpoint_state.plan is None:
            return None
        plan, initial_starts = checkpoint_state.plan, checkpoint_state.plan.starts_by_name
        rows = {i: StartRow(i, start) for i, start in enumerate(initial_starts)} | checkpoint_state.rows
        message = f"Loaded from a checkpoint: {sum(row.finished for row in rows.values())} starts finished."
        end = rebuild_fields(cls, checkpoint_state.end or {"message": message, "time": np.nan})
        labels = {"transcription": plan.transcription, "solver": plan.solver}
        merit = plan.merit or ObjectiveMeasure(objective_measure(rows.values()), floor=plan.floor)
        return cls.from_rows(
            checkpoint_state.best,
            rows.values(),
            merit=merit,
            drawn=initial_starts,
            header=header,
            **end,
            **labels,
        )

    def use_all(self) -> None:
        """Compute all that needs no problem."""
        self.summary()
        check_shapes((key, column, (len(self.starts),)) for key, column in self.table.items())

    def summary(self) -> str:
        """Return the text that `print` shows."""
        total = len(self.starts)
        lines = [f"{total} starts, {self.transcription}, {self.solver}: {self.time:.1f} s", self.message, ""]
        lines += optima_lines(self.optima, total, show_first_start=True, measure=self.measure)
        lines += [self.outlook.sentence, *self.misfit()]
        lines += format_counts("without success", {s: n for s, n in self.statuses.items() if s not in SOLVED})
        n_redrawn = sum(max(row.draws - 1, 0) for row in self.starts)
        if n_redrawn:
            lines.append(f"resampled because the model could not be evaluated: {n_redrawn}")
        return "\n".join([*lines, *format_counts("failed evaluations", self.failures), *self.closing()])

    def __repr__(self) -> str:
        if not self.optima:
            return f"MultistartResult({len(self.starts)} starts, none converged)"
        lowest = self.optima[0]
        return (
            f"MultistartResult({len(self.starts)} starts: {self.measure} = {lowest.objective:.6g} found "
            f"{len(lowest.starts)} times, {len(self.optima)} optima)"
        )


@dataclass(frozen=True)
class StartPlan:
    """Starts, value by value, and methods of their fits; a run that continues another one has the same plan.

    merit : what fits are compared by; None in a file of an earlier version, which knew the `floor` alone
    """

    names: tuple[str, ...]
    starts: tuple[tuple[float, ...], ...]
    transcription: str
    solver: str
    merit: ObjectiveMeasure | None = None
    floor: float = 0.0

    @classmethod
    def from_starts(
        cls, drawn_starts: Sequence[Mapping[str, float]], merit: ObjectiveMeasure, transcription: str, solver: str
    ) -> StartPlan:
        """Build the plan of drawn starts, all with the names of the first one."""
        names = tuple(drawn_starts[0])
        starts = tuple(tuple(start[name] for name in names) for start in drawn_starts)
        return cls(names, starts, transcription, solver, merit)

    @property
    def starts_by_name(self) -> tuple[dict[str, float], ...]:
        """The starts by name."""
        return tuple(dict(zip(self.names, values, strict=True)) for values in self.starts)


@dataclass(frozen=True)
class CheckpointState:
    """Contents of the records of a checkpoint; the best result is the one of the best row."""

    plan: StartPlan | None
    rows: dict[int, StartRow]
    best: Result | None
    end: Mapping[str, Any] | None

    @classmethod
    def from_records(
        cls, records: Iterable[Mapping[str, Any]], merit: ObjectiveMeasure | None = None
    ) -> CheckpointState:
        """Read records; of several about one thing the last counts.

        merit : of the problem that they are of, if it is known
        """
        merged_record: dict[str, Any] = {}
        entries: dict[int, tuple[StartRow, Any]] = {}
        for record in records:
            merged_record |= record
            if "row" in record:
                row = rebuild_value(StartRow, record["row"])
                entries[row.index] = row, record.get("result")
        plan = rebuild_value(StartPlan | None, merged_record.get("plan"))
        known_merit = merit or (None if plan is None else plan.merit)
        rows = {i: row.in_current_measure(known_merit) for i, (row, _) in entries.items()}
        best = min(rows.values(), key=lambda row: row.rank, default=None)
        result = rebuild_value(Result | None, None if best is None else entries[best.index][1])
        return cls(plan, rows, result, merged_record.get("end"))
