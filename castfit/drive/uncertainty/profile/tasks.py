"""The tasks of a run of profiles: one side of one quantity, wherever it is followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array
from castfit._support.time_limit import Stopped, watched
from castfit.fit.fallbacks import has_states, with_states
from castfit.drive.uncertainty.profile.path import follow
from castfit.drive.uncertainty.profile.setting import Setting
from castfit.drive.uncertainty.profile.spots import Branch, Goal, Spot
from castfit.drive.uncertainty.profile.targets import Target
from castfit.drive.uncertainty.profile.tracer import Tracer
from castfit.drive.run.jobs import task, thaw
from castfit._support.status import Status

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

    def walk(run: _Run) -> Followed:
        found = follow(run.tracer, run.target, run.best, side, run.goal)
        return run.followed(found.branches, found.better, found.valleys)

    return _walked(job, k, deadline, walk)


@task
def from_there(job: bytes | Parts, k: int, theta: Array, deadline: float) -> Followed | None:
    """Follow both sides of target k from another point, where the objective is lower than on the branches known."""

    def walk(run: _Run) -> Followed:
        setting, tracer, target = run.setting, run.tracer, run.target
        at = setting.transcription
        at = with_states(at, "simulation") if has_states(at) else at
        tracer.staged = setting.wrapped(at.transcribe(setting.posed, theta))
        c = target.coordinate_of(theta)
        spot = tracer.spot(target, c, tracer.staged.start, 1e-3 * target.scale, check=True)
        if isinstance(spot, Status):
            return Followed()
        sides = [follow(tracer, target, spot, side, run.goal) for side in (-1, 1)]
        better = [found.better for found in sides if found.better is not None]
        valleys = () if spot.delta > run.goal.top else sides[0].valleys + sides[1].valleys
        branches = tuple(branch for found in sides for branch in found.branches)
        return run.followed(branches, better[0] if better else None, valleys)

    found = _walked(job, k, deadline, walk)
    return Followed() if found is not None and found.status and not found.cut else found


@dataclass(frozen=True, eq=False)
class _Run:
    """What a task starts from: the target, held as steeply as it must be, and the best fit as a spot of its profile."""

    setting: Setting
    goal: Goal
    tracer: Tracer
    target: Target
    best: Spot

    def followed(self, branches: tuple[Branch, ...], better: Array | None, valleys: tuple[Array, ...]) -> Followed:
        """Return what was found, with what it took."""
        return Followed(
            branches,
            self.best.c,
            self.best.curvature,
            better,
            valleys,
            solves=self.tracer.solves,
            evaluations=self.tracer.evaluations["values"],
            jacobians=self.tracer.evaluations["jacobians"],
        )


def _walked(job: bytes | Parts, k: int, deadline: float, walk: Callable[[_Run], Followed]) -> Followed | None:
    """Walk in the time that is left, from the best fit; None if there is no time."""
    setting, targets, goal = thaw(job)
    left = deadline - time.time()
    if left <= 0.0:
        return None
    try:
        with watched(left):
            first, tracer = setting.first(targets[k]), setting.tracer(deadline)
            if isinstance(first, Status):
                return Followed(status=first.value)
            if isinstance(tracer, Status):
                return Followed(status=tracer.value)
            return walk(_Run(setting, goal, tracer, *first))
    except Stopped as stopped:
        return Followed(status=stopped.status.value)
