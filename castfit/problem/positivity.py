"""Detection of the states of a model that stay positive, since nothing drives them below zero (quasi-positivity).

    x_j stays >= 0  if  f_j >= 0  wherever x_j = 0 and the other positive states are >= 0

as amounts, concentrations and populations do, and voltages do not.  Tried on random states and parameters: a state of
which one trial says otherwise is signed, and others may follow from it.
"""

from __future__ import annotations

import casadi as ca
import numpy as np

from castfit._support.arrays import Mask
from castfit._support.casadi_functions import PerObjectCache
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem

_N_TRIAL_POINTS = 64  # number of random points per state and experiment
_STATE_RANGE_DECADES = 3.0  # decades above and below 1 from which states are drawn
_QUANTITY_DEVIATION = 1.0  # standard deviation of quantities about their guess, in search scale, within their bounds
_TRIAL_SEED = 0  # fixed seed, so that every user of a model gets the same result
_NEGATIVE_RATE_RTOL = 1e-9  # size of a negative rate relative to the largest rate, below which it counts as zero

_POSITIVE_STATES: PerObjectCache[CompiledProblem, Mask] = PerObjectCache()


def positive_states(compiled_problem: CompiledProblem) -> Mask:
    """Return the mask of the differential states that start nonnegative and stay so in all trials, (n_x,)."""
    return _POSITIVE_STATES.get(compiled_problem, _find_positive_states)


def _find_positive_states(compiled_problem: CompiledProblem) -> Mask:
    system = compiled_problem.model.system
    n_x = system.x.numel()
    rates = system.function("rates", ca.densify(system.ode))
    rng = np.random.default_rng(_TRIAL_SEED)
    positive = np.ones(n_x, dtype=np.bool_)
    for condition in compiled_problem.conditions:
        a = condition.link.natural(compiled_problem.guess[condition.theta]).a
        positive &= ~(a < 0.0)
    has_changed = True
    while has_changed and positive.any():
        has_changed = False
        for condition in compiled_problem.conditions:
            for j in np.flatnonzero(positive):
                if _is_driven_negative(compiled_problem, condition, rates, int(j), positive, rng):
                    positive[j], has_changed = False, True
    return positive


def _is_driven_negative(
    compiled_problem: CompiledProblem,
    condition: Condition,
    rates: ca.Function,
    j: int,
    positive: Mask,
    rng: np.random.Generator,
) -> bool:
    """Whether any trial with x_j = 0 has a negative rate of it."""
    x = 10.0 ** rng.uniform(-_STATE_RANGE_DECADES, _STATE_RANGE_DECADES, (positive.size, _N_TRIAL_POINTS))
    x *= np.where(positive[:, None], 1.0, rng.choice([-1.0, 1.0], x.shape))
    x[j] = 0.0
    lower, upper = compiled_problem.bounds
    theta = compiled_problem.guess[:, None] + _QUANTITY_DEVIATION * rng.standard_normal(
        (compiled_problem.guess.size, _N_TRIAL_POINTS)
    )
    theta = np.clip(theta, lower[:, None], upper[:, None])[condition.theta]
    p = np.array([condition.link.natural(column).p for column in theta.T]).T
    t = rng.uniform(condition.start, condition.end, _N_TRIAL_POINTS)
    u = np.array([signal(t) for signal in condition.inputs]).reshape(len(condition.inputs), _N_TRIAL_POINTS)
    z = np.repeat(condition.z_guess[:, None], _N_TRIAL_POINTS, axis=1)
    rate_values = np.asarray(rates(t[None], x, z, p.reshape(-1, _N_TRIAL_POINTS), u), dtype=float)
    size = np.abs(np.where(np.isfinite(rate_values), rate_values, 0.0)).max(axis=0)
    return bool((rate_values[j] < -_NEGATIVE_RATE_RTOL * size).any())
