"""Twelve tasks that newcomers bring, each the problem of a gallery page, fitted here without castfit.

SciPy integrates (`solve_ivp`) and minimises (`least_squares`, or `minimize` for what is no sum of squares), begun near
the answer.  Right-hand sides are written down once more, in NumPy; only the data are taken from the page.
The table of the page "How we test":

    python -m tests.newcomer [TASK ...]
"""

# ruff: noqa: T201

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares, minimize
from scipy.special import lambertw

import castfit as cf
from tests.paths import ROOT

EXAMPLES = ROOT / "examples"
Names = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A problem, and how it is solved without castfit.

    Attributes
    ----------
    page : str
        The example that has it.
    problem : callable
        From the variables of the example to the problem.
    near : mapping
        Where SciPy begins: the truth, or for measured data two digits of what is known.
    residuals, neg2loglik : callable or None
        One of them: from the data (per experiment and output) and the quantities to weighted residuals, or to -2 log L.
    jacobian : callable, optional
        Of the residuals by the quantities; by default by differences.
    weights : tuple of float
        With which residuals and jacobian are called, one after the other, each from where the last ended.
    logs : tuple of str
        Quantities that SciPy moves on a logarithmic scale.
    """

    page: str
    problem: Callable[[Names], cf.Problem]
    near: Mapping[str, float]
    residuals: Callable[..., Any] | None = None
    neg2loglik: Callable[..., float] | None = None
    jacobian: Callable[..., Any] | None = None
    weights: tuple[float, ...] = ()
    logs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Both answers: objectives (chi2 or -2 log L), and how far estimates are apart in standard errors."""

    page: str
    method: str
    result: cf.Result
    ours: float
    theirs: float
    apart: float
    seconds: float


def data(problem: cf.Problem) -> list[dict[str, tuple[Any, Any]]]:
    """Return times and values of every output of every experiment."""
    return [{name: (np.ravel(t), np.ravel(y)) for name, (t, y) in e.data.items()} for e in problem.experiments]


def integrated(right: Callable[..., Any], initial: Any, times: Any, *, method: str = "DOP853", **options: Any) -> Any:
    """Return the states at the times, (states, times), from those at time 0."""
    tolerances = {"rtol": 1e-10, "atol": 1e-12} | options
    found = solve_ivp(right, (0, times[-1]), initial, method, times, **tolerances)
    return found.y if found.success else np.full((len(initial), len(times)), np.nan)


def outbreak(measured, b, g, i0, reach, dispersion):
    """Counts per week; the third state is what has been reported so far."""
    ((weeks, cases),) = (e["cases"] for e in measured)

    def right(t, z):
        return [-b * z[0] * z[1], b * z[0] * z[1] - g * z[1], reach * b * z[0] * z[1]]

    mean = np.diff(integrated(right, [1 - i0, i0, 0], weeks, method="LSODA")[2], prepend=0)
    counts = stats.nbinom.logpmf(cases, 1 / dispersion, 1 / (1 + dispersion * mean)).sum()
    return -2 * (counts + stats.norm.logpdf(g, 7 / 2.6, 0.3))


def progress(measured, vmax, km, *begins):
    """Michaelis and Menten's curves in closed form (Schnell and Mendoza 1997)."""
    curves = [
        km * lambertw(s0 / km * np.exp((s0 - vmax * t) / km)).real - y
        for s0, e in zip(begins, measured, strict=True)
        for t, y in [e["s"]]
    ]
    return np.concatenate(curves)


def doses(measured, ka, k10, k12, k21, F, tlag):
    """Two compartments, dose after dose, by the eigenvectors of the matrix: everything is linear."""
    matrix = np.array([[-ka, 0, 0], [ka, -k10 - k12, k21], [0, k12, -k21]])
    rates, vectors = np.linalg.eig(matrix)
    first = np.linalg.solve(vectors, [1.0, 0, 0])
    rows = []
    for amount, e in zip((100, 100, 150, 150, 200, 200, 300, 300), measured, strict=True):
        times, values = e["concentration"]
        since = [times - given - tlag for given in (0, 12)]
        blood = sum((t > 0) * ((vectors[1] * first) @ np.exp(np.outer(rates, np.maximum(t, 0)))).real for t in since)
        rows.append((F * amount * blood / 10 - values) / 0.05)
    return np.concatenate(rows)


def robertson(measured, k1, k2, k3):
    """Robertson's reactions by an implicit method; the errors are 2 % of the true curve, which the truth gives."""
    ((times, _),) = {id(e["a"][0]): e["a"] for e in measured}.values()

    def curves(k1, k2, k3):
        def right(t, z):
            slow, fast, back = k1 * z[0], k2 * z[1] ** 2, k3 * z[1] * z[2]
            return [back - slow, slow - back - fast, fast]

        return integrated(right, [1, 0, 0], times, method="Radau", rtol=1e-9, atol=1e-13)

    values = np.array([measured[0][name][1] for name in "abc"])
    return ((curves(k1, k2, k3) - values) / (0.02 * curves(0.04, 3e7, 1e4))).ravel()


def chemostat(measured, mumax, ks, y):
    """One setting of the pump after the other; the errors are those of the truth."""

    def curves(mumax, ks, y):
        state, pieces = np.array([0.3, 8.0]), []
        for rate in (0.1, 0.35, 0.2):

            def right(t, v, rate=rate):
                mu = mumax * v[1] / (ks + v[1])
                return [(mu - rate) * v[0], rate * (10 - v[1]) - mu * v[0] / y]

            pieces.append(integrated(right, state, np.arange(1.0, 13.0)))
            state = pieces[-1][:, -1]
        return np.hstack(pieces)

    sizes = np.array([np.full(36, 0.05), 0.1 + 0.1 * curves(0.45, 0.8, 0.5)[1]])
    values = np.array([measured[0][name][1] for name in "xs"])
    return ((curves(mumax, ks, y) - values) / sizes).ravel()


def pendulum(measured, g, c, angle):
    """Friction and gravity; the angle at the beginning is unknown, too."""
    times, values = measured[0]["a"]
    return (integrated(lambda t, z: [z[1], -g * np.sin(z[0]) - c * z[1]], [angle, 0], times)[0] - values) / 0.05


def van_der_pol(measured, mu, w):
    """Van der Pol's oscillator."""
    times = measured[0]["x"][0]
    values = np.array([measured[0][name][1] for name in "xv"])
    curves = integrated(lambda t, z: [z[1], mu * (1 - z[0] ** 2) * z[1] - w**2 * z[0]], [1, 0], times)
    return ((curves - values) / 0.1).ravel()


def batch_reactor(measured, k1, k2, beta1, beta2):
    """Dow's reactor as an ODE: the balance of charges is linear in S once the ions are put into it."""

    def right(t, z):
        HA, BM, HABM, AB, MBMH, M = z
        S = (0.0131 - M) / (HA + beta2 * HABM + beta1 * MBMH)
        A, ABM, MBM = S * HA, beta2 * S * HABM, beta1 * S * MBMH
        forward, coupling, exchange = k1 * M * BM - 1754 * MBM, k2 * A * BM, k1 * M * AB - 877 * ABM
        return [-coupling, -forward - coupling, coupling + exchange, -exchange, forward, -forward - exchange]

    experiment = cf.problems.load("batch_reactor").problem.experiments[0]
    names = ["HA", "BM", "HABM", "AB", "MBMH", "M"]
    times = np.unique(np.concatenate([t for t, _ in measured[0].values()]))
    curves = integrated(right, [1.6497, 8.2262, 0, 0, 0, 0.0131], times, method="LSODA", rtol=1e-9, atol=1e-12)
    rows = []
    for name, (t, y) in measured[0].items():
        rows.append((curves[names.index(name)][np.searchsorted(times, t)] - y) / np.ravel(experiment.sigma[name]))
    return np.concatenate(rows)


def blots(measured, k, h, scale_weak, scale_strong, offset_weak, offset_strong):
    """-2 log L with both unknown sigmas at their best, sigma^2 = SSE / n; the fraction x has a closed form."""
    total = 0.0
    for u, scale, offset, e in zip(
        (0.4, 2), (scale_weak, scale_strong), (offset_weak, offset_strong), measured, strict=True
    ):
        t, y = e["blot"]
        on = np.minimum(t, 15)
        x = k * u / (k * u + h) * (1 - np.exp(-(k * u + h) * on)) * np.exp(-h * (t - on))
        total += y.size * (np.log(2 * np.pi * np.mean((scale * x + offset - y) ** 2)) + 1)
    return total


def rod(measured, k, h, q):
    """Twenty cells; linear, so that the matrix exponential is exact: u(t) = (exp(A t) - 1) A^-1 b."""
    n, (e,) = 20, measured
    flow = np.diff(np.eye(n), axis=0)
    matrix = -k * n**2 * flow.T @ flow - h * np.eye(n)
    rates, vectors = np.linalg.eigh(matrix)
    first = vectors[0] * q * n  # the heating of cell 0, by eigenvectors
    rows = []
    for name, (t, y) in e.items():
        place = float(name.removeprefix("at ")) * n - 0.5
        left = vectors[int(place)] * (1 - place % 1) + vectors[int(place) + 1] * (place % 1)
        rows.append(((left * first / rates) @ np.expm1(np.outer(rates, t)) - y) / 0.05)
    return np.concatenate(rows)


NODES = 30  # of Lorenz


def lorenz(measured, *quantities, weight):
    """Lorenz in stages: residuals, and what is between the end of a stage and the next node, times the weight.

    All at once from the beginning, least squares creeps along a curved valley, even from the truth.
    """
    return _stages(measured, quantities, weight)[0]


def lorenz_slopes(measured, *quantities, weight):
    """Return the derivatives of its rows by variational equations: differences are useless in chaos."""
    return _stages(measured, quantities, weight)[1]


def _stages(measured, quantities, weight):
    times = measured[0]["x"][0]
    values = np.array([measured[0][name][1] for name in "xyz"])
    shared, nodes = quantities[:3], np.reshape(quantities[3:], (NODES, 3))
    edges = np.linspace(0, 15, NODES + 1)
    rows, slopes = [], []
    for k, node in enumerate(nodes):
        last = k == NODES - 1
        seen = (times >= edges[k] - 1e-9) & ((times < edges[k + 1] - 1e-9) | last)
        at = np.clip([*(times[seen] - edges[k]), edges[k + 1] - edges[k]], 0, 0.5)
        at, place = np.unique(at.round(9), return_inverse=True)
        found = lorenz_stage(tuple(at), *shared, *node)[:, place]
        columns = [0, 1, 2, *range(3 + 3 * k, 6 + 3 * k)]
        by = found[3:].reshape(3, 6, -1)
        rows.append(((found[:3, :-1] - values[:, seen]) / 0.5).ravel())
        J = np.zeros((rows[-1].size, len(quantities)))
        J[:, columns] = by[:, :, :-1].swapaxes(1, 2).reshape(-1, 6) / 0.5
        slopes.append(J)
        if not last:
            rows.append(weight * (found[:3, -1] - nodes[k + 1]))
            J = np.zeros((3, len(quantities)))
            J[:, columns] = weight * by[:, :, -1]
            J[:, 6 + 3 * k : 9 + 3 * k] = -weight * np.eye(3)
            slopes.append(J)
    return np.concatenate(rows), np.concatenate(slopes)


@lru_cache(4 * NODES)
def lorenz_stage(times, sigma, rho, beta, *begin):
    """Return the states at the times, and their derivatives by parameters and initial states, (21, times)."""

    def right(t, v):
        x, y, z = v[:3]
        by_state = np.array([[-sigma, sigma, 0], [rho - z, -1, -x], [y, x, -beta]])
        slopes = by_state @ v[3:].reshape(3, 6)
        slopes[:, :3] += np.diag([y - x, x, -z])
        return np.concatenate([[sigma * (y - x), x * (rho - z) - y, x * y - beta * z], slopes.ravel()])

    first = np.concatenate([begin, np.hstack([np.zeros((3, 3)), np.eye(3)]).ravel()])
    return integrated(right, first, times, rtol=1e-11, atol=1e-11)


def lorenz_truth():
    """Return the true parameters, initial state, and nodes."""
    edges = np.linspace(0, 15, NODES + 1)[:-1]
    path = integrated(
        lambda t, v: [10 * (v[1] - v[0]), v[0] * (28 - v[2]) - v[1], v[0] * v[1] - 8 / 3 * v[2]], [-8, 7, 27], edges
    )
    known = {"sigma": 10.0, "rho": 28.0, "beta": 8 / 3}
    return known | {f"{n}({t:g})": float(path[i, k]) for k, t in enumerate(edges) for i, n in enumerate("xyz")}


def outlier(measured, k, begin, scale):
    """Student's t with three degrees of freedom."""
    t, y = measured[0]["x"]
    return -2 * stats.t.logpdf(y, 3, begin * np.exp(-k * t), scale).sum()


TASKS = {
    "SIR, counts per week": Task(
        "epidemic", lambda e: e["problem"](),
        {"b": 3.7, "g": 2.7, "i0": 3.5e-4, "reach": 1.1e4, "dispersion(cases)": 0.09},
        neg2loglik=outbreak, logs=("b", "g", "i0", "reach", "dispersion(cases)"),
    ),
    "Michaelis-Menten": Task(
        "michaelis_menten", lambda e: e["problem"],
        {"vmax": 1.2, "km": 3, **{f"s(0)[{s:g} mM]": s for s in (0.5, 1, 2, 5, 10, 20)}}, residuals=progress,
    ),
    "doses": Task(
        "oral_doses", lambda e: e["problem"],
        {"ka": 1.2, "k10": 0.15, "k12": 0.3, "k21": 0.25, "F": 0.7, "tlag": 0.4}, residuals=doses,
    ),
    "Robertson": Task(
        "robertson", lambda e: e["problem"], {"k1": 0.04, "k2": 3e7, "k3": 1e4},
        residuals=robertson, logs=("k1", "k2", "k3"),
    ),
    "chemostat": Task(
        "chemostat", lambda e: e["problem"], {"mumax": 0.45, "ks": 0.8, "y": 0.5}, residuals=chemostat,
    ),
    "pendulum": Task(
        "van_der_pol", lambda e: cf.Problem(e["pendulum"], e["swings"], parameters={"g": cf.Parameter(3, lower=0),
                                                                                   "c": cf.Parameter(0.5, lower=0)}),
        {"g": 9.81, "c": 0.2, "a(0)": 2.5}, residuals=pendulum,
    ),
    "van der Pol": Task("van_der_pol", lambda e: e["problem"], {"mu": 2, "w": 1}, residuals=van_der_pol),
    "DAE": Task(
        "batch_reactor_dae", lambda e: e["problem"],
        {"k1": 1.9, "k2": 2.8, "beta1": 0.0062, "beta2": 0.0048},
        residuals=batch_reactor, logs=("k1", "k2", "beta1", "beta2"),
    ),
    "unknown sigmas": Task(
        "scaled_outputs", lambda e: e["problem"],
        {"k": 0.3, "h": 0.18, "scale(blot)[weak]": 820, "scale(blot)[strong]": 95, "offset(blot)[weak]": 60,
         "offset(blot)[strong]": 25},
        neg2loglik=blots, logs=("k", "h", "scale(blot)[weak]", "scale(blot)[strong]"),
    ),
    "heat equation": Task(
        "heat_equation", lambda e: cf.Problem(e["model"], e["experiment"], parameters=e["guess"]),
        {"k": 0.15, "h": 0.3, "q": 2}, residuals=rod,
    ),
    "Lorenz": Task(
        "lorenz", lambda e: e["problem"],
        lorenz_truth(), residuals=lorenz,
        jacobian=lorenz_slopes, weights=(1.0, 30.0, 1e3, 3e4, 1e6),
    ),
    "outlier": Task(
        "outliers", lambda e: e["problem"](noise={"x": cf.StudentT(df=3)}),
        {"k": 0.15, "x(0)": 10, "sigma(x)": 0.1}, neg2loglik=outlier, logs=("sigma(x)",),
    ),
}  # fmt: skip


def compare(task: Task) -> Comparison:
    """Fit by `cf.fit` as it is, and by SciPy."""
    problem = task.problem(page(task.page))
    began = time.process_time()
    result = cf.fit(problem)
    seconds = time.process_time() - began
    measured = data(problem)
    size = {name: abs(value) for name, value in task.near.items()}

    def quantities(z):
        return [
            np.exp(c) * size[n] if n in task.logs else task.near[n] + c * size[n] for n, c in zip(size, z, strict=True)
        ]

    begin = np.zeros(len(size))
    if task.residuals is not None:
        rows, slopes = task.residuals, task.jacobian
        tolerances = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}

        for given in [{"weight": weight} for weight in task.weights] or [{}]:

            def derivatives(z, given=given):
                assert slopes is not None
                return slopes(measured, *quantities(z), **given) * list(size.values())

            jac = "3-point" if slopes is None else derivatives
            found = least_squares(
                lambda z, given=given: rows(measured, *quantities(z), **given), begin, jac, x_scale="jac", **tolerances
            )
            begin = found.x
        theirs, ours, method = 2 * found.cost, result.chi2, "least_squares"
    else:
        assert task.neg2loglik is not None
        cost = task.neg2loglik
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # steps into nonsense on the way, and precision at the end
            coarse = minimize(lambda z: cost(measured, *quantities(z)), begin, method="BFGS", options={"gtol": 1e-6})
            options = {"xatol": 1e-9, "fatol": 1e-10, "maxiter": 20000, "maxfev": 20000}
            found = minimize(lambda z: cost(measured, *quantities(z)), coarse.x, method="Nelder-Mead", options=options)
        theirs, ours, method = found.fun, result.neg2loglik, "minimize"
    values = dict(zip(size, quantities(found.x), strict=True))
    apart = max(abs(result.values[n] - v) / result.standard_errors[n] for n, v in values.items() if n in result.values)
    return Comparison(task.page, method, result, float(ours), float(theirs), float(apart), seconds)


def page(name: str) -> Names:
    """Return the variables of an example after it has run."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        try:
            os.chdir(folder)
            return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="page")
        finally:
            os.chdir(before)


def main(names: list[str]) -> None:
    """Print the table, for Markdown."""
    print("| task | page | objective | `cf.fit` | SciPy | estimates apart, in standard errors | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for name in names or TASKS:
        one = compare(TASKS[name])
        kind = "chi2" if one.method == "least_squares" else "-2 log L"
        print(f"| {name} | [](../gallery/{one.page}.rst) | {kind} | {one.ours:.7g} | {one.theirs:.7g}"
              f" | {one.apart:.1g} | {one.seconds:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
