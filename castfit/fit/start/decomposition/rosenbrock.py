"""Residuals of a small problem by a Rosenbrock method with fixed steps, all experiments in one call.

A search that simulates a handful of equations ten thousand times needs neither error control nor nodes, but no time may
be lost between the steps: one CasADi function, a step and its derivatives, is accumulated over the steps and mapped
over the experiments.  RODAS3 is L-stable, so that wild rate constants do no harm, and of order 3, stiffly accurate:

    (I − γ h J) k_i = γ h f(t + α_i h, y + Σ_j a_ij k_j) + γ Σ_j c_ij k_j + γ γ_i h² f_t,    y⁺ = y + Σ_i m_i k_i

(Sandu, Verwer, Blom, Spee, Carmichael and Potra 1997, Atmos. Environ. 31, 3459; the form without matrix products of
Hairer and Wanner 1996, Section IV.7, multiplied by γ h, so that a step of length zero does nothing.)

Notation: E experiments, K steps of each (padded with steps of length zero), n_d directions of differentiation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np

from castfit.integrate.lanes import merge, snap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._support.arrays import Array, Index
    from castfit.model.model import System
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import Posed


_GAMMA = 0.5
_A = ((), (0.0,), (2.0, 0.0), (2.0, 0.0, 1.0))
_C = ((), (4.0,), (1.0, -1.0), (1.0, -1.0, -8.0 / 3.0))
_M = (2.0, 0.0, 1.0, 1.0)
_ALPHA = (0.0, 0.0, 1.0, 1.0)
_GAMMA_I = (0.5, 1.5, 0.0, 0.0)

_STEPS = 40  # at least so many in an experiment, and two between data
_HALVINGS = 5  # of the first interval, where trajectories leave their initial values


class FixedSteps:
    """Weighted residuals of a problem without algebraic states, and their Jacobian, as functions of theta.

    Measured outputs must be states.  What overflows comes out as infinity or NaN; nothing is raised.
    """

    def __init__(self, problem: Posed) -> None:
        self.problem = problem
        self._edges = [_edges(c) for c in problem.conditions]
        self._n_d = max(c.theta.size for c in problem.conditions)
        self._seen = _Seen.of_problem(problem, self._edges)
        self._charts = _Charts.of(problem)

    def residuals(self, theta: Array) -> Array:
        """Return the weighted residuals at theta (n_theta,), those of priors last."""
        p, a, *_ = self._charts.natural(theta)
        seen, states = self._seen, self._values(a, p)
        rows = (states[seen.experiment, seen.edge, 0, seen.state] - seen.value) / seen.sigma
        return np.concatenate([rows, self.problem.priors(theta).rows])

    def jacobian(self, theta: Array) -> Array:
        """Return the Jacobian of `residuals`, (n, n_theta); 0 where it overflows."""
        p, a, dp, da = self._charts.natural(theta)
        seen, states = self._seen, self._slopes(np.concatenate([a, da], axis=1), np.concatenate([p, dp], axis=1))
        moved = states[seen.experiment, seen.edge, 1:, seen.state] / seen.sigma[:, None]
        rows = np.zeros((moved.shape[0], theta.size))
        for i, condition in enumerate(self.problem.conditions):
            own, n_q = seen.of[i], condition.theta.size
            rows[own, condition.theta] = moved[own, :n_q]
        every = np.concatenate([rows, self.problem.priors(theta).jacobian.dense])
        return np.where(np.isfinite(every), every, 0.0)

    @cached_property
    def _values(self) -> _March:
        y, p, step, after = _step(self.problem.model.system)
        return _March(ca.Function("values", [y, p, step], [after]), self._steps)

    @cached_property
    def _slopes(self) -> _March:
        system, free = self.problem.model.system, self.problem.free_parameters.tolist()
        y, p, step, after = _step(system)
        Y, P = ca.SX.sym("Y", y.numel(), self._n_d), ca.SX.sym("P", p.numel(), self._n_d)
        slope = ca.jacobian(after, ca.vertcat(y, p[free]))
        moved = slope[:, : y.numel()] @ Y + slope[:, y.numel() :] @ P[free, :]
        given = [ca.horzcat(y, Y), ca.horzcat(p, P), step]
        return _March(ca.Function("slopes", given, [ca.densify(ca.horzcat(after, moved))]), self._steps)

    @cached_property
    def _steps(self) -> Array:
        """Every step's start, length, and inputs as local cubics, (E, K, 2 + 4 n_u)."""
        conditions, n_u = self.problem.conditions, len(self.problem.model.inputs)
        out = np.zeros((len(conditions), max(edges.size for edges in self._edges) - 1, 2 + 4 * n_u))
        for row, condition, edges in zip(out, conditions, self._edges, strict=True):
            n = edges.size - 1
            row[:, 0], row[:n, 0], row[:n, 1] = edges[-1], edges[:-1], np.diff(edges)
            for j, signal in enumerate(condition.inputs):
                row[:n, 2 + 4 * j : 6 + 4 * j] = signal.cubics(edges)
        return out


@dataclass(frozen=True)
class _Seen:
    """Every measured value, (n,) each: its experiment, edge, state, value, sigma; and each experiment's rows."""

    experiment: Index
    edge: Index
    state: Index
    value: Array
    sigma: Array
    of: tuple[slice, ...]

    @classmethod
    def of_problem(cls, problem: Posed, grids: Sequence[Array]) -> _Seen:
        states = np.array([problem.model.states.index(name) for name in problem.outputs])
        parts: list[tuple[Any, ...]] = []
        for i, (c, edges) in enumerate(zip(problem.conditions, grids, strict=True)):
            point, output = np.nonzero(c.points.mask)
            edge = np.searchsorted(edges, snap(c.points.times, edges))[point]
            at = point, output
            parts.append(
                (np.full(point.size, i, dtype=np.intp), edge, states[output], c.points.values[at], c.points.sigma[at])
            )
        ends = np.cumsum([0, *(part[0].size for part in parts)]).tolist()
        experiment, edge, state, value, sigma = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(experiment, edge, state, value, sigma, tuple(slice(*pair) for pair in pairwise(ends)))


@dataclass(frozen=True)
class _Charts:
    """Parameters and initial states of all experiments at once, as `Link` has them for one.

    Where anything is an expression, the links are asked one by one.
    """

    problem: Posed
    n_d: int
    base_p: Array  # (E, n_p)
    base_a: Array  # (E, n_x)
    of_p: tuple[Index, ...]  # experiment, direction, parameter, entry of theta
    of_a: tuple[Index, ...]  # experiment, direction, state, entry of theta

    @classmethod
    def of(cls, problem: Posed) -> _Charts:
        conditions = problem.conditions
        table: list[list[tuple[int, int, int, int]]] = [[], []]
        for i, c in enumerate(conditions):
            for places, target in zip(table, (c.link.parameter_of, c.link.state_of), strict=True):
                places += [(i, j, int(k), int(c.theta[j])) for j, k in enumerate(target) if k >= 0]
        of_p, of_a = (tuple(np.array(places, dtype=np.intp).reshape(-1, 4).T) for places in table)
        return cls(
            problem,
            max(c.theta.size for c in conditions),
            np.array([c.link.base_p for c in conditions]),
            np.array([c.link.base_a for c in conditions]),
            of_p,
            of_a,
        )

    def natural(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        """Return p (E, 1, n_p), a (E, 1, n_x), and their derivatives (E, n_d, n_p), (E, n_d, n_x)."""
        if any(c.link.parts for c in self.problem.conditions):
            return self._one_by_one(theta)
        value, slope = self.problem.to_natural(theta), self.problem.natural_slope(theta)
        out: list[Array] = []
        for base, (i, j, k, entry) in ((self.base_p, self.of_p), (self.base_a, self.of_a)):
            at, moved = base.copy(), np.zeros((base.shape[0], self.n_d, base.shape[1]))
            at[i, k], moved[i, j, k] = value[entry], slope[entry]
            out += [at[:, None], moved]
        p, dp, a, da = out
        return p, a, dp, da

    def _one_by_one(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        naturals = [c.link.natural(theta[c.theta]) for c in self.problem.conditions]

        def padded(slopes: list[Array]) -> Array:
            return np.array([np.pad(slope.T, ((0, self.n_d - slope.shape[1]), (0, 0))) for slope in slopes])

        p, a = np.array([[n.p] for n in naturals]), np.array([[n.a] for n in naturals])
        return p, a, padded([n.dp for n in naturals]), padded([n.da for n in naturals])


def _edges(condition: Condition) -> Array:
    """Return the boundaries of an experiment's steps: measured times, breakpoints, and points between."""
    marks = merge(np.array([condition.start]), condition.points.times, condition.breakpoints)
    n = max(2, -(-_STEPS // (marks.size - 1)))
    first = marks[0] + (marks[1] - marks[0]) * 0.5 ** np.arange(_HALVINGS, 0, -1)
    inner = marks[:-1, None] + np.diff(marks)[:, None] * np.arange(n) / n
    return np.unique(np.concatenate([first, inner.ravel(), marks[-1:]]))


def _step(system: System) -> tuple[ca.SX, ca.SX, ca.SX, ca.SX]:
    """Return the graph of one step: state (n_x,), parameters, (start, length, cubics), and the state after it."""
    n_x, n_u = system.x.numel(), system.u.numel()
    y, step = ca.SX.sym("y", n_x), ca.SX.sym("step", 2 + 4 * n_u)
    begin, h, cubics = step[0], step[1], ca.reshape(step[2:], 4, n_u)
    s = system.t - begin
    u = (cubics[0, :] + s * (cubics[1, :] + s * (cubics[2, :] + s * cubics[3, :]))).T
    (f,) = ca.substitute([system.ode], [system.u], [u]) if n_u else [system.ode]
    given = [system.t, system.x, system.p, step]
    right = ca.Function("right", given, [f])
    slopes = ca.Function("slopes", given, [ca.densify(ca.jacobian(f, system.x)), ca.densify(ca.jacobian(f, system.t))])
    J, f_t = slopes(begin, y, system.p, step)
    matrix, none = ca.SX.eye(n_x) - _GAMMA * h * J, ca.SX.zeros(n_x)
    k: list[ca.SX] = []
    for alpha, gamma_i, a, c in zip(_ALPHA, _GAMMA_I, _A, _C, strict=True):
        at = y + _weighted(a, k, none)
        side = h * right(begin + alpha * h, at, system.p, step) + _weighted(c, k, none) + gamma_i * h**2 * f_t
        k.append(ca.solve(matrix, _GAMMA * side))
    return y, system.p, step, ca.densify(y + _weighted(_M, k, none))


def _weighted(weights: Sequence[float], terms: Sequence[ca.SX], none: ca.SX) -> ca.SX:
    return sum((w * k for w, k in zip(weights, terms, strict=True) if w), none)


class _March:
    """A step accumulated over K steps and mapped over E experiments, called through fixed arrays; not for threads.

    Calling it with starts (E, columns, n_x) and parameters (E, columns, n_p) returns the states (E, K + 1, columns,
    n_x) at all edges.
    """

    def __init__(self, step: ca.Function, steps: Array) -> None:
        E, K, _ = steps.shape
        function = step.mapaccum(K).map(E)
        buffer, self._run = cast("Any", function.buffer())
        self._buffer = buffer  # keeps the memory alive
        self._arguments = [np.zeros(function.size_in(i)[::-1]) for i in range(3)]
        self._result = np.zeros(function.size_out(0)[::-1])
        for i, array in enumerate(self._arguments):
            buffer.set_arg(i, memoryview(cast("Any", array)))
        buffer.set_res(0, memoryview(cast("Any", self._result)))
        self._arguments[2][...] = steps.reshape(E * K, -1)
        self._shape = (E, K, -1, step.size1_in(0))

    def __call__(self, start: Array, parameters: Array) -> Array:
        E, K, *_ = self._shape
        self._arguments[0].reshape(start.shape)[...] = start
        self._arguments[1].reshape(E, K, *parameters.shape[1:])[...] = parameters[:, None]
        self._run()
        return np.concatenate([start[:, None], self._result.reshape(self._shape)], axis=1)
