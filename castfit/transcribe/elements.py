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

Tables of polynomials on [0, 1]: differential states are polynomials of degree d through the nodes 0, c_1 ... c_d,
algebraic states polynomials of degree d - 1 through the collocation points, 0 < c_1 < ... < c_d <= 1.  Both schemes
are implicit Runge-Kutta methods (Hairer and Wanner 1996, section IV.5):

    radau      Radau IIA: c_d = 1, order 2d - 1, damps stiff components completely
    legendre   Gauss: symmetric, order 2d, does not damp stiff components
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from castfit._support.arrays import Array, Index, Mask
from castfit._support.records import dataclass
from castfit._support.sparse_rows import SparseRows
from castfit._support.status import raise_if_mistakes, suggest
from castfit.integrate import shift_cubics
from castfit.problem.parameter_map import NaturalValues
from castfit.solve.staged import ChainValues
from castfit.transcribe.observation import MeasurementRows, PointwiseExpressions
from castfit.transcribe.stage_division import StageDivision

SCHEMES = ("radau", "legendre")
_NEWTON_ITERATIONS = 8  # iterations: five reach the last digit for any degree
MAX_DEGREE = 11  # two more than elements may have: their errors are seen by that


@dataclass(frozen=True, eq=False)
class CollocationScheme:
    """One collocation scheme of one degree, with its points c (d,) in units of the element; get it from `table`."""

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
def table(scheme: str, degree: int) -> CollocationScheme:
    """Return the table of a scheme, "radau" or "legendre", with 1 to 11 collocation points."""
    mistakes: list[str] = []
    if scheme not in SCHEMES:
        mistakes.append(f"scheme '{scheme}' is not known: {suggest(scheme, SCHEMES)}")
    if degree not in range(1, MAX_DEGREE + 1):
        mistakes.append(f"degree is {degree}; give an integer from 1 to {MAX_DEGREE}")
    raise_if_mistakes("Collocation", mistakes)
    points = _gauss(degree)[0] if scheme == "legendre" else _radau_points(degree)
    return CollocationScheme(scheme, degree, points)


def _gauss(n: int) -> tuple[Array, Array]:
    x, weight = np.polynomial.legendre.leggauss(n)
    return 0.5 * (1.0 + x), 0.5 * weight


def _radau_points(n: int) -> Array:
    """Right Radau points on [0, 1]: 1, and the other zeros of P_n - P_{n-1} by Newton's method from Chebyshev's points.

    Its derivative is n (P_n + P_{n-1}) / (1 + x), with which it shares no zero.
    """
    x = np.cos(2.0 * np.pi * np.arange(n - 1, 0, -1) / (2 * n - 1))
    for _ in range(_NEWTON_ITERATIONS):
        previous, current = np.ones(n - 1), x
        for k in range(2, n + 1):
            previous, current = current, ((2 * k - 1) * x * current - (k - 1) * previous) / k
        x = x - (current - previous) * (1.0 + x) / (n * (current + previous))
    return np.concatenate([0.5 * (1.0 + x), [1.0]])


def _basis(nodes: Array, tau: ArrayLike) -> Array:
    """Lagrange's product formula; at a node it is exactly 0 or 1."""
    tau = np.asarray(tau, dtype=float)[..., None, None]
    is_other = ~np.eye(nodes.size, dtype=bool)
    distances = np.where(is_other, nodes[:, None] - nodes, 1.0)
    return np.prod(np.where(is_other, tau - nodes, 1.0) / distances, axis=-1)


def _differentiation(nodes: Array) -> Array:
    """Element (i, j) is d l_j / d tau at node i (Berrut and Trefethen 2004, Eqs. 9.4 and 9.5)."""
    distances = nodes[:, None] - nodes + np.eye(nodes.size)
    weight = 1.0 / np.prod(distances, axis=1)
    out = weight / weight[:, None] / distances
    np.fill_diagonal(out, 0.0)
    np.fill_diagonal(out, -out.sum(axis=1))  # the derivative of a constant vanishes
    return out


@dataclass(frozen=True)
class PointEquations:
    """The model as seen from a point: (ode, alg) at collocation points, (outputs, constraints) at measured points.

    If elements move with estimated times, `is_relative`: time is tau in [0, 1], start and length of the element are two
    more parameters, inputs are (their reference time, their cubics), and the ode is multiplied by the length.
    """

    flow: PointwiseExpressions
    observed: PointwiseExpressions
    free: Index
    is_relative: bool = False


@dataclass(frozen=True)
class LocalDerivatives:
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
class ElementConstants:
    """Constants of the elements of one experiment, with boundaries `edges` (K + 1,).

    cubics (K, n_u, 4) : the inputs on each element, by powers of the time since its start
    factor (K, 1, n_e) : factor of (ode, alg): the element's length, and a scale of the algebraic equations
    times (K, d, 1), inputs (K, d, n_u) : the collocation points
    tau (K, M), point_times (K, M, 1), point_inputs (K, M, n_u) : the measured points; tau is relative to the element
    basis (K, M, d + 1, n_e) : element (k, m, j, e) is what y_j[e] contributes to state e at measured point m
    constraint_mask (K, M, n_h) : 1 where a path constraint applies, 0 elsewhere
    division : variation of parameters and boundaries of the elements, and events at their ends
    is_relative : whether elements move, as `PointEquations.is_relative`
    """

    table: CollocationScheme
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
    measured: MeasurementRows
    constraint_mask: Array
    division: StageDivision
    is_relative: bool = False

    def parameters(self, natural: NaturalValues) -> Array:
        """Return the parameters at points: (n_p,), or of each element (K, 1, n_p)."""
        if self.is_relative:
            edges = self.division.compute_boundaries(natural.e)
            span = np.stack([edges[:-1], np.diff(edges)], axis=1)
            return np.hstack([self.division.stage_parameters(natural.p, natural.e), span])[:, None]
        return self.division.stage_parameters(natural.p, natural.e)[:, None] if any(self.division.levels) else natural.p

    def parameter_slopes(self, natural: NaturalValues, free: Index) -> Array:
        """Return the derivatives of the free parameters, (1 | K, n_free, n_q)."""
        if self.is_relative:
            edges = self.division.weight @ natural.de
            span = np.stack([edges[:-1], np.diff(edges, axis=0)], axis=1)
            return np.concatenate([self.division.stage_parameters(natural.dp, natural.de), span], axis=1)[:, free]
        if any(self.division.levels):
            return self.division.stage_parameters(natural.dp, natural.de)[:, free]
        return natural.dp[free][None]

    def parameter_weights(self, by_free: Array, free: Index, n_p: int, n_e: int) -> tuple[Array, Array]:
        """Return the weights of the second derivatives of p (n_p,) and e (n_e,), from weights of free parameters.

        by_free (K, n_free): the derivative of a sum over elements by the free parameters of each.
        """
        division = self.division
        of_all = np.zeros((by_free.shape[0], n_p + 2))
        of_all[:, free] = by_free
        by_p, by_e = division.level_weights(of_all[:, :n_p], n_e)
        if self.is_relative:
            start, length = of_all[:, n_p], of_all[:, n_p + 1]
            by_e += division.weight[:-1].T @ (start - length) + division.weight[1:].T @ length
        return by_p, by_e

    def with_event_rows(self, e: Array) -> ElementConstants:
        """Return the elements where they are for rows e (n_e,) of events."""
        edges = self.division.compute_boundaries(e)
        if np.array_equal(edges, self.edges):
            return self
        return replace(self, edges=edges, cubics=shift_cubics(self.cubics, (edges - self.edges)[:-1, None]))

    def inputs_at_ends(self) -> tuple[Array, Array, Array]:
        """Return the inputs at the ends of the elements, with slopes and curvatures, each (K, n_u)."""
        u = shift_cubics(self.cubics, np.diff(self.edges)[:, None])
        return u[..., 0], u[..., 1], 2.0 * u[..., 2]

    def states_at_ends(self, s: Array, w: Array) -> Array:
        """Return the differential states at the ends of the elements, before any events there, (K, n_x)."""
        return np.einsum("j,kje->ke", self.table.end, self.states(s, w)[..., : self.n_x])

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

    def values(self, equations: PointEquations, natural: NaturalValues, s: Array, w: Array) -> ChainValues:
        """Evaluate all functions at nodes s, inner variables w."""
        y, stages, p = self.states(s, w), s.shape[0], self.parameters(natural)
        d = self.defects(equations, y, p)
        observed = equations.observed.values(*self._measured(y, p))
        r, excess = self.measured.rows(observed[..., : self.measured.n_g])
        with np.errstate(invalid="ignore"):
            c = np.where(self.constraint_mask > 0, observed[..., self.measured.n_g :], 0.0)
        ends = np.einsum("j,kje->ke", self.table.end, y[..., : self.n_x])
        if any(self.division.crossings):
            u = self.with_event_rows(natural.e).inputs_at_ends()[0]
            for k, crossing in enumerate(self.division.crossings):
                if crossing is not None:
                    ends[k] = crossing.values(ends[k], natural.e, u[k])
        return ChainValues(
            r=r.reshape(stages, -1),
            a=natural.a,
            d=d.reshape(stages, -1),
            x=ends,
            c=c.reshape(stages, -1),
            excess=excess,
        )

    def defects(self, equations: PointEquations, y: Array, p: Array) -> Array:
        """Evaluate the inner equations at states y and `parameters` p, (K, d, n_e)."""
        d = self.factor * equations.flow.values(*self._collocation(y, p))
        d[..., : self.n_x] -= np.einsum("ij,kje->kie", self.table.derivative, y[..., : self.n_x])
        return d

    def flow(self, equations: PointEquations, y: Array, p: Array) -> Array:
        """Evaluate the derivatives of the model's equations at states y, factors included, (K, d, n_e, n_l)."""
        return self.factor[..., None] * equations.flow.jacobian(*self._collocation(y, p))

    def evaluate_outputs(self, equations: PointEquations, p: Array, s: Array, w: Array) -> Array:
        """Evaluate outputs and spreads at the measured points, (K, M, n_g)."""
        return equations.observed.values(*self._measured(self.states(s, w), p))[..., : self.measured.n_g]

    def slopes(self, equations: PointEquations, natural: NaturalValues, s: Array, w: Array) -> LocalDerivatives:
        """Evaluate the derivatives at all points, factors and weights included."""
        y, n_g, p = self.states(s, w), self.measured.n_g, self.parameters(natural)
        observed = equations.observed.jacobian(*self._measured(y, p))
        of_g = np.where(self.measured.used_mask[..., None], observed[:, :, :n_g], 0.0)
        constraints = np.where(self.constraint_mask[..., None] > 0, observed[:, :, n_g:], 0.0)
        g = self.evaluate_outputs(equations, p, s, w) if self.measured.slots else np.empty(0)
        return LocalDerivatives(self.flow(equations, y, p), of_g, self.measured.slopes(g, of_g), constraints)

    def inner_blocks(self, slopes: LocalDerivatives, dp: Array) -> Blocks:
        """Assemble the derivatives of d; dp (1 | K, n_free, n_q) is the derivative of the free parameters."""
        stages, degree, n_e, _ = slopes.flow.shape
        rows = degree * n_e
        by_s = np.broadcast_to(self._linear[:, :, 0, : self.n_x].reshape(rows, -1), (stages, rows, self.n_x))
        by_q = slopes.flow[..., n_e:] @ dp[:, None]
        return Blocks(by_s, self.inner_matrix(slopes.flow), by_q.reshape(stages, rows, -1))

    def inner_by_quantities(self, equations: PointEquations, natural: NaturalValues, s: Array, w: Array) -> SparseRows:
        """Return the derivative of d by q alone, (K d n_e, n_q), from the entries that are not zero."""
        y, p, dp = self.states(s, w), self.parameters(natural), self.parameter_slopes(natural, equations.free)
        row, column = equations.flow.places
        parameter_entries = np.flatnonzero(column >= self.n_e)
        row, column = row[parameter_entries], column[parameter_entries] - self.n_e
        entry = (
            equations.flow.jacobian_entries(*self._collocation(y, p))[..., parameter_entries] * self.factor[..., row]
        )
        pattern: Mask = (dp != 0.0).any(axis=0)
        free, q = cast("tuple[Index, Index]", np.nonzero(pattern))
        begins = np.searchsorted(free, np.arange(equations.free.size + 1))
        counts: Index = np.diff(begins)[column]
        entry_index = np.repeat(np.arange(row.size), counts)
        column_index: Index = (
            begins[column][entry_index] + np.arange(entry_index.size) - np.repeat(np.cumsum(counts) - counts, counts)
        )
        values = entry[..., entry_index] * dp[:, free[column_index], q[column_index]][:, None]
        points: int = values.shape[0] * values.shape[1]
        rows: Index = np.arange(points)[:, None] * self.n_e + row[entry_index]
        columns: Index = np.broadcast_to(q[column_index], rows.shape)
        return SparseRows((points * self.n_e, dp.shape[2]), rows.ravel(), columns.ravel(), values.ravel())

    def observed_by_quantities(
        self, equations: PointEquations, natural: NaturalValues, s: Array, w: Array
    ) -> Array | None:
        """Return the derivative of the residuals by q alone, (K, M n_r, n_q); None where they do not depend on q."""
        if (equations.observed.places[1] < self.n_e).all():
            return None
        y, p, n_g = self.states(s, w), self.parameters(natural), self.measured.n_g
        by_p = equations.observed.jacobian(*self._measured(y, p))[:, :, :n_g, self.n_e :]
        by_p = np.where(self.measured.used_mask[..., None], by_p, 0.0)
        g = self.evaluate_outputs(equations, p, s, w) if self.measured.slots else np.empty(0)
        derivatives = self.measured.slopes(g, by_p) @ self.parameter_slopes(natural, equations.free)[:, None]
        K, M, n_r, n_q = derivatives.shape  # -1 would not be determined where nothing of it varies
        return derivatives.reshape(K, M * n_r, n_q)

    def inner_matrix(self, flow: Array) -> Array:
        """Assemble the derivative of d by w, (K, d n_e, d n_e), for some elements' `flow`."""
        stages, degree, n_e, _ = flow.shape
        by_w = np.repeat(self._linear[None, :, :, 1:], stages, axis=0)
        for i in range(degree):
            by_w[:, i, :, i] += flow[:, i, :, :n_e]
        return by_w.reshape(stages, degree * n_e, degree * n_e)

    @property
    def _linear(self) -> Array:
        """Return the contribution of the polynomials to the derivative of d by y, (d, n_e, d + 1, n_e)."""
        degree, n_e = self.table.degree, self.n_e
        linear = np.zeros((degree, n_e, degree + 1, n_e))
        for e in range(self.n_x):
            linear[:, e, :, e] = -self.table.derivative
        return linear

    def with_table(self, table: CollocationScheme) -> ElementConstants:
        """Return the elements with the collocation points of another table; measured points stay as they are."""
        if self.is_relative:
            times = np.broadcast_to(table.points[:, None], (self.edges.size - 1, table.degree, 1))
            return replace(self, table=table, times=times)
        offsets = table.points * np.diff(self.edges)[:, None]
        times = (self.edges[:-1, None] + offsets)[..., None]
        return replace(self, table=table, times=times, inputs=signals(self.cubics, offsets))

    def end_blocks(self, natural: NaturalValues, s: Array, w: Array) -> Blocks:
        """Assemble the derivatives of the state at the element's end, linear in s and w where nothing happens."""
        stages = self.edges.size - 1
        by_y = np.broadcast_to(self._of_end, (stages, *self._of_end.shape))
        by_q = np.zeros((stages, self.n_x, natural.dp.shape[1]))
        if any(self.division.crossings):
            by_y, ends, (u, du, _) = (
                by_y.copy(),
                self.states_at_ends(s, w),
                self.with_event_rows(natural.e).inputs_at_ends(),
            )
            for k, crossing in enumerate(self.division.crossings):
                if crossing is not None:
                    _, by_x, by_e = crossing.slopes(ends[k], natural.e, u[k], du[k])
                    by_y[k], by_q[k] = by_x @ by_y[k], by_e @ natural.de
        return Blocks(by_y[..., : self.n_x], by_y[..., self.n_e :], by_q)

    @property
    def _of_end(self) -> Array:
        """Return the contribution of the polynomials to the state at the element's end, (n_x, (d + 1) n_e)."""
        return np.asarray(np.kron(self.table.end, np.eye(self.n_x, self.n_e)), dtype=float)

    def end_curvature(self, natural: NaturalValues, s: Array, w: Array, weight: Array) -> tuple[Array, Array]:
        """Return the Hessian of  weight . states at the ends  by (s, w, q), and what multiplies the curvature of e.

        weight (K, n_x); (K, m, m), without the curvature of e, and (n_e,).
        """
        n_x, n_q = self.n_x, natural.dp.shape[1]
        n_y = n_x + w.shape[1]
        out, by_e = np.zeros((s.shape[0], n_y + n_q, n_y + n_q)), np.zeros(natural.e.size)
        ends, (u, du, ddu) = self.states_at_ends(s, w), self.with_event_rows(natural.e).inputs_at_ends()
        flat = self._of_end
        inner = np.zeros((n_x + natural.e.size, n_y + n_q))
        inner[:n_x, :n_y] = np.hstack([flat[:, :n_x], flat[:, self.n_e :]])
        inner[n_x:, n_y:] = natural.de
        for k, crossing in enumerate(self.division.crossings):
            if crossing is not None and weight[k].any():
                by_e += weight[k] @ crossing.slopes(ends[k], natural.e, u[k], du[k])[2]
                bend = crossing.curvature(ends[k], natural.e, u[k], du[k], ddu[k], weight[k])
                out[k] = inner.T @ bend @ inner
        return out, by_e

    def observed_blocks(self, slopes: LocalDerivatives, dp: Array) -> tuple[Blocks, Blocks]:
        """Assemble the derivatives of the residuals and of the path constraints."""
        blocks: list[Blocks] = []
        for rows in (slopes.rows, slopes.constraints):
            shape, n_y = (rows.shape[0], rows.shape[1] * rows.shape[2]), (self.table.degree + 1) * self.n_e
            y = (rows[..., None, : self.n_e] * self.basis[:, :, None]).reshape(*shape, n_y)
            q = (rows[..., self.n_e :] @ dp[:, None]).reshape(*shape, dp.shape[2])
            blocks.append(Blocks(y[..., : self.n_x], y[..., self.n_e :], q))
        return blocks[0], blocks[1]

    def hessian(
        self,
        equations: PointEquations,
        slopes: LocalDerivatives,
        natural: NaturalValues,
        s: Array,
        w: Array,
        inner: Array,
        constraint: Array,
        factor: Array,
    ) -> tuple[Array, Array]:
        """Return the Hessian of  factor cost + inner . d + constraint . c  by (s, w, q), (K, m, m); d by p (K, n_free).

        inner (K, d, n_e) multiplies the inner equations, constraint (K, M, n_h) the path constraints, factor
        (K, M, n_r) the cost of the value that a row belongs to.  The Hessian of a cost is the Hessian of the observed
        expressions, multiplied by the cost's derivative, plus the slopes multiplied by the cost's curvature.
        """
        y, (stages, degree, n_e) = self.states(s, w), inner.shape
        p, dp = self.parameters(natural), self.parameter_slopes(natural, equations.free)
        flow = equations.flow.hessian(*self._collocation(y, p), inner * self.factor)
        g = self.evaluate_outputs(equations, p, s, w).copy()
        curvature = self.measured.curvature(g, factor, slopes.observed)
        point = np.einsum("kmga,kmgb->kmab", curvature, slopes.observed)
        multiplier = np.concatenate([self.measured.gradient(g, factor), constraint * self.constraint_mask], axis=2)
        if not equations.observed.is_linear:
            point += equations.observed.hessian(*self._measured(y, p), multiplier)

        # By (y_0 ... y_d, q); the columns of y_0 that are no node states are left out at the end.
        n_y, q = (degree + 1) * n_e, slice((degree + 1) * n_e, None)
        total = np.empty((stages, n_y + dp.shape[2], n_y + dp.shape[2]))
        left_factor = self.basis[..., None] * point[:, :, None, :n_e, :n_e]
        total[:, :n_y, :n_y] = np.einsum("kmjab,kmlb->kjalb", left_factor, self.basis).reshape(stages, n_y, n_y)
        by_p = np.einsum("kmja,kmap->kjap", self.basis, point[..., :n_e, n_e:])
        by_p[:, 1:] += flow[..., :n_e, n_e:]
        total[:, :n_y, q] = by_p.reshape(stages, n_y, -1) @ dp
        total[:, q, :n_y] = total[:, :n_y, q].transpose(0, 2, 1)
        total[:, q, q] = (
            dp.transpose(0, 2, 1) @ (flow[..., n_e:, n_e:].sum(axis=1) + point[..., n_e:, n_e:].sum(axis=1)) @ dp
        )
        for i in range(degree):
            block = slice((i + 1) * n_e, (i + 2) * n_e)
            total[:, block, block] += flow[:, i, :n_e, :n_e]
        by_free = np.einsum("kie,kiel->kl", inner, slopes.flow[..., n_e:])
        all_slopes = np.concatenate([slopes.observed, slopes.constraints], axis=2)
        by_free += np.einsum("kmg,kmgl->kl", multiplier, all_slopes[..., n_e:])
        if n_e == self.n_x:
            return total, by_free
        columns = np.r_[0 : self.n_x, n_e : total.shape[1]]
        return total[:, columns[:, None], columns], by_free

    def _collocation(self, y: Array, p: Array) -> tuple[Array, Array, Array, Array, Array]:
        return self.times, y[:, 1:, : self.n_x], y[:, 1:, self.n_x :], p, self.inputs

    def _measured(self, y: Array, p: Array) -> tuple[Array, Array, Array, Array, Array]:
        states = np.einsum("kmje,kje->kme", self.basis, y)
        return self.point_times, states[..., : self.n_x], states[..., self.n_x :], p, self.point_inputs


def signals(cubics: Array, offsets: Array) -> Array:
    """Evaluate inputs (K, n_u, 4) at offsets (K, n) from the elements' starts: (K, n, n_u)."""
    return np.einsum("kuc,knc->knu", cubics, offsets[..., None] ** np.arange(4))
