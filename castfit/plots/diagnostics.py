"""Pictures of diagnostics: residuals output by output, sensitivities over time, time constants of a model."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from castfit._support.status import raise_if_mistakes
from castfit._support.ties import stable_order
from castfit.plots._canvas import (
    BEHIND,
    BLUE,
    INK,
    MARKERS,
    RED,
    SOFT,
    STYLES,
    Axes,
    add_note,
    add_panel,
    add_title,
    escape_text,
    labels,
    legend,
    legend_above,
    log_spaced,
    new_figure,
    save_or_show,
    shade_band,
    tidy_panels,
    time_axis,
)
from castfit.plots._grid import Grid, dense, owner
from castfit.result.bands import sensitivities as slopes
from castfit.result.residuals import whiten_residuals

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.drive.checkup.stiffness import Stiffness
    from castfit.result.diagnostics import ResidualTest
    from castfit.result.result import Result


_MAX_OUTPUTS = 8  # Outputs with a panel of their own at most.
_MAX_LAGS = 15  # Lags of an autocorrelation function at most.
_MAX_MARKED_EXPERIMENTS = 12  # Experiments up to which each is a series of its own.
_PANEL = (2.7, 2.0)  # inches
_TITLES = ("in time", "by size of the prediction", "quantiles of the normal distribution", "autocorrelation by lag")


def residuals(result: Result, path: str | Path | None = None) -> Figure:
    """Plot residuals, in standard deviations, in the four ways in which they can fail to look like noise.

    A row of panels per output: in time; against the size of the prediction; against the quantiles of the normal
    distribution, where normal residuals are on the line; and the correlation of residuals that are so many places
    apart, where that of noise is within the grey band 19 times of 20.  Colours and markers are experiments, up to
    twelve of them; outliers have a ring and are left out of the correlation.  In the corners stand the probabilities
    that noise looks like this (see `Result.diagnostics`): by changes of sign in time, size with the prediction,
    normality, autocorrelation.

    Parameters
    ----------
    result : Result
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Raises
    ------
    InputError
        For a loaded result without its problem.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.residuals(result)
    """
    diagnostics, table = result.diagnostics, result.residual_table()
    residual = whiten_residuals(owner(result).posed, result.normalised_residuals)
    compiled_problem = owner(result).posed
    outputs = [output for output in compiled_problem.outputs if output in diagnostics.outputs][:_MAX_OUTPUTS]
    experiments = list(dict.fromkeys(table["experiment"].tolist()))
    place = {name: k for k, name in enumerate(experiments)}
    of_experiment = np.array([place[name] for name in table["experiment"].tolist()])
    outlier_keys = {(o.experiment, o.output, o.time, o.replicate) for o in diagnostics.outliers}
    keys = zip(*(table[name].tolist() for name in ("experiment", "output", "time", "replicate")), strict=True)
    is_outlier = np.array([key in outlier_keys for key in keys])
    figure = new_figure(4 * _PANEL[0], len(outputs) * _PANEL[1] + 0.7)
    panels = tidy_panels(figure, len(outputs), 4)
    handles: dict[str, Any] = {}
    for row, output in zip(panels, outputs, strict=True):
        output_rows = np.flatnonzero((table["output"] == output) & np.isfinite(residual))
        labels(row[0], y=escape_text(f"{output}, residual / σ"), size=8)
        checks = diagnostics.outputs[output].checks
        rows_by_experiment = np.split(
            output_rows, np.flatnonzero(np.diff(of_experiment[output_rows])) + 1
        )  # by experiment, as the table stands
        for group_rows in filter(
            len, rows_by_experiment if len(experiments) <= _MAX_MARKED_EXPERIMENTS else [output_rows]
        ):
            i = int(of_experiment[group_rows[0]])
            series_name = experiments[i] if group_rows is not output_rows else "residuals"
            colour, marker = (BLUE, *BEHIND)[i % (1 + len(BEHIND))], MARKERS[i % len(MARKERS)]
            outlier_rows = group_rows[is_outlier[group_rows]]
            for axes, abscissa in zip(row[:2], (table["time"], np.abs(table["prediction"])), strict=True):
                shape = {"marker": marker, "linestyle": "none", "markersize": 3.4, "markeredgewidth": 0}
                (handles[series_name],) = axes.plot(abscissa[group_rows], residual[group_rows], color=colour, **shape)
                red = {"color": "none", "markeredgecolor": RED, "markersize": 8}
                (ring,) = axes.plot(abscissa[outlier_rows], residual[outlier_rows], "o", **red)
                figure.label_artists(series_name, handles[series_name])
                if outlier_rows.size:
                    handles["outlier"] = ring
        for axes, values in zip(
            row[:2], (table["time"][output_rows], np.abs(table["prediction"][output_rows])), strict=True
        ):
            shade_band(axes, 2)
            if log_spaced([values]):
                axes.set_xscale("log")
        _quantiles(row[2], residual[output_rows])
        _autocorrelation(row[3], [residual[group_rows[~is_outlier[group_rows]]] for group_rows in rows_by_experiment])
        for axes, test in zip(row, ("runs", "with_prediction", "normality", "autocorrelation"), strict=True):
            _verdict(axes, checks[test])
    for axes, title in zip(panels[0], _TITLES, strict=True):
        add_title(axes, title, pad=4)
    for k, axes in enumerate(panels[:, 0], 1):
        time_axis(axes, compiled_problem, compiled_problem.conditions, has_labels=k == len(panels), size=8, labelpad=1)
    hidden = len(diagnostics.outputs) - len(outputs)
    note = f" {len(outputs)} of {len(diagnostics.outputs)} outputs are shown." if hidden else ""
    caption, colour = (
        textwrap.fill(escape_text(diagnostics.sentence + note), 150),
        RED if diagnostics.has_findings else SOFT,
    )
    add_note(figure, caption, colour)
    if len(handles) > 1:
        legend_above(figure, handles, max_columns=6)
    return save_or_show(figure, path)


def _verdict(axes: Axes, test: ResidualTest) -> None:
    """Write the p-value of a test in the corner of a panel, above the data."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
    if np.isfinite(test.p_value):
        chance = f"p = {test.p_value:.2g}" if test.p_value >= 1e-3 else "p < 0.001"
        style = {"color": RED, "weight": "bold"} if test.is_finding else {"color": SOFT}
        axes.text(0.98, 0.98, chance, ha="right", va="top", fontsize=7, transform=axes.transAxes, **style)


def _quantiles(axes: Axes, r: Array) -> None:
    """Plot sorted residuals against those that a normal distribution has."""
    if r.size == 0:
        return
    expected = scipy.special.ndtri((np.arange(1, r.size + 1) - 0.375) / (r.size + 0.25))  # Blom 1958
    ends = np.array([expected[0], expected[-1]])
    axes.plot(ends, ends, color=SOFT, linewidth=0.8)
    axes.plot(expected, np.sort(r), "o", color=INK, markersize=2.5, markeredgewidth=0)


def _autocorrelation(axes: Axes, series: list[Array]) -> None:
    """Plot the correlation of residuals that are so many places apart within their experiment."""
    n = sum(r.size for r in series)
    squares = sum(float(r @ r) for r in series)
    lags = range(1, min(_MAX_LAGS, max((r.size for r in series), default=0) - 1) + 1)
    if n == 0 or not lags or not squares > 0:
        axes.text(0.5, 0.5, "too few values", ha="center", va="center", color=SOFT, transform=axes.transAxes)
        return
    heights = [sum(float(r[:-k] @ r[k:]) for r in series if r.size > k) / squares for k in lags]
    shade_band(axes, 2 / np.sqrt(n))
    axes.bar(list(lags), heights, width=0.35, color=INK)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(-1, 1)


def stiffness(found: Stiffness, path: str | Path | None = None) -> Figure:
    """Plot the time constants over time, decaying blue and growing red, and all eigenvalues in the complex plane.

    Parameters
    ----------
    found : Stiffness
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Examples
    --------
    >>> import castfit as cf
    >>> escep = cf.problems.load("escep")
    >>> found = cf.stiffness(escep.problem.model, escep.reference.parameters, [0, 0.1, 1, 10])
    >>> figure = cf.plots.stiffness(found)
    """
    figure = new_figure(8.4, 3.6)
    left, right = tidy_panels(figure, 1, 2)[0]
    values = found.eigenvalues
    growing = values.real > 0.0
    times = np.repeat(found.times[:, None], values.shape[1], axis=1)
    for mask, colour, label in ((~growing & (values != 0), BLUE, "decaying"), (growing, RED, "growing")):
        if mask.any():
            left.plot(times[mask], found.time_constants[mask], ".", color=colour, markersize=3, label=label)
            right.plot(values.real[mask], values.imag[mask], ".", color=colour, markersize=3)
    span = found.times[-1] - found.times[0]
    left.axhline(span, color=SOFT, linewidth=0.8, linestyle="--", label="length of the trajectory")
    left.set_yscale("log")
    labels(left, "time", "time constant 1 / |λ|")
    legend(left)
    smallest = float(np.abs(values[values != 0]).min(initial=np.inf))
    right.set_xscale("symlog", linthresh=smallest if np.isfinite(smallest) else 1.0)
    right.axvline(0.0, color=SOFT, linewidth=0.6)
    labels(right, "Re λ", "Im λ")
    figure.suptitle(textwrap.fill(found.sentence, 120), x=0.01, ha="left", fontsize=8, color=INK)
    return save_or_show(figure, path)


_N_CURVE_POINTS = 200  # Points of a curve.
_MAX_LINES = 8  # Lines in a panel at most.
_PALETTE = (BLUE, RED, *BEHIND[3:4], *BEHIND[:3], "0.2")
_HEIGHT, _HEADING = 2.0, 0.7


def sensitivities(result: Result, path: str | Path | None = None) -> Figure:
    """Plot how much each quantity moves each measured output over time.

    A line is ``|p| dy / dp``, the change of the output, in its own unit, that a relative change of the quantity p of 1
    would make if effects were linear.  Lines of the same shape belong to quantities that these data hardly tell apart;
    times at which lines differ are worth measuring at.  Dots are where something was measured.

    Parameters
    ----------
    result : Result
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Raises
    ------
    InputError
        For a loaded result without its problem.
    SimulationError
        If the model cannot be integrated.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.sensitivities(result)
    """
    compiled_problem = owner(result).posed
    nothing = "nothing is estimated, so there are no sensitivities to plot"
    raise_if_mistakes("plots.sensitivities", [] if result.names else [nothing])
    grid = Grid.from_problem(compiled_problem)
    figure: Any = new_figure(grid.width, grid.rows * _HEIGHT + _HEADING)
    values = np.array(list(result.values.values()))
    unit = np.where(
        compiled_problem.log, 1.0, np.where(values != 0.0, np.abs(values), 1.0)
    )  # d theta of a relative change of 1
    times = {
        c.name: dense(c, _N_CURVE_POINTS)
        for c in compiled_problem.conditions
        if any(p.condition is c for p in grid.panels)
    }
    slopes_by_name = {
        c.name: slopes(result.theta, compiled_problem, c, times[c.name], result.integrator) * unit
        for c in compiled_problem.conditions
        if c.name in times
    }
    names, outputs = result.names, compiled_problem.model.output_names
    peaks = np.max(
        [np.max(np.abs(s), axis=(0, 1)) / max(float(np.abs(s).max()), 1e-300) for s in slopes_by_name.values()], 0
    )
    chosen = sorted(stable_order(peaks, descending=True)[:_MAX_LINES].tolist())
    cells = figure.add_gridspec(grid.rows, grid.columns)
    handles: dict[str, Any] = {}
    for panel in grid.panels:
        axes = add_panel(figure, cells[panel.row, panel.column])
        output = compiled_problem.outputs[panel.output]
        S, t = slopes_by_name[panel.condition.name][:, outputs.index(output)], times[panel.condition.name]
        axes.axhline(0, color=SOFT, linewidth=0.6)
        for k, j in enumerate(chosen):
            style = {"color": _PALETTE[k % len(_PALETTE)], "linestyle": STYLES[k % len(STYLES)], "linewidth": 1.4}
            (handles[names[j]],) = axes.plot(t, S[:, j], **style)
            figure.label_artists(names[j], handles[names[j]])
        measured = panel.condition.points.times[panel.condition.points.mask[:, panel.output]]
        axes.plot(measured, np.zeros(measured.size), "o", color=INK, markersize=2.5, clip_on=False)
        title = (
            f"{compiled_problem.label(output)}, {panel.condition.name}"
            if len(compiled_problem.conditions) > 1
            else compiled_problem.label(output)
        )
        add_title(axes, escape_text(title), pad=4)
        labels(axes, escape_text(compiled_problem.label("time")), size=8, labelpad=1)
    hidden = len(names) - len(chosen)
    selection_text = f" (the {len(chosen)} largest of {len(names)})" if hidden else ""
    legend_title = f"change of the output for a relative change of 1{selection_text}"
    legend_above(figure, handles, max_columns=8, title=legend_title, handlelength=2.6)
    return save_or_show(figure, path)
