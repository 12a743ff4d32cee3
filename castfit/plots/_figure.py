"""Figures that pyplot shows like everybody's, and that notebooks show once.

Imported when a figure is made: it needs matplotlib, the rest of castfit does not; pyplot only where one is shown.
"""

from __future__ import annotations

import base64
import io
import sys
import threading
from importlib import import_module
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
