"""Result of a comparison: one trial per method and start, and one row per method.

A trial, which is one method from one start, ends in one of the categories of Michalik, Hannemann and Marquardt (2009,
Sec. 4.3):

    correct              converged at the best optimum known: the objective is that optimum's, mean squares within 0.1 %
    wrong                converged at another optimum
    integration_error    the model could not be integrated
    optimization_error   anything else: limits of iterations or time, steps that became too small, a worker that died

They judge by estimates, correct to 5 %; the objective also suits problems with estimates that the data leave open.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from castfit._support.json_codec import replace_nonfinite
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr, join_limited, one_line
from castfit._support.status import Status
from castfit._support.text_tables import Column, TextTable, format_or_never
from castfit._support.views import views
from castfit._support.whole_files import write_atomically
from castfit.drive.run.optima import ObjectiveMeasure
from castfit.drive.run.run_result import UNFINISHED, SearchResult, Trial, build_columns
from castfit.drive.search.incremental.result import Horizon
from castfit.problem.compiled_problem import CHI2

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CATEGORIES = ("correct", "wrong", "integration_error", "optimization_error")
OPTIMUM_RTOL = 1e-3  # relative difference of chi2, or its equivalent, up to which two fits have the same optimum
_NOT_INTEGRATED = (Status.START_FAILED.value, Status.EVALUATION_FAILED.value)
_CUT_SHORT = tuple(status for status in UNFINISHED if not status.startswith("worker"))


@dataclass(frozen=True, repr=False)
class MethodTrial(Trial):
    """One method from one start; see `Trial` for how it ended.

    start : number of the start
    horizons : the course of an incremental fit
    """

    method: str
    start: int
    horizons: tuple[Horizon, ...] = ()

    @property
    def name(self) -> str:
        """Name of the trial in messages."""
        return f"{self.start}, {self.method}"

    @property
    def finished(self) -> bool:
        """Whether it came to an end of its own, which may be that of its worker."""
        return self.status not in _CUT_SHORT

    def category(self, best: float, merit: ObjectiveMeasure | None = None) -> str:
        """Return the category of the trial, given the objective of the best known optimum.

        Without `merit` that is chi2.
        """
        if self.success:
            return "correct" if self.objective <= (merit or ObjectiveMeasure()).level(best, OPTIMUM_RTOL) else "wrong"
        return "integration_error" if self.status in _NOT_INTEGRATED else "optimization_error"


@with_old_names(wrong="n_other_optimum")
@add_brief_repr
@dataclass(frozen=True)
class MethodRow:
    """Summary of the trials of one method.

    case : what sets this row apart from others of the method, such as ``{"mu": 20}`` in a published table
    starts : how many were finished
    success_rate : correct / starts
    median_time, expected_time : seconds per start; and until the global optimum is found, which is the mean time per
        start divided by the success rate, inf if it never was
    iterations, evaluations : medians per start; evaluations of any kind
    equivalent_iterations : median of I_equiv of incremental fits (see `IncrementalResult`), NaN for other methods
    """

    method: str
    case: Mapping[str, Any]
    starts: int
    converged: int
    correct: int
    n_other_optimum: int
    integration_error: int
    optimization_error: int
    success_rate: float
    median_time: float
    expected_time: float
    iterations: float
    evaluations: float
    equivalent_iterations: float

    @classmethod
    def from_trials(
        cls,
        method: str,
        trials: Iterable[MethodTrial],
        best: float,
        *,
        merit: ObjectiveMeasure | None = None,
        case: Mapping[str, Any] | None = None,
    ) -> MethodRow:
        """Count the finished trials of a method."""
        finished_trials = [t for t in trials if t.method == method and t.finished]
        categories = [t.category(best, merit) for t in finished_trials]
        count = {category: categories.count(category) for category in CATEGORIES}
        n_other_optimum = count.pop("wrong")
        seconds = [t.time for t in finished_trials if np.isfinite(t.time)]
        rate = count["correct"] / len(finished_trials) if finished_trials else np.nan
        return cls(
            method=method,
            case=case or {},
            starts=len(finished_trials),
            converged=count["correct"] + n_other_optimum,
            n_other_optimum=n_other_optimum,
            **count,
            success_rate=rate,
            median_time=_median(seconds),
            expected_time=float(np.mean(seconds)) / rate if rate > 0 and seconds else np.inf,
            iterations=_median([t.iterations for t in finished_trials]),
            evaluations=_median([sum(t.evaluations.values()) for t in finished_trials]),
            equivalent_iterations=_median(
                [sum(h.iterations * h.share for h in t.horizons) for t in finished_trials if t.horizons]
            ),
        )

    def record(self) -> dict[str, Any]:
        """Return the record for JSON: the options of the case as separate entries, None for non-finite values."""
        return replace_nonfinite(
            {"method": self.method, **self.case, **{k: v for k, v in vars(self).items() if k != "case"}}
        )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else np.nan


@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class ComparisonResult(SearchResult):
    """Result of a comparison of several methods from the same starts.

    Attributes
    ----------
    rows : tuple of MethodRow
        One per method, in the order in which the methods were given.
    trials : tuple of MethodTrial
        One per start and method, in the order of starts and then of methods; "not_run" where the run ended before.
    drawn : tuple of dict
        The starts, ``{name: value}``.
    best : Result or None
        The best fit that converged.
    best_objective : float
        What counts as the global optimum: the lowest objective of all fits that converged, and the given reference.
    merit : Merit
        What fits are compared by, and which differences of it are none.
    descriptions : dict
        Each method in words.
    stopped : Status or None
        What ended the run early: Ctrl-C, the time limit, the callback.
    message : str
        How the run ended, in words; names what was lost.
    time : float
        Seconds that the run took.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.compare(problem, ["single", "collocation"], starts=[{"k1": 1e-6}, {"k1": 1e-5}])
    >>> [(row.method, row.success_rate) for row in found.rows]
    [('single', 1.0), ('collocation', 1.0)]
    """

    rows: tuple[MethodRow, ...]
    trials: tuple[MethodTrial, ...]
    drawn: tuple[dict[str, float], ...]
    best_objective: float
    merit: ObjectiveMeasure
    descriptions: Mapping[str, str]
    stopped: Status | None
    message: str
    time: float

    @property
    def table(self) -> dict[str, NDArray[Any]]:
        """All trials as columns, each (n_trials,), for instance for ``pandas.DataFrame(result.table)``."""
        cells: dict[str, Callable[[MethodTrial], Any]] = {
            "method": lambda t: t.method,
            "start": lambda t: t.start,
            "status": lambda t: t.status,
            "category": self.category,
            self.measure: lambda t: t.objective,
            "iterations": lambda t: t.iterations,
            "evaluations": lambda t: sum(t.evaluations.values()),
            "time": lambda t: t.time,
        }
        return build_columns(self.trials, cells, values=lambda t: t.values)

    @property
    def measure(self) -> str:
        """Measure by which fits are compared.

        "chi2" if the standard deviations are known, "PEtab's objective" for PEtab problems, "-2 log L" otherwise.
        """
        return self.merit.measure

    @property
    def best_chi2(self) -> float:
        """The `best_objective`, which was called so before there were others than chi2."""
        return self.best_objective

    @property
    def floor(self) -> float:
        """Level of the measure below which differences may be rounding; see `merit`."""
        return self.merit.floor

    def category(self, trial: MethodTrial) -> str:
        """Return the category of a trial, or an empty string if it did not finish."""
        return trial.category(self.best_objective, self.merit) if trial.finished else ""

    def record(self) -> dict[str, Any]:
        """Return rows and optimum as JSON can hold them."""
        return {
            "best": replace_nonfinite(self.best_objective),
            "stopped": None if self.stopped is None else self.stopped.value,
            "rows": [row.record() | {"description": self.descriptions[row.method]} for row in self.rows],
        }

    def to_json(self, path: str | Path) -> None:
        """Write `record` to a file."""
        write_atomically(path, [(json.dumps(self.record(), indent=2, allow_nan=False) + "\n").encode()])

    def to_csv(self, path: str | Path) -> None:
        """Write the rows to a CSV file, one line per method; non-finite values are empty cells."""
        rows = self.record()["rows"]
        file = StringIO(newline="")
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(path, [file.getvalue().encode()])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot the success rate against time; see `castfit.plots.success`."""
        return views().plots.success(self, path)

    def summary(self) -> str:
        """Return the text that `print` shows."""
        below = ["", count_correct(self.best_objective, merit=self.merit), *self.misfit()]
        return "\n".join([self.message, "", *self.sheet().lines, *below])

    def sheet(self, title: str = "") -> TextTable:
        """Return the rows as text, method by method."""
        return TextTable.from_items(self.rows, ("method", lambda row: row.method), *COUNTS, *_WORK, title=title)

    def __repr__(self) -> str:
        rates = join_limited(f"{row.method} {row.correct}/{row.starts}" for row in self.rows)
        return one_line(f"ComparisonResult({self.measure} = {self.best_objective:.6g}; correct: {rates})")


Columns = Sequence[Column[MethodRow]]
COUNTS: Columns = (
    (">starts", lambda row: f"{row.starts}"),
    (">converged", lambda row: f"{row.converged}"),
    (">correct", lambda row: f"{row.correct}" + (f" ({100 * row.success_rate:.0f} %)" if row.starts else "")),
    (">wrong", lambda row: f"{row.n_other_optimum}"),
    (">integration", lambda row: f"{row.integration_error}"),
    (">other", lambda row: f"{row.optimization_error}"),
    (">median", lambda row: _seconds(row.median_time)),
    (">expected", lambda row: _seconds(row.expected_time)),
)
"""Columns of the counts of a row."""
_WORK: Columns = (
    (">iterations", lambda row: f"{row.iterations:g}"),
    (">evaluations", lambda row: f"{row.evaluations:g}"),
)


def _seconds(value: float) -> str:
    return format_or_never(value, ".3g" if value < 1.0 else ".2f") + (" s" if np.isfinite(value) else "")


def objective_tolerance(merit: ObjectiveMeasure) -> str:
    """Return the tolerance, in words, within which an objective counts as that of an optimum."""
    return "0.1 %" if merit.measure == CHI2 else f"{merit.level(0.0, OPTIMUM_RTOL) - max(0.0, merit.floor):.2g}"


def count_correct(*best: float, merit: ObjectiveMeasure | None = None) -> str:
    """Return an explanation of `COUNTS` for the given global optima."""
    values_text, used_merit = ", ".join(f"{value:.6g}" for value in best), merit or ObjectiveMeasure()
    return (
        f"correct: {used_merit.measure} = {values_text} within {objective_tolerance(used_merit)}; "
        "expected time: mean time per start / success rate"
    )


def legend(descriptions: Mapping[str, str]) -> TextTable:
    """Return a table of the methods and their descriptions."""
    return TextTable(("", ""), tuple(descriptions.items()))
