"""Trust region for parameters that are known only to an order of magnitude, mainly in single shooting.

    minimise   1/2 |u + E x|^2 + 1/2 ridge |x / d|^2      within the bounds and  |x_j| <= Delta d_j

d_j is one unit of the search (`castfit.solve.subproblem.units_of_search`).  The minimum is computed exactly.  The
predicted decrease is compared with that of the cost itself, with unknown sigmas at their optimum at every trial point.
A step is accepted if its cost is below the *worst* of the last accepted costs (Grippo, Lampariello and Lucidi 1986);
see docs/understand/box.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from castfit._support.records import dataclass
from castfit.solve.step_control.common import LineSearch, StepControl, StepOutcome
from castfit.solve.step_control.exact_penalty import INTEGRATION_NOISE_RTOL, penalty
from castfit.solve.subproblem import LocalProblem, Step


@dataclass(frozen=True)
class TrustRegion(StepControl):
    """Step control whose radius, in units of the search, follows the ratio of actual to predicted decrease.

    initial_radius, max_radius : initial and largest radius
    min_radius : radius at which the search fails
    memory : number of accepted costs of which the worst is compared
    accepted : smallest accepted ratio
    good, poor : ratios above which the radius is doubled and below which it is halved
    refused : factor on the radius after a rejected step
    patience, progress : the search ends if the lowest cost has not fallen by the fraction `progress` of the half-square
        in `patience` steps
    """

    initial_radius: float = 1.0
    max_radius: float = 10.0
    min_radius: float = 1e-7
    memory: int = 4
    accepted: float = 1e-4
    good: float = 0.7
    poor: float = 0.2
    refused: float = 0.3
    patience: int = 12
    progress: float = 1e-7

    holds_singular_directions = False
    uses_fallback = False

    def step(self, local: LocalProblem, memory: Mapping[str, float]) -> Step:
        """Return the step within a radius of at least one unit: smaller predictions do not indicate an optimum."""
        return local.compute_trust_region_step(max(memory.get("radius", self.initial_radius), 1.0))

    def memory_after_accuracy_change(self, memory: Mapping[str, float]) -> Mapping[str, float]:
        """Return the radius; costs are not compared with costs of another accuracy."""
        return {name: value for name, value in memory.items() if name == "radius"}

    def advance(self, search: LineSearch) -> StepOutcome:
        """Shrink the trust region until the cost falls by a fraction of the predicted decrease."""
        merit = penalty(search, margin=2.0)
        current_merit = merit(search.evaluation)
        # Weights of penalties change at every point, so only costs are compared with earlier ones.
        compares_costs = "back" not in search.memory and not any(c.n_s for c in search.local.staged.layout.chains)
        previous_merits = _remembered(search.memory) if compares_costs else []
        reference = max([current_merit, *previous_merits])
        squares = current_merit - search.evaluation.excess
        noise = INTEGRATION_NOISE_RTOL * squares
        lowest_merit, n_stagnant = search.memory.get("lowest", np.inf), search.memory.get("since", 0.0)
        if current_merit < lowest_merit - self.progress * squares:
            lowest_merit, n_stagnant = current_merit, 0.0
        elif n_stagnant >= self.patience:
            return StepOutcome(None, 0.0)
        Delta = search.memory.get("radius", self.initial_radius)
        while Delta > self.min_radius:
            step = search.local.compute_trust_region_step(Delta)
            trial = search.trial(step.dv)
            value = merit(trial)
            predicted_decrease = squares - step.predicted
            ratio = (reference - value) / predicted_decrease if predicted_decrease > 0.0 else 0.0
            is_near = predicted_decrease <= noise and value <= current_merit + noise
            if (ratio > self.accepted or is_near) and search.ledger.linearize(trial.v).ok:
                radius_factor = 2.0 if ratio > self.good else 0.5 if ratio < self.poor and not is_near else 1.0
                recent_merits = [current_merit, *previous_merits][: max(self.memory - 1, 0)]
                memory = {f"cost {i}": cost for i, cost in enumerate(recent_merits)}
                memory |= {name: 1.0 for name in search.memory if name == "back"}
                memory |= {
                    "radius": min(Delta * radius_factor, self.max_radius),
                    "lowest": lowest_merit,
                    "since": n_stagnant + 1.0,
                }
                return StepOutcome(trial, min(Delta, 1.0), memory, {"level": value, "radius": Delta})
            Delta *= self.refused
        return StepOutcome(None, 0.0)


def _remembered(memory: Mapping[str, float]) -> list[float]:
    return [cost for name, cost in sorted(memory.items()) if name.startswith("cost ")]
