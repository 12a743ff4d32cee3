"""Optimisation of chosen times between grid times, along splines of the rows.

The model predicts the rows at the new times, which are accepted only if the criterion decreases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize

from castfit._support.arrays import Array, Index
from castfit.drive.design.interior_point import CandidatePool, DesignGoal
from castfit.drive.design.knowledge import DesignInformation
from castfit.drive.design.purchases import CandidateSelection, candidate_rows

_MAX_SHIFT_FRACTION = 0.5  # largest shift of a time, as a fraction of the grid step
MIN_SPLINE_TIMES = 4  # grid times that a spline needs


def optimize_times(
    selection: CandidateSelection,
    goal: DesignGoal,
    counts: Array,
    order: Index,
    bounds: tuple[Array, Array, Array],
    gaps: tuple[Index, Array],
    interpolate_information: Callable[[Array], Array],
    recompute_selection: Callable[[Array], CandidateSelection],
) -> tuple[CandidateSelection, CandidatePool] | None:
    """Optimise the times of a design.

    Return the purchases and the offers in the criterion's order, or None if not better.

    bounds : current, earliest and latest times, (m,) each;  gaps : indices a, with the least gaps from a to a + 1
    interpolate_information : informations (S, n, n) at times, by splines
    recompute_selection : purchases at times, by the model
    """
    (start, low, high), (a, gap) = bounds, gaps
    unit = high - low

    def evaluate_goal(x: Any) -> float:
        return float(goal.values(interpolate_information(start + unit * np.asarray(x))[:, order][:, :, order]))

    def evaluate_gaps(x: Any) -> Any:
        times = start + unit * np.asarray(x)
        return (times[a + 1] - times[a] - gap) / unit[a]

    start_value, solve = evaluate_goal(np.zeros(start.size)), cast("Any", minimize)
    result: Any = solve(
        lambda x: evaluate_goal(x) - start_value,  # pyright: ignore[reportUnknownLambdaType]
        np.zeros(start.size),
        method="SLSQP",
        jac="3-point",
        bounds=list(zip((low - start) / unit, (high - start) / unit, strict=True)),
        constraints=[{"type": "ineq", "fun": evaluate_gaps}] if a.size else [],
        options={"ftol": 1e-15},
    )
    new_selection = recompute_selection(start + unit * np.asarray(result.x))
    new_pool = new_selection.pool.with_order(order)
    old_value = goal.values(selection.pool.with_order(order).information(counts))
    return (new_selection, new_pool) if float(goal.values(new_pool.information(counts))) < float(old_value) else None


def shift_times(
    information: DesignInformation, selection: CandidateSelection, goal: DesignGoal, counts: Array, order: Index
) -> tuple[CandidateSelection, CandidatePool] | None:
    """Move times by at most half a grid step. Return the purchases and the offers, or None if not better."""
    grids = {
        k: selection.values[0][k].times
        for k, c in enumerate(information.candidates)
        if c.continuous_times and not c.fixed and selection.values[0][k].times.size >= MIN_SPLINE_TIMES
    }
    indices = np.array([i for i in np.flatnonzero(counts) if selection.candidate[i] in grids], dtype=np.intp)
    if not indices.size:
        return None
    places = sorted({(int(selection.candidate[i]), int(selection.time[i])) for i in indices})
    place_indices = [places.index((int(selection.candidate[i]), int(selection.time[i]))) for i in indices]
    splines = [{k: CubicSpline(grids[k], sample_values[k].rows) for k in grids} for sample_values in selection.values]
    fixed = counts.copy()
    fixed[indices] = 0.0
    fixed_information = selection.pool.information(fixed)

    def interpolate_information(t: Array) -> Array:
        M = fixed_information.copy()
        for s, sample_splines in enumerate(splines):
            for i, place in zip(indices, place_indices, strict=True):
                rows = sample_splines[int(selection.candidate[i])](t[place])
                rows = rows if selection.output[i] < 0 else rows[selection.output[i]]
                rows = rows.reshape(-1, rows.shape[-1])
                M[s] += counts[i] * rows.T @ rows
        return M

    def recompute_selection(t: Array) -> CandidateSelection:
        time, values = selection.positions.time.copy(), [list(sample_values) for sample_values in selection.values]
        for k, grid in grids.items():
            times = grid.copy()
            for (candidate, time_index), new_time in zip(places, t.tolist(), strict=True):
                times[time_index] = new_time if candidate == k else times[time_index]
            candidate_indices = np.flatnonzero(selection.candidate == k)
            time[candidate_indices] = times[selection.time[candidate_indices]]
            for s, sample_values in enumerate(values):
                sample_values[k] = information.values(k, times, s)
        J, _ = candidate_rows(information, values, np.zeros(len(values)))
        pool, positions = replace(selection.pool, J=J), replace(selection.positions, time=time)
        return replace(
            selection, pool=pool, positions=positions, values=tuple(tuple(sample_values) for sample_values in values)
        )

    start = np.array([grids[k][t] for k, t in places])
    low, high = (
        np.array(
            [
                (1 - _MAX_SHIFT_FRACTION) * grids[k][t]
                + _MAX_SHIFT_FRACTION * grids[k][min(max(t + shift, 0), grids[k].size - 1)]
                for k, t in places
            ]
        )
        for shift in (-1, 1)
    )
    gap_starts = [
        a for a, ((k, _), (j, _)) in enumerate(pairwise(places)) if k == j and information.candidates[k].spacing > 0
    ]
    gaps = np.array([information.candidates[places[a][0]].spacing for a in gap_starts])
    return optimize_times(
        selection,
        goal,
        counts,
        order,
        (start, low, high),
        (np.array(gap_starts, dtype=np.intp), gaps),
        interpolate_information,
        recompute_selection,
    )
