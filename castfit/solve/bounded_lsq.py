"""Small dense least squares with bounds, equalities and many inequality rows, of any rank.

    minimise   1/2 |u + E x|^2
    subject to lower <= x       <= upper          bounds (n)
               lower <= g + G x <= upper          rows (p); one with equal bounds is an equality

This is the condensed problem (Peifer and Timmer 2007, Eq. 10): n is small, p may be thousands, few rows are active.

It is solved in coordinates y in which the cost is 1/2 |y - target|^2 + constant.  With x = D xi (column scaling), the
equalities A_e xi = b_e solved by xi = xi_e + Z t, and the singular value decomposition E D Z = U S V^T,

    xi = xi_e + T y,     T = Z V S^-1,     target = -U^T (u + E D xi_e).

Directions of zero singular value get a small one instead: they change only if a constraint requires it, so the
solution is the one of minimum norm in scaled variables.  E^T E is never formed.

Then y is the point nearest to the target, by the dual active-set method of Goldfarb and Idnani (1983).  It starts at
the target, adds the most violated constraint, and drops constraints whose multipliers would change sign, until no
constraint is violated.  No feasible start is needed, and inactive constraints cost one product A xi per iteration.  The
working set has at most as many members as y has entries, so it is factored afresh at every change, without updates.

Measured against the solvers of CasADi, 15 unknowns and 1000 residuals: with 100 rows 0.8 ms, daqp 0.5 ms, qrqp 3.4 ms;
with 10,000 rows 7 ms, warm 2 ms, daqp 16 ms.  The main reason against them is that they need E^T E, which squares the
condition number and does not distinguish rank deficiency from rounding.  If there are only bounds and E^T E is regular,
`castfit.solve.block_pivoting` is ten times faster.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property
from math import sqrt

import numpy as np

from castfit._support.arrays import Array, Index, Mask, Signs
from castfit._support.records import dataclass
from castfit.solve.matrices import (
    TallFactors,
    UnitCoordinates,
    euclidean_norm,
    numerical_rank,
    orthogonal,
    triangle,
    triangular_solution,
    upper_factor,
)


@dataclass(frozen=True)
class LinearConstraints:
    """Affine rows  lower <= g + G x <= upper.

    g, lower, upper : (p,)
    G : (p, n)
    """

    g: Array
    G: Array
    lower: Array
    upper: Array

    @staticmethod
    @cache
    def none(n: int) -> LinearConstraints:
        """No rows, in n variables."""
        return LinearConstraints(np.empty(0), np.empty((0, n)), np.empty(0), np.empty(0))


@dataclass(frozen=True)
class BoundedLsqSolution:
    """Minimum x (n,) of a bounded least-squares problem.

    The multipliers, (n,) and (p,), make  E^T (u + E x) + bound_multipliers + G^T row_multipliers  vanish; they are
    positive at an upper bound, negative at a lower bound, of either sign at an equality.  Active is -1 at the lower
    bound, +1 at the upper one, 0 elsewhere and at equalities.

    rank : number of directions that E determines, among those that the equalities leave free
    iterations : changes of the working set
    optimal : whether these ended before their limit
    violation : largest violation of a constraint, relative to the magnitude of its terms
    feasible : whether the constraints can be satisfied; if not, x violates the rows, and if necessary the bounds, as
        little as possible
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
    E: Array | TallFactors,
    *,
    lower: Array | None = None,
    upper: Array | None = None,
    rows: LinearConstraints | None = None,
    scale: Array | None = None,
    bounds_active: Signs | None = None,
    rows_active: Signs | None = None,
) -> BoundedLsqSolution:
    """Minimise 1/2 |u + E x|^2 of residuals u (m,) and their derivative E (m, n), of any rank, within bounds and rows.

    A derivative that is used repeatedly is factored once, as a `TallFactors`.  `scale` (n,) are typical magnitudes of
    x, by default the inverse norms of E's columns; the guess of the active set is usually that of the previous
    solution.

    Contradictory constraints are an outcome (``feasible`` is False), not an exception.
    """
    tall_factors, matrix = (E, E.R) if isinstance(E, TallFactors) else (None, E)
    n = matrix.shape[1]
    rows = LinearConstraints.none(n) if rows is None else rows
    lower = -np.inf * np.ones(n) if lower is None else lower
    upper = np.inf * np.ones(n) if upper is None else upper
    D = column_scale(matrix) if scale is None else scale

    # From here on R, a triangle with |R x + u_R|^2 = |E x + u|^2 - constant, stands for E.
    R, u_R = _factored(matrix, u) if tall_factors is None else (tall_factors.R, tall_factors.project(u))
    has_guess = (bounds_active is not None and bounds_active.any()) or (rows_active is not None and rows_active.any())
    if not (has_guess or (lower == upper).any() or (rows.lower == rows.upper).any()):
        coordinates = UnitCoordinates.from_matrix(R * D) if tall_factors is None else tall_factors.whitened(D)
        x, rank, p = D * (coordinates.T @ coordinates.target(u_R)), coordinates.rank, rows.g.size
        value = rows.g + rows.G @ x if p else rows.g
        if ((lower <= x) & (x <= upper)).all() and ((rows.lower <= value) & (value <= rows.upper)).all():
            zero, free = np.zeros(n + p), np.zeros(n + p, dtype=np.int8)
            return BoundedLsqSolution(
                x, zero[:n], zero[n:], free[:n], free[n:], rank, 0, 0.0, feasible=True, optimal=True
            )
    constraints, norm = _unit_rows(lower, upper, rows, D)
    nonzero = constraints.A.any(axis=1)
    is_equality = nonzero & (constraints.lower == constraints.upper)
    bounded = np.isfinite(constraints.lower) | np.isfinite(constraints.upper)
    inequality_indices = np.flatnonzero(nonzero & bounded & ~is_equality)
    inverse, Z = split(constraints.A[is_equality])
    xi_e = inverse @ constraints.lower[is_equality]
    free = tall_factors is not None and not is_equality.any()
    coordinates = (
        tall_factors.whitened(D) if tall_factors is not None and free else UnitCoordinates.from_matrix(R * D, Z)
    )
    T, target, rank = (
        coordinates.T if free else Z @ coordinates.T,
        coordinates.target(u_R + R @ (D * xi_e)),
        coordinates.rank,
    )
    empty_signs = np.zeros(n, dtype=np.int8), np.zeros(len(rows.g), dtype=np.int8)
    signs_or_none = zip((bounds_active, rows_active), empty_signs, strict=True)
    guess = np.concatenate([no_signs if signs is None else signs for signs, no_signs in signs_or_none])
    nearest_point = nearest(constraints.take(inequality_indices), xi_e, T, target, guess[inequality_indices])

    x = D * (xi_e + T @ nearest_point.y)
    active, multipliers = np.zeros(len(norm), dtype=np.int8), np.zeros(len(norm))
    active[inequality_indices[nearest_point.members]] = nearest_point.signs
    multipliers[inequality_indices[nearest_point.members]] = nearest_point.signs * nearest_point.multipliers
    # The multipliers of equalities balance the rest of the gradient of cost and other constraints.
    multipliers[is_equality] = -inverse.T @ (D * (R.T @ (u_R + R @ x)) + constraints.A.T @ multipliers)
    multipliers /= norm
    if nearest_point.within_bounds:
        x = np.where(active[:n] < 0, lower, np.where(active[:n] > 0, upper, np.clip(x, lower, upper)))
    violation = constraints.relative_violation(x / D, float(np.linalg.norm(xi_e + T @ target)))
    return BoundedLsqSolution(
        x=x,
        bound_multipliers=multipliers[:n],
        row_multipliers=multipliers[n:],
        bounds_active=active[:n],
        rows_active=active[n:],
        rank=rank,
        iterations=nearest_point.iterations,
        violation=violation,
        feasible=violation <= INFEASIBILITY_RTOL,
        optimal=nearest_point.optimal,
    )


def column_scale(E: Array) -> Array:
    """Return the inverse norms of the columns, 1 for a column of zeros."""
    norm = np.linalg.norm(E, axis=0)
    return 1 / np.where(norm > 0, norm, 1.0)


@dataclass(frozen=True)
class Regularisation:
    """Singular values of a scaled matrix E D, its singular directions, and the rows that damp them.

    singular_values (n,) : in descending order; zeros stand for rows that E lacks
    directions (n, k) : orthonormal, in scaled variables x / scale: combinations that the data do not determine
    damping (k, n) : rows to append to E, with residual zero, so that x hardly moves along the directions
    """

    singular_values: Array
    directions: Array
    damping: Array


def find_rank_deficiency(
    E: Array | TallFactors, *, threshold: float = 1e-10, Delta: float = 1e3, scale: Array | None = None
) -> Regularisation:
    """Find the singular directions of E and the rows that fix them (Peifer and Timmer 2007, Eq. 23).

    Directions with w_i <= threshold w_1 get the singular value Delta w_1 instead: 1/2 |E x|^2 grows by
    1/2 (Delta w_1)^2 |directions^T x / scale|^2.  (In print the criterion reads w_np / w_i <= threshold, which would
    choose the largest singular values; w_i / w_1 is meant.)  `scale` is D, by default the inverse norms of E's columns.
    """
    matrix = E.R if isinstance(E, TallFactors) else E
    D = column_scale(matrix) if scale is None else scale
    _, singular_values, Vt = E.svd(D) if isinstance(E, TallFactors) else np.linalg.svd(triangle(matrix * D))
    w = np.zeros(matrix.shape[1])
    w[: singular_values.size] = singular_values
    largest = w.max(initial=0.0)
    singular = w <= threshold * largest
    stiffness = Delta * (largest if largest > 0 else 1.0)
    return Regularisation(w, Vt[singular].T, stiffness * Vt[singular] / D)


def _unit_rows(lower: Array, upper: Array, rows: LinearConstraints, D: Array) -> tuple[Constraints, Array]:
    """Stack bounds and rows, in scaled variables; return also the norms that they were divided by."""
    n = len(D)
    G = rows.G * D
    length = np.linalg.norm(G, axis=1)
    is_zero = length <= 1e-14 * length.max(initial=0.0)
    length[is_zero], G[is_zero] = 1.0, 0.0
    norm = np.concatenate([D, length])
    A = np.vstack([np.eye(n), G / length[:, None]])
    g = np.concatenate([np.zeros(n), rows.g])
    low, high = np.concatenate([lower, rows.lower]), np.concatenate([upper, rows.upper])
    size = np.abs(g) + np.where(np.isfinite(low), np.abs(low), 0) + np.where(np.isfinite(high), np.abs(high), 0)
    return Constraints(A, (low - g) / norm, (high - g) / norm, size / norm, np.arange(norm.size) >= n), norm


def split(A: Array) -> tuple[Array, Array]:
    """Return the pseudo-inverse (n, c) of A (c, n) and an orthonormal basis (n, n - rank) of its null space."""
    if A.shape[0] == 0:
        return np.empty((A.shape[1], 0)), np.eye(A.shape[1])
    U, S, Vt = np.linalg.svd(A, full_matrices=A.shape[0] < A.shape[1])
    rank = numerical_rank(S, A)
    return (Vt[:rank].T / S[:rank]) @ U[:, :rank].T, Vt[rank:].T


def _factored(E: Array, u: Array) -> tuple[Array, Array]:
    """Return R and u_R with |R x + u_R|^2 = |E x + u|^2 - constant."""
    factor = triangle(np.column_stack([E, u]))
    return factor[:, :-1], factor[:, -1]


# Violation, relative to a constraint's terms, that the iteration counts as rounding.
FEASIBILITY_RTOL = 1e-11

# Dependence on a direction, relative to the direction's length, that counts as rounding.
CANCELLATION_RTOL = 1e-13

# Violation, relative to a constraint's terms, above which the constraints count as contradictory.
INFEASIBILITY_RTOL = 1e-8

# Cost of the common slack of contradictory constraints, relative to the most expensive direction of xi.
SLACK_STIFFNESS = 1e3


@dataclass(frozen=True)
class Constraints:
    """Constraints  lower <= A xi <= upper  whose rows have unit norm, or are zero.

    A : (c, n); lower, upper : (c,)
    size : (c,)  magnitude of the constant terms, to which rounding is relative
    general : (c,)  False for bounds of single variables, which are relaxed last
    """

    A: Array
    lower: Array
    upper: Array
    size: Array
    general: Mask

    def take(self, chosen: Index) -> Constraints:
        """Return some of the constraints."""
        return Constraints(
            self.A[chosen], self.lower[chosen], self.upper[chosen], self.size[chosen], self.general[chosen]
        )

    def relative_violation(self, xi: Array, reach: float) -> float:
        """Return the largest violation at xi, relative to the magnitude of the constraint's terms.

        A row whose own terms are all zero up to rounding is measured against the rest of xi, or against `reach`, the
        distance of the unconstrained minimum.
        """
        value = self.A @ xi
        excess = np.maximum(self.lower - value, value - self.upper)
        terms = self.size + np.abs(self.A) @ np.abs(xi) + 1e-6 * np.linalg.norm(xi) + 1e-9 * reach
        return float(np.divide(excess, terms, out=np.zeros_like(excess), where=excess > 0).max(initial=0.0))


@dataclass(frozen=True)
class NearestPoint:
    """The point y (f,) nearest to the target.

    members, signs (q,) : active constraints, and their bounds: -1 lower, +1 upper
    multipliers (q,) : not negative up to rounding:  y - target + T^T A[members]^T (signs * multipliers) = 0
    iterations, optimal : as of `BoundedLsqSolution`
    within_bounds : whether constraints of single variables are satisfied
    """

    y: Array
    members: Index
    signs: Array
    multipliers: Array
    iterations: int
    within_bounds: bool
    optimal: bool


def nearest(constraints: Constraints, origin: Array, T: Array, target: Array, guess: Signs) -> NearestPoint:
    """Find the y nearest to target (f,) with the constraints on  origin (n,) + T y;  `guess` (c,) is the initial set.

    Contradictory constraints get a common slack t, first the general ones, then all.
    """
    min_norm = np.linalg.norm(T, axis=0).min(initial=np.inf)
    slack = (float(min_norm) if np.isfinite(min_norm) else 1.0) / SLACK_STIFFNESS
    all_constraints, reach = np.ones_like(constraints.general), euclidean_norm(origin + T @ target)
    for is_soft in (~all_constraints, constraints.general):
        spaces = _HalfSpaces(constraints, origin, T, target, np.where(is_soft, slack, 0.0), reach)
        nearest_point, feasible = _iterate(spaces, guess)
        if feasible:
            return nearest_point
    nearest_point, _ = _iterate(
        _HalfSpaces(constraints, origin, T, target, np.where(all_constraints, slack, 0.0), reach), guess
    )
    return replace(nearest_point, within_bounds=False)


@dataclass(frozen=True)
class _WorkingSet:
    """Constraints N^T y = b that hold with equality; q of them, linearly independent.

    members, signs : (q,) constraints, and their bounds
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
        Q, R = orthogonal(self.N)
        return Q[:, :q], Q[:, q:], R

    def nearest(self, target: Array) -> tuple[Array, Array]:
        """Return the y with N^T y = b nearest to the target, and the multipliers with y - target = N multipliers.

        Refined once: entries of y that stiff rows multiply by large numbers are small differences.
        """
        if self.b.size == 0:
            return target, self.b
        Q_1, _, R = self.factors
        coefficients = triangular_solution(R, self.b - target @ self.N, transposed=True)
        y, multipliers = target + Q_1 @ coefficients, triangular_solution(R, coefficients)
        y = y + Q_1 @ triangular_solution(R, self.b - y @ self.N, transposed=True)
        remainder = y - target - self.N @ multipliers
        return y, multipliers + triangular_solution(R, remainder @ Q_1)

    def split(self, a: Array) -> tuple[Array, Array]:
        """Return z and r with a = z + N r and N^T z = 0."""
        if self.b.size == 0:
            return a, self.b
        Q_1, Q_2, R = self.factors
        return Q_2 @ (a @ Q_2), triangular_solution(R, a @ Q_1)

    def extended(self, half_space: _HalfSpace) -> _WorkingSet:
        return _WorkingSet(
            np.concatenate([self.members, [half_space.member]]),
            np.concatenate([self.signs, [half_space.sign]]),
            np.concatenate([self.N, half_space.a[:, None]], axis=1),
            np.concatenate([self.b, [half_space.b]]),
        )

    def only(self, chosen: Mask | Index) -> _WorkingSet:
        return _WorkingSet(self.members[chosen], self.signs[chosen], self.N[:, chosen], self.b[chosen])


def _independent(N: Array, rounding: Array) -> Index:
    """Return the columns of N (f, q) that do not depend on earlier columns, up to rounding (q,)."""
    indices: Index = np.arange(N.shape[1], dtype=np.intp)
    while True:
        candidates: Index = indices[: N.shape[0]]
        distances = np.abs(
            np.diagonal(upper_factor(N[:, candidates]))
        )  # of each column outside the span of those before
        dependent_columns = np.flatnonzero(distances <= rounding[candidates])
        if not dependent_columns.size:
            return candidates
        indices = np.delete(indices, dependent_columns[0])


def _rounding(multipliers: Array) -> float:
    """Return the rounding tolerance of negative multipliers; dropping constraints within it could cause cycling."""
    return 1e-12 * float(multipliers.max(initial=0.0))


@dataclass(frozen=True)
class _HalfSpace:
    """Constraint `member` at the bound `sign` as  a . y >= b;  a is known up to `rounding`."""

    member: int
    sign: float
    a: Array
    b: float
    rounding: float


@dataclass(frozen=True)
class _HalfSpaces:
    """The constraints as half-spaces  a . y >= b  of y = (y', t), where the slack t widens soft constraints.

    soft : (c,)  widening of each constraint by one unit of t
    reach : distance of the unconstrained minimum
    """

    constraints: Constraints
    origin: Array
    T: Array
    target: Array
    soft: Array
    reach: float

    @cached_property
    def rounding(self) -> Array:
        """Rounding errors of T's columns."""
        return CANCELLATION_RTOL * np.linalg.norm(self.T, axis=0)

    def xi(self, y: Array) -> Array:
        return self.origin + self.T @ y[:-1]

    def half_space(self, i: int, sign: float) -> _HalfSpace:
        """Return constraint i at one of its bounds; directions along which it only varies by rounding are zero."""
        constraints, row = self.constraints, self.constraints.A[i]
        bound = constraints.upper[i] if sign > 0 else constraints.lower[i]
        a = np.empty(self.target.size + 1)
        a[:-1], a[-1] = row @ self.T, self.soft[i]
        by_y = a[:-1]
        is_significant = np.abs(by_y) > self.rounding
        by_y *= -sign * is_significant
        return _HalfSpace(
            i, sign, a, -sign * float(bound - row @ self.origin), euclidean_norm(self.rounding[is_significant])
        )

    def worst(self, y: Array, is_settled: Mask, members: Index) -> tuple[int, float] | None:
        """Return the constraint violated most beyond rounding, and its bound; None if no constraint is violated.

        Members of the working set and settled constraints are skipped.
        """
        constraints, xi = self.constraints, self.xi(y)
        if not constraints.size.size:
            return None
        value = constraints.A @ xi
        lower_excess, upper_excess = constraints.lower - value, value - constraints.upper
        excess = np.maximum(lower_excess, upper_excess)
        excess -= self.soft * y[-1] + self.tolerance(FEASIBILITY_RTOL, xi)
        excess[is_settled] = excess[members] = -np.inf
        i = int(excess.argmax())
        return None if excess[i] <= 0 else (i, 1.0 if upper_excess[i] > lower_excess[i] else -1.0)

    def tolerance(self, relative: float, xi: Array) -> Array:
        """Return, per constraint, a violation of the given size relative to its terms."""
        return relative * (self.constraints.size + (sqrt(float(xi @ xi)) + 1e-9 * self.reach))

    def start(self, guess: Signs) -> _WorkingSet:
        """Return the part of a guessed active set that is independent and has multipliers of the right sign."""
        constraints, target = self.constraints, np.append(self.target, 0.0)
        members = np.flatnonzero(np.isfinite(np.where(guess > 0, constraints.upper, constraints.lower)) & (guess != 0))
        spaces = [self.half_space(i, float(guess[i])) for i in members.tolist()]
        N = np.array([space.a for space in spaces]).reshape(-1, target.size).T
        working = _WorkingSet(members, guess[members].astype(float), N, np.array([space.b for space in spaces]))
        working = working.only(_independent(N, np.array([space.rounding for space in spaces])))
        while True:
            _, multipliers = working.nearest(target)
            if multipliers.min(initial=0.0) >= -_rounding(multipliers):
                return working
            working = working.only(np.arange(multipliers.size) != multipliers.argmin())


def _iterate(spaces: _HalfSpaces, guess: Signs) -> tuple[NearestPoint, bool]:
    """Solve for one choice of soft constraints; also return whether they can be satisfied."""
    target = np.append(spaces.target, 0.0)
    limit = 100 + 20 * target.size
    working = spaces.start(guess)
    y, multipliers = working.nearest(target)
    is_settled = np.zeros(len(spaces.soft), dtype=bool)  # violated by rounding only, and dependent on the working set
    feasible, iterations = True, 0
    while feasible and iterations < limit:
        worst_constraint = spaces.worst(y, is_settled, working.members)
        if worst_constraint is None:
            break
        entering = spaces.half_space(*worst_constraint)
        while True:
            iterations += 1
            z, r = working.split(entering.a)
            square, distance = float(z @ z), entering.b - float(entering.a @ y)
            is_independent = sqrt(square) > entering.rounding
            to_constraint = max(distance, 0.0) / square if is_independent else np.inf
            sign_slack = np.maximum(multipliers, 0) + _rounding(multipliers)
            to_sign_change: Array = np.inf * np.ones(r.size)
            np.divide(sign_slack, r, out=to_sign_change, where=r > 0)
            step = min(to_constraint, float(to_sign_change.min(initial=np.inf)))
            if step == np.inf:
                i = entering.member
                feasible = is_settled[i] = distance <= spaces.tolerance(INFEASIBILITY_RTOL, spaces.xi(y))[i]
                break
            y = y + step * z if is_independent else y
            if step == to_constraint:
                working = working.extended(entering)
                y, multipliers = working.nearest(target)
                break
            is_kept = np.arange(r.size) != to_sign_change.argmin()
            working, multipliers = working.only(is_kept), (multipliers - step * r)[is_kept]
    nearest_point = NearestPoint(
        y[:-1], working.members, working.signs, multipliers, iterations, within_bounds=True, optimal=iterations < limit
    )
    return nearest_point, bool(feasible)
