"""What a Gauss-Newton solve tries next when it gets nowhere, and how it walks through softened problems.

    straight --> second start, if there is one --> stations 1, 2, ... --> exact problem
                                                        |
                                                        v
                    from the first start: more and smaller stations --> exact problem
                                                        |
                                                        v
            from the best point so far: steps held back by Levenberg and Marquardt's rule

The last try is for models that do not fit.  Gauss and Newton leave out the curvature of the residuals; where these are
large, full steps lead away from the optimum, and the natural level function, which measures with the same matrices,
does not notice.  Where steps go round in circles about a plausible point, this comes at once.

When a try counts as lost, and all other thresholds, say castfit.solve.rescue and castfit.solve.plausible.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.plausible import expected_noise
from castfit.solve.rescue import RESCUE
from castfit.solve.softened import SoftenedProblem, Softening
from castfit.solve.solution import Ledger, infeasibility
from castfit.solve.state import GaussNewtonState
from castfit.solve.staged import weighted_squares

if TYPE_CHECKING:
    from castfit.solve.staged import Array, Evaluation, Linearization, StagedProblem


def next_try(ledger: Ledger, state: GaussNewtonState, *, rough: bool = False) -> GaussNewtonState | None:
    """Return the beginning of the next try, or None if there is none; `rough` says how the search goes on."""
    staged = ledger.staged
    straight = state.phase == "straight"
    second = ledger.control.second_start
    if straight and second is not None:
        at = (ledger.search if rough else ledger).evaluate(within_bounds(staged, second()))
        if at.ok:
            return replace(_afresh(state), phase="second start", evaluation=at, origin=at.v, rough=rough)
    if straight or state.phase == "second start":
        return enter(ledger, state, RESCUE.stations, start_point(staged) if state.origin is None else state.origin)
    if state.stations == RESCUE.stations:
        return enter(ledger, state, RESCUE.slow_stations, start_point(staged))
    if state.phase != "held back" and state.optimum is None and ledger.best is not None:
        return hold_back(state, ledger.evaluate(ledger.best))
    return None


def hold_back(state: GaussNewtonState, at: Evaluation) -> GaussNewtonState:
    """Go on from a point by steps after Levenberg and Marquardt."""
    return replace(_afresh(state), phase="held back", evaluation=at)


def let_go(state: GaussNewtonState) -> GaussNewtonState:
    """Go on in a box, holding nothing, from where held directions kept the others from the optimum."""
    return replace(
        state, unheld=True, memory={}, idle=0, closest=(np.inf, np.inf), astray=False, circling=0, active=None
    )


def enter(ledger: Ledger, state: GaussNewtonState, stations: tuple[Softening, ...], start: Array) -> GaussNewtonState:
    """Go to the first station of a homotopy."""
    at = ledger.coarse.evaluate(start)
    afresh = _afresh(state)
    return replace(
        afresh, phase="station 1", evaluation=at, station=0, stations=stations, memory={"mu": RESCUE.first_mu}
    )


def soft_step(ledger: Ledger, linear: Linearization, state: GaussNewtonState) -> GaussNewtonState:
    """Do one Levenberg-Marquardt step at a station, and go on to the next one when it has done its work.

    Parameters
    ----------
    ledger : Ledger
        At full accuracy; stations use its coarse one.
    linear : Linearization
        The coarse problem at the current point.
    state : GaussNewtonState
    """
    staged = ledger.staged
    soft = SoftenedProblem(staged, state.stations[state.station], expected_noise(staged))
    taken = soft.step(ledger.coarse, linear, state.memory["mu"])
    after = replace(
        state,
        iteration=state.iteration + 1,
        evaluation=linear if taken.to is None else taken.to,
        damping=1.0 / (1.0 + taken.held_back),
        memory={"mu": taken.damping},
        within=state.within + 1,
        report={
            "level": taken.value,
            "mu": taken.held_back,
            "gap": infeasibility(staged.layout, staged.scale, linear),
            "residual": float(np.sqrt(weighted_squares(staged.layout, linear))),
        },
    )
    free = taken.held_back < RESCUE.free_step
    done = taken.decrease < (RESCUE.drop if free else RESCUE.no_drop) or after.within >= RESCUE.station_iterations
    return _next_station(ledger, after) if done else after


def _next_station(ledger: Ledger, state: GaussNewtonState) -> GaussNewtonState:
    """Go on to the next station; behind the last one lies the exact problem, at full accuracy."""
    after = replace(state, station=state.station + 1, within=0)
    if after.soft:
        return replace(
            after, phase=f"station {after.station + 1}", memory={"mu": min(state.memory["mu"], RESCUE.first_mu)}
        )
    return replace(after, phase="exact", memory={}, evaluation=ledger.evaluate(state.v))


def _afresh(state: GaussNewtonState) -> GaussNewtonState:
    """Forget what only concerned the last try."""
    return GaussNewtonState(
        state.iteration, state.phase, state.evaluation, state.damping, origin=state.origin, optimum=state.optimum
    )


def start_point(staged: StagedProblem) -> Array:
    """Return the problem's own start."""
    return within_bounds(staged, staged.start)


def within_bounds(staged: StagedProblem, v: Array) -> Array:
    """Move every variable into its bounds."""
    return np.clip(v, staged.lower, staged.upper)
