"""Integrators with sensitivities, behind one signature.

In flow lanes: initial value problems of one model over one grid of relative times, with parameters, inputs as cubics
and directions.  Out flow states, their forward or adjoint sensitivities, and for each lane that failed why.  Read first
lanes.py, the contract, then integrator.py; the compiled methods, ESDIRK and an explicit pair, are esdirk.py (tables),
esdirk.c (steps) and esdirk_binding.py (the call).  trajectories.py and triggers.py integrate one experiment from node
to node; where triggers pass zero crossings.py proves, from dense_output.py and intervals.py.
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
