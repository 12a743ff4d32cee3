"""Solutions with a fixed target, the branches that they form, their limits, and the regions below thresholds.

    c      coordinate of the fixed target
    delta  2 (cost(c) - cost of the best fit), a difference of -2 log L

    sigma known      delta <= chi2_1(level)
    sigma unknown    SSE <= SSE_min (1 + t^2 / dof),  t of Student's distribution:    delta <= n log(1 + t^2 / dof)

The limits of a linear model are therefore equal to its linear intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit.result.covariance import quantile

# Why a branch ends.
CROSSED, BOUND, FAR, ZERO, LOST, JUMP, CUT, INTERRUPTED, BEYOND = (
    "crossed", "bound", "far", "zero", "lost", "jump", "cut off", "interrupted", "beyond"
)  # fmt: skip
LIMIT = "limit"  # the end of a region at a threshold

# Fraction of the threshold: an objective error of this size moves a limit by a fortieth of its distance.
MAX_OBJECTIVE_ERROR_FRACTION = 0.05
_THRESHOLD_RTOL = 0.02  # relative distance of delta from a threshold, up to which a point was solved for it


@dataclass(frozen=True, eq=False)
class ProfilePoint:
    """A solution with a fixed coordinate.

    slope, curvature : first and second derivative of delta by c, the latter of the linearized problem
    v, tangent : (n_v,) the solution and dv/dc
    error : change of delta if the model is integrated with error control; NaN if not checked
    """

    c: float
    delta: float
    slope: float
    curvature: float
    theta: Array
    v: Array
    tangent: Array
    error: float = np.nan


@dataclass(frozen=True, eq=False)
class ProfileBranch:
    """Solutions along one optimum, in the order of c, and why it ends on either side.

    c, delta, slope : (n,);  theta : (n, n_theta)
    ends : the reasons why the branch ends below and above
    error : (n,) change of delta if the model is integrated with error control, infinite if the integration does not
        reproduce the solution; NaN if not checked
    """

    c: Array
    delta: Array
    slope: Array
    theta: Array
    ends: tuple[str, str]
    error: Array = field(default_factory=lambda: np.empty(0))

    @classmethod
    def from_points(cls, spots: list[ProfilePoint], ends: tuple[str, str]) -> ProfileBranch:
        """Build a branch from points, sorted by their coordinate."""
        rows = sorted(spots, key=lambda s: s.c)
        return cls(
            np.array([s.c for s in rows]),
            np.array([s.delta for s in rows]),
            np.array([s.slope for s in rows]),
            np.array([s.theta for s in rows]),
            ends,
            np.array([s.error for s in rows]),
        )

    def reproduced(self, c: float, top: float) -> bool:
        """Check that no integration contradicts the objective at c by more than a fraction of the threshold."""
        if self.error.size != self.c.size:
            return True
        checked_indices = np.flatnonzero(~np.isnan(self.error))
        if checked_indices.size == 0:
            return True
        nearest_index = checked_indices[int(np.argmin(np.abs(self.c[checked_indices] - c)))]
        is_at_point = abs(self.delta[nearest_index] - top) <= _THRESHOLD_RTOL * top or self.c[nearest_index] == c
        return not is_at_point or bool(abs(self.error[nearest_index]) <= MAX_OBJECTIVE_ERROR_FRACTION * top)


@dataclass(frozen=True)
class ContinuationLimits:
    """Thresholds and range to which a profile is followed.

    thresholds : ascending, of delta
    full_range : whether to go on beyond them, to the bounds
    reach : multiple of the value, or factor of a logarithmic coordinate, at which a branch ends
    parts : number of steps in which the root of the objective reaches the root of the highest threshold
    """

    thresholds: tuple[float, ...]
    full_range: bool = False
    reach: float = 1e4
    parts: int = 4

    @property
    def top(self) -> float:
        """The highest threshold."""
        return self.thresholds[-1]


@dataclass(frozen=True, eq=False)
class ContinuationResult:
    """Result of following a quantity: one side of it, or both directions from another point.

    branches : the branch of the best fit first; empty if the best fit could not be reproduced
    estimate, curvature : coordinate of the best fit, and second derivative of the objective there
    better : (n_theta,) the point of a better fit, if one was found
    valleys : points theta at which the objective had another minimum along the path
    status : a value of `Status` if no branch could be followed, else empty
    """

    branches: tuple[ProfileBranch, ...] = ()
    estimate: float = np.nan
    curvature: float = np.nan
    better: Array | None = None
    valleys: tuple[Array, ...] = ()
    status: str = ""
    solves: int = 0
    evaluations: int = 0
    jacobians: int = 0

    @property
    def cut(self) -> str:
        """Status value of the interruption or time limit that cut the path off; empty if none did."""
        if self.status in (Status.MAX_TIME.value, Status.INTERRUPTED.value):
            return self.status
        ends = [end for branch in self.branches for end in branch.ends]
        if INTERRUPTED in ends:
            return Status.INTERRUPTED.value
        return Status.MAX_TIME.value if CUT in ends else ""


def threshold_crossing(a: tuple[float, float, float], b: tuple[float, float, float], level: float) -> float:
    """Compute the coordinate at which delta reaches a level between two points (c, delta, slope).

    The root of delta is interpolated, which is nearly linear in c; exact for a parabola about zero.
    """
    (ca, da, sa), (cb, db, sb) = a, b
    za, zb, z = (np.sqrt(max(d, 0.0)) for d in (da, db, level))
    if zb == za:
        return 0.5 * (ca + cb)
    t = (z - za) / (zb - za)
    linear_c = ca + t * (cb - ca)
    # dc/dz = 2 z / slope; Hermite's cubic where both are of the right sign and size
    with np.errstate(all="ignore"):
        ga, gb = (2.0 * zz / s * (zb - za) for zz, s in ((za, sa), (zb, sb)))
    width = cb - ca
    if not (np.isfinite(gb) and 0.2 < gb / width < 5.0):
        return float(linear_c)
    if not (np.isfinite(ga) and 0.2 < ga / width < 5.0):  # at the minimum itself
        ga = 2.0 * width - gb
    t2, t3 = t * t, t * t * t
    c = (2 * t3 - 3 * t2 + 1) * ca + (t3 - 2 * t2 + t) * ga + (3 * t2 - 2 * t3) * cb + (t3 - t2) * gb
    low, high = sorted((ca, cb))
    return float(c) if low <= c <= high else float(linear_c)


def threshold(level: float, *, n_data: int, dof: int, statistic: str) -> float:
    """Return by how much -2 log L may exceed its minimum; `statistic` is "chi2" or "F"."""
    if statistic == "chi2":
        return quantile(level, np.inf) ** 2
    return float(n_data * np.log1p(quantile(level, dof) ** 2 / dof))


@dataclass(frozen=True)
class AcceptedInterval:
    """An interval of the coordinate below a threshold, and the reason of each end: "limit", or that of the branch."""

    lower: float
    upper: float
    ends: tuple[str, str]

    def holds(self, c: float) -> bool:
        """Check whether the interval contains the coordinate, up to rounding."""
        slack = 1e-9 * max(abs(c), self.upper - self.lower)
        return self.lower - slack <= c <= self.upper + slack


def join_sides(below: ProfileBranch, above: ProfileBranch) -> ProfileBranch:
    """Join both sides of the branch of the best fit, which share its point."""
    first_row = 0 if below.c.size == 0 else 1
    halves = [(b.c, b.delta, b.slope, b.theta, _errors(b)) for b in (below, above)]
    c, delta, slope, theta, error = (
        np.concatenate([one, other[first_row:]]) for one, other in zip(*halves, strict=True)
    )
    return ProfileBranch(c, delta, slope, theta, (below.ends[0], above.ends[1]), error)


def _errors(branch: ProfileBranch) -> Array:
    return branch.error if branch.error.size == branch.c.size else np.full(branch.c.size, np.nan)


def merge_halves(branches: Sequence[ProfileBranch]) -> tuple[ProfileBranch, ...]:
    """Join the halves that start at the same point, such as both sides of a second optimum."""
    remaining_branches = list(branches)
    merged_branches: list[ProfileBranch] = []
    while remaining_branches:
        branch = remaining_branches.pop(0)
        pairings = ((other, *pair) for other in remaining_branches for pair in ((branch, other), (other, branch)))
        for other, below, above in pairings:
            if below.c[-1] == above.c[0] and below.delta[-1] == above.delta[0] and below.c.size + above.c.size > 2:
                remaining_branches = [b for b in remaining_branches if b is not other]
                branch = join_sides(below, above)
                break
        merged_branches.append(branch)
    return tuple(merged_branches)


def interpolate_delta(branch: ProfileBranch, c: Array) -> Array:
    """Return delta between the points of a branch, by cubics; infinite beyond its ends."""
    c = np.asarray(c, dtype=float)
    delta = np.full(c.shape, np.inf)
    if branch.c.size == 1:
        delta[c == branch.c[0]] = branch.delta[0]
        return delta
    is_inside = (c >= branch.c[0]) & (c <= branch.c[-1])
    k = np.clip(np.searchsorted(branch.c, c[is_inside], side="right") - 1, 0, branch.c.size - 2)
    h = branch.c[k + 1] - branch.c[k]
    t = (c[is_inside] - branch.c[k]) / h
    d0, d1, s0, s1 = branch.delta[k], branch.delta[k + 1], branch.slope[k] * h, branch.slope[k + 1] * h
    t2, t3 = t**2, t**3
    cubic = (2 * t3 - 3 * t2 + 1) * d0 + (t3 - 2 * t2 + t) * s0 + (3 * t2 - 2 * t3) * d1 + (t3 - t2) * s1
    low, high = np.minimum(d0, d1), np.maximum(d0, d1)
    # A cubic may oscillate next to a kink.
    is_oscillating = (cubic > high + 0.25 * (high - low)) | (cubic < low - 0.25 * (high - low) - 0.05)
    delta[is_inside] = np.where(is_oscillating, d0 + t * (d1 - d0), cubic)
    return delta


def envelope(branches: Sequence[ProfileBranch]) -> tuple[Array, Array, Array, Array]:
    """Return the lower envelope of the branches: c (n,), delta (n,), theta (n, n_theta) and the branch index (n,)."""
    lowest: list[tuple[Array, ...]] = []
    for i, branch in enumerate(branches):
        other_deltas = [interpolate_delta(other, branch.c) for k, other in enumerate(branches) if k != i]
        lowest_other = np.min(other_deltas, axis=0) if other_deltas else np.full(branch.c.size, np.inf)
        # The first of several equal branches counts, so that no point occurs twice.
        earlier_deltas = [interpolate_delta(other, branch.c) for other in branches[:i]]
        lowest_earlier = np.min(earlier_deltas, axis=0) if earlier_deltas else np.full(branch.c.size, np.inf)
        slack = 1e-6 * np.maximum(np.abs(branch.delta), 1.0)
        is_lowest = (branch.delta <= lowest_other + slack) & ~(lowest_earlier <= branch.delta + slack)
        lowest.append(
            (
                branch.c[is_lowest],
                branch.delta[is_lowest],
                branch.theta[is_lowest],
                np.full(int(is_lowest.sum()), float(i)),
            )
        )
    c, delta, theta, branch_indices = (np.concatenate(column) for column in zip(*lowest, strict=True))
    order = np.argsort(c, kind="stable")
    return c[order], delta[order], theta[order], branch_indices[order]


def regions(branches: Iterable[ProfileBranch], top: float) -> tuple[AcceptedInterval, ...]:
    """Return the regions where any branch is below a threshold, in ascending order, merging regions that touch."""
    all_regions = sorted((r for branch in branches for r in _below(branch, top)), key=lambda r: (r.lower, r.upper))
    merged_regions: list[AcceptedInterval] = []
    for region in all_regions:
        if merged_regions and region.lower <= merged_regions[-1].upper + 1e-12 * max(abs(region.lower), 1.0):
            if region.upper > merged_regions[-1].upper:
                merged_regions[-1] = replace(
                    merged_regions[-1], upper=region.upper, ends=(merged_regions[-1].ends[0], region.ends[1])
                )
        else:
            merged_regions.append(region)
    return tuple(merged_regions)


def _below(branch: ProfileBranch, top: float) -> Iterable[AcceptedInterval]:
    """Yield the intervals in which one branch is below a threshold."""
    is_below = branch.delta <= top
    points = list(zip(branch.c.tolist(), branch.delta.tolist(), branch.slope.tolist(), strict=True))
    k = 0
    while k < len(points):
        if not is_below[k]:
            k += 1
            continue
        first_index = k
        while k + 1 < len(points) and is_below[k + 1]:
            k += 1
        lower, low_end = (branch.c[0], branch.ends[0]) if first_index == 0 else (
            threshold_crossing(points[first_index], points[first_index - 1], top), LIMIT
        )  # fmt: skip
        upper, high_end = (branch.c[-1], branch.ends[1]) if k == len(points) - 1 else (
            threshold_crossing(points[k], points[k + 1], top), LIMIT
        )  # fmt: skip
        yield AcceptedInterval(float(lower), float(upper), (low_end, high_end))
        k += 1
