"""Limits of an interval from draws of an estimate: percentiles, and BCa, bias-corrected and accelerated.

Notation
--------
t_1 ... t_B   draws of an estimate in any order, t the estimate itself
z_p           quantile of the normal distribution, Phi its distribution function
d_i           shift of the estimate when measurement (or experiment) i is left out

    percentile:   quantiles p and 1 - p of the draws, with  p = (1 - level) / 2
    BCa:          quantiles  Phi(z0 + (z0 + z) / (1 - a (z0 + z)))  for  z = z_p and z_(1-p)      [Efron 1987]
                  z0 = Phi^-1(share of draws below t),    a = sum (-d_i + mean d)^3 / 6 (sum (d_i - mean d)^2)^(3/2)

The quantile p of B draws is the one at (B + 1) p in order of size.  If that index is below the first or above the last
draw, the quantile is undefined: the draws are too few for such a small probability.
"""

from __future__ import annotations

import numpy as np
import scipy

from castfit._support.arrays import Array

_EQUAL_DRAW_RTOL = 1e-9  # of the scatter: nearer draws equal the estimate, as at a bound


def quantiles(draws: Array, p: Array) -> Array:
    """Return quantiles (k,) of draws (B,); NaN if the draws are too few for the probability."""
    count = draws.size
    out = np.full(p.shape, np.nan)
    is_determined = np.isfinite(p) & (p * (count + 1) >= 1.0 - 1e-9) & ((1.0 - p) * (count + 1) >= 1.0 - 1e-9)
    if count and is_determined.any():
        out[is_determined] = np.quantile(draws, p[is_determined], method="weibull")
    return out


def percentile(draws: Array, level: float) -> tuple[float, float]:
    """Return the limits of the percentile interval."""
    low, high = quantiles(draws, np.array([0.5 - level / 2, 0.5 + level / 2])).tolist()
    return low, high


def bca(draws: Array, estimate: float, acceleration: float, level: float) -> tuple[float, float]:
    """Return the limits of the BCa interval; NaN if all draws lie on one side of the estimate."""
    z0 = bias_correction(draws, estimate)
    z = scipy.special.ndtri(np.array([0.5 - level / 2, 0.5 + level / 2]))
    with np.errstate(all="ignore"):
        denominator = 1.0 - acceleration * (z0 + z)
        p = np.where(denominator > 0.0, scipy.special.ndtr(z0 + (z0 + z) / denominator), np.nan)
    low, high = quantiles(draws, p).tolist()
    return low, high


def bias_correction(draws: Array, estimate: float) -> float:
    """Return z0; infinite if all draws lie on one side of the estimate, NaN without draws."""
    if not draws.size:
        return np.nan
    is_equal = np.abs(draws - estimate) <= _EQUAL_DRAW_RTOL * float(np.std(draws))
    share = float(np.mean(np.where(is_equal, 0.5, draws < estimate)))
    return float(scipy.special.ndtri(share))


def acceleration(moves: Array) -> Array:
    """Return a (n,) from the shifts (m, n) of the estimates without each measurement or experiment; NaN: unknown."""
    count = np.maximum(np.isfinite(moves).sum(axis=0), 1)
    deviations = np.nansum(moves, axis=0) / count - moves
    squares, cubes = np.nansum(deviations**2, axis=0), np.nansum(deviations**3, axis=0)
    return np.where(squares > 0.0, cubes / (6.0 * np.where(squares > 0.0, squares, 1.0) ** 1.5), 0.0)


def worst_case_limits(draws: Array, failed: int, level: float) -> tuple[float, float]:
    """Return the percentile limits if all failed draws were below the lower or above the upper limit."""
    n_total = draws.size + failed
    tail = 0.5 - level / 2
    low = (tail * (n_total + 1) - failed) / (draws.size + 1)
    return tuple(quantiles(draws, np.array([low, 1.0 - low])).tolist())
