"""Maximisation of likelihoods that are not sums of squares: first by least squares, then exactly.

    least squares with one sigma per output  -->  spreads estimated from its residuals  -->  the likelihood itself

Homotopies, matching and fallbacks apply to the first phase (see castfit.fit.start.gaussian_surrogate); the second phase
is a warm start.  If the simulated starting point is more likely than the least-squares solution, for instance with
outliers, the second phase starts there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit._support.time_limit import StopRequested, with_deadline, without_deadline
from castfit.fit.attempt import (
    Attempt,
    FitRun,
    SolveStaging,
    has_states,
    verify_solution,
    with_start_trajectory,
    with_state_start,
)
from castfit.fit.methods import Transcription
from castfit.fit.start.gaussian_surrogate import gaussian_surrogate, restore_noise_parameters, with_spreads
from castfit.fit.strategies import SearchEnd, lowest_visited_point, search_with_fallbacks
from castfit.solve.staged import StagedProblem
from castfit.transcribe.single_shooting import SingleShooting

# Fraction of the remaining time that is reserved for the likelihood itself, after the least-squares search.
_LIKELIHOOD_TIME_FRACTION = 0.25
# Relative accuracy of the half-square in the least-squares search, which only provides a starting point.
_LEAST_SQUARES_COST_RTOL = 1e-4


def most_likely(run: FitRun, requested_transcription: Transcription, theta: Array) -> SearchEnd:
    """Search by least squares, then maximise the likelihood."""
    problem = run.problem
    surrogate_problem = gaussian_surrogate(problem)
    positions = [problem.names.index(name) for name in surrogate_problem.names]
    least_squares_run = replace(
        run, problem=surrogate_problem, verify=False, low_accuracy_rtol=_LEAST_SQUARES_COST_RTOL
    )
    least_squares_run.deadline = (
        run.deadline - _LIKELIHOOD_TIME_FRACTION * max(run.remaining, 0.0)
        if np.isfinite(run.deadline)
        else run.deadline
    )
    with with_deadline(least_squares_run.remaining):
        least_squares_end = lowest_visited_point(
            least_squares_run,
            search_with_fallbacks(least_squares_run, requested_transcription, theta[positions]),
            requested_transcription,
        )
    run.iterations, run.n_attempts = least_squares_run.iterations, least_squares_run.n_attempts + 1
    least_squares_attempt = least_squares_end.attempt
    start_theta = restore_noise_parameters(problem, surrogate_problem, least_squares_attempt.theta, theta)
    if run.choice is not None:
        requested_transcription = least_squares_attempt.transcription  # the one that found it
    transcription = requested_transcription
    with suppress(StopRequested):  # the solver checks the time limit again
        transcription = with_start_trajectory(
            problem, requested_transcription, start_theta, least_squares_attempt.nodes
        )
    staged = _spread(run, transcription, start_theta)
    if least_squares_attempt.solution.status in (Status.INTERRUPTED, Status.STOPPED_BY_CALLBACK) or run.remaining <= 0:
        solution = replace(
            least_squares_attempt.solution, v=staged.start, active=np.zeros(staged.layout.n_v, dtype=np.int8)
        )
        with without_deadline():  # takes only one or two evaluations
            solution, linear = verify_solution(staged, solution, run.remaining)
        return SearchEnd(Attempt(SolveStaging(transcription, staged), solution, linear, None), least_squares_end.notes)
    with suppress(StopRequested):
        evaluation = staged.evaluate(staged.start)
        simulated_problem = _spread(run, SingleShooting(requested_transcription.integrator), theta)
        start_evaluation = simulated_problem.evaluate(simulated_problem.start)
        if start_evaluation.ok and start_evaluation.cost < evaluation.cost:
            transcription = (
                with_state_start(requested_transcription, "simulation")
                if has_states(requested_transcription)
                else requested_transcription
            )
            staged = transcription.transcribe(problem, simulated_problem.layout.theta(simulated_problem.start))
    return SearchEnd(run.attempt(SolveStaging(transcription, staged, is_warm_start=True)), least_squares_end.notes)


def _spread(run: FitRun, transcription: Transcription, theta: Array) -> StagedProblem:
    """Transcribe with noise parameters estimated from the residuals, unless this lowers the likelihood.

    This is also done after the time limit: otherwise the likelihood of the point would be far too low.
    """
    staged = transcription.transcribe(run.problem, theta)
    with without_deadline():
        new_start = with_spreads(run.problem, staged, staged.start)
        new_staged = transcription.transcribe(run.problem, staged.layout.theta(new_start))
        evaluation, new_evaluation = staged.evaluate(staged.start), new_staged.evaluate(new_staged.start)
        if new_evaluation.ok and not (evaluation.ok and evaluation.cost < new_evaluation.cost):
            staged = new_staged
    return staged
