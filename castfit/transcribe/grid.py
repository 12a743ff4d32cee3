"""Where measurements fall on a grid of stages.

Stage k covers [edges[k], edges[k+1]]; a measurement on an inner edge belongs to the stage that ends there.  Every
stage holds the same number M of points; a stage with fewer is padded with points of weight zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit.status import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem import Condition

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Staging:
    """The measurements of one experiment, arranged by stage.

    Attributes
    ----------
    edges : (K + 1,) array
        Stage boundaries.
    tau : (K, M) array
        Relative position of each point in its stage, in [0, 1], increasing; padding stands at 1.
    values : (K, M, n_outputs) array
        Measured values, 0 where nothing was measured.
    weight : (K, M, n_outputs) array
        1 / sigma, 0 where nothing was measured.
    """

    edges: Array
    tau: Array
    values: Array
    weight: Array

    @property
    def start(self) -> Array:
        """Start time of each stage, (K,)."""
        return self.edges[:-1]

    @property
    def duration(self) -> Array:
        """Length of each stage, (K,)."""
        return np.diff(self.edges)

    @property
    def times(self) -> Array:
        """Time of each point, (K, M)."""
        return self.start[:, None] + self.tau * self.duration[:, None]

    @property
    def row_mask(self) -> NDArray[np.bool_]:
        """True where a residual row is a measurement, (K, M * n_outputs)."""
        return (self.weight > 0).reshape(self.weight.shape[0], -1)


def arrange(condition: Condition, edges: Array) -> Staging:
    """Assign every measurement to a stage."""
    points = condition.points
    mask = points.mask
    snapped = snap(points.times, edges)
    stage = np.clip(np.searchsorted(edges, snapped, side="left") - 1, 0, edges.size - 2)
    stages = edges.size - 1
    counts = np.bincount(stage, minlength=stages)
    position = np.arange(stage.size) - np.concatenate([[0], np.cumsum(counts)])[stage]
    shape = (stages, int(counts.max()))
    tau = np.ones(shape)
    tau[stage, position] = (snapped - edges[stage]) / np.diff(edges)[stage]
    values = np.zeros((*shape, points.values.shape[1]))
    weight = np.zeros_like(values)
    values[stage, position] = np.where(mask, points.values, 0.0)
    weight[stage, position] = np.where(mask, 1.0 / points.sigma, 0.0)
    return Staging(edges, tau, values, weight)


def snap(times: Array, edges: Array) -> Array:
    """Move times that differ from an edge by rounding only onto that edge."""
    near = np.clip(np.searchsorted(edges, times), 1, edges.size - 1)
    near = np.where(np.abs(edges[near - 1] - times) < np.abs(edges[near] - times), near - 1, near)
    close = np.abs(edges[near] - times) <= 1e-9 * (edges[-1] - edges[0])
    return np.where(close, edges[near], times)


def merge(*groups: Array) -> Array:
    """Sort and unite times, treating times that differ by rounding only as one."""
    every = np.unique(np.concatenate(groups))
    keep = np.concatenate([[True], np.diff(every) > 1e-9 * (every[-1] - every[0])])
    return every[keep]


def uniform_or_given(condition: Condition, intervals: int | str | Array, *, what: str) -> Array:
    """Return stage boundaries: an equal division, the measured times, or the given times within the horizon.

    Raises
    ------
    InputError
        If `intervals` is neither a positive integer, nor "data", nor increasing times.
    """
    start, end = condition.start, condition.end
    if isinstance(intervals, str):
        if intervals != "data":
            raise InputError(what, [f"'{intervals}' is not known; give a number, 'data', or an array of times"])
        return merge(np.array([start]), condition.points.times)
    if np.ndim(intervals) == 0:
        return np.linspace(start, end, int(intervals) + 1)
    inner = np.asarray(intervals, dtype=float)
    return merge(np.array([start, end]), inner[(inner > start) & (inner < end)])
