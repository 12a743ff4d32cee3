"""Counts: Poisson, and more variable than that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import casadi as ca
import numpy as np
import scipy

from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit.densities.noise.density import Density, Noise, lower_triangular, pairs
from castfit.densities.noise.special import log1p_ratio, log_gamma, log_rising

# Smaller expected counts are set to this value: integrators err by as much, and the information stays finite.
_MIN_EXPECTED_COUNT = 1e-8
# Smallest mu s^3 of the exact integral: below it, the integral loses more to rounding than the normal approximation
# errs, about 1e-5.
_MIN_DISPERSION_SCALE = 1e-16
_NODES = np.exp(np.arange(-22.0, 3.8, 0.4))  # of the trapezoidal rule in log tau
_MIN_START_DISPERSION = 1e-3  # smallest dispersion at which the estimation starts
_MIN_EXCESS_VARIANCE = 1e-6  # smallest estimated excess over Poisson's variance, as a share of that variance


@dataclass(frozen=True, eq=False)
class _CountNoise(Noise):
    """Common base of Poisson and NegativeBinomial: counts, whose residuals for tests are transformed to normal ones."""

    in_unit_of_output: ClassVar[bool] = False

    def value_mistakes(self, values: Array) -> list[str]:
        """Check that all values are counts and return the error messages."""
        bad = values[(values < 0) | (np.isfinite(values) & (values != np.floor(values)))]
        needed = f"{type(self).__name__} needs counts, whole numbers from 0"
        return [f"it contains {bad.flat[0]:g}; {needed}"] if bad.size else []

    @property
    def normal(self) -> bool:
        """Whether the residuals for tests have a normal distribution if the model is right."""
        return True


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Poisson(_CountNoise):
    """Counts whose expectation is the output, and so is their variance.  There is no `sigma`.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 50.0})
    >>> data = {"x": [40, 27, 26, 17, 21, 12]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise={"x": cf.Poisson()})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> print(round(result.parameters["k"], 3), round(result.standard_errors["k"], 3))
    0.454 0.05
    """

    has_spread: ClassVar[bool] = False

    def option_mistakes(self) -> list[str]:
        """Check the options and return the error messages."""
        return [] if self.sigma is None else ["Poisson has no sigma: the variance is the expectation; leave it out"]

    def spread_mistakes(self) -> list[str]:
        """Return an error message: the model has no spread to be estimated."""
        return ["Poisson has no sigma to be estimated; use NegativeBinomial for counts that scatter more"]

    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return mu - m log mu + log m!, of mu alone."""
        positive_mu, has_count = ca.fmax(mu, _MIN_EXPECTED_COUNT), m > 0
        cost = _infinite_if_negative(mu) + mu - m * ca.log(ca.if_else(has_count, mu, 1)) + log_gamma(m + 1)
        return lower_triangular(mu, m, cost, (mu - m) / ca.sqrt(positive_mu), 1 / ca.sqrt(positive_mu))

    def starting_spread(self, mu: Array, m: Array) -> float:
        """Return 1, for form's sake."""
        return 1.0

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return the standard deviations: the root of the expectation."""
        return np.sqrt(np.maximum(mu, 0.0))

    def scores(self, residual: Array, mu: Array, s: Array, m: Array) -> Array:
        """Return normal residuals of the same probability as the counts (Dunn and Smyth 1996)."""
        mean = np.maximum(mu, _MIN_EXPECTED_COUNT)
        p_below = np.where(m > 0, scipy.special.gammaincc(np.maximum(m, 1), mean), 0.0)
        p_at_least = np.where(m > 0, scipy.special.gammainc(np.maximum(m, 1), mean), 1.0)
        return _scores(scipy.special.gammaincc(m + 1, mean), scipy.special.gammainc(m + 1, mean), p_below, p_at_least)

    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Draw counts."""
        mean, _ = np.broadcast_arrays(np.asarray(mu, dtype=float), np.asarray(s, dtype=float))
        return rng.poisson(_clip_negative(mean)).astype(float)


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class NegativeBinomial(_CountNoise):
    """Counts more variable than Poisson's: variance mu + dispersion mu^2.

    Parameters
    ----------
    sigma : float, array, `unknown` or casadi.SX, optional
        The dispersion, without unit: the inverse of the size n of the usual (n, p); nothing means unknown.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 50.0})
    >>> data = {"x": [40, 27, 26, 17, 21, 12]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise={"x": cf.NegativeBinomial()})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> print(round(result.parameters["k"], 3), round(result.standard_errors["k"], 3))
    0.454 0.055
    >>> result["dispersion(x)"].value < 0.01
    True
    """

    spread_name = "dispersion"

    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return -log of the probability, with n = 1/s and p = 1/(1 + s mu).

            -log (Gamma(n + m) / Gamma(n) s^m) + log m! - m log mu + (n + m) log(1 + s mu)

        The rows take the curvature in s for that of a normal density of this variance; `information` puts it right.
        """
        positive_mu, has_count = ca.fmax(mu, _MIN_EXPECTED_COUNT), m > 0
        dispersion_free = _infinite_if_negative(mu) - m * ca.log(ca.if_else(has_count, mu, 1)) + log_gamma(m + 1)
        cost = dispersion_free + mu * log1p_ratio(s * mu) + m * ca.log1p(s * mu) - log_rising(m, s)
        variance = positive_mu * (1 + s * positive_mu)
        normal = positive_mu / (np.sqrt(2) * (1 + s * positive_mu))
        factor = ca.diag(ca.vertcat(1 / ca.sqrt(variance), normal))
        usable = positive_mu * s**3 > _MIN_DISPERSION_SCALE
        integral = _dispersion_information(positive_mu, ca.if_else(usable, s, 1))
        exact = ca.if_else(usable, ca.sqrt(integral) / normal, 1 / ca.sqrt(1 + s))
        residual = (mu - m) / ca.sqrt(variance)
        return lower_triangular(ca.vertcat(mu, s), m, cost, residual, factor, ca.vertcat(1, exact))

    def least_spread(self, m: Array) -> float:
        """Return the dispersion by which a variance differs from Poisson's by a millionth."""
        finite_values = m[np.isfinite(m)]
        return _MIN_EXCESS_VARIANCE / max(float(np.mean(finite_values)) if finite_values.size else 1.0, 1.0)

    def starting_spread(self, mu: Array, m: Array) -> float:
        """Return the dispersion that explains the sum of squared residuals, at least 1e-3."""
        prediction, value = pairs(mu, m)
        excess = float(np.sum((value - prediction) ** 2 - np.abs(prediction)))
        return max(excess / max(float(np.sum(prediction**2)), _MIN_EXPECTED_COUNT), _MIN_START_DISPERSION)

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return the standard deviations."""
        mean = np.maximum(mu, 0.0)
        return np.sqrt(mean + s * mean**2)

    def scores(self, residual: Array, mu: Array, s: Array, m: Array) -> Array:
        """Return normal residuals of the same probability as the counts (Dunn and Smyth 1996)."""
        excess = s * np.maximum(mu, _MIN_EXPECTED_COUNT)
        p, q = 1 / (1 + excess), excess / (1 + excess)
        p_below = np.where(m > 0, scipy.special.betainc(1 / s, np.maximum(m, 1), p), 0.0)
        p_at_least = np.where(m > 0, scipy.special.betainc(np.maximum(m, 1), 1 / s, q), 1.0)
        p_up_to, p_above = scipy.special.betainc(1 / s, m + 1, p), scipy.special.betainc(m + 1, 1 / s, q)
        return _scores(np.asarray(p_up_to, dtype=float), np.asarray(p_above, dtype=float), p_below, p_at_least)

    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Draw counts: Poisson's, of expectations that have a Gamma distribution."""
        mean, dispersion = np.broadcast_arrays(np.asarray(mu, dtype=float), np.asarray(s, dtype=float))
        return rng.poisson(_clip_negative(mean) * dispersion * rng.gamma(1 / dispersion)).astype(float)


def _dispersion_information(mu: ca.SX, s: ca.SX) -> ca.SX:
    """Return the expected second derivative of the cost by s.

    By n = 1/s it is  psi1(n) - E psi1(n + M) - mu / (n (n + mu)),  psi1 the trigamma function.  With the integral of
    psi1 and the probability generating function of M that is, over tau from 0,

        s integral of exp(-tau) [ x / (1 - exp(-x)) (1 - exp(-A)) - (1 - exp(-mu x)) ] d tau,
        x = s tau,    A = n log(1 + s mu (1 - exp(-x)))

    here by the trapezoidal rule in log tau.
    """
    total = ca.SX(0)
    for tau in _NODES.tolist():
        x = s * tau
        fallen: ca.SX = -(-x).expm1()
        exponent: ca.SX = -ca.log1p(s * mu * fallen) / s
        kernel = (-mu * x).expm1() - (x / fallen) * exponent.expm1()
        total += tau * np.exp(-tau) * kernel
    step = float(np.log(_NODES[1] / _NODES[0]))
    return step * total / s**3


def _scores(p_up_to: Array, p_above: Array, p_below: Array, p_at_least: Array) -> Array:
    """Return normal quantiles, of the sign of value minus prediction, (n,).

    Each is the quantile of a probability drawn uniformly between P(M < m) and P(M <= m), because counts are discrete
    and the normal distribution is not.  The seed is fixed, so that the same fit has the same residuals.

    p_up_to, p_above, p_below, p_at_least (n,) : probabilities of M <= m, M > m, M < m and M >= m
    """
    fraction = np.random.default_rng(0).random(p_up_to.size)
    low, high = fraction * p_up_to + (1 - fraction) * p_below, fraction * p_above + (1 - fraction) * p_at_least
    size = -scipy.special.ndtri(np.maximum(np.minimum(low, high), np.finfo(float).tiny))
    return np.where(low < high, -size, size)


def _clip_negative(mu: Array) -> Array:
    """Return expectations that integrators left below zero as zero."""
    return np.where((mu < 0) & (mu >= -_MIN_EXPECTED_COUNT), 0.0, mu)


def _infinite_if_negative(mu: ca.SX) -> ca.SX:
    """Return infinity where an expected count is negative by more than rounding, else 0."""
    return ca.if_else(mu < -_MIN_EXPECTED_COUNT, np.inf, 0)
