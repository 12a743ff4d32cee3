"""Members: points of the unit cube with their values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array


@dataclass(frozen=True, eq=False)
class Member:
    """A point x (n,) of the unit cube, its value f (inf where it has none), and a number that tells it from others."""

    x: Array
    f: float
    number: int

    def __post_init__(self) -> None:
        """Lock a copy of the point."""
        x = np.array(self.x, dtype=float)
        x.flags.writeable = False
        object.__setattr__(self, "x", x)

    @property
    def rank(self) -> tuple[float, int]:
        """The lower the better; of equal values the older one."""
        return self.f, self.number


def sort_by_quality(members: Iterable[Member]) -> tuple[Member, ...]:
    """Sort by quality, the best first."""
    return tuple(sorted(members, key=lambda member: member.rank))


def make_members(X: Array, values: Array, first_number: int) -> tuple[Member, ...]:
    """Make members of points X (k, n) and values (k,), numbered from `first_number`."""
    return tuple(
        Member(x, float(f) if np.isfinite(f) else np.inf, first_number + i)
        for i, (x, f) in enumerate(zip(X, values, strict=True))
    )


def stack_points(members: Sequence[Member], n: int) -> Array:
    """Return the members' points as rows, (k, n)."""
    return np.array([member.x for member in members], dtype=float).reshape(len(members), n)


def compute_distances(X: Array, Y: Array) -> Array:
    """Return the Euclidean distances between rows of X (k, n) and of Y (l, n), (k, l)."""
    return np.sqrt(((X[:, None, :] - Y[None, :, :]) ** 2).sum(axis=2))
