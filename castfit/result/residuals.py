"""Residuals of a fit by measured value, as columns and as time series, and the grading of p-values.

Tests of them, but for signs, are in `castfit.result.residual_tests`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from castfit._support.distribution_functions import fair_binomial_cdf
from castfit._support.records import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Index, Mask
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable
    from castfit.solve.staged import Evaluation, StagedProblem

FEWEST = 6  # values for a test
PROOF = 1e-3  # probability below which something is shown ...
SUSPICION = 0.05  # ... and suspected
_AWAY = 3.0  # deviations of heavy tails from which a residual is an outlier
SHOWN, SUSPECTED, NOTHING = "shown", "suspected", "nothing"


@dataclass(frozen=True)
class Seen:
    """Prediction, spread and residuals of every measured value, (n_data,) each, by experiment, time and output.

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
        factor = known[groups(problem)]
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

    residuals (n,) weighted by 1 / sigma; values (n,) the data; sigma (n,); times (n,); counted (n,) false for outliers
    of a noise model that expects them, where they are the minority.
    """

    experiment: str
    output: str
    residuals: Array
    values: Array
    sigma: Array
    times: Array
    counted: Mask


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


def groups(posed: Posed) -> Index:
    """Return the number of the sigma that each value shares and that is eliminated, (n_data,); -1 if none is."""
    observed = [c.observed[j] for c in posed.conditions for j in np.nonzero(c.points.mask)[1]]
    return np.array([-1 if of is None else of.group for of in observed], dtype=np.intp)


def unbiased_sigmas(problem: Posed, residuals: Array, normalised: Array) -> dict[str, float]:
    """Return unbiased estimates of the sigmas that are eliminated, by their names in results.

    residuals, normalised (n_data,) : as a `Result` has them
    """
    group, found = groups(problem), dict[str, float]()
    for g, name in enumerate(problem.groups):
        plain, normal = (float(np.sum(of[group == g] ** 2)) for of in (residuals, normalised))
        with np.errstate(invalid="ignore"):  # 0 where the model meets the data exactly
            found[f"sigma({name})" if name else "sigma"] = float(np.sqrt(plain / normal)) if normal else 0.0
    return found


def whitened(problem: Posed, normalised: Array, *, undo: bool = False) -> Array:
    """Whiten normalised residuals (n_data,) of dependent errors: only the new part of each value remains.

    With `undo` what is new becomes such residuals.
    """
    if not problem.correlations:
        return normalised
    out, begin = normalised.copy(), 0
    for condition in problem.conditions:
        own = slice(begin, begin + int(condition.points.mask.sum()))
        found, begin = condition.whitening(problem.outputs), own.stop
        if found is not None:
            out[own] = found.coloured(out[own]) if undo else found.W @ out[own]
    return out


def along_values(problem: Posed, normalised: Array, rows: Array) -> tuple[Array, Array]:
    """Return residuals (n_data,) and their whitened derivatives (n_data, k) along each value, as when it is left out.

    Where errors depend on each other a value stands in all that is new with it: what an error of one value adds to the
    residuals of `whitened` is along its column of W, which gets length 1.
    """
    if not problem.correlations:
        return normalised, rows
    found = [(c.whitening(problem.outputs), int(c.points.mask.sum())) for c in problem.conditions]
    whole: Any = scipy.sparse.block_diag([scipy.sparse.eye(n) if w is None else w.W for w, n in found], format="csr")
    parts = whole.multiply(1.0 / scipy.sparse.linalg.norm(whole, axis=0)).tocsr()
    return parts.T @ whitened(problem, normalised), parts.T @ rows


def series(problem: Posed, seen: Seen) -> list[ResidualSeries]:
    """Divide residuals by experiment and output; they are those of the values themselves, in units of a deviation.

    Values beyond a limit of detection have none.
    """
    table = residual_table(problem, seen)
    found: list[ResidualSeries] = []
    begin = 0
    for condition in problem.conditions:
        column = np.nonzero(condition.points.mask)[1]
        first, begin = begin, begin + column.size
        for j, (output, observed) in enumerate(zip(problem.outputs, condition.observed, strict=True)):
            of = first + np.flatnonzero(column == j)
            if observed is not None:
                of = of[observed.noise.beyond(table["value"][of]) == 0]
            if observed is None or not of.size:
                continue
            value, sigma, residual = table["value"][of], table["sigma"][of], table["residual"][of]
            if not observed.weighted:  # of a logarithm, or of a count: in units of the value's own deviation
                away = table["prediction"][of] - value
                with np.errstate(invalid="ignore", divide="ignore"):
                    sigma = np.where(residual == 0.0, 1.0, np.abs(away / residual))
            counted = (np.abs(table["normalised"][of]) <= _AWAY) | (not observed.noise.heavy)
            counted |= 2 * np.count_nonzero(counted) <= of.size
            found.append(ResidualSeries(condition.name, output, residual, value, sigma, table["time"][of], counted))
    return found


def replicates(times: Array, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Count the values of each output at equal times, (n_points, n_outputs); times increase."""
    before = np.cumsum(mask, axis=0) - mask
    first = np.searchsorted(times, times, side="left")
    return before - before[first]


@dataclass(frozen=True)
class Figure:
    """Statistic of a test, and the probability of one so far from expectation; NaN if there are too few values."""

    number: float
    p_value: float


UNTESTED = Figure(np.nan, np.nan)


def runs(series: Sequence[Array]) -> Figure:
    """Return the fraction of neighbours whose signs differ, and the probability of so few (Wald and Wolfowitz 1940).

    Of m pairs of neighbours half differ, by the binomial distribution.  This explains what `neighbours` finds by using
    sizes, too: as a second test of the same thing it would only cost power.
    """
    pairs = sum(max(r.size - 1, 0) for r in series)
    if pairs < FEWEST - 1:
        return UNTESTED
    changes = sum(int(np.count_nonzero(np.diff(np.sign(r)))) for r in series)
    return Figure(changes / pairs, fair_binomial_cdf(changes, pairs))


def grade(p_value: float) -> str:
    """Grade a p-value as shown, suspected or nothing; NaN is graded as nothing."""
    return SHOWN if p_value < PROOF else SUSPECTED if p_value < SUSPICION else NOTHING
