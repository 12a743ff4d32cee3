"""Trajectories in pieces: the outputs over every stage, integrated from the stage's own node.

`castfit.simulate.predict` passes through the nodes and has one value at each.  Here a node has two, the end of the
stage before it and the state that the next one starts from, so that the gap between them can be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.integrate import IntegratorOptions
from castfit.integrate.lanes import snap_times, time_rounding
from castfit.transcribe.experiment_trajectories import IntegrationCase, NodeTrajectory, integrate_from_nodes, units_of
from castfit.transcribe.triggers import locate_triggered_events

if TYPE_CHECKING:
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.event_schedule import NumericSchedule
    from castfit.problem.parameter_map import NaturalValues
    from castfit.problem.problem import Posable
    from castfit.solve.staged import Array

_ACCURACY = IntegratorOptions(relative_tolerance=1e-6, absolute_tolerance=1e-8)  # finer than any line is drawn
_CURVE_POINTS = 1000  # Points of the curves of an experiment, about.
_JUMP_OFFSET = 1e-9  # Time after a jump at which its other side is evaluated, as a fraction of the horizon.
_MIN_PIECE_POINTS = 6  # Points of a piece at least.
_SHORT_OF_STOP = 0.999  # so much is drawn of a piece that cannot be integrated to its end


@dataclass(frozen=True)
class StagePiece:
    """The outputs over one stage: times (m,), values (m, n_outputs), and whether the end of the stage was reached."""

    times: Array
    values: Array
    complete: bool


class StageIntegrator:
    """Integrates the stages of a problem, each from its own node.

    Parameters
    ----------
    problem : Problem or Posed
    edges : per experiment a (K + 1,) array
        Stage boundaries.
    """

    def __init__(self, problem: Posable, edges: Sequence[Array]) -> None:
        self._problem, self._edges = problem, edges
        self._points = max(_MIN_PIECE_POINTS, _CURVE_POINTS // max(e.size - 1 for e in edges))
        model = problem.posed.model
        self._observe: Any = model.system.function("outputs", ca.densify(ca.vertcat(*model.outputs.values())))

    def between(self, edges: Sequence[Array]) -> StageIntegrator:
        """Return a copy with other stage boundaries; boundaries at estimated times of events move."""
        other = copy(self)
        other._edges = edges
        return other

    def from_nodes(self, theta: Array, nodes: Sequence[Array]) -> list[list[StagePiece]]:
        """Return every experiment's pieces, given theta and per experiment the states (K, n_x) at its nodes.

        A piece that cannot be integrated to its end stops before.
        """
        return [
            self._pieces(c, c.link.natural(theta[c.theta]), edges, states)
            for c, edges, states in zip(self._problem.conditions, self._edges, nodes, strict=True)
        ]

    def _pieces(self, condition: Condition, natural: NaturalValues, edges: Array, states: Array) -> list[StagePiece]:
        z, model = condition.z_guess, self._problem.posed.model
        table = (edges[:-1], states, np.repeat(z[None], states.shape[0], axis=0))
        unit = units_of(model, condition.inputs, natural.p, float(edges[-1] - edges[0]), table)
        natural = locate_triggered_events(model, condition, natural, unit, _ACCURACY, float(edges[-1]))
        course = IntegrationCase(model, condition.inputs, natural.p, z, unit, _ACCURACY, condition.timetable(natural))
        inner = np.linspace(edges[:-1], edges[1:], self._points, axis=1)[:, 1:-1].ravel()
        kinks, offset = condition.breakpoints, _JUMP_OFFSET * float(edges[-1] - edges[0])
        times = np.unique(np.concatenate([inner, edges[1:], kinks + offset]))
        stretches = integrate_from_nodes(course, edges[:-1], states, times)
        pieces: list[StagePiece] = []
        for k, x in enumerate(states):
            stage_pieces = [self._piece(course, stretch, x) for stretch in stretches if stretch.node == k]
            if course.timetable is not None and k + 1 < states.shape[0] and stage_pieces[-1].complete:
                stage_pieces += self._leap(course, course.timetable, stretches, k, float(edges[k + 1]))
            pieces.append(
                StagePiece(
                    snap_times(np.concatenate([piece.times for piece in stage_pieces]), kinks, 2 * offset),
                    np.concatenate([piece.values for piece in stage_pieces]),
                    stage_pieces[-1].complete,
                )
            )
        return pieces

    def _leap(
        self, course: IntegrationCase, table: NumericSchedule, stretches: Sequence[NodeTrajectory], k: int, end: float
    ) -> list[StagePiece]:
        """Return the state after an event at the end of a stage as a piece, so only the remaining jump is a gap."""
        last_stretch = [stretch for stretch in stretches if stretch.node == k][-1]
        slack = float(time_rounding(np.array([end]), table.start)[0])
        event_indices = [
            j for j, t in enumerate(table.times.tolist()) if abs(t - end) <= slack and table.crossings[j] is not None
        ]
        if not event_indices or last_stretch.times[-1] < end - slack:
            return []
        x = last_stretch.x[-1]
        for j in event_indices:
            crossing = table.crossings[j]
            assert crossing is not None
            x = crossing.values(x, table.e, last_stretch.u[-1])
        leapt = replace(
            last_stretch,
            times=last_stretch.times[-1:],
            x=x[None],
            z=last_stretch.z[-1:],
            u=last_stretch.u[-1:],
            n_reached=1,
        )
        return [self._piece(course, leapt, x)]

    def _piece(self, course: IntegrationCase, stretch: NodeTrajectory, x: Array) -> StagePiece:
        """Evaluate the outputs of a stage, up to just before it stops."""
        stop = stretch.stop()
        if stop is not None:
            start_time = stretch.times[0]
            times = start_time + np.linspace(0, _SHORT_OF_STOP, self._points)[1:] * (stop.time - start_time)
            start_state = stretch.x[0] if stretch.n_reached else x
            course = replace(course, p=stretch.p, timetable=None)
            (stretch,) = integrate_from_nodes(course, stretch.times[:1], start_state[None], times[times > start_time])
        m = stretch.n_reached
        if m == 0:  # there are no consistent algebraic states at the node
            return StagePiece(np.empty(0), np.empty((0, self._observe.size1_out(0))), False)
        t, p = stretch.times[:m], np.tile(stretch.p[:, None], m)
        y: Any = self._observe.map(m)(t[None], stretch.x[:m].T, stretch.z[:m].T, p, stretch.u[:m].T)
        return StagePiece(t, np.array(y, dtype=float).T, stop is None)
