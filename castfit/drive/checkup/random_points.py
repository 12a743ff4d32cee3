"""Random values of quantities about a point, for checks that compare outputs there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.simulate.output_sensitivities import responses

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_problem import CompiledProblem


def random_values(
    compiled_problem: CompiledProblem, theta: Array, magnitudes: Array, rng: np.random.Generator, width: float
) -> Array:
    """Draw theta: values within a factor of exp(width), those at zero within their magnitude; between the bounds."""
    lower, upper = compiled_problem.bounds
    log_changes = width * rng.uniform(-1.0, 1.0, theta.size)
    natural = compiled_problem.to_natural(theta)

    def apply_change(change: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return compiled_problem.to_search(
                np.where(natural != 0.0, natural * np.exp(change), 0.5 * magnitudes * change)
            )

    shifted_values, mirrored_values = apply_change(log_changes), apply_change(-log_changes)
    values = np.clip(
        np.where((shifted_values < lower) | (shifted_values > upper), mirrored_values, shifted_values), lower, upper
    )
    # If both values are outside, use a value between the bounds.
    stuck = ((values <= lower) | (values >= upper)) & np.isfinite(upper - lower)
    part = 0.5 + 0.4 * np.clip(log_changes, -1.0, 1.0)
    return np.where(stuck, (1 - part) * np.where(stuck, lower, 0.0) + part * np.where(stuck, upper, 0.0), values)


def magnitudes_of(compiled_problem: CompiledProblem, theta: Array, options: IntegratorOptions) -> Array:
    """Return the sizes of quantities, natural scale: those at zero by what they do to the outputs."""
    natural, slope = compiled_problem.to_natural(theta), compiled_problem.natural_slope(theta)
    size = np.abs(natural)
    if (size > 0.0).all():
        return size
    J = _measured_slopes(compiled_problem, theta, options)
    if J is None:
        return np.where(size > 0.0, size, 1.0)
    effect = np.linalg.norm(J / np.where(slope != 0.0, slope, 1.0), axis=0) / np.sqrt(max(J.shape[0], 1))
    return np.where(size > 0.0, size, np.where(effect > 0.0, 1.0 / np.where(effect > 0.0, effect, 1.0), 1.0))


def _measured_slopes(compiled_problem: CompiledProblem, theta: Array, options: IntegratorOptions) -> Array | None:
    """Compute the derivative of the measured outputs at measured times, each relative to its size, (m, n_theta)."""
    rows: list[Array] = []
    for condition in compiled_problem.conditions:
        names = [
            n
            for n, observable in zip(compiled_problem.outputs, condition.observed, strict=True)
            if observable is not None
        ]
        condition_responses = responses(
            compiled_problem, condition, np.unique(condition.points.times), theta, options, outputs=names
        )
        if condition_responses is None:
            return None
        size = np.abs(condition_responses.values).max(axis=0)
        slopes = np.abs(condition_responses.slopes).max(axis=(0, 2))
        unit = np.where(size > 0.0, size, np.where(slopes > 0.0, slopes, 1.0))
        rows.append((condition_responses.slopes / unit[:, None]).reshape(-1, theta.size))
    return np.concatenate(rows)
