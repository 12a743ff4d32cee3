"""Following the solutions of a problem in which one thing is held, as the number at which it is held moves.

    v(c + h)  ~  v(c) + h v'(c) + h^2/2 (v'(c) - v'(c_before)) / (c - c_before)

v' is the response of the linearized problem: the Gauss-Newton step whose only cause is that the bounds, or the row,
that hold the coordinate have moved.  From there a step or two of Gauss and Newton lead to the next solution.  The same
step gives the slope and the curvature of the profile, so that each solution is worth a parabola:

    d cost/dc = u . E x',      d2 cost/dc2 ~ |E x'|^2          (u + E x: the condensed rows, `castfit.solve.condensing`)

Steps are as long as makes the objective's root rise by a quarter of the root of the highest threshold.  What is not as
predicted is tried again in smaller steps; what then still jumps is another optimum that takes over, where the one that
was followed ended: from there a new branch is followed, forwards and back.

Notation
--------
c      coordinate of what is held
delta  2 (cost(c) - cost of the best fit), a difference of -2 log L
side   -1 down, +1 up
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit._array import Array
from castfit._watch import Stopped
from castfit.attempts import has_states
from castfit.drive.profile.pinned import bare, started
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.local import LocalProblem
from castfit.solve.solution import Control, Solution
from castfit.status import Status
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit.drive.profile.targets import Target
    from castfit.methods import Solver, Transcription
    from castfit.posed import Posed
    from castfit.staged import StagedProblem

BETTER = 1e-2  # delta below minus this is another, better fit
_PRECISE = 2e-5  # of the cost: what a solution on the path may be off
_GROWTH = 3.0  # a step may be this many times the last one
_SHORTEST = 1e-3  # of a step's usual length: what still jumps then is a jump
_MOST_SPOTS = 400
_TRIES = 12  # of a step
_NEAR_ZERO = 0.1  # of the estimate: where steps that are to cross 0 fail, 0 is no value like others
_THOROUGH = 200  # iterations, held back after Levenberg and Marquardt, where a branch ended
_ITERATIONS = 25  # of a solve on the way; two or three are usual
_ROUNDS = 7  # of refinement and rescue
_LIMIT = 2e-3  # relative: a solution is at a threshold
_REGULARISATION = 1e-9
_ENDED = (Status.INTERRUPTED, Status.MAX_TIME)

CROSSED, BOUND, FAR, ZERO, LOST, JUMP, CUT, INTERRUPTED, BEYOND = (
    "crossed", "bound", "far", "zero", "lost", "jump", "cut off", "interrupted", "beyond"
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Spot:
    """A solution with the coordinate held.

    slope, curvature : first and second derivative of delta by c, the latter that of the linearized problem
    v, tangent : (n_v,) the solution and dv/dc
    """

    c: float
    delta: float
    slope: float
    curvature: float
    theta: Array
    v: Array
    tangent: Array


@dataclass(frozen=True, eq=False)
class Branch:
    """Solutions along one optimum, in the order of c, and why it ends on either side.

    Attributes
    ----------
    c, delta, slope : (n,) arrays
    theta : (n, n_theta) array
    ends : (str, str)
        Below and above: "crossed" (a threshold), "beyond" (as high as asked), "bound", "far", "lost", "jump",
        "cut off", "interrupted".
    """

    c: Array
    delta: Array
    slope: Array
    theta: Array
    ends: tuple[str, str]

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
        )


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


def _as_it_is(staged: StagedProblem) -> StagedProblem:
    return staged


@dataclass
class Tracer:
    """What follows paths: the staged problem, refined as it goes, the solver, and counts.

    `cost` is that of the best fit; `wrap` does what has to be done to every staged problem that is made on the way.
    """

    posed: Posed
    transcription: Transcription
    solver: Solver
    staged: StagedProblem
    cost: float
    wrap: Callable[[StagedProblem], StagedProblem] = _as_it_is
    deadline: float = np.inf
    solves: int = 0
    evaluations: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        """Let no solve on the way take long: a shorter step is cheaper."""
        if isinstance(self.solver, GaussNewton):
            self.solver = replace(self.solver, max_iter=min(self.solver.max_iter, _ITERATIONS))

    def spot(
        self, target: Target, c: float, v: Array, h: float, *, check: bool = False, thorough: bool = False
    ) -> Spot | Status:
        """Solve with the coordinate held at c, from v; h is a typical step, with its sign.

        `check` says whether elements are looked at, and refined if they are too coarse here: it takes as long as an
        iteration, and is done where numbers are read off.  `thorough` says that the solution may be far.
        """
        for _ in range(_ROUNDS):
            held = started(target.held(self.staged, c), v)
            found = self._solved(held, thorough=thorough)
            try:
                if not found.status.success:
                    if found.status in _ENDED or not self._by_shooting(v):
                        return found.status
                    v = self.staged.layout.theta(v)
                    continue
                finer = self.transcription.refine(self.posed, bare(self.staged), found.v) if check else None
            except Stopped as stopped:
                return stopped.status
            if finer is None:
                return self.measured(target, held, found.v, c, h)
            self.staged, v = self.wrap(finer), finer.start
        return Status.INACCURATE

    def _by_shooting(self, v: Array) -> bool:
        """Go on by single shooting, if this is not what fails already.

        Where products of states and scales are measured, states that are variables of their own make a valley narrow
        and curved that is wide and straight for parameters alone.
        """
        if not has_states(self.transcription):
            return False
        self.transcription = SingleShooting(self.transcription.integrator)
        whole = self.transcription.transcribe(self.posed, self.staged.layout.theta(v))
        self.staged = self.wrap(whole)
        return True

    def _solved(self, held: StagedProblem, *, thorough: bool) -> Solution:
        first = held.evaluate(np.clip(held.start, held.lower, held.upper))
        size = first.informing_square if first.ok and first.informing_square > 0 else 1.0
        rough = float(np.clip(_PRECISE / size, 1e-10, 1e-6))
        left = max(self.deadline - time.time(), 1e-3)
        solver = self.solver
        if thorough and isinstance(solver, GaussNewton):
            solver = replace(solver, step_control="levenberg_marquardt", max_iter=_THOROUGH)
        found = solver.solve(held, Control(left, None, None, rough), warm=True)
        self.solves += 1
        self.evaluations.update(found.evaluations)
        self.failures.update(found.failures)
        return found

    def measured(self, target: Target, held: StagedProblem, v: Array, c: float, h: float) -> Spot | Status:
        """Return the spot at a solution, with slope, curvature and tangent."""
        moved = target.held(self.staged, c + h)
        at, there = held.linearize(v), moved.linearize(v)
        if not (at.ok and there.ok):
            return Status.EVALUATION_FAILED
        local = LocalProblem(moved, there, regularisation=_REGULARISATION)
        if not local.finite:
            return Status.LINEAR_ALGEBRA_FAILED
        step = local.direction()
        rows, response = (
            target.own_rows(local.condensed.u, moved),
            target.own_rows(step.residuals - local.condensed.u, moved) / h,
        )
        known = target.slope(self.staged, at)
        slope, curvature = known if known is not None else (float(rows @ response), float(response @ response))
        return Spot(
            target.coordinate(at, held),
            2.0 * (at.cost - target.own_cost(at, held) - self.cost),
            2.0 * slope,
            2.0 * curvature,
            self.staged.layout.theta(at.v).copy(),
            at.v,
            step.dv / h,
        )


@dataclass(frozen=True, eq=False)
class Traced:
    """What following one side gave.

    better : theta of a better fit, where one was found
    valleys : theta where the objective had another minimum along the path
    """

    branches: tuple[Branch, ...]
    better: Array | None = None
    valleys: tuple[Array, ...] = ()


def follow(tracer: Tracer, target: Target, first: Spot, side: int, goal: Goal) -> Traced:
    """Follow the solutions from one on, with the branches that take over."""
    found: list[Branch] = []
    valleys: list[Array] = []
    todo: list[tuple[Spot, int]] = [(first, side)]
    while todo and len(found) < 8:
        start, way = todo.pop(0)
        walk = _Walk(tracer, target, way, goal, origin=first)
        spots, end, landing = walk.run(start)
        ends = (end, JUMP) if way < 0 else (JUMP, end)
        if start is first:
            ends = (end, "start") if way < 0 else ("start", end)
        found.append(Branch.of(spots, ends))
        valleys += walk.valleys
        worst = min(spots, key=lambda s: s.delta)
        if worst.delta < -BETTER:
            return Traced(tuple(found), worst.theta, tuple(valleys))
        if landing is not None:
            if landing.delta < -BETTER:
                return Traced(tuple(found), landing.theta, tuple(valleys))
            if start is first:
                todo.append((landing, -way))
            todo.append((landing, way))
    return Traced(tuple(found), None, tuple(valleys))


class _Walk:
    """One walk along one optimum."""

    def __init__(self, tracer: Tracer, target: Target, side: int, goal: Goal, origin: Spot) -> None:
        self.tracer, self.target, self.side, self.goal, self.origin = tracer, target, side, goal, origin
        self.end = target.upper if side > 0 else target.lower
        room = np.log(goal.reach) if target.log else goal.reach * max(abs(origin.c), target.scale)
        self.far = origin.c + side * room
        self.valleys: list[Array] = []
        self.usual = 0.0
        # Whether the value 0, which is ahead, is another model: then it is approached by factors.
        self.singular = False

    def run(self, start: Spot) -> tuple[list[Spot], str, Spot | None]:
        """Return the spots, why it ended, and where it landed if another optimum took over."""
        spots, h = [start], 0.0
        top = self.goal.top
        while len(spots) < _MOST_SPOTS:
            at = spots[-1]
            if at.delta < -BETTER:
                return spots, BEYOND, None
            risen = at.delta > top and self.side * at.slope > 0.0
            if risen and not self.goal.everywhere and len(spots) > 1:
                return spots, CROSSED, None
            left = self.side * (self.end - at.c)
            if left <= 1e-12 * max(abs(at.c), self.target.scale):
                return spots, BOUND, None
            if self.side * (self.far - at.c) <= 0.0:
                return spots, FAR, None
            if self.singular and abs(at.c) <= abs(self.origin.c) / self.goal.reach:
                return spots, ZERO, None
            left = min(left, self.side * (self.far - at.c))
            last = self.end if self.side * (self.end - self.far) <= 0.0 else self.far
            h = min(self._proposed(spots, h), left)
            h = left if h > 0.9 * left else h
            h = min(h, 0.75 * abs(at.c)) if self.singular else h
            self.usual = self.usual or h
            before, now, outcome = at, None, LOST
            shortest = _SHORTEST * max(self.usual, 1e-3 * self.target.scale)
            tries = 0
            while (tries := tries + 1) <= _TRIES:
                c = last if h == left else at.c + self.side * h
                v, final = self._predicted(spots, c), c in (self.end, self.far)
                found = self.tracer.spot(self.target, c, v, self.side * h, check=final)
                if isinstance(found, Status):
                    if found in _ENDED:
                        return spots, CUT if found is Status.MAX_TIME else INTERRUPTED, None
                    shorter = self._shorter(at, c, h, shortest)
                    if h < shortest and not self.singular:
                        break
                    h = shorter
                    continue
                now, surprise = found, self._surprise(before, found)
                if not surprise:
                    outcome = ""
                    break
                shorter = self._shorter(at, c, h, shortest)
                if h < shortest and not self.singular:
                    outcome = JUMP
                    break
                h = shorter
            if outcome == LOST:
                now = self._beyond(before, h)
                if now is None:
                    return spots, LOST, None
                outcome = JUMP if self._surprise(before, now) else ""
            assert now is not None
            if outcome == JUMP:
                return spots, JUMP, now
            if self.side * before.slope < 0.0 < self.side * now.slope and len(spots) > 1:
                self.valleys.append(min((before, now), key=lambda s: s.delta).theta)
            for level in self._crossed(before, now):
                between = self._polished(before, now, level)
                spots += [s for s in between if self.side * (s.c - spots[-1].c) > 0.0]
            spots = [s for s in spots if self.side * (now.c - s.c) > 0.0]
            spots.append(now)
        return spots, LOST, None

    def _beyond(self, at: Spot, h: float) -> Spot | None:
        """Return the solution beyond the end of a branch, wherever it is; None if there is none."""
        size = self.tracer.staged.layout.n_v
        for factor in (1.0, 16.0, 256.0):
            c = at.c + self.side * factor * h
            if self.side * (self.end - c) < 0.0:
                break
            v = at.v if at.v.size == size else self.tracer.staged.start
            found = self.tracer.spot(self.target, c, v, self.side * h, thorough=True)
            if isinstance(found, Spot):
                return found
        return None

    def _shorter(self, at: Spot, c: float, h: float, shortest: float) -> float:
        """Return a shorter step; close to 0, one that leads there or beyond goes a part of the way."""
        ratio = at.c / self.origin.c if self.origin.c != 0.0 else -1.0
        near = 0.0 < ratio < (1.0 if h < shortest else _NEAR_ZERO)
        if not self.target.log and near and at.c * c <= 0.0:
            self.singular = True
            return 0.75 * abs(at.c)
        return 0.25 * h

    def _proposed(self, spots: list[Spot], last: float) -> float:
        """Return the length of the next step."""
        at, top = spots[-1], self.goal.top
        root = np.sqrt(max(at.delta, 0.0))
        aim = root + np.sqrt(top) / self.goal.parts
        if root < np.sqrt(top) < aim + 0.1 * np.sqrt(top) / self.goal.parts:
            aim = 1.05 * np.sqrt(top)
        if self.goal.everywhere and at.delta > top:
            aim = max(aim, 1.5 * root)
        slope, half = self.side * at.slope, 0.5 * at.curvature
        if len(spots) > 1:
            gap = at.c - spots[-2].c
            if gap != 0.0:
                half = max(0.5 * (at.slope - spots[-2].slope) / gap, 0.1 * half)
        part = np.sqrt(top) / self.goal.parts
        if slope < 0.0 < half and len(spots) > 1 and root > part:  # downhill, if the bottom is not reached yet
            lower = root - part if at.delta <= 4.0 * top else root / 1.5
            square = slope**2 - 4.0 * half * (at.delta - lower**2)
            if square > 0.0 and last > 0.0:
                return float(min((-slope - np.sqrt(square)) / (2.0 * half), _GROWTH * last))
        rise = aim**2 - at.delta
        root_of = slope**2 + 4.0 * half * rise
        with np.errstate(all="ignore"):
            h = 2.0 * rise / (slope + np.sqrt(root_of)) if root_of > 0.0 else np.inf
        most = _GROWTH * last if last > 0.0 else (1.0 if self.target.log else self.target.scale)
        return float(min(h, most)) if np.isfinite(h) and h > 0.0 else most

    def _predicted(self, spots: list[Spot], c: float) -> Array:
        """Return where the solution at c should be."""
        size = self.tracer.staged.layout.n_v
        same = [s for s in spots[-3:] if s.v.size == size]  # others are from before elements were refined
        if not same:
            return self.tracer.staged.start
        at = same[-1]
        h = c - at.c
        v = at.v + h * at.tangent
        if len(same) > 1 and at is spots[-1]:
            gap = at.c - same[-2].c
            if gap != 0.0 and abs(h) <= 2.0 * abs(gap):
                v = v + 0.5 * h**2 / gap * (at.tangent - same[-2].tangent)
        return v

    def _surprise(self, at: Spot, now: Spot) -> bool:
        """Whether the objective is not what slopes on both sides and a parabola make of it."""
        h, top = now.c - at.c, self.goal.top
        size = max(top, at.delta, 0.0)
        trapezium = at.delta + 0.5 * h * (at.slope + now.slope)
        wrong = abs(now.delta - trapezium) > 0.1 * size + 0.25 * abs(now.delta - at.delta)
        steep = not self.goal.everywhere and now.delta > max(4.0 * top, 2.0 * at.delta) and at.delta < top
        return bool(wrong or steep)

    def _crossed(self, at: Spot, now: Spot) -> list[float]:
        """Return the thresholds between two spots, in the order in which they are crossed."""
        low, high = sorted((at.delta, now.delta))
        inside = [t for t in self.goal.thresholds if low <= t < high]
        return inside if at.delta <= now.delta else inside[::-1]

    def _polished(self, at: Spot, now: Spot, level: float) -> list[Spot]:
        """Solve where the objective is at the threshold, up to a small fraction."""
        a, b, found = at, now, list[Spot]()
        for _ in range(5):
            c = crossing((a.c, a.delta, a.slope), (b.c, b.delta, b.slope), level)
            v = self._predicted(sorted((a, b, *found), key=lambda s: -abs(s.c - c)), c)
            spot = self.tracer.spot(self.target, c, v, now.c - at.c, check=True)
            if isinstance(spot, Status):
                break
            found.append(spot)
            if abs(spot.delta - level) <= _LIMIT * level:
                break
            if (spot.delta < level) == (a.delta < b.delta):
                a = spot
            else:
                b = spot
        return sorted(found, key=lambda s: self.side * s.c)


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
