"""Where measurements fall on a grid of stages.

Stage k covers [edges[k], edges[k+1]]; a measurement on an inner edge belongs to the stage that ends there.  Every
stage holds the same number M of points; a stage with fewer is padded with points of weight zero.  Times are exact:
only those that differ by a few units in the last place are one, because one of them was computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import reals, text
from castfit.integrate.grids import merge, snap
from castfit._support.status import check

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem.conditions import Condition

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

_OCCUPIED = 0.5  # equal intervals of which fewer hold data are no good division ...
_SLIVER = 1e-9  # of an interval: data that are so near to a boundary of equal division are on it
_EARLY = 1e-2  # ... where the data begin as early in the first of them


@dataclass(frozen=True)
class Staging:
    """The measurements of one experiment, arranged by stage.

    Attributes
    ----------
    edges : (K + 1,) array
        Stage boundaries.
    tau : (K, M) array
        Relative position of each point in its stage, in [0, 1], increasing; padding stands at 1, or, where all data
        are read where stages begin, at 0.
    values : (K, M, n_outputs) array
        Measured values, 0 where nothing was measured.
    weight : (K, M, n_outputs) array
        1 / sigma, 0 where nothing was measured.
    times : (K, M) array
        Time of each point, of padding too.
    real : (K, M) bool array
        True where a point is no padding: something is measured there, or watched.
    """

    edges: Array
    tau: Array
    values: Array
    weight: Array
    times: Array
    real: Mask

    @property
    def start(self) -> Array:
        """Start time of each stage, (K,)."""
        return self.edges[:-1]

    @property
    def duration(self) -> Array:
        """Length of each stage, (K,)."""
        return np.diff(self.edges)

    @property
    def row_mask(self) -> Mask:
        """True where a residual row is a measurement, (K, M * n_outputs)."""
        return (self.weight > 0).reshape(self.weight.shape[0], -1)

    @property
    def first(self) -> Mask:
        """True at measured points that are neither padding nor a replicate of the point before, (K, M)."""
        measured: Mask = np.logical_or.reduce(self.weight > 0, axis=2)
        return measured & self.distinct

    @property
    def distinct(self) -> Mask:
        """True at points that are neither padding nor at the time of the point before, (K, M)."""
        apart = self.real.copy()
        apart[:, 1:] &= self.tau[:, 1:] != self.tau[:, :-1]
        return apart

    @property
    def sizes(self) -> Array:
        """Absolute measured values, in standard deviations, (K, M * n_outputs)."""
        return (np.abs(self.values) * self.weight).reshape(self.weight.shape[0], -1)

    @property
    def signal(self) -> Array:
        """Mean absolute value of each output over the experiment, in standard deviations, (K, M * n_outputs)."""
        measured = self.weight > 0
        count = np.maximum(measured.sum(axis=(0, 1)), 1)
        mean = np.abs(self.values).sum(axis=(0, 1)) / count
        return (mean * self.weight).reshape(self.weight.shape[0], -1)


def arrange(condition: Condition, edges: Array, after: Mask | None = None, *, starts: bool = False) -> Staging:
    """Assign every measured or watched time to a stage; where `after` is True, to the last one that ends there.

    With `starts` every such time is a boundary, and measurements belong to the stage that begins there.
    """
    points = condition.watched_points
    mask = points.mask
    snapped = snap(points.times, edges)
    ends = np.searchsorted(edges, snapped, side="left")
    if after is not None and after.any():
        late = np.isin(snapped, edges[after])
        ends[late] = np.searchsorted(edges, snapped[late], side="right") - 1
    stage = np.clip(ends if starts else ends - 1, 0, edges.size - 2)
    stages = edges.size - 1
    counts = np.bincount(stage, minlength=stages)
    position = np.arange(stage.size) - np.concatenate([[0], np.cumsum(counts)])[stage]
    shape = (stages, int(counts.max()))
    padding = edges[:-1] if starts else edges[1:]
    tau, times = np.full(shape, 0.0 if starts else 1.0), np.repeat(padding[:, None], shape[1], axis=1)
    length = np.diff(edges)[stage]
    tau[stage, position] = np.where(length > 0.0, (snapped - edges[stage]) / np.where(length > 0.0, length, 1.0), 1.0)
    times[stage, position] = snapped
    real = np.zeros(shape, dtype=np.bool_)
    real[stage, position] = True
    values = np.zeros((*shape, points.values.shape[1]))
    weight = np.zeros_like(values)
    values[stage, position] = np.where(mask, points.values, 0.0)
    weight[stage, position] = np.where(mask, 1.0 / points.sigma, 0.0)
    return Staging(edges, tau, values, weight, times, real)


def interval_mistakes(what: str, intervals: Any, *, words: tuple[str, ...] = ("data",)) -> list[str]:
    """Check stage boundaries that are given as a number, a word, or times."""
    listing = ", ".join(f"'{word}'" for word in words)
    remedy = f"give a positive integer, {listing}, or increasing times"
    if isinstance(intervals, str):
        return [] if intervals in words else [f"{what} is '{intervals}'; {remedy}"]
    times = reals(intervals)
    if times is not None and times.ndim == 0 and np.isfinite(times) and times == np.floor(times):
        return [] if times >= 1 else [f"{what} is {intervals}; {remedy}"]
    if times is None or times.ndim != 1 or times.size == 0 or not np.isfinite(times).all():
        return [f"{what} is {text(intervals)}; {remedy}"]
    return [] if (np.diff(times) > 0).all() else [f"the times in {what} do not increase; sort them"]


def uniform_or_given(condition: Condition, intervals: int | str | Array, *, what: str) -> Array:
    """Return stage boundaries: a division into a number, the measured times, or the given times within the horizon.

    The division into a number is into equal parts; where that would leave most of them without data although there are
    enough, as for times that span decades, it is into parts with equal numbers of measured times.

    Raises
    ------
    InputError
        If `intervals` is neither a positive integer, nor "data", nor increasing times.
    """
    check(what, interval_mistakes(what, intervals))
    start, end = condition.start, condition.end
    if isinstance(intervals, str):
        return merge(np.array([start, end]), condition.points.times)
    if np.ndim(intervals) == 0:
        return _divide(start, np.unique(np.append(condition.points.times, end)), int(intervals))
    inner = np.asarray(intervals, dtype=float)
    return merge(np.array([start, end]), inner[(inner > start) & (inner < end)])


def _divide(start: float, times: Array, n: int) -> Array:
    """Divide from the start to the last of the measured times into n parts, or fewer where fewer times are measured."""
    equal = np.linspace(start, float(times[-1]), n + 1)
    later = times[times > start]
    occupied = np.unique(np.searchsorted(equal, snap(later, equal), side="left")).size
    if occupied >= _OCCUPIED * min(n, later.size) or later[0] - start > _EARLY * (equal[1] - start):
        # Times that were computed, by a cumulative sum for instance, may miss the boundary that they mean.
        equal[1:-1] = snap(equal[1:-1], times, _SLIVER * (equal[1] - start))
        return equal
    marks = merge(np.array([start]), later)
    return marks[np.unique(np.linspace(0, marks.size - 1, n + 1).round().astype(np.intp))]
