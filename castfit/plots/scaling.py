"""A picture of how fits grow: time and memory against the number of experiments, and of measured values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from castfit.plots._canvas import BLUE, INK, RED, finish, new_figure, tidy

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure


class Timing(Protocol):
    """One fit, as `castfit.benchmark.many` has them."""

    @property
    def what(self) -> str:
        """What is counted."""
        ...

    @property
    def method(self) -> str:
        """By which transcription."""
        ...

    @property
    def count(self) -> int:
        """How many."""
        ...

    @property
    def seconds(self) -> float:
        """CPU seconds of the fit."""
        ...

    @property
    def memory(self) -> float:
        """Megabytes at the peak."""
        ...


def scaling(timings: Sequence[Timing], path: str | Path | None = None) -> Figure:
    """Plot time (left) and memory (right), a colour per transcription; one long experiment dashed.

    Parameters
    ----------
    timings : sequence
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    """
    figure = new_figure(7.2, 3.4)
    left, right = figure.subplots(1, 2)
    lines = list(dict.fromkeys((t.what, t.method) for t in timings))
    for what, method in lines:
        own = [t for t in timings if (t.what, t.method) == (what, method)]
        dash, colour = "-" if what == "experiments" else "--", RED if method == "collocation" else BLUE
        counts = [t.count for t in own]
        look = {"color": colour, "linewidth": 1.6, "linestyle": dash, "marker": "o", "markersize": 4}
        left.plot(counts, [t.seconds for t in own], label=f"{what}, {method}", **look)
        right.plot(counts, [t.memory for t in own], **look)
    for axes, label in ((left, "CPU seconds of a fit"), (right, "megabytes")):
        tidy(axes)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("number", fontsize=9, color=INK)
        axes.set_ylabel(label, fontsize=9, color=INK)
    left.legend(fontsize=7, frameon=False, labelcolor=INK)
    return finish(figure, path)
