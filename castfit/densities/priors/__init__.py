"""Prior distributions, joint priors and penalties on quantities."""

from castfit.densities.priors.distributions import (
    Beta,
    Gamma,
    LogNormalPrior,
    Normal,
    PriorDistribution,
    Truncated,
    UniformPrior,
    prior_bound_conflicts,
    prior_mistakes,
)
from castfit.densities.priors.joint import (
    Entry,
    JointNormal,
    Penalty,
    Priors,
    PriorTerm,
    lasso,
    multivariate_normal,
    read_entries,
    tikhonov,
)
from castfit.densities.priors.laplace import LaplacePrior

__all__ = [
    "Beta",
    "Entry",
    "Gamma",
    "JointNormal",
    "LaplacePrior",
    "LogNormalPrior",
    "Normal",
    "Penalty",
    "PriorDistribution",
    "PriorTerm",
    "Priors",
    "Truncated",
    "UniformPrior",
    "lasso",
    "multivariate_normal",
    "prior_bound_conflicts",
    "prior_mistakes",
    "read_entries",
    "tikhonov",
]
