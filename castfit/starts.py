"""Starts for parameters: matching the model to the measured states before anything is integrated.

With states interpolated from data, the collocation equations  h f(x, p) = D x  are residuals in the parameters alone,
linear in them for mass action (Varah 1982; "gradient matching").  That rescues starts from which shooting feels nothing:
with rate constants of 0.5 and intervals of 1230, exp(-p t) and all its derivatives vanish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.softened import SoftenedProblem, Softening
from castfit.solve.solution import Ledger
from castfit.transcribe.direct_collocation import Collocation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.integrate import IntegratorOptions
    from castfit.problem import Problem
    from castfit.staged import Linearization, StagedProblem
    from castfit.transcribe.start import States

    Array = NDArray[np.float64]

_UNFELT = 1e-7  # response of all residuals and gaps to a doubling of a parameter, relative to the signal
_STATION = Softening(0.065, 1.0)
_ITERATIONS = 30


def unfelt(staged: StagedProblem, linear: Linearization) -> tuple[str, ...]:
    """Name the parameters that neither residuals nor continuity respond to at a point.

    Parameters
    ----------
    staged : StagedProblem
    linear : Linearization
    """
    layout = staged.layout
    response, signal = np.zeros(layout.n_theta), 0.0
    for chain, j, s in zip(layout.chains, linear.jacobians, staged.signal, strict=True):
        unit = staged.scale[chain.nodes][:, :, None] if chain.n_s else 1.0
        every = (np.abs(j.R_q).max(axis=(0, 1), initial=0.0), np.abs(j.X_q / unit).max(axis=(0, 1), initial=0.0),
                 np.abs(j.A / unit[0] if chain.n_s else j.A).max(axis=0, initial=0.0))  # fmt: skip
        response[chain.theta] = np.maximum(response[chain.theta], np.max(every, axis=0))
        signal = max(signal, float(s.max(initial=0.0)))
    response = np.maximum(response, np.abs(linear.prior_jacobian).max(axis=0, initial=0.0))
    weak = response * staged.scale[: layout.n_theta] < _UNFELT * max(signal, 1.0)
    return tuple(name for name, w in zip(layout.names, weak, strict=True) if w)


def matching(problem: Problem, theta: Array, states: States, integrator: IntegratorOptions) -> Array:
    """Return the theta (n_theta,) at which the model's equations fit the trajectories best, starting from theta.

    Parameters
    ----------
    problem : Problem
    theta : (n_theta,) array
        Search scale.
    states : {"data", "smoothed", "simulation"} or mapping
        The trajectories, as in MultipleShooting.
    integrator : IntegratorOptions
        With which states that are not measured are simulated.
    """
    staged = Collocation(elements="data", states=states, integrator=integrator).transcribe(problem, theta)
    ledger = Ledger(staged)
    # Only theta may move: the trajectories are the data.
    moving = np.arange(staged.layout.n_v) < staged.layout.n_theta
    staged.lower = np.where(moving, staged.lower, staged.start)
    staged.upper = np.where(moving, staged.upper, staged.start)
    soft = SoftenedProblem(staged, _STATION, 1.0)
    at, mu = ledger.evaluate(staged.start), 1e-6
    for _ in range(_ITERATIONS):
        if not at.ok:
            break
        taken = soft.step(ledger, ledger.linearize(at.v), mu)
        if taken.to is None:
            break
        at, mu = taken.to, taken.damping
        if taken.decrease < 1e-6:
            break
    return staged.layout.theta(at.v).copy() if at.ok else theta
