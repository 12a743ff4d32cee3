"""Bands about predictions and about estimated inputs: how far they are uncertain because the estimates are.

Linear: with the sensitivities  G = dy / d theta  of the simulated outputs and the covariance C of the estimates,

    variance of the prediction   diag(G C G^T)
    variance of a new value      that, and the noise's own, as its model says for this prediction

From draws of the estimates, as of a bootstrap or a sampler: each is simulated; at each time by itself a band is between
two quantiles of what the draws give.  A new measured value has the noise of its draw beside, drawn from the noise
model.  A draw that cannot be simulated could lie anywhere: it counts below the lower limit and above the upper one, so
that bands become wider by it, at last infinite.

Of an estimated input  g(t) = B(t) theta  the band is  g +- factor sqrt(diag(B C B^T)), and its exponential on a
logarithmic scale.  With a penalty C is the covariance of theta given the data under the density that the penalty
stands for: it holds the bias of a smooth curve as well as its variance (Wahba 1983, J. R. Stat. Soc. B 45, 133).

Bands by profile likelihood need fits: `castfit.drive.uncertainty.profile.bands`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of, read_mapping, read_reals, shorten_repr
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit.experiment.inputs import Placeholder
from castfit.problem.quantities import fixed_value
from castfit.simulate.output_sensitivities import output_derivatives, simulated
from castfit.simulate.simulate import SimulationError, first_nodes, predict

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.densities.noise.density import Noise
    from castfit.integrate import IntegratorOptions
    from castfit.model.model import Model
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem

_MAX_SIMULATED_DRAWS = 1000  # Parameter draws that are simulated at most, evenly chosen among all draws.
_N_NEW_VALUES = 10  # New measured values that are drawn for each parameter draw.
# Largest accepted deviation of a simulation from the estimate, as a fraction of the largest output.
_MAX_SIMULATION_DEVIATION = 1e-3
_N_INPUT_POINTS = 200  # Intervals of the time grid of an estimated input.

Columns = Mapping[str, Any]
"""Predictions of one experiment: ``{"time": (n,), output: (n,), ...}``."""


def bands_mistakes(bands: Any, names: Sequence[str]) -> list[str]:
    """List the mistakes in the argument `bands`, for estimates of the quantities `names`."""
    if bands is None or is_one_of(bands, "linear", "profile"):
        return []
    if is_one_of(bands, "bootstrap", "sample"):
        return [f"bands='{bands}' needs parameter samples; pass bands=castfit.{bands}(result)"]
    if not isinstance(bands, ParameterDraws):
        return [f"bands is {shorten_repr(bands)}; expected 'linear', 'profile', a bootstrap or sample result, or None"]
    if tuple(bands.names) != tuple(names):
        return ["bands were computed for another fit; pass samples of this result"]
    return [] if len(bands.thetas) else ["bands contain no samples: all fits failed"]


def read_outputs(outputs: Any, model: Model) -> tuple[dict[str, ca.SX], list[str]]:
    """Parse the expressions to be predicted; also return the list of mistakes in them."""
    mistakes: list[str] = []
    expressions: dict[str, ca.SX] = {}
    known_names = {s.name() for vector in model.system.arguments for s in ca.vertsplit(vector) if vector.numel()}
    known_names |= {*model.outputs}
    for name, value in read_mapping("outputs", outputs, mistakes).items():
        if name in model.output_names or name == "time":
            mistakes.append(f"outputs: '{name}' is an output already; choose another name")
        elif not isinstance(value, ca.SX) or value.numel() != 1:
            mistakes.append(
                f"outputs: '{name}' is {shorten_repr(value)}; expected a scalar SX expression of the model's symbols"
            )
        else:
            unknown_names = [s.name() for s in ca.symvar(value) if s.name() not in known_names]
            mistakes += [f"outputs: '{name}' contains '{s}': {suggest(s, sorted(known_names))}" for s in unknown_names]
            expressions[name] = value
    return ({} if mistakes else expressions), mistakes


def linear_bands(
    theta: Array,
    covariance: Array,
    compiled_problem: CompiledProblem,
    prediction: Mapping[str, Columns],
    options: IntegratorOptions,
    factor: float,
    noise: Callable[[Condition, str, Columns], Array] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return a prediction with entries ``y lower`` and ``y upper`` for every output y.

    covariance (n_theta, n_theta) : of the estimates, natural scale
    factor : half the width of a band in standard deviations
    noise : the standard deviation (n,) of a new value, for bands of such values: NaN where it is not known
    """
    bands: dict[str, dict[str, Any]] = {}
    by_name = {c.name: c for c in compiled_problem.conditions}
    for name, columns in prediction.items():
        condition = by_name[name]
        variance = _variance(theta, covariance, compiled_problem, condition, columns["time"], options)
        bands[name] = {"time": columns["time"]}
        for j, output in enumerate(compiled_problem.model.output_names):
            value, output_variance = np.asarray(columns[output]), variance[:, j]
            if noise is not None:
                output_variance = output_variance + noise(condition, output, columns) ** 2
            half_width = factor * np.sqrt(output_variance)
            bands[name] |= {output: value, f"{output} lower": value - half_width, f"{output} upper": value + half_width}
    return bands


def _variance(
    theta: Array,
    covariance: Array,
    compiled_problem: CompiledProblem,
    condition: Condition,
    times: Array,
    options: IntegratorOptions,
) -> Array:
    """Return the variances of all outputs at times, (n, n_outputs), by the covariance of the estimates."""
    n_outputs = len(compiled_problem.model.output_names)
    G = sensitivities(theta, compiled_problem, condition, times, options).reshape(times.size * n_outputs, theta.size)
    indices = np.flatnonzero(
        (G != 0.0).any(axis=0)
    )  # The other quantities, such as those of other experiments, have no effect.
    return _propagated(G[:, indices], covariance, indices, compiled_problem.natural_slope(theta)[indices]).reshape(
        times.size, n_outputs
    )


def _propagated(slopes: Array, covariance: Array, indices: Index, unit: Array) -> Array:
    """Return the variances (r,) of functions of the estimates, given their slopes (r, k) by k estimates.

    unit (k,) : units of the covariance in units of the slopes
    """
    variances = covariance.diagonal()[indices]
    is_finite = np.isfinite(variances)
    determined = covariance[np.ix_(indices[is_finite], indices[is_finite])] / np.outer(unit[is_finite], unit[is_finite])
    variance: Array = np.einsum("ri,ij,rj->r", slopes[:, is_finite], determined, slopes[:, is_finite])
    variance[(slopes[:, np.isinf(variances)] != 0.0).any(axis=1)] = np.inf
    return variance


def sensitivities(
    theta: Array, compiled_problem: CompiledProblem, condition: Condition, times: Array, options: IntegratorOptions
) -> Array:
    """Return d y / d theta of outputs at times along the model's equations: (n, n_outputs, n_theta), search scale."""
    names = compiled_problem.model.output_names
    staged = simulated(compiled_problem, condition, times, theta, options, names)
    return output_derivatives(staged, staged.linearize(theta), theta).reshape(times.size, len(names), theta.size)


def deviation(
    sigmas: Mapping[str, float], compiled_problem: CompiledProblem, condition: Condition, output: str, columns: Columns
) -> Array:
    """Return the standard deviation of a new value of an output, (n,); NaN if no noise is specified for the output.

    sigmas : unbiased estimates of those that are unknown, by name
    """
    mu = np.asarray(columns[output], dtype=float)
    noise_and_spread = _noise_of(sigmas, compiled_problem, condition, output, columns)
    return (
        np.full(mu.size, np.nan) if noise_and_spread is None else noise_and_spread[0].deviation(mu, noise_and_spread[1])
    )


def _noise_of(
    sigmas: Mapping[str, float], compiled_problem: CompiledProblem, condition: Condition, output: str, columns: Columns
) -> tuple[Noise, Array] | None:
    """Return the noise of an output and its spreads (n,) at the times of a prediction, or None if none is specified.

    Spreads that are given are interpolated between measured times.
    """
    j = compiled_problem.outputs.index(output) if output in compiled_problem.outputs else -1
    observable = condition.observed[j] if j >= 0 else None
    if observable is None:
        return None
    if observable.is_spread_computed:
        spread = np.asarray(columns[observable.predicted_outputs[1]], dtype=float)
    else:
        is_measured, points = condition.points.mask[:, j], condition.points
        spread = np.interp(
            np.asarray(columns["time"], dtype=float), points.times[is_measured], points.sigma[is_measured, j]
        )
    if observable.group >= 0:
        name = compiled_problem.groups[observable.group]
        spread = spread * sigmas[f"sigma({name})" if name else "sigma"]
    return observable.noise, spread


@runtime_checkable
class ParameterDraws(Protocol):
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


def quantile_bands(
    draws: ParameterDraws,
    theta: Array,
    compiled_problem: CompiledProblem,
    prediction: Mapping[str, Columns],
    options: IntegratorOptions,
    level: float,
    rng: np.random.Generator,
    unbiased: Mapping[str, float] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return a prediction with entries ``y lower`` and ``y upper`` for every output y.

    theta (n_theta,) : the estimate, of which `prediction` is
    unbiased : for bands of new measured values the unbiased estimates of unknown sigmas, in units of the most likely
        ones; such bands are NaN for outputs whose noise is not known

    Raises InputError: if the model is too unstable for simulations from the initial states.
    """
    times = {name: columns["time"] for name, columns in prediction.items()}
    _require_stable(compiled_problem, theta, prediction, times, options)
    draw_indices = np.unique(
        np.linspace(0, len(draws.thetas) - 1, min(len(draws.thetas), _MAX_SIMULATED_DRAWS)).astype(int)
    )
    simulations: dict[str, list[Mapping[str, Any] | None]] = {name: [] for name in prediction}
    for i in draw_indices:
        for name, experiment_times in times.items():
            simulations[name].append(_simulated(compiled_problem, draws.thetas[i], name, experiment_times, options))
    bands: dict[str, dict[str, Any]] = {}
    for name, columns in prediction.items():
        condition = next(c for c in compiled_problem.conditions if c.name == name)
        failed = sum(d is None for d in simulations[name])
        bands[name] = {"time": columns["time"]}
        for output in compiled_problem.model.output_names:
            values = np.array([d[output] for d in simulations[name] if d is not None]).reshape(-1, times[name].size)
            if unbiased is not None:
                samples: list[Array] = []
                for i, d in zip(draw_indices.tolist(), simulations[name], strict=True):
                    if d is not None:
                        sigmas = {
                            s: float(sigma_draws[i]) * unbiased.get(s, 1.0) for s, sigma_draws in draws.sigmas.items()
                        }
                        noise_and_spread = _noise_of(sigmas, compiled_problem, condition, output, d)
                        samples.append(_measured(noise_and_spread, np.asarray(d[output], dtype=float), rng))
                values = np.concatenate(samples) if samples else values
            low, high = _limits(values, failed * (1 if unbiased is None else _N_NEW_VALUES), level)
            bands[name] |= {output: np.asarray(columns[output]), f"{output} lower": low, f"{output} upper": high}
    return bands


def _simulated(
    compiled_problem: CompiledProblem, theta: Array, name: str, times: Array, options: IntegratorOptions
) -> Mapping[str, Any] | None:
    try:
        prediction = predict(
            compiled_problem, theta, first_nodes(compiled_problem, theta), times={name: times}, integrator=options
        )[name]
    except SimulationError:
        return None
    return prediction if all(np.isfinite(prediction[o]).all() for o in compiled_problem.model.output_names) else None


def _require_stable(
    compiled_problem: CompiledProblem,
    theta: Array,
    prediction: Mapping[str, Any],
    times: Mapping[str, Array],
    options: IntegratorOptions,
) -> None:
    """Refuse a model whose simulation from the initial states leaves that from all nodes."""
    for name, experiment_times in times.items():
        simulation = _simulated(compiled_problem, theta, name, experiment_times, options)
        for output in compiled_problem.model.output_names:
            expected = np.asarray(prediction[name][output])
            scale = float(np.abs(expected).max(initial=0.0))
            if simulation is None or float(
                np.abs(simulation[output] - expected).max(initial=0.0)
            ) > _MAX_SIMULATION_DEVIATION * (scale or 1.0):
                message = f"'{name}' is unstable: samples cannot be simulated from the initial states"
                raise InputError("predict", [f"{message}; use bands='linear' or shorter times"])


def _measured(noise_and_spread: tuple[Noise, Array] | None, mu: Array, rng: np.random.Generator) -> Array:
    """Draw new measured values about predictions (n,), (_N_NEW_VALUES, n); NaN if no noise is specified."""
    if noise_and_spread is None:
        return np.full((_N_NEW_VALUES, mu.size), np.nan)
    noise, spread = noise_and_spread
    return noise.sample(
        rng, np.broadcast_to(mu, (_N_NEW_VALUES, mu.size)), np.broadcast_to(spread, (_N_NEW_VALUES, mu.size))
    )


def _limits(values: Array, failed: int, level: float) -> tuple[Array, Array]:
    """Return quantiles (n,) of draws (k, n), of which further ones failed and could lie anywhere."""
    ends = np.array([np.full(values.shape[1], -np.inf), np.full(values.shape[1], np.inf)])
    p = ((0.5 - level / 2) * (len(values) + failed - 1) - failed) / max(len(values) - 1, 1)
    if p >= 0.0 and len(values):
        ends[:] = np.quantile(values, [p, 1.0 - p], axis=0)
    return ends[0], ends[1]


def input_bands(
    theta: Array, log: Array, covariance: Array, compiled_problem: CompiledProblem, times: Any, factor: float
) -> dict[str, dict[str, Array]]:
    """Return per experiment ``{"time": (n,), u: (n,), "u lower": (n,), "u upper": (n,)}`` for every estimated input u.

    theta, log (n_theta,) : estimates in search scale, and which are logarithms (1, else 0)
    times (n,), or by experiment : by default evenly from the start of each experiment to its end, and the knots
    factor : half the width of a band in standard deviations; NaN where they are not known
    """
    inputs_by_experiment = {
        c.name: [u for u in c.inputs if isinstance(u, Placeholder)] for c in compiled_problem.conditions
    }
    mistakes: list[str] = []
    if not any(inputs_by_experiment.values()):
        mistakes.append("the problem has no estimated input; set Input.estimated(...) in an experiment")
    times_argument = times if hasattr(times, "keys") else dict.fromkeys(inputs_by_experiment, times)
    requested_times = read_mapping("times", times_argument, mistakes)
    mistakes += [
        f"times has the unknown experiment '{n}': {suggest(n, inputs_by_experiment)}"
        for n in requested_times
        if n not in inputs_by_experiment
    ]
    band_times: dict[str, Array] = {}
    for condition in compiled_problem.conditions:
        if condition.name in requested_times and inputs_by_experiment[condition.name]:
            experiment_times = requested_times[condition.name]
            band_times[condition.name] = _times(
                condition, inputs_by_experiment[condition.name], experiment_times, mistakes
            )
    raise_if_mistakes("estimated_inputs", mistakes)
    bands: dict[str, dict[str, Array]] = {}
    for condition in compiled_problem.conditions:
        if condition.name in band_times:
            t = band_times[condition.name]
            bands[condition.name] = {"time": t}
            for placeholder in inputs_by_experiment[condition.name]:
                bands[condition.name] |= _curve(
                    placeholder, condition, t, theta, log, covariance, compiled_problem, factor
                )
    return bands


def _times(condition: Condition, inputs: list[Placeholder], requested_times: Any, mistakes: list[str]) -> Array:
    first_time, last_time = max(u.spec.span[0] for u in inputs), min(u.spec.span[1] for u in inputs)
    if requested_times is None:
        grid = np.linspace(condition.start, condition.end, _N_INPUT_POINTS + 1)
        knots = np.concatenate([u.spec.knots for u in inputs])
        return np.unique(np.concatenate([grid, knots[(knots >= condition.start) & (knots <= condition.end)]]))
    t = read_reals(requested_times)
    label = f"the times of '{condition.name}'"
    if t is None or t.ndim > 1 or not t.size or not np.isfinite(t).all():
        mistakes.append(f"{label} are {shorten_repr(requested_times)}; expected finite numbers")
        return np.zeros(1)
    t = np.atleast_1d(t)
    if t.min() < first_time or t.max() > last_time:
        mistakes.append(
            f"{label} range from {t.min():g} to {t.max():g}, but the knots from {first_time:g} to {last_time:g}; "
            "pass times within the knots"
        )
    return t


def _curve(
    placeholder: Placeholder,
    condition: Condition,
    times: Array,
    theta: Array,
    log: Array,
    covariance: Array,
    compiled_problem: CompiledProblem,
    factor: float,
) -> dict[str, Array]:
    """Return an estimated input of one experiment with its limits, (n,) each."""
    spec, index_by_quantity = (
        placeholder.spec,
        {(q.symbol_name, q.experiment): j for j, q in enumerate(compiled_problem.quantities)},
    )
    names = spec.names(placeholder.input_name)
    indices = np.array(
        [index_by_quantity.get((n, condition.name), index_by_quantity.get((n, None), -1)) for n in names], dtype=np.intp
    )
    raise_if_mistakes("estimated_inputs", [
        f"'{n}' was fixed in the posed problem, which does not tell its value; take the result of the Problem"
        for n, j in zip(names, indices, strict=True) if j < 0 and not compiled_problem.parameters[n].fixed
    ])  # fmt: skip
    is_estimated = indices >= 0  # the others are numbers
    j = indices[is_estimated]
    values = np.array([fixed_value(compiled_problem.parameters[n], condition.name) for n in names])
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(values) if spec.log else values
        converted_values = np.log(theta[j]) if spec.log else np.exp(theta[j])
    values[is_estimated] = np.where(log[j] == spec.log, theta[j], converted_values)
    basis = spec.interpolation(times)
    g = basis @ values
    slopes = basis[:, is_estimated] / (
        compiled_problem.to_natural(theta)[j] if spec.log else 1.0
    )  # by the covariance's natural values
    half_width = factor * np.sqrt(_propagated(slopes, covariance, j, np.ones(j.size)))
    with np.errstate(over="ignore"):
        low, middle, high = (np.exp(v) if spec.log else v for v in (g - half_width, g, g + half_width))
    name = placeholder.input_name
    return {name: middle, f"{name} lower": low, f"{name} upper": high}
