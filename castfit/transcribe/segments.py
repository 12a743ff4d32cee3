"""Pieces that shooting integrates between boundaries, with their output grids and inputs, and the results.

In multiple shooting every stage is one piece, begun at its own node, or several where states trigger events in it.  In
single shooting the whole experiment is one stage; where something happens it is cut into pieces, of which each begins
where the one before it ended.  Round r integrates the r-th piece of every stage of every experiment, so that lanes
remain many.

Notation: K stages, M points per stage, n_d directions along which a sweep is differentiated.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.records import dataclass
from castfit.integrate import Integrator, IntegratorOptions, Lanes, Trajectories, shift_cubics
from castfit.integrate.integrator import Integrable, integrator_of, relative_grid
from castfit.integrate.lanes import LaneFailure, merge, snap_times
from castfit.solve.staged import Chain, Failure
from castfit.transcribe.experiment_trajectories import as_measured, input_cubics
from castfit.transcribe.observation import MeasurementRows, measurement_rows
from castfit.transcribe.stage_division import StageDivision, StagedMeasurements, arrange

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.problem.compiled_problem import CompiledProblem


@dataclass(frozen=True, eq=False)
class Segment:
    """One stretch of integration of a stage.

    grid (m,) : relative output times;  cubics (m, n_u, 4) : inputs, about the beginnings of the intervals where the
    division was made;  points (n,) : the points of the stage on it;  grid_index (n,) : their positions on the grid
    """

    stage: int
    grid: Array
    cubics: Array
    points: Index
    grid_index: Index

    def inputs_at_end(self, cubics: Array, duration: float) -> tuple[Array, Array]:
        """Return the inputs at the end, and their slopes, (n_u,), from cubics (m, n_u, 4) where the piece is now."""
        last_begin = float(self.grid[-2]) if self.grid.size > 1 else 0.0
        last_length = duration * (1.0 - last_begin)
        u = shift_cubics(cubics[-1], np.repeat(last_length, cubics.shape[1]))
        return u[:, 0], u[:, 1]


@dataclass(frozen=True, eq=False)
class Segments:
    """One experiment's measurements and pieces; stage k of the division is piece k, inputs (K, M, n_u) at points."""

    staging: StagedMeasurements
    measured: MeasurementRows
    division: StageDivision
    pieces: tuple[Segment, ...]
    inputs: Array

    @cached_property
    def of_point(self) -> Index:
        """The piece on which each point lies, (K, M)."""
        out = np.zeros(self.staging.tau.shape, dtype=np.intp)
        for j, piece in enumerate(self.pieces):
            out[piece.stage, piece.points] = j
        return out


def cut_segments(
    problem: CompiledProblem,
    i: int,
    division: StageDivision,
    *,
    nodes: bool,
    starts: bool = False,
    stages: tuple[Index, StageDivision] | None = None,
) -> Segments:
    """Arrange experiment i's data on a division; without nodes its stages become pieces of a single stage.

    With `starts` data are read where stages begin.  With `stages` (the stage of each piece, and the division into
    these) what the division has are pieces.
    """
    model, condition = problem.model, problem.conditions[i]
    piece_staging = arrange(condition, division.edges, division.is_measured_after, starts=starts)
    staging = piece_staging if nodes else arrange(condition, division.edges[[0, -1]])
    of_piece = np.arange(division.edges.size - 1) if nodes else np.zeros(division.edges.size - 1, dtype=np.intp)
    if stages is not None:
        of_piece, staging = stages[0], arrange(condition, stages[1].edges, stages[1].is_measured_after)
    breaks = snap_times(condition.breakpoints, division.edges)
    inputs = np.zeros((*staging.tau.shape, len(condition.inputs)))
    pieces: list[Segment] = []
    n_placed = np.zeros(staging.duration.size, dtype=np.intp)
    arriving: Array | None = None  # the inputs at the end of what was integrated last
    for k, (left, right) in enumerate(itertools.pairwise(division.edges.tolist())):
        measured = piece_staging.times[k][piece_staging.is_real[k]]
        kinks = breaks[(breaks > left) & (breaks < right)]
        is_empty = (
            right == left or division.moving_boundaries[k] or division.moving_boundaries[k + 1]
        )  # nothing is measured inside
        times = np.array([left, right]) if is_empty else merge(measured, kinks, np.array([left, right]))
        begins = right > left and (starts or (measured.size > 0 and bool(measured[0] == left)))
        times = np.concatenate([times[:1], times[1 - int(begins) :]])  # an output at the start is an empty interval
        grid = (np.array([0.0, 1.0]) if begins else np.ones(1)) if is_empty else relative_grid(model, times)
        cubics = input_cubics(condition.inputs, times if right > left else _find_interval(left, division.edges))
        if starts and arriving is not None and not division.is_measured_after[k] and (begins or right == left):
            cubics[0, :, 0], cubics[0, :, 1:] = arriving, 0.0  # a measurement at a jump of an input comes before it
        if right > left:
            arriving = np.einsum("uc,c->u", cubics[-1], (times[-1] - times[-2]) ** np.arange(4))
        grid_index = np.minimum(
            np.searchsorted(times[1:], snap_times(piece_staging.times[k], times[1:])), times.size - 2
        )
        stage = int(of_piece[k])
        if nodes and stages is None:
            points = np.arange(grid_index.size, dtype=np.intp)
        else:
            grid_index = grid_index[: measured.size]
            if nodes and (k + 1 == of_piece.size or of_piece[k + 1] != stage):  # what is left is padding
                left_over = staging.tau.shape[1] - int(n_placed[stage]) - grid_index.size
                grid_index = np.append(grid_index, np.full(left_over, times.size - 2, dtype=np.intp))
            points = n_placed[stage] + np.arange(grid_index.size, dtype=np.intp)
            n_placed[stage] += grid_index.size
        # A measurement at a jump belongs to the interval that ends there, like the algebraic states.
        powers = np.diff(times)[grid_index, None] ** np.arange(4)
        inputs[stage, points] = np.einsum("muc,mc->mu", cubics[grid_index], powers)
        pieces.append(Segment(stage, grid, cubics, points, grid_index))
    inputs = as_measured(condition.inputs, staging.times, inputs)
    return Segments(staging, measurement_rows(problem, i, staging), division, tuple(pieces), inputs)


def _find_interval(time: float, edges: Array) -> Array:
    """Return an interval that begins at a time between boundaries, or at the end one of length zero."""
    later = edges[edges > time]
    return np.array([time, later[0] if later.size else time])


@dataclass(frozen=True, eq=False)
class LaneGroup:
    """The lanes of one condition among those of a group, so that arrays move at once; n lanes, N points in all.

    They lie one after the other, of pieces and stages (n,) with cubics (n, m, n_u, 4) as of `Segment`.  Points lie at
    (stage, point) of the condition, and at (lane, output_index) of the outputs of the group, (N,) each.
    `crossing_lanes` are the lanes with an event at their end.
    """

    condition: int
    lanes: slice
    pieces: Index
    stages: Index
    cubics: Array
    stage: Index
    point: Index
    lane: Index
    output_index: Index
    crossing_lanes: tuple[int, ...]


def parts_of(chains: Sequence[Segments], members: Sequence[tuple[int, int]]) -> tuple[LaneGroup, ...]:
    """Sort the lanes of a group by condition; members (condition, piece) come condition by condition."""
    out: list[LaneGroup] = []
    offset = 0
    for i, condition_members in itertools.groupby(members, key=lambda member: member[0]):
        chain, piece_indices = chains[i], [j for _, j in condition_members]
        pieces = [chain.pieces[j] for j in piece_indices]
        counts = [piece.points.size for piece in pieces]
        stages = np.array([piece.stage for piece in pieces], dtype=np.intp)
        lanes = np.arange(offset, offset + len(pieces), dtype=np.intp)
        crossed = tuple(offset + n for n, j in enumerate(piece_indices) if chain.division.crossings[j] is not None)
        out.append(
            LaneGroup(
                i,
                slice(offset, offset + len(pieces)),
                np.array(piece_indices, dtype=np.intp),
                stages,
                np.array([piece.cubics for piece in pieces]),
                np.repeat(stages, counts),
                np.concatenate([piece.points for piece in pieces]),
                np.repeat(lanes, counts),
                np.concatenate([piece.grid_index for piece in pieces]),
                crossed,
            )
        )
        offset += len(pieces)
    return tuple(out)


@dataclass(frozen=True)
class SegmentGroup:
    """Pieces that share a relative output grid and therefore an integrator."""

    integrator: Integrator
    members: tuple[tuple[int, int], ...]  # (condition, piece)
    parts: tuple[LaneGroup, ...]


@dataclass(frozen=True, eq=False)
class IntegrationPlan:
    """All experiments in pieces, and in which order they are integrated: per round groups."""

    chains: tuple[Segments, ...]
    rounds: tuple[tuple[SegmentGroup, ...], ...]

    def integrated_by(self, model: Integrable, options: IntegratorOptions) -> IntegrationPlan:
        """Return the arrangement with integrators for another model and other options."""
        integrators = [
            [integrator_of(model, group.integrator.grid, options) for group in groups] for groups in self.rounds
        ]
        rounds = (zip(*pair, strict=True) for pair in zip(self.rounds, integrators, strict=True))
        return IntegrationPlan(
            self.chains, tuple(tuple(replace(g, integrator=integrator) for g, integrator in pairs) for pairs in rounds)
        )


def plan_integration(model: Integrable, chains: Sequence[Segments], options: IntegratorOptions) -> IntegrationPlan:
    """Sort pieces into rounds and groups, with the integrators of a model."""
    rounds: dict[int, dict[tuple[float, ...], list[tuple[int, int]]]] = {}
    for i, chain in enumerate(chains):
        round_index = np.zeros(chain.staging.duration.size, dtype=np.intp)
        for k, piece in enumerate(chain.pieces):
            groups = rounds.setdefault(int(round_index[piece.stage]), {})
            round_index[piece.stage] += 1
            groups.setdefault(tuple(piece.grid.tolist()), []).append((i, k))
    all_rounds: list[tuple[SegmentGroup, ...]] = []
    for _, groups in sorted(rounds.items()):
        round_groups: list[SegmentGroup] = []
        for grid, members in groups.items():
            integrator = integrator_of(model, grid, options)
            round_groups.append(SegmentGroup(integrator, tuple(members), parts_of(chains, members)))
        all_rounds.append(tuple(round_groups))
    return IntegrationPlan(tuple(chains), tuple(all_rounds))


@dataclass(frozen=True)
class Integration:
    """Integration results of one group: the pieces (condition, piece) that could be begun, lanes and trajectories."""

    integrator: Integrator
    members: tuple[tuple[int, int], ...]
    parts: tuple[LaneGroup, ...]
    lanes: Lanes
    trajectories: Trajectories


@dataclass(frozen=True)
class IntegratedPoints:
    """Integration results arranged by point; the state at the end of a stage is at its last grid time."""

    integration_plan: IntegrationPlan
    x: list[Array]  # per condition (K, M, n_x) at the points
    z: list[Array]
    end: list[Array]  # per condition (K, n_x), after the events there
    runs: list[Integration]  # in the order in which they were integrated
    failures: tuple[Failure, ...]

    def find_failed_stages(
        self, run: Integration, failures: Sequence[LaneFailure], chains: Sequence[Chain], label: str
    ) -> dict[tuple[int, int], Failure | None]:
        """Return the stages (condition, stage) of which `label` could not be integrated; None where nothing could."""
        failed_lanes = {failure.lane for failure in run.trajectories.failures}
        out: dict[tuple[int, int], Failure | None] = {}
        for failure in failures:
            i, j = run.members[failure.lane]
            k = self.integration_plan.chains[i].pieces[j].stage
            detail = f"the {label} could not be integrated ({failure.detail})"
            out[i, k] = None if failure.lane in failed_lanes else Failure(chains[i].name, k, failure.cause, detail)
        return out


@dataclass(frozen=True)
class SensitivityRequest:
    """Arguments of a sensitivity integration: dx0 (L, n_x, n_d), dp (L, n_p, n_d), spans (2, L, n_d) or None."""

    integrator: Integrator
    lanes: Lanes
    dx0: Array
    dp: Array
    spans: Array | None


@dataclass(frozen=True)
class SensitivitySeeds:
    """Derivatives of one experiment's pieces by its directions: states x (K, n_x, n_d), p, and edges if they move.

    p is (n_p, n_d - n_s), or of each piece (K, n_p, n_d - n_s);  edges (K + 1, n_d - n_s)
    """

    x: Array
    p: Array
    edges: Array | None

    def of_piece(self, j: int | Index) -> Array:
        """Return the derivatives of the parameters of piece j, or of several pieces."""
        return self.p[j] if self.p.ndim == 3 else self.p


@dataclass(frozen=True)
class DirectionalDerivatives:
    """Derivatives along the directions, per condition.

    x (K, M, n_x, n_d), z (K, M, n_z, n_d) at the points;  end (K, n, n_d) of the states at the ends of stages, or of
    n products of them;  requests: the integrations of forward sensitivities
    """

    x: list[Array]
    z: list[Array]
    end: list[Array]
    failures: tuple[Failure, ...]
    requests: tuple[SensitivityRequest, ...] = ()
