"""Steady states: where a model comes to rest, what it conserves on the way, and how that depends on parameters."""

from castfit.rest.laws import Laws, conservation_laws
from castfit.rest.rest import Rest, Resting
from castfit.rest.said import SteadyStart

__all__ = ["Laws", "Rest", "Resting", "SteadyStart", "conservation_laws"]
