"""IPOPT on a staged problem: Jacobian and Hessian are assembled from stage blocks by precomputed index maps.

    minimise cost(v)   subject to   g(v) = (a - s_0, d_k, x_k - s_{k+1}, c_k, h) within bounds,  lower <= v <= upper

Differentiating the whole program at once would cost seconds per Hessian; the block of one stage, mapped over the stages
and scattered into the sparse matrix, costs milliseconds.  Variables are passed to IPOPT in units of their scale.

If sigma is unknown, it is first held constant at a fraction of the signal: IPOPT's tolerances and barrier need constant
weights, and without priors the optimum is then already reached.  Priors, or several sigmas, need a second, warm solve
of the cost itself, 1/2 n log SSE.  Its Hessian has a term  -2/n g g^T  per group, g = R^T r, which would fill the
sparse matrix.  Steps lie along the constraints; there  E^T r,  with the condensed Jacobian E, is equivalent and affects
only the block of theta.

Other densities than the normal one, and profiled sigmas, are not sums of squares, and IPOPT's error, scaled by its
value at the start, may never reach the tolerance.  Such a solve ends like the Gauss-Newton method, by the predicted
decrease of a step, in any units.

Integrated states have errors that jump from one point to the next, and so has the cost.  If the predicted decrease is
smaller, a line search that requires descent halves the step thirty times, and finally accepts it.  IPOPT tolerates
rounding of 10 eps |f|.  The objective therefore includes a constant for which this equals the error of the integrator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import (
    is_count,
    is_one_of,
    option_mistakes,
    plain_numbers,
    read_mapping,
    tolerance_rule,
)
from castfit._support.arrays import Array, Index
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit._support.silence import CapturedOutput, capture_output, release_output
from castfit._support.sparse_rows import sparse_rows
from castfit._support.status import InputError, Status, raise_if_mistakes
from castfit._support.time_limit import Deadline, StopRequested, with_deadline
from castfit.solve.assembly import (
    ConstraintRows,
    HessianMap,
    JacobianMap,
    cost_gradient,
    gauss_newton_blocks,
    squares_blocks,
)
from castfit.solve.condensing import condense
from castfit.solve.fallback_thresholds import FALLBACK_THRESHOLDS
from castfit.solve.matching_jacobian_update import from_gradients
from castfit.solve.residual_plausibility import assumed_sigma
from castfit.solve.solution import CountingProblem, Iteration, Solution, SolveControl, infeasibility
from castfit.solve.staged import (
    Evaluation,
    GradientEvaluation,
    HessianBlocks,
    Jacobians,
    Layout,
    Linearization,
    MatchingProducts,
    StagedProblem,
    half_square_in_units,
    weighted_squares,
)
from castfit.solve.subproblem import MATCHING_TOLERANCE, Step, active_bounds, is_small_decrease, local_problem

IPOPT_STATUS = {
    "Solve_Succeeded": Status.CONVERGED,
    "Solved_To_Acceptable_Level": Status.ACCEPTABLE,
    "Feasible_Point_Found": Status.CONVERGED,
    "Infeasible_Problem_Detected": Status.INFEASIBLE,
    "Search_Direction_Becomes_Too_Small": Status.STEP_TOO_SMALL,
    "Diverging_Iterates": Status.DIVERGING,
    "User_Requested_Stop": Status.STOPPED_BY_CALLBACK,
    "Maximum_Iterations_Exceeded": Status.MAX_ITERATIONS,
    "Maximum_CpuTime_Exceeded": Status.MAX_TIME,
    "Maximum_WallTime_Exceeded": Status.MAX_TIME,
    "Restoration_Failed": Status.INFEASIBLE,
    "Error_In_Step_Computation": Status.LINEAR_ALGEBRA_FAILED,
    "Invalid_Number_Detected": Status.EVALUATION_FAILED,
    "Not_Enough_Degrees_Of_Freedom": Status.SOLVER_ERROR,
    "Invalid_Problem_Definition": Status.SOLVER_ERROR,
    "Invalid_Option": Status.SOLVER_ERROR,
    "Unrecoverable_Exception": Status.SOLVER_ERROR,
    "NonIpopt_Exception_Thrown": Status.SOLVER_ERROR,
    "Insufficient_Memory": Status.SOLVER_ERROR,
    "Internal_Error": Status.SOLVER_ERROR,
}

# Smallest variance, relative to that of the signal, that is not attributed to integration errors.
_MIN_VARIANCE_FRACTION = 1e-10

# Options for integrated derivatives, which may jump by more than the tolerance; they limit the iterations spent on
# that.
_INTEGRATED_OPTIONS = {"acceptable_iter": 8}

_LIMITED_MEMORY_OPTIONS = {"hessian_approximation": "limited-memory", "limited_memory_max_history": 20}

# Limit on the Gauss-Newton steps after a solve by gradients of the cost.
_N_FINAL_NEWTON_STEPS = 3

# Predicted decrease, relative to the half-square, below which a step does not change the likelihood.
_MIN_PREDICTED_DECREASE = 1e-12

# The same for steps to bounds, which an interior-point method never reaches.
_MIN_BOUND_STEP_DECREASE = 1e-9

# Options for solves that only provide a starting point, and while sigma is held constant.
_LOW_ACCURACY_OPTIONS = {"tol": 1e-5}

# Regularisation, relative to the largest singular value; see `GaussNewton.regularisation`.
_GAUSS_NEWTON_REGULARISATION = 1e-9

# Factor on several initial sigmas: 32 iterations of JAK-STAT by collocation, 38 with 1, 49 with 0.3.
_INITIAL_SIGMA_FACTOR = 3.0

_FINAL_MATCHING_TOLERANCE = 1e-9  # Largest gap after the final steps, in units of the states.
_PROFILING_SIGMA_FACTOR = 10.0  # Factor on sigma above which sigma is profiled.

_WARM_START_OPTIONS = {"mu_init": 1e-7, "bound_push": 1e-8, "bound_frac": 1e-8}


@public("castfit")
@add_brief_repr
@dataclass(frozen=True)
class Ipopt:
    """The interior-point solver IPOPT (Waechter and Biegler 2006).

    Parameters
    ----------
    hessian : {"auto", "exact", "gauss-newton", "limited-memory"}
        "auto" uses the exact Hessian of the Lagrangian if the transcription provides one (collocation), otherwise the
        Gauss-Newton approximation.  If the transcription provides only the gradient of the cost
        (``SingleShooting(derivatives="adjoint")``), or provides it much faster than Jacobians, it uses
        "limited-memory": updates from the last gradients (L-BFGS), and a few final Gauss-Newton steps.
    max_iter : int
    tolerance : float
        IPOPT's ``tol``, on the scaled optimality error.
    linear_solver : {"mumps", "spral"}
    options : mapping
        Further IPOPT options by their own names, for instance ``{"mu_strategy": "adaptive"}``.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem, cf.Collocation(), cf.Ipopt())
    >>> result.solver, result.success
    ('IPOPT', True)
    """

    hessian: str = "auto"
    max_iter: int = 500
    tolerance: float = 1e-9
    linear_solver: str = "mumps"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        plain_numbers(self)
        hessians = "auto", "exact", "gauss-newton", "limited-memory"
        choices = "choose 'auto', 'exact', 'gauss-newton' or 'limited-memory'"
        solver, tolerance = self.linear_solver, self.tolerance
        mistakes = option_mistakes(
            ("hessian", self.hessian, is_one_of(self.hessian, *hessians), choices),
            ("linear_solver", solver, is_one_of(solver, "mumps", "spral"), "choose 'mumps' or 'spral'"),
            ("max_iter", self.max_iter, is_count(self.max_iter), "give an integer that is not negative"),
            tolerance_rule(tolerance),
        )
        options = read_mapping("options", self.options, mistakes)
        raise_if_mistakes("Ipopt", mistakes)
        vars(self)["options"] = options

    @property
    def takes(self) -> tuple[type, ...]:
        """Evaluation types that this solver can use."""
        optional_capabilities: dict[str, tuple[type, ...]] = {
            "auto": (MatchingProducts, GradientEvaluation, HessianBlocks),
            "gauss-newton": (MatchingProducts,),
            "limited-memory": (GradientEvaluation,),
        }
        return Linearization, *optional_capabilities.get(self.hessian, (HessianBlocks,))

    def suited(self, capabilities: tuple[type, ...]) -> Ipopt:
        """Return a copy for another transcription than the requested one.

        If that transcription provides no exact Hessian, hessian="exact" becomes "auto".
        """
        return replace(self, hessian="auto") if self.hessian == "exact" and HessianBlocks not in capabilities else self

    @property
    def label(self) -> str:
        """Name in tables."""
        return "IPOPT" if self.hessian == "auto" else f"IPOPT ({self.hessian} Hessian)"

    def solve(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        """Solve; a failed fit raises no exception.  `warm` starts with a small barrier, close to the start."""
        has_exact_hessian = HessianBlocks in staged.capabilities and HessianBlocks in self.takes
        if self.hessian == "exact" and not has_exact_hessian:
            raise_if_mistakes(
                "Ipopt", ["this transcription has no exact Hessian; choose hessian='gauss-newton' or Collocation"]
            )
        has_gradient = GradientEvaluation in staged.capabilities and GradientEvaluation in self.takes
        if staged.capabilities == (GradientEvaluation,) and not has_gradient:
            raise_if_mistakes(
                "Ipopt", ["this transcription gives only the gradient of the cost; choose hessian='limited-memory'"]
            )
        ledger = CountingProblem(staged, control)
        start = np.clip(staged.start, staged.lower, staged.upper)
        history: list[dict[str, float]] = []
        with with_deadline(control.max_time) as watch:
            try:
                is_linearizable = (ledger.gradient if has_gradient else ledger.linearize)(start).ok
                if not (ledger.evaluate(start).ok and is_linearizable):
                    return ledger.solution(start, Status.START_FAILED, detail=staged.describe_failure(start))
                run = _IpoptRun(self, staged, ledger, watch, has_exact_hessian, history, has_gradient=has_gradient)
                solution = run.solve(start, warm=warm)
                return run.finish(solution) if has_gradient else solution
            except StopRequested as stop_reason:  # within an iteration
                best = start if ledger.best is None else np.clip(ledger.best, staged.lower, staged.upper)
                return ledger.solution(
                    best, stop_reason.status, iterations=max(len(history) - 1, 0), history=tuple(history)
                )


@dataclass(frozen=True)
class _Objective:
    """Objective of IPOPT: the cost times a factor, at constant sigmas (n_groups,) unless `sigma` is None.

    `constant` is added: it sets the accuracy to which values of the objective are compared.
    """

    factor: float = 1.0
    sigma: Array | None = None
    constant: float = 0.0

    def value(self, layout: Layout, evaluation: Evaluation) -> float:
        if not evaluation.ok:
            return np.nan
        cost = evaluation.cost if self.sigma is None else half_square_in_units(layout, evaluation, self.sigma)
        return self.factor * cost + self.constant

    def weight(self, evaluation: Evaluation) -> Array:
        """Return the weights of the squared rows of each group, and of the other rows, at a point, (n_groups + 1,)."""
        group_weights = np.ones_like(evaluation.sigma) if self.sigma is None else (evaluation.sigma / self.sigma) ** 2
        return self.factor * np.append(group_weights, 1.0)


def _factor(sigma: Array, sigma_guess: Array) -> float:
    """Return a factor, at most 1, on the derivatives.

    It limits derivatives to their size at the assumed sigmas, for any smaller sigma.
    """
    return min(1.0, float(((sigma / sigma_guess) ** 2).min()))


def _constant(staged: StagedProblem, sigma: Array) -> float:
    """Return a constant whose rounding error equals the error of the cost.

    The cost is that of rows of size 1, each with the error of its signal.
    """
    inverse = np.append(1.0 / sigma, 1.0)  # group -1, of known sigma, is the last
    signal = [
        (chain_signal * inverse[chain.group])[chain.row_mask]
        for chain_signal, chain in zip(staged.signal, staged.layout.chains, strict=True)
    ]
    return staged.integration_rtol * float(np.linalg.norm(np.concatenate(signal))) / (10 * np.finfo(float).eps)


_MAX_DENSE_HESSIAN_QUANTITIES = 200  # Largest number of quantities with a dense Hessian over theta.


class _IpoptRun:
    """One solve: the functions that IPOPT calls, and the records of the calls."""

    def __init__(
        self,
        options: Ipopt,
        staged: StagedProblem,
        ledger: CountingProblem,
        watch: Deadline,
        has_exact_hessian: bool,
        history: list[dict[str, float]],
        *,
        has_gradient: bool = False,
    ) -> None:
        self.graded, self.limited = has_gradient, has_gradient or options.hessian == "limited-memory"
        self.options, self.staged, self.ledger = options, staged, ledger
        self.control, self.watch, self.exact = ledger.control, watch, has_exact_hessian
        self.history = history
        self.iterations = 0
        self.errors: list[BaseException] = []
        self.stop_status: Status | None = None
        self.idle, self.min_decrease = 0, np.inf  # iterations with small, stagnating predictions
        self.by_promise = not staged.least_squares or ledger.control.low_accuracy_rtol > 0.0
        self.end: tuple[Array, Array] | None = None  # end without predicted decrease: v, multipliers of bounds
        self.objective = _Objective()
        self.scalar = MatchingProducts in staged.capabilities
        self.rows = ConstraintRows(staged.layout, staged.scale, scalar=self.scalar)
        self.jacobian = JacobianMap(staged.layout, self.rows, staged.scale)
        self.of_theta = _pattern(staged, ledger)
        self.hessian = HessianMap(staged.layout, staged.scale, scalar=self.scalar, of_theta=self.of_theta)
        self._directional_linearization: Linearization | None = None
        self._approximate_jacobians: Sequence[Jacobians] | None = (
            None  # Jacobians of the ends of stages, as far as gradients tell
        )

    def solve(self, start: Array, *, warm: bool) -> Solution:
        """Solve with sigma constant at a fraction of the signal, then with sigma profiled if that moves the optimum.

        In between sigma is set to its estimate and held constant, until it changes by at most a factor of ten.  For
        data that are fitted exactly it decreases by many decades, and a solve with profiled sigma would fail.
        """
        staged, evaluation = self.staged, self.ledger.evaluate(start)
        layout, ipopt_options = staged.layout, _WARM_START_OPTIONS if warm else {}
        if layout.n_groups == 0:
            self.objective = _Objective(constant=_constant(staged, np.empty(0)))
            return self.run(start, ipopt_options)
        sigma_guess = assumed_sigma(staged)
        is_all_unknown = all((chain.group >= 0)[chain.row_mask].all() for chain in layout.chains)
        is_single_sigma = layout.n_groups == 1 and evaluation.prior.size == 0 and is_all_unknown
        sigma = (
            evaluation.sigma
            if warm and not is_single_sigma
            else sigma_guess
            if is_single_sigma
            else _INITIAL_SIGMA_FACTOR * sigma_guess
        )
        if warm and not is_single_sigma and _factor(sigma, sigma_guess) > _MIN_VARIANCE_FRACTION:
            return self._profiled(start, sigma, sigma_guess)
        while True:
            factor = _factor(sigma, sigma_guess)
            self.objective = _Objective(factor, sigma, factor * _constant(staged, sigma))
            solution = self.run(start, ipopt_options if is_single_sigma else {**ipopt_options, **_LOW_ACCURACY_OPTIONS})
            if is_single_sigma or not solution.status.success or self.control.low_accuracy_rtol:
                return solution
            start, evaluation, previous_sigma, ipopt_options = (
                solution.v,
                self.ledger.evaluate(solution.v),
                sigma,
                _WARM_START_OPTIONS,
            )
            sigma = evaluation.sigma
            is_resolved = _factor(sigma, sigma_guess) > _MIN_VARIANCE_FRACTION
            if np.abs(np.log(sigma / previous_sigma)).max() < np.log(_PROFILING_SIGMA_FACTOR) or (
                not is_resolved and _factor(previous_sigma, sigma_guess) <= _MIN_VARIANCE_FRACTION
            ):
                break
        if not is_resolved:
            return solution
        return self._profiled(start, sigma, sigma_guess)

    def _profiled(self, start: Array, sigma: Array, sigma_guess: Array) -> Solution:
        """Minimise the cost itself, near its minimum."""
        previous_by_promise, self.by_promise, factor = self.by_promise, True, _factor(sigma, sigma_guess)
        self.objective = _Objective(factor, constant=factor * _constant(self.staged, sigma))
        solution = self.run(start, _WARM_START_OPTIONS)
        sigma = self.ledger.evaluate(solution.v).sigma
        factor = _factor(sigma, sigma_guess)
        if solution.status.success or not 0.0 < factor <= _MIN_VARIANCE_FRACTION:
            return solution
        # The data are fitted exactly except for integration errors, whose size is arbitrary.
        self.by_promise, self.objective = (
            previous_by_promise,
            _Objective(factor, sigma, factor * _constant(self.staged, sigma)),
        )
        return self.run(solution.v, _WARM_START_OPTIONS)

    def run(self, start: Array, ipopt_options: Mapping[str, Any]) -> Solution:
        staged, n = self.staged, self.staged.layout.n_v
        dense = ca.Sparsity.dense
        x, p, g = ("x", dense(n, 1)), ("p", dense(0, 1)), ("g", dense(self.rows.count, 1))
        f, lam_g = ("f", dense(1, 1)), ("lam_g", dense(self.rows.count, 1))
        hessian = ("triu_hess_gamma_x_x", self.hessian.sparsity)
        sizes = (n, 1, self.rows.count, n, self.rows.count, 0)
        report = [(ca.nlpsol_out(i), dense(size, 1)) for i, size in enumerate(sizes)]
        functions = [
            IpoptCallback(name, inputs, outputs, function, self.errors)
            for name, inputs, outputs, function in (
                ("nlp", [x, p], [f, g], self._values),
                ("nlp_grad_f", [x, p], [f, ("grad_f_x", dense(n, 1))], self._gradient),
                ("nlp_jac_g", [x, p], [g, ("jac_g_x", self.jacobian.sparsity)], self._jacobian),
                ("nlp_hess_l", [x, p, ("lam_f", dense(1, 1)), lam_g], [hessian], self._hessian),
                ("report", report, [("ret", dense(1, 1))], self._report),
            )
        ]
        scale = staged.scale
        ipopt: dict[str, Any] = {
            "print_level": 0,
            "sb": "yes",
            "tol": self.options.tolerance,
            "max_iter": max(self.options.max_iter - self.iterations, 0),
            "linear_solver": self.options.linear_solver,
            **(_LOW_ACCURACY_OPTIONS if self.control.low_accuracy_rtol else {}),
            **(_INTEGRATED_OPTIONS if staged.integration_rtol else {}),
            **(_LIMITED_MEMORY_OPTIONS if self.limited else {}),
            **ipopt_options,
            **{str(name): value for name, value in self.options.options.items()},
        }
        if np.isfinite(self.control.max_time):
            ipopt["max_wall_time"] = max(self.control.max_time - self.ledger.seconds, 1e-3)
        with capture_output() as log:
            solver = ipopt_solver(functions, ipopt, log, limited=self.limited)
            try:
                ipopt_output = solver(
                    x0=start / scale,
                    lbx=staged.lower / scale,
                    ubx=staged.upper / scale,
                    lbg=self.rows.lower,
                    ubg=self.rows.upper,
                )
            except RuntimeError as error:
                if self.errors:
                    raise self.errors[0] from None
                return self._failed(start, f"{error}\n" + "\n".join(log.tail(3)))
        if self.errors:
            raise self.errors[0]
        stats: dict[str, Any] = solver.stats()
        code = str(stats["return_status"])
        if code == "Invalid_Option":
            raise_if_mistakes("Ipopt", [f"IPOPT rejects its options {dict(self.options.options)}"])
        self.iterations += int(stats["iter_count"])
        status = self.stop_status or IPOPT_STATUS.get(code, Status.SOLVER_ERROR)
        if self.end is not None and self.stop_status is None:
            return self._build_solution(*self.end)
        v = np.asarray(ipopt_output["x"]).ravel() * scale
        v = np.clip(v, staged.lower, staged.upper)
        active = _active(v, staged, np.asarray(ipopt_output["lam_x"]).ravel())
        n_theta = staged.layout.n_theta
        detail = f"IPOPT returned {code}." if status is Status.SOLVER_ERROR else ""
        if status.success:
            is_at_bound = (active != 0) & (np.arange(v.size) < n_theta)
            v[is_at_bound] = np.where(active < 0, staged.lower, staged.upper)[is_at_bound]
        else:
            v = np.clip(self.ledger.best if self.ledger.best is not None else start, staged.lower, staged.upper)
            active = np.zeros(v.size, dtype=np.int8)
            detail = f"{detail} {self._violations(v)}".strip()
        return self.ledger.solution(
            v, status, detail=detail, active=active, iterations=self.iterations, history=tuple(self.history)
        )

    def _failed(self, start: Array, message: str) -> Solution:
        best = self.ledger.best if self.ledger.best is not None else start
        return self.ledger.solution(
            best, Status.SOLVER_ERROR, detail=message, iterations=len(self.history), history=tuple(self.history)
        )

    def _promises_nothing(self, v: Array) -> bool:
        """Check whether a Gauss-Newton step from v predicts no decrease; if so, store the end point."""
        staged = self.staged
        if not self.by_promise or self.scalar or self.graded:
            return False
        linear = self.ledger.linearize(v)
        gap = (
            MATCHING_TOLERANCE if staged.integrated else _FINAL_MATCHING_TOLERANCE
        )  # polynomials have no integration errors
        if not linear.ok or infeasibility(staged.layout, staged.scale, linear) > gap:
            return False
        residuals_and_step = _stepped(staged, linear)
        if residuals_and_step is None:
            return False
        u, step = residuals_and_step
        predicted_decrease = (
            0.5 * float(u @ u) - step.predicted
        )  # with what bounds hold, of the size of IPOPT's barrier
        if step.decrease < FALLBACK_THRESHOLDS.min_progress_factor * self.min_decrease:
            self.min_decrease, self.idle = step.decrease, 0
        elif is_small_decrease(staged, linear, step.decrease, FALLBACK_THRESHOLDS.noisy_decrease):
            self.idle += 1
        if self.idle <= FALLBACK_THRESHOLDS.max_idle_steps and not (
            is_small_decrease(
                staged, linear, step.decrease, max(_MIN_PREDICTED_DECREASE, self.control.low_accuracy_rtol)
            )
            and is_small_decrease(
                staged, linear, predicted_decrease, max(_MIN_BOUND_STEP_DECREASE, self.control.low_accuracy_rtol)
            )
        ):
            return False
        self.end = v, step.bound_multipliers
        return True

    def _build_solution(self, v: Array, multiplier: Array) -> Solution:
        """Return the solution at a point without predicted decrease, with theta on the bounds of the step."""
        staged, n_theta = self.staged, self.staged.layout.n_theta
        v_end = v.copy()
        v_end[:n_theta] = np.where(multiplier < 0, staged.lower, np.where(multiplier > 0, staged.upper, v))[:n_theta]
        v_end = np.clip(v_end, staged.lower, staged.upper)
        evaluation = self.ledger.evaluate(v_end)
        if not evaluation.ok or infeasibility(staged.layout, staged.scale, evaluation) > MATCHING_TOLERANCE:
            v_end = np.clip(v, staged.lower, staged.upper)
        active = active_bounds(staged, v_end, multiplier)
        return self.ledger.solution(
            v_end, Status.CONVERGED, active=active, iterations=self.iterations, history=tuple(self.history)
        )

    def finish(self, solution: Solution) -> Solution:
        """Finish with Gauss-Newton steps, and set the final status.

        The steps also provide the derivatives for statistics.  Quasi-Newton updates converge slowly at the end; these
        steps do not.
        """
        if solution.status not in (Status.CONVERGED, Status.ACCEPTABLE, Status.STEP_TOO_SMALL, Status.MAX_ITERATIONS):
            return solution
        staged, v, status = self.staged, solution.v, solution.status
        bounds = np.zeros(v.size)
        for n_left in reversed(range(_N_FINAL_NEWTON_STEPS + 1)):
            linear = self.ledger.linearize(v)
            if not linear.ok:
                return solution
            residuals_and_step = _stepped(staged, linear)
            if residuals_and_step is None:
                return solution
            step = residuals_and_step[1]
            bounds = step.bound_multipliers
            if is_small_decrease(staged, linear, step.decrease, FALLBACK_THRESHOLDS.noisy_decrease):
                status = Status.CONVERGED
                break
            if status is Status.CONVERGED:  # as far as gradients tell
                status = Status.ACCEPTABLE
            new_evaluation = self.ledger.evaluate(np.clip(v + step.dv, staged.lower, staged.upper))
            if n_left == 0 or not new_evaluation.ok or new_evaluation.cost >= linear.cost:
                break
            v = new_evaluation.v
        active = active_bounds(staged, v, bounds) if status.success else np.zeros(v.size, dtype=np.int8)
        v = np.where(active < 0, staged.lower, np.where(active > 0, staged.upper, v))
        detail = solution.detail if not status.success else ""
        return self.ledger.solution(
            v, status, detail=detail, active=active, iterations=solution.iterations, history=solution.history
        )

    def _violations(self, v: Array) -> str:
        evaluation = self.ledger.evaluate(v)
        if not evaluation.ok:
            return ""
        g = self.rows.values(evaluation.values, evaluation.v, evaluation.related)
        excess = np.maximum(np.maximum(self.rows.lower - g, g - self.rows.upper), 0.0)
        worst_rows = [int(i) for i in np.argsort(-excess)[:3] if excess[i] > 1e-6]
        if not worst_rows:
            return ""
        return (
            "Largest violations: " + "; ".join(f"{self.rows.describe(i)} by {excess[i]:.2g}" for i in worst_rows) + "."
        )

    # The functions that IPOPT calls.  They return NaN for a failed evaluation, and IPOPT shortens its step.

    def _values(self, x: Array, p: Array) -> Sequence[Any]:
        evaluation = self.ledger.evaluate(x * self.staged.scale)
        value = self.objective.value(self.staged.layout, evaluation)
        return value, self.rows.values(evaluation.values, evaluation.v, evaluation.related)

    def _linearize(self, v: Array) -> Linearization:
        """Linearize; scalar matching conditions along their gaps only."""
        if not self.scalar:
            return self.ledger.linearize(v)
        if self._directional_linearization is None or not np.array_equal(self._directional_linearization.v, v):
            if self._approximate_jacobians is None:
                self._approximate_jacobians = self.ledger.linearize(v).jacobians
            self._directional_linearization = self.ledger.linearize_along(
                v, self.rows.directions(self.ledger.evaluate(v))
            )
            if self._directional_linearization.ok:
                self._approximate_jacobians = from_gradients(
                    self.staged.layout, self.staged.scale, self._approximate_jacobians, self._directional_linearization
                )
        return self._directional_linearization

    def _gradient(self, x: Array, p: Array) -> Sequence[Any]:
        if self.graded:
            evaluation = self.ledger.evaluate(x * self.staged.scale)
            gradient_evaluation = self.ledger.gradient(x * self.staged.scale, self.objective.weight(evaluation))
            return self.objective.value(
                self.staged.layout, gradient_evaluation
            ), gradient_evaluation.gradient * self.staged.scale
        linear = self._linearize(x * self.staged.scale)
        layout, objective = self.staged.layout, self.objective
        gradient = cost_gradient(layout, linear, objective.weight(linear))
        return objective.value(layout, linear), gradient * self.staged.scale

    def _jacobian(self, x: Array, p: Array) -> Sequence[Any]:
        if self.graded:  # there are no constraints
            return np.empty(0), np.empty(0)
        linear = self._linearize(x * self.staged.scale)
        directions = self.rows.directions(linear) if self.scalar else None
        return (
            self.rows.values(linear.values, linear.v, linear.related),
            self.jacobian.nonzeros(linear.jacobians, linear.related_jacobian, directions),
        )

    def _hessian(self, x: Array, p: Array, lam_f: Array, lam_g: Array) -> Sequence[Any]:
        v = x * self.staged.scale
        linear = self._linearize(v)
        weight = float(lam_f[0]) * self.objective.weight(linear)
        theta = self._of_priors(linear, float(weight[-1]))
        if self.exact:
            self.ledger.evaluations["hessians"] += 1
            relation_multipliers = (lam_g / self.rows.unit)[self.rows.related]
            hessian_blocks = self.staged.hessian(v, self.rows.multipliers(lam_g), weight, relation_multipliers)
            blocks: Sequence[tuple[Array, Array]] = hessian_blocks.chains
            if relation_multipliers.size:
                theta += hessian_blocks.relations
        else:
            blocks = gauss_newton_blocks(self.staged.layout, linear.jacobians, weight)
        if self.objective.sigma is None and self.staged.layout.n_groups:
            full_linear = (
                replace(linear, jacobians=tuple(self._approximate_jacobians))
                if self._approximate_jacobians is not None
                else linear
            )
            theta += float(lam_f[0]) * self.objective.factor * _profile_curvature(self.staged.layout, full_linear)
        squares: Sequence[Array] = ()
        if self._approximate_jacobians is not None:
            layout, matching_multipliers = self.staged.layout, self.rows.multipliers(lam_g)
            squares = squares_blocks(layout, self.staged.scale, self._approximate_jacobians, matching_multipliers)
        if self.staged.layout.has_correlated_errors:
            squares = [*squares, *self.hessian.coupled(self.staged.layout, linear.jacobians, weight)]
        return [self.hessian.nonzeros(blocks, theta, squares)]

    def _of_priors(self, linear: Linearization, weight: float) -> Array:
        """Return the contribution of priors over theta, (n_theta, n_theta), or only its structural nonzeros."""
        products = sparse_rows(linear.prior_jacobian).product().scaled(np.full(linear.v.size, weight))
        if self.of_theta is None:
            return products.dense
        n = self.staged.layout.n_theta
        entry_keys = self.of_theta[0] * n + self.of_theta[1]
        positions = np.searchsorted(entry_keys, products.row * n + products.column)
        return np.bincount(positions, products.entry, minlength=entry_keys.size).astype(float, copy=False)

    def _report(self, x: Array, f: Array, g: Array, lam_x: Array, lam_g: Array, lam_p: Array) -> Sequence[Any]:
        v = x * self.staged.scale
        evaluation = self.ledger.evaluate(v)
        largest_violation = infeasibility(self.staged.layout, self.staged.scale, evaluation)
        chi2 = weighted_squares(self.staged.layout, evaluation)
        iteration = Iteration(
            len(self.history), evaluation.cost, chi2, largest_violation, evaluation.v, self.ledger.seconds
        )
        self.history.append(
            {
                "iteration": iteration.iteration,
                "cost": iteration.cost,
                "infeasibility": largest_violation,
                "time": iteration.seconds,
            }
        )
        if self.control.callback is not None:
            with release_output():
                if self.control.callback(iteration):
                    self.stop_status = Status.STOPPED_BY_CALLBACK
        self.stop_status = self.watch.cause or self.stop_status
        return [float(self.stop_status is not None or self._promises_nothing(v))]


def _stepped(staged: StagedProblem, linear: Linearization) -> tuple[Array, Step] | None:
    """Return the residuals of the condensed problem and the Gauss-Newton step; None if numbers overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        local = local_problem(staged, linear, regularisation=_GAUSS_NEWTON_REGULARISATION)
        return (local.condensed.u, local.direction()) if local.is_finite else None


def _pattern(staged: StagedProblem, ledger: CountingProblem) -> tuple[Index, Index] | None:
    """Return the entries of theta coupled by priors, sorted; None if the whole matrix may be filled."""
    layout = staged.layout
    if layout.n_theta <= _MAX_DENSE_HESSIAN_QUANTITIES or layout.n_groups or layout.relations.names:
        return None
    evaluation = ledger.evaluate(np.clip(staged.start, staged.lower, staged.upper))
    products = sparse_rows(evaluation.prior_jacobian).product()
    entry_keys = np.unique(products.row * layout.n_theta + products.column)
    row, column = np.divmod(entry_keys, layout.n_theta)
    return row.astype(np.intp), column.astype(np.intp)


def _profile_curvature(layout: Layout, linear: Linearization) -> Array:
    """Return  -sum_g 2/n_g g g^T,  g = E_g^T r_g  (n_theta, n_theta): the effect of unknown sigmas on the curvature."""
    curvature = np.zeros((layout.n_theta, layout.n_theta))
    if layout.n_groups == 0 or not linear.ok:
        return curvature
    with np.errstate(all="ignore"):
        E = condense(layout, linear).E
        group = np.concatenate([chain.group[chain.row_mask] for chain in layout.chains])
        r = np.concatenate(
            [values.r[chain.row_mask] for chain, values in zip(layout.chains, linear.values, strict=True)]
        )
        for g, size in enumerate(layout.group_sizes):
            is_in_group = group == g
            slope = E[: r.size][is_in_group].T @ r[is_in_group]
            at_floor = float(r[is_in_group] @ r[is_in_group]) < (1.0 - 1e-9) * size  # sigma is constant at its floor
            if not at_floor and np.isfinite(slope).all():
                curvature -= 2.0 / size * slope[:, None] * slope
    return curvature


def ipopt_solver(
    functions: Sequence[ca.Function], options: Mapping[str, Any], log: CapturedOutput, *, limited: bool = False
) -> ca.Function:
    """Return IPOPT on functions nlp, grad_f, jac_g, hess_lag, and one called at each iteration.

    Raises InputError if IPOPT rejects an option.
    """
    nlp, gradient, jacobian, hessian, report = functions
    solver_options: dict[str, Any] = {
        "grad_f": gradient,
        "jac_g": jacobian,
        **({} if limited else {"hess_lag": hessian}),
        "iteration_callback": report,
        "no_nlp_grad": True,
        "calc_lam_p": False,
        "print_time": False,
        "ipopt": dict(options),
    }
    try:
        return ca.nlpsol("solver", "ipopt", nlp, solver_options)
    except RuntimeError as error:  # only options can be wrong here
        message = " ".join([*str(error).strip().splitlines()[1:], *log.tail(3)])
        raise InputError(
            "Ipopt", [f"IPOPT rejects an option: {re.sub(r'[^ ]*[.]cpp:[0-9]+: ', '', message)}"]
        ) from None


class IpoptCallback(ca.Callback):
    """CasADi function evaluated in Python on buffers, without copies.

    Exceptions of the Python function pass IPOPT's C++ frames in `errors`, and IPOPT stops.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[tuple[str, ca.Sparsity]],
        outputs: Sequence[tuple[str, ca.Sparsity]],
        function: Callable[..., Sequence[Any]],
        errors: list[BaseException],
    ) -> None:
        ca.Callback.__init__(self)
        self._inputs, self._outputs, self._function, self._errors = inputs, outputs, function, errors
        self.construct(name, {})

    def get_n_in(self) -> int:
        """Return the number of arguments."""
        return len(self._inputs)

    def get_n_out(self) -> int:
        """Return the number of results."""
        return len(self._outputs)

    def get_name_in(self, i: int) -> str:
        """Return the name of an argument."""
        return self._inputs[i][0]

    def get_name_out(self, i: int) -> str:
        """Return the name of a result."""
        return self._outputs[i][0]

    def get_sparsity_in(self, i: int) -> ca.Sparsity:
        """Return the shape of an argument."""
        return self._inputs[i][1]

    def get_sparsity_out(self, i: int) -> ca.Sparsity:
        """Return the pattern of a result."""
        return self._outputs[i][1]

    def has_eval_buffer(self) -> bool:
        """Return True: the function evaluates on buffers."""
        return True

    def eval_buffer(self, arg: Sequence[Any], res: Sequence[Any]) -> int:
        """Evaluate; return 1 if that failed."""
        arguments = [
            np.zeros(s.nnz()) if a is None else np.frombuffer(a, dtype=float).copy()
            for a, (_, s) in zip(arg, self._inputs, strict=True)
        ]
        if self._errors:
            return 1
        try:
            values = self._function(*arguments)
        except BaseException as error:
            self._errors.append(error)
            return 1
        for target, value in zip(res, values, strict=True):
            if target is not None:
                np.frombuffer(target, dtype=float)[:] = value
        return 0


def _active(v: Array, staged: StagedProblem, multiplier: Array) -> NDArray[np.int8]:
    """Find active bounds: their distance, in units of the scale, is far smaller than their multiplier.

    IPOPT ends with distance * multiplier at about 1e-10 everywhere.  The first factor is small for an active bound, the
    second one for an inactive bound, even if the variable is as close as 1e-5.
    """
    lower_distance, upper_distance = (v - staged.lower) / staged.scale, (staged.upper - v) / staged.scale
    active = np.zeros(v.size, dtype=np.int8)
    active[(lower_distance < 1e-5) & (-multiplier > 10 * lower_distance)] = -1
    active[(upper_distance < 1e-5) & (multiplier > 10 * upper_distance)] = 1
    active[staged.lower == staged.upper] = -1
    return active
