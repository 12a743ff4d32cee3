"""Profiles held against each other: whatever one of them passed is an upper bound of all others.

Along the profile of one quantity every other one takes values too.  Where the objective there is below the curve of
that other quantity, another optimum is lower than the one that was followed, although that one never ended: a kink that
no step along the curve can notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.drive.uncertainty.profile.limits import at, joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from castfit._support.arrays import Array
    from castfit.drive.uncertainty.profile.targets import Target
    from castfit.drive.uncertainty.profile.tasks import Followed

_BELOW = 0.05  # of the highest threshold: what is lower by less may be interpolation


def patches(targets: Sequence[Target], sides: Mapping[int, Followed | None], top: float) -> list[tuple[int, Array]]:
    """Return from where to follow again: a target's position, and theta at the point farthest below its curve.

    Sides 2k and 2k + 1 are those of target k, the others branches from elsewhere; what is above `top` does not matter.
    """
    points = [
        (theta, float(delta))
        for side in sides.values()
        if side is not None
        for branch in side.branches
        for theta, delta in zip(branch.theta, branch.delta, strict=True)
        if delta <= top
    ]
    out: list[tuple[int, Array]] = []
    for k, target in enumerate(targets):
        both = [sides.get(2 * k), sides.get(2 * k + 1)]
        if any(side is None or not side.branches for side in both):
            continue
        below, above = (side.branches for side in both if side is not None)
        curves = [joined(below[0], above[0]), *below[1:], *above[1:]]
        c = np.array([target.coordinate_of(theta) for theta, _ in points])
        known = np.isfinite(c)
        if not known.any():
            continue
        height = np.min([at(curve, np.where(known, c, np.nan)) for curve in curves], axis=0)
        height = np.where(np.isfinite(height), height, top)  # where it was not followed, as it is excluded there
        deficit = np.where(known, height - np.array([delta for _, delta in points]), 0.0)
        worst = int(np.argmax(deficit))
        if deficit[worst] > _BELOW * top:
            out.append((k, points[worst][0]))
    return out
