"""Times that were computed: equal up to rounding means equal.

Measured times are exact.  Boundaries of equal division and breakpoints are computed, and miss the time that is meant
by a few units in the last place; so times that differ by no more than that are one, and relative grids that differ by
no more are one grid, for which one integrator is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_ULPS = 16
_DIGITS = 9  # by which grids are looked up, fewer where rounding is worse


def rounding(times: Array, origin: float = 0.0) -> Array:
    """Return the difference up to which other times are the same as these, (n,); `origin` is where they count from."""
    return _ULPS * np.spacing(np.maximum(np.abs(times), abs(origin)))


def snap(times: Array, edges: Array, reach: float = 0.0) -> Array:
    """Move times that differ from an edge by rounding only, or by less than `reach`, onto that edge."""
    if edges.size < 2:
        if edges.size == 0:
            return times
        edges = np.repeat(edges, 2)
    near = np.clip(np.searchsorted(edges, times), 1, edges.size - 1)
    near = np.where(np.abs(edges[near - 1] - times) < np.abs(edges[near] - times), near - 1, near)
    close = np.abs(edges[near] - times) <= np.maximum(rounding(times, edges[0]), reach)
    return np.where(close, edges[near], times)


def merge(*groups: Array) -> Array:
    """Sort and unite times, treating times that differ by rounding only as one."""
    every = np.unique(np.concatenate(groups))
    # Half of what `snap` bridges, so that whatever is dropped here is still found there.
    keep = np.concatenate([[True], np.diff(every) > 0.5 * rounding(every[1:], every[0])])
    return every[keep]


class SharedGrids:
    """Relative grids, one for all those that differ by the rounding of their times."""

    def __init__(self) -> None:
        self._known: dict[tuple[float, ...], list[Array]] = {}

    def share(self, times: Array) -> tuple[float, ...]:
        """Return the output times[1:] (m,) relative to times[0] ... times[-1]; the last one is 1."""
        left, right = times[0], times[-1]
        grid: Array = (times[1:] - left) / (right - left)
        slack = rounding(times[1:], left) / (right - left) + rounding(grid)
        digits = int(np.clip(np.floor(-np.log10(slack.max())) - 2, 0, _DIGITS))
        like = self._known.setdefault((digits, *np.round(grid, digits).tolist()), [])
        for known in like:
            if (np.abs(known - grid) <= slack).all():
                return tuple(known.tolist())
        like.append(grid)
        return tuple(grid.tolist())
