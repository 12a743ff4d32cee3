"""A picture of a design: what will be known, when to measure, the certificate, and what more money would buy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.drive.design.interior_point import optimize_weights
from castfit.plots._canvas import (
    BLUE,
    INK,
    RED,
    SOFT,
    add_panel,
    add_title,
    escape_text,
    labels,
    new_figure,
    save_or_show,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.drive.design.proposal import Design

_N_CURVE_POINTS = 200  # Points of a curve.
_MAX_PANELS = 4  # Panels of predictions or inputs at most.
_BUDGETS = (0.25, 0.5, 1.0, 2.0, 4.0)
_WIDTH, _HEIGHT = 3.0, 2.4
_MAX_RELATIVE_SD = 1.0  # Relative standard deviation up to which a band is drawn.
_NORMAL_QUANTILE_975 = 1.96  # Half-width of a 95 % band in standard deviations.
SHADES = (0.18, 0.45)  # of bands before and after
_MAX_LEGEND_ROWS = 4  # Names in one column of a legend.
_SCHEDULE_HEIGHT = 0.09  # Height of a schedule, as a fraction of the height of the panel.


def design(found: Design, path: str | Path | None = None) -> Figure:
    """Plot what a design promises.

    Above, the predictions with their bands of 95 % before (light) and after, and the times with how often each is
    measured (of a population the schedules with numbers of subjects, and in grey 95 % of values); below, the
    certificate, which touches its bound where the relaxed design measures, the ellipses of two quantities before and
    after, and the standard deviations after designs of other budgets.  Inputs that were chosen in pieces follow as
    steps.

    Parameters
    ----------
    found : Design
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> proposed = cf.design(result, cf.Candidate([10, 20, 40, 80]), budget=3)
    >>> figure = cf.plots.design(proposed)
    """
    panels, inputs = _panels(found), _chosen(found)
    is_single_line = (
        found.selection.positions.line.size == 1
    )  # nothing is chosen among: there is no certificate to draw
    first_inputs, inputs = (inputs[:1], inputs[1:]) if is_single_line else ([], inputs)
    columns, rows = max(len(panels), 3, len(inputs)), 2 + bool(inputs)
    figure: Any = new_figure(columns * _WIDTH, rows * _HEIGHT)
    cells = figure.add_gridspec(rows, columns)
    for place, (k, j) in enumerate(panels):
        cell = (
            cells[0, place:] if place == len(panels) - 1 else cells[0, place]
        )  # The last panel takes the remaining columns.
        _prediction(add_panel(figure, cell), found, k, j)
    if not is_single_line:
        _certificate(add_panel(figure, cells[1, 0]), found)
    for k, name in first_inputs:
        _steps(add_panel(figure, cells[1, 0]), found, k, name)
    _ellipses(add_panel(figure, cells[1, 1]), found)
    _budgets(add_panel(figure, cells[1, 2]), found)
    for place, (k, name) in enumerate(inputs):
        _steps(add_panel(figure, cells[2, place]), found, k, name)
    return save_or_show(figure, path)


def predicted(proposal: Design, k: int, times: Array, outputs: list[str]) -> tuple[Array, dict[str, Array]]:
    """Return predictions of candidate k (n, q), and what 95 % reach "before" and "after", where that is known."""
    mu, slopes = proposal.information.slopes(proposal.information.labels[k], times, outputs)
    bands: dict[str, Array] = {}
    for when, covariance in zip(("before", "after"), _covariances(proposal), strict=True):
        if np.sqrt(np.diag(covariance).max()) < _MAX_RELATIVE_SD:
            squares = np.einsum("tqi,ij,tqj->tq", slopes, covariance, slopes)
            bands[when] = _NORMAL_QUANTILE_975 * np.sqrt(np.maximum(squares, 0.0))
    return mu, bands


def _panels(proposal: Design) -> list[tuple[int, int]]:
    """Return candidates and outputs that are measured; of several schedules of a group the first."""
    if proposal.information.has_subjects:
        first_schedules = {_schedules_with(proposal, int(k))[0][0]: None for k in np.flatnonzero(proposal.counts > 0)}
        return [(k, j) for k in first_schedules for j in range(len(proposal.selection.values[0][k].outputs))][
            :_MAX_PANELS
        ]
    return [
        (k, j)
        for k, values in enumerate(proposal.selection.values[0])
        for j in range(len(values.outputs))
        if np.any(
            proposal.table["output"][proposal.table["candidate"] == proposal.information.labels[k]] == values.outputs[j]
        )
    ][:_MAX_PANELS]


def _chosen(proposal: Design) -> list[tuple[int, str]]:
    """Return candidates and inputs of which pieces were chosen."""
    chosen_inputs = [
        (proposal.information.labels.index(label), n)
        for label, inputs in proposal.chosen.items()
        for n, v in inputs.items()
        if np.ndim(v)
    ]
    return chosen_inputs[:_MAX_PANELS]


def _steps(axes: Any, proposal: Design, k: int, name: str) -> None:
    values = np.asarray(proposal.chosen[proposal.information.labels[k]][name], dtype=float)
    start, end_time = proposal.information.condition(k).start, float(proposal.selection.values[0][k].times[-1])
    axes.stairs(values, np.linspace(start, end_time, values.size + 1), baseline=None, color=INK, linewidth=1.2)
    add_title(axes, escape_text(f"{name}, as chosen"), pad=4)
    labels(axes, escape_text(proposal.information.compiled_problem.label("time")), size=8, labelpad=1)


def _covariances(proposal: Design) -> list[Array]:
    """Return the covariance matrices before and after the designed measurements, (n_u, n_u)."""
    offers = proposal.selection.pool
    return [np.linalg.inv(M[0]) for M in (offers.M0, offers.information(proposal.counts))]


def _prediction(axes: Any, proposal: Design, k: int, j: int) -> None:
    values, information = proposal.selection.values[0][k], proposal.information
    label, output = information.labels[k], values.outputs[j]
    rows = _schedules_with(proposal, k) if information.has_subjects else []
    start, end_time = (
        information.condition(k).start,
        max(float(values.times[-1]), *(t.max() for _, _, t, _ in rows), -np.inf),
    )
    times = np.linspace(start, end_time, _N_CURVE_POINTS) if end_time > start else values.times
    mu, bands = predicted(proposal, k, times, [output])
    middle = mu[:, 0]
    for (when, reach), alpha in zip(bands.items(), SHADES[2 - len(bands) :], strict=True):
        low, high = middle - reach[:, 0], middle + reach[:, 0]
        axes.fill_between(times, low, high, color=BLUE, alpha=alpha, linewidth=0, label=when)
    axes.plot(times, middle, color=INK, linewidth=1.0)
    name = output if len(information.labels) == 1 else f"{output}, {label}"
    if information.has_subjects:
        name = escape_text(f"{output}, {information.experiment(k).name}")
        reach = _NORMAL_QUANTILE_975 * information.values(k, times).deviation[:, j]
        axes.fill_between(times, middle - reach, middle + reach, color=INK, alpha=0.08, linewidth=0)
        _rows(axes, rows)
    is_shown = (
        (proposal.table["candidate"] == label) & (proposal.table["output"] == output) & (not information.has_subjects)
    )
    for t, count, y in zip(*(proposal.table[c][is_shown] for c in ("time", "count", "prediction")), strict=True):
        axes.axvline(t, color=RED, linewidth=0.9, ymax=0.08)
        axes.plot([t], [y], "o", color=RED, markersize=3.5)
        axes.annotate(f"{count:.3g}", (t, 0.09), xycoords=("data", "axes fraction"), ha="center", fontsize=7, color=RED)
    add_title(axes, escape_text(name), pad=4)
    labels(axes, escape_text(information.extended.label("time")), size=8, labelpad=1)


def _schedules_with(proposal: Design, k: int) -> list[tuple[int, int, Array, float]]:
    """Return the schedules of the group of schedule k: which, its place among all, times, subjects."""
    used = np.flatnonzero(proposal.counts > 0).tolist()
    group_schedules = [
        (i, place)
        for place, i in enumerate(used)
        if proposal.information.experiment(i) is proposal.information.experiment(k)
    ]
    return [
        (i, place, proposal.selection.values[0][i].times, float(proposal.counts[i])) for i, place in group_schedules
    ]


def _rows(axes: Any, schedules: list[tuple[int, int, Array, float]]) -> None:
    """Draw schedules below the curve, a row for each, with the number of subjects."""
    low, high = axes.get_ylim()
    step = _SCHEDULE_HEIGHT * (high - low)
    axes.set_ylim(low - step * (len(schedules) + 0.5), high)
    for row, (_, place, times, count) in enumerate(schedules):
        y = low - step * (row + 0.5)
        axes.plot(times, np.full(times.size, y), "o-", color=f"C{place}", markersize=3.5, linewidth=0.6)
        axes.annotate(f" {count:.3g}", (1.0, y), xycoords=("axes fraction", "data"), va="center", fontsize=7)
    axes.annotate(" subjects", (1.0, low + 0.5 * step), xycoords=("axes fraction", "data"), va="center", fontsize=7)


def _certificate(axes: Any, proposal: Design) -> None:
    bought = proposal.selection
    axes.axhline(1.0, color=RED, linewidth=0.9)
    add_title(axes, "worth over price: nothing above 1", pad=4)
    labels(axes, escape_text(proposal.information.extended.label("time")), size=8, labelpad=1)
    if proposal.information.has_subjects:
        _schedules(axes, proposal)
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        price = bought.pool.price  # The sensitivity is net of the price.
        share = (proposal.relaxed.sensitivity + price) / (proposal.relaxed.y @ bought.pool.A + price)
    free = share[~np.isfinite(bought.pool.u) & np.isfinite(share)]
    share = share / max(1.0, float(free.max(initial=0.0)))  # prices are as high as the certificate takes them
    for line in np.unique(bought.positions.line):
        line_indices = np.flatnonzero(bought.positions.line == line)
        mark = "o" if line_indices.size == 1 else ""
        axes.plot(bought.positions.time[line_indices], share[line_indices], color=INK, linewidth=1.0, marker=mark)


def _schedules(axes: Any, proposal: Design) -> None:
    """Draw what subjects are worth of whom one time is moved."""
    from castfit.drive.design.populations import PopulationDesignInformation, schedule_time_gains

    assert isinstance(proposal.information, PopulationDesignInformation)
    information = proposal.information
    worth_arguments = information, proposal.selection, proposal.design_goal, proposal.relaxed, proposal.counts
    worth_curves = [] if proposal.reordered else schedule_time_gains(*worth_arguments)  # by the criterion
    if not worth_curves:
        axes.axis("off")
        return
    names = [information.labels[k] for k in np.flatnonzero(proposal.counts > 0)]
    for name, times, worth in worth_curves:
        axes.plot(times, worth, color=f"C{names.index(name)}", linewidth=1.0, label=name)
    add_title(axes, "worth over price, one time moved", pad=4)
    if len(worth_curves) > 1:
        axes.legend(fontsize=7, frameon=False)


def _ellipses(axes: Any, proposal: Design) -> None:
    information = proposal.information
    if len(information.problem_positions) < 2:
        axes.axis("off")
        return
    pair = information.problem_positions[:2]
    angle = np.linspace(0, 2 * np.pi, _N_CURVE_POINTS)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for covariance, colour in zip(_covariances(proposal), (SOFT, BLUE), strict=True):
        part = covariance[np.ix_(pair, pair)]
        if np.sqrt(np.diag(part).max()) < _MAX_RELATIVE_SD:
            x, y = 100 * np.sqrt(5.991) * np.linalg.cholesky(part) @ circle
            axes.plot(x, y, color=colour, linewidth=1.3)
    add_title(axes, "before and after (95 %)" if len(axes.lines) > 1 else "after (95 %)", pad=4)
    labels(
        axes,
        escape_text(f"{information.names[pair[0]]} (%)"),
        escape_text(f"{information.names[pair[1]]} (%)"),
        size=8,
        labelpad=1,
    )


def _budgets(axes: Any, proposal: Design) -> None:
    offers, information = proposal.selection.pool, proposal.information
    sizes: list[float] = []
    errors: list[Array] = []
    priced = proposal.selection.price > 0.0 and not proposal.selection.has_budget
    for factor in _BUDGETS if proposal.criterion != "T" and len(offers.J) == 1 and (offers.b.size or priced) else ():
        scaled_offers = replace(offers, price=offers.price * factor) if priced else replace(offers, b=offers.b * factor)
        relaxed_optimum = (
            optimize_weights(proposal.design_goal, scaled_offers, 1e-5) if not proposal.reordered else None
        )
        if relaxed_optimum is not None:
            covariance = np.asarray(np.linalg.inv(offers.information(relaxed_optimum.w)[0]), dtype=float)
            sizes.append(factor)
            errors.append(100 * np.sqrt(np.diag(covariance))[information.problem_positions])
    if not sizes:
        axes.axis("off")
        return
    for name, error_curve in zip(information.quantities, np.array(errors).T, strict=True):
        axes.plot(range(len(sizes)), error_curve, marker="o", markersize=3, linewidth=1.0, label=name)
    axes.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    has_many = len(information.quantities) > _MAX_LEGEND_ROWS
    axes.set_ylim(0, (1.6 if has_many else 1.1) * np.max(errors))  # room for the names
    axes.legend(fontsize=6 if has_many else 7, frameon=False, ncols=2 if has_many else 1, loc="upper right")
    add_title(axes, "standard deviation (%)", pad=4)
    labels(axes, "price, times this one" if priced else "budget, times this one", size=8, labelpad=1)
