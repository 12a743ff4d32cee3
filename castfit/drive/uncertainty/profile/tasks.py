"""The tasks of a run of profiles: one side of one quantity, wherever it is followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit._support.time_limit import Stopped, watched
from castfit.drive.run.jobs import task, thaw
from castfit.drive.uncertainty.profile.continuation import follow
from castfit.drive.uncertainty.profile.corrector import Tracer
from castfit.drive.uncertainty.profile.points import Branch, Goal, Spot, Traced
from castfit.drive.uncertainty.profile.targets import Target
from castfit.drive.uncertainty.profile.warm_start import ProfileSetting
from castfit.fit.attempt import has_states, with_states

Parts = tuple[ProfileSetting, tuple[Target, ...], Goal]


@dataclass(frozen=True, eq=False)
class Followed:
    """What following one side of a quantity gave.

    branches : that of the best fit first; none where not even the best fit could be repeated
    estimate, curvature : coordinate of the best fit, and second derivative of the objective there
    better : (n_theta,) where a better fit was found
    valleys : theta where the objective had other minima
    status : empty; or why nothing could be followed, a value of `Status`
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
    return _walked(job, k, deadline, lambda run: follow(run.tracer, run.target, run.best, side, run.goal))


@task
def from_there(job: bytes | Parts, k: int, theta: Array, deadline: float) -> Followed | None:
    """Follow both sides of target k from another point, where the objective is lower than on the branches known."""

    def walk(run: _TaskStart) -> Traced | None:
        setting, tracer, target = run.setting, run.tracer, run.target
        at = setting.transcription
        at = with_states(at, "simulation") if has_states(at) else at
        tracer.staged = setting.wrapped(at.transcribe(setting.posed, theta))
        c = target.coordinate_of(theta)
        spot = tracer.spot(target, c, tracer.staged.start, 1e-3 * target.scale, check=True)
        if isinstance(spot, Status):
            return None
        sides = [follow(tracer, target, spot, side, run.goal) for side in (-1, 1)]
        better = [found.better for found in sides if found.better is not None]
        valleys = () if spot.delta > run.goal.top else sides[0].valleys + sides[1].valleys
        return Traced(sides[0].branches + sides[1].branches, better[0] if better else None, valleys)

    found = _walked(job, k, deadline, walk)
    return Followed() if found is not None and found.status and not found.cut else found


@dataclass(frozen=True, eq=False)
class _TaskStart:
    """What a task starts from: the target, held as steeply as it must be, and the best fit as a spot of its profile."""

    setting: ProfileSetting
    goal: Goal
    tracer: Tracer
    target: Target
    best: Spot


def _walked(
    job: bytes | Parts, k: int, deadline: float, walk: Callable[[_TaskStart], Traced | None]
) -> Followed | None:
    """Walk in the time that is left, from the best fit; None if there is no time."""
    setting, targets, goal = thaw(job)
    left = deadline - time.time()
    if left <= 0.0:
        return None
    try:
        with watched(left):
            begun = setting.begun(targets[k], deadline)
            if isinstance(begun, Status):
                return Followed(status=begun.value)
            tracer, _, best = begun
            found = walk(_TaskStart(setting, goal, *begun))
    except Stopped as stopped:
        return Followed(status=stopped.status.value)
    if found is None:
        return Followed()
    counts = tracer.solves, tracer.evaluations["values"], tracer.evaluations["jacobians"]
    return Followed(found.branches, best.c, best.curvature, found.better, found.valleys, "", *counts)
