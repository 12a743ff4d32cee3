"""Conservation laws: the sums  L x  that no solution changes, because  L f(x, z, p, u) = 0  whatever x, z and p are.

They are the left null space of the right-hand side, found from its values at random points: the rows of F (N, n_x) are
f at N points, each divided by its largest entry so that rounding is the same in all, the columns divided by theirs so
that units of states do not matter.  What F maps to zero is a law.  States that begin at zero and stay there, such as
complexes of a drug that is not given yet, are zero at all points (`inactive_states`): each is a law by itself.
Gauss-Jordan elimination gives each law a state of its own, the *pivot*, with the coefficient 1, and the coefficients of
reactions come out as the simple numbers they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arrays import Array, Mask

_RANK_RTOL = 1e-11  # smaller singular values, relative to the largest, count as zero
_COMMON_DENOMINATOR = 60.0  # coefficients that are multiples of 1 / 60 up to rounding are rounded to them
_COEFFICIENT_RTOL = 1e-7  # rounding error of a coefficient
_MAX_DRAWS = 8  # largest number of draws of points at which the rates may be undefined
_SEED = 20260101  # the laws are the same for any points: the draw is fixed, so that nothing depends on a caller's rng


@dataclass(frozen=True)
class ConservationLaws:
    """Conserved sums  L x: `coefficients` (m, n_x); `pivots`, of each a state that no other contains, times 1."""

    coefficients: Array
    pivots: tuple[int, ...]

    def describe(self, names: Sequence[str]) -> list[str]:
        """Write the sums in words."""
        return [_sum(row, names) for row in self.coefficients]


def inactive_states(ode: ca.Function, x: Array, z: Array, p: Array, u: Array, *, zero: Mask, vary: Mask) -> Mask:
    """Find the largest set of the `zero` states that stay at zero whatever the others do, as a mask (n_x,).

    They are the largest set whose rates vanish where all of the set is zero; it is found by leaving out what moves.
    """
    idle = zero.copy()
    while idle.any():
        table = _rates(ode, x, z, p, u, vary=vary, idle=idle)
        moves = (table != 0.0).any(axis=0) if table.size else np.ones_like(idle)
        if not (moves & idle).any():
            break
        idle &= ~moves
    return idle


def conservation_laws(
    ode: ca.Function, x: Array, z: Array, p: Array, u: Array, *, vary: Mask, idle: Mask | None = None
) -> ConservationLaws:
    """Find the linear conservation laws of a right-hand side  (t, x, z, p, u) -> (n_x,).

    x, z, p, u are a point, for orders of magnitude; u is held.  A law must hold for all values of the parameters that
    `vary` (n_p,), while the others are held, and where the states that are `idle` (n_x,) are zero.
    """
    n_x = x.size
    table = _rates(ode, x, z, p, u, vary=vary, idle=np.zeros(n_x, dtype=np.bool_) if idle is None else idle)
    if len(table) < n_x:  # nothing is known
        return ConservationLaws(np.zeros((0, n_x)), ())
    table = table[np.abs(table).max(axis=1) > 0.0]
    if table.size == 0:
        return _eliminated(np.eye(n_x), np.ones(n_x))
    table = table / np.abs(table).max(axis=1, keepdims=True)
    size = np.abs(table).max(axis=0)
    size[size == 0.0] = 1.0
    _, singular, vectors = np.linalg.svd(table / size)
    rank = int(np.count_nonzero(singular > _RANK_RTOL * singular[0]))
    return _eliminated(vectors[rank:], size)


def _rates(ode: ca.Function, x: Array, z: Array, p: Array, u: Array, *, vary: Mask, idle: Mask) -> Array:
    """Return the right-hand side at random points (N, n_x), those at which it can be computed."""
    rng = np.random.default_rng(_SEED)
    rows: list[Array] = []
    count = 2 * x.size + 10
    typical = np.where(vary & (p == 0.0), 1.0, p)  # what varies is not zero everywhere
    for _ in range(_MAX_DRAWS):
        states = np.where(idle, 0.0, _sample_positive(x, rng, count))
        algebraic = _sample_positive(z, rng, count)
        parameters = np.where(vary, typical * np.exp(0.5 * rng.standard_normal((count, p.size))), p)
        raw_rates: Any = ode.map(count)(0.0, states.T, algebraic.T, parameters.T, np.repeat(u[:, None], count, axis=1))
        values = np.asarray(raw_rates, dtype=float).T
        rows += [v for v in values if np.isfinite(v).all()]
        if len(rows) >= count:
            break
    return np.array(rows).reshape(len(rows), x.size)


def _sample_positive(values: Array, rng: np.random.Generator, count: int) -> Array:
    """Draw positive points of the magnitude of values."""
    size = np.abs(values)
    typical_size = float(size.max(initial=0.0)) or 1.0
    return np.where(size > 0.0, size, typical_size) * np.exp(rng.standard_normal((count, values.size)))


def _eliminated(vectors: Array, size: Array) -> ConservationLaws:
    """Bring laws of scaled states x / size, orthonormal rows (m, n_x), into reduced form."""
    reduced = vectors.copy()
    pivots: list[int] = []
    for i in range(reduced.shape[0]):
        free = np.abs(reduced[i:])
        free[:, pivots] = 0.0
        row, column = np.unravel_index(int(np.argmax(free)), free.shape)
        reduced[[i, i + int(row)]] = reduced[[i + int(row), i]]
        reduced[i] /= reduced[i, column]
        for k in range(reduced.shape[0]):
            if k != i:
                reduced[k] -= reduced[k, column] * reduced[i]
        pivots.append(int(column))
    reduced[np.abs(reduced) < _COEFFICIENT_RTOL] = 0.0
    order = np.argsort(pivots)
    pivot_states = [pivots[int(k)] for k in order]
    coefficients: Array = reduced[order] / size * size[pivot_states][:, None]
    rounded_coefficients = np.round(coefficients * _COMMON_DENOMINATOR) / _COMMON_DENOMINATOR
    is_simple = np.abs(coefficients - rounded_coefficients) < _COEFFICIENT_RTOL * np.abs(coefficients)
    return ConservationLaws(np.where(is_simple, rounded_coefficients, coefficients), tuple(pivot_states))


def _sum(row: Array, names: Sequence[str]) -> str:
    parts: list[str] = []
    for value, name in zip(row.tolist(), names, strict=True):
        if value != 0.0:
            size = "" if abs(value) == 1.0 else f"{abs(value):.6g} "
            sign = "-" if value < 0 else "+"
            parts.append(f"{sign} {size}{name}")
    first_term = parts[0].removeprefix("+ ").replace("- ", "-", 1)
    return " ".join([first_term, *parts[1:]])
