"""Integrators with sensitivities, behind one signature.

Input: lanes, that is, initial value problems of one model on one grid of relative times, with parameters, inputs as
cubic polynomials, and directions.  Output: states, forward or adjoint sensitivities, and the reason of failure of each
failed lane.  Read ``lanes.py`` first (the contract), then ``integrator.py``.  The compiled methods (ESDIRK and an
explicit pair) are in ``esdirk.py`` (tables), ``esdirk.c`` (steps) and ``esdirk_binding.py`` (the call).
"""

from castfit.integrate.integrator import Integrator
from castfit.integrate.lanes import (
    Adjoints,
    IntegrationStop,
    LaneFailure,
    Lanes,
    Sensitivities,
    SharedGrids,
    Trajectories,
    shift_cubics,
    time_rounding,
)
from castfit.integrate.options import METHODS, STEPPED, SUNDIALS, IntegratorOptions, method_of, sundials

__all__ = [
    "METHODS",
    "STEPPED",
    "SUNDIALS",
    "Adjoints",
    "IntegrationStop",
    "Integrator",
    "IntegratorOptions",
    "LaneFailure",
    "Lanes",
    "Sensitivities",
    "SharedGrids",
    "Trajectories",
    "method_of",
    "shift_cubics",
    "sundials",
    "time_rounding",
]
