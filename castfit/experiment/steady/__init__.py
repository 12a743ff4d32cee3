"""Steady states: where a model comes to rest, what it conserves on the way, and how that depends on parameters."""

from castfit.experiment.steady.laws import Laws, conservation_laws
from castfit.experiment.steady.rest import Rest, Resting
from castfit.experiment.steady.said import SteadyStart

__all__ = ["Laws", "Rest", "Resting", "SteadyStart", "conservation_laws"]
