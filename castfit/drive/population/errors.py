"""Standard errors of population parameters, from differences of the exact gradient of -log likelihood.

    R_jk = d^2 (-log L) / dy_j dy_k    by central differences of gradients; with many individuals, whose likelihood is
                                       nearly a parabola, by one-sided ones with an error of about 1e-3
    covariance of y = R^-1             without entries at a bound

The scores s_i = dL_i/dy of independent individuals give a second estimate, S = sum_i s_i s_i^T, and  R^-1 S R^-1  is
also valid for misspecified models (White 1982).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array
from castfit.drive.population.laplace import LaplaceApproximation, LikelihoodScores, MarginalLikelihood
from castfit.drive.population.search import make_positive_definite

_MIN_INDIVIDUALS_ONE_SIDED = 200  # individuals from which one-sided differences are used
_DIFFERENCE_STEP_SE = 0.05  # step of differences in approximate standard errors, limited to this step of y


@dataclass(frozen=True)
class EstimateErrors:
    """Covariance of y (n_y, n_y) and robust covariance, NaN if not available, with the reason in `remark`."""

    covariance: Array
    robust: Array
    remark: str


def no_errors(size: int, remark: str) -> EstimateErrors:
    """Return covariances filled with NaN, with a remark about the reason."""
    nan_matrix = np.full((size, size), np.nan)
    return EstimateErrors(nan_matrix, nan_matrix, remark)


def compute_errors(
    laplace: LaplaceApproximation,
    marginal: MarginalLikelihood,
    scores: LikelihoodScores,
    on_progress: Callable[[int, int], None] = lambda n_done, total: None,
) -> EstimateErrors:
    """Compute the errors at the optimum, by one or two gradients for each entry of y; report the progress."""
    lower, upper = laplace.question.bounds
    size, is_one_sided = marginal.y.size, laplace.question.n >= _MIN_INDIVIDUALS_ONE_SIDED
    free = np.flatnonzero((marginal.y > lower) & (marginal.y < upper))
    width = _DIFFERENCE_STEP_SE / np.sqrt(np.diag(make_positive_definite(laplace.expected(marginal))))
    width = np.minimum(width, _DIFFERENCE_STEP_SE)
    hessian = np.full((size, size), np.nan)
    base_gradient = laplace.scores(marginal, forward=True).gradient if is_one_sided else scores.gradient
    for n_done, j in enumerate(free):
        on_progress(n_done, free.size)
        step = np.zeros(size)
        step[j] = min(width[j], 0.5 * (upper[j] - marginal.y[j]), 0.5 * (marginal.y[j] - lower[j]))
        gradients: list[Array] = [base_gradient] if is_one_sided else []
        for sign in (-1.0,) if is_one_sided else (1.0, -1.0):
            shifted_marginal = laplace.value(
                marginal.y + sign * step, marginal.modes.phi + scores.moving @ (sign * step), scores.bend
            )
            if shifted_marginal is None or not np.isfinite(shifted_marginal.value):
                name = laplace.question.names[j]
                return no_errors(
                    size, f"Standard errors are not available: an evaluation near the estimate of {name} failed."
                )
            gradients.append(laplace.scores(shifted_marginal, forward=is_one_sided).gradient)
        hessian[:, j] = (gradients[0] - gradients[-1]) / ((1.0 if is_one_sided else 2.0) * step[j])
    free_hessian = hessian[np.ix_(free, free)]
    free_hessian = 0.5 * (free_hessian + free_hessian.T)
    covariance, robust = np.full((size, size), np.nan), np.full((size, size), np.nan)
    unit = np.sqrt(np.abs(np.diag(free_hessian)))
    unit = np.where(unit > 0.0, unit, 1.0)
    try:
        np.linalg.cholesky(free_hessian / np.outer(unit, unit))
    except np.linalg.LinAlgError:
        return no_errors(
            size,
            "Standard errors are not available: the Hessian is not positive definite. The model may be "
            "overparametrised, or the search did not converge.",
        )
    inverse = np.linalg.inv(free_hessian / np.outer(unit, unit)) / np.outer(unit, unit)
    covariance[np.ix_(free, free)] = inverse
    products = scores.parts[:, free].T @ scores.parts[:, free] + scores.prior_curvature[np.ix_(free, free)]
    robust[np.ix_(free, free)] = inverse @ products @ inverse
    return EstimateErrors(covariance, robust, "")
