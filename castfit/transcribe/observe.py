"""From states at points to weighted residuals and path constraints, with their derivatives.

Points are batched as (K, M): stage and point within the stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

from castfit.model import by_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.posed import Posed
    from castfit.transcribe.grid import Staging

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Observed:
    """Values: residual rows r (K, M * n_y) and path constraint rows c (K, M * n_h)."""

    r: Array
    c: Array


@dataclass(frozen=True)
class Observation:
    """Derivatives at points: r_x (K, M, n_y, n_x), r_z, r_p (all parameters p), and the same of c."""

    r_x: Array
    r_z: Array
    r_p: Array
    c_x: Array
    c_z: Array
    c_p: Array


def constrained(problem: Posed, i: int, staging: Staging) -> NDArray[np.bool_]:
    """Tell where the problem's constraints apply in condition i, (K, M, number of constraints).

    That is wherever something was measured, but not once more for a replicate; and a constraint of parameters alone
    only once: copies of an equation would leave an optimizer no freedom.
    """
    model = problem.model
    applies = np.repeat(staging.first[:, :, None], len(problem.constraints), axis=2)
    for j, constraint in enumerate(problem.constraints):
        names = {symbol.name() for symbol in ca.symvar(constraint.expression)}
        if names <= set(model.parameters):
            own = i == 0 or bool(names & problem.varying)
            applies[:, :, j] &= own & (np.cumsum(staging.first).reshape(staging.first.shape) == 1)
    return applies


class Observer:
    """The measured outputs and path constraints of a problem as batched functions.

    Parameters
    ----------
    problem : Posed
    state_bounds : bool
        Whether bounds of states are path constraints here (single shooting), because no node variable carries them.
    """

    def __init__(self, problem: Posed, *, state_bounds: bool) -> None:
        self._problem = problem
        system = problem.model.system
        bounded = list(problem.state_bounds) if state_bounds else []
        self._bounded = [problem.model.states.index(n) for n in bounded]
        self._names = (*problem.outputs, *(c.name for c in problem.constraints), *bounded)
        graphs = [by_name(ca.SX(c.expression), problem.model) for c in problem.constraints]
        graphs += [system.x[i] for i in self._bounded]
        limits = [(c.lower, c.upper) for c in problem.constraints] + [problem.state_bounds[n] for n in bounded]
        self._limits = np.array(limits, dtype=float).reshape(-1, 2)
        self._graph = ca.densify(ca.vertcat(problem.observed, *graphs))
        self._n_y = len(problem.outputs)
        self._maps: dict[tuple[str, int], ca.Function] = {}

    @property
    def row_names(self) -> tuple[str, ...]:
        """What the rows at a point are: measured outputs, then path constraints."""
        return self._names

    def constraint_bounds(self, i: int, staging: Staging) -> tuple[Array, Array]:
        """Return bounds of the path constraint rows of condition i, (K, M * n_h) each; infinite where none applies.

        Bounded states are unbounded at the start where their value is given: a constant is no constraint.
        """
        rows = (staging.tau.shape[0], staging.tau.shape[1] * self._limits.shape[0])
        states = np.repeat(staging.first[:, :, None], len(self._bounded), axis=2)
        states[0, staging.tau[0] == 0.0] &= ~self._problem.conditions[i].link.given[self._bounded]
        bounded = np.concatenate([constrained(self._problem, i, staging), states], axis=2)
        lower = np.where(bounded, self._limits[:, 0], -np.inf).reshape(rows)
        upper = np.where(bounded, self._limits[:, 1], np.inf).reshape(rows)
        return lower, upper

    @cached_property
    def _value(self) -> ca.Function:
        return self._problem.model.system.function("observe", self._graph)

    @cached_property
    def _derivative(self) -> ca.Function:
        system = self._problem.model.system
        blocks = [ca.densify(ca.jacobian(self._graph, s)) for s in (system.x, system.z, system.p)]
        return system.function("observe_jacobian", *blocks)

    def _map(self, kind: str, count: int) -> ca.Function:
        key = (kind, count)
        if key not in self._maps:
            self._maps[key] = (self._value if kind == "value" else self._derivative).map(count)
        return self._maps[key]

    @staticmethod
    def _arguments(staging: Staging, x: Array, z: Array, p: Array, u: Array) -> list[Array]:
        count = staging.tau.size
        return [
            staging.times.reshape(1, count),
            x.reshape(count, -1).T,
            z.reshape(count, -1).T,
            np.repeat(p[:, None], count, axis=1),
            u.reshape(count, -1).T,
        ]

    def values(self, staging: Staging, x: Array, z: Array, p: Array, u: Array) -> Observed:
        """Evaluate residuals and constraints at states x (K, M, n_x), z (K, M, n_z) and inputs u (K, M, n_u)."""
        stages, points = staging.tau.shape
        found = np.asarray(self._map("value", staging.tau.size)(*self._arguments(staging, x, z, p, u)))
        rows = found.T.reshape(stages, points, -1)
        with np.errstate(invalid="ignore"):  # what was not measured may be infinite
            r = np.where(staging.weight > 0, (rows[..., : self._n_y] - staging.values) * staging.weight, 0.0)
        return Observed(r.reshape(stages, -1), rows[..., self._n_y :].reshape(stages, -1))

    def jacobians(self, staging: Staging, x: Array, z: Array, p: Array, u: Array) -> Observation:
        """Evaluate derivatives of residuals and constraints with respect to x, z, p; arguments as in `values`."""
        stages, points = staging.tau.shape
        n_rows = self._graph.numel()
        found = self._map("jacobian", staging.tau.size)(*self._arguments(staging, x, z, p, u))
        blocks = [
            np.asarray(f).reshape(n_rows, stages * points, -1).transpose(1, 0, 2).reshape(stages, points, n_rows, -1)
            if f.shape[1]
            else np.zeros((stages, points, n_rows, 0))
            for f in found
        ]
        weight = staging.weight[..., None]
        with np.errstate(invalid="ignore"):
            measured = [np.where(weight > 0, b[:, :, : self._n_y] * weight, 0.0) for b in blocks]
        return Observation(*measured, *(b[:, :, self._n_y :] for b in blocks))
