"""Prior distributions of a single quantity.

A prior adds  -log p(x)  to the objective.  Its cost is this term minus its least value; the rest is a constant, which
only -2 log L counts.  For the solvers it is one more row r with slope j = "dr/dx" (see castfit.solve.staged):

    r j = cost'(x)  exactly,    j^2 > 0 its curvature,    cost = 1/2 r^2 + excess

p is the density of the natural value x, whatever the scale on which x is searched: the best point does not depend on
that scale.  ``on="log"`` says that p is the density of log x instead (PEtab's ``parameterScaleNormal``), without the
factor dlog x/dx; ``on="log10"`` likewise.  `LogNormalPrior` is a density of x.

A cost that is not a parabola in x nearly is one in another coordinate z, whose second derivative gives j:

    LogNormal        z = log x              an exact parabola about the mode  exp(mean - deviation^2)
    Gamma       z = x^(1/3)            cost'' > 0 for all x (Wilson and Hilferty 1931)
    Beta        z = arcsin sqrt(x)     cost'' > 0 for all x
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field, fields
from math import exp, inf, isfinite, isnan, lgamma, log, pi, sqrt
from typing import Any

import scipy

from castfit._support.arguments import is_one_of, is_within, option_mistakes, plain_numbers, read_real, shorten_repr
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.renamed import with_old_names

__all__ = ["Beta", "Gamma", "LogNormalPrior", "Normal", "PriorDistribution", "Truncated", "UniformPrior"]

_LN10 = log(10.0)


# Residual row of a cost without curvature: (slope / 10)^2 only has to be small beside the curvature of the data.
STRAIGHT_COST_ROW = 10.0


@dataclass(frozen=True)
class PriorRow:
    """A prior's local model at a value x: r and j with r j = cost'(x); cost is inf where the density is 0."""

    r: float
    j: float
    cost: float


_IMPOSSIBLE = PriorRow(inf, inf, inf)


@with_old_names(to_plain="to_dict")
@public("castfit.priors")
@dataclass(frozen=True, repr=False)
class PriorDistribution(ABC):
    """A prior distribution of one number.

    `Problem` checks its arguments, and lists errors with all other mistakes.
    """

    def __post_init__(self) -> None:
        plain_numbers(self)

    @abstractmethod
    def row(self, x: float) -> PriorRow:
        """Return the local model of the cost at a natural value."""

    @property
    @abstractmethod
    def constant(self) -> float:
        """-log p at the mode: what -log p has besides the cost."""

    @abstractmethod
    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""

    @abstractmethod
    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""

    @property
    def support(self) -> tuple[float, float]:
        """Natural values outside of which the density is 0: bounds of the quantity."""
        return -inf, inf

    @property
    def curved(self) -> bool:
        """Whether the cost has a curvature: a prior without adds no information, whatever it moves."""
        return True

    @property
    def rows(self) -> int:
        """Number of rows that the prior adds: none if it consists of bounds."""
        return 1

    @property
    def kind(self) -> str:
        """Its name in `castfit.priors`, without the suffix that distinguishes it from noise models."""
        return type(self).__name__.removesuffix("Prior")

    def mistakes(self) -> list[str]:
        """Check the arguments and return the error messages; empty if they are valid."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data for JSON and fingerprints."""
        return {"prior": self.kind, **{f.name: _to_plain_value(getattr(self, f.name)) for f in fields(self)}}

    def __repr__(self) -> str:
        """Show the arguments that are not the default."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        arguments = [
            f"{name}={_format_number(value)}" for name, value in values.items() if not is_one_of(value, "value")
        ]
        return f"{self.kind}({', '.join(arguments)})"


def _format_number(value: Any) -> str:
    number = read_real(value)
    return f"{number:g}" if number is not None else repr(value)


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, PriorDistribution):
        return value.to_dict()
    number = read_real(value)
    return shorten_repr(value) if number is None else number if isfinite(number) else str(number)


@dataclass(frozen=True, repr=False)
class ScaledPrior(PriorDistribution):
    """A prior of x, of log x or of log10 x, by the field `on`."""

    on: str = field(default="value", kw_only=True)

    @abstractmethod
    def _row(self, z: float) -> PriorRow: ...

    @abstractmethod
    def _cdf(self, z: float) -> float: ...

    @abstractmethod
    def _ppf(self, u: float) -> float: ...

    def row(self, x: float) -> PriorRow:
        """Return the local model of the cost at a natural value."""
        if self.on == "value":
            return self._row(x)
        if not x > 0.0:
            return _IMPOSSIBLE
        unit = _LN10 if self.on == "log10" else 1.0
        scaled_row = self._row(log(x) / unit)
        return PriorRow(scaled_row.r, scaled_row.j / (unit * x), scaled_row.cost)

    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""
        if self.on == "value":
            return float(self._cdf(x))
        return float(self._cdf(self.scaled(x))) if x > 0.0 else 0.0

    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""
        return self.natural(float(self._ppf(u)))

    def scaled(self, x: float) -> float:
        """Return z: a natural value, or its logarithm."""
        return x if self.on == "value" else log(x) / (_LN10 if self.on == "log10" else 1.0)

    def natural(self, z: float) -> float:
        """Return the natural value of z."""
        return z if self.on == "value" else _exp(z * _LN10 if self.on == "log10" else z)

    @property
    def support(self) -> tuple[float, float]:
        """Natural values outside of which the density is 0."""
        return (-inf if self.on == "value" else 0.0), inf

    def on_mistakes(self) -> list[str]:
        """Check `on` and return the error messages."""
        is_valid = is_one_of(self.on, "value", "log", "log10")
        return option_mistakes(("on", self.on, is_valid, "choose 'value', 'log' or 'log10'"))


def _exp(z: float) -> float:
    return exp(z) if z < 709.0 else inf


@dataclass(frozen=True, repr=False)
class PositivePrior(PriorDistribution):
    """A prior of a positive value."""

    @abstractmethod
    def _row(self, x: float) -> PriorRow: ...

    def row(self, x: float) -> PriorRow:
        """Return the local model of the cost at a natural value."""
        return self._row(x) if x > 0.0 else _IMPOSSIBLE

    @property
    def support(self) -> tuple[float, float]:
        """Positive values."""
        return 0.0, inf


@public("castfit")
@dataclass(frozen=True, repr=False)
class Normal(ScaledPrior):
    """A normal prior; it adds the residual (x - mean) / deviation.

    Parameters
    ----------
    mean, deviation : float
        In the unit of the quantity, or of its logarithm.
    on : {"value", "log", "log10"}
        Whether the value itself or its logarithm is normally distributed.  The density of the logarithm is largest at
        `mean`; that of the value, `LogNormalPrior`, at a smaller value.

    Examples
    --------
    >>> import castfit as cf
    >>> prior = cf.priors.Normal(2.0, 0.5)
    >>> [round(prior.ppf(u), 3) for u in (0.025, 0.5, 0.975)]
    [1.02, 2.0, 2.98]
    >>> cf.Parameter(1.0, prior=prior)
    Parameter(value=1, prior=Normal(mean=2, deviation=0.5))
    """

    mean: float
    deviation: float

    def _row(self, z: float) -> PriorRow:
        r = (z - self.mean) / self.deviation
        return PriorRow(r, 1.0 / self.deviation, 0.5 * r * r)

    def _cdf(self, z: float) -> float:
        return scipy.special.ndtr((z - self.mean) / self.deviation)

    def _ppf(self, u: float) -> float:
        return self.mean + self.deviation * scipy.special.ndtri(u)

    @property
    def constant(self) -> float:
        """-log p at the mode."""
        return log(self.deviation) + 0.5 * log(2.0 * pi)

    def mistakes(self) -> list[str]:
        """Check the arguments and return the error messages."""
        is_invalid = not is_within(self.mean, strictly=True) or not is_within(self.deviation, 0.0, strictly=True)
        return [*(["give Normal(mean, deviation), deviation positive"] if is_invalid else []), *self.on_mistakes()]


@public("castfit.priors", "LogNormal")
@dataclass(frozen=True, repr=False)
class LogNormalPrior(PositivePrior):
    """The prior of a positive value whose natural logarithm is normally distributed; a density of the value.

    Parameters
    ----------
    mean, deviation : float
        Of the natural logarithm.  The median of the value is ``exp(mean)``, its mode ``exp(mean - deviation**2)``.

    Examples
    --------
    >>> import castfit as cf
    >>> prior = cf.priors.LogNormal(0.0, 0.5)
    >>> [round(prior.ppf(u), 3) for u in (0.025, 0.5, 0.975)]
    [0.375, 1.0, 2.664]
    >>> cf.Parameter(1.0, prior=prior)
    Parameter(value=1, prior=LogNormal(mean=0, deviation=0.5))
    """

    mean: float
    deviation: float

    def _row(self, x: float) -> PriorRow:
        r = (log(x) - self.mean) / self.deviation + self.deviation
        return PriorRow(r, 1.0 / (self.deviation * x), 0.5 * r * r)

    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""
        return float(scipy.special.ndtr((log(x) - self.mean) / self.deviation)) if x > 0.0 else 0.0

    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""
        return _exp(self.mean + self.deviation * float(scipy.special.ndtri(u)))

    @property
    def constant(self) -> float:
        """-log p at the mode."""
        return self.mean - 0.5 * self.deviation**2 + log(self.deviation) + 0.5 * log(2.0 * pi)

    def mistakes(self) -> list[str]:
        """Check the arguments and return the error messages."""
        right = is_within(self.mean, strictly=True) and is_within(self.deviation, 0.0, strictly=True)
        return [] if right else ["give LogNormal(mean, deviation) of the logarithm, deviation positive"]


@public("castfit.priors", "Uniform")
@dataclass(frozen=True, repr=False)
class UniformPrior(ScaledPrior):
    """All values between two are equally probable, others impossible: bounds of the quantity.

    Parameters
    ----------
    lower, upper : float
    on : {"value", "log", "log10"}
        Whether the value or its logarithm is uniformly distributed; `lower` and `upper` are then logarithms.

    Examples
    --------
    >>> import castfit as cf
    >>> prior = cf.priors.Uniform(0.0, 4.0)
    >>> [round(prior.ppf(u), 3) for u in (0.025, 0.5, 0.975)]
    [0.1, 2.0, 3.9]
    >>> cf.Parameter(1.0, prior=prior)
    Parameter(value=1, prior=Uniform(lower=0, upper=4))
    """

    lower: float
    upper: float

    def _row(self, z: float) -> PriorRow:
        return PriorRow(0.0, 0.0, 0.0)

    def _cdf(self, z: float) -> float:
        return min(max((z - self.lower) / (self.upper - self.lower), 0.0), 1.0)

    def _ppf(self, u: float) -> float:
        return self.lower + u * (self.upper - self.lower)

    @property
    def constant(self) -> float:
        """-log p."""
        return log(self.upper - self.lower)

    @property
    def support(self) -> tuple[float, float]:
        """The two values."""
        return self.ppf(0.0), self.ppf(1.0)

    @property
    def curved(self) -> bool:
        """Never: bounds add no information."""
        return False

    @property
    def rows(self) -> int:
        """None."""
        return 0

    def mistakes(self) -> list[str]:
        """Check the arguments and return the error messages."""
        right = (
            is_within(self.lower, strictly=True) and is_within(self.upper, strictly=True) and self.lower < self.upper
        )
        return [
            *([] if right else ["give Uniform(lower, upper), lower < upper, both finite"]),
            *self.on_mistakes(),
        ]


@public("castfit.priors")
@dataclass(frozen=True, repr=False)
class Gamma(PositivePrior):
    """The gamma distribution of a positive value, with mean ``shape * scale`` and mode ``(shape - 1) * scale``.

    Parameters
    ----------
    shape : float
        At least 1: below that the density is infinite at 0, and there is no most probable value.  With shape 1, the
        exponential distribution, the cost x / scale is straight and adds no information.
    scale : float
        In the unit of the quantity.

    Examples
    --------
    >>> import castfit as cf
    >>> prior = cf.priors.Gamma(2.0, 1.5)
    >>> [round(prior.ppf(u), 3) for u in (0.025, 0.5, 0.975)]
    [0.363, 2.518, 8.357]
    >>> cf.Parameter(1.0, prior=prior)
    Parameter(value=1, prior=Gamma(shape=2, scale=1.5))
    """

    shape: float
    scale: float

    def row(self, x: float) -> PriorRow:
        """Return the local model of the cost at a natural value; an exponential density is positive at 0."""
        return self._row(x) if x == 0.0 and self.shape == 1.0 else super().row(x)

    def _row(self, x: float) -> PriorRow:
        a, s = self.shape - 1.0, self.scale
        if a == 0.0:
            return PriorRow(STRAIGHT_COST_ROW, 1.0 / (STRAIGHT_COST_ROW * s), x / s)
        w = sqrt(3.0 * a + 6.0 * x / s)
        ratio = x / (a * s)
        return PriorRow(3.0 * (x / s - a) / w, w / (3.0 * x), a * (ratio - 1.0 - log(ratio)))

    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""
        return float(scipy.special.gammainc(self.shape, max(x, 0.0) / self.scale))

    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""
        return self.scale * float(scipy.special.gammaincinv(self.shape, u))

    @property
    def constant(self) -> float:
        """-log p at the mode."""
        a = self.shape - 1.0
        return lgamma(self.shape) + log(self.scale) + (a - a * log(a) if a > 0.0 else 0.0)

    @property
    def curved(self) -> bool:
        """Whether this is no exponential distribution."""
        return self.shape > 1.0

    def mistakes(self) -> list[str]:
        """Check the arguments and return the error messages."""
        right = is_within(self.shape, strictly=True) and self.shape >= 1.0 and is_within(self.scale, 0.0, strictly=True)
        remedy = "give Gamma(shape, scale), shape at least 1 (below, the density is infinite at 0), scale positive"
        return [] if right else [remedy]


@public("castfit.priors")
@dataclass(frozen=True, repr=False)
class Beta(PriorDistribution):
    """The beta distribution of a value between two others, such as a fraction.

    Parameters
    ----------
    a, b : float
        At least 1: below that the density is infinite at an end.  With u = (x - lower) / (upper - lower) the density
        goes like u^(a - 1) (1 - u)^(b - 1).
    lower, upper : float

    Examples
    --------
    >>> import castfit as cf
    >>> prior = cf.priors.Beta(2.0, 5.0)
    >>> [round(prior.ppf(u), 3) for u in (0.025, 0.5, 0.975)]
    [0.043, 0.264, 0.641]
    >>> cf.Parameter(1.0, prior=prior)
    Parameter(value=1, prior=Beta(a=2, b=5, lower=0, upper=1))
    """

    a: float
    b: float
    lower: float = 0.0
    upper: float = 1.0

    def row(self, x: float) -> PriorRow:
        """Return the local model of the cost at a natural value."""
        width, a, b = self.upper - self.lower, self.a - 1.0, self.b - 1.0
        u, v = (x - self.lower) / width, (self.upper - x) / width
        if u < 0.0 or v < 0.0 or (a > 0.0 and u == 0.0) or (b > 0.0 and v == 0.0):
            return _IMPOSSIBLE
        cost = _below(a, u, a + b) + _below(b, v, a + b)
        if a == 0.0:
            return PriorRow(sqrt(b), sqrt(b) / (v * width) if b > 0.0 else 0.0, cost)
        if b == 0.0:
            return PriorRow(-sqrt(a), sqrt(a) / (u * width), cost)
        root = sqrt(2.0 * (a * v + b * u))
        return PriorRow(2.0 * (b * u - a * v) / root, root / (2.0 * u * v * width), cost)

    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""
        u = (x - self.lower) / (self.upper - self.lower)
        return float(scipy.special.betainc(self.a, self.b, min(max(u, 0.0), 1.0)))

    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""
        return self.lower + (self.upper - self.lower) * float(scipy.special.betaincinv(self.a, self.b, u))

    @property
    def constant(self) -> float:
        """-log p at the mode."""
        a, b = self.a - 1.0, self.b - 1.0
        at_mode = sum(power * log(power / (a + b)) for power in (a, b) if power > 0.0)
        return float(scipy.special.betaln(self.a, self.b)) + log(self.upper - self.lower) - at_mode

    @property
    def support(self) -> tuple[float, float]:
        """The two ends."""
        return self.lower, self.upper

    @property
    def curved(self) -> bool:
        """Whether this is no uniform distribution."""
        return self.a > 1.0 or self.b > 1.0

    def mistakes(self) -> list[str]:
        """Check the arguments and return the error messages."""
        right = all(is_within(v, strictly=True) for v in (self.a, self.b, self.lower, self.upper))
        right = right and self.a >= 1.0 and self.b >= 1.0 and self.lower < self.upper
        remedy = "give Beta(a, b, lower=0, upper=1), a and b at least 1 (below, the density is infinite at an end)"
        return [] if right else [remedy]


def _below(power: float, u: float, total: float) -> float:
    """Return -log u^power less what it is at u = power / total."""
    return -power * log(u * total / power) if power > 0.0 else 0.0


@public("castfit.priors")
@dataclass(frozen=True, repr=False)
class Truncated(PriorDistribution):
    """Another prior, of values between bounds only; these are bounds of the quantity.

    Parameters
    ----------
    prior : PriorDistribution
    lower, upper : float
        Natural values, infinite for none.

    Examples
    --------
    >>> import castfit as cf
    >>> prior = cf.priors.Truncated(cf.Normal(0.0, 1.0), lower=0.0)
    >>> [round(prior.ppf(u), 3) for u in (0.025, 0.5, 0.975)]
    [0.031, 0.674, 2.241]
    """

    prior: PriorDistribution
    lower: float = -inf
    upper: float = inf

    def row(self, x: float) -> PriorRow:
        """Return the local model of the cost at a natural value."""
        return self.prior.row(x)

    def cdf(self, x: float) -> float:
        """Return the probability of a value below x."""
        low, high = self._mass
        return (min(max(self.prior.cdf(x), low), high) - low) / (high - low)

    def ppf(self, u: float) -> float:
        """Return the natural value below which another one is with probability u."""
        low, high = self._mass
        return min(max(self.prior.ppf(low + u * (high - low)), self.lower), self.upper)

    @property
    def _mass(self) -> tuple[float, float]:
        return self.prior.cdf(self.lower), self.prior.cdf(self.upper)

    @property
    def constant(self) -> float:
        """-log p where the other prior has its mode."""
        low, high = self._mass
        return self.prior.constant + log(high - low)

    @property
    def support(self) -> tuple[float, float]:
        """The intersection of the bounds with the support of the other prior."""
        low, high = self.prior.support
        return max(low, self.lower), min(high, self.upper)

    @property
    def curved(self) -> bool:
        """Whether the other prior is."""
        return self.prior.curved

    @property
    def rows(self) -> int:
        """As many as the other prior adds."""
        return self.prior.rows

    def mistakes(self) -> list[str]:
        """Check the arguments and return the error messages."""
        prior: Any = self.prior
        if not isinstance(prior, PriorDistribution):
            return [f"Truncated holds {shorten_repr(prior)}; give a prior such as Normal(mean, deviation)"]
        mistakes = prior.mistakes()
        low, high = read_real(self.lower), read_real(self.upper)
        if low is None or high is None or isnan(low) or isnan(high) or not low < high:
            return [*mistakes, "give Truncated(prior, lower, upper), lower < upper"]
        if not mistakes and not self._mass[0] < self._mass[1]:
            mistakes.append(f"{shorten_repr(prior)} has no probability in [{low:g}, {high:g}]; move the bounds")
        return mistakes


def prior_mistakes(label: str, prior: Any) -> list[str]:
    """Check the prior of `label` and return the error messages."""
    if prior is None:
        return []
    if not isinstance(prior, PriorDistribution):
        return [
            f"{label} has the prior {shorten_repr(prior)}; give Normal(mean, deviation) or another of castfit.priors"
        ]
    return [f"{label} has the prior {shorten_repr(prior)}; {mistake}" for mistake in prior.mistakes()]


def start_mistakes(label: str, starts: Any, lower: Any, upper: Any) -> list[str]:
    """Check the distribution from which starts of `label` are drawn, and return the error messages."""
    if starts is None:
        return []
    if not isinstance(starts, PriorDistribution):
        return [
            f"{label} has the starts {shorten_repr(starts)}; give Uniform(lower, upper) or another of castfit.priors"
        ]
    mistakes = [f"{label} has the starts {shorten_repr(starts)}; {mistake}" for mistake in starts.mistakes()]
    if (
        mistakes
        or read_real(lower) is None
        or read_real(upper) is None
        or starts.cdf(float(lower)) < starts.cdf(float(upper))
    ):
        return mistakes
    return [f"{label}: its starts {shorten_repr(starts)} lie outside its bounds [{lower:g}, {upper:g}]; change either"]


def prior_bound_conflicts(
    label: str, guess: float, lower: float, upper: float, prior: PriorDistribution | None
) -> list[str]:
    """Check a prior against the bounds and the guess of its quantity, and return the error messages."""
    if prior is None:
        return []
    low, high = prior.support
    if max(low, lower) >= min(high, upper):
        return [
            f"{label}: {shorten_repr(prior)} excludes all values in the bounds [{lower:g}, {upper:g}]; change either"
        ]
    if not low <= guess <= high or not prior.row(guess).cost < inf:
        return [f"{label}: the guess {guess:g} is impossible by its prior {shorten_repr(prior)}; change one of them"]
    return []


def truncated_quantile(distribution: Any, u: float, lower: float, upper: float) -> float:
    """Return the value below which a distribution, cut off at two ends, has probability u."""
    low, high = (float(distribution.cdf(end)) for end in (lower, upper))
    return float(distribution.ppf(low + u * (high - low)))
