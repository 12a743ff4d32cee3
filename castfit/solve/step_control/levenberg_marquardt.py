"""Levenberg-Marquardt: a multiple of the scaled unknowns damps the condensed step, instead of a step length.

    minimise 1/2 |u + E x|^2 + 1/2 mu |D x|^2,    D_j = |E_j|  (Marquardt 1963)

The multiple follows the ratio of actual to predicted decrease of the l1 penalty function (Nielsen 1999).
"""

from __future__ import annotations

import numpy as np

from castfit._support.records import dataclass
from castfit.solve.step_control.common import LineSearch, StepControl, StepOutcome
from castfit.solve.step_control.exact_penalty import INTEGRATION_NOISE_RTOL, penalty


@dataclass(frozen=True)
class LevenbergMarquardt(StepControl):
    """Nielsen's rule.

    initial_mu : initial damping
    max_mu : damping at which the search fails
    armijo : smallest accepted fraction of the predicted decrease
    margin : factor by which the weights of the penalty exceed the multipliers
    """

    initial_mu: float = 1e-3
    max_mu: float = 1e10
    armijo: float = 1e-4
    margin: float = 2.0

    def advance(self, search: LineSearch) -> StepOutcome:
        """Raise mu until the penalty function falls as predicted."""
        mu, growth = search.memory.get("mu", self.initial_mu), 2.0
        merit = penalty(search, margin=self.margin)
        current_merit = merit(search.evaluation)
        squares = current_merit - search.evaluation.excess
        diagonal = 1.0 / search.local.column_scale
        while mu <= self.max_mu:
            step = search.local.direction(damping=np.sqrt(mu) * diagonal)
            trial = search.trial(step.dv)
            value = merit(trial)
            predicted_decrease, noise = squares - step.predicted, INTEGRATION_NOISE_RTOL * squares
            gain = (current_merit - value) / predicted_decrease if predicted_decrease > 0 else 0.0
            if gain > self.armijo or (predicted_decrease <= noise and value <= current_merit + noise):
                shrink = max(1.0 / 3.0, 1.0 - (2.0 * min(max(gain, 0.0), 1.0) - 1.0) ** 3)
                return StepOutcome(trial, 1.0 / (1.0 + mu), {"mu": max(mu * shrink, 1e-15)}, {"level": value, "mu": mu})
            mu *= growth
            growth *= 2.0
        return StepOutcome(None, 0.0)
