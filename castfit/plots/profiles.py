"""Pictures of profiles: how the objective rises along each quantity, beside what linear intervals believe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit._support.status import InputError
from castfit.plots._canvas import BEHIND, BLUE, INK, RED, SOFT, Axes, labels, legend, save_or_show, single, tile_panels

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.drive.uncertainty.profile.contours import Contours
    from castfit.drive.uncertainty.profile.result import Profile, Profiles

_N_COLUMNS = 3  # Columns of panels.
_PANEL = (2.7, 2.1)  # inches
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
    figure, panels = tile_panels(len(rows), _N_COLUMNS, _PANEL, (0.4, 0.4))
    for axes, profile in zip(panels.ravel(), rows, strict=False):
        _panel(axes, profile)
    for axes in panels[:, 0]:
        labels(axes, y="-2 log L above the best", size=8)
    return save_or_show(figure, path)


def _panel(axes: Axes, profile: Profile) -> None:
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
