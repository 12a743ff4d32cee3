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
from castfit.solve.residual_curvature import DIFFERENCE_STEP, rows_at, second_differences
from castfit.solve.subproblem import units_of_search

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Signs
    from castfit.solve.staged import Linearization, StagedProblem

_MAX_DIRECTIONS = 4  # Limit on the directions that are examined; k of them take k (k + 1) evaluations.
# Half-widths of intervals, in search units, from which a direction is examined, and above which it is not determined.
_MIN_HALF_WIDTH, _MAX_HALF_WIDTH = 0.3, 3.0
_SMALL_RTOL = 1e-6  # Relative singular value up to which every direction is examined.
_MIN_RISE = 0.1  # Rise of 2 cost on both sides, relative to z^2, that counts as determined.


def fold_rows(staged: StagedProblem, linear: Linearization, active: Signs, z: float) -> Array | None:
    """Return the change (m, n) of E at a fold; None if the optimum is not a fold.

    linear : linearization of single shooting at the optimum
    active (n,) : active bounds of theta
    z : half-width of the interval in units of the rows
    """
    if not linear.ok:
        return None
    unit = units_of_search(staged, linear.v) * ((active == 0) & (staged.lower < staged.upper))
    u, J = theta_residuals(staged.layout, linear), theta_rows(staged.layout, linear) * unit
    U, w, Vt = np.linalg.svd(np.vstack([J, np.zeros((unit.size, unit.size))]), full_matrices=False)
    basis = U[: u.size, w * _MIN_HALF_WIDTH >= z]

    def change(x: Array) -> Array:
        return rows_at(staged.evaluate, staged, linear.v + unit * x, linear) - u

    def second_derivative(p: Array) -> Array:
        return (change(DIFFERENCE_STEP * p) + change(-DIFFERENCE_STEP * p)) / DIFFERENCE_STEP**2

    def is_curved(i: int) -> bool:
        """Whether the second-order change of the rows exceeds the first-order one where the interval ends."""
        c = 2.0 * (change(DIFFERENCE_STEP * Vt[i]) / DIFFERENCE_STEP - J @ Vt[i]) / DIFFERENCE_STEP  # one-sided
        size = float(np.linalg.norm(c - basis @ (c @ basis)))
        return size * z > 2.0 * w[i] ** 2 and size * _MAX_HALF_WIDTH**2 > 2.0 * z

    # Directions of small singular values, and the weakest of the other directions.
    first_index = max(basis.shape[1], int(np.count_nonzero(w > _SMALL_RTOL * w[0])) - 1)
    candidates = [i for i in range(first_index, unit.size)[-_MAX_DIRECTIONS:] if is_curved(i)]
    if not candidates:
        return None
    other_indices = np.setdiff1d(np.flatnonzero(w * _MAX_HALF_WIDTH >= z), candidates)
    basis, response = U[: u.size, other_indices], Vt[other_indices].T / w[other_indices] @ U[: u.size, other_indices].T
    C = second_differences(second_derivative, Vt[candidates])
    remainders, fold = C - C @ basis @ basis.T, np.zeros((u.size, unit.size))
    for q in np.linalg.eigh(np.einsum("ilm,jlm->ij", remainders, remainders))[1].T:
        p, slope, bend = q @ Vt[candidates], float(q @ (C @ u) @ q), np.einsum("i,ijm,j->m", q, remainders, q)
        # 2 cost rises by z^2 at x:  slope x^2 + |bend|^2 x^4 / 4 = z^2
        x = float(np.sqrt(2.0) * z / np.sqrt(slope + np.sqrt(slope**2 + (z * np.linalg.norm(bend)) ** 2)))
        steps = np.array([x * p, -x * p])
        ends = [change(step - response @ change(step)) for step in steps]
        if x < _MAX_HALF_WIDTH and min(float(np.sum((u + end) ** 2 - u**2)) for end in ends) > _MIN_RISE * z**2:
            bend -= basis @ (bend @ basis)
            basis = np.column_stack([basis, bend / np.linalg.norm(bend)])
            fold += np.outer(z / x * basis[:, -1] - J @ p, p / positive(unit))
    return fold if fold.any() else None
