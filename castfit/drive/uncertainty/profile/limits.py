"""From objectives along branches to limits: thresholds, the regions below them, the lowest branch everywhere.

    sigma known      delta <= chi2_1(level)
    sigma unknown    SSE <= SSE_min (1 + t^2 / dof),  t of Student's distribution:    delta <= n log(1 + t^2 / dof)

so that where the model is linear, limits are those of the linear intervals.  Every side of a region gets a verdict, in
a word and in a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from castfit._support.arrays import Array
from castfit.drive.uncertainty.profile.points import (
    BOUND,
    CROSSED,
    CUT,
    FAR,
    INTERRUPTED,
    JUMP,
    ZERO,
    Branch,
    crossing,
)
from castfit.result.covariance import quantile

LIMIT = "limit"  # the end of a region at a threshold

BOUNDED = "bounded"
OPEN = "open"
FLAT = "flat"
AT_BOUND = "at a bound"
UNFINISHED = "unfinished"
NOT_REPRODUCED = "not reproduced"

_FLAT = 1e-3  # of the threshold: an objective that rises by less does not rise


def threshold(level: float, *, n_data: int, dof: int, by: str) -> float:
    """Return by how much -2 log L may exceed its minimum; `by` is "chi2" or "F"."""
    if by == "chi2":
        return quantile(level, np.inf) ** 2
    return float(n_data * np.log1p(quantile(level, dof) ** 2 / dof))


@dataclass(frozen=True)
class Region:
    """An interval of the coordinate below a threshold, and why it ends: "limit", or as the branch that ends there."""

    lower: float
    upper: float
    ends: tuple[str, str]

    def holds(self, c: float) -> bool:
        """Whether the coordinate lies in it, up to rounding."""
        slack = 1e-9 * max(abs(c), self.upper - self.lower)
        return self.lower - slack <= c <= self.upper + slack


def joined(below: Branch, above: Branch) -> Branch:
    """Return both sides of the branch of the best fit as one; they share its point."""
    first = 0 if below.c.size == 0 else 1
    halves = [(b.c, b.delta, b.slope, b.theta, _errors(b)) for b in (below, above)]
    c, delta, slope, theta, error = (np.concatenate([one, other[first:]]) for one, other in zip(*halves, strict=True))
    return Branch(c, delta, slope, theta, (below.ends[0], above.ends[1]), error)


def _errors(branch: Branch) -> Array:
    return branch.error if branch.error.size == branch.c.size else np.full(branch.c.size, np.nan)


def merged(branches: Sequence[Branch]) -> tuple[Branch, ...]:
    """Join halves that start at the same point, as those of a second optimum that was followed both ways."""
    left = list(branches)
    out: list[Branch] = []
    while left:
        one = left.pop(0)
        ways = ((other, *both) for other in left for both in ((one, other), (other, one)))
        for other, below, above in ways:
            if below.c[-1] == above.c[0] and below.delta[-1] == above.delta[0] and below.c.size + above.c.size > 2:
                left = [b for b in left if b is not other]
                one = joined(below, above)
                break
        out.append(one)
    return tuple(out)


def at(branch: Branch, c: Array) -> Array:
    """Return delta between the points of a branch, by cubics; infinite beyond its ends."""
    c = np.asarray(c, dtype=float)
    out = np.full(c.shape, np.inf)
    if branch.c.size == 1:
        out[c == branch.c[0]] = branch.delta[0]
        return out
    inside = (c >= branch.c[0]) & (c <= branch.c[-1])
    k = np.clip(np.searchsorted(branch.c, c[inside], side="right") - 1, 0, branch.c.size - 2)
    h = branch.c[k + 1] - branch.c[k]
    t = (c[inside] - branch.c[k]) / h
    d0, d1, s0, s1 = branch.delta[k], branch.delta[k + 1], branch.slope[k] * h, branch.slope[k + 1] * h
    t2, t3 = t**2, t**3
    cubic = (2 * t3 - 3 * t2 + 1) * d0 + (t3 - 2 * t2 + t) * s0 + (3 * t2 - 2 * t3) * d1 + (t3 - t2) * s1
    low, high = np.minimum(d0, d1), np.maximum(d0, d1)
    # A cubic may swing where slopes are those of a kink.
    wild = (cubic > high + 0.25 * (high - low)) | (cubic < low - 0.25 * (high - low) - 0.05)
    out[inside] = np.where(wild, d0 + t * (d1 - d0), cubic)
    return out


def envelope(branches: Sequence[Branch]) -> tuple[Array, Array, Array, Array]:
    """Return the lowest branch everywhere: c (n,), delta (n,), theta (n, n_theta) and which branch (n,)."""
    lowest: list[tuple[Array, ...]] = []
    for i, branch in enumerate(branches):
        others = [at(other, branch.c) for k, other in enumerate(branches) if k != i]
        least = np.min(others, axis=0) if others else np.full(branch.c.size, np.inf)
        # Of equal ones the first counts, so that no point is there twice.
        earlier = [at(other, branch.c) for other in branches[:i]]
        same = np.min(earlier, axis=0) if earlier else np.full(branch.c.size, np.inf)
        slack = 1e-6 * np.maximum(np.abs(branch.delta), 1.0)
        keep = (branch.delta <= least + slack) & ~(same <= branch.delta + slack)
        lowest.append((branch.c[keep], branch.delta[keep], branch.theta[keep], np.full(int(keep.sum()), float(i))))
    c, delta, theta, which = (np.concatenate(column) for column in zip(*lowest, strict=True))
    order = np.argsort(c, kind="stable")
    return c[order], delta[order], theta[order], which[order]


def regions(branches: Iterable[Branch], top: float) -> tuple[Region, ...]:
    """Return where any branch is below a threshold, in order; regions that touch are one."""
    every = sorted((r for branch in branches for r in _below(branch, top)), key=lambda r: (r.lower, r.upper))
    out: list[Region] = []
    for region in every:
        if out and region.lower <= out[-1].upper + 1e-12 * max(abs(region.lower), 1.0):
            if region.upper > out[-1].upper:
                out[-1] = replace(out[-1], upper=region.upper, ends=(out[-1].ends[0], region.ends[1]))
        else:
            out.append(region)
    return tuple(out)


def _below(branch: Branch, top: float) -> Iterable[Region]:
    """Yield the intervals in which one branch is below a threshold."""
    under = branch.delta <= top
    points = list(zip(branch.c.tolist(), branch.delta.tolist(), branch.slope.tolist(), strict=True))
    k = 0
    while k < len(points):
        if not under[k]:
            k += 1
            continue
        first = k
        while k + 1 < len(points) and under[k + 1]:
            k += 1
        lower, low_end = (branch.c[0], branch.ends[0]) if first == 0 else (
            crossing(points[first], points[first - 1], top), LIMIT
        )  # fmt: skip
        upper, high_end = (branch.c[-1], branch.ends[1]) if k == len(points) - 1 else (
            crossing(points[k], points[k + 1], top), LIMIT
        )  # fmt: skip
        yield Region(float(lower), float(upper), (low_end, high_end))
        k += 1


@dataclass(frozen=True)
class Side:
    """One side of a profile at one level.

    kind : "bounded", "open", "flat", "at a bound", "unfinished" or "not reproduced".  "flat" is open where the
        objective does not rise at all: nothing in data and model tells values apart.  "not reproduced" is a limit, or
        a bound, where the model integrated with error control has another objective.
    limit : the confidence limit; infinite where it is open or flat, the bound where that holds, NaN where it is unknown
    followed : how far values were followed
    """

    kind: str
    limit: float
    followed: float
    sentence: str


def judge(
    name: str,
    *,
    below: bool,
    log: bool,
    end: str,
    value: float,
    risen: float,
    top: float,
    level: float,
    reproduced: bool = True,
) -> Side:
    """Put into words how a region below a threshold ends.

    `below` is the lower side; `log` that nothing but positive values is possible; `end` why the region ends there,
    "limit", or why the branch does, and `value` where, in natural scale; `risen` by how much the objective has risen at
    the most on this side; `top` the threshold of the confidence level; `reproduced` whether the model, integrated with
    error control, has this objective there.
    """
    percent, infinity = f"{100 * level:g} %", (0.0 if log else float("-inf")) if below else float("inf")
    side, least = ("below", "at least") if below else ("above", "at most")
    if not reproduced and end in (LIMIT, JUMP, CROSSED, BOUND):
        sentence = (
            f"{name} is not known {side}: integrated with error control the model has another objective at "
            f"{value:.5g}; choose finer elements or a tighter integrator."
        )
        return Side(NOT_REPRODUCED, float("nan"), value, sentence)
    if end in (LIMIT, JUMP, CROSSED):
        how = " (where another optimum takes over)" if end == JUMP else ""
        return Side(BOUNDED, value, value, f"{name} is {least} {value:.5g} ({percent}){how}.")
    if end == BOUND:
        told = "" if risen >= _FLAT * top else ", and say nothing about it on the way"
        sentence = f"{name}: the data do not exclude values down to its bound {value:.5g}{told}."
        return Side(AT_BOUND, value, value, sentence if below else sentence.replace("down to", "up to"))
    infinity = 0.0 if end == ZERO else infinity
    if end in (FAR, ZERO) and risen < _FLAT * top:
        sentence = f"{name} is open {side}: the objective does not rise, as far as it was followed ({value:.3g})."
        return Side(FLAT, infinity, value, sentence)
    if end in (FAR, ZERO):
        part = f"{risen:.2g} of the {top:.3g} that would exclude a value"
        sentence = f"{name} is open {side}: followed to {value:.3g}, the objective has risen by {part}."
        return Side(OPEN, infinity, value, sentence)
    why = {
        CUT: "the time was over",
        INTERRUPTED: "it was interrupted",
    }.get(end, "no fit with the value held succeeded beyond")
    sentence = f"{name} is not known {side} {value:.5g}: {why}; the objective has risen by {risen:.2g} of {top:.3g}."
    return Side(UNFINISHED, float("nan"), value, sentence)
