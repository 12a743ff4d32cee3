"""Small dense least squares with bounds, equalities and many inequality rows, of any rank.

    minimise   1/2 |u + E x|^2
    subject to lower <= x       <= upper          bounds (n)
               lower <= g + G x <= upper          rows (p); one with equal bounds is an equality

This is the condensed problem (Peifer and Timmer 2007, Eq. 10): n is small, p may be thousands, few rows are active.

It is solved in coordinates y in which the cost is 1/2 |y|^2 + constant.  With x = D xi (column scaling), the
equalities A_e xi = b_e solved by xi = xi_e + Z t, and the singular value decomposition E D Z = U S V^T,

    xi = xi_0 + T y,     T = Z V S^-1.

Directions of zero singular value get a small one instead: they stay put unless a constraint moves them, so the
solution is the one of minimum norm in scaled variables.  E^T E is never formed.

The dual active-set method of Goldfarb and Idnani (1983) then starts at y = 0, adds the most violated constraint and
drops those whose multipliers would change sign, until nothing is violated.  Inactive rows cost one product G x per
iteration.  The working set has at most n members, so it is factored afresh at every change: no updating code, no
drift.  Measured against the QP solvers that CasADi ships: daqp is as fast for 100 rows, but squares the condition
number (it wants E^T E) and is several times slower for 10,000; qrqp and qpoases are slower throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit.status import check

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]
    Mask = NDArray[np.bool_]
    Signs = NDArray[np.int8]

RANK_TOLERANCE = 1e-12
"""Singular values below this fraction of the largest count as zero."""

NULL_STIFFNESS = 1e-7
"""The singular value, relative to the largest, of directions that have none."""

FEASIBILITY = 1e-11
"""Violation, relative to a constraint's terms, that the iteration takes for rounding."""

CONTRADICTION = 1e-8
"""Violation, relative to a constraint's terms, above which the constraints count as contradictory."""

SLACK_STIFFNESS = 1e4
"""Singular value, relative to the largest, of the common slack that contradictory constraints get."""


@dataclass(frozen=True)
class Rows:
    """Affine rows  lower <= g + G x <= upper.

    g, lower, upper : (p,)
    G : (p, n)
    """

    g: Array
    G: Array
    lower: Array
    upper: Array

    @staticmethod
    def none(n: int) -> Rows:
        """No rows, in n variables."""
        return Rows(np.empty(0), np.empty((0, n)), np.empty(0), np.empty(0))


@dataclass(frozen=True)
class Solution:
    """The minimum of a bounded least-squares problem.

    The multipliers make  E^T (u + E x) + bound_multipliers + G^T row_multipliers  vanish; they are positive at an
    upper bound, negative at a lower bound, of either sign at an equality.

    Attributes
    ----------
    x : (n,) array
    bound_multipliers, row_multipliers : (n,), (p,) arrays
    bounds_active, rows_active : (n,), (p,) int8 arrays
        -1 at the lower bound, +1 at the upper one, 0 elsewhere and at equalities.
    rank : int
        How many directions, of those that the equalities leave free, E determines.
    iterations : int
        Changes of the working set.
    violation : float
        Largest violation of a constraint, relative to the magnitude of its terms.
    feasible : bool
        Whether the constraints can be met.  If not, x violates the rows, or if need be also the bounds, as little
        as possible.
    optimal : bool
        Whether the iteration ended by itself, not at its limit.
    """

    x: Array
    bound_multipliers: Array
    row_multipliers: Array
    bounds_active: Signs
    rows_active: Signs
    rank: int
    iterations: int
    violation: float
    feasible: bool
    optimal: bool


def bounded_lsq(
    u: Array,
    E: Array,
    *,
    lower: Array | None = None,
    upper: Array | None = None,
    rows: Rows | None = None,
    scale: Array | None = None,
    bounds_active: Signs | None = None,
    rows_active: Signs | None = None,
) -> Solution:
    """Minimise 1/2 |u + E x|^2 within bounds and affine rows.

    Parameters
    ----------
    u, E : (m,), (m, n) arrays
        Residuals and their derivative; any rank.
    lower, upper : (n,) arrays, optional
        Bounds of x; infinite where there are none.
    rows : Rows, optional
        Further constraints.
    scale : (n,) array, optional
        Typical magnitudes of x; by default the inverse norms of E's columns.
    bounds_active, rows_active : (n,), (p,) int8 arrays, optional
        A guess of the active set, usually that of the previous `Solution`.

    Returns
    -------
    Solution
        Contradictory constraints are an outcome (``feasible`` is False), not an exception.

    Raises
    ------
    InputError
        If shapes do not match, numbers are not finite, a scale is not positive, or bounds cross.
    """
    n = E.shape[1]
    rows = rows or Rows.none(n)
    lower = np.full(n, -np.inf) if lower is None else lower
    upper = np.full(n, np.inf) if upper is None else upper
    D = column_scale(E) if scale is None else scale
    _validate(u, E, lower, upper, rows, D)

    constraints = _unit_rows(lower, upper, rows, D)
    equal, free = constraints.kinds()
    inverse, Z = _split(constraints.A[equal])
    xi_e = inverse @ constraints.lower[equal]
    xi_0, T, rank = _whiten(u, E * D, xi_e, Z)
    signs = np.concatenate([_guess(bounds_active, n), _guess(rows_active, len(rows.g))])
    end = _relax_until_feasible(constraints.take(free), xi_0, T, signs[free])

    xi = xi_0 + T @ end.y
    x, count = D * xi, len(constraints.norm)
    active, multipliers = np.zeros(count, dtype=np.int8), np.zeros(count)
    active[free[end.members]] = end.signs
    multipliers[free[end.members]] = end.signs * end.multipliers
    # An equality's multiplier balances what the cost and the other constraints leave of the gradient.
    multipliers[equal] = -inverse.T @ (D * (E.T @ (u + E @ x)) + constraints.A.T @ multipliers)
    multipliers = multipliers / constraints.norm

    inside = np.where(active[:n] < 0, lower, np.where(active[:n] > 0, upper, np.clip(x, lower, upper)))
    x = inside if end.bounds_hold else x
    violation = constraints.relative_violation(x / D)
    return Solution(
        x=x,
        bound_multipliers=multipliers[:n],
        row_multipliers=multipliers[n:],
        bounds_active=active[:n],
        rows_active=active[n:],
        rank=rank,
        iterations=end.iterations,
        violation=violation,
        feasible=violation <= CONTRADICTION,
        optimal=end.optimal,
    )


def column_scale(E: Array) -> Array:
    """Return the inverse norms of the columns, 1 for a column of zeros."""
    norm = np.linalg.norm(E, axis=0)
    return 1 / np.where(norm > 0, norm, 1.0)


@dataclass(frozen=True)
class Regularisation:
    """What the singular value decomposition says about a scaled matrix E D.

    Attributes
    ----------
    singular_values : (n,) array
        In descending order; zeros stand for rows that E lacks.
    directions : (n, k) array
        Orthonormal singular directions in scaled variables x / scale: which quantities the data cannot tell apart.
    damping : (k, n) array
        Rows to append to E, with residual zero, so that x hardly moves along the directions.
    """

    singular_values: Array
    directions: Array
    damping: Array


def regularise(E: Array, *, threshold: float = 1e-10, Delta: float = 1e3, scale: Array | None = None) -> Regularisation:
    """Find the singular directions of E and the rows that hold them (Peifer and Timmer 2007, Eq. 23).

    Directions with w_i <= threshold w_1 get the singular value Delta w_1 instead: 1/2 |E x|^2 grows by
    1/2 (Delta w_1)^2 |directions^T x / scale|^2.  (In print the criterion reads w_np / w_i <= threshold, which would
    choose the largest singular values; w_i / w_1 is meant.)

    Parameters
    ----------
    E : (m, n) array
    threshold : float
        Relative size below which a singular value counts as zero.
    Delta : float
        Stiffness of singular directions relative to the largest singular value.
    scale : (n,) array, optional
        Column scaling D; by default the inverse norms of E's columns.
    """
    D = column_scale(E) if scale is None else scale
    _, found, Vt = np.linalg.svd(np.linalg.qr(E * D, mode="r"))
    w = np.zeros(E.shape[1])
    w[: found.size] = found
    largest = w.max(initial=0.0)
    singular = w <= threshold * largest
    stiffness = Delta * (largest if largest > 0 else 1.0)
    return Regularisation(w, Vt[singular].T, stiffness * Vt[singular] / D)


@dataclass(frozen=True)
class _Constraints:
    """Constraints  lower <= A xi <= upper  whose rows have unit norm, or are zero.

    A : (c, n); lower, upper : (c,)
    norm : (c,)  what the rows were divided by
    size : (c,)  magnitude of the constant terms, which rounding is relative to
    is_row : (c,)  whether it came from `Rows`, not from the bounds of x
    """

    A: Array
    lower: Array
    upper: Array
    norm: Array
    size: Array
    is_row: Mask

    def kinds(self) -> tuple[Mask, Index]:
        """Tell equalities (a mask) from inequalities with at least one bound (positions); neither has zero rows."""
        nonzero = self.A.any(axis=1)
        equal = nonzero & (self.lower == self.upper)
        bounded = np.isfinite(self.lower) | np.isfinite(self.upper)
        return equal, np.flatnonzero(nonzero & bounded & ~equal)

    def take(self, chosen: Index) -> _Constraints:
        """Return some of the constraints."""
        fields = (self.A, self.lower, self.upper, self.norm, self.size, self.is_row)
        return _Constraints(*(field[chosen] for field in fields))

    def relative_violation(self, xi: Array) -> float:
        """Return the largest violation at xi, relative to the magnitude of the constraint's terms."""
        value = self.A @ xi
        excess = np.maximum(self.lower - value, value - self.upper)
        terms = self.size + np.abs(self.A) @ np.abs(xi)
        return float(np.divide(excess, terms, out=np.zeros_like(excess), where=excess > 0).max(initial=0.0))


def _unit_rows(lower: Array, upper: Array, rows: Rows, D: Array) -> _Constraints:
    """Stack bounds and rows, in scaled variables, each divided by its norm."""
    n = len(D)
    scaled = rows.G * D
    length = np.linalg.norm(scaled, axis=1)
    zero = length <= 1e-14 * length.max(initial=0.0)
    length[zero], scaled[zero] = 1.0, 0.0
    norm = np.concatenate([D, length])
    A = np.vstack([np.eye(n), scaled / length[:, None]])
    g = np.concatenate([np.zeros(n), rows.g])
    low, high = np.concatenate([lower, rows.lower]), np.concatenate([upper, rows.upper])
    size = np.abs(g) + np.where(np.isfinite(low), np.abs(low), 0) + np.where(np.isfinite(high), np.abs(high), 0)
    return _Constraints(A, (low - g) / norm, (high - g) / norm, norm, size / norm, np.arange(norm.size) >= n)


def _split(A: Array) -> tuple[Array, Array]:
    """Return the pseudo-inverse (n, c) of A (c, n) and an orthonormal basis (n, n - rank) of its null space."""
    U, S, Vt = np.linalg.svd(A, full_matrices=A.shape[0] < A.shape[1])
    rank = int(np.sum(S > RANK_TOLERANCE * S.max(initial=0.0)))
    return (Vt[:rank].T / S[:rank]) @ U[:, :rank].T, Vt[rank:].T


def _whiten(u: Array, M: Array, xi_e: Array, Z: Array) -> tuple[Array, Array, int]:
    """Return xi_0, T and the rank, such that xi = xi_0 + T y costs 1/2 |y|^2 + constant and solves the equalities."""
    free = Z.shape[1]
    triangle = np.linalg.qr(np.column_stack([M @ Z, u + M @ xi_e]), mode="r")[:free]
    U, S, Vt = np.linalg.svd(triangle[:, :free])
    largest = S.max(initial=0.0)
    rank = int(np.sum(S > RANK_TOLERANCE * largest))
    stiffness = np.full(free, NULL_STIFFNESS * largest if largest > 0 else 1.0)
    stiffness[:rank] = S[:rank]
    T = Z @ (Vt.T / stiffness)
    return xi_e - T[:, :rank] @ (U[:, :rank].T @ triangle[:, free]), T, rank


@dataclass(frozen=True)
class _WorkingSet:
    """Constraints N^T y = b that hold with equality; q of them, linearly independent.

    members, signs : (q,) which constraints, and at which bound (-1 lower, +1 upper)
    N, b : (f, q), (q,)
    """

    members: Index
    signs: Array
    N: Array
    b: Array

    @cached_property
    def factors(self) -> tuple[Array, Array, Array]:
        """N = [Q_1 Q_2] [R; 0]."""
        q = self.b.size
        Q, R = np.linalg.qr(self.N, mode="complete")
        return Q[:, :q], Q[:, q:], R[:q]

    def minimum(self) -> tuple[Array, Array]:
        """Return the shortest y with N^T y = b, and multipliers with y = N multipliers."""
        Q_1, _, R = self.factors
        along = np.linalg.solve(R.T, self.b)
        return Q_1 @ along, np.linalg.solve(R, along)

    def split(self, a: Array) -> tuple[Array, Array]:
        """Return z and r with a = z + N r and N^T z = 0."""
        Q_1, Q_2, R = self.factors
        return Q_2 @ (Q_2.T @ a), np.linalg.solve(R, Q_1.T @ a)

    def with_member(self, i: int, sign: float, a: Array, b: float) -> _WorkingSet:
        """Return the set with one more member."""
        return _WorkingSet(
            np.append(self.members, i), np.append(self.signs, sign), np.column_stack([self.N, a]), np.append(self.b, b)
        )

    def keep(self, chosen: Mask) -> _WorkingSet:
        """Return the set with some members only."""
        return _WorkingSet(self.members[chosen], self.signs[chosen], self.N[:, chosen], self.b[chosen])

    def independent(self) -> _WorkingSet:
        """Return the set without members that depend on earlier ones."""
        R = np.linalg.qr(self.N, mode="r")
        diagonal = np.zeros(self.b.size)
        diagonal[: R.shape[0]] = np.abs(R.diagonal())
        return self.keep(diagonal > 1e-10 * np.linalg.norm(self.N, axis=0))


@dataclass(frozen=True)
class _End:
    """Where the active-set iteration stopped."""

    y: Array
    members: Index
    signs: Array
    multipliers: Array
    iterations: int
    feasible: bool
    bounds_hold: bool
    optimal: bool


def _relax_until_feasible(constraints: _Constraints, xi_0: Array, T: Array, guess: Signs) -> _End:
    """Solve with hard constraints; if they contradict, with a common slack on the rows, then on the bounds too."""
    spread = np.linalg.norm(T, axis=0)
    slack = float(spread[spread > 0].min(initial=1.0)) / SLACK_STIFFNESS
    for soft in (np.zeros(len(constraints.norm)), slack * constraints.is_row):
        end = _dual_active_set(constraints, xi_0, T, guess, soft)
        if end.feasible:
            return end
    end = _dual_active_set(constraints, xi_0, T, guess, np.full(len(constraints.norm), slack))
    return _End(end.y, end.members, end.signs, end.multipliers, end.iterations, False, False, end.optimal)


def _dual_active_set(constraints: _Constraints, xi_0: Array, T: Array, guess: Signs, soft: Array) -> _End:
    """Find the shortest y = (y', t) with  lower - soft t <= A (xi_0 + T y') <= upper + soft t."""
    A, lower, upper, size = constraints.A, constraints.lower, constraints.upper, constraints.size
    offset = A @ xi_0
    limit = 100 + 10 * T.shape[1]

    def normal(i: int, sign: float) -> tuple[Array, float]:
        """Constraint i at one of its bounds as  a . y >= b."""
        bound = upper[i] if sign > 0 else lower[i]
        return np.append(-sign * (A[i] @ T), soft[i]), -sign * float(bound - offset[i])

    def started() -> _WorkingSet:
        """Take the guess as far as it is independent and its multipliers have the right sign."""
        working = _WorkingSet(np.empty(0, dtype=np.intp), np.empty(0), np.empty((T.shape[1] + 1, 0)), np.empty(0))
        for i in np.flatnonzero(guess):
            if np.isfinite(upper[i] if guess[i] > 0 else lower[i]):
                working = working.with_member(int(i), float(guess[i]), *normal(int(i), float(guess[i])))
        working = working.independent()
        while (multipliers := working.minimum()[1]).min(initial=0.0) < 0:
            working = working.keep(np.arange(multipliers.size) != multipliers.argmin())
        return working

    working = started()
    y, multipliers = working.minimum()
    settled = np.zeros(len(lower), dtype=bool)
    feasible, optimal, iterations = True, False, 0
    while feasible and not optimal and iterations < limit:
        xi = xi_0 + T @ y[:-1]
        value, slack = A @ xi, soft * y[-1]
        below, above = lower - slack - value, value - upper - slack
        rounding = FEASIBILITY * (size + np.linalg.norm(xi))
        excess = np.maximum(below, above) - rounding
        excess[settled] = excess[working.members] = -np.inf
        worst = int(excess.argmax()) if excess.size else -1
        if worst < 0 or excess[worst] <= 0:
            optimal = True
            break
        sign = 1.0 if above[worst] > below[worst] else -1.0
        a, b = normal(worst, sign)
        while True:
            iterations += 1
            z, r = working.split(a)
            curvature = float(z @ z)
            independent = curvature > 1e-24 * float(a @ a)
            full = (b - float(a @ y)) / curvature if independent else np.inf
            ratio = np.divide(np.maximum(multipliers, 0), r, out=np.full_like(r, np.inf), where=r > 0)
            step = min(full, float(ratio.min(initial=np.inf)))
            if step == np.inf:
                settled[worst] = b - float(a @ y) <= CONTRADICTION * (size[worst] + np.linalg.norm(xi))
                feasible = bool(settled[worst])
                break
            y = y + step * z if independent else y
            if step == full:
                working = working.with_member(worst, sign, a, b)
                y, multipliers = working.minimum()
                break
            stays = np.arange(r.size) != ratio.argmin()
            multipliers = (multipliers - step * r)[stays]
            working = working.keep(stays)
    return _End(y[:-1], working.members, working.signs, multipliers, iterations, feasible, True, optimal)


def _guess(signs: Signs | None, count: int) -> Signs:
    """Return a guessed active set, empty by default."""
    return np.zeros(count, dtype=np.int8) if signs is None else signs


def _validate(u: Array, E: Array, lower: Array, upper: Array, rows: Rows, scale: Array) -> None:
    """Refuse input that has no meaning."""
    (m, n), p = E.shape, len(rows.g)
    problems = [
        f"{name} has shape {array.shape}; give {shape}"
        for name, array, shape in (
            ("u", u, (m,)),
            ("lower", lower, (n,)),
            ("upper", upper, (n,)),
            ("scale", scale, (n,)),
            ("rows.G", rows.G, (p, n)),
            ("rows.lower", rows.lower, (p,)),
            ("rows.upper", rows.upper, (p,)),
        )
        if array.shape != shape
    ]
    check("bounded_lsq", problems)
    problems = [
        f"{name} contains NaN or infinite numbers; linearise at a point that can be evaluated"
        for name, array in (("u", u), ("E", E), ("rows.g", rows.g), ("rows.G", rows.G))
        if not np.isfinite(array).all()
    ]
    problems += [
        f"{name} contains NaN; use -inf or inf where there is no bound"
        for name, array in (("lower", lower), ("upper", upper), ("rows.lower", rows.lower), ("rows.upper", rows.upper))
        if np.isnan(array).any()
    ]
    if not ((scale > 0) & np.isfinite(scale)).all():
        problems.append("scale must be positive; give typical magnitudes")
    problems += [f"lower[{i}] = {lower[i]:g} exceeds upper[{i}] = {upper[i]:g}" for i in np.flatnonzero(lower > upper)]
    check("bounded_lsq", problems)
