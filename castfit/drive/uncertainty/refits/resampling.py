"""Influence of each measured value on a solution, and resampled data about its predictions.

Let m be a value with prediction mu and spread s, whose noise is additive on some axis a (the logarithm of `LogNormal`):

    e = (a(mu) - a(m)) / s / sqrt(1 - h)     its error; the residual is smaller by its leverage h, because the fit
                                             follows every value
    residual      a(m*) = a(mu) - s e_k      k drawn among the values of the same output, e centred there  [Efron 1979]
    wild          a(m*) = a(mu) +- s e       with its own error, of random sign                 [Wu 1986, Liu 1988]
    parametric    m* drawn from the noise model at mu and s

J  (m, n)  rows of variance 1, d r / d theta: rows of data, then of priors; without columns of quantities at a bound
h  (m,)    leverage, the diagonal of  J (J^T J)^-1 J^T:  the fraction of its own error that the fit follows
r  (m,)    residuals in standard deviations, value minus prediction; J is their derivative

    left out, value i moves theta by    d_i = (J^T J)^-1 J_i^T r_i / (1 - h_i)      linearly [Cook and Weisberg 1982]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from castfit._support.arrays import Array, Index
from castfit.densities.noise.likelihood import Likelihood
from castfit.problem.compiled_problem import CompiledProblem
from castfit.result.covariance import RANK_TOLERANCE
from castfit.result.residuals import (
    OutputBlock,
    along_values,
    groups,
    measured_values,
    output_places,
    unbiased_sigmas,
    whiten_residuals,
)
from castfit.result.result import Result

MIN_LEVERAGE_COMPLEMENT = 1e-8  # of 1 - h: below it, a value is fitted exactly for any error

KINDS: Mapping[str, str] = {
    "residual": "residuals resampled among the measurements of each output",
    "wild": "wild bootstrap: every residual keeps its magnitude and gets a random sign",
    "parametric": "parametric bootstrap: data sampled from the noise models",
}


def unit_spreads(compiled_problem: CompiledProblem, result: Result) -> Array:
    """Return the spread of every value (n_data,), with estimated sigmas corrected for bias; NaN if unknown."""
    return result.spreads * np.append(group_factors(compiled_problem, result), 1.0)[groups(compiled_problem)]


def group_factors(compiled_problem: CompiledProblem, result: Result) -> Array:
    """Return the unbiased estimate of each sigma that is eliminated, (n_groups,)."""
    return np.array(
        list(unbiased_sigmas(compiled_problem, result.residuals, result.normalised_residuals).values()), dtype=float
    )


def leverages(result: Result) -> Array:
    """Return the leverage of every value, (n_data,), without rounding errors."""
    return np.clip(result.leverage, 0.0, 1.0)


def case_deletion(compiled_problem: CompiledProblem, result: Result) -> Array:
    """Return d_i, the linear shifts of the estimates without value i, (n_data, n_theta); 0 at a bound."""
    n = result.n_data
    scale = np.append(group_factors(compiled_problem, result), 1.0)[groups(compiled_problem)]
    jacobian = scipy.sparse.csr_array(result.jacobian).toarray()  # sparse if there are many experiments
    scale = np.append(np.where(scale > 0.0, scale, 1.0), np.ones(len(jacobian) - n))
    free = np.array([name not in result.active for name in result.names], dtype=np.bool_)
    J = jacobian[:, free] / scale[:, None]
    size = np.linalg.norm(J, axis=0)
    size = np.where(size > 0.0, size, 1.0)
    U, S, Vt = np.linalg.svd(J / size, full_matrices=False)
    rank = int(np.count_nonzero(RANK_TOLERANCE * S[0] < S)) if S.size and S[0] > 0.0 else 0
    r = np.where(np.isfinite(result.normalised_residuals), result.normalised_residuals, 0.0)
    rows, h = U[:n, :rank], leverages(result)
    if compiled_problem.correlations:
        r, rows = along_values(compiled_problem, r, rows)
        h = np.sum(rows**2, axis=1)
    weight = r / np.maximum(1.0 - h, MIN_LEVERAGE_COMPLEMENT)
    moves = np.zeros((n, len(result.names)))
    moves[:, free] = (rows * weight[:, None] / S[:rank]) @ Vt[:rank] / size
    return moves


@dataclass(frozen=True, eq=False)
class Resampling:
    """Generator of new data about predictions, of one of the `KINDS`, with a separate random stream for each index.

    predictions, spreads, errors (n_data,) by experiment, time and output; without errors for "parametric"; errors are
    NaN for values that are fitted exactly
    """

    kind: str
    predictions: Array
    spreads: Array
    errors: Array
    seed: int

    def problem(self, compiled_problem: CompiledProblem, index: int) -> CompiledProblem:
        """Return the problem with the data of this index."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(index,)))
        return compiled_problem.with_data(self.values(compiled_problem, rng))

    def values(self, compiled_problem: CompiledProblem, rng: np.random.Generator) -> list[Array]:
        """Draw values, arranged as the points of each experiment."""
        values_by_condition = [np.full(c.points.values.shape, np.nan) for c in compiled_problem.conditions]
        new_errors = self._errors(compiled_problem, rng)
        if compiled_problem.correlations:
            independent = rng.standard_normal(new_errors.size) if self.kind == "parametric" else new_errors
            new_errors = whiten_residuals(compiled_problem, independent, undo=True)
        for block in output_places(compiled_problem):
            mu, s = self.predictions[block.rows], self.spreads[block.rows]
            if self.kind == "parametric" and getattr(block.noise, "correlation", None) is None:
                values = block.noise.sample(rng, mu, s)
            else:
                values = block.noise.value_at(mu, s, new_errors[block.rows])
            values_by_condition[block.condition][block.points, block.output] = values
        return values_by_condition

    def _errors(self, compiled_problem: CompiledProblem, rng: np.random.Generator) -> Array:
        if self.kind == "wild":
            return np.nan_to_num(self.errors) * rng.choice([-1.0, 1.0], self.errors.size)
        new_errors = np.zeros(self.errors.size)
        if self.kind == "residual":
            for rows in pools(output_places(compiled_problem)).values():
                pool_errors = self.errors[rows]
                new_errors[rows] = rng.choice(pool_errors[np.isfinite(pool_errors)], rows.size)
        return new_errors


def pools(blocks: Iterable[OutputBlock]) -> dict[int, Index]:
    """Return, by output, the indices of its values in all experiments, among which residuals are exchanged."""
    rows_by_output: dict[int, list[Index]] = {}
    for block in blocks:
        rows_by_output.setdefault(block.output, []).append(block.rows)
    return {output: np.concatenate(row_lists) for output, row_lists in rows_by_output.items()}


def resampling(kind: str, compiled_problem: CompiledProblem, result: Result, seed: int) -> Resampling:
    """Return the generator of bootstrap data for a result."""
    spreads, leverage = unit_spreads(compiled_problem, result), leverages(result)
    predictions, values = result.predictions.copy(), measured_values(compiled_problem)
    errors = np.full(values.size, np.nan)
    blocks = output_places(compiled_problem)
    for block in blocks:
        if block.noise.additive:
            mu, s, m = predictions[block.rows], spreads[block.rows], values[block.rows]
            with np.errstate(divide="ignore", invalid="ignore"):
                errors[block.rows] = np.where(s > 0.0, block.noise.error(mu, s, m), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = whiten_residuals(compiled_problem, errors) / np.sqrt(np.maximum(1.0 - leverage, 0.0))
    errors[1.0 - leverage <= MIN_LEVERAGE_COMPLEMENT] = np.nan
    # A fitted spread is as small as the residuals; the statistics correct it by the same factor.
    if kind == "parametric":
        for rows in pools(block for block in blocks if block.noise.additive and block.computed).values():
            dof = rows.size - float(np.sum(leverage[rows]))
            spreads[rows] *= np.sqrt(rows.size / dof) if dof > MIN_LEVERAGE_COMPLEMENT * rows.size else 1.0
    if kind == "residual":
        for rows in pools(blocks).values():
            errors[rows] -= np.nanmean(errors[rows]) if np.isfinite(errors[rows]).any() else 0.0
    return Resampling(kind, predictions, spreads, errors, seed)


def kind_mistakes(kind: str, compiled_problem: CompiledProblem, result: Result) -> list[str]:
    """Return messages on why data cannot be resampled with this kind."""
    if kind == "parametric":
        mistakes = drawing_mistakes(compiled_problem)
    else:
        messages: dict[str, str] = {}
        for block in output_places(compiled_problem):
            name, noise = compiled_problem.outputs[block.output], block.noise
            if not noise.additive:
                messages[name] = (
                    f"residuals of '{name}' cannot be resampled as errors: {_reason(noise)}; use kind='parametric'"
                )
        mistakes = list(messages.values())
    if not mistakes and not np.isfinite(unit_spreads(compiled_problem, result)).all():
        mistakes.append("the fit has as many estimates as measurements, so the noise is unknown; pass sigma")
    if not mistakes and kind == "residual":
        leverage = leverages(result)
        mistakes += [
            f"every measurement of '{compiled_problem.outputs[j]}' is fitted exactly, so there are no residuals; "
            "use kind='parametric'"
            for j, rows in pools(output_places(compiled_problem)).items()
            if (1.0 - leverage[rows] <= MIN_LEVERAGE_COMPLEMENT).all()
        ]
    return mistakes


def drawing_mistakes(compiled_problem: CompiledProblem) -> list[str]:
    """Return messages that name the outputs whose values cannot be drawn, with the reason."""
    messages: dict[str, str] = {}
    for block in output_places(compiled_problem):
        name, noise_name = compiled_problem.outputs[block.output], type(block.noise).__name__
        correlation: Any = getattr(block.noise, "correlation", None)
        if isinstance(block.noise, Likelihood):
            messages[name] = (
                f"data of '{name}' cannot be sampled from a user-defined cost; use a noise model of castfit"
            )
        elif correlation is not None and not correlation.numbers:
            messages[name] = f"the error correlation of '{name}' is unknown; set numbers, or use result.problem"
        elif not _samples(block.noise):
            messages[name] = f"data of '{name}' cannot be sampled: {noise_name} with these options is not a density"
    return list(messages.values())


def _samples(noise: Any) -> bool:
    """Check whether values can be drawn from a noise model, by drawing one."""
    try:
        noise.sample(np.random.default_rng(0), np.ones(1), np.ones(1))
    except ValueError:  # an InputError is one
        return False
    return True


def _reason(noise: Any) -> str:
    noise_name = type(noise).__name__
    if getattr(noise, "censored", False):
        return "values beyond a limit of detection have no residual"
    if isinstance(noise, Likelihood):
        return "they are derivatives of a user-defined cost"
    return f"counts are integers, and their scatter depends on their expectation ({noise_name})"
