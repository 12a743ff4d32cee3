"""A picture of the way to a solution: objective and infeasibility over the iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.plots._canvas import BLUE, INK, RED, finish, new_figure, tidy
from castfit._support.status import check

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.result.result import Result

_FLOOR = 1e-16


def history(result: Result, path: str | Path | None = None) -> Figure:
    """Plot how far the objective was above its lowest value at each iteration, and how far the pieces were apart.

    Parameters
    ----------
    result : Result
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Raises
    ------
    InputError
        For a result that knows no iterations.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.history(result)
    """
    rows = [row for row in result.history if np.isfinite(row["cost"])]
    check("plots.history", [] if rows else ["the result knows no iterations; there is nothing to show"])
    cost, apart = (np.array([row[key] for row in rows]) for key in ("cost", "infeasibility"))
    at = np.arange(len(rows))
    gaps = bool(np.max(apart) > _FLOOR)
    figure: Any = new_figure(6.4, 3.6 if gaps else 2.2)
    panels = figure.subplots(2 if gaps else 1, 1, squeeze=False, sharex=True)[:, 0]
    above = np.maximum(cost - min(float(cost.min()), result.cost), 0.0)
    floor = max(_FLOOR, 1e-12 * float(above.max(initial=1.0)))
    for axes, values, what, colour, marker in zip(
        panels, (above, apart), ("objective above its lowest", "largest gap"), (BLUE, RED), ("o", "s"), strict=False
    ):
        tidy(axes)
        axes.plot(at, np.where(values > floor, values, np.nan), "-", marker=marker, color=colour, markersize=3.5)
        if np.any(values > floor):
            axes.set_yscale("log")
        axes.set_title(what, loc="left", fontsize=9, color=INK, pad=4)
    panels[-1].set_xlabel("iteration", fontsize=8, color=INK)
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    return finish(figure, path)
