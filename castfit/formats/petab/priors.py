"""Objective priors of PEtab as castfit's distributions, and those that castfit has not: densities of the value itself.

    log-Laplace    cost  |log x - m| / b + log x
    log-uniform    cost  log x                          between bounds
    Cauchy         cost  log(1 + ((x - m) / g)^2)
    Rayleigh       cost  x^2 / (2 s^2) - log x

A cost that is linear or concave in log x gets a row with a small curvature (see
castfit.densities.priors.distributions); its slope is exact everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import atan, copysign, exp, inf, log, log1p, pi, sqrt, tan

from castfit._support.arguments import is_within
from castfit.densities.priors import (
    Gamma,
    LaplacePrior,
    LogNormalPrior,
    Normal,
    PriorDistribution,
    Truncated,
    UniformPrior,
)
from castfit.densities.priors.distributions import STRAIGHT_COST_ROW, PositivePrior, PriorRow
from castfit.formats.petab.problem_tables import LIN, ParameterRow, PriorEntry

_KINK_HALF_WIDTH = 1e-3  # half width of the parabola at the kink of a log-Laplace prior, relative to its scale


@dataclass(frozen=True, repr=False)
class LogLaplacePrior(PositivePrior):
    """The prior of a positive value whose natural logarithm has a Laplace distribution; a density of the value."""

    mean: float
    scale: float

    def _row(self, x: float) -> PriorRow:
        u = (log(x) - self.mean) / self.scale
        size, slope = (
            (abs(u), copysign(1.0, u))
            if abs(u) > _KINK_HALF_WIDTH
            else (0.5 * u * u / _KINK_HALF_WIDTH + 0.5 * _KINK_HALF_WIDTH, u / _KINK_HALF_WIDTH)
        )
        z = slope / self.scale + 1.0  # d cost / d log x
        j = 1.0 / (STRAIGHT_COST_ROW * self.scale)
        return PriorRow(z / j, j / x, size + log(x) - self.mean)

    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""
        if not x > 0.0:
            return 0.0
        u = (log(x) - self.mean) / self.scale
        return 0.5 * exp(u) if u < 0.0 else 1.0 - 0.5 * exp(-u)

    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""
        if u in (0.0, 1.0):
            return inf if u else 0.0
        return exp(self.mean + self.scale * (log(2.0 * u) if u < 0.5 else -log(2.0 * (1.0 - u))))

    @property
    def constant(self) -> float:
        """-log p at the mean, which is the mode where the scale is below 1."""
        return log(2.0 * self.scale) + self.mean

    @property
    def curved(self) -> bool:
        """Never: it is straight in the logarithm."""
        return False

    def mistakes(self) -> list[str]:
        """Return the error messages for invalid arguments."""
        right = is_within(self.mean, strictly=True) and is_within(self.scale, 0.0, strictly=True)
        return [] if right else ["logLaplace takes the mean and the positive scale of the logarithm"]


@dataclass(frozen=True, repr=False)
class LogUniform(PriorDistribution):
    """The prior of a value whose logarithm is uniformly distributed; a density of the value, 1 / x."""

    lower: float
    upper: float

    def row(self, x: float) -> PriorRow:
        """Return the local model of the cost at a natural value."""
        if not x > 0.0:
            return PriorRow(inf, inf, inf)
        return PriorRow(STRAIGHT_COST_ROW, 1.0 / (STRAIGHT_COST_ROW * x), log(x / self.lower))

    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""
        if not x > self.lower:
            return 0.0
        return min(log(x / self.lower) / log(self.upper / self.lower), 1.0)

    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""
        return self.lower * (self.upper / self.lower) ** u

    @property
    def constant(self) -> float:
        """-log p at the lower end."""
        return log(self.lower) + log(log(self.upper / self.lower))

    @property
    def support(self) -> tuple[float, float]:
        """The two ends."""
        return self.lower, self.upper

    @property
    def curved(self) -> bool:
        """Never."""
        return False

    def mistakes(self) -> list[str]:
        """Return the error messages for invalid arguments."""
        right = (
            is_within(self.lower, 0.0, strictly=True)
            and is_within(self.upper, 0.0, strictly=True)
            and self.lower < self.upper
        )
        return [] if right else ["log-uniform takes two positive values, the first less than the second"]


@dataclass(frozen=True, repr=False)
class CauchyPrior(PriorDistribution):
    """Cauchy's distribution."""

    location: float
    scale: float

    def row(self, x: float) -> PriorRow:
        """Return the local model of the cost: rows reweighted, since far away the cost bends the other way."""
        u = (x - self.location) / self.scale
        w = sqrt(2.0 / (1.0 + u * u))
        return PriorRow(u * w, w / self.scale, log1p(u * u))

    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""
        return 0.5 + atan((x - self.location) / self.scale) / pi

    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""
        if u in (0.0, 1.0):
            return inf if u else -inf
        return self.location + self.scale * tan(pi * (u - 0.5))

    @property
    def constant(self) -> float:
        """-log p at the mode."""
        return log(pi * self.scale)

    def mistakes(self) -> list[str]:
        """Return the error messages for invalid arguments."""
        right = is_within(self.location, strictly=True) and is_within(self.scale, 0.0, strictly=True)
        return [] if right else ["cauchy takes a location and a positive scale"]


@dataclass(frozen=True, repr=False)
class Rayleigh(PositivePrior):
    """Rayleigh's distribution of a positive value."""

    scale: float

    def _row(self, x: float) -> PriorRow:
        u = x / self.scale
        j = sqrt(1.0 + 1.0 / (u * u)) / self.scale  # cost'' = (1 + 1/u^2) / scale^2
        return PriorRow((u - 1.0 / u) / self.scale / j, j, 0.5 * u * u - log(u) - 0.5)

    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""
        return 1.0 - exp(-0.5 * (max(x, 0.0) / self.scale) ** 2)

    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""
        return inf if u == 1.0 else self.scale * sqrt(-2.0 * log1p(-u))

    @property
    def constant(self) -> float:
        """-log p at the mode, the scale."""
        return log(self.scale) + 0.5

    def mistakes(self) -> list[str]:
        """Return the error messages for invalid arguments."""
        return [] if is_within(self.scale, 0.0, strictly=True) else ["rayleigh takes a positive scale"]


def _chi_square(dof: float) -> PriorDistribution:
    return Gamma(0.5 * dof, 2.0)


_NATURAL: dict[str, Callable[..., PriorDistribution]] = {
    "uniform": UniformPrior,
    "normal": Normal,
    "laplace": LaplacePrior,
    "lognormal": LogNormalPrior,
    "loglaplace": LogLaplacePrior,
    "loguniform": LogUniform,
    "cauchy": CauchyPrior,
    "rayleigh": Rayleigh,
    "gamma": Gamma,
    "exponential": partial(Gamma, 1.0),
    "chisquare": _chi_square,
}


def distribution(row: ParameterRow, *, truncated: bool) -> PriorDistribution | None:
    """Return the prior of a parameter's value or, by name, of the value on its scale.

    `truncated` says that its density is one within the parameter's bounds, as in version 2; without, the density of
    all values is taken, which differs by a constant.
    """
    if row.prior is None:
        return None
    prior = _distribution(row.prior, row.scale)
    if truncated and not isinstance(prior, UniformPrior) and not prior.mistakes():
        return Truncated(prior, row.lower, row.upper)
    return prior


def beginnings(row: ParameterRow) -> PriorDistribution | None:
    """Return from what starts of a parameter are drawn, if not evenly on its scale."""
    return None if row.begins is None else _distribution(row.begins, row.scale)


def _distribution(prior: PriorEntry, scale: str) -> PriorDistribution:
    kind = prior.kind.replace("-", "").lower()
    natural = kind.removeprefix("parameterscale")
    on = {} if kind == natural else {"on": "value" if scale == LIN else scale}
    return _NATURAL[natural](*prior.numbers, **on)
