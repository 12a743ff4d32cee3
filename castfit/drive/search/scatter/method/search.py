"""The loop of the scatter search, one generation at a time over an explicit, frozen state.

    diverse points -> reference set
         |
         v
    children of new pairs -> (beyond) -> update -> local search -> update
         ^                                                           |
         |       flat, or no pair left that is new                   |
         +----------------- regeneration <---------------------------+

A search by hand:

    state = begin(objective, n, seed, ScatterOptions())
    while ...:
        state = step(objective, state, ScatterOptions())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from castfit._support.arrays import Array
from castfit.drive.search.scatter.method.choice import FilterState, LocalSearchPath, choose_start, filter_candidates
from castfit.drive.search.scatter.method.combine import (
    Pair,
    find_better_children,
    find_new_pairs,
    go_beyond,
    make_children,
    make_pair,
)
from castfit.drive.search.scatter.method.diversify import Counts, draw_diverse
from castfit.drive.search.scatter.method.members import Member, make_members, sort_by_quality, stack_points
from castfit.drive.search.scatter.method.options import ScatterOptions
from castfit.drive.search.scatter.method.refset import (
    count_retained,
    find_most_distant,
    find_new_directions,
    form_by_corners,
    form_by_quality,
    is_flat,
    update_refset,
)


@dataclass(frozen=True)
class LocalSearchOutcome:
    """Result of a local search: the points of its path (k, n), start and end included, and the value at its end."""

    path: Array
    f: float


class CubeObjective(Protocol):
    """Objective to be minimised over the unit cube."""

    def values(self, X: Array) -> Array:
        """Return the values (k,) at the rows of X (k, n); inf where there is none."""
        ...

    def improve(self, start: Member, climbs: Sequence[LocalSearchPath]) -> LocalSearchOutcome | None:
        """Search locally from a member, knowing all earlier local searches; None if nothing came of it."""
        ...


@dataclass(frozen=True, eq=False)
class SearchState:
    """State of a search after a generation; the record of a checkpoint.

    seed : each generation draws from a random stream of its own, (seed, generation)
    R : the reference set, the best first
    best : the best of all, also after a restart
    combined : which pairs have been combined
    frequency : (n, p) the frequency memory
    climbs : all local searches so far
    since_local : generations since the last local search
    stagnant : generations since the best improved
    restarts : how often the search has begun anew
    enrolled : how many members have been numbered
    """

    seed: int
    generation: int
    R: tuple[Member, ...]
    best: Member
    combined: frozenset[Pair]
    frequency: Counts
    climbs: tuple[LocalSearchPath, ...] = ()
    filters: FilterState = field(default_factory=FilterState)
    since_local: int = 0
    stagnant: int = 0
    restarts: int = 0
    enrolled: int = 0


def begin_search(
    objective: CubeObjective, n: int, seed: int, options: ScatterOptions, initial_points: Array | None = None
) -> SearchState:
    """Form the first reference set.

    n : number of unknowns
    initial_points : (k, n) points of the cube that are simulated in addition to the diverse ones
    """
    rng = np.random.default_rng((seed, 0))
    memory = np.zeros((n, options.subranges), dtype=np.intp)
    draws, frequency = draw_diverse(options.diverse_points, memory, rng)
    if options.first_refset == "corners":
        draws = form_by_corners(draws, options.dim_refset)
    X = draws if initial_points is None else np.vstack([initial_points, draws])
    R = form_by_quality(make_members(X, objective.values(X), 0), options.dim_refset)
    state = SearchState(seed, 0, R, R[0], frozenset(), frequency, enrolled=len(X))
    return _run_local_searches(objective, state, (), options) if options.local_n1 == 0 else state


def run_generation(objective: CubeObjective, state: SearchState, options: ScatterOptions) -> SearchState:
    """Do one generation."""
    previous_state = state
    state = replace(state, generation=state.generation + 1, since_local=state.since_local + 1)
    rng = np.random.default_rng((state.seed, state.generation))
    state, new_members = _combine(objective, state, options, rng)
    if _is_local_search_due(state, options):
        state = _run_local_searches(objective, state, new_members, options)
    improved = state.R[0].f < previous_state.best.f
    best = state.R[0] if improved else state.best
    state = replace(state, best=best, stagnant=0 if improved else state.stagnant + 1)
    if options.restart_after is not None and state.stagnant >= options.restart_after * (1 + state.restarts):
        return _restart(objective, state, options, rng)
    if is_flat(state.R, options.min_difference):
        return _regenerate(objective, state, options, rng, keep=1)
    if not find_new_pairs(state.R, state.combined):
        keep = count_retained(len(state.R), aggressive=options.aggressive)
        return _regenerate(objective, state, options, rng, keep=keep)
    return state


def _combine(
    objective: CubeObjective, state: SearchState, options: ScatterOptions, rng: np.random.Generator
) -> tuple[SearchState, tuple[Member, ...]]:
    """Combine all new pairs and let their children into the reference set; return the children too."""
    R = state.R
    pairs = find_new_pairs(R, state.combined)
    family = make_children(R, pairs, options.prob_bound, rng)
    X = np.array([c.x for c in family]).reshape(len(family), R[0].x.size)
    new_members = make_members(X, objective.values(X), state.enrolled)
    if options.go_beyond:
        lines = find_better_children([(c.parent, member) for c, member in zip(family, new_members, strict=True)])
        new_members += go_beyond(lines, objective.values, state.enrolled + len(new_members), rng)
    combined = state.combined | {make_pair(R[i], R[j]) for i, j in pairs}
    return replace(
        state, R=_admit(R, new_members, options), combined=combined, enrolled=state.enrolled + len(new_members)
    ), new_members  # fmt: skip


def _admit(R: Sequence[Member], candidates: Sequence[Member], options: ScatterOptions) -> tuple[Member, ...]:
    return update_refset(R, candidates, distance=options.min_distance, epsilon=options.min_difference)


def _is_local_search_due(state: SearchState, options: ScatterOptions) -> bool:
    if not state.climbs:
        return state.generation >= options.local_n1
    return state.since_local >= options.local_n2


def _run_local_searches(
    objective: CubeObjective, state: SearchState, new_members: Sequence[Member], options: ScatterOptions
) -> SearchState:
    """Search locally from the most promising points, each chosen with the results of the searches before."""
    for _ in range(options.local_searches):
        n_before = len(state.climbs)
        state = _run_local_search(objective, state, new_members, options)
        if len(state.climbs) == n_before:
            break
    return state


def _run_local_search(
    objective: CubeObjective, state: SearchState, new_members: Sequence[Member], options: ScatterOptions
) -> SearchState:
    """Search locally from the point that deserves it most, if any passes the filters."""
    searched_numbers = {number for climb in state.climbs for number in (climb.start.number, climb.end.number)}
    candidates = {m.number: m for m in (*state.R, *new_members) if m.number not in searched_numbers}
    pool = filter_candidates(list(candidates.values()), state.climbs, state.filters, options)
    if not pool:
        return replace(state, filters=state.filters.with_refusal(options.relax_after))
    start = choose_start(pool, state.climbs, options.balance)
    state = replace(state, filters=state.filters.with_accepted(start), since_local=0)
    outcome = objective.improve(start, state.climbs)
    if outcome is None:
        return replace(state, climbs=(*state.climbs, LocalSearchPath(start, start, start.x[None])))
    end = Member(outcome.path[-1], outcome.f, state.enrolled)
    climbs = (*state.climbs, LocalSearchPath(start, end, outcome.path))
    R = _admit(state.R, [end], options) if end.f < start.f else state.R
    best = min(state.best, R[0], key=lambda member: member.rank)
    return replace(state, R=R, best=best, climbs=climbs, enrolled=state.enrolled + 1)


def _regenerate(
    objective: CubeObjective, state: SearchState, options: ScatterOptions, rng: np.random.Generator, *, keep: int
) -> SearchState:
    """Keep the best members and refill the reference set with new points; only those that enter are evaluated."""
    R = state.R[:keep]
    n, n_missing = R[0].x.size, len(state.R) - keep
    X, frequency = draw_diverse(max(options.diverse_points, n_missing), state.frequency, rng)
    select = find_new_directions if options.regeneration == "directions" else find_most_distant
    new_points = X[select(X, stack_points(R, n), n_missing)]
    new_members = make_members(new_points, objective.values(new_points), state.enrolled)
    return replace(
        state, R=sort_by_quality([*R, *new_members]), frequency=frequency, enrolled=state.enrolled + len(new_members)
    )


def _restart(
    objective: CubeObjective, state: SearchState, options: ScatterOptions, rng: np.random.Generator
) -> SearchState:
    """Restart from diverse points; the frequency memory and the local searches so far are kept.

    Each restart is followed by a longer search than the one before, from more points: a problem that is still unsolved
    is harder than it was taken to be.
    """
    restarts = state.restarts + 1
    X, frequency = draw_diverse(options.diverse_points * (1 + restarts), state.frequency, rng)
    members = make_members(X, objective.values(X), state.enrolled)
    R = form_by_quality(members, options.dim_refset)
    return replace(
        state,
        R=R,
        frequency=frequency,
        filters=FilterState(),
        stagnant=0,
        restarts=restarts,
        enrolled=state.enrolled + len(members),
    )
