"""All noise models."""

from castfit.noise.base import Noise
from castfit.noise.counts import NegativeBinomial, Poisson
from castfit.noise.gaussian import Gaussian, LogNormal
from castfit.noise.likelihood import Likelihood
from castfit.noise.robust import Cauchy, Huber, Laplace, SoftL1, StudentT

__all__ = [
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
