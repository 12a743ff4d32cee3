"""What the results of runs of many fits share: the best fit, columns of rows, and sentences of their summaries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from castfit._text import aligned
from castfit.drive.optima import Optimum
from castfit.problem import Posable
from castfit.result import Result
from castfit.status import SOLVED, Status

if TYPE_CHECKING:
    from typing_extensions import Self

Row = TypeVar("Row")

_MOST_SHOWN = 10


STOPS = {
    Status.INTERRUPTED: "Interrupted from the keyboard.",
    Status.STOPPED_BY_CALLBACK: "The callback asked to stop.",
    Status.MAX_TIME: "The time limit was reached.",
}
"""What ends a run early, in words."""


def ending(stopped: Status | None, finished: int, total: int, what: str, unrun: Iterable[str], *others: str) -> str:
    """Say how a run ended: what stopped it or else why some were not run, how many ended, and other sentences."""
    count = f"All {total} {what} ended." if finished == total else f"{finished} of {total} {what} ended."
    before, after = ([STOPS[stopped]], []) if stopped else ([], sorted(set(unrun)))
    return " ".join(part for part in (*before, count, *after, *others) if part)


class Ended:
    """A fit among many; its `status` is a value of `Status`, or tells what befell it."""

    status: str

    @property
    def success(self) -> bool:
        """Whether it ended in a solution."""
        return self.status in SOLVED


@dataclass(frozen=True, eq=False, repr=False)
class Found(ABC):
    """What many fits found; `best` is None if none came to an end that counts."""

    best: Result | None

    @property
    def success(self) -> bool:
        """Whether the best fit is a solution: an optimum, at least a local one."""
        return self.best is not None and self.best.success

    def with_problem(self, problem: Posable) -> Self:
        """Return the result with the problem that it answers, after loading; see `Result.with_problem`."""
        return replace(self, best=None if self.best is None else self.best.with_problem(problem))

    @abstractmethod
    def summary(self) -> str:
        """Return the text that `print` shows."""

    def __str__(self) -> str:
        return self.summary()

    def misfit(self) -> list[str]:
        """Return a sentence if even the best optimum does not describe the data; nothing otherwise."""
        if self.best is None or not self.best.success or self.best.goodness.described:
            return []
        return [f"No optimum that was found describes the data. {self.best.goodness.sentence}"]

    def closing(self) -> list[str]:
        """Return the best fit's summary under a title."""
        title = "best:" if self.success else "best point, though no solution:"
        return [] if self.best is None else ["", title, self.best.summary()]


def optima_lines(optima: Sequence[Optimum], total: int, *, first: bool = False) -> list[str]:
    """Return the table of the lowest optima: how many of all fits found each, which one first, what differs there."""
    if not optima:
        return []
    rows = [("chi2", "found", *(["first by start"] if first else []), "differ at equal chi2")]
    for o in optima[:_MOST_SHOWN]:
        by = [str(min(o.starts))] if first else []
        rows.append((f"{o.chi2:.8g}", f"{len(o.starts)} of {total}", *by, ", ".join(o.varying)))
    more = len(optima) - _MOST_SHOWN
    rest = [f"and {more} more, up to chi2 = {optima[-1].chi2:.8g}"] if more > 0 else []
    return [*aligned(rows, ">" * (len(rows[0]) - 1) + "<"), *rest, ""]


def counted(what: str, counts: Mapping[str, int]) -> list[str]:
    """Return a line of counts by their names; nothing if there are none."""
    return [f"{what}: " + ", ".join(f"{n} {name}" for name, n in counts.items())] if counts else []


def columns(
    rows: Sequence[Row], cells: Mapping[str, Callable[[Row], Any]], **named: Callable[[Row], Mapping[str, float] | None]
) -> dict[str, NDArray[Any]]:
    """Return rows as columns, each (n_rows,).

    Parameters
    ----------
    rows : sequence
    cells : mapping
        From the name of a column to what it holds of a row.
    **named : functions
        Values by name in each row, for a column per name, NaN where a row has none; "start k" is the column of k in
        what is given as `start`, and "k" that in `values`.
    """
    found = {name: np.array([cell(row) for row in rows]) for name, cell in cells.items()}
    for key, values in named.items():
        held = [values(row) or {} for row in rows]
        for name in dict.fromkeys(name for entry in held for name in entry):
            title = name if key == "values" else f"{key} {name}"
            found[title] = np.array([entry.get(name, np.nan) for entry in held])
    return found
