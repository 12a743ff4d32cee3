"""Bands about predictions: how far outputs are uncertain because the estimates are, and how far values scatter.

Linear: with the sensitivities  G = dy / d theta  of the simulated outputs and the covariance C of the estimates,

    variance of the prediction   diag(G C G^T)
    variance of a new value      that, and the noise's own, as its model says for this prediction
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.experiment import Points
from castfit.noise.gaussian import Gaussian
from castfit.observed import Observed
from castfit.statistics import quantile
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from castfit._array import Array
    from castfit.conditions import Condition
    from castfit.integrate import IntegratorOptions
    from castfit.outcome import Estimates, Uncertainty
    from castfit.posed import Posed


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
    for name, columns in prediction.items():
        condition = next(c for c in posed.conditions if c.name == name)
        variance = _variance(found.theta, known.covariance, posed, condition, columns["time"], options)
        out[name] = {"time": columns["time"]}
        for j, output in enumerate(posed.model.output_names):
            value, spread = np.asarray(columns[output]), variance[:, j]
            if noise:
                spread = spread + _deviation(known, posed, condition, output, columns) ** 2
            reach = factor * np.sqrt(spread)
            out[name] |= {output: value, f"{output} lower": value - reach, f"{output} upper": value + reach}
    return out


def _variance(
    theta: Array, covariance: Array, posed: Posed, condition: Condition, times: Array, options: IntegratorOptions
) -> Array:
    """Return the variances of all outputs at times, (n, n_outputs), by the covariance of the estimates."""
    names = posed.model.output_names
    plain = Observed(Gaussian(), -1, ("",))
    unmeasured = Points(times, np.zeros((times.size, len(names))), np.ones((times.size, len(names))))
    asked = replace(
        posed,
        experiments=tuple(e for e in posed.experiments if e.name == condition.name),
        conditions=(replace(condition, points=unmeasured, observed=(plain,) * len(names)),),
        outputs=names,
        groups=(),
        spreads=(),
        noise_parameters=frozenset[str](),
    )
    # Scales that were eliminated are estimates here: there are no data that would determine them anew.
    staged = SingleShooting(options).transcribe(asked, theta).explicit()
    (blocks,) = staged.linearize(theta).jacobians
    slopes = np.zeros((times.size * len(names), theta.size))
    slopes[:, staged.layout.chains[0].theta] = blocks.R_q[0]
    slope = posed.natural_slope(theta)
    free = np.isfinite(np.diag(covariance))
    determined = covariance[np.ix_(free, free)] / np.outer(slope[free], slope[free])
    variance: Array = np.einsum("ri,ij,rj->r", slopes[:, free], determined, slopes[:, free])
    variance[(np.abs(slopes[:, np.isinf(np.diag(covariance))]) > 0.0).any(axis=1)] = np.inf
    return variance.reshape(times.size, len(names))


def _deviation(
    known: Uncertainty, posed: Posed, condition: Condition, output: str, columns: Mapping[str, Any]
) -> Array:
    """Return the standard deviation of a new value of an output, (n,); NaN where nothing is said of it."""
    times: Array = np.asarray(columns["time"])
    j = posed.outputs.index(output) if output in posed.outputs else -1
    of = condition.observed[j] if j >= 0 else None
    if of is None:
        return np.full(times.size, np.nan)
    spread: Array
    if of.computed:
        spread = np.asarray(columns[of.predicted[1]], dtype=float)
    else:
        at = condition.points.mask[:, j]
        spread = np.interp(times, condition.points.times[at], condition.points.sigma[at, j])
        if of.group >= 0:
            name = posed.groups[of.group]
            spread = spread * (known.sigmas[f"sigma({name})"] if name else known.noise)
    return of.noise.deviation(np.asarray(columns[output], dtype=float), spread)
