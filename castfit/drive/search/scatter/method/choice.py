"""Choice of the start of a local search: the best compromise of quality and novelty among points that pass the filters.

merit filter      not much worse than the last start of a local search
distance filter   not where earlier local searches came through

A filter that compares a start with the minima found so far starts again and again at the far ends of long valleys.
The path of a local search tells more: whatever lies close to any point of it leads to the same minimum.  When nothing
has passed for a few generations in a row, both filters are relaxed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array
from castfit.drive.search.scatter.method.members import Member, compute_distances, sort_by_quality, stack_points
from castfit.drive.search.scatter.method.options import ScatterOptions

_NEAR_MINIMUM = 0.75  # of the way from which a minimum was found (Ugray et al. 2007)
_NEAR_PATH = 0.1  # root mean square over the unknowns, in units of their ranges
_WIDTH_SHRINK_FACTOR = 0.5  # factor by which the width of the merit filter shrinks
_MOST_POINTS = 24  # of a path that are kept


@dataclass(frozen=True, eq=False)
class LocalSearchPath:
    """A local search: from where to where, and the points on its way (k, n), both ends included."""

    start: Member
    end: Member
    path: Array


def thin_path(path: Array) -> Array:
    """Return a path of at most a few points, evenly spaced in number, both ends included."""
    if len(path) <= _MOST_POINTS:
        return path
    return path[np.unique(np.linspace(0, len(path) - 1, _MOST_POINTS).round().astype(int))]


def path_distances(X: Array, path: Array) -> Array:
    """Return the distance from each row of X (k, n) to a path of straight segments (l, n), (k,)."""
    if len(path) == 1:
        return compute_distances(X, path)[:, 0]
    A, D = path[:-1], np.diff(path, axis=0)
    length = np.maximum((D**2).sum(axis=1), np.finfo(float).tiny)
    fractions = np.einsum("kln,ln->kl", X[:, None, :] - A[None], D) / length
    foot = A[None] + np.clip(fractions, 0.0, 1.0)[:, :, None] * D[None]
    return np.sqrt(((X[:, None, :] - foot) ** 2).sum(axis=2)).min(axis=1)


def memory_distances(X: Array, climbs: Sequence[LocalSearchPath]) -> Array:
    """Return the distance from each row of X to all that earlier searches passed, (k,); inf if there were none."""
    return np.min([np.full(len(X), np.inf), *(path_distances(X, climb.path) for climb in climbs)], axis=0)


def is_near_paths(X: Array, climbs: Sequence[LocalSearchPath], radius: float) -> NDArray[np.bool_]:
    """Return a mask of the rows of X within `radius` (root mean square over the unknowns) of an earlier path, (k,)."""
    return memory_distances(X, climbs) < radius * np.sqrt(X.shape[1])


def is_near_minima(X: Array, climbs: Sequence[LocalSearchPath], factor: float) -> NDArray[np.bool_]:
    """Return a mask of the rows of X closer to a known minimum than `factor` times the distance of its start, (k,).

    This is the distance filter of SSm (after Ugray et al. 2007, INFORMS J. Comput. 19, 328).
    """
    is_near = np.zeros(len(X), dtype=bool)
    for climb in climbs:
        path_length = float(np.linalg.norm(climb.start.x - climb.end.x))
        is_near |= compute_distances(X, climb.end.x[None])[:, 0] < factor * path_length
    return is_near


@dataclass(frozen=True)
class FilterState:
    """The state of both filters.

    threshold : float
        The worst value that passes the merit filter.
    width : float
        The distance filter's width, relative to its first one.
    refusals : int
        Generations in a row in which nothing passed.
    """

    threshold: float = np.inf
    width: float = 1.0
    refusals: int = 0

    def with_accepted(self, start: Member) -> FilterState:
        """Return the filters after a start was chosen: the next one must be as good."""
        return replace(self, threshold=start.f, refusals=0)

    def with_refusal(self, wait: int) -> FilterState:
        """Return the filters after nothing passed; after `wait` times they are relaxed."""
        if self.refusals + 1 < wait:
            return replace(self, refusals=self.refusals + 1)
        return FilterState(np.inf, self.width * _WIDTH_SHRINK_FACTOR, 0)


def filter_candidates(
    candidates: Sequence[Member], climbs: Sequence[LocalSearchPath], filters: FilterState, options: ScatterOptions
) -> list[Member]:
    """Return the candidates that pass both filters, the best first."""
    pool = [m for m in sort_by_quality(candidates) if np.isfinite(m.f)]
    if options.merit_filter:
        pool = [m for m in pool if m.f <= filters.threshold]
    if not pool or not climbs or options.distance_filter == "none":
        return pool
    X = stack_points(pool, pool[0].x.size)
    if options.distance_filter == "minima":
        near_mask = is_near_minima(X, climbs, filters.width * _NEAR_MINIMUM)
    else:
        near_mask = is_near_paths(X, climbs, filters.width * _NEAR_PATH)
    return [m for m, is_near in zip(pool, near_mask, strict=True) if not is_near]


def choose_start(pool: Sequence[Member], climbs: Sequence[LocalSearchPath], balance: float) -> Member:
    """Return the member with the least  (1 - balance) rank in quality + balance rank in novelty  (eSS).

    Novelty is the distance from all that earlier local searches passed.
    """
    order = sort_by_quality(pool)
    if not climbs:
        return order[0]
    path_distance = memory_distances(stack_points(order, order[0].x.size), climbs)
    novelty = np.empty(len(order))
    novelty[np.argsort(-path_distance, kind="stable")] = np.arange(len(order))
    return order[int(np.argmin((1.0 - balance) * np.arange(len(order)) + balance * novelty))]
