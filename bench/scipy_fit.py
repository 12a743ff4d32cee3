"""The fit that one writes with SciPy alone: `solve_ivp` within `least_squares`, for tables that ask what castfit adds.

Residuals are integrated by LSODA at 1e-6; parameters are sought as logarithms between their bounds, derivatives are
differences, all else is as SciPy has it.  Where the model cannot be integrated residuals are large, so that the search
turns away.  What comes out is judged by the same residuals at 1e-10.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import casadi as ca
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

from castfit._support.arrays import Array
from castfit.problem.problem import Problem

_SEARCH, _JUDGE = 1e-6, 1e-10
_FAILED_RESIDUAL = 1e6  # residual of every datum if the integration failed


class TimeIsOver(Exception):
    """The time is over."""


def fit_by_scipy(problem: Problem, start: dict[str, float], max_time: float) -> tuple[str, float]:
    """Fit one experiment with known initial states and errors, all of whose parameters have positive bounds.

    Parameters
    ----------
    problem : Problem
    start : dict
        Of all parameters.
    max_time : float
        Seconds; within `cpu_clock` those of the processor.

    Returns
    -------
    str
        How it ended.
    float
        chi2; inf where it did not end by itself.
    """
    (experiment,) = problem.experiments
    system, names, end = problem.model.system, list(start), time.perf_counter() + max_time
    rates = system.function("rates", system.ode)
    measured = system.function("measured", ca.vertcat(*(problem.model.outputs[name] for name in experiment.data)))
    initial = np.array([experiment.initial[name] for name in problem.model.states], dtype=float)
    times = np.ravel(next(iter(experiment.data.values()))[0])
    data = np.array([np.ravel(values) for _, values in experiment.data.values()])
    sigma = np.array([np.ravel(experiment.sigma[name])[0] for name in experiment.data])

    def residuals(logarithms: Array, tolerance: float = _SEARCH) -> Array:
        if time.perf_counter() > end:
            raise TimeIsOver
        p = np.exp(logarithms)

        def slope(t: float, x: Any) -> Any:
            return np.ravel(rates(t, x, [], p, []))

        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solution = solve_ivp(
                slope, (0.0, times[-1]), initial, "LSODA", times, rtol=tolerance, atol=1e-3 * tolerance
            )
        if not solution.success or not np.isfinite(solution.y).all():
            return np.full(data.size, _FAILED_RESIDUAL)
        predictions = np.array(
            [np.ravel(measured(t, x, [], p, [])) for t, x in zip(times, solution.y.T, strict=True)]
        ).T
        return np.ravel((predictions - data) / sigma[:, None])

    limits = [problem.parameters[name] for name in names]
    bounds = np.log([[float(p.lower) for p in limits], [float(p.upper) for p in limits]])
    try:
        found = least_squares(residuals, np.log(list(start.values())), bounds=bounds)
        return found.message, float(np.sum(residuals(found.x, _JUDGE) ** 2)) if found.success else np.inf
    except TimeIsOver:
        return "max_time", np.inf
