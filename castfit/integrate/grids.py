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

_ULPS = 8
_DIGITS = 9  # by which grids are looked up


def rounding(times: Array, origin: float = 0.0) -> Array:
    """Return the difference up to which other times are the same as these, (n,); `origin` is where they count from."""
    return _ULPS * np.spacing(np.maximum(np.abs(times), abs(origin)))


class SharedGrids:
    """Relative grids, one for all those that differ by the rounding of their times."""

    def __init__(self) -> None:
        self._known: dict[tuple[float, ...], list[Array]] = {}

    def share(self, times: Array) -> tuple[float, ...]:
        """Return the output times[1:] (m,) relative to times[0] ... times[-1]; the last one is 1."""
        left, right = times[0], times[-1]
        grid = (times[1:] - left) / (right - left)
        slack = rounding(times[1:], max(abs(left), np.finfo(float).tiny)) / (right - left) + rounding(grid)
        like = self._known.setdefault(tuple(np.round(grid, _DIGITS).tolist()), [])
        for known in like:
            if (np.abs(known - grid) <= slack).all():
                return tuple(known.tolist())
        like.append(grid)
        return tuple(grid.tolist())
