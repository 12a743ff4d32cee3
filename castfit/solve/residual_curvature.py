"""Second-order changes of the residuals along directions that the data hardly determine.

The Gauss-Newton method omits  S = sum_i u_i u_i''.  At a fold (k1 = k2 of A -> B -> C, exchangeable quantities) E q is
zero, and S q is the only curvature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.condensing import theta_residuals

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.solve.solution import CountingProblem
    from castfit.solve.staged import Linearization, StagedProblem

_DIFFERENCE_STEP = 0.02  # Step of second differences, in search units.


def second_differences(change: Callable[[Array], Array], Q: Array) -> Array:
    """Return the second derivatives (k, k, m) of rows along directions Q (k, n); NaN if an evaluation failed.

    change : function that returns the change of the rows (m,) after a step (n,)
    """
    k = len(Q)
    C = np.array([[_along(change, q)] * k for q in Q])
    for i, j in zip(*np.tril_indices(k, -1), strict=True):
        C[i, j] = C[j, i] = _along(change, np.sqrt(0.5) * (Q[i] + Q[j])) - 0.5 * (C[i, i] + C[j, j])
    return C


def _along(change: Callable[[Array], Array], q: Array) -> Array:
    return (change(_DIFFERENCE_STEP * q) + change(-_DIFFERENCE_STEP * q)) / _DIFFERENCE_STEP**2


def rows_at(problem: StagedProblem | CountingProblem, v: Array, linear: Linearization) -> Array:
    """Return the rows (m,) at v, with the sigmas of another point; NaN if v violates bounds or cannot be evaluated."""
    staged: StagedProblem = getattr(problem, "staged", problem)
    evaluation = problem.evaluate(np.clip(v, staged.lower, staged.upper))
    is_valid = evaluation.ok and ((staged.lower <= v) & (v <= staged.upper)).all()
    return theta_residuals(staged.layout, evaluation, linear.sigma) * (1.0 if is_valid else np.nan)
