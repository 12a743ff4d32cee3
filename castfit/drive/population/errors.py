"""Standard errors of population parameters: from how the exact gradient of -log likelihood changes.

    R_jk = d^2 (-log L) / dy_j dy_k    by differences of gradients: central ones, or of many individuals, whose
                                       likelihood is nearly a parabola, one-sided ones, right to about 1e-3
    covariance of y = R^-1             of entries at a bound there is none

Of the log-likelihood of independent individuals the scores s_i = dL_i/dy give a second estimate, S = sum_i s_i s_i^T,
and  R^-1 S R^-1  is right also where the model is not (White 1982).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit.drive.population.laplace import LaplaceApproximation, Marginal, Scores
from castfit.drive.population.search import definite

if TYPE_CHECKING:
    from castfit._support.arrays import Array


_MANY = 200  # individuals
_WIDTH = 0.05  # of a standard error, as far as it is known


@dataclass(frozen=True)
class Errors:
    """Covariance of y (n_y, n_y) and the robust one, NaN where there is none; `remark` says why."""

    covariance: Array
    robust: Array
    remark: str


def nothing(size: int, remark: str) -> Errors:
    """Return covariances filled with NaN, with a remark about the reason."""
    none = np.full((size, size), np.nan)
    return Errors(none, none, remark)


def errors_at(
    laplace: LaplaceApproximation,
    at: Marginal,
    scores: Scores,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Errors:
    """Return the errors at the optimum; takes one or two gradients for each entry of y, and tells how many are done."""
    lower, upper = laplace.question.bounds
    size, many = at.y.size, laplace.question.n >= _MANY
    free = np.flatnonzero((at.y > lower) & (at.y < upper))
    width = _WIDTH / np.sqrt(np.diag(definite(laplace.expected(at))))
    width = np.minimum(width, _WIDTH)
    second = np.full((size, size), np.nan)
    here = laplace.scores(at, forward=True).gradient if many else scores.gradient
    for done, j in enumerate(free):
        tell(done, free.size)
        step = np.zeros(size)
        step[j] = min(width[j], 0.5 * (upper[j] - at.y[j]), 0.5 * (at.y[j] - lower[j]))
        ends: list[Array] = [here] if many else []
        for sign in (-1.0,) if many else (1.0, -1.0):
            there = laplace.value(at.y + sign * step, at.modes.phi + scores.moving @ (sign * step), scores.bend)
            if there is None or not np.isfinite(there.value):
                name = laplace.question.names[j]
                return nothing(size, f"Standard errors are not available: an evaluation near the estimate of {name} failed.")
            ends.append(laplace.scores(there, forward=many).gradient)
        second[:, j] = (ends[0] - ends[-1]) / ((1.0 if many else 2.0) * step[j])
    own = second[np.ix_(free, free)]
    own = 0.5 * (own + own.T)
    covariance, robust = np.full((size, size), np.nan), np.full((size, size), np.nan)
    unit = np.sqrt(np.abs(np.diag(own)))
    unit = np.where(unit > 0.0, unit, 1.0)
    try:
        np.linalg.cholesky(own / np.outer(unit, unit))
    except np.linalg.LinAlgError:
        return nothing(
            size,
            "Standard errors are not available: the Hessian is not positive definite. The model may be "
            "overparametrised, or the search did not converge.",
        )
    inverse = np.linalg.inv(own / np.outer(unit, unit)) / np.outer(unit, unit)
    covariance[np.ix_(free, free)] = inverse
    products = scores.parts[:, free].T @ scores.parts[:, free] + scores.prior_curvature[np.ix_(free, free)]
    robust[np.ix_(free, free)] = inverse @ products @ inverse
    return Errors(covariance, robust, "")
