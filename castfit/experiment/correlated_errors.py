"""Errors that depend on each other, as users give them with `sigma`: alike in time, by a covariance, or joint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from castfit._support.arguments import is_one_of, named, reals
from castfit.densities.noise.correlation import (
    JOINT,
    Across,
    Correlated,
    Correlation,
    ErrorCovariance,
    InTime,
    Within,
    matrix_of,
    time_mistakes,
)
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.densities.noise.unknown import Unknown

if TYPE_CHECKING:
    from castfit.densities.noise.density import Noise
    from castfit.experiment.measurements import TimeSeries


def is_dependent(sigma: Any, series: Mapping[str, TimeSeries]) -> bool:
    """Check whether `sigma`, of all outputs or of some, specifies errors that depend on each other."""
    if isinstance(sigma, Mapping):
        given = cast("Mapping[Any, Any]", sigma)
        return any(_says(given[name], own, 1) for name, own in series.items() if name in given)
    return any(_says(sigma, own, len(series)) for own in series.values())


def _says(given: Any, own: TimeSeries, outputs: int) -> bool:
    return isinstance(given, (Correlated, ErrorCovariance)) or _is_joint(given) or _is_matrix(given, own, outputs)


def _is_joint(given: Any) -> TypeGuard[Unknown]:
    return isinstance(given, Unknown) and is_one_of(given.name, JOINT)


def _is_matrix(given: Any, own: TimeSeries, outputs: int) -> bool:
    """Distinguish a covariance matrix from an array of deviations, (n_times, n_outputs or n_replicates)."""
    if not isinstance(given, (list, tuple, np.ndarray)):
        return False
    array = reals(given)
    if array is None or array.ndim != 2 or len(array) < 2 or array.shape[0] != array.shape[1]:
        return False
    return len(array) == (own.times.size if outputs == 1 else outputs) and array.shape not in (
        own.values.shape, own.shape, (own.times.size, outputs),
    )  # fmt: skip


def read_dependence(
    sigma: Any, series: Mapping[str, TimeSeries], mistakes: list[str]
) -> tuple[dict[str, Any], dict[str, Correlation]]:
    """Split `sigma` into the standard deviations and the correlations of the errors, both by output."""
    found: dict[str, Correlation] = {}
    several, whole = len(series) > 1 and not isinstance(sigma, Mapping), cast("Any", sigma)
    if several and (isinstance(sigma, ErrorCovariance) or _is_matrix(sigma, next(iter(series.values())), len(series))):
        C = matrix_of("the covariance of all outputs", getattr(whole, "matrix", whole), mistakes)
        if C is None or len(C) != len(series):
            one = "" if C is None else f"the covariance of all outputs has {len(C)} rows for {len(series)} outputs"
            mistakes += [f"{one}; give one row each, or a mapping from outputs to matrices"] if one else []
            return dict.fromkeys(series, 1.0), found
        deviation = np.sqrt(np.diag(C))
        P = C / np.outer(deviation, deviation)
        return dict(zip(series, deviation.tolist(), strict=True)), dict.fromkeys(series, Across(tuple(series), P))
    given = named("sigma", sigma, mistakes) if isinstance(sigma, Mapping) else dict.fromkeys(series, sigma)
    rest, joint = dict(given), list[str]()
    for name, value in given.items():
        own, what = series.get(name), f"sigma of '{name}'"
        if own is None:
            continue
        if isinstance(value, Correlated):
            wrong = time_mistakes(what, value.time)
            mistakes += wrong + _repeated(name, own)
            rest[name] = Unknown() if value.sigma is None else value.sigma
            unknown = isinstance(value.time, Unknown)
            label = (value.time.name or name) if unknown else ""
            found[name] = InTime(label, None if unknown or wrong else float(value.time))
        elif isinstance(value, ErrorCovariance) or _is_matrix(value, own, 1):
            rest[name] = 1.0
            of_own = matrix_of(f"the covariance of '{name}'", getattr(value, "matrix", value), mistakes)
            if of_own is not None and len(of_own) != own.times.size:
                mistakes.append(f"the covariance of '{name}' has {len(of_own)} rows for {own.times.size} values")
            elif of_own is not None:
                mistakes += _repeated(name, own)
                rest[name] = deviation = np.sqrt(np.diag(of_own))
                found[name] = Within(of_own / np.outer(deviation, deviation), own.times.copy())
        elif _is_joint(value):
            joint.append(name)
            more = "unknown('joint') takes nothing else: the covariance of the outputs is estimated as a whole"
            mistakes += [] if value.plain else [f"{what}: {more}"]
    if len(joint) == 1:
        mistakes.append(
            f"sigma of '{joint[0]}' is unknown('joint'), the covariance between outputs, but no other output has it; "
            "give it to another one, or leave the name out"
        )
    found |= dict.fromkeys(joint, Across(tuple(joint), None, unknown=True))
    return rest, found


def _repeated(name: str, own: TimeSeries) -> list[str]:
    """Refuse several values at a time, whose errors would be the same."""
    known = np.isfinite(own.values)
    times = np.repeat(own.times, own.values.shape[1])[known.ravel()]
    same = times[1:][np.diff(times) == 0.0]
    said = "has several values, whose errors would be one; give their mean, or an experiment for each replicate"
    return [f"at t = {same[0]:g} '{name}' {said}"] if same.size else []


def misplaced(model: Noise) -> bool:
    """Check whether a noise model was given a correlation that only `sigma` of an experiment can specify."""
    said = getattr(model, "correlation", None)
    if said is not None and not isinstance(said, Correlation):
        return True
    return isinstance(model.sigma, (Correlated, ErrorCovariance)) or (_is_joint(model.sigma) and said is None)


def with_dependence(noise: dict[str, Noise], found: Mapping[str, Correlation], mistakes: list[str]) -> dict[str, Noise]:
    """Return noise models that know how errors depend on each other."""
    out = dict(noise)
    for name, correlation in found.items():
        model = noise.get(name, Gaussian())
        if not isinstance(model, (Gaussian, LogNormal)) or model.censored:
            what = "a limit of detection" if isinstance(model, (Gaussian, LogNormal)) else type(model).__name__
            mistakes.append(
                f"errors of '{name}' depend on each other, which {what} does not go with; use Gaussian() or LogNormal()"
            )
            continue
        if model.sigma is not None and not (isinstance(model.sigma, Unknown) and model.sigma.plain):
            mistakes.append(
                f"sigma of '{name}', whose errors depend on each other, is an expression or has bounds, a guess or a "
                "prior; give numbers, or unknown() with nothing but a name"
            )
            continue
        out[name] = replace(model, correlation=correlation)
    return out
