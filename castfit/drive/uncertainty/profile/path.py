"""Following the solutions of a problem in which one thing is held, as the number at which it is held moves.

A walk (`castfit.drive.profile.walk`) follows one optimum.  Where that ends, another one takes over: from where the walk
has landed a new branch is followed, forwards and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from castfit.drive.uncertainty.profile.spots import JUMP, Branch, Goal, Spot, Traced
from castfit.drive.uncertainty.profile.walk import BETTER, Walk

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.drive.uncertainty.profile.targets import Target
    from castfit.drive.uncertainty.profile.tracer import Tracer

_MOST_BRANCHES = 8


def follow(tracer: Tracer, target: Target, first: Spot, side: int, goal: Goal) -> Traced:
    """Follow the solutions from one on, with the branches that take over."""
    found: list[Branch] = []
    valleys: list[Array] = []
    todo: list[tuple[Spot, int]] = [(first, side)]
    while todo and len(found) < _MOST_BRANCHES:
        start, way = todo.pop(0)
        walk = Walk(tracer, target, way, goal, origin=first)
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
