"""Numbers and tables in plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from castfit._support.records import dataclass
from castfit._support.views import views

Item = TypeVar("Item")
Column = tuple[str, Callable[[Item], str]]
"""The head of a column, which begins with > to align it to the right, and what it shows of a row."""


@dataclass(frozen=True)
class TextTable:
    """Rows of text below heads, and a title above them."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    @classmethod
    def from_items(cls, items: Iterable[Item], *columns: Column[Item], title: str = "") -> TextTable:
        """Make a sheet with a row for each item."""
        rows = tuple(tuple(cell(item) for _, cell in columns) for item in items)
        return cls(tuple(head for head, _ in columns), rows, title)

    @property
    def lines(self) -> list[str]:
        """The sheet as plain text, without its title."""
        sides = "".join(">" if head.startswith(">") else "<" for head in self.heads)
        return align_columns([[head.removeprefix(">") for head in self.heads], *self.rows], sides)


class TabularReport:
    """Base of results made of sheets and sentences, `parts`: a notebook shows tables and paragraphs."""

    @property
    def parts(self) -> Sequence[TextTable | str]:
        """The sheets and sentences, in their order."""
        raise NotImplementedError

    def __str__(self) -> str:
        lines = ([*part.lines, ""] if isinstance(part, TextTable) else [part] for part in self.parts)
        return "\n".join(line for part_lines in lines for line in part_lines)

    def _repr_html_(self) -> str:
        return views().reports.card(self)


def format_to_error(value: float, error: float) -> str:
    """Write a value to the third digit of its error."""
    if not (np.isfinite(value) and np.isfinite(error) and error > 0):
        return f"{value:.6g}"
    decimals = 2 - int(np.floor(np.log10(error)))
    if decimals >= 0 and 1e-3 <= max(abs(value), error) < 1e7:
        return f"{value:.{decimals}f}"
    digits = int(np.clip(decimals + np.floor(np.log10(abs(value) or 1.0)) + 1, 4, 12))
    return f"{value:.{digits}g}"


def format_interval(interval: tuple[float, float], value: float, separator: str = ", ") -> str:
    """Write both ends of an interval about a value, each to the third digit of half its distance from the value.

    An end of another magnitude than the value, as on a logarithmic scale, keeps two digits of its own.  Return "-" if
    an end is not known.
    """
    if np.isnan(interval).any():
        return "-"
    widths = (min(0.5 * abs(end - value), 10.0 * abs(end) or np.inf) for end in interval)
    ends = separator.join(format_to_error(end, width) for end, width in zip(interval, widths, strict=True))
    return f"[{ends}]" if separator == ", " else ends


def format_or_never(value: float, form: str) -> str:
    """Write a number, or a word for infinity."""
    return format(value, form) if np.isfinite(value) else "never"


def align_columns(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Align columns to the left (<) or right (>), with a rule below the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
