"""Contents and axis limits of panels of data and residuals."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.status import InputError
from castfit.plots._canvas import log_spaced
from castfit.simulate.predictions import Prediction
from castfit.simulate.simulate import SimulationError

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.plots._grid import PanelAxes
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.problem import Posable
    from castfit.result.result import Result


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
