"""How `fit` maximises likelihoods that are no sums of squares: by least squares first, then exactly.

    least squares with one sigma per output  -->  spreads as its residuals say  -->  the likelihood itself

Homotopies, matching and rescues work on the first (see castfit.start.surrogate); the second is warm.  Where the start
itself, simulated, is more likely than what least squares found, as among outliers, the second begins there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.time_limit import Stopped, unwatched
from castfit.fit.fallbacks import Attempt, Search, begin, has_states, judge, started_from, with_states
from castfit.simulate.simulate import Nodes
from castfit.fit.start.surrogate import completed, surrogate, with_spreads
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.fit.methods import Transcription
    from castfit.solve.staged import StagedProblem


_ROUGH = 1e-4  # of half the squares: what least squares may be off where they are only a start


@dataclass(frozen=True)
class Found:
    """The end of a search, and what is to be said about how it went."""

    attempt: Attempt
    notes: tuple[str, ...]


def search_for(search: Search, asked: Transcription, theta: Array, *, second_start: bool, retry: bool) -> Found:
    """Search from theta: by least squares, or for likelihoods that are none by way of it."""
    if not search.problem.least_squares:
        return _most_likely(search, asked, theta, second_start=second_start, retry=retry)
    theta, note = search.located(asked, theta)
    opening = begin(search.problem, asked, theta, second_start=second_start)
    search.say(
        f"{asked.label}, {search.solver.label}: {opening.staged.layout.n_v} variables, {search.problem.n_data} data"
    )
    first = search.attempt(opening.transcription, opening.staged, second_start=opening.second_start)
    found, recovery = search.recover(first, theta, second_start=second_start) if retry else (first, "")
    return Found(found, (note, opening.note, recovery))


def _most_likely(search: Search, asked: Transcription, theta: Array, *, second_start: bool, retry: bool) -> Found:
    problem = search.problem
    plain = surrogate(problem)
    places = [problem.names.index(name) for name in plain.names]
    squares = replace(search, problem=plain, verify=False, rough=_ROUGH)
    first = search_for(squares, asked, theta[places], second_start=second_start, retry=retry)
    search.iterations, search.tries = squares.iterations, squares.tries + 1
    near = first.attempt
    at = completed(problem, plain, near.staged.layout.theta(near.solution.v), theta)
    v = near.solution.v
    nodes = [
        Nodes(times[:-1], states)
        for times, states in zip(near.staged.times(v), near.staged.node_states(v), strict=True)
    ]
    transcription = asked
    with suppress(Stopped):  # the solver will notice
        transcription = started_from(problem, asked, at, nodes)
    staged = _spread(search, transcription, at)
    if near.ended:
        solution = replace(near.solution, v=staged.start, active=np.zeros(staged.layout.n_v, dtype=np.int8))
        with unwatched():  # it takes an evaluation or two
            solution, linear = judge(staged, solution)
        return Found(Attempt("", transcription, staged, solution, linear, None), first.notes)
    with suppress(Stopped):
        whole = _spread(search, SingleShooting(asked.integrator), theta)
        begun, found = whole.evaluate(whole.start), staged.evaluate(staged.start)
        if begun.ok and begun.cost < found.cost:
            transcription = with_states(asked, "simulation") if has_states(asked) else asked
            staged = transcription.transcribe(problem, whole.layout.theta(whole.start))
    return Found(search.attempt(transcription, staged, warm=True), first.notes)


def _spread(search: Search, transcription: Transcription, theta: Array) -> StagedProblem:
    """Transcribe with the parameters of the noise where the residuals put them, unless they fit less well there."""
    staged = transcription.transcribe(search.problem, theta)
    with suppress(Stopped):
        moved = with_spreads(search.problem, staged, staged.start)
        other = transcription.transcribe(search.problem, staged.layout.theta(moved))
        before, after = staged.evaluate(staged.start), other.evaluate(other.start)
        if after.ok and not (before.ok and before.cost < after.cost):
            staged = other
    return staged
