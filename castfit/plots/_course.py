"""The course of a solve: its states, in which words and by which trajectories and curves they are shown.

Trajectories come in pieces, the outputs over every stage, integrated from the stage's own node.
`castfit.simulate.predict` passes through the nodes and has one value at each.  Here a node has two, the end of the
stage before it and the state that the next one starts from, so that the gap between them can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.status import raise_if_mistakes
from castfit.integrate import IntegratorOptions
from castfit.integrate.lanes import snap_times, time_rounding
from castfit.plots._canvas import BLUE, RED, SOFT, Axes, Canvas, add_title, labels, tidy, tidy_panels
from castfit.solve.solution import infeasibility
from castfit.solve.staged import Array, StagedProblem, weighted_squares
from castfit.transcribe.experiment_trajectories import IntegrationCase, NodeTrajectory, integrate_from_nodes, units_of
from castfit.transcribe.triggers import locate_triggered_events

if TYPE_CHECKING:
    from castfit.fit.fit import Transcription
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.event_schedule import NumericSchedule
    from castfit.problem.parameter_map import NaturalValues
    from castfit.problem.problem import Posable
    from castfit.solve.homotopy import GaussNewtonState


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


_SHARES = (
    0.0,
    0.2,
    0.5,
    1.0,
)  # Fractions of all iterations at which snapshots are taken: the first iterations change most.
_MOST_ROWS, _MOST_SNAPSHOTS = 6, 8
# Margin about the range of the data within which trajectories are drawn, as a fraction of the range.
_RANGE_MARGIN = 0.5
_MAX_LARGE_MARKS = 60  # Nodes up to which each is marked, and data up to which dots are large.
_MIN_GAP = 1e-16  # Smallest gap on a logarithmic axis.
_SOFTENED = "#F5E6C8"


@dataclass(frozen=True)
class OutputRow:
    """One measured output of one experiment, and the values between which it is shown."""

    experiment: int
    condition: Condition
    output: int  # among the model's outputs
    label: str
    times: Array
    values: Array

    def limits(self, snapshots: Sequence[Sequence[Sequence[StagePiece]]]) -> tuple[float, float]:
        """Return the values between which the data are seen, and of trajectories that leave them the beginning."""
        low, high = float(self.values.min()), float(self.values.max())
        span = high - low or abs(high) or 1.0
        curves = [piece.values[:, self.output] for pieces in snapshots for piece in pieces[self.experiment]]
        clipped = np.clip(
            np.concatenate([self.values, *curves]), low - _RANGE_MARGIN * span, high + _RANGE_MARGIN * span
        )
        low, high = float(np.nanmin(clipped)), float(np.nanmax(clipped))
        return low - 0.05 * (high - low), high + 0.05 * (high - low)


@dataclass(frozen=True)
class SolveHistory:
    """All states of a solve, with the transcription, the panels, and the gaps of each state."""

    states: tuple[GaussNewtonState, ...]
    staged: StagedProblem
    rows: tuple[OutputRow, ...]
    note: str
    trajectories: StageIntegrator
    gaps: Array

    @classmethod
    def from_states(
        cls, states: Iterable[GaussNewtonState], problem: Posable, transcription: Transcription | StagedProblem
    ) -> SolveHistory:
        """Collect the states; a final state that only reports the status replaces the state before it."""
        all_states = tuple(states)
        staged = (
            transcription
            if isinstance(transcription, StagedProblem)
            else transcription.transcribe(problem, problem.guess)
        )
        layout = staged.layout
        mistakes = [] if all_states else ["states is empty; pass list(GaussNewton().iterate(...))"]
        mistakes += [
            f"states have {size} variables, the transcription has {layout.n_v}; "
            "pass the transcription that was iterated"
            for size in sorted({state.v.size for state in all_states} - {layout.n_v})
        ]
        raise_if_mistakes("plots", mistakes)
        distinct_states = [
            current
            for current, successor in zip(all_states, [*all_states[1:], None], strict=True)
            if successor is None
            or current.iteration != successor.iteration
            or not np.array_equal(current.v, successor.v)
        ]
        rows = _rows(problem)
        note = f"{_MOST_ROWS} of {len(rows)} measured outputs are shown." if len(rows) > _MOST_ROWS else ""
        gaps = np.array([infeasibility(layout, staged.scale, state.evaluation) for state in distinct_states])
        trajectories = StageIntegrator(problem, [chain.times for chain in layout.chains])
        return cls(tuple(distinct_states), staged, tuple(rows[:_MOST_ROWS]), note, trajectories, gaps)

    def chosen(self, choose: Sequence[int] | None) -> list[int]:
        """Return the positions of the states to show."""
        numbers = [state.iteration for state in self.states]
        if choose is None:
            return sorted({round(share * (len(numbers) - 1)) for share in _SHARES})
        mistakes = [
            f"unknown iteration {number}; choose from 0 to {numbers[-1]}" for number in choose if number not in numbers
        ]
        if not 1 <= len(choose) <= _MOST_SNAPSHOTS:
            mistakes.append(f"{len(choose)} iterations were passed; expected 1 to {_MOST_SNAPSHOTS}")
        raise_if_mistakes("plots", mistakes)
        return [len(numbers) - 1 - numbers[::-1].index(number) for number in choose]

    def pieces(self, k: int) -> list[list[StagePiece]]:
        """Integrate all stages at the k-th state."""
        v = self.states[k].v
        theta = self.staged.layout.theta(v)
        return self.trajectories.between(self.staged.times(v)).from_nodes(theta, self.staged.node_states(v))

    def heading(self, k: int) -> str:
        """Return the heading of a state: iteration, status, cost and largest gap."""
        state = self.states[k]
        count = state.iteration
        moment = "start" if count == 0 else f"after {count} iteration{'s' if count > 1 else ''}"
        if not state.evaluation.ok:
            return f"{moment}: cannot be integrated to the end"
        status_text = f", {state.status.value.replace('_', ' ')}" if state.status is not None else ""
        gap = f", largest gap {_short(self.gaps[k])}" if self.has_gaps else ""
        return f"{moment}{status_text}\ncost {_short(0.5 * self.chi2(k))}{gap}"

    def chi2(self, k: int) -> float:
        """Return the sum of squared weighted residuals of the k-th state."""
        return weighted_squares(self.staged.layout, self.states[k].evaluation)

    @property
    def has_gaps(self) -> bool:
        """Whether anything must be joined."""
        return any(chain.n_s for chain in self.staged.layout.chains)


def _rows(problem: Posable) -> list[OutputRow]:
    names, has_several = problem.model.output_names, len(problem.conditions) > 1
    rows: list[OutputRow] = []
    for i, condition in enumerate(problem.conditions):
        points = condition.points
        for j, output in enumerate(problem.outputs):
            measured = points.mask[:, j]
            if measured.any():
                label = f"{output}, {condition.name}" if has_several else output
                data = points.times[measured], points.values[measured, j]
                rows.append(OutputRow(i, condition, names.index(output), label, *data))
    return rows


def _short(value: float) -> str:
    """Write a number with three digits, a power of ten where it is needed."""
    if value == 0.0 or 1e-2 <= value < 1e5:
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    superscript = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa} · 10{superscript}"


@dataclass(frozen=True)
class OutputTrace:
    """The trajectory of one output on its axes."""

    row: OutputRow
    curve: Any
    gaps: Any
    nodes: Any | None
    handles: dict[str, Any]  # what the legend explains

    @classmethod
    def on(cls, axes: Axes, row: OutputRow, stages: int) -> OutputTrace:
        """Draw the data, and make ready for a trajectory."""
        tidy(axes)
        size = 3.2 if row.times.size <= _MAX_LARGE_MARKS else 1.8
        (data,) = axes.plot(row.times, row.values, "o", color="0.65", markersize=size, markeredgewidth=0, zorder=2)
        (curve,) = axes.plot([], [], color=BLUE, linewidth=1.3, solid_capstyle="butt", zorder=4)
        (gaps,) = axes.plot([], [], color=RED, linewidth=1.0, solid_capstyle="butt", zorder=3)
        nodes = None
        label = "trajectory, stage by stage" if stages > 1 else "trajectory"
        handles = {"data": data, label: curve}
        if 1 < stages <= _MAX_LARGE_MARKS:
            (nodes,) = axes.plot(
                [], [], "o", color="white", markeredgecolor=BLUE, markersize=2.8, markeredgewidth=0.8, zorder=5
            )
            handles["nodes"] = nodes
        if stages > 1:
            handles["gaps"] = gaps
        start, end = row.condition.start, row.condition.end
        axes.set_xlim(start - 0.02 * (end - start), end + 0.02 * (end - start))
        axes.xaxis.get_major_locator().set_params(nbins=6)
        return cls(row, curve, gaps, nodes, handles)

    @property
    def lines(self) -> list[Any]:
        """All lines that move, from the back to the front."""
        return [line for line in (self.gaps, self.curve, self.nodes) if line is not None]

    def show(self, pieces: Sequence[Sequence[StagePiece]]) -> None:
        """Show this output, with gaps where one piece ends and the next one begins."""
        j, stage_pieces = self.row.output, pieces[self.row.experiment]
        self.curve.set_data(*_broken([(piece.times, piece.values[:, j]) for piece in stage_pieces]))
        jumps = [
            (successor.times[[0, 0]], np.array([current.values[-1, j], successor.values[0, j]]))
            for current, successor in pairwise(stage_pieces)
            if current.complete and successor.times.size
        ]
        self.gaps.set_data(*_broken(jumps))
        if self.nodes is not None:
            nonempty_pieces = [
                piece for piece in stage_pieces if piece.times.size
            ]  # where algebraic states are consistent
            self.nodes.set_data(
                [piece.times[0] for piece in nonempty_pieces], [piece.values[0, j] for piece in nonempty_pieces]
            )


def _broken(lines: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Join lines to one that is interrupted by NaN."""
    gap = np.array([np.nan])
    times = [part for t, _ in lines for part in (t, gap)]
    values = [part for _, y in lines for part in (y, gap)]
    return np.concatenate([gap, *times]), np.concatenate([gap, *values])


@dataclass(frozen=True)
class ConvergenceCurves:
    """Cost, gaps and damping over the iterations."""

    axes: tuple[Axes, ...] = ()
    heights: tuple[Array, ...] = ()
    iterations: Sequence[int] = ()
    handles: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def on(cls, canvas: Canvas, course: SolveHistory) -> ConvergenceCurves:
        """Draw the curves, with the softened problems of a homotopy shaded."""
        states = course.states
        iteration_numbers = [state.iteration for state in states]
        # A step's factor is drawn where the step arrived; none arrives at the start.
        curves = {
            "cost, ½ Σ r²": np.array([0.5 * course.chi2(k) for k in range(len(states))]),
            "largest gap": np.maximum(course.gaps, _MIN_GAP),
            "damping λ": np.array([np.nan, *(state.damping for state in states[1:])]),
        }
        if not course.has_gaps:
            del curves["largest gap"]
        panels = tidy_panels(canvas, 1, len(curves))[0]
        handles: dict[str, Any] = {}
        for axes, (title, heights) in zip(panels, curves.items(), strict=True):
            add_title(axes, title, pad=4)
            labels(axes, "iteration", size=8, labelpad=1)
            axes.set_xlim(-0.03 * max(iteration_numbers[-1], 1), 1.03 * max(iteration_numbers[-1], 1))
            axes.xaxis.get_major_locator().set_params(integer=True)
            if title.startswith("damping"):
                axes.set_ylim(-0.05, 1.1)
                axes.set_yticks([0, 0.5, 1])
            else:
                heights[~(np.isfinite(heights) & (heights > 0))] = np.nan
                if np.nanmax(heights, initial=0) > 10 * np.nanmin(heights, initial=np.inf):
                    axes.set_yscale("log")
                    axes.minorticks_off()
            axes.plot(iteration_numbers, heights, "-o", color=SOFT, linewidth=1.0, markersize=2.0, zorder=3)
            for first_iteration, last_iteration in _softened(states):
                handles["softened problem"] = axes.axvspan(
                    first_iteration, last_iteration, color=_SOFTENED, linewidth=0, zorder=0
                )
        return cls(tuple(panels), tuple(curves.values()), iteration_numbers, handles)

    def mark(self, k: int) -> list[Any]:
        """Mark the k-th state."""
        marks: list[Any] = []
        for axes, heights in zip(self.axes, self.heights, strict=True):
            (dot,) = axes.plot(self.iterations[k], heights[k], "o", color=BLUE, markersize=5, zorder=5)
            marks += [dot, axes.axvline(self.iterations[k], color=BLUE, linewidth=0.8, alpha=0.4, zorder=1)]
        return marks

    def move(self, marks: Sequence[Any], k: int) -> None:
        """Move marks to the k-th state."""
        for dot, line, heights in zip(marks[::2], marks[1::2], self.heights, strict=True):
            dot.set_data([self.iterations[k]], [heights[k]])
            line.set_xdata([self.iterations[k]] * 2)


def _softened(states: Sequence[GaussNewtonState]) -> list[tuple[int, int]]:
    """Return the first and last iterations of every ladder of softened problems."""
    spans: list[tuple[int, int]] = []
    for current, successor in pairwise(states):
        if current.is_relaxed:
            joined = bool(spans) and spans[-1][1] == current.iteration
            first_iteration = spans.pop()[0] if joined else current.iteration
            spans.append((first_iteration, successor.iteration))
    return spans
