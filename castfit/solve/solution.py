"""Common inputs of every solver besides the problem, and the solution that it returns."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import Status
from castfit._support.time_limit import StopRequested, check_deadline, without_deadline
from castfit.solve.staged import (
    Evaluation,
    GradientEvaluation,
    Layout,
    Linearization,
    MatchingProducts,
    StagedProblem,
    gap_of,
    same_point,
)
from castfit.solve.subproblem import LocalProblem

_WORST_MERIT = (np.inf, np.inf)
_MAX_INFEASIBILITY = 1e300  # Infeasibility above which a ratio to its tolerance of 1e-6 overflows.


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Iteration:
    """State of an iteration, passed to a callback.

    Attributes
    ----------
    iteration : int
    cost : float
        Minimised function: half the sum of squared weighted residuals, or a logarithm of it if sigma is unknown.
    objective, measure : float, str
        Objective of the result, and its name: "chi2", "-2 log L" or "PEtab's objective"; "... of normal errors" while
        these replace other densities.
    chi2 : float
        The sum of squared weighted residuals; see `Result.chi2`.
    infeasibility : float
        The largest violation of a constraint: continuity gaps in units of the states' magnitudes.
    v : (n_v,) array
        All variables; the first entries are theta, in search scale.
    seconds : float
        Time since the solve began.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> seen = []
    >>> result = cf.fit(problem, callback=lambda iteration: seen.append(iteration.cost))
    >>> len(seen) > 2, seen[-1] < seen[0]
    (True, True)
    """

    iteration: int
    cost: float
    chi2: float
    infeasibility: float
    v: Array
    seconds: float
    objective: float = np.nan
    measure: str = ""


@dataclass(frozen=True)
class SolveControl:
    """Limits and callbacks of a solve.

    max_time : in seconds
    callback : called with an `Iteration`; it returns True to stop
    second_start : function that computes another starting point (n_v,), for solvers that make no progress from the
        first
    rough : accuracy of a solve that only provides a start: a predicted decrease below this fraction of the half-square
        of all rows is sufficient
    """

    max_time: float = np.inf
    callback: Callable[[Iteration], Any] | None = None
    second_start: Callable[[], Array] | None = None
    low_accuracy_rtol: float = 0.0


@dataclass(frozen=True)
class Solution:
    """Solution or best point at which a solver ended, whether or not it converged.

    v (n_v,) : the solution, or the best point so far
    detail : addition to the sentence of the status
    active (n_v,) : -1 if the lower bound is active, +1 for the upper, 0 for neither
    evaluations : numbers of "values" and "jacobians" (and "hessians", "gradients" of the cost, "products" of Jacobians,
        one per stage)
    failures : causes of failed evaluations and their counts
    history : one entry per iteration
    local : the problem linearized at v, if the solver has it
    earlier_iterations : iterations of searches that ended elsewhere
    """

    v: Array
    status: Status
    detail: str
    active: NDArray[np.int8]
    iterations: int
    evaluations: dict[str, int]
    failures: dict[str, int]
    history: tuple[dict[str, float], ...]
    local: LocalProblem | None = None
    earlier_iterations: int = 0


def infeasibility(layout: Layout, scale: Array, evaluation: Evaluation) -> float:
    """Return the largest violation of a constraint.

    Gaps and inner equations are in units of the states' magnitudes, other constraints in their own.
    """
    if not evaluation.ok:
        return np.inf
    if layout.is_theta_only:
        return 0.0
    largest_violation = 0.0
    for i, (chain, values) in enumerate(zip(layout.chains, evaluation.values, strict=True)):
        if chain.nodes.size:
            largest_violation = max(
                largest_violation, float(np.abs(gap_of(chain, evaluation, i) / scale[chain.nodes]).max())
            )
        if chain.inner.size:
            largest_violation = max(largest_violation, float(np.abs(values.d / scale[chain.inner]).max()))
        if values.c.size:  # padding may be NaN, which fmax passes over
            path_excess = np.fmax(chain.constraint_lower - values.c, values.c - chain.constraint_upper)
            largest_violation = max(largest_violation, float((np.fmax(path_excess, 0.0) / chain.constraint_unit).max()))
    relations = layout.relations
    if relations.names:
        relation_excess = (
            np.fmax(relations.lower - evaluation.related, evaluation.related - relations.upper) / relations.unit
        )
        largest_violation = max(largest_violation, float(relation_excess.max()))
    return largest_violation


class CountingProblem:
    """Staged problem that counts its evaluations and their failures, and stores the best point.

    Solvers evaluate through this ledger, so that nothing is lost if they fail or are interrupted: evaluations raise
    StopRequested if the time is over or Ctrl-C was pressed.
    """

    def __init__(
        self,
        staged: StagedProblem,
        control: SolveControl | None = None,
        parent: CountingProblem | None = None,
        *,
        is_separate: bool = False,
    ) -> None:
        self.staged = staged
        self._is_separate = is_separate
        self.control = SolveControl() if control is None else control
        self._parent = parent
        self.evaluations: Counter[str] = Counter() if parent is None else parent.evaluations
        self.failures: Counter[str] = Counter() if parent is None else parent.failures
        self._best: Array | None = None
        self._best_merit = _WORST_MERIT
        self._entered: object = None
        self._last_evaluation: Evaluation | None = None
        self._linear: Linearization | None = None
        self._requested_v: Array | None = None
        self._requested_linear_v: Array | None = None
        self.converged_local_problem: LocalProblem | None = None
        """Local problem at the optimum, which the verification need not solve again."""
        self.start_time = time.perf_counter()

    @cached_property
    def explicit_low_accuracy(self) -> CountingProblem:
        """Ledger of the problem at low accuracy, nothing eliminated; it adds counts and best points to this ledger.

        Elimination uses the weights of the exact problem, which differ from the weights of relaxed problems.
        """
        rough = self.staged.low_accuracy().explicit()
        return self if rough is self.staged else CountingProblem(rough, self.control, self)

    @cached_property
    def low_accuracy(self) -> CountingProblem:
        """Ledger of the problem at search accuracy; it has its own best point."""
        rough = self.staged.low_accuracy()
        return self if rough is self.staged else CountingProblem(rough, self.control, self, is_separate=True)

    @property
    def best(self) -> Array | None:
        """Best point so far; a point of lower accuracy is evaluated again."""
        search = self.__dict__.get("low_accuracy", self)
        if search is not self and search._best is not None:
            best_v, search._best, search._best_merit, search._entered = search._best, None, _WORST_MERIT, None
            with without_deadline():  # one evaluation, without which the search would be lost
                self._enter(self.evaluate(best_v))
        return self._best

    @property
    def seconds(self) -> float:
        """Time since the solve began."""
        return time.perf_counter() - self.start_time

    def evaluate(self, v: Array, *, begins: bool = False) -> Evaluation:
        """Evaluate, reusing the last result at the same point; `begins`: derivatives at this point follow."""
        if self._last_evaluation is None or not self._same(self._last_evaluation, v, self._requested_v):
            check_deadline()
            if begins:
                self.staged.expect_derivatives()
            self._last_evaluation, self._requested_v = self.staged.evaluate(v), v
            self.evaluations["values"] += 1
            self._record(self._last_evaluation)
        return self._last_evaluation

    def linearize(self, v: Array) -> Linearization:
        """Linearize, reusing the last result at the same point."""
        if self._linear is None or not self._same(self._linear, v, self._requested_linear_v):
            check_deadline()
            self._linear, self._requested_linear_v = self.staged.linearize(v), v
            self.evaluations["jacobians"] += 1
            self._record(self._linear)
        return self._linear

    def linearize_along(self, v: Array, directions: Sequence[Array]) -> MatchingProducts:
        """Linearize with one product per stage of the states at its end, see `StagedProblem.linearize_along`."""
        check_deadline()
        linear = self.staged.linearize_along(v, directions)
        self.evaluations["products"] += 1
        self._record(linear)
        return linear

    def gradient(self, v: Array, weight: Array | None = None) -> GradientEvaluation:
        """Return the values at v with the gradient of the cost, see `StagedProblem.gradient`."""
        check_deadline()
        evaluation = self.staged.gradient(v, weight)
        self.evaluations["gradients"] += 1
        self._record(evaluation)
        return evaluation

    def _same(self, evaluation: Evaluation, v: Array, requested_v: Array | None) -> bool:
        """Whether v is the point of an evaluation: as evaluated, or as requested before an elimination."""
        if same_point(evaluation.v, v):
            return True
        return self.staged.eliminated.size > 0 and requested_v is not None and same_point(requested_v, v)

    def _record(self, evaluation: Evaluation) -> None:
        if evaluation.failures:
            self.failures.update(failure.cause for failure in evaluation.failures)
        if self._parent is not None and not self._is_separate:
            self._parent._enter(evaluation)
        self._enter(evaluation)

    def _enter(self, evaluation: Evaluation) -> None:
        """Store the point if it is the best so far."""
        if evaluation.values is self._entered or not evaluation.ok or not np.isfinite(evaluation.cost):
            return
        self._entered = evaluation.values
        largest_violation = infeasibility(self.staged.layout, self.staged.scale, evaluation)
        merit = (_roughness(largest_violation), evaluation.cost)
        if merit < self._best_merit:
            self._best, self._best_merit = evaluation.v, merit

    def solution(
        self,
        v: Array,
        status: Status,
        *,
        detail: str = "",
        active: NDArray[np.int8] | None = None,
        iterations: int = 0,
        history: tuple[dict[str, float], ...] = (),
    ) -> Solution:
        """Build the solution, with eliminated variables evaluated at their consistent values."""
        if self.staged.eliminated.size:
            with suppress(StopRequested):
                v = self.staged.evaluate(v).v
        no_signs, local = np.zeros(v.size, dtype=np.int8), self.converged_local_problem
        return Solution(
            v,
            status,
            detail,
            no_signs if active is None else active,
            iterations,
            dict(self.evaluations),
            dict(self.failures),
            history,
            local if local is not None and same_point(local.linearization.v, v) else None,
        )


def _roughness(infeasibility: float) -> float:
    """Grade continuity in factors of two above 1e-6: of two points of one grade, the one of lower cost is better."""
    return float(ceil(log2(max(infeasibility / 1e-6, 1.0)))) if infeasibility < _MAX_INFEASIBILITY else infeasibility
