"""Sequential quadratic programming: a quadratic model of the cost, linear constraints, a line search on a penalty.

    minimise cost(v)   subject to   a - s_0 = 0,  d_k = 0,  x_k - s_{k+1} = 0,  c_k and v within bounds

Each step minimises  1/2 |r + R dv|^2  subject to the linearized constraints and the bounds (castfit.solve.subproblem),
and is halved until the exact penalty function decreases (castfit.solve.step_control.exact_penalty).

If matching conditions are scalars, h_k = |x_k - s_{k+1}|^2, one backward integration per stage gives the gradient of
each.  These gradients, divided by their vanishing length, are collected into the Jacobian of the vector
(castfit.solve.matching_jacobian_update).  If a step predicts no further decrease, all rows are computed again to
confirm it.

Alternatives were tested on the problem of Aydogmus and Tor (2018), ten draws of noise.  With the squares themselves,
CasADi's `sqpmethod` with each of the six QP solvers of its wheel stops at the first trial point that cannot be
integrated, because its line search does not handle NaN.  A BFGS method stagnates at gaps of 3e-4, where multipliers of
1e5 make the penalty dominate the cost.  SciPy's SLSQP converges after about 240 iterations; collected rows take about
12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from castfit._support.arguments import (
    is_count,
    is_one_of,
    option_mistakes,
    plain_numbers,
    shorten_repr,
    tolerance_rule,
)
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit._support.status import Status, raise_if_mistakes
from castfit._support.time_limit import StopRequested, with_deadline
from castfit.solve.fallback_thresholds import FALLBACK_THRESHOLDS
from castfit.solve.matching_jacobian_update import accumulate_products, products_along, unit_directions
from castfit.solve.solution import CountingProblem, Iteration, Solution, SolveControl, infeasibility
from castfit.solve.staged import Jacobians, Linearization, MatchingProducts, StagedProblem, weighted_squares
from castfit.solve.step_control.common import LineSearch, StepOutcome
from castfit.solve.step_control.exact_penalty import ExactPenalty
from castfit.solve.subproblem import (
    MATCHING_TOLERANCE,
    ActiveSet,
    Step,
    active_bounds,
    is_small_decrease,
    local_problem,
)

# Regularisation, relative to the largest singular value; see `GaussNewton.regularisation`.
_GAUSS_NEWTON_REGULARISATION = 1e-9


@public("castfit")
@add_brief_repr
@dataclass(frozen=True)
class Sqp:
    """Sequential quadratic programming, for matching conditions as vectors and as scalars.

    Parameters
    ----------
    scalar : {"rows"}
        Treatment of scalar matching conditions (``MultipleShooting("data", derivatives="adjoint",
        matching="scalar")``), whose gradients vanish at the solution: divided by their length they are collected into
        the Jacobian of the vector.  The option has no effect on vectors.
    max_iter : int
    tolerance : float
        The solve converges if the predicted decrease of a full step is below this fraction of the half-square of all
        rows.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("lotka_volterra").problem
    >>> result = cf.fit(problem, cf.MultipleShooting(5), cf.Sqp())
    >>> result.solver, result.success
    ('SQP', True)
    """

    scalar: str = "rows"
    max_iter: int = 500
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        plain_numbers(self)
        mistakes: list[str] = []
        if is_one_of(self.scalar, "squares"):
            mistakes.append("scalar='squares' is gone, as it hardly converged; write Sqp(), which collects rows")
        elif not is_one_of(self.scalar, "rows"):
            mistakes.append(f"scalar is {shorten_repr(self.scalar)}; leave it out")
        mistakes += option_mistakes(
            ("max_iter", self.max_iter, is_count(self.max_iter), "give an integer that is not negative"),
            tolerance_rule(self.tolerance),
        )
        raise_if_mistakes("Sqp", mistakes)

    @property
    def takes(self) -> tuple[type, ...]:
        """Evaluation types that this solver can use."""
        return Linearization, MatchingProducts

    @property
    def label(self) -> str:
        """Name in tables."""
        return "SQP"

    def solve(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        """Solve; a failed fit raises no exception.  A `warm` start is treated like any other."""
        ledger = CountingProblem(staged, control)
        history: list[dict[str, float]] = []
        with with_deadline(control.max_time) as watch:
            try:
                start = np.clip(staged.start, staged.lower, staged.upper)
                if not (ledger.evaluate(start).ok and ledger.linearize(start).ok):
                    return ledger.solution(start, Status.START_FAILED, detail=staged.describe_failure(start))
                state = _SqpState(ledger.linearize(start))
                while state.status is None:
                    state = self._step(ledger, state, history)
                    cause = watch.cause
                    if state.status is None and cause is not None:
                        state = replace(state, status=cause)
            except StopRequested as stop_reason:  # within an iteration
                v = ledger.best if ledger.best is not None else np.clip(staged.start, staged.lower, staged.upper)
                return ledger.solution(
                    v, stop_reason.status, iterations=max(len(history) - 1, 0), history=tuple(history)
                )
        assert state.status is not None
        v, active = state.linear.v, np.zeros(state.linear.v.size, dtype=np.int8)
        if state.status.success:
            active = active_bounds(
                staged, v, np.zeros(v.size) if state.bound_multipliers is None else state.bound_multipliers
            )
            v = np.where(active < 0, staged.lower, np.where(active > 0, staged.upper, v))
        elif ledger.best is not None:
            v = ledger.best
        return ledger.solution(
            v, state.status, detail=state.detail, active=active, iterations=state.iteration, history=tuple(history)
        )

    def _step(self, ledger: CountingProblem, state: _SqpState, history: list[dict[str, float]]) -> _SqpState:
        """Do one iteration, or set the status if the solve ends."""
        staged, linear = ledger.staged, state.linear
        with np.errstate(over="ignore", invalid="ignore"):
            local = local_problem(staged, linear, warm=state.active, regularisation=_GAUSS_NEWTON_REGULARISATION)
            if not local.is_finite:
                return replace(state, status=Status.LINEAR_ALGEBRA_FAILED, detail="Derivatives overflow.")
            step = local.direction()
        gap = infeasibility(staged.layout, staged.scale, linear)
        state = replace(state, active=step.active, bound_multipliers=step.bound_multipliers)
        if not state.is_confirming:
            iteration = Iteration(state.iteration, linear.cost, weighted_squares(staged.layout, linear), gap, linear.v,
                            ledger.seconds)  # fmt: skip
            history.append({"iteration": iteration.iteration, "cost": iteration.cost, "infeasibility": gap,
                            "time": iteration.seconds, "exact": float(state.is_exact), **state.report})  # fmt: skip
            if ledger.control.callback is not None and ledger.control.callback(iteration):
                return replace(state, status=Status.STOPPED_BY_CALLBACK)
        status = _verdict(ledger, state, step, gap, self.tolerance)
        if status is not None:
            return replace(state, status=status) if state.is_exact else _confirmed(ledger, state)
        if state.iteration >= self.max_iter:
            return replace(state, status=Status.MAX_ITERATIONS)
        state = replace(state, **_progress(state, step, gap))
        search = LineSearch(ledger, local, step, linear, {})
        is_near = (
            gap <= FALLBACK_THRESHOLDS.near_gap
            and step.decrease <= FALLBACK_THRESHOLDS.near_decrease * linear.informing_square
        )
        full_step_evaluation = (
            search.trial(step.dv) if is_near else None
        )  # penalties are dominated by integration errors there
        advance = (
            StepOutcome(full_step_evaluation, 1.0)
            if full_step_evaluation is not None and full_step_evaluation.ok
            else ExactPenalty().advance(search)
        )
        new_state = _relinearized(ledger, state, advance)
        if new_state is not None:
            report = {"damping": advance.damping, "decrease": step.decrease, **advance.report}
            return replace(new_state, iteration=state.iteration + 1, report=report)
        if not state.is_exact:  # collected rows may be inaccurate
            return _confirmed(ledger, state)
        return replace(state, **_stuck(ledger, search, gap))


@dataclass(frozen=True)
class _SqpState:
    """State passed from one iteration to the next.

    linear : the point, with collected or with exact derivatives of the matching conditions (`exact`)
    units : directions of the rows that were collected last
    confirming : whether the point is linearized a second time, with exact derivatives
    idle : iterations near the solution without progress
    min_gap_and_decrease : smallest gap and predicted decrease so far
    """

    linear: Linearization
    is_exact: bool = True
    iteration: int = 0
    units: tuple[Array, ...] | None = None
    is_confirming: bool = False
    active: ActiveSet | None = None
    bound_multipliers: Array | None = None
    min_gap_and_decrease: tuple[float, float] = (np.inf, np.inf)
    n_idle_steps: int = 0
    report: Mapping[str, float] = field(default_factory=dict[str, float])
    status: Status | None = None
    detail: str = ""


def _verdict(ledger: CountingProblem, state: _SqpState, step: Step, gap: float, tolerance: float) -> Status | None:
    """Return the status if the solve ends here; None if it continues."""
    staged, linear = ledger.staged, state.linear
    if gap <= MATCHING_TOLERANCE and is_small_decrease(
        staged, linear, step.decrease, max(tolerance, ledger.control.low_accuracy_rtol)
    ):
        return Status.CONVERGED
    if state.is_exact and state.n_idle_steps > FALLBACK_THRESHOLDS.max_idle_steps:
        good = (
            gap <= FALLBACK_THRESHOLDS.noisy_gap
            and step.decrease <= FALLBACK_THRESHOLDS.noisy_decrease * linear.informing_square
        )
        return Status.CONVERGED if good else Status.ACCEPTABLE
    return None


def _progress(state: _SqpState, step: Step, gap: float) -> dict[str, Any]:
    """Count iterations near the solution without progress: only integration errors are left."""
    is_near = (
        gap <= FALLBACK_THRESHOLDS.near_gap
        and step.decrease <= FALLBACK_THRESHOLDS.near_decrease * state.linear.informing_square
    )
    least_gap, least_decrease = state.min_gap_and_decrease
    is_closer = (
        MATCHING_TOLERANCE < gap < FALLBACK_THRESHOLDS.min_progress_factor * least_gap
        or step.decrease < FALLBACK_THRESHOLDS.min_progress_factor * least_decrease
    )
    smallest_progress = (min(gap, least_gap), min(step.decrease, least_decrease))
    return {
        "n_idle_steps": state.n_idle_steps + 1 if is_near and not is_closer else 0,
        "min_gap_and_decrease": smallest_progress,
    }


def _relinearized(ledger: CountingProblem, state: _SqpState, advance: StepOutcome) -> _SqpState | None:
    """Linearize at the end of a step, or closer if that fails.

    Return None if there is no new point or every attempt fails.
    """
    evaluation = advance.new_point
    for _ in range(6):
        if evaluation is None or not evaluation.ok or np.array_equal(evaluation.v, state.linear.v):
            return None
        new_state = _linearized(ledger, state, evaluation.v)
        if new_state.linear.ok:
            return new_state
        middle = 0.5 * (evaluation.v + state.linear.v)
        evaluation = ledger.evaluate(middle)
    return None


def _linearized(ledger: CountingProblem, state: _SqpState, v: Array) -> _SqpState:
    """Linearize at v: with all derivatives of the matching conditions, or with one more row of each."""
    staged = ledger.staged
    if MatchingProducts not in staged.capabilities or state.n_idle_steps > FALLBACK_THRESHOLDS.max_idle_steps:
        return replace(state, linear=ledger.linearize(v), is_exact=True, is_confirming=False)
    layout, scale = staged.layout, staged.scale
    units = unit_directions(layout, ledger.evaluate(v), scale, state.units, state.iteration)
    products = ledger.linearize_along(v, products_along(layout, scale, units))
    jacobians: Sequence[Jacobians] = state.linear.jacobians
    linear = accumulate_products(layout, scale, jacobians, products, units) if products.ok else products
    return replace(state, linear=linear, is_exact=False, is_confirming=False, units=units)


def _confirmed(ledger: CountingProblem, state: _SqpState) -> _SqpState:
    """Linearize the same point again with all derivatives."""
    linear = ledger.linearize(state.linear.v)
    if not linear.ok:
        failure = linear.failures[0]
        detail = f"{failure.chain}: {failure.detail}"
        return replace(state, status=Status.EVALUATION_FAILED, detail=detail)
    return replace(state, linear=linear, is_exact=True, is_confirming=True, n_idle_steps=0)


def _stuck(ledger: CountingProblem, search: LineSearch, gap: float) -> dict[str, Any]:
    """Return the status, and a detail, if no step improves the merit."""
    step = search.step
    if gap <= MATCHING_TOLERANCE and step.decrease <= 1e-6 * search.evaluation.informing_square:
        return {"status": Status.ACCEPTABLE}
    probe = search.trial(1e-6 * step.dv)
    if not probe.ok:
        return {"status": Status.EVALUATION_FAILED, "detail": ledger.staged.describe_failure(probe.v)}
    return {"status": Status.STEP_TOO_SMALL if step.feasible else Status.INFEASIBLE}
