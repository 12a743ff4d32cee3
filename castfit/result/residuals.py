"""The residuals of a fit: by what was measured, as columns and as series in time; and tests of them.

A test returns a number that says how much, and the probability of as much if residuals are independent and normal.
All are of residuals about zero, given as series in the order of time, one per experiment: neighbours in time are
neighbours in a series.  None needs the standard deviation of the residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable
    from castfit.solve.staged import Evaluation, StagedProblem

_FEWEST = 8  # values, or pairs of neighbours, for a test
_LAGS = 10  # of the autocorrelation, at most, and at most a fifth of the values


@dataclass(frozen=True)
class Seen:
    """What a solution makes of every measured value, (n_data,) each, by experiment, time and output.

    predictions : of the output
    spreads : sigma, scale or dispersion, as it was given or computed; 1 where it is unknown and eliminated
    residuals : normalised by `spreads`: (prediction - value) / sigma of Gaussian noise
    normalised : the same with estimated sigmas, of variance 1 if the model is right; NaN where sigma is not known
    deviations : the standard deviation of the value by its noise model, in the unit of the output; NaN where unknown
    """

    predictions: Array
    spreads: Array
    residuals: Array
    normalised: Array
    deviations: Array

    @classmethod
    def of(cls, problem: Posed, staged: StagedProblem, at: Evaluation, noise: Array | None) -> Seen:
        """Evaluate a solution; `noise` (n_groups,) are the estimates of the sigmas that are eliminated."""
        parts = [np.concatenate(part) for part in zip(*staged.standardised(at.v), strict=True)]
        predictions, spreads, residuals = parts
        observed = [c.observed[j] for c in problem.conditions for j in np.nonzero(c.points.mask)[1]]
        known = np.append(np.full(len(problem.groups), np.nan) if noise is None else noise, 1.0)
        factor = known[np.array([-1 if of is None else of.group for of in observed])]
        deviations = np.empty(spreads.size)
        kinds = np.array([-1 if of is None else id(of.noise) for of in observed])
        order = np.argsort(kinds, kind="stable")
        models = {id(of.noise): of.noise for of in observed if of is not None}
        for own in np.split(order, np.flatnonzero(np.diff(kinds[order])) + 1):
            model = models.get(int(kinds[own[0]])) if own.size else None
            if model is None:
                continue
            deviations[own] = model.deviation(predictions[own], (spreads * factor)[own])
        with np.errstate(invalid="ignore", divide="ignore"):
            return cls(predictions, spreads, residuals, residuals / factor, deviations)


@dataclass(frozen=True)
class ResidualSeries:
    """The residuals of one output in one experiment, in the order of time.

    residuals (n,) weighted by 1 / sigma; values (n,) the data; sigma (n,).
    """

    experiment: str
    output: str
    residuals: Array
    values: Array
    sigma: Array


def residual_table(problem: Posable, seen: Seen) -> dict[str, NDArray[Any]]:
    """Return one row per measured value, as columns (n_data,), in the order of the residuals.

    ``experiment``, ``output``, ``time``, ``replicate`` (counted from 0 among equal times), ``value``, ``prediction``,
    ``sigma`` (1 where it is unknown), ``residual`` = (prediction - value) / sigma, ``normalised``.
    """
    columns: dict[str, list[NDArray[Any]]] = {
        name: [] for name in ("experiment", "output", "time", "replicate", "value")
    }
    for condition in problem.conditions:
        points, mask = condition.points, condition.points.mask
        row, output = np.nonzero(mask)
        columns["experiment"].append(np.full(row.size, condition.name))
        columns["output"].append(np.array(problem.outputs)[output])
        columns["time"].append(np.where(condition.settled, np.inf, points.times[row]))
        columns["replicate"].append(replicates(points.times, mask)[mask])
        columns["value"].append(points.values[mask])
    table = {name: np.concatenate(pieces) for name, pieces in columns.items()}
    return {
        **table,
        "prediction": seen.predictions.copy(),
        "sigma": seen.spreads.copy(),
        "residual": seen.residuals.copy(),
        "normalised": seen.normalised.copy(),
    }


def scores(problem: Posed, table: dict[str, NDArray[Any]]) -> Array:
    """Return normalised residuals (n_data,) as probable as standard normal ones, as far as noise models say how."""
    out: Array = table["normalised"].copy()
    begin = 0
    for condition in problem.conditions:
        output = np.nonzero(condition.points.mask)[1]
        for j, observed in enumerate(condition.observed):
            of = begin + np.flatnonzero(output == j)
            if observed is not None and of.size:
                columns = (table[name][of] for name in ("normalised", "prediction", "sigma", "value"))
                out[of] = observed.noise.scores(*columns)
        begin += output.size
    return out


def series(problem: Posed, seen: Seen) -> list[ResidualSeries]:
    """Divide residuals by experiment and output; they are those of the values themselves, in units of a deviation."""
    table = residual_table(problem, seen)
    found: list[ResidualSeries] = []
    begin = 0
    for condition in problem.conditions:
        column = np.nonzero(condition.points.mask)[1]
        first, begin = begin, begin + column.size
        for j, (output, observed) in enumerate(zip(problem.outputs, condition.observed, strict=True)):
            of = first + np.flatnonzero(column == j)
            if observed is None or not of.size:
                continue
            value, sigma, residual = table["value"][of], table["sigma"][of], table["residual"][of]
            if not observed.weighted:  # of a logarithm, or of a count: in units of the value's own deviation
                away = table["prediction"][of] - value
                with np.errstate(invalid="ignore", divide="ignore"):
                    sigma = np.where(residual == 0.0, 1.0, np.abs(away / residual))
            found.append(ResidualSeries(condition.name, output, residual, value, sigma))
    return found


def replicates(times: Array, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Count the values of each output at equal times, (n_points, n_outputs); times increase."""
    before = np.cumsum(mask, axis=0) - mask
    first = np.searchsorted(times, times, side="left")
    return before - before[first]


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

    r (n,), of which `dof` degrees of freedom are left; `known` if their deviation is known to be 1.
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
