"""Distribution functions for few data, without scipy.special, whose import takes longer than five small fits.

    I_x(a, b)    continued fraction by Lentz's method            (Press et al. 2007, Eq. 6.4.9)
    P, Q(a, x)   series, or continued fraction                   (Eqs. 6.2.5, 6.2.7)
    quantiles    Newton on the logarithm of a tail, which is concave: from the right it converges monotonically

Beyond `_MAX_SERIES_PARAMETER`, where differences of log Gamma lose digits, SciPy is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import comb, erfc, exp, inf, isfinite, lgamma, log, log1p, pi, sqrt

import numpy as np
import scipy

from castfit._support.arrays import Array

_MAX_SERIES_PARAMETER = 500.0  # largest parameter or number of values evaluated here instead of by SciPy
_SERIES_RTOL = 1e-16  # relative size of a term at which a series or a continued fraction stops
_MIN_DENOMINATOR = 1e-300  # replaces a denominator of exactly zero in Lentz's method
_MAX_SERIES_TERMS = 10_000  # largest number of terms of a series or continued fraction
_MAX_NEWTON_STEPS = 200  # largest number of Newton steps for a quantile
_MAX_NEWTON_STEP = 20.0  # largest Newton step, relative to the argument (at least 1)


def beta_cdf(a: float, b: float, x: float) -> float:
    """Return I_x(a, b), the distribution function of the beta distribution."""
    if not (a > 0.0 and b > 0.0 and a + b <= _MAX_SERIES_PARAMETER and 0.0 < x < 1.0):
        return float(scipy.special.betainc(a, b, x))
    return _beta(a, b, x, 1.0 - x)


def _beta(a: float, b: float, x: float, y: float) -> float:
    """Return I_x(a, b), y = 1 - x."""
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta_below(b, a, y, x)
    return _beta_below(a, b, x, y)


def _beta_below(a: float, b: float, x: float, y: float) -> float:
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0) or _MIN_DENOMINATOR)
    h = d
    for m in range(1, _MAX_SERIES_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / (1.0 + term * d or _MIN_DENOMINATOR)
            c = 1.0 + term / c or _MIN_DENOMINATOR
            h *= c * d
        if abs(c * d - 1.0) < _SERIES_RTOL:
            break
    return exp(a * log(x) + b * log(y) + lgamma(a + b) - lgamma(a) - lgamma(b)) * h / a


def _gamma_tails(a: float, x: float) -> tuple[float, float]:
    """Return P(a, x) and Q(a, x), the regularised incomplete gamma functions."""
    if x <= 0.0:
        return 0.0, 1.0
    if not (isfinite(x) and a <= _MAX_SERIES_PARAMETER):
        return float(scipy.special.gammainc(a, x)), float(scipy.special.gammaincc(a, x))
    front = exp(a * log(x) - x - lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        for n in range(1, _MAX_SERIES_TERMS):
            term *= x / (a + n)
            total += term
            if term < _SERIES_RTOL * total:
                break
        return front * total, 1.0 - front * total
    b, c = x + 1.0 - a, inf
    h = d = 1.0 / b
    for n in range(1, _MAX_SERIES_TERMS):
        a_n, b = -n * (n - a), b + 2.0
        d = 1.0 / (a_n * d + b or _MIN_DENOMINATOR)
        c = b + a_n / c or _MIN_DENOMINATOR
        h *= c * d
        if abs(c * d - 1.0) < _SERIES_RTOL:
            break
    return 1.0 - front * h, front * h


def chi2_cdf(dof: float, x: float) -> float:
    """Return the distribution function of chi-square."""
    return _gamma_tails(0.5 * dof, 0.5 * x)[0]


def chi2_tail(dof: float, x: float) -> float:
    """Return the probability of more than x by chi-square."""
    return _gamma_tails(0.5 * dof, 0.5 * x)[1]


@lru_cache
def chi2_quantile(dof: float, tail: float) -> float:
    """Return the chi-square quantile whose probability of exceedance is `tail`."""
    if not (0.0 < tail < 1.0 <= dof <= 2.0 * _MAX_SERIES_PARAMETER):
        return float(scipy.special.chdtri(dof, tail))
    a = 0.5 * dof

    def tail_and_density(x: float) -> tuple[float, float]:
        return _gamma_tails(a, x)[1], exp((a - 1.0) * log(x) - x - lgamma(a))

    return 2.0 * _where(tail_and_density, tail, a, positive=True)


@lru_cache
def normal_quantile(p: float) -> float:
    """Return the quantile of the normal distribution."""
    if not 0.0 < p < 1.0:
        return float(scipy.special.ndtri(p))
    if p > 0.5:
        return -normal_quantile(1.0 - p)
    return -_where(lambda z: (0.5 * erfc(z / sqrt(2.0)), exp(-0.5 * z * z) / sqrt(2.0 * pi)), p, 0.0)


@lru_cache
def t_quantile(dof: float, p: float) -> float:
    """Return the quantile of Student's t distribution."""
    if not (0.0 < p < 1.0 and 0.0 < dof <= _MAX_SERIES_PARAMETER):
        return float(scipy.special.stdtrit(dof, p))
    if p == 0.5:
        return 0.0
    tail, a = min(p, 1.0 - p), 0.5 * dof
    front = exp(lgamma(a + 0.5) - lgamma(a)) / sqrt(dof * pi)

    def tail_and_density(s: float) -> tuple[float, float]:
        t = exp(s)
        square = t * t
        x, y = dof / (dof + square), square / (dof + square)
        return 0.5 * _beta(a, 0.5, x, y), front * x ** (a + 0.5) * t

    t = exp(_where(tail_and_density, tail, log(-normal_quantile(tail))))
    return t if p > 0.5 else -t


@lru_cache
def f_median(n: float, m: float) -> float:
    """Return the median of the F distribution of n and m degrees of freedom."""
    a, b = 0.5 * n, 0.5 * m
    if not (a > 0.0 and b > 0.0 and a + b <= _MAX_SERIES_PARAMETER):
        return float(scipy.special.fdtri(n, m, 0.5))
    front = lgamma(a + b) - lgamma(a) - lgamma(b)

    def tail_and_density(s: float) -> tuple[float, float]:
        odds = n * exp(s) / m
        x, y = odds / (1.0 + odds), 1.0 / (1.0 + odds)
        return _beta(b, a, y, x), exp(front + a * log(x) + b * log(y))

    return exp(_where(tail_and_density, 0.5, 0.0))


def fair_binomial_cdf(k: int, n: int) -> float:
    """Return the probability of at most k heads of n."""
    if n > _MAX_SERIES_PARAMETER:
        return float(scipy.special.bdtr(k, n, 0.5))
    return sum(comb(n, i) for i in range(k + 1)) / 2**n


def log_normal_cdf(z: Array) -> Array:
    """Return the logarithm of the normal distribution function at every z (n,)."""
    if z.size > _MAX_SERIES_PARAMETER or not (np.abs(z) < 30.0).all():
        return np.asarray(scipy.special.log_ndtr(z), dtype=float)
    tails = [(x, 0.5 * erfc(abs(x) / sqrt(2.0))) for x in z.tolist()]
    return np.array([log1p(-tail) if x > 0.0 else log(tail) for x, tail in tails])


def _where(
    tail_and_density: Callable[[float], tuple[float, float]], tail: float, start: float, *, positive: bool = False
) -> float:
    """Find the argument x at which the tail probability equals `tail`.

    tail_and_density : x to the tail probability and the density at x
    """
    x, previous_step = start, inf
    for _ in range(_MAX_NEWTON_STEPS):
        value, density = tail_and_density(x)
        if not (value > 0.0 and density > 0.0):  # too far to the right
            x -= 0.5 * min(previous_step, _MAX_NEWTON_STEP)
            previous_step *= 0.5
            continue
        step = log(value / tail) * value / density
        step = max(min(step, _MAX_NEWTON_STEP * max(abs(x), 1.0)), -_MAX_NEWTON_STEP * max(abs(x), 1.0))
        next_x = x + step
        next_x = 0.5 * x if positive and next_x <= 0.0 else next_x
        if next_x == x or (abs(step) >= previous_step and abs(step) <= 1e-14 * max(abs(x), 1.0)):
            return x
        x, previous_step = next_x, abs(step)
    return x
