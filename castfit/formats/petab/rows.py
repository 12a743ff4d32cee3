"""Tables as rows of text, each of which knows its file and line, so that every mistake can name its place."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from castfit._support.status import suggest

_EMPTY = frozenset({"", "nan", "na", "n/a", "null", "none", "#n/a", "<na>"})
"""What stands for nothing in a table, in small letters; as pandas reads them."""


@dataclass(frozen=True)
class Row:
    """One line of a table: its cells by column, without those that are empty."""

    file: str
    line: int
    cells: Mapping[str, str]

    @property
    def where(self) -> str:
        """File and line, as messages begin."""
        return f"{self.file}, line {self.line}"

    def text(self, column: str, otherwise: str = "") -> str:
        """Return a cell, or something else where it is empty."""
        return self.cells.get(column, otherwise)

    def number(self, column: str, mistakes: list[str], otherwise: float | None = None) -> float:
        """Return a cell as a number; NaN, and a mistake, where it is none."""
        given = self.cells.get(column)
        if given is None and otherwise is not None:
            return otherwise
        try:
            return float(given or "")
        except ValueError:
            said = "is empty" if given is None else f"is '{given}'"
            mistakes.append(f"{self.where}: {column} {said}; give a number")
            return float("nan")


def read_rows(
    folder: Path, files: Iterable[str], needed: Iterable[str], mistakes: list[str], *, what: str
) -> tuple[Row, ...]:
    """Read the tables of one kind, one after the other.

    Parameters
    ----------
    folder : Path
        Where the YAML file is, to which names of files are relative.
    files : names of files
    needed : names of columns that must be there
    mistakes : list of str
        Gets what is wrong: missing files and columns, lines that are too long.
    what : str
        The kind of table, for messages.
    """
    out: list[Row] = []
    for name in files:
        path = folder / name
        if not path.is_file():
            mistakes.append(f"{name}: there is no such file of {what} in {folder}")
            continue
        out += _read(path, name, tuple(needed), mistakes)
    return tuple(out)


def _read(path: Path, name: str, needed: tuple[str, ...], mistakes: list[str]) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        mistakes.append(f"{name}: it is no text in UTF-8 ({error}); save it so")
        return []
    reader = csv.reader(text.splitlines(), delimiter="\t")
    header = [cell.strip() for cell in next(reader, list[str]())]
    mark = next((c for c in ",;" if len(header) == 1 and header[0].count(c) >= len(needed) - 1 > 0), None)
    if mark is not None:
        mistakes.append(f"{name}: its columns are separated by '{mark}'; a table of PEtab has tabs between them")
        return []
    missing = [column for column in needed if column not in header]
    mistakes += [f"{name}: column '{c}' is missing; {suggest(c, [h for h in header if h])}" for c in missing]
    mistakes += [f"{name}: column '{c}' is there twice" for c in dict.fromkeys(header) if c and header.count(c) > 1]
    if missing:
        return []
    rows: list[Row] = []
    for cells in reader:
        stripped = [cell.strip() for cell in cells]
        if not any(stripped):
            continue
        if len(stripped) > len(header) and any(stripped[len(header) :]):
            mistakes.append(
                f"{name}, line {reader.line_num}: it has {len(stripped)} cells, but the table has {len(header)} columns"
            )
        known = {c: v for c, v in zip(header, stripped, strict=False) if c and v.lower() not in _EMPTY}
        rows.append(Row(name, reader.line_num, known))
    return rows
