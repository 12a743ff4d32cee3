"""Which point deserves a local search: the best compromise of quality and novelty among those that pass the filters.

merit filter      not much worse than the last start of a local search
distance filter   not where earlier local searches came through (see `castfit.drive.search.scatter.method.basin_filter`)

When nothing has passed for a few generations in a row, both filters are relaxed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from castfit.drive.search.scatter.method.basin_filter import Climb, memory_distances, near_minima, near_paths
from castfit.drive.search.scatter.method.members import Member, points, ranked
from castfit.drive.search.scatter.method.options import ScatterOptions

_NEAR_MINIMUM = 0.75  # of the way from which a minimum was found (Ugray et al. 2007)
_NEAR_PATH = 0.1  # root mean square over the unknowns, in units of their ranges
_SHRINK = 0.5


@dataclass(frozen=True)
class Filters:
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

    def accepted(self, start: Member) -> Filters:
        """Return the filters after a start was chosen: the next one must be as good."""
        return replace(self, threshold=start.f, refusals=0)

    def refused(self, wait: int) -> Filters:
        """Return the filters after nothing passed; after `wait` times they are relaxed."""
        if self.refusals + 1 < wait:
            return replace(self, refusals=self.refusals + 1)
        return Filters(np.inf, self.width * _SHRINK, 0)


def passing(
    candidates: Sequence[Member], climbs: Sequence[Climb], filters: Filters, options: ScatterOptions
) -> list[Member]:
    """Return the candidates that pass both filters, the best first."""
    pool = [m for m in ranked(candidates) if np.isfinite(m.f)]
    if options.merit_filter:
        pool = [m for m in pool if m.f <= filters.threshold]
    if not pool or not climbs or options.distance_filter == "none":
        return pool
    X = points(pool, pool[0].x.size)
    if options.distance_filter == "minima":
        near = near_minima(X, climbs, filters.width * _NEAR_MINIMUM)
    else:
        near = near_paths(X, climbs, filters.width * _NEAR_PATH)
    return [m for m, is_near in zip(pool, near, strict=True) if not is_near]


def choose(pool: Sequence[Member], climbs: Sequence[Climb], balance: float) -> Member:
    """Return the member with the least  (1 - balance) rank in quality + balance rank in novelty  (eSS).

    Novelty is the distance from all that earlier local searches passed.
    """
    order = ranked(pool)
    if not climbs:
        return order[0]
    far = memory_distances(points(order, order[0].x.size), climbs)
    novelty = np.empty(len(order))
    novelty[np.argsort(-far, kind="stable")] = np.arange(len(order))
    return order[int(np.argmin((1.0 - balance) * np.arange(len(order)) + balance * novelty))]
