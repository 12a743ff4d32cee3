"""Horizons: a problem cut off at a time, and the sequences of such times along which a fit can grow.

All times are those of the experiments, as in `Experiment.until`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.experiment import Points
from castfit.problem import Problem
from castfit.simulate import SimulationError, simulate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.integrate import IntegratorOptions

    Array = NDArray[np.float64]

_ROUNDING = 1e-12


def until(problem: Problem, horizon: float) -> Problem:
    """Return the problem without the measurements after `horizon`, with the same theta.

    Experiments of which nothing is left are missing, so that theta may contain quantities that nothing depends on.

    Parameters
    ----------
    problem : Problem
    horizon : float
    """
    kept = [i for i, c in enumerate(problem.conditions) if _counts(c.points.times, c.start, horizon).any()]
    conditions = [problem.conditions[i] for i in kept]
    shorter = [c.points.times <= _inclusive(horizon) for c in conditions]
    return _variant(
        problem,
        experiments=tuple(e for i in kept if (e := problem.experiments[i].until(_inclusive(horizon))) is not None),
        conditions=tuple(
            replace(c, points=Points(c.points.times[keep], c.points.values[keep], c.points.sigma[keep]))
            for c, keep in zip(conditions, shorter, strict=True)
        ),
    )


def within(problem: Problem, theta: Array, lower: Array, upper: Array) -> Problem:
    """Return the problem with another guess and other bounds, each (n_theta,) in search scale."""
    ends = zip(*(problem.to_natural(values) for values in (theta, lower, upper)), strict=True)
    return _variant(
        problem,
        quantities=tuple(
            replace(q, guess=float(guess), lower=float(low), upper=float(high))
            for q, (guess, low, high) in zip(problem.quantities, ends, strict=True)
        ),
    )


def _variant(problem: Problem, **changes: object) -> Problem:
    """Copy a problem with some attributes changed.

    The constructor would refuse a horizon on which nothing depends on some parameter yet.
    """
    cached = ("bounds", "guess", "free_parameters")
    attributes = {name: value for name, value in vars(problem).items() if name not in cached}
    out = object.__new__(Problem)
    vars(out).update(attributes | changes)
    return out


def end(problem: Problem) -> float:
    """Return the last measured time of all experiments."""
    return max(c.end for c in problem.conditions)


def measured_times(problem: Problem) -> Array:
    """Return all times after the start of their experiment at which anything was measured, without repetition."""
    return np.unique(np.concatenate([c.points.times[c.points.times > c.start] for c in problem.conditions]))


def integrated_length(problem: Problem) -> float:
    """Return the lengths of all experiments from start to last measurement, added up."""
    return sum(c.end - c.start for c in problem.conditions)


def doubling(problem: Problem) -> tuple[float, ...]:
    """Return horizons of which the i-th holds 2^(i-1) points of each quantity (Michalik et al. 2009, Sec. 3.2).

    Points at the start of an experiment do not count, since nothing is integrated up to there.  Quantities that are
    measured at less than half as many times as another one do not count either: they join when they are reached.
    """
    series: list[Array] = []
    for c in problem.conditions:
        columns = (np.unique(c.points.times[column & (c.points.times > c.start)]) for column in c.points.mask.T)
        series += [times for times in columns if times.size]
    most = max(times.size for times in series)
    dense = [times for times in series if 2 * times.size >= most]
    powers = 2 ** np.arange(int(np.ceil(np.log2(most))) + 1)
    reached = [max(float(times[min(n, times.size) - 1]) for times in dense) for n in powers]
    return tuple(np.unique([*reached, end(problem)]).tolist())


def break_time(problem: Problem, theta: Array, integrator: IntegratorOptions) -> float:
    """Return the earliest time at which the integration of an experiment from theta breaks down; inf if none does."""
    stops = [np.inf]
    for condition in problem.conditions:
        try:
            simulate(_variant(problem, conditions=(condition,)), theta, integrator=integrator)
        except SimulationError as stop:
            stops.append(stop.time)
    return min(stops)


def _inclusive(horizon: float) -> float:
    return horizon + _ROUNDING * abs(horizon)


def _counts(times: Array, start: float, horizon: float) -> NDArray[np.bool_]:
    return (times > start) & (times <= _inclusive(horizon))
