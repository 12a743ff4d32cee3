"""Normal errors, of the value or of its logarithm, and values of which only a limit of detection is known.

A value at or below the limit b says that the true reading is below:

    cost = -log Phi(z),    z = (b - mu) / s

which is convex in z.  With the hazard  h = phi / Phi  its derivatives by z are  -h  and  h (z + h),  so it is one row

    r = sqrt(h / (z + h)),    L = -sqrt(h (z + h)) dz/d eta

The values between the limits are no random sample, so that there the expected curvature is of no use.  In  theta =
mu/s  and  gamma = 1/s  the cost of all values is convex (Olsen 1978); its second derivatives by (theta, gamma) make the
rows of the measured values, too:

    r  and  -1,    L = [[1, 0], [-r, -1]] / s

which is the observed information at the optimum if one s is common to all.

The generalised residual, E[(mu - M)/s | M < b] = h, has the mean 0 together with the residuals of uncensored
values (Gourieroux, Monfort, Renault and Trognon 1987).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import field
from typing import Any, ClassVar

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of, is_within, option_mistakes, read_real, shorten_repr
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit.densities.noise.density import Density, Noise, floor_spread, lower_triangular, pairs, secant_curvature
from castfit.densities.noise.special import normal_tail

_HALF_LOG_2PI = 0.5 * float(np.log(2 * np.pi))
_MIN_UNCENSORED_SHARE = 0.5  # share of uncensored values above which the starting spread is computed from them alone


@dataclass(frozen=True, eq=False)
class _NormalNoise(Noise):
    """Common base of Gaussian and LogNormal: normal errors on a transformed axis, with limits of detection."""

    below: float | None = field(default=None, kw_only=True)
    above: float | None = field(default=None, kw_only=True)
    correlation: Any = field(default=None, kw_only=True)
    """Correlation of the errors (castfit.densities.noise.correlation), which `sigma` of an experiment specifies."""

    @abstractmethod
    def _axis(self, value: ca.SX) -> ca.SX:
        """Transform a graph to the axis on which the errors are normal with deviation s."""

    @abstractmethod
    def _axis_of(self, value: Array) -> Array:
        """Transform numbers to that axis."""

    @abstractmethod
    def _value_of(self, axis: Array) -> Array:
        """Transform numbers back."""

    @abstractmethod
    def _measure(self, m: ca.SX) -> ca.SX:
        """Return -log of the derivative of the axis by the value, for the density of the value itself."""

    @property
    def censored(self) -> bool:
        """Whether there are limits of detection."""
        return self.below is not None or self.above is not None

    def censoring_side(self, m: Array) -> Array:
        """Return -1 for values at or below the lower limit of detection, 1 at or above the upper one, else 0."""
        low, high = -np.inf if self.below is None else self.below, np.inf if self.above is None else self.above
        return np.where(m >= high, 1.0, 0.0) - np.where(m <= low, 1.0, 0.0)

    def _detected(self, m: Any) -> Any:
        """Replace values that are not on the axis by the limit of detection; m is an array or symbolic."""
        return m

    @property
    def additive(self) -> bool:
        """Whether a value is its prediction plus an error: not where it may be a limit of detection."""
        return not self.censored

    def error(self, mu: Array, s: Array, m: Array) -> Array:
        """Return the errors r, on the axis on which they are normal."""
        return (self._axis_of(mu) - self._axis_of(self._detected(m))) / s

    def value_at(self, mu: Array, s: Array, r: Array) -> Array:
        """Return the values whose errors are r."""
        return self._value_of(self._axis_of(mu) - s * r)

    @property
    def normal(self) -> bool:
        """Whether the residuals for tests have a normal distribution if the model is right."""
        return not self.censored

    def scores(self, residual: Array, mu: Array, s: Array, m: Array) -> Array:
        """Return the residuals; NaN for values beyond a limit of detection, which have none."""
        low = -np.inf if self.below is None else self.below
        high = np.inf if self.above is None else self.above
        return np.where((m > low) & (m < high), residual, np.nan)

    @property
    def is_residual_noise(self) -> bool:
        """Whether the first row is the residual, and an unknown spread is eliminated."""
        return not self.censored

    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return 1/2 r^2 + log s + 1/2 log 2 pi, and beyond the limits -log Phi."""
        eta = ca.vertcat(mu, s)
        detected = self._detected(m)
        r = (self._axis(mu) - self._axis(detected)) / s
        cost = 0.5 * r**2 + ca.log(s) + _HALF_LOG_2PI + self._measure(detected)
        slope = ca.gradient(self._axis(mu), mu)
        if not self.censored:
            c = secant_curvature(r**2 - 1, ca.fabs(r), 1.0, 2.0)
            factor = ca.diag(ca.vertcat(slope, ca.sqrt(c))) / s
            return lower_triangular(eta, m, cost, r, factor, ca.vertcat(1, ca.sqrt(2 / c)))
        convex = ca.vertcat(ca.horzcat(slope, 0), ca.horzcat(-r, -1)) / s
        density = lower_triangular(eta, m, cost, r, convex)
        if self.below is not None:
            z = (self._axis(ca.SX(self.below)) - self._axis(mu)) / s
            density = _censored_tail(m <= self.below, z, 1.0, density)
        if self.above is not None:
            z = (self._axis(mu) - self._axis(ca.SX(self.above))) / s
            density = _censored_tail(m >= self.above, z, -1.0, density)
        return density

    def starting_spread(self, mu: Array, m: Array) -> float:
        """Return the root mean square on the axis, of the values between the limits."""
        with np.errstate(all="ignore"):
            prediction, value = pairs(self._axis_of(mu), self._axis_of(self._detected(m)))
        is_inside = np.ones(value.shape, dtype=np.bool_)
        for limit, sign in ((self.below, 1.0), (self.above, -1.0)):
            if limit is not None:
                is_inside &= sign * value > sign * self._axis_of(np.array(float(limit)))
        mask = (
            is_inside
            if np.count_nonzero(is_inside) > _MIN_UNCENSORED_SHARE * is_inside.size
            else np.ones_like(is_inside)
        )
        mean_square = float(np.mean((prediction - value)[mask] ** 2)) if mask.any() else np.nan
        return floor_spread(float(np.sqrt(mean_square)), value, self._default_scatter)

    @property
    def _default_scatter(self) -> float | None:
        return None

    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Draw measured values; beyond a limit of detection the limit."""
        mean, deviation = np.broadcast_arrays(self._axis_of(np.asarray(mu, dtype=float)), np.asarray(s, dtype=float))
        values = self._value_of(mean + deviation * rng.standard_normal(mean.shape))
        return np.clip(values, self.below, self.above) if self.censored else values

    def option_mistakes(self) -> list[str]:
        """Check the limits of detection and return the error messages."""
        remedy = "give the limit of detection, a number"
        mistakes = option_mistakes(
            ("below", self.below, self.below is None or is_within(self.below, strictly=True), remedy),
            ("above", self.above, self.above is None or is_within(self.above, strictly=True), remedy),
        )
        low, high = read_real(self.below), read_real(self.above)
        if not mistakes and low is not None and high is not None and low >= high:
            mistakes.append(f"below, {low:g}, is not less than above, {high:g}; swap the limits of detection")
        return mistakes


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Gaussian(_NormalNoise):
    """Normal errors of standard deviation `sigma`.

    Parameters
    ----------
    sigma : float, array, `relative`, `unknown` or casadi.SX, optional
        Standard deviation, in the unit of the output; nothing means unknown.
    below, above : float, optional
        Limits of detection: of values at or beyond them only that is known.  Values beyond a limit may be given as the
        limit itself.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.Gaussian(0.1, below=0.02)
    Gaussian(sigma=0.1, below=0.02)
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> detectable = cf.Gaussian(0.05, below=0.3)
    >>> data = {"x": [1.2, 0.7, 0.45, 0.3, 0.3]}  # 0.3 stands for "less than 0.3"
    >>> experiment = cf.Experiment(data, time=[1, 2, 3, 4, 5], noise=detectable)
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> result["k"]
    k = 0.5152 ± 0.021, 95 % interval [0.4735, 0.5569] (well determined)
    """

    def _axis(self, value: ca.SX) -> ca.SX:
        return value

    def _axis_of(self, value: Array) -> Array:
        return value

    def _value_of(self, axis: Array) -> Array:
        return axis

    def _measure(self, m: ca.SX) -> ca.SX:
        return ca.SX(0)


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class LogNormal(_NormalNoise):
    """Normal errors of the logarithm; the density is that of the measured value itself.

    Parameters
    ----------
    sigma : float, array, `unknown` or casadi.SX, optional
        Standard deviation of the logarithm, without unit; nothing means unknown.
    base : {"e", 10}
        Which logarithm: PEtab's observableTransformation "log" or "log10".
    below, above : float, optional
        Limits of detection, in the unit of the output.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> data = {"x": [1.6, 1.2, 0.9, 0.7, 2.5, 0.4]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise={"x": cf.LogNormal(sigma=0.2)})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> print(round(result.parameters["k"], 3))
    0.36
    """

    in_unit_of_output: ClassVar[bool] = False

    base: Any = field(default="e", kw_only=True)

    @property
    def _unit(self) -> float:
        return float(np.log(10.0)) if self.base == 10 else 1.0

    @property
    def _default_scatter(self) -> float | None:
        return 1.0

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return the standard deviations of log-normal values whose median is mu."""
        variance = (s * self._unit) ** 2
        with np.errstate(over="ignore"):
            return np.abs(mu) * np.sqrt(np.exp(variance) * np.expm1(variance))

    def _axis(self, value: ca.SX) -> ca.SX:
        return ca.log(value) / self._unit

    def _axis_of(self, value: Array) -> Array:
        return np.log(value) / self._unit

    def _value_of(self, axis: Array) -> Array:
        return np.exp(axis * self._unit)

    def _measure(self, m: ca.SX) -> ca.SX:
        return ca.log(m * self._unit)

    def _detected(self, m: Any) -> Any:
        if self.below is None:
            return m
        return ca.fmax(m, self.below) if isinstance(m, ca.SX) else np.maximum(m, self.below)

    def option_mistakes(self) -> list[str]:
        """Check the base and the limits of detection and return the error messages."""
        mistakes = [] if is_one_of(self.base, "e", 10) else [f"base is {shorten_repr(self.base)}; choose 'e' or 10"]
        for name, limit in (("below", self.below), ("above", self.above)):
            number = read_real(limit)
            if number is not None and number <= 0:
                mistakes.append(f"{name} is {number:g}; LogNormal needs a positive limit of detection")
        return mistakes + super().option_mistakes()

    def value_mistakes(self, values: Array) -> list[str]:
        """Refuse values that have no logarithm, unless they are below the limit of detection."""
        bad = values[(values <= 0) & (self.below is None)]
        remedy = "LogNormal needs positive values: use Gaussian, or below= for values under the limit of detection"
        return [f"it contains {bad.flat[0]:g}; {remedy}"] if bad.size else []


def _censored_tail(censored: ca.SX, z: ca.SX, sign: float, inside: Density) -> Density:
    """Replace the density of censored values by the tail probability below z; `sign` is the sign of the residual."""
    assert inside.factor is not None
    assert inside.rows is not None
    tail = normal_tail(z)
    root = ca.sqrt(tail.hazard) * ca.sqrt(tail.above)
    factor = ca.horzcat(-sign * root * ca.gradient(z, inside.eta), ca.SX.zeros(2, 1))
    rows = ca.vertcat(sign * ca.sqrt(tail.hazard) / ca.sqrt(tail.above), 0)
    return Density(
        inside.eta,
        inside.datum,
        ca.if_else(censored, -tail.log, inside.cost),
        ca.if_else(censored, sign * tail.hazard, inside.residual),
        ca.if_else(censored, factor, inside.factor),
        ca.if_else(censored, rows, inside.rows),
        ca.SX.ones(2, 1),
    )
