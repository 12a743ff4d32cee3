"""Matching conditions as squares, taken as they stand: h_k = |D (x_k - s_{k+1})|^2 = 0 by SciPy's SLSQP.

    minimise cost(v)   subject to   a - s_0 = 0,  h_k = 0,  c_k and v within bounds

This is the formulation of Aydogmus and Tor (2018): one constraint, one backward integration per stage.  At a solution
every h_k has its minimum, so its gradient is zero, no multipliers exist, and gaps shrink at best by a factor of two per
iteration while those multipliers grow that the method believes in.  It is here to be compared with.

SLSQP (Kraft 1988) updates a dense approximation of the Lagrangian's Hessian.  Variables come in units of their scale;
unknown sigmas are held, at first where the signal suggests, then where the residuals put them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.optimize import minimize

from castfit.solve.assembly import ConstraintRows, JacobianMap, cost_gradient
from castfit.solve.local import LocalProblem, active_bounds, small
from castfit.solve.plausible import assumed_sigma
from castfit.solve.rescue import RESCUE
from castfit.solve.solution import Iteration, Ledger, Solution, infeasibility
from castfit.solve.staged import Layout, half_square_in_units, weighted_squares
from castfit._support.status import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.time_limit import Watch
    from castfit.solve.staged import Evaluation, Linearization

    Array = NDArray[np.float64]

_OUT_OF_REACH = 1e10  # what a function is worth that cannot be evaluated: SLSQP knows no NaN
_ROUNDS = 8  # solves in which unknown sigmas follow the residuals
_STILL = 1e-3  # relative change of a sigma that is none
_GAP = 1e-5  # in units of the states: its square is what SLSQP sees
_ACCEPTABLE = 1e-4  # of half the squares: a few hundredths of a standard error
_REGULARISATION = 1e-9


class _Ended(Exception):
    """Thrown through SLSQP to end it."""

    def __init__(self, status: Status) -> None:
        self.status = status


def solve_squares(
    ledger: Ledger, watch: Watch, start: Array, history: list[dict[str, float]], max_iter: int, tolerance: float
) -> Solution:
    """Minimise the cost of a staged problem with scalar matching conditions, from start (n_v,)."""
    staged = ledger.staged
    run = _Run(ledger, watch, history)
    x, status, message = start / staged.scale, Status.MAX_ITERATIONS, ""
    sigma = assumed_sigma(staged) if staged.layout.n_groups else np.empty(0)
    try:
        for _ in range(_ROUNDS):
            run.hold(x, sigma)
            found = cast("Any", minimize)(
                run.cost,
                x,
                jac=run.gradient,
                method="SLSQP",
                bounds=list(zip(staged.lower / staged.scale, staged.upper / staged.scale, strict=True)),
                constraints=run.constraints(),
                callback=run.report,
                options={"maxiter": max(max_iter - run.iterations, 1), "ftol": tolerance * 1e-2},
            )
            x, message = np.asarray(found.x, dtype=float), str(found.message)
            before, sigma = sigma, ledger.evaluate(run.v(x)).sigma
            if run.iterations >= max_iter or not found.success or np.allclose(sigma, before, rtol=_STILL):
                break
    except _Ended as ended:
        x, status = run.here, ended.status
    v = run.v(x)
    bounds = np.zeros(v.size)
    if status is Status.MAX_ITERATIONS and run.iterations < max_iter:
        status, bounds = _judged(ledger, v)
    active = np.zeros(v.size, dtype=np.int8)
    if status.success:
        active = active_bounds(staged, v, bounds)
        v = np.where(active < 0, staged.lower, np.where(active > 0, staged.upper, v))
    elif ledger.best is not None:
        v = ledger.best
    detail = "" if status.success or not message else f"SLSQP says: {message}."
    return ledger.solution(v, status, detail=detail, active=active, iterations=run.iterations, history=tuple(history))


def _judged(ledger: Ledger, v: Array) -> tuple[Status, Array]:
    """Judge by the vector where the search on the squares ends; also return the multipliers of bounds.

    The squares cannot tell: their gradients are small before the cost has its minimum on the constraints.
    """
    staged, linear = ledger.staged, ledger.linearize(v)
    none = np.zeros(v.size)
    if not linear.ok:
        return Status.EVALUATION_FAILED, none
    with np.errstate(over="ignore", invalid="ignore"):
        local = LocalProblem(staged, linear, regularisation=_REGULARISATION)
        if not local.finite:
            return Status.LINEAR_ALGEBRA_FAILED, none
        step = local.direction()
    if infeasibility(staged.layout, staged.scale, linear) > _GAP:
        return Status.STEP_TOO_SMALL, none
    for status, tolerance in ((Status.CONVERGED, RESCUE.noisy_decrease), (Status.ACCEPTABLE, _ACCEPTABLE)):
        if small(staged, linear, step.decrease, tolerance):
            return status, step.bound_multipliers
    return Status.STEP_TOO_SMALL, none


class _Run:
    """The functions that SLSQP calls, in units of the scale, and what they record."""

    def __init__(self, ledger: Ledger, watch: Watch, history: list[dict[str, float]]) -> None:
        self.ledger, self.watch, self.history = ledger, watch, history
        self.staged = ledger.staged
        self.layout: Layout = self.staged.layout
        self.rows = ConstraintRows(self.layout, self.staged.scale, scalar=True)
        self.map = JacobianMap(self.layout, self.rows, self.staged.scale)
        sparsity = self.map.sparsity
        self._places = np.array(sparsity.row(), dtype=np.intp), np.array(sparsity.get_col(), dtype=np.intp)
        self.sigma = np.empty(0)
        self.iterations = 0
        self.here = np.empty(0)
        self._linear: Linearization | None = None

    def v(self, x: Array) -> Array:
        """Return all variables within their bounds."""
        return np.clip(x * self.staged.scale, self.staged.lower, self.staged.upper)

    def hold(self, x: Array, sigma: Array) -> None:
        """Begin with sigmas held."""
        self.here, self.sigma = x, sigma

    def cost(self, x: Array) -> float:
        at = self.ledger.evaluate(self.v(x))
        if not at.ok:
            return _OUT_OF_REACH
        return half_square_in_units(self.layout, at, self.sigma) if self.sigma.size else at.cost

    def gradient(self, x: Array) -> Array:
        linear = self._linearized(x)
        weight = np.append((linear.sigma / self.sigma) ** 2 if self.sigma.size else np.empty(0), 1.0)
        found = cost_gradient(self.layout, linear, weight) * self.staged.scale
        return np.where(np.isfinite(found), found, 0.0)

    def constraints(self) -> list[dict[str, Any]]:
        """Return SLSQP's constraints: equalities, and what must not be negative."""
        lower, upper = self.rows.lower, self.rows.upper
        equal = lower == upper
        parts = [("eq", np.flatnonzero(equal), 1.0, lower)]
        parts += [("ineq", np.flatnonzero(~equal & np.isfinite(lower)), 1.0, lower)]
        parts += [("ineq", np.flatnonzero(~equal & np.isfinite(upper)), -1.0, upper)]

        def of(kind: str, index: NDArray[np.intp], sign: float, bound: Array) -> dict[str, Any]:
            def values(x: Array) -> Array:
                return sign * (self._rows(x) - bound)[index]

            def slopes(x: Array) -> Array:
                return sign * self._jacobian(x)[index]

            return {"type": kind, "fun": values, "jac": slopes}

        return [of(*part) for part in parts if part[1].size]

    def report(self, x: Array) -> None:
        """Note an iteration; end where user or clock says so."""
        self.iterations += 1
        self.here = np.array(x)
        at = self.ledger.evaluate(self.v(x))
        gap = infeasibility(self.layout, self.staged.scale, at)
        chi2 = weighted_squares(self.layout, at)
        now = Iteration(self.iterations, at.cost, chi2, gap, at.v, self.ledger.seconds)
        self.history.append({"iteration": now.iteration, "cost": now.cost, "infeasibility": gap, "time": now.seconds})
        if self.ledger.control.callback is not None and self.ledger.control.callback(now):
            raise _Ended(Status.STOPPED_BY_CALLBACK)
        cause = self.watch.cause
        if cause is not None:
            raise _Ended(cause)

    def _linearized(self, x: Array) -> Linearization:
        """Linearize along the gaps: one backward integration per stage."""
        v = self.v(x)
        if self._linear is None or not np.array_equal(self._linear.v, v):
            at: Evaluation = self.ledger.evaluate(v)
            self._linear = self.ledger.linearize_along(v, self.rows.directions(at))
        return self._linear

    def _rows(self, x: Array) -> Array:
        at = self.ledger.evaluate(self.v(x))
        found = self.rows.values(at.values, at.v, at.related)
        return np.where(np.isfinite(found), found, _OUT_OF_REACH)

    def _jacobian(self, x: Array) -> Array:
        linear = self._linearized(x)
        dense = np.zeros((self.rows.count, self.layout.n_v))
        found = self.map.nonzeros(linear.jacobians, linear.related_jacobian, self.rows.directions(linear))
        dense[self._places] = np.where(np.isfinite(found), found, 0.0)
        return dense
