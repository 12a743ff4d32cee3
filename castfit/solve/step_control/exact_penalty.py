"""Line search on the exact l1 penalty function (Peifer and Timmer 2007, Eq. 13).

    T(v) = cost(v) + sum_i alpha_i |e_i(v)|,     alpha_i >= |multiplier of e_i|

The decrease of T is compared with that of the local model, 1/2 |r|^2 + sum_i alpha_i |e_i| - 1/2 |r + J dv|^2.

The e_i are the equations' defects and the violations of path constraints; bounds of variables are never left.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from castfit._support.records import dataclass
from castfit.solve.condensing import multipliers
from castfit.solve.staged import Array, Evaluation
from castfit.solve.step_control.common import LineSearch, StepControl, StepOutcome, violation, violation_units

# Change of the cost, relative to the half-square of the rows, that counts as an integration error.
INTEGRATION_NOISE_RTOL = 1e-9

_MIN_VIOLATION_WEIGHT = 1e-8  # Smallest weight of a violation by one unit.


@dataclass(frozen=True)
class ExactPenalty(StepControl):
    """Backtracking on the penalty function.

    armijo : smallest accepted fraction of the predicted decrease
    shortest : damping at which the search fails
    margin : factor by which the weights exceed the multipliers
    """

    armijo: float = 1e-4
    shortest: float = 1e-6
    margin: float = 2.0

    def advance(self, search: LineSearch) -> StepOutcome:
        """Halve the step until the penalty function falls."""
        merit = penalty(search, margin=self.margin)
        current_merit = merit(search.evaluation)
        squares = current_merit - search.evaluation.excess
        predicted_decrease = squares - search.step.predicted  # the linear model closes every defect
        noise = INTEGRATION_NOISE_RTOL * squares
        factor = 1.0
        while factor >= self.shortest:
            trial = search.trial(factor * search.step.dv)
            value = merit(trial)
            if value <= current_merit - self.armijo * factor * predicted_decrease or (
                predicted_decrease <= noise and value <= current_merit + noise
            ):
                return StepOutcome(trial, factor, {}, {"level": value})
            factor *= 0.5
        return StepOutcome(None, factor)


def penalty(search: LineSearch, *, margin: float) -> Callable[[Evaluation], float]:
    """Return the penalty function whose weights exceed the multipliers of the linearized problem."""
    layout = search.ledger.staged.layout
    if layout.is_theta_only:  # there are no constraints
        return lambda evaluation: evaluation.cost if evaluation.ok else np.inf
    units = violation_units(layout, search.ledger.staged.scale)
    weights = [
        margin * np.abs(m) + _MIN_VIOLATION_WEIGHT / unit for m, unit in zip(_multipliers(search), units, strict=True)
    ]

    def merit(evaluation: Evaluation) -> float:
        if not evaluation.ok:
            return np.inf
        defects = violation(layout, evaluation)
        return evaluation.cost + sum(float((w * np.abs(e)).sum()) for w, e in zip(weights, defects, strict=True))

    return merit


def _multipliers(search: LineSearch) -> list[Array]:
    """Return the multipliers of the linearized problem in the order of `violation`."""
    step = search.step
    chain_multipliers = multipliers(
        search.local.condensed,
        step.residuals,
        bounds=step.bound_multipliers,
        path=step.path_multipliers,
        closure=step.closure_multipliers,
    )
    blocks: list[Array] = []
    for m in chain_multipliers:
        blocks += [np.vstack([m.initial[None], m.matching]), m.inner, m.path]
    n_h = len(search.ledger.staged.layout.relations.names)
    return [*blocks, step.path_multipliers[step.path_multipliers.size - n_h :]]
