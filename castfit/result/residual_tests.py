"""Residual tests: a statistic, and the probability of so large a statistic if the residuals are noise.

All are of residuals about zero, given as series in the order of time, one per experiment: neighbours in time are
neighbours in a series.  None needs the standard deviation of the residuals.

A fit makes neighbouring residuals less alike than the errors were, the more so the more it estimates of few data.
With the hat matrix H = Q Q^T of the fit the residuals of normal errors have the covariance M = I - Q Q^T, so that the
correlation of neighbours r = e^T A e / e^T e, with 1/2 in A for each pair of neighbours, has a known distribution
(Durbin and Watson 1950):

    P(r >= x) = P(sum of lambda_i z_i^2 >= 0),   lambda_i the eigenvalues of M^(1/2) (A - x I) M^(1/2),

an integral of Imhof's (1961, equation 3.2).  Of more than a hundred values it is the beta distribution on [-1, 1]
with the mean and the variance of r (Durbin and Watson 1951), which differs by a few per cent of p.

Each finding has one of three grades, given to all tests of a fit together.  A test without a finding does not show that
the model is correct; its sentence gives the number of residuals.  The p-values are adjusted for the number of tests:
the grades control the rate of false findings among all findings (Benjamini and Hochberg 1995), with a weight for
each test, higher for tests with more power (Genovese, Roeder and Wasserman 2006).  For a correct model, a fit is
suspected with a probability of at most `SUSPECTED_P_VALUE`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.distribution_functions import beta_cdf, log_normal_cdf, normal_quantile, t_quantile
from castfit._support.ties import first_argmax
from castfit.result.residuals import MIN_TEST_RESIDUALS, UNTESTED, TestStatistic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array

_FEWEST_NORMAL = 8  # values for the test of normality, for which Stephens's correction holds
_MAX_N_EXACT_DISTRIBUTION = 100  # values up to which the distribution of the correlation is integrated
_MAX_N_PERMUTATIONS = 8  # values up to which all permutations are counted
_ALTERNATING_TAIL_SHARE = 0.05  # Share of the significance level for negative correlation of neighbours.
# Number of values up to which a fifth is always removed, and the size, in medians, from which residuals of more are.
_MAX_N_ALL_STEPS, _MASKED_MEDIANS = 125, 6.0
_MIN_REMAINING_VARIANCE = 1e-3  # part of the variance of a value that the fit must leave for a test of its residual
_LOG_U = np.linspace(-16.0, 16.0, 513)  # Nodes of Imhof's integral, whose integrand is smooth in log u.


def lag1_test(series: Sequence[Array], hat: Sequence[Array] | None = None, shared: int | None = None) -> TestStatistic:
    """Return the correlation of neighbours, and the probability of one so far from what the fit leaves of noise.

    Nearly all of the significance level is for positive correlation, the sign of an incomplete model.

    series : (n_s,) each
    hat : rows of Q of each series, (n_s, k); none if nothing is known of the fit
    shared : columns of all series, of which the others are each series' own; by default all
    """
    e = np.concatenate([*series, np.empty(0)])
    squares, linked = float(e @ e), np.ones(max(e.size - 1, 0))
    ends = np.cumsum([r.size for r in series], dtype=np.intp)[:-1]
    linked[ends[(ends > 0) & (ends < e.size)] - 1] = 0.0
    if np.count_nonzero(linked) < MIN_TEST_RESIDUALS - 1 or not squares > 0.0:
        return UNTESTED
    r = float(np.sum(linked * e[:-1] * e[1:])) / squares
    Q = np.zeros((e.size, 0)) if hat is None else np.concatenate(list(hat))
    hat_blocks = [Q] if shared is None or shared >= Q.shape[1] else np.split(Q, ends)
    tail_probability = (_exact_tail if e.size <= _MAX_N_EXACT_DISTRIBUTION else _beta_tail)(
        r, linked, hat_blocks, 0 if len(hat_blocks) == 1 else shared or 0
    )
    return TestStatistic(
        r,
        min(
            tail_probability / (1.0 - _ALTERNATING_TAIL_SHARE), (1.0 - tail_probability) / _ALTERNATING_TAIL_SHARE, 1.0
        ),
    )


def _exact_tail(r: float, linked: Array, hat_blocks: Sequence[Array], shared: int = 0) -> float:
    """Return the probability of a correlation of at least r: Imhof's integral."""
    n, hat_rows = linked.size + 1, np.concatenate(list(hat_blocks))
    H = hat_rows[:, :shared] @ hat_rows[:, :shared].T
    offset = 0
    for Q in hat_blocks:
        rows = slice(offset, offset := offset + len(Q))
        H[rows, rows] += Q[:, shared:] @ Q[:, shared:].T
    values, vectors = np.linalg.eigh(np.eye(n) - H)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    B = np.diag(np.full(n, -r)) + np.diag(0.5 * linked, 1) + np.diag(0.5 * linked, -1)
    eigenvalues = np.linalg.eigvalsh(root.T @ B @ root)
    u = np.exp(_LOG_U)[:, None] * (eigenvalues / max(float(np.abs(eigenvalues).max()), np.finfo(float).tiny))
    angle, size = 0.5 * np.arctan(u).sum(axis=1), np.exp(-0.25 * np.log1p(u**2).sum(axis=1))
    p = 0.5 + float(np.sum(np.sin(angle) * size)) * float(_LOG_U[1] - _LOG_U[0]) / np.pi
    return float(np.clip(p, 0.0, 1.0))


def _beta_tail(r: float, linked: Array, hat_blocks: Sequence[Array], shared: int = 0) -> float:
    """Return the probability of a correlation of at least r, by the beta distribution of its mean and variance.

    Q has the first columns of all `hat_blocks`, and the others of each by themselves.
    """
    n = linked.size + 1

    def sum_neighbors(X: Array) -> Array:
        sums = np.zeros_like(X)
        sums[:-1] += 0.5 * linked[:, None] * X[1:]
        sums[1:] += 0.5 * linked[:, None] * X[:-1]
        return sums

    hat_rows = np.concatenate(list(hat_blocks))
    remaining_dof, AQ = n - float(np.sum(hat_rows**2)), sum_neighbors(hat_rows)
    mean = -float(np.sum(hat_rows * AQ)) / remaining_dof
    BQ = AQ - mean * hat_rows
    border, block_squares, offset = np.zeros((shared, shared)), 0.0, 0  # Q^T B Q, and the squares of its entries
    for Q in hat_blocks:
        block = Q.T @ BQ[offset : offset + len(Q)]
        offset += len(Q)
        block_squares += float(np.sum(block**2)) - float(np.sum(block[:shared, :shared] ** 2))
        border += block[:shared, :shared]
    block_squares += float(np.sum(border**2))
    squares = 0.5 * float(np.sum(linked)) + mean**2 * n - 2.0 * float(np.sum(BQ**2)) + block_squares
    variance = 2.0 * squares / (remaining_dof * (remaining_dof + 2.0))
    size = (1.0 - mean**2) / variance - 1.0
    return beta_cdf(0.5 * size * (1.0 - mean), 0.5 * size * (1.0 + mean), 0.5 * (1.0 - r))


def normality(r: Array) -> TestStatistic:
    """Return Anderson and Darling's A^2 for a normal distribution of unknown mean and deviation, and its probability.

    A^2 is corrected for the number of values; its probability by Stephens's formulas (D'Agostino and Stephens 1986,
    table 4.9).
    """
    n = r.size
    if n < _FEWEST_NORMAL or not np.std(r) > 0:
        return UNTESTED
    z = np.sort((r - np.mean(r)) / np.std(r, ddof=1))
    odd_numbers = 2 * np.arange(1, n + 1) - 1
    square = -n - float(np.sum(odd_numbers * (log_normal_cdf(z) + log_normal_cdf(-z[::-1])))) / n
    A = square * (1 + 0.75 / n + 2.25 / n**2)
    if A < 0.2:
        p = 1 - np.exp(-13.436 + 101.14 * A - 223.73 * A**2)
    elif A < 0.34:
        p = 1 - np.exp(-8.318 + 42.796 * A - 59.938 * A**2)
    elif A < 0.6:
        p = np.exp(0.9177 - 4.279 * A - 1.38 * A**2)
    else:
        p = np.exp(1.2937 - 5.709 * A + 0.0186 * min(A, 10.0) ** 2)
    return TestStatistic(A, float(p))


def trend(r: Array, covariate: Array) -> TestStatistic:
    """Return the rank correlation of the residuals' sizes with a quantity, and its probability (Spearman 1904).

    Positive if residuals grow with the quantity.  Ranks are not moved by outliers.  For few values all permutations
    are counted; for more, a symmetric beta distribution has their variance and kurtosis (Kendall 1948, section 5.9).
    """
    n = r.size
    a, b = _ranks(np.abs(r)), _ranks(covariate)
    if n < MIN_TEST_RESIDUALS or np.ptp(a) == 0 or np.ptp(b) == 0:
        return UNTESTED
    rho = float(np.corrcoef(a, b)[0, 1])
    if n <= _MAX_N_PERMUTATIONS:
        a, b = a - np.mean(a), b - np.mean(b)
        return TestStatistic(rho, float(np.mean(np.abs(a[_permutations(n)] @ b) >= abs(float(a @ b)) - 1e-9)))
    fourth = 3 * (25 * n**3 - 38 * n**2 - 35 * n + 72) / (25 * n * (n + 1) * (n - 1) ** 3)
    size = 3.0 / (3.0 - fourth * (n - 1) ** 2) - 1.5
    max_correlation = float(np.sqrt((2.0 * size + 1.0) / (n - 1)))
    return TestStatistic(rho, 2 * beta_cdf(size, size, max(0.5 - 0.5 * abs(rho) / max_correlation, 0.0)))


@cache
def _permutations(n: int) -> NDArray[np.int8]:
    return np.array(list(itertools.permutations(range(n))), dtype=np.int8)


def outliers(
    r: Array,
    dof: float,
    error_probability: float,
    *,
    is_sigma_known: bool,
    hat: Array | None = None,
    shared: int | None = None,
    owners: NDArray[Any] | None = None,
) -> NDArray[np.bool_]:
    """Return a mask of residuals that are larger than the largest of n should be.

    Values are removed one by one.  With M = I - Q Q^T and w = diag(M), removing value j changes the residuals of a
    linear fit, also of a fit that the value has bent, by u_j r_j / w_j^(1/2), and M by u u^T, with
    u = M e_j / w_j^(1/2).  The value of the largest r_j / w_j^(1/2) is removed and compared with the scale of the other
    residuals (generalised extreme Studentised deviate, Rosner 1983, with leverage).  The scale is their estimated
    deviation, or the known deviation 1 if the estimate is smaller.

    r : (n,) residuals with `dof` degrees of freedom
    error_probability : significance level of the test of all residuals
    is_sigma_known : whether their deviation is known to be 1
    hat, shared : Q (n, k), and the columns that all values share, of which the others are each owner's own
    owners : (n,) labels, needed if `shared` is set
    """
    n, count, removed_indices = r.size, 0, list[int]()
    is_outlier, removed_columns = np.zeros(n, dtype=np.bool_), np.zeros((n, 0))
    if n < 3 or not np.isfinite(r).all():
        return is_outlier
    Q = removed_columns if hat is None else hat
    w = 1.0 - np.sum(Q**2, axis=1)
    for i in range(max(n // (2 if is_sigma_known else 5), 1)):
        z = np.where(w > _MIN_REMAINING_VARIANCE, r / np.sqrt(np.maximum(w, _MIN_REMAINING_VARIANCE)), 0.0)
        j = first_argmax(np.abs(z))
        if z[j] == 0.0 or (n > _MAX_N_ALL_STEPS and np.abs(z[j]) < _MASKED_MEDIANS * np.median(np.abs(z))):
            break
        u = -(Q[:, :shared] @ Q[j, :shared]) - removed_columns @ removed_columns[j]
        if shared is not None and owners is not None:
            u -= np.where(owners == owners[j], Q[:, shared:] @ Q[j, shared:], 0.0)
        u[j] += 1.0
        u /= np.sqrt(w[j])
        squares, r, w, removed_columns = float(r @ r), r - u * z[j], w - u**2, np.column_stack([removed_columns, u])
        r[j] = w[j] = 0.0
        dof -= float(u @ u)
        if dof < 2:
            break
        removed_indices.append(j)
        level = error_probability / (2 * (n - i))
        scale = np.sqrt(max(float(r @ r), np.finfo(float).eps * squares) / dof)
        if np.abs(z[j]) > (
            -normal_quantile(level) * max(scale, 1.0) if is_sigma_known else -t_quantile(dof, level) * scale
        ):
            count = i + 1
    is_outlier[removed_indices[:count]] = True
    return is_outlier


def _ranks(x: Array) -> Array:
    """Return ranks from 1; equal values get their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - 0.5 * (counts - 1))[inverse.ravel()]


def adjust_p_values(p_values: Array, weights: Array) -> Array:
    """Adjust p-values (n,) for all tests; compare the results with the unadjusted levels.

    The probabilities p_i have weights w_i of mean 1.  In increasing order, q_i = p_i / w_i becomes the smallest
    n q_j / j of all j >= i.  Missing tests (NaN) do not count.
    """
    q_values = np.full(p_values.shape, np.nan)
    tested = np.flatnonzero(np.isfinite(p_values))
    if tested.size:
        q = p_values[tested] * np.mean(weights[tested]) / weights[tested]
        order = np.argsort(q, kind="stable")
        steps = q[order] * tested.size / np.arange(1, tested.size + 1)
        q_values[tested[order]] = np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1.0)
    return q_values
