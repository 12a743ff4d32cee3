"""The searchers that benchmarks compare: scatter search with its options, and baselines on the same objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from scipy.optimize import Bounds, differential_evolution

from castfit._support.arrays import Array
from castfit.drive.run.loop import open_session
from castfit.drive.run.optima import ObjectiveMeasure
from castfit.drive.run.options import RunOptions
from castfit.drive.search.scatter.bounds import read_search_bounds, with_log_scales
from castfit.drive.search.scatter.log import SearchLog, SearchStopped
from castfit.drive.search.scatter.method.members import Member
from castfit.drive.search.scatter.result import BestSoFar
from castfit.drive.search.scatter.scatter_search import SOLVER, scatter_search
from castfit.drive.search.scatter.tasks import SearchContext
from castfit.problem.compiled_problem import CHI2
from castfit.problem.problem import Problem
from castfit.transcribe.single_shooting import SingleShooting

from .methods import INTEGRATOR

_FAILED_OBJECTIVE = 1e300  # objective of a failed simulation; differential evolution needs finite numbers


@dataclass(frozen=True)
class SearchTrace:
    """What a search did: the best chi2 whenever it fell, where its fits ended, simulations and seconds in all."""

    history: tuple[BestSoFar, ...]
    ends: tuple[float, ...]
    simulations: int
    time: float
    measure: str = CHI2


@dataclass(frozen=True)
class Budget:
    """What a run may take, simulations and seconds, and the chi2 at which it has succeeded."""

    max_eval: float
    max_time: float
    vtr: float


class Searcher(Protocol):
    """A way to search."""

    @property
    def words(self) -> str:
        """What it is, for the table."""
        ...

    def __call__(self, problem: Problem, *, seed: int, workers: int, budget: Budget) -> SearchTrace:
        """Search."""
        ...


@dataclass(frozen=True)
class Scatter:
    """Scatter search with some options other than the defaults."""

    words: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, problem: Problem, *, seed: int, workers: int, budget: Budget) -> SearchTrace:
        """Search."""
        result = scatter_search(
            problem,
            SingleShooting(INTEGRATOR),
            rng=seed,
            workers=workers,
            include_guess=False,
            max_eval=budget.max_eval,
            max_time=budget.max_time,
            vtr=ObjectiveMeasure.from_problem(problem).at_height(budget.vtr),
            **self.options,
        )
        height = result.merit.height_at  # as the other methods are told of
        history = tuple(replace(m, objective=height(m.objective)) for m in result.history)
        return SearchTrace(history, tuple(height(s.end) for s in result.searches), result.simulations, result.time)


@dataclass(frozen=True)
class Baseline:
    """Another method on the objective of the scatter search; `minimise` goes on until a limit halts it."""

    words: str
    minimise: Callable[[SearchLog, int, np.random.Generator], object]

    def __call__(self, problem: Problem, *, seed: int, workers: int, budget: Budget) -> SearchTrace:
        """Search."""
        searched = with_log_scales(problem, "auto", [])
        box = read_search_bounds(searched, [])
        work = SearchContext(searched, SingleShooting(INTEGRATOR), SOLVER, box, None, 0.0)
        with open_session(RunOptions(workers=workers, max_time=budget.max_time)) as session:
            log = SearchLog(session, (work,), work, seed, max_eval=budget.max_eval, vtr=budget.vtr)
            with suppress(SearchStopped):
                self.minimise(log, box.lower.size, np.random.default_rng(seed))
            return SearchTrace(tuple(log.moments), tuple(s.end for s in log.searches), log.simulations, log.elapsed)


def evolve(log: SearchLog, n: int, rng: np.random.Generator) -> None:
    """Differential evolution, as scipy has it, without its final polish."""

    def objective(X: Array) -> Any:
        return np.minimum(log.values(X.T), _FAILED_OBJECTIVE)

    differential_evolution(
        objective,
        Bounds(np.zeros(n), np.ones(n)),
        seed=rng,
        maxiter=10**9,
        tol=0.0,
        polish=False,
        vectorized=True,
        updating="deferred",
    )


def start_often(log: SearchLog, n: int, rng: np.random.Generator) -> None:
    """Local searches from uniform points, each to its end."""
    while True:
        x = rng.random(n)
        log.improve(Member(x, float(log.values(x[None])[0]), 0), ())


SEARCHERS: dict[str, Searcher] = {
    "scatter": Scatter("scatter search"),
    "decomposed": Scatter("scatter search, fits start by decomposition", {"local_start": "decomposed"}),
    "multistart": Baseline("the same fits from uniform random points", start_often),
    "de": Baseline("scipy's differential evolution", evolve),
}
ABLATION: dict[str, Searcher] = {
    "default": Scatter("all defaults"),
    "subranges=1": Scatter("uniform points instead of the frequency memory", {"subranges": 1}),
    "corners": Scatter("first set from corners and midpoint, not by quality", {"first_refset": "corners"}),
    "no local": Scatter("no local searches at all", {"local_n1": 10**9}),
    "local_searches=1": Scatter("one local search at a time", {"local_searches": 1}),
    "log_vars=()": Scatter("no logarithms but the problem's own", {"log_vars": ()}),
    "no filter": Scatter("no distance filter", {"distance_filter": "none"}),
    "minima": Scatter("distance filter that knows minima only", {"distance_filter": "minima"}),
    "no joining": Scatter("local searches are never broken off", {"join_reach": 0.0}),
    "neither": Scatter("neither paths nor breaking off", {"distance_filter": "none", "join_reach": 0.0}),
    "merit": Scatter("merit filter on", {"merit_filter": True}),
    "balance=0": Scatter("starts chosen by quality alone", {"balance": 0.0}),
    "balance=1": Scatter("starts chosen by novelty alone", {"balance": 1.0}),
    "prob_bound=0": Scatter("children never put on a bound", {"prob_bound": 0.0}),
    "go_beyond": Scatter("go-beyond on (eSS)", {"go_beyond": True}),
    "distance": Scatter("regeneration by distance, not by directions", {"regeneration": "distance"}),
    "aggressive": Scatter("regeneration keeps the best member only", {"aggressive": True}),
    "restart": Scatter("restart after 5 generations without progress", {"restart_after": 5}),
    "b=10": Scatter("ten members, a hundred diverse points, as in the paper", {"dim_refset": 10}),
}
