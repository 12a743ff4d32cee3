"""Continuation: the solutions of a problem in which one thing is held, as the number at which it is held moves.

A walk follows one optimum, by predictions and corrections (`castfit.drive.uncertainty.profile.corrector`).  Steps are
as long as makes the objective's root rise by a part of the root of the highest threshold: a quarter of it, or a half
where the last step went as predicted.  What is not as predicted is looked at from nearer by.  A solution that was met
there is kept: if steps from nearer by lead to it after all, it is the next one.  What still jumps over the shortest of
steps is another optimum that takes over, where the one that was followed has ended: from where the walk has landed a
new branch is followed, forwards and back.

    c      coordinate of what is held
    delta  2 (cost(c) - cost of the best fit), a difference of -2 log L
    side   -1 down, +1 up

A prediction goes along the tangent, or along the power that has this tangent:

    straight     v(c + h)  ~  v + h v' + h^2/2 v''
    power        ln |v(c + h)|  ~  the same of ln |v|, as a function of ln |c|

Valleys often are products: what a scale factor loses a state wins, s x = const, and with both in logarithms they are
straight.  Every entry of v takes what would have predicted the last solution better from this one; second derivatives
are differences of first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit.drive.uncertainty.profile.branches import (
    BEYOND,
    BOUND,
    CROSSED,
    CUT,
    FAR,
    INTERRUPTED,
    JUMP,
    LOST,
    ZERO,
    Branch,
    Followed,
    Goal,
    Spot,
    crossing,
)
from castfit.drive.uncertainty.profile.corrector import ENDED, Tracer
from castfit.drive.uncertainty.profile.targets import Target

_MOST_BRANCHES = 8
BETTER = 1e-2  # delta below minus this is another, better fit

_GROWTH = 3.0  # a step may be this many times the last one
_SHORTEST = 1e-3  # of a step's usual length: what still jumps then is a jump
_MOST_SPOTS = 400
_TRIES = 12  # of a step
_NEAR_ZERO = 0.1  # of the estimate: where steps that are to cross 0 fail, 0 is no value like others
_VANISHING, _FACTOR = 1e-2, 0.85  # what is positive comes near to 0 by factors, down to this part of the estimate
_WITHIN = 1e-4  # of the highest threshold: how near to its minimum the cost comes on the way
_LIMIT = 2e-3  # relative: a solution is at a threshold
_AS_PREDICTED = 0.1  # of the highest threshold: the next step may be twice as long
_RESCUED = 2  # tries before single shooting takes over
_PATIENCE = 4  # steps towards a solution ahead, before it is given up
_RIDGE = 1e-2  # of -2 log L: what rises by less before it falls again is flat
_TRUSTED = 2.0  # times the last step: farther second derivatives are not trusted
_MOST_CHANGE = 3.0  # of a logarithm: no power changes an entry by a larger factor


def follow(tracer: Tracer, target: Target, first: Spot, side: int, goal: Goal) -> Followed:
    """Follow the solutions from one on, with the branches that take over."""
    found: list[Branch] = []
    valleys: list[Array] = []
    todo: list[tuple[Spot, int]] = [(first, side)]
    while todo and len(found) < _MOST_BRANCHES:
        start, way = todo.pop(0)
        walk = ProfileWalk(tracer, target, way, goal, origin=first)
        spots, end, landing = walk.run(start)
        ends = (end, JUMP) if way < 0 else (JUMP, end)
        if start is first:
            ends = (end, "start") if way < 0 else ("start", end)
        found.append(Branch.of(spots, ends))
        valleys += walk.valleys
        worst = min(spots, key=lambda s: s.delta)
        if worst.delta < -BETTER:
            return Followed(tuple(found), better=worst.theta, valleys=tuple(valleys))
        if landing is not None:
            if landing.delta < -BETTER:
                return Followed(tuple(found), better=landing.theta, valleys=tuple(valleys))
            if start is first:
                todo.append((landing, -way))
            todo.append((landing, way))
    return Followed(tuple(found), valleys=tuple(valleys))


class ProfileWalk:
    """One walk along one optimum, from `origin` the best fit, or from where another optimum took over."""

    def __init__(self, tracer: Tracer, target: Target, side: int, goal: Goal, origin: Spot) -> None:
        self.tracer, self.target, self.side, self.goal, self.origin = tracer, target, side, goal, origin
        self.end = target.upper if side > 0 else target.lower
        room = np.log(goal.reach) if target.log else goal.reach * max(abs(origin.c), target.scale)
        self.far = origin.c + side * room
        self.valleys: list[Array] = []
        self.usual = 0.0
        self.part = 1.0 / goal.parts
        # Whether the value 0, which is ahead, is another model: then it is approached by factors.
        self.singular = False
        self.ahead: list[Spot] = []  # solutions that were no continuation of the nearer ones, the nearest last
        self.waited = 0
        self.barrier = side * np.inf  # where a solve failed: it is approached by halves

    def run(self, start: Spot) -> tuple[list[Spot], str, Spot | None]:
        """Return the spots, why it ended, and where it landed if another optimum took over."""
        spots, h = [start], 0.0
        while len(spots) < _MOST_SPOTS:
            ended = self._ended(spots)
            if ended:
                return spots, ended, None
            now, outcome = self._next(spots, h)
            if outcome == JUMP or now is None:
                return spots, outcome, now
            before = spots[-1]
            h = self.side * (now.c - before.c)
            low = min((before, now), key=lambda s: s.delta)
            ridge = max(s.delta for s in spots) - low.delta > _RIDGE
            if ridge and self.side * before.slope < 0.0 < self.side * now.slope and len(spots) > 1:
                self.valleys.append(low.theta)
            for level in self._crossed(before, now):
                between = self._polished(before, now, level)
                spots += [s for s in between if self.side * (s.c - spots[-1].c) > 0.0]
            spots = [s for s in spots if self.side * (now.c - s.c) > 0.0]
            spots.append(now)
        return spots, LOST, None

    def _ended(self, spots: list[Spot]) -> str:
        """Return the reason why the last point ends the path; empty if it does not."""
        at = spots[-1]
        if at.delta < -BETTER:
            return BEYOND
        risen = at.delta > self.goal.top and self.side * at.slope > 0.0
        if risen and not self.goal.everywhere and len(spots) > 1:
            return CROSSED
        if self.side * (self.end - at.c) <= 1e-12 * max(abs(at.c), self.target.scale):
            return BOUND
        if self.side * (self.far - at.c) <= 0.0:
            return FAR
        if self.singular and abs(at.c) <= abs(self.origin.c) / self.goal.reach:
            return ZERO
        return ""

    def _next(self, spots: list[Spot], last: float) -> tuple[Spot | None, str]:
        """Return the next spot, and "jump" if it is of another optimum; or none, and why."""
        at = spots[-1]
        final = self.end if self.side * (self.end - self.far) <= 0.0 else self.far
        left = self.side * (final - at.c)
        h, expected = self._proposed(spots, last)
        if self._comes(at):
            return self.ahead.pop(), ""
        h = min(h, left, *(self._halfway(at, there) for there in self.ahead[-1:]))
        h = min(h, 0.5 * abs(self.barrier - at.c))
        if not self.target.log and final == 0.0 and abs(at.c) > _VANISHING * abs(self.origin.c):
            h = min(h, _FACTOR * abs(at.c))
        h = left if h > 0.9 * left else h
        h = min(h, 0.75 * abs(at.c)) if self.singular else h
        self.usual = self.usual or h
        shortest = _SHORTEST * max(self.usual, 1e-3 * self.target.scale)
        if abs(self.barrier - at.c) < shortest:
            self.barrier = self.side * np.inf
            h = shortest
        within = _WITHIN * self.goal.top
        for n in range(_TRIES):
            c = final if h == left else at.c + self.side * h
            v = self._predicted(spots, c)
            found = self.tracer.spot(self.target, c, v, self.side * h, within=within, check=c == final,
                                     rescue=n >= _RESCUED)  # fmt: skip
            if found in ENDED:
                return None, CUT if found is Status.MAX_TIME else INTERRUPTED
            lost = isinstance(found, Status)
            if not lost and not self._surprise(at, found):
                right = n == 0 and abs(found.delta - expected(c)) < _AS_PREDICTED * self.goal.top
                self.part = (2.0 if right else 1.0) / self.goal.parts
                return found, ""
            shorter = self._shorter(at, c, h, shortest, 0.25 if lost or n > 0 else 0.5)
            self.barrier = c if lost else self.barrier
            if h < shortest and not self.singular:
                if lost:
                    break
                return found, JUMP
            if not lost:
                self.ahead.append(found)
                self.waited = 0
            h = shorter
        self.ahead.clear()
        now = self._beyond(at, h)
        return now, LOST if now is None else JUMP if self._surprise(at, now) else ""

    def _comes(self, at: Spot) -> bool:
        """Check whether the solution ahead is a plausible next point; drop passed and repeatedly implausible points."""
        self.ahead = [s for s in self.ahead if self.side * (s.c - at.c) > 0.0]
        if not self.ahead:
            return False
        if not self._surprise(at, self.ahead[-1]):
            self.waited = 0
            return True
        self.waited += 1
        if self.waited > _PATIENCE:
            self.ahead.clear()
        return False

    def _halfway(self, at: Spot, there: Spot) -> float:
        """Return the step length to the middle of two points: geometric if signs agree and c is not a logarithm,
        else arithmetic.
        """
        if not self.target.log and at.c * there.c > 0.0:
            return abs(at.c) * abs(np.sqrt(there.c / at.c) - 1.0)
        return 0.5 * abs(there.c - at.c)

    def _beyond(self, at: Spot, h: float) -> Spot | None:
        """Return the solution beyond the end of a branch, wherever it is; None if there is none."""
        for factor in (1.0, 16.0, 256.0):
            c = at.c + self.side * factor * h
            if self.side * (self.end - c) < 0.0:
                break
            v = at.v if at.v.size == self.tracer.staged.layout.n_v else self.tracer.staged.start
            found = self.tracer.spot(self.target, c, v, self.side * h, thorough=True)
            if isinstance(found, Spot):
                return found
        return None

    def _shorter(self, at: Spot, c: float, h: float, shortest: float, part: float) -> float:
        """Return a shorter step; close to 0, one that leads there or beyond goes a part of the way."""
        ratio = at.c / self.origin.c if self.origin.c != 0.0 else -1.0
        near = 0.0 < ratio < (1.0 if h < shortest else _NEAR_ZERO)
        if not self.target.log and near and at.c * c <= 0.0:
            self.singular = True
            return 0.75 * abs(at.c)
        return part * h

    def _proposed(self, spots: list[Spot], last: float) -> tuple[float, Callable[[float], float]]:
        """Return the length of the next step, and delta as a function of the coordinate as far as is known."""
        at, top = spots[-1], self.goal.top
        root, part = np.sqrt(max(at.delta, 0.0)), self.part * np.sqrt(top)
        aim = root + part
        if root < np.sqrt(top) < aim + 0.1 * part:
            aim = 1.05 * np.sqrt(top)
        if self.goal.everywhere and at.delta > top:
            aim = max(aim, 1.5 * root)
        slope, half = self.side * at.slope, 0.5 * at.curvature
        if len(spots) > 1:
            gap = at.c - spots[-2].c
            if gap != 0.0:
                half = max(0.5 * (at.slope - spots[-2].slope) / gap, 0.1 * half)

        def expected(c: float) -> float:
            return float(at.delta + at.slope * (c - at.c) + half * (c - at.c) ** 2)

        if slope < 0.0 < half and len(spots) > 1 and root > part:  # downhill, if the bottom is not reached yet
            lower = root - part if at.delta <= 4.0 * top else root / 1.5
            square = slope**2 - 4.0 * half * (at.delta - lower**2)
            if square > 0.0 and last > 0.0:
                return float(min((-slope - np.sqrt(square)) / (2.0 * half), _GROWTH * last)), expected
        rise = aim**2 - at.delta
        root_of = slope**2 + 4.0 * half * rise
        with np.errstate(all="ignore"):
            h = 2.0 * rise / (slope + np.sqrt(root_of)) if root_of > 0.0 else np.inf
        most = _GROWTH * last if last > 0.0 else (1.0 if self.target.log else self.target.scale)
        return float(min(h, most)) if np.isfinite(h) and h > 0.0 else most, expected

    def _predicted(self, spots: list[Spot], c: float) -> Array:
        """Predict the solution at c from the last points."""
        size = self.tracer.staged.layout.n_v
        same = [s for s in spots[-3:] if s.v.size == size]  # others are from before elements were refined
        if not same:
            return self.tracer.staged.start
        return predicted(same if same[-1] is spots[-1] else same[-1:], c, log=self.target.log)

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


def predicted(spots: Sequence[Spot], c: float, *, log: bool) -> Array:
    """Return v (n_v,) at c from spots of one layout, the nearest last; `log`: c is a logarithm already."""
    at = spots[-1]
    before = spots[-2] if len(spots) > 1 and spots[-2].c != at.c else None
    straight = _along(at.c, at.v, at.tangent, c, None if before is None else (before.c, before.tangent))
    if before is None or not (log or min(at.c * before.c, at.c * c) > 0.0):
        return straight
    x, x_before, x_new = (n if log else np.log(abs(n)) for n in (at.c, before.c, c))
    with np.errstate(all="ignore"):
        slope = at.tangent * (1.0 if log else at.c)
        y, dy = np.log(np.abs(at.v)), slope / at.v
        dy_before = before.tangent * (1.0 if log else before.c) / before.v
        change = _along(x, y, dy, x_new, (x_before, dy_before)) - y
        power = at.v * np.exp(change)
        back = before.c - at.c
        wrong = np.abs(at.v + back * at.tangent - before.v)
        wrong_power = np.abs(at.v * np.exp((x_before - x) * dy) - before.v)
        use = (at.v * before.v > 0.0) & (wrong_power < wrong) & (np.abs(change) < _MOST_CHANGE)
    return np.where(use, power, straight)


def _along(c: float, v: Array, slope: Array, to: float, before: tuple[float, Array] | None) -> Array:
    h = to - c
    out = v + h * slope
    if before is not None and abs(h) <= _TRUSTED * abs(c - before[0]):
        out = out + 0.5 * h**2 / (c - before[0]) * (slope - before[1])
    return out
