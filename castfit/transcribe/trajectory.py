"""Start of the state trajectories: from data, from simulation, or given by the user.

Measured states are interpolated through their data; the others are simulated with the measured ones imposed as
inputs, which keeps them near the data however poor the parameters are.  If states trigger events, and not all states
are measured, all are simulated, since imposed states may miss the events.  After a failed simulation the last value is
extended: a start need not be accurate, but it must be finite.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np
import scipy

from castfit._support.arguments import is_one_of, read_mapping, read_reals, shorten_repr
from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit._support.status import raise_if_mistakes, suggest
from castfit._support.time_limit import StopRequested
from castfit.experiment.inputs import Input, PiecewisePolynomial
from castfit.integrate import IntegratorOptions, time_rounding
from castfit.integrate.lanes import merge
from castfit.problem.event_schedule import NEVER_TIME
from castfit.solve.staged import read_only_copy
from castfit.transcribe.experiment_trajectories import IntegrationCase, as_measured, integrate_from_nodes, units_of
from castfit.transcribe.triggers import locate_triggered_events

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.parameter_map import NaturalValues


# The states that each problem's outputs determine, built once for all fits.
_INVERSIONS: PerObjectCache[CompiledProblem, tuple[tuple[tuple[int, int, ca.Function], ...], bool]] = PerObjectCache()

_ALL_STATES_MEASURED: PerObjectCache[CompiledProblem, bool] = PerObjectCache()

# States from data of each experiment, by name, smoothing, and parameters.
_STATE_DATA: PerObjectCache[CompiledProblem, OrderedDict[tuple[str, bool, bytes], dict[str, tuple[Array, Array]]]] = (
    PerObjectCache()
)

_N_CACHED_TRAJECTORIES = 4  # number of start trajectories that are cached per experiment
_TABLE_STEPS_PER_INTERVAL = 6  # table entries per measured interval, so that curvature between data is kept


@dataclass(frozen=True)
class Trajectory:
    """States over time, one table per experiment, and their magnitudes.

    tables : per experiment times (n,), states (n, n_x), algebraic states (n, n_z)
        A time that occurs twice is that of an event: the states before it, and after it.
    units : per experiment (n_x + n_z,)
        Typical magnitudes of states and algebraic states, positive.
    nodes : per experiment (K,)
        Stage boundaries of the search that produced the trajectory, if there was one.
    """

    tables: tuple[tuple[Array, Array, Array], ...]
    units: tuple[Array, ...]
    nodes: tuple[Array, ...] = ()

    def interpolate(self, i: int, times: Array, *, is_after_event: bool = False) -> tuple[Array, Array]:
        """Interpolate experiment i at times (n,): states (n, n_x) and algebraic states (n, n_z)."""
        return self.differential(i, times, is_after_event=is_after_event), self.algebraic(
            i, times, is_after_event=is_after_event
        )

    def differential(self, i: int, times: Array, *, is_after_event: bool = False) -> Array:
        """Interpolate the differential states of experiment i at times (n,), (n, n_x); at events before or after."""
        t, x, _ = self.tables[i]
        return _interpolate(t, x, np.clip(times, t[0], t[-1]), is_after_event=is_after_event)

    def algebraic(self, i: int, times: Array, *, is_after_event: bool = False) -> Array:
        """Interpolate the algebraic states of experiment i at times (n,), (n, n_z); at events before or after."""
        t, _, z = self.tables[i]
        return _interpolate(t, z, np.clip(times, t[0], t[-1]), is_after_event=is_after_event)


States = str | Trajectory | Mapping[str, Any]


def start_trajectory(problem: CompiledProblem, theta: Array, states: States, options: IntegratorOptions) -> Trajectory:
    """Make the trajectory from which nodes and collocation points start, at theta (n_theta,).

    States are "data", which interpolates measured states, "smoothed", which smooths them first, "simulation", which
    ignores the data, or a mapping ``{state: (times, values)}``, by hand, per experiment if nested as
    ``{experiment: {...}}``; an InputError says that they are none of these, or name something that does not exist.
    """
    if isinstance(states, Trajectory):
        return states
    tables: list[tuple[Array, Array, Array]] = []
    units: list[Array] = []
    for condition, state_data in zip(problem.conditions, known_states(problem, theta, states), strict=True):
        initial = condition.link.natural(theta[condition.theta])
        a = np.where(np.isfinite(initial.a), initial.a, 0.0)
        initial_units = _units(
            problem, condition, initial.p, _tabulate_constant_states(problem, condition, a, state_data)
        )
        times = _table_times(condition)
        try:
            if condition.schedule.triggers:
                initial = _locate_events(problem, condition, replace(initial, a=a), initial_units, options)
                state_data = state_data if isinstance(states, Mapping) or len(state_data) == a.size else {}
            table = _fill_spans(problem, condition, times, initial, a, state_data, initial_units, options)
        except StopRequested:  # no time to simulate: the solver will notice, and returns its start
            z = np.repeat(condition.z_guess[None], times.size, axis=0)
            table = (times, np.repeat(a[None], times.size, axis=0), z)
        tables.append(table)
        units.append(_units(problem, condition, initial.p, table))
    return Trajectory(tuple(tables), tuple(units))


def _locate_events(
    problem: CompiledProblem, condition: Condition, natural: NaturalValues, unit: Array, options: IntegratorOptions
) -> NaturalValues:
    """Return a point with the times at which states trigger events, as far as they may happen."""
    updated = locate_triggered_events(problem.model, condition, natural, unit, options, condition.end)
    return replace(updated, e=np.where(np.isnan(updated.e), NEVER_TIME, updated.e))


def constant_trajectory(problem: CompiledProblem, theta: Array, units: Sequence[Array] | None = None) -> Trajectory:
    """Hold the initial values, for transcriptions whose states need no start; measured states have their units.

    units : optional magnitudes of all states, per experiment (n_x + n_z,)
    """
    tables: list[tuple[Array, Array, Array]] = []
    for condition, state_data in zip(problem.conditions, known_states(problem, theta, "data"), strict=True):
        a = condition.link.natural(theta[condition.theta]).a
        tables.append(_tabulate_constant_states(problem, condition, np.where(np.isfinite(a), a, 0.0), state_data))
    return trajectory_through(problem, theta, tables) if units is None else Trajectory(tuple(tables), tuple(units))


def trajectory_through(
    problem: CompiledProblem, theta: Array, tables: Sequence[tuple[Array, Array, Array]], nodes: tuple[Array, ...] = ()
) -> Trajectory:
    """Return the trajectory of tables (times, states, algebraic states), one per experiment, with its units."""
    naturals = (c.link.natural(theta[c.theta]) for c in problem.conditions)
    triples = zip(problem.conditions, naturals, tables, strict=True)
    return Trajectory(
        tuple(tables), tuple(_units(problem, c, natural.p, table) for c, natural, table in triples), nodes
    )


def _units(problem: CompiledProblem, condition: Condition, p: Array, table: tuple[Array, Array, Array]) -> Array:
    return units_of(problem.model, condition.inputs, p, condition.end - condition.start, table)


def _tabulate_constant_states(
    problem: CompiledProblem, condition: Condition, a: Array, state_data: Mapping[str, tuple[Array, Array]]
) -> tuple[Array, Array, Array]:
    """Tabulate the initial state at the start, and at the end the mean magnitude of known states."""
    x = np.repeat(a[None], 2, axis=0)
    for name, (_, y) in state_data.items():
        x[1, problem.model.states.index(name)] = np.abs(y).mean()
    return np.array([condition.start, condition.end]), x, np.repeat(condition.z_guess[None], 2, axis=0)


def known_states(
    problem: CompiledProblem, theta: Array, states: str | Mapping[str, Any]
) -> list[dict[str, tuple[Array, Array]]]:
    """Return per experiment the differential states that start from data or by hand, as (times, values).

    The others are simulated; `theta` and `states` as in `start_trajectory`.
    """
    if isinstance(states, str):
        words = ("data", "smoothed", "simulation")
        raise_if_mistakes("states", [] if states in words else [f"'{states}' is not known: {suggest(states, words)}"])
    if is_one_of(states, "data", "smoothed"):
        return [
            _measured_states(problem, c, c.link.natural(theta[c.theta]).p, smooth=states == "smoothed")
            for c in problem.conditions
        ]
    return _read_user_states(problem, {} if isinstance(states, str) else states)


def _table_times(condition: Condition) -> Array:
    boundaries = merge(np.array([condition.start, condition.end]), condition.points.times, condition.breakpoints)
    step = np.diff(boundaries) / _TABLE_STEPS_PER_INTERVAL
    fine_times = step[:, None] * np.arange(_TABLE_STEPS_PER_INTERVAL) + boundaries[:-1, None]
    return np.concatenate([fine_times.ravel(), boundaries[-1:]])


def _read_user_states(problem: CompiledProblem, states: Mapping[str, Any]) -> list[dict[str, tuple[Array, Array]]]:
    names = [c.name for c in problem.conditions]
    mistakes: list[str] = []
    user_states = read_mapping("states", states, mistakes)
    nested = any(isinstance(value, Mapping) for value in user_states.values())
    if nested:
        mistakes += [f"there is no experiment '{n}': {suggest(n, names)}" for n in user_states if n not in names]
    out: list[dict[str, tuple[Array, Array]]] = []
    for experiment in names if nested else names[:1]:
        table = (
            read_mapping(f"states of '{experiment}'", user_states.get(experiment), mistakes) if nested else user_states
        )
        curves: dict[str, tuple[Array, Array]] = {}
        for name, value in table.items():
            pair = _curve(value)
            if name not in problem.model.states:
                mistakes.append(f"there is no state '{name}': {suggest(name, problem.model.states)}")
            elif pair is None:
                mistakes.append(
                    f"state '{name}' is {shorten_repr(value)}; give (times, values), finite, the times increasing"
                )
            else:
                curves[name] = pair
        out.append(curves)
    raise_if_mistakes("states", mistakes)
    return out if nested else out * len(names)


def _curve(value: Any) -> tuple[Array, Array] | None:
    if not isinstance(value, (tuple, list)) or len(cast("Sequence[Any]", value)) != 2:
        return None
    t, y = (read_reals(part) for part in cast("Sequence[Any]", value))
    if t is None or y is None or t.ndim != 1 or t.size == 0 or t.shape != y.shape:
        return None
    return (t, y) if np.isfinite(t).all() and np.isfinite(y).all() and (np.diff(t) > 0).all() else None


def every_state_measured(problem: CompiledProblem) -> bool:
    """Whether data show every differential state of every experiment, at three times at least."""
    return _ALL_STATES_MEASURED.get(problem, _every_state_measured)


def _every_state_measured(problem: CompiledProblem) -> bool:
    return all(
        name in state_data and state_data[name][0].size >= 3
        for state_data in known_states(problem, problem.guess, "data")
        for name in problem.model.states
    )


def _measured_states(
    problem: CompiledProblem, condition: Condition, p: Array, *, smooth: bool
) -> dict[str, tuple[Array, Array]]:
    """Find the states that a single output shows directly, y = c0 + c1 x, and invert it at the data.

    Several starts of one fit, and all fits where c0 and c1 do not depend on parameters, find the same.
    """
    inversions, scaled = _INVERSIONS.get(problem, _inversions)
    cache = _STATE_DATA.get(problem, lambda _: OrderedDict())
    key = (condition.name, smooth, p.tobytes() if scaled else b"")
    if key not in cache:
        cache[key] = _invert_outputs(problem, condition, inversions, p, smooth=smooth)
        while len(cache) > _N_CACHED_TRAJECTORIES * len(problem.conditions):
            cache.popitem(last=False)
    return dict(cache[key])


def _invert_outputs(
    problem: CompiledProblem,
    condition: Condition,
    inversions: tuple[tuple[int, int, ca.Function], ...],
    p: Array,
    *,
    smooth: bool,
) -> dict[str, tuple[Array, Array]]:
    points = condition.points
    just_before = np.maximum(np.nextafter(points.times, -np.inf), condition.start)
    u = np.array([s(just_before) for s in condition.inputs]).reshape(len(condition.inputs), points.times.size)
    u = as_measured(condition.inputs, points.times, u.T).T
    x, z = np.zeros(len(problem.model.states)), np.zeros(len(problem.model.algebraic_states))
    collected: dict[str, list[tuple[Array, Array, Array]]] = {}
    for j, i, evaluate in inversions:
        measured = points.mask[:, j]
        if not measured.any():
            continue
        t = points.times[measured]
        coefficients: Any = evaluate(t[None], x, z, p, u[:, measured])
        offset, gain = (np.asarray(part, dtype=float).ravel() for part in coefficients)  # CasADi maps over the columns
        if not (np.isfinite(offset) & np.isfinite(gain) & (gain != 0.0)).all():
            continue
        value = (points.values[measured, j] - offset) / gain
        weight = np.abs(gain) / points.sigma[measured, j]
        collected.setdefault(problem.model.states[i], []).append((t, value, weight))
    averaged = {name: _average(pieces, smooth=smooth) for name, pieces in collected.items()}
    return {name: (read_only_copy(times), read_only_copy(values)) for name, (times, values) in averaged.items()}


def _inversions(problem: CompiledProblem) -> tuple[tuple[tuple[int, int, ca.Function], ...], bool]:
    """Return the outputs j that show one state i only, as c0 + c1 x, with the functions that give (c0, c1).

    And whether any of these depends on parameters.
    """
    system = problem.model.system
    inversions: list[tuple[int, int, ca.Function]] = []
    scaled = False
    for j, name in enumerate(problem.outputs):
        if not _is_calibrated(problem, name):
            continue
        graph = problem.model.outputs[name]
        rows, columns = ca.jacobian_sparsity(graph, ca.vertcat(system.x, system.z)).get_triplet()
        if len(rows) != 1 or columns[0] >= system.x.numel():
            continue
        i = int(columns[0])
        slope = ca.jacobian(graph, system.x[i])
        if not ca.depends_on(slope, ca.vertcat(system.x, system.z)):
            inversions.append((j, i, system.function("invert", graph, slope)))
            scaled |= bool(ca.depends_on(graph, system.p))
    return tuple(inversions), scaled


def _is_calibrated(problem: CompiledProblem, output: str) -> bool:
    """Whether scale and offset of an output, if it has any, are numbers, or have a guess."""
    scaling = problem.model.scalings.get(output)
    free = {q.symbol_name for q in problem.quantities if q.kind == "parameter"}
    return scaling is None or not any(n in problem.unguessed and n in free for n in scaling.parameters)


def _average(pieces: Sequence[tuple[Array, Array, Array]], *, smooth: bool) -> tuple[Array, Array]:
    """Average replicates, weighted by 1/sigma^2, and smooth on demand."""
    t, y, w = (np.concatenate([piece[n] for piece in pieces]) for n in range(3))
    times, inverse = np.unique(t, return_inverse=True)
    total = np.bincount(inverse, w**2)
    mean = np.bincount(inverse, w**2 * y) / total
    if smooth and times.size >= 5:
        weight = total / total.mean()
        try:
            mean = np.asarray(scipy.interpolate.make_smoothing_spline(times, mean, w=weight)(times), dtype=float)
        except (ValueError, np.linalg.LinAlgError):  # times that span decades: smooth over their ranks
            ranks = np.arange(times.size, dtype=float)
            mean = np.asarray(scipy.interpolate.make_smoothing_spline(ranks, mean, w=weight)(ranks), dtype=float)
    return times, mean


def _fill_spans(
    problem: CompiledProblem,
    condition: Condition,
    times: Array,
    natural: NaturalValues,
    a: Array,
    state_data: Mapping[str, tuple[Array, Array]],
    unit: Array,
    options: IntegratorOptions,
) -> tuple[Array, Array, Array]:
    """Tabulate all states between events, one span after the other, each from the state after the previous event."""
    timetable = condition.timetable(natural)
    if timetable is None:
        return _fill(problem, condition, times, natural.p, a, state_data, unit, options)
    event_times = timetable.times[(timetable.times >= times[0]) & (timetable.times < times[-1])]
    boundaries: list[float] = [float(times[0]), *event_times.tolist(), float(times[-1])]
    tables: list[tuple[Array, Array, Array]] = []
    n_past_events: int = np.searchsorted(timetable.times, times[:1], side="left").tolist()[0]
    for left, right in itertools.pairwise(boundaries):
        if right > left:
            span_times = merge(np.array([left, right]), times[(times > left) & (times < right)])
            table = _fill(problem, condition, span_times, timetable.p[n_past_events], a, state_data, unit, options)
            unit = np.maximum(_units(problem, condition, timetable.p[n_past_events], table), unit)
        else:
            table: tuple[Array, Array, Array] = (np.array([left]), a[None], condition.z_guess[None])
        tables.append(table)
        if n_past_events < timetable.times.size and timetable.times[n_past_events] == right:
            crossing, u = (
                timetable.crossings[n_past_events],
                np.array([signal(right).item() for signal in condition.inputs]),
            )
            end_state: Array = table[1][-1]
            a = end_state if crossing is None else crossing.values(end_state, timetable.e, u)
            n_past_events += 1
    t, x, z = (np.concatenate([table[n] for table in tables]) for n in range(3))
    return t, x, z


def _fill(
    problem: CompiledProblem,
    condition: Condition,
    times: Array,
    p: Array,
    a: Array,
    state_data: Mapping[str, tuple[Array, Array]],
    unit: Array,
    options: IntegratorOptions,
) -> tuple[Array, Array, Array]:
    """Tabulate all states from a (n_x,) at times[0]: the known ones interpolated, the rest simulated."""
    begin, end = float(times[0]), float(times[-1])
    names = problem.model.states
    x = np.repeat(a[None, :], times.size, axis=0)
    z = np.repeat(condition.z_guess[None, :], times.size, axis=0)
    signals: dict[str, Input] = {}
    for name, (t, y) in state_data.items():
        i = names.index(name)
        later = (t > begin + time_rounding(np.array([begin]), end)) & (t <= end)
        nodes = np.concatenate([[begin], t[later]])
        values = np.concatenate([[a[i]], y[later]])
        if nodes[-1] < end:  # hold the last measured value
            nodes, values = np.append(nodes, end), np.append(values, values[-1])
        signals[name] = Input.pchip(nodes, values)
        x[:, i] = signals[name](times)
    simulated = np.array([i for i, name in enumerate(names) if name not in state_data], dtype=np.intp)
    if not simulated.size and not problem.model.algebraic_states:
        return times, x, z
    simulated_units = np.concatenate([unit[simulated], unit[len(names) :]])
    if simulated.size:
        model, inputs = problem.model.with_measured(tuple(state_data)), (*condition.inputs, *signals.values())
        course = IntegrationCase(model, inputs, p, condition.z_guess, simulated_units, options)
        (stretch,) = integrate_from_nodes(course, times[:1], x[:1, simulated], times[1:])
        is_reached = np.isin(times, stretch.times[: stretch.n_reached])
        rows = np.searchsorted(stretch.times, times[is_reached])
        x[np.ix_(is_reached, simulated)], z[is_reached] = stretch.x[rows], stretch.z[rows]
        if not is_reached.all():  # extend the last reached state
            last_index = int(is_reached.sum()) - 1 if is_reached.any() else 0
            x[np.ix_(~is_reached, simulated)], z[~is_reached] = x[last_index, simulated], z[last_index]
        return times, x, z
    course = IntegrationCase(problem.model, condition.inputs, p, condition.z_guess, unit, options)
    for row, stretch in enumerate(integrate_from_nodes(course, times, x, times[:0])):
        z[row] = stretch.z[0] if stretch.n_reached else condition.z_guess
    return times, x, z


def _interpolate(t: Array, y: Array, query_times: Array, *, is_after_event: bool = False) -> Array:
    """Interpolate between events: where a time stands twice in t (n,), y (n, m) jumps."""
    if y.shape[1] == 0:
        return np.zeros((query_times.size, 0))
    jumps = np.flatnonzero(np.diff(t) <= 0.0) + 1
    out = np.empty((query_times.size, y.shape[1]))
    piece = np.searchsorted(t[jumps], query_times, side="right" if is_after_event else "left")
    for j in np.unique(piece).tolist():
        segment = slice(jumps[j - 1] if j else 0, jumps[j] if j < jumps.size else None)
        mask = piece == j
        if t[segment].size == 1:
            out[mask] = y[segment]
            continue
        out[mask] = PiecewisePolynomial.pchip(t[segment], y[segment])(query_times[mask])
    return out
