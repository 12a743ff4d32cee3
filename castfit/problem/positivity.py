"""Detection of the states of a model that stay positive, since nothing drives them below zero (quasi-positivity).

    x_j stays >= 0  if  f_j >= 0  wherever x_j = 0 and the other positive states are >= 0

as amounts, concentrations and populations do, and voltages do not.  Tried on random states and parameters: a state of
which one trial says otherwise is signed, and others may follow from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import PerObjectCache

if TYPE_CHECKING:
    from castfit._support.arrays import Mask
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem


_TRIALS = 64  # per state and experiment
_DECADES = 3.0  # of states about 1, in both directions
_SPREAD = 1.0  # of quantities about their guess, e-folds or units, within their bounds
_SEED = 0  # what is tried is the same for every user of a model
_BELOW = 1e-9  # relative to the other rates of the trial

_POSITIVE: PerObjectCache[CompiledProblem, Mask] = PerObjectCache()


def positive_states(compiled_problem: CompiledProblem) -> Mask:
    """Return the mask of the differential states that start nonnegative and stay so in all trials, (n_x,)."""
    return _POSITIVE.get(compiled_problem, _find_positive_states)


def _find_positive_states(compiled_problem: CompiledProblem) -> Mask:
    system = compiled_problem.model.system
    n_x = system.x.numel()
    rates = system.function("rates", ca.densify(system.ode))
    rng = np.random.default_rng(_SEED)
    positive = np.ones(n_x, dtype=np.bool_)
    for condition in compiled_problem.conditions:
        a = condition.link.natural(compiled_problem.guess[condition.theta]).a
        positive &= ~(a < 0.0)
    has_changed = True
    while has_changed and positive.any():
        has_changed = False
        for condition in compiled_problem.conditions:
            for j in np.flatnonzero(positive):
                if _driven_below(compiled_problem, condition, rates, int(j), positive, rng):
                    positive[j], has_changed = False, True
    return positive


def _driven_below(
    compiled_problem: CompiledProblem,
    condition: Condition,
    rates: ca.Function,
    j: int,
    positive: Mask,
    rng: np.random.Generator,
) -> bool:
    """Whether any trial with x_j = 0 has a negative rate of it."""
    x = 10.0 ** rng.uniform(-_DECADES, _DECADES, (positive.size, _TRIALS))
    x *= np.where(positive[:, None], 1.0, rng.choice([-1.0, 1.0], x.shape))
    x[j] = 0.0
    lower, upper = compiled_problem.bounds
    theta = compiled_problem.guess[:, None] + _SPREAD * rng.standard_normal((compiled_problem.guess.size, _TRIALS))
    theta = np.clip(theta, lower[:, None], upper[:, None])[condition.theta]
    p = np.array([condition.link.natural(column).p for column in theta.T]).T
    t = rng.uniform(condition.start, condition.end, _TRIALS)
    u = np.array([signal(t) for signal in condition.inputs]).reshape(len(condition.inputs), _TRIALS)
    z = np.repeat(condition.z_guess[:, None], _TRIALS, axis=1)
    rate_values = np.asarray(rates(t[None], x, z, p.reshape(-1, _TRIALS), u), dtype=float)
    size = np.abs(np.where(np.isfinite(rate_values), rate_values, 0.0)).max(axis=0)
    return bool((rate_values[j] < -_BELOW * size).any())
