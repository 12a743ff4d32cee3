"""Data costs of individuals of the same structure: blocks of them are integrated together as lanes.

Individuals have the same structure if their equations depend on own and shared parameters in the same way and their
outputs have the same noise models; numbers (doses, covariates, data, standard deviations, starts) may differ.  If the
integrator has output at any time, their times may differ, too: some of them then share a grid with the times of all.
Otherwise their times are equal relative to the horizon.  A block is a batch of arrays from the link to the rows:

    phi, s -> natural values -> p, a (link) -> states and sensitivities (integrator) -> rows and derivatives

No loop runs over single individuals, and the memory is that of one block.

Notation
--------
L   individuals of a block;  M  their points;  n_d  own and shared parameters, the directions
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arrays import Array, Index
from castfit._support.silence import capture_output
from castfit._support.time_limit import StopRequested
from castfit.drive.population.compiled import CompiledPopulation
from castfit.drive.population.likelihoods import IndividualCurvature
from castfit.integrate import STEPPED, IntegratorOptions, Lanes, Sensitivities, Trajectories
from castfit.integrate.integrator import integrator_of
from castfit.problem.compiled_experiments import Condition
from castfit.problem.fingerprint import digest
from castfit.problem.parameter_map import MappedExpressions, natural_value
from castfit.transcribe.experiment_trajectories import mean_magnitude
from castfit.transcribe.observation import MeasurementRows, NonGaussianOutput, Observer, constant
from castfit.transcribe.segments import Segments, cut_segments
from castfit.transcribe.stage_division import divide
from castfit.transcribe.trajectory import constant_trajectory

_BLOCK_SIZE = 256  # individuals that one call integrates
_MAX_GRID_TIMES = 200  # times of the common grid of individuals that are measured at different times
_SCALING_ROUNDS = 2  # simulations that determine the magnitudes of states


@dataclass(frozen=True, eq=False)
class _ComputedLinkRows:
    """Rows of the link that are expressions, with entries of natural values or numbers as arguments.

    rows (k,) of y;  jacobian_function: arguments -> (values, Jacobian);  argument_sources: positions of arguments that
    are natural values, and the indices of these values;  numbers (L, n_arguments)
    """

    rows: Index
    jacobian_function: ca.Function
    argument_sources: tuple[Index, Index]
    numbers: Array

    def values(self, lanes: Index, natural: Array) -> tuple[Array, Array]:
        """Return the values (L, k) and their derivatives by natural values (L, k, n_d)."""
        arguments = self.numbers[lanes]
        positions, source = self.argument_sources
        arguments[:, positions] = natural[:, source]
        values, slopes = self.jacobian_function(arguments.T)
        jacobian = np.zeros((lanes.size, self.rows.size, natural.shape[1]))
        argument_jacobian = slopes.full().reshape(self.rows.size, lanes.size, -1).transpose(1, 0, 2)
        jacobian[:, :, source] = argument_jacobian[:, :, positions]
        return values.full().T, jacobian


@dataclass(frozen=True, eq=False)
class _IdenticalIndividuals:
    """Individuals of the same structure.

    individuals (n,) indices;  grid (m,) relative output times, grid_indices (n, M) of points;  start, duration (n,);
    times (n, M), the last one repeated if there are fewer;  base (n, n_y) rows of the link that are numbers;  rows and
    source: rows of the link that are natural values, and the indices of these;  u (n, m, n_u, 4) inputs;  inputs
    (n, M, n_u) at the points;  z0 (n, n_z);  unit (n, n_x + n_z);  flow: parameters that affect states, by default all
    """

    individuals: Index
    grid: Array
    grid_indices: Index
    start: Array
    duration: Array
    times: Array
    base: Array
    rows: Index
    source: Index
    computed: tuple[_ComputedLinkRows, ...]
    u: Array
    inputs: Array
    z0: Array
    unit: Array
    measured: MeasurementRows
    constant: Array
    flow: Index | None

    def points(self, lanes: Index) -> tuple[Index, Index]:
        """Return the lane and output indices of the points of these lanes in the integrated result."""
        return np.arange(lanes.size, dtype=np.intp)[:, None], self.grid_indices[lanes]


class BatchedCohort:
    """The cohort of a question, every experiment of which is `suitable`, in blocks of the same structure.

    `layout` is the part of `laid_out` for these individuals among more, so that a part is integrated in the same way.
    """

    def __init__(
        self,
        question: CompiledPopulation,
        integrator: IntegratorOptions,
        layout: tuple[Sequence[Array], Sequence[Array]] | None = None,
    ) -> None:
        self._question, self._options = question, integrator
        self._model, compiled_problem = question.problem.model, question.problem
        self._n_x, self._n_z = compiled_problem.model.system.x.numel(), compiled_problem.model.system.z.numel()
        self._n_p = compiled_problem.model.system.p.numel()
        self._log = np.concatenate([question.lognormal, compiled_problem.log[question.shared]])
        self._observer = Observer(compiled_problem, state_bounds=False)
        self._known: dict[tuple[int, int], tuple[str, Trajectories, Sensitivities]] = {}
        directions = question.directions
        pieces = _pieces(question)
        if layout is None:
            units = constant_trajectory(compiled_problem, compiled_problem.guess).units
        else:
            grids, units = layout
            pieces = [replace(p, pieces=(replace(p.pieces[0], grid=g),)) for p, g in zip(pieces, grids, strict=True)]
        members_by_kind: dict[tuple[object, ...], list[int]] = {}
        for i, (c, piece) in enumerate(zip(compiled_problem.conditions, pieces, strict=True)):
            free = integrator.method in STEPPED and not piece.pieces[0].cubics[..., 1:].any()
            members_by_kind.setdefault(_kind(c, piece, directions[c.theta], exact=not free), []).append(i)
        batches = [batch for members in members_by_kind.values() for batch in _batches(members, pieces)]
        self._identical_groups = tuple(self._gathered(members, pieces, units, directions) for members in batches)
        self._group = np.empty(question.n, dtype=np.intp)
        self._lane = np.empty(question.n, dtype=np.intp)
        for k, group in enumerate(self._identical_groups):
            self._group[group.individuals], self._lane[group.individuals] = k, np.arange(group.individuals.size)
        with suppress(StopRequested):  # no time is left to simulate, which the next evaluation of costs reports
            self._settle()

    def _gathered(
        self, members: Sequence[int], pieces: Sequence[Segments], units: Sequence[Array], directions: Index
    ) -> _IdenticalIndividuals:
        compiled_problem = self._question.problem
        conditions, member_pieces = [compiled_problem.conditions[i] for i in members], [pieces[i] for i in members]
        first_piece, link = member_pieces[0], conditions[0].link
        entries = np.flatnonzero(link.quantity_rows >= 0)
        theta_directions = directions[conditions[0].theta]
        computed: list[_ComputedLinkRows] = []
        for expressions in zip(*(_expressions(c) for c in conditions), strict=True):
            part, numbers = expressions[0], np.array([expression.numbers for expression in expressions])
            positions = np.flatnonzero(part.source >= 0)
            computed.append(
                _ComputedLinkRows(
                    part.rows, part.jacobian_function, (positions, theta_directions[part.source[positions]]), numbers
                )
            )
        start = np.array([p.division.edges[0] for p in member_pieces])
        grid = np.unique(np.concatenate([p.pieces[0].grid for p in member_pieces]))
        n_points = max(p.pieces[0].grid_index.size for p in member_pieces)
        grid_rows = [np.searchsorted(grid, p.pieces[0].grid)[p.pieces[0].grid_index] for p in member_pieces]
        is_constant_input = (
            first_piece.pieces[0].cubics.shape[0] != grid.size
            or len({p.pieces[0].cubics.shape for p in member_pieces}) > 1
        )
        u = [
            np.repeat(p.pieces[0].cubics[-1:], grid.size, axis=0) if is_constant_input else p.pieces[0].cubics
            for p in member_pieces
        ]
        return _IdenticalIndividuals(
            individuals=np.array(members, dtype=np.intp),
            grid=grid,
            grid_indices=np.array([_filled(a, n_points) for a in grid_rows]),
            start=start,
            duration=np.array([p.division.edges[-1] for p in member_pieces]) - start,
            times=np.array([_filled(p.staging.times[0], n_points) for p in member_pieces]),
            base=np.array([c.link.base for c in conditions]),
            rows=link.quantity_rows[entries],
            source=theta_directions[entries],
            computed=tuple(computed),
            u=np.array(u),
            inputs=np.array([_filled(p.inputs[0], n_points) for p in member_pieces]),
            z0=np.array([c.z_guess for c in conditions]),
            unit=np.array([units[i] for i in members]),
            measured=_stacked([p.measured for p in member_pieces]),
            constant=np.array([constant(replace(compiled_problem, conditions=(c,))) for c in conditions]),
            flow=None if link.equation_parameters is None else np.flatnonzero(link.equation_parameters),
        )

    def _settle(self) -> None:
        """Compute the magnitudes of states from simulations at the guess."""
        question = self._question
        phi = question.problem.guess[question.places]
        s = question.problem.guess[question.shared]
        for _ in range(_SCALING_ROUNDS):
            for group in self._identical_groups:
                for lanes in _blocks(np.arange(group.individuals.size)):
                    trajectories, _ = self._simulated(group, lanes, phi, s)
                    states = np.concatenate([trajectories.x, trajectories.z], axis=2)
                    magnitudes = np.array([mean_magnitude(table) for table in states])
                    group.unit[lanes] = np.where(magnitudes > 0.0, magnitudes, group.unit[lanes])

    def curved(self, phi: Array, s: Array, individuals: Index) -> IndividualCurvature:
        """Return costs, gradients and curvatures."""
        evaluation = IndividualCurvature.blank(individuals.size, self._question.m + s.size)
        with capture_output():
            for k, group in enumerate(self._identical_groups):
                for positions in _blocks(np.flatnonzero(self._group[individuals] == k)):
                    evaluation.put(positions, self._block(group, self._lane[individuals[positions]], phi[positions], s))
        return evaluation

    def evaluate_data(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of the values of all individuals."""
        parts: dict[int, Array] = {}
        for group in self._identical_groups:
            for lanes in _blocks(np.arange(group.individuals.size)):
                trajectories, batch = self._simulated(group, lanes, phi, s)
                measured = group.measured.select_stages(lanes)
                p, point_index = np.repeat(batch.p[:, None], group.grid_indices.shape[1], axis=1), group.points(lanes)
                observation = self._observer.values(
                    measured,
                    group.times[lanes],
                    trajectories.x[point_index],
                    trajectories.z[point_index],
                    p,
                    group.inputs[lanes],
                )
                value_columns = measured.standardised(observation.g)
                for k, i in enumerate(group.individuals[lanes].tolist()):
                    mask = measured.values_mask[k]
                    parts[i] = np.array([column[k][mask] for column in value_columns])
        columns = np.concatenate([parts[i] for i in range(self._question.n)], axis=1)
        return columns[0], columns[1], columns[2]

    def _simulated(
        self, group: _IdenticalIndividuals, lanes: Index, phi: Array, s: Array
    ) -> tuple[Trajectories, Lanes]:
        """Return the states of some individuals, given phi (n, m) of all."""
        y, _ = self._linked(group, lanes, self._natural(phi[group.individuals[lanes]], s))
        batch = self._lanes(group, lanes, y)
        with capture_output():
            return integrator_of(self._model, group.grid, self._options).values(batch), batch

    def _natural(self, phi: Array, s: Array) -> Array:
        """Return natural values of own and shared parameters, (L, n_d)."""
        theta = np.concatenate([phi, np.repeat(s[None], phi.shape[0], axis=0)], axis=1)
        return natural_value(theta, self._log)

    def _linked(self, group: _IdenticalIndividuals, lanes: Index, natural: Array) -> tuple[Array, Array]:
        """Return the rows y (L, n_y) of the link, and their derivatives in search scale (L, n_y, n_d)."""
        slope = np.where(self._log, natural, 1.0)
        y = group.base[lanes]
        dy = np.zeros((*y.shape, natural.shape[1]))
        y[:, group.rows] = natural[:, group.source]
        dy[:, group.rows, group.source] = slope[:, group.source]
        for part in group.computed:
            y[:, part.rows], by_natural = part.values(lanes, natural)
            dy[:, part.rows] = by_natural * slope[:, None]
        return y, dy

    def _lanes(self, group: _IdenticalIndividuals, lanes: Index, y: Array) -> Lanes:
        return Lanes(
            group.start[lanes],
            group.duration[lanes],
            y[:, self._n_p : self._n_p + self._n_x],
            y[:, : self._n_p],
            group.u[lanes],
            group.z0[lanes],
            group.unit[lanes],
        )

    def _trajectories(
        self, group: _IdenticalIndividuals, lanes: Index, batch: Lanes, dx0: Array, dp: Array
    ) -> tuple[Index, Trajectories, Sensitivities]:
        """Return the directions that affect states, the states and their sensitivities; the last ones are cached.

        A change of noise parameters alone therefore needs no integration.
        """
        flow = slice(None) if group.flow is None else group.flow
        sizes = (np.abs(d).max(axis=(0, 1), initial=0.0) for d in (dx0, dp[:, flow]))
        moving = np.flatnonzero(sum(sizes))
        block_key = id(group), int(lanes[0])
        key = digest(lanes, batch.x0, batch.p[:, flow], dx0[:, :, moving], dp[:, flow][:, :, moving])
        cached = self._known.get(block_key)
        if cached is not None and cached[0] == key:
            return moving, *cached[1:]
        integrator = integrator_of(self._model, group.grid, self._options)
        trajectories, sensitivities = integrator.differentiated(batch, dx0[:, :, moving], dp[:, :, moving])
        if lanes[0] % _BLOCK_SIZE == 0:  # the first lanes of a block of all individuals
            self._known[block_key] = key, trajectories, sensitivities
        return moving, trajectories, sensitivities

    def _block(self, group: _IdenticalIndividuals, lanes: Index, phi: Array, s: Array) -> IndividualCurvature:
        """Return costs, gradients and curvatures of a block."""
        count = lanes.size
        # CasADi functions are cached for every number of points, so only few numbers may occur.
        padded_lanes = np.minimum(np.arange(1 << (count - 1).bit_length()), count - 1)
        lanes, natural = lanes[padded_lanes], self._natural(phi[padded_lanes], s)
        with np.errstate(all="ignore"):
            y, dy = self._linked(group, lanes, natural)
            used_rows = np.concatenate([group.rows, *(part.rows for part in group.computed)])
            is_computable = np.isfinite(y[:, used_rows]).all(axis=1) & np.isfinite(dy[:, used_rows]).all(axis=(1, 2))
            failures = {
                int(k): "a parameter or initial state cannot be computed" for k in np.flatnonzero(~is_computable)
            }
            y[~is_computable], dy[~is_computable] = group.base[lanes][~is_computable], 0.0
            batch = self._lanes(group, lanes, y)
            n_p, n_x = self._n_p, self._n_x
            dx0, dp = dy[:, n_p : n_p + n_x], dy[:, :n_p]
            moving, trajectories, sensitivities = self._trajectories(group, lanes, batch, dx0, dp)
            failures |= {f.lane: f.detail for f in (*sensitivities.failures, *trajectories.failures)}
            p, point_index = np.repeat(batch.p[:, None], group.grid_indices.shape[1], axis=1), group.points(lanes)
            measured, times, inputs = group.measured.select_stages(lanes), group.times[lanes], group.inputs[lanes]
            x, z = trajectories.x[point_index], trajectories.z[point_index]
            observation = self._observer.values(measured, times, x, z, p, inputs)
            jacobians = self._observer.jacobians(measured, times, x, z, p, inputs)
            rows = jacobians.r_p @ dp[:, None]
            rows[..., moving] += (
                jacobians.r_x @ sensitivities.dx[point_index] + jacobians.r_z @ sensitivities.dz[point_index]
            )
            rows = rows.reshape(padded_lanes.size, -1, natural.shape[1])
            cost = 0.5 * (observation.r**2).sum(axis=1) + measured.excess(observation.g) + group.constant[lanes]
            gradient = np.einsum("kr,krq->kq", observation.r, rows)
            if measured.is_reweighted:
                w = measured.information(observation.g)
                rows = w[..., None] * rows if w.ndim == 2 else w @ rows
            curvature = rows.transpose(0, 2, 1) @ rows
        is_failed = ~(np.isfinite(cost) & np.isfinite(gradient).all(axis=1) & np.isfinite(curvature).all(axis=(1, 2)))
        is_failed[list(failures)] = True
        cost[is_failed], gradient[is_failed], curvature[is_failed] = np.inf, np.nan, np.nan
        for k in sorted({*np.flatnonzero(is_failed).tolist()} - failures.keys()):
            failures[k] = "a prediction is not finite"
            for stage, point, row in np.argwhere(~np.isfinite(measured.rows(observation.g)[0])).tolist():
                detail = measured.describe_invalid_sigma(observation.g, stage, point, row) if stage == k else ""
                failures[k] = f"at t = {times[stage, point]:g} {detail}" if detail else failures[k]
        return IndividualCurvature(cost, failures, gradient, curvature).select_individuals(np.arange(count))


def laid_out(question: CompiledPopulation) -> tuple[Sequence[Array], Sequence[Array]]:
    """Return the relative output times of all individuals, and magnitudes of states before simulations."""
    compiled_problem = question.problem
    return [p.pieces[0].grid for p in _pieces(question)], constant_trajectory(
        compiled_problem, compiled_problem.guess
    ).units


def _pieces(question: CompiledPopulation) -> list[Segments]:
    compiled_problem = question.problem
    ends = [np.array([c.start, c.end]) for c in compiled_problem.conditions]
    divisions = [divide(c, edges, np.empty(0)) for c, edges in zip(compiled_problem.conditions, ends, strict=True)]
    return [cut_segments(compiled_problem, i, division, nodes=False) for i, division in enumerate(divisions)]


def suitable(condition: Condition) -> bool:
    """Check whether an individual fits into a block: no events, and no link that has to be solved."""
    return (
        not condition.schedule.instants
        and not condition.is_steady_state
        and condition.breakpoints.size == 0
        and condition.watched_times.size == 0
        and all(isinstance(part, MappedExpressions) for part in condition.link.parts)
    )


def _expressions(condition: Condition) -> list[MappedExpressions]:
    return [part for part in condition.link.parts if isinstance(part, MappedExpressions)]


def _batches(members: Sequence[int], pieces: Sequence[Segments]) -> list[list[int]]:
    """Divide individuals into groups that share a grid, with a limited number of times."""
    batches: list[list[int]] = []
    grid_times: set[float] = set()
    for i in members:
        member_times = {*pieces[i].pieces[0].grid.tolist()}
        if not batches or (len(grid_times | member_times) > _MAX_GRID_TIMES and not member_times <= grid_times):
            batches.append([])
            grid_times = set()
        batches[-1].append(i)
        grid_times |= member_times
    return batches


def _filled(values: Array | Index, size: int) -> Any:
    """Repeat the last entry (n, ...) up to a size."""
    return np.concatenate([values, np.repeat(values[-1:], size - values.shape[0], axis=0)])


def _kind(condition: Condition, pieces: Segments, entries: Index, *, exact: bool) -> tuple[object, ...]:
    """Return a key that is equal for individuals of the same structure; if `exact`, also of the same times."""
    link, piece = condition.link, pieces.pieces[0]
    parts = [
        (id(part.jacobian_function), tuple(part.rows.tolist()), tuple(np.append(entries, -1)[part.source].tolist()))
        for part in _expressions(condition)
    ]
    observed = [
        None if o is None else (id(o.noise), o.predicted_outputs, o.is_spread_computed) for o in condition.observed
    ]
    return (
        (*piece.grid.tolist(), *piece.grid_index.tolist()) if exact else (),
        tuple(entries.tolist()),
        tuple(link.quantity_rows.tolist()),
        tuple(parts),
        tuple(observed),
        pieces.measured.names,
    )


def _stacked(measurements: Sequence[MeasurementRows]) -> MeasurementRows:
    """Return the measurements of individuals of the same structure, each as a stage."""
    template, slots = measurements[0], list[NonGaussianOutput]()
    for k, slot in enumerate(template.slots):
        member_slots = [member.slots[k] for member in measurements]
        slots.append(
            replace(
                slot,
                stage=np.repeat(
                    np.arange(len(measurements), dtype=np.intp), [member.stage.size for member in member_slots]
                ),
                point=np.concatenate([member.point for member in member_slots]),
                spread=np.concatenate([member.spread for member in member_slots]),
                datum=np.concatenate([member.datum for member in member_slots]),
                size=np.concatenate([member.size for member in member_slots]),
            )
        )
    points = max(member.target.shape[1] for member in measurements)
    shape = (len(measurements), points, template.target.shape[2])
    target, weight = np.zeros(shape), np.zeros(shape)
    for k, measured in enumerate(measurements):
        target[k, : measured.target.shape[1]], weight[k, : measured.weight.shape[1]] = (
            measured.target[0],
            measured.weight[0],
        )
    return replace(template, target=target, weight=weight, slots=tuple(slots))


def _blocks(positions: Index) -> list[Index]:
    """Divide positions (n,) into blocks."""
    return [positions[k : k + _BLOCK_SIZE] for k in range(0, positions.size, _BLOCK_SIZE)]
