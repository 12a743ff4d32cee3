"""Bounded step of a problem whose local unknowns are eliminated chain by chain.

For a given border the local unknowns of every chain solve a small bounded problem (`castfit.solve.block_pivoting`).
The remaining function of the border,

    V(xi_b) = 1/2 |T xi_b + t|^2 + sum_i  min over xi_i in bounds of  1/2 |R_i xi_i + B_i xi_b + c_i|^2,

is convex, once differentiable, and a parabola while the active bounds of local unknowns do not change.  Newton's
method: fix the local unknowns that are at bounds, minimise the parabola over the border within its bounds and rows,
determine the bounds that are active there, and repeat until they no longer change.  The step is shortened if V would
not decrease, so no active set occurs twice; the last parabola is V itself, and its minimum is the solution.

Singular directions are fixed as in `bounded_lsq.find_rank_deficiency`: directions of local unknowns alone by rows of
their chain, others (z of the border, with L z of all chains) by a row over the border.  The squared length of such a
direction is z^T M z, M = I + sum_i L_i^T L_i, and the component of a step along it is  z^T (M xi_b + sum_i L_i^T l_i).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from castfit._support.arrays import Array, Mask, Signs
from castfit.solve.arrow import ArrowFactors, ArrowMatrix, FactoredArrow
from castfit.solve.bounded_lsq import BoundedLsqSolution, LinearConstraints, bounded_lsq, column_scale, split

# Stiffness of fixed directions, relative to the largest singular value (Peifer and Timmer 2007, Eq. 23).
FIXED_DIRECTION_STIFFNESS = 1e3

# Limit on the active sets that are tried; three or four are usual.
MAX_ACTIVE_SETS = 100

# Singular value of local unknowns, relative to the largest, below which they are eliminated only if fixed.
NULL_SINGULAR_FRACTION = 1e-12

_COST_RTOL = 1e-14  # Relative difference of costs, and smallest step, that count as rounding.


@dataclass(frozen=True)
class DirectionHold:
    """Rows that fix singular directions.

    local_rows : per batch (N, o, o) rows, zero if nothing is singular
    directions : (n_b, k) directions z of the border, z^T M z = 1
    stiffness : the singular value they get
    count : number of fixed directions
    condition : ratio of the largest to the smallest singular value
    """

    local_rows: tuple[Array, ...]
    directions: Array
    stiffness: float
    count: int
    condition: float

    def border_rows(self, factors: ArrowFactors) -> Array:
        """Return the rows over the border, with their residuals, (k, n_b + 1)."""
        z = self.directions
        return self.stiffness * np.column_stack([z.T @ factors.metric, z.T @ factors.pull])


def find_singular_directions(
    compressed: FactoredArrow, is_fixed: Mask, pinned_rows: Array, threshold: float
) -> DirectionHold:
    """Find the singular directions: those with singular values below a fraction of the largest are fixed.

    With a threshold of 0 only local unknowns that cannot be eliminated are fixed.  Unknowns `is_fixed` (n_x,) cannot
    move; rows `pinned_rows` (k, n_b) over the border, in scaled unknowns, determine directions as well.
    """
    arrow = compressed.arrow
    largest = arrow.largest
    stiffness = FIXED_DIRECTION_STIFFNESS * (largest if largest > 0.0 else 1.0)
    local_directions: list[Array] = []
    smallest_value, n_singular = np.inf, 0
    for batch, R in zip(arrow.batches, compressed.factors, strict=True):
        o = batch.o
        is_batch_fixed = is_fixed[batch.local_unknowns]
        block = np.where(is_batch_fixed[:, None, :], np.eye(o) * max(largest, 1.0), R[:, :o, :o])
        _, w, Vt = np.linalg.svd(block)
        singular = w <= max(threshold, NULL_SINGULAR_FRACTION) * largest
        smallest_value = min(smallest_value, float(w.min(initial=np.inf)))
        n_singular += int(singular.sum())
        local_directions.append(stiffness * np.where(singular[:, :, None], Vt, 0.0))
    held_system = compressed.with_rows(local_directions, np.empty((0, arrow.n_b + 1)))
    factors = held_system.eliminate(*_build_fixed_bounds(arrow, is_fixed))
    free = np.eye(arrow.n_b)[:, ~is_fixed[arrow.border]]
    closure = pinned_rows @ free
    Z: Array = free @ split(closure * column_scale(closure.T)[:, None])[1] if len(closure) else free
    directions = np.empty((arrow.n_b, 0))
    if Z.shape[1]:
        G = np.asarray(scipy.linalg.cholesky(Z.T @ factors.metric @ Z), dtype=float)
        unit = np.asarray(scipy.linalg.solve_triangular(G, Z.T, trans="T"), dtype=float).T
        _, w, Vt = np.linalg.svd(factors.border[:, :-1] @ unit)
        w = np.append(w, np.zeros(Z.shape[1] - w.size))
        smallest_value = min(smallest_value, float(w.min()))
        if threshold > 0.0:
            directions = unit @ Vt[w <= threshold * largest].T
    condition = largest / smallest_value if smallest_value > 0.0 else np.inf
    return DirectionHold(tuple(local_directions), directions, stiffness, n_singular + directions.shape[1], condition)


def _build_fixed_bounds(arrow: ArrowMatrix, is_fixed: Mask) -> tuple[list[Signs], list[Array], list[Array]]:
    """Return signs and bounds of local unknowns, per batch (N, o), with the fixed ones at a step of zero."""
    zeros = [np.zeros(batch.local_unknowns.shape) for batch in arrow.batches]
    return [np.where(is_fixed[batch.local_unknowns], -1, 0).astype(np.int8) for batch in arrow.batches], zeros, zeros


def solve(
    compressed: FactoredArrow,
    holding: DirectionHold,
    *,
    lower: Array,
    upper: Array,
    rows: LinearConstraints,
    damping: Array | None,
    bounds_active: Signs,
    rows_active: Signs,
) -> BoundedLsqSolution:
    """Minimise 1/2 |u + E x|^2 within bounds of all unknowns (n_x,) and rows of the border (p, n_b), not scaled.

    Rows  damping[j] x[j] = 0  are added.  bounds_active (n_x,) and rows_active (p,) are a guess of the active set.
    """
    arrow = compressed.arrow
    D, border_indices = arrow.scale, arrow.border
    lows = [(lower / D)[batch.local_unknowns] for batch in arrow.batches]
    highs = [(upper / D)[batch.local_unknowns] for batch in arrow.batches]
    held_system = compressed.with_rows(holding.local_rows, np.empty((0, arrow.n_b + 1)))
    if holding.directions.shape[1]:
        factors = held_system.eliminate(*_build_fixed_bounds(arrow, lower == upper))
        held_system = replace(
            held_system, border_rows=np.concatenate([held_system.border_rows, holding.border_rows(factors)])
        )
    if damping is not None:
        local_values = [_diagonal((damping * D)[batch.local_unknowns]) for batch in arrow.batches]
        held_system = held_system.with_rows(
            local_values, np.column_stack([np.diag((damping * D)[border_indices]), np.zeros(border_indices.size)])
        )
    scaled = LinearConstraints(rows.g, rows.G * D[border_indices], rows.lower, rows.upper)
    low, high = lower[border_indices] / D[border_indices], upper[border_indices] / D[border_indices]

    signs = [np.where(np.isfinite(np.where(s < 0, lo, hi)), s, 0).astype(np.int8)
             for s, lo, hi in zip((bounds_active[b.local_unknowns] for b in arrow.batches), lows, highs,
                                  strict=True)]  # fmt: skip
    signs = [np.where(lo == hi, -1, s).astype(np.int8) for s, lo, hi in zip(signs, lows, highs, strict=True)]
    guess, guess_rows = bounds_active[border_indices], rows_active
    border, value, n_iterations = np.zeros(0), np.inf, 0
    iterations = 0
    while True:
        iterations += 1
        factors = held_system.eliminate(signs, lows, highs)
        border_solution = _of_border(factors, low, high, scaled, guess, guess_rows)
        n_iterations += border_solution.iterations
        guess, guess_rows = border_solution.bounds_active, border_solution.rows_active
        border_x, (cost, local_values, new_signs) = (
            border_solution.x,
            held_system.minimise_locally(border_solution.x, lows, highs, signs),
        )
        is_settled = _same(signs, new_signs) or not border_solution.feasible or iterations >= MAX_ACTIVE_SETS
        if not is_settled and np.isfinite(value):
            step = 1.0
            while cost >= value and step > _COST_RTOL:  # towards the best border so far
                step *= 0.5
                border_x = border + step * (border_solution.x - border)
                cost, local_values, new_signs = held_system.minimise_locally(border_x, lows, highs, new_signs)
            is_settled = value - cost <= _COST_RTOL * abs(value)
        border, value, signs = border_x, cost, new_signs
        if is_settled:
            break
    x = factors.gather(local_values, border)
    multipliers, active = np.zeros(D.size), np.zeros(D.size, dtype=np.int8)
    multipliers[border_indices], active[border_indices] = (
        border_solution.bound_multipliers / D[border_indices],
        border_solution.bounds_active,
    )
    for batch, pull, sign, lo, hi in zip(
        arrow.batches, held_system.pull(local_values, border), signs, lows, highs, strict=True
    ):
        multipliers[batch.local_unknowns] = np.where(sign != 0, -pull, 0.0) / D[batch.local_unknowns]
        active[batch.local_unknowns] = np.where(lo == hi, 0, sign)
    clipped_x = np.clip(np.where(active < 0, lower, np.where(active > 0, upper, x)), lower, upper)
    return BoundedLsqSolution(
        x=clipped_x if border_solution.feasible else np.where(arrow.border_positions < 0, clipped_x, x),
        bound_multipliers=multipliers,
        row_multipliers=border_solution.row_multipliers,
        bounds_active=active,
        rows_active=border_solution.rows_active,
        rank=border_solution.rank + sum(batch.local_unknowns.size for batch in arrow.batches),
        iterations=n_iterations,
        violation=border_solution.violation,
        feasible=border_solution.feasible,
        optimal=border_solution.optimal and iterations < MAX_ACTIVE_SETS,
    )


def _of_border(
    factors: ArrowFactors, lower: Array, upper: Array, rows: LinearConstraints, guess: Signs, rows_active: Signs
) -> BoundedLsqSolution:
    n_b = factors.arrow.n_b
    if n_b == 0:
        no_values, no_signs = np.empty(0), np.empty(0, dtype=np.int8)
        zero_multipliers, inactive = np.zeros(len(rows.g)), np.zeros(len(rows.g), dtype=np.int8)
        return BoundedLsqSolution(
            no_values, no_values, zero_multipliers, no_signs, inactive, 0, 0, 0.0, feasible=True, optimal=True
        )
    return bounded_lsq(
        factors.border[:, -1],
        factors.border[:, :-1],
        lower=lower,
        upper=upper,
        rows=rows,
        scale=np.ones(n_b),
        bounds_active=guess,
        rows_active=rows_active,
    )


def _diagonal(entries: Array) -> Array:
    return entries[:, :, None] * np.eye(entries.shape[1])


def _same(signs: Sequence[Signs], other_signs: Sequence[Signs]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(signs, other_signs, strict=True))
