"""Information at folds: optima where the likelihood is curved although residuals do not change to first order.

At k1 = k2 of A -> B -> C, and at other points where two quantities may be exchanged, the residuals change as

    r(x p) = r + 1/2 x^2 c + ...,     2 cost = |r|^2 + x^2 (c . r) + 1/4 x^4 |c'|^2

along a direction p, where c' is the part of c that no other direction reproduces.  E^T E omits both terms, so the
standard errors are infinite or far too large.  Here E p is replaced by c' of the length z / x, where x is the
half-width of the interval.  The model is evaluated at x p and -x p, with the other quantities near their optimum there.

Notation: E (m, n) derivatives of the rows u (m,); J the same in units of the search; z half-width of a 95 % interval in
standard errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.result.fisher_information import positive
from castfit.solve.condensing import theta_residuals, theta_rows
from castfit.solve.residual_curvature import rows_at, second_differences
from castfit.solve.subproblem import units_of_search

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Signs
    from castfit.solve.staged import Linearization, StagedProblem

_MAX_DIRECTIONS = 4  # Limit on the directions that are examined; k of them take k (k + 1) evaluations.
_MIN_HALF_WIDTH = 0.3  # Half-width of a linear interval, in search units, from which its direction is examined.
_MAX_HALF_WIDTH = 3.0  # Half-width, in search units, above which a direction counts as not determined.
# Rise of 2 cost relative to z^2, on each side and in the mean, between which a half-width is accepted.
_MIN_RISE, _MAX_RISE = 0.1, 2.0
_MAX_CORRECTIONS = 3  # Number of corrections of the other quantities at a step.
_MAX_ROUNDS = 6  # Limit on the half-widths that are tried.


def fold_rows(staged: StagedProblem, linear: Linearization, active: Signs, z: float) -> Array | None:
    """Return the change (m, n) of E at a fold; None if the optimum is not a fold.

    linear : linearization of single shooting at the optimum
    active (n,) : active bounds of theta
    z : half-width of the interval in units of the rows
    """
    theta, layout = linear.v, staged.layout
    unit = units_of_search(staged, theta) * ((active == 0) & (staged.lower < staged.upper))
    u, J = theta_residuals(layout, linear), theta_rows(layout, linear) * unit
    U, w, Vt = np.linalg.svd(np.vstack([J, np.zeros((theta.size, theta.size))]), full_matrices=False)

    def change(x: Array) -> Array:
        return rows_at(staged, theta + unit * x, linear) - u

    def remainder(c: Array) -> Array:
        return c - c @ basis @ basis.T

    n_strong = int(np.count_nonzero(w * _MIN_HALF_WIDTH >= z))
    basis, candidates = U[: u.size, :n_strong], list[int]()
    for i in range(theta.size - 1, max(n_strong, theta.size - _MAX_DIRECTIONS) - 1, -1):
        size = float(np.linalg.norm(remainder(second_differences(change, Vt[[i]])[0, 0])))
        # The interval ends where the second-order change of the rows exceeds the first-order one.
        if size * z > 2.0 * w[i] ** 2 and size * _MAX_HALF_WIDTH**2 > 2.0 * z:
            candidates.append(i)
    if not candidates:
        return None
    other_indices = np.setdiff1d(np.flatnonzero(w * _MAX_HALF_WIDTH >= z), candidates)
    basis, response = U[: u.size, other_indices], Vt[other_indices].T / w[other_indices] @ U[: u.size, other_indices].T
    C = remainder(second_differences(change, Vt[candidates]))
    quartic_terms, W = np.linalg.eigh(np.einsum("ilm,jlm->ij", C, C))
    fold = np.zeros((u.size, theta.size))
    for quartic_term, p in zip(quartic_terms, W.T @ Vt[candidates], strict=True):
        x, low, high = min(np.sqrt(2.0 * z) * max(quartic_term, 1e-300) ** -0.25, _MAX_HALF_WIDTH), 0.0, np.inf
        half_width, steps, ends, rises = x, np.array([p, -p]), np.empty((2, 0)), np.zeros(2)
        for _ in range(_MAX_ROUNDS):
            half_width, steps = x, np.array([x * p, -x * p])
            for _ in range(_MAX_CORRECTIONS):
                steps -= np.array([response @ change(step) for step in steps])
            ends = np.array([change(step) for step in steps])
            rises = np.sum((u + ends) ** 2 - u**2, axis=1) / z**2
            if 0.8 < rises.mean() < 1.25 or (x == _MAX_HALF_WIDTH and rises.mean() < 1.0):
                break
            low, high = (x, high) if rises.mean() < 1.0 else (low, x)
            x = min(np.sqrt(low * high) if low > 0.0 else 0.4 * x, 2.0 * x, _MAX_HALF_WIDTH)
        even_part, odd_part = remainder(ends[0] + ends[1]), remainder(ends[0] - ends[1])
        # Both sides must rise, and by the second-order change: the linear model is kept elsewhere.
        if rises.min() > _MIN_RISE and rises.mean() < _MAX_RISE and z**2 * rises.sum() > odd_part @ odd_part:
            row = even_part / np.linalg.norm(even_part)
            basis = np.column_stack([basis, row])
            slope = z * np.sqrt(rises.mean()) * row - 0.5 * J @ (steps[0] - steps[1])
            fold += np.outer(slope / half_width, p / positive(unit))
    return fold if fold.any() else None
