"""The race: candidates are looked at on their way, and those that are worse than most before them are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Costs = tuple[float, float]
"""Of a candidate at its two looks (`castfit.fit.start.local_search.LOOKS`); NaN where it had ended."""


@dataclass(frozen=True)
class Race:
    """Who is worse at a look than the median of the last `memory` candidates is dropped, from the `fewest`-th on.

    Few candidates say little of what is usual; old ones say little of what the pool yields now.
    """

    memory: int = 20
    fewest: int = 6

    def limits(self, seen: Sequence[Costs]) -> Costs:
        """Return the costs above which the next candidate is dropped, given those of all before it."""
        out: list[float] = []
        for k in (0, 1):
            known = [costs[k] for costs in seen if np.isfinite(costs[k])][-self.memory :]
            out.append(float(np.median(known)) if len(known) >= self.fewest else np.inf)
        return out[0], out[1]


OPEN: Costs = (np.inf, np.inf)
"""Limits where nobody is dropped."""
