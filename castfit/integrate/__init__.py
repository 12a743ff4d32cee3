"""Integration of a model, with sensitivities: lanes, trajectories, failures, and integrators behind one signature."""

from castfit.integrate.automatic import method_of, sundials
from castfit.integrate.grids import SharedGrids, rounding
from castfit.integrate.integrator import Integrator
from castfit.integrate.lanes import (
    Adjoints,
    LaneFailure,
    Lanes,
    Sensitivities,
    Stop,
    Trajectories,
    shift_cubics,
)
from castfit.integrate.options import METHODS, SUNDIALS, IntegratorOptions

__all__ = [
    "METHODS",
    "SUNDIALS",
    "Adjoints",
    "Integrator",
    "IntegratorOptions",
    "LaneFailure",
    "Lanes",
    "Sensitivities",
    "SharedGrids",
    "Stop",
    "Trajectories",
    "method_of",
    "rounding",
    "shift_cubics",
    "sundials",
]
