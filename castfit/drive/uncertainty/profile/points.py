"""Solutions with something held, the branches that they make, and how far to follow them.

c      coordinate of what is held
delta  2 (cost(c) - cost of the best fit), a difference of -2 log L
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from castfit._support.arrays import Array

CROSSED, BOUND, FAR, ZERO, LOST, JUMP, CUT, INTERRUPTED, BEYOND = (
    "crossed", "bound", "far", "zero", "lost", "jump", "cut off", "interrupted", "beyond"
)  # fmt: skip
"""Why a branch ends."""

REPRODUCED = 0.05  # of the threshold: an error of the objective that moves a limit by a fortieth of its distance
_AT_LEVEL = 0.02  # relative: this spot was made for the threshold


@dataclass(frozen=True, eq=False)
class Spot:
    """A solution with the coordinate held.

    slope, curvature : first and second derivative of delta by c, the latter that of the linearized problem
    v, tangent : (n_v,) the solution and dv/dc
    error : by how much delta is another one when the model is integrated with error control; NaN where nobody looked
    """

    c: float
    delta: float
    slope: float
    curvature: float
    theta: Array
    v: Array
    tangent: Array
    error: float = np.nan


@dataclass(frozen=True, eq=False)
class Branch:
    """Solutions along one optimum, in the order of c, and why it ends on either side.

    c, delta, slope : (n,);  theta : (n, n_theta)
    ends : below and above, each why the branch ends there
    error : (n,) by how much delta is another one when the model is integrated with error control, infinite where the
        integration does not reproduce the solution; NaN where nobody looked
    """

    c: Array
    delta: Array
    slope: Array
    theta: Array
    ends: tuple[str, str]
    error: Array = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, spots: list[Spot], ends: tuple[str, str]) -> Branch:
        """Put spots in order."""
        rows = sorted(spots, key=lambda s: s.c)
        return cls(
            np.array([s.c for s in rows]),
            np.array([s.delta for s in rows]),
            np.array([s.slope for s in rows]),
            np.array([s.theta for s in rows]),
            ends,
            np.array([s.error for s in rows]),
        )

    def reproduced(self, c: float, top: float) -> bool:
        """Whether the objective stands at c, to a small part of the threshold, if anybody looked there."""
        if self.error.size != self.c.size:
            return True
        looked = np.flatnonzero(~np.isnan(self.error))
        if looked.size == 0:
            return True
        near = looked[int(np.argmin(np.abs(self.c[looked] - c)))]
        there = abs(self.delta[near] - top) <= _AT_LEVEL * top or self.c[near] == c
        return not there or bool(abs(self.error[near]) <= REPRODUCED * top)


@dataclass(frozen=True)
class Goal:
    """How far to follow.

    thresholds : ascending, of delta
    everywhere : whether to go on beyond them, to the bounds
    reach : how far is far: so many times the value, or by this factor of it
    parts : in how many steps the root of the objective comes to that of the highest threshold
    """

    thresholds: tuple[float, ...]
    everywhere: bool = False
    reach: float = 1e4
    parts: int = 4

    @property
    def top(self) -> float:
        """The highest threshold."""
        return self.thresholds[-1]


@dataclass(frozen=True, eq=False)
class Traced:
    """What following one side gave.

    better : theta of a better fit, where one was found
    valleys : theta where the objective had another minimum along the path
    """

    branches: tuple[Branch, ...]
    better: Array | None = None
    valleys: tuple[Array, ...] = ()


def crossing(a: tuple[float, float, float], b: tuple[float, float, float], level: float) -> float:
    """Return where between two points (c, delta, slope) delta is at a level.

    In the root of delta, of which c is nearly a linear function: exact for a parabola about zero.
    """
    (ca, da, sa), (cb, db, sb) = a, b
    za, zb, z = (np.sqrt(max(d, 0.0)) for d in (da, db, level))
    if zb == za:
        return 0.5 * (ca + cb)
    t = (z - za) / (zb - za)
    straight = ca + t * (cb - ca)
    # dc/dz = 2 z / slope; Hermite's cubic where both are of the right sign and size
    with np.errstate(all="ignore"):
        ga, gb = (2.0 * zz / s * (zb - za) for zz, s in ((za, sa), (zb, sb)))
    width = cb - ca
    if not (np.isfinite(gb) and 0.2 < gb / width < 5.0):
        return float(straight)
    if not (np.isfinite(ga) and 0.2 < ga / width < 5.0):  # at the minimum itself
        ga = 2.0 * width - gb
    t2, t3 = t * t, t * t * t
    c = (2 * t3 - 3 * t2 + 1) * ca + (t3 - 2 * t2 + t) * ga + (3 * t2 - 2 * t3) * cb + (t3 - t2) * gb
    low, high = sorted((ca, cb))
    return float(c) if low <= c <= high else float(straight)
