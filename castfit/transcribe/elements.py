"""One experiment's collocation elements: values, Jacobian and Hessian blocks, assembled from values at points.

The model is evaluated at the collocation points and the measured points only, as one long batch; the polynomials
enter as tables.  An element's states are rows  y_0, y_1 ... y_d  with  y_0 = (s, 0),  y_i = (x_i, z_i),  so that every
polynomial is a contraction with `basis` and its derivative an outer product.

Notation
--------
K, M, d        elements, measured points per element, collocation points per element
n_e            n_x + n_z, the length of y_i
n_g, n_h       outputs and spreads observed at a measured point; path constraints there
n_r            rows of a measured point
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
    """Derivatives at points by their local variables.

    flow (K, d, n_e, n_l); observed (K, M, n_g, n_l); rows (K, M, n_r, n_l); constraints (K, M, n_h, n_l).
    """

    flow: Array
    observed: Array
    rows: Array
    constraints: Array


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
    n_x : int
        Number of differential states.
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
    applies : (K, M, n_h) array
        1 where a path constraint applies, 0 elsewhere.
    """

    table: Table
    n_x: int
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
    applies: Array

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
        seen = equations.observed.values(*self._measured(y, at.p))
        r, excess = self.measured.rows(seen[..., : self.measured.n_g])
        with np.errstate(invalid="ignore"):
            c = np.where(self.applies > 0, seen[..., self.measured.n_g :], 0.0)
        return Values(
            r=r.reshape(stages, -1),
            a=at.a,
            d=d.reshape(stages, -1),
            x=np.einsum("j,kje->ke", self.table.end, y[..., : self.n_x]),
            c=c.reshape(stages, -1),
            excess=excess,
        )

    def defects(self, equations: Equations, y: Array, p: Array) -> Array:
        """Evaluate the inner equations at states y, (K, d, n_e)."""
        d = self.factor * equations.flow.values(*self._collocation(y, p))
        d[..., : self.n_x] -= np.einsum("ij,kje->kie", self.table.derivative, y[..., : self.n_x])
        return d

    def flow(self, equations: Equations, y: Array, p: Array) -> Array:
        """Evaluate the derivatives of the model's equations at states y, factors included, (K, d, n_e, n_l)."""
        return self.factor[..., None] * equations.flow.jacobian(*self._collocation(y, p))

    def seen(self, equations: Equations, p: Array, s: Array, w: Array) -> Array:
        """Evaluate outputs and spreads at the measured points, (K, M, n_g)."""
        return equations.observed.values(*self._measured(self.states(s, w), p))[..., : self.measured.n_g]

    def slopes(self, equations: Equations, p: Array, s: Array, w: Array) -> Slopes:
        """Evaluate the derivatives at all points, factors and weights included."""
        y, n_g = self.states(s, w), self.measured.n_g
        observed = equations.observed.jacobian(*self._measured(y, p))
        of_g = np.where(self.measured.used[..., None], observed[:, :, :n_g], 0.0)
        constraints = np.where(self.applies[..., None] > 0, observed[:, :, n_g:], 0.0)
        g = self.seen(equations, p, s, w) if self.measured.slots else np.empty(0)
        return Slopes(self.flow(equations, y, p), of_g, self.measured.slopes(g, of_g), constraints)

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
        found: list[Blocks] = []
        for rows in (slopes.rows, slopes.constraints):
            shape, n_y = (rows.shape[0], rows.shape[1] * rows.shape[2]), (self.table.degree + 1) * self.n_e
            y = (rows[..., None, : self.n_e] * self.basis[:, :, None]).reshape(*shape, n_y)
            q = (rows[..., self.n_e :] @ dp).reshape(*shape, dp.shape[1])
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
        constraint: Array,
        factor: Array,
    ) -> tuple[Array, Array]:
        """Return the Hessian of  factor cost + inner . d + constraint . c  by (s, w, q), (K, m, m); d by p (n_free,).

        inner (K, d, n_e) multiplies the inner equations, constraint (K, M, n_h) the path constraints, factor
        (K, M, n_r) the cost of the value that a row belongs to.  The Hessian of a cost is that of what is observed,
        multiplied by the cost's derivative, plus the product of slopes with the cost's curvature between them.
        """
        y, (stages, degree, n_e), dp = self.states(s, w), inner.shape, at.dp[equations.free]
        flow = equations.flow.hessian(*self._collocation(y, at.p), inner * self.factor)
        g = self.seen(equations, at.p, s, w).copy()
        bent = self.measured.bend(g, factor, slopes.observed)
        point = np.einsum("kmga,kmgb->kmab", bent, slopes.observed)
        multiplier = np.concatenate([self.measured.gradient(g, factor), constraint * self.applies], axis=2)
        if not equations.observed.linear:
            point += equations.observed.hessian(*self._measured(y, at.p), multiplier)

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
        by_free = np.einsum("kie,kiel->l", inner, slopes.flow[..., n_e:])
        every = np.concatenate([slopes.observed, slopes.constraints], axis=2)
        by_free += np.einsum("kmg,kmgl->l", multiplier, every[..., n_e:])
        if n_e == self.n_x:
            return total, by_free
        kept = np.r_[0 : self.n_x, n_e : total.shape[1]]
        return total[:, kept[:, None], kept], by_free

    def _collocation(self, y: Array, p: Array) -> tuple[Array, Array, Array, Array, Array]:
        return self.times, y[:, 1:, : self.n_x], y[:, 1:, self.n_x :], p, self.inputs

    def _measured(self, y: Array, p: Array) -> tuple[Array, Array, Array, Array, Array]:
        at = np.einsum("kmje,kje->kme", self.basis, y)
        return self.point_times, at[..., : self.n_x], at[..., self.n_x :], p, self.point_inputs


def signals(cubics: Array, offsets: Array) -> Array:
    """Evaluate inputs (K, n_u, 4) at offsets (K, n) from the elements' starts: (K, n, n_u)."""
    return np.einsum("kuc,knc->knu", cubics, offsets[..., None] ** np.arange(4))
