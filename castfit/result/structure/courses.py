"""The course of an experiment over a finite field: pieces between events and jumps of inputs.

At an event at the time t_1, which may depend on quantities, the derivatives of the states at a fixed time change by

    dx+ = h_x (dx- + f- dt_1) + h_c dc + h_t dt_1 - f+ dt_1,        x+ = h(t_1, x-, u, c)

Notation: C conditions with the same pieces; n_s terms in s; r directions.  Rows of a link are p, then x, then e.
Jets hold values and derivatives: (..., 1 + n_support) by unknowns, or (..., 1 + r) along directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.problem.event_schedule import NEVER_TIME, EventInstant
from castfit.result.structure.finite_field import Residues, multiply, to_residue, to_residues
from castfit.result.structure.output_series import ModelGraph, OutputSeries

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.experiment.inputs import Input
    from castfit.problem.compiled_experiments import Condition
    from castfit.result.structure.experiments import DrawnProblem, ModelGraphs


@dataclass(frozen=True, eq=False)
class Piece:
    """A piece of a course between two events.

    time : at the guess;  time_row : the row of e that it is, -1 for none;  is_instant : whether it ends as it begins
    is_moving : whether the time depends on quantities;  passed : positions of the instants that are past
    inputs : coefficients of each input, None for a generic signal
    """

    graph: ModelGraph
    time: float
    time_row: int
    is_instant: bool
    is_moving: bool
    instants: tuple[EventInstant, ...]
    passed: frozenset[int]
    inputs: tuple[Array | None, ...]


@dataclass(frozen=True, eq=False)
class Course:
    """One experiment: its pieces, and jets (n, 1 + n_support) of the rows of its link and of its algebraic states.

    The derivatives are by the unknowns at the positions `support`, all that the experiment depends on.
    """

    condition: Condition
    support: Index
    rows: Residues
    z: Residues
    pieces: list[Piece]

    @classmethod
    def from_condition(cls, problem: DrawnProblem, condition: Condition) -> Course:
        """Divide an experiment into pieces, in the order of its events at the guess."""
        schedule, start, end, instants = condition.schedule, condition.start, condition.end, condition.schedule.instants
        natural = problem.graphs.natural(condition)
        groups: dict[tuple[float, int], list[int]] = {(start, -1): []}
        for i in schedule.order(natural.e) if instants else []:
            time, is_moving = float(natural.e[instants[i].time]), instants[i].is_moving
            if instants[i].trigger is None and time < min(end, NEVER_TIME) and (time >= start or not is_moving):
                groups.setdefault((max(time, start), instants[i].time if is_moving else -1), []).append(i)
        for u in condition.inputs:
            for jump in u.jumps[(u.jumps > start) & (u.jumps < end)].tolist():
                groups.setdefault((jump, -1), [])
        pieces, passed, x = list[Piece](), frozenset[int](), natural.a
        for (time, moving_row), positions in sorted(groups.items()):
            u = np.array([float(v(time)) for v in condition.inputs])
            inputs = tuple(polynomial(v, time, end) for v in condition.inputs)
            is_split = time == start and any(instants[i].change is not None for i in positions)
            for members in ([], positions) if is_split else (positions,):
                passed = passed.union(members)
                happening = tuple(instants[i] for i in members)
                for instant in happening:
                    if instant.change is not None:
                        x = instant.change.values(time, x, u, natural.e[instant.parameters])
                p = _with_levels(schedule.levels, natural.p, natural.e, passed)
                graph = problem.graphs.model_graph(time, x, condition.z_guess, p, u, end - start)
                row, is_instant = happening[0].time if members else -1, is_split and not members
                pieces.append(Piece(graph, time, row, is_instant, moving_row >= 0, happening, passed, inputs))
        rows = problem.rows_of(condition.link, condition, problem.unknowns[None])[0]
        z = problem.algebraic_states(condition)
        support = np.flatnonzero(np.concatenate([rows, z])[:, 1:].any(axis=0))
        columns = np.append(0, 1 + support)
        return cls(condition, support, rows[:, columns], z[:, columns], pieces)

    @staticmethod
    def first_graph(graphs: ModelGraphs, condition: Condition) -> ModelGraph:
        """Return the model just after the start of an experiment."""
        natural = graphs.natural(condition)
        u = np.array([float(v(condition.start)) for v in condition.inputs])
        duration = condition.end - condition.start
        return graphs.model_graph(condition.start, natural.a, condition.z_guess, natural.p, u, duration)

    @cached_property
    def key(self) -> Any:
        """The form of the course: courses of equal keys are computed together."""
        return self.condition.is_steady_state, *(self._form(piece) for piece in self.pieces)

    def _form(self, q: Piece) -> Any:
        changes = tuple(id(instant.change) for instant in q.instants)
        return id(q.graph), q.is_instant, q.is_moving, changes, tuple(u is None for u in q.inputs)

    def slopes_key(self, piece: Piece) -> Any:
        """Return a key of the form of a piece and of the derivatives of what determines it."""
        parts = [self.parameters(piece)[:, 1:], *(self.event_rows(i.parameters)[:, 1:] for i in piece.instants)]
        return self._form(piece), *(part.tobytes() for part in parts)

    def parameters(self, piece: Piece) -> Residues:
        """Return the jets of p in a piece, (n_p, 1 + m)."""
        link = self.condition.link
        rows, first_event_row = self.rows, len(self.rows) - link.n_e
        return _with_levels(self.condition.schedule.levels, rows[: link.n_p], rows[first_event_row:], piece.passed)

    def event_rows(self, rows: Index) -> Residues:
        """Return the jets of rows of e."""
        return self.rows[len(self.rows) - self.condition.link.n_e + rows]


def _with_levels(levels: Sequence[Any], p: Any, e: Any, passed: frozenset[int]) -> Any:
    """Return parameters p (n_p, ...) after instants that set them to rows of e (n_e, ...), or raise them by these."""
    changed = p.copy()
    for level in levels:
        if level.on_instant in passed and level.off_instant not in passed:
            changed[level.parameter] = e[level.height_row] + (0 if level.is_assignment else changed[level.parameter])
    return changed


def polynomial(u: Input, start: float, end: float) -> Array | None:
    """Return the coefficients of an input about a time (4,); None if it is more than one polynomial up to the end.

    Jumps of inputs do not count; pieces begin there.
    """
    if u.kind in ("constant", "piecewise_constant"):
        return np.array([float(u(start)), 0.0, 0.0, 0.0])
    is_signal = ((u.breakpoints > start) & (u.breakpoints < end)).any()
    return None if is_signal else u.cubics(np.array([start, end]))[0]


@dataclass(frozen=True, eq=False)
class PieceState:
    """Jets y (C, n_y, n_s, 1 + r) of the states of courses at the beginning of a piece; `rates` y' just before."""

    problem: DrawnProblem
    courses: list[Course]
    y: Residues
    rates: Residues

    @classmethod
    def begin(cls, problem: DrawnProblem, courses: list[Course], n_s: int) -> PieceState:
        """Return the states at the start, along the directions that are not determined."""
        empty = np.zeros((len(courses), 0, n_s, 1 + problem.basis.shape[1]), dtype=np.int64)
        state = cls(problem, courses, empty, empty[..., 0])
        link = courses[0].condition.link
        x = slice(link.n_p, courses[0].rows.shape[0] - link.n_e)
        y = state.project([np.concatenate([c.rows[x], c.z]) for c in courses])
        return replace(state, y=y, rates=np.zeros_like(y[..., 0]))

    @property
    def n_x(self) -> int:
        """Number of differential states."""
        return self.courses[0].pieces[0].graph.n_x

    @property
    def is_observed(self) -> Mask:
        """Mask of the observed outputs, (C, n_outputs)."""
        return np.array([[o is not None for o in c.condition.observed] for c in self.courses], dtype=np.bool_)

    def project(self, jets: Sequence[Residues]) -> Residues:
        """Return jets (n, 1 + n_support) of each course as constants along the directions, (C, n, n_s, 1 + r)."""
        basis, p = self.problem.basis, self.problem.p
        projected = np.zeros((len(jets), len(jets[0]), self.y.shape[2], 1 + basis.shape[1]), dtype=np.int64)
        for course, rows, target in zip(self.courses, jets, projected, strict=True):
            target[:, 0, 0], target[:, 0, 1:] = rows[:, 0], multiply(rows[:, 1:], basis[course.support], p)
        return projected

    def _time(self, course: Course, piece: Piece) -> Residues:
        if piece.time_row >= 0:
            return course.event_rows(np.array([piece.time_row]))
        return np.array([[to_residue(piece.time, self.problem.p), *[0] * (course.rows.shape[1] - 1)]], dtype=np.int64)

    def _arguments(self, i: int) -> Residues:
        """Return the jets of (t, y, p) in piece i."""
        t = self.project([self._time(c, c.pieces[i]) for c in self.courses])
        return np.concatenate([t, self.y, self.project([c.parameters(c.pieces[i]) for c in self.courses])], axis=1)

    def _inputs(self, i: int, n: int) -> Residues:
        """Return the series of the inputs in piece i, (C, n_u, n, n_s)."""
        series = np.zeros((len(self.courses), len(self.courses[0].condition.inputs), n, self.y.shape[2]), np.int64)
        for rows, course in zip(series, self.courses, strict=True):
            for row, coefficients, u in zip(rows, course.pieces[i].inputs, course.condition.inputs, strict=True):
                signal = (
                    self.problem.signal(u, n) if coefficients is None else to_residues(coefficients[:n], self.problem.p)
                )
                row[: signal.size, 0] = signal
        return series

    def enter(self, i: int) -> PieceState:
        """Apply the events at the beginning of piece i."""
        piece, y, p, n_x = self.courses[0].pieces[i], self.y.copy(), self.problem.p, self.n_x
        arguments, u = self._arguments(i), self._inputs(i, 1)[:, :, 0, :, None]
        t, dt = arguments[:, :1], arguments[:, :1, :1, 1:] * piece.is_moving
        constants = np.concatenate([u, np.zeros((*u.shape[:3], dt.shape[-1]), dtype=np.int64)], axis=-1)
        y[..., 1:] = (y[..., 1:] + self.rates[..., None] * dt) % p
        for k, instant in enumerate(piece.instants):
            if instant.change is not None:
                c = self.project(
                    [course.event_rows(course.pieces[i].instants[k].parameters) for course in self.courses]
                )
                graph = self.problem.graphs.differentiated(instant.change.graph)
                y[:, :n_x] = graph.apply(np.concatenate([t, y[:, :n_x], constants, c], axis=1), self.problem.draws)
        if piece.is_moving:
            arguments = np.concatenate([t, y, arguments[:, 1 + y.shape[1] :], constants], axis=1)
            rates = piece.graph.apply(arguments, self.problem.draws)[:, :n_x, :, :1]
            y[:, :n_x, :, 1:] = (y[:, :n_x, :, 1:] - rates * dt) % p
        return replace(self, y=y)

    def time_rows(self, changed_state: PieceState, i: int, previous: int) -> Residues:
        """Return the derivatives of the time at which piece i begins, if the outputs show it, (n, n_s, r).

        They show it if the previous piece would have led to other outputs.
        """
        dt = self._arguments(i)[:, 0, :, 1:]
        if not self.courses[0].pieces[i].is_moving:
            return dt[:0]
        without, actual = self.series(previous, self.n_x + 1), changed_state.series(i, self.n_x + 1)
        is_visible = np.zeros(len(dt), dtype=np.bool_)
        for k in range(self.n_x + 1):
            for series in (without, actual):
                series.advance()
            is_different = (without.outputs(k) != actual.outputs(k)).any(axis=-1)
            is_visible |= (is_different & self.is_observed).any(axis=1)
        return dt[is_visible]

    def series(self, i: int, n: int) -> OutputSeries:
        """Return the series of piece i, of at most n orders."""
        return OutputSeries(self.courses[0].pieces[i].graph, self.problem.draws, self._arguments(i), self._inputs(i, n))

    def with_directions(self, series: OutputSeries) -> PieceState:
        """Return these states with the directions of a series."""
        return replace(self, y=np.concatenate([self.y[..., :1], series.slopes[0]], axis=-1))

    def end_of(self, series: OutputSeries) -> PieceState:
        """Return the states at the end of a piece, after c s, with c random."""
        y, rates = series.end(int(self.problem.draws.residues(1)[0]))
        return replace(self, y=y, rates=rates)
