"""Intervals and verdicts of weakly determined models against their profiles: flat bounds, folds, ridges, and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import castfit as cf
from castfit.result.identifiability import CORRELATED_WITH, NOT_IDENTIFIABLE, WELL_DETERMINED
from castfit.result.interval_ends import APPROXIMATE, with_interval_checks

N_DATA, NOISE = 30, 0.04
FINISHED = ("bounded", "open", "flat", "at a bound")
MAX_BOUND_FACTOR = 30.0  # Factor of the truth by which the bounds of logarithmic quantities differ from it.


@dataclass(frozen=True)
class Case:
    """A model with its truth; `open_names` are not identifiable, quantities with `bounds` are linear.

    equations : function of the symbols, by name, that returns a mapping from states to derivatives
    """

    equations: Callable[[Any], Mapping[str, Any]]
    truth: Mapping[str, float]
    initial: Mapping[str, float]
    output: Callable[[Any], Any]
    end: float
    open_names: frozenset[str] = frozenset()
    estimated_starts: tuple[str, ...] = ()
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class Symbols(dict[str, Any]):
    """Symbols by name, as attributes."""

    __getattr__ = dict.__getitem__


def chain(s: Any) -> dict[str, Any]:
    return {"a": -s.k1 * s.a, "b": s.k1 * s.a - s.k2 * s.b}


def saturation(s: Any) -> dict[str, Any]:
    return {"s": -s.v * s.s / (s.km + s.s)}


def logistic(s: Any) -> dict[str, Any]:
    return {"x": s.r * s.x * (1 - s.x / s.cap)}


def epidemic(s: Any) -> dict[str, Any]:
    return {"S": -s.beta * s.S * s.I, "I": s.beta * s.S * s.I - s.gamma * s.I}


def gene(s: Any) -> dict[str, Any]:
    return {"m": s.make - s.loss * s.m, "p": s.translate * s.m - s.decay * s.p}


def tissue(s: Any) -> dict[str, Any]:
    return {"x": -(s.out + s.there) * s.x + s.back * s.y, "y": s.there * s.x - s.back * s.y}


def decay(s: Any) -> dict[str, Any]:
    return {"x": -s.k * s.x}


LOTKA = {"a": 0.8, "b": 0.5, "c": 0.4, "d": 0.6}
CASES = {
    "decay": Case(decay, {"k": 0.7}, {"x": 1.0}, lambda s: s.x, 4),
    "scale and start": Case(
        decay, {"k": 0.7, "f": 3.0}, {"x": 1.0}, lambda s: s.f * s.x, 4, frozenset({"f", "x(0)"}), ("x",)
    ),
    "sum of rates": Case(
        lambda s: {"x": -(s.k + s.m) * s.x}, {"k": 0.5, "m": 0.2}, {"x": 1.0}, lambda s: s.x, 4, frozenset("km")
    ),
    "product of rates": Case(
        lambda s: {"x": -s.k * s.m * s.x}, {"k": 0.5, "m": 1.2}, {"x": 1.0}, lambda s: s.x, 4, frozenset("km")
    ),
    "ratio of rates": Case(
        lambda s: {"x": -s.k / s.m * s.x}, {"k": 0.5, "m": 1.2}, {"x": 1.0}, lambda s: s.x, 4, frozenset("km")
    ),
    "one temperature": Case(
        lambda s: {"x": -1e6 * s.A * np.exp(1) ** (-s.E / 2.494) * s.x}, {"A": 2.0, "E": 40.0}, {"x": 1.0},
        lambda s: s.x, 5.0, frozenset("AE"),
    ),
    "difference at a bound": Case(
        lambda s: {"x": (s.b - s.d) * s.x}, {"b": 0.3, "d": 0.0}, {"x": 1.0}, lambda s: s.x, 5, frozenset("bd"),
        bounds={"b": (0.0, 2.0), "d": (0.0, 1.0)},
    ),
    "difference at an upper bound": Case(
        lambda s: {"x": (s.b - s.d) * s.x}, {"b": 1.3, "d": 1.0}, {"x": 1.0}, lambda s: s.x, 5, frozenset("bd"),
        bounds={"b": (0.0, 2.0), "d": (0.0, 1.0)},
    ),
    "early epidemic": Case(
        epidemic, {"beta": 0.42, "gamma": 0.0}, {"S": 1.0, "I": 1e-7}, lambda s: 1e7 * s.I, 11,
        frozenset({"beta", "gamma"}),
        bounds={"beta": (0.0, 10.0), "gamma": (0.0, 1.0)},
    ),
    "bound that data choose": Case(
        lambda s: {"x": s.b - s.d * s.x}, {"b": 1.0, "d": 0.02}, {"x": 1.0}, lambda s: s.x, 6,
        bounds={"b": (0.0, 9.0), "d": (0.0, 9.0)},
    ),
    "two bounds": Case(
        lambda s: {"x": s.b - s.d * s.x - s.e * s.x**2}, {"b": 1.0, "d": 0.01, "e": 0.002}, {"x": 1.0},
        lambda s: s.x, 6,
        bounds={"b": (0.0, 9.0), "d": (0.0, 2.0), "e": (0.0, 2.0)},
    ),
    "equal rates": Case(chain, {"k1": 0.6, "k2": 0.6}, {"a": 1.0, "b": 0.0}, lambda s: s.b, 9, estimated_starts=("a",)),
    "nearly equal rates": Case(chain, {"k1": 0.6, "k2": 0.5}, {"a": 1.0, "b": 0.0}, lambda s: s.b, 9),
    "flip-flop": Case(
        lambda s: {"g": -s.ka * s.g, "c": s.ka * s.g / s.V - s.ke * s.c}, {"ka": 0.6, "ke": 0.5, "V": 2.0},
        {"g": 5.0, "c": 0.0}, lambda s: s.c, 10,
    ),
    "chain with scale": Case(
        chain, {"k1": 1.0, "k2": 0.4, "f": 2.0}, {"a": 1.0, "b": 0.0}, lambda s: s.f * s.b, 8,
        frozenset({"f", "a(0)"}), ("a",),
    ),
    "three equal rates": Case(
        lambda s: {"a": -s.k1 * s.a, "b": s.k1 * s.a - s.k2 * s.b, "c": s.k2 * s.b - s.k3 * s.c},
        {"k1": 0.6, "k2": 0.6, "k3": 0.6}, {"a": 1.0, "b": 0.0, "c": 0.0}, lambda s: s.c, 14,
    ),
    "early logistic": Case(logistic, {"r": 0.8, "cap": 20.0}, {"x": 0.2}, lambda s: s.x, 3.5),
    "logistic": Case(logistic, {"r": 0.8, "cap": 10.0}, {"x": 0.5}, lambda s: s.x, 9, estimated_starts=("x",)),
    "logistic with scale": Case(
        logistic, {"r": 0.8, "cap": 10.0, "f": 2.0}, {"x": 0.5}, lambda s: s.f * s.x, 9,
        frozenset({"cap", "f", "x(0)"}), ("x",),
    ),
    "saturation with scale": Case(
        saturation, {"v": 1.0, "km": 0.5, "f": 2.0}, {"s": 3.0}, lambda s: s.f * s.s, 6,
        frozenset({"v", "km", "f", "s(0)"}), ("s",),
    ),
    "unsaturated": Case(saturation, {"v": 1.0, "km": 8.0}, {"s": 0.5}, lambda s: s.s, 15),
    "half saturated": Case(saturation, {"v": 1.0, "km": 1.0}, {"s": 1.5}, lambda s: s.s, 5),
    "saturated": Case(saturation, {"v": 1.0, "km": 0.05}, {"s": 4.0}, lambda s: s.s, 3.5),
    "epidemic": Case(epidemic, {"beta": 0.5, "gamma": 0.15}, {"S": 0.99, "I": 0.01}, lambda s: s.I, 50),
    "epidemic with scale": Case(
        epidemic, {"beta": 0.5, "gamma": 0.15, "f": 2.0}, {"S": 0.99, "I": 0.01}, lambda s: s.f * s.I, 50,
        frozenset({"beta", "f", "S(0)", "I(0)"}), ("S", "I"),
    ),
    "gene expression": Case(
        gene, {"make": 2.0, "loss": 1.0, "translate": 3.0, "decay": 0.3}, {"m": 0.0, "p": 0.0}, lambda s: s.p, 12,
        frozenset({"make", "translate"}),
    ),
    "two compartments": Case(
        tissue, {"out": 0.3, "there": 0.6, "back": 0.2}, {"x": 5.0, "y": 0.0}, lambda s: s.x, 12
    ),
    "two exponentials": Case(
        lambda s: {"x": -s.k1 * s.x, "y": -s.k2 * s.y}, {"k1": 1.0, "k2": 4.0}, {"x": 1.0, "y": 1.5},
        lambda s: s.x + s.y, 2.5, estimated_starts=("x", "y"),
    ),
    "power law": Case(lambda s: {"x": -s.k * s.x**s.n}, {"k": 0.7, "n": 1.5}, {"x": 2.0}, lambda s: s.x, 4),
    "predator and prey": Case(
        lambda s: {"x": s.a * s.x - s.b * s.x * s.y, "y": s.c * s.x * s.y - s.d * s.y}, LOTKA, {"x": 1.5, "y": 1.0},
        lambda s: s.x, 12,
    ),
    "pendulum": Case(
        lambda s: {"x": s.v, "v": -s.g / s.l * s.x - s.d * s.v}, {"g": 9.8, "l": 1.0, "d": 0.1}, {"x": 1.0, "v": 0.0},
        lambda s: s.x, 6, frozenset("gl"),
    ),
}  # fmt: skip


def solve(case: Case, seed: int) -> cf.Result:
    """Fit data of the true values with noise, from guesses that are up to a factor of 2 off."""
    names = [*case.initial, *case.truth]
    s = Symbols(zip(names, cf.symbols(names), strict=True))
    equations = {s[name]: expression for name, expression in case.equations(s).items()}
    fixed = {n: v for n, v in case.initial.items() if n not in case.estimated_starts}
    model = cf.Model(equations, parameters=[s[n] for n in case.truth], outputs={"out": case.output(s)})
    times, rng = np.linspace(case.end / N_DATA, case.end, N_DATA), np.random.default_rng(seed)
    curve = cf.simulate(model, case.truth, times, initial=case.initial)["out"]
    sigma = NOISE * float(np.abs(curve).mean())
    starts = {
        n: cf.free(v * 1.2, lower=v / MAX_BOUND_FACTOR, upper=v * MAX_BOUND_FACTOR, scale="log")
        for n, v in case.initial.items()
        if n not in fixed
    }
    experiment = cf.Experiment(
        {"out": curve + sigma * rng.standard_normal(N_DATA)}, time=times, sigma=sigma, initial={**fixed, **starts}
    )
    parameters = {
        n: cf.Parameter(0.3 * sum(case.bounds[n]), bounds=case.bounds[n])
        if n in case.bounds
        else cf.Parameter(
            v * 2 ** rng.uniform(-1, 1), lower=v / MAX_BOUND_FACTOR, upper=v * MAX_BOUND_FACTOR, scale="log"
        )
        for n, v in case.truth.items()
    }
    return with_interval_checks(cf.fit(cf.Problem(model, experiment, parameters=parameters)))


def compare(result: cf.Result, profiles: cf.Profiles) -> dict[str, list[str]]:
    """List the quantities whose interval and verdict contradict the profile."""
    faults: dict[str, list[str]] = {"interval": [], "well determined": []}
    for j, (name, (low, high)) in enumerate(result.confidence_intervals().items()):
        if name not in profiles:  # its start was not found again
            continue
        value, kind = result.values[name], result.identifiability[name].kind
        lower, upper = result.bounds[j]
        for side, end in zip(profiles[name].sides(), (max(low, lower), min(high, upper)), strict=True):
            distances = [np.log(e / value) if result.log[j] and e > 0.0 else e - value for e in (end, side.limit)]
            table, profile = np.abs(distances)
            is_close = np.isclose(end, side.limit, rtol=1e-6, atol=1e-9) or 1 / 1.5 <= table / profile <= 1.5
            is_excepted = kind == NOT_IDENTIFIABLE or result.interval_checks.get(name) == APPROXIMATE
            if side.kind in FINISHED and not (is_close or is_excepted):
                faults["interval"].append(f"{name} {side.kind} {end:.4g} {side.limit:.4g}")
        width = np.ptp([side.limit for side in profiles[name].sides()])
        is_closed = all(side.kind in FINISHED for side in profiles[name].sides())
        if kind in (WELL_DETERMINED, CORRELATED_WITH) and is_closed and not width < 3.0 * abs(value):
            faults["well determined"].append(f"{name} {width:.3g}")
    return faults


QUICK = ("decay", "difference at a bound", "half saturated", "logistic with scale")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in CASES])
def test_intervals_and_verdicts_agree_with_profiles(name: str) -> None:
    case = CASES[name]
    result = solve(case, [*CASES].index(name))
    assert result.success
    assert {n for n in result.names if result.identifiability[n].kind == NOT_IDENTIFIABLE} == case.open_names
    assert compare(result, cf.profile(result, max_time=120.0)) == {"interval": [], "well determined": []}
