"""Tasks of a profile run, and their common start: the staged problem and its best fit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit._support.time_limit import StopRequested, with_deadline
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.uncertainty.profile.branches import ContinuationLimits, ContinuationResult, ProfilePoint
from castfit.drive.uncertainty.profile.continuation import follow_branches
from castfit.drive.uncertainty.profile.corrector import CorrectorContext, misfit
from castfit.drive.uncertainty.profile.predictions import (
    OfPrediction,
    PredictedOutput,
    augment_problem,
    release_predictions,
)
from castfit.drive.uncertainty.profile.targets import Target, undecorated
from castfit.fit.attempt import has_states, with_start_trajectory, with_state_start
from castfit.fit.fit import refit_method_options, result_nodes
from castfit.fit.methods import Solver, Transcription, mismatches, parts_from
from castfit.problem.compiled_problem import CompiledProblem
from castfit.result.result import Result
from castfit.simulate.simulate import TrajectoryNodes
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import SolveControl
from castfit.solve.staged import StagedProblem
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.single_shooting import SingleShooting

_MAX_REFINEMENT_ROUNDS = 8  # rounds of mesh refinement at the best fit
_MAX_RESOLVE_ITERATIONS = 40  # Gauss-Newton iterations of a solve that starts at the best fit
_WEIGHT_ROUNDS = 4  # rounds that determine the weight of the row of an expression
_PROFILE_ELEMENT_TOLERANCE = 1e-6  # default tolerance of collocation elements
_DERIVATIVE_STEP_FRACTION = 1e-3  # of a target's scale: step of the differences at the best fit


@dataclass(eq=False)
class ProfileSetting:
    """A problem, a method and a solution from which profiles start.

    theta : (n_theta,)
    nodes : the trajectory, per experiment; empty if it is simulated
    explicit : whether no quantity is eliminated, because a target would be
    predictions : predictions for which the problem has rows
    """

    compiled_problem: CompiledProblem
    transcription: Transcription
    solver: Solver
    theta: Array
    nodes: Sequence[TrajectoryNodes]
    explicit: bool = False
    predictions: tuple[PredictedOutput, ...] = ()
    _prepared: tuple[CorrectorContext, Array] | Status | None = field(default=None, repr=False)

    @classmethod
    def from_result(
        cls,
        best: Result,
        compiled_problem: CompiledProblem,
        transcription: Transcription,
        solver: Solver,
        targets: Sequence[Target],
    ) -> ProfileSetting:
        """Start at a fit, with its whole trajectory and its choice about sigmas."""
        predicted_outputs = tuple(
            t.prediction for t in targets if isinstance(t, OfPrediction) and t.prediction is not None
        )
        explicit = bool(predicted_outputs) or any(t.needs_explicit for t in targets)
        compiled_problem = with_fitted_sigmas(compiled_problem, best)
        nodes = result_nodes(compiled_problem, best)
        augmented_problem = (
            augment_problem(compiled_problem, predicted_outputs) if predicted_outputs else compiled_problem
        )
        return cls(augmented_problem, transcription, solver, best.theta, nodes, explicit, predicted_outputs)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the objects that each process builds for itself."""
        return {**self.__dict__, "_prepared": None}

    def _at_solution(self) -> tuple[CorrectorContext, Array] | Status:
        """Return the path follower and v (n_v,) of the best fit; a status if there is no solution.

        Raises StopRequested if the time is over or Ctrl-C was pressed.
        """
        if self._prepared is None:
            self._prepared = self._solved()
            if isinstance(self._prepared, Status) and has_states(self.transcription):
                # With states as variables the valley may be too narrow to follow (see `CorrectorContext._by_shooting`).
                self.transcription = SingleShooting(self.transcription.integrator)
                self._prepared = self._solved()
        return self._prepared

    def _solved(self) -> tuple[CorrectorContext, Array] | Status:
        transcription = self.transcription
        if self.nodes and has_states(transcription):
            transcription = with_start_trajectory(
                self.compiled_problem,
                transcription,
                self.theta,
                [_thinned(nodes, transcription) for nodes in self.nodes],
            )
        staged = self.wrapped(transcription.transcribe(self.compiled_problem, self.theta))
        solver = self.solver
        if isinstance(solver, GaussNewton):
            solver = replace(solver, max_iter=min(solver.max_iter, _MAX_RESOLVE_ITERATIONS))
        for _ in range(_MAX_REFINEMENT_ROUNDS):
            solution = solver.solve(staged, SolveControl(), warm=True)
            if solution.status in (Status.INTERRUPTED, Status.MAX_TIME):
                raise StopRequested(solution.status)
            if not solution.status.success:
                return solution.status
            finer = transcription.refine(self.compiled_problem, undecorated(staged), solution.v)
            if finer is None:
                linearization = staged.linearize(solution.v)
                if not linearization.ok:
                    return Status.EVALUATION_FAILED
                error = misfit(self.compiled_problem, undecorated(staged), linearization.v, transcription)
                parts = self.compiled_problem, self.transcription, self.solver
                return CorrectorContext(*parts, staged, linearization.cost, error, self.wrapped), linearization.v
            staged = self.wrapped(finer)
        return Status.INACCURATE

    def wrapped(self, staged: StagedProblem) -> StagedProblem:
        """Return a staged problem with explicit theta if required, in which no prediction is fixed."""
        staged = staged.explicit() if self.explicit else staged
        return release_predictions(staged, self.predictions) if self.predictions else staged

    def open_corrector(
        self, target: Target, deadline: float = np.inf
    ) -> tuple[CorrectorContext, Target, ProfilePoint] | Status:
        """Return the path follower, the target with its final weight, and the best fit as first point; or a status."""
        solution = self._at_solution()
        if isinstance(solution, Status):
            return solution
        tracer = replace(solution[0], deadline=deadline, evaluations=Counter())
        anchor = make_anchor(tracer, target, solution[1])
        return anchor if isinstance(anchor, Status) else (tracer, *anchor)


def with_fitted_sigmas(compiled_problem: CompiledProblem, best: Result) -> CompiledProblem:
    """Return a problem with the same choice about sigmas as the fit."""
    return (
        compiled_problem
        if compiled_problem.noise_parameters
        else compiled_problem.with_absolute_sigma(absolute_sigma=best.absolute_sigma)
    )


def parts_along(transcription: Any, solver: Any, result: Any, mistakes: list[str]) -> tuple[Transcription, Solver]:
    """Read the transcription and solver of a run; the defaults are the method of the result, for paths.

    Collocation elements may be less accurate than in a fit, because a profile uses differences of the objective with
    the same elements, and limits are verified.  A tolerance of 1e-6 instead of 1e-8 halves their number.
    """
    default_transcription = refit_method_options(result)[0] if isinstance(result, Result) else Collocation()
    if mismatches(default_transcription, GaussNewton()):
        default_transcription = SingleShooting(default_transcription.integrator)
    if isinstance(default_transcription, Collocation) and default_transcription.adapts:
        default_transcription = replace(
            default_transcription, tolerance=max(default_transcription.tolerance, _PROFILE_ELEMENT_TOLERANCE)
        )
    return parts_from(transcription, solver, mistakes, default=(default_transcription, GaussNewton()))


def _thinned(nodes: TrajectoryNodes, transcription: Transcription) -> TrajectoryNodes:
    """Thin the nodes of a fit to the number that the elements of a transcription may need."""
    if not isinstance(transcription, Collocation) or not transcription.adapts:
        return nodes
    # The error of a Radau element is proportional to its length to the power 2 degree.
    stride = int((transcription.tolerance / Collocation().tolerance) ** (0.5 / transcription.degree))
    return TrajectoryNodes(nodes.times[::stride], nodes.states[::stride]) if stride > 1 else nodes


def make_anchor(tracer: CorrectorContext, target: Target, v: Array) -> tuple[Target, ProfilePoint] | Status:
    """Return the target with its final row weight, and a solution at which it is free as first point."""
    c, h = target.coordinate(tracer.staged.linearize(v), tracer.staged), _DERIVATIVE_STEP_FRACTION * target.scale
    h = -h if c + h > target.upper else h
    spot: ProfilePoint | Status = Status.EVALUATION_FAILED
    for _ in range(_WEIGHT_ROUNDS):
        spot = tracer.measured(target, target.with_fixed_value(tracer.staged, c), v, c, h)
        if isinstance(spot, Status):
            return spot
        stiffer = target.stiffened(0.5 * spot.curvature)
        if stiffer is target:
            break
        target = stiffer
    assert isinstance(spot, ProfilePoint)
    return target, spot


@task
def follow_target(
    job: bytes | tuple[ProfileSetting, tuple[Target, ...], ContinuationLimits],
    k: int,
    origin: int | Array,
    deadline: float,
) -> ContinuationResult | None:
    """Follow target k; return None if no time is left.

    The origin is a side of the best fit, -1 or 1; or a point theta (n_theta,) with a lower objective than the known
    branches, from which the target is followed in both directions.
    """
    setting, targets, goal = unpickle_job(job)
    left = deadline - time.time()
    if left <= 0.0:
        return None
    try:
        with with_deadline(left):
            start = setting.open_corrector(targets[k], deadline)
            if isinstance(start, Status):
                return ContinuationResult(status=start.value if isinstance(origin, int) else "")
            tracer, target, best = start
            if isinstance(origin, int):
                continuation = follow_branches(tracer, target, best, origin, goal)
            else:
                continuation = _follow_from(setting, tracer, target, origin, goal)
    except StopRequested as stop:
        return ContinuationResult(status=stop.status.value)
    if not continuation.branches:
        return continuation
    return replace(
        continuation, estimate=best.c, curvature=best.curvature, solves=tracer.solves,
        evaluations=tracer.evaluations["values"], jacobians=tracer.evaluations["jacobians"],
    )  # fmt: skip


def _follow_from(
    setting: ProfileSetting, tracer: CorrectorContext, target: Target, theta: Array, goal: ContinuationLimits
) -> ContinuationResult:
    """Follow both directions from theta, with a staged problem that is built there."""
    transcription = setting.transcription
    transcription = with_state_start(transcription, "simulation") if has_states(transcription) else transcription
    tracer.staged = setting.wrapped(transcription.transcribe(setting.compiled_problem, theta))
    c = target.coordinate_of(theta)
    spot = tracer.spot(target, c, tracer.staged.start, 1e-3 * target.scale, check=True)
    if isinstance(spot, Status):
        return ContinuationResult()
    below, above = (follow_branches(tracer, target, spot, side, goal) for side in (-1, 1))
    better = above.better if below.better is None else below.better
    valleys = () if spot.delta > goal.top else below.valleys + above.valleys
    return ContinuationResult(below.branches + above.branches, better=better, valleys=valleys)
