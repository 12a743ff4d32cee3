"""Times between those of a grid: the chosen ones are moved by at most half a step, along splines of the rows.

What comes out is worked out anew by the model at the moved times, and kept only if it is better.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.drive.design.interior_point import DesignGoal, Offers
    from castfit.drive.design.knowledge import Knowledge
    from castfit.drive.design.purchases import Purchases

_STEP = 0.5  # of the grid
_FEWEST = 4  # times of a grid that carry a spline


def moved_times(
    known: Knowledge, bought: Purchases, goal: DesignGoal, counts: Array, order: Index
) -> tuple[Purchases, Offers] | None:
    """Return what is bought, with better times, and the offers in the criterion's order; None if there are none."""
    used = np.flatnonzero(counts)
    free = [
        k
        for k, c in enumerate(known.candidates)
        if c.between and not c.fixed and bought.values[0][k].times.size >= _FEWEST
    ]
    own = np.array([i for i in used if bought.candidate[i] in free], dtype=np.intp)
    if not own.size:
        return None
    places = sorted({(int(bought.candidate[i]), int(bought.time[i])) for i in own})
    which = [places.index((int(bought.candidate[i]), int(bought.time[i]))) for i in own]
    grids = {k: bought.values[0][k].times for k in free}
    splines = [{k: CubicSpline(grids[k], of[k].rows) for k in free} for of in bought.values]
    fixed = counts.copy()
    fixed[own] = 0.0
    rest = bought.offers.information(fixed)

    def criterion(t: Array) -> float:
        M = rest.copy()
        for s, of in enumerate(splines):
            for i, place in zip(own, which, strict=True):
                rows = of[int(bought.candidate[i])](t[place])
                rows = rows if bought.output[i] < 0 else rows[bought.output[i]]
                rows = rows.reshape(-1, rows.shape[-1])
                M[s] += counts[i] * rows.T @ rows
        return float(goal.values(M[:, order][:, :, order]))

    start: Array = np.array([grids[k][t] for k, t in places])
    bounds: list[tuple[float, float]] = []
    for k, t in places:
        grid = grids[k]
        lower, upper = grid[max(t - 1, 0)], grid[min(t + 1, grid.size - 1)]
        bounds.append((grid[t] + _STEP * (lower - grid[t]), grid[t] + _STEP * (upper - grid[t])))
    near = [
        (a, known.candidates[k].spacing)
        for a, ((k, _), (other, _)) in enumerate(pairwise(places))
        if k == other and known.candidates[k].spacing > 0
    ]

    def apart(t: Array) -> Array:
        return np.array([t[a + 1] - t[a] - gap for a, gap in near])

    unit = max((high - low for low, high in bounds), default=1.0) or 1.0
    now = criterion(start)

    def of_moves(x: Any) -> float:
        return criterion(start + unit * np.asarray(x)) - now

    def spaced(x: Any) -> Any:
        return apart(start + unit * np.asarray(x)) / unit

    solve: Any = minimize
    found: Any = solve(
        of_moves,
        np.zeros(start.size),
        method="SLSQP",
        jac="3-point",
        bounds=[((low - t) / unit, (high - t) / unit) for (low, high), t in zip(bounds, start.tolist(), strict=True)],
        constraints=[{"type": "ineq", "fun": spaced}] if near else [],
        options={"ftol": 1e-15},
    )
    moved = start + unit * np.asarray(found.x)
    new = _at_times(known, bought, free, {place: t for place, t in zip(places, moved, strict=True)})
    ordered = new.offers.ordered(order)
    before = goal.values(bought.offers.ordered(order).information(counts))
    return (new, ordered) if float(goal.values(ordered.information(counts))) < float(before) else None


def _at_times(known: Knowledge, bought: Purchases, free: list[int], moved: dict[tuple[int, int], float]) -> Purchases:
    """Return all that can be bought with some times moved, worked out by the model."""
    J, time = bought.offers.J.copy(), bought.at.time.copy()
    values = [list(of) for of in bought.values]
    for k in free:
        times = values[0][k].times.copy()
        for (candidate, t), when in moved.items():
            if candidate == k:
                times[t] = when
        own = np.flatnonzero(bought.candidate == k)
        time[own] = times[bought.time[own]]
        for s, of in enumerate(values):
            of[k] = known.values(k, times, s)
            blocks = known.blocks(of[k], known.candidates[k].together)
            J[s, own] = 0.0
            J[s, own, : blocks.shape[1]] = blocks
    return replace(
        bought,
        offers=replace(bought.offers, J=J),
        at=replace(bought.at, time=time),
        values=tuple(tuple(of) for of in values),
    )
