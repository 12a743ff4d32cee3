"""Trajectories in pieces: the outputs over every stage, integrated from the stage's own node.

`castfit.simulate.predict` passes through the nodes and tells one value at each.  Here a node has two, the end of the
stage before it and the state that the next one starts from, so that the gap between them can be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.integrate import IntegratorOptions
from castfit.integrate.grids import snap
from castfit.integrate.march import Course, Stretch, march
from castfit.integrate.units import units_of

if TYPE_CHECKING:
    from castfit.conditions import Condition
    from castfit.problem import Posable
    from castfit.staged import Array

_ACCURACY = IntegratorOptions(relative_tolerance=1e-6, absolute_tolerance=1e-8)  # finer than any line is drawn
_CURVE_POINTS = 1000
_AFTER = 1e-9  # of the horizon: where the other side of a jump is seen
_FEWEST = 6  # points of a piece
_SHORT_OF_STOP = 0.999  # so much is drawn of a piece that cannot be integrated to its end


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
        self._problem, self._edges = problem, edges
        self._points = max(_FEWEST, _CURVE_POINTS // max(e.size - 1 for e in edges))
        system = problem.model.system
        self._observe: Any = system.function("outputs", ca.densify(ca.vertcat(*problem.model.outputs.values())))

    def from_nodes(self, theta: Array, nodes: Sequence[Array]) -> list[list[Piece]]:
        """Return every experiment's pieces, given theta and per experiment the states (K, n_x) at its nodes.

        A piece that cannot be integrated to its end stops before.
        """
        return [
            self._pieces(c, c.link.natural(theta[c.theta]).p, edges, states)
            for c, edges, states in zip(self._problem.conditions, self._edges, nodes, strict=True)
        ]

    def _pieces(self, condition: Condition, p: Array, edges: Array, states: Array) -> list[Piece]:
        z = condition.z_guess
        table = (edges[:-1], states, np.repeat(z[None], states.shape[0], axis=0))
        unit = units_of(self._problem.model, condition.inputs, p, float(edges[-1] - edges[0]), table)
        course = Course(self._problem.model, condition.inputs, p, z, unit, _ACCURACY)
        inner = np.linspace(edges[:-1], edges[1:], self._points, axis=1)[:, 1:-1].ravel()
        kinks, after = condition.breakpoints, _AFTER * float(edges[-1] - edges[0])
        times = np.sort(np.concatenate([inner, edges[1:], kinks + after]))
        found = march(course, edges[:-1], states, times)
        pieces = [self._piece(course, stretch, x) for stretch, x in zip(found, states, strict=True)]
        return [replace(piece, times=snap(piece.times, kinks, 2 * after)) for piece in pieces]

    def _piece(self, course: Course, stretch: Stretch, x: Array) -> Piece:
        """Evaluate the outputs of a stage, up to just before it stops."""
        stop = stretch.stop()
        if stop is not None:
            begin = stretch.times[0]
            times = begin + np.linspace(0, _SHORT_OF_STOP, self._points)[1:] * (stop.time - begin)
            (stretch,) = march(course, stretch.times[:1], x[None], times[times > begin])
        m = stretch.reached
        t, p = stretch.times[:m], np.tile(course.p[:, None], m)
        y: Any = self._observe.map(m)(t[None], stretch.x[:m].T, stretch.z[:m].T, p, stretch.u[:m].T)
        return Piece(t, np.array(y, dtype=float).T, stop is None)
