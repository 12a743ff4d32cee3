"""Correlated errors as passed in `sigma`: autocorrelated in time, with a covariance, or joint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from castfit._support.arguments import is_one_of, read_mapping, read_reals
from castfit.densities.noise.correlation import (
    JOINT,
    Correlated,
    Correlation,
    CrossOutputCorrelation,
    ErrorCovariance,
    OutputCorrelation,
    TimeCorrelation,
    read_covariance,
    time_mistakes,
)
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.densities.noise.unknown import UnknownSigma

if TYPE_CHECKING:
    from castfit.densities.noise.density import Noise
    from castfit.experiment.measurements import TimeSeries


def is_dependent(sigma: Any, series: Mapping[str, TimeSeries]) -> bool:
    """Check whether `sigma`, of all outputs or of some, specifies errors that depend on each other."""
    if isinstance(sigma, Mapping):
        sigma_by_output = cast("Mapping[Any, Any]", sigma)
        return any(
            _says(sigma_by_output[name], output_series, 1)
            for name, output_series in series.items()
            if name in sigma_by_output
        )
    return any(_says(sigma, output_series, len(series)) for output_series in series.values())


def _says(sigma: Any, series: TimeSeries, n_outputs: int) -> bool:
    return isinstance(sigma, (Correlated, ErrorCovariance)) or _is_joint(sigma) or _is_matrix(sigma, series, n_outputs)


def _is_joint(sigma: Any) -> TypeGuard[UnknownSigma]:
    return isinstance(sigma, UnknownSigma) and is_one_of(sigma.name, JOINT)


def _is_matrix(sigma: Any, series: TimeSeries, n_outputs: int) -> bool:
    """Distinguish a covariance matrix from an array of deviations, (n_times, n_outputs or n_replicates)."""
    if not isinstance(sigma, (list, tuple, np.ndarray)):
        return False
    array = read_reals(sigma)
    if array is None or array.ndim != 2 or len(array) < 2 or array.shape[0] != array.shape[1]:
        return False
    return len(array) == (series.times.size if n_outputs == 1 else n_outputs) and array.shape not in (
        series.values.shape, series.shape, (series.times.size, n_outputs),
    )  # fmt: skip


def read_dependence(
    sigma: Any, series: Mapping[str, TimeSeries], mistakes: list[str]
) -> tuple[dict[str, Any], dict[str, Correlation]]:
    """Split `sigma` into the standard deviations and the correlations of the errors, both by output."""
    correlations: dict[str, Correlation] = {}
    is_shared, untyped_sigma = len(series) > 1 and not isinstance(sigma, Mapping), cast("Any", sigma)
    if is_shared and (
        isinstance(sigma, ErrorCovariance) or _is_matrix(sigma, next(iter(series.values())), len(series))
    ):
        C = read_covariance("the covariance of all outputs", getattr(untyped_sigma, "matrix", untyped_sigma), mistakes)
        if C is None or len(C) != len(series):
            size_fault = (
                "" if C is None else f"the covariance of all outputs has {len(C)} rows for {len(series)} outputs"
            )
            mistakes += (
                [f"{size_fault}; give one row each, or a mapping from outputs to matrices"] if size_fault else []
            )
            return dict.fromkeys(series, 1.0), correlations
        deviation = np.sqrt(np.diag(C))
        P = C / np.outer(deviation, deviation)
        return dict(zip(series, deviation.tolist(), strict=True)), dict.fromkeys(
            series, CrossOutputCorrelation(tuple(series), P)
        )
    sigma_by_output = (
        read_mapping("sigma", sigma, mistakes) if isinstance(sigma, Mapping) else dict.fromkeys(series, sigma)
    )
    remaining_sigma, joint = dict(sigma_by_output), list[str]()
    for name, value in sigma_by_output.items():
        output_series, subject = series.get(name), f"sigma of '{name}'"
        if output_series is None:
            continue
        if isinstance(value, Correlated):
            time_faults = time_mistakes(subject, value.time)
            mistakes += time_faults + _refuse_replicates(name, output_series)
            remaining_sigma[name] = UnknownSigma() if value.sigma is None else value.sigma
            unknown = isinstance(value.time, UnknownSigma)
            label = (value.time.name or name) if unknown else ""
            correlations[name] = TimeCorrelation(label, None if unknown or time_faults else float(value.time))
        elif isinstance(value, ErrorCovariance) or _is_matrix(value, output_series, 1):
            remaining_sigma[name] = 1.0
            covariance = read_covariance(f"the covariance of '{name}'", getattr(value, "matrix", value), mistakes)
            if covariance is not None and len(covariance) != output_series.times.size:
                mistakes.append(
                    f"the covariance of '{name}' has {len(covariance)} rows for {output_series.times.size} values"
                )
            elif covariance is not None:
                mistakes += _refuse_replicates(name, output_series)
                remaining_sigma[name] = deviation = np.sqrt(np.diag(covariance))
                correlations[name] = OutputCorrelation(
                    covariance / np.outer(deviation, deviation), output_series.times.copy()
                )
        elif _is_joint(value):
            joint.append(name)
            restriction = "unknown('joint') takes nothing else: the covariance of the outputs is estimated as a whole"
            mistakes += [] if value.is_unspecified else [f"{subject}: {restriction}"]
    if len(joint) == 1:
        mistakes.append(
            f"sigma of '{joint[0]}' is unknown('joint'), the covariance between outputs, but no other output has it; "
            "give it to another one, or leave the name out"
        )
    correlations |= dict.fromkeys(joint, CrossOutputCorrelation(tuple(joint), None, unknown=True))
    return remaining_sigma, correlations


def _refuse_replicates(name: str, series: TimeSeries) -> list[str]:
    """Refuse several values at a time, whose errors would be the same."""
    is_measured = np.isfinite(series.values)
    times = np.repeat(series.times, series.values.shape[1])[is_measured.ravel()]
    repeated_times = times[1:][np.diff(times) == 0.0]
    message = "has several values, whose errors would be one; give their mean, or an experiment for each replicate"
    return [f"at t = {repeated_times[0]:g} '{name}' {message}"] if repeated_times.size else []


def is_misplaced_dependence(model: Noise) -> bool:
    """Check whether a noise model was given a correlation that only `sigma` of an experiment can specify."""
    correlation = getattr(model, "correlation", None)
    if correlation is not None and not isinstance(correlation, Correlation):
        return True
    return isinstance(model.sigma, (Correlated, ErrorCovariance)) or (_is_joint(model.sigma) and correlation is None)


def with_dependence(
    noise: dict[str, Noise], correlations: Mapping[str, Correlation], mistakes: list[str]
) -> dict[str, Noise]:
    """Return noise models that know how errors depend on each other."""
    dependent_noise = dict(noise)
    for name, correlation in correlations.items():
        model = noise.get(name, Gaussian())
        if not isinstance(model, (Gaussian, LogNormal)) or model.censored:
            noise_kind = "a limit of detection" if isinstance(model, (Gaussian, LogNormal)) else type(model).__name__
            mistakes.append(
                f"correlated errors of '{name}' cannot be combined with {noise_kind}; use Gaussian() or LogNormal()"
            )
            continue
        if model.sigma is not None and not (isinstance(model.sigma, UnknownSigma) and model.sigma.is_unspecified):
            mistakes.append(
                f"sigma of '{name}', whose errors depend on each other, is an expression or has bounds, a guess or a "
                "prior; give numbers, or unknown() with nothing but a name"
            )
            continue
        dependent_noise[name] = replace(model, correlation=correlation)
    return dependent_noise
