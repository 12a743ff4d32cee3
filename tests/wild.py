"""Random bounded problems as they come with real models: dead and tied parameters, decades of ignorance, partial data.

Each is a small network of first-order, saturated and cooperative steps.  Some parameters are in it and do nothing, some
only act together, some optima lie beyond the bounds; outputs are states, sums, logarithms or scaled states; the noise
is known or not.
"""

from __future__ import annotations

import casadi as ca
import numpy as np

import castfit as cf


def wild(seed: int, *, data: float = 1.0, time: float = 1.0) -> cf.Problem:
    """Return the random problem of a seed, with data and time in other units: `data` and `time` are theirs.

    The guess is one random point between the bounds.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 4))
    x = [ca.SX.sym(f"x{i}") for i in range(n)]
    p: dict[str, ca.SX] = {}
    truth: dict[str, float] = {}
    per_time: set[str] = set()
    per_data: dict[str, float] = {}  # exponent of the unit of data

    def parameter(name: str, value: float, *, rate: bool = False, size: float = 0.0) -> ca.SX:
        p[name], truth[name], per_data[name] = ca.SX.sym(name), value, size
        if rate:
            per_time.add(name)
        return p[name]

    def magnitude() -> float:
        return float(10 ** rng.uniform(-1, 1))

    rates = [ca.SX(0) for _ in range(n)]
    for i in range(n):
        k = parameter(f"k{i}", magnitude(), rate=True)
        kind = rng.choice(["linear", "saturated", "cooperative"])
        if kind == "linear":
            flow = k * x[i]
        elif kind == "saturated":
            flow = k * x[i] / (1 + x[i] / parameter(f"K{i}", magnitude(), size=1.0))
        else:
            K = parameter(f"K{i}", magnitude(), size=1.0)
            flow = k * x[i] / (1 + (x[i] / K) ** 2)
        if rng.random() < 0.25:  # a second rate that only its sum with the first can be told from
            flow = flow * (1 + parameter(f"tied{i}", 1.0)) / 2
        rates[i] -= flow
        if i + 1 < n:
            rates[i + 1] += flow
    if rng.random() < 0.3:
        rates[0] += parameter("feed", magnitude(), rate=True, size=1.0)
    if rng.random() < 0.4:  # in the model, but nowhere near what is measured
        rates[-1] += 1e-12 * parameter("dead", magnitude(), rate=True) * x[-1]
    outputs: dict[str, ca.SX] = {}
    for j in range(int(rng.integers(1, 3))):
        kind = rng.choice(["state", "sum", "log", "scaled"])
        i = int(rng.integers(n)) if j else n - 1
        if kind == "state":
            outputs[f"y{j}"] = x[i]
        elif kind == "sum":
            outputs[f"y{j}"] = sum(x, ca.SX(0))
        elif kind == "log":
            outputs[f"y{j}"] = ca.log10(x[i] / data + 1e-3)
        else:
            outputs[f"y{j}"] = parameter(f"scale{j}", magnitude()) * x[i]
    times = np.linspace(0.3, 6.0, 15)
    initial = {s.name(): float(rng.uniform(0.5, 3.0)) * data for s in x}
    unit = {name: data**power / (time if name in per_time else 1.0) for name, power in per_data.items()}
    truth = {name: value * unit[name] for name, value in truth.items()}
    model = cf.Model(dict(zip(x, rates, strict=True)), parameters=list(p.values()), outputs=outputs)
    blank = cf.Experiment({o: np.zeros(15) for o in outputs}, time=times * time, initial=initial)
    fixed = {name: cf.Parameter(value) for name, value in truth.items()}
    exact = cf.simulate(cf.Problem(model, blank, parameters=fixed))["experiment 1"]
    size = {o: float(np.abs(exact[o]).mean()) + 1e-3 * (1.0 if "log" in str(outputs[o]) else data) for o in outputs}
    noisy = {o: exact[o] + 0.05 * size[o] * rng.standard_normal(15) for o in outputs}
    known = bool(rng.random() < 0.5)
    sigma = {o: 0.05 * size[o] if known else cf.unknown() for o in outputs}
    parameters: dict[str, cf.Parameter] = {}
    for name, value in truth.items():
        decades = rng.uniform(2, 4)
        shift = rng.uniform(0.2, 1.0) if rng.random() < 0.2 else -rng.uniform(0, decades)
        lower = value * 10**shift if rng.random() < 0.5 else value * 10 ** -(2 * decades + shift)
        upper = lower * 10 ** (2 * decades)
        log = rng.random() < 0.8
        start = lower * (upper / lower) ** rng.uniform(0.1, 0.9)
        parameters[name] = cf.Parameter(
            start if log else min(start, 0.5 * upper), bounds=(lower, upper), scale="log" if log else "linear"
        )
    experiment = cf.Experiment(noisy, time=times * time, sigma=sigma, initial=initial)
    return cf.Problem(model, experiment, parameters=parameters)
