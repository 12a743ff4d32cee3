"""Pictures of uncertainty: profiles and contours beside linear intervals, draws of a bootstrap or a sampler."""

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
    SOFT,
    Axes,
    add_title,
    confidence_ellipse,
    labels,
    legend,
    legend_above,
    new_figure,
    save_or_show,
    single,
    tidy_panels,
    tile_panels,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.drive.uncertainty.draws import DrawsResult
    from castfit.drive.uncertainty.profile.contours import Contours
    from castfit.drive.uncertainty.profile.result import Profile, Profiles


_N_PROFILE_COLUMNS = 3  # Columns of panels.
_PROFILE_SIZE = (2.7, 2.1)  # inches
_CURVE_POINTS = 400  # Points of a curve.
_PANEL_TOP_FACTOR = 1.35  # Top of a panel in units of the highest threshold.
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))


def profiles(found: Profiles, path: str | Path | None = None) -> Figure:
    """Plot every profile, with the thresholds of all levels and the quadratic approximation.

    A panel per quantity: the objective, that is how much more -2 log L is than at the best fit, when the quantity is
    held and all else fitted anew (line; points are the fits that were made); the parabola that linear intervals
    believe (dashed); the thresholds (grey lines) and the limits (ticks on them).  Other optima that take over have
    their own colour and dashes.

    Parameters
    ----------
    found : Profiles
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Raises
    ------
    InputError
        If nothing was followed.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> figure = cf.plots.profiles(cf.profile(result, "k1"))
    """
    rows = list(found.profiles.values())
    if not rows:
        raise InputError("plots.profiles", ["nothing was followed, so there is nothing to draw"])
    figure, panels = tile_panels(len(rows), _N_PROFILE_COLUMNS, _PROFILE_SIZE, (0.4, 0.4))
    for axes, profile in zip(panels.ravel(), rows, strict=False):
        _draw_profile(axes, profile)
    for axes in panels[:, 0]:
        labels(axes, y="-2 log L above the best", size=8)
    return save_or_show(figure, path)


def _draw_profile(axes: Axes, profile: Profile) -> None:
    top = _PANEL_TOP_FACTOR * profile.threshold()
    values = profile.values
    if profile.scale == "log":
        axes.set_xscale("log")
    if values.size > 1:
        spaced = np.geomspace if profile.scale == "log" else np.linspace
        even_grid: Array = spaced(float(values[0]), float(values[-1]), _CURVE_POINTS)
        grid = np.sort(np.concatenate([even_grid, values]))
        axes.plot(grid, np.minimum(profile.approximation(grid), 10 * top), "--", color=SOFT, linewidth=1.0)
        axes.plot(grid, np.minimum(profile.at(grid), 10 * top), "-", color=BLUE, linewidth=1.5)
        for k in range(1, len(profile.branches)):
            branch = profile.branches[k]
            c = np.exp(branch.c) if profile.scale == "log" else branch.c
            colour = BEHIND[(k - 1) % len(BEHIND)]
            axes.plot(c, branch.delta, linestyle=_DASHES[k % len(_DASHES)], color=colour, linewidth=1.0, zorder=1)
    axes.plot(values, profile.objective, "o", color=BLUE, markersize=3)
    axes.plot([profile.estimate], [0.0], "D", color=RED, markersize=4)
    for level in profile.confidence_levels:
        height = profile.threshold(level)
        axes.axhline(height, color=SOFT, linewidth=0.7, zorder=0)
        axes.annotate(f"{100 * level:g} %", (0.5, height), xycoords=("axes fraction", "data"), fontsize=6,
                      color=SOFT, ha="center", va="bottom")  # fmt: skip
        ends = [end for region in profile.regions(level) for end in region if np.isfinite(end)]
        axes.plot(ends, [height] * len(ends), "|", color=INK, markersize=9)
    axes.set_ylim(-0.05 * top, top)
    visible_values = values[profile.objective <= top]
    if visible_values.size > 1 and visible_values[-1] > visible_values[0]:
        axes.set_xlim(*_widened(float(visible_values[0]), float(visible_values[-1]), profile.scale == "log"))
    _label_few(axes, profile.scale == "log")
    labels(axes, profile.name)


def _label_few(axes: Axes, log: bool) -> None:
    """Label so few places of the lower axis that its labels have room in a narrow panel."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

    low, high = axes.get_xlim()
    if log:
        axes.xaxis.set_minor_formatter(NullFormatter())
    if log and high > 10.0 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high < 100.0 * low else (1.0,), numticks=5))
        axes.xaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))  # each has its label
        return
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(ScalarFormatter())


def _widened(low: float, high: float, log: bool) -> tuple[float, float]:
    """Return the ends of an axis with some room beyond."""
    if log:
        room = (high / low) ** 0.06
        return low / room, high * room
    return low - 0.06 * (high - low), high + 0.06 * (high - low)


def contours(found: Contours, path: str | Path | None = None) -> Figure:
    """Plot the joint confidence regions of two quantities over the ellipses that linear statistics believe.

    Lines are contours by profile likelihood, one for each level; dashed lines the ellipses.

    Parameters
    ----------
    found : Contours
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Raises
    ------
    InputError
        If no line was finished.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("lotka_volterra").problem)
    >>> figure = cf.plots.contours(cf.contours(result, "p1", "p2", confidence_levels=0.95, slices=4))
    """
    if not found.lines:
        raise InputError("plots.contours", ["no line was finished, so there is nothing to draw"])
    figure, axes = single(4.2, 3.6)
    for k, (level, line) in enumerate(found.lines.items()):
        width = 1.8 - 0.4 * min(k, 2)
        axes.plot(line[:, 0], line[:, 1], "-", color=BLUE, linewidth=width, label=f"{100 * level:g} %, by profile")
        oval = found.ellipses.get(level)
        if oval is not None and oval.size:
            axes.plot(oval[:, 0], oval[:, 1], "--", color=SOFT, linewidth=width, label=f"{100 * level:g} %, linear")
    axes.plot([found.estimate[0]], [found.estimate[1]], "D", color=RED, markersize=4)
    for set_scale, scale in zip((axes.set_xscale, axes.set_yscale), found.scales, strict=True):
        if scale == "log":
            set_scale("log")
    labels(axes, *found.names)
    legend(axes, size=7)
    return save_or_show(figure, path)


_N_HISTOGRAM_COLUMNS = 4  # Columns of histograms.
_HISTOGRAM = (2.4, 2.0)  # inches
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
    figure, panels = tile_panels(len(chosen), _N_HISTOGRAM_COLUMNS, _HISTOGRAM, (0.0, 0.5))
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
