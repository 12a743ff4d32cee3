"""Search of a fit: solve, refine, check optimality and verify by integration; and the state that searches share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from castfit._support.records import dataclass
from castfit._support.reprs import join_limited
from castfit._support.status import Status
from castfit._support.time_limit import StopRequested, without_deadline
from castfit.fit.choice import TranscriptionChoice
from castfit.fit.methods import Solver, Transcription
from castfit.fit.refinement import Refinement
from castfit.fit.verification import Verification, objective_function, verify
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.constraints import ALONG
from castfit.simulate.simulate import SimulationError, TrajectoryNodes, trace
from castfit.solve.residual_plausibility import has_implausible_residuals
from castfit.solve.solution import Iteration, Solution, SolveControl, infeasibility
from castfit.solve.staged import Array, Evaluation, Layout, StagedProblem, name_violated
from castfit.solve.stationarity import nonstationary_quantities, without_invisible_slopes
from castfit.solve.subproblem import is_small_decrease, local_problem
from castfit.transcribe.trajectory import States

_MAX_REFINEMENTS = 8  # Limit on the mesh refinements of one search.
_MAX_ROUNDING_EFFECT_SD = 0.1  # Largest acceptable effect of rounding theta on a residual, in standard deviations.
# Relative difference of costs within which two attempts agree, and above which one is better.
_MIN_COST_GAIN_RTOL = 1e-3
# Part of a normalised gradient outside the span of earlier ones, below which its equation is redundant.
_REDUNDANT_ROW_FRACTION = 1e-4
_CONSTRAINT_TOLERANCE = 1e-6  # Largest accepted violation of a constraint, in its unit.
_MAX_CONSTRAINT_EXCHANGES = 8  # Limit on the repeated searches after an exchange of path-constraint points.
_INITIAL_STATE_RTOL = 1e-12  # Relative difference of initial states that counts as rounding.
_NOT_VERIFIED = "The solution was not verified"
_VERIFICATION_OVERTIME_SECONDS = 1.0  # Seconds beyond the time limit that the verification of a solution may take.
_MATCHING_TOLERANCE = 1e-6  # Largest gap of a continuous trajectory, in units of the states.


@dataclass(frozen=True)
class SolveStaging:
    """Staged problem to solve, with the transcription that built it.

    start_description : how the search was started; empty for the first search
    second_start : function that computes another starting point
    is_warm_start : whether the start is nearly optimal
    solver : solver that replaces that of the fit
    refinement : number of mesh refinements so far
    """

    transcription: Transcription
    staged: StagedProblem
    start_description: str = ""
    second_start: Callable[[], Array] | None = None
    is_warm_start: bool = False
    solver: Solver | None = None
    refinement: int = 0


@dataclass(frozen=True)
class SolveOutcome:
    """Solution returned by a solver, before verification."""

    staging: SolveStaging
    solution: Solution


@dataclass(frozen=True)
class Attempt(SolveOutcome):
    """Result of a solve after refinement and verification.

    linear : linearization at the end, or only an evaluation
    """

    linear: Evaluation
    verification: Verification | None

    @property
    def staged(self) -> StagedProblem:
        """Staged problem that was solved."""
        return self.staging.staged

    @property
    def transcription(self) -> Transcription:
        """Transcription of the staged problem."""
        return self.staging.transcription

    @property
    def theta(self) -> Array:
        """Estimates, (n_theta,), search scale."""
        return self.staged.layout.theta(self.solution.v)

    @property
    def nodes(self) -> list[TrajectoryNodes]:
        """Trajectory of each experiment."""
        v = self.solution.v
        times_and_states = zip(self.staged.times(v), self.staged.node_states(v), strict=True)
        return [TrajectoryNodes(times[:-1], states) for times, states in times_and_states]

    def with_status(self, status: Status, detail: str | None = None) -> Attempt:
        """Return a copy with another status."""
        new_detail = self.solution.detail if detail is None else detail
        return replace(self, solution=replace(self.solution, status=status, detail=new_detail))

    @property
    def is_plausible_solution(self) -> bool:
        """Whether this is a solution whose residuals may be noise."""
        return self.solution.status.success and not has_implausible_residuals(self.staged, self.linear)

    @property
    def has_small_residuals(self) -> bool:
        """Whether this is a solution with small residuals; residuals that only look like noise do not count."""
        return self.solution.status.success and not has_implausible_residuals(self.staged, self.linear, noisy=False)

    @property
    def is_cut_off(self) -> bool:
        """Whether the user or the time limit ended the search."""
        return self.solution.status.cut_off

    @property
    def is_continuous(self) -> bool:
        """Whether the trajectory is continuous, at a solution or not."""
        layout, scale = self.staged.layout, self.staged.scale
        return self.linear.ok and infeasibility(layout, scale, self.linear) <= _MATCHING_TOLERANCE

    @property
    def is_integrated_trajectory(self) -> bool:
        """Whether the trajectory is continuous and integrated, so that its cost is that of the model."""
        return self.staged.integrated and self.is_continuous

    @property
    def has_plausible_residuals(self) -> bool:
        """Whether the trajectory is continuous and its residuals may be noise, at a solution or not."""
        accurate = self.is_continuous and self.solution.status is not Status.INACCURATE
        return accurate and not has_implausible_residuals(self.staged, self.linear)

    def agrees_with(self, other: Attempt) -> bool:
        """Whether the other attempt is a solution, and this one has the same cost with a continuous trajectory.

        This attempt need not have converged: with large residuals, the last Gauss-Newton steps are many.
        """
        if not (other.solution.status.success and (self.solution.status.success or self.is_continuous)):
            return False
        return abs(self.linear.cost - other.linear.cost) <= _MIN_COST_GAIN_RTOL * other.linear.half_square

    def is_better_than(self, other: Attempt) -> bool:
        """Whether this attempt is preferred to another one.

        Plausible residuals count first, then convergence, then a significantly lower cost.
        """
        if self.has_plausible_residuals != other.has_plausible_residuals:
            return self.has_plausible_residuals
        is_success, is_other_success = self.solution.status.success, other.solution.status.success
        if is_success != is_other_success:
            return is_success
        margin = _MIN_COST_GAIN_RTOL * other.linear.half_square if other.linear.ok else 0.0
        return bool(self.linear.cost < other.linear.cost - margin)


@dataclass(frozen=True)
class VisitedPoint:
    """Point that an attempt reached, with its cost; `joined` if this is the cost of the integrated model."""

    problem: CompiledProblem
    theta: Array
    cost: float
    is_integrated: bool


@dataclass
class FitRun:
    """Shared state and counters of the searches of one fit."""

    problem: CompiledProblem
    solver: Solver
    deadline: float
    report: Callable[[Iteration], Any] | None
    report_line: Callable[[str], None]
    verify: bool = True
    second_start: bool = True
    retry: bool = True
    choice: TranscriptionChoice | None = None
    iterations: int = 0
    evaluations: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    history: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    strategies: list[str] = field(default_factory=list[str])
    n_attempts: int = 0
    low_accuracy_rtol: float = 0.0
    cached_simulation: tuple[CompiledProblem, Array, StagedProblem] | None = None
    visited_points: list[VisitedPoint] = field(default_factory=list["VisitedPoint"])
    matched_theta: Array | None = None

    @property
    def remaining(self) -> float:
        """Seconds until the time limit."""
        return self.deadline - time.perf_counter()

    def start_strategy(self, words: str, line: str) -> None:
        """Record the start of a strategy, and report a line about it."""
        self.n_attempts += 1
        self.strategies.append(words)
        self.report_line(line)

    def attempt(self, staging: SolveStaging, *, exchanged: bool = True) -> Attempt:
        """Solve with refinements, then verify; `exchanged`: also exchange the points of path constraints."""
        elements = MeshRefinement(self)
        attempt = self._verify_attempt(elements.refine_until_done(self.solve(elements.prepare(staging)), self.solve))
        if exchanged:
            solve_again = partial(self.attempt, exchanged=False)
            attempt = RedundantConstraintRemoval(self).refine_until_done(attempt, solve_again)
            attempt = PathConstraints(self).refine_until_done(attempt, solve_again)
        self.visited_points.append(
            VisitedPoint(self.problem, attempt.theta.copy(), attempt.linear.cost, attempt.is_integrated_trajectory)
        )
        return attempt

    def solve(self, staging: SolveStaging) -> SolveOutcome:
        """Solve a staged problem, and add the counts and history of the solution to the run."""
        control = SolveControl(
            self.remaining, self._reporting(staging.staged.layout), staging.second_start, self.low_accuracy_rtol
        )
        solution = (staging.solver or self.solver).solve(staging.staged, control, warm=staging.is_warm_start)
        self.evaluations.update(solution.evaluations)
        self.failures.update(solution.failures)
        entry_fields = {"refinement": staging.refinement} | ({"try": self.n_attempts} if self.n_attempts else {})
        self.history += [{**entry, **entry_fields} for entry in solution.history]
        self.iterations += solution.iterations
        return SolveOutcome(staging, solution)

    def _reporting(self, layout: Layout) -> Callable[[Iteration], Any] | None:
        """Return the report callback extended by the objective of the result. Return None if there is no callback."""
        report, measure = self.report, self.problem.measure
        if report is None:
            return None
        objective = objective_function(self.problem, layout)
        return lambda iteration: report(
            replace(iteration, objective=objective(iteration.v, iteration.cost, iteration.chi2), measure=measure)
        )

    def _verify_attempt(self, solved: SolveOutcome) -> Attempt:
        staging, solution = solved.staging, solved.solution
        seconds_left = self.remaining
        with without_deadline():  # takes one or two evaluations; without them, the work would be lost
            solution, linear = verify_solution(
                staging.staged, close_initial_gap(staging.staged, solution), seconds_left, self.low_accuracy_rtol
            )
            solution = _name_underflow(self.problem, _name_violated(staging.staged, solution, linear))
            verification = None
            if self.verify:
                solution, verification = _verified(self.problem, staging, solution, linear)
        return Attempt(staging, solution, linear, verification)


class MeshRefinement(Refinement[SolveStaging, SolveOutcome]):
    """Refinement of the mesh until the transcription agrees with the integrator."""

    subject = "elements of collocation"

    def __init__(self, run: FitRun) -> None:
        self.run = run
        self.stop_reason: tuple[Status, str] | None = None

    def prepare(self, question: SolveStaging) -> SolveStaging:
        """Scale constraints by the size of their derivatives."""
        return replace(question, staged=_in_units(question.staged))

    def next_question(self, answer: SolveOutcome) -> SolveStaging | None:
        """Return the finer problem, from the solution."""
        staging, solution = answer.staging, answer.solution
        if not solution.status.success:
            return None
        try:
            finer_staged = staging.transcription.refine(self.run.problem, staging.staged, solution.v)
        except StopRequested as stop_reason:
            self.stop_reason = stop_reason.status, "The accuracy of the elements was not checked."
            return None
        count = staging.refinement
        if finer_staged is None or count == _MAX_REFINEMENTS:
            message = (
                f"After {count} mesh refinements the solution still differs from the integrator; use more elements."
            )
            self.stop_reason = None if finer_staged is None else (Status.ACCEPTABLE, message)
            return None
        finer_staged = _in_units(finer_staged)
        self.run.report_line(f"refined to {finer_staged.layout.n_v} variables")
        return replace(staging, staged=finer_staged, second_start=None, is_warm_start=True, refinement=count + 1)

    def conclude(self, answer: SolveOutcome) -> SolveOutcome:
        """Set status and detail if the elements are not accurate enough or were not checked."""
        if self.stop_reason is None:
            return answer
        status, detail = self.stop_reason
        return replace(answer, solution=replace(answer.solution, status=status, detail=detail))


class RedundantConstraintRemoval(Refinement[SolveStaging, Attempt]):
    """Removal of equality constraints that are implied by others, whose multipliers are undetermined."""

    subject = "redundant equality constraints"

    def __init__(self, run: FitRun) -> None:
        self.run, self.redundant_names = run, tuple[str, ...]()
        self.stop_status: Status | None = None

    def next_question(self, answer: Attempt) -> SolveStaging | None:
        """Return the problem without redundant equations, once."""
        if self.redundant_names or answer.is_cut_off:
            return None
        follow = find_redundant_equations(answer.staged.layout, answer.linear, answer.staged.scale)
        if not follow:
            return None
        self.redundant_names, run, transcription = follow, self.run, answer.staging.transcription
        run.problem = run.problem.without_relations(follow)
        run.report_line(f"{', '.join(follow)} is implied by other constraints; solving without it")
        try:
            return SolveStaging(
                transcription, transcription.transcribe(run.problem, answer.theta), answer.staging.start_description
            )
        except StopRequested as stop_reason:
            self.stop_status = stop_reason.status
            return None

    def conclude(self, answer: Attempt) -> Attempt:
        """Set the status if the search was stopped, or if a released equation does not hold at the solution."""
        if self.stop_status is not None:
            return answer.with_status(self.stop_status)
        if not (self.redundant_names and answer.solution.status.success):
            return answer
        problem = self.run.problem
        natural = problem.to_natural(answer.theta)
        contradictions = [m for r in problem.implied_relations for m in r.contradictions(natural)]
        return answer.with_status(Status.INACCURATE, "; ".join(contradictions)) if contradictions else answer


class PathConstraints(Refinement[SolveStaging, Attempt]):
    """Addition of points to path constraints until they hold between points (castfit.fit.constraint_exchange)."""

    subject = "path constraints between the discretisation points"

    def __init__(self, run: FitRun) -> None:
        self.run, self.exchanges = run, 0
        self.stop_reason: tuple[Status, str | None] | None = None

    def next_question(self, answer: Attempt) -> SolveStaging | None:
        """Return the problem with points at the worst violations, started at the end of the last search."""
        run, staging = self.run, answer.staging
        has_path_constraints = any(c.times == ALONG for c in run.problem.path)
        if not (has_path_constraints and answer.solution.status.success and run.verify):
            return None
        from castfit.fit.constraint_exchange import worst_violation

        try:
            violation = worst_violation(run.problem, answer.staged, answer.solution.v, staging.transcription.integrator)
            if violation is None or self.exchanges == _MAX_CONSTRAINT_EXCHANGES:
                self.stop_reason = None if violation is None else (Status.INACCURATE, violation.sentence)
                return None
            self.exchanges += 1
            run.problem = run.problem.with_watched_times(violation.times)
            run.report_line(f"{violation.sentence} The constraint is now also enforced there.")
            transcription = with_start_trajectory(run.problem, staging.transcription, answer.theta, answer.nodes)
            return SolveStaging(
                transcription,
                transcription.transcribe(run.problem, answer.theta),
                staging.start_description,
                is_warm_start=True,
            )
        except SimulationError as error:
            self.stop_reason = Status.INACCURATE, str(error)
        except StopRequested as stop_reason:
            self.stop_reason = stop_reason.status, None
        return None

    def merge_answers(self, previous_answer: Attempt, new_answer: Attempt) -> Attempt:
        """Return the later attempt, with the requested transcription."""
        return replace(
            new_answer, staging=replace(new_answer.staging, transcription=previous_answer.staging.transcription)
        )

    def conclude(self, answer: Attempt) -> Attempt:
        """Set the status if a path constraint is still violated or could not be checked."""
        return answer if self.stop_reason is None else answer.with_status(*self.stop_reason)


def _in_units(staged: StagedProblem) -> StagedProblem:
    """Scale constraints by the size of their derivatives; return the problem unchanged if no time is left."""
    try:
        return staged.in_units()
    except StopRequested:
        return staged


def with_start_trajectory(
    problem: CompiledProblem, transcription: Transcription, theta: Array, nodes: list[TrajectoryNodes]
) -> Transcription:
    """Return the transcription with its states started from the trajectory through given nodes."""
    if not has_states(transcription):
        return transcription
    return with_state_start(transcription, trace(problem, theta, nodes, transcription.integrator))


def has_states(transcription: Transcription) -> bool:
    """Whether the starting values of the transcription's states can be set."""
    return is_dataclass(transcription) and any(f.name == "states" for f in fields(transcription))


def with_state_start(transcription: Transcription, states: States) -> Transcription:
    """Return the transcription with other starting values of its states."""
    return replace(cast("Any", transcription), states=states)


def find_redundant_equations(layout: Layout, linear: Evaluation, scale: Array) -> tuple[str, ...]:
    """Return the names of equations whose gradients are nearly linear combinations of earlier gradients."""
    equality_indices = np.flatnonzero(layout.relations.lower == layout.relations.upper)
    if equality_indices.size < 2 or not linear.ok:
        return ()
    rows = linear.related_jacobian[equality_indices] * scale[: layout.n_theta]
    lengths = np.linalg.norm(rows, axis=1)
    basis, redundant_names = np.empty((0, layout.n_theta)), list[str]()
    for i, row, length in zip(equality_indices, rows, lengths, strict=True):
        unit = row / length if length > 0.0 else row
        remainder = unit - basis.T @ (basis @ unit)
        size = float(np.linalg.norm(remainder))
        if size <= _REDUNDANT_ROW_FRACTION:
            redundant_names.append(layout.relations.names[i])
        else:
            basis = np.vstack([basis, remainder / size])
    return tuple(redundant_names)


def _name_violated(staged: StagedProblem, solution: Solution, linear: Evaluation) -> Solution:
    """Name the largest constraint violations that a failed search leaves."""
    if solution.status.success or not linear.ok or "Largest violations" in solution.detail:
        return solution
    worst_violations = name_violated(staged.layout, linear, _CONSTRAINT_TOLERANCE)[:3]
    if not worst_violations:
        return solution
    listing = "; ".join(f"{name} by {amount:.2g}" for name, amount in worst_violations)
    return replace(solution, detail=f"{solution.detail} Largest violations: {listing}.".strip())


def _name_underflow(problem: CompiledProblem, solution: Solution) -> Solution:
    """Return no solution if a quantity became 0, which is infinitely far away on a logarithmic scale."""
    theta = solution.v[: len(problem.names)]
    is_zero = problem.log & (problem.to_natural(theta) == 0.0) & (theta > problem.bounds[0])
    if not (solution.status.success and is_zero.any()):
        return solution
    names = join_limited(problem.names[j] for j in np.flatnonzero(is_zero))
    detail = f"{names} became 0, which a logarithmic scale never reaches: use scale='linear' with lower=0."
    return replace(solution, status=Status.DIVERGING, detail=detail)


def close_initial_gap(staged: StagedProblem, solution: Solution) -> Solution:
    """Return a solution whose trajectories start exactly at the estimated or fixed initial values.

    Solvers close this gap up to a tolerance in units of the states; a small state that grows may be sensitive to it.
    """
    if not solution.status.success:
        return solution
    v, is_changed = solution.v.copy(), False
    for chain, chain_values in zip(staged.layout.chains, staged.evaluate(solution.v).values, strict=True):
        if (
            chain.n_s
            and (np.abs(chain_values.a - v[chain.nodes[0]]) > _INITIAL_STATE_RTOL * np.abs(chain_values.a)).any()
        ):
            v[chain.nodes[0]], is_changed = chain_values.a, True
    return replace(solution, v=v) if is_changed and staged.evaluate(v).ok else solution


def verify_solution(
    staged: StagedProblem, solution: Solution, seconds_left: float = np.inf, low_accuracy_rtol: float = 0.0
) -> tuple[Solution, Evaluation]:
    """Linearize at the end, or at least evaluate; change the status if the point is not a solution.

    A point is not a solution if rounding errors exceed the measurement errors, or if the objective still decreases.  If
    a linearization would take far more than the seconds that are left, the point is only evaluated, and the detail
    says that it was not verified.  A point that is only a start may leave the fraction `low_accuracy_rtol` of the
    half-square, as its search did.
    """
    cached_local, solution = solution.local, replace(solution, local=None)  # it holds as much memory as the derivatives
    expected_seconds = staged.seconds_to_linearize(solution.v)
    if expected_seconds > max(seconds_left, _VERIFICATION_OVERTIME_SECONDS):
        status = Status.MAX_TIME if solution.status.success else solution.status
        note = (
            ""
            if _NOT_VERIFIED in solution.detail
            else f"{_NOT_VERIFIED}, which would take about {expected_seconds:.2g} s."
        )
        detail = f"{solution.detail} {note}".strip()
        return replace(solution, status=status, detail=detail), staged.evaluate(solution.v)
    linear = staged.linearize(solution.v)
    if not linear.ok:
        return solution, staged.evaluate(solution.v)
    if solution.status in (Status.INTERRUPTED, Status.STOPPED_BY_CALLBACK):
        return solution, linear
    theta = np.maximum(np.abs(staged.layout.theta(solution.v)), 1e-300)
    largest_shift, label = 0.0, ""
    for chain, blocks in zip(staged.layout.chains, linear.jacobians, strict=True):
        if chain.n_s == 0 and blocks.R_q.size:
            residual_shifts = np.abs(blocks.R_q).max(axis=(0, 1)) * theta[chain.theta] * np.finfo(float).eps
            j = int(np.argmax(residual_shifts))
            if residual_shifts[j] > largest_shift:
                largest_shift, label = (
                    float(residual_shifts[j]),
                    f"{staged.layout.names[chain.theta[j]]} ({chain.name})",
                )
    if largest_shift > _MAX_ROUNDING_EFFECT_SD:
        detail = f"Rounding errors of {label} alone change a residual by {largest_shift:.1g} standard deviations."
        return replace(solution, status=Status.UNRESOLVABLE, detail=detail), linear
    if not solution.status.success:
        return solution, linear
    is_same_point = cached_local is not None and cached_local.linearization is linear
    local = cached_local.unregularized if cached_local is not None and is_same_point else local_problem(staged, linear)
    if low_accuracy_rtol > 0.0 and is_small_decrease(staged, linear, local.predicted_decrease, low_accuracy_rtol):
        return solution, linear
    solution, local = without_invisible_slopes(solution, local)
    linear, falling_names = local.linearization, nonstationary_quantities(local)
    if falling_names:
        detail = f"The objective still decreases along {', '.join(falling_names)}."
        return replace(solution, status=Status.STEP_TOO_SMALL, detail=detail), linear
    return solution, linear


def _verified(
    problem: CompiledProblem, staging: SolveStaging, solution: Solution, linear: Evaluation
) -> tuple[Solution, Verification | None]:
    if not solution.status.success or not linear.ok:
        return solution, None
    staged, transcription = staging.staged, staging.transcription
    verification = verify(problem, staged, linear, transcription.integrator, transcription.accuracy)
    if verification.is_reproduced:
        return solution, verification
    return replace(
        solution, status=Status.INACCURATE, detail=f"{verification.sentence} {solution.detail or _remedy(staged)}"
    ), verification


def _remedy(staged: StagedProblem) -> str:
    """Return a suggestion for the case that the search found no solution."""
    if not staged.integrated:
        return "Use more elements, elements='auto', or another starting point."
    if staged.layout.chains[0].n_s:
        return "Use another starting point, bounds, or tighter integrator tolerances."
    return "Tighten the integrator tolerances, or use MultipleShooting or Collocation."
