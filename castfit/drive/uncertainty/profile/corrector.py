"""Solutions with a fixed target, each with the slope, the curvature and the tangent of the path.

A few full Gauss-Newton steps lead from the predicted point to the solution.  Each step is tested:

    dv_k        full step from v_k, by the derivatives there
    dv'_k       simplified step from v_k + dv_k, by the same derivatives         (Peifer and Timmer 2007, Eq. 15)

    |dv'_k| <= 1/2 |dv_k|,  or back to the solver         (the natural monotonicity test, for full steps)

Near a path, two linearizations suffice: one at the predicted point, and one at the solution, which confirms the
solution and continues the path.  If a test fails, the solver takes over.

    v(c + h)  ~  v(c) + h v'(c) + ...

v' is the response of the linearized problem: the Gauss-Newton step for a change of the bounds, or of the row, that fix
the coordinate.  The same step gives the slope and the curvature of the profile, so that each solution defines a
parabola:

    d cost/dc = u . E x',      d2 cost/dc2 ~ |E x'|^2          (u + E x: the condensed rows, `castfit.solve.condensing`)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit._support.time_limit import StopRequested, with_deadline
from castfit.drive.uncertainty.profile.branches import ProfilePoint
from castfit.drive.uncertainty.profile.targets import Target, undecorated, with_start
from castfit.fit.attempt import has_states
from castfit.fit.methods import Solver, Transcription
from castfit.fit.verification import verify
from castfit.problem.compiled_problem import CompiledProblem
from castfit.result.covariance import residuals
from castfit.solve.fallback_thresholds import FALLBACK_THRESHOLDS
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.homotopy import within_bounds
from castfit.solve.solution import CountingProblem, Solution, SolveControl, infeasibility
from castfit.solve.staged import Linearization, StagedProblem
from castfit.solve.step_control import LineSearch
from castfit.solve.subproblem import (
    MATCHING_TOLERANCE,
    ActiveSet,
    LocalProblem,
    Step,
    is_small_decrease,
    local_problem,
)
from castfit.transcribe.single_shooting import SingleShooting

ENDED = (Status.INTERRUPTED, Status.MAX_TIME)
REGULARISATION_WEIGHT = 1e-9  # ridge of the scaled normal equations, for directions that no row determines

READOUT_COST_RTOL = 2e-5  # of the cost: error of a solution at which results are read
_FULL_STEP_COST_RTOL = 1e-2  # of the cost: error of a solver's result that full steps can correct
_MAX_DAMPED_ITERATIONS = 200  # Levenberg-Marquardt iterations beyond the end of a branch
_MAX_POINT_ITERATIONS = 25  # iterations of the solver at one point of a profile; two or three are usual
_MAX_POINT_ROUNDS = 7  # rounds of mesh refinement and rescue at one point
_MAX_FULL_STEPS = 8  # full steps of one correction
_MAX_CONTRACTION_RATE = 0.5  # length of the simplified step, relative to the full step that precedes it
_SMALL_STEP_FRACTION = 2e-4  # of the magnitudes of the variables: a smaller step is not tested
_MIN_STEP_COSINE = 0.9  # cosine of successive steps, above which they are extrapolated to their sum
_MIN_RELAXATION, _MAX_RELAXATION = 0.5, 6.0  # range of the factor of a full step


@dataclass(frozen=True, eq=False)
class CorrectedPoint:
    """A solution v (n_v,), the problem linearized there, and the last small step, which is not taken."""

    v: Array
    local: LocalProblem
    step: Step


def correct(ledger: CountingProblem, staged: StagedProblem, tolerance: float) -> CorrectedPoint | None:
    """Return the solution near the start of a staged problem; None if full steps do not converge to it.

    At a solution, a full step is predicted to decrease the cost by at most the fraction `tolerance` of half the squares
    of all rows.

    Raises StopRequested if the time is over or Ctrl-C was pressed.
    """
    active, previous_change, factor = None, None, 1.0
    v = within_bounds(staged, staged.start)
    for n in range(_MAX_FULL_STEPS + 1):
        linearization = ledger.linearize(v)
        if not linearization.ok:
            return None
        local, step = _direction(staged, linearization, active)
        if step is None:
            return None
        row_change = step.residuals - local.condensed.u
        factor = 1.0 if previous_change is None else _relaxation(row_change, previous_change, factor)
        gap = infeasibility(staged.layout, staged.scale, linearization)
        if gap <= MATCHING_TOLERANCE and is_small_decrease(staged, linearization, factor * step.decrease, tolerance):
            return CorrectedPoint(linearization.v, local, step)
        if n == _MAX_FULL_STEPS or not step.feasible:
            return None
        search, curvature_step, trial = LineSearch(ledger, local, step, linearization, {}), None, linearization
        if factor * search.norm(step.dv) <= _SMALL_STEP_FRACTION:  # the square of such a step opens no gap
            v = within_bounds(staged, linearization.v + factor * step.dv)
            active, previous_change = step.active, row_change
            continue
        for trial_factor in dict.fromkeys((factor, 1.0)):
            factor = trial_factor
            trial = search.trial(factor * step.dv)
            simplified = local.correction(trial) if trial.ok else None
            # The curvature part of the simplified step, which is zero for a linear problem.
            curvature_step = None if simplified is None else simplified.dv - (1.0 - factor) * step.dv
            if curvature_step is not None and search.norm(
                curvature_step
            ) <= _MAX_CONTRACTION_RATE * factor * search.norm(step.dv):
                break
        else:
            return None
        assert curvature_step is not None
        # This step closes most of the gaps that the full step has opened.
        v = within_bounds(staged, trial.v + curvature_step)
        active, previous_change = step.active, row_change
    return None


def _direction(
    staged: StagedProblem, linearization: Linearization, warm: ActiveSet | None = None
) -> tuple[LocalProblem, Step | None]:
    """Return the linearized problem and its step; None if it is not finite.

    The ridge holds singular directions as if no bound were active, which would keep the other variables from the
    optimum at an active bound.  The step there has no ridge.
    """
    local = local_problem(staged, linearization, warm=warm, regularisation=REGULARISATION_WEIGHT)
    step = local.direction() if local.is_finite else None
    if step is not None and (step.active.variables[staged.lower < staged.upper] != 0).any():
        local = local_problem(staged, linearization, warm=step.active)
        step = local.direction()
    return local, step


def _relaxation(row_change: Array, previous_change: Array, factor: float) -> float:
    """Compute the relaxation factor of a full step from the row residuals (m,) after the previous step."""
    inner_product, length = float(row_change @ previous_change), float(previous_change @ previous_change)
    if not inner_product**2 > _MIN_STEP_COSINE**2 * length * float(row_change @ row_change):
        return 1.0
    ratio = inner_product / length
    return float(np.clip(factor / (1.0 - ratio), _MIN_RELAXATION, _MAX_RELAXATION)) if ratio < 1.0 else 1.0


@dataclass
class CorrectorContext:
    """Path follower: the staged problem, refined along the path, the solver, and counts of evaluations.

    `cost` is the cost of the best fit and `error` its `misfit`; `wrap` adapts every new staged problem to the run.
    """

    compiled_problem: CompiledProblem
    transcription: Transcription
    solver: Solver
    staged: StagedProblem
    cost: float
    error: float
    wrap: Callable[[StagedProblem], StagedProblem]
    deadline: float = np.inf
    solves: int = 0
    evaluations: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        """Limit the iterations of a Gauss-Newton solver per point, because a shorter step is cheaper."""
        if isinstance(self.solver, GaussNewton):
            self.solver = replace(self.solver, max_iter=min(self.solver.max_iter, _MAX_POINT_ITERATIONS))

    def spot(
        self,
        target: Target,
        c: float,
        v: Array,
        h: float,
        *,
        cost_tolerance: float = READOUT_COST_RTOL,
        check: bool = False,
        thorough: bool = False,
        rescue: bool = True,
    ) -> ProfilePoint | Status:
        """Solve with the coordinate fixed at c, from v; h is a typical step, with its sign.

        cost_tolerance : relative excess of the cost over its minimum; the predicted excess is subtracted, so that the
            error is far smaller
        check : whether the mesh is checked, and refined if it is too coarse; takes as long as an iteration
        thorough : whether the solution may be far from v
        rescue : whether single shooting may take over if the solve fails with states as variables
        """
        for _ in range(_MAX_POINT_ROUNDS):
            fixed_problem = with_start(target.with_fixed_value(self.staged, c), v)
            try:
                solution = None if thorough else self._corrected(fixed_problem, cost_tolerance)
                if solution is None:
                    solution = self._solve_fixed_problem(fixed_problem, cost_tolerance, thorough=thorough)
                    if isinstance(solution, Status):
                        if solution in ENDED or not rescue or not self._by_shooting(v):
                            return solution
                        v = self.staged.layout.theta(v)
                        continue
                v = solution if isinstance(solution, np.ndarray) else solution.v
                finer_problem = (
                    self.transcription.refine(self.compiled_problem, undecorated(self.staged), v) if check else None
                )
            except StopRequested as stop:
                return stop.status
            if finer_problem is None:
                spot = self.measured(target, fixed_problem, solution, c, h)
                return replace(spot, error=self._error(spot.v)) if check and isinstance(spot, ProfilePoint) else spot
            self.staged, v = self.wrap(finer_problem), finer_problem.start
        return Status.INACCURATE

    def _error(self, v: Array) -> float:
        """Return the change of delta if the model is integrated with error control; see `ProfileBranch`."""
        objective_error = misfit(self.compiled_problem, undecorated(self.staged), v, self.transcription)
        return objective_error - self.error if np.isfinite(self.error) else objective_error

    def _by_shooting(self, v: Array) -> bool:
        """Switch to single shooting; return False if it is already in use.

        If products of states and scales are measured, the valley of the objective is narrow and curved with states as
        variables, but wide and straight for parameters alone.
        """
        if not has_states(self.transcription):
            return False
        self.transcription = SingleShooting(self.transcription.integrator)
        staged_problem = self.transcription.transcribe(self.compiled_problem, self.staged.layout.theta(v))
        self.staged = self.wrap(staged_problem)
        return True

    def _rough(self, fixed_problem: StagedProblem, cost_tolerance: float = READOUT_COST_RTOL) -> float:
        """Return the accuracy of intermediate solutions, in the units of `SolveControl`."""
        evaluation = fixed_problem.evaluate(np.clip(fixed_problem.start, fixed_problem.lower, fixed_problem.upper))
        size = evaluation.informing_square if evaluation.ok and evaluation.informing_square > 0 else 1.0
        return float(np.clip(READOUT_COST_RTOL / size, 1e-10, 1e-6)) * cost_tolerance / READOUT_COST_RTOL

    def _corrected(self, fixed_problem: StagedProblem, cost_tolerance: float) -> CorrectedPoint | None:
        """Return the corrected solution near the start of the constrained problem; None if the correction fails."""
        if not isinstance(self.solver, GaussNewton):
            return None
        ledger = CountingProblem(fixed_problem)
        with with_deadline(max(self.deadline - time.time(), 1e-3)):
            try:
                corrected_point = correct(ledger, fixed_problem, self._rough(fixed_problem, cost_tolerance))
            finally:
                self.evaluations.update(ledger.evaluations)
        self.solves += corrected_point is not None
        return corrected_point

    def _solve_fixed_problem(
        self, fixed_problem: StagedProblem, cost_tolerance: float, *, thorough: bool
    ) -> Array | CorrectedPoint | Status:
        """Solve the constrained problem, with full corrector steps at the end if they succeed.

        Return the status if the solve fails.
        """
        if isinstance(self.solver, GaussNewton):
            rough_solution = self._solved(fixed_problem, _FULL_STEP_COST_RTOL, thorough=thorough)
            if rough_solution.status in ENDED:
                return rough_solution.status
            corrected_point = (
                self._corrected(with_start(fixed_problem, rough_solution.v), cost_tolerance)
                if rough_solution.status.success
                else None
            )
            if corrected_point is not None or not rough_solution.status.success:
                return rough_solution.status if corrected_point is None else corrected_point
            fixed_problem = with_start(fixed_problem, rough_solution.v)
        solution = self._solved(fixed_problem, READOUT_COST_RTOL, thorough=thorough)
        return solution.v if solution.status.success else solution.status

    def _solved(self, fixed_problem: StagedProblem, cost_tolerance: float, *, thorough: bool) -> Solution:
        # Solvers start fallback strategies only above the threshold `stationary`.
        tolerance, seconds_left = (
            min(self._rough(fixed_problem, cost_tolerance), 0.1 * FALLBACK_THRESHOLDS.max_stationary_decrease),
            max(self.deadline - time.time(), 1e-3),
        )
        solver = self.solver
        if thorough and isinstance(solver, GaussNewton):
            solver = replace(solver, step_control="levenberg_marquardt", max_iter=_MAX_DAMPED_ITERATIONS)
        solution = solver.solve(fixed_problem, SolveControl(seconds_left, None, None, tolerance), warm=True)
        self.solves += 1
        self.evaluations.update(solution.evaluations)
        return solution

    def measured(
        self, target: Target, fixed_problem: StagedProblem, solution: Array | CorrectedPoint, c: float, h: float
    ) -> ProfilePoint | Status:
        """Return the point at a solution, with slope, curvature and tangent.

        The solution is v (n_v,), or a corrected point, which includes the linearized problem and the last small step.
        """
        v, shifted_problem = (
            solution if isinstance(solution, np.ndarray) else solution.v,
            target.with_fixed_value(self.staged, c + h),
        )
        linearization, shifted_linearization = fixed_problem.linearize(v), shifted_problem.linearize(v)
        if not (linearization.ok and shifted_linearization.ok):
            return Status.EVALUATION_FAILED
        if isinstance(solution, CorrectedPoint) and target.moves_constants:
            local, missing_decrease, remaining_step = (
                solution.local.with_linearization(shifted_problem, shifted_linearization),
                solution.step.decrease,
                solution.step.dv,
            )
            rows, step = solution.step.residuals, local.direction() if local.is_finite else None
        else:
            local, step = _direction(shifted_problem, shifted_linearization)
            missing_decrease, remaining_step, rows = 0.0, np.zeros(v.size), local.condensed.u
        if step is None:
            return Status.LINEAR_ALGEBRA_FAILED
        response = target.own_rows(step.residuals - rows, shifted_problem) / h
        rows = target.own_rows(rows, shifted_problem)
        derivatives = target.slope(self.staged, linearization)
        slope, curvature = (
            derivatives if derivatives is not None else (float(rows @ response), float(response @ response))
        )
        constraint_cost = target.own_cost(linearization, fixed_problem)
        # If a row fixes the target, coordinate and cost are evaluated at the point itself.
        missing_decrease, v = (
            (missing_decrease, np.clip(linearization.v + remaining_step, fixed_problem.lower, fixed_problem.upper))
            if constraint_cost == 0.0
            else (0.0, linearization.v)
        )
        return ProfilePoint(
            target.coordinate(linearization, fixed_problem),
            2.0 * (linearization.cost - constraint_cost - missing_decrease - self.cost),
            2.0 * slope,
            2.0 * curvature,
            self.staged.layout.theta(v).copy(),
            v,
            (step.dv - remaining_step) / h,
        )


def misfit(compiled_problem: CompiledProblem, staged: StagedProblem, v: Array, transcription: Transcription) -> float:
    """Return the change of -2 log L at v (n_v,) if the model is integrated with error control.

    Return an infinite value if the integration does not reproduce the solution.

    Raises StopRequested if the time is over or Ctrl-C was pressed.
    """
    evaluation = staged.evaluate(v)
    verification = verify(compiled_problem, staged, evaluation, transcription.integrator, transcription.accuracy)
    if not verification.is_reproduced:
        return np.inf
    masks = [chain.row_mask for chain in staged.layout.chains]
    units = zip(staged.layout.expand_to_rows(evaluation.sigma), masks, strict=True)
    unit = np.concatenate(
        [*((sigma * np.ones(mask.shape))[mask] for sigma, mask in units), np.ones(evaluation.prior.size)]
    )
    rows = residuals(staged.layout, evaluation)  # in units of standard deviations, their estimates if they are unknown
    errors = verification.row_errors / unit
    return float(2.0 * rows @ errors + errors @ errors)
