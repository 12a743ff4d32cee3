"""Check whether a point is stationary, independently of the method that found it.

Methods use their own criteria: small steps with regularised directions, a stagnating function, multipliers in their own
units.  This check uses no regularisation and no column scaling, and units of the search (an e-fold of a logarithm).  It
applies two criteria to the linear model:

promise   the decrease of its cost, minimised exactly within the bounds and one unit, is negligible relative to the
          half-square.  This criterion is insensitive along the floor of a sharp valley, where the linear model is not
          valid over a whole unit
gradient  |q_j| d_j, without active bounds, is at most a hundredth of the residuals' length |u|, or the effect of
          integration errors on it.  This criterion is insensitive to directions that are weak everywhere

If only the gradient is too large, a few steps without a search descend the sides of the valley
(`without_invisible_slopes`).  The decrease is smaller than the integration errors of the cost, so that no step control
would accept these steps.

Notation: u (m,) rows, E (m, n) their derivatives, d (n,) units of the search, q = E^T u.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from castfit._support.arrays import Array
from castfit.solve.fallback_thresholds import FALLBACK_THRESHOLDS
from castfit.solve.residual_plausibility import size_square
from castfit.solve.solution import Solution
from castfit.solve.staged import Evaluation, StagedProblem
from castfit.solve.subproblem import (
    EXACT_DATA_RTOL,
    LocalProblem,
    active_bounds,
    is_small_decrease,
    local_problem,
    units_of_search,
)

_REPORTED_SHARE = 0.1  # Share of the decrease, relative to the largest one, from which a quantity is named.
_MAX_REPORTED_QUANTITIES = 3  # Limit on the quantities that are named in a message.
# Largest slope at a solution, relative to the norm of the residuals or to one standard deviation.
_MAX_STATIONARY_SLOPE = 1e-2
_STATE_ERROR_PER_RTOL = 10.0  # Error of the states, relative to the integration tolerance.
_BOUND_TOLERANCE = 1e-6  # Distance to a bound, in search units, within which it is active.
_MAX_REFINING_STEPS = 24  # Limit on the refining steps.
_MIN_STEP_UNITS = 1e-6  # Smallest step in search units: on a flat valley floor a long step leads far away.
_MAX_SLOPE_RATIO = 0.8  # Slope after a step, relative to the largest one before it, up to which the step is accepted.


def nonstationary_quantities(local: LocalProblem) -> tuple[str, ...]:
    """Name the quantities along which the cost still decreases too much for a solution; empty at a solution."""
    staged, linear = local.staged, local.linearization
    with np.errstate(over="ignore", invalid="ignore"):
        if not local.is_finite:
            return ()  # no conclusion is possible
        step = local.compute_trust_region_step(1.0)
        if not is_small_decrease(staged, linear, step.decrease, FALLBACK_THRESHOLDS.max_stationary_decrease):
            share = np.abs(local.gradient * step.dv[local.positions])
        else:
            share = _steepness(local)
            if share.max(initial=0.0) <= 1.0:
                return ()
    order, positions = np.argsort(-share)[:_MAX_REPORTED_QUANTITIES], np.arange(linear.v.size)[local.positions]
    return tuple(
        staged.layout.describe(int(positions[j])) for j in order if share[j] >= _REPORTED_SHARE * share[order[0]]
    )


def without_invisible_slopes(solution: Solution, local: LocalProblem) -> tuple[Solution, LocalProblem]:
    """Return a solution without slopes that no step control detects, as far as a few steps allow.

    The solution is unchanged if nothing is steep, if the predicted decrease is too large for a solution, or if no step
    helps.  `local` is the problem linearized there.
    """
    staged, linear = local.staged, local.linearization
    n_steps, radius = 0, 1.0
    if not _theta_alone(staged):
        return solution, local
    with np.errstate(over="ignore", invalid="ignore"):
        steepest = _steepness(local).max(initial=0.0) if local.is_finite else 0.0
        if steepest > 1.0 and not is_small_decrease(
            staged, linear, local.predicted_decrease, FALLBACK_THRESHOLDS.max_stationary_decrease
        ):
            return solution, local  # not near a solution
        while steepest > 1.0 and n_steps < _MAX_REFINING_STEPS and radius > _MIN_STEP_UNITS:
            step = local.compute_trust_region_step(radius)
            new_linear = staged.linearize(np.clip(linear.v + step.dv, staged.lower, staged.upper))
            n_steps += 1
            new_local = local_problem(staged, new_linear) if new_linear.ok else local
            new_steepest = _steepness(new_local).max(initial=0.0) if new_local.is_finite else np.inf
            is_rising = not new_linear.cost <= linear.cost + _error(staged, linear) * _length(linear)
            if is_rising or not new_steepest < _MAX_SLOPE_RATIO * steepest:
                radius *= 0.1
                continue
            active = active_bounds(staged, new_linear.v, step.bound_multipliers)
            solution = replace(solution, v=new_linear.v, active=active)
            local, linear, steepest = new_local, new_linear, new_steepest
    evaluations = Counter(solution.evaluations) + Counter(jacobians=n_steps)
    return (replace(solution, evaluations=dict(evaluations)) if n_steps else solution), local


def _steepness(local: LocalProblem) -> Array:
    """Return the projected gradient relative to its tolerance, (n_x,); zeros unless theta is the only variable.

    With further variables, equations and multipliers are part of the solution, and methods solve for them accurately.
    """
    staged, linear = local.staged, local.linearization
    if not _theta_alone(staged):
        return np.zeros(local.condensed.n_x)
    positions = local.positions
    d = units_of_search(staged, linear.v)[positions]
    slope = local.gradient * d
    lower_distance, upper_distance = (
        (linear.v - staged.lower)[positions] / d,
        (staged.upper - linear.v)[positions] / d,
    )
    is_at_bound = (lower_distance <= _BOUND_TOLERANCE) & (slope > 0) | (upper_distance <= _BOUND_TOLERANCE) & (
        slope < 0
    )
    max_slope = _MAX_STATIONARY_SLOPE * max(_length(linear), 1.0) + local.norms * d * _error(staged, linear)
    return np.where(is_at_bound, 0.0, np.abs(slope)) / max_slope


def _theta_alone(staged: StagedProblem) -> bool:
    """Check whether theta is the only variable, bounds are the only constraints, and the cost is a sum of squares.

    Other densities may have kinks: the optimum of Laplace's density fits some data exactly, where the slope is
    arbitrary.
    """
    return staged.layout.n_v == staged.layout.n_theta and not staged.layout.has_constraints and staged.least_squares


def _length(linear: Evaluation) -> float:
    """Return |u| of the informative rows."""
    return float(np.sqrt(2.0 * max(linear.informing_square, 0.0)))


def _error(staged: StagedProblem, linear: Evaluation) -> float:
    """Return the effect of integration errors on the rows, in standard deviations."""
    part = max(_STATE_ERROR_PER_RTOL * staged.integration_rtol, EXACT_DATA_RTOL)
    return part * float(np.sqrt(size_square(staged, linear)))
