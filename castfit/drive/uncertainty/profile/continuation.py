"""Continuation: the solutions of a problem with a fixed target, as the fixed value changes.

A path follows one optimum, by predictions and corrections (`castfit.drive.uncertainty.profile.corrector`).  The step
length makes the root of the objective rise by a quarter of the root of the highest threshold, or by a half if the last
step agreed with its prediction.  If a solution disagrees with its prediction, the step is shortened and the solution
is kept: if shorter steps lead to it, it becomes the next point.  If the solution still jumps over the shortest step,
the followed optimum has ended and another optimum takes over: a new branch is followed from there, in both directions.

    c      coordinate of the fixed target
    delta  2 (cost(c) - cost of the best fit), a difference of -2 log L
    side   -1 down, +1 up

A prediction goes along the tangent, or along the power that has this tangent:

    straight     v(c + h)  ~  v + h v' + h^2/2 v''
    power        ln |v(c + h)|  ~  the same of ln |v|, as a function of ln |c|

Valleys often are products of a scale factor and a state, s x = const, which are straight in logarithms.  Each entry of
v uses the formula that would have predicted the last solution better from this one.  Second derivatives are
differences of first derivatives.
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
    ContinuationLimits,
    ContinuationResult,
    ProfileBranch,
    ProfilePoint,
    threshold_crossing,
)
from castfit.drive.uncertainty.profile.corrector import ENDED, CorrectorContext
from castfit.drive.uncertainty.profile.targets import Target

_MAX_BRANCHES = 8  # branches that are followed on one side
MIN_IMPROVEMENT_DELTA = 1e-2  # of -2 log L: a point that is lower than the best fit by more is a better fit

_MAX_STEP_GROWTH = 3.0  # a step may be this many times the last one
_MIN_STEP_FRACTION = 1e-3  # of the usual step length: a jump over a shorter step is a jump to another optimum
_MAX_POINTS = 400  # points of one branch
_MAX_STEP_TRIES = 12  # tries of one step
_ZERO_CROSSING_FRACTION = 0.1  # of the estimate: if a step across 0 fails from nearer, 0 is singular
_ZERO_APPROACH_FRACTION = 1e-2  # of the estimate: down to it, steps towards 0 are limited by a factor
_ZERO_APPROACH_FACTOR = 0.85  # of the current value: the longest step towards 0
_PATH_COST_FRACTION = 1e-4  # of the highest threshold: by how much the cost of a point may exceed its minimum
_LIMIT_RTOL = 2e-3  # of the threshold: a solution whose delta is nearer is at the limit
_STEP_GROWTH_FRACTION = 0.1  # of the highest threshold: after a smaller prediction error the step doubles
_TRIES_BEFORE_SINGLE_SHOOTING = 2  # tries before single shooting takes over
_MAX_LOOKAHEAD_STEPS = 4  # steps towards a solution ahead, before it is given up
_MIN_RIDGE_HEIGHT = 1e-2  # of -2 log L: rise that must precede another minimum
_MAX_EXTRAPOLATION_RATIO = 2.0  # times the last step: farther second derivatives are not trusted
_MAX_LOG_CHANGE = 3.0  # of a logarithm: a power law may not change an entry by a larger factor


def follow_branches(
    tracer: CorrectorContext, target: Target, first_spot: ProfilePoint, side: int, goal: ContinuationLimits
) -> ContinuationResult:
    """Follow the solutions from a point, and the branches of optima that take over."""
    branches: list[ProfileBranch] = []
    valleys: list[Array] = []
    queue: list[tuple[ProfilePoint, int]] = [(first_spot, side)]
    while queue and len(branches) < _MAX_BRANCHES:
        start, direction = queue.pop(0)
        walk = ProfileContinuation(tracer, target, direction, goal, origin=first_spot)
        spots, end, landing = walk.run(start)
        ends = (end, JUMP) if direction < 0 else (JUMP, end)
        if start is first_spot:
            ends = (end, "start") if direction < 0 else ("start", end)
        branches.append(ProfileBranch.from_points(spots, ends))
        valleys += walk.valleys
        lowest_spot = min(spots, key=lambda s: s.delta)
        if lowest_spot.delta < -MIN_IMPROVEMENT_DELTA:
            return ContinuationResult(tuple(branches), better=lowest_spot.theta, valleys=tuple(valleys))
        if landing is not None:
            if landing.delta < -MIN_IMPROVEMENT_DELTA:
                return ContinuationResult(tuple(branches), better=landing.theta, valleys=tuple(valleys))
            if start is first_spot:
                queue.append((landing, -direction))
            queue.append((landing, direction))
    return ContinuationResult(tuple(branches), valleys=tuple(valleys))


class ProfileContinuation:
    """A path along one optimum, from `origin`: the best fit, or the point where another optimum took over."""

    def __init__(
        self, tracer: CorrectorContext, target: Target, side: int, goal: ContinuationLimits, origin: ProfilePoint
    ) -> None:
        self.tracer, self.target, self.side, self.goal, self.origin = tracer, target, side, goal, origin
        self.end = target.upper if side > 0 else target.lower
        room = np.log(goal.reach) if target.log else goal.reach * max(abs(origin.c), target.scale)
        self.far = origin.c + side * room
        self.valleys: list[Array] = []
        self.usual = 0.0
        self.part = 1.0 / goal.parts
        # Whether the value 0, which lies ahead, is another model: the path then approaches it by factors.
        self.singular = False
        self.ahead: list[ProfilePoint] = []  # solutions that did not continue the path, the nearest last
        self.waited = 0
        self.barrier = side * np.inf  # coordinate of a failed solve, which is approached by halves

    def run(self, start: ProfilePoint) -> tuple[list[ProfilePoint], str, ProfilePoint | None]:
        """Return the points, the reason of the end, and the first point of another optimum that took over, if any."""
        spots, h = [start], 0.0
        while len(spots) < _MAX_POINTS:
            end_reason = self._find_end_reason(spots)
            if end_reason:
                return spots, end_reason, None
            new_spot, outcome = self._next(spots, h)
            if outcome == JUMP or new_spot is None:
                return spots, outcome, new_spot
            previous_spot = spots[-1]
            h = self.side * (new_spot.c - previous_spot.c)
            lower_spot = min((previous_spot, new_spot), key=lambda s: s.delta)
            is_past_ridge = max(s.delta for s in spots) - lower_spot.delta > _MIN_RIDGE_HEIGHT
            if is_past_ridge and self.side * previous_spot.slope < 0.0 < self.side * new_spot.slope and len(spots) > 1:
                self.valleys.append(lower_spot.theta)
            for level in self._crossed(previous_spot, new_spot):
                threshold_spots = self._polished(previous_spot, new_spot, level)
                spots += [s for s in threshold_spots if self.side * (s.c - spots[-1].c) > 0.0]
            spots = [s for s in spots if self.side * (new_spot.c - s.c) > 0.0]
            spots.append(new_spot)
        return spots, LOST, None

    def _find_end_reason(self, spots: list[ProfilePoint]) -> str:
        """Return the reason why the last point ends the path; empty if it does not."""
        spot = spots[-1]
        if spot.delta < -MIN_IMPROVEMENT_DELTA:
            return BEYOND
        has_risen = spot.delta > self.goal.top and self.side * spot.slope > 0.0
        if has_risen and not self.goal.full_range and len(spots) > 1:
            return CROSSED
        if self.side * (self.end - spot.c) <= 1e-12 * max(abs(spot.c), self.target.scale):
            return BOUND
        if self.side * (self.far - spot.c) <= 0.0:
            return FAR
        if self.singular and abs(spot.c) <= abs(self.origin.c) / self.goal.reach:
            return ZERO
        return ""

    def _next(self, spots: list[ProfilePoint], previous_step: float) -> tuple[ProfilePoint | None, str]:
        """Return the next point, and "jump" if it belongs to another optimum; or None and the reason."""
        spot = spots[-1]
        final_c = self.end if self.side * (self.end - self.far) <= 0.0 else self.far
        remaining = self.side * (final_c - spot.c)
        h, predict_delta = self._proposed(spots, previous_step)
        if self._comes(spot):
            return self.ahead.pop(), ""
        h = min(h, remaining, *(self._halfway(spot, spot_ahead) for spot_ahead in self.ahead[-1:]))
        h = min(h, 0.5 * abs(self.barrier - spot.c))
        if not self.target.log and final_c == 0.0 and abs(spot.c) > _ZERO_APPROACH_FRACTION * abs(self.origin.c):
            h = min(h, _ZERO_APPROACH_FACTOR * abs(spot.c))
        h = remaining if h > 0.9 * remaining else h
        h = min(h, 0.75 * abs(spot.c)) if self.singular else h
        self.usual = self.usual or h
        shortest = _MIN_STEP_FRACTION * max(self.usual, 1e-3 * self.target.scale)
        if abs(self.barrier - spot.c) < shortest:
            self.barrier = self.side * np.inf
            h = shortest
        cost_tolerance = _PATH_COST_FRACTION * self.goal.top
        for n in range(_MAX_STEP_TRIES):
            c = final_c if h == remaining else spot.c + self.side * h
            v = self._predicted(spots, c)
            candidate = self.tracer.spot(
                self.target, c, v, self.side * h, cost_tolerance=cost_tolerance, check=c == final_c,
                rescue=n >= _TRIES_BEFORE_SINGLE_SHOOTING,
            )  # fmt: skip
            if candidate in ENDED:
                return None, CUT if candidate is Status.MAX_TIME else INTERRUPTED
            is_failed = isinstance(candidate, Status)
            if not is_failed and not self._surprise(spot, candidate):
                is_as_predicted = (
                    n == 0 and abs(candidate.delta - predict_delta(c)) < _STEP_GROWTH_FRACTION * self.goal.top
                )
                self.part = (2.0 if is_as_predicted else 1.0) / self.goal.parts
                return candidate, ""
            shorter = self._shorter(spot, c, h, shortest, 0.25 if is_failed or n > 0 else 0.5)
            self.barrier = c if is_failed else self.barrier
            if h < shortest and not self.singular:
                if is_failed:
                    break
                return candidate, JUMP
            if not is_failed:
                self.ahead.append(candidate)
                self.waited = 0
            h = shorter
        self.ahead.clear()
        next_spot = self._solve_beyond_end(spot, h)
        return next_spot, LOST if next_spot is None else JUMP if self._surprise(spot, next_spot) else ""

    def _comes(self, spot: ProfilePoint) -> bool:
        """Check whether the solution ahead is a plausible next point; drop passed and repeatedly implausible points."""
        self.ahead = [s for s in self.ahead if self.side * (s.c - spot.c) > 0.0]
        if not self.ahead:
            return False
        if not self._surprise(spot, self.ahead[-1]):
            self.waited = 0
            return True
        self.waited += 1
        if self.waited > _MAX_LOOKAHEAD_STEPS:
            self.ahead.clear()
        return False

    def _halfway(self, spot: ProfilePoint, spot_ahead: ProfilePoint) -> float:
        """Return the step length to the middle of two points.

        The mean is geometric if the signs agree and c is not a logarithm, else arithmetic.
        """
        if not self.target.log and spot.c * spot_ahead.c > 0.0:
            return abs(spot.c) * abs(np.sqrt(spot_ahead.c / spot.c) - 1.0)
        return 0.5 * abs(spot_ahead.c - spot.c)

    def _solve_beyond_end(self, spot: ProfilePoint, h: float) -> ProfilePoint | None:
        """Return a solution beyond the end of a branch, at any coordinate; None if there is none."""
        for factor in (1.0, 16.0, 256.0):
            c = spot.c + self.side * factor * h
            if self.side * (self.end - c) < 0.0:
                break
            v = spot.v if spot.v.size == self.tracer.staged.layout.n_v else self.tracer.staged.start
            candidate = self.tracer.spot(self.target, c, v, self.side * h, thorough=True)
            if isinstance(candidate, ProfilePoint):
                return candidate
        return None

    def _shorter(self, spot: ProfilePoint, c: float, h: float, shortest: float, part: float) -> float:
        """Return a shorter step; near 0, a step that reaches or crosses it becomes a fraction of the distance."""
        ratio = spot.c / self.origin.c if self.origin.c != 0.0 else -1.0
        is_near_zero = 0.0 < ratio < (1.0 if h < shortest else _ZERO_CROSSING_FRACTION)
        if not self.target.log and is_near_zero and spot.c * c <= 0.0:
            self.singular = True
            return 0.75 * abs(spot.c)
        return part * h

    def _proposed(self, spots: list[ProfilePoint], previous_step: float) -> tuple[float, Callable[[float], float]]:
        """Return the length of the next step, and the prediction of delta as a function of the coordinate."""
        spot, top = spots[-1], self.goal.top
        root, part = np.sqrt(max(spot.delta, 0.0)), self.part * np.sqrt(top)
        target_root = root + part
        if root < np.sqrt(top) < target_root + 0.1 * part:
            target_root = 1.05 * np.sqrt(top)
        if self.goal.full_range and spot.delta > top:
            target_root = max(target_root, 1.5 * root)
        slope, half_curvature = self.side * spot.slope, 0.5 * spot.curvature
        if len(spots) > 1:
            gap = spot.c - spots[-2].c
            if gap != 0.0:
                half_curvature = max(0.5 * (spot.slope - spots[-2].slope) / gap, 0.1 * half_curvature)

        def predict_delta(c: float) -> float:
            return float(spot.delta + spot.slope * (c - spot.c) + half_curvature * (c - spot.c) ** 2)

        if (
            slope < 0.0 < half_curvature and len(spots) > 1 and root > part
        ):  # downhill, if the bottom is not reached yet
            lower = root - part if spot.delta <= 4.0 * top else root / 1.5
            downhill_discriminant = slope**2 - 4.0 * half_curvature * (spot.delta - lower**2)
            if downhill_discriminant > 0.0 and previous_step > 0.0:
                return float(
                    min(
                        (-slope - np.sqrt(downhill_discriminant)) / (2.0 * half_curvature),
                        _MAX_STEP_GROWTH * previous_step,
                    )
                ), predict_delta
        rise = target_root**2 - spot.delta
        discriminant = slope**2 + 4.0 * half_curvature * rise
        with np.errstate(all="ignore"):
            h = 2.0 * rise / (slope + np.sqrt(discriminant)) if discriminant > 0.0 else np.inf
        max_step = (
            _MAX_STEP_GROWTH * previous_step if previous_step > 0.0 else (1.0 if self.target.log else self.target.scale)
        )
        return float(min(h, max_step)) if np.isfinite(h) and h > 0.0 else max_step, predict_delta

    def _predicted(self, spots: list[ProfilePoint], c: float) -> Array:
        """Predict the solution at c from the last points."""
        size = self.tracer.staged.layout.n_v
        usable_spots = [s for s in spots[-3:] if s.v.size == size]  # earlier points precede a mesh refinement
        if not usable_spots:
            return self.tracer.staged.start
        return extrapolate(usable_spots if usable_spots[-1] is spots[-1] else usable_spots[-1:], c, log=self.target.log)

    def _surprise(self, old_spot: ProfilePoint, new_spot: ProfilePoint) -> bool:
        """Check whether the objective deviates from a parabola with the slopes on both sides."""
        h, top = new_spot.c - old_spot.c, self.goal.top
        size = max(top, old_spot.delta, 0.0)
        trapezium = old_spot.delta + 0.5 * h * (old_spot.slope + new_spot.slope)
        is_off_curve = abs(new_spot.delta - trapezium) > 0.1 * size + 0.25 * abs(new_spot.delta - old_spot.delta)
        is_steep = (
            not self.goal.full_range and new_spot.delta > max(4.0 * top, 2.0 * old_spot.delta) and old_spot.delta < top
        )
        return bool(is_off_curve or is_steep)

    def _crossed(self, old_spot: ProfilePoint, new_spot: ProfilePoint) -> list[float]:
        """Return the thresholds between two spots, in the order in which they are crossed."""
        low, high = sorted((old_spot.delta, new_spot.delta))
        thresholds_between = [t for t in self.goal.thresholds if low <= t < high]
        return thresholds_between if old_spot.delta <= new_spot.delta else thresholds_between[::-1]

    def _polished(self, old_spot: ProfilePoint, new_spot: ProfilePoint, level: float) -> list[ProfilePoint]:
        """Solve where the objective is at the threshold, up to a small fraction."""
        a, b, polished_spots = old_spot, new_spot, list[ProfilePoint]()
        for _ in range(5):
            c = threshold_crossing((a.c, a.delta, a.slope), (b.c, b.delta, b.slope), level)
            v = self._predicted(sorted((a, b, *polished_spots), key=lambda s: -abs(s.c - c)), c)
            spot = self.tracer.spot(self.target, c, v, new_spot.c - old_spot.c, check=True)
            if isinstance(spot, Status):
                break
            polished_spots.append(spot)
            if abs(spot.delta - level) <= _LIMIT_RTOL * level:
                break
            if (spot.delta < level) == (a.delta < b.delta):
                a = spot
            else:
                b = spot
        return sorted(polished_spots, key=lambda s: self.side * s.c)


def extrapolate(spots: Sequence[ProfilePoint], c: float, *, log: bool) -> Array:
    """Return v (n_v,) at c from spots of one layout, the nearest last; `log`: c is a logarithm already."""
    spot = spots[-1]
    previous_spot = spots[-2] if len(spots) > 1 and spots[-2].c != spot.c else None
    straight = _extrapolate(
        spot.c, spot.v, spot.tangent, c, None if previous_spot is None else (previous_spot.c, previous_spot.tangent)
    )
    if previous_spot is None or not (log or min(spot.c * previous_spot.c, spot.c * c) > 0.0):
        return straight
    x, x_before, x_new = (n if log else np.log(abs(n)) for n in (spot.c, previous_spot.c, c))
    with np.errstate(all="ignore"):
        slope = spot.tangent * (1.0 if log else spot.c)
        y, dy = np.log(np.abs(spot.v)), slope / spot.v
        dy_before = previous_spot.tangent * (1.0 if log else previous_spot.c) / previous_spot.v
        change = _extrapolate(x, y, dy, x_new, (x_before, dy_before)) - y
        power = spot.v * np.exp(change)
        backward_step = previous_spot.c - spot.c
        tangent_error = np.abs(spot.v + backward_step * spot.tangent - previous_spot.v)
        power_error = np.abs(spot.v * np.exp((x_before - x) * dy) - previous_spot.v)
        use_power = (
            (spot.v * previous_spot.v > 0.0) & (power_error < tangent_error) & (np.abs(change) < _MAX_LOG_CHANGE)
        )
    return np.where(use_power, power, straight)


def _extrapolate(c: float, v: Array, slope: Array, new_c: float, previous: tuple[float, Array] | None) -> Array:
    h = new_c - c
    values = v + h * slope
    if previous is not None and abs(h) <= _MAX_EXTRAPOLATION_RATIO * abs(c - previous[0]):
        values = values + 0.5 * h**2 / (c - previous[0]) * (slope - previous[1])
    return values
