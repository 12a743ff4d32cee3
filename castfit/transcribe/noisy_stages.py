"""Stages with noise: one experiment as a chain of nodes, between which the model is driven by free variables.

White noise w over a stage of length h is the sum of its first modes (Karhunen and Loeve; here Legendre's polynomials):

    w(tau) = h^(-1/2) sum_j (2 j + 1)^(1/2) P_j(2 tau - 1) c_j,     c_j ~ N(0, I) independent,   0 <= tau <= 1

so that  x_{k+1} = f_k(x_k, c_k, p)  is the model driven by a smooth function, over which one step of the method of
Dormand and Prince (1980) of order 5 goes.  For linear models the covariance of x_{k+1} that J modes give is off by
O(h^(2 J)), and one of any rank is as good as a regular one.  If noise multiplies states, smooth functions imply
Stratonovich's integral (Wong and Zakai 1965).  Everything that differs between stages is an argument, so that one graph
serves all.

The modes from J on, which are left out, have a curvature of 1 + lam . d2x/dc2 each, so that half its logarithm shifts
-log L at first order in h.  Let f be the rate of the driven model, b_w its derivative by noise w, and [b_w, b_w'] =
b_w',x b_w - b_w,x b_w'.  A Runge-Kutta method with slopes k_i at points tau_i, and with integrals W_j(tau_i) =
sum_l a_il phi_j(tau_l) of the modes phi_j, leaves out

    rest_i = h^2 v_i sum_w (1/2 f_xx[b_w, b_w] - b_w,x (f_x b_w - b_w,x f)) + h g_i sum_w b_w,x b_w
    v_i = tau_i - sum_j W_j(tau_i)^2,     g_i = 1/2 - sum_j phi_j(tau_i) W_j(tau_i)
    omitted = lam . sum_i (dx_{k+1}/dk_i) rest_i / h - 1/2 sum_{w < w'} (lam . [b_w, b_w'])^2 h^2 / (4 (2 J - 1))

which is zero for linear models, and whose last term is the variance of the areas between two Brownian motions.  All
points with a weight integrate two modes exactly, and dx_{k+1}/dk_i contains what k_i does to later slopes.  Without
one of both, L converges at first order if a noise multiplies the state that it drives.

Nodes are at the start, at every measured time, where an input or its derivative jumps and where something happens; a
state change is a stage of its own, of length zero, so that data are read before or after it.  Data are read at nodes.

Algebraic states are z(t, x, p, u) by Newton's method, written into the graph, from the values z0 that they had before.

Notation
--------
n, m     states, free variables of a stage; v = (x, c) (n + m,)
K        stages; K + 1 nodes;  R rows of data: one for each measured time and replicate
lam      (K, n) multipliers of the stages' equations
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arrays import Array, Index
from castfit._support.casadi_functions import BatchedFunction, PerObjectCache
from castfit.integrate.lanes import merge, snap_times
from castfit.model.model import Model
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.event_schedule import NumericSchedule, StageEndUpdate
from castfit.problem.observables import ObservedOutput
from castfit.problem.parameter_map import NaturalValues
from castfit.transcribe.experiment_trajectories import as_measured, input_cubics

# Modes of noise in a stage: points with a weight integrate two exactly.
NOISE_MODES = 2

_NEWTON_ITERATIONS = 4  # for algebraic states
# The method of order 5 of Dormand and Prince (1980).
_STEP_POINTS = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0)
_STEP_ROWS = (
    (), (1 / 5,), (3 / 40, 9 / 40), (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
)  # fmt: skip
_STEP_WEIGHTS = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
_AREA_POINT = 2  # index of the point at which [b_w, b_w'] is evaluated


class NoisyStageFunctions:
    """The functions of a model's stages; all take x, c, p, cubics (4 n_u), t, h, z0 as arrays (..., size)."""

    def __init__(self, model: Model) -> None:
        system, noises = model.system, model.noises
        self.noises, self.m = noises, len(noises) * NOISE_MODES
        self._rates = ca.Function("rates", system.arguments, [system.ode, system.alg])
        self._system = system
        n, n_v = system.x.numel(), system.x.numel() + self.m
        x, c, p, t, h = (ca.SX.sym(s, k) for s, k in zip("xcpth", (n, self.m, system.p.numel(), 1, 1), strict=True))
        cubics, z0 = ca.SX.sym("cubics", 4 * system.u.numel()), ca.SX.sym("z0", system.z.numel())
        self._places = [model.parameters.index(name) for name in noises]
        v, (end, change, areas) = ca.vertcat(x, c), self._step(x, c, p, ca.reshape(cubics, 4, -1), t, h, z0)
        arguments = [x, c, p, cubics, t, h, z0]
        lam, mu_v, mu_lam = ca.SX.sym("lam", n), ca.SX.sym("mu_v", n_v), ca.SX.sym("mu_lam", n)
        C, M = ca.SX.sym("C", n_v, n_v), ca.SX.sym("M", n, n_v)
        slope = ca.jacobian(end, v)
        hessian, gradient = ca.hessian(ca.dot(lam, end), v)
        block = ca.vertcat(ca.horzcat(end, slope), ca.horzcat(ca.SX(n_v, 1), hessian))
        omitted = ca.dot(lam, change) - h**2 / (8 * (2 * NOISE_MODES - 1)) * ca.sumsqr(ca.mtimes(areas.T, lam))
        trace = 0.5 * ca.dot(C, hessian) + ca.dot(M, slope) + omitted
        self.linear = hessian.nnz() == 0
        if self.linear:
            self._build_affine_form(arguments, end, v)
        total = trace + ca.dot(lam - mu_lam, end) - ca.dot(mu_v, gradient)
        weights = [ca.vec(C.T), ca.vec(M.T)]
        self.values = BatchedFunction("values", arguments, end)
        self.blocks = BatchedFunction("blocks", [*arguments, lam], block)
        self.omitted = BatchedFunction("omitted", [*arguments, lam], omitted)
        self.trace = BatchedFunction("trace", [*arguments, lam, *weights], ca.gradient(trace, ca.vertcat(v, lam)))
        self.by_p = BatchedFunction("by_p", [*arguments, lam, *weights, mu_v, mu_lam], ca.gradient(total, p))
        node_arguments = [system.t, system.x, system.p, system.u, z0]
        outputs = ca.densify(ca.vertcat(*(model.outputs[name] for name in model.output_names)))
        z = self.algebraic_states(system.t, system.x, system.p, system.u, z0)
        explicit_outputs = ca.SX(ca.substitute(outputs, system.z, z)) if system.z.numel() else outputs
        self.outputs = BatchedFunction(
            "outputs", node_arguments, ca.horzcat(explicit_outputs, ca.jacobian(explicit_outputs, system.x))
        )
        self.algebraic = BatchedFunction("algebraic", node_arguments, z)

    def _build_affine_form(self, arguments: list[ca.SX], end: ca.SX, v: ca.SX) -> None:
        """Build the ends of stages as a matrix times (x, c, 1), or (x, c, cubics, 1) if inputs act linearly, too."""
        p, cubics, t = arguments[2:5]
        variables = ca.vertcat(v, cubics)
        self.linear_inputs = not ca.depends_on(ca.jacobian(end, variables), variables)
        variables = variables if self.linear_inputs else v
        offset = ca.substitute([end], [variables], [ca.SX.zeros(variables.numel())])[0]
        affine = ca.densify(ca.horzcat(ca.jacobian(end, variables), offset))
        weight = ca.SX.sym("weight", *affine.shape)
        self.time_invariant = self.linear_inputs and not ca.depends_on(affine, t)
        self.affine = BatchedFunction("affine", arguments, affine)
        by_p = ca.gradient(ca.dot(weight, affine), p)
        self.affine_by_p = BatchedFunction("affine_by_p", [*arguments, ca.vec(weight.T)], by_p)

    def _step(
        self, x: ca.SX, c: ca.SX, p: ca.SX, cubics: ca.SX, t: ca.SX, h: ca.SX, z0: ca.SX
    ) -> tuple[ca.SX, ca.SX, ca.SX]:
        """Return the end of a step, its change by rest_i, and [b_w, b_w']."""
        n, n_w, z, omitted_terms = x.numel(), len(self.noises), ca.SX(z0), self._build_omitted_terms()
        slopes, phi, end, areas = ca.SX(n, 0), np.empty((0, NOISE_MODES)), x, ca.SX(n, 0)
        epsilon = ca.SX.sym("epsilon")
        for i, (row, tau, weight) in enumerate(zip(_STEP_ROWS, _STEP_POINTS, _STEP_WEIGHTS, strict=True)):
            state, s = x + h * ca.mtimes(slopes, ca.DM(row)), tau * h
            integrals = np.array(row) @ phi
            basis = [np.polynomial.legendre.Legendre.basis(j)(2.0 * tau - 1.0) for j in range(NOISE_MODES)]
            phi = np.vstack([phi, np.sqrt(2.0 * np.arange(NOISE_MODES) + 1.0) * basis])
            driven = ca.SX(p)
            for j, place in enumerate(self._places):
                driven[place] = ca.dot(c[j::n_w], phi[i]) / ca.sqrt(h)
            u = (cubics[0, :] + s * (cubics[1, :] + s * (cubics[2, :] + s * cubics[3, :]))).T
            z = self.algebraic_states(t + s, state, driven, u, z)
            bend, push, areas_at_point = omitted_terms(t + s, state, z, driven, u)
            areas = areas_at_point if i == _AREA_POINT else areas
            omitted = h * (tau - integrals @ integrals) * bend + (0.5 - integrals @ phi[i]) * push
            slope = self._rates(t + s, state, z, driven, u)[0] + epsilon * omitted
            slopes, end = ca.horzcat(slopes, slope), end + h * weight * slope
        values = ca.substitute([end, ca.jacobian(end, epsilon), areas], [epsilon], [ca.SX(0)])
        return ca.densify(values[0]), ca.densify(values[1]), values[2]

    def _build_omitted_terms(self) -> ca.Function:
        """Return a function of both sums over noises in rest_i, (n,), and of [b_w, b_w'] for all pairs, (n, pairs)."""
        system, x = self._system, self._system.x
        z = self.algebraic_states(system.t, x, system.p, system.u, system.z)
        f = ca.densify(self._rates(system.t, x, z, system.p, system.u)[0])
        bend, push, areas = ca.SX(x.numel(), 1), ca.SX(x.numel(), 1), [ca.SX(x.numel(), 0)]
        columns = [ca.densify(ca.jacobian(f, system.p[place])) for place in self._places]
        direction = ca.SX.sym("direction", x.numel())
        second = ca.jtimes(ca.jtimes(f, x, direction), x, direction)
        for i, b in enumerate(columns):
            derivative = ca.densify(ca.jtimes(f, x, b) - ca.jtimes(b, x, f))
            bend += 0.5 * ca.substitute([second], [direction], [b])[0] - ca.jtimes(b, x, derivative)
            push += ca.jtimes(b, x, b)
            areas += [ca.jtimes(other, x, b) - ca.jtimes(b, x, other) for other in columns[i + 1 :]]
        return ca.Function("omitted", system.arguments, [bend, push, ca.horzcat(*areas)])

    def algebraic_states(self, t: ca.SX, x: ca.SX, p: ca.SX, u: ca.SX, z: ca.SX) -> ca.SX:
        """Return the algebraic states after some iterations of Newton's method, one where they appear linearly."""
        system = self._system
        if not z.numel():
            return z
        by_z = ca.jacobian(system.alg, system.z)
        equations = ca.Function("known", system.arguments, [system.alg, by_z])
        for _ in range(_NEWTON_ITERATIONS if ca.depends_on(by_z, system.z) else 1):
            residual, matrix = equations(t, x, z, p, u)
            z = z - ca.solve(matrix, residual)
        return z


class NodeCost:
    """Cost of the data of a row; functions of t, x, p, u, z0, sigmas, values, known (0, 1), spreads: (..., size).

    sigmas : the unknown standard deviations that are eliminated elsewhere; spreads : what data are weighted by
    """

    def __init__(
        self, problem: CompiledProblem, observed: Sequence[ObservedOutput | None], stages: NoisyStageFunctions
    ) -> None:
        model, system = problem.model, problem.model.system
        n_o = len(observed)
        sigma, z0 = ca.SX.sym("sigma", len(problem.groups)), ca.SX.sym("z0", system.z.numel())
        value, is_known, spread = (ca.SX.sym(name, n_o) for name in ("value", "known", "spread"))
        C, mu = ca.SX.sym("C", system.x.numel(), system.x.numel()), ca.SX.sym("mu", system.x.numel())
        z = stages.algebraic_states(system.t, system.x, system.p, system.u, z0)
        observed_names = (*problem.outputs, *problem.spreads)
        graph = ca.Function(
            "seen", system.arguments, [ca.densify(ca.vertcat(*(model.outputs[s] for s in observed_names)))]
        )
        g = ca.SX(graph(system.t, system.x, z, system.p, system.u))
        cost, predictions, spreads = ca.SX(0), ca.SX.zeros(n_o, 1), ca.SX.zeros(n_o, 1)
        for j, output in enumerate(observed):
            if output is None:
                continue
            prediction, s, m = (ca.SX.sym(name) for name in ("mu", "s", "m"))
            density = output.noise.density(prediction, s, m)
            eta = [g[observed_names.index(name)] for name in output.predicted_outputs]
            spread_expression = (
                eta[1] if output.is_spread_computed else spread[j] * (sigma[output.group] if output.group >= 0 else 1.0)
            )
            other_arguments = [
                e for e in ca.vertsplit(density.eta) if not (ca.is_equal(e, prediction) or ca.is_equal(e, s))
            ]
            replacements = [eta[0], spread_expression, value[j], *eta[1 + output.is_spread_computed :]]
            column = ca.substitute([density.cost], [prediction, s, m, *other_arguments], replacements)[0]
            cost += ca.if_else(is_known[j] > 0, column, 0)
            predictions[j], spreads[j] = eta[0], spread_expression
        arguments = [system.t, system.x, system.p, system.u, z0, sigma, value, is_known, spread]
        hessian, gradient = ca.hessian(cost, system.x)
        trace = 0.5 * ca.dot(C, hessian)
        self.quadratic = not ca.depends_on(hessian, system.x)
        total = cost + trace - ca.dot(mu, gradient)
        self.cost = BatchedFunction("cost", arguments, cost)
        self.blocks = BatchedFunction(
            "node_blocks",
            arguments,
            ca.vertcat(ca.horzcat(cost, gradient.T), ca.horzcat(ca.SX(mu.numel(), 1), hessian)),
        )
        self.trace = BatchedFunction("node_trace", [*arguments, ca.vec(C)], ca.gradient(trace, system.x))
        self.by_q = BatchedFunction(
            "node_by_q", [*arguments, ca.vec(C), mu], ca.gradient(total, ca.vertcat(system.p, sigma))
        )
        observed_slope = ca.horzcat(predictions, spreads, ca.jacobian(predictions, system.x))
        self.observed = BatchedFunction("node_observed", arguments, observed_slope)


def _sum_rows(rows: Array, index: Index, count: int) -> Array:
    """Return the sums of rows (N, ...) with equal index, (count, ...)."""
    flat = rows.reshape(rows.shape[0], -1)
    places = index[:, None] * flat.shape[1] + np.arange(flat.shape[1])
    sums: Any = np.bincount(places.ravel(), flat.ravel(), count * flat.shape[1])
    return sums.reshape(count, *rows.shape[1:])


_FUNCTIONS: PerObjectCache[Model, NoisyStageFunctions] = PerObjectCache()


@dataclass(frozen=True)
class ChainPoint:
    """Evaluation point of a chain: the values that follow from the quantities, and the path.

    natural : parameters, initial states and rows of events, with their derivatives
    table : what happens when; p_stages (K, n_p), p_rows (R, n_p) are parameters in stages and at rows of data
    sigma : (n_groups,) unknown standard deviations
    x (K + 1, n), c (K, m), first (r,) : states, modes of the noise, and how initial states deviate, in deviations
    z (K + 1, n_z) : where the search for algebraic states begins
    affine : ends of stages are affine times `NoisyChain.affine_variables`, if the model is linear; (K, n, .)
    """

    natural: NaturalValues
    table: NumericSchedule | None
    p_stages: Array
    p_rows: Array
    sigma: Array
    x: Array
    c: Array
    initial_deviations: Array
    z: Array
    affine: Array | None = None


@dataclass(frozen=True)
class ChainBlocks:
    """Values and derivatives of a chain at a point.

    f (K, n), F (K, n, n + m) : the ends of stages; bend (K, n + m, n + m) : second derivatives of lam . f
    cost : of data; gradient (K + 1, n), hessian (K + 1, n, n) : of it by the states of nodes
    by_e : derivatives by rows of e of stages at which something happens
    """

    f: Array
    F: Array
    second_derivatives: Array
    cost: float
    gradient: Array
    hessian: Array
    by_e: dict[int, Array]


class NoisyChain:
    """One experiment of a problem, of which no stage is longer than `longest`."""

    def __init__(self, problem: CompiledProblem, i: int, longest: float) -> None:
        condition, model = problem.conditions[i], problem.model
        self.condition: Condition = condition
        self.functions = _FUNCTIONS.get(model, NoisyStageFunctions)
        self.data = NodeCost(problem, condition.observed, self.functions)
        start, points = condition.start, condition.points
        table = condition.timetable(condition.link.natural(problem.guess[condition.theta]))
        boundaries = merge(np.array([start]), condition.times, condition.breakpoints)
        event_times = (
            np.empty(0) if table is None else table.times[(table.times >= start) & (table.times <= condition.end)]
        )
        boundaries = merge(boundaries, event_times) if event_times.size else boundaries
        pieces = np.maximum(np.ceil(np.diff(boundaries) / longest * (1.0 - 1e-9)), 1).astype(np.intp)
        inner: list[Array] = [
            np.linspace(a, b, n + 1)[:-1]
            for a, b, n in zip(boundaries[:-1], boundaries[1:], pieces.tolist(), strict=True)
        ]
        edges = np.concatenate([*inner, boundaries[-1:]])
        # A change of states is a stage of its own, between the node before it and the one after it.
        jumps: dict[float, int] = {}
        for g, time in enumerate([] if table is None else snap_times(table.times, edges).tolist()):
            if table is not None and table.crossings[g] is not None and start <= time <= edges[-1]:
                jumps[time] = g
        times: list[float] = []
        for edge in edges.tolist():
            times += [edge, edge] if edge in jumps else [edge]
        self.times = np.array(times)
        """Times of nodes, (K + 1,); two at the time of a jump."""
        self.jumps: dict[int, int] = {k: jumps[t] for k, t in enumerate(times[:-1]) if times[k + 1] == t}
        """Which of the timetable's changes a stage is, by stage."""
        length: Array = np.diff(self.times)
        self.t, self.h = self.times[:-1, None], np.where(length > 0.0, length, 1.0)[:, None]
        flows = np.flatnonzero(length > 0.0)
        self.cubics = np.zeros((length.size, len(condition.inputs), 4))
        if condition.inputs:
            self.cubics[flows] = input_cubics(condition.inputs, edges)
        middle = 0.5 * (self.times[:-1] + self.times[1:])
        change_times = np.empty(0) if table is None else table.times
        self.interval: Index = np.searchsorted(change_times, middle, side="right").astype(np.intp)
        """Which of the timetable's parameters hold in a stage, (K,)."""
        row_times = snap_times(points.times, edges)
        node = np.searchsorted(self.times, row_times, side="left")
        if table is not None:
            is_after = np.isin(row_times, snap_times(table.times_after_events, edges))
            node = np.where(is_after, np.searchsorted(self.times, row_times, side="right") - 1, node)
        self.node: Index = node.astype(np.intp)
        """The node of each row of data, (R,)."""
        stage = flows[np.minimum(np.maximum(np.searchsorted(flows, node) - 1, 0), flows.size - 1)]
        ends = np.where(node[:, None] == 0, 0.0, self.h[stage])
        u = np.einsum("rjc,rc->rj", self.cubics[stage], ends ** np.arange(4))
        self.row_inputs = as_measured(condition.inputs, row_times, u)
        self.row_interval = self.interval[stage]
        mask = points.mask
        self.is_measured = mask.astype(float)
        with np.errstate(invalid="ignore"):
            typical = [
                np.median(points.sigma[column_mask, j]) if column_mask.any() else 1.0
                for j, column_mask in enumerate(mask.T)
            ]
        self.spreads_of_outputs: Array = np.array(typical, dtype=float)
        """What data of each output are weighted by, as a rule."""
        self.values, self.spreads = np.where(mask, points.values, 1.0), np.where(mask, points.sigma, 1.0)
        self.row_times = row_times[:, None]
        names = model.states
        self.measured_states = [
            (j, names.index(o)) for j, o in enumerate(problem.outputs) if o in names and mask[:, j].any()
        ]
        """Outputs that are states, and which."""
        last_inputs = np.einsum("jc,c->j", self.cubics[flows[-1]], float(self.h[flows[-1], 0]) ** np.arange(4))
        self.node_inputs: Array = np.concatenate([self.cubics[:, :, 0], last_inputs[None]])
        for k in self.jumps:  # inputs there are those of what follows
            self.node_inputs[k] = self.node_inputs[k + 1]
        if self.functions.linear:
            # Stages of the same length, up to rounding, and with the same parameters have equal derivatives.
            lengths: Array = (length / length.max()).round(11)
            keys: Any = np.stack([self.interval, lengths], axis=1)
            keys = keys if self.functions.time_invariant else np.arange(length.size)[:, None]
            _, self.distinct_stages, self.affine_index = np.unique(keys, axis=0, return_index=True, return_inverse=True)

    @property
    def quadratic(self) -> bool:
        """Whether one step of Newton's method finds the path: stages are linear, and the data cost squares."""
        return self.functions.linear and self.data.quadratic

    @property
    def shape(self) -> tuple[int, int, int]:
        """K, n and m."""
        return self.h.shape[0], len(self.condition.link.base_a), self.functions.m

    def point(self, q: Array, sigma: Array, path: tuple[Array, Array, Array, Array]) -> ChainPoint:
        """Return the evaluation point of the chain at quantities q (n_q,), and at a path (x, c, first, z)."""
        natural = self.condition.link.natural(q)
        table = self.condition.timetable(natural)
        p = natural.p[None] if table is None else table.p
        point = ChainPoint(natural, table, p[self.interval], p[self.row_interval], sigma, *path)
        if not self.functions.linear:
            return point
        arguments = (a[self.distinct_stages] for a in self._stage_arguments(point))
        affine = self.functions.affine(*arguments)[self.affine_index]
        affine[list(self.jumps)] = 0.0
        return replace(point, affine=affine)

    def _stage_arguments(self, point: ChainPoint) -> tuple[Array, ...]:
        cubics = self.cubics.reshape(self.t.shape[0], -1)
        return point.x[:-1], point.c, point.p_stages, cubics, self.t, self.h, point.z[:-1]

    def _flow_ends(self, point: ChainPoint) -> Array:
        if point.affine is None:
            return self.functions.values(*self._stage_arguments(point))[..., 0].copy()
        return (point.affine @ self.affine_variables(point)[..., None])[..., 0]

    def affine_variables(self, point: ChainPoint) -> Array:
        """Return the vector that a linear model's matrices multiply: x, c, cubics of linear inputs, and 1."""
        K = self.h.size
        cubics = self.cubics.reshape(K, -1) if self.functions.linear_inputs else np.empty((K, 0))
        return np.concatenate([point.x[:-1], point.c, cubics, np.ones((K, 1))], axis=1)

    def _row_arguments(self, point: ChainPoint) -> tuple[Array, ...]:
        z = point.z[self.node]
        sigma = np.broadcast_to(point.sigma, (self.node.size, point.sigma.size))
        data = (sigma, self.values, self.is_measured, self.spreads)
        return self.row_times, point.x[self.node], point.p_rows, self.row_inputs, z, *data

    def _crossing(self, point: ChainPoint, g: int) -> StageEndUpdate:
        assert point.table is not None
        crossing = point.table.crossings[g]
        assert crossing is not None
        return crossing

    def stage_at(self, point: ChainPoint, k: int, x: Array, z: Array) -> tuple[Array, Array]:
        """Return the end of stage k (n,) from other states, without noise, and its derivatives (n, n + m)."""
        n, m = x.size, self.functions.m
        if k in self.jumps:
            u: Array = self.node_inputs[k]
            end, slope, _ = self._crossing(point, self.jumps[k]).slopes(x, point.natural.e, u, np.zeros_like(u))
            return end, np.hstack([slope, np.zeros((n, m))])
        arguments = (x, np.zeros(m), point.p_stages[k], self.cubics[k].ravel(), self.t[k], self.h[k], z, np.zeros(n))
        blocks = self.functions.blocks(*arguments)
        return blocks[:n, 0].copy(), blocks[:n, 1:].copy()

    def data_at(self, point: ChainPoint, rows: Index, x: Array, z: Array) -> tuple[Array, Array]:
        """Return gradient and Hessian (n, n) of what rows of data at one node cost, at other states."""
        data = point.sigma, self.values[rows], self.is_measured[rows], self.spreads[rows]
        blocks = self.data.blocks(self.row_times[rows], x, point.p_rows[rows], self.row_inputs[rows], z, *data)
        return blocks[:, 0, 1:].sum(axis=0), blocks[:, 1:, 1:].sum(axis=0)

    def seen_at(self, point: ChainPoint, row: int, j: int, x: Array, z: Array) -> tuple[float, float, Array]:
        """Return the value of output j at other states in a row, its deviation, NaN if not measured, and its slope."""
        output = self.condition.observed[j]
        if output is None or not self.is_measured[row, j]:
            return np.nan, np.nan, x
        data = point.sigma, self.values[row], self.is_measured[row], self.spreads[row]
        observed = self.data.observed(self.row_times[row], x, point.p_rows[row], self.row_inputs[row], z, *data)[j]
        deviation = output.noise.deviation(observed[:1], observed[1:2])
        return float(observed[0]), float(deviation[0]), observed[2:].copy()

    def ends_at(self, point: ChainPoint, k: int, x: Array, c: Array, z: Array) -> Array:
        """Return the ends of stage k from several states and modes, (count, n)."""
        if k in self.jumps:
            crossing, e, u = self._crossing(point, self.jumps[k]), point.natural.e, self.node_inputs[k]
            return np.array([crossing.values(state, e, u) for state in x])
        arguments = (x, c, point.p_stages[k], self.cubics[k].ravel(), self.t[k], self.h[k], z)
        return self.functions.values(*arguments)[..., 0].copy()

    def costs_at(self, point: ChainPoint, x: Array) -> Array:
        """Return the cost of the data along several paths (K + 1, count, n), (count,)."""
        arguments = self._row_arguments(point)
        expanded = [a[:, None] for a in arguments]
        return self.data.cost(expanded[0], x[self.node], *expanded[2:])[..., 0, 0].sum(axis=0)

    def values_at(self, point: ChainPoint) -> tuple[Array, float]:
        """Return the ends of stages (K, n), and what the data cost."""
        ends = self._flow_ends(point)
        for k, g in self.jumps.items():
            ends[k] = self._crossing(point, g).values(point.x[k], point.natural.e, self.node_inputs[k])
        return ends, float(self.data.cost(*self._row_arguments(point)).sum())

    def omitted(self, point: ChainPoint, lam: Array) -> float:
        """Return the contribution of the omitted modes of noise to -log L, with multipliers (K, n)."""
        if self.functions.linear:
            return 0.0
        omitted = self.functions.omitted(*self._stage_arguments(point), lam)[..., 0, 0].copy()
        omitted[list(self.jumps)] = 0.0
        return float(omitted.sum())

    def blocks(self, point: ChainPoint, lam: Array) -> ChainBlocks:
        """Return values, first and second derivatives, with multipliers (K, n)."""
        K, n, m = self.shape
        if point.affine is None:
            blocks = self.functions.blocks(*self._stage_arguments(point), lam)
            f, F_and_bends = blocks[:, :n, 0].copy(), blocks[:, :, 1:].copy()
        else:
            f, F_and_bends = self._flow_ends(point), np.zeros((K, 2 * n + m, n + m))
            F_and_bends[:, :n] = point.affine[:, :, : n + m]
        F, second_derivatives = F_and_bends[:, :n], F_and_bends[:, n:]
        by_e: dict[int, Array] = {}
        for k, g in self.jumps.items():
            u: Array = self.node_inputs[k]
            f[k], slope, by_e[k] = self._crossing(point, g).slopes(point.x[k], point.natural.e, u, np.zeros_like(u))
            F[k], second_derivatives[k] = 0.0, 0.0
            F[k, :, :n] = slope
        rows = self.data.blocks(*self._row_arguments(point))
        gradient, hessian = (_sum_rows(rows[:, a, 1:], self.node, K + 1) for a in (0, slice(1, None)))
        return ChainBlocks(f, F, second_derivatives, float(rows[:, 0, 0].sum()), gradient, hessian, by_e)

    def trace(self, point: ChainPoint, lam: Array, C: Array, M: Array, C_nodes: Array) -> tuple[Array, Array, Array]:
        """Return the gradient of T = sum 1/2 <C, bend> + <M, F> + omitted + 1/2 <C, hessian of data>, weights held.

        By v (K, n + m), by lam (K, n), and by the states of nodes, of data alone (K + 1, n).
        """
        K, n, m = self.shape
        stage_gradient = np.zeros((K, n + m + n))
        if point.affine is None:
            weights = C.reshape(K, -1), self._mask_empty_stages(M).reshape(K, -1)
            stage_gradient = self.functions.trace(*self._stage_arguments(point), lam, *weights)[..., 0].copy()
            stage_gradient[list(self.jumps)] = 0.0
        rows = self.data.trace(*self._row_arguments(point), C_nodes[self.node].reshape(self.node.size, -1))[..., 0]
        return stage_gradient[:, : n + m], stage_gradient[:, n + m :], _sum_rows(rows, self.node, K + 1)

    def by_quantities(
        self, point: ChainPoint, by_e: dict[int, Array], lam: Array, C: Array, M: Array, C_nodes: Array,
        mu_x: Array, mu_c: Array, mu_lam: Array,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Return the derivatives of  T + objective - (mu . gradient of the Lagrangian)  by q (n_q,) and sigmas.

        lam, mu_lam : (K + 1, n), the first of the initial states'
        """
        K, _, _ = self.shape
        mu_v = np.concatenate([mu_x[:-1], mu_c], axis=1)
        n_p = point.natural.p.size
        intervals = 1 if point.table is None else point.table.p.shape[0]
        of_e = np.zeros(point.natural.e.size)
        if point.affine is None:
            weights = C.reshape(K, -1), self._mask_empty_stages(M).reshape(K, -1)
            arguments = (*self._stage_arguments(point), lam[1:], *weights, mu_v, mu_lam[1:])
            stage_by_p = self.functions.by_p(*arguments)[..., 0].copy()
            stage_by_p[list(self.jumps)] = 0.0
        else:
            stage_by_p = self._linear_by_p(point, lam[1:], lam[1:] - mu_lam[1:], M, mu_v)
        C_rows = C_nodes[self.node].reshape(self.node.size, -1)
        rows = self.data.by_q(*self._row_arguments(point), C_rows, mu_x[self.node])[..., 0]
        of_p = _sum_rows(stage_by_p, self.interval, intervals) + _sum_rows(rows[:, :n_p], self.row_interval, intervals)
        for k, slope in by_e.items():
            of_e += (lam[k + 1] - mu_lam[k + 1]) @ slope
        total_p = np.zeros(n_p)
        for g in range(intervals):
            total_p += self._before_levels(point, g, of_p[g], of_e)
        natural = point.natural
        gradient = total_p @ natural.dp + (lam[0] - mu_lam[0]) @ natural.da
        if of_e.size:
            gradient = gradient + of_e @ natural.de
        return gradient, rows[:, n_p:].sum(axis=0)

    def _linear_by_p(self, point: ChainPoint, lam: Array, weight: Array, M: Array, mu_v: Array) -> Array:
        """Return the derivatives of  <M, F> + weight . ends - lam . F mu_v  by the parameters of stages."""
        K, n, m = self.shape
        W = weight[:, :, None] * self.affine_variables(point)[:, None]
        W[:, :, : n + m] += M - lam[:, :, None] * mu_v[:, None]
        rows = self._mask_empty_stages(W).reshape(K, -1)
        sums = _sum_rows(rows, self.affine_index, self.distinct_stages.size)
        arguments, by_p = self._stage_arguments(point), np.zeros((K, point.natural.p.size))
        distinct_arguments = (a[self.distinct_stages] for a in arguments)
        by_p[self.distinct_stages] = self.functions.affine_by_p(*distinct_arguments, sums)[..., 0]
        return by_p

    def _mask_empty_stages(self, M: Array) -> Array:
        """Return weights of F without those of stages of length zero."""
        if not self.jumps:
            return M
        out = M.copy()
        out[list(self.jumps)] = 0.0
        return out

    def _before_levels(self, point: ChainPoint, g: int, by_p: Array, of_e: Array) -> Array:
        """Return the derivative by the parameters themselves of that by those in interval g; the rest goes to e."""
        if point.table is None or g == 0:
            return by_p
        schedule, by_p, current_time = self.condition.schedule, by_p.copy(), point.table.times[g - 1]
        times = point.natural.e[schedule.rows]
        for level in reversed(schedule.levels):
            if times[level.on_instant] <= current_time and not (
                level.off_instant >= 0 and times[level.off_instant] <= current_time
            ):
                of_e[level.height_row] += by_p[level.parameter]
                if level.is_assignment:
                    by_p[level.parameter] = 0.0
        return by_p

    def algebraic(self, point: ChainPoint) -> Array:
        """Return the algebraic states of nodes, (K + 1, n_z)."""
        if not point.z.shape[1]:
            return point.z
        return self.functions.algebraic(*self._node_arguments(point))[..., 0].copy()

    def _node_arguments(self, point: ChainPoint) -> tuple[Array, ...]:
        p = np.concatenate([point.p_stages, point.p_stages[-1:]])
        return self.times[:, None], point.x, p, self.node_inputs, point.z

    def outputs(self, point: ChainPoint) -> tuple[Array, Array]:
        """Return all outputs of the model at nodes (K + 1, n_out), and their derivatives by states."""
        values = self.functions.outputs(*self._node_arguments(point))
        return values[..., 0].copy(), values[..., 1:].copy()

    def observed(self, point: ChainPoint) -> tuple[Array, Array, Array]:
        """Return predictions, spreads (R, n_o), and the derivatives of predictions by states (R, n_o, n)."""
        values = self.data.observed(*self._row_arguments(point))
        return values[..., 0].copy(), values[..., 1].copy(), values[..., 2:].copy()
