"""A pool of distinct members, and the moves that make new candidates of them.

redraw       one coordinate, or some, are drawn anew between the limits
gaussian     all are moved, by 10^U(-1, 1/2) units of the search times a normal deviate
crossover    each coordinate comes from one of two members
differential x + U(0.3, 1) (a - b) of three members, each coordinate with probability 0.7  (Storn and Price 1997)

The first two start at the best member every other time: where descents end on floors of long valleys, a leap from the
lowest of them often lands on a lower one, hundreds of steps ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from castfit._array import Array
    from castfit.priors import PriorDistribution

SIZE = 15
_GREED = 0.5  # how often what is moved is the best
_SOME = 0.3  # of the coordinates
_SAME = 1e-3  # root mean square distance, in widths of the limits
_ALIKE = 0.1  # of costs, in the logarithm of a likelihood


@dataclass(frozen=True)
class Uneven:
    """A quantity, by its place, that is drawn from a distribution of its natural value, within limits of the search."""

    place: int
    distribution: PriorDistribution
    log: bool

    def value(self, u: float, lower: float, upper: float) -> float:
        """Return the value in search scale below which another one lies with probability u."""
        ends = (lower, upper) if not self.log else (math.exp(lower), math.exp(upper))
        low, high = (self.distribution.cdf(end) for end in ends)
        natural = self.distribution.ppf(low + u * (high - low))
        natural = min(max(natural, ends[0]), ends[1])
        return min(max(math.log(natural) if self.log else natural, lower), upper)


@dataclass(frozen=True)
class Field:
    """Where candidates may be: limits and one unit of the search for every quantity, (n,) each.

    `uneven` says which are not drawn evenly between their limits.
    """

    lower: Array
    upper: Array
    unit: Array
    uneven: tuple[Uneven, ...] = ()

    def draw(self, rng: np.random.Generator) -> Array:
        """Draw between the limits."""
        u = rng.random(self.lower.size)
        theta = self.lower + (self.upper - self.lower) * u
        for of in self.uneven:
            j = of.place
            theta[j] = of.value(float(u[j]), float(self.lower[j]), float(self.upper[j]))
        return theta

    def inside(self, theta: Array) -> Array:
        """Return what lies within the limits."""
        return np.clip(theta, self.lower, self.upper)


@dataclass(frozen=True)
class Member:
    """A point of the pool."""

    theta: Array
    cost: float


def joined(pool: Sequence[Member], new: Member, field: Field, *, size: int = SIZE) -> tuple[Member, ...]:
    """Return the pool with a member more, the best first; of those that are alike only the better one stays."""
    if not np.isfinite(new.cost):
        return tuple(pool)
    width = np.where(field.upper > field.lower, field.upper - field.lower, 1.0)
    out: list[Member] = []
    for member in sorted((*pool, new), key=lambda m: m.cost):
        near = (float(np.sqrt(np.mean(((member.theta - m.theta) / width) ** 2))) < _SAME for m in out)
        alike = (abs(member.cost - m.cost) < _ALIKE * 1e-2 for m in out)
        if not any(near) and not any(alike):
            out.append(member)
    return tuple(out[:size])


def redraw(pool: Sequence[Member], field: Field, rng: np.random.Generator) -> Array:
    """Draw one coordinate of a member anew, or some."""
    x = _one(pool, rng)
    some = rng.random(x.size) < rng.choice([0.0, _SOME])
    some[rng.integers(x.size)] = True
    return np.where(some, field.draw(rng), x)


def gaussian(pool: Sequence[Member], field: Field, rng: np.random.Generator) -> Array:
    """Move all coordinates of a member by normal deviates."""
    size = 10 ** rng.uniform(-1.0, 0.5)
    return field.inside(_one(pool, rng) + size * field.unit * rng.standard_normal(field.unit.size))


def crossover(pool: Sequence[Member], field: Field, rng: np.random.Generator) -> Array:
    """Take each coordinate from one of two members."""
    a, b = _some(pool, 2, rng)
    return np.where(rng.random(a.size) < 0.5, a, b)


def differential(pool: Sequence[Member], field: Field, rng: np.random.Generator) -> Array:
    """Move a member along the difference of two others."""
    x, a, b = _some(pool, 3, rng)
    moved = field.inside(x + rng.uniform(0.3, 1.0) * (a - b))
    return np.where(rng.random(x.size) < 0.7, moved, x)


Move = Callable[[Sequence[Member], Field, np.random.Generator], "Array"]
MOVES: dict[str, tuple[Move, int]] = {
    "redraw": (redraw, 1),
    "gaussian": (gaussian, 1),
    "crossover": (crossover, 2),
    "differential": (differential, 3),
}
"""The moves, and how many members each of them needs."""


def _one(pool: Sequence[Member], rng: np.random.Generator) -> Array:
    """Choose the best member every other time, else the better of two that are drawn: the pool is sorted."""
    if rng.random() < _GREED:
        return pool[0].theta
    return pool[int(rng.integers(len(pool), size=2).min())].theta


def _some(pool: Sequence[Member], count: int, rng: np.random.Generator) -> list[Array]:
    return [pool[int(i)].theta for i in rng.choice(len(pool), size=count, replace=False)]
