"""Solutions with something held, each with the slope, the curvature and the tangent of the path.

From a point that was predicted a few full steps of Gauss and Newton lead to the solution, each watched:

    dv_k        full step from v_k, by the derivatives there
    dv'_k       simplified step from v_k + dv_k, by the same derivatives         (Peifer and Timmer 2007, Eq. 15)

    |dv'_k| <= 1/2 |dv_k|,  or back to the solver         (the natural monotonicity test, for full steps)

Near a path a solve is no more than that, and two linearizations suffice: that of the predicted point, and that of the
solution, which shows that it is one, and by which the path goes on.  All else is left to the solver.

    v(c + h)  ~  v(c) + h v'(c) + ...

v' is the response of the linearized problem: the Gauss-Newton step whose only cause is that the bounds, or the row,
that hold the coordinate have moved.  The same step gives the slope and the curvature of the profile, so that each
solution is worth a parabola:

    d cost/dc = u . E x',      d2 cost/dc2 ~ |E x'|^2          (u + E x: the condensed rows, `castfit.solve.condensing`)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit._support.time_limit import Stopped, watched
from castfit.drive.uncertainty.profile.branches import Spot
from castfit.drive.uncertainty.profile.targets import Target, bare, started
from castfit.fit.attempt import has_states
from castfit.fit.methods import Solver, Transcription
from castfit.fit.verification import verify
from castfit.problem.compiled_problem import Posed
from castfit.result.covariance import residuals
from castfit.solve.fallback_thresholds import RESCUE
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.homotopy import within_bounds
from castfit.solve.solution import Control, Ledger, Solution, infeasibility
from castfit.solve.staged import StagedProblem
from castfit.solve.step_control import LineSearch
from castfit.solve.subproblem import GAP, LocalProblem, Step, local_problem, small
from castfit.transcribe.single_shooting import SingleShooting

ENDED = (Status.INTERRUPTED, Status.MAX_TIME)
REGULARISATION = 1e-9

PRECISE = 2e-5  # of the cost: what a solution may be off where numbers are read off
_NEARBY = 1e-2  # of the cost: from there full steps do
_THOROUGH = 200  # iterations, held back after Levenberg and Marquardt, where a branch ended
_ITERATIONS = 25  # of a solve on the way; two or three are usual
_ROUNDS = 7  # of refinement and rescue
_STEPS = 8
_CONTRACTION = 0.5
_SMALL = 2e-4  # of the variables' magnitudes
_ALIGNED = 0.9  # cosine: successive steps in one direction tell how many are to come
_LEAST, _MOST = 0.5, 6.0


@dataclass(frozen=True, eq=False)
class Corrected:
    """A solution v (n_v,), the problem linearized there, and the last small step that it promises."""

    v: Array
    local: LocalProblem
    step: Step


def corrected(ledger: Ledger, staged: StagedProblem, tolerance: float) -> Corrected | None:
    """Return the solution that is near the start of a staged problem; None if full steps do not lead there.

    `tolerance` says how much a full step at a solution may promise to lower the cost, relative to half the squares of
    all rows.

    Raises Stopped if the time is over or Ctrl-C was pressed.
    """
    active, last, factor = None, None, 1.0
    v = within_bounds(staged, staged.start)
    for n in range(_STEPS + 1):
        at = ledger.linearize(v)
        if not at.ok:
            return None
        local = local_problem(staged, at, warm=active, regularisation=REGULARISATION)
        if not local.finite:
            return None
        step = local.direction()
        moved = step.residuals - local.condensed.u
        factor = 1.0 if last is None else _relaxation(moved, last, factor)
        gap = infeasibility(staged.layout, staged.scale, at)
        if gap <= GAP and small(staged, at, factor * step.decrease, tolerance):
            return Corrected(at.v, local, step)
        if n == _STEPS or not step.feasible:
            return None
        search, bent, trial = LineSearch(ledger, local, step, at, {}), None, at
        if factor * search.norm(step.dv) <= _SMALL:  # the square of that opens no gap
            v = within_bounds(staged, at.v + factor * step.dv)
            active, last = step.active, moved
            continue
        for tried in dict.fromkeys((factor, 1.0)):
            factor = tried
            trial = search.trial(factor * step.dv)
            simplified = local.correction(trial) if trial.ok else None
            # What the simplified step has of its own: nothing, were all linear.
            bent = None if simplified is None else simplified.dv - (1.0 - factor) * step.dv
            if bent is not None and search.norm(bent) <= _CONTRACTION * factor * search.norm(step.dv):
                break
        else:
            return None
        assert bent is not None
        # It closes most of the gaps that the full step has opened.
        v = within_bounds(staged, trial.v + bent)
        active, last = step.active, moved
    return None


def _relaxation(moved: Array, last: Array, factor: float) -> float:
    """Compute the relaxation factor of a full step from the rows (m,) that the previous step left over."""
    along, length = float(moved @ last), float(last @ last)
    if not along**2 > _ALIGNED**2 * length * float(moved @ moved):
        return 1.0
    left = along / length
    return float(np.clip(factor / (1.0 - left), _LEAST, _MOST)) if left < 1.0 else 1.0


@dataclass
class Tracer:
    """Path follower: the staged problem, refined along the path, the solver, and counts of evaluations.

    `cost` is that of the best fit, `error` its `misfit`; `wrap` does what has to be done to every staged problem that
    is made on the way.
    """

    posed: Posed
    transcription: Transcription
    solver: Solver
    staged: StagedProblem
    cost: float
    error: float
    wrap: Callable[[StagedProblem], StagedProblem]
    deadline: float = np.inf
    solves: int = 0
    evaluations: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        """Limit the iterations of a Gauss-Newton solver per point: a shorter step is cheaper."""
        if isinstance(self.solver, GaussNewton):
            self.solver = replace(self.solver, max_iter=min(self.solver.max_iter, _ITERATIONS))

    def spot(
        self,
        target: Target,
        c: float,
        v: Array,
        h: float,
        *,
        within: float = PRECISE,
        check: bool = False,
        thorough: bool = False,
        rescue: bool = True,
    ) -> Spot | Status:
        """Solve with the coordinate held at c, from v; h is a typical step, with its sign.

        `within` says by how much the cost may be above its minimum: what is known to be missing is taken into account,
        so that the error is far smaller.  `check` says whether elements are looked at, and refined if they are too
        coarse here: it takes as long as an iteration, and is done where numbers are read off.  `thorough` says that the
        solution may be far, `rescue` that single shooting may take over where states as variables do not get there.
        """
        for _ in range(_ROUNDS):
            held = started(target.held(self.staged, c), v)
            try:
                near = None if thorough else self._corrected(held, within)
                if near is None:
                    near = self._found(held, within, thorough=thorough)
                    if isinstance(near, Status):
                        if near in ENDED or not rescue or not self._by_shooting(v):
                            return near
                        v = self.staged.layout.theta(v)
                        continue
                v = near if isinstance(near, np.ndarray) else near.v
                finer = self.transcription.refine(self.posed, bare(self.staged), v) if check else None
            except Stopped as stopped:
                return stopped.status
            if finer is None:
                found = self.measured(target, held, near, c, h)
                return replace(found, error=self._error(found.v)) if check and isinstance(found, Spot) else found
            self.staged, v = self.wrap(finer), finer.start
        return Status.INACCURATE

    def _error(self, v: Array) -> float:
        """Return by how much delta is another one when the model is integrated with error control; see `Branch`."""
        found = misfit(self.posed, bare(self.staged), v, self.transcription)
        return found - self.error if np.isfinite(self.error) else found

    def _by_shooting(self, v: Array) -> bool:
        """Go on by single shooting, if this is not what fails already.

        Where products of states and scales are measured, states that are variables of their own make a valley narrow
        and curved that is wide and straight for parameters alone.
        """
        if not has_states(self.transcription):
            return False
        self.transcription = SingleShooting(self.transcription.integrator)
        whole = self.transcription.transcribe(self.posed, self.staged.layout.theta(v))
        self.staged = self.wrap(whole)
        return True

    def _rough(self, held: StagedProblem, within: float = PRECISE) -> float:
        """Return the accuracy of solutions on the way, as `Control` has it."""
        first = held.evaluate(np.clip(held.start, held.lower, held.upper))
        size = first.informing_square if first.ok and first.informing_square > 0 else 1.0
        return float(np.clip(PRECISE / size, 1e-10, 1e-6)) * within / PRECISE

    def _corrected(self, held: StagedProblem, within: float) -> Corrected | None:
        """Return the corrected solution near the start of the constrained problem; None if it is not that near."""
        if not isinstance(self.solver, GaussNewton):
            return None
        ledger = Ledger(held)
        with watched(max(self.deadline - time.time(), 1e-3)):
            try:
                found = corrected(ledger, held, self._rough(held, within))
            finally:
                self.evaluations.update(ledger.evaluations)
        self.solves += found is not None
        return found

    def _found(self, held: StagedProblem, within: float, *, thorough: bool) -> Array | Corrected | Status:
        """Solve the constrained problem, with full corrector steps at the end if they succeed.

        Return the status if the solve fails.
        """
        if isinstance(self.solver, GaussNewton):
            rough = self._solved(held, _NEARBY, thorough=thorough)
            if rough.status in ENDED:
                return rough.status
            near = self._corrected(started(held, rough.v), within) if rough.status.success else None
            if near is not None or not rough.status.success:
                return rough.status if near is None else near
            held = started(held, rough.v)
        found = self._solved(held, PRECISE, thorough=thorough)
        return found.v if found.status.success else found.status

    def _solved(self, held: StagedProblem, within: float, *, thorough: bool) -> Solution:
        # Of what promises more than that solvers think twice.
        rough, left = min(self._rough(held, within), 0.1 * RESCUE.stationary), max(self.deadline - time.time(), 1e-3)
        solver = self.solver
        if thorough and isinstance(solver, GaussNewton):
            solver = replace(solver, step_control="levenberg_marquardt", max_iter=_THOROUGH)
        found = solver.solve(held, Control(left, None, None, rough), warm=True)
        self.solves += 1
        self.evaluations.update(found.evaluations)
        return found

    def measured(
        self, target: Target, held: StagedProblem, near: Array | Corrected, c: float, h: float
    ) -> Spot | Status:
        """Return the spot at a solution, with slope, curvature and tangent.

        The solution is v (n_v,), or where the linearized problem is known, with the last small step to it.
        """
        v, moved = near if isinstance(near, np.ndarray) else near.v, target.held(self.staged, c + h)
        at, there = held.linearize(v), moved.linearize(v)
        if not (at.ok and there.ok):
            return Status.EVALUATION_FAILED
        if isinstance(near, Corrected) and target.moves_constants:
            local, missing, rest = near.local.moved(moved, there), near.step.decrease, near.step.dv
            rows = near.step.residuals
        else:
            local, missing, rest = local_problem(moved, there, regularisation=REGULARISATION), 0.0, np.zeros(v.size)
            rows = local.condensed.u
        if not local.finite:
            return Status.LINEAR_ALGEBRA_FAILED
        step = local.direction()
        response = target.own_rows(step.residuals - rows, moved) / h
        rows = target.own_rows(rows, moved)
        known = target.slope(self.staged, at)
        slope, curvature = known if known is not None else (float(rows @ response), float(response @ response))
        own = target.own_cost(at, held)
        # Where a row holds, coordinate and cost are those of the point itself.
        missing, v = (missing, np.clip(at.v + rest, held.lower, held.upper)) if own == 0.0 else (0.0, at.v)
        return Spot(
            target.coordinate(at, held),
            2.0 * (at.cost - own - missing - self.cost),
            2.0 * slope,
            2.0 * curvature,
            self.staged.layout.theta(v).copy(),
            v,
            (step.dv - rest) / h,
        )


def misfit(posed: Posed, staged: StagedProblem, v: Array, transcription: Transcription) -> float:
    """Return by how much -2 log L at v (n_v,) is another one when the model is integrated with error control.

    Infinite where the integration does not reproduce the solution at all.

    Raises Stopped if the time is over or Ctrl-C was pressed.
    """
    at = staged.evaluate(v)
    found = verify(posed, staged, at, transcription.integrator, transcription.accuracy)
    if not found.reproduced:
        return np.inf
    masks = [chain.row_mask for chain in staged.layout.chains]
    units = zip(staged.layout.of_rows(at.sigma), masks, strict=True)
    unit = np.concatenate([*((of * np.ones(mask.shape))[mask] for of, mask in units), np.ones(at.prior.size)])
    rows = residuals(staged.layout, at)  # in units of standard deviations, the most likely ones where they are unknown
    errors = found.row_errors / unit
    return float(2.0 * rows @ errors + errors @ errors)
