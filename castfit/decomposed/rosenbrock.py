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

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np

from castfit.transcribe.grid import merge, snap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from castfit.model import System
    from castfit.problem import Condition, Problem

    Array = NDArray[np.float64]

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

    Parameters
    ----------
    problem : Problem
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._conditions = problem.conditions
        self._edges = [_edges(c) for c in self._conditions]
        self._K = max(edges.size for edges in self._edges) - 1
        self._n_d = max(c.theta.size for c in self._conditions)
        self._measured = [problem.model.states.index(name) for name in problem.outputs]
        self._index = [
            np.searchsorted(edges, snap(c.points.times, edges))
            for c, edges in zip(self._conditions, self._edges, strict=True)
        ]

    def residuals(self, theta: Array) -> Array:
        """Return the weighted residuals at theta (n_theta,), those of priors last."""
        naturals = [c.chart.natural(theta[c.theta]) for c in self._conditions]
        found = self._values(np.array([[n.a] for n in naturals]), np.array([[n.p] for n in naturals]))
        rows = [
            ((states[index, 0][:, self._measured] - c.points.values) / c.points.sigma)[c.points.mask]
            for c, states, index in zip(self._conditions, found, self._index, strict=True)
        ]
        return np.concatenate([*rows, self.problem.priors(theta)[0]])

    def jacobian(self, theta: Array) -> Array:
        """Return the Jacobian of `residuals`, (n, n_theta); 0 where it overflows."""
        naturals = [c.chart.natural(theta[c.theta]) for c in self._conditions]
        start = np.array([[n.a, *self._padded(n.da)] for n in naturals])
        found = self._slopes(start, np.array([[n.p, *self._padded(n.dp)] for n in naturals]))
        blocks: list[Array] = []
        for c, states, index in zip(self._conditions, found, self._index, strict=True):
            block = np.zeros((*c.points.mask.shape, theta.size))
            moved = states[index, 1 : 1 + c.theta.size][:, :, self._measured]
            block[..., c.theta] = moved.transpose(0, 2, 1) / c.points.sigma[..., None]
            blocks.append(block[c.points.mask])
        every = np.concatenate([*blocks, self.problem.priors(theta)[1]])
        return np.where(np.isfinite(every), every, 0.0)

    def _padded(self, slope: Array) -> Array:
        """Transpose derivatives (n, n_q) to rows by direction, (n_d, n)."""
        return np.pad(slope.T, ((0, self._n_d - slope.shape[1]), (0, 0)))

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
        n_u = len(self.problem.model.inputs)
        out = np.zeros((len(self._conditions), self._K, 2 + 4 * n_u))
        for row, condition, edges in zip(out, self._conditions, self._edges, strict=True):
            n = edges.size - 1
            row[:, 0], row[:n, 0], row[:n, 1] = edges[-1], edges[:-1], np.diff(edges)
            for j, signal in enumerate(condition.inputs):
                row[:n, 2 + 4 * j : 6 + 4 * j] = signal.cubics(edges)
        return out


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
