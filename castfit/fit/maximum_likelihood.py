"""Maximisation of likelihoods that are not sums of squares: first by least squares, then exactly.

    least squares with one sigma per output  -->  spreads as its residuals say  -->  the likelihood itself

Homotopies, matching and rescues work on the first (see castfit.fit.start.gaussian_surrogate); the second is warm.
Where the start itself, simulated, is more likely than what least squares found, as among outliers, the second begins
there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.status import Status
from castfit._support.time_limit import Stopped, unwatched, watched
from castfit.fit.attempt import Attempt, FitRun, SolveStaging, has_states, judge, started_from, with_states
from castfit.fit.start.gaussian_surrogate import completed, surrogate, with_spreads
from castfit.fit.strategies import SearchEnd, lowest_met, search
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.fit.methods import Transcription
    from castfit.solve.staged import StagedProblem

_KEPT = 0.25  # of the time: least squares that take longer are followed by the likelihood itself all the same
_ROUGH = 1e-4  # of half the squares: what least squares may be off where they are only a start


def most_likely(run: FitRun, asked: Transcription, theta: Array) -> SearchEnd:
    """Search by least squares, then maximise the likelihood."""
    problem = run.problem
    plain = surrogate(problem)
    places = [problem.names.index(name) for name in plain.names]
    squares = replace(run, problem=plain, verify=False, rough=_ROUGH)
    squares.deadline = run.deadline - _KEPT * max(run.remaining, 0.0) if np.isfinite(run.deadline) else run.deadline
    with watched(squares.remaining):
        first = lowest_met(squares, search(squares, asked, theta[places]), asked)
    run.iterations, run.tries = squares.iterations, squares.tries + 1
    near = first.attempt
    at = completed(problem, plain, near.theta, theta)
    if run.choice is not None:
        asked = near.transcription  # by which it was found
    transcription = asked
    with suppress(Stopped):  # the solver will notice
        transcription = started_from(problem, asked, at, near.nodes)
    staged = _spread(run, transcription, at)
    if near.solution.status in (Status.INTERRUPTED, Status.STOPPED_BY_CALLBACK) or run.remaining <= 0:
        solution = replace(near.solution, v=staged.start, active=np.zeros(staged.layout.n_v, dtype=np.int8))
        with unwatched():  # it takes an evaluation or two
            solution, linear = judge(staged, solution, run.remaining)
        return SearchEnd(Attempt(SolveStaging(transcription, staged), solution, linear, None), first.notes)
    with suppress(Stopped):
        found = staged.evaluate(staged.start)
        whole = _spread(run, SingleShooting(asked.integrator), theta)
        begun = whole.evaluate(whole.start)
        if begun.ok and begun.cost < found.cost:
            transcription = with_states(asked, "simulation") if has_states(asked) else asked
            staged = transcription.transcribe(problem, whole.layout.theta(whole.start))
    return SearchEnd(run.attempt(SolveStaging(transcription, staged, warm=True)), first.notes)


def _spread(run: FitRun, transcription: Transcription, theta: Array) -> StagedProblem:
    """Transcribe with the parameters of the noise where the residuals put them, unless they fit less well there.

    A clock that has run out does not keep them from there: what was found would be called far less likely than it is.
    """
    staged = transcription.transcribe(run.problem, theta)
    with unwatched():
        moved = with_spreads(run.problem, staged, staged.start)
        other = transcription.transcribe(run.problem, staged.layout.theta(moved))
        before, after = staged.evaluate(staged.start), other.evaluate(other.start)
        if after.ok and not (before.ok and before.cost < after.cost):
            staged = other
    return staged
