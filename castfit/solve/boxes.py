"""Many small least-squares problems within bounds, all at once.

    minimise 1/2 |r_i + R_i x_i|^2   subject to   lower_i <= x_i <= upper_i        i = 1 ... N

R_i is square and regular, so that each problem has one solution.  A primal-dual active set (Hintermueller, Ito and
Kunisch 2003) takes every entry out of bounds to its bound and frees every one that a bound pulls, in all problems at
once; most settle in two or three rounds.  The few that go round in circles are solved by `bounded_lsq`.

Entries at bounds stay unknowns, with rows that put them there, so that all problems keep one shape:

    | R_i without the columns at bounds |         | r_i + columns at bounds * bounds |
    | rows of the identity              |  x_i +  | - bounds                         |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from castfit.solve.bounded_lsq import bounded_lsq

if TYPE_CHECKING:
    from castfit.solve.active_set import Signs
    from castfit.solve.staged import Array, Mask

ROUNDS = 20
"""Rounds after which a problem counts as going round in circles."""

ROUNDING = 1e-12
"""Pull of a bound, relative to its terms, that is taken for rounding, and so for none."""


def boxed(R: Array, r: Array, lower: Array, upper: Array, guess: Signs) -> tuple[Array, Signs]:
    """Solve N problems of o unknowns.

    Parameters
    ----------
    R, r : (N, o, o), (N, o) arrays
    lower, upper : (N, o) arrays
    guess : (N, o) int8 array
        Entries expected at bounds: -1 lower, +1 upper.

    Returns
    -------
    x : (N, o) array
    signs : (N, o) int8 array
        Which bounds are active.
    """
    signs = np.where((guess < 0) & np.isfinite(lower), -1, np.where((guess > 0) & np.isfinite(upper), 1, 0))
    signs = np.where(lower == upper, -1, signs).astype(np.int8)
    x = np.empty(r.shape)
    left = np.arange(len(r))
    for _ in range(ROUNDS):
        if not left.size:
            return x, signs
        low, high, sign = lower[left], upper[left], signs[left]
        at = held(R[left], r[left], sign, low, high)
        x[left] = at
        after = _updated(R[left], r[left], at, sign, low, high)
        changed = (after != sign).any(axis=1)
        signs[left] = after
        left = left[changed]
    for i in left.tolist():
        found = bounded_lsq(r[i], R[i], lower=lower[i], upper=upper[i])
        x[i], signs[i] = found.x, np.where(lower[i] == upper[i], -1, found.bounds_active)
    return x, signs


def held(R: Array, r: Array, signs: Signs, lower: Array, upper: Array) -> Array:
    """Return the solutions (N, o) with some entries at their bounds."""
    bound = np.where(signs < 0, lower, np.where(signs > 0, upper, 0.0))
    if not signs.any():
        return cast("Array", np.linalg.solve(R, -r[:, :, None]))[:, :, 0]
    rows, constant = with_held(R, r, signs != 0, bound)
    Q, T = np.linalg.qr(rows)
    x = cast("Array", np.linalg.solve(T, -(Q.swapaxes(1, 2) @ constant[:, :, None])))[:, :, 0]
    return np.where(signs != 0, bound, x)


def with_held(R: Array, r: Array, fixed: Mask, bound: Array) -> tuple[Array, Array]:
    """Return rows (N, m + o, o) and constants (N, m + o) in which the fixed entries of x are at their bounds."""
    o = R.shape[2]
    at = np.where(fixed, bound, 0.0)
    rows = np.concatenate([np.where(fixed[:, None, :], 0.0, R), np.eye(o) * fixed[:, :, None]], axis=1)
    return rows, np.concatenate([r + (R @ at[:, :, None])[:, :, 0], -at], axis=1)


def _updated(R: Array, r: Array, x: Array, signs: Signs, lower: Array, upper: Array) -> Signs:
    """Return the next active set: free entries beyond a bound join it, those that it pulls leave."""
    residual = r + (R @ x[:, :, None])[:, :, 0]
    terms = np.abs(r) + (np.abs(R) @ np.abs(x)[:, :, None])[:, :, 0]
    gradient = (R.swapaxes(1, 2) @ residual[:, :, None])[:, :, 0]
    rounding = ROUNDING * (np.abs(R).swapaxes(1, 2) @ terms[:, :, None])[:, :, 0]
    stays = np.where(signs < 0, gradient >= -rounding, gradient <= rounding) | (lower == upper)
    slack = ROUNDING * (np.abs(x) + 1e-300)
    joins = np.where(x < lower - slack, -1, np.where(x > upper + slack, 1, 0))
    return np.where(signs != 0, np.where(stays, signs, 0), joins).astype(np.int8)
