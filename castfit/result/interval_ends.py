"""Ends of the intervals in the linear approximation with bounds, and a check of the likelihood there.

Notation
--------
delta  (n,)     change of theta;  M (n, n) Fisher's information, g (n,) the gradient at active bounds, 0 elsewhere
C      (n, n)   inverse of M over the free quantities
rise            increase of -2 log L, in the linear approximation  2 g^T delta + delta^T M delta

The interval of a quantity k is the range of delta_k where the rise is at most the square of the quantile.  A quantity
that a bound holds is released: it stays at its bound, moves to its other bound, or is free between the two.  The
extreme point of k is among these cases.  All of them are examined for up to three such quantities.  If there are more,
one is released at a time.

The check simulates the model at both ends.  The other quantities start on the linear path and take damped Gauss-Newton
steps within their bounds.  If the number of simulations is limited, the derivatives are those at the estimate.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from castfit._support.records import dataclass
from castfit._support.status import Status
from castfit._support.ties import stable_order
from castfit._support.time_limit import StopRequested, with_deadline
from castfit.result.covariance import MAX_WRITTEN_OUT_QUANTITIES, quantile, residuals
from castfit.result.fisher_information import MIN_DIRECTION_WEIGHT, positive
from castfit.result.identifiability import (
    AT_BOUND,
    CORRELATED_WITH,
    NOT_IDENTIFIABLE,
    POOR_INTERVAL_FRACTION,
    POORLY_DETERMINED,
    WELL_DETERMINED,
    WIDE_INTERVAL,
    IdentifiabilityStatus,
    combinations_of,
    overall,
)
from castfit.solve.condensing import condense
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.result.result import Result

CHECKED, APPROXIMATE = "checked", "approximate"
_APPROXIMATE_NOTE = "; interval approximate, see cf.profile"
_MAX_RELEASED_TOGETHER = 3  # quantities at bounds: all cases are examined up to this number
_FAR_EFFECT_SD = 1e6  # standard deviations of the data that the largest change without a bound causes by itself
_TESTED_EFFECT_SD = 100.0  # the same, up to which a flat direction without a bound is simulated
_SINGULAR_RTOL = 1e-14  # remaining information on a released quantity, relative to all of it, that is rounding
_MAX_RISE_RATIO = 2.0  # ratio of the rise at an end to the threshold, or its reciprocal, up to which they agree
_FLAT_RISE_RATIO = 0.05  # rise, relative to the threshold, up to which the data do not change along a range
_CLOSE_RISE_RATIO = 1.25  # the same for which the end is not examined further
_MAX_END_RATIO = 1.4  # ratio of distances from the estimate within which the threshold must be crossed
_N_END_SIMULATIONS = 2  # simulations of both ends of an interval, at least
# Simulations for each quantity at a bound whose linear interval spans its range, whatever the search took: two points
# of the range and corrections; `pytest -m slow tests/drive/uncertainty/test_calibrated_intervals.py` passes with it.
_N_FLAT_SIMULATIONS = 6
_SPAN_RTOL = 1e-6  # an interval spans a range up to this relative difference
_MAX_STEPS, _MAX_CORRECTIONS = 15, 4  # simulations at an end: with new derivatives, with those at the estimate
_FIRST_DAMPING = 1e-2  # damping before the first step of the other quantities at an end
_MIN_GAIN_RATIO = 0.02  # expected decrease, relative to the threshold, below which there is no further step
_MAX_COST_ERROR_RATIO = 0.05  # difference of the simulated cost from that of the fit, relative to the threshold


@dataclass(frozen=True)
class IntervalEnds:
    """Ends of the intervals of all quantities, and the points at which they are reached.

    values (n, 2) : changes of theta below and above; infinite if nothing bounds them
    points (n, 2, n) : changes of all quantities there
    covariance (n, n) : C, with all quantities at their bounds
    """

    values: Array
    points: Array
    covariance: Array

    def natural(self, result: Result, j: int) -> tuple[float, float]:
        """Return the interval of quantity j in natural values."""
        value, is_log = result.values[result.names[j]], bool(result.log[j])
        with np.errstate(over="ignore"):
            low, high = value * np.exp(self.values[j]) if is_log else value + self.values[j]
        return float(low), float(high)


def interval_ends(result: Result, factor: float) -> IntervalEnds | None:
    """Compute the ends at `factor` standard errors; None if they are unknown."""
    n, M, root = len(result.names), result.information, result.root
    if n > MAX_WRITTEN_OUT_QUANTITIES:
        return None
    is_held = np.isin(result.names, [*result.active])
    if (np.shape(M), np.shape(root)) != ((n, n), (n, n)) or not np.isfinite([M, root]).all():
        return None
    if len(result.bounds) != n or (is_held.any() and result.constraints.active):
        return None
    size, (lower, upper) = positive(np.sqrt(np.diag(M))), _search_bounds(result)
    bound_indices = np.flatnonzero(is_held & (lower < upper))
    sign = np.array([1.0 if result.active[result.names[j]] == "lower" else -1.0 for j in bound_indices])
    is_unlimited = np.isinf(upper - lower)[bound_indices]
    widths = sign * np.where(is_unlimited, _FAR_EFFECT_SD / size[bound_indices], (upper - lower)[bound_indices])
    gradient = np.where(is_held, result.gradient / result.inflation, 0.0)
    values, points, covariance = np.zeros((n, 2)), np.zeros((n, 2, n)), root @ root.T
    options: list[Any] = [0.0, 1.0, None]  # at its bound, at the other bound, free
    if bound_indices.size <= _MAX_RELEASED_TOGETHER:
        cases = [*product(options, repeat=bound_indices.size)]
    else:
        cases = [
            tuple(c if i == j else 0.0 for i in range(bound_indices.size))
            for c in options
            for j in range(bound_indices.size)
        ]
    for case in cases:
        free_covariance, fixed = covariance, np.zeros(n)
        fixed[bound_indices] = widths * np.array([c or 0.0 for c in case])
        for h in bound_indices[[c is None for c in case]] if None in case else ():
            direction = np.where(np.arange(n) == h, 1.0, 0.0) - free_covariance @ M[:, h]
            free_covariance = free_covariance + np.outer(direction, direction) / max(
                M[h] @ direction, _SINGULAR_RTOL * M[h, h], np.finfo(float).tiny
            )
        slope = gradient + M @ fixed
        centre = fixed - free_covariance @ slope
        budget = factor**2 - (gradient + slope) @ fixed + slope @ free_covariance @ slope
        reach = np.sqrt(max(budget, 0.0)) / positive(np.sqrt(np.diag(free_covariance)))
        for side in range(2) if budget >= 0.0 else ():
            steps = centre + (2 * side - 1) * reach[:, None] * free_covariance
            fraction = steps[:, bound_indices] / widths
            gain = (2 * side - 1) * (np.diag(steps) - values[:, side])
            is_better = ((fraction >= 0.0) & (fraction <= 1.0)).all(axis=1) & (gain > 0.0)
            values[is_better, side], points[is_better, side] = np.diag(steps)[is_better], steps[is_better]
    is_far = (np.abs(points[:, :, bound_indices]) >= np.abs(widths)) & is_unlimited
    is_open = is_far.any(axis=2) | np.isinf(np.diag(result.covariance))[:, None]
    values = np.where(is_open, [-np.inf, np.inf], values)
    return IntervalEnds(np.where(is_held & ~(lower < upper), np.nan, values.T).T, points, covariance)


def _search_bounds(result: Result) -> tuple[Array, Array]:
    """Return lower and upper bounds of theta, (n,) each."""
    with np.errstate(divide="ignore"):
        lower, upper = np.where(result.log, np.log(np.maximum(result.bounds.T, 0.0)), result.bounds.T)
    return lower, upper


class _Simulation:
    """Simulation of the model near a solution; `n_left` evaluations are left."""

    def __init__(self, result: Result, n_evaluations: float, factor: float, staged: Any) -> None:
        assert result.problem is not None
        compiled_problem, dof = result.problem.posed, result.dof
        if not compiled_problem.noise_parameters:
            compiled_problem = compiled_problem.with_absolute_sigma(absolute_sigma=result.absolute_sigma)
        staged = staged or SingleShooting(result.integrator).transcribe(compiled_problem, result.theta)
        self.result, self.staged, self.n_left = result, staged.explicit(), n_evaluations
        self.lower, self.upper = _search_bounds(result)
        self.start = self.staged.linearize(result.theta)
        self.threshold = factor**2 if result.absolute_sigma else result.n_data * float(np.log1p(factor**2 / dof))
        error = 2.0 * abs(self.start.cost - result.cost) if self.start.ok else np.inf
        self.is_valid = error <= _MAX_COST_ERROR_RATIO * self.threshold

    @property
    def can_check(self) -> bool:
        """Whether enough evaluations are left for both ends of an interval."""
        return self.n_left >= _N_END_SIMULATIONS

    def rise(self, delta: Array, fixed: int) -> float:
        """Return the rise at delta (n,) after damped steps of quantities other than `fixed`; inf if it is undefined.

        The derivatives are those at the estimate, or at each point if the evaluations are not limited.
        """
        layout, is_exact = self.staged.layout, np.isinf(self.n_left)
        is_free = (np.arange(delta.size) != fixed) & (self.lower < self.upper)
        trial = theta = np.clip(self.result.theta + delta, self.lower, self.upper)
        u, linearization, damping, lowest = np.empty(0), self.start, _FIRST_DAMPING, np.inf
        for _ in range(_MAX_STEPS if is_exact else _MAX_CORRECTIONS):
            evaluation = self.staged.evaluate(trial)
            self.n_left -= 1
            rise = 2.0 * (evaluation.cost - self.start.cost) if evaluation.ok else np.inf
            if rise < lowest:
                theta, lowest, u = trial, rise, residuals(layout, evaluation)
                linearization = self.staged.linearize(theta) if is_exact else linearization
            damping *= 0.1 if theta is trial else 10.0
            if np.isinf(lowest) or self.n_left < 1 or not (linearization.ok and is_free.any()):
                break
            E = condense(layout, linearization).rows.dense[:, is_free]
            rows = np.vstack([E, np.diag(np.sqrt(damping) * positive(np.linalg.norm(E, axis=0)))])
            limits = ((self.lower - theta)[is_free], (self.upper - theta)[is_free])
            step = scipy.optimize.lsq_linear(rows, np.append(-u, np.zeros(E.shape[1])), limits).x
            if u @ u - np.sum((u + E @ step) ** 2) < _MIN_GAIN_RATIO * self.threshold:
                break
            trial = theta.copy()
            trial[is_free] += step
        return float(lowest)

    def agrees(self, delta: Array, j: int) -> bool:
        """Check that the end of the interval of quantity j agrees with the simulated rise; at a bound, if it is lower.

        The rise is the threshold within a factor of 2.  If they differ by more than a quarter, the threshold is crossed
        within a factor of 1.4 of the end.
        """
        theta = self.result.theta[j] + delta[j]
        ratio = self.rise(delta, j) / self.threshold if delta[j] else 1.0
        if 1.0 / _CLOSE_RISE_RATIO <= ratio <= _CLOSE_RISE_RATIO or (
            ratio <= 1.0 and not self.lower[j] < theta < self.upper[j]
        ):
            return True
        if not 1.0 / _MAX_RISE_RATIO <= ratio <= _MAX_RISE_RATIO:
            return False
        return (self.rise(delta * _MAX_END_RATIO ** np.sign(1.0 - ratio), j) >= self.threshold) == (ratio < 1.0)

    def is_wide(self, ends: IntervalEnds, j: int) -> bool:
        """Check whether the rise stays below the threshold on a side until the interval is wider than the value.

        The other quantities start on the linear path, at half of it, and at the estimate.
        """
        low, high = ends.natural(self.result, j)
        value, is_log = self.result.values[self.result.names[j]], self.result.log[j]
        for side, natural in enumerate((high - abs(value), low + abs(value))):
            point = ends.points[j, side]
            end = float(np.log(max(natural / value, np.finfo(float).tiny)) if is_log else natural - value)
            fractions = (end / float(point[j]), 0.5, 0.0) if point[j] else ()
            starts: list[Array] = [fraction * point for fraction in fractions]
            if any(self.rise(np.where(np.arange(s.size) == j, end, s), j) <= self.threshold for s in starts):
                return True
        return False


def with_interval_checks(
    result: Result,
    *,
    max_time: float = np.inf,
    n_evaluations: float = np.inf,
    only_doubtful: bool = False,
    staged: Any = None,
) -> Result:
    """Return the result with verdicts for released bounds, and with the intervals checked by simulations.

    max_time : seconds after which no further interval is checked
    n_evaluations : limit on the simulations, including those of the derivatives at the estimate; a quantity at its
        bound is examined in any case if its interval spans its range
    only_doubtful : whether to check only intervals that are wider than the value, or affected by active bounds
    staged : the problem of single shooting, if it exists
    """
    factor = quantile(0.95, np.inf if result.absolute_sigma else result.dof)
    is_known = result.success and result.problem is not None and len(result.names) > 0 and np.isfinite(factor)
    ends = interval_ends(result, factor) if is_known else None
    if ends is None:
        return result
    is_bounded = np.isin(result.names, [*result.active]) & ~np.isnan(ends.values).any(axis=1)
    bound_indices: list[int] = np.flatnonzero(is_bounded).tolist()
    values, checks = np.abs([*result.values.values()]), dict(result.interval_checks)
    half_widths = np.array([0.5 * float(np.diff(ends.natural(result, j))[0]) for j in range(values.size)])
    is_wide = ~(half_widths <= POOR_INTERVAL_FRACTION * values)
    lower, upper = _search_bounds(result)
    spans_range = np.abs(ends.values).max(axis=1) >= (1.0 - _SPAN_RTOL) * (upper - lower)
    flat_indices = [j for j in bound_indices if spans_range[j]]
    n_left = max(n_evaluations - 1 - len(result.names), _N_FLAT_SIMULATIONS * len(flat_indices))
    is_requested = np.isfinite(ends.values).all(axis=1) & (is_wide | bool(bound_indices) | (not only_doubtful))
    try:
        with with_deadline(max_time) if np.isfinite(max_time) else nullcontext():
            simulation = _Simulation(result, n_left, factor, staged) if n_left >= _N_END_SIMULATIONS else None
            if simulation is not None and simulation.is_valid:
                for j in flat_indices:
                    if simulation.can_check and result.identifiability[result.names[j]].kind == AT_BOUND:
                        result = _with_flat_range(result, j, ends.covariance, simulation)
                for j in map(int, stable_order(half_widths / positive(values), descending=True)):
                    if is_requested[j] and simulation.can_check:
                        is_good = all(simulation.agrees(point, j) for point in ends.points[j])
                        checks[result.names[j]] = CHECKED if is_good else APPROXIMATE
                        is_wide[j] |= not is_good and simulation.can_check and simulation.is_wide(ends, j)
    except StopRequested as stop:
        if stop.status is Status.INTERRUPTED and np.isfinite(max_time):  # a fit returns its result
            raise
    verdicts = list(result.identifiability.verdicts)
    for j, v in enumerate(verdicts):
        sentence = v.sentence.removesuffix(_APPROXIMATE_NOTE)
        is_new = is_wide[j] and v.kind in (WELL_DETERMINED, CORRELATED_WITH)
        kind, sentence = (POORLY_DETERMINED, WIDE_INTERVAL) if is_new else (v.kind, sentence)
        note = _APPROXIMATE_NOTE if checks.get(v.name) == APPROXIMATE else ""
        verdicts[j] = replace(v, kind=kind, sentence=sentence + note)
    identifiability = replace(result.identifiability, verdicts=tuple(verdicts), sentence=overall(verdicts, ""))
    return replace(result, interval_checks=checks, identifiability=identifiability)


def _with_flat_range(result: Result, j: int, covariance: Array, simulation: _Simulation) -> Result:
    """Return the result with a verdict on quantity j at its bound if the data do not change along its range."""
    name, names, M = result.names[j], result.names, result.information
    size, sign = positive(np.sqrt(np.diag(M))), 1.0 if result.active[name] == "lower" else -1.0
    width = simulation.upper[j] - simulation.lower[j]
    width = width if np.isfinite(width) else _TESTED_EFFECT_SD / size[j]
    path = np.where(np.arange(len(names)) == j, sign * width, 0.0)
    path = path - covariance @ M @ path
    limit = _FLAT_RISE_RATIO * simulation.threshold
    if not all(simulation.rise(fraction * path, j) <= limit for fraction in (1.0, 0.5)):
        return result
    effect = size * path
    direction = np.where(np.abs(effect) > MIN_DIRECTION_WEIGHT * np.abs(effect).max(), effect, 0.0)
    direction = direction / np.linalg.norm(direction) * np.sign(direction[np.argmax(direction != 0.0)])
    values = np.array([*result.values.values()])
    (group,) = combinations_of(names, values, np.where(result.log, values, 1.0), direction[None], size)
    ends = sorted([values[j], float(np.exp(result.theta[j] + path[j]) if result.log[j] else values[j] + path[j])])
    group = replace(group, sentence=f"{group.sentence}; {name} may be anywhere in [{ends[0]:g}, {ends[1]:g}]")
    verdicts = tuple(
        IdentifiabilityStatus(v.name, NOT_IDENTIFIABLE, f"{NOT_IDENTIFIABLE}: {group.sentence}")
        if v.name in group.names
        else v
        for v in result.identifiability.verdicts
    )
    identifiability = replace(
        result.identifiability,
        verdicts=verdicts,
        combinations=(*result.identifiability.combinations, group),
        sentence=overall(verdicts, ""),
    )
    errors = {n: np.inf if n in group.names else error for n, error in result.standard_errors.items()}
    return replace(result, identifiability=identifiability, standard_errors=errors)
