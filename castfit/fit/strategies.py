"""Strategies: ways to get from a problem, a point and a budget to an outcome, and the order in which `fit` tries them.

A search solves, refines, solves again, and lets the model itself verify the end (castfit.fit.attempt).  The first one
begins

    as castfit.fit.choice says, where no transcription was asked for;
    at the simulation of the start, where that already describes the data: nothing is closer;
    else as the transcription says, by default at the measured states.

Where it fails, or ends where residuals are far larger than the noise, `STRATEGIES` follow, most of them for what has
states to start (multiple shooting and collocation); first of all, where states are hidden, ever longer horizons, which
end where one of them does not describe its data; then the transcription that the choice says. They go on until one ends
in a solution that describes the data, or in one that was found before: then model or sigma may be wrong. Noise of
unknown size may be large: then it is enough if the residuals of the first search look like noise. What describes the
data and is of another transcription is handed back: the one that was asked for starts from its trajectory. If nothing
does, the best of all is the answer; where it costs more than the start, simulated, a box leads down from there.

`castfit.estimate` plays the same ones from many points (castfit.drive.search.portfolio.strategies): there a strategy
only has to lead near an optimum, at the accuracy of a search (`Strategy.lead`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from castfit._support.arguments import is_one_of
from castfit._support.records import dataclass
from castfit._support.sparse_rows import sparse_rows
from castfit._support.status import Status
from castfit._support.time_limit import Stopped, unwatched
from castfit.fit.attempt import Attempt, FitRun, SolveStaging, has_states, judge, started_from, with_states
from castfit.fit.choice import DOWN, FAR, Prospect, available_memory, prices, size_of
from castfit.fit.verification import tighter
from castfit.problem.constraints import ALONG
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.residual_plausibility import rough_square, signal_in_units, suspicious
from castfit.solve.solution import infeasibility
from castfit.solve.staged import GradientEvaluation
from castfit.solve.subproblem import GAP
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting
from castfit.transcribe.trajectory import every_state_measured

if TYPE_CHECKING:
    from castfit.fit.methods import Transcription
    from castfit.fit.start.search_problem import Scene
    from castfit.problem.compiled_problem import Posed
    from castfit.solve.staged import Array, Evaluation, Linearization, StagedProblem

FIRST = "the start"
"""What the first search is called among the strategies of a fit."""

_PLAIN = SingleShooting()
_LOWER = 1e-5  # of half the squares, or of 1: what costs differ by when they are those of other points
_EXACT = 1e4  # times what rounding leaves: data that are reproduced exactly, where costs are errors of integration
_STRAIGHT = 15  # iterations of a search that went straight to what it found
_SILENT = 0.05  # half the mean square of residuals, in known sigmas, below which sigmas are no measure
_LITTLE = 3.0  # seconds of a fit, where costs were measured, within which it does not matter what comes first
_UNFELT = 1e-7  # response to a doubling of a parameter, of residuals relative to the signal, of gaps to the states


@dataclass(frozen=True)
class StrategyBudget:
    """What a search on the way to an optimum may use: seconds, random numbers, and which step control."""

    seconds: float
    rng: np.random.Generator
    step_control: str = "box"


class Strategy(ABC):
    """A way to go on where the first search does not describe the data.

    words : what it is called in messages
    probes : whether where it leads is given up, as the first search is, where that is held up far from the data
    elsewhere : whether it begins at other states than those of the simulated start
    work : the transcription that it solves by
    """

    words: ClassVar[str]
    probes: ClassVar[bool] = False
    elsewhere: ClassVar[bool] = True
    work: ClassVar[str] = "collocation"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(): {self.words}"

    def suits(self, problem: Posed, asked: Transcription) -> bool:
        """Tell whether it can be tried."""
        return has_states(asked)

    @abstractmethod
    def start(self, problem: Posed, asked: Transcription, theta: Array) -> tuple[Transcription, Array] | None:
        """Return a transcription and a theta (n_theta,) to search from; None if there is none after all."""

    def outcome(self, run: FitRun, best: Attempt, asked: Transcription, theta: Array, why: str) -> Attempt | None:
        """Search from there; what another transcription finds is handed back to the one that was asked for or chosen.

        `best` is what searches found so far, `why` says why there is another one.  None if it cannot be tried.
        """
        run.begins(self.words, f"{why}; now {self.words}")
        started = self.start(run.problem, asked, theta)
        if started is None:
            return None
        opening = _solvable(run, begin(run, *started, words=self.words)[0])
        if self.probes and run.choice is not None and run.choice.solver is not None:
            opening = replace(opening, solver=run.choice.solver)
        found = run.attempt(opening)
        wanted = {asked.label} if run.choice is None else {asked.label, run.choice.first.label}
        return found if not found.good or started[0].label in wanted else _handed_back(run, found, asked)

    def preferred(self, found: Attempt, best: Attempt) -> bool:
        """Tell whether what it found takes the place of the best so far."""
        return found.better_than(best)

    def lead(self, scene: Scene, theta: Array, budget: StrategyBudget) -> tuple[Array, float]:
        """Return where it leads to at the accuracy of a search, and the work in simulations: by default nowhere."""
        return theta, 0.0


class GrowingHorizons(Strategy):
    """Single shooting from where ever longer horizons lead in a box: what won most, by far, of all that follow.

    Where all states are measured there are better places to begin first; where they are not it comes before other
    transcriptions, too: of nine whose first search is held up it solved seven, in a third of the time.
    """

    words = "ever longer horizons"
    probes = True
    elsewhere = False
    work = "single"

    def __init__(self, *, partly: bool) -> None:
        self.partly = partly

    def suits(self, problem: Posed, asked: Transcription) -> bool:
        """Tell whether it is its turn."""
        return has_states(asked) and every_state_measured(problem) != self.partly

    def start(self, problem: Posed, asked: Transcription, theta: Array) -> tuple[Transcription, Array] | None:
        """Grow, and go down on the whole."""
        from castfit.fit.start.local_search import descend, grow
        from castfit.fit.start.search_problem import scene_of

        scene = scene_of(problem)
        if scene.searched.names != problem.names:
            return None
        grown, _ = grow(scene, theta, np.inf, far=FAR)
        if grown is None:
            return None
        found = descend(scene, grown, (np.inf, np.inf), np.inf)
        return (SingleShooting(asked.integrator), found.theta) if np.isfinite(found.cost) else None

    def lead(self, scene: Scene, theta: Array, budget: StrategyBudget) -> tuple[Array, float]:
        """Grow by one of several numbers of horizons."""
        from castfit.fit.start.local_search import HORIZONS, grow

        horizons = int(budget.rng.choice(HORIZONS))
        grown, work = grow(scene, theta, budget.seconds, horizons, step_control=budget.step_control)
        return theta if grown is None else grown, work


class SoftEquations(Strategy):
    """States that are constant at first, and equations that harden (castfit.fit.start.soft_start)."""

    words = "constant states and soft equations"

    def suits(self, problem: Posed, asked: Transcription) -> bool:
        """Tell whether there are states of which nothing is measured, and none that trigger events."""
        partly = has_states(asked) and not every_state_measured(problem)
        return partly and not problem.triggered

    def start(self, problem: Posed, asked: Transcription, theta: Array) -> tuple[Transcription, Array] | None:
        """Begin at the trajectory that was found, too."""
        from castfit.fit.start.soft_start import soft_start

        found = soft_start(problem, theta, asked.integrator)
        return started_from(problem, asked, found.theta, found.nodes), found.theta

    def lead(self, scene: Scene, theta: Array, budget: StrategyBudget) -> tuple[Array, float]:
        """Harden along one of the ramps."""
        from castfit.fit.start.local_search import harden
        from castfit.fit.start.soft_start import RAMPS

        return harden(scene, theta, budget.seconds, RAMPS[str(budget.rng.choice(["long", "short"]))])


class OtherTranscription(Strategy):
    """What follows where the transcription that was chosen first finds nothing."""

    words = "collocation"

    def outcome(self, run: FitRun, best: Attempt, asked: Transcription, theta: Array, why: str) -> Attempt | None:
        """Begin where parameters were matched to the measured states, if they were."""
        return super().outcome(run, best, asked, theta if run.matched is None else run.matched, why)

    def start(self, problem: Posed, asked: Transcription, theta: Array) -> tuple[Transcription, Array] | None:
        """Begin as it says."""
        return asked, theta


class OtherNodes(OtherTranscription):
    """The same where that is multiple shooting."""

    words = "multiple shooting"
    work = "multiple"


class Resumed(Strategy):
    """The first search, from where it was given up.

    Where all states are measured it comes next: if it ends where these led, there is hardly anything else to be found.
    Of hidden states both may have missed the same.
    """

    words = "going on with the first search"
    elsewhere = False
    work = "single"

    def __init__(self, first: Attempt) -> None:
        self.first = first

    def suits(self, problem: Posed, asked: Transcription) -> bool:
        """Tell so: somebody has looked whether there is a way to go on."""
        return True

    def start(self, problem: Posed, asked: Transcription, theta: Array) -> tuple[Transcription, Array]:
        """Begin where it ended."""
        return self.first.transcription, self.first.theta

    def outcome(self, run: FitRun, best: Attempt, asked: Transcription, theta: Array, why: str) -> Attempt | None:
        """Go down as far as that leads."""
        run.begins(self.words, f"{why}; now {self.words}")
        return _down(run, *self.start(run.problem, asked, theta), words=self.words)


class SimulatedStates(Strategy):
    """States from simulation instead of from data."""

    words = "states from simulation"

    def suits(self, problem: Posed, asked: Transcription) -> bool:
        """Tell whether they began otherwise."""
        return has_states(asked) and not is_one_of(asked.states, "simulation")

    def start(self, problem: Posed, asked: Transcription, theta: Array) -> tuple[Transcription, Array] | None:
        """Begin at the simulation."""
        return with_states(asked, "simulation"), theta


class Matching(Strategy):
    """Parameters matched to the measured states (castfit.fit.start.matching)."""

    words = "matching"

    def suits(self, problem: Posed, asked: Transcription) -> bool:
        """Tell whether states come from data."""
        return has_states(asked) and is_one_of(asked.states, "data", "smoothed") and not problem.triggered

    def start(self, problem: Posed, asked: Transcription, theta: Array) -> tuple[Transcription, Array] | None:
        """Begin at the parameters that agree with them."""
        from castfit.fit.start.matching import matching

        return asked, matching(problem, theta, asked.states, asked.integrator)


class FromSingleShooting(Strategy):
    """Single shooting from the same start."""

    words = "single shooting from the same start"
    elsewhere = False
    work = "single"

    def start(self, problem: Posed, asked: Transcription, theta: Array) -> tuple[Transcription, Array] | None:
        """Integrate from the beginning."""
        return SingleShooting(asked.integrator), theta


class BoxDescent(FromSingleShooting):
    """Down in a box from the simulated start, which never goes up: no fit is poorer than its start."""

    words = "going down from the start in a box"

    def suits(self, problem: Posed, asked: Transcription) -> bool:
        """Tell so: this is for everything."""
        return True

    def outcome(self, run: FitRun, best: Attempt, asked: Transcription, theta: Array, why: str) -> Attempt | None:
        """Go down if the start describes the data better than the best search; None if that is not better, either."""
        whole = SingleShooting(asked.integrator)
        staged = whole.transcribe(run.problem, theta)
        at = staged.evaluate(staged.start)
        if not at.ok or (best.linear.ok and at.cost >= best.linear.cost):
            return None
        found = self.descended(run, whole, theta)
        return found if self.preferred(found, best) else None

    def descended(self, run: FitRun, whole: Transcription, theta: Array) -> Attempt:
        """Go down from the start."""
        run.begins(self.words, "the start itself was better; now down from there")
        staged = whole.transcribe(run.problem, theta)
        return run.attempt(SolveStaging(whole, staged, self.words, solver=GaussNewton("box")))

    def preferred(self, found: Attempt, best: Attempt) -> bool:
        """Compare costs, solutions or not."""
        return found.linear.ok and not (best.linear.ok and found.linear.cost >= best.linear.cost)


GROWING, SOFT, BOX = GrowingHorizons(partly=True), SoftEquations(), BoxDescent()

STRATEGIES: tuple[Strategy, ...] = (
    GROWING,
    SOFT,
    SimulatedStates(),
    Matching(),
    GrowingHorizons(partly=False),
    FromSingleShooting(),
    BOX,
)
"""In the order in which they are tried where all are cheap; what each of them won: docs/compared/strategies.md."""


@dataclass(frozen=True)
class SearchEnd:
    """The end of a search, and what is to be said about how it went."""

    attempt: Attempt
    notes: tuple[str, ...]


def search(run: FitRun, asked: Transcription, theta: Array) -> SearchEnd:
    """Search from theta, and by other strategies until the data are described."""
    theta, note = _located(run, asked, theta)
    opening, begun = begin(run, asked, theta)
    if run.choice is not None and run.choice.solver is not None:
        down = run.choice.solver if run.retry else DOWN  # what is all must suffice
        opening = replace(opening, solver=down)
    by = opening.solver or run.solver
    run.say(f"{asked.label}, {by.label}: {opening.staged.layout.n_v} variables, {run.problem.n_data} data")
    run.strategies.append(FIRST)
    first = run.attempt(opening)
    probed = run.choice is not None and run.choice.then is not None and every_state_measured(run.problem)
    if probed and first.plausible and first.solution.status is Status.MAX_ITERATIONS:
        # On the right way, which was only long; where states are hidden, it may lead to a poorer optimum as well.
        first = _down(run, asked, first.theta)
    found, recovery = _recovered(run, first, theta) if run.retry else (first, "")
    return SearchEnd(found, (note, begun, recovery))


def lowest_met(run: FitRun, ended: SearchEnd, asked: Transcription) -> SearchEnd:
    """Return the lowest point of the model itself that searches came to, where none found a solution.

    A trajectory with gaps, or of elements, is no such point: the model, simulated there, is, of the two that cost
    least.  What was asked for by states keeps its trajectory, from which it may go on, unless another point is lower.
    """
    best, known = ended.attempt, run.simulated
    if best.solution.status.success or known is None or known[0] is not run.problem:
        return ended
    whole, joined = known[2], best.joined
    met = [of for of in run.met if of.problem is run.problem]
    found = [(of.cost, of.theta) for of in met if of.joined]
    here = best.linear.cost if joined else np.inf
    with unwatched():  # two evaluations
        for of in sorted((of for of in met if not of.joined), key=lambda of: of.cost)[:2]:
            at = whole.evaluate(of.theta)
            if at.ok and infeasibility(whole.layout, whole.scale, at) <= GAP:
                found.append((at.cost, of.theta))
                here = at.cost if np.array_equal(of.theta, best.theta) else here
    cost, lowest = min(found, key=lambda one: one[0], default=(np.inf, best.theta))
    lower = cost < here - _LOWER * (1.0 + best.linear.informing_square)
    if not lower and (joined or has_states(asked) or not np.isfinite(cost)):
        return ended
    return _simulated_end(run, ended, whole, lowest, "The lowest point of the model that a search came to is given.")


def told_of_gaps(run: FitRun, attempt: Attempt) -> str:
    """Say that states which are given have gaps, so that the figure is none of the model."""
    if attempt.solution.status.success or attempt.connected or not attempt.linear.ok:
        return ""
    return f"The states still have gaps: {run.problem.measure} is that of pieces, not of the model."


def never_above_start(run: FitRun, ended: SearchEnd, asked: Transcription, theta: Array) -> SearchEnd:
    """Return what is not above the start theta, simulated.

    Least squares, of which likelihoods begin, may lead into another valley than the one where the start is: then a box
    leads down from there.  Where there is no time for that the start itself is the best that is known.
    """
    best = ended.attempt
    exact = best.linear.ok and bool((best.linear.sigma <= _EXACT * best.staged.least_sigma).any())
    tried = run.problem.least_squares and BOX.words in run.strategies and not best.ended
    if not run.retry or exact or tried:
        return ended
    lower = _lower_start(run, best, asked, theta)
    if lower is None:
        return ended
    whole, at = lower
    if not best.ended and run.remaining > 0:
        with suppress(Stopped):
            found = BOX.descended(run, SingleShooting(asked.integrator), theta)
            if found.linear.ok and found.linear.cost <= at.cost + _LOWER * (1.0 + at.informing_square):
                said = f"A search ended above its start; this was found by {BOX.words}."
                return SearchEnd(found, (*ended.notes, said))
    return _start_itself(run, ended, whole)


def _lower_start(
    run: FitRun, best: Attempt, asked: Transcription, theta: Array
) -> tuple[StagedProblem, Evaluation] | None:
    """Return the start theta, simulated, where it is clearly lower than what was found; else None.

    Where the time is over nothing is built for this: a search has begun at the simulated start, or at states that data
    say.  A start that breaks a constraint may cost anything.
    """
    over = best.ended or run.remaining <= 0
    between = any(c.times == ALONG for c in run.problem.constraints)  # the start may break it where nobody looks
    if between or (over and np.array_equal(best.theta, theta)):
        return None
    with suppress(Stopped), unwatched() if over else nullcontext():
        whole = _known(run, theta) if over else _simulated(run, asked, theta)
        if whole is None:
            return None
        there = best.linear
        joined = there.ok and infeasibility(best.staged.layout, best.staged.scale, there) <= GAP
        if joined and _least_cost(whole.coarse(), whole.start) > there.cost:
            return None
        at = whole.evaluate(whole.start)
        if infeasibility(whole.layout, whole.scale, at) > GAP:
            return None
        if not joined:
            there = whole.evaluate(best.theta)  # what does not join may cost anything
        if not (there.ok and at.cost + _LOWER * (1.0 + at.informing_square) >= there.cost):
            return whole, at
    return None


def _least_cost(rough: StagedProblem, v: Array) -> float:
    """Return what the cost at v is at least, whatever the errors of a search do; -inf if that cannot be told.

    Errors e of rows r change half the squares by |r| |e| + |e|^2 / 2 at most, and  n log |r|  of n rows of unknown
    sigma, where |r|^2 = n, by |r| |e| + |e|^2 unless |e| exceeds half of |r|.
    """
    at = rough.evaluate(v)
    if not at.ok:
        return -np.inf
    of_rows, of_errors = np.sqrt(2.0 * at.half_square), np.sqrt(rough_square(rough, at))
    return float(at.cost - of_errors * (of_rows + of_errors)) if of_errors <= 0.5 * of_rows else -np.inf


def _start_itself(run: FitRun, ended: SearchEnd, whole: StagedProblem) -> SearchEnd:
    """Return the start as the end of a search that came no lower in its time."""
    run.say("no search came as low as the start itself, which is given")
    note = "No search came as low as its start in this time; the start is given."
    return _simulated_end(run, ended, whole, whole.start, note)


def _simulated_end(run: FitRun, ended: SearchEnd, whole: StagedProblem, theta: Array, note: str) -> SearchEnd:
    """Return a point, simulated, as the end of a search that found no solution."""
    still = np.zeros(whole.layout.n_v, dtype=np.int8)
    found = ended.attempt.solution
    status = Status.MAX_TIME if found.status.success else found.status
    solution = replace(found, v=theta, status=status, detail="", active=still, local=None)
    with unwatched():  # it takes an evaluation or two
        solution, linear = judge(whole, solution, run.remaining)
    staging = SolveStaging(SingleShooting(ended.attempt.transcription.integrator), whole, FIRST)
    return SearchEnd(Attempt(staging, solution, linear, None), (*ended.notes, note))


def _recovered(run: FitRun, first: Attempt, theta: Array) -> tuple[Attempt, str]:
    """Try further until something describes the data; return the best attempt, and a sentence about it."""
    asked, status = first.transcription, first.solution.status
    if isinstance(asked, Collocation) and not is_one_of(asked.elements, "auto") and status is Status.INACCURATE:
        return first, ""  # no start makes the elements more accurate
    then = None if run.choice is None else run.choice.then
    # Where noise is unknown, or none at all, a long way may have led to a poorer optimum that looks like a good one.
    unknown = first.staged.layout.n_groups > 0 or first.linear.half_square < _SILENT * run.problem.n_data
    doubted = then is not None and unknown and first.solution.iterations > _STRAIGHT
    if first.ended or (first.good and not doubted):
        return first, ""
    best, refused = first, ""
    tried: list[str] = []
    winner, confirmed, elsewhere = 0, False, has_states(first.transcription)
    given_up = first if then is not None and status is Status.MAX_ITERATIONS else None
    with suppress(Stopped):
        ways, refused = _affordable(run, asked if then is None else then, theta, given_up)
        for strategy in ways:
            # Where the first search failed, noise that is large may hide an optimum that is not the best one.
            enough = (best.good if status.success else best.clear) and not doubted
            if enough or best.ended or run.remaining <= 0:
                break
            known = len(run.strategies)
            now = strategy.outcome(run, best, asked if then is None else then, theta, status.value)
            tried += run.strategies[known:]
            if now is None:
                continue
            # Two ways from one start may well miss the same.
            confirmed = (elsewhere or strategy.elsewhere) and now.confirms(best)
            if strategy.preferred(now, best):
                best, winner, elsewhere = now, len(tried), strategy.elsewhere
            doubted = doubted and not now.good
            if now.ended or confirmed:
                break
    back = run.choice is not None and run.choice.back
    if best is not first and then is not None and back and best.good and best.transcription.label == then.label:
        best = _handed_back(run, best, asked, warm=True)  # which takes less time, also for whatever refits it
    if best is first and confirmed:
        return best, f"Found again by {tried[-1]}."
    if best is first:
        return best, " ".join([f"Also tried, no better: {', '.join(tried)}."] * bool(tried) + [refused] * bool(refused))
    # A search that ended elsewhere, or nowhere, is part of how this came about.
    how = "failed" if given_up is None else "was given up"
    how = "ended at a poorer optimum" if status.success else f"{how} ({status.value})"
    again = f", and again by {tried[-1]}" if confirmed else ""
    return best, f"The first search {how}; this was found by try {winner}, {best.staging.what}{again}."


def _affordable(
    run: FitRun, asked: Transcription, theta: Array, given_up: Attempt | None = None
) -> tuple[list[Strategy], str]:
    """Return what suits, in the order in which it is tried, and a sentence about what needs more memory than there is.

    What is predicted to take little time keeps the order in which it won most; of the rest the cheaper comes first.
    """
    choice = run.choice
    ways: list[Strategy] = [s for s in STRATEGIES if s.suits(run.problem, asked)]
    if choice is not None and choice.then is not None:
        other = OtherNodes() if isinstance(choice.then, MultipleShooting) else OtherTranscription()
        last = ways.index(GROWING) + 1 if GROWING in ways else 0
        ways = [*ways[:last], other, *ways[last:]]
        if given_up is not None:
            ways.insert(last + 1 if every_state_measured(run.problem) else len(ways), Resumed(given_up))
    elif choice is not None and not has_states(asked):
        ways = [GROWING, *ways]
    staged = _known(run, theta)
    staged = staged if isinstance(staged, ShootingProblem) else _PLAIN.transcribe(run.problem, theta)
    prospect = Prospect.of(run.problem, theta, staged).with_stiffness(run.problem, staged)
    costs, there = prices(prospect), available_memory()
    refused = [s.words for s in ways if costs[s.work].memory > there]
    ways = [s for s in ways if s.words not in refused]
    decades = {s: np.ceil(np.log10(max(costs[s.work].seconds / _LITTLE, 1.0))) for s in ways}
    least = min((costs[s.work].memory for s in STRATEGIES if s.words in refused), default=0.0)
    sentence = f"Not tried, for want of memory ({size_of(least)}): {', '.join(refused)}." if refused else ""
    return sorted(ways, key=lambda s: decades[s]), sentence


def _solvable(run: FitRun, staging: SolveStaging) -> SolveStaging:
    """Search with the fit's solver as it suits what may be another transcription than the one that was asked for."""
    suited = getattr(run.solver, "suited", None)
    return staging if suited is None else replace(staging, solver=suited(staging.staged.gives))


def _down(run: FitRun, transcription: Transcription, theta: Array, words: str = "") -> Attempt:
    """Go down in a box from where a search was given up, as far as that leads."""
    return run.attempt(SolveStaging(transcription, transcription.transcribe(run.problem, theta), words, solver=DOWN))


def _handed_back(run: FitRun, found: Attempt, asked: Transcription, *, warm: bool = False) -> Attempt:
    """Let the transcription that was asked for finish from another one's trajectory, `warm` from its optimum."""
    try:
        at = started_from(run.problem, asked, found.theta, found.nodes)
    except Stopped:
        return found
    staged = at.transcribe(run.problem, found.theta)
    again = run.attempt(SolveStaging(at, staged, found.staging.what, warm=warm))
    return again if again.good and not found.better_than(again) else found


def _located(run: FitRun, asked: Transcription, theta: Array) -> tuple[Array, str]:
    """Return where single shooting leads, and a note, where events happen at times that are estimated.

    Stages are arranged around such times before a search, which may carry them beyond data; single shooting
    arranges anew at every point.
    """
    schedules = [c.schedule for c in run.problem.conditions]
    if not has_states(asked) or not any(s.moves for s in schedules) or any(s.triggers for s in schedules):
        return theta, ""
    run.say("single shooting, to put events and data in order")
    whole = SingleShooting(asked.integrator).transcribe(run.problem, theta)
    solution = run.solve(SolveStaging(SingleShooting(asked.integrator), whole, solver=GaussNewton())).solution
    run.tries += 1
    with unwatched():  # two evaluations; cut off they would lose the work that was done
        before, after = whole.evaluate(whole.start), whole.evaluate(solution.v)
    if not (after.ok and after.cost < before.cost):
        return theta, ""
    return whole.layout.theta(solution.v).copy(), "Single shooting put events and data in order first."


def _simulated(run: FitRun, transcription: Transcription, theta: Array) -> StagedProblem:
    """Return the whole from theta, transcribed once for a run.

    That is single shooting where it is what searches; else by the integrator that will verify the end, so that no other
    one has to be built.
    """
    known = _known(run, theta)
    if known is None:
        n_z = len(run.problem.model.algebraic_states)
        whole = SingleShooting(tighter(transcription.integrator, transcription.accuracy, n_z))
        known = whole.transcribe(run.problem, theta)
        run.simulated = run.problem, theta.copy(), known
    return known


def _known(run: FitRun, theta: Array) -> StagedProblem | None:
    known = run.simulated
    return known[2] if known is not None and known[0] is run.problem and np.array_equal(known[1], theta) else None


def _already_fits(run: FitRun, transcription: Transcription, theta: Array) -> bool:
    whole = _simulated(run, transcription, theta)
    with suppress(Stopped):  # the solver will notice
        at = whole.evaluate(whole.start)
        return at.ok and not suspicious(whole, at)
    return False


def unfelt(staged: StagedProblem, linear: Linearization) -> tuple[str, ...]:
    """Name the quantities that neither residuals nor continuity respond to at a point; what has a prior responds."""
    layout = staged.layout
    response = np.sqrt(sparse_rows(linear.prior_jacobian).squares())
    for chain, j, signal in zip(layout.chains, linear.jacobians, signal_in_units(staged, linear), strict=True):
        unit = staged.scale[chain.nodes][:, :, None]
        of_signal = (
            j.R_q / np.where(signal > 0.0, signal, 1.0)[:, :, None]
        )  # by row: their sigmas may differ by decades
        felt = [of_signal, j.X_q / unit, j.A[None] / unit[:1], j.D_q / staged.scale[chain.inner][:, :, None]]
        of_chain = np.max([np.abs(block).max(axis=(0, 1), initial=0.0) for block in felt], axis=0)
        np.maximum.at(response, chain.theta, of_chain)
    weak = response * staged.scale[: layout.n_theta] < _UNFELT
    return tuple(name for name, is_weak in zip(layout.names, weak, strict=True) if is_weak)


def begin(run: FitRun, transcription: Transcription, theta: Array, *, words: str = "") -> tuple[SolveStaging, str]:
    """Transcribe where the start says; a note says what was done otherwise."""
    problem = run.problem
    usable = is_one_of(transcription.states, "data", "smoothed")
    fresh = theta is not run.matched  # from there single shooting has begun already
    if fresh and usable and has_states(transcription) and _already_fits(run, transcription, theta):
        near = with_states(transcription, "simulation")
        return SolveStaging(near, near.transcribe(problem, theta), words), ""
    known = _known(run, theta) if transcription == _PLAIN else None
    if not (isinstance(known, ShootingProblem) and known.options == transcription.integrator):
        known = None
    staged = known or transcription.transcribe(problem, theta)
    if isinstance(transcription, SingleShooting):
        run.simulated = problem, theta.copy(), staged
    movable = fresh and run.second_start and every_state_measured(problem) and not problem.triggered
    if not (usable and movable and run.remaining > 0):
        return SolveStaging(transcription, staged, words), ""

    def second() -> StagedProblem:
        from castfit.fit.start.matching import matching

        run.matched = matching(problem, theta, transcription.states, transcription.integrator)
        return transcription.transcribe(problem, run.matched)

    numb: tuple[str, ...] = ()
    with suppress(Stopped):  # the solver will notice
        jacobian = staged.integrated and GradientEvaluation not in staged.gives
        linear = staged.coarse().linearize(staged.start) if jacobian else None
        numb = unfelt(staged, linear) if linear is not None and linear.ok else ()
    if numb:
        note = f"At the start nothing responds to {', '.join(numb)}: started from the measured states instead."
        return SolveStaging(transcription, second(), words), note
    return SolveStaging(transcription, staged, words, lambda: second().start), ""
