"""Coarse tolerances, for fits whose estimates are not final."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any, TypeVar, cast

from castfit.fit.fit import Solver, Transcription
from castfit.integrate import IntegratorOptions

INTEGRATION = 1e-6  # relative tolerance; gradients then err by 1e-4 (Lotka-Volterra)
SOLUTION = 1e-4  # tolerance of the solver

_Part = TypeVar("_Part", Transcription, Solver)


def coarsened(part: _Part) -> _Part:
    """Return a transcription or solver with tolerances that suffice where the estimates are not final."""
    if not is_dataclass(part) or isinstance(part, type):
        return part
    changes: dict[str, Any] = {}
    options: Any = getattr(part, "integrator", None)
    if isinstance(options, IntegratorOptions) and options.relative_tolerance < INTEGRATION:
        factor = INTEGRATION / options.relative_tolerance
        changes["integrator"] = replace(
            options,
            relative_tolerance=INTEGRATION,
            absolute_tolerance=factor * options.absolute_tolerance,
        )
    tolerance: Any = getattr(part, "tolerance", None)
    if isinstance(tolerance, float):
        changes["tolerance"] = max(SOLUTION, tolerance)
    return cast("_Part", replace(cast("Any", part), **changes))
