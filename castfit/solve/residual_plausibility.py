"""What residuals should look like: the noise to expect, and whether an optimum fits too badly to be believed."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import scipy

from castfit.solve.staged import rows_in_units

if TYPE_CHECKING:
    from castfit.solve.staged import Array, Evaluation, Index, StagedProblem

ASSUMED_NOISE = 0.065
"""Relative accuracy of data whose standard deviations are unknown."""


LARGE_SQUARE = (2.0, 4.0)
"""Between these: mean square of residuals, in known standard deviations, above which another optimum must be better.

Nobody knows standard deviations better than to a factor of 1.4; twice the noise is no chance, however few the values.
"""

CHANCE = 1e-6
"""That noise alone makes so large a sum of squares."""

MEDIAN_SQUARE = 0.4549364231195724
"""Of a normal deviate of variance 1."""

LARGE_PART = 0.04
"""Mean square of residuals of unknown sigma relative to that of the signal, above which it must."""


def assumed_sigma(staged: StagedProblem) -> Array:
    """Guess the unknown sigmas, (n_groups,), before anything is fitted: a fraction of the signal."""
    group = _groups(staged)
    seen = np.concatenate([s.ravel() for s in staged.signal])
    measured = (seen[(group == g) & (seen > 0)] for g in range(staged.layout.n_groups))
    return ASSUMED_NOISE * np.array([float(np.median(s)) if s.size else 1.0 for s in measured])


def expected_noise(staged: StagedProblem) -> tuple[Array, ...]:
    """Guess the standard deviation of every row, (K, n_r) per chain, in units of what it is weighted by."""
    of_group = np.append(assumed_sigma(staged), 1.0)  # group -1, of known sigma, is the last
    return tuple(of_group[chain.group] for chain in staged.layout.chains)


def signal_in_units(staged: StagedProblem, at: Evaluation) -> tuple[Array, ...]:
    """Return the typical magnitude of what each row measures, (K, n_r) per chain, in units of the sigmas at a point."""
    return _in_units(staged, staged.signal, at)


def sizes_in_units(staged: StagedProblem, at: Evaluation) -> tuple[Array, ...]:
    """Return the size of each measured value, (K, n_r) per chain, in units of the sigmas at a point."""
    return _in_units(staged, staged.data_sizes(), at)


def _in_units(staged: StagedProblem, rows: tuple[Array, ...], at: Evaluation) -> tuple[Array, ...]:
    return tuple(r * of_rows for r, of_rows in zip(rows, staged.layout.of_rows(1.0 / at.sigma), strict=True))


def suspicious(staged: StagedProblem, at: Evaluation) -> bool:
    """Whether residuals at an optimum are so large that another optimum must be better.

    Where sigma is known: their mean square exceeds what n normal deviates reach once in a million times, within
    `LARGE_SQUARE`: 4 up to twelve values, 2.7 for thirty, 2 from seventy.  Where it is not: they exceed a fifth of the
    signal.  Where some may be outliers, the mean square is what the median says of it.
    """
    mask = np.concatenate([chain.row_mask.ravel() for chain in staged.layout.chains])
    group = _groups(staged)[mask]
    squares = np.concatenate([r.ravel() for r in rows_in_units(staged.layout, at)])[mask] ** 2
    signals = np.concatenate([s.ravel() for s in staged.signal])[mask] ** 2
    known = group < 0
    if known.any() and float(np.mean(squares[known])) > large_square(int(known.sum())):
        return True
    of_groups = (group == g for g in range(staged.layout.n_groups))
    typical = _by_median if staged.forgiving else np.mean
    return any(float(typical(squares[of])) > LARGE_PART * float(np.mean(signals[of])) for of in of_groups)


@cache
def large_square(n: int) -> float:
    """Return the mean square of n residuals, in known standard deviations, above which they are no noise."""
    least, most = LARGE_SQUARE
    return float(np.clip(scipy.special.chdtri(n, CHANCE) / n, least, most))


def _by_median(squares: Array) -> float:
    """Return the mean of squares of normal deviates with the median of these."""
    return float(np.median(squares)) / MEDIAN_SQUARE


def _groups(staged: StagedProblem) -> Index:
    """Return the group of every row, padding included, -1 where sigma is known."""
    return np.concatenate([chain.group.ravel() for chain in staged.layout.chains])
