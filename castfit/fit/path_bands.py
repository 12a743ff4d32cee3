"""Bands of a path that include the uncertainty of the quantities, by a quadrature over them.

    var x = var(x | q^) + sum_j sum_+- w_j+- (var(x | q_j+-) - var(x | q^) + (x^(q_j+-) - x^(q^))^2)

Along each column of a root of their covariance, two halves of normal densities that meet at the estimate replace the
likelihood: q_j+- are the points where log L has fallen by 1/2, and w_j+- the shares of the two widths (Rue, Martino
and Chopin 2009, section 6.5).  Positive quantities are represented by their squares, in which likelihoods of sigmas
and of noise intensities are regular at 0.  An estimate near 0, whose path without measurement errors has no band,
thus contributes its uncertainty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array, Mask
from castfit.transcribe.path_likelihood import ChainLikelihood, PathEvaluation

_LOG_L_DROP_ONE_SD = 0.5  # Decrease of log L at one standard deviation.
# Limits of the search for a width on one side: tries, and growth per try.
_MAX_WIDTH_TRIES, _MAX_WIDTH_GROWTH = 12, 10.0
# Standard deviations that are too few to measure, and the growth of the width after them. An intensity of 1e-18 needs
# large growth.
_NEGLIGIBLE_DEVIATIONS, _MAX_FLAT_GROWTH = 1e-4, 1e6
_INITIAL_WIDTH_FRACTION = 1e-3  # Initial width for a quantity at a bound or at 0, relative to its size.
_MAX_WIDTH_RATIO = 1.5  # Accepted ratio of a width to one standard deviation.


@dataclass(frozen=True)
class PathBands:
    """Quadrature of a likelihood about its maximum.

    optimum : the likelihood at the maximum, with the paths
    evaluate : likelihood at y, started at the paths of `optimum`; None if no time is left
    log (n_y,) : marks positive quantities, of which y holds the logarithm
    limits : bounds of y
    """

    chains: Sequence[ChainLikelihood]
    evaluate: Callable[[Array], PathEvaluation | None]
    optimum: PathEvaluation
    log: Mask
    limits: tuple[Array, Array]

    def variances(self, covariance: Array) -> list[Array] | None:
        """Return the variances of all outputs at all nodes, (N, n_out) per experiment; None if time ran out.

        covariance : of y, (n_y, n_y); NaN for quantities at a bound or possibly 0, or everywhere
        """
        tracks = self._tracks(self.optimum)
        total = [d**2 for _, d in tracks]
        for column in _root(self.optimum.y, covariance, self.log):
            sides = [self._side(sign * column) for sign in (1.0, -1.0)]
            existing_sides = [side for side in sides if side is not None]
            total_width = sum(width for width, _, _ in existing_sides)
            for width, scale, evaluation in existing_sides:
                if evaluation is None:
                    return None
                for t, (x, d), (central_x, central_d) in zip(total, self._tracks(evaluation), tracks, strict=True):
                    t += width / total_width / scale**2 * (d**2 - central_d**2 + (x - central_x) ** 2)
        return [
            np.maximum(t, d**2) for t, (_, d) in zip(total, tracks, strict=True)
        ]  # uncertainty of the quantities never narrows a band

    def _side(self, column: Array) -> tuple[float, float, PathEvaluation | None] | None:
        """Return a width, the distance of a point in widths, and the point; None if there is none."""
        length = 1.0
        for _ in range(_MAX_WIDTH_TRIES):
            y = np.clip(_shift_quantities(self.optimum.y, length * column, self.log), *self.limits)
            evaluation = self.evaluate(y)
            if evaluation is None:
                return length, 1.0, None
            n_deviations = float(np.sqrt(max(evaluation.value - self.optimum.value, 1e-12) / _LOG_L_DROP_ONE_SD))
            is_at_bound = bool(np.any(((y <= self.limits[0]) | (y >= self.limits[1])) & (column != 0.0)))
            if evaluation.modes and is_at_bound and n_deviations < 1.0:
                return (length, 1.0, evaluation) if np.any(y != self.optimum.y) else None
            if evaluation.modes and 1.0 / _MAX_WIDTH_RATIO < n_deviations < _MAX_WIDTH_RATIO:
                return length / n_deviations, n_deviations, evaluation
            length *= (
                min(
                    1.0 / n_deviations, _MAX_WIDTH_GROWTH if n_deviations > _NEGLIGIBLE_DEVIATIONS else _MAX_FLAT_GROWTH
                )
                if evaluation.modes
                else 0.5
            )
        return None

    def _tracks(self, evaluation: PathEvaluation) -> list[tuple[Array, Array]]:
        """Return values and deviations along the path of each experiment."""
        return [
            chain_likelihood.track(mode)[1:]
            for chain_likelihood, mode in zip(self.chains, evaluation.modes, strict=True)
        ]


def _root(y: Array, covariance: Array, log: Mask) -> list[Array]:
    """Return columns of a root of the covariance, by decreasing relative deviation.

    A column for each quantity of non-finite variance follows.
    """
    free = np.isfinite(np.diag(covariance))
    sizes = np.where(log, 1.0, np.maximum(np.abs(y), 1e-300))
    spread = np.where(free, np.sqrt(np.where(free, np.diag(covariance), 0.0)) / sizes, -1.0)
    order = np.argsort(-spread, kind="stable")[: int(free.sum())]
    root = np.linalg.cholesky(covariance[np.ix_(order, order)]) if order.size else np.empty((0, 0))
    columns = np.zeros((order.size, y.size))
    columns[:, order] = root.T
    return [*columns, *np.diag(_INITIAL_WIDTH_FRACTION * sizes)[~free]]


def _shift_quantities(y: Array, shift: Array, log: Mask) -> Array:
    """Shift y: along a line for general quantities, along a line in the squares for positive ones."""
    with np.errstate(divide="ignore"):
        return np.where(log, y + 0.5 * np.log(np.maximum(1.0 + 2.0 * np.where(log, shift, 0.0), 0.0)), y + shift)
