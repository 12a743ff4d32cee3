"""Noise: how measured values scatter about predictions; the home of densities that exist as priors, too."""

from castfit.densities.noise.models import (
    Cauchy,
    Gaussian,
    Huber,
    Laplace,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Poisson,
    SoftL1,
    StudentT,
)
from castfit.densities.noise.unknown import unknown

__all__ = [
    "Cauchy",
    "Gaussian",
    "Huber",
    "Laplace",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "Poisson",
    "SoftL1",
    "StudentT",
    "unknown",
]
