"""Trust-region descent if theta is the only variable: single shooting without constraints, many times in a search.

The rule is that of `castfit.solve.step_control.box`; the parts that such a problem does not need are omitted:
elimination of nodes, rows for path constraints, multipliers, fallbacks and reports.  Rows and columns are dense,

    H = E^T E + ridge,    c = E^T u,    E = (d rows / d theta) * units of the search

and one iteration takes little more time than its integrations.

Notation: u (m,) the measured rows, and priors; E (m, n) their derivatives, in units of the search (n,); Delta the
radius of the trust region.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array, Signs
from castfit._support.time_limit import StopRequested, with_deadline
from castfit.solve.block_pivoting import active_signs, minimize_in_box
from castfit.solve.staged import DenseEvaluator, DenseRows, Linearization, StagedProblem
from castfit.solve.step_control.box import TrustRegion
from castfit.solve.subproblem import RIDGE_FRACTIONS, units_of_search

# Predicted decrease below which a descent ends: of the logarithm of the likelihood, and of the half-square.
_MIN_PREDICTED_DECREASE = 1e-7

# The square of a larger number may overflow.
_MAX_SQUARABLE = 1e150

# Limit on products with structural zeros of E, above which one matrix per experiment is faster. 100 experiments with 3
# local quantities have 1e8 and take equally long either way; 200 have 9e8 and take twice as long.
_MAX_ZERO_PRODUCTS = 3e8


@dataclass(frozen=True)
class DescentOutcome:
    """Result of a descent: the best point theta (n,) and its cost, infinite if the start cannot be evaluated.

    promise : predicted decrease of the linear model within one unit of the search, or more; infinite if unknown
    evaluations : "values" and "jacobians"
    """

    theta: Array
    cost: float
    predicted_decrease: float
    evaluations: dict[str, int]


def supports_dense_descent(staged: StagedProblem) -> bool:
    """Check whether theta is the only variable, with bounds as the only constraints, and E is not mostly zero."""
    layout = staged.layout
    zeros = sum(chain.row_mask.sum() * (layout.n_theta**2 - chain.theta.size**2) for chain in layout.chains)
    is_theta_only = layout.n_v == layout.n_theta and not layout.has_constraints
    return is_theta_only and Linearization in staged.capabilities and bool(zeros < _MAX_ZERO_PRODUCTS)


@np.errstate(all="ignore")  # distant trial points overflow
def minimize_in_trust_region(
    staged: StagedProblem,
    start: Array,
    rule: TrustRegion,
    iterations: int,
    seconds: float,
    *,
    min_decrease: float = 0.0,
    look: Callable[[int, float], bool] | None = None,
) -> DescentOutcome:
    """Minimise the cost from a start (n,) until no decrease is predicted, progress is too small, or time is over.

    The staged problem must satisfy `supports_dense_descent`.  The lowest cost must fall by `min_decrease` and a
    fraction of the half-square within the patience of the rule.  `look` is called before every iteration with its
    number and the lowest cost; the descent ends if it returns True.
    """
    descent_state = _DescentState(staged, rule, min_decrease)
    try:
        with with_deadline(max(seconds, 1e-3)):
            descent_state.begin(np.clip(start, staged.lower, staged.upper))
            for k in range(iterations):
                if (look is not None and look(k, descent_state.lowest)) or not descent_state.step():
                    break
    except (StopRequested, np.linalg.LinAlgError):  # the best point so far
        pass
    return DescentOutcome(
        descent_state.best,
        descent_state.lowest,
        descent_state.promise,
        {"values": descent_state.values, "jacobians": descent_state.jacobians},
    )


class _DescentState:
    def __init__(self, staged: StagedProblem, rule: TrustRegion, min_decrease: float) -> None:
        self.staged, self.rule, self._min_decrease = staged, rule, min_decrease
        self.best, self.lowest, self.promise = staged.start, np.inf, np.inf
        self.values = self.jacobians = 0
        self._free = np.zeros(staged.layout.n_theta, dtype=np.bool_)
        self._free[staged.eliminated] = True
        self._ground: DenseEvaluator = staged.dense_evaluator or _StagedRows(staged)
        self._current_rows: DenseRows | None = None
        self._best_at: DenseRows | None = None
        self._recent_costs: list[float] = []
        self._ends: Signs | None = None  # active bounds of the last step
        self._memory = rule.memory
        self._mark, self._since, self._delta = np.inf, 0, rule.initial_radius

    def begin(self, v: Array) -> None:
        self.best = v
        self.values += 1
        if self._ground.cost(v) is not None:
            self._accept(self._rows(v))

    def _rows(self, v: Array) -> DenseRows | None:
        self.jacobians += 1
        rows = self._ground.rows(v)
        return rows if rows is not None and np.isfinite(rows.cost) else None

    def _accept(self, linear: DenseRows | None) -> None:
        if linear is None:
            return
        self._current_rows = linear
        self._recent_costs = [linear.cost, *self._recent_costs][: self._memory]
        if linear.cost < self.lowest:
            self.best, self.lowest, self._best_at = linear.v, linear.cost, linear

    def _back(self) -> bool:
        """Return to the best point if the steps away from it did not help; then only decreases are accepted."""
        if self._current_rows is self._best_at or self._memory == 1:
            return False
        self._current_rows, self._recent_costs, self._memory = self._best_at, [self.lowest], 1
        self._mark, self._since, self._delta = np.inf, 0, self.rule.initial_radius
        return True

    def step(self) -> bool:
        """Take one step; return whether it succeeded and another one may help."""
        point, rule, staged = self._current_rows, self.rule, self.staged
        if point is None:
            return False
        if self.lowest < self._mark - self._min_decrease - rule.progress * point.half_square:
            self._mark, self._since = self.lowest, 0
        elif self._since >= rule.patience:
            return self._back()
        self._since += 1
        unit = units_of_search(staged, point.v)
        E = point.E * unit
        H, c = E.T @ E, E.T @ point.u
        trace = float(np.trace(H))
        if not trace < _MAX_SQUARABLE:
            return self._back()
        H[np.diag_indices_from(H)] += RIDGE_FRACTIONS[0] + RIDGE_FRACTIONS[1] * trace
        low, high = (staged.lower - point.v) / unit, (staged.upper - point.v) / unit
        min_predicted_decrease = _MIN_PREDICTED_DECREASE * (1.0 + point.half_square)
        while self._delta > rule.min_radius:
            max_step = np.where(self._free, np.inf, self._delta)
            lower_step, upper_step = np.maximum(low, -max_step), np.minimum(high, max_step)
            s = minimize_in_box(H, c, lower_step, upper_step, self._ends)
            self._ends = active_signs(s, lower_step, upper_step)
            predicted_decrease = -float(s @ (c + 0.5 * (H @ s)))
            if self._delta >= 1.0:
                self.promise = predicted_decrease
            if predicted_decrease <= min_predicted_decrease:
                return self._back()
            self.values += 1
            trial = np.clip(point.v + unit * s, staged.lower, staged.upper)
            cost = self._ground.cost(trial)
            ratio = -np.inf if cost is None else (max(self._recent_costs) - cost) / predicted_decrease
            linear = self._rows(trial) if ratio > rule.accepted else None
            if linear is not None:
                self._accept(linear)
                radius_factor = 2.0 if ratio > rule.good else 0.5 if ratio < rule.poor else 1.0
                self._delta = min(radius_factor * self._delta, rule.max_radius)
                return True
            self._delta *= rule.refused
        return self._back()


class _StagedRows:
    """Cost and rows of a staged problem without a dense evaluator."""

    def __init__(self, staged: StagedProblem) -> None:
        self._staged = staged
        self._measured = [chain.row_mask.ravel() for chain in staged.layout.chains]

    def cost(self, v: Array) -> float | None:
        evaluation = self._staged.evaluate(v)
        return evaluation.cost if evaluation.ok else None

    def rows(self, v: Array) -> DenseRows | None:
        """Return u and E, not in units of the search."""
        linearization = self._staged.linearize(v)
        if not linearization.ok:
            return None
        n, prior = self._staged.layout.n_theta, linearization.prior_jacobian
        slopes = prior if isinstance(prior, np.ndarray) else prior.dense
        u, E = [linearization.prior], [np.asarray(slopes, dtype=float).reshape(linearization.prior.size, n)]
        parts = zip(
            self._staged.layout.chains, linearization.values, linearization.jacobians, self._measured, strict=True
        )
        for chain, values, j, is_measured in parts:
            u.append(values.r.ravel()[is_measured])
            chain_E = np.zeros((u[-1].size, n))
            chain_E[:, chain.theta] = chain.whitened(j.R_q).reshape(is_measured.size, -1)[is_measured]
            E.append(chain_E)
        return DenseRows(
            linearization.v, linearization.cost, linearization.half_square, np.concatenate(u), np.concatenate(E)
        )
