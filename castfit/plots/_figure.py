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

_SHARP = 2.0  # pixels of the picture to one of the page, for screens that have so many


class Picture(Figure):
    """A matplotlib figure that pyplot is given once it is drawn; the last one of a notebook's cell is shown once."""

    @classmethod
    def of(cls, width: float, height: float, dots_per_inch: float) -> Picture:
        """Make a figure of the given size in inches."""
        made: Any = cls((width, height), dots_per_inch, layout="constrained")
        FigureCanvasAgg(made)
        return made

    def give_to_pyplot(self) -> None:
        """Let ``plt.show()`` show the figure, and ``plt.close()`` close it, like one that pyplot made.

        Windows belong to the main thread.  Where there are none, as on a machine without a display whose settings want
        one, the figure stays what it is.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            pyplot: Any = import_module("matplotlib.pyplot")
            pyplot.figure(FigureClass=self._itself)
        except (ImportError, RuntimeError):
            return

    def _itself(self, *_: Any, **__: Any) -> Picture:
        return self

    def called(self, name: str, *artists: Any) -> None:
        """Say what artists show, so that a page can switch it on and off; see castfit.report.figures."""
        key = self.series.setdefault(name, f"series-{len(self.series)}")
        for artist in artists:
            artist.set_gid(key)

    @property
    def series(self) -> dict[str, str]:
        """What is shown, by name, with the mark that it has in a vector graphic."""
        if not hasattr(self, "_series"):
            self._series: dict[str, str] = {}
        return self._series

    def _ipython_display_(self) -> None:
        """Take the figure, which a notebook is about to show, from those that it shows at the end of the cell."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and "inline" in pyplot.get_backend():
            pyplot.close(self)
        raise NotImplementedError  # IPython goes on by the representations below

    def _repr_png_(self) -> bytes:
        return self._drawn()

    def _repr_html_(self) -> str:  # the older hook, which documentation tools ask for
        width, _ = self.get_size_inches() * self.dpi / _SHARP
        data = base64.b64encode(self._drawn()).decode()
        style = f"width: {width:.0f}px; max-width: 100%; height: auto;"
        return f'<img alt="figure" style="{style}" src="data:image/png;base64,{data}">'

    def _drawn(self) -> bytes:
        out = io.BytesIO()
        untyped: Any = self
        untyped.savefig(out, format="png", facecolor="white")
        return out.getvalue()

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
        """Write what all labels are to be multiplied by."""
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
        engine.execute(figure)
        figure.set_layout_engine(None)


@contextmanager
def ticks_once(figure: Any) -> Generator[None, None, None]:
    """Let every axis work out its ticks, and how large their labels are, once where it stands.

    For a layout and a drawing matplotlib does so five times, and makes every tick twice: as the axis says, and like the
    first one, which nobody has changed.  A report takes 0.81 to 0.88 of the CPU time so, for the same page.
    """
    every = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    for axis in every:
        axis._update_ticks, axis._get_ticklabel_bboxes = _once(axis, axis._update_ticks, axis._get_ticklabel_bboxes)
        axis._copy_tick_props = _clipped_alike
    try:
        yield
    finally:
        for axis in every:
            del axis._update_ticks, axis._get_ticklabel_bboxes, axis._copy_tick_props


def _clipped_alike(first: Any, tick: Any) -> None:
    """Clip the grid line of a new tick as that of the first: all else it has from the axis."""
    tick.gridline.set_clip_box(first.gridline.get_clip_box())


def _once(axis: Any, update: Any, boxes: Any) -> tuple[Callable[[], Any], Callable[[Any, Any], Any]]:
    known: dict[str, Any] = {}

    def stands() -> bool:
        place = axis.axes.bbox.bounds, tuple(axis.get_view_interval())
        if known.get("place") != place:
            known.clear()
            known["place"] = place
            return False
        return True

    def ticks() -> Any:
        if not stands() or "ticks" not in known:
            known["ticks"] = update()
        return known["ticks"]

    def of_labels(some: Any, renderer: Any) -> Any:
        if some is not known.get("ticks"):
            return boxes(some, renderer)
        if "boxes" not in known:
            known["boxes"] = boxes(some, renderer)
        one, other = known["boxes"]
        return list(one), list(other)

    return ticks, of_labels


_UPRIGHT = re.compile(r"\\mathdefault\{((?:[^{}]|\^\{[^{}]*\})*)\}")
_POWER = re.compile(r"\^\{([-−]?\d+)\}")
_RAISED = str.maketrans("-−0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _in_letters(label: str) -> str:
    """Write a power of ten without a formula; what is none, or another one, stays as it is."""
    if not (label.startswith("$") and label.endswith("$")):
        return label
    plain = _UPRIGHT.sub(r"\1", label[1:-1]).replace(r"\times", "×")
    plain = _POWER.sub(lambda power: power[1].translate(_RAISED), plain)
    return label if set(plain) & set("\\{}^$") else plain
