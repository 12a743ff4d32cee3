"""Estimated inputs as functions of time, with the band in which they lie.

With g(t) = B(t) theta and the covariance C of theta, the band is  g +- factor sqrt(B C B^T), and its exponential on a
logarithmic scale.  With a penalty C is the covariance of theta given the data under the density that the penalty
stands for: it holds the bias of a smooth curve as well as its variance (Wahba 1983, J. R. Stat. Soc. B 45, 133).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import named, reals, text
from castfit.experiment.inputs import Placeholder
from castfit.problem.quantities import fixed_value
from castfit.result.covariance import quantile
from castfit._support.status import check, suggest

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.conditions import Condition
    from castfit.experiment.estimated_inputs import EstimatedInput
    from castfit.result.parts import Estimates, Uncertainty
    from castfit.problem.compiled_problem import Posed

_POINTS = 200


@dataclass(frozen=True, eq=False)
class _Function:
    """One experiment's estimated input: positions in theta (n,), -1 for values that are numbers, and these (n,)."""

    name: str
    said: EstimatedInput
    at: Array
    numbers: Array

    @classmethod
    def of(cls, placeholder: Placeholder, posed: Posed, condition: Condition) -> _Function:
        place = {(q.of, q.experiment): j for j, q in enumerate(posed.quantities)}
        names = placeholder.said.names(placeholder.called)
        at = [place.get((n, condition.name), place.get((n, None), -1)) for n in names]
        check("estimated_inputs", [
            f"'{n}' was fixed in the posed problem, which does not tell its value; take the result of the Problem"
            for n, j in zip(names, at, strict=True) if j < 0 and not posed.parameters[n].fixed
        ])  # fmt: skip
        values = np.array([fixed_value(posed.parameters[n], condition.name) for n in names])
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = np.log(values) if placeholder.said.log else values
        return cls(placeholder.called, placeholder.said, np.array(at, dtype=float), numbers)

    def values(self, theta: Array, log: Array) -> Array:
        """Return what is interpolated at the knots, (n,)."""
        free = self.at >= 0
        j = self.at[free].astype(np.intp)
        out = self.numbers.copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            other = np.log(theta[j]) if self.said.log else np.exp(theta[j])
        out[free] = np.where(log[j] == self.said.log, theta[j], other)
        return out


def input_bands(
    found: Estimates, known: Uncertainty, posed: Posed, times: Any, level: float
) -> dict[str, dict[str, Array]]:
    """Return per experiment ``{"time": (n,), u: (n,), "u lower": (n,), "u upper": (n,)}`` for every estimated input u.

    Parameters
    ----------
    found : Estimates
    known : Uncertainty
    posed : Posed
    times : (n,) array, or mapping from experiment to array, optional
        By default evenly from the start of each experiment to its end, and the knots.
    level : float
        Probability that a band covers, at each time by itself.
    """
    here = {c.name: [u for u in c.inputs if isinstance(u, Placeholder)] for c in posed.conditions}
    mistakes: list[str] = []
    if not any(here.values()):
        mistakes.append("no input of the problem is estimated; give an experiment Input.estimated(...)")
    given = times if hasattr(times, "keys") else dict.fromkeys(here, times)
    asked = named("times", given, mistakes)
    mistakes += [
        f"times are given for '{n}', which is no experiment: {suggest(n, here)}" for n in asked if n not in here
    ]
    chosen: dict[str, Array] = {}
    for condition in posed.conditions:
        if condition.name in asked and here[condition.name]:
            own = asked[condition.name]
            chosen[condition.name] = _times(condition, here[condition.name], own, mistakes)
    check("estimated_inputs", mistakes)
    factor = quantile(level, np.inf if known.absolute_sigma else known.dof)
    out: dict[str, dict[str, Array]] = {}
    for condition in posed.conditions:
        if condition.name in chosen:
            t = chosen[condition.name]
            out[condition.name] = {"time": t}
            for placeholder in here[condition.name]:
                function = _Function.of(placeholder, posed, condition)
                out[condition.name] |= _curve(function, t, found, known, posed, factor)
    return out


def _times(condition: Condition, inputs: list[Placeholder], given: Any, mistakes: list[str]) -> Array:
    first, last = max(u.said.span[0] for u in inputs), min(u.said.span[1] for u in inputs)
    if given is None:
        even = np.linspace(condition.start, condition.end, _POINTS + 1)
        knots = np.concatenate([u.said.knots for u in inputs])
        return np.unique(np.concatenate([even, knots[(knots >= condition.start) & (knots <= condition.end)]]))
    t = reals(given)
    what = f"the times of '{condition.name}'"
    if t is None or t.ndim > 1 or not t.size or not np.isfinite(t).all():
        mistakes.append(f"{what} are {text(given)}; give finite numbers")
        return np.zeros(1)
    t = np.atleast_1d(t)
    if t.min() < first or t.max() > last:
        mistakes.append(
            f"{what} reach from {t.min():g} to {t.max():g}, the knots from {first:g} to {last:g}; stay there"
        )
    return t


def _curve(
    function: _Function, times: Array, found: Estimates, known: Uncertainty, posed: Posed, factor: float
) -> dict[str, Array]:
    theta, log = found.theta, found.log.astype(float)
    basis = function.said.interpolation(times)
    values = function.values(theta, log)
    g = basis @ values
    free = function.at >= 0
    j = function.at[free].astype(np.intp)
    natural = posed.to_natural(theta)[j]
    slopes = basis[:, free] / (natural if function.said.log else 1.0)  # of g by the natural values of the covariance
    diagonal = known.covariance.diagonal()[j]
    certain = np.isfinite(diagonal)
    covariance = known.covariance[np.ix_(j[certain], j[certain])]
    variance: Array = np.einsum("ti,ij,tj->t", slopes[:, certain], covariance, slopes[:, certain])
    variance[(slopes[:, np.isinf(diagonal)] != 0.0).any(axis=1)] = np.inf
    reach = factor * np.sqrt(variance) if found.status.success else np.full(times.size, np.nan)
    with np.errstate(over="ignore"):
        low, middle, high = (np.exp(v) if function.said.log else v for v in (g - reach, g, g + reach))
    return {function.name: middle, f"{function.name} lower": low, f"{function.name} upper": high}
