"""Step controls: the step length along a Gauss-Newton direction, one method per file behind `StepControl.advance`."""

from castfit.solve.step_control.box import TrustRegion
from castfit.solve.step_control.common import LineSearch, StepControl, StepOutcome
from castfit.solve.step_control.exact_penalty import ExactPenalty
from castfit.solve.step_control.hemker import Hemker
from castfit.solve.step_control.levenberg_marquardt import LevenbergMarquardt
from castfit.solve.step_control.natural_level import NaturalLevel

STEP_CONTROLS: dict[str, type[StepControl]] = {
    "natural_level": NaturalLevel,
    "exact_penalty": ExactPenalty,
    "levenberg_marquardt": LevenbergMarquardt,
    "hemker": Hemker,
    "box": TrustRegion,
}

__all__ = [
    "STEP_CONTROLS",
    "ExactPenalty",
    "Hemker",
    "LevenbergMarquardt",
    "LineSearch",
    "NaturalLevel",
    "StepControl",
    "StepOutcome",
    "TrustRegion",
]
