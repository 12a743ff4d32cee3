"""What workers are told to do in tests; they import it from here. Problems that are cheap to fit many times."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

import castfit as cf
from tests.drive.errands import chore


@dataclass(frozen=True)
class Troubled(cf.SingleShooting):
    """Single shooting that gets into trouble where the first quantity lies between the limits."""

    trouble: str = "die"
    above: float = np.inf
    below: float = np.inf

    def transcribe(self, problem, theta):
        if self.above < theta[0] < self.below:
            chore(self.trouble)
            raise RuntimeError(f"trouble at {theta[0]:.3f}")
        return super().transcribe(problem, theta)


@dataclass(frozen=True)
class Fragile(cf.SingleShooting):
    """Single shooting whose process is killed once, as a system short of memory would do it."""

    flag: str = ""

    def transcribe(self, problem, theta):
        if self.flag and not os.path.exists(self.flag):
            with open(self.flag, "w"):
                chore("die")
        return super().transcribe(problem, theta)


STRAIGHT = cf.GaussNewton(homotopy="never")
# A start that cannot be integrated is given up after 0.05 s of CPU time; by CVODES, and then Rosenbrock, after 0.7 s.
QUICK = cf.SingleShooting(cf.IntegratorOptions("rosenbrock", max_steps=100))


def pole(*, scale=1.0, **bounds):
    """x' = k x^2 has a pole at t = 1 / k, so half of the starts between 0 and 2 cannot be integrated to t = 1."""
    x, k = cf.symbols("x k")
    t = np.linspace(0.1, 1, 8)
    model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 1})
    experiment = cf.Experiment({"x": scale / (1 - 0.5 * t)}, time=t, sigma=0.01)
    return cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.3, **{"lower": 0, "upper": 2, **bounds})})


def oscillator():
    """A frequency: sums of squares have many local minima in it."""
    x, y, w = cf.symbols("x y w")
    t = np.linspace(0.5, 6, 12)
    model = cf.Model({x: w * y, y: -w * x}, parameters=[w], initial={x: 0, y: 1})
    noise = np.random.default_rng(5).standard_normal(t.size)
    experiment = cf.Experiment({"x": np.sin(1.3 * t) + 0.05 * noise}, time=t, sigma=0.05)
    return cf.Problem(model, experiment, parameters={"w": cf.Parameter(1.0, lower=0.2, upper=6.0)})


def noisy(kind: str) -> cf.Problem:
    """A decay that is measured in two units, with errors of which more or less is said."""
    x, k, s = cf.symbols("x k s")
    t = np.linspace(0.5, 4, 8)
    clean = np.exp(-0.7 * t)
    data = {"x": clean + 0.02 * np.cos(9 * t), "large": 1e6 * (clean + 0.05 * np.sin(7 * t))}
    outputs: dict = {"large": 1e6 * x}
    parameters: dict = {"k": cf.Parameter(0.5, lower=0.1, upper=3.0)}
    options: dict = {}
    if kind == "eliminated":
        options["sigma"] = {name: cf.unknown() for name in data}
    elif kind == "parameter":
        options["sigma"] = {"x": s, "large": 1e6 * s}
        parameters["s"] = cf.Parameter(0.1, lower=1e-3, upper=1.0)
    else:
        options["sigma"] = {"x": 0.02, "large": 5e4}
        options["noise"] = cf.StudentT(df=4)
    experiment = cf.Experiment(data, time=t, initial={"x": 1.0}, start=0.0, **options)
    symbols = [k, s] if kind == "parameter" else [k]
    return cf.Problem(cf.Model({x: -k * x}, parameters=symbols, outputs=outputs), experiment, parameters=parameters)


def rows(result):
    """Return the table without what differs between any two runs: the times."""
    return {name: column.tolist() for name, column in result.table.items() if name != "time"}
