"""Steady states: their computation, conserved quantities, and derivatives with respect to parameters."""

from castfit.experiment.steady.laws import ConservationLaws, conservation_laws
from castfit.experiment.steady.solver import SteadyStateSolution, SteadyStateSolver

__all__ = ["ConservationLaws", "SteadyStateSolution", "SteadyStateSolver", "conservation_laws"]
