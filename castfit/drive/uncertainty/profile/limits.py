"""From objectives along branches to limits: thresholds, the regions below them, and the lowest branch everywhere.

    sigma known      delta <= chi2_1(level)
    sigma unknown    SSE <= SSE_min (1 + t^2 / dof),  t of Student's distribution:    delta <= n log(1 + t^2 / dof)

so that where the model is linear, limits are those of the linear intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from castfit._support.arrays import Array
from castfit.drive.uncertainty.profile.spots import Branch, crossing
from castfit.result.covariance import quantile

START = "start"  # the end of a half of a branch, where the other half begins


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
    return Branch(
        np.concatenate([below.c, above.c[first:]]),
        np.concatenate([below.delta, above.delta[first:]]),
        np.concatenate([below.slope, above.slope[first:]]),
        np.concatenate([below.theta, above.theta[first:]]),
        (below.ends[0], above.ends[1]),
        np.concatenate([_errors(below), _errors(above)[first:]]),
    )


def _errors(branch: Branch) -> Array:
    return branch.error if branch.error.size == branch.c.size else np.full(branch.c.size, np.nan)


def merged(branches: Sequence[Branch]) -> tuple[Branch, ...]:
    """Join halves that start at the same point, as those of a second optimum that was followed both ways."""
    left = list(branches)
    out: list[Branch] = []
    while left:
        one = left.pop(0)
        for other in left:
            for below, above in ((one, other), (other, one)):
                if below.c[-1] == above.c[0] and below.delta[-1] == above.delta[0] and below.c.size + above.c.size > 2:
                    left = [b for b in left if b is not other]
                    one = joined(below, above)
                    break
            else:
                continue
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
    c, delta, theta, which = list[Array](), list[Array](), list[Array](), list[Array]()
    for i, branch in enumerate(branches):
        others = [at(other, branch.c) for k, other in enumerate(branches) if k != i]
        least = np.min(others, axis=0) if others else np.full(branch.c.size, np.inf)
        # Of equal ones the first counts, so that no point is there twice.
        earlier = [at(other, branch.c) for other in branches[:i]]
        same = np.min(earlier, axis=0) if earlier else np.full(branch.c.size, np.inf)
        slack = 1e-6 * np.maximum(np.abs(branch.delta), 1.0)
        keep = (branch.delta <= least + slack) & ~(same <= branch.delta + slack)
        c.append(branch.c[keep])
        delta.append(branch.delta[keep])
        theta.append(branch.theta[keep])
        which.append(np.full(int(keep.sum()), float(i)))
    order = np.argsort(np.concatenate(c), kind="stable")
    return (
        np.concatenate(c)[order],
        np.concatenate(delta)[order],
        np.concatenate(theta)[order],
        np.concatenate(which)[order],
    )


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


LIMIT = "limit"
