"""Checks of relations of quantities before anything is solved: contradictions and redundant equations.

Linear relations and bounds are a linear program: if it has no solution, relations are left out one after the other as
long as it stays so, and those that remain contradict each other (a deletion filter).  The rest is evaluated in interval
arithmetic over the box that bounds and linear relations leave.  A linear equation that is a combination of others is
left out of the problem, since copies of an equation leave an interior point method no multipliers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca
import numpy as np
import scipy

from castfit._support.arrays import Array
from castfit._support.records import dataclass
from castfit._support.reprs import join_with_and
from castfit.problem.constraint_compilation import Relation

_N_SLOPE_PROBES = 3  # number of random points at which the slope of a relation is compared with that at the guess
_LINEARITY_RTOL = 1e-9  # relative difference of slopes or rows that counts as zero
_BOUND_RTOL = 1e-9  # relative violation of a bound that counts as rounding error


@dataclass(frozen=True)
class _LinearRelations:
    """Linear relations  lower <= A n <= upper  in units of n, rows of length 1; `of` are their positions."""

    A: Array
    lower: Array
    upper: Array
    positions: tuple[int, ...]


def _find_linear_relations(relations: Sequence[Relation], guess: Array, lower: Array, upper: Array) -> _LinearRelations:
    """Find the relations that are linear in natural values n, by their slopes at a few points."""
    unit = np.where(guess != 0.0, np.abs(guess), 1.0)
    rng = np.random.default_rng(0)  # where functions are looked at, no part of any answer
    points = [
        guess,
        *(np.clip(guess + unit * rng.uniform(-0.5, 0.5, guess.size), lower, upper) for _ in range(_N_SLOPE_PROBES)),
    ]
    rows: list[Array] = []
    low: list[float] = []
    high: list[float] = []
    positions: list[int] = []
    for i, relation in enumerate(relations):
        evaluations = [relation.expression.values(p) for p in points]
        value, slope = evaluations[0][0][0], evaluations[0][1][0]
        size = float(np.linalg.norm(slope * unit))
        if not (np.isfinite(value) and size > 0.0):
            continue
        if any(not np.abs((s[0] - slope) * unit).max() <= _LINEARITY_RTOL * size for _, s in evaluations[1:]):
            continue
        constant = float(value - slope @ guess)
        rows.append(slope * unit / size)
        low.append((relation.lower - constant) / size)
        high.append((relation.upper - constant) / size)
        positions.append(i)
    return _LinearRelations(np.array(rows).reshape(-1, guess.size), np.array(low), np.array(high), tuple(positions))


def contradictions(relations: Sequence[Relation], guess: Array, lower: Array, upper: Array) -> list[str]:
    """Describe the relations that contradict each other, or the bounds of quantities; natural values, (n_theta,)."""
    if not relations:
        return []
    unit = np.where(guess != 0.0, np.abs(guess), 1.0)
    linear, box = _find_linear_relations(relations, guess, lower, upper), (lower / unit, upper / unit)
    if not _is_solvable(linear, range(len(linear.positions)), *box):
        conflicting_rows = list(range(len(linear.positions)))
        for row in list(conflicting_rows):
            fewer = [r for r in conflicting_rows if r != row]
            if not _is_solvable(linear, fewer, *box):
                conflicting_rows = fewer
        names = [f"'{relations[linear.positions[r]].name}'" for r in conflicting_rows]
        if len(names) == 1:
            return [f"the constraint {names[0]} contradicts the bounds of the quantities; change one of them"]
        return [f"the constraints {join_with_and(names)} contradict each other; leave one of them out"]
    nonlinear_indices = [i for i in range(len(relations)) if i not in linear.positions]
    if not nonlinear_indices:
        return []
    low, high = _box(linear, *box)
    messages: list[str] = []
    for i in nonlinear_indices:
        relation = relations[i]
        min_value, max_value = _range(relation, low * unit, high * unit)
        slack = _BOUND_RTOL * (
            1.0 + max((abs(b) for b in (relation.lower, relation.upper) if np.isfinite(b)), default=0.0)
        )
        if min_value > relation.upper + slack or max_value < relation.lower - slack:
            messages.append(
                f"the constraint '{relation.name}' cannot hold: bounds and the other constraints leave "
                f"{min_value:.4g} to {max_value:.4g} for what it bounds; change one of them"
            )
    return messages


def redundant(relations: Sequence[Relation], guess: Array, lower: Array, upper: Array) -> tuple[int, ...]:
    """Return the indices of the linear equations that are combinations of preceding ones."""
    equal = [i for i, r in enumerate(relations) if r.lower == r.upper]
    if len(equal) < 2:
        return ()
    linear = _find_linear_relations([relations[i] for i in equal], guess, lower, upper)
    basis, redundant_positions = np.empty((0, guess.size)), list[int]()
    for row, i in zip(linear.A, linear.positions, strict=True):
        remainder = row - basis.T @ (basis @ row)
        length = float(np.linalg.norm(remainder))
        if length <= _LINEARITY_RTOL:
            redundant_positions.append(equal[i])
        else:
            basis = np.vstack([basis, remainder / length])
    return tuple(redundant_positions)


def _is_solvable(linear: _LinearRelations, rows: Sequence[int], lower: Array, upper: Array) -> bool:
    solution = _solve(linear, rows, np.zeros(lower.size), lower, upper)
    return solution.status != 2  # only what is known to have no solution is a contradiction


def _solve(linear: _LinearRelations, rows: Sequence[int], cost: Array, lower: Array, upper: Array) -> Any:
    """Minimise a linear cost within some of the relations and the bounds."""
    row_indices = np.array(list(rows), dtype=np.intp)
    A, low, high = linear.A[row_indices], linear.lower[row_indices], linear.upper[row_indices]
    equal = low == high
    above, below = np.isfinite(high) & ~equal, np.isfinite(low) & ~equal
    program: Any = scipy.optimize.linprog
    return program(
        cost,
        A_ub=np.vstack([A[above], -A[below]]),
        b_ub=np.concatenate([high[above], -low[below]]),
        A_eq=A[equal],
        b_eq=high[equal],
        bounds=np.column_stack([lower, upper]),
        method="highs",
    )


def _box(linear: _LinearRelations, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return the smallest box about what linear relations leave."""
    low, high = lower.copy(), upper.copy()
    for j in np.flatnonzero(linear.A.any(axis=0)):
        for sign, limits in ((1.0, low), (-1.0, high)):
            cost = np.zeros(lower.size)
            cost[j] = sign
            solution = _solve(linear, range(len(linear.positions)), cost, lower, upper)
            if solution.status == 0:
                limits[j] = sign * float(solution.fun)
    return low, high


def _range(relation: Relation, low: Array, high: Array) -> tuple[float, float]:
    """Enclose the values of a relation over a box, in interval arithmetic; unknown ranges are unbounded."""
    part = relation.expression
    n: list[tuple[float, float]] = [
        (float(low[s]), float(high[s])) if s >= 0 else (float(c), float(c))
        for s, c in zip(part.source.tolist(), part.numbers.tolist(), strict=True)
    ]
    work: dict[int, tuple[float, float]] = {}
    result: tuple[float, float] = (-np.inf, np.inf)
    f = part.jacobian_function
    for k in range(f.n_instructions()):
        op, targets, operands = f.instruction_id(k), list(f.instruction_output(k)), list(f.instruction_input(k))
        if op == ca.OP_OUTPUT:
            if targets[0] == 0:
                result = work[operands[0]]
        elif op == ca.OP_INPUT:
            work[targets[0]] = n[operands[1]]
        elif op == ca.OP_CONST:
            number = float(f.instruction_constant(k))
            work[targets[0]] = number, number
        else:
            work[targets[0]] = _apply(op, [work[i] for i in operands])
    return result


def _apply(op: int, x: list[tuple[float, float]]) -> tuple[float, float]:
    """Apply one operation to intervals."""
    a = x[0]
    b = x[1] if len(x) > 1 else (0.0, 0.0)
    with np.errstate(all="ignore"):
        if op == ca.OP_ADD:
            return a[0] + b[0], a[1] + b[1]
        if op == ca.OP_SUB:
            return a[0] - b[1], a[1] - b[0]
        if op == ca.OP_NEG:
            return -a[1], -a[0]
        if op == ca.OP_TWICE:
            return 2 * a[0], 2 * a[1]
        if op == ca.OP_MUL:
            return _interval_hull([_times(p, q) for p in a for q in b])
        if op == ca.OP_SQ:
            ends = _interval_hull([_times(p, p) for p in a])
            return (0.0, ends[1]) if a[0] < 0.0 < a[1] else ends
        if op in (ca.OP_DIV, ca.OP_INV):
            top, under = ((1.0, 1.0), a) if op == ca.OP_INV else (a, b)
            if under[0] > 0.0 or under[1] < 0.0:
                return _interval_hull([_times(p, 1.0 / q) for p in top for q in under])
        if op == ca.OP_EXP:
            return float(np.exp(a[0])), float(np.exp(a[1]))
        if op == ca.OP_SQRT and a[0] >= 0.0:
            return float(np.sqrt(a[0])), float(np.sqrt(a[1]))
        if op == ca.OP_LOG and a[0] > 0.0:
            return float(np.log(a[0])), float(np.log(a[1]))
    return -np.inf, np.inf


def _times(p: float, q: float) -> float:
    return 0.0 if p == 0.0 or q == 0.0 else p * q


def _interval_hull(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)
