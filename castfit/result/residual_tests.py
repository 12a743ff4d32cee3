"""Tests of residuals: a number that says how much, and the probability of as much if they are independent and normal.

All are of residuals about zero, given as series in the order of time, one per experiment: neighbours in time are
neighbours in a series.  None needs the standard deviation of the residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_FEWEST = 8  # values, or pairs of neighbours, for a test
_LAGS = 10  # of the autocorrelation, at most, and at most a fifth of the values


@dataclass(frozen=True)
class Figure:
    """What a test found: a number, and the probability of one so far from expectation; NaN if there are too few."""

    number: float
    p_value: float


UNTESTED = Figure(np.nan, np.nan)


def runs(series: Sequence[Array]) -> Figure:
    """Return the fraction of neighbours whose signs differ, and the probability of so few (Wald and Wolfowitz 1940).

    Of m pairs of neighbours half differ, by the binomial distribution.
    """
    pairs = sum(max(r.size - 1, 0) for r in series)
    if pairs < _FEWEST:
        return UNTESTED
    changes = sum(int(np.count_nonzero(np.diff(np.sign(r)))) for r in series)
    return Figure(changes / pairs, float(special.bdtr(changes, pairs, 0.5)))


def autocorrelation(series: Sequence[Array]) -> Figure:
    """Return the correlation of neighbours, and the probability of those up to ten apart (Ljung and Box 1978).

        r_k = sum of e_i e_{i+k} / sum of e_i^2,    Q = n (n + 2) sum of r_k^2 / m_k    as chi2 of as many lags,

    with the m_k pairs that are k apart within a series.
    """
    n, squares = sum(r.size for r in series), sum(float(r @ r) for r in series)
    lags = min(_LAGS, n // 5)
    pairs = [sum(max(r.size - k, 0) for r in series) for k in range(1, lags + 1)]
    used = [k for k, m in enumerate(pairs, 1) if m >= _FEWEST]
    if not used or not squares > 0:
        return UNTESTED
    r = {k: sum(float(e[:-k] @ e[k:]) for e in series if e.size > k) / squares for k in used}
    Q = n * (n + 2) * sum(r[k] ** 2 / pairs[k - 1] for k in used)
    return Figure(r[used[0]], float(special.chdtrc(len(used), Q)))


def normality(r: Array) -> Figure:
    """Return Anderson and Darling's A^2 for a normal distribution of unknown mean and deviation, and its probability.

    A^2 is corrected for the number of values; its probability by Stephens's formulas (D'Agostino and Stephens 1986,
    table 4.9).
    """
    n = r.size
    if n < _FEWEST or not np.std(r) > 0:
        return UNTESTED
    z = np.sort((r - np.mean(r)) / np.std(r, ddof=1))
    odd = 2 * np.arange(1, n + 1) - 1
    square = -n - float(np.sum(odd * (special.log_ndtr(z) + special.log_ndtr(-z[::-1])))) / n
    A = square * (1 + 0.75 / n + 2.25 / n**2)
    if A < 0.2:
        p = 1 - np.exp(-13.436 + 101.14 * A - 223.73 * A**2)
    elif A < 0.34:
        p = 1 - np.exp(-8.318 + 42.796 * A - 59.938 * A**2)
    elif A < 0.6:
        p = np.exp(0.9177 - 4.279 * A - 1.38 * A**2)
    else:
        p = np.exp(1.2937 - 5.709 * A + 0.0186 * min(A, 10.0) ** 2)
    return Figure(A, float(p))


def trend(r: Array, along: Array) -> Figure:
    """Return the rank correlation of the residuals' sizes with a quantity, and its probability (Spearman 1904).

    Positive if residuals grow with the quantity.  Ranks are not moved by outliers.
    """
    n = r.size
    if n < _FEWEST or np.ptp(along) == 0 or np.ptp(np.abs(r)) == 0:
        return UNTESTED
    rho = float(np.corrcoef(_ranks(np.abs(r)), _ranks(along))[0, 1])
    t = abs(rho) * float(np.sqrt((n - 2) / max(1 - rho**2, float(np.finfo(float).tiny))))
    return Figure(rho, 2 * float(special.stdtr(float(n - 2), -t)))


def outliers(r: Array, dof: float, sure: float, *, known: bool) -> NDArray[np.bool_]:
    """Tell which residuals are larger than the largest of n ever is, but for the probability `sure`.

    Residuals of known deviation 1 are compared with it, or with the others where these are larger altogether.  Where
    the deviation is estimated from the residuals themselves, outliers included, they are taken away one by one, the
    largest first, and compared with those that remain (generalised extreme Studentised deviate, Rosner 1983).

    Parameters
    ----------
    r : (n,) array
    dof : float
        Degrees of freedom that the residuals have left.
    sure : float
    known : bool
        Whether the deviation of the residuals is known to be 1.
    """
    n = r.size
    found = np.zeros(n, dtype=np.bool_)
    if n < 3 or not np.isfinite(r).all():
        return found
    if known:
        others = float(np.median(np.abs(r))) / float(special.ndtri(0.75))
        return np.abs(r) > -float(special.ndtri(sure / (2 * n))) * max(1.0, others)
    order = np.argsort(-np.abs(r))
    squares, count = np.append(np.cumsum((r[order] ** 2)[::-1])[::-1], 0.0), 0
    for i in range(max(n // 5, 1)):
        left = dof - i - 1  # without the i larger ones and this one
        if left < 2 or not squares[i] > 0:
            break
        t = np.abs(r[order[i]]) * np.sqrt(left / max(squares[i + 1], np.finfo(float).eps * squares[i]))
        if t > -float(special.stdtrit(left, sure / (2 * (n - i)))):
            count = i + 1
    found[order[:count]] = True
    return found


def _ranks(x: Array) -> Array:
    """Return ranks from 1, the mean of those of equal values."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - 0.5 * (counts - 1))[inverse.ravel()]
