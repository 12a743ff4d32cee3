"""The tasks of a run of profiles: one side of one quantity, wherever it is followed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from castfit._array import Array
from castfit._watch import Stopped, watched
from castfit.attempts import has_states, with_states
from castfit.drive.profile.path import follow
from castfit.drive.profile.setting import Setting
from castfit.drive.profile.spots import Branch, Goal, Traced
from castfit.drive.profile.targets import Target
from castfit.drive.run.jobs import task, thaw
from castfit.status import Status

Parts = tuple[Setting, tuple[Target, ...], Goal]


@dataclass(frozen=True, eq=False)
class Followed:
    """What following one side of a quantity gave.

    Attributes
    ----------
    branches : tuple of Branch
        That of the best fit first; none where not even the best fit could be repeated.
    estimate, curvature : float
        Coordinate of the best fit, and second derivative of the objective there.
    better : (n_theta,) array or None
        Where a better fit was found.
    valleys : tuple of (n_theta,) arrays
        Where the objective had other minima.
    status : str
        Empty; or why nothing could be followed, a value of `Status`.
    solves, evaluations, jacobians : int
    """

    branches: tuple[Branch, ...] = ()
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
        """What cut it off: a value of `Status`, or nothing."""
        if self.status in (Status.MAX_TIME.value, Status.INTERRUPTED.value):
            return self.status
        ends = [end for branch in self.branches for end in branch.ends]
        if "interrupted" in ends:
            return Status.INTERRUPTED.value
        return Status.MAX_TIME.value if "cut off" in ends else ""


@task
def one_side(job: bytes | Parts, k: int, side: int, deadline: float) -> Followed | None:
    """Follow one side of target k; None if there is no time."""
    setting, targets, goal = thaw(job)
    left = deadline - time.time()
    if left <= 0.0:
        return None
    try:
        with watched(left):
            first = setting.first(targets[k])
            tracer = setting.tracer(deadline)
            if isinstance(first, Status) or isinstance(tracer, Status):
                return Followed(status=(first if isinstance(first, Status) else tracer).value)  # pyright: ignore
            target, spot = first
            found: Traced = follow(tracer, target, spot, side, goal)
    except Stopped as stopped:
        return Followed(status=stopped.status.value)
    return Followed(
        found.branches,
        spot.c,
        spot.curvature,
        found.better,
        found.valleys,
        solves=tracer.solves,
        evaluations=tracer.evaluations["values"],
        jacobians=tracer.evaluations["jacobians"],
    )


@task
def from_there(job: bytes | Parts, k: int, theta: Array, deadline: float) -> Followed | None:
    """Follow both sides of target k from another point, where the objective is lower than on the branches known."""
    setting, targets, goal = thaw(job)
    left = deadline - time.time()
    if left <= 0.0:
        return None
    try:
        with watched(left):
            first, tracer = setting.first(targets[k]), setting.tracer(deadline)
            if isinstance(first, Status) or isinstance(tracer, Status):
                return Followed()
            target, best = first
            c = target.coordinate_of(theta)
            at = setting.transcription
            at = with_states(at, "simulation") if has_states(at) else at
            staged = at.transcribe(setting.posed, theta)
            tracer.staged = setting.wrapped(staged)
            spot = tracer.spot(target, c, tracer.staged.start, 1e-3 * target.scale, check=True)
            if isinstance(spot, Status):
                return Followed()
            sides = [follow(tracer, target, spot, side, goal) for side in (-1, 1)]
    except Stopped as stopped:
        return Followed(status=stopped.status.value)
    better = [found.better for found in sides if found.better is not None]
    valley = () if spot.delta > goal.top else sides[0].valleys + sides[1].valleys
    return Followed(
        tuple(branch for found in sides for branch in found.branches),
        best.c,
        best.curvature,
        better[0] if better else None,
        valley,
        solves=tracer.solves,
        evaluations=tracer.evaluations["values"],
        jacobians=tracer.evaluations["jacobians"],
    )
