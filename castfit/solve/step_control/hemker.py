"""Hemker's rule for the initial value approach (Hemker 1972, section 3.2).

The Gauss-Newton step is tried first.  If the sum of squares S rises, steepest descent with the step |g|^2/|A g|^2 is
tried, g = -A^T r; if S rises still, that step is multiplied by S/(S + S') until it falls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from castfit.solve.condensing import expand
from castfit.solve.step_control.common import Advance, Search, StepControl
from castfit.status import check


@dataclass(frozen=True)
class Hemker(StepControl):
    """shortest : factor of the steepest-descent step at which the search gives up."""

    shortest: float = 1e-10

    def advance(self, search: Search) -> Advance:
        """Try the Gauss-Newton step, then steepest descent, then shorter ones."""
        if any(chain.n_s for chain in search.ledger.staged.layout.chains):
            check("Hemker", ["this rule knows no continuity conditions; use it with SingleShooting"])
        now = search.at.cost
        trial = search.trial(search.step.dv)
        # A converged step changes nothing: equality must be accepted.
        if trial.cost <= now:
            return Advance(trial, 1.0, {}, {"level": trial.cost})
        condensed = search.local.condensed
        lower, upper = (b[condensed.positions] - search.at.v[condensed.positions] for b in self._bounds(search))
        gradient = -condensed.E.T @ condensed.u
        gradient[((lower >= 0) & (gradient < 0)) | ((upper <= 0) & (gradient > 0))] = 0.0
        image = condensed.E @ gradient
        length = float(gradient @ gradient) / max(float(image @ image), 1e-300)
        factor = 1.0
        while factor >= self.shortest:
            trial = search.trial(expand(condensed, factor * length * gradient))
            if trial.cost <= now:
                return Advance(trial, factor, {}, {"level": trial.cost})
            # S' may be huge: the factor S/(S + S') then shortens by orders of magnitude at once, but never to nothing.
            factor *= max(now / (now + trial.cost), 1e-3) if np.isfinite(trial.cost) else 0.1
        return Advance(None, factor)

    @staticmethod
    def _bounds(search: Search) -> tuple[np.ndarray, np.ndarray]:
        return search.ledger.staged.lower, search.ledger.staged.upper
