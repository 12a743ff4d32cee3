"""A page by itself: its elements, all text escaped, and the file with everything in it, read without a network."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from castfit._support.arguments import option_mistakes, shorten_repr
from castfit._support.version import __version__
from castfit._support.whole_files import folder_mistakes, write_atomically

if TYPE_CHECKING:
    from castfit._support.text_tables import TextTable


Content: TypeAlias = Union["Markup", str, Iterable["Content"], None]

_EMPTY = frozenset({"br", "img", "input", "link", "meta"})  # elements without content


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: object) -> Markup:
    """Turn text into HTML."""
    return Markup(html.escape(str(text), quote=True))


def json_block(content: Any) -> Markup:
    """Return JSON for a script element; no name in it can end the element, or open a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def joined(*parts: Content) -> Markup:
    """Return parts one after the other, escaping those that are plain text."""
    pieces: list[str] = []
    for part in parts:
        if part is None:
            continue
        if isinstance(part, Markup):
            pieces.append(str.__str__(part))
        elif isinstance(part, str):
            pieces.append(str.__str__(escaped(part)))
        else:
            pieces += [str.__str__(joined(inner)) for inner in part]
    return Markup("".join(pieces))


def tag(element: str, /, *content: Content, **attributes: object) -> Markup:
    """Return an element.

    Parameters
    ----------
    element : str
        Its name.
    *content : Markup, str, or iterables of these
    **attributes
        ``class_`` and ``for_`` stand for words that Python keeps; an underscore is a hyphen; None and False leave an
        attribute out, True gives it no value.
    """
    attribute_texts: list[str] = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        attribute_texts.append(f" {word}" if value is True else f' {word}="{escaped(value)}"')
    opened = f"<{element}{''.join(attribute_texts)}>"
    return Markup(opened if element in _EMPTY else f"{opened}{joined(*content)}</{element}>")


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


@dataclass(frozen=True)
class Section:
    """A chapter of a page: `mark` is what its address ends with, `short` what the list of contents calls it."""

    mark: str
    title: str
    content: Markup
    short: str = ""


@dataclass(frozen=True)
class ReportHeader:
    """Head of a page: the title, the verdict in a sentence, and the key figures.

    `mood` is "good", "doubtful" or "bad".
    """

    title: str
    kind: str
    mood: str
    verdict: str
    figures: Sequence[tuple[str, Content]]
    notes: str = ""


def page(lead: ReportHeader, sections: Sequence[Section]) -> str:
    """Return the page as HTML."""
    contents = [tag("li", tag("a", s.short or s.title, href=f"#{s.mark}")) for s in sections]
    main = [
        tag("header", _top(lead), id="top"),
        *(tag("section", tag("h2", s.title), s.content, id=s.mark) for s in sections),
        tag("footer", f"Written by castfit {__version__}. This file needs nothing else to be read."),
    ]
    navigation = tag(
        "nav", tag("a", lead.title, href="#top", class_="title"), tag("ul", contents), aria_label="Contents"
    )
    body = [navigation, tag("main", main), tag("script", asset("page.js"))]
    return frame(f"{lead.title}: {lead.kind}", asset("page.css"), joined(*body))


def frame(title: str, style: str, body: Markup) -> str:
    """Return a file of HTML."""
    head_elements = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"castfit {__version__}"),
        tag("title", title),
        tag("style", Markup(style)),
        tag("link", rel="icon", href="data:,"),  # The browser then requests no icon.
    ]
    document = joined(tag("head", head_elements), "\n", tag("body", body))
    return f'<!DOCTYPE html>\n<html lang="en">\n{document}\n</html>\n'


def page_mistakes(path: Any, **texts: Any) -> list[str]:
    """Return error messages for a path that is no place for a page, and for titles that are no text."""
    mistakes = option_mistakes(
        *((name, value, isinstance(value, str), "expected text") for name, value in texts.items())
    )
    if not isinstance(path, (str, Path)):
        return [*mistakes, f"path is {shorten_repr(path)}; expected a file path"]
    if Path(path).suffix.lower() not in (".html", ".htm"):
        return [*mistakes, f"'{path}' is not a file name of a page; it must end in .html"]
    return mistakes + folder_mistakes(path)


def write(path: str | Path, lead: ReportHeader, sections: Sequence[Section]) -> Path:
    """Write a page to a file, and return where it is."""
    target = Path(path)
    write_atomically(target, [page(lead, sections).encode()])
    return target


def _top(lead: ReportHeader) -> Markup:
    figures = [tag("div", tag("dt", name), tag("dd", value)) for name, value in lead.figures if value]
    notes = [tag("p", paragraph) for paragraph in lead.notes.split("\n\n") if paragraph.strip()]
    return joined(
        tag("p", lead.kind, class_="kind"),
        tag("h1", lead.title),
        tag("p", lead.verdict, class_=f"verdict {lead.mood}"),
        tag("dl", figures, class_="key"),
        notes,
    )


def asset(name: str) -> Markup:
    """Return a file beside this one; it is ours, and goes into the page as it is."""
    return Markup(resources.files("castfit.report").joinpath(name).read_text(encoding="utf-8"))
