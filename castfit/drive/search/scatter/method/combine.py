"""Combination: every pair of the reference set has children around its members (Eq. 26).

With d = r (x'' - x') / 2 and r uniform in [0, 1]^n, component by component,

    type 1   x'  - d      beyond the better one
    type 2   x'  + d      between the two
    type 3   x'' + d      beyond the worse one
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from castfit._support.arrays import Array
from castfit.drive.search.scatter.method.members import Member, make_members

Pair = tuple[int, int]

_LONGER_AFTER = 2  # improvements in a row beyond a child, then the region doubles


@dataclass(frozen=True)
class TrialPoint:
    """A point x (n,) and the member that it was formed around."""

    x: Array
    parent: Member


def find_new_pairs(R: Sequence[Member], combined: Collection[Pair]) -> list[tuple[int, int]]:
    """Return the positions (better, worse) in R of all pairs that have not been combined yet."""
    return [(i, j) for i, j in combinations(range(len(R)), 2) if make_pair(R[i], R[j]) not in combined]


def make_pair(first_member: Member, second_member: Member) -> Pair:
    """Return the numbers by which a pair is remembered."""
    return min(first_member.number, second_member.number), max(first_member.number, second_member.number)


def find_child_types(i: int, j: int, b: int, coin: float) -> tuple[int, ...]:
    """Return the types of the children of the members ranked i < j (from 0) among b: four, three or two children.

    `coin`, uniform in [0, 1], decides between types 1 and 3 for two members of the lower half.
    """
    half = b // 2
    if j < half:
        return 1, 2, 2, 3
    if i < half:
        return 1, 2, 3
    return (2, 1) if coin < 0.5 else (2, 3)


def make_child(kind: int, better: Array, worse: Array, r: Array) -> Array:
    """Return the child of a type, which may lie outside the cube (Eq. 26), (n,)."""
    d = r * (worse - better) / 2.0
    return (better - d, better + d, worse + d)[kind - 1]


def bring_inside(x: Array, parent: Array, prob_bound: float, rng: np.random.Generator) -> Array:
    """Bring a point back into the cube: components outside go to the bound, or between their parent and the bound.

    `prob_bound` is the probability of the bound itself, where optima often lie (eSS).
    """
    bound = np.clip(x, 0.0, 1.0)
    draws, to_bound = rng.random(x.size), rng.random(x.size) < prob_bound
    return np.where((x == bound) | to_bound, bound, parent + draws * (bound - parent))


def make_children(
    R: Sequence[Member], pairs: Sequence[tuple[int, int]], prob_bound: float, rng: np.random.Generator
) -> list[TrialPoint]:
    """Form all children of pairs of positions (better, worse) in R."""
    trial_points: list[TrialPoint] = []
    for i, j in pairs:
        for kind in find_child_types(i, j, len(R), float(rng.random())):
            parent = R[j] if kind == 3 else R[i]
            x = make_child(kind, R[i].x, R[j].x, rng.random(parent.x.size))
            trial_points.append(TrialPoint(bring_inside(x, parent.x, prob_bound, rng), parent))
    return trial_points


def draw_beyond(parent: Array, child: Array, reach: float, rng: np.random.Generator) -> Array:
    """Draw a point (n,) in the box between the child and  child + reach (child - parent)."""
    return np.clip(child + reach * rng.random(child.size) * (child - parent), 0.0, 1.0)


def go_beyond(
    lines: Sequence[tuple[Member, Member]],
    values: Callable[[Array], Array],
    first_number: int,
    rng: np.random.Generator,
) -> tuple[Member, ...]:
    """Extend lines (parent, better child), all at once, as long as they improve. Return all new members.

    `values` maps points (k, n) to values (k,), `first_number` is the number of the first new member.
    """
    new_members: list[Member] = []
    active_lines = [(parent, child, 1.0, 1) for parent, child in lines]
    while active_lines:
        X = np.array([draw_beyond(parent.x, child.x, reach, rng) for parent, child, reach, _ in active_lines])
        members = make_members(X, values(X), first_number + len(new_members))
        new_members += members
        next_lines: list[tuple[Member, Member, float, int]] = []
        for (_, child, reach, improvements), z in zip(active_lines, members, strict=True):
            if z.f < child.f:
                is_extended = improvements + 1 == _LONGER_AFTER
                next_lines.append(
                    (child, z, 2.0 * reach if is_extended else reach, 0 if is_extended else improvements + 1)
                )
        active_lines = next_lines
    return tuple(new_members)


def find_better_children(pairs: Sequence[tuple[Member, Member]]) -> list[tuple[Member, Member]]:
    """Return, per parent, the best child that is better than it, from pairs (parent, child)."""
    best: dict[int, tuple[Member, Member]] = {}
    for parent, child in pairs:
        current_best = best.get(parent.number)
        if child.f < parent.f and (current_best is None or child.rank < current_best[1].rank):
            best[parent.number] = (parent, child)
    return list(best.values())
