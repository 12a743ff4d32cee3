"""Pictures of draws of the estimates, by a bootstrap or a sampler: histograms with limits, and pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import read_names
from castfit._support.status import InputError, raise_if_mistakes, unknown_names
from castfit.plots._canvas import (
    BEHIND,
    BLUE,
    INK,
    RED,
    Axes,
    add_title,
    confidence_ellipse,
    labels,
    legend_above,
    new_figure,
    save_or_show,
    tidy_panels,
    tile_panels,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.drive.uncertainty.draws import DrawsResult

_N_COLUMNS = 4  # Columns of histograms.
_PANEL = (2.4, 2.0)  # inches
_MAX_PAIRED_QUANTITIES = 12  # Quantities in a figure of pairs at most.
_MAX_DOTS = 2000  # Draws that a panel shows, about.
_CHI2_QUANTILE_95 = 5.991464547107979  # 0.95 quantile of chi2 with two degrees of freedom.
_STYLES = ("--", "-.", ":")


def histograms(draws: DrawsResult, path: str | Path | None = None, *, names: Sequence[str] | None = None) -> Figure:
    """Plot a histogram of each quantity, with the estimate and the limits of intervals, linear ones beside.

    Parameters
    ----------
    draws : BootstrapResult or SampleResult
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    names : sequence of str, optional
        Which quantities; by default all.

    Raises
    ------
    InputError
        If there are no draws, or a name is none of theirs.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> figure = cf.plots.histograms(cf.bootstrap(result, samples=20, rng=0))
    """
    chosen = _chosen("histograms", draws, names)
    figure, panels = tile_panels(len(chosen), _N_COLUMNS, _PANEL, (0.0, 0.5))
    handles: dict[str, Any] = {}
    level = f"{100 * draws.result.confidence_level:g} %"
    for axes, name in zip(panels.ravel(), chosen, strict=False):
        log = _is_log(draws, name)
        _bars(axes, draws.values[name], log=log, colour="0.8")
        handles["estimate"] = axes.axvline(draws.result.values[name], color=INK, linewidth=1.2)
        limits_by_method = {**draws.limits, "linear": draws.result.confidence_intervals()}
        colours = (BLUE, RED, BEHIND[3])
        for (method, pairs), colour, style in zip(limits_by_method.items(), colours, _STYLES, strict=False):
            for end in pairs[name]:
                if np.isfinite(end) and not (log and end <= 0.0):
                    handles[f"{method}, {level}"] = axes.axvline(end, color=colour, linewidth=1.2, linestyle=style)
        add_title(axes, name, pad=3)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
        if not log:
            axes.xaxis.set_major_locator(_locator())
    legend_above(figure, handles)
    return save_or_show(figure, path)


def pairs(draws: DrawsResult, path: str | Path | None = None, *, names: Sequence[str] | None = None) -> Figure:
    """Plot draws of each pair of quantities, with the linear 95 % ellipse, and histograms on the diagonal.

    Parameters
    ----------
    draws : BootstrapResult or SampleResult
    path : str or Path, optional
    names : sequence of str, optional
        Which quantities, 12 at most; by default the first.

    Raises
    ------
    InputError
        If there are no draws, a name is none of theirs, or there are too many.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> figure = cf.plots.pairs(cf.bootstrap(result, samples=20, rng=0))
    """
    chosen = _chosen("pairs", draws, names)
    if names is not None and len(chosen) > _MAX_PAIRED_QUANTITIES:
        raise InputError(
            "plots.pairs", [f"{len(chosen)} quantities are too many to be read; name {_MAX_PAIRED_QUANTITIES} at most"]
        )
    chosen = chosen[:_MAX_PAIRED_QUANTITIES]
    count = len(chosen)
    size = 1.3 * count + 1.0
    figure = new_figure(size, size)
    grid = tidy_panels(figure, count, count)
    for i, vertical in enumerate(chosen):
        for j, horizontal in enumerate(chosen):
            axes = grid[i, j]
            if j > i:
                axes.set_visible(False)
                continue
            if i == j:
                _bars(axes, draws.values[vertical], log=_is_log(draws, vertical), colour=BLUE)
                axes.axvline(draws.result.values[vertical], color=INK, linewidth=1.0)
                axes.set_yticks([])
            else:
                _pair(axes, draws, horizontal, vertical)
            axes.tick_params(labelbottom=i == count - 1, labelleft=j == 0 and i > 0)
            if i == count - 1:
                labels(axes, horizontal)
            if j == 0 and i > 0:
                labels(axes, y=vertical)
            for axis in (axes.xaxis, axes.yaxis) if i != j else (axes.xaxis,):
                axis.set_major_locator(_locator())
    return save_or_show(figure, path)


def _pair(axes: Axes, draws: DrawsResult, horizontal: str, vertical: str) -> None:
    x, y = draws.values[horizontal], draws.values[vertical]
    step = max(1, x.size // _MAX_DOTS)
    axes.plot(x[::step], y[::step], "o", color=BLUE, markersize=1.6, alpha=0.35, markeredgewidth=0, zorder=2)
    result = draws.result
    indices = [result.names.index(horizontal), result.names.index(vertical)]
    covariance = result.covariance[np.ix_(indices, indices)]
    centre = np.array([result.values[horizontal], result.values[vertical]])
    axes.plot(*centre, "+", color=INK, markersize=7, zorder=4)
    if not np.isfinite(covariance).all():
        return
    axes.plot(
        *(centre[:, None] + np.sqrt(_CHI2_QUANTILE_95) * confidence_ellipse(covariance)),
        color=RED,
        linewidth=1.0,
        linestyle="--",
        zorder=3,
    )


def _bars(axes: Axes, values: Array, *, log: bool, colour: str) -> None:
    """Draw a histogram of as many bars as the draws deserve, on a logarithmic axis if they spread that far."""
    bins = int(np.clip(np.sqrt(values.size), 8, 60))
    edges: Any = bins
    if log:
        axes.set_xscale("log")
        edges = np.geomspace(float(values.min()), float(values.max()), bins + 1)
    axes.hist(values, bins=edges, color=colour, zorder=1)


def _is_log(draws: DrawsResult, name: str) -> bool:
    """Whether draws are positive and spread over more than a decade."""
    values = draws.values[name]
    return bool(values.min() > 0.0 and values.max() > 10.0 * values.min())


def _locator() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=3)


def _chosen(where: str, draws: DrawsResult, names: Sequence[str] | None) -> list[str]:
    available_names, mistakes = list(draws.values), list[str]()
    if not available_names or not draws.values[available_names[0]].size:
        raise InputError(f"plots.{where}", ["there are no draws to plot: all draws failed"])
    selected_names = read_names("names", names, available_names, mistakes)
    mistakes += unknown_names("'{}' has no draws", selected_names, available_names)
    raise_if_mistakes(f"plots.{where}", mistakes)
    return selected_names
