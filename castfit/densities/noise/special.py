"""Special functions that CasADi lacks, as graphs accurate to rounding.

The branch not taken gets an argument that is harmless to it: the derivative of CasADi's `if_else` is 0 times that of
the branch, which must not be infinite.
"""

from __future__ import annotations

import casadi as ca
import numpy as np

from castfit._support.records import dataclass

_STIRLING_SHIFT = 8  # argument from which Stirling's series is accurate to 1e-16
_BERNOULLI = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_HALF_LOG_2PI = 0.5 * float(np.log(2 * np.pi))
# Smaller arguments are evaluated by a series; above it, derivatives lose at most two digits.
_MAX_SERIES_ARGUMENT = 0.01
_CONTINUED_FRACTION_BOUND = -3.0  # smaller arguments are evaluated by the continued fraction, as 1 + erf would cancel
_CONTINUED_FRACTION_TERMS = 60  # number of terms: at z = -3 the rest is below rounding


def log_gamma(x: ca.SX) -> ca.SX:
    """Return log Gamma(x), x > 0: Stirling's series at x + 8, brought back by the recurrence."""
    y = x + _STIRLING_SHIFT
    rising = sum((ca.log(x + k) for k in range(_STIRLING_SHIFT)), ca.SX(0))
    return (y - 0.5) * ca.log(y) - y + _HALF_LOG_2PI + _stirling(y) - rising


def log_rising(m: ca.SX, s: ca.SX) -> ca.SX:
    """Return  log (s^m Gamma(1/s + m) / Gamma(1/s)),  for whole m the logarithm of the product of 1 + j s, j < m.

    Accurate for all s > 0, its derivative by s too.  With n = 1/s and y = n + 8:

        Gamma(n + m) / Gamma(n) = Gamma(y + m) / Gamma(y) / product of (1 + m / (n + k)), k < 8

    where differences are formed before logarithms.  For small m s the derivatives of these would cancel; there the
    logarithms of 1 + j s are expanded, with the sums of the powers of j.
    """
    is_small = m * s < _MAX_SERIES_ARGUMENT
    n = ca.if_else(is_small, 1, 1 / s)
    y = n + _STIRLING_SHIFT
    shifted = sum((ca.log1p(m / (n + k)) for k in range(_STIRLING_SHIFT)), ca.SX(0))
    powers = m * ca.log1p((m + _STIRLING_SHIFT) / n) + ((y - 0.5) * ca.log1p(m / y) - m)
    direct = powers + (_stirling(y + m) - _stirling(y)) - shifted
    series = ca.SX(0)
    for k, total in reversed(list(enumerate(_power_sums(m), 1))):
        series = s * (total / ((-1) ** (k + 1) * k) + series)
    return ca.if_else(is_small, series, direct)


def _power_sums(m: ca.SX) -> list[ca.SX]:
    """Return the sums of j^k over j < m, for k from 1 to 7 (Faulhaber)."""
    one, two = m * (m - 1) / 2, m * (m - 1) * (2 * m - 1) / 6
    three, q = one**2, m * (m - 1)
    return [
        one,
        two,
        three,
        two * (3 * q - 1) / 5,
        three * (2 * q - 1) / 3,
        two * (3 * q**2 - 3 * q + 1) / 7,
        three * (3 * q**2 - 4 * q + 2) / 6,
    ]


def log1p_ratio(u: ca.SX) -> ca.SX:
    """Return log(1 + u) / u, u >= 0, accurate with its derivatives."""
    is_small = u < _MAX_SERIES_ARGUMENT
    series = ca.SX(0)
    for k in range(9, 0, -1):
        series = (-1) ** (k + 1) / k + u * series
    safe_u = ca.if_else(is_small, 1, u)
    return ca.if_else(is_small, series, ca.log1p(safe_u) / safe_u)


def _stirling(y: ca.SX) -> ca.SX:
    """Return Stirling's series, the remainder of log Gamma(y)."""
    return sum((b / y ** (2 * k + 1) for k, b in enumerate(_BERNOULLI)), ca.SX(0))


@dataclass(frozen=True, eq=False)
class NormalTail:
    """Lower tail of the standard normal distribution at z, as graphs that are accurate in both tails.

    log : log Phi(z)
    hazard : h = phi(z) / Phi(z), the derivative of log Phi
    above : z + h, which is positive;  -h (z + h)  is the second derivative of log Phi
    """

    log: ca.SX
    hazard: ca.SX
    above: ca.SX


def normal_tail(z: ca.SX) -> NormalTail:
    """Return log Phi(z) and its derivatives.

    It uses Laplace's continued fraction for Mills' ratio if 1 + erf would cancel:

        Phi(z) = phi(z) / (t + 1/(t + 2/(t + 3/(t + ...)))),    t = -z
    """
    is_far = z < _CONTINUED_FRACTION_BOUND
    safe_z = ca.if_else(is_far, _CONTINUED_FRACTION_BOUND, z)  # not fmax, whose derivative at a tie is 1/2
    cdf: ca.SX = 0.5 + 0.5 * (safe_z / np.sqrt(2)).erf()
    density = ca.exp(-0.5 * safe_z**2 - _HALF_LOG_2PI)
    t = -ca.if_else(is_far, z, _CONTINUED_FRACTION_BOUND)
    denominator = t
    for k in range(_CONTINUED_FRACTION_TERMS, 1, -1):
        denominator = t + k / denominator
    fraction = t + 1 / denominator
    return NormalTail(
        ca.if_else(is_far, -0.5 * t**2 - _HALF_LOG_2PI - ca.log(fraction), ca.log(cdf)),
        ca.if_else(is_far, fraction, density / cdf),
        ca.if_else(is_far, 1 / denominator, safe_z + density / cdf),
    )
