"""A picture of what derivatives cost: forwards and backwards, against the number of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from castfit.plots._canvas import BEHIND, BLUE, INK, RED, finish, new_figure, tidy

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_COLOURS = (BLUE, RED, *BEHIND)


class Timing(Protocol):
    """Times of one network, in simulations, as `castfit.benchmark.adjoint_scaling` has them."""

    @property
    def n_x(self) -> int:
        """Number of states."""
        ...

    @property
    def n_p(self) -> int:
        """Number of parameters."""
        ...

    @property
    def forward(self) -> float:
        """Of the gradient by forward sensitivities."""
        ...

    @property
    def adjoint(self) -> float:
        """Of the gradient by adjoint states."""
        ...


def derivatives(
    timings: Sequence[Timing], crossovers: Mapping[int, tuple[float, float]], path: str | Path | None = None
) -> Figure:
    """Plot the time of a gradient in simulations against the number of parameters, a colour per number of states.

    Parameters
    ----------
    timings : sequence
        Networks with n_x states and n_p parameters.
    crossovers : mapping
        Per n_x the number of parameters from which the adjoint takes less time, marked by a dot; a second number is
        not drawn.
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    """
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    tidy(axes)
    for colour, n_x in zip(_COLOURS, dict.fromkeys(t.n_x for t in timings), strict=False):
        own = [t for t in timings if t.n_x == n_x]
        n_p = np.array([t.n_p for t in own], dtype=float)
        forward = np.array([t.forward for t in own], dtype=float)
        adjoint = np.array([t.adjoint for t in own], dtype=float)
        axes.plot(n_p, forward, color=colour, linewidth=1.4, linestyle="--")
        axes.plot(n_p, adjoint, color=colour, linewidth=1.8, label=f"{n_x} states")
        known = np.isfinite(adjoint)
        where = crossovers[n_x][0]
        if n_p[0] <= where <= n_p[-1]:
            height = _interpolated(where, n_p[known], adjoint[known])
            axes.plot([where], [height], "o", color=colour, markersize=5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("parameters", fontsize=9, color=INK)
    axes.set_ylabel("gradient in simulations", fontsize=9, color=INK)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title("forward dashed, adjoint solid", loc="left", fontsize=10, color=INK)
    return finish(figure, path)


def _interpolated(where: float, x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Interpolate logarithms."""
    logarithms: NDArray[np.float64] = np.interp([np.log(where)], np.log(x), np.log(y))
    return float(np.exp(logarithms[0]))
