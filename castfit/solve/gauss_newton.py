"""Generalized Gauss-Newton method: direction, step control, termination.

Each iteration linearizes the staged problem, condenses it to a small bounded least-squares problem, and a step control
chooses the step length along its solution (Bock 1981; Peifer and Timmer 2007).  The method ends if a full step predicts
no further decrease, also with all regularised directions free.  `castfit.solve.homotopy` contains the state and the
fallbacks for searches that make no progress or end at implausible residuals.

For teaching, the iterations can be run by hand:

    for state in GaussNewton().iterate(problem, MultipleShooting(17)):
        print(state.iteration, state.evaluation.cost, state.damping)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from castfit._support.arguments import (
    is_count,
    is_one_of,
    is_within,
    option_mistakes,
    plain_numbers,
    shorten_repr,
    tolerance_rule,
)
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import Status, raise_if_mistakes, suggest
from castfit._support.time_limit import Deadline, StopRequested, with_deadline
from castfit.solve.fallback_thresholds import FALLBACK_THRESHOLDS
from castfit.solve.homotopy import (
    LEVENBERG_MARQUARDT_PHASE,
    AttemptProgress,
    GaussNewtonState,
    SolveStates,
    end_failed_attempt,
    within_bounds,
)
from castfit.solve.residual_plausibility import integration_error_square
from castfit.solve.solution import CountingProblem, Iteration, Solution, SolveControl, infeasibility
from castfit.solve.staged import (
    Array,
    Evaluation,
    Linearization,
    MatchingProducts,
    StagedProblem,
    same_point,
    weighted_squares,
)
from castfit.solve.step_control import (
    STEP_CONTROLS,
    LevenbergMarquardt,
    LineSearch,
    NaturalLevel,
    StepControl,
    StepOutcome,
    TrustRegion,
)
from castfit.solve.subproblem import (
    MATCHING_TOLERANCE,
    DenseProblem,
    LocalProblem,
    Step,
    active_bounds,
    is_small_decrease,
    local_problem,
)

__all__ = ["GaussNewton", "GaussNewtonState"]

# Step tolerance of Fisher scoring, which converges linearly: the next steps are hardly smaller.
_SCORING_STEP_RTOL = 1e-3
_MAX_STEP_HALVINGS = 6  # Limit on the halvings of a step until its end can be linearized.
# Relative singular value of changes of steps below which they are due to integration errors.
_STEP_DIRECTION_RTOL = 1e-3
_CONTRACTION_CHANGE_FACTOR = 3.0  # Largest accepted contraction factor, relative to that of the step before.
# Limits of an extrapolated step, relative to the last one: contraction to a twentieth, and to nine tenths.
_MIN_EXTRAPOLATION, _MAX_EXTRAPOLATION = 0.05, 9.0
_MIN_DAMPING = 1e-6  # Damping below which a failed step is attributed to a model that cannot be evaluated.


@public("castfit")
@add_brief_repr
@dataclass(frozen=True)
class GaussNewton:
    """The generalized Gauss-Newton method with condensing.

    Parameters
    ----------
    step_control : {"natural_level", "exact_penalty", "levenberg_marquardt", "hemker", "box"} or StepControl
        Method that damps the steps; "trust_region" is another name of "box".
    homotopy : {"auto", "always", "never"}
        Whether relaxed problems are solved first: "auto" if the direct search stagnates or ends at implausible
        residuals.
    max_iter : int
        Limit on the iterations, including those of relaxed problems.
    tolerance : float
        The solve converges if the predicted decrease of a full step is below this fraction of the half-square of all
        rows (about half the number of data, in units of the noise).  For likelihoods that are not sums of squares, and
        with several unknown sigmas, the limit is a thousandth of that.
    regularisation : float
        Singular values of the scaled condensed Jacobian below this fraction of the largest are enlarged during the
        iterations, so that directions that the data do not determine hardly change (Peifer and Timmer 2007, Eq. 23).
    accuracy : {"deserved", "full"}
        Accuracy of integrated stages: "full" always uses the tolerances of the transcription's integrator; "deserved"
        uses them near the solution, and a relative tolerance of 1e-4 far from it.  Points are compared at one
        accuracy.  Convergence, failure, the cost and all statistics are determined at full accuracy only.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem, cf.Collocation(), cf.GaussNewton("levenberg_marquardt"))
    >>> result.solver, result.success
    ('Gauss-Newton (levenberg marquardt)', True)
    """

    step_control: str | StepControl = "natural_level"
    homotopy: str = "auto"
    max_iter: int = 400
    tolerance: float = 1e-10
    regularisation: float = 1e-9
    accuracy: str = "deserved"

    def __post_init__(self) -> None:
        plain_numbers(self)
        mistakes: list[str] = []
        if self.step_control in ("trust_region", "trust-region"):
            object.__setattr__(self, "step_control", "box")  # as files name it
        rule: Any = self.step_control
        if isinstance(rule, str) and rule not in STEP_CONTROLS:
            mistakes.append(f"step_control is '{rule}': {suggest(rule, STEP_CONTROLS)}")
        elif not isinstance(rule, (str, StepControl)):
            mistakes.append(
                f"step_control is {shorten_repr(rule)}; give a name or a StepControl such as NaturalLevel()"
            )
        homotopies, accuracies, part = ("auto", "always", "never"), ("deserved", "full"), self.regularisation
        mistakes += option_mistakes(
            ("homotopy", self.homotopy, is_one_of(self.homotopy, *homotopies), "choose 'auto', 'always' or 'never'"),
            ("accuracy", self.accuracy, is_one_of(self.accuracy, *accuracies), "choose 'deserved' or 'full'"),
            ("max_iter", self.max_iter, is_count(self.max_iter), "give an integer that is not negative"),
            tolerance_rule(self.tolerance),
            ("regularisation", part, is_within(part, 0, 1) and part != 1, "give a number from 0 to below 1"),
        )
        if not mistakes and self.homotopy == "always" and not self._control.uses_fallback:
            mistakes.append(f"homotopy is 'always', which {self.label} does not support; remove it")
        raise_if_mistakes("GaussNewton", mistakes)

    @property
    def label(self) -> str:
        """Name in tables."""
        name_by_kind = {kind: name for name, kind in STEP_CONTROLS.items()}
        rule = self.step_control
        name = rule if isinstance(rule, str) else name_by_kind.get(type(rule), type(rule).__name__)
        return f"Gauss-Newton ({name.replace('_', ' ')})"

    @property
    def _control(self) -> StepControl:
        return STEP_CONTROLS[self.step_control]() if isinstance(self.step_control, str) else self.step_control

    def solve(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        """Solve; a failed fit raises no exception.  `warm`: the start is nearly optimal."""
        solver = replace(self, homotopy="never", accuracy="full") if warm else self
        ledger = CountingProblem(staged, control)
        history: list[dict[str, float]] = []
        state, course = None, None
        with with_deadline(control.max_time) as watch:
            try:
                course = solver.course(ledger)
                for state in course:
                    iteration = _iteration(ledger, state)
                    history.append({"iteration": iteration.iteration, "cost": iteration.cost,
                                    "infeasibility": iteration.infeasibility, "time": iteration.seconds,
                                    "damping": state.damping, "station": state.station + 1.0,
                                    **state.report})  # fmt: skip
                    cause = _cause(control, iteration, watch) if state.status is None else None
                    if cause is not None:
                        state = _cut_off(course, state, cause)
                        break
            except StopRequested as stop_reason:  # within an iteration
                if course is None or state is None:
                    start = within_bounds(staged, staged.start)
                    return ledger.solution(start, stop_reason.status, history=tuple(history))
                state = _cut_off(course, state, stop_reason.status)
        assert state is not None
        assert state.status is not None
        v, active = state.v, np.zeros(state.v.size, dtype=np.int8)
        if state.status.success:
            bounds = np.zeros(v.size) if state.local is None else state.local.bound_multipliers
            active = active_bounds(staged, v, bounds)
            v = np.where(active < 0, staged.lower, np.where(active > 0, staged.upper, v))
        elif ledger.best is not None and state.status is not Status.START_FAILED:
            v = ledger.best
        return ledger.solution(
            v, state.status, detail=state.detail, active=active, iterations=state.iteration, history=tuple(history)
        )

    def iterate(
        self, problem: Any, transcription: Any = None, *, control: SolveControl | None = None
    ) -> Iterator[GaussNewtonState]:
        """Yield the state at the start and after every iteration of the method itself.

        The fallbacks of `solve` are not included, except with ``homotopy="always"``.

        Parameters
        ----------
        problem : Problem or StagedProblem
        transcription : MultipleShooting, SingleShooting or Collocation
            Needed unless the problem is staged already.
        control : SolveControl, optional
            Only its accuracy, `low_accuracy_rtol`, is used: the caller decides when to stop.
        """
        if not isinstance(problem, StagedProblem):
            if transcription is None:
                raise_if_mistakes("GaussNewton.iterate", ["give a transcription, for instance MultipleShooting(17)"])
            else:
                problem = transcription.transcribe(problem, problem.guess)
        method = self if self.homotopy == "always" else replace(self, homotopy="never")
        yield from method.course(CountingProblem(problem, control))

    def course(self, ledger: CountingProblem) -> SolveStates:
        """Return all states of a solve, including those of fallbacks if the direct search fails."""
        # Relaxed problems treat stages separately, which requires independent errors; these are fitted first.
        soft = self.homotopy != "never" and not ledger.staged.layout.has_correlated_errors
        return SolveStates(
            ledger,
            self.init(ledger),
            self.step,
            self.max_iter,
            rescued=soft and self._control.uses_fallback,
            always=self.homotopy == "always" and soft,
            roughly=self._searches(ledger),
        )

    def init(self, ledger: CountingProblem) -> GaussNewtonState:
        """Return the state at the start.

        Raises
        ------
        InputError
            If the step control does not support the problem.
        """
        staged = ledger.staged
        scalar = MatchingProducts in staged.capabilities
        remedy = "matching conditions are scalars, from which no nodes can be eliminated; use Sqp() or Ipopt()"
        raise_if_mistakes("GaussNewton", [remedy] if scalar else [])
        raise_if_mistakes(f"GaussNewton({self.step_control!r})", self._control.mistakes(staged.layout))
        start = within_bounds(staged, staged.start)
        if self._searches(ledger) and self.homotopy != "always":
            evaluation = ledger.low_accuracy.evaluate(start, begins=True)
            if evaluation.ok and ledger.low_accuracy.linearize(start).ok:
                return GaussNewtonState(0, "straight", evaluation, is_low_accuracy=True)
        evaluation = ledger.evaluate(start, begins=True)
        if not evaluation.ok or not ledger.linearize(start).ok:
            return GaussNewtonState(
                0, "straight", evaluation, status=Status.START_FAILED, detail=staged.describe_failure(start)
            )
        return GaussNewtonState(0, "straight", evaluation)

    def step(self, ledger: CountingProblem, state: GaussNewtonState) -> GaussNewtonState:
        """Do one iteration; if it needs values at full accuracy, only return these."""
        staged = ledger.staged
        rule = self._rule(staged, state)
        linear = (ledger.low_accuracy if state.is_low_accuracy else ledger).linearize(state.v)
        if not linear.ok:
            return self._closely(ledger, state) if state.is_low_accuracy else end_failed_attempt(state, linear)
        threshold = self.regularisation if rule.holds_singular_directions else 0.0
        local = local_problem(staged, linear, warm=state.active, regularisation=threshold)
        if not local.is_finite:
            if state.is_low_accuracy:
                return self._closely(ledger, state)
            return replace(state, status=Status.LINEAR_ALGEBRA_FAILED, detail="Derivatives overflow.")
        step = rule.step(local, state.progress.memory)
        if isinstance(local, DenseProblem) and staged.least_squares and _needs_curvature(state, linear, step):
            state = replace(state, progress=replace(state.progress, uses_curvature=True))
            local = local.with_curvature(ledger.low_accuracy if state.is_low_accuracy else ledger)
            step = rule.step(local, state.progress.memory) if local.curvature else step
        if state.is_low_accuracy and _deserves_accuracy(staged, linear, step.decrease):
            return self._closely(ledger, state)
        gap = infeasibility(staged.layout, staged.scale, linear)
        report = _figures(local, step, gap)
        tolerance = max(
            self.tolerance * (_SCORING_STEP_RTOL if _scores(linear, staged) else 1.0), ledger.control.low_accuracy_rtol
        )
        is_flickering = is_small_decrease(staged, linear, state.progress.min_gap_and_decrease[1], tolerance)
        near_decrease = (
            FALLBACK_THRESHOLDS.near_decrease if rule.holds_singular_directions else FALLBACK_THRESHOLDS.noisy_decrease
        )
        progress = _closing_in(
            state.progress, step, gap, linear.informing_square, near_decrease, is_flickering=is_flickering
        )
        # Convergence depends on the predicted decrease of a full step within the constraints, and on the gaps.
        is_converged = gap <= MATCHING_TOLERANCE and is_small_decrease(staged, linear, step.decrease, tolerance)
        if is_converged or progress.n_idle_steps > FALLBACK_THRESHOLDS.max_idle_steps:
            is_good = (
                gap <= FALLBACK_THRESHOLDS.noisy_gap
                and step.decrease <= FALLBACK_THRESHOLDS.noisy_decrease * linear.informing_square
            )
            status = Status.CONVERGED if is_converged or is_good else Status.ACCEPTABLE
            return self._arrive(ledger, replace(state, local=step, progress=progress, report=report), local, status)
        search = LineSearch(
            ledger.low_accuracy if state.is_low_accuracy else ledger, local, step, linear, progress.memory
        )
        is_close = (
            rule.holds_singular_directions
            and staged.least_squares
            and progress.is_near_solution
            and not progress.is_divergent
        )
        # This close, level functions see little but integration errors.
        full_step_evaluation, is_closing = (
            search.trial(_extrapolate_step(search, progress.previous_points)) if is_close else None,
            False,
        )
        max_rise = FALLBACK_THRESHOLDS.full_step_rise if staged.layout.is_theta_only else 1.0
        if (
            full_step_evaluation is not None
            and full_step_evaluation.cost <= linear.cost + max_rise * linear.informing_square
            and search.ledger.linearize(full_step_evaluation.v).ok
        ):
            advance = StepOutcome(full_step_evaluation, 1.0, search.memory)
        else:
            advance = rule.advance(search)
            is_closing = state.is_low_accuracy and _is_near_convergence(staged, step, advance)
            for _ in range(_MAX_STEP_HALVINGS):  # the next iteration needs sensitivities
                if advance.new_point is None or is_closing or search.ledger.linearize(advance.new_point.v).ok:
                    break
                half = search.trial(0.5 * (advance.new_point.v - linear.v))
                advance = replace(advance, new_point=half if half.ok else None, damping=0.5 * advance.damping)
            else:
                advance = replace(advance, new_point=None)
        length = search.norm(step.dv)
        is_cycling = (
            advance.damping == 1.0
            and abs(length - state.report.get("step", np.inf)) <= FALLBACK_THRESHOLDS.cycling_length_rtol * length
        )
        is_stuck = advance.new_point is None or same_point(advance.new_point.v, linear.v)
        if is_stuck and state.is_low_accuracy:
            return self._closely(ledger, replace(state, local=step, progress=progress))
        is_damped = (
            not is_stuck and advance.damping < FALLBACK_THRESHOLDS.stalled_damping and not progress.is_near_solution
        )
        new_state = replace(
            state,
            iteration=state.iteration + 1,
            evaluation=state.evaluation if is_stuck or advance.new_point is None else advance.new_point,
            damping=advance.damping,
            local=step,
            report={**report, **advance.report, "step": length},
            progress=replace(
                progress,
                memory=advance.memory,
                steps=progress.steps + 1,
                n_stalled_steps=progress.n_stalled_steps + is_damped,
                n_cycling_steps=progress.n_cycling_steps + 1 if is_cycling else 0,
                prediction=(linear.cost, step.decrease),
                previous_points=()
                if state.phase == LEVENBERG_MARQUARDT_PHASE
                else (*progress.previous_points[-1:], (linear.v, step.dv)),
            ),
        )
        if is_stuck:
            return self._give_up(ledger, new_state, search)
        return self._closely(ledger, new_state) if is_closing else new_state

    def _searches(self, ledger: CountingProblem) -> bool:
        """Whether stages may be integrated less accurately far from the solution."""
        return self.accuracy == "deserved" and ledger.low_accuracy is not ledger

    def _closely(self, ledger: CountingProblem, state: GaussNewtonState) -> GaussNewtonState:
        memory = self._rule(ledger.staged, state).memory_after_accuracy_change(state.progress.memory)
        return state.at_full_accuracy(ledger.evaluate(state.v, begins=True), memory)

    def _rule(self, staged: StagedProblem, state: GaussNewtonState) -> StepControl:
        if state.progress.is_unregularized:
            return TrustRegion()
        # The natural level function uses derivatives of another point, which does not suit general densities.
        if state.phase == LEVENBERG_MARQUARDT_PHASE or (
            isinstance(self._control, NaturalLevel) and not staged.least_squares
        ):
            return LevenbergMarquardt()
        return self._control

    def _arrive(
        self, ledger: CountingProblem, state: GaussNewtonState, local: LocalProblem, status: Status
    ) -> GaussNewtonState:
        """Accept an optimum only if two conditions hold.

        No decrease is predicted with singular directions free, and no earlier point was lower.
        """
        staged, evaluation, ledger.converged_local_problem = ledger.staged, state.evaluation, local
        holds_directions = self._rule(staged, state).holds_singular_directions
        if not is_small_decrease(
            staged,
            evaluation,
            local.predicted_decrease,
            max(FALLBACK_THRESHOLDS.max_stationary_decrease, ledger.control.low_accuracy_rtol),
        ):
            return _let_go(state) if holds_directions else replace(state, status=Status.STEP_TOO_SMALL)
        if not holds_directions and "back" not in state.progress.memory:
            best = _lowest(ledger, state)
            is_connected = infeasibility(staged.layout, staged.scale, best) <= MATCHING_TOLERANCE
            if (
                is_connected
                and best.cost < evaluation.cost
                and not is_small_decrease(staged, evaluation, evaluation.cost - best.cost, self.tolerance)
            ):
                return _gone_back(_let_go(state, is_unregularized=state.progress.is_unregularized), best)
        return replace(state, status=status)

    def _give_up(self, ledger: CountingProblem, state: GaussNewtonState, search: LineSearch) -> GaussNewtonState:
        """Handle a failed step: accept the optimum, return to the lowest point, or stop with the reason."""
        staged, step = ledger.staged, search.step
        if "back" in search.memory:  # only once, to avoid an infinite loop
            memory = {**state.progress.memory, "back": 1.0}
            state = replace(state, progress=replace(state.progress, memory=memory))
        rule, square = self._rule(staged, state), search.evaluation.informing_square
        if (
            state.report["gap"] <= MATCHING_TOLERANCE
            and step.decrease
            <= (1e-6 if rule.holds_singular_directions else FALLBACK_THRESHOLDS.max_stationary_decrease) * square
        ):
            good = not rule.holds_singular_directions and step.decrease <= FALLBACK_THRESHOLDS.noisy_decrease * square
            return self._arrive(ledger, state, search.local, Status.CONVERGED if good else Status.ACCEPTABLE)
        if (
            not rule.holds_singular_directions
            and not search.local.staged.layout.chains[0].n_s
            and "back" not in state.progress.memory
        ):
            lowest = _lowest(ledger, state)
            if not same_point(lowest.v, state.v):
                return _gone_back(state, lowest)
        probe = search.trial(_MIN_DAMPING * step.dv)
        if not probe.ok:
            return replace(state, status=Status.EVALUATION_FAILED, detail=staged.describe_failure(probe.v))
        return replace(state, status=Status.STEP_TOO_SMALL if step.feasible else Status.INFEASIBLE)


def _needs_curvature(state: GaussNewtonState, linear: Linearization, step: Step) -> bool:
    """Whether a step that promised little gained less than half of it, now or before; also at a start near a solution.

    Then the curvature of the residuals, which the linear model omits, may exceed its own.
    """
    cost, decrease = state.progress.prediction
    if state.progress.steps == 0 and not state.is_low_accuracy:
        cost, decrease = linear.cost, step.decrease
    limit = max(FALLBACK_THRESHOLDS.curvature_decrease * linear.informing_square, FALLBACK_THRESHOLDS.noise_decrease)
    return state.progress.uses_curvature or cost - linear.cost < 0.5 * decrease <= 0.5 * limit


def _extrapolate_step(search: LineSearch, previous_steps: tuple[tuple[Array, Array], ...]) -> Array:
    """Return the full step, extrapolated if successive steps shrink by the same factors.

    With large residuals steps shrink by constant factors; this is Anderson's acceleration with up to two earlier steps
    (Walker and Ni 2011), if no bound is active and the extrapolation is moderate.  It is not applied if nodes move,
    whose gaps close faster, or if steps suddenly shrink less, which is an effect of integration errors.
    """
    f, active, layout = search.step.dv, search.step.active, search.local.staged.layout
    if not previous_steps or layout.n_v > layout.n_theta or active.variables.any() or active.path.any():
        return f
    v, steps = zip(*previous_steps, (search.evaluation.v, f), strict=True)
    v_changes, step_changes = np.diff(v, axis=0), np.diff(steps, axis=0)
    F = np.array([search.in_units(change) for change in step_changes]).T
    gamma: Any = np.linalg.lstsq(F, search.in_units(f), rcond=_STEP_DIRECTION_RTOL)[0]
    extension: Array = -gamma @ (v_changes + step_changes)
    *earlier_lengths, last_length, length = map(search.norm, steps)
    is_moderate = _MIN_EXTRAPOLATION * length <= search.norm(extension) <= _MAX_EXTRAPOLATION * length
    is_steady = not earlier_lengths or length * earlier_lengths[0] <= _CONTRACTION_CHANGE_FACTOR * last_length**2
    return f + extension if is_moderate and is_steady else f


def _figures(local: LocalProblem, step: Step, gap: float) -> dict[str, float]:
    return {
        "gap": gap,
        "residual": float(np.sqrt(weighted_squares(local.staged.layout, local.linearization))),
        "condition": local.condition,
        "held_directions": float(local.held_directions),
        "active": float(np.count_nonzero(step.active.variables) + np.count_nonzero(step.active.path)),
    }


def _scores(linear: Linearization, staged: StagedProblem) -> bool:
    """Whether this is Fisher scoring: densities that are not sums of squares, or several eliminated sigmas."""
    has_several_sigmas = staged.layout.n_groups > 1 or (staged.layout.n_groups > 0 and linear.prior.size > 0)
    return has_several_sigmas or not staged.least_squares


def _deserves_accuracy(staged: StagedProblem, evaluation: Evaluation, decrease: float) -> bool:
    """Whether the solution is so close that errors of a less accurate integration affect the step."""
    if decrease > FALLBACK_THRESHOLDS.far_decrease * evaluation.informing_square + integration_error_square(
        staged, evaluation
    ):
        return False
    return infeasibility(staged.layout, staged.scale, evaluation) <= FALLBACK_THRESHOLDS.far_gap


def _is_near_convergence(staged: StagedProblem, step: Step, advance: StepOutcome) -> bool:
    """Whether the next step will probably converge.

    Far away, where a step predicts to remove most of the cost, predictions are not reliable.
    """
    evaluation = advance.new_point
    if evaluation is None or step.decrease > evaluation.informing_square:
        return False
    return _deserves_accuracy(staged, evaluation, advance.predicted_decrease)


def _lowest(ledger: CountingProblem, state: GaussNewtonState) -> Evaluation:
    """Return the best point so far from which the search can continue."""
    if ledger.best is None or not ledger.linearize(ledger.best).ok:
        return state.evaluation
    return ledger.evaluate(ledger.best)


def _let_go(state: GaussNewtonState, *, is_unregularized: bool = True) -> GaussNewtonState:
    """Continue in a trust region without regularisation, which kept other directions from the optimum."""
    progress = replace(
        state.progress,
        is_unregularized=is_unregularized,
        memory={},
        n_idle_steps=0,
        min_gap_and_decrease=(np.inf, np.inf),
        is_divergent=False,
        n_cycling_steps=0,
    )
    return replace(state, local=None, progress=progress)


def _gone_back(state: GaussNewtonState, lowest: Evaluation) -> GaussNewtonState:
    """Continue from the lowest point so far; this is done once."""
    return replace(state, evaluation=lowest, progress=replace(state.progress, memory={"back": 1.0}))


def _closing_in(
    progress: AttemptProgress, step: Step, gap: float, half_square: float, near_decrease: float, *, is_flickering: bool
) -> AttemptProgress:
    """Count the steps near the solution that make no progress; a small predicted decrease only fluctuates."""
    if not (gap <= FALLBACK_THRESHOLDS.near_gap and step.decrease <= near_decrease * half_square):
        return (
            replace(progress, n_idle_steps=0, min_gap_and_decrease=(np.inf, np.inf))
            if progress.is_near_solution or progress.n_idle_steps
            else progress
        )
    least_gap, least_decrease = progress.min_gap_and_decrease
    is_closer = MATCHING_TOLERANCE < gap < FALLBACK_THRESHOLDS.min_progress_factor * least_gap or (
        step.decrease < FALLBACK_THRESHOLDS.min_progress_factor * least_decrease and not is_flickering
    )
    closest = (min(gap, least_gap), min(step.decrease, least_decrease)) if is_closer else progress.min_gap_and_decrease
    is_divergent = progress.is_divergent or step.decrease > max(
        FALLBACK_THRESHOLDS.divergence_factor * least_decrease, FALLBACK_THRESHOLDS.noisy_decrease * half_square
    )
    return replace(
        progress,
        n_idle_steps=0 if is_closer else progress.n_idle_steps + 1,
        min_gap_and_decrease=closest,
        is_divergent=is_divergent,
    )


def _iteration(ledger: CountingProblem, state: GaussNewtonState) -> Iteration:
    staged = ledger.staged
    largest_violation = infeasibility(staged.layout, staged.scale, state.evaluation)
    evaluation = state.evaluation
    return Iteration(
        state.iteration,
        evaluation.cost,
        weighted_squares(staged.layout, evaluation),
        largest_violation,
        state.v,
        ledger.seconds,
    )


def _cause(control: SolveControl, iteration: Iteration, watch: Deadline) -> Status | None:
    is_stop_requested = control.callback is not None and control.callback(iteration)
    cause = watch.cause
    return Status.STOPPED_BY_CALLBACK if is_stop_requested and cause is not Status.INTERRUPTED else cause


def _cut_off(course: SolveStates, state: GaussNewtonState, cause: Status) -> GaussNewtonState:
    """End; return an earlier optimum if the time is over and there is one."""
    return course.end_search(state, cause) if cause is Status.MAX_TIME else replace(state, status=cause)
