"""A page by itself: one file with everything in it, read without a network, printed well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from castfit._support.arguments import option_mistakes, shorten_repr
from castfit._support.version import __version__
from castfit._support.whole_files import folder_mistakes, write_atomically
from castfit.report.markup import Content, Markup, joined, tag


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
