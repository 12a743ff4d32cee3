"""Whether constraints along the path are kept between the points at which they are held.

At the end of a search the model is integrated on a fine grid, from node to node.  Where a constraint is violated
between points, the times of the worst violations, found by parabolas through the grid, are held as well in the next
search, which begins where this one ended: an exchange method for semi-infinite programs (Hettich and Kortanek 1993).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit.problem.constraints import ALONG
from castfit.problem.lie_derivatives import graph_of
from castfit.simulate.simulate import Nodes, states_at

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_problem import Posed
    from castfit.solve.staged import StagedProblem

_BETWEEN = 8  # times between two points at which something is held
_KEPT = 1e-5  # of a constraint's unit: a violation between points that is left
_APART = 1e-3  # of the distance to the next point: as near to one a time tells nothing new


@dataclass(frozen=True)
class Lapse:
    """Violation of a path constraint between points: the largest is `excess`, in its own unit, at `time`.

    times : per condition the times to be held as well
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


def lapse(posed: Posed, staged: StagedProblem, v: Array, integrator: IntegratorOptions) -> Lapse | None:
    """Find the worst violation of path constraints between points at v; None if there is none.

    Raises SimulationError if the model cannot be integrated.
    """
    chosen = [j for j, c in enumerate(posed.path) if c.times == ALONG]
    if not chosen:
        return None
    system, layout = posed.model.system, staged.layout
    function = system.function("path", *(graph_of(posed.path[j], posed.model) for j in chosen))
    theta = layout.theta(v)
    nodes = [Nodes(t[:-1], s) for t, s in zip(staged.times(v), staged.node_states(v), strict=True)]
    worst: tuple[float, str, str, float, float] | None = None
    wanted: list[Array] = []
    for condition, known, chain in zip(posed.conditions, nodes, layout.chains, strict=True):
        more: list[float] = []
        if not condition.settled:
            table = condition.timetable(condition.link.natural(theta[condition.theta]))
            happens = np.empty(0) if table is None else table.times
            inside = happens[(happens > condition.start) & (happens < condition.end)]
            times = _fine(np.concatenate([condition.times, condition.breakpoints, inside]), condition.start)
            x, z, p, _ = states_at(posed, condition, theta, known, times, integrator)
            u = np.array([signal(times) for signal in condition.inputs]).reshape(-1, times.size)
            values = function.map(times.size)(times[None], x.T, z.T, p.T, u)
            found = [values] if len(chosen) == 1 else list(values)
            for j, value in zip(chosen, found, strict=True):
                c = posed.path[j]
                if c.experiments and condition.name not in c.experiments:
                    continue
                unit = float(chain.constraint_unit[0, j])
                g = np.asarray(value, dtype=float).ravel()
                excess = np.maximum(c.lower - g, g - c.upper)
                peaks = _peaks(times, excess, _KEPT * unit)
                more += [t for t, _ in peaks]
                top = max(((e, t) for t, e in peaks), default=None)
                if top is not None and (worst is None or top[0] / unit > worst[0]):
                    worst = (top[0] / unit, c.name, condition.name, top[1], top[0])
        wanted.append(np.array(more))
    if worst is None:
        return None
    return Lapse(worst[1], worst[2], worst[3], worst[4], tuple(wanted))


def _fine(times: Array, start: float) -> Array:
    """Return a grid with several times between any two at which something is held, or happens."""
    marks = np.unique(np.append(times, start))
    parts = np.arange(_BETWEEN) / _BETWEEN
    inner = (marks[:-1, None] + np.diff(marks)[:, None] * parts).ravel()
    return np.append(inner, marks[-1])


def _peaks(times: Array, excess: Array, least: float) -> Sequence[tuple[float, float]]:
    """Return times and heights of the local maxima above `least`, by parabolas through three grid points."""
    out: list[tuple[float, float]] = []
    for k in range(times.size):
        before, after = max(k - 1, 0), min(k + 1, times.size - 1)
        if not excess[k] > least or excess[k] < excess[before] or excess[k] < excess[after]:
            continue
        time = float(times[k])
        if before < k < after:
            a, b = times[k] - times[before], times[after] - times[k]
            rise, fall = (excess[k] - excess[before]) / a, (excess[k] - excess[after]) / b
            if rise + fall > 0.0:
                time += 0.5 * float((rise * b - fall * a) / (rise + fall))
                time = float(np.clip(time, times[before] + _APART * a, times[after] - _APART * b))
        out.append((time, float(excess[k])))
    return out
