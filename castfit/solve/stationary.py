"""Whether a point is stationary, whatever method came there: the last word on "converged".

Methods judge by their own means: a step that is small because directions are held, a function that falls no more, a
multiplier test in units of their own.  Here the linear model at the end is minimised once more, exactly, within the
bounds and one unit of the search (an e-fold of what is on logarithmic scale), with nothing held and no column scaled
up.  What that promises is at least the projected gradient's share in every direction; at a solution it is nothing
beside half the squares of the residuals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.local import LocalProblem, small
from castfit.solve.rescue import RESCUE

if TYPE_CHECKING:
    from castfit.staged import Linearization, StagedProblem

_MATERIAL = 0.1  # of the largest share: what else is named
_NAMED = 3


def still_falls(staged: StagedProblem, linear: Linearization) -> tuple[str, ...]:
    """Name the quantities along which the cost still falls by more than a solution allows; empty at a solution."""
    with np.errstate(over="ignore", invalid="ignore"):
        local = LocalProblem(staged, linear)
        if not local.finite:
            return ()  # nothing can be told
        step = local.within(1.0)
        if small(staged, linear, step.decrease, RESCUE.stationary):
            return ()
        positions = local.condensed.positions
        share = np.abs(local.condensed.rows.transposed(local.condensed.u) * step.dv[positions])
    order = np.argsort(-share)[:_NAMED]
    return tuple(staged.layout.describe(int(positions[j])) for j in order if share[j] >= _MATERIAL * share[order[0]])
