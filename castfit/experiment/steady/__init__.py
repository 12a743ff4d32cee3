"""Steady states: where a model comes to rest, what it conserves on the way, and how that depends on parameters."""

from castfit.experiment.steady.laws import ConservationLaws, conservation_laws
from castfit.experiment.steady.solver import SteadyStateSolution, SteadyStateSolver

__all__ = ["ConservationLaws", "SteadyStateSolution", "SteadyStateSolver", "conservation_laws"]
