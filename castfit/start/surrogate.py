"""Where a search for the most likely parameters begins: at a fit by least squares, with spreads as its residuals say.

A density other than the normal one tells little far from its top: outliers that a robust density forgives are what a
model looks like that is far off, and a spread that follows the residuals of such a model says that nothing is known.
Least squares with one sigma per output, eliminated, is what softening homotopies, matching and rescues are made for,
and what they find is close.  From there the exact problem is a matter of a few steps of Fisher scoring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

from castfit.noise.counts import NegativeBinomial, Poisson
from castfit.noise.gaussian import Gaussian, LogNormal

if TYPE_CHECKING:
    from castfit._array import Array
    from castfit.noise.base import Noise
    from castfit.observed import Observed
    from castfit.posed import Posed
    from castfit.staged import StagedProblem

_ROUNDS = 8
_SETTLED = 0.1  # of a spread: no better guess is needed
_ASSUMED_DISPERSION = 0.1


def surrogate(problem: Posed) -> Posed:
    """Return the question with normal errors of unknown size, one for each output, in the place of other densities.

    Parameters of the noise alone are fixed; other quantities keep their order.
    """
    labels = dict.fromkeys(problem.groups)
    conditions = list(problem.conditions)
    for i, condition in enumerate(conditions):
        observed, sigma = list(condition.observed), condition.points.sigma.copy()
        for j, of in enumerate(observed):
            if of is None or (of.noise.plain and not of.computed):
                continue
            label = f"surrogate of {problem.outputs[j]}"
            labels.setdefault(label)
            like = LogNormal(base=of.noise.base) if isinstance(of.noise, LogNormal) else Gaussian()
            observed[j] = replace(
                of, noise=like, group=list(labels).index(label), predicted=of.predicted[:1], computed=False
            )
            sigma[:, j] = _weights(of, condition.points.values[:, j], sigma[:, j])
        conditions[i] = replace(condition, observed=tuple(observed), points=replace(condition.points, sigma=sigma))
    plain = replace(
        problem, conditions=tuple(conditions), groups=tuple(labels), spreads=(), noise_parameters=frozenset[str]()
    )
    return plain.fix([q.name for q in problem.quantities if is_noise(problem, q.of)])


def is_noise(problem: Posed, parameter: str) -> bool:
    """Tell a parameter that moves nothing but the noise."""
    return parameter in problem.noise_parameters


def _weights(of: Observed, values: Array, sigma: Array) -> Array:
    """Return standard deviations up to a factor, as far as they are known before the prediction is."""
    if isinstance(of.noise, (Poisson, NegativeBinomial)):
        dispersion = _ASSUMED_DISPERSION if isinstance(of.noise, NegativeBinomial) else 0.0
        return np.sqrt(np.maximum(values, 1.0) + dispersion * values**2)
    return np.ones_like(sigma) if of.computed else sigma


def completed(problem: Posed, found: Posed, theta: Array, otherwise: Array) -> Array:
    """Return theta of the problem from one of its surrogate; parameters of the noise stand where `otherwise` says."""
    out = otherwise.copy()
    places = {name: j for j, name in enumerate(problem.names)}
    for name, value in zip(found.names, theta, strict=True):
        out[places[name]] = value
    return out


def with_spreads(problem: Posed, staged: StagedProblem, v: Array) -> Array:
    """Return v (n_v,) with the parameters of the noise where the residuals at v put them.

    All parameters of one spread move by one factor, so that the spread is as large as the residuals: exact for a sigma
    that is a parameter, and for sums and products with one parameter each, as a + b y.
    """
    v = v.copy()
    own = {q.of: [j for j, other in enumerate(problem.quantities) if other.of == q.of] for q in problem.quantities}
    lower, upper = problem.bounds
    inside = _parameters(problem)
    for _ in range(_ROUNDS):
        try:
            factors = list(_factors(problem, staged, v, inside))
        except (ValueError, FloatingPointError):
            return v
        moved = False
        for parameters, factor in factors:
            if not (np.isfinite(factor) and factor > 0.0) or abs(np.log(factor)) < _SETTLED:
                continue
            for j in (j for name in parameters for j in own.get(name, ())):
                to = v[j] + np.log(factor) if problem.log[j] else v[j] * factor
                v[j] = float(np.clip(to, lower[j], upper[j]))
                moved = True
        if not moved:
            break
    return v


def _parameters(problem: Posed) -> Mapping[str, frozenset[str]]:
    """Return the parameters of the noise in each computed spread."""
    graphs = {name: problem.model.outputs[name] for name in problem.spreads}
    return {n: frozenset(s.name() for s in ca.symvar(g)) & problem.noise_parameters for n, g in graphs.items()}


def _factors(
    problem: Posed, staged: StagedProblem, v: Array, inside: Mapping[str, frozenset[str]]
) -> Iterable[tuple[frozenset[str], float]]:
    """Yield sets of parameters, and by what factor the spreads that contain them are too small."""
    sets = {s: inside[s] for s in inside if inside[s]}
    values: dict[str, list[tuple[Array, Array, Array]]] = {s: [] for s in sets}
    noise: dict[str, Noise] = {}
    for condition, (mu, spread, _) in zip(problem.conditions, staged.standardised(v), strict=True):
        rows, column = np.nonzero(condition.points.mask)
        m = condition.points.values[rows, column]
        for j, of in enumerate(condition.observed):
            if of is not None and of.computed and of.predicted[1] in sets:
                here = column == j
                values[of.predicted[1]].append((mu[here], spread[here], m[here]))
                noise[of.predicted[1]] = of.noise
    for name, parts in values.items():
        if not parts:
            continue
        mu, spread, m = (np.concatenate([part[k] for part in parts]) for k in range(3))
        unit = float(np.median(spread))
        relative = spread / unit if noise[name].in_unit_of_output else np.ones_like(spread)
        yield sets[name], noise[name].starting_spread(mu / relative, m / relative) / unit
