"""Forecast of the cost of a neighbour of a candidate, without fitting it.

At a candidate's optimum the model in which everything is estimated is linearized once.  With

theta   its quantities, search scale, at the candidate's estimates and fixed values;  d  a step from there
g, F    slope of the cost, and Fisher's information

the forecast of a neighbour's cost is the minimum of  g.d + d'F d / 2, where d_j leads to the value at which it fixes
quantity j, and the other entries are free within their bounds.  Hundreds of neighbours need one linearization.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from castfit._support.arrays import Array, Mask
from castfit.drive.model_comparison.candidate_fit import CandidateStart
from castfit.drive.model_comparison.candidates import Alternative, CandidateModel, Candidates
from castfit.fit.fit import fit
from castfit.problem.problem import Problem
from castfit.result.goodness_of_fit import Criteria
from castfit.result.result import Result
from castfit.solve.gauss_newton import GaussNewton
from castfit.transcribe.single_shooting import SingleShooting

_RIDGE_FRACTION = 1e-10  # ridge relative to the diagonal, for directions that the data do not determine
_MAX_CLIPPING_ROUNDS = 5  # rounds in which quantities beyond a bound are fixed at the bound


def full_problem(space: Candidates) -> Problem:
    """Return the problem that estimates every parameter, with bounds that contain all fixed values."""
    base = space.problem(space.largest)
    wider = dict(base.parameters)
    for name, alternatives in space.choices.items():
        p, fixed_values = wider[name], [v for v in alternatives if isinstance(v, float)]
        scale = "linear" if any(v <= 0.0 for v in fixed_values) else p.scale
        value = fixed_values[0] if p.fixed and fixed_values else p.value
        wider[name] = replace(
            p, value=value, fixed=False, scale=scale, prior=None, lower=min([p.lower, *fixed_values]),
            upper=max([p.upper, *fixed_values]),
        )  # fmt: skip
    return base.replace(parameters=wider)


@dataclass(frozen=True, eq=False)
class QuadraticForecast:
    """The quadratic model of the full problem's cost about a candidate's optimum."""

    candidate: CandidateModel
    result: Result
    names: tuple[str, ...]
    parameter_names: tuple[str, ...]
    theta: Array
    log: Mask
    span: tuple[Array, Array]
    g: Array
    F: Array

    @classmethod
    def from_candidate(cls, full: Problem, candidate: CandidateModel, result: Result) -> QuadraticForecast | None:
        """Linearize at a fit; return None if the full model cannot be evaluated there."""
        fixed_values = {n: v for n, v in candidate.chosen.items() if isinstance(v, float)}
        start = CandidateStart(point={**result.values, **fixed_values}, exact=True).build_start(full)
        evaluation = fit(
            full, SingleShooting(), GaussNewton(max_iter=0), start=start, second_start=False, retry=False, verify=False
        )
        if not (np.isfinite(evaluation.gradient).all() and np.isfinite(evaluation.information).all()):
            return None
        parameter_names = tuple(q.symbol_name for q in full.quantities)
        linearization = (evaluation.names, parameter_names, evaluation.theta, full.log, full.bounds)
        return cls(candidate, result, *linearization, evaluation.gradient, np.asarray(evaluation.information))

    def cost(self, chosen: Mapping[str, Alternative]) -> float:
        """Return the difference of -2 log L between the neighbour and the candidate."""
        n = self.theta.size
        d, free = np.zeros(n), np.ones(n, dtype=np.bool_)
        for j, parameter_name in enumerate(self.parameter_names):
            value = chosen.get(parameter_name)
            if isinstance(value, float):
                d[j] = (np.log(value) if self.log[j] else value) - self.theta[j]
                free[j] = False
        ridge = _RIDGE_FRACTION * np.diag(np.maximum(np.diag(self.F), _RIDGE_FRACTION))
        F = self.F + ridge
        low, high = (end - self.theta for end in self.span)
        moving = free.copy()
        for _ in range(_MAX_CLIPPING_ROUNDS):
            is_clipped = ~moving
            step = np.linalg.solve(
                F[np.ix_(moving, moving)], -self.g[moving] - F[np.ix_(moving, is_clipped)] @ d[is_clipped]
            )
            d[moving] = step
            is_outside = moving & ((d < low) | (d > high))
            if not is_outside.any():
                break
            d[is_outside] = np.clip(d[is_outside], low[is_outside], high[is_outside])
            moving &= ~is_outside
        return float(2.0 * (self.g @ d + 0.5 * d @ F @ d))

    def criterion(self, other: CandidateModel, name: str) -> float:
        """Return the forecast of a neighbour's criterion `name`."""
        criteria = self.result.criteria
        n_additional = len(other.free) - len(self.candidate.free)
        predicted_criteria = Criteria(
            criteria.neg2loglik + self.cost(other.chosen), criteria.n, criteria.k + n_additional
        )
        return float(getattr(predicted_criteria, name.lower()))

    def ranked(self, neighbors: Iterable[CandidateModel], name: str) -> list[tuple[float, CandidateModel]]:
        """Return neighbours by the forecasts of their criterion, the best first."""
        predictions = [(self.criterion(other, name), other) for other in neighbors]
        return sorted(predictions, key=lambda each: (round(each[0], 6), each[1].name))

    def descended(self, space: Candidates, name: str) -> CandidateModel:
        """Move to better neighbours while the forecast decreases; return the last candidate."""
        current, value = self.candidate, self.criterion(self.candidate, name)
        while True:
            ranked = self.ranked(space.neighbours(current), name)
            if not ranked or ranked[0][0] >= value - 1e-9:
                return current
            value, current = ranked[0]
