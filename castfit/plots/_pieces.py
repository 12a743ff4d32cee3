"""Trajectories in pieces: the outputs over every stage, integrated from the stage's own node.

`castfit.simulate.predict` passes through the nodes and tells one value at each.  Here a node has two, the end of the
stage before it and the state that the next one starts from, so that the gap between them can be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.integrate import Integrator, IntegratorOptions, Lanes
from castfit.integrate.lanes import shift_cubics
from castfit.transcribe.grid import merge, snap

if TYPE_CHECKING:
    from castfit.conditions import Condition
    from castfit.problem import Posable
    from castfit.staged import Array

_ACCURACY = IntegratorOptions(relative_tolerance=1e-6, absolute_tolerance=1e-8)  # finer than any line is drawn
_CURVE_POINTS = 1000
_FEWEST = 6  # points of a part
_SHORT_OF_STOP = 0.999  # so much is drawn of a part that cannot be integrated to its end


@dataclass(frozen=True)
class Piece:
    """The outputs over one stage: times (m,), values (m, n_outputs), and whether the end of the stage was reached."""

    times: Array
    values: Array
    complete: bool


class Pieces:
    """Integrates the stages of a problem, each from its own node.

    Parameters
    ----------
    problem : Problem or Posed
    edges : per experiment a (K + 1,) array
        Stage boundaries.
    """

    def __init__(self, problem: Posable, edges: Sequence[Array]) -> None:
        self._problem = problem
        # An input may jump at a breakpoint: stages are integrated in parts from one to the next.
        inside = [snap(c.breakpoints, e) for c, e in zip(problem.conditions, edges, strict=True)]
        self._parts = [
            [merge(np.array([left, right]), kinks[(kinks > left) & (kinks < right)]) for left, right in pairwise(e)]
            for e, kinks in zip(edges, inside, strict=True)
        ]
        most = max(sum(part.size - 1 for part in parts) for parts in self._parts)
        system = problem.model.system
        self._step = Integrator(system, np.linspace(0, 1, max(_FEWEST, _CURVE_POINTS // most)), _ACCURACY)
        self._observe: Any = system.function("outputs", ca.densify(ca.vertcat(*problem.model.outputs.values())))

    def from_nodes(self, theta: Array, nodes: Sequence[Array]) -> list[list[Piece]]:
        """Return every experiment's pieces, given theta and per experiment the states (K, n_x) at its nodes.

        A piece that cannot be integrated to its end stops before.
        """
        return [
            [self._piece(c, c.link.natural(theta[c.theta]).p, ends, x) for ends, x in zip(parts, states, strict=True)]
            for c, parts, states in zip(self._problem.conditions, self._parts, nodes, strict=True)
        ]

    def _piece(self, condition: Condition, p: Array, ends: Array, x: Array) -> Piece:
        """Integrate one stage part by part."""
        z, complete = condition.z_guess, True
        times: list[Array] = []
        values: list[Array] = []
        for left, right in pairwise(ends):
            lanes = self._lane(condition, p, left, right, x, z)
            found = self._step.values(lanes)
            if found.failures:
                stop = self._step.locate_failure(lanes, 0).time
                lanes = self._lane(condition, p, left, left + _SHORT_OF_STOP * (stop - left), x, z)
                found, complete = self._step.values(lanes), False
            x, z = found.x[0, -1], found.z[0, -1]
            t = lanes.start + lanes.duration * self._step.grid
            u = shift_cubics(lanes.u[0], np.diff(t, prepend=t[0])[:, None])[..., 0]
            y = self._observe.map(t.size)(t[None], found.x[0].T, found.z[0].T, np.tile(p[:, None], t.size), u.T)
            times.append(t)
            values.append(np.array(y, dtype=float).T)
            if not complete:
                break
        return Piece(np.concatenate(times), np.concatenate(values), complete)

    def _lane(self, condition: Condition, p: Array, left: float, right: float, x: Array, z: Array) -> Lanes:
        times = left + (right - left) * self._step.grid
        u = np.zeros((1, times.size, len(condition.inputs), 4))
        for i, signal in enumerate(condition.inputs):
            u[0, 1:, i] = signal.cubics(times)
            u[0, 0, i] = u[0, 1, i]
        return Lanes(np.array([left]), np.array([right - left]), x[None], p[None], u, z[None])
