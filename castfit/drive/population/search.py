"""The upper level: minimise -log of the approximate likelihood over y, within bounds, and standard errors of y.

Steps of expectation and maximisation come first, as long as they decrease the cost: they are efficient far from the
optimum and need no scaling.  Their fixed point is not the maximum, so a quasi-Newton method with a trust region
follows.  Its first curvature is the information of the linearized model, which has the right scale; BFGS updates
improve it.  Each trial is one set of individual fits, which start at the predicted modes.  Gradients are computed at
accepted points only.

    minimise g^T p + 1/2 p^T B p   in   |p_j| <= radius,  lower <= y + p <= upper

Standard errors follow from differences of the exact gradient:

    R_jk = d^2 (-log L) / dy_j dy_k    by central differences of gradients; with many individuals, whose likelihood is
                                       nearly a parabola, by one-sided ones with an error of about 1e-3
    covariance of y = R^-1             without entries at a bound

The scores s_i = dL_i/dy of independent individuals give a second estimate, S = sum_i s_i s_i^T, and  R^-1 S R^-1  is
also valid for misspecified models (White 1982).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit.drive.population.laplace import LaplaceApproximation, LikelihoodScores, MarginalLikelihood
from castfit.solve.block_pivoting import minimize_in_box

_MIN_EM_GAIN = 0.5  # of -log p: after a smaller gain the quasi-Newton method takes over
_MIN_PREDICTED_DECREASE = 1e-7  # of -log p: y then has an error below a thousandth of its standard errors
_MAX_RADIUS, _MIN_RADIUS = 2.0, 1e-7  # of the trust region, in units of y, mostly logarithms
_RIDGE_FRACTION, _MIN_DIAGONAL_FRACTION = 1e-4, 1e-6  # added to the diagonal; its smallest entry, of the largest
_POWELL_DAMPING = 0.2  # of the curvature along the step: smallest curvature of an update that is not damped


@dataclass(frozen=True)
class SearchIterate:
    """State of the search, sufficient to continue it.

    y (n_y,), phi (n, m) modes of the individuals, curvature B (n_y, n_y), empty before the quasi-Newton method, radius
    of the trust region, iteration, value -log of the likelihood at y, and promise, its predicted decrease.
    """

    y: Array
    phi: Array
    curvature: Array
    radius: float
    iteration: int
    value: float
    promise: float = np.inf


@dataclass(frozen=True)
class PopulationOptimum:
    """Result of the search: the last state and the status; without scores if the search could not begin."""

    iterate: SearchIterate
    marginal_likelihood: MarginalLikelihood | None
    scores: LikelihoodScores | None
    status: Status


def minimise(
    laplace: LaplaceApproximation,
    iterate: SearchIterate,
    *,
    max_iter: int,
    on_iteration: Callable[[SearchIterate, MarginalLikelihood], bool],
) -> PopulationOptimum:
    """Minimise from `iterate` until the gradient vanishes.

    The curvature of a new search is empty.  `on_iteration` is called with every accepted point; the search ends if it
    returns True.

    Raises StopRequested if the time is over.
    """
    lower, upper = laplace.question.bounds
    marginal = laplace.value(iterate.y, iterate.phi, roughly=not iterate.curvature.size)
    if marginal is None or not np.isfinite(marginal.value):
        return PopulationOptimum(iterate, marginal, None, Status.START_FAILED)
    if not iterate.curvature.size:
        iterate, marginal, is_stopped = _approached(
            laplace, replace(iterate, phi=marginal.modes.phi, value=marginal.value), marginal, max_iter, on_iteration
        )
        if is_stopped:
            return PopulationOptimum(iterate, marginal, laplace.scores(marginal), Status.STOPPED_BY_CALLBACK)
        marginal = laplace.value(iterate.y, iterate.phi) or marginal  # exactly
    scores = laplace.scores(marginal)
    curvature = iterate.curvature if iterate.curvature.size else make_positive_definite(laplace.expected(marginal))
    iterate = replace(iterate, phi=marginal.modes.phi, curvature=curvature, value=marginal.value)
    while True:
        gradient = scores.gradient
        full_step = minimize_in_box(iterate.curvature, gradient, lower - iterate.y, upper - iterate.y)
        full_step_decrease = -float(gradient @ full_step + 0.5 * full_step @ iterate.curvature @ full_step)
        iterate = replace(iterate, promise=full_step_decrease)
        if on_iteration(iterate, marginal):
            return PopulationOptimum(iterate, marginal, scores, Status.STOPPED_BY_CALLBACK)
        if full_step_decrease <= _MIN_PREDICTED_DECREASE:
            return PopulationOptimum(iterate, marginal, scores, Status.CONVERGED)
        if iterate.iteration >= max_iter:
            return PopulationOptimum(iterate, marginal, scores, Status.MAX_ITERATIONS)
        accepted_marginal: MarginalLikelihood | None = None
        radius = iterate.radius
        while accepted_marginal is None:
            step_bounds = np.maximum(lower - iterate.y, -radius), np.minimum(upper - iterate.y, radius)
            step = minimize_in_box(iterate.curvature, gradient, *step_bounds)
            predicted_decrease = -float(gradient @ step + 0.5 * step @ iterate.curvature @ step)
            trial = laplace.value(iterate.y + step, marginal.modes.phi + scores.moving @ step, scores.bend)
            gain = -np.inf if trial is None else marginal.value - trial.value
            if trial is not None and gain > 1e-4 * predicted_decrease:
                accepted_marginal = trial
                radius = min(2.0 * radius, _MAX_RADIUS) if gain > 0.7 * predicted_decrease else radius
            else:
                radius = 0.3 * min(radius, float(np.abs(step).max()))
                if radius < _MIN_RADIUS:
                    status = Status.ACCEPTABLE if full_step_decrease < 1e-3 else Status.STEP_TOO_SMALL
                    return PopulationOptimum(iterate, marginal, scores, status)
        new_scores = laplace.scores(accepted_marginal)
        curvature = bfgs_update(iterate.curvature, accepted_marginal.y - iterate.y, new_scores.gradient - gradient)
        marginal, scores = accepted_marginal, new_scores
        iterate = SearchIterate(
            marginal.y, marginal.modes.phi, curvature, radius, iterate.iteration + 1, marginal.value
        )


def _approached(
    laplace: LaplaceApproximation,
    iterate: SearchIterate,
    marginal: MarginalLikelihood,
    max_iter: int,
    on_iteration: Callable[[SearchIterate, MarginalLikelihood], bool],
) -> tuple[SearchIterate, MarginalLikelihood, bool]:
    """Take steps of expectation and maximisation while they gain; return also whether the search was stopped."""
    while iterate.iteration < max_iter:
        if on_iteration(iterate, marginal):
            return iterate, marginal, True
        trial = laplace.value(
            y := laplace.improved(marginal), predict_modes(laplace, marginal, y - marginal.y), roughly=True
        )
        if trial is None or not trial.value < marginal.value:
            break
        gain, marginal = marginal.value - trial.value, trial
        iterate = replace(
            iterate, y=marginal.y, phi=marginal.modes.phi, iteration=iterate.iteration + 1, value=marginal.value
        )
        if gain < _MIN_EM_GAIN:
            break
    return iterate, marginal, False


def make_positive_definite(information: Array) -> Array:
    """Return an information matrix plus a ridge that makes it positive definite."""
    diagonal = np.diag(information)
    min_diagonal = _MIN_DIAGONAL_FRACTION * float(diagonal.max(initial=0.0)) or 1.0
    return information + _RIDGE_FRACTION * np.diag(np.maximum(diagonal, min_diagonal))


def predict_modes(laplace: LaplaceApproximation, marginal: MarginalLikelihood, step: Array) -> Array:
    """Return starts of the modes after a step of y, shifted with the typical values."""
    old_means, _ = laplace.question.means(marginal.y)
    new_means, _ = laplace.question.means(marginal.y + step)
    shift = np.where(np.isfinite(new_means), new_means - old_means, 0.0)
    # The data term of own parameters does not depend on the typical values.
    prior_and_omega = laplace.prior(marginal.y)
    share = (
        np.zeros((laplace.question.m, laplace.question.m)) if prior_and_omega is None else prior_and_omega[0].precision
    )
    return marginal.modes.phi + np.einsum("nij,jk,nk->ni", np.nan_to_num(marginal.precise), share, shift)


def bfgs_update(curvature: Array, step: Array, change: Array) -> Array:
    """Return the curvature after a BFGS update with Powell's damping, which keeps it definite."""
    b_step = curvature @ step
    curvature_product, change_product = float(step @ b_step), float(step @ change)
    if change_product < _POWELL_DAMPING * curvature_product:
        share = (1.0 - _POWELL_DAMPING) * curvature_product / (curvature_product - change_product)
        change = share * change + (1.0 - share) * b_step
        change_product = float(step @ change)
    return curvature - np.outer(b_step, b_step) / curvature_product + np.outer(change, change) / change_product


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
