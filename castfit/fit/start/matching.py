"""Gradient matching: parameters that fit the model equations to the measured states, without integration.

With states interpolated from data, the collocation equations  h f(x, p) = D x  are residuals in the parameters alone,
linear in them for mass action (Varah 1982; "gradient matching").  This helps at starts where shooting has no
sensitivity: with rate constants of 0.5 and intervals of 1230, exp(-p t) and all its derivatives vanish.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from castfit._support.arrays import Array
from castfit._support.time_limit import StopRequested
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import CompiledProblem
from castfit.solve.arrow import solve_arrow
from castfit.solve.penalty_homotopy import RelaxationLevel, RelaxedProblem
from castfit.solve.solution import CountingProblem
from castfit.solve.staged import Evaluation, Mask
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.collocation_problem import CollocationProblem, QuantitySlopes
from castfit.transcribe.trajectory import States, Trajectory, known_states

_MATCHING_LEVEL = RelaxationLevel(0.065, 1.0)
_MAX_MATCHING_ITERATIONS = 30  # Limit on the iterations of gradient matching.
_INITIAL_DAMPING = 1e-6  # Initial damping; the problem is nearly linear.
_MIN_RELATIVE_DECREASE = 1e-2  # Relative decrease below which the match is as accurate as the noise permits.


def match_gradients(problem: CompiledProblem, theta: Array, states: States, integrator: IntegratorOptions) -> Array:
    """Return the theta (n_theta,) at which the model's equations fit the trajectories best, starting from theta.

    Only equations of measured states count: simulated states agree with the theta of their simulation.  `states` are as
    in MultipleShooting; the integrator simulates the states that are not measured.
    """
    staged = Collocation(elements="data", states=states, integrator=integrator).transcribe(problem, theta)
    scale = staged.scale.copy()
    for chain, is_known in zip(staged.layout.chains, _mark_given_states(problem, theta, states), strict=True):
        inner = chain.inner.reshape(chain.n_stages, staged.table.degree, is_known.size)
        scale[inner[:, :, ~is_known]] = np.inf
    # Only theta is free: the trajectories are given.
    is_moving = np.arange(staged.layout.n_v) < staged.layout.n_theta
    lower, upper = np.where(is_moving, staged.lower, staged.start), np.where(is_moving, staged.upper, staged.start)
    matching_problem = staged.explicit().restricted(lower=lower, upper=upper, scale=scale)
    assert isinstance(matching_problem, CollocationProblem)
    ledger, soft, best_theta = CountingProblem(matching_problem), MatchedEquations(matching_problem), theta
    with suppress(StopRequested):  # the best point so far is returned
        evaluation, mu = ledger.evaluate(matching_problem.start), _INITIAL_DAMPING
        for _ in range(_MAX_MATCHING_ITERATIONS):
            if not evaluation.ok:
                break
            best_theta = matching_problem.layout.theta(evaluation.v).copy()
            if not soft.has_derivatives(ledger, evaluation.v):
                break
            step = soft.step(ledger, evaluation, mu)
            if step.new_point is None:
                break
            evaluation, mu = step.new_point, step.damping
            best_theta = matching_problem.layout.theta(evaluation.v).copy()
            if step.decrease < _MIN_RELATIVE_DECREASE:
                break
    return best_theta


class MatchedEquations(RelaxedProblem):
    """Model equations at given states: derivatives with respect to theta alone, most of which are zero."""

    def __init__(self, staged: CollocationProblem) -> None:
        super().__init__(staged, _MATCHING_LEVEL)
        self._staged = staged
        self._cached_slopes: tuple[bytes, tuple[QuantitySlopes, ...]] = b"", ()

    def has_derivatives(self, ledger: CountingProblem, v: Array) -> bool:
        """Check whether there are derivatives with respect to theta at v."""
        return all(slopes.is_finite for slopes in self._slopes(v))

    def equations(self, evaluation: Evaluation) -> _ThetaNormalEquations:
        """Return the normal equations in theta."""
        return _ThetaNormalEquations(self, self._staged, evaluation, self._slopes(evaluation.v))

    def _slopes(self, v: Array) -> tuple[QuantitySlopes, ...]:
        if self._cached_slopes[0] != v.tobytes():
            self._cached_slopes = v.tobytes(), tuple(self._staged.by_quantities(v))
        return self._cached_slopes[1]


class _ThetaNormalEquations:
    """Normal equations in theta: a matrix over the quantities of each experiment, and that of priors.

    gradient (n_v,) : gradient of Phi, zero except for theta
    """

    def __init__(
        self, soft: RelaxedProblem, staged: CollocationProblem, evaluation: Evaluation, slopes: Sequence[QuantitySlopes]
    ) -> None:
        layout, n = staged.layout, staged.layout.n_theta
        prior = staged.problem.priors(layout.theta(evaluation.v)).jacobian
        self.gradient, self._prior = np.zeros(layout.n_v), prior.product()
        self.gradient[:n] = prior.T @ evaluation.prior
        is_diagonal = self._prior.row == self._prior.column
        diagonal = np.bincount(self._prior.row[is_diagonal], self._prior.entry[is_diagonal], minlength=n).astype(float)
        self._columns = [chain.theta for chain in layout.chains]
        self._blocks: list[Array] = []
        for i, (chain, chain_slopes) in enumerate(zip(layout.chains, slopes, strict=True)):
            (w_r, w_next, w_d), (r, next_gaps, d) = soft.weighted(i, evaluation)
            weight, start = soft.initial(i, evaluation)
            inner = chain_slopes.inner.scaled(w_d.ravel())
            block, gradient = inner.gram(), inner.T @ d.ravel()
            dense = (
                (chain_slopes.rows, w_r, r),
                (chain_slopes.ends, w_next, next_gaps),
                (chain_slopes.initial[None], weight[None], start[None]),
            )
            for derivative, weights, values in dense:
                if derivative is not None:
                    J = (derivative * weights[:, :, None]).reshape(values.size, -1)
                    block, gradient = block + J.T @ J, gradient + J.T @ values.ravel()
            self._blocks.append(block)
            self.gradient[chain.theta] += gradient
            diagonal[chain.theta] += np.diag(block)
        self._diagonal = np.maximum(diagonal, 1e-300)

    def decrease(self, dv: Array) -> float:
        """Decrease of Phi that the quadratic model predicts for a step."""
        d = dv[: self._diagonal.size]
        curvature = float(d @ (self._prior @ d))
        curvature += sum(float(d[c] @ M @ d[c]) for c, M in zip(self._columns, self._blocks, strict=True))
        return -float(self.gradient @ dv) - 0.5 * curvature

    def solve(self, mu: float, is_fixed: Mask) -> Array | None:
        """Return the step for damping mu with fixed variables, or None if the matrix is not definite."""
        n = self._diagonal.size
        free = np.where(is_fixed[:n], 0.0, 1.0)
        blocks = [free[c][:, None] * M * free[c] for c, M in zip(self._columns, self._blocks, strict=True)]
        diagonal, step = np.where(is_fixed[:n], 1.0, mu * self._diagonal), np.zeros(is_fixed.size)
        try:
            prior = self._prior.scaled(free, free)
            step[:n] = solve_arrow(self._columns, blocks, prior, diagonal, -self.gradient[:n] * free)
        except (np.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
            return None
        return step


def _mark_given_states(problem: CompiledProblem, theta: Array, states: States) -> list[Mask]:
    """Return, per experiment, a mask of the given states, as opposed to simulated ones, algebraic states included."""
    model = problem.model
    if isinstance(states, Trajectory):
        return [np.ones(len(model.states) + len(model.algebraic_states), dtype=bool) for _ in problem.conditions]
    names = (*model.states, *model.algebraic_states)
    return [np.array([name in known_names for name in names]) for known_names in known_states(problem, theta, states)]
