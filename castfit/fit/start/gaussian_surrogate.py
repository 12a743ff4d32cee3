"""Start of a maximum-likelihood search: a least-squares fit, with spreads estimated from its residuals.

A density other than the normal one provides little information far from its maximum.  A robust density treats the
residuals of a poor model as outliers, and a spread that adapts to these residuals makes the data uninformative.  Least
squares with one eliminated sigma per output suits homotopies, matching and fallbacks, and its solution is close.  From
there the exact problem takes a few steps of Fisher scoring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit.densities.noise.counts import NegativeBinomial, Poisson
from castfit.densities.noise.density import Noise
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.solve.staged import StagedProblem

_MAX_SPREAD_ROUNDS = 8  # Limit on the fits with updated spreads.
_FEW_COUNTS = 5  # Number of counts below which their dispersion is not estimated.
_SPREAD_LOG_TOLERANCE = 0.1  # Change of the logarithm of a spread below which it has converged.
_UNLIMITED_SPREAD = (0.0, np.inf)  # bounds of a spread without user bounds
_DISPERSION = (0.01, 0.1, 1.0)  # of counts, for the weights of a start: minimum, default and maximum


def gaussian_surrogate(problem: CompiledProblem) -> CompiledProblem:
    """Return the problem with normal errors of unknown size, one per output, in place of other densities.

    A spread that is a parameter of the noise only is eliminated as one sigma for all data that share it, within its
    bounds; normal errors thus keep their likelihood.  A spread of fixed parameters is known, and that of counts follows
    from the counts.  Parameters of the noise alone are fixed; other quantities keep their order.
    """
    labels = dict.fromkeys(problem.groups, _UNLIMITED_SPREAD) | dict(
        zip(problem.groups, problem.group_bounds, strict=False)
    )
    sizes = _sizes(problem)
    conditions = list(problem.conditions)
    for i, condition in enumerate(conditions):
        observed, sigma = list(condition.observed), condition.points.sigma.copy()
        for j, observable in enumerate(observed):
            if observable is None or (observable.noise.is_residual_noise and not observable.is_spread_computed):
                continue
            if isinstance(observable.noise, (Poisson, NegativeBinomial)):
                observed[j] = replace(
                    observable,
                    noise=Gaussian(),
                    group=-1,
                    predicted_outputs=observable.predicted_outputs[:1],
                    is_spread_computed=False,
                )
                sigma[:, j] = _of_counts(observable.noise, condition.points.values[:, j])
                continue
            noise = LogNormal(base=observable.noise.base) if isinstance(observable.noise, LogNormal) else Gaussian()
            known_sigma = (
                _evaluate_constant_sigma(problem, condition, observable.predicted_outputs[1])
                if observable.is_spread_computed and observable.noise.is_residual_noise
                else None
            )
            if known_sigma is not None:
                observed[j] = replace(
                    observable,
                    noise=noise,
                    group=-1,
                    predicted_outputs=observable.predicted_outputs[:1],
                    is_spread_computed=False,
                )
                sigma[:, j] = known_sigma
                continue
            label, bounds = f"surrogate of {problem.outputs[j]}", _UNLIMITED_SPREAD
            if (
                observable.is_spread_computed
                and observable.noise.is_residual_noise
                and observable.predicted_outputs[1] in sizes
            ):
                name, bounds = sizes[observable.predicted_outputs[1]]
                label = f"surrogate of sigma {name}"
            labels.setdefault(label, bounds)
            observed[j] = replace(
                observable,
                noise=noise,
                group=list(labels).index(label),
                predicted_outputs=observable.predicted_outputs[:1],
                is_spread_computed=False,
            )
            if observable.is_spread_computed:
                sigma[:, j] = 1.0
        conditions[i] = replace(condition, observed=tuple(observed), points=replace(condition.points, sigma=sigma))
    surrogate_problem = replace(
        problem,
        conditions=tuple(conditions),
        groups=tuple(labels),
        group_bounds=tuple(labels.values()),
        spreads=(),
        noise_parameters=frozenset[str](),
        tolerates_outliers=True,
        format_measure="-2 log L of normal errors",
    )
    return surrogate_problem.fix([q.name for q in problem.quantities if q.symbol_name in problem.noise_parameters])


def _sizes(problem: CompiledProblem) -> Mapping[str, tuple[str, tuple[float, float]]]:
    """Return the spreads that are a parameter of the noise in all experiments, with its name and bounds."""
    graphs = {name: problem.model.outputs[name] for name in problem.spreads}
    symbols = {name: graph.name() for name, graph in graphs.items() if graph.is_symbolic()}
    bounds_by_parameter: dict[str, list[tuple[float, float]]] = {}
    for q in problem.quantities:
        bounds_by_parameter.setdefault(q.symbol_name, []).append((q.lower, q.upper))
    return {
        spread: (name, bounds_by_parameter[name][0])
        for spread, name in symbols.items()
        if name in problem.noise_parameters and len(bounds_by_parameter.get(name, ())) == 1
    }


def _evaluate_constant_sigma(problem: CompiledProblem, condition: Condition, spread: str) -> float | None:
    """Return a spread that is constant in an experiment because its parameters are fixed, otherwise None."""
    model, graph = problem.model, problem.model.outputs[spread]
    symbol_names = {s.name() for s in ca.symvar(graph)}
    rows = [i for i, name in enumerate(model.parameters) if name in symbol_names]
    if len(rows) < len(symbol_names) or condition.link.pattern[rows].any():
        return None
    p = condition.link.natural(problem.guess[condition.theta]).p
    value = float(ca.Function("spread", [model.system.p], [graph])(p))
    return value if np.isfinite(value) and value > 0.0 else None


def _of_counts(noise: Poisson | NegativeBinomial, values: Array) -> Array:
    """Return standard deviations of counts (n,), in the order of time; NaN is not measured.

    For a smooth course,  m[i-1] - 2 m[i] + m[i+1]  has six times the variance of a count (Gasser, Sroka and
    Jennen-Steinmetz 1986).
    """
    min_dispersion, dispersion, max_dispersion = _DISPERSION
    counts = values[np.isfinite(values)]
    if counts.size > _FEW_COUNTS:
        excess = np.mean(np.diff(counts, 2) ** 2 / 6 - counts[1:-1])
        dispersion = float(np.clip(excess / max(float(np.mean(counts**2)), 1.0), min_dispersion, max_dispersion))
    if isinstance(noise, Poisson):
        dispersion = 0.0
    return np.sqrt(np.maximum(values, 1.0) + dispersion * values**2)


def restore_noise_parameters(
    problem: CompiledProblem, surrogate_problem: CompiledProblem, theta: Array, default_theta: Array
) -> Array:
    """Return theta of the problem from one of its surrogate; noise parameters are those of `default_theta`."""
    completed_theta = default_theta.copy()
    index_by_name = {name: j for j, name in enumerate(problem.names)}
    for name, value in zip(surrogate_problem.names, theta, strict=True):
        completed_theta[index_by_name[name]] = value
    return completed_theta


def with_spreads(problem: CompiledProblem, staged: StagedProblem, v: Array) -> Array:
    """Return v (n_v,) with noise parameters estimated from the residuals at v.

    One factor changes all parameters of a spread, so that the spread equals the size of the residuals: exact for a
    sigma that is a parameter, and for sums and products with one parameter each, such as a + b y.
    """
    v = v.copy()
    indices_by_parameter = {
        q.symbol_name: [j for j, other in enumerate(problem.quantities) if other.symbol_name == q.symbol_name]
        for q in problem.quantities
    }
    lower, upper = problem.bounds
    parameters_by_spread = _parameters(problem)
    for _ in range(_MAX_SPREAD_ROUNDS):
        try:
            factors = list(_factors(problem, staged, v, parameters_by_spread))
        except (ValueError, FloatingPointError):
            return v
        is_changed = False
        for parameters, factor in factors:
            if not (np.isfinite(factor) and factor > 0.0) or abs(np.log(factor)) < _SPREAD_LOG_TOLERANCE:
                continue
            for j in (j for name in parameters for j in indices_by_parameter.get(name, ())):
                new_value = v[j] + np.log(factor) if problem.log[j] else v[j] * factor
                v[j] = float(np.clip(new_value, lower[j], upper[j]))
                is_changed = True
        if not is_changed:
            break
    return v


def _parameters(problem: CompiledProblem) -> Mapping[str, frozenset[str]]:
    """Return the parameters of the noise in each computed spread."""
    graphs = {name: problem.model.outputs[name] for name in problem.spreads}
    return {n: frozenset(s.name() for s in ca.symvar(g)) & problem.noise_parameters for n, g in graphs.items()}


def _factors(
    problem: CompiledProblem, staged: StagedProblem, v: Array, parameters_by_spread: Mapping[str, frozenset[str]]
) -> Iterable[tuple[frozenset[str], float]]:
    """Yield sets of parameters, and the factor by which the spreads that contain them are too small.

    Spreads of several outputs with the same parameters, such as one sigma times the scale of each, are pooled.
    """
    sets = {s: parameters_by_spread[s] for s in parameters_by_spread if parameters_by_spread[s]}
    values: dict[tuple[frozenset[str], type[Noise]], list[tuple[Array, Array, Array]]] = {}
    noise: dict[tuple[frozenset[str], type[Noise]], Noise] = {}
    for condition, (mu, spread, _) in zip(problem.conditions, staged.standardised(v), strict=True):
        rows, column = np.nonzero(condition.points.mask)
        m = condition.points.values[rows, column]
        for j, observable in enumerate(condition.observed):
            if observable is not None and observable.is_spread_computed and observable.predicted_outputs[1] in sets:
                is_column, key = column == j, (sets[observable.predicted_outputs[1]], type(observable.noise))
                values.setdefault(key, []).append((mu[is_column], spread[is_column], m[is_column]))
                noise[key] = observable.noise
    for key, parts in values.items():
        mu, spread, m = (np.concatenate([part[k] for part in parts]) for k in range(3))
        unit = float(np.median(spread))
        relative = spread / unit if noise[key].in_unit_of_output else np.ones_like(spread)
        yield key[0], noise[key].starting_spread(mu / relative, m / relative) / unit
