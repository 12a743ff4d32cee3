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
from castfit.solve.penalty_homotopy import SoftenedProblem, Softening
from castfit.solve.solution import Ledger
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.trajectory import Trajectory, known_states

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_problem import Posed
    from castfit.solve.staged import Mask
    from castfit.transcribe.trajectory import States


_STATION = Softening(0.065, 1.0)
_ITERATIONS = 30
_FIRST_MU = 1e-6  # nearly linear least squares
_DROP = 1e-6  # relative decrease below which the match is as good as it gets


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
    ledger, soft, found = Ledger(given), SoftenedProblem(given, _STATION), theta
    with suppress(Stopped):  # the best so far will do
        at, mu = ledger.evaluate(given.start), _FIRST_MU
        for _ in range(_ITERATIONS):
            if not at.ok:
                break
            found = given.layout.theta(at.v).copy()
            if not ledger.linearize(at.v).ok:
                break
            taken = soft.step(ledger, ledger.linearize(at.v), mu)
            if taken.to is None:
                break
            at, mu = taken.to, taken.damping
            found = given.layout.theta(at.v).copy()
            if taken.decrease < _DROP:
                break
    return found


def _known(problem: Posed, theta: Array, states: States) -> list[Mask]:
    """Tell, per experiment, the states that were given from those that were simulated, algebraic ones among them."""
    model = problem.model
    if isinstance(states, Trajectory):
        return [np.ones(len(model.states) + len(model.algebraic_states), dtype=bool) for _ in problem.conditions]
    names = (*model.states, *model.algebraic_states)
    return [np.array([name in known for name in names]) for known in known_states(problem, theta, states)]
