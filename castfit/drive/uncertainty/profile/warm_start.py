"""What all walks of a run start from: the staged problem, built once in every process, and the best fit in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.status import Status
from castfit._support.time_limit import Stopped
from castfit.drive.uncertainty.profile.constrained_problem import bare
from castfit.drive.uncertainty.profile.corrector import Tracer, misfit
from castfit.drive.uncertainty.profile.points import Spot
from castfit.drive.uncertainty.profile.predictions import OfPrediction, PredictedOutput, augmented, unheld
from castfit.fit.attempt import has_states, started_from
from castfit.fit.methods import parts_from
from castfit.simulate.simulate import Nodes
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import Control
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit.drive.uncertainty.profile.targets import Target
    from castfit.fit.methods import Solver, Transcription
    from castfit.problem.compiled_problem import Posed
    from castfit.result.result import Result
    from castfit.solve.staged import Array, StagedProblem

_ROUNDS = 8  # of refinement
_ITERATIONS = 40  # from the solution back to it
_STIFFENED = 4  # rounds in which the row that holds an expression finds its weight
_ALONG = 1e-6  # tolerance of elements, if none is given
_PROBE = 1e-3  # of a target's scale: the step by which derivatives at the best fit are found


@dataclass(frozen=True, eq=False)
class Prepared:
    """The staged problem, and the best fit in it: v (n_v,), its cost, and its `misfit`."""

    staged: StagedProblem
    v: Array
    cost: float
    error: float


@dataclass(eq=False)
class ProfileSetting:
    """A problem, a method and a solution from which profiles start.

    theta : (n_theta,)
    nodes : the trajectory, per experiment; empty if it is to be simulated
    explicit : whether nothing may be eliminated, because something that would be is profiled
    asked : predictions for which the problem has rows
    """

    posed: Posed
    transcription: Transcription
    solver: Solver
    theta: Array
    nodes: Sequence[Nodes]
    explicit: bool = False
    asked: tuple[PredictedOutput, ...] = ()
    _prepared: Prepared | Status | None = field(default=None, repr=False)

    @classmethod
    def at(
        cls, best: Result, posed: Posed, transcription: Transcription, solver: Solver, targets: Sequence[Target]
    ) -> ProfileSetting:
        """Begin at a fit, with its whole trajectory and what it was told of its sigmas."""
        asked = tuple(t.asked for t in targets if isinstance(t, OfPrediction) and t.asked is not None)
        explicit = bool(asked) or any(t.needs_explicit for t in targets)
        posed = as_fitted(posed, best)
        nodes = nodes_of(posed, best.trajectories)
        whole = augmented(posed, asked) if asked else posed
        return cls(whole, transcription, solver, best.theta, nodes, explicit, asked)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what each process builds for itself."""
        return {**self.__dict__, "_prepared": None}

    def prepared(self) -> Prepared | Status:
        """Return the staged problem at its solution; a status if it has none there.

        Raises Stopped if the time is over or Ctrl-C was pressed.
        """
        if self._prepared is None:
            self._prepared = self._solved()
            if isinstance(self._prepared, Status) and has_states(self.transcription):
                # Where states are variables of their own the valley may be too narrow to go along (see `Tracer`).
                self.transcription = SingleShooting(self.transcription.integrator)
                self._prepared = self._solved()
        return self._prepared

    def _solved(self) -> Prepared | Status:
        at = self.transcription
        if self.nodes and has_states(at):
            at = started_from(self.posed, at, self.theta, [_thinned(nodes, at) for nodes in self.nodes])
        staged = self.wrapped(at.transcribe(self.posed, self.theta))
        solver = self.solver
        if isinstance(solver, GaussNewton):
            solver = replace(solver, max_iter=min(solver.max_iter, _ITERATIONS))
        for _ in range(_ROUNDS):
            found = solver.solve(staged, Control(), warm=True)
            if found.status in (Status.INTERRUPTED, Status.MAX_TIME):
                raise Stopped(found.status)
            if not found.status.success:
                return found.status
            finer = at.refine(self.posed, bare(staged), found.v)
            if finer is None:
                there = staged.linearize(found.v)
                if not there.ok:
                    return Status.EVALUATION_FAILED
                return Prepared(staged, there.v, there.cost, misfit(self.posed, bare(staged), there.v, at))
            staged = self.wrapped(finer)
        return Status.INACCURATE

    def wrapped(self, staged: StagedProblem) -> StagedProblem:
        """Return a staged problem with what is wanted of every one."""
        staged = staged.explicit() if self.explicit else staged
        return unheld(staged, self.asked) if self.asked else staged

    def begun(self, target: Target, deadline: float = np.inf) -> tuple[Tracer, Target, Spot] | Status:
        """Return what follows paths, the target, held as steeply as it must be, and the best fit as its first spot."""
        ready = self.prepared()
        if isinstance(ready, Status):
            return ready
        tracer = Tracer(
            self.posed, self.transcription, self.solver, ready.staged, ready.cost, ready.error, self.wrapped, deadline
        )
        found = anchored(tracer, target, ready.v)
        return found if isinstance(found, Status) else (tracer, *found)


def as_fitted(posed: Posed, best: Result) -> Posed:
    """Return a problem with what the fit was told of its sigmas."""
    return posed if posed.noise_parameters else posed.assuming(absolute_sigma=best.absolute_sigma)


def parts_along(transcription: Any, solver: Any, mistakes: list[str]) -> tuple[Transcription, Solver]:
    """Read a transcription and a solver; what is not given is what is best along paths.

    Elements there need not be as accurate as those of a fit: what counts are differences of the objective, all by the
    same elements, and limits are verified.  At 1e-6 instead of 1e-8 there are half as many.
    """
    return parts_from(transcription, solver, mistakes, default=(Collocation(tolerance=_ALONG), GaussNewton()))


def _thinned(nodes: Nodes, transcription: Transcription) -> Nodes:
    """Return the nodes that elements of a transcription may need, of those that a fit needed."""
    if not isinstance(transcription, Collocation) or not transcription.adapts:
        return nodes
    # Errors of Radau elements go with the power 2 degree of their length.
    stride = int((transcription.tolerance / Collocation().tolerance) ** (0.5 / transcription.degree))
    return Nodes(nodes.times[::stride], nodes.states[::stride]) if stride > 1 else nodes


def anchored(tracer: Tracer, target: Target, v: Array) -> tuple[Target, Spot] | Status:
    """Return a solution as a spot of a target that is free there, and the target held as steeply as that asks."""
    c, h = target.coordinate(tracer.staged.linearize(v), tracer.staged), _PROBE * target.scale
    h = -h if c + h > target.upper else h
    spot: Spot | Status = Status.EVALUATION_FAILED
    for _ in range(_STIFFENED):
        spot = tracer.measured(target, target.held(tracer.staged, c), v, c, h)
        if isinstance(spot, Status):
            return spot
        stiffer = target.stiffened(0.5 * spot.curvature)
        if stiffer is target:
            break
        target = stiffer
    assert isinstance(spot, Spot)
    return target, spot


def nodes_of(posed: Posed, trajectories: dict[str, Nodes]) -> tuple[Nodes, ...]:
    """Return a result's trajectory where it is one of this problem, else nothing."""
    if list(trajectories) != [c.name for c in posed.conditions]:
        return ()
    nodes = tuple(trajectories.values())
    good = all(
        known.states.shape[1] == len(posed.model.states)
        and known.times[-1] <= c.end
        and bool(np.isfinite(known.states).all())
        for known, c in zip(nodes, posed.conditions, strict=True)
    )
    return nodes if good else ()
