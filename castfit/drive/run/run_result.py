"""Common parts of runs of many fits: rows of trials, results with a best fit, columns, and summary sentences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from castfit._support.process_pool import LOST, lost_task_status
from castfit._support.reprs import one_line
from castfit._support.status import SOLVED, InputError, Status, raise_if_mistakes
from castfit._support.text_tables import Column, TextTable
from castfit._support.views import views
from castfit.drive.run.checkpoint import checkpoint_guard, read, write
from castfit.drive.run.optima import Optimum
from castfit.problem.compiled_problem import CHI2
from castfit.problem.problem import Posable, kind_mistakes
from castfit.result.result import Result

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

Row = TypeVar("Row")

_MAX_SHOWN_OPTIMA = 10  # number of optima that a summary lists
# Sentences about the events that end a run early.
STOPS = {
    Status.INTERRUPTED: "Interrupted by the user.",
    Status.STOPPED_BY_CALLBACK: "Stopped by the callback.",
    Status.MAX_TIME: "The time limit was reached.",
    Status.WORKERS_LOST: "The connection to the workers was lost.",
}


CUT_OFF = "cut_off"
# Statuses of trials without a regular end: not run, cut off, or lost.
UNFINISHED = ("not_run", CUT_OFF, "worker_died", "worker_hung", Status.INTERRUPTED.value)


class FitRecord:
    """Row of one fit among many; its `status` is a value of `Status` or one of `UNFINISHED`."""

    status: str

    @property
    def success(self) -> bool:
        """Whether the fit ended in a solution."""
        return self.status in SOLVED

    @property
    def finished(self) -> bool:
        """Whether the fit ended regularly, successful or not."""
        return self.status not in UNFINISHED

    def with_lost_task(self, outcome: Any) -> Self:
        """Return the row with the cause of a lost fit.  Raise the error if the cause is misuse."""
        if isinstance(outcome, InputError):
            raise outcome
        status, message = lost_task_status(outcome)
        row: Any = self
        return replace(row, status=status, message=message)


@dataclass(frozen=True)
class FitAnswer:
    """Result of one fit of a run.

    result : the fit
    iterations, evaluations : counts of all fits on the way to it
    horizons : horizons of an incremental fit
    seconds : seconds on the wall clock
    cut : whether the end of the run interrupted the fit
    """

    result: Result
    iterations: int
    evaluations: Mapping[str, int]
    horizons: tuple[Any, ...] = ()
    seconds: float = np.nan
    cut: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial(FitRecord, ABC):
    """A fit from a start, as a row of a table.

    status : a value of `Status`; or "worker_died", "worker_hung", "cut_off" (by the time limit of the whole run),
        "error", "not_run"
    message : how it ended, in words
    objective : what fits are compared by, the lower the better; `Result.objective`
    measure : how that is called: "chi2" where sigmas are known, else "-2 log L", or "PEtab's objective"
    chi2 : sum of squared weighted residuals; `Result.chi2`
    values : where it ended by name, natural scale; empty if there was no fit
    evaluations : how often the model was solved for "values", "jacobians" and "hessians"
    time : seconds
    """

    status: str = "not_run"
    message: str = "Not run."
    objective: float = np.nan
    measure: str = CHI2
    chi2: float = np.nan
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    iterations: int = 0
    evaluations: Mapping[str, int] = field(default_factory=dict[str, int])
    time: float = np.nan

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the trial in messages, after "start"."""

    @property
    def sentence(self) -> str:
        """One-line summary of how the fit ended."""
        took = f"{self.iterations} iterations, {self.time:.2f} s"
        return f"start {self.name}: {self.status}, {self.measure} = {self.objective:.6g}, {took}"

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({self.sentence})")

    def with_outcome(self, outcome: Any) -> Self:
        """Return the row with the outcome of its task: a `FitAnswer`, or the cause of its loss."""
        if not isinstance(outcome, FitAnswer):
            return self.with_lost_task(outcome)
        result = outcome.result
        return replace(
            self,
            status=CUT_OFF if outcome.cut else result.status.value,
            message="The time limit of the run was reached." if outcome.cut else result.message,
            objective=result.objective,
            measure=result.measure,
            chi2=result.chi2,
            values=result.values,
            iterations=outcome.iterations,
            evaluations=outcome.evaluations,
            time=outcome.seconds,
        )


def objective_measure(trials: Iterable[Trial]) -> str:
    """Return the name of the measure by which fits are compared."""
    return next((t.measure for t in trials if t.measure != CHI2), CHI2)


def termination_message(
    stop_status: Status | None, trials: Sequence[Trial], n_finished: int, noun: str, *extra_sentences: str
) -> str:
    """Build the message about the end of a run.

    It contains the reason, the number of ended fits, the lost fits, and other sentences.
    """
    total = len(trials)
    count = f"All {total} {noun} ended." if n_finished == total else f"{n_finished} of {total} {noun} ended."
    unrun_messages = sorted({t.message for t in trials if t.status == "not_run"})
    stop_sentences, unrun_sentences = ([STOPS[stop_status]], []) if stop_status else ([], unrun_messages)
    lost_sentences = (f"Start {t.name}: {t.message}" for t in trials if t.status in LOST)
    return " ".join(
        part for part in (*stop_sentences, count, *unrun_sentences, *lost_sentences, *extra_sentences) if part
    )


@dataclass(frozen=True, eq=False, repr=False)
class RunResult(ABC):
    """Result of a run of fits; its text is its summary."""

    @abstractmethod
    def summary(self) -> str:
        """Return the text that `print` shows."""

    def __str__(self) -> str:
        return self.summary()

    def with_problem(self, problem: Posable) -> Self:
        """Return the result with the problem that it answers, after loading; see `Result.with_problem`."""
        raise_if_mistakes("with_problem", kind_mistakes(problem, may_be_fixed=True))
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return replace(self, **{n: fit.with_problem(problem) for n, fit in values.items() if isinstance(fit, Result)})


class SavedResult(RunResult):
    """Result whose file is a checkpoint of its run.

    `header` identifies the problem and the options of the records; without it the file only names the driver.
    """

    _driver: ClassVar[str]
    _contents: ClassVar[str]
    header: Mapping[str, Any]

    @abstractmethod
    def _records(self) -> Iterable[Mapping[str, Any]]:
        """Return the records of the lines of the file."""

    @classmethod
    @abstractmethod
    def _restored(cls, header: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Self | None:
        """Build a result from the lines of a file; return None if they are not a result."""

    def use_all(self) -> None:
        """Compute all that needs no problem, which raises an error if entries of the file do not fit together."""
        self.summary()

    def save(self, path: str | Path) -> None:
        """Write the result without its problem.  The file is a checkpoint that a later run can continue."""
        write(path, self.header or {"driver": self._driver}, self._records())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a file written by `save`, or the checkpoint of a run, finished or not; then see `with_problem`.

        Raises
        ------
        InputError
            If the file is not a checkpoint of such a run, or is damaged.
        """
        header, records, _ = read(path)
        is_same_driver = header is not None and header.get("driver") == cls._driver
        with checkpoint_guard(f"{cls.__name__}.load", path):
            result = cls._restored(header, records) if header is not None and is_same_driver else None
            if result is not None:
                result.use_all()
        if result is None:
            raise InputError(
                f"{cls.__name__}.load", [f"'{path}' does not contain {cls._contents}; choose another file"]
            )
        return result


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult(RunResult):
    """Result of a search by many fits; `best` is None if no fit produced a usable result."""

    best: Result | None
    instead: ClassVar[str] = "pass its best fit, .best"  # advice if a fit is expected

    @property
    def success(self) -> bool:
        """Whether the best fit is a solution: an optimum, at least a local one."""
        return self.best is not None and self.best.success

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write a page with the result of the search and a report on the best fit; see `Result.report`.

        Parameters
        ----------
        path : str or Path
            Where to write the page; it ends in ``.html``.
        **options
            Of `castfit.report.report`: ``title=`` and ``notes=`` stand above the page.
        """
        return views().reports.report(self, path, **options)

    def _repr_html_(self) -> str:
        return views().reports.card(self)

    def misfit(self) -> list[str]:
        """Return a sentence about the misfit of the best optimum or its sigmas, if there is any."""
        if self.best is None or not self.best.success or not self.best.goodness.amiss:
            return []
        none = "" if self.best.goodness.described else "No optimum found fits the data. "
        return [f"{none}{self.best.goodness.sentence}"]

    def closing(self) -> list[str]:
        """Return the best fit's summary under a title."""
        title = "best:" if self.success else "best point (not a solution):"
        return [] if self.best is None else ["", title, self.best.summary()]


def optima_lines(
    optima: Sequence[Optimum], total: int, *, show_first_start: bool = False, measure: str = CHI2
) -> list[str]:
    """Return the table of the lowest optima: number of finds, first start, and varying quantities."""
    if not optima:
        return []
    columns: list[Column[Optimum]] = [
        (f">{measure}", lambda o: f"{o.objective:.8g}"),
        (">found", lambda o: f"{len(o.starts)} of {total}"),
        (f"differ at equal {measure}", lambda o: ", ".join(o.varying)),
    ]
    if show_first_start:
        columns.insert(2, (">first by start", lambda o: f"{min(o.starts)}"))
    n_more = len(optima) - _MAX_SHOWN_OPTIMA
    remainder = [f"and {n_more} more optima, up to {measure} = {optima[-1].objective:.8g}"] if n_more > 0 else []
    return [*TextTable.from_items(optima[:_MAX_SHOWN_OPTIMA], *columns).lines, *remainder, ""]


def format_counts(label: str, counts: Mapping[str, int]) -> list[str]:
    """Return a line of counts by their names; nothing if there are none."""
    return [f"{label}: " + ", ".join(f"{n} {name}" for name, n in counts.items())] if counts else []


def build_columns(
    rows: Sequence[Row],
    cells: Mapping[str, Callable[[Row], Any]],
    **mappings: Callable[[Row], Mapping[str, float] | None],
) -> dict[str, NDArray[Any]]:
    """Return rows as columns, each (n_rows,).

    cells : functions from a row to the value of a column, by name of the column
    **mappings : functions from a row to values by name, for one column per name; NaN if a row has no value.  The column
        of k is "k" for the mapping `values`, and "start k" for the mapping `start`.
    """
    columns_by_name = {name: np.array([cell(row) for row in rows]) for name, cell in cells.items()}
    for key, values in mappings.items():
        row_values = [values(row) or {} for row in rows]
        for name in dict.fromkeys(name for entry in row_values for name in entry):
            title = name if key == "values" else f"{key} {name}"
            columns_by_name[title] = np.array([entry.get(name, np.nan) for entry in row_values])
    return columns_by_name
