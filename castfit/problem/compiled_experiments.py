"""Compiled experiments: data on points, inputs in order, and the link from theta to parameters and initial state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit.experiment.events import DIRECTIONS, Doses, Event, ScheduledEvent, input_jumps, occurrences
from castfit.experiment.experiment import Consistent, Experiment, Free, MeasurementPoints
from castfit.experiment.inputs import Input
from castfit.model.comparisons import Comparisons, is_condition
from castfit.model.expressions import pattern, substitute_by_name
from castfit.model.graph_rewriting import Switch
from castfit.model.model import Model
from castfit.model.scaled_outputs import measured_with
from castfit.problem.event_schedule import (
    NEVER_TIME,
    EventInstant,
    EventUpdate,
    NumericSchedule,
    Schedule,
    SwitchedParameter,
    Trigger,
)
from castfit.problem.input_reduction import with_piecewise_inputs
from castfit.problem.map_initial_states import ConsistentInitialRows, SteadyStateRows
from castfit.problem.observables import Observations, ObservedOutput
from castfit.problem.parameter_map import MappedExpressions, NaturalValues, ParameterLink
from castfit.problem.parameters import ProblemStatement, initial_values
from castfit.problem.quantities import Quantity, fixed_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Index, Mask
    from castfit.densities.noise.correlation import WhiteningMatrix
    from castfit.experiment.steady import SteadyStateSolver


@add_brief_repr
@dataclass(frozen=True, eq=False)
class Condition:
    """One experiment, compiled for transcriptions.

    points : measurements, with one column for each of ``CompiledProblem.outputs``
    observed : their noise; None if an output is not measured in this experiment
    inputs : in the model's order
    theta : (n_q,) positions in theta of the quantities that this experiment depends on
    link : map from q = theta[self.theta] to p and a
    z_guess : (n_z,) guess of the consistent algebraic states
    schedule : events and changes of parameters, as a function of the last rows e of the link
    is_steady_state : whether the measurements are those of a steady state; their times are arbitrary times at rest
    watched_times : (n,) times without data at which a constraint applies (castfit.problem.constraint_compilation)
    time_unit, origin : unit of the user's times, and the date of time 0, for figures; None if times are numbers
    """

    name: str
    start: float
    points: MeasurementPoints
    observed: tuple[ObservedOutput | None, ...]
    inputs: tuple[Input, ...]
    theta: NDArray[np.intp]
    link: ParameterLink
    z_guess: Array
    schedule: Schedule = field(default_factory=Schedule)
    is_steady_state: bool = False
    watched_times: Array = field(default_factory=lambda: np.empty(0))
    time_unit: str | None = None
    origin: np.datetime64 | None = None

    @property
    def end(self) -> float:
        """The last measured or watched time."""
        return max(float(self.points.times[-1]), float(self.watched_times.max(initial=-np.inf)))

    def whitening(self, outputs: Sequence[str]) -> WhiteningMatrix | None:
        """Return the whitening transform of correlated errors by time and output; None if all are independent."""
        correlations = [None if o is None else getattr(o.noise, "correlation", None) for o in self.observed]
        if not any(correlations):
            return None
        from castfit.densities.noise.correlation import whitening_matrix

        return whitening_matrix(self.points.times, self.points.mask, outputs, correlations)

    @cached_property
    def times(self) -> Array:
        """Measured and watched times, in order; replicates as often as they are measured."""
        return np.sort(np.concatenate([self.points.times, self.watched_times]), kind="stable")

    @cached_property
    def watched_points(self) -> MeasurementPoints:
        """The measurements, with rows of NaN at watched times."""
        if not self.watched_times.size:
            return self.points
        order = np.argsort(np.concatenate([self.points.times, self.watched_times]), kind="stable")
        padding = np.full((self.watched_times.size, self.points.values.shape[1]), np.nan)
        values, sigma = (np.concatenate([array, padding])[order] for array in (self.points.values, self.points.sigma))
        return MeasurementPoints(self.times, values, sigma)

    @cached_property
    def breakpoints(self) -> Array:
        """Times strictly inside the horizon at which an input or one of its derivatives may jump; events are apart."""
        breakpoint_arrays = [u.breakpoints for u in self.inputs]
        unique_times = np.unique(np.concatenate(breakpoint_arrays)) if breakpoint_arrays else np.empty(0)
        return unique_times[(unique_times > self.start) & (unique_times < self.end)]

    def timetable(self, natural: NaturalValues) -> NumericSchedule | None:
        """Return the timetable of the scheduled instants at a point; None if nothing is scheduled."""
        return (
            NumericSchedule.from_schedule(self.schedule, self.start, natural.p, natural.e)
            if self.schedule.instants
            else None
        )

    def failure(self, q: Array, natural: NaturalValues, *, slopes: bool = False) -> str:
        """Describe the parameters, initial states, derivatives or events that are not defined at q; empty if none."""
        message = self.link.failure(q, natural, slopes=slopes)
        return message or (self.schedule.describe_obstacle(natural.e, self.start) if self.schedule.instants else "")


def conditions_of(
    observations: Observations, outputs: Sequence[str], quantities: Sequence[Quantity]
) -> tuple[Condition, ...]:
    """Compile all experiments; expressions that several of them share become one function."""
    graphs, statement = _GraphCache(), observations.statement
    indices_by_experiment: dict[str | None, list[int]] = {}
    for j, quantity in enumerate(quantities):
        indices_by_experiment.setdefault(quantity.experiment, []).append(j)
    return tuple(
        _condition(
            statement, e, tuple(observed.get(n) for n in outputs), outputs, quantities, indices_by_experiment, graphs
        )
        for e, observed in zip(statement.experiments, observations.observed, strict=True)
    )


def resolve_overrides(expression: ca.SX, overrides: Mapping[str, Any]) -> ca.SX:
    """Substitute an experiment's own expressions for the parameters that they override.

    What remains are the names of quantities and of parameters that are numbers.  A parameter that depends on itself is
    a RecursionError.
    """
    names = {s.name() for s in ca.symvar(expression)}
    local_expressions = {n: v for n, v in overrides.items() if n in names and isinstance(v, ca.SX)}
    return substitute_by_name(expression, {n: resolve_overrides(v, overrides) for n, v in local_expressions.items()})


def _condition(
    statement: ProblemStatement,
    experiment: Experiment,
    observed: tuple[ObservedOutput | None, ...],
    outputs: Sequence[str],
    quantities: Sequence[Quantity],
    indices_by_experiment: Mapping[str | None, list[int]],
    graphs: _GraphCache,
) -> Condition:
    model, initial = statement.model, initial_values(statement.model, experiment)
    happens = _EventRowCollector(model, graphs)
    for switch in model.switches:
        happens.switch(switch)
    for occurrence in [*occurrences(experiment.events, experiment.end), *jumps_seen(model, experiment)]:
        happens.add(occurrence)
    plans = [_GraphBuilder.from_experiment(model, experiment, graphs, tuple(happens.values), tuple(happens.labels))]
    resting_experiments = [experiment]  # experiments that begin at a steady state, each preceding the last
    while resting_experiments[-1].steady is not None:
        resting_experiments.append(resting_experiments[-1].before)
        plans.append(_GraphBuilder.from_experiment(model, resting_experiments[-1], graphs))
    consistent_states = tuple(n for n in model.own_states if isinstance(initial.get(n), Consistent))
    fixed_algebraic = tuple(
        n for n in model.algebraic_states if n in initial and not isinstance(initial[n], Consistent)
    )
    if consistent_states:
        labels = tuple(f"the initial value of '{n}'" for n in fixed_algebraic)
        plans.append(
            _GraphBuilder.from_experiment(model, experiment, graphs, tuple(initial[n] for n in fixed_algebraic), labels)
        )
    indices = [
        j
        for j in sorted([*indices_by_experiment.get(None, ()), *indices_by_experiment.get(experiment.name, ())])
        for q in [quantities[j]]
        if q.kind == "initial state" or any(q.symbol_name in plan.relevant_parameters for plan in plans)
    ]
    local_quantities = [quantities[j] for j in indices]
    link = plans[0].link(statement, local_quantities)
    if experiment.steady is not None:
        link = replace(
            link, parts=(*link.parts, _steady_state_rows(statement, experiment, plans[1:], local_quantities, graphs))
        )
    z_guess = np.array([_guess(initial.get(n, 1.0)) for n in model.algebraic_states])
    if consistent_states:
        algebraic_link = plans[1].link(statement, local_quantities, algebraic=fixed_algebraic)
        guess = [
            *(initial[n].guess for n in consistent_states),
            *z_guess[[n not in fixed_algebraic for n in model.algebraic_states]],
        ]
        inputs = np.array([float(experiment.inputs[n](experiment.start)) for n in model.inputs])
        part = ConsistentInitialRows.from_system(
            model.system,
            algebraic_link,
            time=experiment.start,
            u=inputs,
            open_states=consistent_states,
            fixed_states=fixed_algebraic,
            guess=np.array(guess, dtype=float),
        )
        link = replace(link, parts=(*link.parts, part))
    is_endless = any(isinstance(event, Doses) and event.endless for event in experiment.events)
    return Condition(
        experiment.name,
        experiment.start,
        experiment.points(outputs),
        observed,
        tuple(experiment.inputs[n] for n in model.inputs),
        np.array(indices, dtype=np.intp),
        link,
        z_guess,
        happens.schedule(link, experiment.end if is_endless else np.inf),
        experiment.settled,
        np.empty(0)
        if experiment.end > experiment.start
        else np.array([experiment.start + _default_duration(statement)]),
        experiment.time_unit,
        experiment.origin,
    )


def jumps_seen(model: Model, experiment: Experiment) -> list[ScheduledEvent]:
    """List jumps of inputs after which anything is measured, where algebraic states jump with them."""
    late_inputs = [u for u in experiment.inputs.values() if isinstance(u, Input) and u.measured == "after"]
    return input_jumps(late_inputs, experiment.start, experiment.end) if model.algebraic_states else []


def _default_duration(statement: ProblemStatement) -> float:
    """Return the duration of experiments with measurements at the start only; any duration would do."""
    return min((e.end - e.start for e in statement.experiments if e.end > e.start), default=1.0)


def _guess(value: Any) -> float:
    """Return the initial guess of an algebraic state; 1 if its value is an expression."""
    if isinstance(value, (Free, Consistent)):
        return value.guess
    return 1.0 if isinstance(value, ca.SX) else float(value)


def _steady_state_rows(
    statement: ProblemStatement,
    experiment: Experiment,
    plans: Sequence[_GraphBuilder],
    local_quantities: Sequence[Quantity],
    graphs: _GraphCache,
) -> SteadyStateRows:
    """Return the rows of a link that are a steady state before an experiment; several may follow each other."""
    model, previous = statement.model, experiment.before
    steady_link = plans[0].link(statement, local_quantities, is_preceding=True)
    if previous.steady is not None:
        steady_link = replace(
            steady_link,
            parts=(*steady_link.parts, _steady_state_rows(statement, previous, plans[1:], local_quantities, graphs)),
        )
    natural = steady_link.natural(np.array([q.guess for q in local_quantities], dtype=float))
    is_varying = np.zeros(len(model.parameters), dtype=np.bool_)
    is_varying[steady_link.free_parameters] = True
    inputs = np.array([float(previous.inputs[n](previous.start)) for n in model.inputs])
    guess = np.array([float(previous.initial.get(n, 1.0)) for n in model.algebraic_states])
    p, a = (np.where(np.isfinite(v), v, 1.0) for v in (natural.p, natural.a))
    steady_solver = graphs.get_steady_state_solver(
        model, inputs, guess, p, a, is_varying, steady_link.is_initial_fixed & (natural.a == 0.0)
    )
    states = np.array([i for i, n in enumerate(model.states) if n not in experiment.initial], dtype=np.intp)
    return SteadyStateRows(states + len(model.parameters), states, steady_solver, steady_link, model.parameters)


def _value(statement: ProblemStatement, name: str, experiment: Experiment) -> float:
    """Return a parameter's value in an experiment; NaN for a scale or offset that its data do not determine."""
    parameter, scalings = statement.parameters.get(name), statement.model.scalings
    if parameter is None or not parameter.fixed:
        unmeasured_scales = measured_with(scalings, scalings) - measured_with(scalings, experiment.measured)
        if name in unmeasured_scales:
            return np.nan
    return fixed_value(statement.parameters[name], experiment.name)


@dataclass(frozen=True, eq=False)
class _GraphBuilder:
    """Rows of an experiment (parameters, initial states, events), and the graph of those that are expressions.

    The rows of states that are determined otherwise, such as by a steady state, are zeros.
    """

    experiment: Experiment
    model: Model
    named_values: tuple[tuple[str, Any], ...]
    labels: tuple[str, ...]
    n_e: int
    computed: tuple[int, ...]
    graph: Graph | None

    @classmethod
    def from_experiment(
        cls,
        model: Model,
        experiment: Experiment,
        graphs: _GraphCache,
        events: tuple[Any, ...] = (),
        event_labels: tuple[str, ...] = (),
    ) -> _GraphBuilder:
        initial = initial_values(model, experiment)
        named_values: list[tuple[str, Any]] = [(n, experiment.parameters.get(n)) for n in model.parameters]
        named_values += [(n, initial.get(n, 0.0)) for n in model.states]
        named_values += [("", value) for value in events]
        labels = (
            *(f"parameter '{n}'" for n in model.parameters),
            *(f"the initial value of '{n}'" for n in model.states),
            *event_labels,
        )
        computed = [i for i, (_, value) in enumerate(named_values) if isinstance(value, ca.SX)]
        graph = graphs.get([named_values[i][1] for i in computed], experiment.parameters) if computed else None
        return cls(experiment, model, tuple(named_values), labels, len(events), tuple(computed), graph)

    @property
    def relevant_parameters(self) -> set[str]:
        """The parameters whose values matter."""
        graph_names = () if self.graph is None else self.graph.names
        return {*self.model.parameters, *graph_names} - {*self.experiment.parameters}

    def link(
        self,
        statement: ProblemStatement,
        local_quantities: Sequence[Quantity],
        *,
        is_preceding: bool = False,
        algebraic: tuple[str, ...] = (),
    ) -> ParameterLink:
        """Return the link from quantities q.

        With `is_preceding` the link is that of the steady state before the experiment: it is a function of natural
        values, and depends on none of the initial states.  So is a link with initial values of `algebraic` states as
        its last rows.
        """
        model, experiment = self.model, self.experiment
        n_p = len(model.parameters)
        row_of = {("parameter", n): i for i, n in enumerate(model.parameters) if n not in experiment.parameters}
        row_of |= {} if is_preceding else {("initial state", n): n_p + i for i, n in enumerate(model.states)}
        row_of |= {("initial state", n): n_p + len(model.states) + k for k, n in enumerate(algebraic)}
        rows = np.array([row_of.get((q.kind, q.symbol_name), -1) for q in local_quantities], dtype=np.intp)
        # Of initial states too: delay lines may begin at them.
        entry = {q.symbol_name: i for i, q in enumerate(local_quantities) if q.kind == "parameter" or not is_preceding}
        entry = {n: i for n, i in entry.items() if n not in experiment.parameters}
        number = {n: float(v) for n, v in experiment.parameters.items() if not isinstance(v, ca.SX)}
        of_scales = measured_with(model.scalings, model.scalings)
        number |= {
            n: _value(statement, n, experiment)
            for n in self.relevant_parameters
            if n not in entry and (n in statement.parameters or n in of_scales)
        }
        base = np.zeros(len(self.named_values))
        for i, (name, value) in enumerate(self.named_values):
            if i < n_p:
                base[i] = number.get(name, 0.0)
            elif not isinstance(value, (ca.SX, Free, Consistent)):
                base[i] = float(value)
        parts = (
            ()
            if self.graph is None
            else (self.graph.part(self.computed, self.labels, entry, number, len(local_quantities)),)
        )
        log = np.array([q.scale == "log" and not (is_preceding or algebraic) for q in local_quantities], dtype=bool)
        return ParameterLink(n_p, base, rows, log, parts, model.flow_parameters, self.n_e)


# Models with switches, and rates into some states, so that their functions are built once.
_SWITCHED_MODELS: PerObjectCache[Model, dict[tuple[str, ...], Model]] = PerObjectCache()


def with_switch_parameters(statement: ProblemStatement) -> ProblemStatement:
    """Return the statement with parameters for everything that changes in its model at certain times.

    These are switches at jumps and kinks of the model, an infusion rate for every state with an infusion, and the
    polynomials of estimated inputs between their knots.
    """
    statement = with_piecewise_inputs(statement)
    into = {o.into for e in statement.experiments for o in occurrences(e.events, e.end) if o.end_time is not None}
    names = tuple(n for n in statement.model.states if n in into)
    models_by_names = _SWITCHED_MODELS.get(statement.model, lambda _: {})
    if names not in models_by_names:
        extended_model = statement.model.with_switches.with_rates(names)
        if extended_model is statement.model:
            return statement
        models_by_names[names] = extended_model
    return replace(statement, model=models_by_names[names])


class _EventRowCollector:
    """Collector of the rows that events need, `values` with their `labels`, and of the instants that refer to them."""

    def __init__(self, model: Model, graphs: _GraphCache) -> None:
        self._model, self._graphs = model, graphs
        self.values: list[Any] = []
        self.labels: list[str] = []
        self._row_by_name: dict[str, int] = {}
        self._instants: list[EventInstant] = []
        self._triggers: dict[int, Trigger] = {}
        self._levels: list[SwitchedParameter] = []
        self._setting_levels: dict[str, int] = {}
        self._heights: dict[tuple[bool, float], int] = {}
        self._last_event: ScheduledEvent | None = None

    def add(self, occurrence: ScheduledEvent) -> None:
        """Add one scheduled event."""
        if occurrence.values is not None:
            self._set(occurrence, occurrence.values)
            return
        if self._last_event is occurrence:  # the same event once more
            row = self._row(f"the time of {occurrence.label}", NEVER_TIME)
            self._instants.append(replace(self._instants[-1], time=row))
            return
        self._last_event = occurrence if occurrence.when is not None else None
        label, is_after_measurement = occurrence.label, occurrence.measured == "after"
        trigger = None if occurrence.when is None else self._trigger(occurrence.when)
        time = self._row(f"the time of {label}", NEVER_TIME if trigger is not None else occurrence.time)
        if occurrence.end_time is not None:
            parameter = self._model.parameters.index(f"rate into {occurrence.into}")
            end = self._row(f"the end of {label}", occurrence.end_time)
            height = self._row(f"the rate of {label}", occurrence.amount)
            start_index = len(self._instants)
            self._instants += [EventInstant(label, time), EventInstant(label, end)]
            self._levels.append(SwitchedParameter(parameter, start_index, start_index + 1, height))
            return
        changes = occurrence.changes
        if changes is None and not self._depends_on_more(occurrence.amount):
            rows = [self._row(f"the amount of {label}", occurrence.amount)]
            change = self._graphs.addition(self._model, occurrence.into)
        else:
            if changes is None:
                changes = {occurrence.into: ca.SX.sym(occurrence.into) + occurrence.amount}
            names = self._parameters(changes)
            rows = [self._parameter(label, n) for n in names]
            change = self._graphs.change(self._model, changes, names)
        instant = EventInstant(label, time, False, change, np.array(rows, dtype=np.intp), is_after_measurement, trigger)
        self._instants.append(instant)

    def _set(self, occurrence: ScheduledEvent, values: Mapping[str, Any]) -> None:
        """Give parameters other values from a time on; each row that is the same expression stands there once."""
        start_index = len(self._instants)
        time = self._row("the time of a knot", occurrence.time)
        is_after_measurement = occurrence.measured == "after"
        no_change = (
            self._graphs.change(self._model, {}, ()) if is_after_measurement else None
        )  # a jump separates the measurements before and after it
        self._instants.append(
            EventInstant(occurrence.label, time, change=no_change, is_measured_after=is_after_measurement)
        )
        for name, value in values.items():
            if name in self._setting_levels:
                level_index = self._setting_levels[name]
                self._levels[level_index] = replace(self._levels[level_index], off_instant=start_index)
            key = (True, hash(value)) if isinstance(value, ca.SX) else (False, float(value))
            if key not in self._heights:
                self._heights[key] = self._row(name, value)
            self._setting_levels[name] = len(self._levels)
            self._levels.append(
                SwitchedParameter(
                    self._model.parameters.index(name), start_index, -1, self._heights[key], is_assignment=True
                )
            )

    def _trigger(self, event: Event) -> Trigger:
        """Return when an event happens, the same for all its occurrences."""
        key = id(event)
        if key not in self._triggers:
            assert event.when is not None
            names = self._parameters({"when": event.when})
            rows = np.array([self._parameter("when an event happens", n) for n in names], dtype=np.intp)
            function, truth = self._graphs.trigger(self._model, event.when, names)
            label = _shorten_text(str(event.when) + ("" if truth is not None else " = 0"))
            self._triggers[key] = Trigger(
                label, function, rows, DIRECTIONS[event.direction], truth, event.at_start, self._priority(event),
                event.persistent, event.rng, event.forbidden,
            )  # fmt: skip
        return self._triggers[key]

    def _priority(self, event: Event) -> tuple[EventUpdate, Index] | None:
        """Return an event's priority as a function, and the rows of e that it depends on."""
        if event.priority is None:
            return None
        value = ca.SX(event.priority)
        names = self._parameters({"priority": value})
        rows = [self._parameter("the priority of an event", n) for n in names]
        return self._graphs.trigger(self._model, value, names)[0], np.array(rows, dtype=np.intp)

    def switch(self, switch: Switch) -> None:
        """Add a parameter that is 1 from a time on."""
        label = f"what comes {switch.name}"
        value = float(switch.time) if switch.time.is_constant() else switch.time
        time, height = self._row(f"the time of {label}", value), self._row(f"the size of {label}", 1.0)
        self._levels.append(
            SwitchedParameter(self._model.parameters.index(switch.name), len(self._instants), -1, height)
        )
        self._instants.append(EventInstant(label, time))

    def schedule(self, link: ParameterLink, known_until: float) -> Schedule:
        """Return the schedule; the link determines which instants depend on estimated quantities."""
        raw_instants = self._instants
        instants = (
            replace(i, is_moving=i.trigger is not None or bool(link.moving_events[i.time])) for i in raw_instants
        )
        return Schedule(tuple(instants), tuple(self._levels), len(self.values), known_until)

    def _row(self, label: str, value: Any) -> int:
        self.values.append(value)
        self.labels.append(label)
        return len(self.values) - 1

    def _parameter(self, label: str, name: str) -> int:
        if name not in self._row_by_name:
            self._row_by_name[name] = self._row(f"'{name}' in {label}", ca.SX.sym(name))
        return self._row_by_name[name]

    def _depends_on_more(self, value: Any) -> bool:
        """Check whether a value depends on anything but parameters."""
        return isinstance(value, ca.SX) and any(s.name() in self._no_parameters for s in ca.symvar(value))

    @property
    def _no_parameters(self) -> set[str]:
        model = self._model
        return {*model.states, *model.algebraic_states, *model.inputs, model.system.t.name()}

    def _parameters(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        symbol_names = (s.name() for v in changes.values() if isinstance(v, ca.SX) for s in ca.symvar(v))
        return tuple(n for n in dict.fromkeys(symbol_names) if n not in self._no_parameters)


@dataclass(frozen=True, eq=False)
class Graph:
    """Expressions of an experiment as functions of the parameters in them."""

    texts: tuple[str, ...]
    names: tuple[str, ...]
    jacobian_function: ca.Function
    hessian_function: ca.Function
    support: NDArray[np.bool_]

    @classmethod
    def from_expressions(cls, expressions: Sequence[ca.SX], overrides: Mapping[str, Any]) -> Graph:
        """Build the functions of expressions in which an experiment's own ones stand for some parameters."""
        texts = tuple(_shorten_text(str(e)) for e in expressions)
        column = ca.densify(ca.vertcat(*(resolve_overrides(e, overrides) for e in expressions)))
        names = tuple(dict.fromkeys(s.name() for s in ca.symvar(column)))
        x = ca.SX.sym("x", len(names))
        column = substitute_by_name(column, {n: x[j] for j, n in enumerate(names)})  # a name may have several symbols
        weight = ca.SX.sym("weight", len(texts))
        hessian, gradient = ca.hessian(ca.dot(weight, column), x)
        jacobian = ca.jacobian(column, x)
        value_function = ca.Function("link", [x], [column, ca.densify(jacobian)])
        curvature_function = ca.Function("link_curvature", [x, weight], [ca.densify(gradient.T), ca.densify(hessian)])
        return cls(texts, names, value_function, curvature_function, pattern(jacobian.sparsity()))

    def part(
        self,
        rows: Sequence[int],
        labels: Sequence[str],
        entry: Mapping[str, int],
        number: Mapping[str, float],
        n_q: int,
    ) -> MappedExpressions:
        """Return the functions as a part of a link: arguments are entries of q, or numbers."""
        return MappedExpressions(
            np.array(rows, dtype=np.intp),
            tuple(f"{labels[i]} = {text}" for i, text in zip(rows, self.texts, strict=True)),
            self.names,
            np.array([entry.get(n, -1) for n in self.names], dtype=np.intp),
            np.array([number.get(n, 0.0) for n in self.names]),
            self.jacobian_function,
            self.hessian_function,
            self.support,
            n_q,
        )


@dataclass(frozen=True)
class _GraphCache:
    """The graphs that were made, by the expressions in them: many experiments may share one."""

    graphs_by_key: dict[tuple[int, ...], Graph] = field(default_factory=dict[tuple[int, ...], Graph])
    changes: dict[tuple[Any, ...], EventUpdate] = field(default_factory=dict[tuple[Any, ...], EventUpdate])
    arguments: dict[tuple[str, ...], tuple[list[ca.SX], dict[str, ca.SX]]] = field(default_factory=dict[Any, Any])
    steady_state_solvers: dict[tuple[bytes, ...], SteadyStateSolver] = field(
        default_factory=dict[tuple[bytes, ...], "SteadyStateSolver"]
    )
    referenced_expressions: list[Any] = field(
        default_factory=list[Any]
    )  # so that no other graph takes the place of a node

    def get(self, expressions: Sequence[ca.SX], overrides: Mapping[str, Any]) -> Graph:
        local_expressions = {n: v for n, v in overrides.items() if isinstance(v, ca.SX)}
        key = tuple(
            hash(e) for e in (*expressions, *local_expressions.values())
        )  # hash of the address of the graph's node
        if key not in self.graphs_by_key:
            self.referenced_expressions.extend([*expressions, *local_expressions.values()])
            self.graphs_by_key[key] = Graph.from_expressions(expressions, local_expressions)
        return self.graphs_by_key[key]

    def get_steady_state_solver(
        self, model: Model, u: Array, z_guess: Array, p: Array, a: Array, vary: Mask, zero: Mask
    ) -> SteadyStateSolver:
        """Return the steady state of the model, cached by its arguments; experiments with equal arguments share it."""
        key = tuple(part.tobytes() for part in (u, z_guess, p, a, vary, zero))
        if key not in self.steady_state_solvers:
            from castfit.experiment.steady import SteadyStateSolver

            self.steady_state_solvers[key] = SteadyStateSolver.from_system(model.settling, u, z_guess, p, a, vary, zero)
        return self.steady_state_solvers[key]

    def addition(self, model: Model, name: str) -> EventUpdate:
        """Return the change that adds a row of e to one state."""
        if (name,) not in self.changes:
            system, amount = model.system, ca.SX.sym("amount")
            new_states = ca.SX(system.x)
            row = model.states.index(name)
            new_states[row] += amount
            self.changes[(name,)] = EventUpdate.from_expressions(
                [system.t, system.x, system.u, amount], new_states, [row]
            )
        return self.changes[(name,)]

    def change(self, model: Model, changes: Mapping[str, Any], names: Sequence[str]) -> EventUpdate:
        """Return the change to expressions of states, inputs, time and the named parameters."""
        key = (*((n, hash(v) if isinstance(v, ca.SX) else v) for n, v in changes.items()), names)
        if key not in self.changes:
            self.referenced_expressions.extend(changes.values())
            arguments, symbols_by_name = self._arguments(model, names)
            values = substitute_by_name(ca.SX(ca.vertcat(*(ca.SX(v) for v in changes.values()))), symbols_by_name)
            new_states, rows = ca.SX(model.system.x), [model.states.index(name) for name in changes]
            for row, value in zip(rows, ca.vertsplit(values), strict=True):
                new_states[row] = value
            self.changes[key] = EventUpdate.from_expressions(arguments, new_states, rows)
        return self.changes[key]

    def trigger(self, model: Model, when: ca.SX, names: Sequence[str]) -> tuple[EventUpdate, ca.Function | None]:
        """Return a trigger's zero-crossing functions as rows, and the truth of a condition as a function of signs."""
        key = ("when", hash(when), names)
        comparisons = Comparisons.from_condition(when) if is_condition(when) else None
        if key not in self.changes:
            self.referenced_expressions.append(when)
            rows = when if comparisons is None else ca.vertcat(*comparisons.differences)
            arguments, symbols_by_name = self._arguments(model, names)
            self.changes[key] = EventUpdate.from_expressions(
                arguments, substitute_by_name(ca.SX(rows), symbols_by_name)
            )
        return self.changes[key], None if comparisons is None else comparisons.function()

    def _arguments(self, model: Model, names: Sequence[str]) -> tuple[list[ca.SX], dict[str, ca.SX]]:
        """Return the arguments (t, x, u, c) of changes with these parameters, and what each name means."""
        key = tuple(names)
        if key not in self.arguments:
            system, c = model.system, ca.SX.sym("c", len(key))
            symbols_by_name = {
                s.name(): s for v in (system.t, system.x, system.u) for s in ca.vertsplit(v) if v.numel()
            }
            symbols_by_name |= {n: c[j] for j, n in enumerate(key)}
            self.arguments[key] = [system.t, system.x, system.u, c], symbols_by_name
        return self.arguments[key]


def _shorten_text(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
