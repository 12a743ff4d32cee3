"""One experiment's collocation elements: values, Jacobian and Hessian blocks, assembled from values at points.

The model is evaluated at the collocation points and the measured points only, as one long batch; the polynomials
enter as tables.  An element's states are rows  y_0, y_1 ... y_d  with  y_0 = (s, 0),  y_i = (x_i, z_i),  so that every
polynomial is a contraction with `basis` and its derivative an outer product.

Notation
--------
K, M, d        elements, measured points per element, collocation points per element
n_e            n_x + n_z, the length of y_i
n_o, n_h, n_g  measured outputs, path constraints, and both: the rows g observed at a measured point
n_l            local variables (x, z, p_free) of a point
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.staged import Values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.link import Natural
    from castfit.transcribe.lagrange import Table
    from castfit.transcribe.measure import Measured
    from castfit.transcribe.pointwise import Expressions

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Equations:
    """The model as seen from a point: (ode, alg) at collocation points, (outputs, constraints) at measured points."""

    flow: Expressions
    observed: Expressions
    free: NDArray[np.intp]


@dataclass(frozen=True)
class Slopes:
    """Derivatives at points by their local variables: flow (K, d, n_e, n_l), observed (K, M, n_g, n_l)."""

    flow: Array
    observed: Array


@dataclass(frozen=True)
class Blocks:
    """Derivatives of one function (K, rows, n_s | n_w | n_q)."""

    s: Array
    w: Array
    q: Array


@dataclass(frozen=True)
class Elements:
    """What is constant about the elements of one experiment.

    Attributes
    ----------
    table : Table
    n_x, n_o : int
        Numbers of differential states and of measured outputs.
    edges : (K + 1,) array
    cubics : (K, n_u, 4) array
        The inputs on each element, by powers of the time since its start.
    factor : (K, 1, n_e) array
        What (ode, alg) is multiplied by: the element's length, and a scale of the algebraic equations.
    times : (K, d, 1), inputs : (K, d, n_u)
        The collocation points.
    tau : (K, M), point_times : (K, M, 1), point_inputs : (K, M, n_u)
        The measured points; tau is relative to the element.
    basis : (K, M, d + 1, n_e) array
        Element (k, m, j, e): what y_j[e] contributes to state e at measured point m.
    measured : Measured
        How what is observed at the measured points becomes rows.
    """

    table: Table
    n_x: int
    n_o: int
    edges: Array
    cubics: Array
    factor: Array
    times: Array
    inputs: Array
    tau: Array
    point_times: Array
    point_inputs: Array
    basis: Array
    measured: Measured

    @property
    def n_e(self) -> int:
        """Number of differential and algebraic states."""
        return self.factor.shape[2]

    def states(self, s: Array, w: Array) -> Array:
        """Return y (K, d + 1, n_e) from nodes s (K, n_x) and inner variables w (K, d * n_e)."""
        y = np.zeros((s.shape[0], self.table.degree + 1, self.n_e))
        y[:, 0, : self.n_x] = s
        y[:, 1:] = w.reshape(s.shape[0], -1, self.n_e)
        return y

    def values(self, equations: Equations, at: Natural, s: Array, w: Array) -> Values:
        """Evaluate all functions at nodes s, inner variables w."""
        y, stages = self.states(s, w), s.shape[0]
        d = self.defects(equations, y, at.p)
        g = self.measured.rows(equations.observed.values(*self._measured(y, at.p)))
        return Values(
            r=g[..., : self.n_o].reshape(stages, -1),
            a=at.a,
            d=d.reshape(stages, -1),
            x=np.einsum("j,kje->ke", self.table.end, y[..., : self.n_x]),
            c=g[..., self.n_o :].reshape(stages, -1),
        )

    def defects(self, equations: Equations, y: Array, p: Array) -> Array:
        """Evaluate the inner equations at states y, (K, d, n_e)."""
        d = self.factor * equations.flow.values(*self._collocation(y, p))
        d[..., : self.n_x] -= np.einsum("ij,kje->kie", self.table.derivative, y[..., : self.n_x])
        return d

    def flow(self, equations: Equations, y: Array, p: Array) -> Array:
        """Evaluate the derivatives of the model's equations at states y, factors included, (K, d, n_e, n_l)."""
        return self.factor[..., None] * equations.flow.jacobian(*self._collocation(y, p))

    def slopes(self, equations: Equations, p: Array, s: Array, w: Array) -> Slopes:
        """Evaluate the derivatives at all points, factors and weights included."""
        y = self.states(s, w)
        observed = equations.observed.jacobian(*self._measured(y, p))
        return Slopes(self.flow(equations, y, p), self.measured.slopes(observed))

    def inner_blocks(self, slopes: Slopes, dp: Array) -> Blocks:
        """Assemble the derivatives of d; dp (n_free, n_q) is the derivative of the free parameters."""
        stages, degree, n_e, _ = slopes.flow.shape
        rows = degree * n_e
        by_s = np.broadcast_to(self._linear[:, :, 0, : self.n_x].reshape(rows, -1), (stages, rows, self.n_x))
        by_q = slopes.flow[..., n_e:] @ dp
        return Blocks(by_s, self.inner_matrix(slopes.flow), by_q.reshape(stages, rows, -1))

    def inner_matrix(self, flow: Array) -> Array:
        """Assemble the derivative of d by w, (K, d n_e, d n_e), for some elements' `flow`."""
        stages, degree, n_e, _ = flow.shape
        by_w = np.repeat(self._linear[None, :, :, 1:], stages, axis=0)
        for i in range(degree):
            by_w[:, i, :, i] += flow[:, i, :, :n_e]
        return by_w.reshape(stages, degree * n_e, degree * n_e)

    @property
    def _linear(self) -> Array:
        """What the polynomials contribute to the derivative of d by y, (d, n_e, d + 1, n_e)."""
        degree, n_e = self.table.degree, self.n_e
        linear = np.zeros((degree, n_e, degree + 1, n_e))
        for e in range(self.n_x):
            linear[:, e, :, e] = -self.table.derivative
        return linear

    def of_table(self, table: Table) -> Elements:
        """Return the elements with the collocation points of another table; measured points stay as they are."""
        offsets = table.points * np.diff(self.edges)[:, None]
        times = (self.edges[:-1, None] + offsets)[..., None]
        return replace(self, table=table, times=times, inputs=signals(self.cubics, offsets))

    def end_blocks(self, n_q: int) -> Blocks:
        """Assemble the derivatives of the state at the element's end, which is linear in s and w."""
        stages = self.edges.size - 1
        by_y = np.zeros((self.n_x, self.table.degree + 1, self.n_e))
        for e in range(self.n_x):
            by_y[e, :, e] = self.table.end
        by_y = np.broadcast_to(by_y.reshape(self.n_x, -1), (stages, self.n_x, by_y[0].size))
        return Blocks(by_y[..., : self.n_x], by_y[..., self.n_e :], np.zeros((stages, self.n_x, n_q)))

    def observed_blocks(self, slopes: Slopes, dp: Array) -> tuple[Blocks, Blocks]:
        """Assemble the derivatives of the residuals and of the path constraints."""
        stages = slopes.observed.shape[0]
        by_y = slopes.observed[..., None, : self.n_e] * self.basis[:, :, None]
        by_q = slopes.observed[..., self.n_e :] @ dp
        found: list[Blocks] = []
        for rows in (slice(0, self.n_o), slice(self.n_o, None)):
            y = by_y[:, :, rows].reshape(stages, -1, by_y[0, 0, 0].size)
            q = by_q[:, :, rows].reshape(stages, -1, dp.shape[1])
            found.append(Blocks(y[..., : self.n_x], y[..., self.n_e :], q))
        return found[0], found[1]

    def hessian(
        self,
        equations: Equations,
        slopes: Slopes,
        at: Natural,
        s: Array,
        w: Array,
        inner: Array,
        observed: Array,
        weight: Array,
    ) -> Array:
        """Return the Hessian of  1/2 sum weight r^2 + inner . d + constraint . c  by (s, w, q), (K, m, m).

        inner (K, d, n_e) multiplies the inner equations, observed (K, M, n_g) = (weight r, constraint) the observed
        rows: the Hessian of 1/2 r^2 is that of the outputs multiplied by r, plus the product of slopes, which weight
        (K, M, n_o) multiplies.
        """
        y, (stages, degree, n_e), dp = self.states(s, w), inner.shape, at.dp[equations.free]
        flow = equations.flow.hessian(*self._collocation(y, at.p), inner * self.factor)
        measured = slopes.observed[:, :, : self.n_o]
        point = np.einsum("kmga,kmgb->kmab", measured * weight[..., None], measured)
        if not equations.observed.linear:
            point += equations.observed.hessian(*self._measured(y, at.p), self.measured.factors(observed))

        # By (y_0 ... y_d, q); the columns of y_0 that are no node states are left out at the end.
        n_y, q = (degree + 1) * n_e, slice((degree + 1) * n_e, None)
        total = np.empty((stages, n_y + dp.shape[1], n_y + dp.shape[1]))
        left = self.basis[..., None] * point[:, :, None, :n_e, :n_e]
        total[:, :n_y, :n_y] = np.einsum("kmjab,kmlb->kjalb", left, self.basis).reshape(stages, n_y, n_y)
        by_p = np.einsum("kmja,kmap->kjap", self.basis, point[..., :n_e, n_e:])
        by_p[:, 1:] += flow[..., :n_e, n_e:]
        total[:, :n_y, q] = by_p.reshape(stages, n_y, -1) @ dp
        total[:, q, :n_y] = total[:, :n_y, q].transpose(0, 2, 1)
        total[:, q, q] = dp.T @ (flow[..., n_e:, n_e:].sum(axis=1) + point[..., n_e:, n_e:].sum(axis=1)) @ dp
        for i in range(degree):
            own = slice((i + 1) * n_e, (i + 2) * n_e)
            total[:, own, own] += flow[:, i, :n_e, :n_e]
        if n_e == self.n_x:
            return total
        kept = np.r_[0 : self.n_x, n_e : total.shape[1]]
        return total[:, kept[:, None], kept]

    def _collocation(self, y: Array, p: Array) -> tuple[Array, Array, Array, Array, Array]:
        return self.times, y[:, 1:, : self.n_x], y[:, 1:, self.n_x :], p, self.inputs

    def _measured(self, y: Array, p: Array) -> tuple[Array, Array, Array, Array, Array]:
        at = np.einsum("kmje,kje->kme", self.basis, y)
        return self.point_times, at[..., : self.n_x], at[..., self.n_x :], p, self.point_inputs


def signals(cubics: Array, offsets: Array) -> Array:
    """Evaluate inputs (K, n_u, 4) at offsets (K, n) from the elements' starts: (K, n, n_u)."""
    return np.einsum("kuc,knc->knu", cubics, offsets[..., None] ** np.arange(4))
