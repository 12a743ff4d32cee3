"""Optimal control: `control` reads a question, solves it on a grid, refines the grid, and verifies by integration.

1. The initial states of the program come from integrating the model with the guessed inputs.  If no plan is found,
   other starts follow, see `ControlSolver.plan`.
2. IPOPT solves the program with exact first and second derivatives.
3. Stages with errors above the tolerance are divided, and the program is solved again from its solution.
4. The model is integrated with error control under the optimal inputs.  It must reproduce the objective and satisfy the
   constraints, also between the points of the program.  Otherwise the plan has the status "inaccurate".
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.arguments import (
    is_count,
    is_one_of,
    option_mistakes,
    read_mapping,
    read_real,
    rng_mistakes,
    shorten_repr,
)
from castfit._support.pickling import ProcessLocal
from castfit._support.status import Status, raise_if_mistakes, suggest
from castfit._support.ties import first_argmin
from castfit._support.time_limit import guarded, with_deadline
from castfit.control.grid import StageGrid
from castfit.control.question import read_inputs, read_question
from castfit.control.stages import StageMethod
from castfit.control.trajectory import PlanVerifier
from castfit.control.transcription import DecisionValues, TranscribedPlan
from castfit.control.units import compute_units
from castfit.control.verdict import (
    CHECK_FRACTIONS,
    CONFIRMATION_RTOL,
    PlanSolution,
    build_plan,
    unbounded_input_message,
)
from castfit.experiment.free_inputs import FreeInput
from castfit.solve.ipopt import Ipopt
from castfit.transcribe.collocation import Collocation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from castfit._support.arrays import Array
    from castfit._support.time_limit import Deadline
    from castfit.control.plan import Plan
    from castfit.control.program import ProgramSolution
    from castfit.control.question import ControlQuestion
    from castfit.control.trajectory import PlanTrajectory
    from castfit.experiment.experiment import Free
    from castfit.experiment.inputs import Input

FIRST_ELEMENTS = 20
"""Minimum number of elements of a horizon; more if an input has more pieces."""

_MAX_REFINEMENTS = 8  # refinements of the discretisation
_MAX_STAGE_FACTOR = 100  # stages relative to the first grid
_MIN_RK4_STEPS, _MAX_RK4_STEPS = 4, 64  # Runge-Kutta steps in a stage
_MAX_STATE_STEPS = 256  # states times steps: graphs grow as its square; 22 states and 16 steps take 13 s
_MAX_ERROR_GROWTH = 1e5  # growth of an error within a stage, by too long steps, that multiple shooting tolerates
_DIVISION_FRACTION = 0.3  # fraction of the largest stage error above which a stage is divided at least
# Difference of nodes and integrated states, in units of the states: accepted, and unreliable errors.
_MAX_DEFECT, _LARGE_DEFECT = 1e-3, 0.1
_FIRST_DEFECT_FACTOR = 10.0  # the accepted difference on the first grid, in tolerances
_STALLED_RTOL = (
    1e-5  # difference of both objectives, relative to their terms, that is accepted once refinement has no effect
)
_HORIZON_FACTORS = (1.0, 2.0, 4.0, 0.5)  # lengths of a free horizon, relative to its guess, of further starts
_PERTURBATION_SIZE = 0.1  # perturbation of the inputs at a stationary start, in their units
_MAX_GAUSS_NEWTON_STEPS = 8  # Gauss-Newton steps before IPOPT is used
_DIVERGENCE_SIZE = 1e10  # size of a variable, in its units, from which the iterates diverge
_WARM_START_OPTIONS = {"mu_init": 1e-5, "bound_push": 1e-8, "bound_frac": 1e-8}


@guarded
def control(
    model: Any,
    *,
    horizon: float | Free,
    minimise: Any,
    inputs: Mapping[str, FreeInput | Input | float] | None = None,
    constraints: Any = None,
    parameters: Any = None,
    initial: Mapping[str, Any] | None = None,
    start: float = 0.0,
    transcription: Any = "collocation",
    solver: Ipopt | None = None,
    scenarios: str = "mean",
    soft: float | None = None,
    starts: int = 1,
    rng: Any = None,
    max_time: float = np.inf,
) -> Plan:
    """Find the inputs, parameters and initial states of a model that minimise an objective.

    Parameters
    ----------
    model : Model
    horizon : float or cf.free
        Length of the horizon; ``cf.free(2.0, lower=0.1)`` lets it be chosen.
    minimise : casadi.SX or float
        Any expression of `integral`, `at_end`, `final_time`, parameters, and quantities, ``cf.quantity("x(0)")``.
    inputs : mapping from input to Input.free, Input or float
        Free and fixed inputs.
    constraints : sequence of relations
        ``cf.along(x <= 1)`` at all times, ``cf.at(3, x == 0)`` at some, ``cf.at_end(x) == 1``,
        ``cf.integral(u) <= 2``, ``k1 <= k2``.
    parameters : mapping from str to float or Parameter, Result, or a list of these
        Numbers, or quantities to optimise: ``cf.Parameter(1.0, bounds=(0, 2))``; a result supplies its estimates and
        the fixed parameters of its problem.  A list defines scenarios, which share the inputs and the optimised
        quantities.
    initial : mapping from state to float, expression or cf.free
        Initial states that the model does not specify, or others; ``cf.free`` optimises one, named ``x(0)``.
    start : float
        Time at the beginning of the horizon.
    transcription : {"collocation", "multiple"} or Collocation
        Collocation, or multiple shooting with Runge-Kutta steps; refined until the integrated model agrees.
    solver : Ipopt, optional
        IPOPT alone, with these options; by default Gauss-Newton near a solution if the objective is a sum of squares,
        otherwise IPOPT.
    scenarios : {"mean", "worst"}
        Whether the mean of the objective over all scenarios or its largest value is minimised.
    soft : float, optional
        Price of each unit of the largest violation of constraints along the horizon, which are hard by default.  A
        closed loop may start outside of them.
    starts : int
        Number of starting points: the guesses, and points drawn within the bounds.
    rng : int or Generator
        Draws the starting points.
    max_time : float
        Seconds, after which the best iterate is returned.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        Listing every mistake.

    Examples
    --------
    >>> import castfit as cf
    >>> a, b, u = cf.symbols("a b u")
    >>> model = cf.Model({a: -(u + u**2 / 2) * a, b: u * a}, inputs=[u], initial={a: 1, b: 0})
    >>> free = {"u": cf.Input.free(pieces=20, kind="linear", bounds=(0, 5))}
    >>> plan = cf.control(model, horizon=1, inputs=free, minimise=-cf.at_end(b))
    >>> plan.success, round(plan.objective, 3)
    (True, -0.574)
    """
    start_time, mistakes = time.process_time(), list[str]()
    solver_settings = _read_method(model, inputs, transcription, solver, starts, rng, max_time, mistakes)
    question = read_question(
        model, horizon, inputs, minimise, constraints, parameters, initial, start, scenarios, soft, mistakes
    )  # fmt: skip
    for name in question.unlimited_inputs:
        warnings.warn(unbounded_input_message(name), UserWarning, stacklevel=3)
    return ControlSolver(question, PlanVerifier(question), *solver_settings).plan(start_time)


def _step_amplification(z: float) -> float:
    """Return the growth factor of errors in a Runge-Kutta step of z decay times, at least 1."""
    return max(abs(1.0 - z + z**2 / 2.0 - z**3 / 6.0 + z**4 / 24.0), 1.0)


def _read_method(
    model: Any, inputs: Any, transcription: Any, solver: Any, starts: Any, rng: Any, max_time: Any, mistakes: list[str]
) -> tuple[Any, ...]:
    """Read the settings of a `ControlSolver`: method, grid, tolerance, solver and starts."""
    method, elements, tolerance = StageMethod(), FIRST_ELEMENTS, 1e-7
    if isinstance(transcription, Collocation):
        method, tolerance = StageMethod(transcription.degree, transcription.scheme), transcription.tolerance
        are_default = is_one_of(transcription.states, "data"), transcription.integrator == Collocation().integrator
        mistakes += [
            f"Collocation({name}=...) has an effect only in fits; remove it"
            for name, is_default in zip(("states", "integrator"), are_default, strict=True)
            if not is_default
        ]
        input_values = cast("Mapping[Any, Any]", inputs).values() if isinstance(inputs, Mapping) else ()
        n_pieces = max((u.pieces for u in input_values if isinstance(u, FreeInput)), default=1)
        if is_count(transcription.elements, 1):
            elements = int(transcription.elements)
            if elements < n_pieces:
                mistakes.append(
                    f"Collocation has {elements} elements and an input {n_pieces} pieces, and no element may "
                    f"hold a jump; give elements={n_pieces} or more, or fewer pieces"
                )
        elif transcription.elements != "auto":
            mistakes.append("Collocation(elements=...) is neither a number nor 'auto'; there are no data here")
    elif is_one_of(transcription, "multiple", "multiple shooting"):
        method = StageMethod(steps=_MIN_RK4_STEPS)
        if getattr(model, "algebraic_states", ()):
            mistakes.append("the model has algebraic states, and Runge-Kutta steps none; choose 'collocation'")
    elif not is_one_of(transcription, "collocation"):
        mistakes.append(
            f"transcription is {shorten_repr(transcription)}; give 'collocation', cf.Collocation() or 'multiple'"
        )
    if solver is not None and not (isinstance(solver, Ipopt) and solver.hessian in ("auto", "exact")):
        mistakes.append(f"solver is {shorten_repr(solver)}; give cf.Ipopt(...), whose Hessian is exact here")
    limit = read_real(max_time)
    mistakes += option_mistakes(
        ("starts", starts, is_count(starts, 1), "give the number of starts, 1 or more"),
        ("max_time", max_time, limit is not None and limit > 0.0, "give seconds"),
    )
    if is_count(starts, 2) and rng is None:
        mistakes.append("several starts are drawn at random; give rng=0, say, so that they can be drawn again")
    if is_one_of(starts, 1) and rng is not None:
        mistakes.append("rng is for several starts; give starts=10, say, or leave it out")
    mistakes += rng_mistakes(rng)
    return method, elements, tolerance, solver, starts, rng, limit


@dataclass(frozen=True, eq=False)
class ControlSolver(ProcessLocal):
    """Solver settings of a control question: `plan` solves it, `replan` solves it for other initial states."""

    question: ControlQuestion
    verifier: PlanVerifier
    method: StageMethod
    elements: int
    tolerance: float
    solver: Ipopt | None
    starts: int
    rng: Any
    max_time: float

    @property
    def max_steps(self) -> int:
        """The most Runge-Kutta steps in a stage."""
        return max(min(_MAX_RK4_STEPS, _MAX_STATE_STEPS // max(len(self.question.model.states), 1)), _MIN_RK4_STEPS)

    def plan(self, start_time: float) -> Plan:
        """Solve from every start, and from more starts until a plan is found; return the best plan.

        Only plans that the integrated model confirms are compared.
        """
        solutions = list[PlanSolution]()
        with with_deadline(self.max_time) as watch:
            for transcribed, x in self._generate_starts(watch):
                solutions.append(self._solve_from(transcribed, x, watch))
                is_settled = solutions[-1].is_unbounded or transcribed.program.linear
                is_enough = is_settled or any(s.is_confirmed for s in solutions)
                if watch.cause is not None or (len(solutions) >= self.starts and is_enough):
                    break
        confirmed = [s for s in solutions if s.is_confirmed]
        best_solution = (
            confirmed[first_argmin([s.objective for s in confirmed])]
            if confirmed
            else solutions[first_argmin([s.failure_rank for s in solutions])]
        )
        best = build_plan(best_solution, self, start_time)
        if len(solutions) == 1:
            return best
        n_at_best = sum(abs(s.objective - best.objective) <= 1e-5 * max(abs(best.objective), 1e-12) for s in confirmed)
        starts_message = (
            f"{len(solutions)} starts: {len(confirmed)} found a plan that the integrated model confirms, "
            f"{n_at_best} of them with this objective."
        )
        return replace(best, message=f"{best.message} {starts_message}")

    def _generate_starts(self, watch: Deadline) -> Iterator[tuple[TranscribedPlan, Array]]:
        """Generate starts: the guess and drawn points; then other states and lengths of the horizon with the guess.

        States are integrated for the guess, and on a line if the end is constrained for the others, of which the last
        ones are the nearest feasible points for fixed lengths of a free horizon.
        """
        guess, rng, has_free_horizon = (
            self._build_guess(),
            np.random.default_rng(self.rng),
            self.question.has_free_horizon,
        )
        yield self._prepare(guess)
        for _ in range(self.starts - 1):
            drawn_decision = self._draw_start(rng)
            yield self._prepare(drawn_decision, self._build_lines(drawn_decision), is_random=True)
        lines = self._build_lines(guess)
        if lines:
            yield self._prepare(guess, lines, is_random=True)
        for factor in _HORIZON_FACTORS if has_free_horizon else (1.0,):
            decision = guess.with_scaled_horizon(factor) if has_free_horizon else guess
            transcribed, x = self._prepare(decision, self._build_lines(decision), is_random=True)
            lower, upper = transcribed.bounds()
            if has_free_horizon:
                lower[transcribed.layout.quantities[0]] = upper[transcribed.layout.quantities[0]] = x[
                    transcribed.layout.quantities[0]
                ]
            nearest = transcribed.feasibility_program.find_nearest(x, transcribed.P, lower, upper, watch)
            if has_free_horizon or nearest.status is not Status.INFEASIBLE:  # another length may be feasible
                yield transcribed, nearest.x

    def _build_lines(self, decision: DecisionValues) -> list[PlanTrajectory]:
        """Return trajectories on lines to the nearest states that satisfy the constraints at the end.

        Return an empty list if the initial states satisfy them.
        """
        transcribed = self._unscaled_plan
        quantities, horizon = decision.quantities_by_name(self.question), decision.horizon(self.question)
        lines = [
            self.verifier.build_line(parameters, initial_states, decision.inputs(self.question), quantities, horizon)
            for parameters, initial_states in zip(
                *transcribed.compute_initial_states(decision, transcribed.P), strict=True
            )
        ]
        return lines if any(np.ptp(c.x, axis=0).any() or c.integrals.any() for c in lines) else []

    def _build_guess(self) -> DecisionValues:
        question = self.question
        values = [u.build_start_values(question.start, question.horizon) for u in question.free_inputs.values()]
        quantities = np.array([q.guess for q in question.quantities])
        return DecisionValues(np.concatenate(values) if values else np.empty(0), quantities)

    def _draw_start(self, rng: np.random.Generator) -> DecisionValues:
        """Draw inputs with a few levels, and quantities, within their bounds."""
        initial_decision, values, question = self._build_guess(), list[Any](), self.question
        for u in question.free_inputs.values():
            guess = u.build_start_values(question.start, question.horizon)
            size = max(float(np.abs(guess).max()), 1.0)
            low = u.lower if np.isfinite(u.lower) else min(u.upper, float(guess.min())) - size
            knots = rng.uniform(low, u.upper if np.isfinite(u.upper) else max(u.lower, float(guess.max())) + size, 5)
            values.append(np.interp(np.linspace(0.0, 4.0, u.size), np.arange(5), knots))
        drawn_quantities: list[float] = []
        for q, guess in zip(question.quantities, initial_decision.quantities, strict=True):
            finite = np.isfinite(q.lower) and np.isfinite(q.upper)
            drawn_quantities.append(
                rng.uniform(q.lower, q.upper)
                if finite
                else float(np.clip(guess * rng.uniform(0.5, 2.0), q.lower, q.upper))
            )
        return DecisionValues(np.concatenate(values) if values else np.empty(0), np.array(drawn_quantities))

    @cached_property
    def _unscaled_plan(self) -> TranscribedPlan:
        """The question on the first grid, for times and initial states."""
        return TranscribedPlan(self.question, self.method, StageGrid.from_question(self.question, self.elements), None)

    def _prepare(
        self, decision: DecisionValues, courses: Sequence[PlanTrajectory | None] = (), *, is_random: bool = False
    ) -> tuple[TranscribedPlan, Array]:
        """Return the question in the units of trajectories, by default integrated ones, and variables on these."""
        question, unscaled = self.question, self._unscaled_plan
        p, x0 = unscaled.compute_initial_states(decision, unscaled.P)
        courses = courses or self._integrate_scenarios(unscaled, decision, p, x0, ())
        units = compute_units(question, [c for c in courses if c is not None], p, unscaled.state_term_indices)
        longest_stage = float(np.diff(unscaled.times(decision)[0]).max())
        method = self._choose_method(courses, p, longest_stage, is_random=is_random)
        graphs = unscaled.graphs if method == self.method else None
        transcribed = TranscribedPlan(question, method, unscaled.grid, units, graphs)
        return transcribed, transcribed.build_start(decision, courses, x0)

    def _solve_from(self, transcribed: TranscribedPlan, x: Array, watch: Deadline) -> PlanSolution:
        """Solve from variables x, and on finer grids from each solution, until the integrated model agrees."""
        question, plan_solution, size, P = self.question, None, 1.0, transcribed.P
        first_units = units = transcribed.units
        for k in range(_MAX_REFINEMENTS + 1):
            size_at_x = transcribed.program.measure(x, P)
            size = size_at_x if plan_solution is None or plan_solution.has_invalid_units else size
            previous, solution = plan_solution, self._solve_program(transcribed, x, P, size, watch, warm=k > 0)
            solution = self._prefer_small_inputs(transcribed, solution, P, size, watch)
            plan_solution = self._build_plan_solution(transcribed, solution, P, size, previous)
            refinement = (
                self._refine_discretisation(plan_solution, previous)
                if k < _MAX_REFINEMENTS and watch.cause is None
                else None
            )
            if plan_solution.has_invalid_units and units is first_units and refinement is None:
                refinement = transcribed.method, transcribed.grid
            if refinement is None:
                break
            if plan_solution.has_invalid_units:
                units = compute_units(
                    question,
                    [c for c in plan_solution.courses if c is not None],
                    plan_solution.p,
                    transcribed.state_term_indices,
                )
            refined = TranscribedPlan(
                question, *refinement, units, None if transcribed.method.steps else transcribed.graphs
            )
            x = refined.fill_variables(
                plan_solution.decision, transcribed.build_state_tables(plan_solution.solution.x, plan_solution.decision)
            )
            x[refined.layout.slack] = plan_solution.solution.x[transcribed.layout.slack]
            transcribed = refined
        assert plan_solution is not None
        return plan_solution

    def _choose_method(
        self, courses: Sequence[PlanTrajectory | None], p: Array, longest_stage: float, *, is_random: bool
    ) -> StageMethod:
        """Return the method, with enough Runge-Kutta steps in the longest stage to limit the growth of errors."""
        if not self.method.steps:
            return self.method
        fastest_rate = max(
            (
                self.verifier.compute_fastest_rate(c, parameters)
                for c, parameters in zip(courses, p, strict=True)
                if c is not None
            ),
            default=0,
        )
        steps = _MIN_RK4_STEPS
        while steps * np.log(_step_amplification(longest_stage * fastest_rate / steps)) > np.log(
            _MAX_ERROR_GROWTH
        ) and (steps < self.max_steps or not is_random):
            steps *= 2
        raise_if_mistakes(
            "control",
            []
            if steps <= self.max_steps or is_random
            else [
                f"the model is stiff: under the guess a component decays within {1 / fastest_rate:.2g}, so the "
                "Runge-Kutta "
                f"method would need {steps} steps in a stage of length {longest_stage:.2g} (limit {self.max_steps}); "
                "choose "
                "transcription='collocation'"
            ],
        )
        return replace(self.method, steps=steps)

    def _solve_program(
        self, transcribed: TranscribedPlan, x: Array, P: Array, size: float, watch: Deadline, *, warm: bool
    ) -> ProgramSolution:
        """Solve by Gauss-Newton steps from a warm start or for linear rows. Use IPOPT if these fail."""
        solver, bounds = self.solver or Ipopt(), transcribed.bounds()
        if (
            self.solver is None
            and (warm or transcribed.program.linear)
            and transcribed.program.gauss_newton is not None
        ):
            solution = transcribed.program.gauss_newton.solve(x, P, *bounds, size, watch, _MAX_GAUSS_NEWTON_STEPS)
            if solution is not None:
                return solution
        options = {
            "tol": solver.tolerance, "max_iter": solver.max_iter, "linear_solver": solver.linear_solver,
            "obj_scaling_factor": 1.0 / size, "diverging_iterates_tol": _DIVERGENCE_SIZE, **solver.options,
            **(_WARM_START_OPTIONS if warm else {}),
        }  # fmt: skip
        remaining_time = max(watch.deadline - time.perf_counter(), 1e-3)
        ipopt_solution, input_indices = (
            transcribed.program.solve(x, P, *bounds, options, remaining_time),
            transcribed.layout.inputs,
        )
        if warm or ipopt_solution.iterations or not ipopt_solution.status.success or not input_indices.size:
            return ipopt_solution
        perturbed = x.copy()  # the guess is stationary, but may be a maximum
        perturbed[input_indices] += _PERTURBATION_SIZE * transcribed.program.scale[input_indices]
        alternative = transcribed.program.solve(np.clip(perturbed, *bounds), P, *bounds, options, remaining_time)
        has_end = alternative.status.success or alternative.status is Status.DIVERGING
        integrated = self._build_plan_solution(transcribed, alternative, P, size).integrated_objective
        return alternative if has_end and integrated < ipopt_solution.objective else ipopt_solution

    def _prefer_small_inputs(
        self, transcribed: TranscribedPlan, solution: ProgramSolution, P: Array, size: float, watch: Deadline
    ) -> ProgramSolution:
        """Return the solution with a small additional cost of nonlinear inputs without cost, if it is as good."""
        if not self.question.nonlinear_inputs or solution.status in (Status.DIVERGING, Status.MAX_TIME):
            return solution
        transcribed.program.set_tie_break(size)
        small = self._solve_program(transcribed, solution.x, P, size, watch, warm=True)
        transcribed.program.set_tie_break(0.0)
        is_as_good = not solution.status.success or small.objective - solution.objective <= CONFIRMATION_RTOL * abs(
            solution.objective
        )
        total = solution.iterations + small.iterations
        return replace(small if small.status.success and is_as_good else solution, iterations=total)

    def _build_plan_solution(
        self,
        transcribed: TranscribedPlan,
        solution: ProgramSolution,
        P: Array,
        size: float,
        previous: PlanSolution | None = None,
    ) -> PlanSolution:
        """Integrate the model under the decided inputs and quantities, and evaluate its objective and constraints."""
        decision = transcribed.extract_decision(solution.x)
        p, x0 = transcribed.compute_initial_states(decision, P)
        courses = self._integrate_scenarios(transcribed, decision, p, x0)
        quantities_by_name, horizon = decision.quantities_by_name(self.question), decision.horizon(self.question)
        integrated_values = [
            None if c is None else self.verifier.evaluate_course(c, parameters, quantities_by_name, horizon)
            for c, parameters in zip(courses, p, strict=True)
        ]
        iterations, solvers = (0, ()) if previous is None else (previous.iterations, previous.solvers)
        solvers = tuple(dict.fromkeys([*solvers, solution.solver]))
        return PlanSolution(
            transcribed,
            solution,
            P,
            decision,
            p,
            courses,
            integrated_values,
            size,
            iterations + solution.iterations,
            solvers,
            np.nan if previous is None else previous.excess,
        )

    def _integrate_scenarios(
        self,
        transcribed: TranscribedPlan,
        decision: DecisionValues,
        p: Array,
        x0: Array,
        extra_points: tuple[float, ...] = CHECK_FRACTIONS,
    ) -> list[PlanTrajectory | None]:
        """Integrate every scenario, with output at edges and points of stages, and at additional fractions of each."""
        times, inputs = transcribed.times(decision, extra_points)[0], decision.inputs(self.question)
        return [
            self.verifier.integrate(parameters, initial_states, inputs, times)
            for parameters, initial_states in zip(p, x0, strict=True)
        ]

    def _refine_discretisation(
        self, plan_solution: PlanSolution, previous: PlanSolution | None
    ) -> tuple[StageMethod, StageGrid] | None:
        """Return a finer discretisation if errors or violations between points require one; else None."""
        transcribed, tolerance = plan_solution.transcribed, self.tolerance
        if not plan_solution.solution.status.success or any(c is None for c in plan_solution.courses):
            return None
        objective_change = (
            np.inf if previous is None else abs(plan_solution.integrated_objective - previous.integrated_objective)
        )
        is_converged = (
            objective_change <= tolerance * plan_solution.objective_size
            and plan_solution.objective_deviation <= _STALLED_RTOL
        )
        state_tolerance = (
            _FIRST_DEFECT_FACTOR * tolerance if previous is None else _MAX_DEFECT
        )  # states of unstable models never agree exactly
        is_accurate = (
            plan_solution.max_defect <= state_tolerance
            and (is_converged or plan_solution.objective_deviation <= tolerance)
            and plan_solution.excess <= max(1.0, tolerance / CONFIRMATION_RTOL)
        )
        if transcribed.method.steps:
            return None if is_accurate or transcribed.method.steps >= self.max_steps else (
                replace(transcribed.method, steps=2 * transcribed.method.steps), transcribed.grid)  # fmt: skip
        parts = np.where(plan_solution.find_violated_stages(), 2, 1)
        if not is_accurate:
            errors = transcribed.errors(plan_solution.solution.x, plan_solution.P, plan_solution.objective_size)
            limit = min(tolerance, _DIVISION_FRACTION * float(errors.max()))
            limit /= 1 if previous is None else transcribed.grid.stages  # errors may add up
            required_parts = np.ceil(1.1 * (np.maximum(errors, 1e-300) / limit) ** (1.0 / transcribed.method.order))
            parts = np.where(errors > limit, np.maximum(parts, np.clip(required_parts, 2, 4)), parts)
            if (
                plan_solution.max_defect > _LARGE_DEFECT
            ):  # so far from the model its errors say little: damped oscillations have none
                parts = np.maximum(parts, 2)
        max_stages = _MAX_STAGE_FACTOR * StageGrid.from_question(self.question, self.elements).stages
        if not (parts > 1).any() or parts.sum() > max_stages:
            return None
        return transcribed.method, transcribed.grid.subdivide(parts.astype(np.intp))

    def replan(self, plan: Plan, initial: Any, parameters: Any, inputs: Any, shift: Any, max_time: Any) -> Plan:
        """Plan for other numbers and inputs and a later start, from the plan shifted in time.

        The program stays if it depends on none of these but by numbers.
        """
        start_time, question, mistakes = time.process_time(), self.question, list[str]()
        plan_solution: PlanSolution = plan.solution
        shift_time, limit = read_real(shift), read_real(max_time)
        if shift_time is None or not 0.0 <= shift_time < plan.horizon:
            mistakes.append(f"shift is {shorten_repr(shift)}; give the time that has passed, less than the horizon")
            shift_time = 0.0
        if limit is None or not limit > 0.0:
            mistakes.append(f"max_time is {shorten_repr(max_time)}; give seconds")
        model, start, updates = question.model, question.start + shift_time, dict[str, dict[str, Any]]()
        for argument_name, new_values, valid in (
            ("initial", initial, [n for n, v in question.initial.items() if isinstance(v, float)]),
            ("parameters", parameters, [n for n in model.parameters if question.index_of(n) is None]),
            ("inputs", inputs, [*question.known_inputs]),
        ):
            values = {} if new_values is None else read_mapping(argument_name, new_values, mistakes)
            updates[argument_name] = dict(values)
            for n, value in values.items():
                number, is_input = read_real(value), argument_name == "inputs" and not isinstance(value, FreeInput)
                if n not in valid:
                    mistakes.append(f"{argument_name} names '{n}', which this plan does not fix: {suggest(n, valid)}")
                elif not is_input and (number is None or not np.isfinite(number)):
                    mistakes.append(f"{argument_name} gives '{n}' as {shorten_repr(value)}; give a finite number")
        signals = read_inputs(
            model, {**question.inputs, **updates["inputs"]}, start, plan.horizon, question.has_free_horizon, mistakes
        )
        raise_if_mistakes("Plan.again", mistakes)
        points = [replace(c, times=tuple(t for t in cast("Any", c.times) if not shift_time or t > start))
                  for c in question.points]  # fmt: skip
        moved_question = replace(
            question, start=start, inputs=signals, points=tuple(c for c in points if c.times),
            initial={**question.initial, **{n: float(v) for n, v in updates["initial"].items()}},
            scenarios=tuple(
                np.array([float(updates["parameters"].get(n, v)) for n, v in zip(model.parameters, p, strict=True)])
                for p in question.scenarios
            ),
        )  # fmt: skip
        guesses = [np.empty(0)]
        for n, u in question.free_inputs.items():
            edges = u.edges(question.start, plan.horizon)
            times = edges if u.linear else 0.5 * (edges[1:] + edges[:-1])
            guesses.append(plan.inputs[n](np.minimum(times + shift_time, edges[-1])))
        decision = replace(plan_solution.decision, values=np.concatenate(guesses))
        with with_deadline(float(limit or np.inf)) as watch:
            if updates["inputs"] or (
                shift_time and (points or any(u.breakpoints.size for u in question.known_inputs.values()))
            ):
                solver = replace(self, question=moved_question, verifier=PlanVerifier(moved_question))
                new_solution = solver._solve_from(*solver._prepare(decision), watch)
            else:
                solver = replace(self, question=moved_question)
                x, transcribed = plan_solution.solution.x, plan_solution.transcribed.with_numbers(moved_question)
                initial_x = transcribed.fill_variables(
                    decision, [(t - shift_time, states) for t, states in transcribed.build_state_tables(x, decision)]
                )
                initial_x[transcribed.layout.slack] = x[transcribed.layout.slack]
                numbers, size = transcribed.P, plan_solution.size
                program_solution = self._solve_program(transcribed, initial_x, numbers, size, watch, warm=True)
                new_solution = solver._build_plan_solution(transcribed, program_solution, numbers, size)
        return build_plan(new_solution, solver, start_time, check_determinacy=False)
