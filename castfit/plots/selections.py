"""Figure of a model selection: criteria by number of estimated quantities, search path, importances, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit._support.ties import stable_order
from castfit.plots._canvas import add_title, escape_text, labels, legend, new_figure, save_or_show, tidy_panels
from castfit.plots._colours import BLUE, INK, RED, SOFT

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.drive.model_comparison.selection_result import SelectionResult

_MAX_BARS = 12  # Bars in a panel at most.
_LINEAR_RANGE = 10.0  # Difference of the criterion up to which the axis is linear.
_MAX_NAME_LETTERS = 28  # Letters of a name at most.


def selection(found: SelectionResult, path: str | Path | None = None) -> Figure:
    """Plot the criterion of all candidates, with the path of the search, importances of quantities, and weights.

    Parameters
    ----------
    found : SelectionResult
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, m = cf.symbols("x k m")
    >>> model = cf.Model({x: -k * x - m}, parameters=[k, m], initial={x: 2})
    >>> data = cf.Experiment({"x": [1.49, 1.09, 0.83, 0.59, 0.46, 0.33]}, time=[1, 2, 3, 4, 5, 6], sigma=0.02)
    >>> problem = cf.Problem(model, data, parameters={"k": 0.5, "m": 0.1})
    >>> found = cf.select(problem, choices={"k": [0, cf.estimated], "m": [0, cf.estimated]})
    >>> figure = cf.plots.selection(found)
    """
    shares = [*found.importance.items()]
    order = stable_order([share for _, share in shares], descending=True)
    importance = dict(shares[int(i)] for i in order[:_MAX_BARS].flat)
    weights = {n: found.weights[n] for n in found.names[:_MAX_BARS]}
    figure = new_figure(10.0, 1.4 + 0.22 * max(len(importance), len(weights), 8))
    left, middle, right = tidy_panels(figure, 1, 3)[0]
    delta = {n: d for n, d in found.delta.items() if np.isfinite(d)}
    sizes = {n: found.size(n) for n in delta}
    (dots,) = left.plot([sizes[n] for n in delta], list(delta.values()), "o", color=SOFT, markersize=4)
    figure.label_artists("candidates", dots)
    path_names = [n for n in found.path if n in delta]
    left.plot(
        [sizes[n] for n in path_names],
        [delta[n] for n in path_names],
        "-o",
        color=BLUE,
        markersize=4,
        label="best so far",
    )
    if found.names and found.names[0] in delta:
        left.plot(sizes[found.names[0]], 0.0, "o", color=RED, markersize=6, label="best")
    left.set_yscale("symlog", linthresh=_LINEAR_RANGE)
    left.set_ylim(bottom=-0.05 * _LINEAR_RANGE)
    left.xaxis.get_major_locator().set_params(integer=True)
    labels(left, "estimated", f"{found.criterion}, less the best")
    if path_names:
        legend(left)
    for axes, bars, title in ((middle, importance, "importance"), (right, weights, "weight")):
        positions = np.arange(len(bars))[::-1]
        axes.barh(positions, list(bars.values()), color=BLUE, height=0.6)
        axes.set_yticks(
            positions,
            [escape_text(n if len(n) <= _MAX_NAME_LETTERS else f"{n[: _MAX_NAME_LETTERS - 3]}...") for n in bars],
            color=INK,
        )
        axes.set_xlim(0.0, 1.02)
        axes.grid(visible=False, axis="y")
        labels(axes, title)
    add_title(left, f"{len(found.names)} candidates")
    return save_or_show(figure, path)
