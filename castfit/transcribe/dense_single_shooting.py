"""Single shooting without events or pieces, the usual case: all experiments by the same array operations.

    theta --> y = (p, a) of all experiments --> states at all points --> observed expressions --> rows --> cost

`ShootingProblem` evaluates and linearizes this way if possible.  If an evaluation fails, it evaluates experiment by
experiment and reports the cause.  Searches over theta receive the cost, and rows with their derivatives by theta.

Notation: C experiments, N points of all of them, n_r rows and n_h path constraints of a point, n_q quantities of an
experiment, of which w move its states; dy as in `castfit.transcribe.batched_maps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from castfit._support.records import dataclass
from castfit.integrate import Lanes, Trajectories
from castfit.integrate.repeated_lanes import RepeatedLanes
from castfit.problem.parameter_map import NaturalValues, natural_value
from castfit.solve.staged import ChainValues, DenseRows, Evaluation, Jacobians, Layout
from castfit.transcribe.batched_maps import BatchedLinks, batch_links
from castfit.transcribe.observation import MeasurementRows, PointwiseExpressions
from castfit.transcribe.segments import IntegratedPoints, Integration, IntegrationPlan, Segments
from castfit.transcribe.transcribed_problem import likeliest_sigma

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.integrate.lanes import Sensitivities
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.prior_rows import PriorRows
    from castfit.transcribe.variable_projection import Projection


@dataclass(frozen=True)
class ShootingData:
    """Inputs that a shooting problem passes to its dense evaluator.

    units, z_start : per experiment, magnitudes of all states, and the guess of algebraic ones (1, n_z)
    moving : per experiment, positions of the quantities that affect its states
    scale : (n_theta,);  sigma : floor and ceiling of unknown ones, (n_groups,) each
    """

    compiled_problem: CompiledProblem
    layout: Layout
    integration_plan: IntegrationPlan
    expressions: PointwiseExpressions
    units: Sequence[Array]
    z_start: Sequence[Array]
    moving: Sequence[Index]
    scale: Array
    sigma: tuple[Array, Array]


@dataclass(frozen=True)
class _IntegrationGroup:
    """Experiments that are integrated together.

    experiments (L,) : their indices;  lanes : the parts of the lanes that do not depend on theta
    lane, output_index : (n,) int arrays, the outputs;  points : (n,) int array, their points
    directions : positions of the derivatives of p and a in dy, and in the flat seeds (L, n_p + n_x, w)
    size : (L, 1, w) typical magnitudes of the quantities
    covers_all_points : whether all outputs of all lanes are the points of all experiments, in their order
    """

    experiments: Index
    lanes: RepeatedLanes
    lane: Index
    output_index: Index
    points: Index
    directions: tuple[Index, Index]
    size: Array
    covers_all_points: bool

    def seeds(self, dy: Array, n_y: int) -> Array:
        """Return the derivatives of the lanes' p and x0 by the quantities, in units of these, (L, n_y, w)."""
        seeds = np.zeros((self.experiments.size, n_y, self.size.shape[2]))
        source, place = self.directions
        seeds.reshape(-1)[place] = dy[source]
        seeds *= self.size
        return seeds

    def select_points(self, of_outputs: Array) -> Array:
        """Return the values at the points, (n, ...), from those at all outputs of the lanes (L, m, ...)."""
        if self.covers_all_points:
            return of_outputs.reshape(of_outputs.shape[0] * of_outputs.shape[1], *of_outputs.shape[2:])
        return of_outputs[self.lane, self.output_index]


@dataclass(frozen=True)
class _WeightedBlock:
    """Points whose values are weighted together: of one experiment, or of several with only weighted rows."""

    points: slice
    measured: MeasurementRows


@dataclass(frozen=True)
class DenseResiduals:
    """The rows of a problem whose only variables are theta: u (m,) priors and measured rows, as of `DenseRows`.

    scale (m,) : inverse of the sigma by which rows of unknown sigma were divided;  sigma (n_groups,) : these sigmas
    n_prior, prior_excess : number of rows of priors, and the cost of priors in excess of half their squares
    """

    cost: float
    u: Array
    scale: Array
    sigma: Array
    n_prior: int
    prior_excess: float

    @property
    def chi2(self) -> float:
        """Sum of the weighted squares, as castfit.solve.staged.weighted_squares."""
        if self.sigma.size == 0:
            return float(self.u @ self.u) + 2.0 * self.prior_excess
        of_data = (self.u / self.scale if self.sigma.size == 1 else self.u)[self.n_prior :]
        return float(of_data @ of_data)


@dataclass(frozen=True)
class _IntegratedStates:
    """Results at a point that do not depend on the data: values, and sensitivities if already integrated.

    lane_trajectories : lanes and trajectories of the last point at which states were integrated
    slopes : sensitivities by theta if they were integrated together with the states; removed when used
    """

    key: bytes
    natural: Array
    y: Array
    by_n: Array
    lane_trajectories: tuple[tuple[Lanes, Trajectories], ...]
    x: Array
    z: Array
    g: Array
    slopes: list[Sensitivities]


@dataclass(frozen=True)
class PointData:
    """Evaluation of the cost and the residuals at a point.

    excess : cost in excess of half the squares;  surplus : the part that is not of unknown sigmas
    experiment_excess : the excess of each experiment
    """

    integrated_states: _IntegratedStates
    cost: float
    r: Array
    sigma: Array
    inverse: Array | float
    half_square: float
    excess: float
    surplus: float
    experiment_excess: Sequence[float]
    prior: PriorRows


class DenseSingleShooting:
    """The cost and the rows of a problem whose only variables are theta; see the module.

    integrations : number of integrations; states are reused if only outputs and noise change
    """

    def __init__(self, shooting_data: ShootingData, links: BatchedLinks) -> None:
        self._shooting_data, self._links = shooting_data, links
        problem, layout, chains = (
            shooting_data.compiled_problem,
            shooting_data.layout,
            shooting_data.integration_plan.chains,
        )
        system = problem.model.system
        self._n_x, self._n_z, self._n_p = system.x.numel(), system.z.numel(), system.p.numel()
        self._log = np.asarray(problem.log)
        counts = [chain.staging.times.size for chain in chains]
        self._ends = ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        self._experiment_of_point = np.repeat(np.arange(len(chains)), counts)
        self._times = np.concatenate([chain.staging.times.ravel() for chain in chains])[:, None]
        self._inputs = np.concatenate([chain.inputs[0] for chain in chains])
        self._integration_groups = _build_integration_groups(shooting_data, ends, self._n_p + self._n_x, links.starts)
        self._blocks = _build_weighted_blocks([chain.measured for chain in chains], ends)
        is_weighted_only = not any(block.measured.slots for block in self._blocks)
        self._observed_states = shooting_data.expressions.states if is_weighted_only else None
        self._chains = [slice(*pair) for pair in pairwise(ends.tolist())]
        widths = [chain.measured.n_r * n for chain, n in zip(chains, counts, strict=True)]
        self._rows = [slice(*pair) for pair in pairwise(np.concatenate([[0], np.cumsum(widths)]).tolist())]
        self._mask = np.concatenate([chain.row_mask.ravel() for chain in layout.chains])
        group = np.concatenate([chain.group.ravel() for chain in layout.chains])
        self._group, self._grouped = group, np.flatnonzero(group >= 0)
        self._groups = group[self._grouped]
        self._is_single_sigma = (
            layout.n_groups == 1 and self._grouped.size == group.size
        )  # all rows are of one unknown sigma
        self._used_rows = _mask_index(self._mask)
        self._used_rows_by_chain = [_mask_index(self._mask[rows]) for rows in self._rows]
        self._n_g = chains[0].measured.n_g
        self._bounded_by_chain = [
            _mask_index((np.isfinite(chain.constraint_lower) | np.isfinite(chain.constraint_upper)).ravel())
            for chain in layout.chains
        ]
        self._no_nodes = [
            tuple(np.empty(shape) for shape in ((1, chain.n_r, 0), (1, chain.n_c, 0), (1, 0, chain.theta.size)))
            for chain in layout.chains
        ]
        all_parameters, all_states = np.ones(self._n_p, dtype=np.bool_), np.ones(self._n_x, dtype=np.bool_)
        flows = [
            all_parameters if c.link.equation_parameters is None else c.link.equation_parameters
            for c in problem.conditions
        ]
        self._flow = np.array([np.concatenate([flow, all_states]) for flow in flows])
        self._last_point_data: PointData | None = None
        self._integrated_states: _IntegratedStates | None = None
        self.integrations = 0
        self._costs: dict[bytes, float | None] = {}

    @classmethod
    def from_shooting_data(cls, shooting_data: ShootingData) -> DenseSingleShooting | None:
        """Return the evaluator; None if it does not apply, as with events, several pieces, or relations."""
        problem, plan = shooting_data.compiled_problem, shooting_data.integration_plan
        is_single_piece = len(plan.rounds) == 1 and all(
            chain.division.is_eventless and len(chain.pieces) == 1 for chain in plan.chains
        )
        if not is_single_piece or problem.relations:
            return None
        covers_all_points = all(chain.pieces[0].points.size == chain.staging.times.size for chain in plan.chains)
        links = batch_links(problem.model, problem.conditions) if covers_all_points and problem.conditions else None
        return None if links is None else cls(shooting_data, links)

    def with_data(self, problem: CompiledProblem, chains: Sequence[Segments]) -> DenseSingleShooting:
        """Return the evaluator for other data at the same points; the last integration is reused."""
        other = copy(self)
        other._shooting_data = replace(
            self._shooting_data,
            compiled_problem=problem,
            integration_plan=replace(self._shooting_data.integration_plan, chains=tuple(chains)),
        )
        other._blocks = _build_weighted_blocks([chain.measured for chain in chains], self._ends)
        other._last_point_data, other._costs = None, {}
        return other

    def integrated_by(self, plan: IntegrationPlan) -> DenseSingleShooting:
        """Return the evaluator with the integrators of another arrangement of the same pieces."""
        other = copy(self)
        pairs = zip(plan.rounds[0], self._integration_groups, strict=True)
        other._shooting_data = replace(self._shooting_data, integration_plan=plan)
        other._integration_groups = tuple(
            replace(f, lanes=f.lanes.integrated_by(group.integrator)) for group, f in pairs
        )
        other._last_point_data, other._integrated_states, other._costs, other.integrations = None, None, {}, 0
        return other

    def cost(self, v: Array) -> float | None:
        """Return the cost at v (n_theta,); None if it cannot be computed."""
        key = v.tobytes()
        if key not in self._costs:
            self._last_point_data = self.read(v)
            if len(self._costs) >= _N_CACHED_COSTS:
                self._costs.pop(next(iter(self._costs)))
            self._costs[key] = None if self._last_point_data is None else self._last_point_data.cost
        return self._costs[key]

    def residuals(self, v: Array) -> DenseResiduals | None:
        """Return the rows at v without derivatives; None if they cannot be computed."""
        point_data = self.read(v)
        if point_data is None:
            return None
        n = int(np.count_nonzero(self._mask))
        inverse = (
            point_data.inverse[self._used_rows]
            if isinstance(point_data.inverse, np.ndarray)
            else np.full(n, point_data.inverse)
        )
        prior, excess = point_data.prior.rows, point_data.prior.excess
        scale = np.concatenate([np.ones(prior.size), inverse])
        return DenseResiduals(
            point_data.cost,
            np.concatenate([prior, point_data.r[self._used_rows]]),
            scale,
            point_data.sigma,
            prior.size,
            excess,
        )

    def rows(self, v: Array) -> DenseRows | None:
        """Return the rows and their derivatives at v (n_theta,); None if they cannot be computed."""
        if self._last_point_data is None or self._last_point_data.integrated_states.key != v.tobytes():
            self._last_point_data = self.read(v, with_sensitivities=True)
        point_data = self._last_point_data
        derivatives = None if point_data is None else self._differentiate_by_theta(point_data)
        return None if point_data is None or derivatives is None else self._assemble_rows(v, point_data, derivatives[0])

    def evaluation(self, v: Array, point_data: PointData) -> Evaluation:
        """Return the results at v as the evaluation of a staged problem."""
        prior = point_data.prior
        of_chains = zip(
            self._rows,
            self._path_constraints(point_data.integrated_states.g),
            point_data.experiment_excess,
            strict=True,
        )
        values = [
            ChainValues(point_data.r[None, rows], _NONE, _EMPTY, _EMPTY, c[None], excess)
            for rows, c, excess in of_chains
        ]
        return Evaluation(
            v.copy(), tuple(values), prior.rows, prior.jacobian, sigma=point_data.sigma,
            excess=point_data.excess + prior.excess, surplus=point_data.surplus, prior_excess=prior.excess,
            related=_NONE, related_jacobian=np.empty((0, v.size)), prior_curved=prior.curved,
        )  # fmt: skip

    def jacobians(self, point_data: PointData) -> tuple[tuple[Jacobians, ...], int, Index] | None:
        """Return derivatives of standardised rows by experiment, the number of rescued lanes, and the steps.

        The steps (2,) are all steps, and the explicit ones.  None if the derivatives cannot be computed.
        """
        derivatives = self._differentiate_by_theta(point_data)
        if derivatives is None:
            return None
        inverse, out = point_data.inverse, list[Jacobians]()
        for (block, c_q), rows, (by_s, c_s, by_q) in zip(derivatives[0], self._rows, self._no_nodes, strict=True):
            scaled_block = block * (inverse[rows, None] if isinstance(inverse, np.ndarray) else inverse)
            of_none = _NO_BLOCK, _NO_BLOCK, by_q
            out.append(Jacobians(by_s, by_s, scaled_block[None], *of_none, *of_none, c_s, c_s, c_q[None], by_q[0]))
        return tuple(out), derivatives[1], derivatives[2]

    def sweep(self, point_data: PointData) -> IntegratedPoints:
        """Return the integration results, arranged by experiment."""
        plan = self._shooting_data.integration_plan
        x, z, end = (
            [values[None, points] for points in self._chains]
            for values in (
                point_data.integrated_states.x,
                point_data.integrated_states.z,
                point_data.integrated_states.x,
            )
        )
        runs: list[Integration] = []
        for group, integration_group, (lanes, states) in zip(
            plan.rounds[0], self._integration_groups, point_data.integrated_states.lane_trajectories, strict=True
        ):
            runs.append(Integration(group.integrator, group.members, group.parts, lanes, states))
            for lane, i in enumerate(cast("list[int]", integration_group.experiments.tolist())):
                end[i] = states.x[lane, -1:]
        return IntegratedPoints(plan, x, z, end, runs, ())

    def observed(self, point_data: PointData) -> list[Array]:
        """Return the observed outputs and spreads, (1, M, n_g) per experiment."""
        return [point_data.integrated_states.g[None, points, : self._n_g] for points in self._chains]

    def _path_constraints(self, g: Array) -> list[Array]:
        """Return the path constraints of each experiment, (M n_h,); g (N, n_g + n_h) is of all points."""
        return [g[points, self._n_g :].ravel() for points in self._chains]

    @np.errstate(all="ignore")  # wild trial points overflow
    def read(self, v: Array, *, with_sensitivities: bool = False) -> PointData | None:
        """Evaluate the problem at v (n_theta,); None if an evaluation fails.

        with_sensitivities : whether to integrate states together with their sensitivities, if they are not cached
        """
        integrated = self._integrate_states(v, with_sensitivities=with_sensitivities)
        return None if integrated is None else self._compute_point_data(v, integrated)

    def _integrate_states(self, v: Array, *, with_sensitivities: bool = False) -> _IntegratedStates | None:
        key = v.tobytes()
        if self._integrated_states is not None and self._integrated_states.key == key:
            return self._integrated_states
        natural = natural_value(v, self._log)
        link_values = self._links.compute_values(natural)
        if link_values is None:
            return None
        y, by_n = link_values
        previous = self._integrated_states
        if previous is not None and np.array_equal(
            previous.y[self._flow], y[self._flow]
        ):  # only outputs and noise change
            g = self._evaluate_observables(previous.x, previous.z, y)
            self._integrated_states = replace(previous, key=key, natural=natural, y=y, by_n=by_n, g=g, slopes=[])
            return self._integrated_states
        if previous is not None:  # the stored steps may need much memory
            previous.slopes.clear()
            for _, states in previous.lane_trajectories:
                if states.sensitivity_cache is not None:
                    states.sensitivity_cache.release()
        dy = self._links.slopes_at(by_n, np.where(self._log, natural, 1.0)) if with_sensitivities else None
        n_p, N = self._n_p, self._experiment_of_point.size
        x, z = np.empty((N, self._n_x)), np.empty((N, self._n_z))
        trajectories: list[tuple[Lanes, Trajectories]] = []
        slopes: list[Sensitivities] = []
        for integration_group in self._integration_groups:
            lane_values = y[integration_group.experiments]
            lanes = integration_group.lanes.lanes(lane_values[:, n_p:].copy(), lane_values[:, :n_p].copy())
            if dy is None:
                states = integration_group.lanes.values(lanes)
            else:
                states, along_them = integration_group.lanes.differentiated(
                    lanes, integration_group.seeds(dy, y.shape[1])
                )
                slopes.append(along_them)
            if states.failures:
                return None
            if integration_group.covers_all_points:
                x = integration_group.select_points(states.x)
            else:
                x[integration_group.points] = integration_group.select_points(states.x)
            if self._n_z:
                z[integration_group.points] = integration_group.select_points(states.z)
            trajectories.append((lanes, states))
        self.integrations += 1
        self._integrated_states = _IntegratedStates(
            key, natural, y, by_n, tuple(trajectories), x, z, self._evaluate_observables(x, z, y), slopes
        )
        return self._integrated_states

    def _evaluate_observables(self, x: Array, z: Array, y: Array) -> Array:
        """Evaluate the observed expressions with the parameters (C, n_p or more) of experiments."""
        if self._observed_states is not None:
            return x[:, self._observed_states]
        return self._shooting_data.expressions.values(
            self._times, x, z, y[self._experiment_of_point, : self._n_p], self._inputs
        ).copy()

    @np.errstate(all="ignore")
    def projected(self, v: Array, projection: Projection) -> Array | None:
        """Return v with the eliminated entries, on which no state depends, at their optimum; None if that fails."""
        integrated = self._integrate_states(v)
        dy = (
            None
            if integrated is None
            else self._links.slopes_at(integrated.by_n, np.where(self._log, integrated.natural, 1.0))
        )
        if integrated is None or dy is None:
            return None
        chains, n_p, naturals = self._shooting_data.integration_plan.chains, self._n_p, list[NaturalValues]()
        for chain, start, y in zip(
            self._shooting_data.layout.chains, self._links.starts[:-1], integrated.y, strict=True
        ):
            by_q = dy[start:][: y.size * chain.theta.size].reshape(y.size, chain.theta.size)
            naturals.append(NaturalValues(y[:n_p], by_q[:n_p], y[n_p:], by_q[n_p:]))

        def observe(of_p: Sequence[Array]) -> Iterator[tuple[MeasurementRows, Array]]:
            g = self._evaluate_observables(integrated.x, integrated.z, np.array(of_p))
            yield from ((c.measured, g[None, points]) for c, points in zip(chains, self._chains, strict=True))

        return projection.project(v, naturals, observe)

    def _compute_point_data(self, v: Array, integrated: _IntegratedStates) -> PointData | None:
        if integrated.g.shape[1] > self._n_g and not _all_finite(
            self._path_constraints(integrated.g), self._bounded_by_chain
        ):
            return None
        block_rows = [block.measured.rows(integrated.g[None, block.points]) for block in self._blocks]
        r = (
            np.concatenate([rows.ravel() for rows, _ in block_rows])
            if len(block_rows) > 1
            else block_rows[0][0].ravel()
        )
        if not np.logical_and.reduce(np.isfinite(r[self._used_rows])):
            return None
        chain_excesses = (
            [excess for _, excess in block_rows] if len(block_rows) == len(self._chains) else [0.0] * len(self._chains)
        )
        surplus = sum(chain_excesses)
        prior = self._shooting_data.compiled_problem.priors(v)
        if prior.failure:
            return None
        # Divided by the most likely sigma of their group (castfit.transcribe.transcribed_problem.profile_sigma).
        sigma, inverse, excess, layout = np.empty(0), 1.0, surplus, self._shooting_data.layout
        if layout.n_groups:
            grouped = r if self._is_single_sigma else r[self._grouped]
            sigma, of_sigma = likeliest_sigma(grouped, self._groups, layout, *self._shooting_data.sigma)
            inverse = 1.0 / float(sigma[0]) if self._is_single_sigma else np.append(1.0 / sigma, 1.0)[self._group]
            r, excess = r * inverse, of_sigma + surplus
        squares = float(prior.rows @ prior.rows) + sum([float(r[rows] @ r[rows]) for rows in self._rows])
        cost = 0.5 * squares + (excess + prior.excess)
        return PointData(integrated, cost, r, sigma, inverse, 0.5 * squares, excess, surplus, chain_excesses, prior)

    @np.errstate(all="ignore")
    def _differentiate_by_theta(self, point_data: PointData) -> tuple[list[tuple[Array, Array]], int, Index] | None:
        """Return the derivatives from `_apply_chain_rule`, the number of rescued lanes, and the numbers of steps."""
        slope = np.where(self._log, point_data.integrated_states.natural, 1.0)
        dy = self._links.slopes_at(point_data.integrated_states.by_n, slope)
        if dy is None:
            return None
        n_y, rescued, steps = self._n_p + self._n_x, 0, np.zeros(2, dtype=np.intp)
        dx: list[Array] = [np.empty(0)] * len(self._chains)
        dz: list[Array] = [np.empty(0)] * len(self._chains)
        available_slopes = point_data.integrated_states.slopes.copy()
        point_data.integrated_states.slopes.clear()
        for integration_group, (lanes, states) in zip(
            self._integration_groups, point_data.integrated_states.lane_trajectories, strict=True
        ):
            if available_slopes:
                sensitivities = available_slopes.pop(0)
            else:
                _, sensitivities = integration_group.lanes.differentiated(
                    lanes, integration_group.seeds(dy, n_y), states
                )
            if sensitivities.failures:
                return None
            rescued += len({*states.rescued_lanes, *sensitivities.rescued_lanes})
            steps += sensitivities.steps
            by_x = integration_group.select_points(sensitivities.dx / integration_group.size[:, None])
            by_z = (
                integration_group.select_points(sensitivities.dz / integration_group.size[:, None])
                if self._n_z
                else sensitivities.dz
            )
            offset, members = 0, cast("list[int]", integration_group.experiments.tolist())
            for i in members:
                n = self._chains[i].stop - self._chains[i].start
                w, rows = self._shooting_data.moving[i].size, slice(offset, offset + n)
                dx[i] = by_x[rows, :, :w]
                if self._n_z:
                    dz[i] = by_z[rows, :, :w]
                offset += n
        blocks = self._apply_chain_rule(point_data, dy, dx, dz)
        return None if blocks is None else (blocks, rescued, steps)

    def _apply_chain_rule(
        self, point_data: PointData, dy: Array, dx: Sequence[Array], dz: Sequence[Array]
    ) -> list[tuple[Array, Array]] | None:
        """Return the derivatives of each experiment's rows and path constraints by its quantities."""
        if self._observed_states is not None:
            return self._select_state_slopes(self._observed_states, dx)
        shooting_data, n_p, n_x, n_z = self._shooting_data, self._n_p, self._n_x, self._n_z
        x, z, y, g = (
            point_data.integrated_states.x,
            point_data.integrated_states.z,
            point_data.integrated_states.y,
            point_data.integrated_states.g,
        )
        slopes = shooting_data.expressions.jacobian(self._times, x, z, y[self._experiment_of_point, :n_p], self._inputs)
        parts = [block.measured.slopes(g[None, block.points], slopes[None, block.points]) for block in self._blocks]
        starts, out = self._links.starts, list[tuple["Array", "Array"]]()
        by_block = iter(zip(self._blocks, parts, strict=True))
        block, block_slopes = next(by_block)
        for i, chain in enumerate(shooting_data.layout.chains):
            points = self._chains[i]
            if points.start >= block.points.stop:
                block, block_slopes = next(by_block)
            d = block_slopes[0, points.start - block.points.start : points.stop - block.points.start]
            n_r, n_q = d.shape[1], chain.theta.size
            if g.shape[1] > self._n_g:
                d = np.concatenate([d, slopes[points, self._n_g :]], axis=1)
            by_q = _flatten_points(d[..., n_x + n_z :]) @ dy[starts[i] :][: n_p * n_q].reshape(n_p, n_q)
            by_q = by_q.reshape(*d.shape[:2], n_q)
            by_direction = d[..., :n_x] @ dx[i]
            by_q[..., shooting_data.moving[i]] += (
                by_direction + d[..., n_x : n_x + n_z] @ dz[i] if n_z else by_direction
            )
            chain_blocks = _flatten_points(by_q[:, :n_r]), _flatten_points(by_q[:, n_r:])
            if not _all_finite(chain_blocks, (self._used_rows_by_chain[i], self._bounded_by_chain[i])):
                return None
            out.append(chain_blocks)
        return out

    def _select_state_slopes(self, picks: Index, dx: Sequence[Array]) -> list[tuple[Array, Array]] | None:
        """Return the derivatives as `_apply_chain_rule` does, if all observed expressions are states."""
        out = list[tuple["Array", "Array"]]()
        for i, (chain, layout_chain) in enumerate(
            zip(self._shooting_data.integration_plan.chains, self._shooting_data.layout.chains, strict=True)
        ):
            weight, n_q = chain.measured.weight[0], layout_chain.theta.size
            by_q = dx[i][:, picks]
            if by_q.shape[2] < n_q:
                by_direction, by_q = by_q, np.zeros((len(weight), picks.size, n_q))
                by_q[..., self._shooting_data.moving[i]] = by_direction
            r, c = by_q[:, : weight.shape[1]] * weight[..., None], by_q[:, self._n_g :]
            chain_blocks = _flatten_points(r), _flatten_points(c)
            if not _all_finite(chain_blocks, (self._used_rows_by_chain[i], self._bounded_by_chain[i])):
                return None
            out.append(chain_blocks)
        return out

    def _assemble_rows(self, v: Array, point_data: PointData, blocks: Sequence[tuple[Array, Array]]) -> DenseRows:
        """Assemble the dense rows: rows of priors first, then the measured rows."""
        row = point_data.prior.rows.size
        E = np.zeros((row + int(np.count_nonzero(self._mask)), v.size))
        E[:row] = point_data.prior.jacobian.dense
        parts = zip(self._shooting_data.layout.chains, self._rows, self._used_rows_by_chain, blocks, strict=True)
        for chain, rows, of_rows, (block, _) in parts:
            scaled_block = block * (
                point_data.inverse[rows, None] if isinstance(point_data.inverse, np.ndarray) else point_data.inverse
            )
            used = scaled_block[of_rows]
            E[row : row + len(used), chain.theta] = used
            row += len(used)
        u = np.concatenate([point_data.prior.rows, point_data.r[self._used_rows]])
        return DenseRows(v.copy(), point_data.cost, point_data.half_square, u, E)


_N_CACHED_COSTS = 4  # number of points whose costs are cached
_NONE, _EMPTY, _NO_BLOCK = np.empty(0), np.empty((1, 0)), np.empty((1, 0, 0))


def _mask_index(mask: Mask) -> slice | Index:
    """Return an index of the entries at which a mask is True."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _flatten_points(rows: Array) -> Array:
    """Return the rows of all points (n, n_r, n_q) as one matrix."""
    return rows.reshape(rows.shape[0] * rows.shape[1], rows.shape[2])


def _all_finite(arrays: Sequence[Array], selections: Sequence[slice | Index]) -> bool:
    """Whether the selected rows of all arrays are finite."""
    return all(
        bool(np.logical_and.reduce(np.isfinite(a[rows]), axis=None)) for a, rows in zip(arrays, selections, strict=True)
    )


def _build_integration_groups(
    shooting_data: ShootingData, ends: Index, n_y: int, starts: Index
) -> tuple[_IntegrationGroup, ...]:
    out: list[_IntegrationGroup] = []
    n_p = shooting_data.compiled_problem.model.system.p.numel()
    for group in shooting_data.integration_plan.rounds[0]:
        members = [i for i, _ in group.members]
        divisions = [shooting_data.integration_plan.chains[i].division for i in members]
        width = max((shooting_data.moving[i].size for i in members), default=0)
        size = np.ones((len(members), 1, width))
        sources, places = [np.empty(0, dtype=np.intp)], [np.empty(0, dtype=np.intp)]
        for lane, i in enumerate(members):
            theta, moving = shooting_data.layout.chains[i].theta, shooting_data.moving[i]
            size[lane, 0, : moving.size] = shooting_data.scale[theta[moving]]
            rows, columns = np.arange(n_y)[:, None], np.arange(moving.size)
            sources.append((starts[i] + rows * theta.size + moving).ravel())
            places.append(((lane * n_y + rows) * width + columns).ravel())
        constant_lanes = Lanes(
            start=np.array([d.edges[0] for d in divisions]),
            duration=np.array([d.edges[1] - d.edges[0] for d in divisions]),
            x0=np.empty((len(members), n_y - n_p)),
            p=np.empty((len(members), n_p)),
            u=np.concatenate([part.cubics for part in group.parts]),
            z0=np.concatenate([shooting_data.z_start[i] for i in members]),
            unit=np.array([shooting_data.units[i] for i in members]),
        )
        points = np.concatenate([ends[part.condition] + part.point for part in group.parts])
        lane, output_index = (
            np.concatenate([getattr(part, name) for part in group.parts]) for name in ("lane", "output_index")
        )
        outputs, all_points = len(members) * group.integrator.grid.size, np.arange(int(ends[-1]))
        covers_all_points = outputs == all_points.size and all(
            np.array_equal(indices, all_points)
            for indices in (points, lane * group.integrator.grid.size + output_index)
        )
        directions = np.concatenate(sources), np.concatenate(places)
        lanes = RepeatedLanes(group.integrator, constant_lanes)
        out.append(
            _IntegrationGroup(np.array(members), lanes, lane, output_index, points, directions, size, covers_all_points)
        )
    return tuple(out)


def _build_weighted_blocks(measurements: Sequence[MeasurementRows], ends: Index) -> tuple[_WeightedBlock, ...]:
    """Combine experiments whose values are only weighted into one block."""
    if len(measurements) > 1 and not any(m.slots for m in measurements):
        target, weight = (
            np.concatenate([getattr(m, name) for m in measurements], axis=1) for name in ("target", "weight")
        )
        combined = MeasurementRows(
            target, weight, (), measurements[0].n_g, measurements[0].names, measurements[0].group
        )
        return (_WeightedBlock(slice(0, int(ends[-1])), combined),)
    return tuple(_WeightedBlock(slice(*pair), m) for pair, m in zip(pairwise(ends.tolist()), measurements, strict=True))
