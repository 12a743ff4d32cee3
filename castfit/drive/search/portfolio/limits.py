"""Limits of the starts of a portfolio: the bounds, or an interval about the guess where there are none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import read_mapping, read_reals, shorten_repr
from castfit._support.status import suggest
from castfit.densities.priors.distributions import truncated_quantile
from castfit.fit.start.search_problem import (
    LOG_START_DECADES,
    drawn_about,
    finite_bounds,
    sampling_radius,
    search_frame,
)

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.densities.priors import PriorDistribution
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.problem import Posable


@dataclass(frozen=True)
class NonuniformPrior:
    """A quantity, by its place, that is drawn from a distribution of its natural value, within limits of the search."""

    place: int
    distribution: PriorDistribution
    log: bool

    def value(self, u: float, lower: float, upper: float) -> float:
        """Return the value in search scale below which another one lies with probability u."""
        ends = (lower, upper) if not self.log else (math.exp(lower), math.exp(upper))
        natural = min(max(truncated_quantile(self.distribution, u, *ends), ends[0]), ends[1])
        return min(max(math.log(natural) if self.log else natural, lower), upper)


@dataclass(frozen=True)
class SearchRegion:
    """Search region of candidates: limits and one unit of the search for every quantity, (n,) each.

    uneven : distributions of quantities that are not drawn evenly between their limits
    note : sentence about quantities without bounds, which are drawn around their guess; empty if there are none
    log_lower : lower ends (n,) of positive ranges about the guesses that are drawn evenly in the logarithm, for
        quantities without bounds; NaN for the others
    """

    lower: Array
    upper: Array
    unit: Array
    uneven: tuple[NonuniformPrior, ...] = ()
    note: str = ""
    log_lower: Array | None = None

    def for_candidate(self, rng: np.random.Generator) -> SearchRegion:
        """Return the region of one candidate: half of the candidates are drawn on a logarithmic scale if possible."""
        return self if self.log_lower is None or rng.random() < 0.5 else replace(self, log_lower=None)

    def draw(self, rng: np.random.Generator) -> Array:
        """Draw between the limits."""
        u = rng.random(self.lower.size)
        theta = self.lower + (self.upper - self.lower) * u
        for prior in self.uneven:
            j = prior.place
            theta[j] = prior.value(float(u[j]), float(self.lower[j]), float(self.upper[j]))
        if self.log_lower is not None:
            theta = np.where(self.log_lower > 0.0, self.log_lower * (self.upper / self.log_lower) ** u, theta)
        return theta

    def clip(self, theta: Array) -> Array:
        """Clip theta to the limits."""
        return np.clip(theta, self.lower, self.upper)


def limits_mistakes(problem: Posable, limits: Any) -> list[str]:
    """Return the mistakes in given limits."""
    mistakes: list[str] = []
    limit_by_name = read_mapping("limits", limits, mistakes)
    quantities = {q.name: q for q in problem.quantities}
    for name, pair in limit_by_name.items():
        if name not in quantities:
            mistakes.append(f"limits has the name '{name}', which is not estimated: {suggest(name, quantities)}")
            continue
        q, ends = quantities[name], None if isinstance(pair, Iterator) else read_reals(pair)
        if ends is None or ends.shape != (2,) or not ends[0] <= ends[1] or not np.isfinite(ends).all():
            mistakes.append(f"the limits of '{name}' are {shorten_repr(pair)}; expected (lower, upper)")
        elif ends[0] < q.lower or ends[1] > q.upper:
            mistakes.append(f"the limits {shorten_repr(pair)} of '{name}' exceed its bounds [{q.lower:g}, {q.upper:g}]")
        elif q.scale == "log" and not ends[0] > 0:
            mistakes.append(
                f"'{name}' is searched on a log scale, but its lower limit is {ends[0]:g}; pass a positive limit"
            )
    return mistakes


def build_search_region(compiled: CompiledProblem, limits: Mapping[str, Any] | None) -> SearchRegion:
    """Return limits and units of the quantities that are searched, in search scale."""
    searched, lower, upper, unit = search_frame(compiled)
    limit_by_name = {} if limits is None else {str(n): read_reals(pair) for n, pair in limits.items()}
    quantities, guess = searched.quantities, searched.guess
    log = np.array([q.scale == "log" for q in quantities], dtype=np.bool_)
    for j, q in enumerate(quantities):
        if (ends := limit_by_name.get(q.name)) is not None:
            lower[j], upper[j] = np.log(ends) if log[j] else ends
    is_missing = ~np.isfinite([lower, upper]).all(axis=0)
    lower, upper = finite_bounds(lower, upper, guess, sampling_radius(guess, log))
    priors = tuple(
        NonuniformPrior(j, q.starts, bool(log[j]))
        for j, q in enumerate(quantities)
        if q.starts is not None and q.name not in limit_by_name and upper[j] > lower[j]
    )
    guessed_limits: dict[str, tuple[float, float]] = {}
    for j in np.flatnonzero(is_missing & (upper > lower)).tolist():
        ends = np.array([lower[j], upper[j]])
        if all(prior.place != j for prior in priors):
            guessed_limits[quantities[j].name] = tuple((np.exp(ends) if log[j] else ends).tolist())
    is_log_drawn = [q.name in guessed_limits and q.scale == "linear" and q.guess > 0.0 for q in quantities]
    log_lower = np.where(is_log_drawn, np.maximum(guess * 10.0**-LOG_START_DECADES, lower), np.nan)
    unit = np.minimum(unit, np.where(upper > lower, upper - lower, unit))
    return SearchRegion(
        lower, upper, unit, priors, drawn_about(guessed_limits), log_lower if any(is_log_drawn) else None
    )
