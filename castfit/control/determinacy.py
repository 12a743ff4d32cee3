"""Determinacy of the inputs of a plan: along singular arcs the objective is well determined, but the input is not.

With the Jacobian of the active rows  G = (G_x  G_u)  and the Hessian H of the Lagrangian, a small change of free values
u moves the other variables by  x_u = -G_x^+ G_u,  and the objective by  1/2 du' R du,  R = Z' H Z,  Z = (x_u, I).  A
single value can change by  sqrt(2 eps (R^-1)_jj),  if the others follow, while the objective changes by eps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import splu

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.control.program import Program

OBJECTIVE_CHANGE_RTOL = 1e-8  # relative change of the objective within which inputs may vary
_MAX_INPUT_VALUES = 4000  # values of inputs, whose matrix is dense
_CURVATURE_SHIFT = 1e-11  # shift of the Hessian, relative to its largest entry: smaller curvature is rounding


def compute_input_freedom(
    program: Program, x: Array, P: Array, multipliers: Array, eps: float, lower: Array, upper: Array
) -> Array | None:
    """Return the largest change of each input value, 0 at a bound, that changes the objective by eps.

    Return None for too many values, or if the factorization fails.
    """
    n_u = program.layout.inputs.size
    if not 0 < n_u <= _MAX_INPUT_VALUES:
        return None
    size = np.where(np.isfinite(upper - lower), upper - lower, program.scale)
    is_at_bound = np.minimum(x - lower, upper - x) < 1e-5 * size
    H, G, g = program.derivatives(x, P, multipliers)
    row_lower, row_upper = program.limits
    is_active_row = np.minimum(np.abs(g - row_lower), np.abs(row_upper - g)) < 1e-6
    free = np.flatnonzero(~is_at_bound)
    u = free[free < n_u]
    if not u.size:
        return np.zeros(n_u)
    A = G[np.flatnonzero(is_active_row)]
    # The null space of the active rows, by a bordered system that is regular if they are independent.
    free_hessian = scipy.sparse.csc_matrix(H[np.ix_(free, free)])
    rows = scipy.sparse.csc_matrix(A[:, free])
    shift = _CURVATURE_SHIFT * float(np.abs(free_hessian.data).max(initial=1.0))
    m = rows.shape[0]
    K: Any = scipy.sparse.bmat(
        [[free_hessian + shift * scipy.sparse.identity(free.size), rows.T], [rows, -1e-12 * scipy.sparse.identity(m)]],
        format="csc",
    )
    rhs = np.zeros((free.size + m, u.size))
    rhs[np.arange(u.size), np.arange(u.size)] = 1.0  # inputs come first among the free variables
    try:
        solve: Any = cast("Any", splu)(K).solve
        inverse: Array = np.asarray(solve(rhs), dtype=float)[: u.size]
    except RuntimeError:
        return None
    variance = np.diag(inverse)
    if not np.isfinite(variance).all():
        return None
    out = np.zeros(n_u)
    out[u] = np.sqrt(2.0 * eps * np.maximum(variance, 0.0)) * program.scale[u]
    return out
