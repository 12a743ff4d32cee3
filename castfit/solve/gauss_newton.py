"""The generalized Gauss-Newton method, one iteration at a time over an explicit, frozen state.

Each iteration linearizes the staged problem, condenses it to a small bounded least-squares problem, and lets a step
control choose how far to go along the solution (Bock 1981; Peifer and Timmer 2007).  Hard starts first pass through the
stations of a homotopy (castfit.solve.softened):

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

A class can run it by hand:

    for state in GaussNewton().iterate(problem, MultipleShooting(17)):
        print(state.iteration, state.evaluation.cost, state.damping)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.solve.local import ActiveSet, LocalProblem, Step
from castfit.solve.softened import SoftenedProblem, Softening
from castfit.solve.solution import Control, Interrupt, Iteration, Ledger, Solution, infeasibility
from castfit.solve.step_control import STEP_CONTROLS, Advance, Search, StepControl
from castfit.staged import Evaluation, Linearization, StagedProblem
from castfit.status import Status, check, suggest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

STATIONS = (
    Softening(0.65, 1e-2),
    Softening(0.65, 1e-1),
    Softening(0.065, 1.0),
    Softening(0.065, 1e1),
    Softening(0.0065, 1e2),
    Softening(0.0, 1e3),
)
"""The ladder that measured best on calcium; see castfit.solve.softened."""

SLOW_STATIONS = tuple(
    Softening(floor, rho)
    for floor, rho in ((0.65, 1e-3), (0.65, 1e-2), (0.2, 1e-1), (0.2, 1.0), (0.065, 3.0), (0.065, 1e1), (0.02, 3e1),
                       (0.0065, 1e2), (0.002, 3e2), (0.0, 1e3), (0.0, 1e4))
)  # fmt: skip

_STATION_ITERATIONS = 15  # at most, per station
_STATION_DROP = 0.02  # a relative decrease below which a station has done its work ...
_FREE_STEP = 1e-2  # ... unless damping above this held the step back
_GAP = 1e-7  # remaining infeasibility, in units of the states
_NEAR_GAP, _NEAR_DECREASE = 1e-3, 1e-5  # below these only integration errors keep full steps from converging
_IDLE = 2  # such steps without a smaller gap, after which the rest is integration error
_DAMPED, _STALLED = 0.5, 2  # so many steps damped so much end the straight way: easy problems have none or one
_EXACT_ITERATIONS = 25  # after the stations this many suffice, or the ladder led to a bad place
_ASSUMED_NOISE = 0.065  # relative accuracy of data whose standard deviations are unknown


@dataclass(frozen=True)
class GaussNewtonState:
    """Everything that one iteration hands to the next.

    Attributes
    ----------
    iteration : int
    phase : str
        "straight", "station 1" ..., "exact".
    evaluation : Evaluation
        The current point and the values there.
    damping : float
        The factor lambda of the last step.
    report : mapping
        Figures of the last step: level, omega, gap, residual, condition, active, step.
    """

    iteration: int
    phase: str
    evaluation: Evaluation
    damping: float = 1.0
    report: Mapping[str, float] = field(default_factory=dict[str, float])
    memory: Mapping[str, float] = field(default_factory=dict[str, float])
    active: ActiveSet | None = None
    bounds: Array | None = None
    status: Status | None = None
    station: int = -1
    stations: tuple[Softening, ...] = ()
    within: int = 0
    stalled: int = 0
    idle: int = 0
    smallest_gap: float = np.inf
    origin: Array | None = None
    optimum: GaussNewtonState | None = None
    detail: str = ""

    @property
    def v(self) -> Array:
        """All variables."""
        return self.evaluation.v


@dataclass(frozen=True)
class GaussNewton:
    """The generalized Gauss-Newton method with condensing.

    Parameters
    ----------
    step_control : {"natural_level", "exact_penalty", "levenberg_marquardt", "hemker"} or StepControl
        How steps are damped.
    homotopy : {"auto", "always", "never"}
        Whether softened problems are solved on the way: "auto" when the straight way stalls or ends at a suspicious
        point.
    max_iter : int
        Iterations, those of softened problems included.
    tolerance : float
        Converged when a full step would lower the cost by less than this fraction.
    regularisation : float
        Singular values of the scaled condensed Jacobian below this fraction of the largest are enlarged while
        iterating, so that directions that the data do not determine stay put (Peifer and Timmer 2007, Eq. 23).
    """

    step_control: str | StepControl = "natural_level"
    homotopy: str = "auto"
    max_iter: int = 400
    tolerance: float = 1e-10
    regularisation: float = 1e-9

    def __post_init__(self) -> None:
        mistakes: list[str] = []
        if isinstance(self.step_control, str) and self.step_control not in STEP_CONTROLS:
            mistakes.append(f"step_control is '{self.step_control}': {suggest(self.step_control, STEP_CONTROLS)}")
        if self.homotopy not in ("auto", "always", "never"):
            mistakes.append(f"homotopy is '{self.homotopy}'; choose 'auto', 'always' or 'never'")
        if self.max_iter < 0 or not self.tolerance > 0 or self.regularisation < 0:
            mistakes.append("max_iter and regularisation must not be negative, tolerance must be positive")
        check("GaussNewton", mistakes)

    @property
    def label(self) -> str:
        """Name in tables."""
        name = self.step_control if isinstance(self.step_control, str) else type(self.step_control).__name__
        return f"Gauss-Newton ({name.replace('_', ' ')})"

    def solve(self, staged: StagedProblem, control: Control, *, warm: bool = False) -> Solution:
        """Solve; never raises for a fit that fails.  `warm` says that the start is nearly optimal."""
        ledger = Ledger(staged)
        history: list[dict[str, float]] = []
        solver = self if not warm else replace(self, homotopy="never")
        with Interrupt() as interrupt:
            state = solver.init(ledger)
            while state.status is None:
                state = solver.step(ledger, state)
                now = _iteration(ledger, state)
                history.append({"iteration": now.iteration, "cost": now.cost, "infeasibility": now.infeasibility,
                                "time": now.seconds, "damping": state.damping, "station": state.station + 1.0,
                                **state.report})  # fmt: skip
                if state.status is None:
                    state = _interrupted(state, now, control, interrupt)
        v = state.v
        if not state.status.success and ledger.best is not None and state.status is not Status.START_FAILED:
            v = ledger.best
        active = np.zeros(v.size, dtype=np.int8)
        if state.status.success and state.bounds is not None:
            active = _active(staged, v, state.bounds)
            v = np.where(active < 0, staged.lower, np.where(active > 0, staged.upper, v))
        return ledger.solution(
            v, state.status, detail=state.detail, active=active, iterations=state.iteration, history=tuple(history)
        )

    def iterate(self, problem: Any, transcription: Any = None) -> Iterator[GaussNewtonState]:
        """Yield the state before the first and after every iteration.

        Parameters
        ----------
        problem : Problem or StagedProblem
        transcription : MultipleShooting, SingleShooting or Collocation
            Needed unless the problem is staged already.
        """
        if not isinstance(problem, StagedProblem):
            if transcription is None:
                check("GaussNewton.iterate", ["give a transcription, for instance MultipleShooting(17)"])
            problem = transcription.transcribe(problem, problem.guess)
        ledger = Ledger(problem)
        state = self.init(ledger)
        yield state
        while state.status is None:
            state = self.step(ledger, state)
            yield state

    def init(self, ledger: Ledger) -> GaussNewtonState:
        """Return the state at the start."""
        staged = ledger.staged
        start = np.clip(staged.start, staged.lower, staged.upper)
        at = ledger.evaluate(start)
        if not at.ok:
            return GaussNewtonState(0, "straight", at, status=Status.START_FAILED, detail=staged.explain(start))
        state = GaussNewtonState(0, "straight", at)
        return _enter(state, ledger.coarse.evaluate(start), STATIONS) if self.homotopy == "always" else state

    def step(self, ledger: Ledger, state: GaussNewtonState) -> GaussNewtonState:
        """Do one iteration."""
        if state.iteration >= self.max_iter:
            return replace(state, status=Status.MAX_ITERATIONS)
        soft = 0 <= state.station < len(state.stations)
        at = ledger.coarse if soft else ledger
        linear = at.linearize(state.v)
        if not linear.ok:
            failure = linear.failures[0]
            return replace(state, status=Status.EVALUATION_FAILED, detail=f"{failure.chain}: {failure.detail}")
        if not soft:
            return self._exact_step(ledger, linear, state)
        after = _soft_step(at, linear, state)
        return replace(after, evaluation=ledger.evaluate(after.v)) if after.phase == "exact" else after

    def _exact_step(self, ledger: Ledger, linear: Linearization, state: GaussNewtonState) -> GaussNewtonState:
        staged = ledger.staged
        local = LocalProblem(staged, linear, warm=state.active, regularisation=self.regularisation)
        step = local.direction()
        gap = infeasibility(staged.layout, staged.scale, linear)
        report = {
            "gap": gap,
            "residual": float(np.sqrt(2 * linear.cost)),
            "condition": local.condition,
            "held_directions": float(local.singular_directions.shape[1]),
            "active": float(np.count_nonzero(step.active.variables) + np.count_nonzero(step.active.path)),
        }
        near = gap <= _NEAR_GAP and step.decrease <= _NEAR_DECREASE * linear.cost
        idle = state.idle + 1 if near and gap > 0.3 * state.smallest_gap else 0
        if idle > _IDLE or self._optimal(staged, linear, step, gap):
            settled = replace(state, report=report, active=step.active, bounds=step.bound_multipliers)
            return self._settle(ledger, settled)
        control = self.step_control if isinstance(self.step_control, StepControl) else STEP_CONTROLS[self.step_control]()
        search = Search(ledger, local, step, linear, state.memory)
        advance = _full_step(search) if near else None
        if advance is None:
            advance = _evaluable(search, control.advance(search))
        after = replace(
            state,
            iteration=state.iteration + 1,
            damping=advance.damping,
            memory=advance.memory,
            active=step.active,
            bounds=step.bound_multipliers,
            report={**report, **advance.report, "step": search.norm(step.dv)},
            within=state.within + 1,
            idle=idle,
            smallest_gap=min(gap, state.smallest_gap) if near else np.inf,
        )
        if advance.to is None:
            return self._give_up(ledger, after, step)
        after = replace(after, evaluation=advance.to, stalled=state.stalled + (advance.damping < _DAMPED))
        straight = after.station < 0
        lost = after.stalled >= _STALLED if straight else after.within >= _EXACT_ITERATIONS
        return self._next_try(ledger, after) or after if lost else after

    def _optimal(self, staged: StagedProblem, linear: Linearization, step: Step, gap: float) -> bool:
        """Judge by the decrease that a full step promises within the constraints, and by the gaps."""
        floor = sum(float(np.sum((1e-10 * s) ** 2)) for s in staged.signal)
        return gap <= _GAP and step.decrease <= self.tolerance * linear.cost + floor

    def _settle(self, ledger: Ledger, state: GaussNewtonState) -> GaussNewtonState:
        """Accept an optimum, unless it is suspicious and something is left to try."""
        best = state
        if state.optimum is not None and state.optimum.evaluation.cost <= state.evaluation.cost:
            best = replace(state.optimum, iteration=state.iteration)
        if _suspicious(ledger.staged, best.evaluation):
            further = self._next_try(ledger, replace(state, optimum=best))
            if further is not None:
                return further
        return replace(best, status=Status.CONVERGED)

    def _give_up(self, ledger: Ledger, state: GaussNewtonState, step: Step) -> GaussNewtonState:
        """Try something else, or say how the solve ended."""
        further = self._next_try(ledger, state)
        if further is not None:
            return further
        if state.optimum is not None:
            return replace(state.optimum, iteration=state.iteration, status=Status.CONVERGED)
        staged = ledger.staged
        gap = infeasibility(staged.layout, staged.scale, state.evaluation)
        if gap <= _GAP and step.decrease <= 1e-6 * state.evaluation.cost:
            return replace(state, status=Status.ACCEPTABLE)
        return replace(state, status=Status.STEP_TOO_SMALL if step.feasible else Status.INFEASIBLE)

    def _next_try(self, ledger: Ledger, state: GaussNewtonState) -> GaussNewtonState | None:
        """Return the beginning of the next try, or None if there is none."""
        staged = ledger.staged
        if self.homotopy == "never":
            return None
        first = state.phase == "straight"
        if first and staged.second_start is not None:
            begin = np.clip(staged.second_start(), staged.lower, staged.upper)
            at = ledger.evaluate(begin)
            if at.ok:
                return replace(_afresh(state), phase="second start", evaluation=at, origin=begin)
        if first or state.phase == "second start":
            begin = _start(staged) if state.origin is None else state.origin
            return _enter(state, ledger.coarse.evaluate(begin), STATIONS)
        if state.stations == STATIONS:
            return _enter(state, ledger.coarse.evaluate(_start(staged)), SLOW_STATIONS)
        return None


def _afresh(state: GaussNewtonState) -> GaussNewtonState:
    """Forget what only concerned the last try."""
    return replace(
        state, station=-1, stations=(), within=0, stalled=0, idle=0, smallest_gap=np.inf, active=None, memory={}
    )


def _full_step(search: Search) -> Advance | None:
    """Take the full step: this close, level functions see little but integration errors."""
    trial = search.trial(search.step.dv)
    return Advance(trial, 1.0, search.memory) if trial.ok else None


def _evaluable(search: Search, advance: Advance) -> Advance:
    """Shorten a step to a point whose sensitivities cannot be integrated; it would be a dead end."""
    for _ in range(6):
        if advance.to is None or search.ledger.linearize(advance.to.v).ok:
            return advance
        half = search.trial(0.5 * (advance.to.v - search.at.v))
        advance = replace(advance, to=half if half.ok else None, damping=0.5 * advance.damping)
    return replace(advance, to=None)


def _start(staged: StagedProblem) -> Array:
    return np.clip(staged.start, staged.lower, staged.upper)


def _enter(state: GaussNewtonState, at: Evaluation, stations: tuple[Softening, ...]) -> GaussNewtonState:
    """Go to the first station of a homotopy."""
    return replace(
        _afresh(state), phase="station 1", evaluation=at, station=0, stations=stations, memory={"mu": 1e-3}
    )


def _soft_step(ledger: Ledger, linear: Linearization, state: GaussNewtonState) -> GaussNewtonState:
    """Do one Levenberg-Marquardt step at a station, and go on to the next when it has done its work."""
    staged = ledger.staged
    soft = SoftenedProblem(staged, state.stations[state.station], _noise(staged))
    taken = soft.step(ledger, linear, state.memory["mu"])
    after = replace(
        state,
        iteration=state.iteration + 1,
        evaluation=taken.to if taken.to is not None else state.evaluation,
        damping=1.0 / (1.0 + taken.held_back),
        memory={"mu": taken.damping},
        within=state.within + 1,
        report={"level": taken.value, "gap": infeasibility(staged.layout, staged.scale, linear)},
    )
    done = taken.decrease < 1e-4 or (taken.decrease < _STATION_DROP and taken.held_back < _FREE_STEP)
    if done or after.within >= _STATION_ITERATIONS:
        station = state.station + 1
        last = station == len(state.stations)
        return replace(
            after,
            station=station,
            within=0,
            phase="exact" if last else f"station {station + 1}",
            memory={} if last else {"mu": min(taken.damping, 1e-3)},
            active=None,
        )
    return after


def _noise(staged: StagedProblem) -> float:
    """Standard deviation of residuals to expect: 1 where standard deviations are stated, else from the signal.

    A signal below ten standard deviations says that these are placeholders.
    """
    measured = np.concatenate([s[c.row_mask] for s, c in zip(staged.signal, staged.layout.chains, strict=True)])
    typical = float(np.median(measured)) if measured.size else 1.0
    return 1.0 if typical > 10.0 or typical == 0.0 else _ASSUMED_NOISE * typical


def _suspicious(staged: StagedProblem, at: Evaluation) -> bool:
    """Whether residuals at an optimum are so large that another optimum must be better.

    With stated standard deviations: their mean square exceeds 4.  Otherwise: they exceed a fifth of the signal.
    """
    r = np.concatenate([v.r[c.row_mask] for v, c in zip(at.values, staged.layout.chains, strict=True)])
    signal = np.concatenate([s[c.row_mask] for s, c in zip(staged.signal, staged.layout.chains, strict=True)])
    noise = _noise(staged)
    if noise == 1.0:
        return float(np.mean(r**2)) > 4.0
    return float(np.mean(r**2)) > 0.04 * float(np.mean(signal**2))


def _iteration(ledger: Ledger, state: GaussNewtonState) -> Iteration:
    staged = ledger.staged
    worst = infeasibility(staged.layout, staged.scale, state.evaluation)
    return Iteration(state.iteration, state.evaluation.cost, worst, state.v, ledger.seconds)


def _interrupted(state: GaussNewtonState, now: Iteration, control: Control, interrupt: Interrupt) -> GaussNewtonState:
    """Stop when the user, the clock or the callback says so."""
    if interrupt.requested:
        return replace(state, status=Status.INTERRUPTED)
    if now.seconds > control.max_time:
        return replace(state, status=Status.MAX_TIME)
    if control.callback is not None and control.callback(now):
        return replace(state, status=Status.STOPPED_BY_CALLBACK)
    return state


def _active(staged: StagedProblem, v: Array, multiplier: Array) -> NDArray[np.int8]:
    """Mark the bounds that hold a variable: those of nonzero multiplier, and fixed variables."""
    active = np.zeros(v.size, dtype=np.int8)
    near = 1e-7 * np.maximum(staged.scale, np.abs(v))
    active[(multiplier < 0) & (v - staged.lower <= near)] = -1
    active[(multiplier > 0) & (staged.upper - v <= near)] = 1
    active[staged.lower == staged.upper] = -1
    return active
