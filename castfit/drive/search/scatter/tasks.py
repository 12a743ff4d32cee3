"""Tasks of a scatter search: simulate members, and search locally from one of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from castfit._support.arrays import Array
from castfit._support.blas_threads import one_blas_thread
from castfit._support.status import Status
from castfit._support.time_limit import without_deadline
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.optima import ObjectiveMeasure
from castfit.drive.search.scatter.bounds import SearchBounds
from castfit.drive.search.scatter.method.choice import path_distances, thin_path
from castfit.fit.fit import Solver, Transcription
from castfit.fit.fit import plain_fit as fit
from castfit.fit.start.decomposition.search import Decomposed
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import Posable
from castfit.result.result import Result
from castfit.solve.solution import Iteration, infeasibility
from castfit.solve.staged import StagedProblem, weighted_squares
from castfit.transcribe.single_shooting import SingleShooting

Job = bytes | tuple["SearchContext"]


@dataclass(frozen=True, eq=False)
class SearchContext:
    """Problem, methods and settings shared by all tasks of a search.

    problem : the problem that is searched
    transcription, solver : of local searches
    start : how a local search starts from a member: its theta, or what `fit` makes of it
    join_reach : a local search that comes this close to an earlier one's path is broken off; 0 for never
    """

    problem: CompiledProblem
    transcription: Transcription
    solver: Solver
    box: SearchBounds
    start: str | None
    join_reach: float

    @cached_property
    def staged(self) -> StagedProblem:
        """The problem by single shooting, with the integrator of the local searches."""
        shooting = SingleShooting(self.transcription.integrator)
        return shooting.transcribe(self.problem, self.box.theta(np.full(self.box.lower.size, 0.5)))

    @cached_property
    def needs_simulation(self) -> bool:
        """Whether chi2 of a fit may flatter its end: by gaps, or by violated constraints."""
        constrained = bool(self.problem.constraints or self.problem.state_bounds)
        return constrained or not isinstance(self.transcription, SingleShooting)

    @cached_property
    def merit(self) -> ObjectiveMeasure:
        """Merit by which members are compared."""
        return ObjectiveMeasure.from_problem(self.problem)

    def natural(self, x: Array) -> Array:
        """Return the natural values (n_theta,) at a point of the cube."""
        return self.problem.to_natural(self.box.theta(x))

    def fit(
        self,
        problem: Posable,
        start: Any,
        max_time: float,
        callback: Callable[[Iteration], Any] | None,
        *,
        verify: bool = True,
    ) -> Result:
        """Fit once, without a second start: it is another search that leads out of a bad optimum."""
        return fit(
            problem,
            self.transcription,
            self.solver,
            start=start,
            second_start=False,
            retry=False,
            verify=verify,
            max_time=max_time,
            callback=callback,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickling, without cached properties."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class SimulatedBlock:
    """Heights (`ObjectiveMeasure`) of a block of members, as far as there was time; and why others have none."""

    values: tuple[float, ...]
    failures: Counter[str]


@dataclass(frozen=True, eq=False)
class LocalSearchResult:
    """A local search.

    path : (k, n) points of the cube, start and end included
    f : height at the end
    result : of `fit`, without its problem
    joined : whether it was broken off because it had joined an earlier one's path
    """

    path: Array
    f: float
    evaluations: Counter[str]
    result: Result
    joined: bool


def simulate_block(job: Job, X: Array, deadline: float) -> SimulatedBlock:
    """Simulate members at the rows of X (k, n) until the deadline, as `time.time` gives it."""
    (work,) = unpickle_job(job)
    values: list[float] = []
    failures: Counter[str] = Counter()
    with one_blas_thread, np.errstate(all="ignore"):
        for x in X:
            if time.time() >= deadline:
                break
            value, cause = evaluate_height(work, work.box.theta(x))
            values.append(value)
            failures.update(cause)
    return SimulatedBlock(tuple(values), failures)


def evaluate_height(work: SearchContext, theta: Array) -> tuple[float, list[str]]:
    """Return the height at theta, inf if it cannot be simulated, and the causes of failures.

    Violated constraints add a penalty in units of the measurements, so that feasible points are preferred.
    """
    staged = work.staged
    evaluation = staged.evaluate(theta)
    if not evaluation.ok or not np.isfinite(evaluation.cost):
        return np.inf, sorted({failure.cause for failure in evaluation.failures}) or ["not_finite"]
    violation = infeasibility(staged.layout, staged.scale, evaluation)
    penalty = violation * sum(float(np.sum(s**2)) for s in staged.signal) if violation > 0.0 else 0.0
    return work.merit.compute_height(evaluation.cost, weighted_squares(staged.layout, evaluation)) + penalty, []


class _LocalSearchWatch:
    """A callback that notes the way of a local search, and ends it where it joins an earlier one."""

    def __init__(self, work: SearchContext, paths: Sequence[Array], best: float) -> None:
        self._work, self._paths, self._best = work, paths, best
        self.points: list[Array] = []
        self.joined = False

    def __call__(self, iteration: Iteration) -> bool:
        box = self._work.box
        x = box.cube(iteration.v[: box.guess.size])
        self.points.append(x)
        if (
            not self._paths
            or len(self.points) < 2
            or self._work.merit.compute_height(iteration.cost, iteration.chi2) < self._best
        ):
            return False
        radius = self._work.join_reach * np.sqrt(x.size)
        self.joined = any(path_distances(x[None], path)[0] < radius for path in self._paths)
        return self.joined


@task
def search_locally(
    job: Job, x: Array, paths: Sequence[Array], best: float, seed: int, deadline: float
) -> LocalSearchResult:
    """Fit from a member x (n,).

    paths : (k, n) each, the ways of earlier searches
    best : the lowest height so far; whatever is below it goes on, whose path it may have joined
    seed : with the number of earlier searches it makes the random numbers of a start by decomposition
    """
    (work,) = unpickle_job(job)
    watch = _LocalSearchWatch(work, paths if work.join_reach > 0.0 else (), best)
    theta = work.box.theta(x)
    start: Any = dict(zip(work.problem.names, work.problem.to_natural(theta).tolist(), strict=True))
    problem = work.problem
    if work.start == "matching":
        problem, start = problem.starting_at(start), work.start
    elif work.start == "decomposed":
        start = Decomposed(start, np.random.default_rng((seed, len(paths))))
    result = work.fit(
        problem, start, max(deadline - time.time(), 1e-3), watch, verify=False
    )  # the last fit is verified
    evaluations = Counter(result.evaluations)
    f = work.merit.compute_height(result.cost, result.chi2)
    if work.needs_simulation:
        with without_deadline():  # one evaluation, without which the search would be lost
            f, _ = evaluate_height(work, result.theta)
        evaluations["values"] += 1
    start_points = [x] if work.start is None else []  # other starts leap away from the member
    path = np.array([*start_points, *watch.points, work.box.cube(result.theta)])
    joined = watch.joined and result.status is Status.STOPPED_BY_CALLBACK
    f = f if np.isfinite(f) else np.inf
    return LocalSearchResult(thin_path(path), f, evaluations, replace(result, problem=None), joined)
