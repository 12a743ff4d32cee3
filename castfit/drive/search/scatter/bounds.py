"""Search box of a scatter search, and the quantities that it moves in their logarithm.

Rate constants are often known to a few decades only.  Spread evenly in the value, nine tenths of all points lie in the
highest decade; the logarithmic distribution of Rodriguez-Fernandez et al. (2006) brings points close to the lower
bound.  Here the whole search moves in the logarithm, combinations and local searches too, since the problem itself is
restated.  A lower bound of zero has no logarithm: there the search ends at a floor, and the best point is at last
fitted in the problem as the user stated it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import is_one_of, read_sequence, shorten_repr, symbol_or_text_name
from castfit._support.arrays import Array
from castfit._support.status import suggest
from castfit.fit.start.gaussian_surrogate import gaussian_surrogate
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.linear_scales import eliminated_entries
from castfit.problem.problem import Posable
from castfit.problem.quantities import Quantity

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOG_BOUND_RATIO = 1e3  # ratio of upper to lower bound from which "auto" searches the logarithm
_LOWER_BOUND_FRACTION = 1e-6  # lower bound of a logarithm as a fraction of the upper one, if the lower bound is zero


@dataclass(frozen=True, eq=False)
class SearchBounds:
    """The box in search-scale theta that the unit cube is mapped onto.

    lower, upper : (n,) arrays
    searched : (n,) int array
        The entries of theta that are searched; the others are eliminated.
    guess : (n_theta,) array
        Where those stand.
    """

    lower: Array
    upper: Array
    searched: NDArray[np.intp]
    guess: Array

    def theta(self, x: Array) -> Array:
        """Map points of the cube (..., n) to theta (..., n_theta)."""
        out = np.broadcast_to(self.guess, (*x.shape[:-1], self.guess.size)).copy()
        out[..., self.searched] = np.clip(self.lower + x * (self.upper - self.lower), self.lower, self.upper)
        return out

    def cube(self, theta: Array) -> Array:
        """Map theta (..., n_theta) to points of the cube (..., n); what lies outside goes to the bound."""
        width = np.where(self.upper > self.lower, self.upper - self.lower, 1.0)
        return np.clip((theta[..., self.searched] - self.lower) / width, 0.0, 1.0)


def read_search_bounds(problem: CompiledProblem, mistakes: list[str]) -> SearchBounds:
    """Return the box of a problem's bounds; infinite ones are added to `mistakes`."""
    searched = np.delete(np.arange(len(problem.names)), eliminated_entries(problem))
    lower, upper = (end[searched] for end in problem.bounds)
    quantities = [problem.quantities[j] for j in searched.tolist()]
    for quantity, low, high in zip(quantities, lower, upper, strict=True):
        if np.isfinite([low, high]).all():
            continue
        range_text = f"'{quantity.name}' lies in [{quantity.lower:g}, {quantity.upper:g}]"
        if quantity.kind == "initial state":
            remedy = f"pass '{quantity.symbol_name}' as free(guess, lower=..., upper=...)"
        else:
            remedy = f"pass '{quantity.symbol_name}' as Parameter(value, lower=..., upper=...)"
        positive_text = ", the lower one positive," if quantity.scale == "log" else ""
        mistakes.append(f"{range_text}; scatter search needs finite bounds{positive_text}: {remedy}")
    return SearchBounds(lower, upper, searched, problem.guess)


def with_log_scales(problem: Posable, log_vars: Any, mistakes: list[str]) -> CompiledProblem:
    """Return the problem that is searched: with the chosen parameters on a logarithmic scale, from the same guess.

    A likelihood that is no sum of squares is searched by least squares with one unknown sigma per output, and maximised
    by the last fit.

    log_vars : names of parameters; "auto" chooses what has a wide range: bounds that are not negative and span a factor
        of 1000 at least
    """
    compiled = problem.posed if problem.posed.least_squares else gaussian_surrogate(problem.posed)
    free_parameters = {q.symbol_name: q for q in compiled.quantities if q.kind == "parameter"}
    if isinstance(log_vars, str):
        if not is_one_of(log_vars, "auto"):
            mistakes.append(f"log_vars is {shorten_repr(log_vars)}; give a list of parameters, or 'auto'")
        log_names = [
            name
            for name, q in free_parameters.items()
            if q.scale == "linear" and 0.0 <= _LOG_BOUND_RATIO * q.lower <= q.upper
        ]
        log_names = [name for name in log_names if 0.0 < free_parameters[name].upper < np.inf]
    else:
        log_names = _read_log_names(log_vars, free_parameters, mistakes)
    changed = {name for name in log_names if free_parameters[name].scale == "linear"}
    if mistakes or not changed:
        return compiled
    return compiled.with_quantities(
        [_with_log_scale(q) if _is_named_parameter(q, changed) else q for q in compiled.quantities]
    )


def _is_named_parameter(quantity: Quantity, parameters: set[str]) -> bool:
    return quantity.kind == "parameter" and quantity.symbol_name in parameters


def _read_log_names(log_vars: Any, free_parameters: Mapping[str, Quantity], mistakes: list[str]) -> list[str]:
    """Read names of parameters that can be searched in their logarithm."""
    entries: Iterable[Any] | None = () if log_vars is None else read_sequence(log_vars)
    if entries is None:
        mistakes.append(f"log_vars is {shorten_repr(log_vars)}; give a list of parameters, or 'auto'")
        return []
    log_names: list[str] = []
    for entry in entries:
        name = symbol_or_text_name(entry)
        if name is None or name not in free_parameters:
            mistakes.append(
                f"log_vars names {shorten_repr(entry)}, which is no free parameter: "
                f"{suggest(str(entry), free_parameters)}"
            )
        elif not (0.0 <= free_parameters[name].lower < free_parameters[name].upper < np.inf):
            bounds = f"[{free_parameters[name].lower:g}, {free_parameters[name].upper:g}]"
            mistakes.append(
                f"log_vars names '{name}', which lies in {bounds}; a logarithm needs positive, finite values"
            )
        else:
            log_names.append(name)
    return log_names


def _with_log_scale(quantity: Quantity) -> Quantity:
    """Return a quantity with a logarithmic scale; a lower bound below the floor, such as zero, is raised to it."""
    lower = max(quantity.lower, _LOWER_BOUND_FRACTION * quantity.upper)
    return replace(quantity, guess=max(quantity.guess, lower), lower=lower, scale="log")
