"""Pictures of a comparison: which methods find the global optimum, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.plots._canvas import BEHIND, BLUE, INK, MARKERS, RED, STYLES, finish, new_figure, plain, tidy

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.drive.search.compare.result import ComparisonResult

_PALETTE = (BLUE, RED, *BEHIND)
_ROOM = 1.5  # factor of time left of the first find and right of the last


def success(result: ComparisonResult, path: str | Path | None = None) -> Figure:
    """Plot the share of starts from which each method has found the global optimum, against the time that it had.

    A curve that rises early is fast, one that ends high is reliable; its end is the success rate.

    Parameters
    ----------
    result : ComparisonResult
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.compare(problem, ["single", "collocation"], starts=[{"k1": 1e-6}, {"k1": 1e-5}])
    >>> figure = cf.plots.success(found)
    """
    from matplotlib.ticker import LogLocator

    times = {row.method: np.sort([t.time for t in result.trials
                                  if t.method == row.method and result.category(t) == "correct"])
             for row in result.rows}  # fmt: skip
    found = np.concatenate([own for own in times.values()])
    first, last = (float(found.min()), float(found.max())) if found.size else (0.1, 10.0)
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    tidy(axes)
    for k, row in enumerate(result.rows):
        own = times[row.method]
        shares = 100 * np.arange(own.size + 1) / max(row.starts, 1)
        (curve,) = axes.step(
            np.append(own[:1], own),
            shares[: own.size + 1] if own.size else [],
            where="post",
            color=_PALETTE[k % len(_PALETTE)],
            linestyle=STYLES[k % len(STYLES)],
            linewidth=1.8,
            marker=MARKERS[k % len(MARKERS)],
            markevery=[-1] if own.size else [],  # curves end at their success rates, without covering each other
            markersize=5,
            label=plain(f"{row.method}: {row.correct} of {row.starts}"),
        )
        figure.called(row.method, curve)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(which="minor", labelsize=8, labelcolor=INK)
    axes.set_xlim(first / _ROOM, last * _ROOM)
    axes.set_ylim(-3, 103)
    axes.set_xlabel("time per start in s", fontsize=9, color=INK)
    axes.set_ylabel("found the global optimum in %", fontsize=9, color=INK)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
    measure = result.measure.replace("chi2", "χ²")
    title = f"{len(result.drawn)} starts, {measure} = {result.best_chi2:.6g}"
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    return finish(figure, path)
