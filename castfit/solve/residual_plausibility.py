"""Plausibility of residuals: the expected noise, and whether an optimum fits too badly to be plausible."""

from __future__ import annotations

from functools import cache

import numpy as np

from castfit._support.distribution_functions import chi2_quantile
from castfit.solve.staged import COARSE_RTOL, Array, Evaluation, Index, StagedProblem, rows_in_units

# Relative accuracy of data whose standard deviations are unknown.
ASSUMED_NOISE = 0.065


# Between these: mean square of residuals, in known standard deviations, above which another optimum must be better.
#
# Standard deviations are rarely known better than to a factor of 1.4; twice the noise is not plausible for any number
# of values.
LARGE_SQUARE = (2.0, 4.0)

# Probability of the sum of squares under noise alone, below which residuals are implausible.
IMPLAUSIBLE_P_VALUE = 1e-6

# Median of the square of a normal deviate of variance 1.
MEDIAN_SQUARE = 0.4549364231195724

# Mean square of residuals of unknown sigma, relative to the signal, above which another optimum must be better.
MAX_UNEXPLAINED_SIGNAL = 0.04

# Error of the states, relative to the integration tolerance.
STATE_ERROR_PER_RTOL = 10.0

# Number of residuals of unknown sigma from which they may count as noise, and the largest lag-1 correlation of noise.
#
# The correlation is in standard deviations.  If the residuals of every output are noise, another optimum cannot explain
# more, at any scatter of the data.
MIN_COUNT_AND_WHITENESS_SD = (20, 2.0)


def assumed_sigma(staged: StagedProblem) -> Array:
    """Return assumed values of the unknown sigmas, (n_groups,), before any fit: a fraction of the signal."""
    group = _groups(staged)
    signal = np.concatenate([s.ravel() for s in staged.signal])
    measured = (signal[(group == g) & (signal > 0)] for g in range(staged.layout.n_groups))
    return ASSUMED_NOISE * np.array([float(np.median(s)) if s.size else 1.0 for s in measured])


def expected_noise(staged: StagedProblem) -> tuple[Array, ...]:
    """Return the assumed standard deviation of every row, (K, n_r) per chain, in units of its weight."""
    of_group = np.append(assumed_sigma(staged), 1.0)  # group -1, known sigma, is the last
    return tuple(of_group[chain.group] for chain in staged.layout.chains)


def signal_in_units(staged: StagedProblem, evaluation: Evaluation) -> tuple[Array, ...]:
    """Return the typical magnitude of the data of each row, (K, n_r) per chain, in units of the sigmas at a point."""
    factors = staged.layout.expand_to_rows(1.0 / evaluation.sigma)
    return tuple(r * of_rows for r, of_rows in zip(staged.signal, factors, strict=True))


def size_square(staged: StagedProblem, evaluation: Evaluation) -> float:
    """Return the sum of squares of the sizes of all measured values, in units of the sigmas at a point."""
    squares, sigma = staged.size_squares, evaluation.sigma
    return float(squares[-1]) + (float(squares[:-1] @ sigma**-2.0) if sigma.size else 0.0)


def integration_error_square(staged: StagedProblem, evaluation: Evaluation) -> float:
    """Return the sum of squares of the errors of rows, if functions have the accuracy `COARSE_RTOL`."""
    return (STATE_ERROR_PER_RTOL * COARSE_RTOL) ** 2 * size_square(staged, evaluation)


def has_implausible_residuals(staged: StagedProblem, evaluation: Evaluation, *, noisy: bool = True) -> bool:
    """Whether residuals at an optimum are so large that another optimum must be better.

    For known sigma: their mean square exceeds the value that n normal deviates exceed with a probability of 1e-6,
    limited to `LARGE_SQUARE`: 4 up to twelve values, 2.7 for thirty, 2 from seventy.  For unknown sigma: they exceed a
    fifth of the signal, and are not white (`MIN_COUNT_AND_WHITENESS_SD`), if data may be `noisy`.  With a robust
    density the mean square is derived from the median.
    """
    return beyond_noise(staged, evaluation) or _beyond_signal(staged, evaluation, noisy=noisy)


def beyond_noise(staged: StagedProblem, evaluation: Evaluation) -> bool:
    """Whether residuals of known sigma are larger than noise."""
    known_masks = [(chain.row_mask & (chain.group < 0)).ravel() for chain in staged.layout.chains]
    squares = (
        np.concatenate(
            [r.ravel()[mask] for r, mask in zip(rows_in_units(staged.layout, evaluation), known_masks, strict=True)]
        )
        ** 2
    )
    return squares.size > 0 and float(np.mean(squares)) > large_square(squares.size)


def _beyond_signal(staged: StagedProblem, evaluation: Evaluation, *, noisy: bool) -> bool:
    """Whether residuals of an unknown sigma are large relative to the signal, and not noise."""
    if staged.layout.n_groups == 0:
        return False
    mask = np.concatenate([chain.row_mask.ravel() for chain in staged.layout.chains])
    group = _groups(staged)[mask]
    squares = np.concatenate([r.ravel() for r in rows_in_units(staged.layout, evaluation)])[mask] ** 2
    signals = np.concatenate([s.ravel() for s in staged.signal])[mask] ** 2
    typical = _by_median if staged.tolerates_outliers else np.mean
    groups = range(staged.layout.n_groups)
    large = any(
        float(typical(squares[group == g])) > MAX_UNEXPLAINED_SIGNAL * float(np.mean(signals[group == g]))
        for g in groups
    )
    return large and not (noisy and _white(staged, evaluation))


def _white(staged: StagedProblem, evaluation: Evaluation) -> bool:
    """Whether residuals of unknown sigma are as weakly correlated in time as noise, for every output."""
    n_outputs = max(chain.n_r // max(chain.point_times.shape[1], 1) for chain in staged.layout.chains)
    squares, lag_products, n, pairs = np.zeros((4, n_outputs))
    for chain, values in zip(staged.layout.chains, evaluation.values, strict=True):
        points = max(chain.point_times.shape[1], 1) * chain.n_stages
        masks = (chain.row_mask & (chain.group >= 0)).reshape(points, -1)
        for j, (r, mask) in enumerate(zip(values.r.reshape(points, -1).T, masks.T, strict=True)):
            e = r[mask]
            squares[j] += e @ e
            lag_products[j] += e[:-1] @ e[1:]
            n[j] += e.size
            pairs[j] += max(e.size - 1, 0)
    min_pairs, max_correlation = MIN_COUNT_AND_WHITENESS_SD
    return bool(
        pairs.sum() >= min_pairs and (np.abs(lag_products) * n <= max_correlation * np.sqrt(pairs) * squares).all()
    )


@cache
def large_square(n: int) -> float:
    """Return the mean square of n residuals, in known standard deviations, above which they are not noise."""
    min_square, max_square = LARGE_SQUARE
    return float(np.clip(chi2_quantile(n, IMPLAUSIBLE_P_VALUE) / n, min_square, max_square))


def _by_median(squares: Array) -> float:
    """Return the mean square of normal deviates whose squares have the same median as the given squares."""
    return float(np.median(squares)) / MEDIAN_SQUARE


def _groups(staged: StagedProblem) -> Index:
    """Return the group of every row, padding included; -1 for known sigma."""
    return np.concatenate([chain.group.ravel() for chain in staged.layout.chains])
