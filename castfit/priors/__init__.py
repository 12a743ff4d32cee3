"""Priors: what is known of quantities before the data are seen."""

from castfit.priors.distributions import (
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
from castfit.priors.joint import (
    Belief,
    Entry,
    JointNormal,
    Penalty,
    Priors,
    multivariate_normal,
    read_entries,
    tikhonov,
)

__all__ = [
    "Belief",
    "Beta",
    "Entry",
    "Gamma",
    "JointNormal",
    "LogNormal",
    "Normal",
    "Penalty",
    "PriorDistribution",
    "Priors",
    "Truncated",
    "Uniform",
    "contradictions",
    "multivariate_normal",
    "prior_mistakes",
    "read_entries",
    "tikhonov",
]
