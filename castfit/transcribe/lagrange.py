"""Collocation tables: points on [0, 1], and what polynomials through them are worth elsewhere.

Notation
--------
d      degree; the number of collocation points
c      (d,)      collocation points, 0 < c_1 < ... < c_d <= 1
l_j    basis polynomial: 1 at its own node, 0 at the others

Differential states are polynomials of degree d through the nodes 0, c_1 ... c_d, algebraic states are polynomials of
degree d - 1 through c_1 ... c_d.  Both schemes are implicit Runge-Kutta methods (Hairer and Wanner 1996, section IV.5):

    radau      Radau IIA: c_d = 1, order 2d - 1, damps stiff components completely
    legendre   Gauss: symmetric, order 2d, does not damp stiff components
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import roots_jacobi

from castfit._support.status import check, suggest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

SCHEMES = ("radau", "legendre")
MAX_DEGREE = 11  # two more than elements may have: their errors are seen by that


@dataclass(frozen=True, eq=False)
class Table:
    """One collocation scheme of one degree; get it from `table`.

    Attributes
    ----------
    scheme : str
    degree : int
    points : (d,) array
        Collocation points c, in units of the element.
    """

    scheme: str
    degree: int
    points: Array

    @cached_property
    def nodes(self) -> Array:
        """Nodes of the state's polynomial: 0, then the collocation points, (d + 1,)."""
        return np.concatenate([[0.0], self.points])

    @cached_property
    def derivative(self) -> Array:
        """Differentiation matrix (d, d + 1): element (i, j) is d l_j / d tau at collocation point i."""
        return _differentiation(self.nodes)[1:]

    @cached_property
    def end(self) -> Array:
        """The state's basis polynomials at tau = 1, (d + 1,)."""
        return self.state_basis(1.0)

    @cached_property
    def weights(self) -> Array:
        """Quadrature weights (d,): sum_i weights[i] f(c_i) is the integral of f over [0, 1]."""
        tau, weight = _gauss(self.degree)
        return weight @ self.algebraic_basis(tau)

    @property
    def order(self) -> int:
        """Order of the method at the element ends."""
        return 2 * self.degree - (self.scheme == "radau")

    def state_basis(self, tau: ArrayLike) -> Array:
        """Evaluate the basis through 0, c_1 ... c_d at tau (...): shape (..., d + 1)."""
        return _basis(self.nodes, tau)

    def algebraic_basis(self, tau: ArrayLike) -> Array:
        """Evaluate the basis through c_1 ... c_d at tau (...): shape (..., d)."""
        return _basis(self.points, tau)


@cache
def table(scheme: str, degree: int) -> Table:
    """Return the table of a scheme.

    Parameters
    ----------
    scheme : {"radau", "legendre"}
    degree : int
        Number of collocation points, 1 to 11.

    Raises
    ------
    InputError
        For an unknown scheme or degree.
    """
    mistakes: list[str] = []
    if scheme not in SCHEMES:
        mistakes.append(f"scheme '{scheme}' is not known: {suggest(scheme, SCHEMES)}")
    if degree not in range(1, MAX_DEGREE + 1):
        mistakes.append(f"degree is {degree}; give an integer from 1 to {MAX_DEGREE}")
    check("Collocation", mistakes)
    points = _gauss(degree)[0] if scheme == "legendre" else _radau_points(degree)
    return Table(scheme, degree, points)


def _gauss(n: int) -> tuple[Array, Array]:
    """Gauss-Legendre points and weights on [0, 1]."""
    x, weight = np.polynomial.legendre.leggauss(n)
    return 0.5 * (1.0 + x), 0.5 * weight


def _radau_points(n: int) -> Array:
    """Right Radau points on [0, 1]: 1, and the zeros of the polynomial orthogonal under the weight 1 - tau."""
    inner = roots_jacobi(n - 1, 1.0, 0.0)[0] if n > 1 else np.empty(0)
    return np.concatenate([0.5 * (1.0 + inner), [1.0]])


def _basis(nodes: Array, tau: ArrayLike) -> Array:
    """Lagrange's product formula; at a node it is exactly 0 or 1."""
    tau = np.asarray(tau, dtype=float)[..., None, None]
    others = ~np.eye(nodes.size, dtype=bool)
    apart = np.where(others, nodes[:, None] - nodes, 1.0)
    return np.prod(np.where(others, tau - nodes, 1.0) / apart, axis=-1)


def _differentiation(nodes: Array) -> Array:
    """Element (i, j) is d l_j / d tau at node i (Berrut and Trefethen 2004, Eqs. 9.4 and 9.5)."""
    apart = nodes[:, None] - nodes + np.eye(nodes.size)
    weight = 1.0 / np.prod(apart, axis=1)
    out = weight / weight[:, None] / apart
    np.fill_diagonal(out, 0.0)
    np.fill_diagonal(out, -out.sum(axis=1))  # the derivative of a constant vanishes
    return out
