"""A picture of what values with sensitivities cost: CPU time against the error, a panel per problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from castfit.plots._canvas import BLUE, INK, RED, finish, new_figure, tidy

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


class Curve(Protocol):
    """One method, as `castfit.benchmark.sweep` has it."""

    @property
    def method(self) -> str:
        """Its name."""
        ...

    @property
    def seconds(self) -> Array:
        """CPU seconds (n,)."""
        ...

    @property
    def errors(self) -> Array:
        """Errors (n,)."""
        ...


class Compared(Protocol):
    """Two methods on one problem."""

    @property
    def name(self) -> str:
        """The problem."""
        ...

    @property
    def theirs(self) -> Curve:
        """The usual method."""
        ...

    @property
    def ours(self) -> Curve:
        """ESDIRK."""
        ...


def sweeps(found: Sequence[Compared], path: str | Path | None = None) -> Figure:
    """Plot milliseconds against errors, both logarithmic, a panel per problem.

    Parameters
    ----------
    found : sequence
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    """
    columns = min(max(len(found), 1), 4)
    rows = -(-max(len(found), 1) // columns)
    figure = new_figure(2.6 * columns, 2.3 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, of in zip(grid.ravel(), found, strict=False):
        tidy(axes)
        for colour, curve in ((RED, of.theirs), (BLUE, of.ours)):
            known = np.isfinite(curve.errors) & (curve.errors > 0.0)
            axes.plot(
                curve.errors[known], 1e3 * curve.seconds[known], ".-", color=colour, linewidth=1.4, label=curve.method
            )
        if any(np.isfinite(curve.errors).any() for curve in (of.theirs, of.ours)):
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set_title(of.name, loc="left", fontsize=9, color=INK)
    for axes in grid.ravel()[len(found) :]:
        axes.set_axis_off()
    if found:
        grid[0, 0].legend(fontsize=7, frameon=False, labelcolor=INK)
    figure.supxlabel("largest relative error", fontsize=9, color=INK)
    figure.supylabel("CPU time, ms", fontsize=9, color=INK)
    return finish(figure, path)
