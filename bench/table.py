"""What tables of the benchmarks have in common: what they take, how rows come about and are shown, what JSON gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from castfit._support.arguments import option_mistakes
from castfit._support.json_codec import replace_nonfinite
from castfit._support.status import Status, suggest
from castfit._support.text_tables import Column, TextTable
from castfit.problems import PaperRow

Item = TypeVar("Item")


@dataclass(frozen=True)
class Report:
    """What a run of a table leaves: sheets and lines to be shown, and what JSON gets."""

    shown: tuple[TextTable | str, ...]
    record: dict[str, Any]


@dataclass(frozen=True)
class FigureRow:
    """One figure beside what it should be; `reference` is NaN where there is none."""

    case: str
    figure: str
    found: float
    reference: float
    note: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of table: cases of problems x methods x starts, told in rows.

    Attributes
    ----------
    names : callable
        Returns the names of all tables of this kind.
    takes : tuple of str
        The options that mean something to them.
    run : callable
        Runs the table of a name with those options that were given as keywords, `progress` besides them.  After Ctrl-C
        the record says ``"stopped": "interrupted"``.
    says : callable
        Returns what the table of a name is about, in a line.
    """

    names: Callable[[], Iterable[str]]
    takes: tuple[str, ...]
    run: Callable[..., Report]
    says: Callable[[str], str] = lambda name: ""


@dataclass(frozen=True)
class CaseRow:
    """What was done in a case, the figure that was reached, what is right, and CPU seconds."""

    case: str
    what: str
    reached: str
    right: str
    seconds: float = math.nan


def cases(name: str, title: str, rows: Iterable[CaseRow]) -> Report:
    """Return the report of cases beside what is right."""
    collected_rows, status = collect_rows(rows)
    sheet = TextTable.from_items(
        collected_rows,
        ("case", lambda row: row.case),
        ("", lambda row: row.what),
        (">reached", lambda row: row.reached),
        (">right", lambda row: row.right),
        (">CPU s", lambda row: f"{row.seconds:.2f}" if math.isfinite(row.seconds) else ""),
        title=title,
    )
    return Report((sheet,), record(name, [asdict(row) for row in collected_rows], **status))


COMMON = ("starts", "seed", "workers", "methods", "max_time")


def reported(name: str, source: str, rows: Iterable[PaperRow]) -> TextTable:
    """Return what a paper reports."""
    columns: tuple[Column[PaperRow], ...] = (("paper", lambda row: row.method), ("", lambda row: row.figures))
    return TextTable.from_items(rows, *columns, title=f"{name}: {source}")


def number_mistakes(*, seed: int | None = None, max_time: float = 1.0, **counts: int) -> list[str]:
    """Find counts below 1, a negative seed, and a time limit that is none."""
    return option_mistakes(
        *((name, count, count >= 1, "give at least 1") for name, count in counts.items()),
        ("seed", seed, seed is None or seed >= 0, "give a number that is not negative"),
        ("max_time", max_time, max_time > 0, "give a positive number of seconds"),
    )


def unknown_mistakes(kind: str, asked: Iterable[str], known: Collection[str]) -> list[str]:
    """Find names that stand for nothing: `kind` is what they should be, such as "method"."""
    return [f"there is no {kind} '{name}': {suggest(name, known)}" for name in asked if name not in known]


def collect_rows(rows: Iterable[Item]) -> tuple[list[Item], dict[str, str]]:
    """Return the rows of a table until Ctrl-C, and what JSON says of that."""
    items: list[Item] = []
    try:
        for row in rows:
            items.append(row)
    except KeyboardInterrupt:
        return items, {"stopped": Status.INTERRUPTED.value}
    return items, {}


def record(table: str, rows: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return what JSON gets of a table: its name, how it was made, and the rows; None for what is not finite."""
    return replace_nonfinite({"table": table, **more, "rows": rows})
