"""Priors: what is known of quantities before the data are seen."""

from castfit.densities.priors.distributions import (
    Beta,
    Gamma,
    LogNormal,
    Normal,
    PriorDistribution,
    Truncated,
    Uniform,
    contradictions,
    prior_mistakes,
)
from castfit.densities.priors.joint import (
    Belief,
    Entry,
    JointNormal,
    Penalty,
    Priors,
    lasso,
    multivariate_normal,
    read_entries,
    tikhonov,
)
from castfit.densities.priors.laplace import Laplace

__all__ = [
    "Belief",
    "Beta",
    "Entry",
    "Gamma",
    "JointNormal",
    "Laplace",
    "LogNormal",
    "Normal",
    "Penalty",
    "PriorDistribution",
    "Priors",
    "Truncated",
    "Uniform",
    "contradictions",
    "lasso",
    "multivariate_normal",
    "prior_mistakes",
    "read_entries",
    "tikhonov",
]
