"""The Laplace prior, whose density has a kink, and what takes its place while the kink is dealt with.

    cost = |z - mean| / scale        z = x, log x or log10 x

Its slope jumps at the mean, where neither Gauss-Newton nor IPOPT converge.  `castfit.fit.laplace_kinks` finds out on
which side of the kink a quantity ends, or that it ends there, with the smooth costs of this file.  Away from the kink
the cost is straight and holds no information; at the kink the quantity is held, like one at a bound.
"""

from __future__ import annotations

from math import copysign, log, sqrt

import numpy as np

from castfit._support.arguments import is_within
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit.densities.priors.distributions import (
    STRAIGHT_COST_ROW,
    Normal,
    PriorDistribution,
    PriorRow,
    ScaledPrior,
)

# Smallest scale of the parabola, relative to the quantity: a narrower one would outweigh the data.
_MIN_RELATIVE_SCALE = 0.3


@dataclass(frozen=True, repr=False)
class _DistanceToMean(ScaledPrior):
    """A cost of the distance of z from the mean of a Laplace prior."""

    mean: float
    scale: float

    def _cdf(self, z: float) -> float:
        u = (z - self.mean) / self.scale
        return float(0.5 * np.exp(u) if u < 0.0 else 1.0 - 0.5 * np.exp(-u))

    def _ppf(self, u: float) -> float:
        return self.mean + self.scale * (log(2.0 * u) if u < 0.5 else -log(2.0 * (1.0 - u)))

    @property
    def constant(self) -> float:
        """-log p at the mode."""
        return log(2.0 * self.scale)


@public("castfit.priors", "Laplace")
@dataclass(frozen=True, repr=False)
class LaplacePrior(_DistanceToMean):
    """The double exponential distribution: a quantity stays exactly at the mean unless the data pull hard enough.

    Parameters
    ----------
    mean : float
    scale : float
        The mean distance from the mean; data pull hard enough whose cost falls by more than 1 / scale per unit.
    on : {"value", "log", "log10"}
        Whether the value itself or its logarithm is so distributed.

    Examples
    --------
    >>> import castfit as cf
    >>> prior = cf.priors.Laplace(1.0, 0.5)
    >>> [round(prior.ppf(u), 3) for u in (0.025, 0.5, 0.975)]
    [-0.498, 1.0, 2.498]
    >>> cf.Parameter(1.0, prior=prior)
    Parameter(value=1, prior=Laplace(mean=1, scale=0.5))
    """

    def _row(self, z: float) -> PriorRow:
        u = (z - self.mean) / self.scale
        return (
            PriorRow(copysign(STRAIGHT_COST_ROW, u), 1.0 / (STRAIGHT_COST_ROW * self.scale), abs(u))
            if u
            else PriorRow(0.0, 0.0, 0.0)
        )

    @property
    def curved(self) -> bool:
        """Never."""
        return False

    @property
    def kink(self) -> float:
        """The natural value at which the slope jumps."""
        return self.natural(self.mean)

    def mistakes(self) -> list[str]:
        """Check the arguments and return the error messages."""
        is_invalid = not is_within(self.mean, strictly=True) or not is_within(self.scale, 0.0, strictly=True)
        return [*(["give Laplace(mean, scale), scale positive"] if is_invalid else []), *self.on_mistakes()]


@dataclass(frozen=True, repr=False)
class OneSidedLinearCost(_DistanceToMean):
    """The straight cost of one side of the kink, sign +1 or -1, continued beyond it; `curvature` is for the solver."""

    sign: float = 1.0
    curvature: float = 0.0

    def _row(self, z: float) -> PriorRow:
        u = self.sign * (z - self.mean) / self.scale
        j = sqrt(self.curvature) if self.curvature > 0.0 else 1.0 / (STRAIGHT_COST_ROW * self.scale)
        return PriorRow(self.sign / (self.scale * j), j, u)

    @property
    def curved(self) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, repr=False)
class FixedAtKink(_DistanceToMean):
    """The mean is held by a multiplier and a steep parabola:  multiplier u + 1/2 curvature u^2."""

    multiplier: float = 0.0
    curvature: float = 1.0

    def _row(self, z: float) -> PriorRow:
        u, root = z - self.mean, sqrt(self.curvature)
        return PriorRow(root * u + self.multiplier / root, root, self.multiplier * u + 0.5 * self.curvature * u * u)


@dataclass(frozen=True, repr=False)
class KinkBounds(_DistanceToMean):
    """The mean itself, held by bounds: no row."""

    def _row(self, z: float) -> PriorRow:
        return PriorRow(0.0, 0.0, 0.0)

    @property
    def rows(self) -> int:
        """None."""
        return 0


def distance_prior(prior: LaplacePrior) -> Normal:
    """Return the normal prior whose row is z - mean, with its slope dz/dx."""
    return Normal(prior.mean, 1.0, on=prior.on)


def smooth_kink(prior: LaplacePrior, guess: float) -> Normal:
    """Return a parabola about the mean, as steep as the prior at a guess but wide enough not to outweigh the data."""
    z = prior.scaled(guess)
    unit = max(abs(z), abs(prior.mean)) if prior.on == "value" else 1.0
    distance = max(abs(z - prior.mean), prior.scale)
    return Normal(prior.mean, max(sqrt(prior.scale * distance), _MIN_RELATIVE_SCALE * unit), on=prior.on)


def find_laplace(prior: PriorDistribution) -> LaplacePrior | None:
    """Return the Laplace prior in a prior, which may be truncated; None if there is none."""
    inner = getattr(prior, "prior", prior)
    return inner if isinstance(inner, LaplacePrior) else None
