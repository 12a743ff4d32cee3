"""What users say of measurement errors, read into known deviations and noise models, per measured quantity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.arguments import named, text
from castfit.densities.noise.base import Noise
from castfit.densities.noise.gaussian import Gaussian
from castfit.densities.noise.unknown import Unknown
from castfit.experiment.time_series import is_frame, read_sigma
from castfit._support.status import suggest

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.experiment.time_series import Series


@dataclass(frozen=True)
class Stated:
    """What was said of the errors of an experiment's measurements, by output.

    deviations : arrays like the values of the series, where numbers were given
    noise : the noise model, where more was said than that; its `sigma` is None (a number, or none needed), `Unknown` or
        an expression
    """

    deviations: dict[str, Array]
    noise: dict[str, Noise]


def read_noise(sigma: Any, noise: Any, time: Any, series: Mapping[str, Series], mistakes: list[str]) -> Stated:
    """Read what was given as `sigma` and as `noise`."""
    models = _models(noise, series, mistakes)
    spreads = {n: m.sigma for n, m in models.items() if _is_spread(m.sigma)}
    numbers = {n: m.sigma for n, m in models.items() if m.sigma is not None and not _is_spread(m.sigma)}
    twice = {*spreads, *numbers}
    if _is_spread(sigma):
        spreads = {**dict.fromkeys(series, sigma), **spreads}
        sigma, given = None, set(series)
    elif isinstance(sigma, Mapping) or is_frame(sigma):
        mapping = named("sigma", sigma, mistakes) if isinstance(sigma, Mapping) else None
        given = set(mapping or ())
        if mapping is not None:
            spreads = {**{n: s for n, s in mapping.items() if _is_spread(s)}, **spreads}
            sigma = {n: s for n, s in mapping.items() if not _is_spread(s)} or None
            mistakes += [
                f"sigma names '{n}', which is not in data: {suggest(n, series)}" for n in spreads if n not in series
            ]
    else:
        given = set[str]()
    mistakes += [
        f"sigma of '{n}' is given twice, as sigma= and in noise=; leave one out" for n in sorted(twice & given)
    ]
    without = {n for n, m in models.items() if not m.has_spread}
    if sigma is not None and not isinstance(sigma, Mapping) and not is_frame(sigma):
        wanted = {n: s for n, s in series.items() if n not in (*spreads, *numbers, *without)}
        deviations = read_sigma(sigma, time, wanted, mistakes) if wanted else {}
        if series and not wanted:
            mistakes.append("sigma is given, but noise= says it of every output, or needs none; leave sigma out")
    else:
        deviations = read_sigma(sigma, time, series, mistakes, elsewhere={*spreads, *models})
    deviations |= read_sigma(numbers or None, time, series, mistakes, elsewhere=set(series))
    mistakes += [
        f"{type(models[n]).__name__} of '{n}' takes no sigma; leave it out" for n in without if n in deviations
    ]
    out: dict[str, Noise] = {}
    for name in series:
        model, spread = models.get(name), spreads.get(name)
        if isinstance(spread, Unknown):
            mistakes += spread.mistakes(f"sigma of '{name}'")
        if model is None and spread is None:
            continue
        if model is not None and spread is None and name not in deviations and name not in without:
            spread = Unknown()
        if spread is not None and model is not None:
            mistakes += [f"noise of '{name}': {m}" for m in model.spread_mistakes()]
        out[name] = replace(Gaussian() if model is None else model, sigma=spread)
    return Stated(deviations, out)


def _models(noise: Any, series: Mapping[str, Series], mistakes: list[str]) -> dict[str, Noise]:
    """Read noise models by output, and check them and the values they are for."""
    if noise is None:
        return {}
    given = named("noise", noise, mistakes) if isinstance(noise, Mapping) else dict.fromkeys(series, noise)
    found: dict[str, Noise] = {}
    for name, model in given.items():
        if name not in series:
            mistakes.append(f"noise names '{name}', which is not in data: {suggest(name, series)}")
        elif not isinstance(model, Noise):
            write = f"{model.__name__}()" if isinstance(model, type) else "a noise model such as StudentT(df=4)"
            mistakes.append(f"noise of '{name}' is {text(model)}; give {write}")
        elif wrong := model.option_mistakes():
            mistakes += [f"noise of '{name}': {m}" for m in wrong]
        else:
            values = series[name].values
            mistakes += [f"'{name}': {m}" for m in model.value_mistakes(values[np.isfinite(values)])]
            found[name] = model
    return found


def _is_spread(sigma: Any) -> bool:
    """Tell an unknown standard deviation or an expression from numbers."""
    return isinstance(sigma, Unknown) or (isinstance(sigma, ca.SX) and sigma.numel() == 1 and not sigma.is_constant())
