"""Times between those of a grid: the chosen ones are moved along splines of the rows.

What comes out is worked out anew by the model at the moved times, and kept only if it is better.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize

from castfit.drive.design.purchases import Purchases, offered

if TYPE_CHECKING:
    from collections.abc import Callable

    from castfit._support.arrays import Array, Index
    from castfit.drive.design.interior_point import DesignGoal, Offers
    from castfit.drive.design.knowledge import Knowledge

_STEP = 0.5  # of the grid, by which times move at most
FEWEST = 4  # times of a grid that carry a spline


def moved(
    bought: Purchases, goal: DesignGoal, counts: Array, order: Index, bounds: tuple[Array, Array, Array],
    gaps: tuple[Index, Array], along: Callable[[Array], Array], anew: Callable[[Array], Purchases],
) -> tuple[Purchases, Offers] | None:  # fmt: skip
    """Optimise the times of a design.

    Return the purchases and the offers in the criterion's order, or None if not better.

    bounds : times now, the least and the last ones, (m,) each;  gaps : positions a, with least gaps from a to a + 1
    along : the informations (S, n, n) at times, by splines;  anew : what is bought at times, by the model
    """
    (start, low, high), (a, gap) = bounds, gaps
    unit = high - low

    def value(x: Any) -> float:
        return float(goal.values(along(start + unit * np.asarray(x))[:, order][:, :, order]))

    def apart(x: Any) -> Any:
        times = start + unit * np.asarray(x)
        return (times[a + 1] - times[a] - gap) / unit[a]

    now, solve = value(np.zeros(start.size)), cast("Any", minimize)
    found: Any = solve(
        lambda x: value(x) - now,  # pyright: ignore[reportUnknownLambdaType]
        np.zeros(start.size),
        method="SLSQP",
        jac="3-point",
        bounds=list(zip((low - start) / unit, (high - start) / unit, strict=True)),
        constraints=[{"type": "ineq", "fun": apart}] if a.size else [],
        options={"ftol": 1e-15},
    )
    new = anew(start + unit * np.asarray(found.x))
    ordered = new.offers.ordered(order)
    before = goal.values(bought.offers.ordered(order).information(counts))
    return (new, ordered) if float(goal.values(ordered.information(counts))) < float(before) else None


def moved_times(
    known: Knowledge, bought: Purchases, goal: DesignGoal, counts: Array, order: Index
) -> tuple[Purchases, Offers] | None:
    """Move times by at most half a grid step. Return the purchases and the offers, or None if not better."""
    grids = {
        k: bought.values[0][k].times
        for k, c in enumerate(known.candidates)
        if c.between and not c.fixed and bought.values[0][k].times.size >= FEWEST
    }
    own = np.array([i for i in np.flatnonzero(counts) if bought.candidate[i] in grids], dtype=np.intp)
    if not own.size:
        return None
    places = sorted({(int(bought.candidate[i]), int(bought.time[i])) for i in own})
    which = [places.index((int(bought.candidate[i]), int(bought.time[i]))) for i in own]
    splines = [{k: CubicSpline(grids[k], of[k].rows) for k in grids} for of in bought.values]
    fixed = counts.copy()
    fixed[own] = 0.0
    rest = bought.offers.information(fixed)

    def along(t: Array) -> Array:
        M = rest.copy()
        for s, of in enumerate(splines):
            for i, place in zip(own, which, strict=True):
                rows = of[int(bought.candidate[i])](t[place])
                rows = rows if bought.output[i] < 0 else rows[bought.output[i]]
                rows = rows.reshape(-1, rows.shape[-1])
                M[s] += counts[i] * rows.T @ rows
        return M

    def anew(t: Array) -> Purchases:
        time, values = bought.at.time.copy(), [list(of) for of in bought.values]
        for k, grid in grids.items():
            times = grid.copy()
            for (candidate, at), when in zip(places, t.tolist(), strict=True):
                times[at] = when if candidate == k else times[at]
            mine = np.flatnonzero(bought.candidate == k)
            time[mine] = times[bought.time[mine]]
            for s, of in enumerate(values):
                of[k] = known.values(k, times, s)
        J, _ = offered(known, values, np.zeros(len(values)))
        offers, at_ = replace(bought.offers, J=J), replace(bought.at, time=time)
        return replace(bought, offers=offers, at=at_, values=tuple(tuple(of) for of in values))

    start = np.array([grids[k][t] for k, t in places])
    low, high = (
        np.array([(1 - _STEP) * grids[k][t] + _STEP * grids[k][min(max(t + by, 0), grids[k].size - 1)]
                  for k, t in places]) for by in (-1, 1)
    )  # fmt: skip
    near = [a for a, ((k, _), (j, _)) in enumerate(pairwise(places)) if k == j and known.candidates[k].spacing > 0]
    gaps = np.array([known.candidates[places[a][0]].spacing for a in near])
    return moved(bought, goal, counts, order, (start, low, high), (np.array(near, dtype=np.intp), gaps), along, anew)
