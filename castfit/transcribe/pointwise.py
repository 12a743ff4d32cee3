"""Expressions of the model and their derivatives, evaluated at many points in one call.

A point is (t, x, z, p, u); its local variables, with respect to which derivatives are taken, are
``(x, z, p_free)``, n_l in number, where p_free are the parameters that are estimated.  Building costs one small graph
however many points there are, and whatever the degree of collocation.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import casadi as ca

from castfit._support.casadi_functions import Mapped

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from castfit.model.model import System

    Array = NDArray[np.float64]


class Expressions:
    """A column of expressions over a model's symbols: values, Jacobian and weighted Hessian at points.

    All methods take the arguments of a point as arrays (..., size), with equal or broadcastable leading axes.  What
    they return is a view that the next call overwrites.

    Parameters
    ----------
    system : System
    column : (n, 1) casadi.SX
    free : (n_free,) int array
        Positions in p of the parameters that are estimated.
    """

    def __init__(self, system: System, column: ca.SX, free: NDArray[np.intp]) -> None:
        self._system, self._column = system, column
        self._variables = ca.vertcat(system.x, system.z, *(system.p[int(i)] for i in free))

    def values(self, t: Array, x: Array, z: Array, p: Array, u: Array) -> Array:
        """Return the values, (..., n)."""
        return self._values(t, x, z, p, u)[..., 0]

    def jacobian(self, t: Array, x: Array, z: Array, p: Array, u: Array) -> Array:
        """Return the derivatives with respect to the local variables, (..., n, n_l)."""
        return self._jacobian(t, x, z, p, u)

    def hessian(self, t: Array, x: Array, z: Array, p: Array, u: Array, weight: Array) -> Array:
        """Return  sum_i weight_i d2 expression_i, (..., n_l, n_l); expressions of weight zero may be infinite."""
        return self._hessian(t, x, z, p, u, weight)

    @cached_property
    def linear(self) -> bool:
        """Whether the Hessian vanishes identically."""
        return self._hessian.empty

    @cached_property
    def _values(self) -> Mapped:
        return Mapped("values", self._system.arguments, self._column)

    @cached_property
    def _jacobian(self) -> Mapped:
        return Mapped("jacobian", self._system.arguments, ca.jacobian(self._column, self._variables))

    @cached_property
    def _hessian(self) -> Mapped:
        weight = ca.SX.sym("weight", self._column.numel())
        total = ca.SX(self._variables.numel(), self._variables.numel())
        for w, expression in zip(ca.vertsplit(weight), ca.vertsplit(self._column), strict=True):
            # The switch, not a product with zero, keeps what was not measured from spoiling the sum.
            total += ca.if_else(w != 0, w * ca.hessian(expression, self._variables)[0], 0)
        return Mapped("hessian", [*self._system.arguments, weight], total)
