"""Bands of predictions from draws of the estimates: what a bootstrap or a sampler found, carried through the model.

Each draw is simulated; at each time by itself a band is between two quantiles of what the draws give.  A new measured
value has the noise of its draw beside, drawn from the noise model.  A draw that cannot be simulated could lie anywhere:
it counts below the lower limit and above the upper one, so that bands become wider by it, at last infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from castfit.simulate.simulate import SimulationError, first_nodes, predict
from castfit._support.status import InputError

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.conditions import Condition
    from castfit.integrate import IntegratorOptions
    from castfit.result.parts import Uncertainty
    from castfit.problem.compiled_problem import Posed

_MOST = 1000  # draws that are simulated, evenly chosen among all
_VALUES = 10  # new measured values per draw
_ASTRAY = 1e-3  # of an output's largest value, by which simulations of the estimate may differ


@runtime_checkable
class Ensemble(Protocol):
    """Draws of the estimates, as a `BootstrapResult` or a `SampleResult` has them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The estimated quantities."""
        ...

    @property
    def thetas(self) -> Array:
        """The draws, search scale, (n, n_theta)."""
        ...

    @property
    def sigmas(self) -> Mapping[str, Array]:
        """The unknown standard deviations that were eliminated, (n,) each."""
        ...


def with_ensemble(
    ensemble: Ensemble,
    known: Uncertainty,
    posed: Posed,
    theta: Array,
    prediction: Mapping[str, Mapping[str, Any]],
    options: IntegratorOptions,
    level: float,
    rng: np.random.Generator,
    *,
    noise: bool,
) -> dict[str, dict[str, Any]]:
    """Return a prediction with entries ``y lower`` and ``y upper`` for every output y.

    Parameters
    ----------
    ensemble : Ensemble
    known : Uncertainty
    posed : Posed
    theta : (n_theta,) array
        The estimate, of which `prediction` is.
    prediction : per experiment ``{"time": (n,), output: (n,), ...}``
    options : IntegratorOptions
    level : float
        Probability that a band covers, at each time by itself.
    rng : numpy.random.Generator
        For the noise.
    noise : bool
        Whether the band is that of a new measured value; NaN for outputs whose noise is not known.

    Raises
    ------
    InputError
        If the model is so unstable that simulations from the initial states say nothing.
    """
    times = {name: columns["time"] for name, columns in prediction.items()}
    _require_stable(posed, theta, prediction, times, options)
    chosen = np.unique(np.linspace(0, len(ensemble.thetas) - 1, min(len(ensemble.thetas), _MOST)).astype(int))
    drawn: dict[str, list[Mapping[str, Any] | None]] = {name: [] for name in prediction}
    for i in chosen:
        for name, at in times.items():
            drawn[name].append(_simulated(posed, ensemble.thetas[i], name, at, options))
    out: dict[str, dict[str, Any]] = {}
    for name, columns in prediction.items():
        condition = next(c for c in posed.conditions if c.name == name)
        failed = sum(d is None for d in drawn[name])
        out[name] = {"time": columns["time"]}
        for output in posed.model.output_names:
            values = np.array([d[output] for d in drawn[name] if d is not None]).reshape(-1, times[name].size)
            if noise:
                kept = [(i, d) for i, d in zip(chosen.tolist(), drawn[name], strict=True) if d is not None]
                parts = [_measured(ensemble, known, posed, condition, output, i, d, rng) for i, d in kept]
                values = np.concatenate(parts) if parts else values
            low, high = _limits(values, failed * (_VALUES if noise else 1), level)
            out[name] |= {output: np.asarray(columns[output]), f"{output} lower": low, f"{output} upper": high}
    return out


def _simulated(
    posed: Posed, theta: Array, name: str, times: Array, options: IntegratorOptions
) -> Mapping[str, Any] | None:
    try:
        found = predict(posed, theta, first_nodes(posed, theta), times={name: times}, integrator=options)[name]
    except SimulationError:
        return None
    return found if all(np.isfinite(found[o]).all() for o in posed.model.output_names) else None


def _require_stable(
    posed: Posed, theta: Array, prediction: Mapping[str, Any], times: Mapping[str, Array], options: IntegratorOptions
) -> None:
    """Refuse a model whose simulation from the initial states leaves that from all nodes."""
    for name, at in times.items():
        whole = _simulated(posed, theta, name, at, options)
        for output in posed.model.output_names:
            expected = np.asarray(prediction[name][output])
            size = float(np.abs(expected).max(initial=0.0))
            if whole is None or float(np.abs(whole[output] - expected).max(initial=0.0)) > _ASTRAY * (size or 1.0):
                said = f"'{name}' is so unstable that draws cannot be simulated from its initial states"
                raise InputError("predict", [f"{said}; use bands='linear', or shorter times"])


def _measured(
    ensemble: Ensemble,
    known: Uncertainty,
    posed: Posed,
    condition: Condition,
    output: str,
    i: int,
    columns: Mapping[str, Any],
    rng: np.random.Generator,
) -> Array:
    """Draw new measured values of an output, (_VALUES, n); NaN where nothing is said of its noise."""
    mu: Array = np.asarray(columns[output], dtype=float)
    of = condition.observed[posed.outputs.index(output)] if output in posed.outputs else None
    if of is None:
        return np.full((_VALUES, mu.size), np.nan)
    spread = spread_of(posed, condition, output, columns)
    if of.group >= 0:
        label = posed.groups[of.group]
        name = f"sigma({label})" if label else "sigma"
        unbiased = 1.0 if label else known.noise / known.sigmas[name]
        spread = spread * ensemble.sigmas[name][i] * unbiased
    return of.noise.sample(rng, np.broadcast_to(mu, (_VALUES, mu.size)), np.broadcast_to(spread, (_VALUES, mu.size)))


def spread_of(posed: Posed, condition: Condition, output: str, columns: Mapping[str, Any]) -> Array:
    """Return the spread of a measured output at the times of a prediction, (n,), where it is computed or given.

    One that is given is interpolated between measured times; an unknown one that is eliminated is its factor.
    """
    j = posed.outputs.index(output)
    of = condition.observed[j]
    assert of is not None
    if of.computed:
        return np.asarray(columns[of.predicted[1]], dtype=float)
    at = condition.points.mask[:, j]
    times: Array = np.asarray(columns["time"], dtype=float)
    return np.interp(times, condition.points.times[at], condition.points.sigma[at, j])


def _limits(values: Array, failed: int, level: float) -> tuple[Array, Array]:
    """Return quantiles (n,) of draws (k, n), of which further ones failed and could lie anywhere."""
    ends = np.array([np.full(values.shape[1], -np.inf), np.full(values.shape[1], np.inf)])
    p = ((0.5 - level / 2) * (len(values) + failed - 1) - failed) / max(len(values) - 1, 1)
    if p >= 0.0 and len(values):
        ends[:] = np.quantile(values, [p, 1.0 - p], axis=0)
    return ends[0], ends[1]
