"""Ways of a portfolio search: each makes one candidate from a random stream and minimises it as far as it can.

    draws --screen--> best draw --lead--> start --local fit with race--> valley --> optimum --confirm--> solution

The ways differ in the steps between the best draw and the start of the local fit:

    fit          default `castfit.fit` from a draw: states start at the data, on collocation
    box          none
    growing      growing horizons with the trust region (castfit.fit.start.local_search)
    soft         constant states and relaxed equations (castfit.fit.start.soft_start)
    moved        a moved head of the pool instead of draws (castfit.drive.search.portfolio.allocation)

Two further ways are drivers of their own, and end at full accuracy as the default fit does:

    incremental  growing horizons with bounds from the confidence limits (castfit.incremental)
    decomposed   separate estimation of equations that share no parameter (castfit.fit.start.decomposition)

The local fit is single shooting with the trust region (castfit.solve.step_control.box), at the accuracy of a search.
A candidate near the best cost so far is continued to its optimum.  The best of these is confirmed: it is fitted at full
accuracy and verified.  A default fit that fails is continued with the trust region from its last point.  A long valley
may be followed for hundreds of iterations without meeting the optimality conditions: the plan follows the lowest one as
far as its share of the work allows.  If its cost stays as low at full accuracy, it is the best point if it is clearly
below every solution, but it is never reported as a solution.

Before a search ends, pairs of quantities of its best point are exchanged.  Rates of consecutive steps can be nearly
exchangeable if only later steps are measured.  Such mirror optima may be as wide as the best optimum, hardly poorer,
and found as often.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.status import Status
from castfit._support.time_limit import StopRequested, stop_cause, with_deadline, without_deadline
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.search.incremental.incremental import incremental
from castfit.drive.search.portfolio.limits import SearchRegion
from castfit.fit.fit import plain_fit as fit
from castfit.fit.start.decomposition.search import Decomposed
from castfit.fit.start.gaussian_surrogate import restore_noise_parameters
from castfit.fit.start.local_search import (
    FULL_ACCURACY_COST_FACTOR,
    descend,
    lowest_draw,
    minimize_locally,
    work_in_simulations,
)
from castfit.fit.start.search_problem import SearchProblem, search_problem_of
from castfit.fit.strategies import GROWING_HORIZONS, RELAXED_DYNAMICS, TRUST_REGION_DESCENT, StrategyBudget
from castfit.result.result import Result
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.step_control import TrustRegion

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.problem import Posable

WAYS = {
    "fit": "default fit from a random starting point",
    "box": "best of several random points, single shooting with trust region",
    "growing": "best of several random points, growing horizons",
    "soft": "best of several random points, relaxed equations from constant states",
    "incremental": "incremental single shooting from a random starting point",
    "decomposed": "default fit after separate estimation of equations that share no parameter",
    "moved": "perturbed good points, single shooting with trust region",
}
"""Descriptions of the ways."""

FULL_ACCURACY_WAYS = ("fit", "incremental", "decomposed")
"""Ways that end at full accuracy; a candidate takes as long as many others."""

_LEADING_STRATEGIES = {"box": TRUST_REGION_DESCENT, "growing": GROWING_HORIZONS, "soft": RELAXED_DYNAMICS}
"""The strategies of a fit that lead from a draw to where the local fit begins."""

MOVED = "moved"
"""Way that begins at moved points of other candidates."""

CONFIRM = "confirm"
"""Order to fit a point at full accuracy."""

FOLLOW = "follow"
"""Order to follow a valley further."""

EXCHANGED = "exchanged"
"""Order to search locally from points with two quantities exchanged."""

WAY_DESCRIPTIONS = {**WAYS, EXCHANGED: "two quantities of the best point exchanged, single shooting with trust region"}

SAME_COST_TOL = 0.1
"""Difference of two costs, in units of the log-likelihood, up to which they belong to the same optimum."""

NEAR_COST_TOL = 2.0
"""Distance from the lowest cost, in units of the log-likelihood, up to which a candidate is followed to its optimum."""

NO_COST_LIMITS = (np.inf, np.inf)
"""Costs at two looks (`castfit.fit.start.local_search.LOOK_ITERATIONS`) that drop no candidate."""

_UNFINISHED_STATUSES = (
    Status.MAX_ITERATIONS, Status.STEP_TOO_SMALL, Status.MAX_TIME, Status.START_FAILED, Status.EVALUATION_FAILED,
)  # fmt: skip
"""Ends of fits along long valleys, and near points without derivatives, where large powers overflow."""

_MAX_CONFIRMING_ITERATIONS = 4  # iterations of a fit that confirms a candidate
_MAX_POLISHING_ITERATIONS = 150  # iterations of the fit that ends a search
_CONFIRMING_TOL = 1e-6  # tolerance of these fits: a thousandth of a standard error if Fisher scoring converges slowly
_CONFIRMING_TRUST_REGION = TrustRegion(
    patience=6
)  # of a fit that confirms: it begins where a search could gain no more
_MAX_DEFAULT_FIT_ITERATIONS = 180  # iterations of a default fit from a draw; longer ones rarely converge
_ROUNDS_PER_STRIDE = 2  # number of rounds by which a valley is followed at a time
_MAX_EXCHANGED_PAIRS = 100  # number of pairs of quantities that are exchanged and simulated
_MAX_EXCHANGE_DESCENTS = 8  # number of exchanged points from which local searches start
_NEAR_COST_RTOL = 0.02  # the same margin relative to the lowest cost, which matters if that is far above the noise


@dataclass(frozen=True)
class CandidateOrder:
    """Order of a candidate: the way, the random stream, and the state of knowledge.

    way : way of the search, or `CONFIRM`, `FOLLOW`, `EXCHANGED`
    seed : seed of the random stream
    screen : number of draws of which the best one is the start
    theta : (n,) point that is moved, confirmed or followed, search scale
    limits : costs at the looks above which the candidate is dropped
    best : lowest cost so far
    guess : whether the candidate starts at the guess
    accurate : whether a valley is followed at high accuracy, or a confirming fit takes as many iterations as needed
    step_control : step control of the local fit
    family : family of a moved point; -1 for other candidates
    plateau : whether a moved point first changes coordinates to which the cost is insensitive
    finer : whether a valley is followed at full accuracy
    """

    way: str
    seed: int = 0
    screen: int = 1
    theta: tuple[float, ...] = ()
    limits: tuple[float, float] = NO_COST_LIMITS
    best: float = np.inf
    guess: bool = False
    accurate: bool = False
    step_control: str = "box"
    family: int = -1
    plateau: bool = False
    finer: bool = False


@dataclass(frozen=True)
class CandidateOutcome:
    """Outcome of a candidate.

    theta : (n,) searched quantities, search scale; empty if the candidate has no end point
    cost : cost at the accuracy of the search
    at_looks : costs at the two looks, at which a candidate may be dropped
    work : work in simulations
    seconds : CPU seconds
    dropped : whether the candidate was dropped at a look
    result : fit at full accuracy; None if there was none
    is_converged : whether theta is an optimum at the accuracy of the search
    followed : number of times that its valley was followed
    following : part of the work spent on following its valley
    checking : part of the work spent on following and confirming it
    start_theta : (n,) start, search scale; empty if it continues another candidate
    floor : whether `is_converged` only means that following the valley gained nothing more
    polished : whether it was fitted at full accuracy with as many iterations as an optimum may need
    checked_cost : cost at full accuracy at the last check of its valley; infinite if it was not checked
    rough : whether the search promised a lower cost than the one at full accuracy, which is then `cost`
    """

    theta: tuple[float, ...] = ()
    cost: float = np.inf
    at_looks: tuple[float, float] = (np.nan, np.nan)
    work: float = 0.0
    seconds: float = 0.0
    dropped: bool = False
    result: Result | None = None
    is_converged: bool = False
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    followed: int = 0
    following: float = 0.0
    checking: float = 0.0
    floor: bool = False
    polished: bool = False
    checked_cost: float = np.inf
    start_theta: tuple[float, ...] = ()
    rough: bool = False


_Job = tuple["Posable", SearchRegion]


@task
def make_candidate(job: bytes | _Job, order: CandidateOrder, limit: float, deadline: float) -> CandidateOutcome | None:
    """Make a candidate.  Return None if the time is over."""
    seconds_left = min(deadline - time.time(), limit)
    if seconds_left <= 0.0:
        return None
    start_time, end_time = time.process_time(), time.time() + seconds_left
    parts: Any = unpickle_job(job)
    problem, region = parts
    search_problem = search_problem_of(problem.posed)
    rng = np.random.default_rng(order.seed)
    region = region.for_candidate(rng)
    if order.way in FULL_ACCURACY_WAYS:
        theta = region.clip(search_problem.searched.guess) if order.guess else region.draw(rng)
        end = _build_outcome(
            _fit_from_draw(problem, search_problem, theta, order, rng, seconds_left), search_problem, end_time
        )
        if end.result is not None and end.result.status is not Status.CONVERGED:
            continuation = _resume_fit(search_problem, end, order, end_time)
            end = continuation if not end.is_converged or continuation.cost < end.cost - SAME_COST_TOL else end
        end = replace(end, start_theta=tuple(theta.tolist()))
    elif order.way == CONFIRM:
        end = _confirm(problem, search_problem, order, end_time)
    elif order.way == FOLLOW:
        end = _follow_valley(search_problem, order, end_time)
    elif order.way == EXCHANGED:
        end = _descend_from_exchange(search_problem, region, order, rng, end_time)
    else:
        end = _minimize_in_trust_region(search_problem, region, order, rng, end_time)
    return replace(
        end, seconds=time.process_time() - start_time, result=None if end.result is None else _drop_problem(end.result)
    )


def _fit_from_draw(
    problem: Posable,
    search_problem: SearchProblem,
    theta: Array,
    order: CandidateOrder,
    rng: np.random.Generator,
    seconds_left: float,
) -> Result:
    """Fit from a draw theta (n,), or the guess, at full accuracy, without fallback strategies."""
    if order.guess:
        return fit(problem, None, None, retry=False, max_time=seconds_left)
    start, solver = (
        _collect_natural_values(problem, search_problem, theta),
        GaussNewton(max_iter=_MAX_DEFAULT_FIT_ITERATIONS),
    )
    if order.way == "incremental":
        return incremental(problem, start=start, max_time=seconds_left).result
    if order.way == "decomposed":
        decomposed_start = Decomposed(start, rng=int(rng.integers(2**31)))
        return fit(problem, None, solver, start=decomposed_start, retry=False, max_time=seconds_left)
    return fit(problem, None, solver, start=start, retry=False, max_time=seconds_left)


def _minimize_in_trust_region(
    search_problem: SearchProblem,
    region: SearchRegion,
    order: CandidateOrder,
    rng: np.random.Generator,
    end_time: float,
) -> CandidateOutcome:
    work, step_control = 0.0, order.step_control
    if order.theta:
        theta = np.array(order.theta)
        if order.plateau:
            theta, work = _resample_insensitive(search_problem, region, theta, rng, end_time)
    elif order.guess:
        theta = region.clip(search_problem.searched.guess)
    else:
        draws = [region.draw(rng) for _ in range(order.screen)]
        k, cost = lowest_draw(search_problem, draws)
        theta, work = draws[k], work + order.screen
        if not np.isfinite(cost):
            return CandidateOutcome(work=work)
    start_point = () if order.theta else tuple(theta.tolist())
    theta, strategy_work = _LEADING_STRATEGIES.get(order.way, TRUST_REGION_DESCENT).search_point(
        search_problem, theta, StrategyBudget(end_time - time.time(), rng, step_control)
    )
    return replace(_descend(search_problem, theta, order, end_time, work + strategy_work), start_theta=start_point)


def _resample_insensitive(
    search_problem: SearchProblem, region: SearchRegion, theta: Array, rng: np.random.Generator, end_time: float
) -> tuple[Array, float]:
    """Draw coordinates again if the cost hardly changes; return the new point and the work.

    A coordinate without influence at the end of a local fit (for instance an initial value far below the amount
    produced shortly afterwards) has no slope there, so local fits do not change it.  Another point of the same plateau
    may lead to a lower optimum.
    """
    draw, max_cost, work = region.draw(rng), search_problem.cost(theta) + NEAR_COST_TOL, 1.0
    for j in rng.permutation(theta.size).tolist():
        if time.time() >= end_time:
            break
        trial = theta.copy()
        trial[j] = draw[j]
        work += 1.0
        if search_problem.cost(trial) <= max_cost:
            theta = trial
    return theta, work


def _descend(
    search_problem: SearchProblem, theta: Array, order: CandidateOrder, end_time: float, work: float
) -> CandidateOutcome:
    """Search locally, and continue to the optimum if it may be the best one."""
    step_control = order.step_control
    descent = descend(search_problem, theta, order.limits, end_time - time.time(), step_control=step_control)
    work += descent.work
    end = CandidateOutcome(
        tuple(descent.theta.tolist()), descent.cost, descent.look_costs, work, dropped=descent.is_dropped
    )
    if stop_cause():
        return end
    margin = NEAR_COST_TOL + _NEAR_COST_RTOL * abs(order.best) if np.isfinite(order.best) else np.inf
    if order.family >= 0:  # Returning to the same optimum is no evidence.
        margin = -SAME_COST_TOL
    if descent.is_dropped or not np.isfinite(descent.cost) or descent.cost > order.best + margin:
        return _confirm_cost(search_problem, end, order.best, end_time)
    hope = order.best + SAME_COST_TOL if descent.cost > order.best else np.inf
    continuation = minimize_locally(
        search_problem, descent.theta, end_time - time.time(), rounds=1, hope=hope, step_control=step_control
    )
    end = replace(
        end, theta=tuple(continuation.theta.tolist()), cost=continuation.cost, work=work + continuation.work,
        is_converged=not continuation.is_dropped,
    )  # fmt: skip
    return _confirm_cost(search_problem, end, order.best, end_time)


def _confirm_cost(
    search_problem: SearchProblem, end: CandidateOutcome, best: float, end_time: float
) -> CandidateOutcome:
    """Return an outcome with its cost at full accuracy, if it only seems better than every earlier one.

    At the accuracy of a search, integration errors of very fast or very slow dynamics can fit the data, and a local
    fit finds them.  Without this check the family would be moved, and its valley followed, in vain.
    """
    if end.dropped or not end.cost < best - SAME_COST_TOL:
        return end
    try:
        with with_deadline(max(end_time - time.time(), 1e-3)):
            exact_cost, work = search_problem.exact_cost(np.array(end.theta)), end.work + FULL_ACCURACY_COST_FACTOR
    except StopRequested:
        return end
    if exact_cost <= end.cost + SAME_COST_TOL:
        return replace(end, work=work)
    return replace(end, cost=exact_cost, work=work, is_converged=False, rough=True)


def _follow_valley(search_problem: SearchProblem, order: CandidateOrder, end_time: float) -> CandidateOutcome:
    """Follow a valley further."""
    continuation = minimize_locally(
        search_problem.full_accuracy if order.finer else search_problem, np.array(order.theta), end_time - time.time(),
        best=order.best - SAME_COST_TOL, rounds=_ROUNDS_PER_STRIDE, accurate=order.accurate,
        step_control=order.step_control,
    )  # fmt: skip
    floor = not continuation.is_dropped and not continuation.is_optimum
    work = continuation.work * (FULL_ACCURACY_COST_FACTOR if order.finer else 1.0)
    end = CandidateOutcome(
        tuple(continuation.theta.tolist()),
        continuation.cost,
        work=work,
        is_converged=not continuation.is_dropped,
        floor=floor,
    )
    if order.finer:
        return replace(end, rough=True)
    if not _confirm_cost(search_problem, end, np.inf, end_time).rough:
        return end
    retry = _follow_valley(search_problem, replace(order, finer=True), end_time)
    return replace(retry, work=work + retry.work)


def _resume_fit(
    search_problem: SearchProblem, end: CandidateOutcome, order: CandidateOrder, end_time: float
) -> CandidateOutcome:
    """Continue with the trust region from the end of a default fit that failed."""
    if not np.isfinite(end.cost) or stop_cause():
        return end
    return _descend(search_problem, np.array(end.theta), order, end_time, end.work)


def _descend_from_exchange(
    search_problem: SearchProblem,
    region: SearchRegion,
    order: CandidateOrder,
    rng: np.random.Generator,
    end_time: float,
) -> CandidateOutcome:
    """Search locally from the best points with two quantities exchanged, until one is better."""
    theta, log = np.array(order.theta), search_problem.searched.log
    pairs = [
        (i, j) for i, j in itertools.combinations(range(theta.size), 2) if log[i] == log[j] and theta[i] != theta[j]
    ]
    starts: list[Array] = []
    for k in rng.permutation(len(pairs))[:_MAX_EXCHANGED_PAIRS]:
        i, j = pairs[int(k)]
        trial = theta.copy()
        trial[[i, j]] = trial[[j, i]]
        starts.append(region.clip(trial))
    costs = np.array([search_problem.cost(start) for start in starts])
    best, work = CandidateOutcome(), float(len(starts))
    for k in np.argsort(costs, kind="stable")[:_MAX_EXCHANGE_DESCENTS]:
        if not np.isfinite(costs[k]) or time.time() >= end_time:
            break
        descent = descend(
            search_problem, starts[int(k)], NO_COST_LIMITS, end_time - time.time(), step_control=order.step_control
        )
        work += descent.work
        if descent.cost < best.cost:
            best = CandidateOutcome(tuple(descent.theta.tolist()), descent.cost)
        if descent.cost < order.best - SAME_COST_TOL:
            continuation = minimize_locally(
                search_problem, descent.theta, end_time - time.time(), step_control=order.step_control
            )
            best = CandidateOutcome(
                tuple(continuation.theta.tolist()), continuation.cost, is_converged=not continuation.is_dropped
            )
            work += continuation.work
            break
    return replace(best, work=work)


def _confirm(
    problem: Posable, search_problem: SearchProblem, order: CandidateOrder, end_time: float
) -> CandidateOutcome:
    """Fit at full accuracy, by the method of the search.

    A fit that ends unfinished in a long valley counts as confirmed if its cost stays as low.  It is fitted to its
    optimum only at the end of the search.
    """
    theta = np.array(order.theta)
    solver = GaussNewton(
        _CONFIRMING_TRUST_REGION,
        max_iter=_MAX_POLISHING_ITERATIONS if order.accurate else _MAX_CONFIRMING_ITERATIONS,
        tolerance=_CONFIRMING_TOL,
    )
    start, seconds_left = _collect_natural_values(problem, search_problem, theta), end_time - time.time()
    end = _build_outcome(
        fit(problem, search_problem.exact_transcription, solver, start=start, retry=False, max_time=seconds_left),
        search_problem,
        end_time,
    )
    end = replace(end, polished=order.accurate or end.is_converged)
    if end.result is None or end.result.status not in _UNFINISHED_STATUSES:
        return end
    with without_deadline():  # without these evaluations, the work would be lost
        # The fit's own cost may include estimated noise or another likelihood, and is not comparable.
        cost = min(search_problem.exact_cost(point) for point in (np.array(end.theta), theta))
        return replace(end, cost=cost, is_converged=cost <= search_problem.cost(theta) + SAME_COST_TOL)


def _build_outcome(result: Result, search_problem: SearchProblem, end_time: float) -> CandidateOutcome:
    theta = np.array(
        [
            search_problem.original_problem.to_search(np.array(list(result.values.values())))[j]
            for j in search_problem.positions
        ]
    )
    work = FULL_ACCURACY_COST_FACTOR * work_in_simulations(dict(result.evaluations), theta.size)
    cost = result.cost
    if not (result.success and search_problem.searched is search_problem.original_problem):
        with without_deadline():  # one evaluation, without which the work would be lost
            # Before a fit by collocation has converged, its trajectories do not solve the model.
            cost = search_problem.cost(theta)
    if (
        result.success and search_problem.searched is not search_problem.original_problem
    ):  # The optimum differs from the one for normal errors.
        cost = minimize_locally(search_problem, theta, end_time - time.time(), rounds=1).cost
    return CandidateOutcome(tuple(theta.tolist()), cost, work=work, result=result, is_converged=result.success)


def _collect_natural_values(problem: Posable, search_problem: SearchProblem, theta: Array) -> dict[str, float]:
    """Return the natural values of all quantities by name, for theta of the searched ones."""
    full_theta = restore_noise_parameters(
        search_problem.original_problem, search_problem.searched, theta, search_problem.original_problem.guess
    )
    natural = problem.to_natural(full_theta).tolist()
    return {q.name: float(np.clip(x, q.lower, q.upper)) for q, x in zip(problem.quantities, natural, strict=True)}


def _drop_problem(result: Result) -> Result:
    """Return a result without its problem, which need not be pickled."""
    return replace(result, problem=None)
