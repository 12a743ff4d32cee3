"""Integration of a model, with sensitivities: lanes, trajectories, failures, and integrators behind one signature."""

from castfit.integrate.integrator import METHODS, SUNDIALS, Integrator, IntegratorOptions
from castfit.integrate.lanes import (
    Adjoints,
    LaneFailure,
    Lanes,
    Sensitivities,
    Stop,
    Trajectories,
    shift_cubics,
)

__all__ = [
    "METHODS",
    "SUNDIALS",
    "Adjoints",
    "Integrator",
    "IntegratorOptions",
    "LaneFailure",
    "Lanes",
    "Sensitivities",
    "Stop",
    "Trajectories",
    "shift_cubics",
]
