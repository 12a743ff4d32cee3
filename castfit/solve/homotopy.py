"""Sequence of a Gauss-Newton solve: its state, and the fallback strategies if the method makes no progress.

    straight --> second start, if there is one --> stations 1, 2, ... --> exact problem
                                                        |
                                                        v
                    from the first start: more and smaller stations --> exact problem
                                                        |
                                                        v
            from the best point so far: Levenberg-Marquardt steps

An attempt ends if it finds no solution, or implausible residuals, or if most of its steps are damped.  The last attempt
is for models that do not fit.  The Gauss-Newton method omits the curvature of the residuals; if they are large, full
steps lead away from the optimum, and the natural level function, which uses the same matrices, does not detect it.  If
steps cycle around a plausible point, this attempt follows immediately.

Stations are relaxed problems (castfit.solve.penalty_homotopy).  Thresholds are defined in
castfit.solve.fallback_thresholds and castfit.solve.residual_plausibility.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace

import numpy as np

from castfit._support.records import dataclass
from castfit._support.renamed import with_old_names
from castfit._support.status import Status
from castfit.solve.fallback_thresholds import FALLBACK_THRESHOLDS
from castfit.solve.penalty_homotopy import RelaxationLevel, RelaxedProblem
from castfit.solve.residual_plausibility import expected_noise, has_implausible_residuals
from castfit.solve.solution import CountingProblem, infeasibility
from castfit.solve.staged import Array, Evaluation, Linearization, StagedProblem, weighted_squares
from castfit.solve.subproblem import ActiveSet, Step

# Phase of the search that takes steps of Levenberg and Marquardt.
LEVENBERG_MARQUARDT_PHASE = "held back"

_CUT_SHORT_NOTE = "The residuals are implausibly large, but the search for a better optimum was cut short."


@dataclass(frozen=True)
class AttemptProgress:
    """Progress of one attempt; reset when the next attempt begins.

    memory : values that the step control, or the relaxed problem, keeps from the last step
    station : position in the homotopy: -1 before the first station, the number of stations after the last one
    steps : steps of this attempt, or within the station
    stalled : strongly damped steps
    idle : steps near the solution since the last clear progress
    closest : smallest gap and predicted decrease so far; infinite far from the solution
    is_divergent : whether a full step near the solution led away from it
    circling : successive full steps of equal length
    unheld : whether singular directions are free, and steps limited by a trust region instead
    previous_points : the last points of the same accuracy, at most two, and the full steps from them
    prediction : cost before the last step, and its predicted decrease
    uses_curvature : whether the local problem includes the curvature of the residuals
    """

    memory: Mapping[str, float] = field(default_factory=dict[str, float])
    station: int = -1
    steps: int = 0
    n_stalled_steps: int = 0
    n_idle_steps: int = 0
    min_gap_and_decrease: tuple[float, float] = (np.inf, np.inf)
    is_divergent: bool = False
    n_cycling_steps: int = 0
    is_unregularized: bool = False
    previous_points: tuple[tuple[Array, Array], ...] = ()
    prediction: tuple[float, float] = (np.inf, 0.0)
    uses_curvature: bool = False

    @property
    def is_near_solution(self) -> bool:
        """Whether the last local problem was near the solution."""
        return self.min_gap_and_decrease[0] < np.inf

    @property
    def needs_fallback(self) -> bool:
        """Whether there were too many steps, or damped ones, without a solution nearby."""
        straight = self.station < 0
        slow = self.steps >= (
            FALLBACK_THRESHOLDS.max_straight_iterations if straight else FALLBACK_THRESHOLDS.max_exact_iterations
        )
        return not (self.is_near_solution or self.is_unregularized) and (
            slow or (straight and self.n_stalled_steps >= FALLBACK_THRESHOLDS.max_stalled_steps)
        )


@with_old_names(rough="is_low_accuracy")
@dataclass(frozen=True)
class GaussNewtonState:
    """State that one iteration passes to the next: explicit and frozen, so that it can be inspected.

    iteration: steps so far, including those of relaxed problems.
    phase: "straight", "second start", "station 1", "station 2" ..., "exact", "held back".
    evaluation: the current point and the values there; at a station they are of low accuracy.
    damping: the factor lambda of the last step; 1 / (1 + mu) for Levenberg-Marquardt steps.
    report: figures of the last step and of the point that it started from (at the end: of the last point): gap,
        residual (root of the sum of squares), condition and held_directions of the condensed Jacobian, number of
        active constraints, relative size of the full step, and those of the step control: level, omega or mu.
    status: status at the end, None before.
    detail: addition to the sentence of the status.
    local: the solution of the last local problem, with its active constraints and multipliers.
    is_low_accuracy: whether values are those of a search far from the solution, with less accurate integration.
    progress: progress of the current attempt.
    """

    iteration: int
    phase: str
    evaluation: Evaluation
    damping: float = 1.0
    report: Mapping[str, float] = field(default_factory=dict[str, float])
    status: Status | None = None
    detail: str = ""
    local: Step | None = None
    is_low_accuracy: bool = False
    progress: AttemptProgress = field(default_factory=AttemptProgress)

    @property
    def v(self) -> Array:
        """All variables."""
        return self.evaluation.v

    @property
    def active(self) -> ActiveSet | None:
        """Active bounds and path constraints of the last local problem."""
        return None if self.local is None else self.local.active

    @property
    def station(self) -> int:
        """Current position in the homotopy; -1 before the first station."""
        return self.progress.station

    @property
    def is_relaxed(self) -> bool:
        """Whether the current problem is a relaxed one."""
        return self.phase.startswith("station")

    def at_full_accuracy(self, evaluation: Evaluation, memory: Mapping[str, float]) -> GaussNewtonState:
        """Return the state at full accuracy at its point.

        Reset the cycling count and discard earlier points of lower accuracy.
        """
        progress = replace(self.progress, memory=memory, n_cycling_steps=0, previous_points=())
        return replace(self, is_low_accuracy=False, evaluation=evaluation, progress=progress)


class SolveStates:
    """States of a solve, attempt after attempt until one succeeds.

    first_state : initial state
    step : one iteration of the method; a state with a status ends the attempt, not necessarily the solve
    max_iter : limit on the iterations of all attempts
    rescued : whether other attempts follow if one fails
    always : whether relaxed problems come first
    roughly : whether the second start is computed at search accuracy
    """

    def __init__(
        self,
        ledger: CountingProblem,
        first_state: GaussNewtonState,
        step: Callable[[CountingProblem, GaussNewtonState], GaussNewtonState],
        max_iter: int,
        *,
        rescued: bool,
        always: bool,
        roughly: bool,
    ) -> None:
        self.ledger, self.first_state, self.step, self.max_iter = ledger, first_state, step, max_iter
        self.allows_fallbacks, self.always_relaxes, self.has_low_accuracy_start = rescued, always, roughly
        self.optimum: GaussNewtonState | None = None  # best optimum, if implausible and the search continued
        self._others = self._tries()
        self._stations: tuple[RelaxationLevel, ...] = ()

    def __iter__(self) -> Iterator[GaussNewtonState]:
        """Yield the state at the start and after every iteration; the last one has a status."""
        state = self.first_state
        if self.always_relaxes and state.status is None:
            state = next(self._others)
        yield state
        while state.status is None:
            if state.iteration >= self.max_iter:
                state = self.end_search(state, Status.MAX_ITERATIONS)
            else:
                with np.errstate(over="ignore", invalid="ignore"):  # overflow is detected later
                    while True:  # an iteration may only compute values at full accuracy
                        new_state = self._soft_step(state) if state.is_relaxed else self.step(self.ledger, state)
                        if new_state.is_low_accuracy and self._circles(new_state):
                            accurate_evaluation = self.ledger.evaluate(new_state.v, begins=True)
                            state = new_state.at_full_accuracy(accurate_evaluation, new_state.progress.memory)
                        elif (
                            state.is_low_accuracy
                            and not new_state.is_low_accuracy
                            and new_state.iteration == state.iteration
                        ):
                            state = new_state
                        else:
                            break
                    state = self._following(state, new_state)
            yield state

    def end_search(self, state: GaussNewtonState, status: Status, detail: str = "") -> GaussNewtonState:
        """End, at an optimum that was found before, if there is one."""
        if self.optimum is None:
            return replace(state, status=status, detail=detail)
        cut_short = status in (Status.MAX_ITERATIONS, Status.MAX_TIME)
        return replace(self.optimum, iteration=state.iteration, detail=_CUT_SHORT_NOTE if cut_short else "")

    def _following(self, state: GaussNewtonState, new_state: GaussNewtonState) -> GaussNewtonState:
        """Return the state after a step: the same attempt, or the next one if this attempt is over."""
        if new_state.status is None:
            if state.is_relaxed or new_state.iteration == state.iteration:
                return new_state
            if self._circles(new_state):
                return _start_attempt(new_state, LEVENBERG_MARQUARDT_PHASE, new_state.evaluation)
            return (self._next(new_state) if new_state.progress.needs_fallback else None) or new_state
        if new_state.status.success:
            return self._accept_optimum(new_state)
        return self._next(new_state) or self.end_search(new_state, new_state.status, new_state.detail)

    def _circles(self, state: GaussNewtonState) -> bool:
        """Check whether full steps cycle around an optimum without converging to it."""
        round_ = (
            state.progress.n_cycling_steps >= FALLBACK_THRESHOLDS.max_cycling_steps
            and not state.progress.is_unregularized
        )
        free = self.allows_fallbacks and state.phase != LEVENBERG_MARQUARDT_PHASE
        return round_ and free and not has_implausible_residuals(self.ledger.staged, state.evaluation)

    def _accept_optimum(self, state: GaussNewtonState) -> GaussNewtonState:
        """Accept an optimum, unless its residuals are implausible and an attempt remains."""
        best = state
        if self.optimum is not None and self.optimum.evaluation.cost <= state.evaluation.cost:
            best = replace(self.optimum, iteration=state.iteration)
        if not has_implausible_residuals(self.ledger.staged, best.evaluation):
            return best
        self.optimum = best
        return self._next(state) or best

    def _next(self, state: GaussNewtonState) -> GaussNewtonState | None:
        """Return the first state of the next attempt, or None if there is none."""
        if not self.allows_fallbacks or state.phase == LEVENBERG_MARQUARDT_PHASE:
            return None
        next_state = next(self._others, None)
        if next_state is not None:
            return replace(next_state, iteration=state.iteration, damping=state.damping)
        if self.optimum is None and self.ledger.best is not None:
            return _start_attempt(state, LEVENBERG_MARQUARDT_PHASE, self.ledger.evaluate(self.ledger.best))
        return None

    def _tries(self) -> Iterator[GaussNewtonState]:
        """Yield the first states of all attempts except the first and the last one, on demand."""
        staged, compute_second_start = self.ledger.staged, self.ledger.control.second_start
        start = origin = within_bounds(staged, staged.start)
        if compute_second_start is not None and not self.always_relaxes:
            ledger = self.ledger.low_accuracy if self.has_low_accuracy_start else self.ledger
            evaluation = ledger.evaluate(within_bounds(staged, compute_second_start()), begins=True)
            if evaluation.ok:
                origin = evaluation.v
                yield GaussNewtonState(0, "second start", evaluation, is_low_accuracy=self.has_low_accuracy_start)
        for stations, initial_v in (
            (FALLBACK_THRESHOLDS.relaxation_levels, origin),
            (FALLBACK_THRESHOLDS.slow_relaxation_levels, start),
        ):
            self._stations = stations
            evaluation = self.ledger.explicit_low_accuracy.evaluate(initial_v, begins=True)
            yield GaussNewtonState(
                0,
                "station 1",
                evaluation,
                progress=AttemptProgress({"mu": FALLBACK_THRESHOLDS.initial_damping}, station=0),
            )

    def _soft_step(self, state: GaussNewtonState) -> GaussNewtonState:
        """Do one Levenberg-Marquardt step at a station; continue with the next station if this one has ended."""
        staged, coarse, progress = self.ledger.staged, self.ledger.explicit_low_accuracy, state.progress
        linear = coarse.linearize(state.v)
        if not linear.ok:
            return end_failed_attempt(state, linear)
        relaxed_problem = RelaxedProblem(staged, self._stations[progress.station], expected_noise(staged))
        relaxed_step = relaxed_problem.step(coarse, linear, progress.memory["mu"])
        new_state = replace(
            state,
            iteration=state.iteration + 1,
            evaluation=linear if relaxed_step.new_point is None else relaxed_step.new_point,
            damping=1.0 / (1.0 + relaxed_step.used_damping),
            progress=replace(progress, memory={"mu": relaxed_step.damping}, steps=progress.steps + 1),
            report={
                "level": relaxed_step.value,
                "mu": relaxed_step.used_damping,
                "gap": infeasibility(staged.layout, staged.scale, linear),
                "residual": float(np.sqrt(weighted_squares(staged.layout, linear))),
            },
        )
        is_free_step = relaxed_step.used_damping < FALLBACK_THRESHOLDS.free_step_damping
        is_done = relaxed_step.decrease < (
            FALLBACK_THRESHOLDS.min_level_decrease if is_free_step else FALLBACK_THRESHOLDS.min_damped_level_decrease
        )
        return (
            self._next_station(new_state)
            if is_done or new_state.progress.steps >= FALLBACK_THRESHOLDS.max_level_iterations
            else new_state
        )

    def _next_station(self, state: GaussNewtonState) -> GaussNewtonState:
        """Continue with the next station; after the last one, with the exact problem at full accuracy."""
        station = state.progress.station + 1
        if station < len(self._stations):
            memory = {"mu": min(state.progress.memory["mu"], FALLBACK_THRESHOLDS.initial_damping)}
            return replace(state, phase=f"station {station + 1}", progress=AttemptProgress(memory, station))
        exact_evaluation = self.ledger.evaluate(state.v, begins=True)
        return replace(state, phase="exact", evaluation=exact_evaluation, progress=AttemptProgress(station=station))


def _start_attempt(state: GaussNewtonState, phase: str, evaluation: Evaluation) -> GaussNewtonState:
    """Begin another attempt, without the progress of the last one."""
    return GaussNewtonState(state.iteration, phase, evaluation, state.damping)


def end_failed_attempt(state: GaussNewtonState, linear: Linearization) -> GaussNewtonState:
    """End an attempt at a point that cannot be linearized."""
    failure = linear.failures[0]
    return replace(state, status=Status.EVALUATION_FAILED, detail=f"{failure.chain}: {failure.detail}")


def within_bounds(staged: StagedProblem, v: Array) -> Array:
    """Move every variable into its bounds."""
    return np.clip(v, staged.lower, staged.upper)
