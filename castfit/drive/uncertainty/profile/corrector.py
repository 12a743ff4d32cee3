"""From a point that was predicted to the solution: a few full steps of Gauss and Newton, each watched.

    dv_k        full step from v_k, by the derivatives there
    dv'_k       simplified step from v_k + dv_k, by the same derivatives         (Peifer and Timmer 2007, Eq. 15)

    |dv'_k| <= 1/2 |dv_k|,  or back to the solver         (the natural monotonicity test, for full steps)

Near a path a solve is no more than that, and two linearizations suffice: that of the predicted point, and that of the
solution, which shows that it is one, and by which the path goes on.  All else is left to the solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.homotopy import within_bounds
from castfit.solve.local import GAP, LocalProblem, small
from castfit.solve.solution import Ledger, infeasibility
from castfit.solve.step_control import Search

if TYPE_CHECKING:
    from castfit.solve.local import Step
    from castfit.solve.staged import Array, StagedProblem

_STEPS = 8
_CONTRACTION = 0.5
_SMALL = 2e-4  # of the variables' magnitudes
_ALIGNED = 0.9  # cosine: successive steps in one direction tell how many are to come
_LEAST, _MOST = 0.5, 6.0


@dataclass(frozen=True, eq=False)
class Corrected:
    """A solution v (n_v,), the problem linearized there, and the last small step that it promises."""

    v: Array
    local: LocalProblem
    step: Step


def corrected(ledger: Ledger, staged: StagedProblem, tolerance: float, regularisation: float) -> Corrected | None:
    """Return the solution that is near the start of a staged problem; None if full steps do not lead there.

    Parameters
    ----------
    ledger : Ledger
        Of the staged problem.
    staged : StagedProblem
    tolerance : float
        How much a full step at a solution may promise to lower the cost, relative to half the squares of all rows.
    regularisation : float
        As of `GaussNewton`.

    Raises
    ------
    Stopped
        If the time is over or Ctrl-C was pressed.
    """
    active, last, factor = None, None, 1.0
    v = within_bounds(staged, staged.start)
    for n in range(_STEPS + 1):
        at = ledger.linearize(v)
        if not at.ok:
            return None
        local = LocalProblem(staged, at, warm=active, regularisation=regularisation)
        if not local.finite:
            return None
        step = local.direction()
        moved = step.residuals - local.condensed.u
        factor = 1.0 if last is None else _relaxation(moved, last, factor)
        gap = infeasibility(staged.layout, staged.scale, at)
        if gap <= GAP and small(staged, at, factor * step.decrease, tolerance):
            return Corrected(at.v, local, step)
        if n == _STEPS or not step.feasible:
            return None
        search, bent, trial = Search(ledger, local, step, at, {}), None, at
        if factor * search.norm(step.dv) <= _SMALL:  # the square of that opens no gap
            v = within_bounds(staged, at.v + factor * step.dv)
            active, last = step.active, moved
            continue
        for tried in dict.fromkeys((factor, 1.0)):
            factor = tried
            trial = search.trial(factor * step.dv)
            simplified = local.correction(trial) if trial.ok else None
            # What the simplified step has of its own: nothing, were all linear.
            bent = None if simplified is None else simplified.dv - (1.0 - factor) * step.dv
            if bent is not None and search.norm(bent) <= _CONTRACTION * factor * search.norm(step.dv):
                break
        else:
            return None
        assert bent is not None
        # It closes most of the gaps that the full step has opened.
        v = within_bounds(staged, trial.v + bent)
        active, last = step.active, moved
    return None


def _relaxation(moved: Array, last: Array, factor: float) -> float:
    """Return how many times a full step leads to the solution, by what was left of the one before, in rows (m,)."""
    along, length = float(moved @ last), float(last @ last)
    if not along**2 > _ALIGNED**2 * length * float(moved @ moved):
        return 1.0
    left = along / length
    return float(np.clip(factor / (1.0 - left), _LEAST, _MOST)) if left < 1.0 else 1.0
