"""Fits to other data from an estimate, if only theta changes: two or three integrations each.

All data sets of a run have the same measurement times and the same start.  The second derivatives of the rows are
therefore computed once, at the estimate,

    B_ijk = d^2 rows_i / d theta_j d theta_k        by differences of their derivatives

and give a start for every data set without integration, the minimum of 1/2 |u + E x + 1/2 x B x|^2 in the trust
region.  From there Newton's method minimises the cost, with the same B in its second derivatives,

    H = E^T E + sum_i u_i B_i,    c = E^T u        (castfit.solve.dense_descent has the notation)

so that large residuals need no further steps.  If the descent fails, an ordinary fit follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from castfit._support.arrays import Array
from castfit._support.time_limit import StopRequested
from castfit.fit.laplace_kinks import find_kinks
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import CompiledProblem
from castfit.solve.block_pivoting import minimize_in_box
from castfit.solve.dense_descent import supports_dense_descent
from castfit.solve.staged import DenseRows
from castfit.solve.subproblem import RIDGE_FRACTIONS, units_of_search
from castfit.transcribe.dense_single_shooting import DenseResiduals
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting

_MAX_DESCENT_STEPS = 12  # steps of one descent
_MIN_PREDICTED_DECREASE = 1e-8  # of 1 + half the squares: at a smaller predicted decrease the descent ends
_DIFFERENCE_STEP_SE = 0.1  # step of differences in standard errors, or in units of the search if shorter
_MAX_CURVATURE_ENTRIES = 10**7  # numbers in B
_RADIUS_SHRINK_FACTOR = 0.25  # of a rejected step: the next trust region
_MAX_COST_DIFFERENCE = 1e-3  # of 1 + half the squares: by which the cost without its nodes may differ from the fit's
_COST_INCREASE_RTOL = 1e-9  # of 1 + half the squares: accepted increase of the cost


@dataclass(frozen=True)
class DescentEnd:
    """A minimum theta (n,), the point before the last small step, and the number of steps."""

    theta: Array
    previous_theta: Array
    steps: int


@dataclass(frozen=True)
class _EstimateContext:
    """Local second-order model of the residual rows at the estimate theta (n,).

    scale (m,) : factors of the rows;  E (m, n) : first derivatives;  B (m, n, n) : second derivatives
    units, lower, upper (n,) : units of the search, and bounds
    """

    staged: ShootingProblem
    theta: Array
    scale: Array
    E: Array
    B: Array
    units: Array
    lower: Array
    upper: Array

    def model(self, u: Array) -> Callable[[Array], DenseRows]:
        """Return rows that are u (m,) at the estimate, with the derivatives E and B, in the units of E."""

        def rows(v: Array) -> DenseRows:
            x = v - self.theta
            jacobian_change = self.B @ x
            residuals = u + (self.E + 0.5 * jacobian_change) @ x
            half_square = 0.5 * float(residuals @ residuals)
            return DenseRows(v, half_square, half_square, residuals, self.E + jacobian_change)

        return rows

    def descended(self, rows: Callable[[Array], DenseRows | None], start: Array, factor: Array) -> DescentEnd | None:
        """Minimise half the squared rows by Newton steps within the bounds. Return None if no minimum is found.

        factor (m,) : factors of B, for rows in other units than E.
        """
        current_rows, width = rows(start), 1.0
        if current_rows is None:
            return None
        second = self.units[:, None] * np.tensordot(factor * current_rows.u, self.B, axes=1) * self.units
        for k in range(_MAX_DESCENT_STEPS):
            E, cost_scale = current_rows.E * self.units, 1.0 + current_rows.half_square
            H, c = E.T @ E, E.T @ current_rows.u
            H[np.diag_indices_from(H)] += RIDGE_FRACTIONS[0] + RIDGE_FRACTIONS[1] * float(np.trace(H))
            low = np.maximum((self.lower - current_rows.v) / self.units, -width)
            high = np.minimum((self.upper - current_rows.v) / self.units, width)
            hessian = H + second
            try:
                s = minimize_in_box(hessian, c, low, high)
            except np.linalg.LinAlgError:  # no minimum: use the Gauss-Newton matrix
                hessian = H
                s = minimize_in_box(hessian, c, low, high)
            predicted_decrease = -float(s @ (c + 0.5 * (hessian @ s)))
            trial_theta = np.clip(current_rows.v + self.units * s, self.lower, self.upper)
            if predicted_decrease <= _MIN_PREDICTED_DECREASE * cost_scale:
                return DescentEnd(trial_theta, current_rows.v, k)
            trial_rows = rows(trial_theta)
            if trial_rows is not None and trial_rows.cost <= current_rows.cost + _COST_INCREASE_RTOL * cost_scale:
                x, new_jacobian = (trial_rows.v - current_rows.v) / self.units, trial_rows.E * self.units
                second = _update_curvature(
                    second, x, new_jacobian.T @ trial_rows.u - E.T @ trial_rows.u, new_jacobian.T @ trial_rows.u - c
                )
                current_rows, width = trial_rows, min(2.0 * width, 1.0)
            else:
                width = _RADIUS_SHRINK_FACTOR * float(np.abs(s).max())
        return None


def _update_curvature(S: Array, x: Array, secant_target: Array, y: Array) -> Array:
    """Update the second-order term S of the Hessian by the secant condition  S x = secant_target  for a step x.

    y is the difference of the gradients (Dennis, Gay and Welsch 1981, equation 4.3).
    """
    curvature_product = float(y @ x)
    if not curvature_product > 0.0:
        return S
    secant_error = secant_target - S @ x
    mixed = np.outer(secant_error, y)
    return S + (mixed + mixed.T) / curvature_product - float(secant_error @ x) / curvature_product**2 * np.outer(y, y)


@dataclass(frozen=True)
class WarmStartedRefits:
    """Fits to other data of a problem, each started from its estimate theta (n_theta,) with its cost."""

    compiled_problem: CompiledProblem
    integrator: IntegratorOptions
    theta: Array
    cost: float

    def refit(self, problem: CompiledProblem) -> tuple[DescentEnd, DenseResiduals] | None:
        """Return the end of the fit to a problem that differs only in its data, and its rows; None if the fit fails.

        An end with a higher cost than the estimate, about which the data were drawn, is a failure.
        """
        context = self._surroundings
        staged = None if context is None else context.staged.with_data(problem)
        dense = None if staged is None else staged.dense_evaluator
        if context is None or dense is None:
            return None
        try:
            estimate_residuals = dense.residuals(self.theta)
            if estimate_residuals is None:
                return None
            factor = estimate_residuals.scale / context.scale
            model_end = context.descended(
                context.model(estimate_residuals.u / factor), self.theta, np.ones(factor.size)
            )
            descent_end = context.descended(dense.rows, self.theta if model_end is None else model_end.theta, factor)
            end = None if descent_end is None else dense.residuals(descent_end.previous_theta)
        except (StopRequested, np.linalg.LinAlgError):
            return None
        if (
            descent_end is None
            or end is None
            or end.cost > estimate_residuals.cost + _COST_INCREASE_RTOL * (1.0 + abs(estimate_residuals.cost))
        ):
            return None
        return descent_end, end

    @cached_property
    def _surroundings(self) -> _EstimateContext | None:
        compiled_problem = self.compiled_problem
        if not compiled_problem.least_squares or compiled_problem.smoothness_penalties or find_kinks(compiled_problem):
            return None
        try:
            staged = SingleShooting(self.integrator).transcribe(compiled_problem, self.theta).explicit()
            reference_staging = staged.with_data(compiled_problem)  # whose last point remains the estimate
            dense, reference_evaluator = (
                staged.dense_evaluator,
                None if reference_staging is None else reference_staging.dense_evaluator,
            )
            if dense is None or reference_evaluator is None or not supports_dense_descent(staged):
                return None
            base_rows, base_residuals = dense.rows(self.theta), dense.residuals(self.theta)
            if (
                base_rows is None
                or base_residuals is None
                or abs(base_rows.cost - self.cost) > _MAX_COST_DIFFERENCE * (1.0 + base_rows.half_square)
            ):
                return None
            units = units_of_search(staged, self.theta)
            B = np.zeros((*base_rows.E.shape, self.theta.size))
            if B.size > _MAX_CURVATURE_ENTRIES:
                return None
            for j, size in enumerate(np.linalg.norm(base_rows.E, axis=0)):
                h = _DIFFERENCE_STEP_SE * min(units[j], 1.0 / size if size > 0.0 else np.inf)
                h = -h if self.theta[j] + h > staged.upper[j] else h
                shifted_rows = reference_evaluator.rows(
                    np.where(np.arange(self.theta.size) == j, self.theta + h, self.theta)
                )
                if shifted_rows is None:
                    return None
                B[:, :, j] = (shifted_rows.E - base_rows.E) / h
        except StopRequested:
            return None
        symmetric_B = 0.5 * (B + B.transpose(0, 2, 1))
        return _EstimateContext(
            staged, self.theta, base_residuals.scale, base_rows.E, symmetric_B, units, staged.lower, staged.upper
        )
