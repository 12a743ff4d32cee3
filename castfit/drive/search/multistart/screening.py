"""Starts that are the best of several draws, as simulations of low accuracy tell."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.drive.search.multistart.sampling import Draws
from castfit.fit.start.descent import best_of
from castfit.fit.start.scene import scene_of

if TYPE_CHECKING:
    from castfit.problem.problem import Posable


def screened(problem: Posable, draws: Draws, count: int, deadline: float = np.inf) -> Draws:
    """Return for each start the best of `count` draws; each start draws from its own stream, as without screening.

    What cannot be simulated is worse than anything else.  Starts that the time does not suffice for stay as drawn.
    """
    again = draws.again
    if count < 2 or again is None:
        return draws
    scene = scene_of(problem.posed)
    first: list[dict[str, float]] = []
    with np.errstate(all="ignore"):
        for i, drawn in enumerate(draws.first):
            starts = [drawn, *(again(i) for _ in range(count - 1))]
            if time.time() >= deadline:
                first.append(drawn)
                continue
            k, _ = best_of(scene, [problem.theta_from(start)[scene.places] for start in starts])
            first.append(starts[k])
    return replace(draws, first=tuple(first))
