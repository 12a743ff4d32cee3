"""Trajectories of one experiment, integrated from every node to the next, through outputs and breakpoints.

Simulation, predictions, starts and plots integrate here; shooting has its own loop over many lanes with sensitivities
but uses the grids and inputs of this module.  A stretch is the integration from one node.  A stretch with many outputs
gets an integrator of its own and is integrated at once.  Otherwise, or if that fails, it is integrated step by step up
to the output before the failure.  An event ends a stretch and begins the next.

**Units.**  The unit of a state is its mean magnitude over a trajectory; absolute tolerances are relative to it, and it
scales the variables.  A state that is zero there, because it starts at zero and was not simulated, gets the magnitude
that its rate can produce: |f| T within the horizon T, or |f| / |df/dx| if it decays faster, with the other states at
their known magnitudes.  So the products of a reaction get their units one after the other.  A state far below what its
rate can produce counts as zero, as absolute tolerances have it: relative to 1e-50 no step is short enough.  Everything
here scales with the states and with time: in other units the units are other numbers and the tolerances the same.

Notation: K nodes, m times of a stretch; the first is the time of its node, or of the event that it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.casadi_functions import BatchedFunction, PerObjectCache
from castfit._support.records import dataclass
from castfit.experiment.inputs import Input
from castfit.integrate.integrator import Integrator, integrator_of, relative_grid
from castfit.integrate.lanes import IntegrationStop, Lanes, merge, snap_times, time_rounding
from castfit.integrate.options import IntegratorOptions
from castfit.model.model import Model
from castfit.problem.event_schedule import NumericSchedule

_MIN_OUTPUTS_TO_BUILD = 50  # outputs of a stretch, below which single steps cost less than an integrator

_MAGNITUDE_ROUNDS = 16  # number of rounds; in each, rates of known magnitude determine further magnitudes
NEGLIGIBLE_STATE_RATIO = 1e-10  # size relative to what its rate can produce, below which a state counts as zero

_MIN_NETWORK_MAGNITUDE_RATIO = 1e-12  # smallest magnitude relative to the largest, in models of many states
_MIN_NETWORK_STATES = 100  # number of states from which a model counts as one of many states with one unit
_MIN_MAGNITUDE_RATIO = 1e-30  # smallest magnitude relative to the largest, in models of fewer states

# Rates of each model whose rates depend on its parameters only, as a function of these.
_CONSTANT_RATES: PerObjectCache[Model, ca.Function | None] = PerObjectCache()

# The functions of `_rates`, by model.
_RATES: PerObjectCache[Model, BatchedFunction] = PerObjectCache()


@dataclass(frozen=True)
class IntegrationCase:
    """Integration task: a model with the inputs and parameters of one experiment.

    p : (n_p,), z_guess : (n_z,) where the search for consistent algebraic states begins, unit : (n_x + n_z,)
    timetable : what happens at certain times; then p is where nothing does
    """

    model: Model
    inputs: tuple[Input, ...]
    p: Array
    z_guess: Array
    unit: Array
    options: IntegratorOptions
    timetable: NumericSchedule | None = None


@dataclass
class NodeTrajectory:
    """Integrated trajectory from one node: times (m,), x (m, n_x), z (m, n_z) and inputs u (m, n_u) at them.

    States are NaN from `n_reached` on; the inputs are those of the interval that ends at each time.  p (n_p,) are the
    parameters, `node` is the position of the node: a stretch that follows an event has that of the stretch before it.
    """

    times: Array
    x: Array
    z: Array
    u: Array
    p: Array
    node: int = 0
    n_reached: int = 0
    stuck: tuple[Integrator, Lanes, int] | None = field(default=None, repr=False)

    def stop(self) -> IntegrationStop | None:
        """Find out where integration stopped; None if it did not."""
        return None if self.stuck is None else self.stuck[0].locate_failure(*self.stuck[1:])


def input_cubics(inputs: Sequence[Input], times: Array) -> Array:
    """Return the inputs as local cubics between times, (m, n_u, 4); an empty first interval copies the second."""
    if not inputs:
        return np.zeros((times.size - 1, 0, 4))
    if times[1] == times[0]:
        if times.size == 2:
            return np.pad(np.array([[signal(times[0])] for signal in inputs])[None], ((0, 0), (0, 0), (0, 3)))
        later_cubics = input_cubics(inputs, times[1:])
        return np.concatenate([later_cubics[:1], later_cubics])
    return np.stack([signal.cubics(times) for signal in inputs], axis=1)


def as_measured(inputs: Sequence[Input], times: Array, u: Array) -> Array:
    """Replace, in inputs u (..., n_u) just before times (...), values of inputs that are measured after jumps."""
    late = [j for j, signal in enumerate(inputs) if signal.measured == "after"]
    out = u.copy() if late else u
    for j in late:
        out[..., j] = inputs[j](snap_times(times.ravel(), inputs[j].times)).reshape(times.shape)
    return out


def straight_rates(model: Model, p: Array) -> Array | None:
    """Return the rates (n_x,) of a model whose states change evenly between events; None of other ones."""
    function = _CONSTANT_RATES.get(model, _build_constant_rates)
    return None if function is None else np.asarray(cast("Any", function)(p), dtype=float).ravel()


def _build_constant_rates(model: Model) -> ca.Function | None:
    system = model.system
    variables: ca.SX = ca.vertcat(system.t, system.x, system.z, system.u)
    if system.z.numel() or system.u.numel() or ca.depends_on(system.ode, variables):
        return None
    return ca.Function("rates", [system.p], [ca.densify(system.ode)])


def integrate_from_nodes(course: IntegrationCase, begins: Array, states: Array, times: Array) -> list[NodeTrajectory]:
    """Integrate from every node through the wanted times up to the next node.

    begins (K,) : times of the nodes, increasing
    states (K, n_x)
    times (n,) : wanted times, increasing, none before the first node; one at a node belongs to the stretch that ends
        there
    """
    nodes = snap_times(begins, times)
    owner = np.maximum(np.searchsorted(nodes, times, side="left") - 1, 0)
    kinks = [signal.breakpoints for signal in course.inputs]
    kinks = np.unique(np.concatenate(kinks)) if kinks else np.empty(0)
    table = course.timetable
    events = np.empty(0) if table is None else snap_times(table.times, merge(nodes, times) if times.size else nodes)
    if table is not None and begins.size == 1 and times.size:
        rates = straight_rates(course.model, course.p)
        if rates is not None:
            return _extrapolate_constant_rates(course, table, rates, float(nodes[0]), states[0], times, events)
    legs: list[_IntegrationLeg] = []
    for k, begin in enumerate(nodes.tolist()):
        n_past_events = 0
        if table is not None:
            slack = float(time_rounding(np.array([begin]), table.start)[0])
            n_past_events = table.count_past_events(begin, slack, at_start=k == 0 and begin <= table.start + slack)
        legs.append(_IntegrationLeg(k, begin, states[k], times[(owner == k) & (times >= begin)], n_past_events))
    node_trajectories: list[NodeTrajectory] = []
    while legs:
        stretches, cubics = zip(*(_integrate_stretch(course, leg, kinks, events) for leg in legs), strict=True)
        starts = np.array([leg.x for leg in legs])
        _integrate_legs_together(course, stretches, starts, cubics)
        _integrate_stepwise(course, stretches, starts, cubics)
        node_trajectories += stretches
        next_legs = (_next_leg(course, leg, stretch, events) for leg, stretch in zip(legs, stretches, strict=True))
        legs = [leg for leg in next_legs if leg is not None]
    return sorted(node_trajectories, key=lambda stretch: stretch.node)  # stable: a node's stretches stay in order


@dataclass(frozen=True)
class _IntegrationLeg:
    """Integration still to do from node `node`, at `begin` from x, through times (n,), after `done` events."""

    node: int
    begin: float
    x: Array
    times: Array
    n_past_events: int


def _extrapolate_constant_rates(
    course: IntegrationCase, table: NumericSchedule, rates: Array, begin: float, x: Array, times: Array, events: Array
) -> list[NodeTrajectory]:
    """Compute the trajectory from event to event if states have constant rates in between, without an integrator."""
    slack = float(time_rounding(np.array([begin]), table.start)[0])
    n_past_events = table.count_past_events(begin, slack, at_start=begin <= table.start + slack)
    node_trajectories: list[NodeTrajectory] = []
    start_index, last_time = 0, float(times[-1])
    p = course.p
    while True:
        if not np.array_equal(table.p[n_past_events], p):
            p = table.p[n_past_events]
            new_rates = straight_rates(course.model, p)
            assert new_rates is not None
            rates = new_rates
        has_event = n_past_events < events.size and events[n_past_events] <= last_time and start_index < times.size
        stop = int(np.searchsorted(times, float(events[n_past_events]))) if has_event else times.size
        next_times: Array = np.append(times[start_index:stop], events[n_past_events : n_past_events + int(has_event)])
        t: Array = np.append(begin, next_times)
        if t.size > 1 and t[1] == begin:
            t = t[1:]
        states, empty = x + rates * (t - begin)[:, None], np.empty((t.size, 0))
        node_trajectories.append(NodeTrajectory(t, states, empty, empty, p, 0, t.size))
        if not has_event or (events[n_past_events] == last_time and not table.is_measured_after[n_past_events]):
            return node_trajectories
        begin, x, crossing = float(events[n_past_events]), states[-1], table.crossings[n_past_events]
        if crossing is not None:
            x = crossing.values(x, table.e, np.empty(0))
        start_index = (
            stop if table.is_measured_after[n_past_events] else int(np.searchsorted(times, begin, side="right"))
        )
        n_past_events += 1


def _integrate_stretch(
    course: IntegrationCase, leg: _IntegrationLeg, kinks: Array, events: Array
) -> tuple[NodeTrajectory, Array]:
    """Return the stretch up to the next event, still empty, and its inputs."""
    times, table = leg.times, course.timetable
    if leg.n_past_events < events.size and times.size and events[leg.n_past_events] <= times[-1]:
        times = np.append(times[times < events[leg.n_past_events]], events[leg.n_past_events])
    inner_kinks = kinks[(kinks > leg.begin) & (kinks < times[-1])] if times.size else times
    t = merge(np.array([leg.begin]), times, inner_kinks)
    cubics = input_cubics(course.inputs, np.append(t[0], t))
    steps = np.diff(t, prepend=t[0])
    u = np.einsum("muc,mc->mu", cubics, steps[:, None] ** np.arange(4))
    x, z = (np.full((t.size, n), np.nan) for n in (leg.x.size, course.z_guess.size))
    p = course.p if table is None else table.p[leg.n_past_events]
    return NodeTrajectory(t, x, z, u, p, leg.node), cubics


def _next_leg(
    course: IntegrationCase, leg: _IntegrationLeg, stretch: NodeTrajectory, events: Array
) -> _IntegrationLeg | None:
    """Return the leg that follows the event at the end of a stretch; None if there is none."""
    table = course.timetable
    if table is None or leg.n_past_events == events.size or stretch.stuck is not None or not leg.times.size:
        return None
    time, last_time = float(events[leg.n_past_events]), float(leg.times[-1])
    if time > last_time or (time == last_time and not table.is_measured_after[leg.n_past_events]):
        return None
    crossing, x = table.crossings[leg.n_past_events], stretch.x[-1]
    if crossing is not None:
        x = crossing.values(x, table.e, stretch.u[-1])
    remaining_times = (
        leg.times[leg.times >= time] if table.is_measured_after[leg.n_past_events] else leg.times[leg.times > time]
    )
    return _IntegrationLeg(leg.node, time, x, remaining_times, leg.n_past_events + 1)


def _integrate_legs_together(
    course: IntegrationCase, stretches: Sequence[NodeTrajectory], states: Array, cubics: Sequence[Array]
) -> None:
    """Integrate long stretches, those of one grid together; what fails is left."""
    groups: dict[tuple[float, ...], list[int]] = {}
    for k, stretch in enumerate(stretches):
        if stretch.times.size > _MIN_OUTPUTS_TO_BUILD:
            grid = relative_grid(course.model, np.append(stretch.times[0], stretch.times))
            groups.setdefault(tuple(grid.tolist()), []).append(k)
    for grid, members in groups.items():
        times = [stretches[k].times for k in members]
        integrator = integrator_of(course.model, grid, course.options)
        guess = np.repeat(course.z_guess[None], len(members), axis=0)
        p = np.array([stretches[k].p for k in members])
        trajectories = integrator.values(_lanes(course, times, states[members], p, guess, [cubics[k] for k in members]))
        failed = {failure.lane for failure in trajectories.failures}
        for lane, k in enumerate(members):
            if lane not in failed:
                stretches[k].x, stretches[k].z = trajectories.x[lane], trajectories.z[lane]
                stretches[k].n_reached = stretches[k].times.size


def _integrate_stepwise(
    course: IntegrationCase, stretches: Sequence[NodeTrajectory], states: Array, cubics: Sequence[Array]
) -> None:
    """Integrate the others from output to output; the first step has length zero and makes z consistent."""
    step = integrator_of(course.model, [1.0], course.options)
    indices = [k for k, stretch in enumerate(stretches) if stretch.n_reached == 0]
    j = 0
    while indices := [k for k in indices if stretches[k].stuck is None and j < stretches[k].times.size]:
        active = [stretches[k] for k in indices]
        x = np.array([s.x[j - 1] if j else states[k] for k, s in zip(indices, active, strict=True)])
        z = np.array([s.z[j - 1] if j else course.z_guess for s in active]).reshape(len(active), -1)
        spans = [s.times[[max(j - 1, 0), j]] for s in active]
        p = np.array([s.p for s in active])
        lanes = _lanes(course, spans, x, p, z, [cubics[k][j : j + 1] for k in indices])
        trajectories = step.values(lanes)
        failed = {failure.lane for failure in trajectories.failures}
        for lane, stretch in enumerate(active):
            if lane in failed:
                stretch.stuck = step, lanes, lane
            else:
                stretch.x[j], stretch.z[j] = trajectories.x[lane, -1], trajectories.z[lane, -1]
                stretch.n_reached = j + 1
        j += 1


def _lanes(
    course: IntegrationCase, times: Sequence[Array], x: Array, p: Array, z: Array, cubics: Sequence[Array]
) -> Lanes:
    count = len(times)
    return Lanes(
        start=np.array([t[0] for t in times]),
        duration=np.array([t[-1] - t[0] for t in times]),
        x0=x,
        p=p,
        u=np.array(cubics),
        z0=z,
        unit=np.repeat(course.unit[None], count, axis=0),
    )


def units_of(
    model: Model, inputs: Sequence[Input], p: Array, horizon: float, table: tuple[Array, Array, Array]
) -> Array:
    """Return typical magnitudes (n_x + n_z,), positive; 1 for what never moves from zero.

    inputs : sequence of Input
    p (n_p,)
    horizon : length of the experiment
    table (times (n,), states (n, n_x), algebraic states (n, n_z))
    """
    times, x, z = table
    size = mean_magnitude(x)
    min_decay = 1.0 / horizon if horizon > 0.0 else np.inf  # in no time at all nothing moves from zero
    estimated_size, is_estimated = np.zeros(size.size), np.zeros(size.size, dtype=bool)
    u = np.array([signal(times) for signal in inputs]).reshape(-1, times.size).T
    for _ in range(min(size.size, _MAGNITUDE_ROUNDS)):
        filled_states = np.where((x == 0.0) & (size > 0.0), size, x)
        rates, decay = _rates(model, u, times, filled_states, z, p)
        production = rates / np.maximum(decay, min_decay)
        is_negligible = ~is_estimated & (size < NEGLIGIBLE_STATE_RATIO * production)
        estimated_size = np.where(is_negligible, production, 0.0)
        if not is_negligible.any():
            break
        is_estimated |= is_negligible
        x, size = np.where(is_negligible, 0.0, x), np.where(is_negligible, 0.0, size)
        # What decays the faster the larger it is settles between the two.
        _, faster = _rates(model, u, times, np.where(estimated_size > 0.0, estimated_size, filled_states), z, p)
        balance = rates / np.maximum(faster, min_decay)
        size = size + np.where(balance < estimated_size, np.sqrt(balance) * np.sqrt(estimated_size), estimated_size)
    if (
        estimated_size > 0.0
    ).any():  # every next cell of a diffusion would count as half of the one before: 2^-1000 in the end
        size = np.where(size > 0.0, size, size[estimated_size > 0.0].min())
    size = np.where(mean_magnitude(x) == 0.0, resolvable(size), size)
    size = np.concatenate([size, mean_magnitude(z)])
    return np.where(size > 0.0, size, 1.0)


def resolvable(size: Array) -> Array:
    """Return magnitudes (n,) of unmeasured states, raised to the smallest that is resolvable beside the largest.

    In a large network of reactions, which has one unit, some magnitudes are 1e-50 of others.  A state that grows from
    zero with a high power of time would need steps that are never short enough.  Absolute tolerances are far smaller
    still.  States of smaller models may have units of their own: only ratios that no units explain are raised, as in
    Raimundez' model of 22 states, which cannot be integrated otherwise.
    """
    min_ratio = _MIN_MAGNITUDE_RATIO if size.size < _MIN_NETWORK_STATES else _MIN_NETWORK_MAGNITUDE_RATIO
    return np.where(size > 0.0, np.maximum(size, min_ratio * size.max(initial=0.0)), size)


def mean_magnitude(values: Array) -> Array:
    """Return the mean absolute value of the finite entries of each column of (n, m).

    The mean is 0 if no entry is finite, or if its reciprocal is not finite.
    """
    finite = np.isfinite(values)
    with np.errstate(over="ignore"):
        mean = np.abs(np.where(finite, values, 0.0)).sum(axis=0) / np.maximum(finite.sum(axis=0), 1)
    return np.where(np.isfinite(mean) & (mean >= np.finfo(float).tiny), mean, 0.0)


def _rates(model: Model, u: Array, times: Array, x: Array, z: Array, p: Array) -> tuple[Array, Array]:
    """Return the largest |f_i| and |d f_i / d x_i| over the table, (n_x,) each, of inputs u (n, n_u)."""
    sizes = np.abs(_RATES.get(model, _build)(times[:, None], x, z, np.broadcast_to(p, (times.size, p.size)), u))
    max_rates = np.where(np.isfinite(sizes), sizes, 0.0).max(axis=0)
    return max_rates[:, 0], max_rates[:, 1]


def _build(model: Model) -> BatchedFunction:
    ode = model.system.ode
    return BatchedFunction("rates", model.system.arguments, ca.horzcat(ode, ca.diag(ca.jacobian(ode, model.system.x))))
