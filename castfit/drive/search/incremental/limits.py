"""Bounds of an incremental fit: confidence limits of the estimates so far, and their relaxation.

All arrays are (n_theta,) in search scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from castfit._support.arrays import Array
from castfit.problem.linear_scales import eliminated_entries
from castfit.result.covariance import DERIVATIVE_ERROR_FACTOR, RANK_TOLERANCE, information, quantile
from castfit.result.result import Result


@dataclass(frozen=True)
class Bounds:
    """Lower and upper bounds of theta."""

    lower: Array
    upper: Array

    def with_relaxed(self, active: dict[int, str], factor: float, user: Bounds) -> Bounds:
        """Move active bounds outwards, no further than the user's (Michalik et al. 2009, Eqs. 10-11).

        active : the bound that holds each of these entries of theta
        factor : BRF: the distance moved, in units of the distance between the bounds
        """
        lower, upper = self.lower.copy(), self.upper.copy()
        for j, side in active.items():
            move = factor * (self.upper[j] - self.lower[j])
            if side == "upper":
                upper[j] = min(upper[j] + move, user.upper[j])
            else:
                lower[j] = max(lower[j] - move, user.lower[j])
        return Bounds(lower, upper)

    def select_updated(self, active: dict[int, str], user: Bounds) -> dict[int, str]:
        """Return the active bounds that were updated: they differ from the user's."""
        bound_pairs = {"lower": (self.lower, user.lower), "upper": (self.upper, user.upper)}
        return {j: side for j, side in active.items() if bound_pairs[side][0][j] != bound_pairs[side][1][j]}


@dataclass(frozen=True)
class HorizonEstimate:
    """Estimate passed from one horizon to the next: theta, its bounds, and the horizon of the estimate."""

    theta: Array
    bounds: Bounds
    horizon: float


def standard_deviations(result: Result, accuracy: float) -> tuple[Array, float]:
    """Return the standard deviations of theta and the degrees of freedom of the noise's estimate (inf if it is known).

        V_P = (S^T V_M^-1 S)^-1                                    (Michalik et al. 2009, Eq. 9)

    with S V_M^-1/2 the Jacobian of the weighted residuals; inf for what the data do not determine.

    `accuracy` is the relative one of the Jacobian.
    """
    n, jacobian = result.theta.size, result.jacobian
    undetermined = np.full(n, np.inf), np.inf
    compiled = None if result.problem is None else result.problem.posed
    is_sparse = scipy.sparse.issparse(jacobian)  # so that it is sparse, and no matrix is written out
    if compiled is not None and (
        is_sparse or not (compiled.least_squares and compiled.groups in ((), ("",)))
    ):  # a likelihood, too
        errors = np.array(list(result.standard_errors.values())) / compiled.natural_slope(result.theta)
        return np.where(errors > 0.0, errors, np.inf), np.inf if result.absolute_sigma else result.dof
    if not np.isfinite(jacobian).all():
        return undetermined
    tolerance = max(RANK_TOLERANCE, DERIVATIVE_ERROR_FACTOR * accuracy)
    if not (result.absolute_sigma or result.noise > 0.0):
        return undetermined
    unit = np.ones(len(jacobian))
    unit[: result.n_data] = result.noise
    fisher_information = information(
        jacobian / unit[:, None], np.zeros((0, n)), np.zeros(n, dtype=np.bool_), rank_tolerance=tolerance
    )
    dof = np.inf if result.absolute_sigma else result.n_data - float(fisher_information.leverage[: result.n_data].sum())
    return np.where(fisher_information.undetermined, np.inf, np.sqrt(np.diag(fisher_information.inverse))), dof


def confidence_limits(result: Result, level: float, accuracy: float, user: Bounds) -> Bounds:
    """Return the confidence limits of the estimates within the user's bounds.

    They are no closer than numerical errors of the estimates, with the relative accuracy to which the model was solved.
    """
    theta = result.theta
    deviations, dof = standard_deviations(result, accuracy)
    if not dof > 0.0:  # The data do not determine the noise.
        deviations, dof = np.full(theta.size, np.inf), np.inf
    half_widths = np.maximum(quantile(level, dof) * deviations, accuracy * np.abs(theta))
    lower, upper = np.maximum(theta - half_widths, user.lower), np.minimum(theta + half_widths, user.upper)
    if result.problem is not None:  # Eliminated quantities need no limits.
        eliminated_indices = eliminated_entries(result.problem.posed)
        lower[eliminated_indices], upper[eliminated_indices] = (
            user.lower[eliminated_indices],
            user.upper[eliminated_indices],
        )
    return Bounds(lower, upper)
