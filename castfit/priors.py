"""Priors: what is known of quantities before the data are seen; the home of densities that exist as noise, too."""

from castfit._support.public_names import publish as _publish
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
