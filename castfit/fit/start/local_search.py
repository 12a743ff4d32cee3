"""Trust-region descents at search accuracy, on the full horizon or on growing horizons.

On a short horizon the trajectory deviates little, and the valley of the cost is wide; its optimum is a good start for
a slightly longer horizon.  Trajectories that oscillate or amplify errors are thus followed period by period, even if
only one scaled output is measured and every parameter starts a decade away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array
from castfit._support.time_limit import StopRequested, with_deadline, without_deadline
from castfit.fit.start.search_problem import SearchProblem
from castfit.fit.start.soft_start import soft_start
from castfit.solve.dense_descent import minimize_in_trust_region, supports_dense_descent
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import Iteration, SolveControl
from castfit.solve.staged import StagedProblem
from castfit.solve.step_control import StepControl, TrustRegion

# Iterations at which a candidate must not be worse than half of those before it.
LOOK_ITERATIONS = (10, 25)

# Numbers of horizons, including the full one: few are faster, many fail less often.
HORIZON_COUNTS = (10, 20)

_MAX_SCREENING_ITERATIONS = 60  # Limit on the iterations of a descent that is screened at `LOOK_ITERATIONS`.
# Limit on the iterations of a round that ends at an optimum.
MAX_FINAL_ITERATIONS = 150

# Limit on the rounds along a valley.
MAX_VALLEY_ROUNDS = 6

# Smallest decrease of the cost, in the logarithm of the likelihood, that justifies another round.
_MIN_ROUND_GAIN_LOG_L = 0.02
_FORECAST_ITERATIONS = 15  # Number of iterations from whose decrease the rest of a round is predicted.
_ITERATIONS_PER_HORIZON = 15  # Limit on the iterations on one horizon.
_PATIENT_RULE = TrustRegion(patience=40)
_LOW_ACCURACY_RULE = TrustRegion(patience=6, progress=1e-4)
_HORIZON_RULE = TrustRegion(
    patience=8, progress=1e-4
)  # patience of 4: one start in 50 succeeds instead of one in 26 (Elowitz)
# Smallest decrease of the cost, in the logarithm of the likelihood, that continues a descent at low accuracy.
_MIN_WORTHWHILE_DECREASE = 0.02

# Predicted decrease of the cost below which a point is an optimum: a tenth of what distinguishes two optima.
_OPTIMUM_PREDICTED_DECREASE = 0.01


@dataclass(frozen=True)
class DescentResult:
    """Result of the descent from one candidate.

    theta (n,), cost : at the end
    work : in simulations; a sensitivity evaluation counts as `work_in_simulations` states
    at_looks : costs at `LOOK_ITERATIONS`, NaN if the descent had ended before
    dropped : whether the descent stopped before its end
    optimum : whether hardly any decrease is predicted at the end
    """

    theta: Array
    cost: float
    work: float
    look_costs: tuple[float, float] = (np.nan, np.nan)
    is_dropped: bool = False
    is_optimum: bool = False


# Simulations at the accuracy of a search that take as long as one at full accuracy: 2.7 to 9 of five PEtab models.
FULL_ACCURACY_COST_FACTOR = 4.0

_VALLEY_COST_FACTOR = 2.0  # The same where valleys are followed.
_RELAXED_EVALUATION_COST_FACTOR = 4.5  # The same for an evaluation of relaxed equations.


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
    """Descend from a start; stop at a cost above `limits` at one of `LOOK_ITERATIONS`."""
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
    with without_deadline():  # one evaluation, without which the descent would be lost
        cost = scene.cost(descent.theta)
    return DescentResult(descent.theta, cost, descent.work, (look_costs[0], look_costs[1]), is_dropped[0])


def minimize_locally(
    scene: SearchProblem, start: Array, seconds: float, *, best: float = np.inf, rounds: int = MAX_VALLEY_ROUNDS,
    accurate: bool = False, hope: float = np.inf, step_control: str = "box",
) -> DescentResult:  # fmt: skip
    """Descend to an optimum, or as long as further rounds pay; never return a point above the start.

    A round stops if its cost, decreasing as in the last steps, would not reach `hope`.

    A long valley takes several rounds, each with a new trust region.  A cost below `best`, the lowest cost of other
    solutions, continues as long as a round pays.  If it stagnates at search accuracy, it continues at full accuracy;
    with `accurate`, full accuracy is used from the start.  The result is `dropped` if more rounds may pay.
    """
    deadline = time.time() + seconds
    staged = scene.accurate_problem if accurate else scene.staged
    patient_rule = _PATIENT_RULE if accurate else TrustRegion()
    rule = patient_rule if step_control == "box" else step_control
    theta, cost, work, is_settled, is_optimum = start, np.inf, 0.0, False, False
    for _ in range(rounds):
        look = None if hope == np.inf else _ConvergenceForecast(hope)
        descent = _solve(staged, theta, MAX_FINAL_ITERATIONS, deadline - time.time(), look, rule=rule, min_decrease=0.0)
        theta, previous_cost, cost = descent.theta, cost, descent.cost
        work += descent.work * (_VALLEY_COST_FACTOR if staged is scene.accurate_problem else 1.0)
        is_optimum = descent.is_optimum
        is_settled = is_optimum or not cost < previous_cost - _MIN_ROUND_GAIN_LOG_L
        if is_optimum or not cost < best or time.time() >= deadline:
            break
        if is_settled and staged is not scene.accurate_problem:
            staged, rule, is_settled, cost = (
                scene.accurate_problem,
                _PATIENT_RULE if step_control == "box" else rule,
                False,
                np.inf,
            )
        elif is_settled:
            break
    with without_deadline():  # without these evaluations, the rounds would be lost
        cost, start_cost = scene.cost(theta), scene.cost(start)
    if (
        not cost <= start_cost + _OPTIMUM_PREDICTED_DECREASE
    ):  # a decrease at full accuracy need not be one at search accuracy
        theta, cost, is_optimum = start, start_cost, False
    return DescentResult(theta, cost, work, is_dropped=not is_settled, is_optimum=is_optimum)


class _ConvergenceForecast:
    """Stops a round whose cost, decreasing as in the last steps, would end above `hope`."""

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
    """Descend on growing horizons, except the full one; return theta and the work in simulations.

    The distinct measured times are divided into `horizons` parts.  Return None as theta if a horizon ends with a cost
    per value above `max_mean_cost`, in known sigmas.
    """
    rule = _HORIZON_RULE if step_control == "box" else step_control
    theta, work, times, deadline = start, 0.0, scene.times, time.time() + seconds
    shares = [int(np.ceil(k / horizons * times.size)) for k in range(1, horizons)]
    ends = sorted({float(times[share - 1]) for share in shares if 0 < share < times.size})
    for end in ends:
        if time.time() >= deadline:  # building the problem of a horizon may take longer than the descent
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
    """Estimate parameters, starting from constant states, while the relaxed equations are tightened.

    `stations` are the weights of the equations, one of `castfit.fit.start.soft_start.RELAXATION_RAMPS`.  Return theta
    and the work in simulations.
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
    """Descend; use the dense descent for a trust region if theta are the only variables."""
    if isinstance(rule, TrustRegion) and supports_dense_descent(staged):
        outcome = minimize_in_trust_region(
            staged, start, rule, iterations, seconds, min_decrease=min_decrease, look=look
        )
        work = work_in_simulations(outcome.evaluations, outcome.theta.size)
        return DescentResult(
            outcome.theta, outcome.cost, work, is_optimum=outcome.predicted_decrease <= _OPTIMUM_PREDICTED_DECREASE
        )

    def look_at_iteration(iteration: Iteration) -> bool:
        return look is not None and look(iteration.iteration, iteration.cost)

    restarted_problem = staged.restricted()
    restarted_problem.start = np.clip(start, staged.lower, staged.upper)
    solver = GaussNewton(rule, max_iter=iterations)
    solution = solver.solve(restarted_problem, SolveControl(max(seconds, 1e-3), look_at_iteration))
    work = work_in_simulations(solution.evaluations, solution.v.size)
    return DescentResult(solution.v, staged.evaluate(solution.v).cost, work, is_optimum=solution.status.success)
