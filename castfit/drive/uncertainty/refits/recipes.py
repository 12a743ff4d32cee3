"""Where the data of a fit come from: drawn anew about a fit's predictions, or the measured ones without some of them.

Of a value m with prediction mu and spread s, whose noise is additive on some axis a (the logarithm of `LogNormal`),

    e = (a(mu) - a(m)) / s / sqrt(1 - h)     its error, made as large as errors are: residuals are smaller by their
                                             leverage h, as the fit goes along with every value
    residual      a(m*) = a(mu) - s e_k      k drawn among the values of the same output, e centred there  [Efron 1979]
    wild          a(m*) = a(mu) +- s e       with its own error, of random sign                 [Wu 1986, Liu 1988]
    parametric    m* drawn from the noise model at mu and s
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from castfit.drive.uncertainty.refits.solution import ALONE, measured, places, pull, unit_spreads
from castfit.densities.noise.likelihood import Likelihood
from castfit.problem.compiled_problem import Posed

if TYPE_CHECKING:
    from castfit.result.result import Result

    Array = NDArray[np.float64]

KINDS: Mapping[str, str] = {
    "residual": "residuals exchanged among the values of each output",
    "wild": "every value keeps the size of its residual, with random sign",
    "parametric": "data drawn from the noise models",
}


@dataclass(frozen=True, eq=False)
class Redrawn:
    """New data about predictions.

    Attributes
    ----------
    kind : {"residual", "wild", "parametric"}
    predictions, spreads, errors : (n_data,) arrays
        By experiment, time and output; errors only for the first two kinds, NaN of values that are met exactly.
    seed : int
        Data of index i are drawn from a stream of their own.
    """

    kind: str
    predictions: NDArray[np.float64]
    spreads: NDArray[np.float64]
    errors: NDArray[np.float64]
    seed: int

    def problem(self, posed: Posed, index: int) -> Posed:
        """Return the problem with the data of this index."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(index,)))
        return posed.measuring(self.values(posed, rng))

    def values(self, posed: Posed, rng: np.random.Generator) -> list[Array]:
        """Draw values, per experiment arranged as its points."""
        out = [np.full(c.points.values.shape, np.nan) for c in posed.conditions]
        drawn = self._errors(posed, rng)
        for place in places(posed):
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
            for own in pools(posed):
                known = self.errors[own]
                drawn[own] = rng.choice(known[np.isfinite(known)], own.size)
        return drawn


def pools(posed: Posed) -> list[NDArray[np.intp]]:
    """List the values among which residuals are exchanged: those of one output in all experiments."""
    of: dict[int, list[NDArray[np.intp]]] = {}
    for place in places(posed):
        of.setdefault(place.output, []).append(place.of)
    return [np.concatenate(own) for own in of.values()]


def redrawn(kind: str, posed: Posed, result: Result, seed: int) -> Redrawn:
    """Make the recipe of a bootstrap from a result."""
    spreads, leverage = unit_spreads(posed, result), pull(posed, result).leverage
    predictions, values = result.predictions.copy(), measured(posed)
    errors = np.full(values.size, np.nan)
    by_output: dict[int, list[Any]] = {}
    for place in places(posed):
        if place.noise.additive:
            mu, s, m = predictions[place.of], spreads[place.of], values[place.of]
            own = np.maximum(1.0 - leverage[place.of], 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                e = place.noise.error(mu, s, m) / np.sqrt(own)
            errors[place.of] = np.where((own > ALONE) & (s > 0.0), e, np.nan)
            if place.computed:
                by_output.setdefault(place.output, []).append(place.of)
    # A spread that is a parameter is as small as the residuals; statistics correct it by the same factor.
    for own in (np.concatenate(parts) for parts in by_output.values()):
        left = own.size - float(np.sum(leverage[own]))
        if left > ALONE * own.size and kind == "parametric":
            spreads[own] *= np.sqrt(own.size / left)
    if kind == "residual":
        for own in pools(posed):
            errors[own] -= np.nanmean(errors[own]) if np.isfinite(errors[own]).any() else 0.0
    return Redrawn(kind, predictions, spreads, errors, seed)


def kind_mistakes(kind: str, posed: Posed, result: Result) -> list[str]:
    """Say why data cannot be drawn in this way."""
    if kind == "parametric":
        mistakes = undrawable(posed)
    else:
        said: dict[str, str] = {}
        for place in places(posed):
            name, noise = posed.outputs[place.output], place.noise
            if not noise.additive:
                said[name] = f"residuals of '{name}' cannot stand for errors: {_reason(noise)}; use kind='parametric'"
        mistakes = list(said.values())
    if not mistakes and not np.isfinite(unit_spreads(posed, result)).all():
        mistakes.append("there are as many estimates as data, so that nothing is known of the noise; give sigma")
    if not mistakes and kind == "residual":
        leverage = pull(posed, result).leverage
        mistakes += [
            f"every value of '{posed.outputs[j]}' is met exactly, so that there are no residuals; use kind='parametric'"
            for j, own in _by_output(posed).items()
            if (1.0 - leverage[own] <= ALONE).all()
        ]
    return mistakes


def undrawable(posed: Posed) -> list[str]:
    """Say of which outputs no values can be drawn."""
    said: dict[str, str] = {}
    for place in places(posed):
        name, what = posed.outputs[place.output], type(place.noise).__name__
        if isinstance(place.noise, Likelihood):
            said[name] = f"values of '{name}' cannot be drawn from a cost that you wrote; use a noise model of castfit"
        elif not _samples(place.noise):
            said[name] = f"values of '{name}' cannot be drawn: {what} with these options is no density"
    return list(said.values())


def _by_output(posed: Posed) -> dict[int, NDArray[np.intp]]:
    outputs = list(dict.fromkeys(place.output for place in places(posed)))
    return dict(zip(outputs, pools(posed), strict=True))


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


@dataclass(frozen=True)
class WithoutExperiment:
    """The data without one experiment, by its position in `names`."""

    names: tuple[str, ...]

    def problem(self, posed: Posed, index: int) -> Posed:
        """Return the problem without the experiment of this index."""
        return posed.only([name for i, name in enumerate(self.names) if i != index])


@dataclass(frozen=True)
class WithoutValue:
    """The data without one value, by its position among all."""

    def problem(self, posed: Posed, index: int) -> Posed:
        """Return the problem without the value of this index."""
        begin = 0
        for condition in posed.conditions:
            point, output = np.nonzero(condition.points.mask)
            if index < begin + point.size:
                i = index - begin
                return posed.without(condition.name, int(point[i]), posed.outputs[int(output[i])])
            begin += point.size
        raise IndexError(index)
