"""All noise models."""

from collections.abc import Callable

from castfit.densities.noise.counts import NegativeBinomial, Poisson
from castfit.densities.noise.density import Noise
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.densities.noise.likelihood import Likelihood
from castfit.densities.noise.robust import Cauchy, Huber, Laplace, SoftL1, StudentT

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

# Robust losses, by the names that ``scipy.optimize.least_squares`` gives them.
LOSSES: dict[str, Callable[..., Noise]] = {"huber": Huber, "soft_l1": SoftL1, "cauchy": Cauchy}
