"""All noise models."""

from collections.abc import Callable

from castfit.noise.base import Noise
from castfit.noise.counts import NegativeBinomial, Poisson
from castfit.noise.gaussian import Gaussian, LogNormal
from castfit.noise.likelihood import Likelihood
from castfit.noise.robust import Cauchy, Huber, Laplace, SoftL1, StudentT

__all__ = [
    "LOSSES",
    "Cauchy",
    "Gaussian",
    "Huber",
    "Laplace",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "Noise",
    "Poisson",
    "SoftL1",
    "StudentT",
]

LOSSES: dict[str, Callable[..., Noise]] = {"huber": Huber, "soft_l1": SoftL1, "cauchy": Cauchy}
"""Robust losses, by the names that ``scipy.optimize.least_squares`` gives them."""
