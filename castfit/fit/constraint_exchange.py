"""Check of path constraints between the points at which they are enforced.

At the end of a search the model is integrated on a fine grid, from node to node.  If a constraint is violated between
points, parabolas through the grid give the times of the largest violations.  The next search, started at the end of
this one, enforces the constraint at these times as well: an exchange method for semi-infinite programs (Hettich and
Kortanek 1993).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.constraints import ALONG
from castfit.problem.lie_derivatives import graph_of
from castfit.simulate.simulate import TrajectoryNodes, states_at
from castfit.solve.staged import StagedProblem

_CHECKS_PER_INTERVAL = 8  # Number of checked times between two neighbouring constraint points.
_PATH_CONSTRAINT_TOLERANCE = 1e-5  # Largest accepted violation between constraint points, in the constraint's unit.
# Smallest distance of a new constraint point, relative to the interval that contains it.
_MIN_POINT_DISTANCE_FRACTION = 1e-3


@dataclass(frozen=True)
class ConstraintViolation:
    """Violation of a path constraint between points: the largest is `excess`, in its own unit, at `time`.

    times : per condition, the times to be added
    """

    name: str
    experiment: str
    time: float
    excess: float
    times: tuple[Array, ...]

    @property
    def sentence(self) -> str:
        """Sentence that reports the violation."""
        return (
            f"'{self.name}' is violated by {self.excess:.3g} between its enforcement points, at t = {self.time:.4g} "
            f"({self.experiment})."
        )


def worst_violation(
    compiled_problem: CompiledProblem, staged: StagedProblem, v: Array, integrator: IntegratorOptions
) -> ConstraintViolation | None:
    """Find the worst violation of path constraints between points at v; None if there is none.

    Raises SimulationError if the model cannot be integrated.
    """
    constraint_indices = [j for j, c in enumerate(compiled_problem.path) if c.times == ALONG]
    if not constraint_indices:
        return None
    system, layout = compiled_problem.model.system, staged.layout
    function = system.function(
        "path", *(graph_of(compiled_problem.path[j], compiled_problem.model) for j in constraint_indices)
    )
    theta = layout.theta(v)
    nodes = [TrajectoryNodes(t[:-1], s) for t, s in zip(staged.times(v), staged.node_states(v), strict=True)]
    worst_peak: tuple[float, str, str, float, float] | None = None
    violation_times: list[Array] = []
    for condition, trajectory, chain in zip(compiled_problem.conditions, nodes, layout.chains, strict=True):
        peak_times: list[float] = []
        if not condition.is_steady_state:
            table = condition.timetable(condition.link.natural(theta[condition.theta]))
            event_times = np.empty(0) if table is None else table.times
            inner_event_times = event_times[(event_times > condition.start) & (event_times < condition.end)]
            times = _refined_grid(
                np.concatenate([condition.times, condition.breakpoints, inner_event_times]), condition.start
            )
            x, z, p, _ = states_at(compiled_problem, condition, theta, trajectory, times, integrator)
            u = np.array([signal(times) for signal in condition.inputs]).reshape(-1, times.size)
            values = function.map(times.size)(times[None], x.T, z.T, p.T, u)
            constraint_values = [values] if len(constraint_indices) == 1 else list(values)
            for j, value in zip(constraint_indices, constraint_values, strict=True):
                c = compiled_problem.path[j]
                if c.experiments and condition.name not in c.experiments:
                    continue
                unit = float(chain.constraint_unit[0, j])
                g = np.asarray(value, dtype=float).ravel()
                peaks = _peaks(times, np.maximum(c.lower - g, g - c.upper), _PATH_CONSTRAINT_TOLERANCE * unit)
                peak_times += [t for t, _ in peaks]
                highest_peak = max(((e, t) for t, e in peaks), default=None)
                if highest_peak is not None and (worst_peak is None or highest_peak[0] / unit > worst_peak[0]):
                    worst_peak = (highest_peak[0] / unit, c.name, condition.name, highest_peak[1], highest_peak[0])
        violation_times.append(np.array(peak_times))
    if worst_peak is None:
        return None
    return ConstraintViolation(worst_peak[1], worst_peak[2], worst_peak[3], worst_peak[4], tuple(violation_times))


def _refined_grid(times: Array, start: float) -> Array:
    """Return a grid with several times between any two constraint points or events."""
    marks = np.unique(np.append(times, start))
    parts = np.arange(_CHECKS_PER_INTERVAL) / _CHECKS_PER_INTERVAL
    return np.append((marks[:-1, None] + np.diff(marks)[:, None] * parts).ravel(), marks[-1])


def _peaks(times: Array, excess: Array, threshold: float) -> Sequence[tuple[float, float]]:
    """Return times and heights of the local maxima above `threshold`, by parabolas through three grid points."""
    peaks: list[tuple[float, float]] = []
    for k in range(times.size):
        previous_index, next_index = max(k - 1, 0), min(k + 1, times.size - 1)
        if not excess[k] > threshold or excess[k] < excess[previous_index] or excess[k] < excess[next_index]:
            continue
        time = float(times[k])
        if previous_index < k < next_index:
            a, b = times[k] - times[previous_index], times[next_index] - times[k]
            rise, fall = (excess[k] - excess[previous_index]) / a, (excess[k] - excess[next_index]) / b
            if rise + fall > 0.0:
                time += 0.5 * float((rise * b - fall * a) / (rise + fall))
                time = float(
                    np.clip(
                        time,
                        times[previous_index] + _MIN_POINT_DISTANCE_FRACTION * a,
                        times[next_index] - _MIN_POINT_DISTANCE_FRACTION * b,
                    )
                )
        peaks.append((time, float(excess[k])))
    return peaks
