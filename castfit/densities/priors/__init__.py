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
    PriorTerm,
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
    "PriorTerm",
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
    "prior_bound_conflicts",
    "lasso",
    "multivariate_normal",
    "prior_mistakes",
    "read_entries",
    "tikhonov",
]
