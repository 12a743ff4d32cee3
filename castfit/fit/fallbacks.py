"""What `fit` tries, one attempt after the other, until one ends in a solution that describes the data.

An attempt solves, refines, solves again, and lets the model itself verify the end.  The first one begins

    at the simulation of the start, where that already describes the data: nothing is closer;
    else as the transcription says, by default at the measured states.

Where it fails, or ends where residuals are far larger than the noise, multiple shooting and collocation go on with

    1. where not all states are measured, ever longer horizons in a box (see castfit.start.descent)
    2. there also soft equations and constant states (see castfit.start.constant)
    3. states from simulation instead of from data
    4. parameters matched to the measured states (see castfit.start.matching)
    5. where all states are measured, only now ever longer horizons
    6. single shooting from the same start
    7. another division: half as many intervals, or multiple shooting instead of collocation

The first solution that describes the data is it.  One of another transcription is handed back: the transcription that
was asked for starts from its trajectory.  If none does, the best of all is the answer; where that is poorer than the
simulation of the start itself, single shooting goes down from there in a box, which never goes up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.arguments import is_one_of
from castfit._support.time_limit import Stopped, unwatched
from castfit.fit.constraint_exchange import lapse
from castfit.simulate.simulate import Nodes, SimulationError, trace
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.plausible import suspicious
from castfit.solve.solution import Control, Iteration, Solution, infeasibility
from castfit.solve.stationary import finished, still_falls
from castfit.solve.staged import violated
from castfit.fit.start.constant import soft_start
from castfit.fit.start.descent import descend, grow
from castfit.fit.start.matching import matching, unfelt
from castfit.fit.start.scene import scene_of
from castfit._support.status import Status
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting
from castfit.transcribe.trajectory import every_state_measured
from castfit.fit.verification import Verification, tighter, verify

if TYPE_CHECKING:
    from castfit.fit.methods import Solver, Transcription
    from castfit.problem.compiled_problem import Posed
    from castfit.solve.staged import Array, Evaluation, Layout, StagedProblem
    from castfit.transcribe.trajectory import States

_MAX_REFINEMENTS = 8
_AMPLIFIED_ROUNDING = 0.1  # standard deviations by which rounding theta may move a residual
_ENDED = (Status.INTERRUPTED, Status.STOPPED_BY_CALLBACK, Status.MAX_TIME)
_BETTER = 1e-3  # relative difference of the cost
_DEPENDENT = 1e-4  # of an equation's derivatives, what others leave of them
_VIOLATED = 1e-6  # of a constraint's unit
_EXCHANGES = 8  # searches more, at most, until constraints are kept between points
_CONNECTED = 1e-6  # gaps, in units of the states
_MATCHED = 10  # intervals of multiple shooting where collocation fails


@dataclass(frozen=True)
class Attempt:
    """Where a solve, refined and verified, came to.

    Attributes
    ----------
    what : str
        How it began, in words; empty for the first.
    transcription : Transcription
    staged : StagedProblem
    solution : Solution
    linear : Evaluation
        A linearization, if there is one, at the end.
    verification : Verification or None
    """

    what: str
    transcription: Transcription
    staged: StagedProblem
    solution: Solution
    linear: Evaluation
    verification: Verification | None

    @property
    def good(self) -> bool:
        """Whether this is a solution whose residuals may be noise."""
        return self.solution.status.success and not suspicious(self.staged, self.linear)

    @property
    def ended(self) -> bool:
        """Whether user or clock ended it."""
        return self.solution.status in _ENDED

    @property
    def plausible(self) -> bool:
        """Whether this is a trajectory of the model whose residuals may be noise, solution or not."""
        layout, scale = self.staged.layout, self.staged.scale
        connected = self.linear.ok and infeasibility(layout, scale, self.linear) <= _CONNECTED
        return connected and self.solution.status is not Status.INACCURATE and not suspicious(self.staged, self.linear)

    def better_than(self, other: Attempt) -> bool:
        """Whether this describes the data and the other does not, or is a solution, or better by more than rounding."""
        if self.plausible != other.plausible:
            return self.plausible
        ours, theirs = self.solution.status.success, other.solution.status.success
        if ours != theirs:
            return ours
        margin = _BETTER * other.linear.half_square if other.linear.ok else 0.0
        return bool(self.linear.cost < other.linear.cost - margin)


@dataclass
class Search:
    """What the attempts of one fit share, and what they counted."""

    problem: Posed
    solver: Solver
    deadline: float
    report: Callable[[Iteration], Any] | None
    say: Callable[[str], None]
    verify: bool = True
    iterations: int = 0
    evaluations: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    history: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    tries: int = 0
    rough: float = 0.0

    @property
    def remaining(self) -> float:
        """Seconds left."""
        return self.deadline - time.perf_counter()

    def attempt(
        self,
        transcription: Transcription,
        staged: StagedProblem,
        what: str = "",
        *,
        second_start: Callable[[], Array] | None = None,
        warm: bool = False,
        solver: Solver | None = None,
    ) -> Attempt:
        """Solve, refine, solve again, until constraints are kept between points, too; then judge.

        `warm` says that the start is nearly optimal; `solver` is another one than that of the search.
        """
        found = self._attempt(transcription, staged, what, second_start=second_start, warm=warm, solver=solver)
        found = self._without_copies(found)
        for last in (False,) * _EXCHANGES + (True,):
            if not found.solution.status.success or not self.verify:
                break
            v, integrator = found.solution.v, transcription.integrator
            try:
                missed = lapse(self.problem, found.staged, v, integrator)
                if missed is None:
                    break
                if last:
                    solution = replace(found.solution, status=Status.INACCURATE, detail=missed.sentence)
                    return replace(found, solution=solution)
                self.problem = self.problem.watching(missed.times)
                self.say(f"{missed.sentence} Held there as well.")
                theta = found.staged.layout.theta(v)
                known = zip(found.staged.times(v), found.staged.node_states(v), strict=True)
                nodes = [Nodes(times[:-1], states) for times, states in known]
                near = started_from(self.problem, transcription, theta, nodes)
                found = self._attempt(near, near.transcribe(self.problem, theta), what, warm=True)
                found = replace(found, transcription=transcription)
            except SimulationError as error:
                solution = replace(found.solution, status=Status.INACCURATE, detail=str(error))
                return replace(found, solution=solution)
            except Stopped as stopped:
                return replace(found, solution=replace(found.solution, status=stopped.status))
        return found

    def _without_copies(self, found: Attempt) -> Attempt:
        """Solve again without equations that turn out to follow from others: there multipliers mean nothing."""
        follow = dependent(found.staged.layout, found.linear, found.staged.scale)
        if not follow or found.ended:
            return found
        self.problem = self.problem.releasing(follow)
        self.say(f"{', '.join(follow)} follows from other constraints; now without")
        theta = found.staged.layout.theta(found.solution.v)
        transcription = found.transcription
        try:
            anew = self._attempt(transcription, transcription.transcribe(self.problem, theta), found.what)
        except Stopped as stopped:
            return replace(found, solution=replace(found.solution, status=stopped.status))
        left = [m for r in self.problem.implied for m in r.contradictions(self.problem.to_natural(theta_of(anew)))]
        if anew.solution.status.success and left:
            return replace(anew, solution=replace(anew.solution, status=Status.INACCURATE, detail="; ".join(left)))
        return anew

    def _attempt(
        self,
        transcription: Transcription,
        staged: StagedProblem,
        what: str = "",
        *,
        second_start: Callable[[], Array] | None = None,
        warm: bool = False,
        solver: Solver | None = None,
    ) -> Attempt:
        """Solve, refine, solve again; then judge."""
        refinement, staged = 0, _in_units(staged)
        while True:
            control = Control(self.remaining, self.report, second_start if refinement == 0 else None, self.rough)
            solution = (solver or self.solver).solve(staged, control, warm=warm or refinement > 0)
            self._count(solution, refinement)
            try:
                finer = transcription.refine(self.problem, staged, solution.v) if solution.status.success else None
            except Stopped as stopped:
                detail = "The accuracy of its elements was not checked."
                solution = replace(solution, status=stopped.status, detail=detail)
                break
            if finer is None:
                break
            if refinement == _MAX_REFINEMENTS:
                detail = f"After {refinement} refinements it still differs from the integrator; give more elements."
                solution = replace(solution, status=Status.ACCEPTABLE, detail=detail)
                break
            staged, refinement = _in_units(finer), refinement + 1
            self.say(f"refined to {staged.layout.n_v} variables")
        with unwatched():  # this takes an evaluation or two; cut off it would lose the work that was done
            solution, linear = judge(staged, solution)
            solution = _naming(staged, solution, linear)
            verification = None
            if self.verify:
                solution, verification = _verified(self.problem, transcription, staged, solution, linear)
        return Attempt(what, transcription, staged, solution, linear, verification)

    def located(self, asked: Transcription, theta: Array) -> tuple[Array, str]:
        """Return where single shooting leads, and a note, where events happen at times that are estimated.

        Stages are arranged around such times before a search, which may carry them beyond data; single shooting
        arranges anew at every point.
        """
        schedules = [c.schedule for c in self.problem.conditions]
        if not has_states(asked) or not any(s.moves for s in schedules) or any(s.triggers for s in schedules):
            return theta, ""
        self.say("single shooting, to put events and data in order")
        whole = SingleShooting(asked.integrator).transcribe(self.problem, theta)
        solution = GaussNewton().solve(whole, Control(self.remaining, self.report, None), warm=False)
        self._count(solution, 0)
        self.tries += 1
        before, after = whole.evaluate(whole.start), whole.evaluate(solution.v)
        if not (after.ok and after.cost < before.cost):
            return theta, ""
        return whole.layout.theta(solution.v).copy(), "Single shooting put events and data in order first."

    def _count(self, solution: Solution, refinement: int) -> None:
        self.evaluations.update(solution.evaluations)
        self.failures.update(solution.failures)
        extra = {"refinement": refinement} if self.tries == 0 else {"refinement": refinement, "try": self.tries}
        self.history += [{**entry, **extra} for entry in solution.history]
        self.iterations += solution.iterations

    def recover(self, first: Attempt, theta: Array, *, second_start: bool) -> tuple[Attempt, str]:
        """Try further until something describes the data; return the best attempt, and a sentence about it."""
        best, asked = first, first.transcription
        given = isinstance(asked, Collocation) and not is_one_of(asked.elements, "auto")
        if given and first.solution.status is Status.INACCURATE:
            return first, ""  # no start makes the elements more accurate
        tried: list[str] = []
        winner = 0
        with suppress(Stopped):
            others = further(self.problem, asked, theta)
            while not (best.good or self.remaining <= 0 or first.ended):
                following = next(others, None)  # found now, not before it is needed: that can take longer than the fit
                if following is None:
                    break
                what, other, start = following
                self.tries += 1
                self.say(f"{first.solution.status.value}; now {what}")
                opening = begin(self.problem, other, start, second_start=second_start)
                now = self.attempt(opening.transcription, opening.staged, what, second_start=opening.second_start)
                tried.append(what)
                if now.good and other.label != asked.label:
                    now = self._handed_back(now, asked)
                if now.better_than(best):
                    best, winner = now, len(tried)
                if now.ended:
                    break
            if not (best.good or best.ended or self.remaining <= 0):
                lower = self._below_start(asked, theta, best)
                best, winner = (lower, len(tried) + 1) if lower is not None else (best, winner)
        if best is first and not tried:
            return best, ""
        if best is first:
            return best, f"Also tried, no better: {', '.join(tried)}."
        # A search that ended elsewhere, or nowhere, is part of how this came about.
        how = (
            "ended at a poorer optimum" if first.solution.status.success else f"failed ({first.solution.status.value})"
        )
        return best, f"The first search {how}; this was found by try {winner}, {best.what}."

    def _below_start(self, asked: Transcription, theta: Array, best: Attempt) -> Attempt | None:
        """Go down from the simulated start if that describes the data better than the best attempt."""
        whole = SingleShooting(asked.integrator)
        staged = whole.transcribe(self.problem, theta)
        at = staged.evaluate(staged.start)
        if not at.ok or (best.linear.ok and at.cost >= best.linear.cost):
            return None
        self.tries += 1
        self.say("the start itself was better; now down from there")
        lower = self.attempt(whole, staged, "going down from the start in a box", solver=GaussNewton("box"))
        kept = lower.linear.ok and not (best.linear.ok and lower.linear.cost >= best.linear.cost)
        return lower if kept else None

    def _handed_back(self, found: Attempt, asked: Transcription) -> Attempt:
        """Let the transcription that was asked for finish from another one's trajectory."""
        layout = found.staged.layout
        v = found.solution.v
        theta = layout.theta(v)
        known = zip(found.staged.times(v), found.staged.node_states(v), strict=True)
        nodes = [Nodes(times[:-1], states) for times, states in known]
        try:
            at = started_from(self.problem, asked, theta, nodes)
        except Stopped:
            return found
        again = self.attempt(at, at.transcribe(self.problem, theta), found.what)
        return again if again.good and not found.better_than(again) else found


def _in_units(staged: StagedProblem) -> StagedProblem:
    """Measure constraints in units of what they change by; as they stand where no time is left, which solvers say."""
    try:
        return staged.in_units()
    except Stopped:
        return staged


def started_from(problem: Posed, transcription: Transcription, theta: Array, nodes: list[Nodes]) -> Transcription:
    """Return the transcription with its states started from the trajectory through given nodes."""
    if not has_states(transcription):
        return transcription
    return with_states(transcription, trace(problem, theta, nodes, transcription.integrator))


def further(problem: Posed, asked: Transcription, theta: Array) -> Iterator[tuple[str, Transcription, Array]]:
    """Yield what to try next: in words, the transcription, and theta; nothing for single shooting."""
    if not has_states(asked):
        return
    states, partly = asked.states, not every_state_measured(problem)
    if partly:
        yield from _on_grown(problem, asked, theta)
    if partly and not any(c.schedule.triggers for c in problem.conditions):
        found = soft_start(problem, theta, asked.integrator)
        near = started_from(problem, asked, found.theta, found.nodes)
        yield "constant states and soft equations", near, found.theta
    if not is_one_of(states, "simulation"):
        yield "states from simulation", with_states(asked, "simulation"), theta
    if is_one_of(states, "data", "smoothed"):
        yield "matching", asked, matching(problem, theta, states, asked.integrator)
    if not partly:
        yield from _on_grown(problem, asked, theta)
    yield "single shooting from the same start", SingleShooting(asked.integrator), theta
    if isinstance(asked, MultipleShooting) and isinstance(asked.intervals, (int, np.integer)) and asked.intervals > 1:
        half = int(asked.intervals) // 2
        yield f"{half} intervals", replace(asked, intervals=half), theta
    elif isinstance(asked, Collocation):
        other = MultipleShooting(_MATCHED, states=states, integrator=asked.integrator)
        yield f"multiple shooting with {_MATCHED} intervals", other, theta


def _on_grown(problem: Posed, asked: Transcription, theta: Array) -> Iterator[tuple[str, Transcription, Array]]:
    grown = _grown(problem, theta)
    if grown is not None:
        yield "ever longer horizons", SingleShooting(asked.integrator), grown


def _grown(problem: Posed, theta: Array) -> Array | None:
    """Return where ever longer horizons lead from theta; None if this cannot be tried."""
    scene = scene_of(problem)
    if scene.searched.names != problem.names:
        return None
    grown, _ = grow(scene, theta, np.inf)
    found = descend(scene, grown, (np.inf, np.inf), np.inf)
    return found.theta if np.isfinite(found.cost) else None


def has_states(transcription: Transcription) -> bool:
    """Whether one can say where the transcription's states start."""
    return is_dataclass(transcription) and any(f.name == "states" for f in fields(transcription))


def with_states(transcription: Transcription, states: States) -> Transcription:
    """Return the transcription with its states started otherwise."""
    return replace(cast("Any", transcription), states=states)


def already_fits(problem: Posed, transcription: Transcription, theta: Array) -> bool:
    """Whether the model, simulated from the start, already describes the data."""
    # By the integrator that will verify the end, so that no other one has to be built.
    n_z = len(problem.posed.model.algebraic_states)
    whole = SingleShooting(tighter(transcription.integrator, transcription.accuracy, n_z)).transcribe(problem, theta)
    with suppress(Stopped):  # the solver will notice
        at = whole.evaluate(whole.start)
        return at.ok and not suspicious(whole, at)
    return False


@dataclass(frozen=True)
class Opening:
    """How a fit begins: on a staged problem, with another start in reserve, and a note of what was done otherwise."""

    transcription: Transcription
    staged: StagedProblem
    second_start: Callable[[], Array] | None = None
    note: str = ""


def begin(problem: Posed, transcription: Transcription, theta: Array, *, second_start: bool) -> Opening:
    """Transcribe where the start says; a note says what was done otherwise."""
    usable = is_one_of(transcription.states, "data", "smoothed")
    if usable and has_states(transcription) and already_fits(problem, transcription, theta):
        near = with_states(transcription, "simulation")
        return Opening(near, near.transcribe(problem, theta))
    staged = transcription.transcribe(problem, theta)
    if not usable or not second_start or not every_state_measured(problem):
        return Opening(transcription, staged)

    def second() -> StagedProblem:
        moved = matching(problem, theta, transcription.states, transcription.integrator)
        return transcription.transcribe(problem, moved)

    numb: tuple[str, ...] = ()
    with suppress(Stopped):  # the solver will notice
        jacobian = staged.integrated and staged.by_gradient == "no"
        linear = staged.coarse().linearize(staged.start) if jacobian else None
        numb = unfelt(staged, linear) if linear is not None and linear.ok else ()
    if numb:
        note = f"At the start nothing responds to {', '.join(numb)}: started from the measured states instead."
        return Opening(transcription, second(), note=note)
    return Opening(transcription, staged, lambda: second().start)


def theta_of(attempt: Attempt) -> Array:
    """Return the estimates in search scale."""
    return attempt.staged.layout.theta(attempt.solution.v)


def dependent(layout: Layout, linear: Evaluation, scale: Array) -> tuple[str, ...]:
    """Name equations of quantities whose derivatives are about combinations of those of others."""
    equal = np.flatnonzero(layout.relations.lower == layout.relations.upper)
    if equal.size < 2 or not linear.ok:
        return ()
    rows = linear.related_jacobian[equal] * scale[: layout.n_theta]
    lengths = np.linalg.norm(rows, axis=1)
    basis, out = np.empty((0, layout.n_theta)), list[str]()
    for i, row, length in zip(equal, rows, lengths, strict=True):
        unit = row / length if length > 0.0 else row
        left = unit - basis.T @ (basis @ unit)
        size = float(np.linalg.norm(left))
        if size <= _DEPENDENT:
            out.append(layout.relations.names[i])
        else:
            basis = np.vstack([basis, left / size])
    return tuple(out)


def _naming(staged: StagedProblem, solution: Solution, linear: Evaluation) -> Solution:
    """Name the constraints that a failed search leaves violated, the worst first."""
    if solution.status.success or not linear.ok or "Worst violated" in solution.detail:
        return solution
    worst = violated(staged.layout, linear, _VIOLATED)[:3]
    if not worst:
        return solution
    named = "; ".join(f"{name} by {by:.2g}" for name, by in worst)
    return replace(solution, detail=f"{solution.detail} Worst violated: {named}.".strip())


def judge(staged: StagedProblem, solution: Solution) -> tuple[Solution, Evaluation]:
    """Linearize at the end, or at least evaluate, and withdraw a solution that is none.

    Rounding errors would spoil it, or the fit could still be improved from there.
    """
    linear = staged.linearize(solution.v)
    if not linear.ok:
        return solution, staged.evaluate(solution.v)
    if solution.status in (Status.INTERRUPTED, Status.STOPPED_BY_CALLBACK):
        return solution, linear
    theta = np.maximum(np.abs(staged.layout.theta(solution.v)), 1e-300)
    worst, what = 0.0, ""
    for chain, blocks in zip(staged.layout.chains, linear.jacobians, strict=True):
        if chain.n_s == 0 and blocks.R_q.size:
            moved = np.abs(blocks.R_q).max(axis=(0, 1)) * theta[chain.theta] * np.finfo(float).eps
            j = int(np.argmax(moved))
            if moved[j] > worst:
                worst, what = float(moved[j]), f"{staged.layout.names[chain.theta[j]]} ({chain.name})"
    if worst > _AMPLIFIED_ROUNDING:
        detail = f"Rounding {what} alone moves a residual by {worst:.1g} standard deviations."
        return replace(solution, status=Status.UNRESOLVABLE, detail=detail), linear
    if solution.status.success:
        solution, linear = finished(staged, solution, linear)
    falling = still_falls(staged, linear) if solution.status.success else ()
    if falling:
        detail = f"The fit still improves along {', '.join(falling)}."
        return replace(solution, status=Status.STEP_TOO_SMALL, detail=detail), linear
    return solution, linear


def _verified(
    problem: Posed, transcription: Transcription, staged: StagedProblem, solution: Solution, linear: Evaluation
) -> tuple[Solution, Verification | None]:
    """Withdraw a solution that the model itself does not reproduce."""
    if not solution.status.success or not linear.ok:
        return solution, None
    found = verify(problem, staged, linear, transcription.integrator, transcription.accuracy)
    if found.reproduced:
        return solution, found
    return replace(
        solution, status=Status.INACCURATE, detail=f"{found.sentence} {solution.detail or _remedy(staged)}"
    ), found


def _remedy(staged: StagedProblem) -> str:
    """Say what to try after a solution that is none."""
    if not staged.integrated:
        return "Use more elements, elements='auto', or another start."
    if staged.layout.chains[0].n_s:
        return "Use another start, bounds, or tighter tolerances of the integrator."
    return "Tighten the tolerances of the integrator, or use MultipleShooting or Collocation."
