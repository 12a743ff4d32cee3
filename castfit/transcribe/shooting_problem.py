"""Shooting: stages are integrated, with the nodes as variables (multiple) or without any node (single shooting).

Every stage is integrated from its node to its end, with output at its measured times; residuals and their
derivatives follow from the states and forward sensitivities there.  Stages whose relative output grids agree share
one integrator.  Single shooting is the case of one stage per experiment whose start is a(q): no nodes, no matching.
A stage with events inside is integrated in pieces (castfit.transcribe.segments).

If algebraic equations are relaxed, algebraic states at nodes are inner variables w (castfit.transcribe.relaxed_dae).

Notation: K stages, M points per stage, n_y outputs, m grid times of an integrator, n_d sensitivity directions: those of
the node (n_s), of relaxed algebraic states there (n_w), and of q.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of, option_mistakes
from castfit._support.casadi_functions import PerObjectCache
from castfit._support.silence import capture_output
from castfit._support.time_limit import StopRequested, check_deadline, without_deadline
from castfit.integrate import STEPPED, IntegratorOptions, Lanes, method_of, shift_cubics
from castfit.integrate.integrator import integrator_of
from castfit.integrate.lanes import time_rounding
from castfit.solve.staged import (
    COARSE_RTOL,
    ChainValues,
    Evaluation,
    Failure,
    GradientEvaluation,
    Jacobians,
    Linearization,
    MatchingProducts,
    Specification,
    StagedProblem,
    build_layout,
    read_only_copy,
    same_point,
)
from castfit.transcribe.dense_single_shooting import DenseSingleShooting, PointData, ShootingData
from castfit.transcribe.experiment_trajectories import mean_magnitude, resolvable
from castfit.transcribe.observation import MeasurementRows, Observation, Observer, measurement_rows
from castfit.transcribe.relaxed_dae import Relaxed, equation_scales
from castfit.transcribe.segments import (
    DirectionalDerivatives,
    IntegratedPoints,
    Integration,
    IntegrationPlan,
    LaneGroup,
    SegmentGroup,
    Segments,
    SensitivityRequest,
    SensitivitySeeds,
    cut_segments,
    parts_of,
    plan_integration,
)
from castfit.transcribe.stage_division import StageDivision, arrange, divide, stages_of
from castfit.transcribe.trajectory import Trajectory, constant_trajectory, every_state_measured, known_states
from castfit.transcribe.transcribed_problem import TranscribedProblem, parameter_scale, relations_of, variable_bounds
from castfit.transcribe.triggers import locate_triggered_events

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Mask
    from castfit.model.model import Model
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.event_schedule import StageEndUpdate
    from castfit.problem.parameter_map import NaturalValues


_MAX_START_SIMULATIONS = 3  # number of simulations from the start that determine magnitudes
_MANY_STATES = 100  # states above which they are of low accuracy: steps of wrong magnitudes are short
_GRADIENT_RTOL = 1e-6  # default relative tolerance of models of so many states if gradients are those of the steps
_MAGNITUDE_CHANGE_FACTOR = 100.0  # factor between magnitudes below which the tolerances stay
_MAX_ASSUMED_MAGNITUDE_RATIO = 1000.0  # factor by which an assumed magnitude may exceed that of the simulation
# Magnitude of a state that decays before the first output, relative to its start, instead of exp(-1000).
_DECAYED_STATE_FRACTION = 1e-6

_N_CACHED_EVALUATIONS = 4  # number of cached evaluations and data arrangements: a line search returns to its best point

# Number of quantities of an experiment from which CVODES's gradients pay, despite an approximated Hessian.
#
# By the ESDIRK method, whose directions cost a hundredth of a simulation, they did not: CPU seconds of whole fits of
# networks of 20 states by gradients (iterations) / by IPOPT with Jacobians / by Gauss-Newton:
#
#       100 parameters    7.6 (453) /  0.13 (7) / 0.13 (4)
#       600 parameters   14.2 (240) /  0.8 (6)  / 1.2 (3)
#     1,200 parameters   24 (190)   /  2.4 (6)  / 6.5 (3)
#     3,000 parameters   > 38       / 16 (5)    / > 60
_MIN_ADJOINT_QUANTITIES = 500

# Adjoint states cost about as much as so many forward directions per state, and as so many to begin with.
#
# Parameters from which a Jacobian takes less time backwards: 14 for 2 and 5 states, 20 for 20, above 50 for 100.
_ADJOINT_COST_PER_STATE, _ADJOINT_BASE_COST = 1.5, 15.0

# Number of directions whose cost favours the ESDIRK method as much as its adjoint integration does.
#
# CPU seconds of a value with its gradient, ESDIRK / CVODES: 200, 500, 1,000 cells .03 / .40, .06 / .75, .13 / 1.5; a
# network of 120 states .024 / .14.
_ADJOINT_COST_DIRECTIONS = 20

_TIMED_METHODS = ("auto", "cvodes")  # methods of integration

_MIN_DEADLINE_SECONDS = 0.5  # expected seconds from which an operation is not begun if it exceeds the remaining time


# The right-hand sides of each model, whose pattern determines the cost of an integration.
_GRAPHS: PerObjectCache[Model, ca.Function] = PerObjectCache()

_COST_PER_DIRECTION = 0.1  # assumed time of a direction, relative to the states, without a record
_Sort = tuple[str, bool, int, float]  # operation, with nodes or not, number of experiments, relative tolerance
# Seconds that the last two linearizations and gradients of a model took, without and with nodes, by experiments.
_OPERATION_SECONDS: PerObjectCache[Model, dict[_Sort, tuple[float, ...]]] = PerObjectCache()

# Each experiment's data on the last few divisions into stages.
_CACHED_SEGMENTS: PerObjectCache[CompiledProblem, OrderedDict[tuple[Any, ...], Segments]] = PerObjectCache()


class ShootingProblem(TranscribedProblem):
    """A staged problem whose stages are integrated.

    The divisions are stages of each experiment, whose boundaries are variables with `nodes`; without they are its
    pieces, arranged anew where estimated times of events move.  The search starts at theta (n_theta,), the nodes on a
    trajectory.  `backward`: data are read from the nodes, as divisions with `starts` have it, so that matching
    conditions alone are differentiated, by adjoint states.  `relaxed`: algebraic states at nodes are variables, by
    which the algebraic equations are relaxed.  `gives` is as of any staged problem.  `edges` (n,) are boundaries that
    nodes were asked for at, needed where states trigger events: there a stage has several pieces, arranged anew at
    every point.
    """

    integrated = True

    def __init__(
        self,
        problem: CompiledProblem,
        divisions: Sequence[StageDivision],
        *,
        nodes: bool,
        theta: Array,
        trajectory: Trajectory,
        options: IntegratorOptions,
        backward: bool = False,
        relaxed: bool = False,
        gives: tuple[type, ...] = (Linearization,),
        edges: Sequence[Array] = (),
    ) -> None:
        self.problem = problem = problem.posed
        if not relaxed:
            options = _along_directions(problem, options, nodes=nodes, back=GradientEvaluation in gives)
        self._set_options(options)
        self._nodes, self._backward, self.capabilities = nodes, backward, gives
        self._integrates_backward = backward or GradientEvaluation in gives  # integrators go back over their steps
        system = problem.model.system
        self._n_x, self._n_z, self._n_p = system.x.numel(), system.z.numel(), system.p.numel()
        self._n_s = self._n_x if nodes else 0
        self._relaxed = Relaxed.from_model(problem.model, options) if relaxed and nodes and self._n_z else None
        self._n_w = self._n_z if self._relaxed else 0
        self._equation_gains: list[Array] = []
        self._observer = Observer(problem, state_bounds=True)
        self._integration_plans: dict[tuple[int, ...], IntegrationPlan] = {}
        self._event_times: OrderedDict[bytes, list[Array]] = OrderedDict()
        self._current_segments = [self._cut_experiment(i, division) for i, division in enumerate(divisions)]
        self._edges = tuple(edges) if nodes and problem.triggered else ()
        self._current_pieces = list(
            self._current_segments
        )  # with nodes and triggers: the stages in pieces, as they were found last
        self._memory: OrderedDict[bytes, tuple[Evaluation, IntegratedPoints | PointData]] = OrderedDict()
        self._linear: Linearization | None = None
        layout = build_layout(
            problem.names,
            tuple(self._specify(i) for i in range(len(self._current_segments))),
            len(problem.groups),
            relations_of(problem),
        )
        self._set_problem(problem, layout, tuple(chain.measured.signal for chain in self._current_segments), theta)
        self._n_rescued_stages = 0  # stages that another integrator took over at the last linearization ...
        self._steps = np.zeros(2, dtype=np.intp)  # ... and its steps of the compiled one: all, and explicit ones
        self._set_start(theta, trajectory)
        with without_deadline():  # what states trigger at the start is found once; without it there is nothing to solve
            naturals = self._naturals(self.start)
        self.groups: tuple[SegmentGroup, ...] = _groups(self._arrange(naturals))
        """The pieces that share an integrator, as they are at the start."""
        with suppress(StopRequested):  # no time to integrate: the solver will notice
            self._start_eliminated()

    def _clear_cache(self) -> None:
        self._memory.clear()

    def _iterate_scaled_slopes(self, v: Array) -> Iterator[tuple[MeasurementRows, Array]]:
        _, sweep = self._integrate_points(v)
        for i, (c, natural) in enumerate(zip(sweep.integration_plan.chains, self._naturals(v), strict=True)):
            p = self._projection.neutral(i, _at_points(c, natural.p, natural.e))
            slopes = self._observer.slopes(c.staging.times, sweep.x[i], sweep.z[i], p, c.inputs)
            yield c.measured, slopes[..., : self._n_x + self._n_z] * self._units[i]

    def _copy_without_cache(self) -> ShootingProblem:
        other = copy(self)
        other._integration_plans, other._current_segments, other._event_times = (
            dict(self._integration_plans),
            list(self._current_segments),
            OrderedDict(),
        )
        other._current_pieces = list(self._current_pieces)
        other._memory, other._linear = OrderedDict(), None
        return other

    def _silence_integrators(self) -> AbstractContextManager[object]:
        """Silence CasADi's integrators; redirecting the streams costs as much as a short integration."""
        is_silent = method_of(self.options, self._n_x, self._n_z) in STEPPED  # those that take over silence themselves
        return nullcontext() if is_silent else capture_output()

    @property
    def dense_evaluator(self) -> DenseSingleShooting | None:
        """Return the array evaluator of cost and rows; None if it does not apply or there are path constraints."""
        return None if self._observer.constraint_names else self._arrays

    @property
    def _arrays(self) -> DenseSingleShooting | None:
        """The array evaluator of values and derivatives; None if it does not apply, as with events."""
        owner, cached = self._dense_cache  # the cache of the original of a copy has other units
        if owner is not self:
            cached = self._make_dense()
            self._dense_cache = self, cached
        return cached

    def _make_dense(self) -> DenseSingleShooting | None:
        is_unsupported = self._nodes or self._backward or self.eliminated.size
        is_unsupported = is_unsupported or self.layout.has_correlated_errors or Linearization not in self.capabilities
        if is_unsupported or any(group.integrator.method not in STEPPED for group in self.groups):
            return None
        plan = self._arrange(self._naturals(self.start))
        return DenseSingleShooting.from_shooting_data(
            ShootingData(
                self.problem, self.layout, plan, self._observer.expressions, self._units, self._z_start,
                self._moving_columns, self.scale, (self.least_sigma, self._max_sigma),
            )
        )  # fmt: skip

    def with_data(self, problem: CompiledProblem) -> ShootingProblem | None:
        """Return the problem with other data at the same times (`CompiledProblem.with_data`), without a new layout.

        None if more than the rows depends on the data: with nodes, or with eliminated quantities.
        """
        dense = self.dense_evaluator
        if dense is None:
            return None
        plan = self._arrange(self._naturals(self.start))
        chains: list[Segments] = []
        for i, chain in enumerate(plan.chains):
            staging = arrange(problem.conditions[i], chain.staging.edges)
            chains.append(replace(chain, staging=staging, measured=measurement_rows(problem, i, staging)))
        other = self._copy_without_cache()
        other.problem, other._current_segments = problem, chains
        vars(other).pop("size_squares", None)
        other._integration_plans = {tuple(id(chain) for chain in chains): replace(plan, chains=tuple(chains))}
        other._dense_cache = other, dense.with_data(problem, chains)
        return other

    def _set_options(self, options: IntegratorOptions) -> None:
        self.options = options
        self._seconds_by_operation = _OPERATION_SECONDS.get(self.problem.model, lambda _: {})
        self._dense_cache: tuple[ShootingProblem | None, DenseSingleShooting | None] = None, None
        self._low_accuracy_problem: tuple[ShootingProblem | None, ShootingProblem | None] = None, None
        self._expects = False
        self.integration_rtol = 0.0 if options.method == "collocation" else options.relative_tolerance

    def _cut_experiment(self, i: int, division: StageDivision) -> Segments:
        """Arrange one experiment on its pieces, as for the fits before where these have the same boundaries."""
        segments_by_key = _CACHED_SEGMENTS.get(self.problem, lambda _: OrderedDict())
        fixed = division.edges if self._nodes else division.edges[~division.moving_boundaries]
        key = (i, self._nodes, self._backward, fixed.tobytes(), division.key)
        if key not in segments_by_key:
            segments_by_key[key] = cut_segments(self.problem, i, division, nodes=self._nodes, starts=self._backward)
        segments_by_key.move_to_end(key)
        while len(segments_by_key) > _N_CACHED_EVALUATIONS * max(len(self.problem.conditions), 1):
            segments_by_key.popitem(last=False)
        return segments_by_key[key]

    def _arrange(self, naturals: Sequence[NaturalValues]) -> IntegrationPlan:
        """Return the pieces at a point; without nodes they follow estimated times of events."""
        for i, (condition, natural) in enumerate(zip(self.problem.conditions, naturals, strict=True)):
            division = self._current_segments[i].division
            if not self._nodes and not division.is_valid(natural.e):
                ends = np.array([condition.start, condition.end])
                self._current_segments[i] = self._cut_experiment(i, divide(condition, ends, natural.e))
            if self._edges and not self._current_pieces[i].division.is_valid(natural.e):
                pieces = divide(condition, self._edges[i], natural.e)
                stages = stages_of(condition.schedule, division, pieces)
                self._current_pieces[i] = cut_segments(self.problem, i, pieces, nodes=True, stages=(stages, division))
        segments = self._current_pieces if self._edges else self._current_segments
        key = tuple(id(chain) for chain in segments)
        if key not in self._integration_plans:
            if len(self._integration_plans) >= _N_CACHED_EVALUATIONS:
                self._integration_plans.clear()
            self._integration_plans[key] = plan_integration(self._relaxed or self.problem.model, segments, self.options)
        return self._integration_plans[key]

    def times(self, v: Array) -> tuple[Array, ...]:
        """Return the stage boundaries at v, per chain (K + 1,)."""
        if not self._nodes:
            return super().times(v)
        return tuple(
            chain.division.compute_boundaries(natural.e)
            for chain, natural in zip(self._current_segments, self._naturals(v), strict=True)
        )

    @property
    def divisions(self) -> tuple[StageDivision, ...]:
        """The stages of each experiment."""
        return tuple(chain.division for chain in self._current_segments)

    def disarranged(self, v: Array) -> bool:
        """Whether estimated times of events have left their stages."""
        naturals = [c.link.natural(v[c.theta]) for c in self.problem.conditions]  # of what states trigger nothing
        return self._nodes and not all(
            chain.division.is_valid(natural.e) for chain, natural in zip(self._current_segments, naturals, strict=True)
        )

    @property
    def units(self) -> tuple[Array, ...]:
        """Typical magnitudes of states and algebraic states, per condition (n_x + n_z,)."""
        return tuple(self._units)

    def settle_units(self) -> None:
        """Determine the magnitudes of unmeasured states by a simulation from the start."""
        if every_state_measured(self.problem):
            return
        with suppress(StopRequested):  # no time to simulate: the solver will notice
            self._settle_units()

    def units_at(self, theta: Array) -> tuple[Array, ...]:
        """Return typical magnitudes of states, per condition, as single shooting has them that starts from theta.

        For problems without eliminated quantities and without events.
        """
        other = self._copy_without_cache()
        other.start = read_only_copy(theta.copy())
        other._units = list(constant_trajectory(self.problem, theta).units)
        other.settle_units()
        return other.units

    def _settle_units(self) -> None:
        known_by_condition = known_states(self.problem, self.layout.theta(self.start), "data")
        names = (*self.problem.model.states, *self.problem.model.algebraic_states)
        unknown_masks = [np.array([name not in known_names for name in names]) for known_names in known_by_condition]
        rough = cast("ShootingProblem", self.low_accuracy()) if self._n_x > _MANY_STATES else self
        for _ in range(_MAX_START_SIMULATIONS):
            candidates = zip(rough._magnitudes(self.start), self._units, unknown_masks, strict=True)
            changed = [np.where((new > 0.0) & is_unknown, resolvable(new), old) for new, old, is_unknown in candidates]
            ratios = [new / old for new, old in zip(changed, self._units, strict=True)]
            if all(((r > 1 / _MAGNITUDE_CHANGE_FACTOR) & (r < _MAGNITUDE_CHANGE_FACTOR)).all() for r in ratios):
                break
            self._units, self._dense_cache, self._low_accuracy_problem = changed, (None, None), (None, None)
            self._memory.clear()
            rough = self if rough is self else rough.with_units(changed)

    def _magnitudes(self, v: Array) -> list[Array]:
        """Return the mean magnitudes of states and algebraic states at v, per condition; 0 where unknown."""
        _, sweep = self._integrate_points(v)
        magnitudes = [
            mean_magnitude(np.concatenate([x, z], axis=2).reshape(-1, x.shape[2] + z.shape[2]))
            for x, z in zip(sweep.x, sweep.z, strict=True)
        ]
        for run in sweep.runs:
            for (i, _), begin in zip(run.members, run.lanes.x0, strict=True):
                x = magnitudes[i][: begin.size]  # a view
                np.fmax(x, _DECAYED_STATE_FRACTION * np.abs(begin), out=x, where=np.isfinite(begin))
        return magnitudes

    def rescaled(self, v: Array) -> ShootingProblem | None:
        """Return the problem started from v with the states' magnitudes there, if they are far below those assumed.

        Absolute tolerances are relative to magnitudes; where these were much too large the solution is inaccurate.
        """
        magnitudes = [resolvable(size) for size in self._magnitudes(v)]
        if not any(
            ((new > 0.0) & (new * _MAX_ASSUMED_MAGNITUDE_RATIO < old)).any()
            for new, old in zip(magnitudes, self._units, strict=True)
        ):
            return None
        other = self.with_units(
            [np.where(new > 0.0, new, old) for new, old in zip(magnitudes, self._units, strict=True)]
        )
        other.start = read_only_copy(v.copy())
        return other

    def with_units(self, units: Sequence[Array]) -> ShootingProblem:
        """Return the problem with other typical magnitudes of states, per condition (n_x + n_z,)."""
        other = self._copy_without_cache()
        other._units = list(units)
        scale = self.scale.copy()
        for chain, unit in zip(self.layout.chains, other._units, strict=True):
            if self._nodes:
                scale[chain.nodes], scale[chain.inner] = unit[: self._n_x], unit[self._n_x :][: self._n_w]
        other.scale = read_only_copy(scale)
        return other

    def _specify(self, i: int) -> Specification:
        condition, chain = self.problem.conditions[i], self._current_segments[i]
        lower, upper = self._observer.constraint_bounds(i, chain.staging, nodes=self._nodes)
        names = self.problem.model.states if self._nodes else ()
        return chain.measured.specification(
            condition, (self._n_s, self._n_w), (lower, upper), chain.staging.edges, names,
            self._observer.constraint_names, chain.staging.times,
        )  # fmt: skip

    def _set_start(self, theta: Array, trajectory: Trajectory) -> None:
        """Set start, bounds and scale of all variables."""
        problem, layout = self.problem, self.layout
        self.lower, self.upper = variable_bounds(problem, layout)
        self.scale = np.ones(layout.n_v)
        self.scale[: layout.n_theta] = parameter_scale(problem, theta)
        starts: list[Array] = []
        self._z_start: list[Array] = []
        self._units = list(trajectory.units)
        for i, (chain, condition) in enumerate(zip(layout.chains, problem.conditions, strict=True)):
            self._z_start.append(trajectory.algebraic(i, chain.times[:-1]))
            if not self._nodes:
                starts.append(np.empty((chain.n_stages, 0)))
                continue
            x = trajectory.differential(i, chain.times[:-1], is_after_event=True)
            x[0] = condition.link.natural(theta[condition.theta]).a
            self.scale[chain.nodes] = self._units[i][: self._n_x]
            self.scale[chain.inner] = self._units[i][self._n_x :][: self._n_w]
            starts.append(np.clip(x, self.lower[chain.nodes], self.upper[chain.nodes]))
        inner = tuple(z[:, : self._n_w] for z in self._z_start)
        self.start = read_only_copy(layout.pack(theta, tuple(starts), inner))
        if self._relaxed is not None:
            for lanes, unit in zip(self._at_nodes(self.start, self._naturals(self.start)), self._units, strict=True):
                self._equation_gains.append(equation_scales(self._relaxed, lanes, unit[self._n_x :]))
        self.lower, self.upper, self.scale = (
            read_only_copy(self.lower),
            read_only_copy(self.upper),
            read_only_copy(self.scale),
        )

    def data_sizes(self) -> tuple[Array, ...]:
        """Return the size of every measured value in its own standard deviation, (K, n_r) per chain."""
        return tuple(chain.measured.sizes for chain in self._current_segments)

    def node_states(self, v: Array) -> tuple[Array, ...]:
        """Return the states at the start of every stage; in single shooting the initial state."""
        if self._nodes:
            return super().node_states(v)
        return tuple(n.a[None, :] for n in self._naturals(v))

    def algebraic_states(self, v: Array) -> tuple[Array, ...]:
        """Return the algebraic states of the nodes, or from where they are sought, (K, n_z) per condition."""
        return (
            tuple(v[layout_chain.inner] for layout_chain in self.layout.chains) if self._n_w else tuple(self._z_start)
        )

    def _naturals(self, v: Array) -> list[NaturalValues]:
        naturals = [c.link.natural(v[c.theta]) for c in self.problem.conditions]
        if not self.problem.triggered:
            return naturals
        key = v.tobytes()
        if key not in self._event_times:  # what states trigger is found by integration
            conditions = zip(self.problem.conditions, naturals, self._units, strict=True)
            self._event_times[key] = [
                locate_triggered_events(
                    self.problem.model, c, natural, unit, self.options, c.end, self._node_values(i, v, natural)
                ).e
                for i, (c, natural, unit) in enumerate(conditions)
            ]
            while len(self._event_times) > _N_CACHED_EVALUATIONS:
                self._event_times.popitem(last=False)
        return [replace(natural, e=e) for natural, e in zip(naturals, self._event_times[key], strict=True)]

    def _node_values(self, i: int, v: Array, natural: NaturalValues) -> tuple[Array, Array] | None:
        """Return the times and states of an experiment's nodes, (K,) and (K, n_x); None without nodes."""
        if not self._nodes:
            return None
        return self._current_segments[i].division.compute_boundaries(natural.e)[:-1], v[self.layout.chains[i].nodes]

    def evaluate(self, v: Array, *, with_sensitivities: bool | None = None) -> Evaluation:
        """Integrate all stages and evaluate the rows.

        with_sensitivities : whether to integrate sensitivities too at a new point; by default if they will be needed
        """
        key = self._projection.key(v)
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key][0]
        dense, expected = self._arrays, self._expects if with_sensitivities is None else with_sensitivities
        with_sensitivities = expected and dense is not None and not self._backward
        start_time = self._start_operation("linearization") if with_sensitivities else time.perf_counter()
        n_integrations = 0 if dense is None else dense.integrations
        point_data = None if dense is None else dense.read(v, with_sensitivities=with_sensitivities)
        if dense is not None and point_data is not None:
            if dense.integrations > n_integrations:
                self._expects = False
                self._record_seconds("linearization" if with_sensitivities else "values", start_time)
            return self._store_evaluation(key, dense.evaluation(v, point_data), point_data)
        naturals = self._naturals(v)
        with self._silence_integrators():
            sweep = self._integrate(v, naturals)
        self._record_seconds("values", start_time)
        if self.eliminated.size:

            def observe(of_p: Sequence[Array]) -> Iterator[tuple[MeasurementRows, Array]]:
                return self._iterate_integrated_observables(
                    sweep, [replace(natural, p=p) for natural, p in zip(naturals, of_p, strict=True)]
                )

            v = self._projection.project(v, naturals, observe)
            naturals = self._naturals(v)
        values: list[ChainValues] = []
        failures = [*self._report_link_failures(v, naturals), *sweep.failures]
        for i, (chain, natural) in enumerate(zip(sweep.integration_plan.chains, naturals, strict=True)):
            p = _at_points(chain, natural.p, natural.e)
            observed = self._observer.values(
                chain.measured, chain.staging.times, sweep.x[i], sweep.z[i], p, chain.inputs
            )
            failures += self._report_nonfinite_rows(
                i, failures, np.isfinite(observed.r), np.isfinite(observed.c), "", observed.g
            )
            stages = chain.staging.duration.size
            values.append(
                ChainValues(
                    observed.r,
                    natural.a if self._nodes else np.empty(0),
                    np.empty((stages, 0)) if self._relaxed is None else self._defects(i, v, natural),
                    sweep.end[i] if self._nodes else np.empty((stages, 0)),
                    observed.c,
                    observed.excess,
                )
            )
        return self._store_evaluation(key, self._evaluation(v, values, failures), sweep)

    def _store_evaluation(
        self, key: bytes, evaluation: Evaluation, integration: IntegratedPoints | PointData
    ) -> Evaluation:
        self._memory[key] = (evaluation, integration)
        while len(self._memory) > _N_CACHED_EVALUATIONS:
            self._memory.popitem(last=False)
        return evaluation

    def _recall_integration(self, v: Array) -> tuple[Evaluation, IntegratedPoints | PointData]:
        self.evaluate(v)
        return self._memory[self._projection.key(v)]

    def _integrate_points(self, v: Array) -> tuple[Evaluation, IntegratedPoints]:
        evaluation, integration = self._recall_integration(v)
        if isinstance(integration, IntegratedPoints):
            return evaluation, integration
        assert self._arrays is not None
        return evaluation, self._arrays.sweep(integration)

    def steps(self, v: Array) -> int:
        """Return the number of steps of a simulation; 0 if the integrator does not report it."""
        return sum(run.trajectories.steps for run in self._integrate_points(v)[1].runs)

    def visited(self, v: Array, max_points: int) -> Iterator[tuple[float, Array, Array, Array, Array]]:
        """Return time, states, algebraic states, p and inputs at up to `max_points` points of every experiment."""
        _, sweep = self._integrate_points(v)
        for i, (chain, natural) in enumerate(zip(sweep.integration_plan.chains, self._naturals(v), strict=True)):
            p = np.broadcast_to(_at_points(chain, natural.p, natural.e), (*chain.staging.times.shape, self._n_p))
            points = list(np.ndindex(chain.staging.times.shape))
            for index in points[:: -(-len(points) // max_points)]:
                yield (
                    float(chain.staging.times[index]),
                    sweep.x[i][index],
                    sweep.z[i][index],
                    p[index],
                    chain.inputs[index],
                )

    def linearize(self, v: Array) -> Linearization:
        """Integrate all stages with their sensitivities."""
        v = self.evaluate(v).v if self.eliminated.size else v
        if self._linear is None or not same_point(self._linear.v, v):
            key = self._projection.key(v)
            if key not in self._memory and self._arrays is not None:
                self.evaluate(v, with_sensitivities=True)
            _, integration = self._memory.get(key, (None, None))
            has_sensitivities = isinstance(integration, PointData) and bool(
                integration.integrated_states.slopes
            )  # with the states
            start_time = time.perf_counter() if has_sensitivities else self._start_operation("linearization")
            try:
                self._linear = self._linearize(v)
            finally:  # cut off it would have taken longer
                self._record_seconds("linearization", start_time, is_continuation=has_sensitivities)
            self._expects = True  # at the next new point, too
        return self._linear

    def seconds_to_linearize(self, v: Array) -> float:
        """Return the expected seconds of a linearization, the shorter of the last two; 0 if that at v is cached.

        Without a record it is at least the time at a looser tolerance, or an estimate from the time of the states.
        """
        if self._linear is not None and same_point(self._linear.v, v):
            return 0.0
        return self._expected_seconds("linearization")

    def _expected_seconds(self, operation: str) -> float:
        seconds_by_sort, key = self._timing_record(operation)
        if key in seconds_by_sort:
            return min(seconds_by_sort[key])
        looser = [min(took) for sort, took in seconds_by_sort.items() if sort[:3] == key[:3] and sort[3] > key[3]]
        state_seconds = min(seconds_by_sort.get(self._timing_record("values")[1], ()), default=0.0)
        if operation != "linearization" or self._backward:
            state_seconds = 0.0
        directions = max((chain.theta.size for chain in self.layout.chains), default=0)  # of one experiment
        return max(*looser, state_seconds * (1.0 + _COST_PER_DIRECTION * directions), 0.0)

    def _timing_record(self, operation: str) -> tuple[dict[_Sort, tuple[float, ...]], _Sort]:
        """Return the recorded seconds of operations, and the key of this operation."""
        return self._seconds_by_operation, (
            operation,
            self._nodes,
            len(self._current_segments),
            self.options.relative_tolerance,
        )

    def _record_seconds(self, operation: str, start_time: float, *, is_continuation: bool = False) -> None:
        """Record the seconds that an operation took, or add them to its last record if `is_continuation`."""
        seconds_by_sort, key = self._timing_record(operation)
        took, seconds = seconds_by_sort.get(key, ()), time.perf_counter() - start_time
        seconds_by_sort[key] = (*took[:-1], took[-1] + seconds) if is_continuation and took else (*took[-1:], seconds)

    def _start_operation(self, operation: str) -> float:
        """Stop if the operation would exceed the remaining time, judged by its last runs; return the start time."""
        expected = self._expected_seconds(operation)
        if expected > _MIN_DEADLINE_SECONDS:
            check_deadline(expected)
        return time.perf_counter()

    def linearize_along(self, v: Array, directions: Sequence[Array]) -> MatchingProducts:
        """Integrate all stages, and one adjoint state back from the end of each."""
        if not self._backward:
            return super().linearize_along(v, directions)
        linearization = self._linearize(self.evaluate(v).v if self.eliminated.size else v, directions)
        return linearization.extended(
            MatchingProducts, jacobians=linearization.jacobians, information=linearization.information
        )

    def gradient(self, v: Array, weight: Array | None = None) -> GradientEvaluation:
        """Integrate all experiments, and one adjoint state of each back from its last datum to its start."""
        from castfit.transcribe.adjoint import gradient_by_adjoint  # which other fits do not need

        v = self.evaluate(v).v if self.eliminated.size else v
        evaluation, sweep = self._integrate_points(v)
        naturals = self._naturals(v)
        factor = np.ones(self.layout.n_groups + 1) if weight is None else weight
        unlinked = [] if evaluation.failures else self._report_link_failures(v, naturals, slopes=True)
        failures = [*evaluation.failures, *unlinked]
        gradient = np.zeros(self.layout.n_v)
        gradient[: self.layout.n_theta] = factor[-1] * (evaluation.prior_jacobian.T @ evaluation.prior)
        if not failures:
            point_derivatives: list[tuple[Array, Array]] = []
            inverse = self.layout.expand_to_rows(1.0 / evaluation.sigma)
            for i, (chain, natural) in enumerate(zip(sweep.integration_plan.chains, naturals, strict=True)):
                p, dp = _at_points(chain, natural.p, natural.e), _at_points(chain, natural.dp, natural.de)
                times, layout_chain = chain.staging.times, self.layout.chains[i]
                observation = self._observer.jacobians(chain.measured, times, sweep.x[i], sweep.z[i], p, chain.inputs)
                r = layout_chain.unwhitened(evaluation.values[i].r * factor[layout_chain.group] * inverse[i])
                r = r.reshape(*times.shape, 1, -1)
                point_derivatives.append(((r @ observation.r_x)[:, :, 0], (r @ observation.r_z)[:, :, 0]))
                gradient[layout_chain.theta] += ((r @ observation.r_p) @ dp).sum(axis=(0, 1, 2))
            seeds = [
                self._seeds(c, natural, m)
                for c, natural, m in zip(sweep.integration_plan.chains, naturals, self._moving_columns, strict=True)
            ]
            start_time = self._start_operation("gradient")
            try:
                with self._silence_integrators():
                    result, adjoint_failures = gradient_by_adjoint(
                        sweep, self.layout.chains, naturals, seeds, self._moving_columns, point_derivatives
                    )
            finally:
                self._record_seconds("gradient", start_time)
            failures += adjoint_failures
            for layout_chain, part in zip(self.layout.chains, result, strict=True):
                np.add.at(gradient, layout_chain.theta, part)
            gradient[self.eliminated] = 0.0
        if not failures and not np.isfinite(gradient).all():
            failures.append(Failure(self.layout.chains[0].name, 0, "not_finite", "the gradient is not finite"))
        result = np.full(self.layout.n_v, np.nan) if failures else gradient
        return evaluation.extended(GradientEvaluation, failures=tuple(failures), gradient=result)

    def _linearize(self, v: Array, directions: Sequence[Array] | None = None) -> Linearization:
        evaluation, integration = self._recall_integration(v)
        dense = self._arrays if isinstance(integration, PointData) else None
        dense_result = (
            dense.jacobians(integration) if dense is not None and isinstance(integration, PointData) else None
        )
        measured = [chain.measured for chain in self._current_segments]
        if dense_result is not None:  # rows of it are standardised, and nothing is eliminated
            dense_jacobians, self._n_rescued_stages, self._steps = dense_result
            information = self._information_function(measured, lambda: self._iterate_observables(evaluation.v))
            return evaluation.extended(Linearization, jacobians=dense_jacobians, information=information)
        evaluation, sweep = self._integrate_points(v)
        naturals = self._naturals(v)
        with self._silence_integrators():
            slopes = self._slopes(sweep, naturals, directions)
        dx, dz, end = slopes.x, slopes.z, slopes.end
        unlinked = [] if evaluation.failures else self._report_link_failures(v, naturals, slopes=True)
        failures = [*unlinked, *slopes.failures]
        jacobians: list[Jacobians] = []
        for i, (chain, natural) in enumerate(zip(sweep.integration_plan.chains, naturals, strict=True)):
            p, dp = _at_points(chain, natural.p, natural.e), _at_points(chain, natural.dp, natural.de)
            observation = self._observer.jacobians(
                chain.measured, chain.staging.times, sweep.x[i], sweep.z[i], p, chain.inputs
            )
            j = self._jacobians(i, natural, dp, observation, dx[i], dz[i], end[i])
            if self._relaxed is not None:
                j = self._with_defects(i, evaluation.v, natural, j)
            rows = (np.concatenate(b, axis=2) for b in ((j.R_s, j.R_q), (j.C_s, j.C_q)))
            r, c = (np.logical_and.reduce(np.isfinite(b), axis=2) for b in rows)
            failures += self._report_nonfinite_rows(i, [*evaluation.failures, *failures], r, c, "a derivative of ")
            jacobians.append(j)
        return self._linearization(
            evaluation, jacobians, failures, measured, lambda: self._iterate_integrated_observables(sweep, naturals)
        )

    def _iterate_observables(self, v: Array) -> Iterator[tuple[MeasurementRows, Array]]:
        evaluation, integration = self._recall_integration(v)
        if isinstance(integration, IntegratedPoints):
            return self._iterate_integrated_observables(integration, self._naturals(evaluation.v))
        assert self._arrays is not None
        return zip(
            (chain.measured for chain in self._current_segments), self._arrays.observed(integration), strict=True
        )

    def _iterate_integrated_observables(
        self, sweep: IntegratedPoints, naturals: list[NaturalValues]
    ) -> Iterator[tuple[MeasurementRows, Array]]:
        for i, (c, natural) in enumerate(zip(sweep.integration_plan.chains, naturals, strict=True)):
            p = _at_points(c, natural.p, natural.e)
            yield c.measured, self._observer.values(c.measured, c.staging.times, sweep.x[i], sweep.z[i], p, c.inputs).g

    def _jacobians(
        self, i: int, natural: NaturalValues, dp: Array, observation: Observation, dx: Array, dz: Array, end: Array
    ) -> Jacobians:
        """Chain rule: how rows move with the directions (nodes first, then those columns of q that move p, a or e).

        dp (n_p, n_q), or of each point (K, M, n_p, n_q).
        """
        stages, points = dx.shape[:2]
        n_s, n_w, n_q = self._n_s, self._n_w, natural.dp.shape[1]
        n_node, moving = n_s + n_w, self._moving_columns[i]

        def rows(d_x: Array, d_z: Array, d_p: Array) -> tuple[Array, Array, Array]:
            n = d_x.shape[2]
            with np.errstate(invalid="ignore", over="ignore"):  # reported as failures where it matters
                by_direction = d_x @ dx + d_z @ dz  # (K, M, n, n_d)
                by_q = d_p @ dp  # (K, M, n, n_q): explicit dependence of outputs on parameters
                by_q[..., moving] += by_direction[..., n_node:]
            flat = by_direction[..., :n_node].reshape(stages, points * n, n_node)
            return flat[..., :n_s], flat[..., n_s:], by_q.reshape(stages, points * n, n_q)

        R, C = (
            rows(observation.r_x, observation.r_z, observation.r_p),
            rows(observation.c_x, observation.c_z, observation.c_p),
        )
        X_q = np.zeros((stages, end.shape[1] if self._nodes else 0, n_q))
        if self._nodes:
            X_q[..., moving] = end[..., n_node:]
        none = np.empty((stages, 0, 0))
        D = np.empty((stages, 0, n_s)), none, np.empty((stages, 0, n_q))
        X = (end[:, :, :n_s], end[:, :, n_s:n_node], X_q) if self._nodes else (none, none, X_q)
        return Jacobians(*R, *D, *X, *C, A=natural.da if self._nodes else np.empty((0, n_q)))

    def _at_nodes(self, v: Array, naturals: Sequence[NaturalValues]) -> list[Lanes]:
        """Return per condition lanes from every node, with the inputs on the intervals that begin there."""
        lanes: list[Lanes] = []
        for chain, layout_chain, natural, unit in zip(
            self._current_segments, self.layout.chains, naturals, self._units, strict=True
        ):
            edges = chain.division.compute_boundaries(natural.e)
            shifts = (edges - chain.division.edges)[:-1]
            first_cubics = [piece.cubics[int(piece.grid[0] == 0.0)][None] for piece in chain.pieces]
            lanes.append(
                Lanes(
                    start=edges[:-1],
                    duration=np.diff(edges),
                    x0=v[layout_chain.nodes],
                    p=chain.division.stage_parameters(natural.p, natural.e),
                    u=shift_cubics(
                        np.array(first_cubics), np.broadcast_to(shifts[:, None, None], np.shape(first_cubics)[:3])
                    ),
                    z0=v[layout_chain.inner],
                    unit=np.repeat(unit[None], layout_chain.n_stages, axis=0),
                )
            )
        return lanes

    def _defects(self, i: int, v: Array, natural: NaturalValues) -> Array:
        """Return the scaled residuals of the algebraic equations at the nodes of condition i, (K, n_w)."""
        assert self._relaxed is not None
        lanes = self._at_nodes(v, [natural if k == i else other for k, other in enumerate(self._naturals(v))])[i]
        return self._equation_gains[i] * self._relaxed.residual(lanes, 0)

    def _with_defects(self, i: int, v: Array, natural: NaturalValues, jacobians: Jacobians) -> Jacobians:
        """Add the derivatives of the residuals of the algebraic equations at the nodes."""
        assert self._relaxed is not None
        lanes, division = self._at_nodes(v, self._naturals(v))[i], self._current_segments[i].division
        stages, n_s, n_w, n_q = lanes.size, self._n_s, self._n_w, natural.dp.shape[1]
        dx, dz = np.zeros((stages, n_s, n_s + n_w + n_q)), np.zeros((stages, n_w, n_s + n_w + n_q))
        dx[:, :, :n_s], dz[:, :, n_s : n_s + n_w] = np.eye(n_s), np.eye(n_w)
        dp = np.zeros((stages, lanes.p.shape[1], n_s + n_w + n_q))
        quantity_columns = slice(n_s + n_w, None)
        dp[:, :, quantity_columns] = (
            division.stage_parameters(natural.dp, natural.de) if any(division.levels) else natural.dp
        )
        d_start = np.zeros((stages, n_s + n_w + n_q))
        d_start[:, quantity_columns] = (division.weight @ natural.de)[:-1]
        d = self._equation_gains[i][:, None] * self._relaxed.residual_slopes(lanes, 0, dx, dz, dp, d_start)
        return replace(jacobians, D_s=d[..., :n_s], D_w=d[..., n_s : n_s + n_w], D_q=d[..., quantity_columns])

    def _report_nonfinite_rows(
        self, i: int, failures: Sequence[Failure], r: Mask, c: Mask, prefix: str, g: Array | None = None
    ) -> list[Failure]:
        """Report rows that are not finite (where r, c are False) although their stage could be integrated."""
        if r.all() and c.all():
            return []
        chain, staging, measured = (
            self.layout.chains[i],
            self._current_segments[i].staging,
            self._current_segments[i].measured,
        )
        shape, names = staging.tau.shape, (*measured.names, *self._observer.constraint_names)
        bounded = np.isfinite(chain.constraint_lower) | np.isfinite(chain.constraint_upper)
        rows = [(~r & chain.row_mask).reshape(*shape, measured.n_r), (~c & bounded).reshape(*shape, -1)]
        bad = np.concatenate(rows, axis=2)
        bad[[f.stage for f in failures if f.chain == chain.name]] = False
        out: list[Failure] = []
        for k in np.flatnonzero(bad.any(axis=(1, 2))):
            m, row = np.argwhere(bad[k])[0]
            reason = "" if g is None else measured.describe_invalid_sigma(g, int(k), int(m), int(row))
            detail = f"at t = {staging.times[k, m]:g} {reason}"
            detail = detail if reason else f"{prefix}{names[row]} is not finite at t = {staging.times[k, m]:g}"
            out.append(Failure(chain.name, int(k), "not_finite", detail))
        return out

    @cached_property
    def _moving_columns(self) -> list[NDArray[np.intp]]:
        """Per condition, the columns of q that need a sensitivity direction: not a node's own initial state."""
        links = [c.link for c in self.problem.conditions]
        return [
            np.flatnonzero(link.moving_quantities if self._nodes else link.moving_quantities | link.starting_quantities)
            for link in links
        ]

    def _integrate(self, v: Array, naturals: list[NaturalValues]) -> IntegratedPoints:
        plan = self._arrange(naturals)
        chains = plan.chains
        x: list[Array] = [np.full((*c.staging.tau.shape, self._n_x), np.nan) for c in chains]
        z: list[Array] = [np.full((*c.staging.tau.shape, self._n_z), np.nan) for c in chains]
        end: list[Array] = [np.full((c.staging.duration.size, self._n_x), np.nan) for c in chains]
        starts = [
            v[layout_chain.nodes] if self._nodes else natural.a[None, :]
            for layout_chain, natural in zip(self.layout.chains, naturals, strict=True)
        ]
        edges = [c.division.compute_boundaries(natural.e) for c, natural in zip(chains, naturals, strict=True)]
        parameters = [
            c.division.stage_parameters(natural.p, natural.e) for c, natural in zip(chains, naturals, strict=True)
        ]
        start_states = [s.copy() for s in starts]  # per condition and stage, where the next piece begins
        of_nodes = zip(self.layout.chains, self._z_start, strict=True)
        start_algebraic = [v[layout_chain.inner].copy() if self._n_w else z.copy() for layout_chain, z in of_nodes]
        runs: list[Integration] = []
        failures: list[Failure] = []
        failed_stages: set[tuple[int, int]] = set()
        for groups in plan.rounds:
            for group in groups:
                member, parts = group.members, group.parts
                if failed_stages:
                    member = tuple((i, j) for i, j in member if (i, chains[i].pieces[j].stage) not in failed_stages)
                    parts = parts_of(chains, member)
                if not member:
                    continue
                lanes = self._lanes(chains, parts, edges, parameters, start_states, start_algebraic)
                if self._relaxed is not None:
                    lanes = self._relaxed.lanes(lanes, int(group.integrator.grid[0] == 0.0))
                trajectories = group.integrator.values(lanes, keep=self._integrates_backward)
                runs.append(Integration(group.integrator, member, parts, lanes, trajectories))
                for part in parts:
                    i, lane_slice = part.condition, part.lanes
                    x[i][part.stage, part.point] = trajectories.x[part.lane, part.output_index]
                    z[i][part.stage, part.point] = trajectories.z[part.lane, part.output_index]
                    end[i][part.stages], start_algebraic[i][part.stages] = (
                        trajectories.x[lane_slice, -1],
                        trajectories.z[lane_slice, -1],
                    )
                    for lane in part.crossing_lanes:
                        j = member[lane][1]
                        piece, crossing = chains[i].pieces[j], chains[i].division.crossings[j]
                        assert crossing is not None
                        u, _ = piece.inputs_at_end(lanes.u[lane], float(lanes.duration[lane]))
                        end[i][piece.stage] = crossing.values(trajectories.x[lane, -1], naturals[i].e, u)
                    start_states[i][part.stages] = end[i][part.stages]
                for failure in trajectories.failures:
                    i, j = member[failure.lane]
                    k = chains[i].pieces[j].stage
                    failed_stages.add((i, k))
                    end[i][k] = np.nan
                    failures.append(Failure(self.layout.chains[i].name, k, failure.cause, failure.detail))
        return IntegratedPoints(plan, x, z, end, runs, tuple(failures))

    def _lanes(
        self,
        chains: Sequence[Segments],
        parts: Sequence[LaneGroup],
        edges: list[Array],
        parameters: list[Array],
        start_states: list[Array],
        start_algebraic: list[Array],
    ) -> Lanes:
        locations = [(part.condition, part.pieces, part.stages) for part in parts]
        return Lanes(
            start=np.concatenate([edges[i][pieces] for i, pieces, _ in locations]),
            duration=np.concatenate([edges[i][pieces + 1] - edges[i][pieces] for i, pieces, _ in locations]),
            x0=np.concatenate([start_states[i][stages] for i, _, stages in locations]),
            p=np.concatenate([parameters[i][pieces] for i, pieces, _ in locations]),
            u=np.concatenate([_shift_inputs(chains[part.condition], part, edges[part.condition]) for part in parts]),
            z0=np.concatenate([start_algebraic[i][stages] for i, _, stages in locations]),
            unit=np.concatenate([np.repeat(self._units[i][None], stages.size, axis=0) for i, _, stages in locations]),
        )

    def _slopes(
        self, sweep: IntegratedPoints, naturals: list[NaturalValues], directions: Sequence[Array] | None
    ) -> DirectionalDerivatives:
        if not self._backward:
            return self._sensitivities(sweep, naturals)
        from castfit.transcribe.adjoint import by_adjoint

        seeds = [
            self._seeds(c, natural, m)
            for c, natural, m in zip(sweep.integration_plan.chains, naturals, self._moving_columns, strict=True)
        ]
        return by_adjoint(sweep, self.layout.chains, naturals, seeds, self._moving_columns, directions)

    def _sensitivities(self, sweep: IntegratedPoints, naturals: list[NaturalValues]) -> DirectionalDerivatives:
        """Differentiate the integrated points by forward sensitivities."""
        n_s, n_node, chains = self._n_s, self._n_s + self._n_w, sweep.integration_plan.chains
        widths = [n_node + columns.size for columns in self._moving_columns]
        shapes = [(*c.staging.tau.shape, w) for c, w in zip(chains, widths, strict=True)]
        dx = [np.full((k, m, self._n_x, w), np.nan) for k, m, w in shapes]
        dz = [np.full((k, m, self._n_z, w), np.nan) for k, m, w in shapes]
        end = [np.full((k, self._n_x, w), np.nan) for k, _, w in shapes]
        seeds = [self._seeds(chains[i], natural, self._moving_columns[i]) for i, natural in enumerate(naturals)]
        # How the rows of events, and with them the boundaries of pieces, move along the directions.
        of_e = [
            np.pad(source.de[:, columns], ((0, 0), (n_node, 0)))
            for source, columns in zip(naturals, self._moving_columns, strict=True)
        ]
        of_edges = [
            c.division.weight @ de if c.division.moving_boundaries.any() else None
            for c, de in zip(chains, of_e, strict=True)
        ]
        failures: list[Failure] = []
        broken: set[tuple[int, int]] = set()
        requests: list[SensitivityRequest] = []
        self._n_rescued_stages, self._steps = 0, np.zeros(2, dtype=np.intp)
        for run in sweep.runs:
            count, width = len(run.members), max(widths[i] for i, _ in run.members)
            dx0, dp = np.zeros((count, self._n_x, width)), np.zeros((count, self._n_p, width))
            spans = np.zeros((2, count, width))  # how start and duration move
            # Seeds as large as what they perturb: sensitivities have the tolerances of the states.
            size = np.ones((count, 1, width))
            for part in run.parts:
                i, lane_slice = part.condition, part.lanes
                w, seed = widths[i], seeds[i]
                dx0[lane_slice, :, :w] = seed.x[part.stages]
                dp[lane_slice, :, n_node:w] = seed.of_piece(part.pieces)
                moves = of_edges[i]
                if moves is not None:
                    start_slopes, end_slopes = moves[part.pieces], moves[part.pieces + 1]
                    spans[:, lane_slice, :w] = start_slopes, end_slopes - start_slopes
                theta = self.scale[self.layout.chains[i].theta][self._moving_columns[i]]
                units = self._units[i][:n_s], self._units[i][self._n_x :][: self._n_w]
                size[lane_slice, 0, :w] = np.concatenate([*units, theta])
            if broken:
                dx0[[(i, chains[i].pieces[j].stage) in broken for i, j in run.members]] = 0.0
            if self._relaxed is not None:
                dz0 = np.zeros((count, self._n_w, width))
                dz0[:, :, n_s:n_node] = np.eye(self._n_w)
                skip = int(run.integrator.grid[0] == 0.0)
                dp = self._relaxed.parameter_slopes(run.lanes, skip, dx0, dz0, dp, spans[0])
            scaled_spans = (spans * size[None, :, 0]) if spans.any() else None
            task = SensitivityRequest(run.integrator, run.lanes, dx0 * size, dp * size, scaled_spans)
            requests.append(task)
            sensitivities = run.integrator.sensitivities(run.lanes, run.trajectories, task.dx0, task.dp, scaled_spans)
            sensitivities = replace(
                sensitivities, dx=sensitivities.dx / size[:, None], dz=sensitivities.dz / size[:, None]
            )
            for part in run.parts:
                i, w = part.condition, widths[part.condition]
                dx[i][part.stage, part.point] = sensitivities.dx[part.lane, part.output_index, :, :w]
                dz[i][part.stage, part.point] = sensitivities.dz[part.lane, part.output_index, :, :w]
                end[i][part.stages] = sensitivities.dx[part.lanes, -1, :, :w]
                for lane in part.crossing_lanes:
                    j = run.members[lane][1]
                    piece, crossing = chains[i].pieces[j], chains[i].division.crossings[j]
                    assert crossing is not None
                    end_slopes = sensitivities.dx[lane, -1, :, :w]
                    u, du = piece.inputs_at_end(run.lanes.u[lane], float(run.lanes.duration[lane]))
                    if crossing.instants[0].trigger is not None:
                        previous_crossing = chains[i].division.preceding_update(j)
                        end_slopes = self._differentiate_trigger(
                            run, lane, crossing, previous_crossing, end_slopes, naturals[i].e, of_e[i], u, du
                        )
                        of_edges[i] = chains[i].division.weight @ of_e[i]
                    _, by_x, by_e = crossing.slopes(run.trajectories.x[lane, -1], naturals[i].e, u, du)
                    end_slopes = by_x @ end_slopes + by_e @ of_e[i]
                    end[i][piece.stage] = end_slopes
                seeds[i].x[part.stages] = end[i][part.stages]
            self._n_rescued_stages += len({*run.trajectories.rescued_lanes, *sensitivities.rescued_lanes})
            self._steps += sensitivities.steps
            failed_stages = sweep.find_failed_stages(run, sensitivities.failures, self.layout.chains, "sensitivities")
            failures += [
                failure for source, failure in failed_stages.items() if failure is not None and source not in broken
            ]
            broken |= failed_stages.keys()
        for i, k in broken:
            dx[i][k], dz[i][k], end[i][k] = np.nan, np.nan, np.nan
        return DirectionalDerivatives(dx, dz, end, tuple(failures), tuple(requests))

    def _differentiate_trigger(
        self, run: Integration, lane: int, crossing: StageEndUpdate, previous_crossing: StageEndUpdate | None,
        dx: Array, e: Array, de: Array, u: Array, du: Array,
    ) -> Array:  # fmt: skip
        """Move the end of a piece with the time that states trigger; dx (n_x, n) is that at fixed time.

        How that time moves is put into de (n_e, n).                                   (see castfit.transcribe.triggers)
        An event that immediately follows `previous_crossing` moves with it; an event at the start does not move.
        """
        trigger, lanes = crossing.instants[0].trigger, run.lanes
        assert trigger is not None
        time, x = float(lanes.start[lane] + lanes.duration[lane]), run.trajectories.x[lane, -1]
        graph: Any = run.integrator.graph
        f = np.asarray(graph(time, x, run.trajectories.z[lane, -1], lanes.p[lane], u)[0], dtype=float).ravel()
        if lanes.duration[lane] <= time_rounding(np.array([time]))[0] and (
            previous_crossing is not None or trigger.at_start
        ):
            d_time = np.zeros(dx.shape[1]) if previous_crossing is None else de[previous_crossing.instants[-1].time]
        else:
            rate, by_x, by_c = trigger.crossing_slopes(time, x, u, e, f, du)
            d_time = -(by_x @ dx + by_c @ de[trigger.parameters]) / rate
        de[crossing.instants[0].time] = d_time
        return dx + np.outer(f, d_time)

    def _seeds(self, chain: Segments, natural: NaturalValues, moving: NDArray[np.intp]) -> SensitivitySeeds:
        """Return the derivatives of an experiment's pieces by its directions."""
        stages, n_s = chain.staging.duration.size, self._n_s
        x = np.zeros((stages, self._n_x, n_s + self._n_w + moving.size))
        x[:, :, :n_s] = np.eye(self._n_x)[:, :n_s]
        if not self._nodes:
            x[:] = natural.da[:, moving]
        division, de = chain.division, natural.de[:, moving]
        p = natural.dp[:, moving]
        if any(division.levels):
            p = division.stage_parameters(p, de)
        return SensitivitySeeds(x, p, division.weight @ de if division.moving_boundaries.any() else None)

    def node_sensitivities(self, v: Array, stages: Sequence[Mask]) -> tuple[Array, ...] | None:
        """Return the derivatives of states at the ends of some stages (K,) by their nodes, (K, n_x, n_x) per condition.

        Zero at the other stages; None if the sensitivities could not be integrated.
        """
        if self._edges:
            return None  # stages have several pieces
        _, sweep = self._integrate_points(v)
        naturals, chains = self._naturals(v), sweep.integration_plan.chains
        out = tuple(np.zeros((mask.size, self._n_x, self._n_x)) for mask in stages)
        for run in sweep.runs:
            selected = [lane for lane, (i, k) in enumerate(run.members) if stages[i][k]]
            if not selected:
                continue
            seeds = np.array([np.diag(self._units[run.members[lane][0]][: self._n_x]) for lane in selected])
            zero_slopes = np.zeros((len(selected), run.lanes.p.shape[1], self._n_x))
            sensitivities = run.integrator.sensitivities(
                run.lanes[selected], run.trajectories[selected], seeds, zero_slopes
            )
            if sensitivities.failures:
                return None
            for lane, dx, seed in zip(selected, sensitivities.dx, seeds, strict=True):
                i, k = run.members[lane]
                out[i][k] = dx[-1] / np.diag(seed)
                crossing = chains[i].division.crossings[k]
                if crossing is not None:
                    piece = chains[i].pieces[k]
                    u, du = piece.inputs_at_end(run.lanes.u[lane], float(run.lanes.duration[lane]))
                    out[i][k] = crossing.slopes(run.trajectories.x[lane, -1], naturals[i].e, u, du)[1] @ out[i][k]
        return out

    def collect_sensitivity_requests(self, v: Array) -> tuple[SensitivityRequest, ...]:
        """Return the sensitivity requests of a linearization at v, for benchmarks."""
        _, sweep = self._integrate_points(v)
        with capture_output():
            return self._slopes(sweep, self._naturals(v), None).requests

    @property
    def explicit_share(self) -> float:
        """The share of explicit steps in the last linearization; 0 if the integrator does not report it."""
        n_steps, n_explicit = self._steps
        return float(n_explicit / n_steps) if n_steps else 0.0

    def remark(self, v: Array) -> str:
        """Describe how many steps were explicit, and how many stages the substitute integrator integrated."""
        self.linearize(v)
        n_steps, n_explicit = self._steps
        share = "All" if n_explicit == n_steps else f"{n_explicit} of {n_steps}"
        message = f"{share} integrator steps were explicit; no stiffness was detected in them." if n_explicit else ""
        if GradientEvaluation in self.capabilities and self.options.relative_tolerance == _GRADIENT_RTOL:
            message += (
                f" The integrator uses the relative tolerance {_GRADIENT_RTOL:g}; "
                "gradients are exact derivatives of its steps up to rounding."
            )
        if self._n_rescued_stages == 0:
            return message.strip()
        count = "1 stage was" if self._n_rescued_stages == 1 else f"{self._n_rescued_stages} stages were"
        integrator = self.groups[0].integrator
        return (
            f"{count} integrated by {integrator.rescue_method}, because {integrator.method} failed. {message}".strip()
        )

    def low_accuracy(self) -> StagedProblem:
        """Return the problem with integrators of low accuracy."""
        options = self.options
        if options.relative_tolerance >= COARSE_RTOL or options.method == "collocation":
            return self
        owner, cached = self._low_accuracy_problem  # the cache of the original of a copy has other bounds
        if owner is not self or cached is None:
            cached = self.integrated_by(_loosen_tolerances(options))
            self._low_accuracy_problem = self, cached
        return cached

    def integrated_by(self, options: IntegratorOptions) -> ShootingProblem:
        """Return the problem with other integrators."""
        dense, other = self._arrays, self._copy_without_cache()
        other._set_options(options)
        other._integration_plans = {}
        if not self.problem.triggered:  # when states trigger something is found by these integrators
            plan = self._arrange(self._naturals(self.start))
            new_plan = plan.integrated_by(self._relaxed or self.problem.model, options)
            other._integration_plans[tuple(id(chain) for chain in plan.chains)] = new_plan
        other_plan = other._arrange(other._naturals(other.start))
        other.groups = _groups(other_plan)
        if dense is not None and all(group.integrator.method in STEPPED for group in other.groups):
            other._dense_cache = other, dense.integrated_by(other_plan)
        return other

    def describe_failure(self, v: Array) -> str:
        """Describe where and why the integration or another evaluation failed at v; empty if none failed."""
        _, sweep = self._integrate_points(v)
        unlinked = self._report_link_failures(v, self._naturals(v))  # without initial values nothing can be integrated
        for run in [] if unlinked else sweep.runs:
            for failure in run.trajectories.failures:
                i, _ = run.members[failure.lane]
                stop = run.integrator.locate_failure(run.lanes, failure.lane)
                return f"{self.layout.chains[i].name}: {stop.sentence}"
        return "; ".join(f"{f.chain}: {f.detail}" for f in (unlinked or self.linearize(v).failures)[:3])


@cache
def _loosen_tolerances(options: IntegratorOptions) -> IntegratorOptions:
    absolute = min(options.absolute_tolerance * (COARSE_RTOL / options.relative_tolerance), COARSE_RTOL)
    return replace(options, relative_tolerance=COARSE_RTOL, absolute_tolerance=absolute)


def _at_points(chain: Segments, of_p: Array, of_e: Array) -> Array:
    """Return the parameters (n_p,), or their derivatives (n_p, n_q), that hold at an experiment's points.

    If parameters change during the experiment, they are returned per point, (K, M, ...); else once for all.
    """
    if not any(chain.division.levels):
        return of_p
    return chain.division.stage_parameters(of_p, of_e)[chain.of_point]


def _shift_inputs(chain: Segments, part: LaneGroup, edges: Array) -> Array:
    """Return the inputs on some pieces, about the beginnings of intervals where the boundaries are now (K + 1,)."""
    shifts = (edges - chain.division.edges)[part.pieces]
    if not shifts.any():
        return part.cubics
    return shift_cubics(part.cubics, np.broadcast_to(shifts[:, None, None], part.cubics.shape[:3]))


def derivative_mistakes(value: Any) -> list[str]:
    """Check the option `derivatives` of a transcription."""
    is_valid = is_one_of(value, "auto", "forward", "adjoint")
    return option_mistakes(("derivatives", value, is_valid, "choose 'auto', 'forward' or 'adjoint'"))


def is_adjoint_cheaper(problem: CompiledProblem, options: IntegratorOptions) -> bool:
    """Whether the Jacobian of an interval takes less time by adjoint states than by forward sensitivities.

    Never for a DAE: the backward integrals of IDAS take many small steps.
    """
    n_x = len(problem.model.states)
    if options.method not in _TIMED_METHODS or method_of(options, n_x, 0) in STEPPED:
        return False  # whose forward directions are cheap, and watched over by default
    directions = max(int(c.link.moving_quantities.sum()) for c in problem.conditions) + n_x
    return not problem.model.algebraic_states and directions > _ADJOINT_BASE_COST + _ADJOINT_COST_PER_STATE * n_x


def is_gradient_cheaper(problem: CompiledProblem, options: IntegratorOptions) -> bool:
    """Whether a fit by gradients of the cost takes less time than one by the derivatives of all residuals.

    Never for a DAE, as above, nor by the ESDIRK method.
    """
    directions = max(
        (int((c.link.moving_quantities | c.link.starting_quantities).sum()) for c in problem.conditions), default=0
    )
    if options.method not in _TIMED_METHODS or problem.model.algebraic_states or directions < _MIN_ADJOINT_QUANTITIES:
        return False
    directional_options = _along_directions(problem, options, nodes=False)
    return integrator_of(problem.model, [1.0], directional_options).method not in STEPPED


def for_gradients(problem: CompiledProblem, options: IntegratorOptions) -> IntegratorOptions:
    """Return the options with looser tolerances, if they are the default ones, for the gradient of a large model.

    Derivatives are exact for the steps, so that tolerances matter for the value alone.
    """
    default, model = IntegratorOptions(), problem.model
    n_x, n_z = len(model.states), len(model.algebraic_states)
    tolerances = options.relative_tolerance, options.absolute_tolerance
    if n_x + n_z < _MANY_STATES or tolerances != (default.relative_tolerance, default.absolute_tolerance):
        return options
    if method_of(_along_directions(problem, options, nodes=False, back=True), n_x, n_z, _graph(model)) not in STEPPED:
        return options
    return replace(options, relative_tolerance=_GRADIENT_RTOL, absolute_tolerance=_GRADIENT_RTOL / 100)


def _graph(model: Model) -> ca.Function:
    system = model.system
    return _GRAPHS.get(model, lambda _: system.function("system", system.ode, system.alg))


def _along_directions(
    problem: CompiledProblem, options: IntegratorOptions, *, nodes: bool, back: bool = False
) -> IntegratorOptions:
    """Return the options with the ESDIRK methods where they pay for so many directions, or for going back, only."""
    if options.method != "auto":
        return options
    n_x, n_z, graph = len(problem.model.states), len(problem.model.algebraic_states), _graph(problem.model)
    directions = max((int(c.link.moving_quantities.sum()) for c in problem.conditions), default=0) + nodes * n_x
    directions = max(directions, _ADJOINT_COST_DIRECTIONS) if back else directions
    method = method_of(options, n_x, n_z, graph, directions=directions)
    return replace(options, method=method) if method != method_of(options, n_x, n_z, graph) else options


def adjoint_obstacle(problem: CompiledProblem) -> str:
    """Describe the feature of a problem that rules out adjoint gradients; empty if there is none."""
    if problem.triggered:
        return f"states trigger events in '{problem.triggered[0]}', which adjoint states cannot follow"
    if problem.constraints or problem.relations or problem.state_bounds:
        return "constraints and bounds of states have derivatives of their own, which the gradient of the cost has not"
    return ""


def _groups(plan: IntegrationPlan) -> tuple[SegmentGroup, ...]:
    return tuple(group for round_ in plan.rounds for group in round_)
