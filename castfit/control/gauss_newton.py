"""Gauss-Newton method for sums of squares: a quadratic program at each point, with the curvature of the squares.

The objective is a sum of squares, or quadratic in states and inputs.  With the derivatives J of the squared terms, its
curvature without second derivatives of the equations is B = sum J' Q J:

    minimise  grad f' d + 1/2 d' B d     subject to  lower <= g + G d <= upper,  bounds of x + d

The program is sparse, and its factorization is linear in the number of stages, like a Riccati recursion.  An interior
point method (PIQP) solves it with all bounds.  The line search uses the merit function  f + mu |violations|_1  with mu
above the multipliers (Han 1977).  Near a solution one or two programs replace five to ten factorizations of IPOPT.  If
a program has no solution or the steps do not converge, the method returns None, and IPOPT solves the problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.status import Status

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit._support.time_limit import Deadline
    from castfit.control.program import Program, ProgramSolution

_MAX_STEP_TRIALS = 8  # trial steps of a line search, each half as long
_FEASIBILITY_TOLERANCE = 1e-8  # violation of rows, in their units
# Predicted change of the objective that ends the search; objective, by its size at the start, that is zero.
_CONVERGENCE_RTOL, _ZERO_OBJECTIVE = 1e-8, 1e-8
_CONIC_OPTIONS: dict[str, Any] = {"error_on_fail": False, "print_time": False, "piqp": {"max_iter": 40}}


class LeastSquaresControlSolver:
    """Gauss-Newton solver of one program, whose objective is a sum of squares or convex and quadratic."""

    def __init__(self, program: Program) -> None:
        pattern = {"h": program.curvature.sparsity_out(0), "a": program.functions[2].sparsity_out(1)}
        self.program = program
        self._solver: Any = ca.conic("squares", "piqp", pattern, _CONIC_OPTIONS)

    def solve(
        self, x: Array, P: Array, lower: Array, upper: Array, size: float, watch: Deadline, max_steps: int
    ) -> ProgramSolution | None:
        """Take at most `max_steps` steps from x (n,). Return None if these do not reach a solution.

        size : divisor of the objective
        """
        program, p, scale = self.program, self.program.numbers(P), self.program.scale
        low, high, (lbg, ubg) = lower / scale, upper / scale, program.limits
        y, mu = np.clip(x / scale, low, high), 0.0
        f, g = program.values(y * scale, P)
        violations = _compute_violations(g, lbg, ubg)
        for i in range(max_steps):
            slope: Any = program.functions[1](y, p)[1]
            G: Any = program.functions[2](y, p)[1]
            B = program.curvature(y, p)
            qp_solution: Any = self._solver(
                h=B / size, g=slope / size, a=G, lba=lbg - g, uba=ubg - g, lbx=low - y, ubx=high - y
            )
            if watch.cause is not None or not self._solver.stats()["success"]:
                return None
            d: Array = np.asarray(qp_solution["x"], dtype=float).ravel()
            multipliers: Array = np.asarray(qp_solution["lam_a"], dtype=float).ravel()
            predicted_change = float(np.asarray(slope).ravel() @ d) / size
            if violations.max(initial=0.0) <= _FEASIBILITY_TOLERANCE and abs(
                predicted_change
            ) <= _CONVERGENCE_RTOL * max(abs(f) / size, _ZERO_OBJECTIVE):
                full_step = np.clip(y + d, low, high)  # the remaining violation decreases quadratically
                is_more_feasible = (
                    _compute_violations(program.values(full_step * scale, P)[1], lbg, ubg).sum() < violations.sum()
                )
                end = (full_step if is_more_feasible else y) * scale
                return program.build_solution(end, P, size * multipliers, Status.CONVERGED, i, "Gauss-Newton")
            mu = max(mu, 1.1 * float(np.max(np.abs(multipliers), initial=0.0)))
            merit, merit_slope = f / size + mu * violations.sum(), predicted_change - mu * violations.sum()
            for halving in range(_MAX_STEP_TRIALS):
                step_length = 0.5**halving
                f, g = program.values((y + step_length * d) * scale, P)
                violations = _compute_violations(g, lbg, ubg)
                if f / size + mu * violations.sum() <= merit + 1e-4 * step_length * merit_slope + 1e-12 * abs(merit):
                    break
            else:
                return None
            y = y + step_length * d
        return None


def _compute_violations(g: Array, lower: Array, upper: Array) -> Array:
    return np.maximum(np.maximum(lower - g, g - upper), 0.0)
