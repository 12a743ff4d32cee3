"""Data drawn anew about a fit's predictions.

Of a value m with prediction mu and spread s, whose noise is additive on some axis a (the logarithm of `LogNormal`),

    e = (a(mu) - a(m)) / s / sqrt(1 - h)     its error, made as large as errors are: residuals are smaller by their
                                             leverage h, as the fit goes along with every value
    residual      a(m*) = a(mu) - s e_k      k drawn among the values of the same output, e centred there  [Efron 1979]
    wild          a(m*) = a(mu) +- s e       with its own error, of random sign                 [Wu 1986, Liu 1988]
    parametric    m* drawn from the noise model at mu and s
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.densities.noise.likelihood import Likelihood
from castfit.drive.uncertainty.refits.per_datum import (
    ALONE,
    OutputPlace,
    leverages,
    measured_values,
    output_places,
    unit_spreads,
)
from castfit.problem.compiled_problem import Posed

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.result.result import Result


KINDS: Mapping[str, str] = {
    "residual": "residuals exchanged among the values of each output",
    "wild": "every value keeps the size of its residual, with random sign",
    "parametric": "data drawn from the noise models",
}


@dataclass(frozen=True, eq=False)
class Resampling:
    """New data about predictions, of one of the `KINDS`; those of each index are drawn from a stream of their own.

    predictions, spreads, errors (n_data,) by experiment, time and output; errors not for "parametric", NaN of values
    that are met exactly
    """

    kind: str
    predictions: Array
    spreads: Array
    errors: Array
    seed: int

    def problem(self, posed: Posed, index: int) -> Posed:
        """Return the problem with the data of this index."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(index,)))
        return posed.measuring(self.values(posed, rng))

    def values(self, posed: Posed, rng: np.random.Generator) -> list[Array]:
        """Draw values, per experiment arranged as its points."""
        out = [np.full(c.points.values.shape, np.nan) for c in posed.conditions]
        drawn = self._errors(posed, rng)
        for place in output_places(posed):
            mu, s = self.predictions[place.of], self.spreads[place.of]
            if self.kind == "parametric":
                values = place.noise.sample(rng, mu, s)
            else:
                values = place.noise.value_at(mu, s, drawn[place.of])
            out[place.condition][place.points, place.output] = values
        return out

    def _errors(self, posed: Posed, rng: np.random.Generator) -> Array:
        if self.kind == "wild":
            return np.nan_to_num(self.errors) * rng.choice([-1.0, 1.0], self.errors.size)
        drawn = np.zeros(self.errors.size)
        if self.kind == "residual":
            for own in pools(output_places(posed)).values():
                known = self.errors[own]
                drawn[own] = rng.choice(known[np.isfinite(known)], own.size)
        return drawn


def pools(those: Iterable[OutputPlace]) -> dict[int, Index]:
    """Return the values among which residuals are exchanged: those of one output in all experiments, by output."""
    of: dict[int, list[Index]] = {}
    for place in those:
        of.setdefault(place.output, []).append(place.of)
    return {output: np.concatenate(own) for output, own in of.items()}


def resampling(kind: str, posed: Posed, result: Result, seed: int) -> Resampling:
    """Make the recipe of a bootstrap from a result."""
    spreads, leverage = unit_spreads(posed, result), leverages(result)
    predictions, values = result.predictions.copy(), measured_values(posed)
    errors = np.full(values.size, np.nan)
    every = output_places(posed)
    for place in every:
        if place.noise.additive:
            mu, s, m = predictions[place.of], spreads[place.of], values[place.of]
            own = np.maximum(1.0 - leverage[place.of], 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                e = place.noise.error(mu, s, m) / np.sqrt(own)
            errors[place.of] = np.where((own > ALONE) & (s > 0.0), e, np.nan)
    # A spread that is a parameter is as small as the residuals; statistics correct it by the same factor.
    if kind == "parametric":
        for own in pools(place for place in every if place.noise.additive and place.computed).values():
            left = own.size - float(np.sum(leverage[own]))
            spreads[own] *= np.sqrt(own.size / left) if left > ALONE * own.size else 1.0
    if kind == "residual":
        for own in pools(every).values():
            errors[own] -= np.nanmean(errors[own]) if np.isfinite(errors[own]).any() else 0.0
    return Resampling(kind, predictions, spreads, errors, seed)


def kind_mistakes(kind: str, posed: Posed, result: Result) -> list[str]:
    """Say why data cannot be drawn in this way."""
    if kind == "parametric":
        mistakes = drawing_mistakes(posed)
    else:
        said: dict[str, str] = {}
        for place in output_places(posed):
            name, noise = posed.outputs[place.output], place.noise
            if not noise.additive:
                said[name] = f"residuals of '{name}' cannot stand for errors: {_reason(noise)}; use kind='parametric'"
        mistakes = list(said.values())
    if not mistakes and not np.isfinite(unit_spreads(posed, result)).all():
        mistakes.append("there are as many estimates as data, so that nothing is known of the noise; give sigma")
    if not mistakes and kind == "residual":
        leverage = leverages(result)
        mistakes += [
            f"every value of '{posed.outputs[j]}' is met exactly, so that there are no residuals; use kind='parametric'"
            for j, own in pools(output_places(posed)).items()
            if (1.0 - leverage[own] <= ALONE).all()
        ]
    return mistakes


def drawing_mistakes(posed: Posed) -> list[str]:
    """Say of which outputs no values can be drawn."""
    said: dict[str, str] = {}
    for place in output_places(posed):
        name, what = posed.outputs[place.output], type(place.noise).__name__
        if isinstance(place.noise, Likelihood):
            said[name] = f"values of '{name}' cannot be drawn from a cost that you wrote; use a noise model of castfit"
        elif not _samples(place.noise):
            said[name] = f"values of '{name}' cannot be drawn: {what} with these options is no density"
    return list(said.values())


def _samples(noise: Any) -> bool:
    """Whether values can be drawn from a noise model, found by drawing one."""
    try:
        noise.sample(np.random.default_rng(0), np.ones(1), np.ones(1))
    except ValueError:  # an InputError is one
        return False
    return True


def _reason(noise: Any) -> str:
    what = type(noise).__name__
    if getattr(noise, "censored", False):
        return "values beyond a limit of detection have none"
    if isinstance(noise, Likelihood):
        return "they are derivatives of a cost that you wrote"
    return f"counts are whole numbers, and scatter as much as their expectation says ({what})"
