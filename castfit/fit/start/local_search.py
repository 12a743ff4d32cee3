"""Down in the box at the accuracy of a search, at once or on ever longer horizons.

On a short horizon the trajectory can hardly be wrong, and the valley of the cost is wide; its optimum is a good start
for a horizon that is a little longer.  What oscillates, or amplifies errors, is followed period by period in this way,
even where only one output on a scale of its own is measured and the start is a decade off in every parameter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.time_limit import StopRequested, with_deadline
from castfit.fit.start.search_problem import SearchProblem
from castfit.fit.start.soft_start import soft_start
from castfit.solve.dense_descent import minimize_in_trust_region, supports_dense_descent
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import Iteration, SolveControl
from castfit.solve.step_control import StepControl, TrustRegion

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.solve.staged import StagedProblem

LOOK_ITERATIONS = (10, 25)
"""Iterations at which a candidate must not be worse than half of those before it."""

HORIZON_COUNTS = (10, 20)
"""Numbers of horizons, the whole among them: few are faster, many lose the way less often."""

_MAX_SCREENING_ITERATIONS = 60  # Limit on the iterations of a descent that is screened at `LOOK_ITERATIONS`.
MAX_FINAL_ITERATIONS = 150
"""Limit on the iterations of a round that ends at an optimum."""

MAX_VALLEY_ROUNDS = 6
"""Limit on the rounds along a valley."""

# Smallest decrease of the cost, in the logarithm of the likelihood, that justifies another round.
_MIN_ROUND_GAIN_LOG_L = 0.02
_FORECAST_ITERATIONS = 15  # Number of iterations from whose decrease the rest of a round is predicted.
_ITERATIONS_PER_HORIZON = 15  # Limit on the iterations on one horizon.
_PATIENT_RULE = TrustRegion(patience=40)
_LOW_ACCURACY_RULE = TrustRegion(patience=6, progress=1e-4)
_HORIZON_RULE = TrustRegion(
    patience=8, progress=1e-4
)  # on a horizon: with 4 a start in 50 leads on, not one in 26 (Elowitz)
_MIN_WORTHWHILE_DECREASE = 0.02
"""Smallest decrease of the cost, in the logarithm of the likelihood, that continues a descent at low accuracy."""

_OPTIMUM_PREDICTED_DECREASE = 0.01
"""Predicted decrease of the cost below which a point is an optimum: a tenth of what distinguishes two optima."""


@dataclass(frozen=True)
class DescentResult:
    """Result of the descent from one candidate.

    theta (n,), cost : there;  at_looks : its costs at `LOOK_ITERATIONS`, NaN where it had ended;  work : in simulations, a sweep
    of all sensitivities counted by what it takes;  dropped : whether it was not let to its end;  optimum : whether
    hardly anything is promised there
    """

    theta: Array
    cost: float
    work: float
    at_looks: tuple[float, float] = (np.nan, np.nan)
    dropped: bool = False
    optimum: bool = False


FULL_ACCURACY_COST_FACTOR = 4.0
"""Simulations at the accuracy of a search that take as long as one at full accuracy: 2.7 to 9 of five PEtab models."""

_VALLEY_COST_FACTOR = 2.0  # The same where valleys are followed.
_RELAXED_EVALUATION_COST_FACTOR = 4.5  # the same for an evaluation of soft equations


def work_in_simulations(evaluations: dict[str, int], n_theta: int) -> float:
    """Convert evaluations to an equivalent number of simulations; about three sensitivities count as one."""
    n_jacobians = evaluations.get("jacobians", 0)
    n_other_evaluations = sum(evaluations.values()) - n_jacobians
    return n_other_evaluations + (1.0 + n_theta / 3.0) * n_jacobians


def lowest_draw(scene: SearchProblem, draws: Sequence[Array]) -> tuple[int, float]:
    """Return the index of the draw with the lowest cost, and that cost."""
    costs = [scene.cost(theta) for theta in draws]
    k = int(np.argmin(costs))
    return k, costs[k]


def descend(
    scene: SearchProblem, start: Array, limits: tuple[float, float], seconds: float, *, step_control: str = "box"
) -> DescentResult:
    """Go down from a start; `limits` are the costs above which it is dropped at `LOOK_ITERATIONS`."""
    look_costs = [np.nan, np.nan]
    is_dropped = [False]

    def look(iteration: int, cost: float) -> bool:
        if iteration in LOOK_ITERATIONS:
            k = LOOK_ITERATIONS.index(iteration)
            look_costs[k] = cost
            is_dropped[0] = cost > limits[k]
        return is_dropped[0]

    rule = _LOW_ACCURACY_RULE if step_control == "box" else step_control
    descent = _solve(scene.staged, start, _MAX_SCREENING_ITERATIONS, seconds, look, rule=rule)
    return DescentResult(
        descent.theta, scene.cost(descent.theta), descent.work, (look_costs[0], look_costs[1]), is_dropped[0]
    )


def minimize_locally(
    scene: SearchProblem, start: Array, seconds: float, *, best: float = np.inf, rounds: int = MAX_VALLEY_ROUNDS, accurate: bool = False,
    hope: float = np.inf, step_control: str = "box",
) -> DescentResult:  # fmt: skip
    """Go down to the optimum, or as far as rounds pay, never up from the start; `dropped` if there is more to come.

    A round ends where the cost, falling on as it did last, would not come down to `hope`.

    In a long valley that takes several rounds, each with a box of its own.  What is below `best`, the lowest cost of
    other solutions, goes on as long as a round pays, and where the accuracy of a search lets it stall, at a higher one;
    if `accurate`, at that from the start.
    """
    deadline = time.time() + seconds
    staged = scene.accurate if accurate else scene.staged
    patient_rule = _PATIENT_RULE if accurate else TrustRegion()
    rule = patient_rule if step_control == "box" else step_control
    theta, cost, work, is_settled, is_optimum = start, np.inf, 0.0, False, False
    for _ in range(rounds):
        look = None if hope == np.inf else _ConvergenceForecast(hope)
        descent = _solve(staged, theta, MAX_FINAL_ITERATIONS, deadline - time.time(), look, rule=rule, min_decrease=0.0)
        theta, previous_cost, cost = descent.theta, cost, descent.cost
        work += descent.work * (_VALLEY_COST_FACTOR if staged is scene.accurate else 1.0)
        is_optimum = descent.optimum
        is_settled = is_optimum or not cost < previous_cost - _MIN_ROUND_GAIN_LOG_L
        if is_optimum or not cost < best or time.time() >= deadline:
            break
        if is_settled and staged is not scene.accurate:
            staged, rule, is_settled, cost = (
                scene.accurate,
                _PATIENT_RULE if step_control == "box" else rule,
                False,
                np.inf,
            )
        elif is_settled:
            break
    cost, start_cost = scene.cost(theta), scene.cost(start)
    if (
        not cost <= start_cost + _OPTIMUM_PREDICTED_DECREASE
    ):  # what went down at another accuracy need not have done so at that of the search
        theta, cost, is_optimum = start, start_cost, False
    return DescentResult(theta, cost, work, dropped=not is_settled, optimum=is_optimum)


class _ConvergenceForecast:
    """Tells whether a round is hopeless: its cost, falling on as in the last steps, ends above `hope`."""

    def __init__(self, hope: float) -> None:
        self.hope, self._previous_cost = hope, np.inf

    def __call__(self, iteration: int, cost: float) -> bool:
        if iteration % _FORECAST_ITERATIONS:
            return False
        previous_cost, self._previous_cost = self._previous_cost, cost
        return (
            iteration > _FORECAST_ITERATIONS
            and cost - (previous_cost - cost) / _FORECAST_ITERATIONS * (MAX_FINAL_ITERATIONS - iteration) > self.hope
        )


def grow_horizons(
    scene: SearchProblem, start: Array, seconds: float, horizons: int = HORIZON_COUNTS[-1], *,
    step_control: str = "box", max_mean_cost: float = np.inf,
) -> tuple[Array | None, float]:  # fmt: skip
    """Go down on ever longer horizons, all but the whole; return where to, and the work that it took.

    `horizons` says into how many parts the distinct measured times are divided.  Nowhere, where one of them ends with a
    cost of more than `max_mean_cost` a value, in known sigmas.
    """
    rule = _HORIZON_RULE if step_control == "box" else step_control
    theta, work, times, deadline = start, 0.0, scene.times, time.time() + seconds
    shares = [int(np.ceil(k / horizons * times.size)) for k in range(1, horizons)]
    ends = sorted({float(times[share - 1]) for share in shares if 0 < share < times.size})
    for end in ends:
        if time.time() >= deadline:  # to build the problem up to a time may take longer than to go down on it
            break
        staged = scene.transcribe_until(end)
        descent = _solve(staged, theta, _ITERATIONS_PER_HORIZON, seconds / horizons, rule=rule)
        work += descent.work * 0.5 * (1.0 + float(np.mean(times <= end)))  # the first steps are short
        if not np.isfinite(descent.cost):
            continue
        theta = descent.theta
        values = sum(np.count_nonzero(chain.row_mask) for chain in staged.layout.chains)
        if staged.layout.n_groups == 0 and descent.cost > max_mean_cost * values:
            return None, work
    return theta, work


def tighten_equations(
    scene: SearchProblem, start: Array, seconds: float, stations: tuple[float, ...]
) -> tuple[Array, float]:
    """Estimate constant states and parameters under gradually hardened equations.

    Return theta and the work in simulations.

    `stations` are the prices of the equations, one of `castfit.fit.start.soft_start.RELAXATION_RAMPS`.
    """
    with with_deadline(max(seconds, 1e-3)):
        try:
            soft_solution = soft_start(scene.searched, start, scene.transcription.integrator, stations=stations)
        except StopRequested:
            return start, 0.0
    lower, upper = scene.staged.lower[: start.size], scene.staged.upper[: start.size]
    return np.clip(soft_solution.theta, lower, upper), _RELAXED_EVALUATION_COST_FACTOR * work_in_simulations(
        soft_solution.evaluations, start.size
    )


def _solve(
    staged: StagedProblem,
    start: Array,
    iterations: int,
    seconds: float,
    look: Callable[[int, float], bool] | None = None,
    *,
    rule: StepControl | str,
    min_decrease: float = _MIN_WORTHWHILE_DECREASE,
) -> DescentResult:
    """Go down; in a box, and where nothing but theta moves, by what does no more than that needs."""
    if isinstance(rule, TrustRegion) and supports_dense_descent(staged):
        outcome = minimize_in_trust_region(
            staged, start, rule, iterations, seconds, min_decrease=min_decrease, look=look
        )
        work = work_in_simulations(outcome.evaluations, outcome.theta.size)
        return DescentResult(outcome.theta, outcome.cost, work, optimum=outcome.promise <= _OPTIMUM_PREDICTED_DECREASE)

    def look_at_iteration(iteration: Iteration) -> bool:
        return look is not None and look(iteration.iteration, iteration.cost)

    restarted_problem = staged.restricted()
    restarted_problem.start = np.clip(start, staged.lower, staged.upper)
    solver = GaussNewton(rule, max_iter=iterations)
    solution = solver.solve(restarted_problem, SolveControl(max(seconds, 1e-3), look_at_iteration))
    work = work_in_simulations(solution.evaluations, solution.v.size)
    cost = staged.evaluate(solution.v).cost
    return DescentResult(solution.v, cost, work, optimum=solution.status.success)
