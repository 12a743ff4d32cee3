"""Public priors and penalties on quantities, including densities that also exist as noise models."""

from castfit._support.public_names import assign_public_addresses as _publish
from castfit.densities.priors import (
    Beta,
    Gamma,
    JointNormal,
    Normal,
    Penalty,
    PriorDistribution,
    Truncated,
    lasso,
    multivariate_normal,
    tikhonov,
)
from castfit.densities.priors import (
    LaplacePrior as Laplace,
)
from castfit.densities.priors import (
    LogNormalPrior as LogNormal,
)
from castfit.densities.priors import (
    UniformPrior as Uniform,
)

__all__ = [
    "Beta",
    "Gamma",
    "JointNormal",
    "Laplace",
    "LogNormal",
    "Normal",
    "Penalty",
    "PriorDistribution",
    "Truncated",
    "Uniform",
    "lasso",
    "multivariate_normal",
    "tikhonov",
]

_publish(__name__, __all__, globals())
