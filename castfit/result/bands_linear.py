"""Bands about predictions: how far outputs are uncertain because the estimates are, and how far values scatter.

Linear: with the sensitivities  G = dy / d theta  of the simulated outputs and the covariance C of the estimates,

    variance of the prediction   diag(G C G^T)
    variance of a new value      that, and the noise's own, as its model says for this prediction
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of, named, text
from castfit.result.bands_from_draws import Ensemble, spread_of
from castfit.simulate.output_sensitivities import simulated, slopes_of
from castfit.result.covariance import quantile
from castfit._support.status import suggest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from castfit._support.arrays import Array
    from castfit.problem.conditions import Condition
    from castfit.integrate import IntegratorOptions
    from castfit.model.model import Model
    from castfit.result.parts import Estimates, Uncertainty
    from castfit.problem.compiled_problem import Posed


def with_bands(
    found: Estimates,
    known: Uncertainty,
    posed: Posed,
    prediction: Mapping[str, Mapping[str, Any]],
    options: IntegratorOptions,
    level: float,
    *,
    noise: bool,
) -> dict[str, dict[str, Any]]:
    """Return a prediction with entries ``y lower`` and ``y upper`` for every output y.

    Parameters
    ----------
    found : Estimates
    known : Uncertainty
    posed : Posed
    prediction : per experiment ``{"time": (n,), output: (n,), ...}``
    options : IntegratorOptions
    level : float
        Probability that a band covers, at each time by itself.
    noise : bool
        Whether the band is that of a new measured value; NaN for outputs whose noise is not known.
    """
    factor = quantile(level, np.inf if known.absolute_sigma else known.dof)
    out: dict[str, dict[str, Any]] = {}
    by_name = {c.name: c for c in posed.conditions}
    for name, columns in prediction.items():
        condition = by_name[name]
        variance = _variance(found.theta, known.covariance, posed, condition, columns["time"], options)
        out[name] = {"time": columns["time"]}
        for j, output in enumerate(posed.model.output_names):
            value, spread = np.asarray(columns[output]), variance[:, j]
            if noise:
                spread = spread + deviation(known, posed, condition, output, columns) ** 2
            reach = factor * np.sqrt(spread)
            out[name] |= {output: value, f"{output} lower": value - reach, f"{output} upper": value + reach}
    return out


def bands_mistakes(bands: Any, names: Sequence[str]) -> list[str]:
    """Say what is wrong with what bands are to be made of, for estimates of these quantities."""
    if bands is None or is_one_of(bands, "linear", "profile"):
        return []
    if is_one_of(bands, "bootstrap", "sample"):
        return [f"bands='{bands}' needs draws; give what castfit.{bands}(result) returned: bands=drawn"]
    if not isinstance(bands, Ensemble):
        return [f"bands is {text(bands)}; choose 'linear' or 'profile', or give a bootstrap or a sample, or None"]
    if tuple(bands.names) != tuple(names):
        return ["bands are draws of another fit; give those of this result"]
    return [] if len(bands.thetas) else ["bands hold no draws: none of their fits succeeded"]


def read_outputs(outputs: Any, model: Model) -> tuple[dict[str, ca.SX], list[str]]:
    """Read expressions to be predicted; also return what is wrong with them."""
    mistakes: list[str] = []
    found: dict[str, ca.SX] = {}
    known = {s.name() for vector in model.system.arguments for s in ca.vertsplit(vector) if vector.numel()}
    known |= {*model.outputs}
    for name, value in named("outputs", outputs, mistakes).items():
        if name in model.output_names or name == "time":
            mistakes.append(f"outputs: '{name}' is an output already; choose another name")
        elif not isinstance(value, ca.SX) or value.numel() != 1:
            mistakes.append(f"outputs: '{name}' is {text(value)}; give a scalar SX expression of the model's symbols")
        else:
            strange = [s.name() for s in ca.symvar(value) if s.name() not in known]
            mistakes += [f"outputs: '{name}' contains '{s}': {suggest(s, sorted(known))}" for s in strange]
            found[name] = value
    return ({} if mistakes else found), mistakes


def _variance(
    theta: Array, covariance: Array, posed: Posed, condition: Condition, times: Array, options: IntegratorOptions
) -> Array:
    """Return the variances of all outputs at times, (n, n_outputs), by the covariance of the estimates."""
    n_outputs = len(posed.model.output_names)
    G = sensitivities(theta, posed, condition, times, options).reshape(times.size * n_outputs, theta.size)
    at = np.flatnonzero((G != 0.0).any(axis=0))  # the others, as those of other experiments, move nothing
    own, slope, size = G[:, at], posed.natural_slope(theta)[at], covariance.diagonal()[at]
    free = np.isfinite(size)
    determined = covariance[np.ix_(at[free], at[free])] / np.outer(slope[free], slope[free])
    variance: Array = np.einsum("ri,ij,rj->r", own[:, free], determined, own[:, free])
    variance[(np.abs(own[:, np.isinf(size)]) > 0.0).any(axis=1)] = np.inf
    return variance.reshape(times.size, n_outputs)


def sensitivities(theta: Array, posed: Posed, condition: Condition, times: Array, options: IntegratorOptions) -> Array:
    """Return d y / d theta of all outputs at times along the model's equations, (n, n_outputs, n_theta), search scale.

    Parameters
    ----------
    theta : (n_theta,) array
    posed : Posed
    condition : Condition
        The experiment.
    times : (n,) array
    options : IntegratorOptions
    """
    names = posed.model.output_names
    staged = simulated(posed, condition, times, theta, options, names)
    slopes = slopes_of(staged, staged.linearize(theta), theta)
    return slopes.reshape(times.size, len(names), theta.size)


def deviation(known: Uncertainty, posed: Posed, condition: Condition, output: str, columns: Mapping[str, Any]) -> Array:
    """Return the standard deviation of a new value of an output, (n,); NaN where nothing is said of it."""
    times: Array = np.asarray(columns["time"])
    j = posed.outputs.index(output) if output in posed.outputs else -1
    of = condition.observed[j] if j >= 0 else None
    if of is None:
        return np.full(times.size, np.nan)
    spread = spread_of(posed, condition, output, columns)
    if of.group >= 0:
        name = posed.groups[of.group]
        spread = spread * (known.sigmas[f"sigma({name})"] if name else known.noise)
    return of.noise.deviation(np.asarray(columns[output], dtype=float), spread)
