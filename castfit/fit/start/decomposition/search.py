"""Start by decomposition: every block is estimated separately, from many screened starts, before the full fit.

    blocks --pose--> problems --screen draws, fit the best ones until they agree--> theta of the full problem

A block has few parameters and its simulation is fast, so the search for its global optimum costs less than one local
fit of the full model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from castfit._support.arguments import rng_mistakes
from castfit._support.arrays import Array
from castfit._support.casadi_functions import PerObjectCache
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit._support.time_limit import StopRequested, check_deadline, with_deadline
from castfit.fit.start import StartingPoint
from castfit.fit.start.decomposition.blocks import (
    BlockProblem,
    EquationBlock,
    decomposition_mistakes,
    find_blocks,
    pose,
)
from castfit.fit.start.search_problem import evaluate_cost, finite_bounds, search_options
from castfit.problem.compiled_problem import CompiledProblem
from castfit.solve.dense_descent import minimize_in_trust_region
from castfit.solve.step_control import TrustRegion
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting

_N_SCREENED_DRAWS = 200  # Number of random starts that are simulated once.
_MAX_FITTED_STARTS = 12  # Limit on the best random starts that are fitted.
_MAX_FIT_ITERATIONS = 60  # Limit on the iterations of one fit, which need not converge.
_STEP_RULE = TrustRegion()
_INTEGRATION_TOLERANCES = 1e-4, 1e-6  # relative and absolute
_N_AGREEING_FITS = 3  # Number of agreeing fits that end the search.
_AGREEMENT_RTOL = 1e-2  # Relative difference of costs within which two fits agree.
# Unexplained part of the data's variance above which an optimum is rejected even if many fits agree.
_MAX_UNEXPLAINED_FRACTION = 0.2
_EXACT_UNEXPLAINED_FRACTION = 1e-8  # Unexplained part of the data's variance below which one fit is sufficient.
_LOG_MAGNITUDE_MARGIN = np.log(30.0)  # by which parameters may exceed the magnitudes that the data suggest
_DRAW_HALF_WIDTH_DECADES = 3.0  # Decades to each side of the start from which values without bounds are drawn.


@public("castfit")
@add_brief_repr
@dataclass(frozen=True)
class Decomposed:
    """Start from a decomposition: equations without common parameters are estimated separately.

    Within a block of equations the measured states of the others are interpolated; each block is estimated from many
    random starts between its bounds.  The model must not have algebraic states, and every state that couples blocks
    must be measured directly in all experiments.  The fit of the full model that follows corrects for noise and
    interpolation errors, and includes constraints and outputs that are not states.

    Parameters
    ----------
    start : mapping from quantity name to value, optional
        Additional start of every block, natural scale; quantities that no block estimates keep this value.  By default
        the guess.
    rng : int or numpy.random.Generator
        Random numbers for the starts of the blocks.

    Raises
    ------
    InputError
        If `rng` is neither.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.Decomposed()
    Decomposed()
    """

    start: Mapping[str, float] = field(default_factory=dict[str, float])
    rng: int | np.random.Generator = 0

    def __post_init__(self) -> None:
        raise_if_mistakes("Decomposed", rng_mistakes(self.rng))


# The blocks of each problem, posed and transcribed once however many starts use them.
_PIECES: PerObjectCache[CompiledProblem, tuple[tuple[EquationBlock, BlockProblem, ShootingProblem], ...]] = (
    PerObjectCache()
)


def decompose(
    problem: CompiledProblem, theta: Array, *, rng: int | np.random.Generator = 0, max_time: float = np.inf
) -> StartingPoint:
    """Estimate the blocks of a problem one by one.

    theta (n_theta,), search scale, is one of the starts of every block; after `max_time` seconds blocks keep their best
    point so far.

    Raises InputError if the problem cannot be decomposed; the message names the states that must be measured.
    """
    generator = np.random.default_rng(rng)
    start_theta, early_stop = theta.copy(), None
    try:
        pieces = _PIECES.get(problem, _pieces)
    except StopRequested as stop:
        return StartingPoint(start_theta, "", stop.status)
    with with_deadline(max_time):
        for _, piece, staged in pieces:
            search = _BlockSearch(staged, theta[piece.positions])
            try:
                search.run(generator)
            except StopRequested as stop:
                early_stop = stop.status
            start_theta[piece.positions] = search.best
            if early_stop is not None:
                break
    listing = "; ".join(", ".join(block.states) for block, _, _ in pieces)
    count = f"{len(pieces)} block{'s' * (len(pieces) > 1)}"
    return StartingPoint(start_theta, f"Started from separate estimates of {count}: {listing}.", early_stop)


def _pieces(problem: CompiledProblem) -> tuple[tuple[EquationBlock, BlockProblem, ShootingProblem], ...]:
    raise_if_mistakes("start 'decomposed'", decomposition_mistakes(problem))
    block_problems = ((block, pose(problem, block)) for block in find_blocks(problem))
    pieces = tuple((block, piece, _staged(piece.problem)) for block, piece in block_problems if piece is not None)
    message = "no block has both data and something to estimate; start from values"
    raise_if_mistakes("start 'decomposed'", [] if pieces else [message])
    return pieces


def _staged(problem: CompiledProblem) -> ShootingProblem:
    check_deadline()
    options = replace(
        search_options(), relative_tolerance=_INTEGRATION_TOLERANCES[0], absolute_tolerance=_INTEGRATION_TOLERANCES[1]
    )
    return SingleShooting(options).transcribe(problem, problem.guess)


class _BlockSearch:
    """Search for the optimum of a block from many starts; `best` is the best point so far."""

    def __init__(self, staged: ShootingProblem, start: Array) -> None:
        self.best, self._lowest_cost = start, np.inf
        self._staged, self._total = staged, _variation(staged.problem)

    def run(self, generator: np.random.Generator) -> None:
        """Screen random starts and fit the best, until several fits agree.

        The first starts have usual magnitudes.  In the pathway of three enzymes, with bounds from 1e-12 to 1e3, the
        best of 400 such starts lead 12 of 12 fits to the optimum of the last block; starts anywhere within the bounds
        lead 1 of 12 fits there.
        """
        problem, fit_costs = self._staged.problem, list[float]()
        fixed_starts: list[Array] = [self.best]
        half_width = np.where(
            problem.log, _DRAW_HALF_WIDTH_DECADES * np.log(10.0), 10.0 * np.maximum(np.abs(self.best), 1.0)
        )
        full_bounds = finite_bounds(*problem.bounds, self.best, half_width)
        for lower, upper in (_narrow_log_limits(problem, *full_bounds), full_bounds):
            draws: Array = generator.uniform(lower, upper, (_N_SCREENED_DRAWS, lower.size))
            starts = [*fixed_starts, *draws]
            costs = [self._noted(start, evaluate_cost(self._staged, start)) for start in starts]
            ranking = sorted(zip(costs, range(len(starts)), strict=True))
            for cost, i in ranking[:_MAX_FITTED_STARTS]:
                if cost == np.inf:
                    break
                descent = minimize_in_trust_region(self._staged, starts[i], _STEP_RULE, _MAX_FIT_ITERATIONS, np.inf)
                fit_costs.append(self._noted(descent.theta, descent.cost))
                if self._is_converged(fit_costs):
                    return
            fixed_starts = []

    def _is_converged(self, fit_costs: list[float]) -> bool:
        """Check whether a fit explains the data exactly, or several fits agree on a plausible optimum."""
        n_agreeing = sum(cost <= (1 + _AGREEMENT_RTOL) * min(fit_costs) for cost in fit_costs)
        return min(fit_costs) <= _EXACT_UNEXPLAINED_FRACTION * self._total or (
            n_agreeing >= _N_AGREEING_FITS and min(fit_costs) <= _MAX_UNEXPLAINED_FRACTION * self._total
        )

    def _noted(self, theta: Array, cost: float) -> float:
        """Store the best point; return the sum of squares."""
        if cost < self._lowest_cost:
            self.best, self._lowest_cost = theta, cost
        check_deadline()
        return 2.0 * cost


def _variation(problem: CompiledProblem) -> float:
    """Return the sum of squared distances of the data from their mean, by output, in standard deviations."""
    values = np.concatenate([c.points.values for c in problem.conditions])
    sigma = np.concatenate([c.points.sigma for c in problem.conditions])
    return float(np.nansum(((values - np.nanmean(values, axis=0)) / sigma) ** 2))


def _narrow_log_limits(problem: CompiledProblem, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Narrow the limits of logarithms to magnitudes that are consistent with the units of states and time.

    Rate constants and similar parameters are of the order of X^a / T^b: X the mean magnitude of a state or an input, T
    the shortest or the longest time between data, a in {-1, 0, 1} and b in {0, 1}.
    """
    conditions = problem.conditions
    durations = [c.end - c.start for c in conditions]
    steps = [np.diff(np.unique(c.points.times)).min(initial=c.end - c.start) for c in conditions]
    states = np.nanmean(np.abs(np.concatenate([c.points.values for c in conditions])), axis=0).tolist()
    inputs = [float(np.mean(np.abs(u.values))) for c in conditions for u in c.inputs]
    X = np.abs(np.log([x for x in (1.0, *states, *inputs) if x > 0])).max()
    T = np.log([1.0, *durations, *steps])
    low = np.maximum(lower, -X - T.max() - _LOG_MAGNITUDE_MARGIN)
    high = np.minimum(upper, X - T.min() + _LOG_MAGNITUDE_MARGIN)
    is_narrower = problem.log & (low < high)
    return np.where(is_narrower, low, lower), np.where(is_narrower, high, upper)
