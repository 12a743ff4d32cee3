"""Relaxed designs: real weights w, by a primal-dual interior point method, with a certificate.

    min f(w)   with  A w <= b,  0 <= w <= u

Notation
--------
w (N,)   how often each candidate is measured;  u (N,) upper limits;  A (m, N), b (m,) budgets, s = b - A w slacks
y (m,)   multipliers of the budgets: the value of one more unit;  l, r (N,) multipliers of 0 <= w and of w <= u
V (N, r) V V' is the Hessian of f (castfit.drive.design.criteria)

Newton's step on the conditions  g + A'y - l + r = 0,  l w = mu,  r (u - w) = mu,  y s = mu  has the matrix

    diag(l / w + r / (u - w)) + V V' + A' diag(y / s) A

a diagonal and a few columns.  By Woodbury's formula a step costs O(N r^2), without an N x N matrix.

Certificate (Frank and Wolfe 1956).  From the criterion's tangent  f(v) >= offset - h'v,  h_i = tr(G M_i),  follows for
every design v, by the duality of linear programs, with any y >= 0

    f(v) >= offset - b'y - sum_i u_i max(0, h_i - A_i'y)

f(w) minus this bounds the improvement by any other design.  For one budget sum w <= 1, M0 = 0 and D it is the
equivalence theorem, tr(M^-1 M_i) <= n (Kiefer and Wolfowitz 1960).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from castfit._support.arrays import Array, Index
from castfit.drive.design.criteria import CriterionLinearization, ECriterion, InformationCriterion

_MU_REDUCTION = 0.15  # factor by which a step aims to reduce the complementarity
# The same from a good design: at least this factor, and the power of the relative complementarity.
_MIN_MU_REDUCTION, _MU_POWER = 1e-3, 0.3
# First barrier parameter, relative to the criterion: from the interior, from a good design.
_FIRST_MU, _RESTART_MU = 0.1, 0.01
_MAX_DUAL_RATIO = 10.0  # dual residual, over N times the complementarity, up to which mu is reduced
_BOUNDARY_FRACTION = 0.995  # fraction of the step to the boundary that is taken
_ARMIJO_FRACTION = 1e-4  # fraction of the predicted decrease that a step must reach
_N_REFINEMENTS = 2  # iterative refinements of each linear solve
_CHOLESKY_SHIFTS = (0.0, 1e-14, 1e-12, 1e-9)  # relative shifts of the diagonal until the factorization succeeds
_MAX_STEPS = 120  # Newton steps
# Relative to the largest weight, and to the price: candidates that may be in the best design.
_MIN_WEIGHT_FRACTION, _SENSITIVITY_MARGIN = 1e-5, 1e-2
_MAX_STALLED_STEPS = 12  # steps without a smaller gap


def max_affordable_counts(A: Array, b: Array) -> Array:
    """Compute the largest affordable count of each candidate alone, (N,), from costs A (m, N) and budgets b (m,)."""
    with np.errstate(divide="ignore"):
        return np.min(np.where(A > 0, b[:, None] / A, np.inf), axis=0, initial=np.inf)


@dataclass(frozen=True, eq=False)
class CandidatePool:
    """Candidates that can be bought, as information rows, with their costs and budgets.

    J (S, N, k, n) : rows of each candidate at each of S samples of the quantities, in relative changes
    M0 (S, n, n) : information without them
    A (m, N), b (m,) : budgets;  u (N,) : largest count, infinite without a limit
    price (N,) : price of one in units of the criterion
    """

    J: Array
    M0: Array
    A: Array
    b: Array
    u: Array
    price: Array

    @property
    def count(self) -> int:
        """Number of candidates."""
        return self.J.shape[1]

    def information(self, w: Array) -> Array:
        """Return M(w) at each sample, (S, n, n)."""
        used_indices = np.flatnonzero(w)
        rows = self.J[:, used_indices] * np.sqrt(w[used_indices])[:, None, None]
        rows = rows.reshape(len(rows), rows.shape[1] * rows.shape[2], rows.shape[3])
        return self.M0 + np.swapaxes(rows, 1, 2) @ rows

    def with_candidates(self, indices: Index) -> CandidatePool:
        """Return the pool with some of the candidates."""
        return replace(self, J=self.J[:, indices], A=self.A[:, indices], u=self.u[indices], price=self.price[indices])

    def with_order(self, order: Index) -> CandidatePool:
        """Return the pool with the quantities in another order."""
        return replace(self, J=self.J[..., order], M0=self.M0[:, order][:, :, order])

    @property
    def joint_max_counts(self) -> Array | None:
        """Largest counts of all candidates, if the budgets allow them together and there is no price; else None."""
        cap = np.minimum(self.u, max_affordable_counts(self.A, self.b))
        return cap if self.fits(cap) and not self.price.any() else None

    def fits(self, w: Array) -> bool:
        """Check whether weights satisfy all budgets and upper limits."""
        return bool(np.all(self.A @ w <= self.b * (1 + 1e-9) + 1e-12) and np.all(w <= self.u + 1e-9))


@dataclass(frozen=True, eq=False)
class DesignGoal:
    """A criterion over samples: the mean, or the largest of  f_s - best_s  (softened by b while it is minimised).

    best (S,) : value of each sample's own best design;  None: the mean over samples
    """

    criterion: InformationCriterion
    best: Array | None = None
    b: float = 30.0

    def values(self, M: Array) -> Array:
        """Compute the objective at informations (..., S, n, n), without prices."""
        sample_values = self.criterion.values(M)
        return sample_values.mean(-1) if self.best is None else (sample_values - self.best).max(-1)

    def efficiency(self, value: float, bound: float) -> float:
        """Return the share of the best possible that a design reaches."""
        return self.criterion.efficiency(value, bound)


@dataclass(frozen=True, eq=False)
class GoalTangent:
    """Tangent of a goal at w: value, smoothed value, gradient g (N,), V (N, r), h (N,) and offset."""

    value: float
    smooth: float
    g: Array
    V: Array
    h: Array
    offset: float


def _tangents(goal: DesignGoal, pool: CandidatePool, w: Array, nu: float) -> list[CriterionLinearization] | None:
    """Return the criterion's tangent at each sample; None where the information is singular."""
    pairs = zip(pool.information(w), pool.M0, strict=True)
    linearizations = [
        goal.criterion.tangent(information, prior_information, nu) for information, prior_information in pairs
    ]
    regular = [linearization for linearization in linearizations if linearization is not None]
    return regular if len(regular) == len(linearizations) else None


def _combine_samples(goal: DesignGoal, smooth: Array) -> tuple[Array, float]:
    """Return the weight of each sample, (S,), and the smoothed goal."""
    if goal.best is None:
        return np.full(smooth.size, 1.0 / smooth.size), float(smooth.mean())
    distances = goal.b * (smooth - goal.best)
    q = np.exp(distances - distances.max())
    return q / q.sum(), float(distances.max() + np.log(q.mean())) / goal.b


def compute_tangent(
    goal: DesignGoal, pool: CandidatePool, w: Array, nu: float, *, curved: bool = True
) -> GoalTangent | None:
    """Return a goal's tangent at w; None where the information is singular."""
    linearizations = _tangents(goal, pool, w, nu)
    if linearizations is None:
        return None
    values = np.array([linearization.value for linearization in linearizations])
    value = float(values.mean() if goal.best is None else (values - goal.best).max())
    q, smoothed_value = _combine_samples(goal, np.array([linearization.smooth for linearization in linearizations]))
    H = np.array(
        [
            np.einsum("Nki,Nki->N", J @ linearization.G, J)
            for J, linearization in zip(pool.J, linearizations, strict=True)
        ]
    )
    h = q @ H - pool.price
    best = 0.0 if goal.best is None else goal.best
    offset = float(q @ (np.array([linearization.offset for linearization in linearizations]) - best))
    blocks: list[Array] = []
    if curved:
        blocks = [
            np.sqrt(p) * linearization.curvature(J)
            for p, J, linearization in zip(q, pool.J, linearizations, strict=True)
        ]
        if goal.best is not None and len(linearizations) > 1:
            blocks.append((np.sqrt(goal.b * q)[:, None] * (H - q @ H)).T)
    V = np.concatenate(blocks, axis=1) if blocks else np.empty((pool.count, 0))
    cost = float(pool.price @ w)
    return GoalTangent(value + cost, smoothed_value + cost, -h, V, h, offset)


@dataclass(frozen=True, eq=False)
class RelaxedDesign:
    """Optimal weights, and a lower bound of the value of all designs.

    w (N,), value : f there;  bound : lower bound of f
    sensitivity (N,) : h_i, marginal value of a candidate;  y (m,) : marginal values of the budgets
    """

    w: Array
    value: float
    bound: float
    sensitivity: Array
    y: Array
    steps: int
    mu: float = 0.0

    @property
    def gap(self) -> float:
        """Upper bound of the improvement by any other design."""
        return self.value - self.bound


def optimality_bound(linearization: GoalTangent, pool: CandidatePool, y: Array) -> float:
    """Return a lower bound of all designs, from the tangent at one and prices y >= 0 of the budgets."""
    cost, is_unbounded = y @ pool.A, ~np.isfinite(pool.u)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(linearization.h > 0.0, linearization.h / cost, 0.0)[is_unbounded]
    factor = max(1.0, float(np.max(ratios, initial=0.0)))
    if not np.isfinite(factor):
        return -np.inf
    excess = np.maximum(linearization.h - factor * cost, 0.0)[~is_unbounded]
    return linearization.offset - factor * float(pool.b @ y) - float(excess @ pool.u[~is_unbounded])


def optimize_weights(
    goal: DesignGoal,
    pool: CandidatePool,
    tolerance: float = 1e-8,
    start: Array | None = None,
    stop: Callable[[], object] = bool,
) -> RelaxedDesign | None:
    """Minimise the goal over weights. Return None if the information of all candidates together is singular.

    tolerance : of the certified gap, per quantity for D, relative to the value for the others
    start (N,) : weights within all bounds
    stop : called before each step; True ends the method
    """
    if (bounded_pool := _add_cost_budget(goal, pool)) is not pool:
        solution = optimize_weights(goal, bounded_pool, tolerance, start, stop)
        return solution and replace(solution, y=solution.y[:-1])
    solution = _run_interior_point(goal, pool, tolerance, start, stop)
    if solution is None or solution.gap <= tolerance * _compute_gap_unit(goal, solution.value) or stop():
        return solution
    # Rounding ended the method, as may happen for E: repeat it with the few relevant candidates, and bound all others.
    is_worthwhile = solution.sensitivity >= (1.0 - _SENSITIVITY_MARGIN) * (solution.y @ pool.A)
    support = np.flatnonzero((solution.w > _MIN_WEIGHT_FRACTION * solution.w.max()) | is_worthwhile)
    refined = _run_interior_point(goal, pool.with_candidates(support), tolerance, None, stop)
    if refined is not None:
        w = np.zeros(pool.count)
        w[support] = refined.w
        linearization = compute_tangent(goal, pool, w, refined.mu, curved=False)
        if linearization is not None and linearization.value <= solution.value + tolerance * _compute_gap_unit(
            goal, solution.value
        ):
            bound = max(solution.bound, optimality_bound(linearization, pool, refined.y))
            solution = replace(
                refined, w=w, bound=bound, sensitivity=linearization.h, steps=solution.steps + refined.steps
            )
    if isinstance(goal.criterion, ECriterion) and solution.gap > (
        absolute_tolerance := tolerance * _compute_gap_unit(goal, solution.value)
    ):
        from castfit.drive.design.cutting_planes import refine_by_planes

        solution = refine_by_planes(goal, pool, solution, support, absolute_tolerance)
    return solution


def _add_cost_budget(goal: DesignGoal, pool: CandidatePool) -> CandidatePool:
    """Return the pool with a budget that no optimal design uses up, if only prices limit some candidates.

    At the best weights the cost equals its value:  p'w = sum_i w_i tr(G M_i).  It is at most n for D.  For A and c it
    is at most the criterion, which with its price is no larger than the sum of both for any other design.
    """
    if np.isfinite(np.minimum(pool.u, max_affordable_counts(pool.A, pool.b))).all() or not (pool.price > 0.0).all():
        return pool
    max_cost = float(pool.M0.shape[1])
    if not goal.criterion.logarithmic:
        w = 1.0 / (pool.count * pool.price)
        spent = 10.0 ** np.arange(-30, 31)
        max_cost = float(min(goal.values(pool.information(w * t)) + t for t in spent))
    return replace(pool, A=np.concatenate([pool.A, pool.price[None]]), b=np.append(pool.b, 2.0 * max_cost))


def _run_interior_point(
    goal: DesignGoal, pool: CandidatePool, tolerance: float, start: Array | None, stop: Callable[[], object]
) -> RelaxedDesign | None:
    """Run the primal-dual interior point method."""
    A, b, N = pool.A, pool.b, pool.count
    # Twice the affordable counts, so that only the budgets are active.
    u = np.minimum(pool.u, 2.0 * max_affordable_counts(A, b))
    interior = _compute_interior_weights(A, b, u)
    w: Array = interior if start is None else 0.9 * start + 0.1 * interior
    first_linearization = compute_tangent(goal, pool, w, 1.0, curved=False)
    if first_linearization is None:
        return None
    scale = _compute_gap_unit(goal, first_linearization.value)
    mu = (_FIRST_MU if start is None else _RESTART_MU) * scale
    s: Array = b - A @ w
    lower_dual: Array
    upper_dual: Array
    y: Array
    lower_dual, upper_dual, y = (np.asarray(mu / slacks, dtype=float) for slacks in (w, u - w, s))
    best: RelaxedDesign | None = None
    n_stalled = step = 0
    is_kinked = isinstance(goal.criterion, ECriterion)  # smoothed by mu
    for step in range(_MAX_STEPS):
        linearization = compute_tangent(goal, pool, w, mu)
        if linearization is None:
            break
        bound = optimality_bound(linearization, pool, y)
        if (
            best is None
            or linearization.value - bound < best.gap
            or linearization.value < best.value - tolerance * scale
        ):
            n_stalled = 0
            bound = bound if best is None else max(bound, best.bound)
            if best is None or linearization.value <= best.value + tolerance * scale:
                best = RelaxedDesign(w, linearization.value, bound, linearization.h, y, step, mu)
            else:
                best = replace(best, bound=bound)
        else:
            n_stalled += 1
        scale = _compute_gap_unit(goal, best.value)
        if best.gap <= tolerance * scale or n_stalled > _MAX_STALLED_STEPS or stop():
            break
        complementarity = float(lower_dual @ w + upper_dual @ (u - w) + y @ s) / (2 * N + b.size)
        dual_residual = float(np.max(np.abs(linearization.g + A.T @ y - lower_dual + upper_dual)))
        # The next mu only near the central path: E is lost otherwise, A and c take twice as many steps.
        min_shrink = max(_MIN_MU_REDUCTION, float((complementarity / scale) ** _MU_POWER))
        shrink_factor = _MU_REDUCTION if start is None else min(_MU_REDUCTION, min_shrink)
        mu = min(
            mu, complementarity * (shrink_factor if dual_residual <= _MAX_DUAL_RATIO * N * complementarity else 1.0)
        )
        gradient = np.asarray(linearization.g - mu / w + mu / (u - w) + A.T @ (mu / s), dtype=float)
        try:
            solve = _solver(lower_dual / w + upper_dual / (u - w), linearization.V)
            solutions: Array = solve(np.column_stack([-gradient + A.T @ (mu / s - y), A.T]))
            dy: Array = _solve(A @ solutions[:, 1:] + np.diag(s / y), A @ solutions[:, 0] + mu / y - s)
        except np.linalg.LinAlgError:  # rounding ends the method; the best point so far has a bound
            break
        dw: Array = solutions[:, 0] - solutions[:, 1:] @ dy
        ds = -A @ dw
        d_lower: Array = mu / w - lower_dual - lower_dual * dw / w
        d_upper: Array = mu / (u - w) - upper_dual + upper_dual * dw / (u - w)
        primal = min(_compute_max_step(w, dw), _compute_max_step(u - w, -dw), _compute_max_step(s, ds))
        dual = min(
            _compute_max_step(lower_dual, d_lower), _compute_max_step(upper_dual, d_upper), _compute_max_step(y, dy)
        )
        slope, current_value = (
            float(gradient @ dw),
            _evaluate_barrier(goal, pool, w, u, mu, None if is_kinked else linearization.smooth),
        )
        for _ in range(30):
            trial = _evaluate_barrier(goal, pool, w + primal * dw, u, mu)
            if trial <= current_value + _ARMIJO_FRACTION * primal * slope + 1e-13 * abs(current_value):
                break
            primal *= 0.5
        w = w + primal * dw
        s = b - A @ w
        lower_dual = np.asarray(lower_dual + dual * d_lower, dtype=float)
        upper_dual = np.asarray(upper_dual + dual * d_upper, dtype=float)
        y = np.asarray(y + dual * dy, dtype=float)
    return best and replace(best, steps=step)


def _compute_gap_unit(goal: DesignGoal, value: float) -> float:
    """Return the unit of the gap: 1 for logarithms and for goals relative to best values, else the value's size."""
    return 1.0 if goal.criterion.logarithmic or goal.best is not None else abs(value) or 1.0


def _compute_interior_weights(A: Array, b: Array, u: Array) -> Array:
    """Return weights well inside all bounds: budgets shared evenly."""
    shares = np.where(A > 0, (b / np.maximum(np.sum(A > 0, axis=1), 1))[:, None] / np.where(A > 0, A, 1.0), np.inf)
    return 0.5 * np.minimum(u, np.min(shares, axis=0, initial=np.inf))


def _evaluate_barrier(
    goal: DesignGoal, pool: CandidatePool, w: Array, u: Array, mu: float, smoothed_value: float | None = None
) -> float:
    """Evaluate the barrier function; `smoothed_value` is the smoothed goal, if it is available."""
    s = pool.b - pool.A @ w
    if min(w.min(), (u - w).min(), s.min(initial=np.inf)) <= 0.0:
        return np.inf
    goal_value = evaluate_smoothed_goal(goal, pool, w, mu) if smoothed_value is None else smoothed_value
    return goal_value - mu * float(np.log(w).sum() + np.log(u - w).sum() + np.log(s).sum())


def evaluate_smoothed_goal(goal: DesignGoal, pool: CandidatePool, w: Array, nu: float) -> float:
    """Return the smoothed goal alone."""
    linearizations = _tangents(goal, pool, w, nu)
    if linearizations is None:
        return np.inf
    return _combine_samples(goal, np.array([linearization.smooth for linearization in linearizations]))[1] + float(
        pool.price @ w
    )


def _solver(diagonal: Array, V: Array) -> Callable[[Array], Array]:
    """Return a solver of (diag + V V') X = R by the smaller of two factorizations: N x N, or Woodbury's (1950)."""
    N, r = V.shape
    scaled = V / diagonal[:, None]
    solve_cholesky: Any = cho_solve
    factor = _factor(V @ V.T + np.diag(diagonal) if r >= N else V.T @ scaled + np.eye(r))

    def solve_once(R: Array) -> Array:
        if r >= N:
            return solve_cholesky(factor, R, check_finite=False)
        return R / diagonal[:, None] - scaled @ solve_cholesky(factor, scaled.T @ R, check_finite=False)

    def solve(R: Array) -> Array:
        x = solve_once(R)
        for _ in range(_N_REFINEMENTS):  # cancellation loses digits
            x = x + solve_once(R - diagonal[:, None] * x - V @ (V.T @ x))
        return x

    return solve


def _factor(matrix: Array) -> Any:
    """Return a Cholesky factorization, with a diagonal shift if rounding made the matrix indefinite."""
    size = np.diag(matrix).copy()
    for lift in _CHOLESKY_SHIFTS:
        try:
            return cho_factor(matrix + np.diag(lift * size), check_finite=False)
        except np.linalg.LinAlgError:
            continue
    raise np.linalg.LinAlgError


def _solve(matrix: Array, rhs: Array) -> Array:
    return np.asarray(np.linalg.solve(matrix, rhs), dtype=float)


def _compute_max_step(x: Array, dx: Array) -> float:
    """Return the step length along dx, at most 1, that keeps x positive."""
    falling = dx < 0
    return min(1.0, _BOUNDARY_FRACTION * float(np.min(-x[falling] / dx[falling], initial=np.inf)))
