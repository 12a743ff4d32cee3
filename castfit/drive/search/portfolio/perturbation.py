"""A pool of families, and the move that makes new candidates of their heads.

A candidate from a start of its own founds a family.  What a move makes of its head goes down, and takes its place if it
ends lower, and nobody else's: families do not crowd each other out, and each of them walks down its own valley, from
one floor to the next.

A move shifts all coordinates by 10^U(-2, 0.3) units of the search times a normal deviate.  Mostly one of the three best
families is moved: one alone would be tried in vain where it cannot get any lower.

To draw some coordinates anew, to cross two heads, and Storn and Price's differences of two others (1997) found nothing
sooner, besides this move, on any model of which it was measured (docs/compared/measured.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.drive.search.portfolio.limits import Field

FAMILIES = 3  # the best ones are moved
_SIZE = 15
_OTHERS = 0.2  # how often it is any of the pool
_SAME = 1e-3  # root mean square distance, in widths of the limits
_ALIKE = 0.1  # of costs, in the logarithm of a likelihood


@dataclass(frozen=True)
class FamilyHead:
    """The head of a family.

    family : the candidate that founded it
    """

    theta: Array
    cost: float
    family: int = 0


def joined(pool: Sequence[FamilyHead], new: FamilyHead, field: Field) -> tuple[FamilyHead, ...]:
    """Return the pool with a member more, the best first; of those that are alike only the better one stays."""
    if not np.isfinite(new.cost):
        return tuple(pool)
    width = np.where(field.upper > field.lower, field.upper - field.lower, 1.0)
    out: list[FamilyHead] = []
    for member in sorted((*pool, new), key=lambda m: m.cost):
        near = (float(np.sqrt(np.mean(((member.theta - m.theta) / width) ** 2))) < _SAME for m in out)
        alike = (abs(member.cost - m.cost) < _ALIKE or member.family == m.family for m in out)
        if not any(near) and not any(alike):
            out.append(member)
    return tuple(out[:_SIZE])


def chosen(pool: Sequence[FamilyHead], rng: np.random.Generator, families: int = FAMILIES) -> FamilyHead:
    """Choose the head that is moved, mostly of the best families; the pool is sorted."""
    return pool[int(rng.integers(len(pool) if rng.random() < _OTHERS else min(families, len(pool))))]


def moved(head: Array, field: Field, rng: np.random.Generator) -> Array:
    """Shift all coordinates by normal deviates."""
    size = 10 ** rng.uniform(-2.0, 0.3)
    return field.inside(head + size * field.unit * rng.standard_normal(head.size))
