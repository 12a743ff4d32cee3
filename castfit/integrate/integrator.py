"""Integration of a model with forward and adjoint sensitivities: one signature for CasADi's integrators.

Many independent initial value problems of one model, the *lanes*, share a grid of relative output times.
With tau = (t - start) / duration every lane becomes  x' = duration * ode(start + duration * tau, x, z, p, u),
tau in [0, 1], so that one CasADi integrator serves all of them, with start and duration among its parameters.

What this module adds to CasADi: a lane that fails takes no other with it and says why; algebraic states are
consistent; inputs never jump inside a step; sensitivities come from explicit forward seeds, scaled so that the
error control sees them; nothing is ever printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import (
    BufferedFunction,
    PerObjectCache,
    build_integrator,
    find_compiler,
    plugin_options,
)
from castfit._support.process_pool import LostTask
from castfit._support.silence import capture_output
from castfit._support.status import InputError, raise_if_mistakes
from castfit._support.time_limit import check_deadline
from castfit.integrate.algebraic import AlgebraicEquations, AlgebraicPoints
from castfit.integrate.compilation import CompilationError, compiled, derivative_function
from castfit.integrate.distributed import IntegrationWorkers, WorkerObject, make_worker_object, workers
from castfit.integrate.esdirk_binding import CompiledStepper, forced_step_ends, missing_integrator_reason
from castfit.integrate.failure_diagnosis import PROBE_STEPS, diagnose, locate
from castfit.integrate.lanes import (
    Adjoints,
    IntegrationStop,
    LaneFailure,
    Lanes,
    Sensitivities,
    SharedGrids,
    Trajectories,
    input_discontinuities,
    shift_cubics,
    shift_slopes,
)
from castfit.integrate.options import STEPPED, SUNDIALS, IntegratorOptions, method_of, pattern, sundials

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from castfit._support.arrays import Array
    from castfit.integrate.esdirk_binding import IntegrationOutcome, StoredSteps
    from castfit.model.model import Model, System

    _Grid = tuple[float, ...]
    _State = tuple[ca.Function, tuple[str, ...], tuple[str, ...], Array, "IntegratorOptions"]

_LaneResult = TypeVar("_LaneResult", Trajectories, Sensitivities, Adjoints)

_MAX_GRIDS = 4  # number of CasADi integrators for one grid; above it every interval is integrated by itself, ...
_MIN_INTERVALS_PER_GRID = 200  # ... unless each integrator serves so many intervals
_GRID_ATTRIBUTES = ("grid", "_n_skipped", "_edges", "_run_ends", "_probe", "_rescuer")
_MIN_RESCUE_STEPS = 2000  # steps of the Rosenbrock method, which cost five times as much, unless max_steps is less
_MAX_ALGEBRAIC_TOLERANCE = 1e-7  # tolerance of algebraic equations; smaller Newton steps are rounding errors
_RESULT_NAMES = {"values": ("xf", "zf"), "forward": ("fwd_xf",), "reverse": ("adj2_x0", "adj2_p")}
_MIN_INTERVAL_FRACTION = 1e-6  # shortest interval relative to its run: CasADi skips outputs that are 1e-9 apart


class Integrator:
    """Integrates lanes of one system over one relative grid.

    Lanes are evaluated one by one, through buffers: a mapped CasADi function dies with its first failing lane and is
    no faster.  Instances pickle; they are built (and compiled) again where they arrive.  They own the arrays that
    CasADi works on and so must not be shared between threads.

    grid (m,) : relative output times in [0, 1], increasing, the last one 1; the first one may be 0

    Raises InputError: if the grid is not of that form, the method cannot integrate the system, or `compile` is "always"
    and compiling fails.
    """

    def __init__(self, system: System, grid: ArrayLike, options: IntegratorOptions | None = None) -> None:
        graph = system.function("system", ca.densify(system.ode), ca.densify(system.alg))
        times = np.array(grid, dtype=float)
        self.__setstate__((graph, system.state_names, system.algebraic_names, times, options or IntegratorOptions()))

    @classmethod
    def from_function(
        cls, graph: ca.Function, states: tuple[str, ...], algebraic: tuple[str, ...], grid: Array,
        options: IntegratorOptions,
    ) -> Integrator:  # fmt: skip
        """Return an integrator of a function (t, x, z, p, u) -> (ode, alg) of variables with these names."""
        integrator = cls.__new__(cls)
        integrator.__setstate__((graph, states, algebraic, grid, options))
        return integrator

    def __getstate__(self) -> _State:
        """Return the arguments from which the integrator is rebuilt; bare SX does not pickle, functions do."""
        return self.graph, self.state_names, self.algebraic_names, self.grid, self.options

    def __setstate__(self, state: _State) -> None:
        """Build the integrator."""
        self.graph, self.state_names, self.algebraic_names, self.grid, self.options = state
        self.n_x, self.n_z, self.n_p, self.n_u = (self.graph.size1_in(i) for i in (1, 2, 3, 4))
        self.method = method_of(self.options, self.n_x, self.n_z, self.graph)
        compiler = find_compiler() if self.options.compile in ("auto", "always") else None
        missing = self.options.compile == "always" and compiler is None
        remedy = "compile is 'always', but no C compiler was found; install one or use 'auto'"
        self._set_grid(self.grid, [remedy] if missing else [])
        self._compiles = compiler is not None and self.method != "collocation"
        self.stepping = self._build_stepper() if self.method in STEPPED else None
        self._grids = SharedGrids()
        self._integrators: dict[tuple[_Grid, bool], ca.Function] = {}
        self._built_functions: dict[tuple[str, int, _Grid], BufferedFunction] = {}
        self._worker_objects: list[WorkerObject] = []  # as which workers keep it
        if self.options.compile == "always" and self.stepping is None:
            # A compiler that does not work is reported here.
            self._buffered("values", 0, self._relative_times(slice(0, self._edges.size - 1)))

    @cached_property
    def algebra(self) -> AlgebraicEquations:
        """The algebraic equations by themselves."""
        arguments = [ca.SX.sym(n, self.graph.size1_in(i)) for i, n in enumerate("txzpu")]
        return AlgebraicEquations(
            arguments,
            self.graph(*arguments)[1],
            relative_tolerance=min(self.options.relative_tolerance, _MAX_ALGEBRAIC_TOLERANCE),
            absolute_tolerance=min(self.options.absolute_tolerance, _MAX_ALGEBRAIC_TOLERANCE),
        )

    def _build_stepper(self) -> CompiledStepper:
        """Return the compiled method for this model; raise InputError if it is unavailable."""
        missing = missing_integrator_reason()
        if missing:
            mistake = f"method '{self.method}' is compiled once on every machine, but {missing}; use 'auto'"
            raise InputError("Integrator", [mistake])
        try:
            names = *self.state_names, *self.algebraic_names
            return CompiledStepper(self.graph, names, self.options, explicit=self.method == "explicit")
        except CompilationError as error:
            raise InputError("Integrator", [f"compile='always', but compiling failed: {error}"]) from error

    def with_grid(self, grid: ArrayLike) -> Integrator:
        """Return an integrator of the same system over another grid; the two share what they build."""
        twin = Integrator.__new__(Integrator)
        twin.__dict__.update({name: part for name, part in vars(self).items() if name not in _GRID_ATTRIBUTES})
        twin._set_grid(np.array(grid, dtype=float))
        return twin

    def _set_grid(self, grid: Array, other_mistakes: Sequence[str] = ()) -> None:
        """Set the grid; raise InputError if it is invalid."""
        self.grid, mistakes = grid, list[str]()
        if grid.ndim != 1 or grid.size == 0 or not (grid[0] >= 0.0 and grid[-1] == 1.0 and (np.diff(grid) > 0.0).all()):
            mistakes.append("grid must increase within [0, 1] and end at 1")
        if self.n_z and self.method in ("cvodes", "adams"):
            valid = "'auto', 'esdirk', 'idas' or 'rosenbrock'"
            mistakes.append(f"method '{self.method}' cannot integrate algebraic equations; use {valid}")
        raise_if_mistakes("Integrator", [*mistakes, *other_mistakes])
        self._n_skipped = int(grid[0] == 0.0)  # an empty first interval is not integrated
        self._edges = np.append(0.0, grid[self._n_skipped :])

    def values(
        self, lanes: Lanes, *, keep: bool = False, previous_outcome: IntegrationOutcome | None = None
    ) -> Trajectories:
        """Integrate all lanes; lanes that fail are tried again by another method.

        With `keep` the steps are stored for `adjoint`, if the method supports it.  `previous_outcome` is the outcome of
        the compiled method for these lanes, if it has integrated them already.
        """
        worker_pool, spans = self._workers(lanes), self._spans(lanes)
        if worker_pool is not None:
            shapes = {name: (self.grid.size, n) for name, n in (("x", self.n_x), ("z", self.n_z))}
            trajectories = self._run_divided(
                worker_pool, "values_over", lanes.size, lambda part: (lanes[part], spans), Trajectories, shapes
            )
        elif self.stepping is not None:
            trajectories, _ = self._integrate_compiled(
                self.stepping, lanes, {}, keep=keep, previous_outcome=previous_outcome
            )
        else:
            with self._count_local_work():
                trajectories = self._values_by_spans(lanes, spans)
        return _merge_rescued(
            trajectories,
            self._find_rescuable_lanes(trajectories.failures),
            lambda failed_lanes: self._rescuer.values(lanes[failed_lanes]),
        )

    def _find_rescuable_lanes(self, failures: tuple[LaneFailure, ...]) -> list[int]:
        """Return the lanes that another integrator may be able to integrate.

        Lanes whose steps became too short by the error test are excluded: no method integrates over a pole.  In
        searches, lanes that take too many steps are excluded too, since such points are not worth the time.
        """
        if self.rescue_method == "":
            return []
        causes = ("step_size", "too_many_steps") if self.options.watch_sensitivities else ("step_size",)
        candidates = [f for f in failures if f.cause in causes or "IDA" in f.detail or "no memory" in f.detail]
        return [f.lane for f in candidates if "CV_ERR_FAILURE" not in f.detail and "the error test" not in f.detail]

    def _find_rescue_lanes(self, trajectories: Trajectories, failures: tuple[LaneFailure, ...]) -> list[int]:
        """Return the lanes to be differentiated by another integrator: it integrated them, or this one failed."""
        failed_lanes = {failure.lane for failure in trajectories.failures}
        return sorted(
            {
                *trajectories.rescued_lanes,
                *(lane for lane in self._find_rescuable_lanes(failures) if lane not in failed_lanes),
            }
        )

    @property
    def rescue_method(self) -> str:
        """The method for lanes on which this one fails; empty if there is none."""
        if self.stepping is not None:
            return sundials(self.n_z)
        return "rosenbrock" if self.method in SUNDIALS else ""

    @property
    def factorization(self) -> tuple[int, int]:
        """Products and entries of a factorization of the model's Jacobian, by other methods without fill."""
        n = self.n_x + self.n_z
        if self.stepping is None:
            entries = pattern(self.graph)[0].size + n
            return entries, entries
        order = self.stepping.model.elimination
        return (n**3 // 3, n**2) if order is None else (int(order.products), order.entry_columns.size)

    def _workers(self, lanes: Lanes) -> IntegrationWorkers | None:
        """Return the workers among which lanes are divided, None if they are integrated here."""
        worker_pool = workers()
        if (
            worker_pool is None
            or lanes.size < 2
            or not worker_pool.is_worthwhile
            or (self.stepping is not None and not worker_pool.replaces_threads)
        ):
            return None
        return worker_pool

    def _count_local_work(self) -> AbstractContextManager[None]:
        """Return a context that records the duration of work done in this process although workers exist."""
        worker_pool = workers()
        return nullcontext() if worker_pool is None or self.stepping is not None else worker_pool.count_local_work()

    def _run_divided(
        self,
        worker_pool: IntegrationWorkers,
        method: str,
        size: int,
        arguments: Callable[[slice], tuple[Any, ...]],
        make: Callable[..., _LaneResult],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> _LaneResult:
        """Call a method for L lanes divided among workers, and assemble the returned arrays (L, *shape)."""
        if not self._worker_objects:
            # On another machine "auto" may select another method.
            self._worker_objects.append(
                make_worker_object(_IntegratorFamily, self._twin(self.grid, replace(self.options, method=self.method)))
            )
        parts = worker_pool.divide(size)
        answers = worker_pool.run(
            [(self._worker_objects[0], "call", (self.grid, method, *arguments(part))) for part in parts]
        )
        arrays = {name: np.full((size, *shape), np.nan) for name, shape in shapes.items()}
        failures: list[LaneFailure] = []
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, LostTask):
                failures += [LaneFailure(lane, "solver", answer.message) for lane in range(part.start, part.stop)]
                continue
            for name, array in arrays.items():
                array[part] = getattr(answer, name)
            failures += [replace(failure, lane=part.start + failure.lane) for failure in answer.failures]
        return make(**arrays, failures=tuple(failures))

    def values_over(self, lanes: Lanes, spans: list[slice]) -> Trajectories:
        """Integrate lanes over runs of intervals in this process, without a rescue."""
        if self.stepping is not None:
            return self._integrate_compiled(self.stepping, lanes, {})[0]
        return self._values_by_spans(lanes, spans)

    def _values_by_spans(self, lanes: Lanes, spans: list[slice]) -> Trajectories:
        """Integrate by one of CasADi's integrators, one run of intervals after the other."""
        x = np.full((lanes.size, self.grid.size, self.n_x), np.nan)
        z = np.full((lanes.size, self.grid.size, self.n_z), np.nan)
        failures: dict[int, LaneFailure] = {}
        x_unit, z_unit = (unit[:, None] for unit in lanes.units)
        with capture_output():
            guess = lanes.z0
            for span in spans:
                begin, guess = self._begin(lanes, span, x, guess, failures)
                if span.start == 0:
                    x[:, : self._n_skipped], z[:, : self._n_skipped] = lanes.x0[:, None], guess[:, None]
                inputs = {
                    "x0": begin.x[:, None] / x_unit,
                    "z0": guess[:, None] / z_unit,
                    "p": np.hstack([self._arguments(lanes, span), self._units(lanes, begin, guess)])[:, None],
                }
                out = self._run("values", lanes, span, inputs, failures)
                outputs = self._outputs(span)
                x[:, outputs] = self._replace_zero_durations(lanes, out["xf"] * x_unit, lanes.x0[:, None])
                z[:, outputs] = self._replace_zero_durations(lanes, out["zf"] * z_unit, guess[:, None])
                guess = z[:, outputs][:, -1]
            self._correct_algebraic_states(lanes, x, z, failures)
        for lane in failures:
            x[lane] = z[lane] = np.nan
        return Trajectories(x, z, _ordered_failures(failures))

    def _integrate_compiled(
        self,
        stepping: CompiledStepper,
        lanes: Lanes,
        failures: dict[int, LaneFailure],
        seeds: tuple[Array, Array, Array | None] | None = None,
        follow: StoredSteps | None = None,
        *,
        keep: bool = False,
        previous_outcome: IntegrationOutcome | None = None,
    ) -> tuple[Trajectories, Sensitivities | None]:
        """Integrate by the compiled method; with sensitivities along dx0, dp and spans, or None, if asked for."""
        guess, scale, directions = lanes.z0, np.ones(1), None
        if seeds is not None:
            dx0, dp, spans = seeds
            scale = seed_scale(lanes, dx0, dp, None if spans is None else spans[1])
            directions = dx0 * scale, dp * scale, None if spans is None else spans * scale[:, 0]
        if self.n_z:
            _, guess = self._begin(lanes, slice(0, 1), lanes.x0[:, None], lanes.z0, failures)
        skip = lanes.duration == 0.0
        skip[list(failures)] = True
        stops = forced_step_ends(lanes, self.grid) if self.n_u else None
        outcome = previous_outcome or stepping.model.integrate(
            replace(lanes, z0=guess) if self.n_z else lanes, self.grid, stepping.method, stepping.control,
            stops=stops, skip=skip, directions=directions, keep=keep or stepping.control.watch == 0.0, follow=follow,
            pair=stepping.pair,
        )  # fmt: skip
        stepping.record_failures(outcome, skip, failures)
        x = self._replace_zero_durations(lanes, outcome.x, lanes.x0[:, None])
        z = self._replace_zero_durations(lanes, outcome.z, guess[:, None]) if self.n_z else outcome.z
        self._correct_algebraic_states(lanes, x, z, failures)
        for lane in failures:
            x[lane] = z[lane] = np.nan
        trajectories = Trajectories(
            x,
            z,
            _ordered_failures(failures),
            sensitivity_cache=outcome.stored_steps,
            steps=int(outcome.counts[:, 0].sum()),
        )
        if directions is None or outcome.dx is None:
            return trajectories, None
        initial_dx, dp, spans = directions
        if spans is not None and (lanes.duration == 0.0).any() and spans[1].any():
            rates = self._rates(*self._begin(lanes, slice(0, 1), x, lanes.z0, failures))
            initial_dx = initial_dx + rates[:, :, None] * spans[1][:, None]
        dx = self._replace_zero_durations(lanes, outcome.dx, initial_dx[:, None])
        step_counts = tuple(outcome.counts[:, [0, 4]].sum(axis=0).tolist())
        return trajectories, replace(self._slopes(lanes, trajectories, dx, dp, scale, failures), steps=step_counts)

    def _slopes(
        self,
        lanes: Lanes,
        trajectories: Trajectories,
        dx: Array,
        dp: Array,
        scale: Array,
        failures: dict[int, LaneFailure],
    ) -> Sensitivities:
        """Return sensitivities from those of the states (L, m, n_x, n_d) along seeds that were scaled."""
        dz = self.algebraic_slopes(lanes, trajectories, dx, dp)
        for lane in failures:
            dx[lane] = dz[lane] = np.nan
        return Sensitivities(dx / scale[:, None], dz / scale[:, None], _ordered_failures(failures))

    def sensitivities(
        self, lanes: Lanes, trajectories: Trajectories, dx0: Array, dp: Array, spans: Array | None = None
    ) -> Sensitivities:
        """Differentiate the trajectories that `values` returned for these lanes.

        trajectories : lanes that failed in them are not tried again
        dx0 (L, n_x, n_d)
        dp (L, n_p, n_d) : directions: the derivatives of x0 and p with respect to n_d quantities
        spans (2, L, n_d) : The derivatives of start and duration.  Outputs stay where they are relative to them; inputs
            that vary do not, so lanes that move must have one interval where there are any.
        """
        valid_trajectories, worker_pool, runs = _without_rescued(trajectories), self._workers(lanes), self._spans(lanes)
        span_slopes = np.zeros((2, lanes.size, dx0.shape[2])) if spans is None else spans
        has_moving_lanes = bool(span_slopes.any())

        def share(part: slice) -> tuple[Any, ...]:
            return (
                lanes[part],
                valid_trajectories[range(part.start, part.stop)],
                dx0[part],
                dp[part],
                span_slopes[:, part],
                has_moving_lanes,
                runs,
            )

        def rescue(failed_lanes: list[int]) -> Sensitivities:
            subset, rescuer = lanes[failed_lanes], self._rescuer
            return rescuer.sensitivities(
                subset, rescuer.values(subset), dx0[failed_lanes], dp[failed_lanes], span_slopes[:, failed_lanes]
            )

        if worker_pool is not None:
            shapes = {name: (self.grid.size, n, dx0.shape[2]) for name, n in (("dx", self.n_x), ("dz", self.n_z))}
            sensitivities = self._run_divided(
                worker_pool, "sensitivities_over", lanes.size, share, Sensitivities, shapes
            )
        elif self.stepping is not None and dx0.shape[2]:
            failures = {failure.lane: failure for failure in valid_trajectories.failures}
            _, slopes = self._integrate_compiled(
                self.stepping,
                lanes,
                failures,
                (dx0, dp, span_slopes if has_moving_lanes else None),
                valid_trajectories.sensitivity_cache,
            )
            assert slopes is not None
            sensitivities = slopes
        else:
            with self._count_local_work():
                sensitivities = self._slopes_by_spans(lanes, valid_trajectories, dx0, dp, span_slopes, runs)
        return _merge_rescued(sensitivities, self._find_rescue_lanes(trajectories, sensitivities.failures), rescue)

    def differentiated(self, lanes: Lanes, dx0: Array, dp: Array) -> tuple[Trajectories, Sensitivities]:
        """Return the results of `values` and `sensitivities`, by one integration if the method allows it."""
        if self.stepping is not None and dx0.shape[2] and self._workers(lanes) is None:
            trajectories, slopes = self._integrate_compiled(self.stepping, lanes, {}, (dx0, dp, None))
            if slopes is not None and not trajectories.failures:
                return trajectories, slopes
        trajectories = self.values(lanes)
        return trajectories, self.sensitivities(lanes, trajectories, dx0, dp)

    def sensitivities_over(
        self,
        lanes: Lanes,
        trajectories: Trajectories,
        dx0: Array,
        dp: Array,
        spans: Array,
        has_moving_lanes: bool,
        runs: list[slice],
    ) -> Sensitivities:
        """Differentiate over runs of intervals in this process, without a rescue.

        has_moving_lanes : whether the start or the duration of any lane depends on the directions
        """
        if self.stepping is not None and dx0.shape[2]:
            failures = {failure.lane: failure for failure in trajectories.failures}
            seeds = dx0, dp, spans if has_moving_lanes else None
            _, sensitivities = self._integrate_compiled(
                self.stepping, lanes, failures, seeds, trajectories.sensitivity_cache
            )
            assert sensitivities is not None
            return sensitivities
        return self._slopes_by_spans(lanes, trajectories, dx0, dp, spans, runs)

    def _slopes_by_spans(
        self, lanes: Lanes, trajectories: Trajectories, dx0: Array, dp: Array, spans: Array, runs: list[slice]
    ) -> Sensitivities:
        """Differentiate by one of CasADi's integrators, one run of intervals after the other."""
        n_d = dx0.shape[2]
        scale = seed_scale(lanes, dx0, dp, spans[1])
        dx0_, dp_, (d_start, d_duration) = dx0 * scale, dp * scale, spans * scale[:, 0]
        dx = np.full((lanes.size, self.grid.size, self.n_x, n_d), np.nan)
        failures = {failure.lane: failure for failure in trajectories.failures}
        x_unit, z_unit = (unit[:, None] for unit in lanes.units)
        with capture_output():
            dx[:, : self._n_skipped] = dx0_[:, None]
            for span in runs if n_d else []:
                previous = self._n_skipped + span.start - 1
                begin, z = self._begin(
                    lanes, span, trajectories.x, lanes.z0 if span.start == 0 else trajectories.z[:, previous], failures
                )
                dx_begin = dx0_ if span.start == 0 else dx[:, previous]
                seeds = {
                    "x0": begin.x[:, None] / x_unit,
                    "p": np.hstack([self._arguments(lanes, span), self._units(lanes, begin, z)])[:, None],
                    "fwd_x0": dx_begin.transpose(0, 2, 1) / x_unit,
                    "fwd_p": self._parameter_seeds(lanes, span, dp_, d_start, d_duration),
                }
                if self.n_z or self.n_u:  # the buffers keep the arguments of the previous call
                    begins = d_start + self._edges[span.start] * d_duration
                    du = shift_slopes(lanes.u[:, self._n_skipped + span.start])[:, None] * begins[:, :, None, None]
                    seeds["fwd_u"] = self._control_seeds(du, span, n_d)
                    point_slopes = begins[:, None], du[..., 0].transpose(0, 2, 1)
                    seeds["z0"] = z[:, None] / z_unit
                    seeds["fwd_z0"] = (
                        self.algebra.differentiate(begin, z, dx_begin, dp_, *point_slopes).transpose(0, 2, 1) / z_unit
                    )
                out = self._run("forward", lanes, span, seeds, failures, n_d)["fwd_xf"]
                ahead = out.reshape(lanes.size, n_d, -1, self.n_x).transpose(0, 2, 3, 1) * x_unit[..., None]
                initial_dx = dx0_
                if (lanes.duration == 0.0).any() and d_duration.any():
                    initial_dx = dx0_ + self._rates(begin, z)[:, :, None] * d_duration[:, None]
                dx[:, self._outputs(span)] = self._replace_zero_durations(lanes, ahead, initial_dx[:, None])
        return self._slopes(lanes, trajectories, dx, dp_, scale, failures)

    def adjoint(self, lanes: Lanes, trajectories: Trajectories, seeds: Array) -> Adjoints:
        """Differentiate sums over the trajectories, which `values` returned for these lanes, by x0 and p.

        One backward integration per lane, whatever the number of parameters; n_a sums share it.

        trajectories : lanes that failed in them are not tried again
        seeds (L, n_a, m, n_x) : the sums are  sum over outputs and states of seeds * x
        """
        # IDAS does not make the adjoint algebraic states consistent where a seed enters between.
        needs_single_intervals = self.method == "idas" and self.n_z > 0
        worker_pool, spans = (
            self._workers(lanes),
            self._every_interval() if needs_single_intervals else self._spans(lanes),
        )
        valid_trajectories, n_a = _without_rescued(trajectories), seeds.shape[1]

        def share(part: slice) -> tuple[Any, ...]:
            return lanes[part], valid_trajectories[range(part.start, part.stop)], seeds[part], spans

        def rescue(failed_lanes: list[int]) -> Adjoints:
            subset, rescuer = lanes[failed_lanes], self._rescuer
            return rescuer.adjoint(subset, rescuer.values(subset), seeds[failed_lanes])

        if worker_pool is None:
            with self._count_local_work():
                adjoints = self.adjoint_over(lanes, valid_trajectories, seeds, spans)
        else:
            shapes = {"x0": (n_a, self.n_x), "p": (n_a, self.n_p), "start": (n_a,), "duration": (n_a,)}
            adjoints = self._run_divided(worker_pool, "adjoint_over", lanes.size, share, Adjoints, shapes)
        return _merge_rescued(adjoints, self._find_rescue_lanes(trajectories, adjoints.failures), rescue)

    def adjoint_over(self, lanes: Lanes, trajectories: Trajectories, seeds: Array, spans: list[slice]) -> Adjoints:
        """Differentiate backwards over runs of intervals in this process, without a rescue."""
        count, n_a = seeds.shape[:2]
        if self.stepping is not None and n_a:
            return self._adjoint_compiled(self.stepping, lanes, trajectories, seeds)
        scale = _adjoint_scale(lanes, seeds)
        seeds = seeds * scale[:, :, None, None]
        x0_bar, p_bar = np.zeros((count, n_a, self.n_x)), np.zeros((count, n_a, self.n_p))
        start_bar, duration_bar = np.zeros((count, n_a)), np.zeros((count, n_a))
        failures = {failure.lane: failure for failure in trajectories.failures}
        x_unit, z_unit = (unit[:, None] for unit in lanes.units)
        with capture_output():
            for span in spans[::-1] if n_a else []:
                previous = self._n_skipped + span.start - 1
                begin, z = self._begin(
                    lanes, span, trajectories.x, lanes.z0 if span.start == 0 else trajectories.z[:, previous], failures
                )
                span_seeds = seeds[:, :, self._outputs(span)].copy()
                span_seeds[:, :, -1] += x0_bar
                enters = (span_seeds * x_unit[:, None]).reshape(count, -1, self.n_x)
                q_unit = self._scales(lanes, span)
                p = np.hstack([self._arguments(lanes, span) / q_unit, self._units(lanes, begin, z), q_unit])
                inputs = {
                    "x0": begin.x[:, None] / x_unit,
                    "z0": z[:, None] / z_unit,
                    "p": p[:, None],
                    "adj2_xf": enters,
                }
                out = self._run("reverse", lanes, span, inputs, failures, n_a)
                seed_sum = span_seeds.sum(axis=2)
                by_q = out["adj2_p"][..., : self.n_p + 2] / q_unit[:, None]
                by_q = self._replace_zero_durations(lanes, by_q, np.zeros_like(by_q))
                # The span begins at start + left * duration and lasts (right - left) * duration.
                left, right = self._edges[span.start], self._edges[span.stop]
                by_begin, by_length = by_q[..., self.n_p], by_q[..., self.n_p + 1]
                if (lanes.duration == 0.0).any():
                    rates = np.einsum("lai,li->la", seed_sum, self._rates(begin, z))
                    by_length = self._replace_zero_durations(lanes, by_length, rates)
                x0_bar = self._replace_zero_durations(lanes, out["adj2_x0"] / x_unit, seed_sum)
                p_bar += by_q[..., : self.n_p]
                start_bar += by_begin
                duration_bar += left * by_begin + (right - left) * by_length
        x0_bar += seeds[:, :, : self._n_skipped].sum(axis=2)
        adjoints = Adjoints(
            x0_bar / scale[..., None],
            p_bar / scale[..., None],
            start_bar / scale,
            duration_bar / scale,
            _ordered_failures(failures),
        )
        for bar in adjoints.bars:
            bar[list(failures)] = np.nan
        return adjoints

    def _adjoint_compiled(
        self, stepping: CompiledStepper, lanes: Lanes, trajectories: Trajectories, seeds: Array
    ) -> Adjoints:
        """Differentiate the compiled method's steps, from their end to their beginning."""
        failures = {failure.lane: failure for failure in trajectories.failures}
        guess = lanes.z0
        if self.n_z:
            _, guess = self._begin(lanes, slice(0, 1), lanes.x0[:, None], lanes.z0, failures)
        has_zero_duration = lanes.duration == 0.0
        skip = has_zero_duration.copy()
        skip[list(failures)] = True
        sums = stepping.model.pull(
            replace(lanes, z0=guess), self.grid, stepping.method, stepping.control, np.moveaxis(seeds, 1, 3),
            stops=forced_step_ends(lanes, self.grid) if self.n_u else None, skip=skip,
            follow=trajectories.sensitivity_cache, pair=stepping.pair,
        )  # fmt: skip
        bars = [np.moveaxis(sums.x0, 2, 1).copy(), np.moveaxis(sums.p, 2, 1).copy(), sums.start, sums.duration]
        if has_zero_duration.any():
            total = seeds[has_zero_duration].sum(axis=2)
            rates = self._rates(*self._begin(lanes, slice(0, 1), lanes.x0[:, None], guess, failures))[has_zero_duration]
            for bar, gradient in zip(bars, (total, 0.0, 0.0, np.einsum("lai,li->la", total, rates)), strict=True):
                bar[has_zero_duration] = gradient
        stepping.record_failures(sums, skip, failures)
        for bar in bars:
            bar[list(failures)] = np.nan
        return Adjoints(bars[0], bars[1], bars[2], bars[3], _ordered_failures(failures))

    def algebraic_slopes(self, lanes: Lanes, trajectories: Trajectories, dx: Array, dp: Array) -> Array:
        """Return the derivatives of the algebraic states at the outputs, (L, m, n_z, n_d).

        dx (L, m, n_x, n_d), dp (L, n_p, n_d) : derivatives of the states and of the parameters
        """
        shape = (*dx.shape[:2], self.n_z, dx.shape[3])
        if not self.n_z:
            return np.zeros(shape)
        flat = dx.reshape(-1, self.n_x, dx.shape[3]), np.repeat(dp, self.grid.size, axis=0)
        points = self._output_points(lanes, trajectories.x)
        return self.algebra.differentiate(points, trajectories.z.reshape(-1, self.n_z), *flat).reshape(shape)

    def algebraic_products(self, lanes: Lanes, trajectories: Trajectories, z_bar: Array) -> tuple[Array, Array]:
        """Return the gradients of  sum z_bar (L, m, n_z) * z  by the states there (L, m, n_x), and by p (L, n_p)."""
        count, outputs = trajectories.x.shape[:2]
        flat = z_bar.reshape(-1, self.n_z)
        by_x, by_p = self.algebra.pull(
            self._output_points(lanes, trajectories.x), trajectories.z.reshape(-1, self.n_z), flat
        )
        return by_x.reshape(count, outputs, -1), by_p.reshape(count, outputs, -1).sum(axis=1)

    def locate_failure(self, lanes: Lanes, lane: int) -> IntegrationStop:
        """Find the time up to which a failed lane can be integrated, and describe it in a sentence.

        The work is bounded: it takes a few tens of milliseconds, a few hundred where every step is expensive.
        """
        one = lanes[lane : lane + 1]
        failures = self.values(one).failures or (LaneFailure(0, "solver", "only its sensitivities failed"),)
        return locate(self._probe, one, self.grid, failures[0])

    @cached_property
    def _probe(self) -> Integrator:
        """An integrator of single intervals with few steps."""
        options = replace(self.options, max_steps=min(PROBE_STEPS, self.options.max_steps), compile="never")
        return self._twin(np.ones(1), options)

    @cached_property
    def _rescuer(self) -> Integrator:
        """An integrator for lanes on which this one fails."""
        steps = self.options.max_steps
        if self.rescue_method == "rosenbrock":
            steps = max(min(steps, _MIN_RESCUE_STEPS), steps // 5)
        return self._twin(self.grid, replace(self.options, method=self.rescue_method, max_steps=steps))

    def _twin(self, grid: Array, options: IntegratorOptions) -> Integrator:
        return Integrator.from_function(self.graph, self.state_names, self.algebraic_names, grid, options)

    def _begin(
        self, lanes: Lanes, span: slice, x: Array, guess: Array, failures: dict[int, LaneFailure]
    ) -> tuple[AlgebraicPoints, Array]:
        """Return the points at which a span of intervals begins, with consistent algebraic states (L, n_z)."""
        interval_index = self._n_skipped + span.start
        begin = AlgebraicPoints(
            lanes.start + lanes.duration * self._edges[span.start],
            lanes.x0 if span.start == 0 else x[:, interval_index - 1],
            lanes.p,
            lanes.u[:, interval_index, :, 0],
        )
        if not self.n_z:
            return begin, guess
        z, solved = self.algebra.solve(begin, guess, lanes.units[1])
        for lane in np.flatnonzero(~solved):
            detail = f"no solution of the algebraic equations was found near their guess at t = {begin.t[lane]:g}"
            failures.setdefault(int(lane), LaneFailure(int(lane), "consistent_initialisation", detail))
        return begin, z

    def _correct_algebraic_states(self, lanes: Lanes, x: Array, z: Array, failures: dict[int, LaneFailure]) -> None:
        """Replace the integrator's algebraic states at the outputs by exact solutions, in place."""
        if self.n_z == 0:
            return
        points = self._output_points(lanes, x)
        unit = np.repeat(lanes.units[1], self.grid.size, axis=0)
        exact, solved = self.algebra.solve(points, z.reshape(-1, self.n_z), unit)
        z[...] = exact.reshape(z.shape)
        for lane, j in np.argwhere(~solved.reshape(z.shape[:2])):
            time = points.t[lane * self.grid.size + j]
            detail = f"the algebraic equations have no solution near the integrated one at t = {time:g}"
            failures.setdefault(int(lane), LaneFailure(int(lane), "algebraic_equations", detail))

    def _output_points(self, lanes: Lanes, x: Array) -> AlgebraicPoints:
        """Return all outputs as L * m points; the inputs are those of the interval that ends there."""
        m = self.grid.size
        widths = lanes.duration[:, None] * np.diff(self.grid, prepend=0.0)
        u = shift_cubics(lanes.u, widths[:, :, None])[..., 0].reshape(lanes.size * m, self.n_u)
        times = lanes.start[:, None] + lanes.duration[:, None] * self.grid
        return AlgebraicPoints(times.ravel(), x.reshape(-1, self.n_x), np.repeat(lanes.p, m, axis=0), u)

    def _outputs(self, span: slice) -> slice:
        """Return the outputs at the ends of a span's intervals."""
        return slice(self._n_skipped + span.start, self._n_skipped + span.stop)

    @staticmethod
    def _replace_zero_durations(lanes: Lanes, values: Array, initial_values: Array) -> Array:
        """Take `initial_values` for lanes of zero duration, where nothing happens."""
        has_zero_duration = lanes.duration == 0.0
        return (
            np.where(has_zero_duration.reshape(-1, *[1] * (values.ndim - 1)), initial_values, values)
            if has_zero_duration.any()
            else values
        )

    def _run(
        self,
        kind: str,
        lanes: Lanes,
        span: slice,
        inputs: dict[str, Array],
        failures: dict[int, LaneFailure],
        n_d: int = 0,
    ) -> dict[str, Array]:
        """Evaluate a CasADi function lane by lane: arrays (L, columns, rows), NaN where it failed or was skipped."""
        call = self._buffered(kind, n_d, self._relative_times(span))
        start, duration = self._arguments(lanes, span)[:, self.n_p :].T
        batch = inputs | ({"u": self._controls(lanes, span)} if self.n_u else {})
        batch = {name: array for name, array in batch.items() if name in call.arguments}
        out = {name: np.full((lanes.size, *array.shape), np.nan) for name, array in call.results.items()}
        argument_pairs = [(call.arguments[name], array) for name, array in batch.items()]
        result_pairs = [(array, out[name]) for name, array in call.results.items()]
        active_lanes = [lane for lane in np.flatnonzero(lanes.duration != 0.0).tolist() if lane not in failures]
        with capture_output() as log:
            for lane in active_lanes:
                check_deadline()
                for argument, array in argument_pairs:
                    argument[...] = array[lane]
                try:
                    call()
                except RuntimeError as error:
                    log_lines = log.tail(20)
                    log.restart()
                    if "KeyboardInterrupt" in f"{error} {log_lines}":  # CasADi turns it into an error
                        raise KeyboardInterrupt from None
                    failures[lane] = LaneFailure(
                        lane, *diagnose(str(error), log_lines, start[lane], duration[lane], self)
                    )
                    continue
                for result, target in result_pairs:
                    target[lane] = result
        if all(np.isfinite(target).all() for target in out.values()):
            return out
        finite = np.logical_and.reduce(
            [np.isfinite(target).reshape(lanes.size, -1).all(axis=1) for target in out.values()]
        )
        for lane in [lane for lane in active_lanes if not finite[lane] and lane not in failures]:
            for target in out.values():
                target[lane] = np.nan
            failures[lane] = LaneFailure(lane, "not_finite", "the result is not finite")
        return out

    def _arguments(self, lanes: Lanes, span: slice) -> Array:
        """Return parameters, start and duration of a span, (L, n_p + 2)."""
        left, right = self._edges[span.start], self._edges[span.stop]
        start, duration = lanes.start + lanes.duration * left, lanes.duration * (right - left)
        return np.hstack([lanes.p, start[:, None], duration[:, None]])

    def _units(self, lanes: Lanes, begin: AlgebraicPoints, z: Array) -> Array:
        """Return the units of states, algebraic states and algebraic equations, (L, n_x + 2 n_z)."""
        sizes = [self.algebra.sizes(begin, z, lanes.units[1])] if self.n_z else []
        return np.hstack([*lanes.units, *sizes])

    def _scales(self, lanes: Lanes, span: slice) -> Array:
        """Return the magnitudes of parameters, start and duration of a span, (L, n_p + 2), positive.

        The magnitude of a parameter that is zero is 1.  Start and duration take the power of two next to the duration,
        by which the start divides without a rounding error.
        """
        duration = np.abs(lanes.duration * (self._edges[span.stop] - self._edges[span.start]))
        time = np.exp2(np.round(np.log2(np.where(duration > 0.0, duration, 1.0))))
        return np.hstack([np.where(lanes.p == 0.0, 1.0, np.abs(lanes.p)), time[:, None], time[:, None]])

    def _rates(self, points: AlgebraicPoints, z: Array) -> Array:
        """Return the right-hand sides at points, (L, n_x)."""
        if not points.t.size:
            return np.zeros((0, self.n_x))
        outputs: Any = self.graph.map(points.t.size)(points.t[None], points.x.T, z.T, points.p.T, points.u.T)
        return np.asarray(outputs[0], dtype=float).T

    def _parameter_seeds(self, lanes: Lanes, span: slice, dp: Array, d_start: Array, d_duration: Array) -> Array:
        """Return the derivatives of parameters, start and duration of a span, at constant units, (L, n_d, rows)."""
        out = np.zeros((lanes.size, dp.shape[2], self.n_p + 2 + self.n_x + 2 * self.n_z))
        out[:, :, : self.n_p] = dp.transpose(0, 2, 1)
        left, right = self._edges[span.start], self._edges[span.stop]
        out[:, :, self.n_p], out[:, :, self.n_p + 1] = d_start + left * d_duration, (right - left) * d_duration
        return out

    def _control_seeds(self, du: Array, span: slice, n_d: int) -> Array:
        """Return the derivatives of the controls, (L, n_d * intervals, 1 + 4 n_u), by the start of a span.

        du (L, n_d, n_u, 4) is the derivative of the cubics of its first interval.
        """
        n = span.stop - span.start
        out = np.zeros((du.shape[0], n_d, n, 1 + 4 * self.n_u))
        out[:, :, 0, 1:] = du.reshape(*du.shape[:2], -1)
        return out.reshape(du.shape[0], n_d * n, -1)

    def _controls(self, lanes: Lanes, span: slice) -> Array:
        """Return the controls, constant on each interval for CasADi, (L, intervals, 1 + 4 n_u).

        They are the left edge in tau, and the coefficients of the cubics.
        """
        cubics = lanes.u[:, self._n_skipped :][:, span]
        size, n = cubics.shape[:2]
        edges = np.broadcast_to(np.append(0.0, self._relative_times(span)[:-1])[None, :, None], (size, n, 1))
        controls = np.concatenate([edges, cubics.reshape(size, n, 4 * self.n_u)], axis=2)
        return controls if self.method not in SUNDIALS else np.repeat(controls[:, :1], n, axis=1)

    def _spans(self, lanes: Lanes) -> list[slice]:
        """Divide the intervals into runs that are integrated in one go.

        SUNDIALS must start anew where an input or one of its derivatives jumps, and CasADi does not see to it: CVODES
        keeps its history, IDAS its algebraic states, and the step fails where the jump is large.  So there a run ends.
        The compiled method sees to it by itself, and has no runs.
        """
        if self.stepping is not None:
            return []
        n = self._edges.size - 1
        ends = self._run_ends
        if self.method in SUNDIALS and self.n_u and n > 1:
            widths = lanes.duration[:, None] * np.diff(self._edges)
            jumps = input_discontinuities(lanes.u[:, self._n_skipped :], widths).any(axis=(0, 2, 3))
            ends = np.union1d(ends, np.flatnonzero(jumps) + 1)
        runs = [slice(begin, end) for begin, end in pairwise([0, *ends.tolist()])]
        max_grids = max(_MAX_GRIDS, n // _MIN_INTERVALS_PER_GRID)
        return runs if len({self._relative_times(run) for run in runs}) <= max_grids else self._every_interval()

    @cached_property
    def _run_ends(self) -> NDArray[np.intp]:
        """Indices of the intervals that end a run because of the grid: no interval is a tiny part of its run."""
        ends: list[int] = []
        run_begin, shortest = 0, np.inf
        for j, (left, right) in enumerate(pairwise(self._edges.tolist())):
            shortest = min(shortest, right - left)
            if shortest < _MIN_INTERVAL_FRACTION * (right - self._edges[run_begin]):
                ends.append(j)
                run_begin, shortest = j, right - left
        return np.array([*ends, self._edges.size - 1], dtype=np.intp)

    def _every_interval(self) -> list[slice]:
        return [slice(j, j + 1) for j in range(self._edges.size - 1)]

    def _relative_times(self, span: slice) -> _Grid:
        """Return the output times of a span relative to itself."""
        if span.stop == span.start + 1:
            return (1.0,)
        if span.stop - span.start == self._edges.size - 1:
            return tuple(self._edges[1:].tolist())
        return self._grids.share(self._edges[span.start : span.stop + 1])

    def _buffered(self, kind: str, n_d: int, grid: _Grid) -> BufferedFunction:
        """Return the integrator over a grid ("values") or a derivative of it, built when first wanted."""
        key = (kind, n_d, grid)
        if key not in self._built_functions:
            check_deadline()
            with capture_output() as log:
                try:
                    self._built_functions[key] = self._build_function(*key)
                except (RuntimeError, OSError, CompilationError) as error:
                    if not self._compiles:
                        raise
                    if self.options.compile == "always":
                        message = "; ".join([*log.tail(2), str(error).splitlines()[-1]])
                        raise InputError(
                            "Integrator", [f"compile='always', but compiling failed: {message}"]
                        ) from error
                    self._compiles = False
                    self._built_functions[key] = self._build_function(*key)
        return self._built_functions[key]

    def _build_function(self, kind: str, n_d: int, grid: _Grid) -> BufferedFunction:
        backward = kind == "reverse"
        if self._compiles:
            function = compiled(lambda extra_options: self._build(grid, backward, extra_options), kind, n_d)
        else:
            if (grid, backward) not in self._integrators:
                self._integrators[grid, backward] = self._build(grid, backward, {})
            function = derivative_function(self._integrators[grid, backward], kind, n_d)
        return BufferedFunction(function, _RESULT_NAMES[kind])

    def _build(self, grid: _Grid, backward: bool, extra_options: dict[str, Any]) -> ca.Function:
        options = plugin_options(
            self.method,
            dae=self.n_z > 0,
            relative_tolerance=self.options.relative_tolerance,
            absolute_tolerance=self.options.absolute_tolerance,
            max_steps=self.options.max_steps,
            elements=self.options.elements,
            backward=backward,
            watched=self.options.watch_sensitivities,
        )
        return build_integrator(self.graph, self.method, grid, options | extra_options, backward=backward)


class _IntegratorFamily:
    """An integrator as workers keep it, and those of the same system over other grids that they are asked for."""

    def __init__(self, integrator: Integrator) -> None:
        self._integrators_by_grid = {integrator.grid.tobytes(): integrator}
        self._first_integrator = integrator

    def call(self, grid: Array, method: str, *arguments: Any) -> Any:
        """Call a method of the integrator over a grid."""
        key = grid.tobytes()
        if key not in self._integrators_by_grid:
            self._integrators_by_grid[key] = self._first_integrator.with_grid(grid)
        return getattr(self._integrators_by_grid[key], method)(*arguments)


def seed_scale(lanes: Lanes, dx0: Array, dp: Array, d_duration: Array | None = None) -> Array:
    """Return factors (L, 1, n_d) >= 1 that bring the seeds up to the size of what they perturb.

    Sensitivities are integrated under the same absolute tolerance as the states.  The derivative with respect to a
    parameter of 3e7 would lie below it and not be controlled; that with respect to its logarithm is.
    """
    values, seeds = [lanes.p, lanes.units[0]], [dp, dx0]
    if d_duration is not None:
        values, seeds = [*values, lanes.duration[:, None]], [*seeds, d_duration[:, None]]
    with np.errstate(over="ignore", invalid="ignore"):
        return scale_of_seeds(np.concatenate(values, axis=1), np.concatenate(seeds, axis=1))


def scale_of_seeds(values: Array, seeds: Array) -> Array:
    """Compute scale factors (L, 1, n_d) of the seeds (L, n, n_d), common to all values (L, n) and at least 1."""
    size = np.abs(seeds)
    ratio = np.empty(size.shape)
    ratio.fill(np.inf)
    np.divide(np.abs(values)[:, :, None], size, out=ratio, where=size > 0.0)
    min_ratio = np.maximum(np.minimum.reduce(ratio, axis=1, initial=np.inf), 1.0)
    return np.where(np.isfinite(min_ratio), min_ratio, 1.0)[:, None]


def _adjoint_scale(lanes: Lanes, seeds: Array) -> Array:
    """Return factors (L, n_a) that bring seeds (L, n_a, m, n_x) to the size 1, to which absolute tolerances belong."""
    size = np.abs(seeds * lanes.units[0][:, None, None]).max(axis=(2, 3), initial=0.0)
    return np.where((size > 0.0) & np.isfinite(size), 1.0 / np.where(size > 0.0, size, 1.0), 1.0)


def _without_rescued(trajectories: Trajectories) -> Trajectories:
    """Count lanes that another integrator has integrated among those that failed."""
    rescued = (LaneFailure(lane, "rescued", "") for lane in trajectories.rescued_lanes)
    return (
        replace(trajectories, failures=(*trajectories.failures, *rescued))
        if trajectories.rescued_lanes
        else trajectories
    )


def _merge_rescued(
    result: _LaneResult, failed_lanes: list[int], rescue: Callable[[list[int]], _LaneResult]
) -> _LaneResult:
    """Merge the results of a rescue of the failed lanes, if there are any, into the results.

    A failure that remains keeps its first reason: it is the better explained one.
    """
    if not failed_lanes:
        return result
    rescued_result = rescue(failed_lanes)
    arrays: dict[str, Any] = {n: part.copy() for n, part in vars(result).items() if isinstance(part, np.ndarray)}
    for name, part in arrays.items():
        part[failed_lanes] = getattr(rescued_result, name)
    unrescued_lanes = {failed_lanes[failure.lane] for failure in rescued_result.failures}
    rescued = tuple(lane for lane in failed_lanes if lane not in unrescued_lanes)
    failures = tuple(failure for failure in result.failures if failure.lane not in rescued)
    return type(result)(**arrays, failures=failures, rescued_lanes=rescued)


def _ordered_failures(failures: dict[int, LaneFailure]) -> tuple[LaneFailure, ...]:
    return tuple(failures[lane] for lane in sorted(failures))


class Integrable(Protocol):
    """A model, or another object with a system of equations."""

    @property
    def system(self) -> System:
        """The system of equations to integrate."""
        ...


_INTEGRATORS: PerObjectCache[Integrable, dict[tuple[tuple[float, ...], IntegratorOptions], Integrator]] = (
    PerObjectCache()
)
_SHARED_GRIDS: PerObjectCache[Model, SharedGrids] = PerObjectCache()


def relative_grid(model: Model, times: Array) -> Array:
    """Return times[1:] (m,) relative to times[0] ... times[-1]; grids that differ by rounding only become one."""
    return np.array(_SHARED_GRIDS.get(model, lambda _: SharedGrids()).share(times))


def integrator_of(model: Integrable, grid: ArrayLike, options: IntegratorOptions) -> Integrator:
    """Return the integrator of a model over relative output times (m,); every thread has its own.

    Raises InputError: as `Integrator`.
    """
    times = np.asarray(grid, dtype=float)
    built = _INTEGRATORS.get(model, lambda _: {})
    key = (tuple(times.tolist()), options)
    if key not in built:
        similar = next((integrator for (_, chosen), integrator in built.items() if chosen == options), None)
        built[key] = similar.with_grid(times) if similar else Integrator(model.system, times, options)
    return built[key]
