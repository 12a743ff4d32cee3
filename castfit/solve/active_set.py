"""The point nearest to a target within bounds on linear forms, by a dual active-set method (Goldfarb and Idnani 1983).

    minimise 1/2 |y - target|^2   subject to   lower <= A (origin + T y) <= upper

Start at the target, add the most violated constraint, drop those whose multipliers would change sign on the way, until
nothing is violated.  No feasible start is needed, and inactive constraints cost one product A xi per iteration.  The
working set has at most as many members as y has entries, so it is factored afresh at every change: no updating code,
no drift.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.lapack import length, orthogonal, triangular_solution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]
    Mask = NDArray[np.bool_]
    Signs = NDArray[np.int8]

ROUNDING = 1e-11
"""Violation, relative to a constraint's terms, that the iteration takes for rounding."""

CANCELLATION = 1e-13
"""Dependence on a direction, relative to the direction's length, that is taken for rounding."""

CONTRADICTION = 1e-8
"""Violation, relative to a constraint's terms, above which the constraints count as contradictory."""

SLACK_STIFFNESS = 1e3
"""How much dearer the common slack of contradictory constraints is than the dearest direction of xi."""


@dataclass(frozen=True)
class Constraints:
    """Constraints  lower <= A xi <= upper  whose rows have unit norm, or are zero.

    A : (c, n); lower, upper : (c,)
    size : (c,)  magnitude of the constant terms, which rounding is relative to
    general : (c,)  False for bounds of single variables, which are the last to be given up
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
class Nearest:
    """The point nearest to the target.

    y : (f,) array
    members, signs : (q,) arrays
        The active constraints, and at which bound: -1 lower, +1 upper.
    multipliers : (q,) array
        Not negative up to rounding:  y - target + T^T A[members]^T (signs * multipliers) = 0.
    iterations : int
        Changes of the working set.
    within_bounds : bool
        Whether the constraints that are not general were kept hard.
    optimal : bool
        Whether the iteration ended by itself, not at its limit.
    """

    y: Array
    members: Index
    signs: Array
    multipliers: Array
    iterations: int
    within_bounds: bool
    optimal: bool


def nearest(constraints: Constraints, origin: Array, T: Array, target: Array, guess: Signs) -> Nearest:
    """Find the nearest y; contradictory constraints get a common slack t, first the general ones, then all.

    Parameters
    ----------
    constraints : Constraints
    origin, T, target : (n,), (n, f), (f,) arrays
    guess : (c,) int8 array
        Constraints to start from: -1 at the lower, +1 at the upper bound, 0 not.
    """
    dearest = np.linalg.norm(T, axis=0).min(initial=np.inf)
    slack = (float(dearest) if np.isfinite(dearest) else 1.0) / SLACK_STIFFNESS
    everything = np.ones_like(constraints.general)
    for soft in (~everything, constraints.general):
        found, feasible = _iterate(_HalfSpaces(constraints, origin, T, target, np.where(soft, slack, 0.0)), guess)
        if feasible:
            return found
    found, _ = _iterate(_HalfSpaces(constraints, origin, T, target, np.where(everything, slack, 0.0)), guess)
    return replace(found, within_bounds=False)


@dataclass(frozen=True)
class _WorkingSet:
    """Constraints N^T y = b that hold with equality; q of them, linearly independent.

    members, signs : (q,) which constraints, and at which bound
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

        Refined once, since entries of y that stiff forms multiply by large numbers are small differences.
        """
        if self.b.size == 0:
            return target, self.b
        Q_1, _, R = self.factors
        y, multipliers = target, np.zeros(self.b.size)
        for _ in range(2):
            y = y + Q_1 @ triangular_solution(R, self.b - self.N.T @ y, transposed=True)
        for _ in range(2):
            multipliers = multipliers + triangular_solution(R, Q_1.T @ (y - target - self.N @ multipliers))
        return y, multipliers

    def split(self, a: Array) -> tuple[Array, Array]:
        """Return z and r with a = z + N r and N^T z = 0."""
        if self.b.size == 0:
            return a, self.b
        Q_1, Q_2, R = self.factors
        return Q_2 @ (Q_2.T @ a), triangular_solution(R, Q_1.T @ a)

    def extended(self, new: _HalfSpace) -> _WorkingSet:
        """Return the set with one more member."""
        return _WorkingSet(
            np.concatenate([self.members, [new.member]]),
            np.concatenate([self.signs, [new.sign]]),
            np.concatenate([self.N, new.a[:, None]], axis=1),
            np.concatenate([self.b, [new.b]]),
        )

    def only(self, chosen: Mask) -> _WorkingSet:
        """Return the set with some of its members."""
        return _WorkingSet(self.members[chosen], self.signs[chosen], self.N[:, chosen], self.b[chosen])


def _rounding(multipliers: Array) -> float:
    """Return how negative a multiplier may be by rounding; to drop it for less would be to cycle."""
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

    soft : (c,)  how much one unit of t widens each constraint
    """

    constraints: Constraints
    origin: Array
    T: Array
    target: Array
    soft: Array

    @cached_property
    def rounding(self) -> Array:
        """Up to what T's columns are known."""
        return CANCELLATION * np.linalg.norm(self.T, axis=0)

    @cached_property
    def reach(self) -> float:
        """Distance of the unconstrained minimum."""
        return length(self.origin + self.T @ self.target)

    def xi(self, y: Array) -> Array:
        """Return the point in the constraints' coordinates."""
        return self.origin + self.T @ y[:-1]

    def half_space(self, i: int, sign: float) -> _HalfSpace:
        """Return constraint i at one of its bounds; directions along which it only varies by rounding are zero."""
        given, row = self.constraints, self.constraints.A[i]
        bound = given.upper[i] if sign > 0 else given.lower[i]
        a = np.empty(self.target.size + 1)
        a[:-1], a[-1] = row @ self.T, self.soft[i]
        by_y = a[:-1]
        depends = np.abs(by_y) > self.rounding
        by_y *= -sign * depends
        return _HalfSpace(i, sign, a, -sign * float(bound - row @ self.origin), length(self.rounding[depends]))

    def excess(self, y: Array) -> tuple[Array, Array]:
        """Return by how much more than rounding every constraint is violated, and at which bound."""
        given, xi = self.constraints, self.xi(y)
        value, slack = given.A @ xi, self.soft * y[-1]
        below, above = given.lower - value, value - given.upper
        return np.maximum(below, above) - slack - self.tolerance(ROUNDING, y), np.where(above > below, 1.0, -1.0)

    def tolerance(self, relative: float, y: Array) -> Array:
        """Return, per constraint, a violation of the given size relative to its terms."""
        return relative * (self.constraints.size + (length(self.xi(y)) + 1e-9 * self.reach))

    def start(self, guess: Signs) -> _WorkingSet:
        """Take a guessed active set as far as it is independent and its multipliers have the right sign."""
        given, target = self.constraints, np.append(self.target, 0.0)
        known = np.isfinite(np.where(guess > 0, given.upper, given.lower)) & (guess != 0)
        working = _WorkingSet(np.empty(0, dtype=np.intp), np.empty(0), np.empty((target.size, 0)), np.empty(0))
        for i in np.flatnonzero(known):
            new = self.half_space(int(i), float(guess[i]))
            z, _ = working.split(new.a)
            if length(z) > new.rounding:
                working = working.extended(new)
        while True:
            _, multipliers = working.nearest(target)
            if multipliers.min(initial=0.0) >= -_rounding(multipliers):
                return working
            working = working.only(np.arange(multipliers.size) != multipliers.argmin())


def _iterate(spaces: _HalfSpaces, guess: Signs) -> tuple[Nearest, bool]:
    """Solve for one choice of soft constraints; also return whether they can be met."""
    target = np.append(spaces.target, 0.0)
    limit = 100 + 20 * target.size
    working = spaces.start(guess)
    y, multipliers = working.nearest(target)
    settled = np.zeros(len(spaces.soft), dtype=bool)  # violated by rounding only, and dependent on the working set
    feasible, iterations = True, 0
    while feasible and iterations < limit:
        excess, signs = spaces.excess(y)
        excess[settled] = excess[working.members] = -np.inf
        worst = int(excess.argmax()) if excess.size else -1
        if worst < 0 or excess[worst] <= 0:
            break
        new = spaces.half_space(worst, float(signs[worst]))
        while True:
            iterations += 1
            z, r = working.split(new.a)
            independent, missing = length(z) > new.rounding, new.b - new.a @ y
            to_constraint = max(missing, 0.0) / (z @ z) if independent else np.inf
            left = np.maximum(multipliers, 0) + _rounding(multipliers)
            to_sign_change = np.divide(left, r, out=np.full_like(r, np.inf), where=r > 0)
            step = min(to_constraint, to_sign_change.min(initial=np.inf))
            if step == np.inf:
                feasible = settled[worst] = missing <= spaces.tolerance(CONTRADICTION, y)[worst]
                break
            y = y + step * z if independent else y
            if step == to_constraint:
                working = working.extended(new)
                y, multipliers = working.nearest(target)
                break
            stays = np.arange(r.size) != to_sign_change.argmin()
            working, multipliers = working.only(stays), (multipliers - step * r)[stays]
    found = Nearest(
        y[:-1], working.members, working.signs, multipliers, iterations, within_bounds=True, optimal=iterations < limit
    )
    return found, bool(feasible)
