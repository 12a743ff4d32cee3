"""Noise: how measured values scatter about predictions; the home of densities that exist as priors, too."""

from castfit._support.public_names import assign_public_addresses as _publish
from castfit.densities.noise.correlation import correlated, covariance
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
    "correlated",
    "covariance",
    "unknown",
]

_publish(
    __name__, ["correlated", "covariance", "unknown"], globals()
)  # functions have doors; classes keep the short name
