"""Hemker's rule for the initial value approach (Hemker 1972, section 3.2).

The Gauss-Newton step is tried first.  If the sum of squares S rises, steepest descent with the step |g|^2/|A g|^2 is
tried, g = -A^T r; if S rises still, that step is multiplied by S/(S + S') until it falls.
"""

from __future__ import annotations

import numpy as np

from castfit._support.records import dataclass
from castfit.solve.condensing import expand
from castfit.solve.staged import Array, Layout, half_square_in_units
from castfit.solve.step_control.common import LineSearch, StepControl, StepOutcome


@dataclass(frozen=True)
class Hemker(StepControl):
    """shortest : factor of the steepest-descent step at which the search gives up."""

    shortest: float = 1e-10

    def advance(self, search: LineSearch) -> StepOutcome:
        """Try the Gauss-Newton step, then steepest descent, then shorter ones."""
        current_cost = search.evaluation.cost
        S = search.evaluation.half_square
        trial = search.trial(search.step.dv)
        # A converged step changes nothing: equality must be accepted.
        if trial.cost <= current_cost:
            return StepOutcome(trial, 1.0, {}, {"level": trial.cost})
        steepest = _steepest_descent(search)
        factor = 1.0
        while factor >= self.shortest:
            trial = search.trial(factor * steepest)
            if trial.cost <= current_cost:
                return StepOutcome(trial, factor, {}, {"level": trial.cost})
            # If S' is huge, the factor S/(S + S') shortens the step by orders of magnitude, but never to zero.
            trial_square = max(half_square_in_units(search.ledger.staged.layout, trial, search.evaluation.sigma), 0.0)
            factor *= max(S / (S + trial_square), 1e-3) if np.isfinite(trial_square) else 0.1
        return StepOutcome(None, factor)

    def mistakes(self, layout: Layout) -> list[str]:
        """Return a message if the problem has continuity conditions or finite path limits."""
        limits = layout.path_limits
        if not any(chain.n_s for chain in layout.chains) and not any(np.isfinite(b).any() for b in limits):
            return []
        return ["this rule knows neither continuity nor path constraints; use it with SingleShooting and bounds alone"]


def _steepest_descent(search: LineSearch) -> Array:
    """Return the step (n_v,) to the minimum of the linear model along -A^T r; variables at their bounds stay."""
    condensed, staged = search.local.condensed, search.ledger.staged
    positions = condensed.positions
    direction = -condensed.rows.transposed(condensed.u)
    is_at_lower, is_at_upper = (
        search.evaluation.v[positions] <= staged.lower[positions],
        search.evaluation.v[positions] >= staged.upper[positions],
    )
    direction[(is_at_lower & (direction < 0)) | (is_at_upper & (direction > 0))] = 0.0
    image = condensed.rows.times(direction)
    return expand(condensed, float(direction @ direction) / max(float(image @ image), 1e-300) * direction)
