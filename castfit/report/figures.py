"""Figures in a page: vector graphics whose parts can be switched on and off, and enlarged; sketches by hand."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.plots._canvas import BLUE, RED
from castfit.report.page import Content, Markup, tag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array


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


WIDTH, _HEIGHT = 336, 250  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 26, 40
_DARK = "#404040"
_MAX_TICKS = 5  # Intervals between the ticks of an axis, about.
_AXIS_MARGIN = 0.08  # Margin above and below the data, as a fraction of their range.


@dataclass(frozen=True, eq=False)
class SketchPanel:
    """A curve y (n,) over x (n,), bands of half widths (n,) with their opacity, and marks (x, y, text) on it."""

    title: str
    axis: str
    x: Array
    y: Array
    bands: Sequence[tuple[Array, float]]
    marks: Sequence[tuple[float, float, str]]

    def render(self, offset: float) -> list[Markup]:
        """Return the parts of the panel, moved to the right."""
        ends = np.concatenate([self.y, *(self.y + sign * reach for reach, _ in self.bands for sign in (-1, 1))])
        low, high = float(ends.min()), float(ends.max())
        margin = _AXIS_MARGIN * ((high - low) or abs(high) or 1.0)
        low, high, first_x, last_x = low - margin, high + margin, float(self.x[0]), float(self.x[-1])
        plot_width, plot_height, left_edge = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM, offset + _LEFT

        def across(x: Array | float) -> Array:
            return left_edge + plot_width * (np.asarray(x, dtype=float) - first_x) / ((last_x - first_x) or 1.0)

        def down(y: Array | float) -> Array:
            return _TOP + plot_height * (high - np.asarray(y, dtype=float)) / (high - low)

        def path(x: Array, y: Array) -> str:
            return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across(x), down(y), strict=True))

        bottom, parts = _HEIGHT - _BOTTOM, list[Markup]()
        for reach, opacity in self.bands:
            outline = path(np.append(self.x, self.x[::-1]), np.append(self.y + reach, (self.y - reach)[::-1]))
            parts.append(tag("polygon", points=outline, fill=BLUE, fill_opacity=opacity))
        parts.append(tag("polyline", points=path(self.x, self.y), fill="none", stroke=_DARK))
        for x, y, text in self.marks:
            position = f"{float(across(x)):.1f}"
            parts += [tag("circle", cx=position, cy=f"{float(down(y)):.1f}", r=3.5, fill=RED),
                      tag("line", x1=position, x2=position, y1=bottom, y2=bottom - 14, stroke=RED),
                      tag("text", text, x=position, y=bottom - 18, text_anchor="middle", fill=RED)]  # fmt: skip
        for tick in ticks(first_x, last_x):
            position = f"{float(across(tick)):.1f}"
            parts += [tag("line", x1=position, x2=position, y1=bottom, y2=bottom + 4, stroke=_DARK),
                      tag("text", f"{tick:.6g}", x=position, y=bottom + 16, text_anchor="middle")]  # fmt: skip
        for tick in ticks(low, high):
            position = float(down(tick))
            parts += [tag("line", x1=left_edge - 4, x2=left_edge, y1=f"{position:.1f}", y2=f"{position:.1f}",
                          stroke=_DARK),
                      tag("text", f"{tick:.4g}", x=left_edge - 7, y=f"{position + 4:.1f}",
                          text_anchor="end")]  # fmt: skip
        frame = f"{left_edge},{_TOP} {left_edge},{bottom} {left_edge + plot_width},{bottom}"
        parts += [tag("polyline", points=frame, fill="none", stroke=_DARK),
                  tag("text", self.title, x=left_edge, y=_TOP - 10, font_size=13),
                  tag("text", self.axis, x=left_edge + plot_width / 2, y=_HEIGHT - 6,
                      text_anchor="middle")]  # fmt: skip
        return parts


def ticks(low: float, high: float) -> Array:
    """Return round numbers between two."""
    raw = (high - low) / _MAX_TICKS or 1.0
    size = float(10.0 ** np.floor(np.log10(raw)))
    step = size * next(k for k in (1.0, 2.0, 2.5, 5.0, 10.0) if k * size >= raw * (1 - 1e-9))
    positions = step * np.arange(int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9)) + 1, dtype=float)
    return np.where(np.abs(positions) < 1e-9 * step, 0.0, positions)


def sketch(panels: Sequence[SketchPanel]) -> Markup:
    """Return panels beside each other as a vector graphic."""
    parts = [part for i, panel in enumerate(panels) for part in panel.render(i * WIDTH)]
    return tag(
        "svg", tag("g", parts, font_family="sans-serif", font_size=12, fill=_DARK), role="img",
        viewBox=f"0 0 {len(panels) * WIDTH} {_HEIGHT}", preserveAspectRatio="xMidYMid meet",
        xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip
