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
from castfit._support.renamed import warn_renamed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Index, Mask
    from castfit.densities.noise.density import Noise
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.problem import Posable
    from castfit.solve.staged import Evaluation, StagedProblem

MIN_TEST_RESIDUALS = 6  # values for a test
SHOWN_P_VALUE = 1e-3  # probability below which something is shown ...
SUSPECTED_P_VALUE = 0.05  # ... and suspected
_OUTLIER_SD_HEAVY_TAILS = 3.0  # deviations of heavy tails from which a residual is an outlier


class Grade(str):
    """Grade of a residual test; it also equals its word of castfit 0.3, with a warning."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        new = {"shown": "significant", "nothing": "none"}.get(other, other) if isinstance(other, str) else other
        is_equal = str.__eq__(self, new)
        if is_equal is True and new is not other:
            warn_renamed(f"the grade {other!r}", f"{new!r}")
        return is_equal

    def __ne__(self, other: object) -> bool:
        return not self == other


SIGNIFICANT, SUSPECTED, NO_FINDING = Grade("significant"), Grade("suspected"), Grade("none")


@dataclass(frozen=True)
class ResidualTable:
    """Prediction, spread and residuals of every measured value, (n_data,) each, by experiment, time and output.

    predictions : of the output
    spreads : sigma, scale or dispersion, as it was given or computed; 1 where it is unknown and eliminated
    residuals : normalised by `spreads`: (value - prediction) / sigma of Gaussian noise
    normalised : the same with estimated sigmas, of variance 1 if the model is right; NaN where sigma is not known
    deviations : the standard deviation of the value by its noise model, in the unit of the output; NaN where unknown
    """

    predictions: Array
    spreads: Array
    residuals: Array
    normalised: Array
    deviations: Array

    @classmethod
    def from_evaluation(
        cls, problem: CompiledProblem, staged: StagedProblem, evaluation: Evaluation, noise: Array | None
    ) -> ResidualTable:
        """Evaluate a solution; `noise` (n_groups,) are the estimates of the sigmas that are eliminated."""
        parts = [np.concatenate(part) for part in zip(*staged.standardised(evaluation.v), strict=True)]
        predictions, spreads, residuals = parts
        observed = [c.observed[j] for c in problem.conditions for j in np.nonzero(c.points.mask)[1]]
        group_sigmas = np.append(np.full(len(problem.groups), np.nan) if noise is None else noise, 1.0)
        factor = group_sigmas[groups(problem)]
        deviations = np.full(spreads.size, np.nan)
        kinds = np.array([-1 if observable is None else id(observable.noise) for observable in observed])
        for model in {id(o.noise): o.noise for o in observed if o is not None}.values():
            rows = kinds == id(model)
            deviations[rows] = model.deviation(predictions[rows], (spreads * factor)[rows])
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


@dataclass(frozen=True)
class OutputBlock:
    """The values of one output in one experiment: their noise, their positions among all values, and their points."""

    condition: int
    output: int
    noise: Noise
    computed: bool
    is_weighted: bool
    rows: Index
    points: Index


def output_places(compiled_problem: CompiledProblem) -> tuple[OutputBlock, ...]:
    """List the outputs of all experiments, of all data by experiment, time and output."""
    blocks: list[OutputBlock] = []
    begin = 0
    for i, condition in enumerate(compiled_problem.conditions):
        point, output = np.nonzero(condition.points.mask)
        for j, observed_output in enumerate(condition.observed):
            rows = np.flatnonzero(output == j)
            if observed_output is not None and rows.size:
                blocks.append(
                    OutputBlock(
                        i,
                        j,
                        observed_output.noise,
                        observed_output.is_spread_computed,
                        observed_output.is_weighted,
                        begin + rows,
                        point[rows],
                    )
                )
        begin += output.size
    return tuple(blocks)


def measured_values(compiled_problem: CompiledProblem) -> Array:
    """Return all measured values (n_data,) by experiment, time and output."""
    return np.concatenate([c.points.values[c.points.mask] for c in compiled_problem.conditions])


def residual_table(problem: Posable, residual_values: ResidualTable) -> dict[str, NDArray[Any]]:
    """Return one row per measured value, as columns (n_data,), in the order of the residuals.

    ``experiment``, ``output``, ``time``, ``replicate`` (counted from 0 among equal times), ``value``, ``prediction``,
    ``sigma`` (1 where it is unknown), ``residual`` = (value - prediction) / sigma, ``normalised``.
    """
    return {
        **data_columns(problem),
        "prediction": residual_values.predictions.copy(),
        "sigma": residual_values.spreads.copy(),
        "residual": residual_values.residuals.copy(),
        "normalised": residual_values.normalised.copy(),
    }


def data_columns(problem: Posable) -> dict[str, NDArray[Any]]:
    """Return experiment, output, time, replicate and value of every measured value, as columns (n_data,)."""
    columns: dict[str, list[NDArray[Any]]] = {
        name: [] for name in ("experiment", "output", "time", "replicate", "value")
    }
    for condition in problem.conditions:
        points, mask = condition.points, condition.points.mask
        row, output = np.nonzero(mask)
        columns["experiment"].append(np.full(row.size, condition.name))
        columns["output"].append(np.array(problem.outputs)[output])
        columns["time"].append(np.where(condition.is_steady_state, np.inf, points.times[row]))
        columns["replicate"].append(replicates(points.times, mask)[mask])
        columns["value"].append(points.values[mask])
    return {name: np.concatenate(pieces) for name, pieces in columns.items()}


def scores(problem: CompiledProblem, table: dict[str, NDArray[Any]]) -> Array:
    """Convert normalised residuals (n_data,) to normal scores of equal probability if the noise model has them."""
    normal_scores: Array = table["normalised"].copy()
    for block in output_places(problem):
        columns = (table[name][block.rows] for name in ("normalised", "prediction", "sigma", "value"))
        normal_scores[block.rows] = block.noise.scores(*columns)
    return normal_scores


def groups(compiled_problem: CompiledProblem) -> Index:
    """Return the number of the sigma that each value shares and that is eliminated, (n_data,); -1 if none is."""
    observed = [c.observed[j] for c in compiled_problem.conditions for j in np.nonzero(c.points.mask)[1]]
    return np.array([-1 if observable is None else observable.group for observable in observed], dtype=np.intp)


def unbiased_sigmas(problem: CompiledProblem, residuals: Array, normalised: Array) -> dict[str, float]:
    """Return unbiased estimates of the sigmas that are eliminated, by their names in results.

    residuals, normalised (n_data,) : as a `Result` has them
    """
    group, sigmas = groups(problem), dict[str, float]()
    for g, name in enumerate(problem.groups):
        residual_square, normalized_square = (
            float(np.sum(array[group == g] ** 2)) for array in (residuals, normalised)
        )
        with np.errstate(invalid="ignore"):  # 0 where the model meets the data exactly
            sigmas[f"sigma({name})" if name else "sigma"] = (
                float(np.sqrt(residual_square / normalized_square)) if normalized_square else 0.0
            )
    return sigmas


def whiten_residuals(problem: CompiledProblem, normalised: Array, *, undo: bool = False) -> Array:
    """Whiten normalised residuals (n_data,) of dependent errors: only the new part of each value remains.

    With `undo`, convert the new parts back to residuals.
    """
    if not problem.correlations:
        return normalised
    values, offset = normalised.copy(), 0
    for condition in problem.conditions:
        row_range = slice(offset, offset + int(condition.points.mask.sum()))
        whitening, offset = condition.whitening(problem.outputs), row_range.stop
        if whitening is not None:
            values[row_range] = whitening.coloured(values[row_range]) if undo else whitening.W @ values[row_range]
    return values


def along_values(problem: CompiledProblem, normalised: Array, rows: Array) -> tuple[Array, Array]:
    """Return residuals (n_data,) and their whitened derivatives (n_data, k) along each value, as when it is left out.

    Where errors depend on each other a value stands in all that is new with it: what an error of one value adds to the
    residuals of `whiten_residuals` is along its column of W, which gets length 1.
    """
    if not problem.correlations:
        return normalised, rows
    whitenings = [(c.whitening(problem.outputs), int(c.points.mask.sum())) for c in problem.conditions]
    block_diagonal: Any = scipy.sparse.block_diag(
        [scipy.sparse.eye(n) if w is None else w.W for w, n in whitenings], format="csr"
    )
    parts = block_diagonal.multiply(1.0 / scipy.sparse.linalg.norm(block_diagonal, axis=0)).tocsr()
    return parts.T @ whiten_residuals(problem, normalised), parts.T @ rows


def series(problem: CompiledProblem, residual_values: ResidualTable) -> list[ResidualSeries]:
    """Divide the residuals of the values, in units of a deviation, by experiment and output.

    Values beyond a limit of detection have none.
    """
    table = residual_table(problem, residual_values)
    all_series: list[ResidualSeries] = []
    for block in output_places(problem):
        rows = block.rows[block.noise.censoring_side(table["value"][block.rows]) == 0]
        if not rows.size:
            continue
        value, sigma, residual = table["value"][rows], table["sigma"][rows], table["residual"][rows]
        if not block.is_weighted:  # A residual of a logarithm or count is in units of the deviation of the value.
            deviations = table["prediction"][rows] - value
            with np.errstate(invalid="ignore", divide="ignore"):
                sigma = np.where(residual == 0.0, 1.0, np.abs(deviations / residual))
        counted = np.abs(table["normalised"][rows]) <= _OUTLIER_SD_HEAVY_TAILS
        counted |= not block.noise.is_heavy_tailed
        counted |= 2 * np.count_nonzero(counted) <= rows.size
        names = problem.conditions[block.condition].name, problem.outputs[block.output]
        all_series.append(ResidualSeries(*names, residual, value, sigma, table["time"][rows], counted))
    return all_series


def replicates(times: Array, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Count the values of each output at equal times, (n_points, n_outputs); times increase."""
    counts_before = np.cumsum(mask, axis=0) - mask
    first_rows = np.searchsorted(times, times, side="left")
    return counts_before - counts_before[first_rows]


@dataclass(frozen=True)
class TestStatistic:
    """Statistic of a test, and the probability of one so far from expectation; NaN if there are too few values."""

    number: float
    p_value: float


UNTESTED = TestStatistic(np.nan, np.nan)


def runs(series: Sequence[Array]) -> TestStatistic:
    """Return the fraction of neighbours whose signs differ, and the probability of so few (Wald and Wolfowitz 1940).

    The number of differing pairs has a binomial distribution with probability 1/2.  The fraction explains the
    correlation of neighbours; as a second test of the same deviation it would only cost power.
    """
    pairs = sum(max(r.size - 1, 0) for r in series)
    if pairs < MIN_TEST_RESIDUALS - 1:
        return UNTESTED
    changes = sum(int(np.count_nonzero(np.diff(np.sign(r)))) for r in series)
    return TestStatistic(changes / pairs, fair_binomial_cdf(changes, pairs))


def grade(p_value: float) -> Grade:
    """Grade a p-value as significant, suspected or none; the grade of NaN is none."""
    return SIGNIFICANT if p_value < SHOWN_P_VALUE else SUSPECTED if p_value < SUSPECTED_P_VALUE else NO_FINDING
