"""Steady states: where a model comes to rest, what it conserves on the way, and how that depends on parameters."""

from castfit.experiment.steady.laws import ConservationLaws, conservation_laws
from castfit.experiment.steady.solver import SteadyStateSolver, SteadyStateSolution

__all__ = ["ConservationLaws", "SteadyStateSolver", "SteadyStateSolution", "conservation_laws"]
