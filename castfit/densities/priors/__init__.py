"""Prior distributions, joint priors and penalties on quantities."""

from castfit.densities.priors.distributions import (
    Beta,
    Gamma,
    LogNormalPrior,
    Normal,
    PriorDistribution,
    Truncated,
    UniformPrior,
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
from castfit.densities.priors.laplace import LaplacePrior

__all__ = [
    "Belief",
    "Beta",
    "Entry",
    "Gamma",
    "JointNormal",
    "LaplacePrior",
    "LogNormalPrior",
    "Normal",
    "Penalty",
    "PriorDistribution",
    "Priors",
    "Truncated",
    "UniformPrior",
    "contradictions",
    "lasso",
    "multivariate_normal",
    "prior_mistakes",
    "read_entries",
    "tikhonov",
]
