"""Starts for parameters: matching the model to the measured states before anything is integrated.

With states interpolated from data, the collocation equations  h f(x, p) = D x  are residuals in the parameters alone,
linear in them for mass action (Varah 1982; "gradient matching").  That rescues starts from which shooting feels
nothing: with rate constants of 0.5 and intervals of 1230, exp(-p t) and all its derivatives vanish.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.time_limit import Stopped
from castfit.solve.arrow import solve_arrow
from castfit.solve.penalty_homotopy import SoftenedProblem, Softening
from castfit.solve.solution import Ledger
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.collocation_problem import CollocationProblem
from castfit.transcribe.trajectory import Trajectory, known_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._support.arrays import Array
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_problem import Posed
    from castfit.solve.staged import Evaluation, Mask
    from castfit.transcribe.collocation_problem import QuantitySlopes
    from castfit.transcribe.trajectory import States


_STATION = Softening(0.065, 1.0)
_ITERATIONS = 30
_FIRST_MU = 1e-6  # nearly linear least squares
_DROP = 1e-2  # relative decrease below which the match is as good as noise in the data lets it be


def matching(problem: Posed, theta: Array, states: States, integrator: IntegratorOptions) -> Array:
    """Return the theta (n_theta,) at which the model's equations fit the trajectories best, starting from theta.

    Only equations of known states count: what is simulated agrees with the theta that it was simulated with.  `states`
    are as in MultipleShooting; the integrator simulates those that are not measured.
    """
    staged = Collocation(elements="data", states=states, integrator=integrator).transcribe(problem, theta)
    scale = staged.scale.copy()
    for chain, known in zip(staged.layout.chains, _known(problem, theta, states), strict=True):
        inner = chain.inner.reshape(chain.n_stages, staged.table.degree, known.size)
        scale[inner[:, :, ~known]] = np.inf
    # Only theta may move: the trajectories are given.
    moving = np.arange(staged.layout.n_v) < staged.layout.n_theta
    lower, upper = np.where(moving, staged.lower, staged.start), np.where(moving, staged.upper, staged.start)
    given = staged.explicit().restricted(lower=lower, upper=upper, scale=scale)
    assert isinstance(given, CollocationProblem)
    ledger, soft, found = Ledger(given), MatchedEquations(given), theta
    with suppress(Stopped):  # the best so far will do
        at, mu = ledger.evaluate(given.start), _FIRST_MU
        for _ in range(_ITERATIONS):
            if not at.ok:
                break
            found = given.layout.theta(at.v).copy()
            if not soft.goes_on(ledger, at.v):
                break
            taken = soft.step(ledger, at, mu)
            if taken.to is None:
                break
            at, mu = taken.to, taken.damping
            found = given.layout.theta(at.v).copy()
            if taken.decrease < _DROP:
                break
    return found


class MatchedEquations(SoftenedProblem):
    """The equations at given states: derivatives by theta alone, most of which are zero."""

    def __init__(self, given: CollocationProblem) -> None:
        super().__init__(given, _STATION)
        self._given = given
        self._known: tuple[bytes, tuple[QuantitySlopes, ...]] = b"", ()

    def goes_on(self, ledger: Ledger, v: Array) -> bool:
        """Whether there are derivatives by theta at v."""
        return all(of.finite for of in self._slopes(v))

    def equations(self, at: Evaluation) -> _OfTheta:
        """Return the normal equations in theta."""
        return _OfTheta(self, self._given, at, self._slopes(at.v))

    def _slopes(self, v: Array) -> tuple[QuantitySlopes, ...]:
        if self._known[0] != v.tobytes():
            self._known = v.tobytes(), tuple(self._given.by_quantities(v))
        return self._known[1]


class _OfTheta:
    """Normal equations in theta: of each experiment a matrix over its quantities, and of priors.

    gradient (n_v,) : of Phi, zero but for theta
    """

    def __init__(
        self, soft: SoftenedProblem, given: CollocationProblem, at: Evaluation, slopes: Sequence[QuantitySlopes]
    ) -> None:
        layout, n = given.layout, given.layout.n_theta
        prior = given.problem.priors(layout.theta(at.v)).jacobian
        self.gradient, self._prior = np.zeros(layout.n_v), prior.product()
        self.gradient[:n] = prior.T @ at.prior
        on = self._prior.row == self._prior.column
        diagonal = np.bincount(self._prior.row[on], self._prior.entry[on], minlength=n).astype(float)
        self._columns = [chain.theta for chain in layout.chains]
        self._blocks: list[Array] = []
        for i, (chain, of) in enumerate(zip(layout.chains, slopes, strict=True)):
            (w_r, ahead, w_d), (r, following, d) = soft.weighted(i, at)
            weight, start = soft.initial(i, at)
            inner = of.inner.scaled(w_d.ravel())
            block, gradient = inner.gram(), inner.T @ d.ravel()
            dense = ((of.rows, w_r, r), (of.ends, ahead, following), (of.initial[None], weight[None], start[None]))
            for derivative, weights, values in dense:
                if derivative is not None:
                    J = (derivative * weights[:, :, None]).reshape(values.size, -1)
                    block, gradient = block + J.T @ J, gradient + J.T @ values.ravel()
            self._blocks.append(block)
            self.gradient[chain.theta] += gradient
            diagonal[chain.theta] += np.diag(block)
        self._diagonal = np.maximum(diagonal, 1e-300)

    def decrease(self, dv: Array) -> float:
        """Decrease of Phi that the quadratic model promises for a step."""
        d = dv[: self._diagonal.size]
        curvature = float(d @ (self._prior @ d))
        curvature += sum(float(d[c] @ M @ d[c]) for c, M in zip(self._columns, self._blocks, strict=True))
        return -float(self.gradient @ dv) - 0.5 * curvature

    def solve(self, mu: float, held: Mask) -> Array | None:
        """Return the step for damping mu with the held variables fixed, or None if the matrix is not definite."""
        n = self._diagonal.size
        free = np.where(held[:n], 0.0, 1.0)
        blocks = [free[c][:, None] * M * free[c] for c, M in zip(self._columns, self._blocks, strict=True)]
        extra, step = np.where(held[:n], 1.0, mu * self._diagonal), np.zeros(held.size)
        try:
            prior = self._prior.scaled(free, free)
            step[:n] = solve_arrow(self._columns, blocks, prior, extra, -self.gradient[:n] * free)
        except (np.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
            return None
        return step


def _known(problem: Posed, theta: Array, states: States) -> list[Mask]:
    """Return, per experiment, a mask of the given states, as opposed to simulated ones, algebraic states included."""
    model = problem.model
    if isinstance(states, Trajectory):
        return [np.ones(len(model.states) + len(model.algebraic_states), dtype=bool) for _ in problem.conditions]
    names = (*model.states, *model.algebraic_states)
    return [np.array([name in known for name in names]) for known in known_states(problem, theta, states)]
