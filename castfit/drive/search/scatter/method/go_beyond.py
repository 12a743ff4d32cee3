"""Going beyond (eSS): a child that outdoes its parent is followed further in the same direction while that helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from castfit._support.arrays import Array
from castfit.drive.search.scatter.method.members import Member, enrol

_LONGER_AFTER = 2  # improvements in a row, then the region doubles


def further(parent: Array, child: Array, reach: float, rng: np.random.Generator) -> Array:
    """Draw a point (n,) in the box between the child and  child + reach (child - parent)."""
    return np.clip(child + reach * rng.random(child.size) * (child - parent), 0.0, 1.0)


def beyond(
    lines: Sequence[tuple[Member, Member]],
    values: Callable[[Array], Array],
    first: int,
    rng: np.random.Generator,
) -> tuple[Member, ...]:
    """Follow lines (parent, better child), all of them at once; return what was found on the way.

    `values` maps points (k, n) to values (k,), `first` is the number of the first new member.
    """
    found: list[Member] = []
    going = [(parent, child, 1.0, 1) for parent, child in lines]
    while going:
        X = np.array([further(parent.x, child.x, reach, rng) for parent, child, reach, _ in going])
        new = enrol(X, values(X), first + len(found))
        found += new
        ahead: list[tuple[Member, Member, float, int]] = []
        for (_, child, reach, improvements), z in zip(going, new, strict=True):
            if z.f < child.f:
                longer = improvements + 1 == _LONGER_AFTER
                ahead.append((child, z, 2.0 * reach if longer else reach, 0 if longer else improvements + 1))
        going = ahead
    return tuple(found)


def better_children(born: Sequence[tuple[Member, Member]]) -> list[tuple[Member, Member]]:
    """Return, per parent, the best child that is better than it, from pairs (parent, child)."""
    best: dict[int, tuple[Member, Member]] = {}
    for parent, child in born:
        known = best.get(parent.number)
        if child.f < parent.f and (known is None or child.rank < known[1].rank):
            best[parent.number] = (parent, child)
    return list(best.values())
