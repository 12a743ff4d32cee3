"""The generalized Gauss-Newton method, one iteration at a time over an explicit, frozen state.

Each iteration linearizes the staged problem, condenses it to a small bounded least-squares problem, and lets a step
control choose how far to go along the solution (Bock 1981; Peifer and Timmer 2007).  Where that stalls, or ends at a
suspicious point, `castfit.solve.homotopy` knows what to try next, by the policy of `castfit.solve.rescue`:

    straight --converged, plausible--> done
        |  stalls, or ends at a suspicious point
        v
    straight from the second start, if the problem has one
        |  stalls, or ends at a suspicious point
        v
    station 1 -> station 2 -> ... -> exact problem --> done
        |  stalls, or ends at a suspicious point
        v
    the same with more and smaller stations, from the first start
        |  stalls
        v
    Levenberg and Marquardt's steps from the best point

A class can run it by hand:

    for state in GaussNewton().iterate(problem, MultipleShooting(17)):
        print(state.iteration, state.evaluation.cost, state.damping)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.reprs import brief
from castfit._support.arguments import is_count, is_one_of, real, text
from castfit._support.time_limit import Stopped, Watch, watched
from castfit.solve.homotopy import enter, hold_back, let_go, next_try, soft_step, start_point
from castfit.solve.local import GAP, LocalProblem, Step, active_bounds, small
from castfit.solve.plausible import sizes_in_units, suspicious
from castfit.solve.rescue import RESCUE
from castfit.solve.solution import Control, Iteration, Ledger, Solution, infeasibility
from castfit.solve.state import GaussNewtonState
from castfit.solve.step_control import (
    STEP_CONTROLS,
    Advance,
    Box,
    LevenbergMarquardt,
    NaturalLevel,
    Search,
    StepControl,
)
from castfit.solve.staged import COARSE, Linearization, StagedProblem, weighted_squares
from castfit._support.status import Status, check, suggest

if TYPE_CHECKING:
    from castfit.solve.staged import Evaluation

__all__ = ["GaussNewton", "GaussNewtonState"]

_CUT_SHORT = "Its residuals are suspiciously large, but the search for a better one was cut short."
_SCORING = 1e-3  # Fisher scoring converges linearly: behind a step there are others, hardly smaller
_AMPLIFIED = 10.0  # times a relative tolerance: errors of the states
_SHORTEST = 1e-6  # damping at which a model that cannot be evaluated is to blame for a step that leads nowhere


@brief
@dataclass(frozen=True)
class GaussNewton:
    """The generalized Gauss-Newton method with condensing.

    Parameters
    ----------
    step_control : {"natural_level", "exact_penalty", "levenberg_marquardt", "hemker", "box"} or StepControl
        How steps are damped.
    homotopy : {"auto", "always", "never"}
        Whether softened problems are solved on the way: "auto" when the straight way stalls or ends at a suspicious
        point.
    max_iter : int
        Iterations, those of softened problems included.
    tolerance : float
        Converged when a full step promises to lower the cost by less than this fraction of half the squares of all
        rows (of the number of data, about, in units of the noise); of likelihoods that are no squares, and with
        several unknown sigmas, by less than a thousandth of that.
    regularisation : float
        Singular values of the scaled condensed Jacobian below this fraction of the largest are enlarged while
        iterating, so that directions that the data do not determine stay put (Peifer and Timmer 2007, Eq. 23).
    accuracy : {"deserved", "full"}
        How accurately stages are integrated where they are: "full" is as the transcription's integrator says, always;
        "deserved" is so near the solution, and a relative tolerance of 1e-4 far from it.  Points are compared at one
        accuracy; that a search has converged, or gets nowhere, is said at full accuracy only, and so are the cost and
        all statistics.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem, cf.Collocation(), cf.GaussNewton("levenberg_marquardt"))
    >>> result.solver, result.success
    ('Gauss-Newton (levenberg marquardt)', True)
    """

    step_control: str | StepControl = "natural_level"
    homotopy: str = "auto"
    max_iter: int = 400
    tolerance: float = 1e-10
    regularisation: float = 1e-9
    accuracy: str = "deserved"

    def __post_init__(self) -> None:
        mistakes: list[str] = []
        rule: Any = self.step_control
        if isinstance(rule, str) and rule not in STEP_CONTROLS:
            mistakes.append(f"step_control is '{rule}': {suggest(rule, STEP_CONTROLS)}")
        elif not isinstance(rule, (str, StepControl)):
            mistakes.append(f"step_control is {text(rule)}; give a name or a StepControl such as NaturalLevel()")
        if not is_one_of(self.homotopy, "auto", "always", "never"):
            mistakes.append(f"homotopy is {text(self.homotopy)}; choose 'auto', 'always' or 'never'")
        if not is_one_of(self.accuracy, "deserved", "full"):
            mistakes.append(f"accuracy is {text(self.accuracy)}; choose 'deserved' or 'full'")
        if not is_count(self.max_iter):
            mistakes.append(f"max_iter is {text(self.max_iter)}; give an integer that is not negative")
        tolerance, regularisation = real(self.tolerance), real(self.regularisation)
        if tolerance is None or not 0.0 < tolerance < np.inf:
            mistakes.append(f"tolerance is {text(self.tolerance)}; give a positive number")
        if regularisation is None or not 0.0 <= regularisation < 1.0:
            mistakes.append(f"regularisation is {text(self.regularisation)}; give a number from 0 to below 1")
        if not mistakes and self.homotopy == "always" and not self._control.rescued:
            mistakes.append(f"homotopy is 'always', but {type(self._control).__name__} goes straight; leave it out")
        check("GaussNewton", mistakes)

    @property
    def label(self) -> str:
        """Name in tables."""
        known = {kind: name for name, kind in STEP_CONTROLS.items()}
        rule = self.step_control
        name = rule if isinstance(rule, str) else known.get(type(rule), type(rule).__name__)
        return f"Gauss-Newton ({name.replace('_', ' ')})"

    @property
    def _control(self) -> StepControl:
        return STEP_CONTROLS[self.step_control]() if isinstance(self.step_control, str) else self.step_control

    def solve(self, staged: StagedProblem, control: Control, *, warm: bool = False) -> Solution:
        """Solve; never raises for a fit that fails.  `warm` says that the start is nearly optimal."""
        solver = replace(self, homotopy="never", accuracy="full") if warm else self
        ledger = Ledger(staged, control)
        history: list[dict[str, float]] = []
        state: GaussNewtonState | None = None
        with watched(control.max_time) as watch:
            try:
                state = solver.init(ledger)
                while True:
                    now = _iteration(ledger, state)
                    history.append({"iteration": now.iteration, "cost": now.cost, "infeasibility": now.infeasibility,
                                    "time": now.seconds, "damping": state.damping, "station": state.station + 1.0,
                                    **state.report})  # fmt: skip
                    if state.status is None:
                        state = _interrupted(state, control, now, watch)
                    if state.status is not None:
                        break
                    state = solver.step(ledger, state)
            except Stopped as stopped:  # within an iteration
                if state is None:
                    return ledger.solution(start_point(staged), stopped.status, history=tuple(history))
                state = _cut_off(state, stopped.status)
        assert state.status is not None
        v, active = state.v, np.zeros(state.v.size, dtype=np.int8)
        if state.status.success:
            active = active_bounds(staged, v, np.zeros(v.size) if state.bounds is None else state.bounds)
            v = np.where(active < 0, staged.lower, np.where(active > 0, staged.upper, v))
        elif ledger.best is not None and state.status is not Status.START_FAILED:
            v = ledger.best
        return ledger.solution(
            v, state.status, detail=state.detail, active=active, iterations=state.iteration, history=tuple(history)
        )

    def iterate(
        self, problem: Any, transcription: Any = None, *, control: Control | None = None
    ) -> Iterator[GaussNewtonState]:
        """Yield the state at the start and after every iteration.

        Parameters
        ----------
        problem : Problem or StagedProblem
        transcription : MultipleShooting, SingleShooting or Collocation
            Needed unless the problem is staged already.
        control : Control, optional
            Only its second start counts: whoever iterates decides when to stop.
        """
        if not isinstance(problem, StagedProblem):
            if transcription is None:
                check("GaussNewton.iterate", ["give a transcription, for instance MultipleShooting(17)"])
            else:
                problem = transcription.transcribe(problem, problem.guess)
        ledger = Ledger(problem, control)
        state = self.init(ledger)
        yield state
        while state.status is None:
            state = self.step(ledger, state)
            yield state

    def init(self, ledger: Ledger) -> GaussNewtonState:
        """Return the state at the start.

        Raises
        ------
        InputError
            If the step control cannot deal with this kind of problem.
        """
        staged = ledger.staged
        scalar = staged.matching == "scalar"
        remedy = "matching conditions are scalars, from which no nodes can be eliminated; use Sqp() or Ipopt()"
        check("GaussNewton", [remedy] if scalar else [])
        check(f"GaussNewton({self.step_control!r})", self._control.mistakes(staged.layout))
        start = start_point(staged)
        if self._searches(ledger) and self.homotopy != "always":
            at = ledger.search.evaluate(start)
            if at.ok and ledger.search.linearize(start).ok:
                return GaussNewtonState(0, "straight", at, rough=True)
        at = ledger.evaluate(start)
        if not at.ok or not ledger.linearize(start).ok:
            return GaussNewtonState(0, "straight", at, status=Status.START_FAILED, detail=staged.explain(start))
        state = GaussNewtonState(0, "straight", at)
        return enter(ledger, state, RESCUE.stations, start) if self.homotopy == "always" else state

    def step(self, ledger: Ledger, state: GaussNewtonState) -> GaussNewtonState:
        """Do one iteration."""
        if state.iteration >= self.max_iter:
            return _end(state, Status.MAX_ITERATIONS)
        # What overflows is noticed where it matters.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._step(ledger, state)

    def _step(self, ledger: Ledger, state: GaussNewtonState) -> GaussNewtonState:
        linear = (ledger.coarse if state.soft else ledger.search if state.rough else ledger).linearize(state.v)
        if not linear.ok:
            if state.rough:
                return self._closely(ledger, state)
            failure = linear.failures[0]
            return self._otherwise(ledger, state, Status.EVALUATION_FAILED, f"{failure.chain}: {failure.detail}")
        return soft_step(ledger, linear, state) if state.soft else self._exact_step(ledger, linear, state)

    def _exact_step(self, ledger: Ledger, linear: Linearization, state: GaussNewtonState) -> GaussNewtonState:
        staged = ledger.staged
        rule = self._rule(staged, state)
        held = self.regularisation if rule.holds else 0.0
        local = LocalProblem(staged, linear, warm=state.active, regularisation=held)
        if not local.finite:
            if state.rough:
                return self._closely(ledger, state)
            return self._otherwise(ledger, state, Status.LINEAR_ALGEBRA_FAILED, "Derivatives overflow.")
        step = rule.step(local, state.memory)
        gap = infeasibility(staged.layout, staged.scale, linear)
        if state.rough and _deserves_accuracy(staged, linear, step, gap):
            return self._closely(ledger, state)
        report = {
            "gap": gap,
            "residual": float(np.sqrt(weighted_squares(staged.layout, linear))),
            "condition": local.condition,
            "held_directions": float(local.held_directions),
            "active": float(np.count_nonzero(step.active.variables) + np.count_nonzero(step.active.path)),
        }
        several = staged.layout.n_groups > 1 or (staged.layout.n_groups > 0 and linear.prior.size > 0)
        scoring = several or not staged.least_squares
        tolerance = max(self.tolerance * (_SCORING if scoring else 1.0), ledger.control.rough)
        flickers = small(staged, linear, state.closest[1], tolerance)
        near = RESCUE.near_decrease if rule.holds else RESCUE.noisy_decrease
        state = replace(
            _closing_in(state, step, gap, linear.informing_square, near, flickers=flickers),
            active=step.active,
            bounds=step.bound_multipliers,
        )
        # Judge by the decrease that a full step promises within the constraints, and by the gaps.
        arrived = gap <= GAP and small(staged, linear, step.decrease, tolerance)
        if arrived or state.idle > RESCUE.idle:
            good = gap <= RESCUE.noisy_gap and step.decrease <= RESCUE.noisy_decrease * linear.informing_square
            status = Status.CONVERGED if arrived or good else Status.ACCEPTABLE
            return self._arrive(ledger, replace(state, report=report), local, status)
        search = Search(ledger.search if state.rough else ledger, local, step, linear, state.memory)
        close = rule.holds and staged.least_squares and state.near and not state.astray
        advance = (_full_step(search) if close else None) or _evaluable(search, rule.advance(search))
        length = search.norm(step.dv)
        circling = (
            advance.damping == 1.0 and abs(length - state.report.get("step", np.inf)) <= RESCUE.same_length * length
        )
        after = replace(
            state,
            iteration=state.iteration + 1,
            damping=advance.damping,
            memory=advance.memory,
            report={**report, **advance.report, "step": length},
            within=state.within + 1,
            circling=state.circling + 1 if circling else 0,
        )
        if advance.to is None or np.array_equal(advance.to.v, linear.v):
            return self._closely(ledger, state) if state.rough else self._give_up(ledger, after, search)
        damped = advance.damping < RESCUE.damped and not state.near
        after = replace(after, evaluation=advance.to, stalled=state.stalled + damped)
        if not rule.rescued:
            return after
        if self._circles(staged, after):
            return self._closely(ledger, after) if state.rough else hold_back(after, after.evaluation)
        straight = not after.stations
        slow = after.within >= (RESCUE.straight_iterations if straight else RESCUE.exact_iterations)
        lost = not after.near and (slow or (straight and after.stalled >= RESCUE.stalled))
        return self._next_try(ledger, after) or after if lost else after

    def _searches(self, ledger: Ledger) -> bool:
        """Whether stages may be integrated less accurately far from the solution."""
        return self.accuracy == "deserved" and ledger.search is not ledger

    def _closely(self, ledger: Ledger, state: GaussNewtonState) -> GaussNewtonState:
        """Go on from the same point at full accuracy; nothing is concluded, and no values compared, across the two."""
        memory = self._rule(ledger.staged, state).carried(state.memory)
        at = ledger.evaluate(state.v)
        return self._step(ledger, replace(state, rough=False, evaluation=at, memory=memory, circling=0))

    def _rule(self, staged: StagedProblem, state: GaussNewtonState) -> StepControl:
        """Return the step control of this try."""
        if state.unheld:
            return Box()
        # The natural level function measures rows with the derivatives of other points, which those of densities defy.
        if state.phase == "held back" or (isinstance(self._control, NaturalLevel) and not staged.least_squares):
            return LevenbergMarquardt()
        return self._control

    def _circles(self, staged: StagedProblem, state: GaussNewtonState) -> bool:
        """Tell whether full steps lead round and round an optimum to which they do not converge."""
        rescued = self.homotopy != "never" and state.phase != "held back"
        return rescued and state.circling >= RESCUE.circling and not suspicious(staged, state.evaluation)

    def _arrive(self, ledger: Ledger, state: GaussNewtonState, local: LocalProblem, status: Status) -> GaussNewtonState:
        """Accept an optimum only if the cost falls no more although nothing is held, and no point before was lower."""
        staged, here = ledger.staged, state.evaluation
        holds = self._rule(staged, state).holds
        if not small(staged, here, local.promise, RESCUE.stationary):
            return let_go(state) if holds else self._otherwise(ledger, state, Status.STEP_TOO_SMALL)
        if not holds and "back" not in state.memory:
            best = _lowest(ledger, state)
            connected = infeasibility(staged.layout, staged.scale, best) <= GAP
            if connected and best.cost < here.cost and not small(staged, here, here.cost - best.cost, self.tolerance):
                return replace(let_go(state), evaluation=best, unheld=state.unheld, memory={"back": 1.0})
        return self._settle(ledger, state, status)

    def _settle(self, ledger: Ledger, state: GaussNewtonState, status: Status) -> GaussNewtonState:
        """Accept an optimum, unless it is suspicious and something is left to try."""
        best = replace(state, status=status, optimum=None)
        if state.optimum is not None and state.optimum.evaluation.cost <= state.evaluation.cost:
            best = replace(state.optimum, iteration=state.iteration)
        if suspicious(ledger.staged, best.evaluation):
            passed = self._passed_by(ledger, state)
            return passed or self._next_try(ledger, replace(state, optimum=best)) or best
        return best

    def _passed_by(self, ledger: Ledger, state: GaussNewtonState) -> GaussNewtonState | None:
        """Go back to a point that describes the data, such as the start, if full steps led away from there."""
        if self.homotopy == "never" or state.phase == "held back" or ledger.best is None:
            return None
        at = ledger.evaluate(ledger.best)
        connected = at.ok and infeasibility(ledger.staged.layout, ledger.staged.scale, at) <= GAP
        return hold_back(state, at) if connected and not suspicious(ledger.staged, at) else None

    def _give_up(self, ledger: Ledger, state: GaussNewtonState, search: Search) -> GaussNewtonState:
        """Say why no step helps, and try something else."""
        staged, step = ledger.staged, search.step
        if "back" in search.memory:  # once is enough, or this would go on for ever
            state = replace(state, memory={**state.memory, "back": 1.0})
        rule, square = self._rule(staged, state), search.at.informing_square
        if state.report["gap"] <= GAP and step.decrease <= (1e-6 if rule.holds else RESCUE.stationary) * square:
            good = not rule.holds and step.decrease <= RESCUE.noisy_decrease * square
            return self._arrive(ledger, state, search.local, Status.CONVERGED if good else Status.ACCEPTABLE)
        if not rule.holds and not search.local.staged.layout.chains[0].n_s and "back" not in state.memory:
            lowest = _lowest(ledger, state)
            if not np.array_equal(lowest.v, state.v):
                return replace(state, memory={"back": 1.0}, evaluation=lowest)
        probe = search.trial(_SHORTEST * step.dv)
        if not probe.ok:
            return self._otherwise(ledger, state, Status.EVALUATION_FAILED, staged.explain(probe.v))
        return self._otherwise(ledger, state, Status.STEP_TOO_SMALL if step.feasible else Status.INFEASIBLE)

    def _otherwise(self, ledger: Ledger, state: GaussNewtonState, status: Status, detail: str = "") -> GaussNewtonState:
        """Try something else, or end."""
        return self._next_try(ledger, state) or _end(state, status, detail)

    def _next_try(self, ledger: Ledger, state: GaussNewtonState) -> GaussNewtonState | None:
        rescued = self.homotopy != "never" and self._control.rescued
        return next_try(ledger, state, rough=self._searches(ledger)) if rescued else None


def _deserves_accuracy(staged: StagedProblem, linear: Linearization, step: Step, gap: float) -> bool:
    """Whether the solution is so close that what less accurate integration leaves in a step matters."""
    left = sum(float(np.sum((_AMPLIFIED * COARSE * s) ** 2)) for s in sizes_in_units(staged, linear))
    return gap <= RESCUE.far_gap and step.decrease <= RESCUE.far_decrease * linear.informing_square + left


def _lowest(ledger: Ledger, state: GaussNewtonState) -> Evaluation:
    """Return the best point so far from which one can go on."""
    if ledger.best is None or not ledger.linearize(ledger.best).ok:
        return state.evaluation
    return ledger.evaluate(ledger.best)


def _end(state: GaussNewtonState, status: Status, detail: str = "") -> GaussNewtonState:
    """End, at the optimum found before the search went on if there is one."""
    if state.optimum is None:
        return replace(state, status=status, detail=detail)
    cut_short = status in (Status.MAX_ITERATIONS, Status.MAX_TIME)
    return replace(state.optimum, iteration=state.iteration, detail=_CUT_SHORT if cut_short else "")


def _closing_in(
    state: GaussNewtonState, step: Step, gap: float, half_square: float, near: float, *, flickers: bool
) -> GaussNewtonState:
    """Count the steps near the solution that bring it no closer; a promise that is small enough only flickers."""
    if not (gap <= RESCUE.near_gap and step.decrease <= near * half_square):
        return replace(state, idle=0, closest=(np.inf, np.inf))
    least_gap, least_decrease = state.closest
    closer = GAP < gap < RESCUE.closer * least_gap or (step.decrease < RESCUE.closer * least_decrease and not flickers)
    closest = (min(gap, least_gap), min(step.decrease, least_decrease)) if closer else state.closest
    astray = state.astray or step.decrease > max(RESCUE.away * least_decrease, RESCUE.noisy_decrease * half_square)
    return replace(state, idle=0 if closer else state.idle + 1, closest=closest, astray=astray)


def _full_step(search: Search) -> Advance | None:
    """Take the full step: this close, level functions see little but integration errors."""
    trial = search.trial(search.step.dv)
    return Advance(trial, 1.0, search.memory) if search.ledger.linearize(trial.v).ok else None


def _evaluable(search: Search, advance: Advance) -> Advance:
    """Shorten a step to a point whose sensitivities cannot be integrated; it would be a dead end."""
    for _ in range(6):
        if advance.to is None or search.ledger.linearize(advance.to.v).ok:
            return advance
        half = search.trial(0.5 * (advance.to.v - search.at.v))
        advance = replace(advance, to=half if half.ok else None, damping=0.5 * advance.damping)
    return replace(advance, to=None)


def _iteration(ledger: Ledger, state: GaussNewtonState) -> Iteration:
    staged = ledger.staged
    worst = infeasibility(staged.layout, staged.scale, state.evaluation)
    at = state.evaluation
    return Iteration(state.iteration, at.cost, weighted_squares(staged.layout, at), worst, state.v, ledger.seconds)


def _interrupted(state: GaussNewtonState, control: Control, now: Iteration, watch: Watch) -> GaussNewtonState:
    """Stop when the callback, the user or the clock says so."""
    asked = control.callback is not None and control.callback(now)
    cause = watch.cause
    if asked and cause is not Status.INTERRUPTED:
        return replace(state, status=Status.STOPPED_BY_CALLBACK)
    return state if cause is None else _cut_off(state, cause)


def _cut_off(state: GaussNewtonState, cause: Status) -> GaussNewtonState:
    """End because the time is over, at an optimum that was found before if there is one, or because of Ctrl-C."""
    return _end(state, cause) if cause is Status.MAX_TIME else replace(state, status=cause)
