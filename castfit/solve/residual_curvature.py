"""Second-order changes of the residuals along directions that the data hardly determine.

The Gauss-Newton method omits  S = sum_i u_i u_i''.  At a fold (k1 = k2 of A -> B -> C, exchangeable quantities) E q is
zero, and S q is the only curvature: the predicted decrease never becomes small, and full steps lead away.  Rows sqrt(S)
q^T, from second differences along these directions only, correct the step, its predicted decrease and the convergence
test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.condensing import theta_residuals
from castfit.solve.subproblem import units_of_search

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.solve.solution import CountingProblem
    from castfit.solve.staged import Evaluation, Linearization, StagedProblem

DIFFERENCE_STEP = 0.02  # Step of second differences, in search units.
_MAX_DIRECTIONS = 4  # Limit on the directions with second differences.
_MIN_STEP_UNITS = 0.3  # Full step along a direction, in search units, above which its curvature is computed.
_MIN_RELATIVE_DECREASE = 1e-7  # Predicted decrease along a direction, relative to the half-square, that is significant.
# Relative singular values up to which a direction is weak, and up to which it does not change the residuals.
_WEAK_RTOL, _NULL_RTOL = 0.2, 1e-7


def second_differences(second_derivative: Callable[[Array], Array], Q: Array) -> Array:
    """Return the second derivatives (k, k, m) of rows along directions Q (k, n); NaN if an evaluation failed.

    second_derivative : function that returns the second derivative (m,) along a direction (n,)
    """
    C = np.array([[second_derivative(q)] * len(Q) for q in Q])
    for i, j in zip(*np.tril_indices(len(Q), -1), strict=True):
        C[i, j] = C[j, i] = second_derivative(np.sqrt(0.5) * (Q[i] + Q[j])) - 0.5 * (C[i, i] + C[j, j])
    return C


def rows_at(evaluate: Callable[[Array], Evaluation], staged: StagedProblem, v: Array, linear: Linearization) -> Array:
    """Return the rows (m,) at v, with the sigmas of another point; NaN if v violates bounds or cannot be evaluated."""
    evaluation = evaluate(np.clip(v, staged.lower, staged.upper))
    is_valid = evaluation.ok and ((staged.lower <= v) & (v <= staged.upper)).all()
    return theta_residuals(staged.layout, evaluation, linear.sigma) * (1.0 if is_valid else np.nan)


def curvature_rows(problem: CountingProblem, linear: Linearization, E: Array, u: Array) -> tuple[Array, ...]:
    """Return rows (k, n) whose squares are the positive curvature of the residuals in weak directions, if any.

    E (m, n), u (m,) : derivatives and values of the rows at a point of single shooting
    """
    staged = problem.staged
    unit = units_of_search(staged, linear.v)
    is_free = np.minimum(linear.v - staged.lower, staged.upper - linear.v) > DIFFERENCE_STEP * unit
    U, w, Vt = np.linalg.svd((E * unit)[:, is_free], full_matrices=False)
    steps = np.abs(U.T @ u)
    is_long = (steps > _MIN_STEP_UNITS * w) & (steps**2 > 2.0 * _MIN_RELATIVE_DECREASE * linear.informing_square)
    is_long &= w < _WEAK_RTOL * w.max(initial=0.0)
    weak = np.flatnonzero(is_long | (w <= _NULL_RTOL * w.max(initial=0.0)))[-_MAX_DIRECTIONS:]
    if not is_long[weak].any():
        return ()
    Q = np.zeros((weak.size, unit.size))
    Q[:, is_free] = Vt[weak]

    def second_derivative(q: Array) -> Array:
        """One-sided, which is accurate enough for a search."""
        step = DIFFERENCE_STEP * unit * q
        return 2.0 * (rows_at(problem.evaluate, staged, linear.v + step, linear) - u - E @ step) / DIFFERENCE_STEP**2

    S = second_differences(second_derivative, Q) @ u
    if not np.isfinite(S).all():
        return ()
    curvatures, W = np.linalg.eigh(S)
    return (np.sqrt(np.maximum(curvatures, 0.0))[:, None] * (W.T @ Q) / unit,)
