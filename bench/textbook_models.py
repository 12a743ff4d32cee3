"""Textbook models of four kinds, smooth, oscillating, stiff and chaotic, each posed in two ways.

all states    every state is measured, and one output on a scale of its own
one output    one state is measured, on a scale that is unknown

with 40 data each, errors of 5 % of an output's mean size, and parameters in [truth/100, 100 truth] on logarithmic
scale.  Starts are drawn a decade to either side of the truth.  Chaotic models are given a short horizon: over a long
one rounding errors grow to the size of the attractor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

import castfit as cf
from castfit._support.arrays import Array
from castfit.problem.problem import Problem

N_POINTS = 40  # number of measurement times per model
_log: Any = ca.log
_sin: Any = ca.sin
_OUTPUT_SCALE = 3.0  # true scale of the relative outputs
_RELATIVE_SIGMA = 0.05  # standard deviation of the errors, as a fraction of an output's mean size
_BOUND_FACTOR = 1e2  # ratio of the bounds to the true values


@dataclass(frozen=True)
class Textbook:
    """A model: (states, parameters) -> rates, true parameters, initial states, end of the horizon, state to be seen.

    seen : the position of the state that is seen where only one is
    """

    rates: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]
    parameters: dict[str, float]
    initial: dict[str, float]
    end: float
    seen: int = -1

    @property
    def truth(self) -> dict[str, float]:
        """True parameters, the scale of an output among them."""
        return {**self.parameters, "scale": _OUTPUT_SCALE}

    @property
    def times(self) -> Array:
        """When data are taken."""
        return np.linspace(self.end / N_POINTS, self.end, N_POINTS)

    def far_start(self, seed: Sequence[int]) -> dict[str, float]:
        """Draw a start a decade to either side of the truth in every parameter."""
        rng = np.random.default_rng(seed)
        return {name: value * 10 ** rng.uniform(-1, 1) for name, value in self.truth.items()}

    def all_states(self, *, seed: int = 0, bounded: bool = True) -> Problem:
        """Pose it with every state measured, and the one to be seen on a scale of its own as well."""
        return self._posed((*self.initial, "scaled"), seed, bounded=bounded)

    def one_output(self, *, seed: int = 0) -> Problem:
        """Pose it with one state measured, on a scale that is not known."""
        return self._posed(("scaled",), seed)

    def _posed(self, outputs: tuple[str, ...], seed: int, *, bounded: bool = True) -> Problem:
        states = [ca.SX.sym(name) for name in self.initial]
        parameters = [ca.SX.sym(name) for name in self.parameters]
        scale = ca.SX.sym("scale")
        rates = self.rates(states, parameters)
        model = cf.Model(
            dict(zip(states, rates, strict=True)),
            parameters=[*parameters, scale],
            outputs={"scaled": scale * states[self.seen]},
        )
        guess = {
            name: cf.Parameter(
                value, bounds=(value / _BOUND_FACTOR, value * _BOUND_FACTOR) if bounded else None, scale="log"
            )
            for name, value in self.truth.items()
        }
        exact = cf.simulate(model, times=self.times, parameters=self.truth, initial=self.initial)
        rng = np.random.default_rng(seed)
        sigma = {name: _RELATIVE_SIGMA * float(np.abs(exact[name]).mean()) for name in outputs}
        data = {name: exact[name] + sigma[name] * rng.standard_normal(N_POINTS) for name in outputs}
        experiment = cf.Experiment(data, time=self.times, sigma=sigma, initial=self.initial)
        return cf.Problem(model, experiment, parameters=guess)


def _decay(s: Any, p: Any) -> tuple[Any, ...]:
    return (-p[0] * s[0],)


def _pendulum(s: Any, p: Any) -> tuple[Any, ...]:
    return s[1], -p[0] * _sin(s[0]) - p[1] * s[1]


def _goodwin(s: Any, p: Any) -> tuple[Any, ...]:
    x, y, z = s
    a, b, c = p
    return a / (1 + z**8) - b * x, x - b * y, c * y - b * z


def _fitzhugh(s: Any, p: Any) -> tuple[Any, ...]:
    (v, r), (a, b, c) = s, p
    return c * (v - v**3 / 3 + r), -(v - a + b * r) / c


SMOOTH = {
    "decay": Textbook(_decay, {"k": 0.7}, {"x": 1.0}, 5.0),
    "logistic": Textbook(lambda s, p: (p[0] * s[0] * (1 - s[0] / p[1]),), {"r": 0.8, "cap": 10.0}, {"x": 0.5}, 12.0),
    "gompertz": Textbook(lambda s, p: (p[0] * s[0] * _log(p[1] / s[0]),), {"r": 0.5, "cap": 8.0}, {"x": 0.3}, 10.0),
    "consecutive reactions": Textbook(
        lambda s, p: (-p[0] * s[0], p[0] * s[0] - p[1] * s[1]), {"k1": 1.0, "k2": 0.4}, {"a": 1.0, "b": 0.0}, 8.0
    ),
    "reversible reaction": Textbook(
        lambda s, p: (-p[0] * s[0] + p[1] * s[1], p[0] * s[0] - p[1] * s[1]),
        {"forth": 0.9, "back": 0.3}, {"a": 1.0, "b": 0.1}, 5.0,
    ),
    "Michaelis-Menten": Textbook(
        lambda s, p: (-p[0] * s[0] / (p[1] + s[0]), p[0] * s[0] / (p[1] + s[0])),
        {"vmax": 1.0, "km": 0.5}, {"substrate": 3.0, "product": 0.1}, 6.0,
    ),
    "epidemic": Textbook(
        lambda s, p: (-p[0] * s[0] * s[1], p[0] * s[0] * s[1] - p[1] * s[1]),
        {"beta": 0.5, "gamma": 0.15}, {"s": 0.99, "i": 0.01}, 60.0,
    ),
    "bioreactor": Textbook(
        lambda s, p: (p[0] * s[1] / (p[1] + s[1]) * s[0], -2 * p[0] * s[1] / (p[1] + s[1]) * s[0]),
        {"mu": 0.5, "half": 1.0}, {"cells": 0.2, "sugar": 5.0}, 10.0,
    ),
    "two compartments": Textbook(
        lambda s, p: (-(p[0] + p[1]) * s[0] + p[2] * s[1], p[1] * s[0] - p[2] * s[1]),
        {"out": 0.3, "there": 0.6, "back": 0.2}, {"blood": 5.0, "tissue": 0.0}, 15.0,
    ),
    "gene expression": Textbook(
        lambda s, p: (p[0] - s[0], p[1] * s[0] - p[2] * s[1]),
        {"make": 2.0, "translate": 3.0, "lose": 0.3}, {"rna": 0.0, "protein": 0.0}, 12.0,
    ),
}  # fmt: skip
OSCILLATING = {
    "pendulum": Textbook(
        _pendulum, {"g": 9.8, "damping": 0.1}, {"x": 2.0, "v": 0.0}, 8.0
    ),
    "Lotka-Volterra": Textbook(
        lambda s, p: (p[0] * s[0] - p[1] * s[0] * s[1], p[2] * s[0] * s[1] - p[3] * s[1]),
        {"a": 1.0, "b": 0.5, "c": 0.4, "d": 0.8}, {"prey": 1.0, "predator": 1.0}, 20.0,
    ),
    "Brusselator": Textbook(
        lambda s, p: (p[0] + s[0] ** 2 * s[1] - (p[1] + 1) * s[0], p[1] * s[0] - s[0] ** 2 * s[1]),
        {"a": 1.0, "b": 3.0}, {"x": 1.5, "y": 2.0}, 25.0,
    ),
    "FitzHugh-Nagumo": Textbook(_fitzhugh, {"a": 0.2, "b": 0.2, "c": 3.0}, {"v": -1.0, "r": 1.0}, 20.0),
    "van der Pol": Textbook(
        lambda s, p: (s[1], p[0] * (1 - s[0] ** 2) * s[1] - p[1] * s[0]),
        {"mu": 1.5, "k": 1.0}, {"x": 2.0, "v": 0.0}, 20.0,
    ),
    "Goodwin": Textbook(_goodwin, {"a": 3.0, "b": 0.25, "c": 1.0}, {"x": 0.3, "y": 0.5, "z": 1.5}, 40.0),
    "Duffing": Textbook(
        lambda s, p: (s[1], p[0] * s[0] - p[1] * s[0] ** 3 - p[2] * s[1]),
        {"a": 1.0, "b": 1.0, "c": 0.2}, {"x": 0.1, "v": 1.0}, 15.0,
    ),
    "repressilator": Textbook(
        lambda s, p: tuple(p[0] / (1 + s[i - 1] ** 3) - p[1] * s[i] for i in range(3)),
        {"make": 10.0, "lose": 1.0}, {"a": 1.0, "b": 2.0, "c": 3.0}, 15.0,
    ),
}  # fmt: skip
STIFF = {
    "stiff van der Pol": Textbook(
        lambda s, p: (s[1], p[0] * (1 - s[0] ** 2) * s[1] - s[0]), {"mu": 20.0}, {"x": 2.0, "v": 0.0}, 60.0
    ),
    "Robertson": Textbook(
        lambda s, p: (
            -p[0] * s[0] + p[1] * s[1] * s[2],
            p[0] * s[0] - p[1] * s[1] * s[2] - p[2] * s[1] ** 2,
            p[2] * s[1] ** 2,
        ),
        {"k1": 0.04, "k2": 1e4, "k3": 3e7}, {"a": 1.0, "b": 0.0, "c": 0.0}, 100.0,
    ),
    "fast and slow": Textbook(
        lambda s, p: (-p[0] * (s[0] - s[1]), -p[1] * s[1]), {"fast": 50.0, "slow": 0.5}, {"x": 0.0, "y": 1.0}, 4.0,
        seen=0,  # the other one does not depend on it
    ),
}  # fmt: skip
CHAOTIC = {
    "Lorenz": Textbook(
        lambda s, p: (p[0] * (s[1] - s[0]), s[0] * (p[1] - s[2]) - s[1], s[0] * s[1] - p[2] * s[2]),
        {"sigma": 10.0, "rho": 28.0, "beta": 8 / 3}, {"x": 1.0, "y": 1.0, "z": 20.0}, 3.0,
    ),
    "Roessler": Textbook(
        lambda s, p: (-s[1] - s[2], s[0] + p[0] * s[1], p[1] + s[2] * (s[0] - p[2])),
        {"a": 0.2, "b": 0.2, "c": 5.7}, {"x": 1.0, "y": 1.0, "z": 0.1}, 15.0,
    ),
    "Hastings-Powell": Textbook(
        lambda s, p: (
            s[0] * (1 - s[0]) - p[0] * s[0] * s[1] / (1 + 3 * s[0]),
            p[0] * s[0] * s[1] / (1 + 3 * s[0]) - p[1] * s[1] * s[2] / (1 + 2 * s[1]) - 0.4 * s[1],
            p[1] * s[1] * s[2] / (1 + 2 * s[1]) - 0.01 * s[2],
        ),
        {"a1": 5.0, "a2": 0.1}, {"x": 0.8, "y": 0.2, "z": 9.0}, 60.0,
    ),
}  # fmt: skip
KINDS = {"smooth": SMOOTH, "oscillating": OSCILLATING, "stiff": STIFF, "chaotic": CHAOTIC}
MODELS = {name: model for models in KINDS.values() for name, model in models.items()}
KIND_OF = {name: kind for kind, models in KINDS.items() for name in models}
