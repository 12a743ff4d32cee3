"""Figures that pyplot shows like everybody's, and that notebooks show once.

Imported when a figure is made: it needs matplotlib, the rest of castfit does not; pyplot only where one is shown.
"""

from __future__ import annotations

import base64
import io
import re
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter
from matplotlib.transforms import Bbox

_MAX_TICKS = 9  # Ticks that matplotlib chooses for an axis at most.
_PIXEL_RATIO = 2.0  # Pixels of the image per pixel of the page.


class ManagedFigure(Figure):
    """A matplotlib figure that pyplot is given once it is drawn; the last one of a notebook's cell is shown once."""

    @classmethod
    def with_size(cls, width: float, height: float, dots_per_inch: float) -> ManagedFigure:
        """Make a figure of the given size in inches."""
        figure: Any = cls((width, height), dots_per_inch, layout="constrained")
        FigureCanvasAgg(figure)
        return figure

    def give_to_pyplot(self) -> None:
        """Register the figure with pyplot, so that ``plt.show()`` shows it and ``plt.close()`` closes it.

        Windows belong to the main thread.  Without windows, as on a machine without a display, the figure is unchanged.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            pyplot: Any = import_module("matplotlib.pyplot")
            pyplot.figure(FigureClass=self._itself)
        except (ImportError, RuntimeError):
            return

    def _itself(self, *_: Any, **__: Any) -> ManagedFigure:
        return self

    def label_artists(self, name: str, *artists: Any) -> None:
        """Assign artists to a named series that a page can switch on and off; see castfit.report.figures."""
        key = self.series.setdefault(name, f"series-{len(self.series)}")
        for artist in artists:
            artist.set_gid(key)

    @property
    def series(self) -> dict[str, str]:
        """Names of the displayed series, with their identifiers in a vector graphic."""
        if not hasattr(self, "_series"):
            self._series: dict[str, str] = {}
        return self._series

    def _ipython_display_(self) -> None:
        """Take the figure, which a notebook is about to show, from those that it shows at the end of the cell."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and "inline" in pyplot.get_backend():
            pyplot.close(self)
        raise NotImplementedError  # IPython then uses the representations below.

    def _repr_png_(self) -> bytes:
        return self._render_png()

    def _repr_html_(self) -> str:  # the older hook, which documentation tools ask for
        width, _ = self.get_size_inches() * self.dpi / _PIXEL_RATIO
        data = base64.b64encode(self._render_png()).decode()
        style = f"width: {width:.0f}px; max-width: 100%; height: auto;"
        return f'<img alt="figure" style="{style}" src="data:image/png;base64,{data}">'

    def _render_png(self) -> bytes:
        buffer = io.BytesIO()
        untyped: Any = self
        untyped.savefig(buffer, format="png", facecolor="white")
        return buffer.getvalue()

    def __repr__(self) -> str:
        width, height = self.get_size_inches()
        return f"<Picture of {width:.3g} x {height:.3g} inches with {len(self.axes)} axes>"


class PlainTicks(Formatter):
    """Labels of ticks in letters, 10⁻³ and 4.02×10², which cost a fraction of the same as formulas."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, x: float, pos: int | None = None) -> str:
        return _in_letters(self._inner(x, pos))

    def format_ticks(self, values: Any) -> list[str]:
        """Write all labels of an axis."""
        return [_in_letters(text) for text in self._inner.format_ticks(values)]

    def get_offset(self) -> str:
        """Return the common factor of all labels."""
        return _in_letters(self._inner.get_offset())


def arrange(figure: Any) -> None:
    """Place the parts of a figure that is to be written; to write it would draw it once more for that."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            major, minor = axis.get_major_formatter(), axis.get_minor_formatter()
            formulas = axis.get_scale() == "log" or getattr(major, "get_useMathText", bool)()
            if formulas and not isinstance(major, PlainTicks):  # axes may share theirs
                axis.set_major_formatter(PlainTicks(major))
                axis.set_minor_formatter(PlainTicks(minor))
    engine = figure.get_layout_engine()
    if engine is not None:
        with _margins_once(figure):
            engine.execute(figure)
        figure.set_layout_engine(None)


@contextmanager
def _margins_once(figure: Any) -> Generator[None, None, None]:
    """Measure the margins of panels once for both passes of a layout, unless the number of ticks may change.

    A pass measures every label of every tick, and panels hardly change their size in the second one.
    """
    free = [a for a in figure.axes if a.get_aspect() == "auto" and a.get_box_aspect() is a.get_axes_locator() is None]
    for axes in free:
        axes.get_tightbbox = _reaching(axes, axes.get_tightbbox)
    try:
        yield
    finally:
        for axes in free:
            del axes.get_tightbbox


def _reaching(axes: Any, measure: Any) -> Callable[..., Any]:
    """Return a function that measures axes with their margins.

    Margins are reused while there is room for as many ticks.
    """
    margins: dict[tuple[int, ...], Any] = {}

    def around(*arguments: Any, **options: Any) -> Any:
        tick_room = tuple(min(axis.get_tick_space(), _MAX_TICKS) for axis in (axes.xaxis, axes.yaxis))
        axes_extent = axes.get_window_extent().extents
        if tick_room in margins:
            return Bbox.from_extents(*(axes_extent + margins[tick_room]))
        extent = measure(*arguments, **options)
        if extent is not None:
            margins[tick_room] = extent.extents - axes_extent
        return extent

    return around


@contextmanager
def ticks_once(figure: Any) -> Generator[None, None, None]:
    """Compute the ticks of every axis, and the sizes of their labels, once for each position of the axis.

    For a layout and a drawing matplotlib does so five times, and makes every tick twice: as the axis says, and like the
    first one.  Here it is a copy of that, for the same page.
    """
    all_axes = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    for axis in all_axes:
        axis._update_ticks, axis._get_ticklabel_bboxes = _cache_tick_layout(
            axis, axis._update_ticks, axis._get_ticklabel_bboxes
        )
        axis._get_tick, axis._copy_tick_props = _copying(axis, axis._get_tick), _no_op
    try:
        yield
    finally:
        for axis in all_axes:
            del axis._update_ticks, axis._get_ticklabel_bboxes, axis._get_tick, axis._copy_tick_props


def _no_op(*_: Any) -> None:
    """Do nothing: a copy needs no more to be like what it is a copy of."""


def _copying(axis: Any, make: Any) -> Callable[[bool], Any]:
    """Return a function that makes ticks of an axis: copies of the first one, which share its invisible parts."""

    def tick(major: bool) -> Any:  # matplotlib gives it by name
        existing_ticks: Any = axis.__dict__.get("majorTicks" if major else "minorTicks")
        if not existing_ticks:
            return make(major)
        new_tick = _copied(existing_ticks[0])
        for name in ("gridline", "tick1line", "tick2line", "label1", "label2"):
            part = getattr(new_tick, name)
            setattr(new_tick, name, _copied(part) if part.get_visible() else part)
        return new_tick

    return tick


def _copied(artist: Any) -> Any:
    duplicate: Any = object.__new__(artist.__class__)
    duplicate.__dict__.update(artist.__dict__)
    return duplicate


def _cache_tick_layout(axis: Any, update: Any, boxes: Any) -> tuple[Callable[[], Any], Callable[[Any, Any], Any]]:
    cache: dict[str, Any] = {}

    def stands() -> bool:
        place = axis.axes.bbox.bounds, tuple(axis.get_view_interval())
        if cache.get("place") != place:
            cache.clear()
            cache["place"] = place
            return False
        return True

    def ticks() -> Any:
        if not stands() or "ticks" not in cache:
            cache["ticks"] = update()
        return cache["ticks"]

    def of_labels(tick_list: Any, renderer: Any) -> Any:
        if tick_list is not cache.get("ticks"):
            return boxes(tick_list, renderer)
        if "boxes" not in cache:
            cache["boxes"] = boxes(tick_list, renderer)
        first_boxes, second_boxes = cache["boxes"]
        return list(first_boxes), list(second_boxes)

    return ticks, of_labels


_UPRIGHT = re.compile(r"\\mathdefault\{((?:[^{}]|\^\{[^{}]*\})*)\}")
_POWER = re.compile(r"\^\{([-−]?\d+)\}")
_RAISED = str.maketrans("-−0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _in_letters(label: str) -> str:
    """Convert a power of ten from mathtext to plain characters. Other labels stay unchanged."""
    if not (label.startswith("$") and label.endswith("$")):
        return label
    unicode_label = _UPRIGHT.sub(r"\1", label[1:-1]).replace(r"\times", "×")
    unicode_label = _POWER.sub(lambda power: power[1].translate(_RAISED), unicode_label)
    return label if set(unicode_label) & set("\\{}^$") else unicode_label
