"""Bock's natural level function with a predictor-corrector choice of the damping (Peifer and Timmer 2007, Eqs. 14-21).

    T(v)    = |G(v_l) R(v)|^2              size of the simplified correction                       (15)
    omega^  = 2 |corr - (1 - lambda) dv| / |lambda dv|^2     curvature seen along the step          (19)
    lambda  = min(1, eta_0 / (omega^ |dv|))                                                        (20)

where corr = G(v_l) R(v_l + lambda dv) solves the same bounded problem with the trial point's values.  The level
function measures distance to the solution, not cost, so ill-conditioned problems need no tiny steps.
"""

from __future__ import annotations

import numpy as np

from castfit._support.records import dataclass
from castfit.solve.step_control.common import LineSearch, StepControl, StepOutcome

_MIN_DAMPING = 1e-5  # Smallest damping; shorter steps are tried only to leave points that cannot be integrated.


@dataclass(frozen=True)
class NaturalLevel(StepControl):
    """Parameters of the procedure, with the values that the paper recommends.

    eta_0 : target curvature
    eta_2 : tolerated curvature
    tau : damping above which a full step is taken
    tau_min : smallest damping
    """

    eta_0: float = 1.0
    eta_2: float = 1.8
    tau: float = 0.5
    tau_min: float = 0.01

    def advance(self, search: LineSearch) -> StepOutcome:
        """Predict the damping from the last curvature, correct it from the present one."""
        dv = search.step.dv
        length = search.norm(dv)
        if length == 0.0:  # theta and nodes stay; inner variables may not
            trial = search.trial(dv)
            return StepOutcome(trial if trial.ok else None, 1.0, search.memory, {"level": 0.0})
        omega = search.memory.get("omega")
        # Without an earlier curvature the full step is tried first: the corrector shortens it if necessary.
        factor = 1.0 if omega is None else self._predicted(self.eta_0 / max(omega * length, 1e-300))
        while True:
            trial = search.trial(factor * dv)
            simplified_step = search.local.correction(trial, search.step) if trial.ok else None
            size = np.inf if simplified_step is None else search.norm(simplified_step.dv - (1 - factor) * dv)
            # A step whose square underflows has no effect; a norm that overflows cannot be compared.
            if simplified_step is None or not np.isfinite(size) or not 0.0 < (factor * length) ** 2 < np.inf:
                factor *= 0.5 if factor > self.tau_min else 0.1
                if factor < _MIN_DAMPING:
                    return StepOutcome(None, factor)
                continue
            omega = 2 * size / (factor * length) ** 2  # Eq. 19
            if omega * length * factor <= self.eta_2 or factor <= self.tau_min:
                report = {"level": search.norm(simplified_step.dv) ** 2, "omega": omega}
                promise = simplified_step.decrease if factor == 1.0 else np.inf
                return StepOutcome(trial, factor, {"omega": omega}, report, promise)
            # A jump back to 1, as in step 2 of the paper's algorithm, could repeat a rejected step.
            factor = max(self.eta_0 / (omega * length), self.tau_min)  # Eq. 21

    def _predicted(self, mu: float) -> float:
        """Step 2 of the paper's algorithm."""
        return 1.0 if mu > self.tau else max(mu, self.tau_min)
