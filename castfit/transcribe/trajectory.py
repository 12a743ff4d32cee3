"""Where the state trajectories start: from data, from simulation, or given.

Measured states are interpolated through their data; the others are simulated with the measured ones imposed as
inputs, which keeps them near the data however poor the parameters are.  A simulation that stops holds its last
value: a start need not be accurate, but it must be finite.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np
from scipy.interpolate import PchipInterpolator, make_smoothing_spline

from castfit._casadi import Built
from castfit._reading import is_one_of, named, reals, text
from castfit._watch import Stopped
from castfit.inputs import Input
from castfit.integrate import IntegratorOptions, Lanes
from castfit.status import check, suggest
from castfit.transcribe.grid import merge
from castfit.transcribe.integrators import integrator_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.conditions import Condition
    from castfit.model import Model
    from castfit.posed import Posed

    Array = NDArray[np.float64]

_INVERSIONS: Built[Posed, tuple[tuple[int, int, ca.Function], ...]] = Built()
"""What each problem's outputs show, built once however many fits ask."""

_SUBDIVISIONS = 6  # table entries per measured interval, so that curvature between data is kept


@dataclass(frozen=True)
class Trajectory:
    """States over time, one table per experiment: times (n,), states (n, n_x), algebraic states (n, n_z).

    `nodes` are, per experiment, the times (K,) between which a search that led here had divided it, if there was one.
    """

    tables: tuple[tuple[Array, Array, Array], ...]
    nodes: tuple[Array, ...] = ()

    def at(self, i: int, times: Array) -> tuple[Array, Array]:
        """Interpolate experiment i at times (n,): states (n, n_x) and algebraic states (n, n_z)."""
        t, x, z = self.tables[i]
        inside = np.clip(times, t[0], t[-1])
        return _interpolate(t, x, inside), _interpolate(t, z, inside)

    def magnitude(self, i: int) -> Array:
        """Return the mean absolute value of each state, (n_x,); 1 for a state that stays at zero."""
        mean = np.abs(self.tables[i][1]).mean(axis=0)
        return np.where(mean > 1e-12, mean, 1.0)


States = str | Trajectory | Mapping[str, Any]


def start_trajectory(problem: Posed, theta: Array, states: States, options: IntegratorOptions) -> Trajectory:
    """Make the trajectory from which nodes and collocation points start.

    Parameters
    ----------
    problem : Posed
    theta : (n_theta,) array
        Search scale.
    states : {"data", "smoothed", "simulation"}, mapping or Trajectory
        "data" interpolates measured states, "smoothed" smooths them first, "simulation" ignores the data.  A mapping
        ``{state: (times, values)}`` gives states by hand, per experiment if nested as ``{experiment: {...}}``.

    Raises
    ------
    InputError
        If `states` is none of these, or names something that does not exist.
    """
    if isinstance(states, Trajectory):
        return states
    tables: list[tuple[Array, Array, Array]] = []
    for condition, known in zip(problem.conditions, known_states(problem, theta, states), strict=True):
        initial = condition.link.natural(theta[condition.theta])
        a = np.where(np.isfinite(initial.a), initial.a, 0.0)
        times = _table_times(condition)
        try:
            tables.append(_fill(problem, condition, times, initial.p, a, known, options))
        except Stopped:  # no time to simulate: the solver will notice, and returns its start
            z = np.repeat(condition.z_guess[None], times.size, axis=0)
            tables.append((times, np.repeat(a[None], times.size, axis=0), z))
    return Trajectory(tuple(tables))


def known_states(problem: Posed, theta: Array, states: str | Mapping[str, Any]) -> list[dict[str, tuple[Array, Array]]]:
    """Return per experiment the differential states that start from data or by hand, as (times, values).

    The others are simulated; `theta` and `states` as in `start_trajectory`.
    """
    if isinstance(states, str):
        words = ("data", "smoothed", "simulation")
        check("states", [] if states in words else [f"'{states}' is not known: {suggest(states, words)}"])
    if is_one_of(states, "data", "smoothed"):
        return [
            _measured_states(problem, c, c.link.natural(theta[c.theta]).p, smooth=states == "smoothed")
            for c in problem.conditions
        ]
    return _given(problem, {} if isinstance(states, str) else states)


def _table_times(condition: Condition) -> Array:
    marks = merge(np.array([condition.start]), condition.points.times, condition.breakpoints)
    fine: list[Array] = [
        np.linspace(a, b, _SUBDIVISIONS, endpoint=False) for a, b in itertools.pairwise(marks.tolist())
    ]
    return np.concatenate([*fine, marks[-1:]])


def _given(problem: Posed, states: Mapping[str, Any]) -> list[dict[str, tuple[Array, Array]]]:
    """Read trajectories given by hand."""
    names = [c.name for c in problem.conditions]
    mistakes: list[str] = []
    given = named("states", states, mistakes)
    nested = any(isinstance(value, Mapping) for value in given.values())
    if nested:
        mistakes += [f"there is no experiment '{n}': {suggest(n, names)}" for n in given if n not in names]
    out: list[dict[str, tuple[Array, Array]]] = []
    for experiment in names if nested else names[:1]:
        table = named(f"states of '{experiment}'", given.get(experiment), mistakes) if nested else given
        found: dict[str, tuple[Array, Array]] = {}
        for name, value in table.items():
            pair = _curve(value)
            if name not in problem.model.states:
                mistakes.append(f"there is no state '{name}': {suggest(name, problem.model.states)}")
            elif pair is None:
                mistakes.append(f"state '{name}' is {text(value)}; give (times, values), finite, the times increasing")
            else:
                found[name] = pair
        out.append(found)
    check("states", mistakes)
    return out if nested else out * len(names)


def _curve(value: Any) -> tuple[Array, Array] | None:
    """Read (times, values)."""
    if not isinstance(value, (tuple, list)) or len(cast("Sequence[Any]", value)) != 2:
        return None
    t, y = (reals(part) for part in cast("Sequence[Any]", value))
    if t is None or y is None or t.ndim != 1 or t.size == 0 or t.shape != y.shape:
        return None
    return (t, y) if np.isfinite(t).all() and np.isfinite(y).all() and (np.diff(t) > 0).all() else None


def every_state_measured(problem: Posed) -> bool:
    """Whether data show every differential state of every experiment, at three times at least."""
    return all(
        name in known and known[name][0].size >= 3
        for known in known_states(problem, problem.guess, "data")
        for name in problem.model.states
    )


def _measured_states(problem: Posed, condition: Condition, p: Array, *, smooth: bool) -> dict[str, tuple[Array, Array]]:
    """Find the states that a single output shows directly, y = c0 + c1 x, and invert it at the data."""
    points = condition.points
    u = np.array([s(points.times) for s in condition.inputs]).reshape(len(condition.inputs), points.times.size)
    x, z = np.zeros(len(problem.model.states)), np.zeros(len(problem.model.algebraic_states))
    collected: dict[str, list[tuple[Array, Array, Array]]] = {}
    for j, i, at in _INVERSIONS.get(problem, _inversions):
        measured = points.mask[:, j]
        if not measured.any():
            continue
        t = points.times[measured]
        found: Any = at(t[None], x, z, p, u[:, measured])
        offset, gain = (np.asarray(part, dtype=float).ravel() for part in found)  # CasADi maps over the columns
        if not (np.isfinite(offset) & np.isfinite(gain) & (np.abs(gain) > 1e-12)).all():
            continue
        value = (points.values[measured, j] - offset) / gain
        weight = np.abs(gain) / points.sigma[measured, j]
        collected.setdefault(problem.model.states[i], []).append((t, value, weight))
    return {name: _average(pieces, smooth=smooth) for name, pieces in collected.items()}


def _inversions(problem: Posed) -> tuple[tuple[int, int, ca.Function], ...]:
    """Return the outputs j that show one state i only, as c0 + c1 x, with the functions that give (c0, c1)."""
    system = problem.model.system
    found: list[tuple[int, int, ca.Function]] = []
    for j, name in enumerate(problem.outputs):
        graph = problem.model.outputs[name]
        rows, columns = ca.jacobian_sparsity(graph, ca.vertcat(system.x, system.z)).get_triplet()
        if len(rows) != 1 or columns[0] >= system.x.numel():
            continue
        i = int(columns[0])
        slope = ca.jacobian(graph, system.x[i])
        if not ca.depends_on(slope, ca.vertcat(system.x, system.z)):
            found.append((j, i, system.function("invert", graph, slope)))
    return tuple(found)


def _average(pieces: Sequence[tuple[Array, Array, Array]], *, smooth: bool) -> tuple[Array, Array]:
    """Average replicates, weighted by 1/sigma^2, and smooth on demand."""
    t, y, w = (np.concatenate([piece[n] for piece in pieces]) for n in range(3))
    times, inverse = np.unique(t, return_inverse=True)
    total = np.bincount(inverse, w**2)
    mean = np.bincount(inverse, w**2 * y) / total
    if smooth and times.size >= 5:
        mean = np.asarray(make_smoothing_spline(times, mean, w=total / total.mean())(times), dtype=float)
    return times, mean


def _fill(
    problem: Posed,
    condition: Condition,
    times: Array,
    p: Array,
    a: Array,
    known: Mapping[str, tuple[Array, Array]],
    options: IntegratorOptions,
) -> tuple[Array, Array, Array]:
    """Tabulate all states: the known ones interpolated, the rest simulated."""
    names = problem.model.states
    x = np.repeat(a[None, :], times.size, axis=0)
    z = np.repeat(condition.z_guess[None, :], times.size, axis=0)
    signals: dict[str, Input] = {}
    for name, (t, y) in known.items():
        i = names.index(name)
        later = t > condition.start + 1e-9 * (condition.end - condition.start)
        nodes = np.concatenate([[condition.start], t[later]])
        values = np.concatenate([[a[i]], y[later]])
        if nodes[-1] < condition.end:  # hold the last measured value
            nodes, values = np.append(nodes, condition.end), np.append(values, values[-1])
        signals[name] = Input.pchip(nodes, values)
        x[:, i] = signals[name](times)
    rest = [i for i, name in enumerate(names) if name not in known]
    if not rest and not problem.model.algebraic_states:
        return times, x, z
    if rest:
        model = problem.model.with_measured(tuple(known))
        inputs = (*condition.inputs, *signals.values())
        found, z = _march(model, times, x[0, rest], condition.z_guess, p, inputs, options)
        x[:, rest] = found
    else:
        z = _consistent(problem, condition, times, x, p, options)
    return times, x, z


def _march(
    model: Model, times: Array, x0: Array, z0: Array, p: Array, inputs: Sequence[Input], options: IntegratorOptions
) -> tuple[Array, Array]:
    """Integrate over the whole table, or, if that fails, interval by interval up to where it stops."""
    count = times.size
    span = times[-1] - times[0]
    cubics = np.stack([u.cubics(times) for u in inputs], axis=1) if inputs else np.zeros((count - 1, 0, 4))
    whole = integrator_of(model, (times - times[0]) / span, options)
    u = np.concatenate([cubics[:1], cubics])  # an empty interval comes first
    found = whole.values(Lanes(times[:1], np.array([span]), x0[None], p[None], u[None], z0[None]))
    if not found.failures:
        return found.x[0], found.z[0]
    x, z = np.repeat(x0[None], count, axis=0), np.repeat(z0[None], count, axis=0)
    single = integrator_of(model, [1.0], options)
    for k in range(count - 1):
        step = Lanes(
            times[k : k + 1], np.diff(times)[k : k + 1], x[k][None], p[None], cubics[k][None, None], z[k][None]
        )
        found = single.values(step)
        if found.failures:
            x[k + 1 :], z[k + 1 :] = x[k], z[k]
            break
        x[k + 1], z[k + 1] = found.x[0, -1], found.z[0, -1]
    return x, z


def _consistent(
    problem: Posed, condition: Condition, times: Array, x: Array, p: Array, options: IntegratorOptions
) -> Array:
    """Solve the algebraic equations along a known trajectory, by integrations of zero length."""
    count = times.size
    u = np.zeros((count, 1, len(condition.inputs), 4))
    for i, signal in enumerate(condition.inputs):
        u[:, 0, i, 0] = signal(times)
    guess = np.repeat(condition.z_guess[None], count, axis=0)
    lanes = Lanes(times, np.zeros(count), x, np.repeat(p[None], count, axis=0), u, guess)
    found = integrator_of(problem.model, [1.0], options).values(lanes)
    return np.where(np.isfinite(found.z[:, -1]), found.z[:, -1], guess)


def _interpolate(t: Array, y: Array, at: Array) -> Array:
    if y.shape[1] == 0:
        return np.zeros((at.size, 0))
    with np.errstate(over="ignore"):  # slopes that are almost zero
        return np.asarray(PchipInterpolator(t, y, axis=0)(at), dtype=float)
