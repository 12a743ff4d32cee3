"""Panels of data and residuals: their arrangement, contents and axis limits."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.status import InputError
from castfit.plots._canvas import Axes, Canvas, add_title, escape_text, labels, log_spaced, shade_band, tidy, time_axis
from castfit.problem.compiled_experiments import Condition
from castfit.problem.problem import Posable
from castfit.simulate.predictions import Prediction
from castfit.simulate.simulate import SimulationError

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.problem import Posable
    from castfit.result.result import Result


_MOST_COLUMNS, _MOST_PANELS = 4, 12
_WIDTHS = (6.4, 4.6, 3.6, 2.9)  # of a panel in inches, by the number of columns
_LETTERS_PER_INCH = 13  # Letters of a heading per inch.
_MAX_SHARED_RANGE_RATIO = 6.0  # Ratio of the ranges of panels up to which the panels share a scale.


@dataclass(frozen=True)
class OutputPanel:
    """One measured output of one experiment, and where it stands."""

    row: int
    column: int
    condition: Condition
    output: int


@dataclass(frozen=True)
class Grid:
    """Arrangement of panels; `note` gives the number of panels shown, if some were left out."""

    panels: tuple[OutputPanel, ...]
    rows: int
    columns: int
    note: str

    @classmethod
    def from_problem(cls, problem: Posable) -> Grid:
        """Arrange experiments in columns and outputs in rows.

        Wrap the panels if there is only one experiment or output.
        """
        conditions, outputs = problem.conditions, range(len(problem.outputs))
        measured = [(c, j) for c in conditions for j in outputs if c.points.mask[:, j].any()]
        if len(conditions) == 1 or len(outputs) == 1:
            visible_pairs = measured[:_MOST_PANELS]
            rows = -(-len(visible_pairs) // _MOST_COLUMNS)
            columns = -(-len(visible_pairs) // (3 if len(conditions) == 1 else rows))
            panels = [OutputPanel(*divmod(i, columns), *pair) for i, pair in enumerate(visible_pairs)]
        else:
            columns = min(len(conditions), _MOST_COLUMNS)
            column = {c.name: i for i, c in enumerate(conditions[:columns])}
            visible_outputs = sorted({j for c, j in measured if c.name in column})[: _MOST_PANELS // columns]
            panels = [
                OutputPanel(visible_outputs.index(j), column[c.name], c, j)
                for c, j in measured
                if c.name in column and j in visible_outputs
            ]
        note = f"{len(panels)} of {len(measured)} panels are shown." if len(panels) < len(measured) else ""
        return cls(tuple(panels), 1 + max(panel.row for panel in panels), columns, note)

    @property
    def conditions(self) -> list[Condition]:
        """The experiments that are shown."""
        return list({panel.condition.name: panel.condition for panel in self.panels}.values())

    @property
    def width(self) -> float:
        """Width of all columns in inches."""
        return self.columns * _WIDTHS[self.columns - 1]

    def shows_time(self, panel: OutputPanel) -> bool:
        """Whether a panel labels its times: nothing right below has the same ones."""
        return not any(
            (p.row, p.column, p.condition) == (panel.row + 1, panel.column, panel.condition) for p in self.panels
        )

    def shows_values(self, panel: OutputPanel) -> bool:
        """Whether a panel labels its values: nothing right before it has the same ones."""
        return not any((p.row, p.column, p.output) == (panel.row, panel.column - 1, panel.output) for p in self.panels)


@dataclass(frozen=True)
class PanelAxes:
    """The axes of a panel: data and model above, residuals below."""

    panel: OutputPanel
    above: Axes
    below: Axes


def outputs_on_one_scale(grid: Grid) -> set[int]:
    """Return the outputs that look well on one scale in all their panels."""
    ranges: dict[int, list[float]] = {}
    for panel in grid.panels:
        values = panel.condition.points.values[:, panel.output]
        ranges.setdefault(panel.output, []).append(float(np.ptp(values[np.isfinite(values)])))
    return {j for j, sizes in ranges.items() if max(sizes) <= _MAX_SHARED_RANGE_RATIO * min(sizes)}


def panels(canvas: Canvas, grid: Grid, problem: Posable, shared: set[int]) -> list[PanelAxes]:
    """Make the axes: panels of one experiment share their times, panels of a shared output their values."""
    compiled_problem = problem.posed
    cells = canvas.add_gridspec(2 * grid.rows, grid.columns, height_ratios=[2.8, 1] * grid.rows)
    pairs: list[PanelAxes] = []
    for panel in grid.panels:
        name, output = panel.condition.name, problem.outputs[panel.output]
        time = next((p.above for p in pairs if p.panel.condition is panel.condition), None)
        is_shared = panel.output in shared
        value = next((p.above for p in pairs if is_shared and p.panel.output == panel.output), None)
        above = canvas.add_subplot(cells[2 * panel.row, panel.column], sharex=time, sharey=value)
        residual = pairs[0].below if pairs else None
        below = canvas.add_subplot(cells[2 * panel.row + 1, panel.column], sharex=above, sharey=residual)
        has_several = len(problem.conditions) > 1
        label = f"{compiled_problem.label(output)}, {name}" if has_several else compiled_problem.label(output)
        folded = textwrap.fill(escape_text(label), int(_LETTERS_PER_INCH * grid.width / grid.columns))
        add_title(above, folded, pad=4)
        for axes in (above, below):
            tidy(axes)
        above.tick_params(axis="x", length=0)
        above.tick_params(labelbottom=False, labelleft=grid.shows_values(panel) or not is_shared)
        below.tick_params(labelbottom=grid.shows_time(panel), labelleft=panel.column == 0)
        time_axis(above, compiled_problem, [panel.condition], has_labels=False)
        time_axis(below, compiled_problem, [panel.condition], has_labels=grid.shows_time(panel), size=8, labelpad=1)
        if panel.column == 0:
            labels(below, y="residual / σ", size=7.5)
        shade_band(below, 2)
        pairs.append(PanelAxes(panel, above, below))
    return pairs


CURVE_POINTS = 600  # Points of a curve.


def owner(result: Result) -> Posable:
    if result.problem is None:
        raise InputError("plots", ["a loaded result does not know its data; use result.with_problem(problem) first"])
    return result.problem


def data_sigmas(result: Result) -> Array:
    """Return the standard deviations of the data, (n_data,); NaN where they are not known."""
    if result.deviations.size == result.n_data:
        return result.deviations
    sigma = np.concatenate([c.points.sigma[c.points.mask] for c in owner(result).conditions])
    return sigma * (1.0 if result.absolute_sigma else result.noise)  # saved by an earlier version


def arrange_on_points(result: Result, values: Array) -> dict[str, Array]:
    """Arrange values of all measurements, (n_data,), on each experiment's points, (n_points, n_outputs)."""
    conditions = owner(result).conditions
    ends = np.cumsum([c.points.mask.sum() for c in conditions])
    values_by_condition: dict[str, Array] = {}
    for condition, condition_values in zip(conditions, np.split(values, ends[:-1]), strict=True):
        table = np.full(condition.points.mask.shape, np.nan)
        table[condition.points.mask] = condition_values
        values_by_condition[condition.name] = table
    return values_by_condition


def curves(result: Result, conditions: Sequence[Condition]) -> tuple[Prediction, list[str]]:
    """Evaluate some experiments densely, up to the time where an integration stops; also return the messages."""
    times = curve_times(result, conditions, CURVE_POINTS)
    try:
        return result.predict(times), []
    except SimulationError:
        stops: list[str] = []
        curves = Prediction()
        for name, t in times.items():
            try:
                curves.update(result.predict({name: t}))
            except SimulationError as stop:
                stops.append(str(stop))
                earlier_times = t[t < stop.time][:-1]
                with suppress(SimulationError):
                    curves.update(result.predict({name: earlier_times}) if earlier_times.size > 1 else {})
        return curves, stops


def curve_times(result: Result, conditions: Sequence[Condition], count: int) -> dict[str, Array]:
    """Return times of curves by experiment, including measured times if an output refers to intervals."""
    times_by_name = {c.name: dense(c, count) for c in conditions}
    if not owner(result).posed.model.memories:
        return times_by_name
    return {c.name: np.unique(np.concatenate([times_by_name[c.name], c.points.times])) for c in conditions}


def intervals(result: Result, condition: Condition, output: int, times: Array, *columns: Array) -> list[Array] | None:
    """Return times (n,) and columns (n,) of a count or mean per interval, to be held to the left; None of others.

    Between measurements, a prediction is the accumulated part of an interval, which is not measured.
    """
    name = owner(result).outputs[output]
    kinds = {m.output: m.kind for m in owner(result).posed.model.memories}
    if kinds.get(name, "relative") == "relative":
        return None
    is_interval_end = np.isin(times, condition.points.times[condition.points.mask[:, output]]) & (
        times > condition.start
    )
    if not is_interval_end.any():
        return None
    return [
        np.append(condition.start, times[is_interval_end]),
        *(np.append(column[is_interval_end][0], column[is_interval_end]) for column in columns),
    ]


def dense(condition: Condition, count: int) -> Array:
    """Return times of a curve: evenly spaced, and where measurements are spread over decades so as well."""
    times: Array = np.linspace(condition.start, condition.end, count)
    first_time = condition.points.times[0]
    if not log_spaced([condition.points.times]) or condition.start < 0.0:
        return times
    log_start, log_end = float(np.log(max(0.5 * float(first_time), condition.start))), float(np.log(condition.end))
    decades: Array = np.exp(np.linspace(log_start, log_end, count))
    return np.unique(np.clip(np.concatenate([times, decades]), condition.start, condition.end))


def logarithmic(pairs: Sequence[PanelAxes], log: bool | str, shared: set[int]) -> None:
    """Make axes logarithmic, where data allow it."""
    for pair in pairs:
        points, j = pair.panel.condition.points, pair.panel.output
        is_measured = points.mask[:, j]
        times = points.times[is_measured]
        has_dates = pair.panel.condition.origin is not None
        if times[0] > 0.0 and not has_dates and (log in (True, "x") or (log == "auto" and log_spaced([points.times]))):
            for axes in (pair.above, pair.below):
                axes.set_xscale("log")
            pair.above.set_xlim(0.6 * float(points.times[0]), 1.6 * float(points.times[-1]))
        group = [p for p in pairs if p.panel.output == j] if j in shared else [pair]
        finite_values = np.concatenate([p.panel.condition.points.values[:, j] for p in group])
        finite_values = finite_values[np.isfinite(finite_values)]
        if finite_values.min() > 0.0 and (log in (True, "y") or (log == "auto" and log_spaced([finite_values]))):
            pair.above.set_yscale("log")
            pair.above.set_ylim(0.6 * float(finite_values.min()), 1.6 * float(finite_values.max()))


def limit(
    pairs: Sequence[PanelAxes], results: Sequence[Result], curves: Sequence[Prediction], shared: set[int]
) -> None:
    """Show all data and residuals, and of curves that leave the data no more than their span on either side."""
    result = results[0]
    outputs = owner(result).outputs
    groups = [[pair for pair in pairs if pair.panel.output == j] for j in sorted(shared)]
    groups += [[pair] for pair in pairs if pair.panel.output not in shared]
    for group in (g for g in groups if g):
        j = group[0].panel.output
        points = [pair.panel.condition.points for pair in group]
        errors_by_name = arrange_on_points(result, np.nan_to_num(data_sigmas(result)))
        names = [pair.panel.condition.name for pair in group]
        ends = [
            p.values[:, j] + sign * errors_by_name[n][:, j]
            for p, n in zip(points, names, strict=True)
            for sign in (-1, 1)
        ]
        low, high = np.nanmin(np.concatenate(ends)), np.nanmax(np.concatenate(ends))
        span = high - low or abs(high) or 1.0
        visible_names = set(names)
        heights = [curve[name][outputs[j]] for curve in curves for name in visible_names & curve.keys()]
        clipped_heights = np.clip(np.concatenate([*heights, [low, high]]), low - span, high + span)
        low, high = np.nanmin(clipped_heights), np.nanmax(clipped_heights)
        group[0].above.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    sizes = np.concatenate([np.abs(r.normalised_residuals) for r in results])
    largest = 1.15 * max(2.6, np.max(sizes[np.isfinite(sizes)], initial=0.0))
    pairs[0].below.set_ylim(-largest, largest)
    if largest < 6:
        pairs[0].below.set_yticks([-2, 0, 2])
