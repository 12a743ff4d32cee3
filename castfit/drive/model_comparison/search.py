"""Search methods: the order in which candidates are fitted, in batches of independent fits, and forecasts of costs.

At a candidate's optimum the model in which everything is estimated is linearized once.  With

theta   its quantities, search scale, at the candidate's estimates and fixed values;  d  a step from there
g, F    slope of the cost, and Fisher's information

the forecast of a neighbour's cost is the minimum of  g.d + d'F d / 2, where d_j leads to the value at which it fixes
quantity j, and the other entries are free within their bounds.  Hundreds of neighbours need one linearization.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import numpy as np

from castfit._support.arrays import Array, Mask
from castfit.drive.model_comparison.candidates import Alternative, CandidateModel, Candidates, CandidateStart
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


MAX_EXHAUSTIVE_CANDIDATES = 64  # candidates up to which "auto" fits all of them
_BATCH_SIZE = 6  # neighbours, the best by their forecasts, that are fitted at once, for any number of workers
_MAX_NEIGHBOURS = 36  # neighbours of one candidate that are fitted
_FORECAST_MARGIN = 2.0  # of the criterion: neighbours with a forecast worse than the best by more are not fitted
_BEAM_WIDTH = 4  # best candidates whose neighbours are examined


@dataclass(frozen=True)
class CandidateProposal:
    """A candidate to be fitted, and the candidate whose estimates are its start; empty if none."""

    candidate: CandidateModel
    predecessor: str = ""


Search = Generator[list[CandidateProposal], None, None]


class SearchHistoryView(Protocol):
    """Interface of a search to the completed fits."""

    @property
    def best(self) -> str | None:
        """The name of the best candidate; None if no fit succeeded."""
        ...

    @property
    def order(self) -> list[str]:
        """Names of the fits that succeeded, the best first."""
        ...

    def candidate(self, name: str) -> CandidateModel:
        """Return a candidate that was proposed."""
        ...

    def is_proposed(self, name: str) -> bool:
        """Whether a candidate was proposed before."""
        ...

    def result(self, name: str) -> Result:
        """Return the result of a fit that succeeded."""
        ...

    def value(self, name: str) -> float:
        """Return the criterion of a candidate; NaN where its fit failed."""
        ...

    def nearest(self, candidate: CandidateModel) -> str:
        """Return the best fitted candidate that is nested in this one; empty if there is none."""
        ...


def exhaustive(space: Candidates, history: SearchHistoryView, criterion: str) -> Search:
    """Propose all candidates, smaller ones first, whose estimates are starts of larger ones."""
    by_size = sorted(space, key=lambda c: len(space.problem(c).names) if not c.chosen else len(c.free))
    for _, level in groupby(by_size, key=lambda c: len(c.free)):
        yield [CandidateProposal(c, history.nearest(c)) for c in level]


def forward(space: Candidates, history: SearchHistoryView, criterion: str) -> Search:
    """Add one estimate at a time, beginning with the smallest candidate, until the criterion no longer improves."""
    return _stepwise(space, history, space.smallest, is_forward=True)


def backward(space: Candidates, history: SearchHistoryView, criterion: str) -> Search:
    """Remove one estimate at a time, beginning with the largest candidate, until the criterion no longer improves."""
    return _stepwise(space, history, space.largest, is_forward=False)


def _stepwise(space: Candidates, history: SearchHistoryView, current: CandidateModel, *, is_forward: bool) -> Search:
    yield [CandidateProposal(current)]
    while history.best == current.name:
        neighbors = space.neighbours(current, allow_more=is_forward, allow_fewer=not is_forward)
        yield [CandidateProposal(c, current.name) for c in neighbors if not history.is_proposed(c.name)]
        if history.best in (current.name, None):
            return
        current = history.candidate(history.best or "")


def forecast(space: Candidates, history: SearchHistoryView, criterion: str) -> Search:
    """Search by forecasts from the largest and smallest candidates: remove, add and swap estimates."""
    full = full_problem(space)
    yield [CandidateProposal(space.largest), CandidateProposal(space.smallest)]
    for start_name in (space.largest.name, space.smallest.name, history.best or ""):
        current_name = start_name
        while current_name and history.is_proposed(current_name):
            local_forecast = _forecast_at(full, history, current_name)
            if local_forecast is None:
                break
            target = local_forecast.descended(space, criterion)
            if history.is_proposed(target.name):
                break
            yield [CandidateProposal(target, current_name)]
            current_name = target.name
    expanded: set[str] = set()
    while pending_names := [name for name in history.order[:_BEAM_WIDTH] if name not in expanded]:
        current_name = pending_names[0]  # the best candidate whose neighbours were not examined
        local_forecast = _forecast_at(full, history, current_name)
        expanded.add(current_name)
        if local_forecast is None:
            continue
        current_candidate, best = history.candidate(current_name), history.value(history.best or "")
        untried = (
            c
            for c in [*space.neighbours(current_candidate), *space.swaps(current_candidate)]
            if not history.is_proposed(c.name)
        )
        ranked = [c for value, c in local_forecast.ranked(untried, criterion) if value < best + _FORECAST_MARGIN][
            :_MAX_NEIGHBOURS
        ]
        for k in range(0, len(ranked), _BATCH_SIZE):
            yield [CandidateProposal(c, current_name) for c in ranked[k : k + _BATCH_SIZE]]
            if history.best != current_name and history.best not in expanded:
                break


def _forecast_at(full: object, history: SearchHistoryView, name: str) -> QuadraticForecast | None:
    try:
        result = history.result(name)
    except LookupError:  # its fit failed
        return None
    return QuadraticForecast.from_candidate(full, history.candidate(name), result)  # type: ignore[arg-type]


METHODS = {"all": exhaustive, "forward": forward, "backward": backward, "forecast": forecast}
