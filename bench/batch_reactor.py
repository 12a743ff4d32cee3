"""A batch reactor of which the pressure is measured: extended filters lose it from a poor start, a horizon does not.

A = B + C and 2 B = C, in which the total pressure alone is measured, every quarter of a unit of time, with a prior far
from the truth (Haseltine and Rawlings 2005; example 4.27 of Rawlings, Mayne and Diehl 2017).  The filters are written
here, in NumPy, with the derivatives of the flow by its variational equations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import castfit as cf

from .table import FigureRow

if TYPE_CHECKING:
    from castfit._support.arrays import Array

CASE = "batch reactor"
_K = 0.5, 0.05, 0.2, 0.01
_PRESSURE_PER_CONCENTRATION = 32.84  # pressure per unit of concentration
_STEP, _STEPS, _FINE = 0.25, 120, 10
_DEVIATION, _NOISE, _SPREAD = 0.25, 0.001, 0.5  # of a measurement, of a state after a step, of the prior
_TRUTH, _PRIOR = np.array([0.5, 0.05, 0.0]), np.array([1.0, 0.0, 4.0])
_CONVERGED_ERROR = 0.05  # error of an estimated state up to which an observer has converged, in units of concentration
_STOICHIOMETRY = np.array([[-1.0, 0.0], [1.0, -2.0], [1.0, 1.0]])


def rates(x: Array) -> tuple[Array, Array]:
    """Return the right-hand side and its derivatives by the states."""
    a, b, c = x
    speed = np.array([_K[0] * a - _K[1] * b * c, _K[2] * b**2 - _K[3] * c])
    slope = np.array([[_K[0], -_K[1] * c, -_K[1] * b], [0.0, 2 * _K[2] * b, -_K[3]]])
    return _STOICHIOMETRY @ speed, _STOICHIOMETRY @ slope


def flow(x: Array) -> tuple[Array, Array]:
    """Return the states after a step, and their derivatives: the classical Runge-Kutta method in short steps."""
    h, z = _STEP / _FINE, np.column_stack([x, np.eye(3)])

    def rate(z: Array) -> Array:
        f, slope = rates(z[:, 0])
        return np.column_stack([f, slope @ z[:, 1:]])

    for _ in range(_FINE):
        k1 = rate(z)
        k2 = rate(z + 0.5 * h * k1)
        k3 = rate(z + 0.5 * h * k2)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + rate(z + h * k3))
    return z[:, 0], z[:, 1:]


def simulate_draw(rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw states (n, 3) and measured pressures (n,), from the first step on."""
    x, states = _TRUTH, list[Any]()
    for _ in range(_STEPS):
        x = np.maximum(flow(x)[0] + _NOISE * rng.standard_normal(3), 0.0)
        states.append(x)
    path: Array = np.array(states, dtype=float)
    return path, _PRESSURE_PER_CONCENTRATION * path.sum(axis=1) + _DEVIATION * rng.standard_normal(_STEPS)


def extended_filter(pressure: Array, *, clipped: bool) -> Array:
    """Return the means of an extended Kalman filter; `clipped` ones have negative concentrations set to 0."""
    x, cov, h, means = _PRIOR, _SPREAD**2 * np.eye(3), np.full(3, _PRESSURE_PER_CONCENTRATION), list[Any]()
    with np.errstate(all="ignore"):
        for value in pressure:
            x, slope = flow(x)
            cov = slope @ cov @ slope.T + _NOISE**2 * np.eye(3)
            gain = cov @ h / (h @ cov @ h + _DEVIATION**2)
            x, cov = x + gain * (value - h @ x), cov - np.outer(gain, h @ cov)
            x = np.maximum(x, 0.0) if clipped else x
            means.append(x)
    return np.array(means)


def known_reactor(pressure: Array) -> cf.PathResult:
    """Return the model with all parameters known, as a result."""
    x, w = cf.symbols("a b c"), cf.symbols("wa wb wc")
    first_rate, second_rate = _K[0] * x[0] - _K[1] * x[1] * x[2], _K[2] * x[1] ** 2 - _K[3] * x[2]
    right = (-first_rate, first_rate - 2 * second_rate, first_rate + second_rate)
    noise = _NOISE / np.sqrt(_STEP)
    model = cf.Model(
        {state: f + noise * n for state, f, n in zip(x, right, w, strict=True)},
        noises=w, outputs={"pressure": _PRESSURE_PER_CONCENTRATION * (x[0] + x[1] + x[2])},
    )  # fmt: skip
    initial = {n: cf.Normal(m, _SPREAD) for n, m in zip("abc", _PRIOR.tolist(), strict=True)}
    time = _STEP * np.arange(1, pressure.size + 1)
    experiment = cf.Experiment({"pressure": pressure}, time, sigma=_DEVIATION, start=0, initial=initial)
    result: Any = cf.fit(cf.Problem(model, experiment))
    return result


def horizon_means(result: cf.PathResult, pressure: Array, horizon: int) -> Array:
    """Return the states after each step of a moving horizon with concentrations that are not negative."""
    observer = cf.moving_horizon(result, horizon, bounds={n: (0.0, np.inf) for n in "abc"})
    steps = [observer.step(_STEP * (k + 1), {"pressure": value}) for k, value in enumerate(pressure.tolist())]
    return np.array([list(step.states.values()) for step in steps])


def rows(draws: int, seed: int) -> list[FigureRow]:
    """Return what each estimator ends at, and from when on it stays near the truth, by medians of all draws."""
    result, errors, min_concentrations = None, dict[str, list[Any]](), list[float]()
    for i in range(draws):
        states, pressure = simulate_draw(np.random.default_rng([seed, i]))
        result = known_reactor(pressure[:2]) if result is None else result
        means_by_method = {
            "extended Kalman filter": extended_filter(pressure, clipped=False),
            "the same, clipped at 0": extended_filter(pressure, clipped=True),
            "moving horizon 10": horizon_means(result, pressure, 10),
            "moving horizon 20": horizon_means(result, pressure, 20),
        }
        min_concentrations.append(float(means_by_method["extended Kalman filter"].min()))
        for name, means in means_by_method.items():
            errors.setdefault(name, []).append(np.sqrt(np.mean((means - states) ** 2, axis=1)))
    note = f"root mean square of three states, median of {draws} draws"
    out = [
        FigureRow(CASE, "least concentration of the extended filter", float(np.median(min_concentrations)), -1.5, note)
    ]
    for (name, each), end, when in zip(errors.items(), (0.51, 88, 0.004, 0.004), (30, 30, 4.3, 2.6), strict=True):
        median = np.median(each, axis=0)
        late = _STEP * (1.0 + np.flatnonzero(np.append(True, ~(median < _CONVERGED_ERROR)))[-1])
        out.append(FigureRow(CASE, f"error at t = 30, {name}", float(median[-1]), end, note))
        if when < 30:
            out.append(FigureRow(CASE, f"within {_CONVERGED_ERROR} from t on, {name}", float(late), when, note))
    return out
