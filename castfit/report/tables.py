"""Tables of a page: sorted by a click on a head, wide ones scroll by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from castfit.report.markup import Content, Markup, joined, tag

if TYPE_CHECKING:
    from castfit._support.text_tables import TextTable

_MAX_CELL_LETTERS = 40  # Letters from which on a cell is broken into lines.
_NUMBER = re.compile(r"[-+−]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")


def table(heads: Sequence[str], rows: Iterable[Sequence[Content]], *, caption: Content = None) -> Markup:
    """Return a table.

    Parameters
    ----------
    heads : sequence of str
        Of columns; one that begins with > is of numbers, one with ? is left out where no cell says anything.
    rows : iterable of sequences of str or Markup
    caption : str or Markup, optional
    """
    body = [list(row) for row in rows]
    visible_columns = [k for k, head in enumerate(heads) if not head.startswith("?") or any(row[k] for row in body)]
    heads = [heads[k].removeprefix("?") for k in visible_columns]
    numeric = [head.startswith(">") for head in heads]
    top = [
        tag("th", tag("button", head.removeprefix(">"), type="button"), class_="number" if right else None, scope="col")
        for head, right in zip(heads, numeric, strict=True)
    ]
    lines = [
        tag("tr", (_cell(row[k], right) for k, right in zip(visible_columns, numeric, strict=True))) for row in body
    ]
    table_parts = [tag("caption", caption) if caption else None, tag("thead", tag("tr", top)), tag("tbody", lines)]
    return tag("div", tag("table", table_parts, class_="sortable"), class_="scroll")


def sheet(text_table: TextTable) -> Markup:
    """Convert a terminal table to HTML."""
    return table(text_table.heads, text_table.rows, caption=text_table.title or None)


def facts(pairs: Iterable[tuple[str, Content]]) -> Markup:
    """Return a table with one name and its value per row; empty values are left out."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", _format_cell(value))) for name, value in pairs if value]
    return tag("div", tag("table", rows, class_="facts"), class_="scroll")


def _cell(content: Content, numeric: bool) -> Markup:
    """Return a cell with the number that it is sorted by, if it begins with one."""
    sort = None
    if isinstance(content, str) and not isinstance(content, Markup):
        number_match = _NUMBER.match(content.strip().lstrip("[("))
        words = {"inf": "1e308", "-inf": "-1e308", "never": "1e308"}
        sort = number_match[0].replace("−", "-") if number_match else words.get(content.strip())
    cell_markup = joined(_format_cell(content))
    kind = "number" if numeric else "text" if len(re.sub(r"<[^>]*>", "", cell_markup)) > _MAX_CELL_LETTERS else None
    return tag("td", cell_markup, class_=kind, data_sort=sort)


def _format_cell(content: Content) -> Content:
    return _minus(content) if isinstance(content, str) and not isinstance(content, Markup) else content


def _minus(text: str) -> str:
    """Write a minus sign where a number begins with a hyphen."""
    return re.sub(r"(?<![\w.)])-(?=\d)", "−", text)
