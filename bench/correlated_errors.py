"""Errors of measurement that depend on each other: beside dense algebra, and how often intervals hold the truth.

Generalised least squares of a straight line (Aitken 1935), the likelihood of an autoregressive error by a Kalman
filter, the determinant criterion of Box and Draper (1965) by SciPy, the joint maximum of the Nile with a knot at
every datum, and intervals of a rate where errors are alike over a sixth of the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import optimize

import castfit as cf

from .table import FigureRow

if TYPE_CHECKING:
    from castfit._support.arrays import Array

CASE = "correlated errors"
_SIGMA, _TAU = 0.3, 2.0
_RATE, _SIZE, _SPREAD, _MEMORY = 0.5, 2.0, 0.1, 1.0  # of the exponential and its errors
_MANY, _UNTIL = 40, 6.0


def matrix(times: Array, tau: float) -> Array:
    """Return the correlations of errors that are alike over tau."""
    return np.exp(-np.abs(times[:, None] - times) / tau)


def line(seed: int) -> list[FigureRow]:
    """Compare a straight line with dense generalised least squares, and its likelihood with a Kalman filter's."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.uniform(0.1, 1.0, 40))
    C = _SIGMA**2 * matrix(times, _TAU)
    values = 1.0 + 0.7 * times + np.linalg.cholesky(C) @ rng.standard_normal(times.size)
    x, a = cf.symbols("x a")
    experiment = cf.Experiment(
        {"x": values}, time=times, sigma=cf.correlated(_SIGMA, time=_TAU), start=0, initial={"x": cf.free(0.5)}
    )
    result: Any = cf.fit(cf.Problem(cf.Model({x: a}, parameters=[a]), experiment, parameters={"a": 0.1}))
    X = np.column_stack([times, np.ones_like(times)])
    b = np.linalg.solve(X.T @ np.linalg.solve(C, X), X.T @ np.linalg.solve(C, values))
    r, mean, variance, total = values - X @ b, 0.0, _SIGMA**2, 0.0
    for each, gap in zip(r, np.diff(times, prepend=times[0]), strict=True):
        phi = np.exp(-gap / _TAU)
        mean, variance = phi * mean, phi**2 * variance + _SIGMA**2 * (1 - phi**2)
        total += (each - mean) ** 2 / variance + np.log(2 * np.pi * variance)
        mean, variance = each, 0.0
    return [
        FigureRow(CASE, "slope of a line", result.values["a"], float(b[0]), "dense generalised least squares"),
        FigureRow(CASE, "-2 log L", result.neg2loglik, float(total), "Kalman filter of the error"),
    ]


def determinant(seed: int) -> list[FigureRow]:
    """Compare an unknown covariance between outputs with the least determinant that SciPy finds."""
    times = np.linspace(0.2, 6.0, 15)
    errors = np.random.default_rng(seed).multivariate_normal([0, 0], [[0.003, 0.0036], [0.0036, 0.012]], times.size)

    def predicted(k: float, A: float) -> Array:
        return np.column_stack([A * np.exp(-k * times), A * (1 - np.exp(-k * times))])

    def cost(p: Array) -> float:
        R = predicted(*p) - values
        return float(np.log(np.linalg.det(R.T @ R)))

    values = predicted(_RATE, _SIZE) + errors
    options: Any = {"xatol": 1e-10, "fatol": 1e-12}
    search: Any = optimize.minimize
    best = search(cost, [_RATE, _SIZE], method="Nelder-Mead", options=options)
    A, B, k = cf.symbols("A B k")
    data = {"A": values[:, 0], "B": values[:, 1]}
    experiment = cf.Experiment(
        data, time=times, sigma=cf.unknown("joint"), start=0, initial={"A": cf.free(1.5), "B": 0.0}
    )
    model = cf.Model({A: -k * A, B: k * A}, parameters=[k])
    result: Any = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    return [FigureRow(CASE, "rate, covariance of outputs unknown", result.values["k"], float(best.x[0]), "determinant")]


def joint_maximum(flow: Array) -> list[FigureRow]:
    """Estimate the Nile's level as an input with a knot at every year, its smoothness and sigma together."""
    x, u = cf.symbols("x u")
    model = cf.Model({x: 0}, inputs=[u], outputs={"level": u}, initial={x: 0.0})
    years = np.arange(float(flow.size))
    level = cf.Input.estimated(years, "linear", smoothness="auto", order=1, guess=float(flow[0]))
    experiment = cf.Experiment({"level": flow}, time=years, sigma=cf.unknown(), start=0, inputs={"u": level})
    result: Any = cf.fit(cf.Problem(model, experiment))
    step = 1.0 / (result.smoothness["u"] * years[-1])
    note = "an input with smoothness='auto' and a knot a year"
    return [
        FigureRow("Nile", "variance of the data", result.errors.sigma**2, 15099.0, note),
        FigureRow("Nile", "variance of the level", step, 1469.1, note),
    ]


def coverage(sets: int, seed: int) -> list[FigureRow]:
    """Count how often intervals of a rate hold the truth, with errors known, of unknown memory, and taken as white."""
    times = np.linspace(_UNTIL / _MANY, _UNTIL, _MANY)
    root = _SPREAD * np.linalg.cholesky(matrix(times, _MEMORY))
    ways: dict[str, Any] = {
        "memory known": cf.correlated(time=_MEMORY),
        "memory unknown": cf.correlated(time=cf.unknown()),
        "taken as independent": cf.unknown(),
    }
    inside = dict.fromkeys(ways, 0)
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k])
    for i in range(sets):
        rng = np.random.default_rng([seed, i])
        values = _SIZE * np.exp(-_RATE * times) + root @ rng.standard_normal(_MANY)
        for name, sigma in ways.items():
            experiment = cf.Experiment({"x": values}, time=times, sigma=sigma, start=0, initial={"x": cf.free(1.5)})
            result: Any = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
            low, high = result["k"].interval
            inside[name] += low <= _RATE <= high
    note = f"of {sets} data sets"
    return [
        FigureRow(CASE, f"intervals of k that hold {_RATE}, {n}, %", 100.0 * m / sets, 95.0, note)
        for n, m in inside.items()
    ]


def rows(sets: int, seed: int, flow: Array) -> list[FigureRow]:
    """Return all rows; `flow` is that of the Nile."""
    return [*line(seed), *determinant(seed), *joint_maximum(flow), *coverage(sets, seed)]
