"""Horizons: sequences of times up to which an incremental fit uses the data.

Times are on the axes of the experiments, as in `Posed.until`.
"""

from __future__ import annotations

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import InputError
from castfit.integrate import IntegratorOptions
from castfit.problem.problem import Posable
from castfit.simulate.simulate import SimulationError, simulate


def end(problem: Posable) -> float:
    """Return the last measured time of all experiments."""
    return max(c.end for c in problem.conditions)


def measured_times(problem: Posable) -> Array:
    """Return all times after the start of their experiment at which anything was measured, without repetition."""
    return np.unique(np.concatenate([c.points.times[c.points.times > c.start] for c in problem.conditions]))


def integrated_length(problem: Posable) -> float:
    """Return the lengths of all experiments from start to last measurement, added up."""
    return sum(c.end - c.start for c in problem.conditions)


def doubling_horizons(problem: Posable) -> tuple[float, ...]:
    """Return horizons of which the i-th holds 2^(i-1) points of each quantity (Michalik et al. 2009, Sec. 3.2).

    Points at the start of an experiment do not count, since nothing is integrated up to there.  Quantities that are
    measured at less than half as many times as another one do not count either: they join when they are reached.
    """
    series: list[Array] = []
    for c in problem.conditions:
        columns = (np.unique(c.points.times[column & (c.points.times > c.start)]) for column in c.points.mask.T)
        series += [times for times in columns if times.size]
    max_count = max(times.size for times in series)
    dense = [times for times in series if 2 * times.size >= max_count]
    powers = 2 ** np.arange(int(np.ceil(np.log2(max_count))) + 1)
    horizons = [max(float(times[min(n, times.size) - 1]) for times in dense) for n in powers]
    return tuple(np.unique([*horizons, end(problem)]).tolist())


def break_time(problem: Posable, theta: Array, integrator: IntegratorOptions) -> float:
    """Return the earliest time at which the integration of an experiment from theta breaks down; inf if none does."""
    stops = [np.inf]
    for condition in problem.conditions:
        try:
            simulate(problem.posed.with_experiments([condition.name]), theta, integrator=integrator)
        except SimulationError as stop:
            stops.append(stop.time)
        except InputError:  # an initial state cannot be computed there
            stops.append(condition.start)
    return min(stops)
