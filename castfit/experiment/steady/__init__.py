"""Steady states: where a model comes to rest, what it conserves on the way, and how that depends on parameters."""

from castfit.experiment.steady.laws import Laws, conservation_laws
from castfit.experiment.steady.solver import Rest, Resting

__all__ = ["Laws", "Rest", "Resting", "conservation_laws"]
