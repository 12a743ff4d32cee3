"""Figures in a page: vector graphics whose parts can be switched on and off, and enlarged."""

from __future__ import annotations

import base64
import io
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from castfit.report.page import Content, Markup, tag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

_PIXELS_PER_INCH = 112  # Pixels of the page per inch of a figure: text of 8 points is 12 pixels high.
_MAX_SVG_CHARACTERS = 600_000  # Characters of a vector graphic at most; a larger figure becomes an image.
_CHARACTERS_PER_MARK = 60  # Characters that one mark of a series needs at least.
_IMAGE_DOTS_PER_INCH = 110  # Dots per inch of an image.
_LABELLED = re.compile(r'\b(id|xlink:href|href)="(#?)([^"]+)"')
_STYLE = re.compile(r"<style[^>]*>.*?</style>|<metadata>.*?</metadata>", re.DOTALL)


def figure(picture: Figure, number: int, caption: Content) -> Markup:
    """Return a figure with its caption, its switches and its buttons.

    Parameters
    ----------
    picture : Figure
        One of castfit.plots, whose parts have names.
    number : int
        Number of the figure in the page, which makes identifiers of its elements unique.
    caption : str or Markup
    """
    matplotlib_figure: Any = picture
    width, _ = matplotlib_figure.get_size_inches()
    return framed(
        _vector(matplotlib_figure, number) or _image(matplotlib_figure),
        width * _PIXELS_PER_INCH,
        _names(matplotlib_figure),
        number,
        caption,
    )


def framed(graphic: Markup, width: float, series: Mapping[str, str], number: int, caption: Content) -> Markup:
    """Return a graphic, of so many pixels and with series to be switched, as the figure of a number."""
    switches = [
        tag("label", tag("input", type="checkbox", checked=True, data_series=f"f{number}-{key}"), " ", name)
        for name, key in series.items()
    ]
    buttons = [
        tag("button", sign, type="button", data_zoom=action, title=title, aria_label=title)
        for sign, action, title in (("+", "in", "enlarge"), ("−", "out", "reduce"), ("⟲", "reset", "as it was"))
    ]
    tools = tag(
        "div",
        tag("div", switches if len(switches) > 1 else [], class_="switches"),
        tag("div", buttons, class_="zoom"),
        class_="tools",
    )
    about = tag("figcaption", tag("b", f"Figure {number}. "), caption)
    view = tag("div", graphic, class_="view")
    size = f"--natural: {width:.0f}px"
    return tag("figure", tools, view, about, id=f"figure-{number}", style=size)


def is_picture(candidate: object) -> bool:
    """Check whether an object is a figure, of castfit or of matplotlib."""
    return any(kind.__module__ == "matplotlib.figure" and kind.__name__ == "Figure" for kind in type(candidate).__mro__)


def _names(picture: Any) -> dict[str, str]:
    """Return the named parts of a figure; a figure of matplotlib has none."""
    return picture.series if hasattr(picture, "series") else {}


def _vector(picture: Any, number: int) -> Markup | None:
    """Return a figure as SVG; None if it is too large."""
    from castfit.plots._figure import arrange, ticks_once

    lines = (line for axes in picture.axes for line in axes.lines if line.get_marker() not in ("None", "", None))
    if (
        _CHARACTERS_PER_MARK * sum(len(line.get_xdata()) for line in lines) > _MAX_SVG_CHARACTERS
    ):  # before all of it is written
        return None
    library: Any = import_module("matplotlib")
    buffer = io.StringIO()
    with ticks_once(picture), library.rc_context({"svg.fonttype": "none", "svg.hashsalt": "castfit"}):
        arrange(picture)
        picture.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    text = buffer.getvalue()
    if len(text) > _MAX_SVG_CHARACTERS:
        return None
    text = _STYLE.sub("", text[text.index("<svg") :])
    series = set(_names(picture).values())

    def number_attribute(match: re.Match[str]) -> str:
        attribute, mark, name = match.groups()
        if attribute == "id" and name in series:  # several parts may show the same
            return f'class="f{number}-{name}"'
        return f'{attribute}="{mark}f{number}-{name}"' if mark or attribute == "id" else match[0]

    text = _LABELLED.sub(number_attribute, text)
    text = text.replace("url(#", f"url(#f{number}-")
    opening_tag, body = text.split(">", 1)
    opening_tag = re.sub(r' (width|height)="[^"]*"', "", opening_tag)
    return Markup(f'{opening_tag} role="img" preserveAspectRatio="xMidYMid meet">{body}')


def _image(picture: Any) -> Markup:
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=_IMAGE_DOTS_PER_INCH, facecolor="white")
    return tag("img", alt="figure", src=f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}")
