"""Levenberg-Marquardt: the condensed step is held back by a multiple of the scaled unknowns, not shortened.

    minimise 1/2 |u + E x|^2 + 1/2 mu |D x|^2,    D_j = |E_j|  (Marquardt 1963)

The multiple follows the gain ratio between the real and the predicted decrease of the l1 penalty function
(Nielsen 1999).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from castfit.solve.step_control.common import Advance, Search, StepControl
from castfit.solve.step_control.exact_penalty import penalty

@dataclass(frozen=True)
class LevenbergMarquardt(StepControl):
    """first : initial mu;  most : mu at which the search gives up."""

    first: float = 1e-3
    most: float = 1e10

    def advance(self, search: Search) -> Advance:
        """Raise mu until the penalty function falls as predicted."""
        mu, growth = search.memory.get("mu", self.first), 2.0
        merit = penalty(search, margin=2.0)
        now = merit(search.at)
        diagonal = np.diag(1.0 / search.local.column_scale)
        while mu <= self.most:
            step = search.local.direction(damping=np.sqrt(mu) * diagonal)
            trial = search.trial(step.dv)
            value = merit(trial)
            promised = now - step.predicted
            gain = (now - value) / max(promised, 1e-300) if np.isfinite(value) else -np.inf
            if gain > 1e-4 or (np.isfinite(value) and abs(promised) <= 1e-9 * now and value <= now * (1 + 1e-9)):
                shrink = max(1.0 / 3.0, 1.0 - (2.0 * min(gain, 1.0) - 1.0) ** 3)
                return Advance(trial, 1.0 / (1.0 + mu), {"mu": max(mu * shrink, 1e-15)}, {"level": value, "mu": mu})
            mu *= growth
            growth *= 2.0
        return Advance(None, 0.0)
