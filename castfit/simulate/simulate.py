"""Simulation: the model's outputs over time.

A trajectory that is known at nodes is integrated anew from every node, so that outputs between them stay accurate
where the system is unstable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Union, cast, overload, runtime_checkable

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike

from castfit._support.arguments import as_reusable, read_mapping, read_real, read_reals, shorten_repr
from castfit._support.arrays import Array
from castfit._support.casadi_functions import PerObjectCache
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import CastfitError, InputError, raise_if_mistakes, suggest
from castfit._support.time_limit import interruptible
from castfit.experiment.events import Doses, Event, Happening, events_until, read_events, single_occurrence
from castfit.experiment.experiment import Consistent, Experiment, as_input
from castfit.experiment.inputs import Input
from castfit.experiment.measurements import time_mistakes
from castfit.integrate import IntegratorOptions
from castfit.integrate.lanes import merge, snap_times
from castfit.model.delay import LADDER, DelayLine
from castfit.model.model import Model
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.event_schedule import NumericSchedule
from castfit.problem.imported_model import ImportedModel
from castfit.problem.parameters import Parameter, at_start
from castfit.problem.problem import Posable, Problem, with_nodes
from castfit.problem.validation import point_mistakes, tau_mistakes
from castfit.simulate.predictions import Prediction, Simulation
from castfit.transcribe.experiment_trajectories import (
    NEGLIGIBLE_STATE_RATIO,
    IntegrationCase,
    NodeTrajectory,
    as_measured,
    integrate_from_nodes,
    mean_magnitude,
    resolvable,
    units_of,
)
from castfit.transcribe.trajectory import Trajectory, trajectory_through
from castfit.transcribe.triggers import locate_triggered_events, timetable_of

_TABLE_SUBDIVISIONS = 12  # Table entries between measured times or nodes, for accurate interpolation.
_OBSERVE: PerObjectCache[Model, Any] = PerObjectCache()
_MAX_RESCALINGS = 3  # Repetitions of an integration at most, until the units of the states are known.
_DELAY_LINE_RTOL = 1e-5  # Change of an output, relative to its largest value, at which delay lines have enough nodes.
_MAX_UNIT_RATIO = 100.0  # Ratio of the assumed to the observed unit of a state up to which the integration stands.

Times = Union["ArrayLike", "Mapping[str, ArrayLike]", None]


@public("castfit")
class SimulationError(CastfitError):
    """The integration of an experiment stopped; the message says where, in which state, and what to try.

    Attributes
    ----------
    experiment : str
    time : float
        How far the integration came.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 2.0})
    >>> try:
    ...     cf.simulate(model, {"k": 1.0}, [0, 1.0])
    ... except cf.SimulationError as error:
    ...     print(str(error)[:42])
    the model: Integration stopped at t = 0.5:
    """

    def __init__(self, experiment: str, time: float, sentence: str) -> None:
        self.experiment, self.time, self.sentence = experiment, time, sentence
        super().__init__(f"{experiment}: {sentence}")

    def __reduce__(self) -> Any:
        """Pickle by the constructor's arguments, so that the error crosses process borders."""
        return type(self), (self.experiment, self.time, self.sentence)


class EventLimitError(SimulationError):
    """Too many events: a simulation of a loaded file is repeated with a larger limit."""


@runtime_checkable
class FittedValues(Protocol):
    """Estimates of a fit, with the problem that records the fixed parameters."""

    @property
    def problem(self) -> Any:
        """The problem, if it is known."""
        ...

    @property
    def values(self) -> Mapping[str, float]:
        """All estimates by name."""
        ...


@add_brief_repr
@dataclass(frozen=True)
class TrajectoryNodes:
    """A trajectory known at nodes: times (K,), increasing from the experiment's start, and states (K, n_x)."""

    times: Array
    states: Array


@overload
def simulate(
    problem: Model | ImportedModel,
    parameters: Mapping[str, float] | FittedValues | None = None,
    times: ArrayLike | None = None,
    *,
    initial: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    start: float | None = None,
    events: Event | Doses | Sequence[Event | Doses] | None = None,
    integrator: IntegratorOptions | None = None,
) -> dict[str, Any]: ...
@overload
def simulate(
    problem: Posable,
    parameters: Mapping[str, float] | ArrayLike | FittedValues | None = None,
    times: Times = None,
    *,
    integrator: IntegratorOptions | None = None,
) -> Prediction: ...
@interruptible
def simulate(
    problem: Model | ImportedModel | Posable,
    parameters: Any = None,
    times: Any = None,
    *,
    initial: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    start: float | None = None,
    events: Event | Doses | Sequence[Event | Doses] | None = None,
    integrator: IntegratorOptions | None = None,
) -> Any:
    """Integrate the experiments of a problem, or a model without any data, for given values.

    Parameters
    ----------
    problem : Problem, Posed, Model, or what `castfit.sbml.load` returns
    parameters : mapping from str to float, Result, or (n_theta,) array, optional
        Of a problem: natural values of estimated quantities, or of parameters of the model (fixed ones too); what is
        left out keeps its guess.  An array is theta, in search scale.  Of a model: values of all its parameters.  Of
        what was loaded: parameters and initial values that differ from the file's.  Of a result: its estimates and what
        was fixed in its problem; what else it estimated, such as sigma, does not matter.
    times : (n,) array, or mapping from experiment to array
        Output times, increasing; of a problem by default the measured ones.
    initial : mapping from state to number or expression of the parameters
        Only for a model: initial states that the model itself does not give; of algebraic states a guess, 1 by default.
    inputs : mapping from input to number or Input
        Only for a model.
    start : float
        Only for a model: where the integration starts, by default 0.
    events : sequence of Event and Doses
        Only for a model: what happens at certain times, or when states reach something; after the file's own events, of
        what was loaded.
    integrator : IntegratorOptions, optional

    Returns
    -------
    dict
        ``{"time": (n,), output: (n,), ...}`` for every output of the model; of a problem one such dict per experiment.
        Where there is but one experiment, ``found["x"]`` and ``found["experiment 1"]["x"]`` are the same, of a model
        as of a problem.

    Raises
    ------
    InputError
        Listing every mistake in the names, values and times, and what cannot be computed at these values: initial
        states, delays, times of events.
    SimulationError
        If the integration stops.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> cf.simulate(model, {"k": 0.3}, [0, 1, 10])["x"].round(4)
    array([2.    , 1.4816, 0.0996])
    >>> problem = cf.problems.load("bellman").problem
    >>> cf.simulate(problem, {"k1": 4.6e-6, "k2": 2.8e-4}, [0, 20])["experiment 1"]["z"].round(2)
    array([ 0., 39.])
    """
    if isinstance(problem, ImportedModel):
        arguments: Any = {
            "initial": initial,
            "inputs": inputs,
            "start": start,
            "events": events,
            "integrator": integrator,
        }
        try:
            return _simulated(problem, parameters, times, **arguments)
        except EventLimitError as error:
            larger_model = problem.larger(error.sentence)
            if larger_model is None:
                raise
        return simulate(larger_model, parameters, times, **arguments)
    return _simulated(
        problem, parameters, times, initial=initial, inputs=inputs, start=start, events=events, integrator=integrator
    )


def _simulated(
    problem: Any, parameters: Any, times: Any, *, initial: Any, inputs: Any, start: Any, events: Any, integrator: Any
) -> Any:
    mistakes, times = list[str](), as_reusable(times)
    integrator_options: Any = integrator
    if integrator_options is not None and not isinstance(integrator_options, IntegratorOptions):
        mistakes.append(f"integrator is {shorten_repr(integrator_options)}; expected IntegratorOptions(...)")
    elif integrator_options is not None and integrator_options.method in ("cvodes", "adams") and _is_dae(problem):
        remedy = "use 'auto', 'esdirk', 'idas' or 'rosenbrock'"
        mistakes.append(f"method '{integrator_options.method}' cannot integrate algebraic equations; {remedy}")
    all_events = read_events(events, mistakes)
    free = isinstance(problem, ImportedModel) and problem.as_often_as_needed and not all_events
    if isinstance(problem, ImportedModel):
        imported_start = problem.start(parameters)
        problem, parameters, all_events = problem.model, problem.numbers(imported_start), (
            *problem.events, *all_events)  # fmt: skip
        initial = {**imported_start.initial, **read_mapping("initial", initial, mistakes)}
    request = SimulationRequest("simulate", parameters, times, initial, inputs, start, mistakes)
    if isinstance(problem, Model):

        def evaluate_model(model: Model) -> dict[str, Any]:
            options = integrator or IntegratorOptions()
            case = _model_case(model, request, options)
            measures_after = bool(model.algebraic_states) and any(u.measured == "after" for u in case.inputs)
            has_events = all_events or measures_after or model.with_switches is not model
            return _eventful(case, all_events, free=free) if has_events else _outputs(case)

        return _with_enough_nodes(evaluate_model, problem, problem.with_order, problem.lines)
    mistakes += ["events belong to the problem's experiments; set them there"] if all_events else []
    updated_problem, theta, _ = _read(problem, request)

    def evaluate_problem(refined: Posable) -> Prediction:
        return predict(refined, theta, first_nodes(refined, theta), times=times, integrator=integrator)

    return _with_enough_nodes(
        evaluate_problem, updated_problem, lambda n: with_nodes(updated_problem, n), updated_problem.posed.model.lines
    )


def _eventful(case: SimulationCase, events: Sequence[Happening], *, free: bool = False) -> dict[str, Any]:
    """Return all outputs of a model in which something happens at times: of a problem that has this one experiment.

    `free` : events that states trigger happen as often as they do
    """
    events = [single_occurrence(event) for event in events] if free else events
    model, times = case.model, case.times
    begin, end = float(case.nodes.times[0]), float(times[-1])
    end = end if end > begin else begin + 1.0  # a measurement must follow the start
    initial_values = dict(zip(model.states, case.nodes.states[0].tolist(), strict=True))
    try:
        experiment = Experiment(
            {model.own_states[0]: ([end], [0.0])},
            initial={n: initial_values[n] for n in model.own_states}
            | dict(zip(model.algebraic_states, case.z_guess.tolist(), strict=True)),
            inputs=dict(zip(model.inputs, case.inputs, strict=True)),
            events=events_until(events, end),
            start=begin,
            name=case.name,
        )
        fixed_parameters = {n: Parameter(v, fixed=True) for n, v in zip(model.parameters, case.p.tolist(), strict=True)}
        compiled_problem = Problem(model, experiment, parameters=fixed_parameters).posed
    except InputError as error:
        raise InputError("simulate", error.problems) from error
    (condition,) = compiled_problem.conditions
    (nodes,) = first_nodes(compiled_problem, compiled_problem.guess)
    x, z, p, u = states_at(compiled_problem, condition, compiled_problem.guess, nodes, times, case.options, free=free)
    return _observed(model, times, x, z, p[:, : len(model.parameters)], u)


def _is_dae(problem: Any) -> bool:
    model = problem.posed.model if isinstance(problem, (Problem, CompiledProblem)) else problem
    model = model.model if isinstance(model, ImportedModel) else model
    return isinstance(model, Model) and bool(model.algebraic_states)


def _with_enough_nodes(
    evaluate: Callable[[Any], Any], problem: Any, with_order: Callable[[int], Any], lines: Sequence[DelayLine]
) -> Any:
    """Evaluate a model or problem with more and more nodes in its delay lines, until no output moves any more."""
    outputs, order = evaluate(problem), max((line.order for line in lines if line.adaptive), default=LADDER[-1])
    for next_order in LADDER:
        refined = with_order(next_order) if next_order > order else None
        if refined is None:
            continue
        previous_outputs, outputs = outputs, evaluate(refined)
        if _difference(previous_outputs, outputs) <= _DELAY_LINE_RTOL:
            break
    return outputs


def _difference(previous: Mapping[str, Any], current: Mapping[str, Any]) -> float:
    """Return the largest difference of any output, relative to its largest value."""
    worst = 0.0
    for name, values in current.items():
        if isinstance(values, Mapping):
            worst = max(worst, _difference(previous[name], cast("Mapping[str, Any]", values)))
        else:
            size = float(np.abs(values).max(initial=0.0))
            worst = max(worst, float(np.abs(values - previous[name]).max(initial=0.0)) / size if size > 0.0 else 0.0)
    return worst


@dataclass(frozen=True)
class SimulationRequest:
    """Arguments of a call of the function `where`, as `simulate` takes them, and the errors found so far."""

    where: str
    parameters: Any
    times: Any
    initial: Any
    inputs: Any
    start: Any
    mistakes: list[str]


def _read(problem: Any, request: SimulationRequest) -> tuple[Posable, Array, dict[str, Array]]:
    """Return a problem, theta, and output times; all mistakes at once."""
    if not isinstance(problem, (Problem, CompiledProblem)):
        message = f"the first argument is {shorten_repr(problem)}; expected a Problem, or a Model with times="
        raise_if_mistakes(request.where, [*request.mistakes, message])
    mistakes = [
        *request.mistakes,
        *(
            f"{name} belongs to the problem's experiments; set it there, or simulate the model itself"
            for name in ("initial", "inputs", "start")
            if getattr(request, name) is not None
        ),
    ]
    updated_problem, theta, parameter_mistakes = _read_theta(problem, request.parameters)
    output_times, output_mistakes = _output_times(updated_problem, request.times)
    raise_if_mistakes(
        request.where,
        [
            *mistakes,
            *parameter_mistakes,
            *output_mistakes,
            *([] if parameter_mistakes else point_mistakes(updated_problem.posed, theta)),
        ],
    )
    return updated_problem, theta, output_times


def first_nodes(problem: Posable, theta: Array) -> list[TrajectoryNodes]:
    """Return the initial states alone."""
    starts = [c.link.natural(theta[c.theta]).a[None] for c in problem.conditions]
    return [TrajectoryNodes(np.array([c.start]), a) for c, a in zip(problem.conditions, starts, strict=True)]


@dataclass(frozen=True)
class SimulatedPath:
    """Integrated trajectory of one experiment.

    times (n,), states x (n, n_x), algebraic states z (n, n_z), inputs u (n, n_u), parameters p (n, n_p)
    """

    name: str
    times: Array
    x: Array
    z: Array
    u: Array
    p: Array


def paths(problem: Any, request: SimulationRequest, integrator: IntegratorOptions) -> tuple[Model, list[SimulatedPath]]:
    """Integrate as `simulate` does, and return all states."""
    if isinstance(problem, Model):
        return problem, [_path(_model_case(problem, request, integrator))]
    updated_problem, theta, output_times = _read(problem, request)
    cases = _cases(updated_problem, theta, first_nodes(updated_problem, theta), output_times, integrator)
    return updated_problem.posed.model, [_path(case) for case in cases]


def _cases(
    problem: Posable,
    theta: Array,
    nodes: list[TrajectoryNodes],
    output_times: Mapping[str, Array],
    options: IntegratorOptions,
) -> Iterator[SimulationCase]:
    """Go through the experiments whose output times are chosen."""
    for condition, experiment_nodes in zip(problem.conditions, nodes, strict=True):
        if condition.name in output_times:
            yield SimulationCase.from_condition(
                problem.posed, condition, theta, experiment_nodes, output_times[condition.name], options
            )


def _path(case: SimulationCase) -> SimulatedPath:
    x, z, p, u = _states(case)
    return SimulatedPath(case.name, case.times, x, z, u, p)


def _model_case(model: Model, request: SimulationRequest, options: IntegratorOptions) -> SimulationCase:
    """Read the arguments that are needed to integrate a model without data."""
    times, start, mistakes = request.times, request.start, request.mistakes
    begin = 0.0 if start is None else read_real(start)
    if begin is None or not np.isfinite(begin):
        mistakes.append(f"start is {shorten_repr(start)}; expected a finite number")
        begin = -np.inf
    output_times = read_reals(times)
    if times is None:
        mistakes.append("times is missing; for a model pass times=np.linspace(0, 10, 101), for example")
    elif output_times is None:
        mistakes.append(f"times is {shorten_repr(times)}; expected numbers")
    else:
        output_times = np.atleast_1d(output_times)
        messages = _time_mistakes("times", output_times, begin)
        is_usable = not messages and np.isfinite(begin)
        mistakes += (
            time_mistakes(float(output_times[0]), float(output_times[-1]), begin, is_start_given=start is not None)
            if is_usable
            else messages
        )
    end = (
        output_times[-1]
        if times is not None and output_times is not None and output_times.ndim == 1 and output_times.size
        else None
    )
    signals, p, x0, z0 = read_model(
        request.where, model, request.parameters, request.initial, request.inputs, begin, mistakes, end=end
    )
    assert output_times is not None
    return SimulationCase(
        "the model", model, signals, p, z0, options, TrajectoryNodes(np.array([begin]), x0[None]), output_times
    )


def read_model(
    where: str,
    model: Model,
    parameters: Any,
    initial: Any,
    inputs: Any,
    begin: float,
    mistakes: list[str],
    *,
    end: float | None = None,
) -> tuple[tuple[Input, ...], Array, Array, Array]:
    """Return a model's inputs, parameters p (n_p,), initial states (n_x,) and guess of algebraic states (n_z,).

    Raises InputError with these mistakes and the mistakes found before.
    """
    values = parameter_values(model, parameters, mistakes)
    values |= {n: values.get(n, 0.0) for n in model.noises}  # A simulation has no process noise.
    p = np.array([_number(f"parameter '{n}'", values.get(n), mistakes) for n in model.parameters])
    signals = {n: as_input(n, u, mistakes) for n, u in read_mapping("inputs", inputs, mistakes).items()}
    mistakes += [f"unknown input '{n}': {suggest(n, model.inputs)}" for n in signals if n not in model.inputs]
    mistakes += [f"input '{n}' is missing; pass a number or an Input" for n in model.inputs if n not in signals]
    if end is not None:
        mistakes += _span_mistakes({n: signals[n] for n in model.inputs if n in signals}, "the model", begin, end)
    state_names = (*model.own_states, *model.algebraic_states)
    overrides = read_mapping("initial", initial, mistakes)
    mistakes += [
        f"initial has the unknown state '{n}': {suggest(n, state_names)}" for n in overrides if n not in state_names
    ]
    initial_values = {**model.initial, **overrides}
    x0 = [_initial(n, initial_values.get(n), model, p, mistakes) for n in model.own_states]
    values_by_state = dict(zip(model.own_states, x0, strict=True))
    for line in model.lines:
        line_values = {n: at_start(initial_values[n], model, begin, signals, values_by_state) for n in line.nodes}
        x0 += [_initial(n, value, model, p, mistakes) for n, value in line_values.items()]
    guesses = {n: v.guess if isinstance(v, Consistent) else v for n, v in initial_values.items()}
    z0 = [_initial(n, guesses.get(n, 1.0), model, p, mistakes) for n in model.algebraic_states]
    mistakes += tau_mistakes(model, p) if np.isfinite(p).all() else []
    raise_if_mistakes(where, mistakes)
    return tuple(signals[n] for n in model.inputs), p, np.array(x0), np.array(z0)


def parameter_values(model: Model, source: Any, mistakes: list[str]) -> dict[str, Any]:
    """Return the parameter values given by a mapping or by a fit's result; further values of a result are ignored."""
    if isinstance(source, FittedValues):
        return {n: v for n, v in estimated_or_fixed(source).items() if n in model.parameters}
    values = read_mapping("parameters", source, mistakes)
    mistakes += [
        f"unknown parameter '{n}': {suggest(n, model.parameters)}" for n in values if n not in model.parameters
    ]
    return values


def estimated_or_fixed(fit: FittedValues) -> dict[str, Any]:
    """Return a fit's estimates together with the fixed parameters."""
    parameters: Mapping[str, Any] = {} if fit.problem is None else fit.problem.posed.parameters
    return {**{n: p.value for n, p in parameters.items() if p.fixed}, **fit.values}


def _number(label: str, value: Any, mistakes: list[str]) -> float:
    number = read_real(value)
    if number is not None and np.isfinite(number):
        return number
    mistakes.append(
        f"{label} has no value; pass a number"
        if value is None
        else f"{label} is {shorten_repr(value)}; expected a number"
    )
    return np.nan


def _initial(name: str, value: Any, model: Model, p: Array, mistakes: list[str]) -> float:
    """Read an initial state: a number, or an expression of the parameters."""
    label = f"initial state '{name}'"
    if not isinstance(value, ca.SX) or value.numel() != 1:
        return _number(label, value, mistakes)
    symbols = ca.symvar(value)
    unknown_names = [s.name() for s in symbols if s.name() not in model.parameters]
    mistakes += [f"{label} contains the unknown parameter '{s}': {suggest(s, model.parameters)}" for s in unknown_names]
    if unknown_names:
        return np.nan
    arguments = [float(p[model.parameters.index(s.name())]) for s in symbols]
    number = float(cast("Any", ca.Function("initial", symbols, [value]).call(arguments)[0]))
    if np.isfinite(p).all() and not np.isfinite(number):
        mistakes.append(f"{label} is {number:g} at these parameters; change the expression or the values")
    return number


def predict(
    problem: Posable,
    theta: Array,
    nodes: list[TrajectoryNodes],
    *,
    times: Times = None,
    integrator: IntegratorOptions | None = None,
) -> Prediction:
    """Evaluate all outputs at `times`, integrating from one node to the next; as `simulate`."""
    output_times, mistakes = _output_times(problem, times)
    raise_if_mistakes("predict", mistakes)
    options = integrator or IntegratorOptions()
    return Prediction((case.name, _outputs(case)) for case in _cases(problem, theta, nodes, output_times, options))


def trace(
    problem: CompiledProblem, theta: Array, nodes: list[TrajectoryNodes], integrator: IntegratorOptions
) -> Trajectory:
    """Tabulate the states, integrating from one node to the next; where that stops, the nodes themselves are held."""
    tables: list[tuple[Array, Array, Array]] = []
    for condition, experiment_nodes in zip(problem.conditions, nodes, strict=True):
        ends = np.array([condition.start, condition.end])
        case = SimulationCase.from_condition(problem, condition, theta, experiment_nodes, ends, integrator)
        event_times = np.empty(0) if case.timetable is None else case.timetable.times
        inner_event_times = event_times[(event_times > condition.start) & (event_times < condition.end)]
        edges = merge(
            ends, condition.points.times, condition.breakpoints, np.unique(experiment_nodes.times), inner_event_times
        )
        table_times: list[Array] = [
            np.linspace(a, b, _TABLE_SUBDIVISIONS, endpoint=False) for a, b in itertools.pairwise(edges.tolist())
        ]
        times = np.concatenate([*table_times, edges[-1:]])
        try:
            stretches = _integrate_between_nodes(replace(case, times=times))
            t, x, z = (np.concatenate([getattr(s, name) for s in stretches]) for name in ("times", "x", "z"))
            if case.timetable is None:  # where two stretches meet at a node, the end of the first
                indices = np.searchsorted(t, snap_times(times, np.unique(t)), side="left")
                t, x, z = times, x[indices], z[indices]
            tables.append((t, x, z))
        except SimulationError:
            node_index = np.searchsorted(experiment_nodes.times, times, side="right") - 1
            tables.append(
                (times, experiment_nodes.states[node_index], np.repeat(condition.z_guess[None], times.size, axis=0))
            )
    return trajectory_through(problem, theta, tables, tuple(experiment_nodes.times for experiment_nodes in nodes))


@dataclass(frozen=True)
class SimulationCase:
    """One experiment, from nodes through output times (n,).

    p (n_p,) parameters, z_guess (n_z,) guess of the algebraic states, timetable: events at given times
    """

    name: str
    model: Model
    inputs: tuple[Input, ...]
    p: Array
    z_guess: Array
    options: IntegratorOptions
    nodes: TrajectoryNodes
    times: Array
    timetable: NumericSchedule | None = None

    @classmethod
    def from_condition(
        cls, problem: CompiledProblem, condition: Condition, theta: Array, nodes: TrajectoryNodes, times: Array,
        options: IntegratorOptions, *, free: bool = False,
    ) -> SimulationCase:  # fmt: skip
        """Return the case of an experiment at theta (n_theta,) with what its states trigger up to the last time.

        That may happen as often as it does if events are `free`, each of which has one row then.

        Raises SimulationError: if that happens more often than it may.
        """
        model, inputs, z_guess = problem.model, condition.inputs, condition.z_guess
        natural = condition.link.natural(theta[condition.theta])
        if condition.schedule.triggers:
            table, end = (np.array([condition.start]), natural.a[None], z_guess[None]), float(times[-1])
            unit = units_of(model, inputs, natural.p, end - condition.start, table)
            timetable = None
            if free:
                timetable, reason = timetable_of(model, condition, natural, unit, options, end)
            else:
                natural = locate_triggered_events(model, condition, natural, unit, options, end)
                reason = condition.schedule.describe_obstacle(natural.e, condition.start)
            if reason:
                raise EventLimitError(condition.name, condition.start, reason)
            if timetable is not None:
                return cls(condition.name, model, inputs, natural.p, z_guess, options, nodes, times, timetable)
        return cls(
            condition.name, model, inputs, natural.p, z_guess, options, nodes, times, condition.timetable(natural)
        )


def _outputs(case: SimulationCase) -> dict[str, Any]:
    return _observed(case.model, case.times, *_states(case))


def _observed(model: Model, times: Array, x: Array, z: Array, p: Array, u: Array) -> dict[str, Any]:
    """Return all outputs at times (n,), from states (n, n_x), (n, n_z), parameters (n, n_p) and inputs (n, n_u)."""
    y: Any = _OBSERVE.get(model, _observe).map(times.size)(times[None], x.T, z.T, p.T, u.T)
    return Simulation({"time": times, **dict(zip(model.output_names, np.asarray(y, dtype=float), strict=True))})


def states_at(
    problem: CompiledProblem,
    condition: Condition,
    theta: Array,
    nodes: TrajectoryNodes,
    times: Array,
    options: IntegratorOptions,
    *,
    free: bool = False,
) -> tuple[Array, Array, Array, Array]:
    """Return states (n, n_x), (n, n_z), parameters (n, n_p) and inputs (n, n_u) of an experiment, from node to node.

    `free` as of a `SimulationCase`.

    Raises SimulationError: if the integration stops.
    """
    return _states(SimulationCase.from_condition(problem, condition, theta, nodes, times, options, free=free))


def _states(case: SimulationCase) -> tuple[Array, Array, Array, Array]:
    """Return the states (n, n_x) and (n, n_z) at times, integrated from the last node before each, p and u (n, n_u).

    A time at a node belongs to the piece that ends there; so does that of an event or jump, unless it says otherwise.
    """
    stretches = _integrate_between_nodes(case)
    t = np.concatenate([s.times for s in stretches])
    output_times = snap_times(case.times, np.unique(t))
    indices = np.searchsorted(t, output_times, side="left")  # where two meet at a node, the end of the first
    if case.timetable is not None:
        is_after = np.isin(output_times, snap_times(case.timetable.times_after_events, np.unique(t)))
        indices[is_after] = np.searchsorted(t, output_times[is_after], side="right") - 1
    p = np.concatenate([np.repeat(s.p[None], s.times.size, axis=0) for s in stretches])
    x, z, u = (np.concatenate([getattr(s, name) for s in stretches])[indices] for name in "xzu")
    return x, z, p[indices], as_measured(case.inputs, case.times, u)


def _integrate_between_nodes(case: SimulationCase) -> list[NodeTrajectory]:
    """Integrate from node to node up to the last output time, until the units of states are known."""
    is_reached = np.append(True, case.nodes.times[1:] <= case.times[-1])
    begins, states = case.nodes.times[is_reached], case.nodes.states[is_reached]
    z_held = np.repeat(case.z_guess[None], begins.size, axis=0)
    horizon = float(case.times[-1] - begins[0])
    unit = units_of(case.model, case.inputs, case.p, horizon, (begins, states, z_held))
    # States that start at zero, or count as zero: their magnitudes may be far too small to be followed.
    zero_states = np.flatnonzero(mean_magnitude(states) < NEGLIGIBLE_STATE_RATIO * unit[: states.shape[1]])
    stretches: list[NodeTrajectory] = []
    for _ in range(1 + _MAX_RESCALINGS):
        integration_case = IntegrationCase(
            case.model, case.inputs, case.p, case.z_guess, unit, case.options, case.timetable
        )
        stretches = integrate_from_nodes(integration_case, begins, states, case.times)
        stop = next(filter(None, (stretch.stop() for stretch in stretches)), None)
        if stop is not None:
            raise SimulationError(case.name, stop.time, stop.sentence)
        magnitudes = mean_magnitude(np.hstack([np.concatenate([getattr(s, name) for s in stretches]) for name in "xz"]))
        magnitudes[zero_states] = resolvable(magnitudes[: states.shape[1]])[zero_states]
        if not ((magnitudes > 0.0) & (magnitudes * _MAX_UNIT_RATIO < unit)).any():
            break
        unit = np.where(magnitudes > 0.0, magnitudes, unit)  # a state that begins at zero was taken for too large a one
    return stretches


def _observe(model: Model) -> Any:
    return model.system.function("outputs", ca.densify(ca.vertcat(*model.outputs.values())))


def _read_theta(problem: Posable, parameters: Any) -> tuple[Posable, Array, list[str]]:
    """Return theta for the given values, the problem with fixed parameters changed where named, and all mistakes."""
    if parameters is None:
        return problem, problem.guess, []
    if isinstance(parameters, FittedValues):
        known_names = {*problem.names, *problem.parameters}
        parameters = {n: v for n, v in estimated_or_fixed(parameters).items() if n in known_names}
    if not isinstance(parameters, Mapping):
        theta = read_reals(parameters)
        if theta is None or theta.shape != problem.guess.shape or not np.isfinite(theta).all():
            description = shorten_repr(parameters) if theta is None else f"an array of shape {theta.shape}"
            return problem, problem.guess, [f"theta must hold {problem.guess.size} finite numbers, one for each of "
                                            f"{', '.join(problem.names)}; it is {description}"]  # fmt: skip
        return problem, theta, []
    natural = problem.to_natural(problem.guess)
    fixed: dict[str, Any] = {}
    mistakes: list[str] = []
    for name, value in read_mapping("parameters", parameters, mistakes).items():
        owners = [j for j, quantity in enumerate(problem.quantities) if name in (quantity.name, quantity.symbol_name)]
        number = read_real(value)
        if number is None or not np.isfinite(number):
            mistakes.append(f"'{name}' is {shorten_repr(value)}; expected a finite number")
        elif any(problem.log[j] and number <= 0 for j in owners):
            mistakes.append(f"'{name}' is {number:g}, but its scale is 'log'; expected a positive number")
        elif owners:
            natural[owners] = number
        elif name in problem.parameters and not isinstance(problem, CompiledProblem):
            fixed[name] = replace(problem.parameters[name], value=number, lower=-np.inf, upper=np.inf)
        elif name in problem.parameters:
            mistakes.append(f"'{name}' is a constant of this compiled problem; pass the Problem to change it")
        else:
            known_names = dict.fromkeys((*problem.names, *problem.parameters))
            mistakes.append(f"'{name}' is neither estimated nor a model parameter: {suggest(name, known_names)}")
    theta = problem.to_search(natural)
    if mistakes or not fixed or isinstance(problem, CompiledProblem):
        return problem, theta, mistakes
    return problem.replace(parameters={**problem.parameters, **fixed}), theta, mistakes


def _output_times(problem: Posable, times: Times) -> tuple[dict[str, Array], list[str]]:
    """Return the output times per experiment, and all mistakes in them."""
    names = [condition.name for condition in problem.conditions]
    if times is None:
        return {c.name: np.unique(c.points.times) for c in problem.conditions}, []
    mistakes: list[str] = []
    times_by_name: dict[str, Any] = (
        read_mapping("times", times, mistakes)
        if isinstance(times, Mapping)
        else dict.fromkeys(names, as_reusable(times))
    )
    mistakes += [
        f"times has the unknown experiment '{n}': {suggest(n, names)}" for n in times_by_name if n not in names
    ]
    output_times: dict[str, Array] = {}
    for condition in problem.conditions:
        if condition.name not in times_by_name:
            continue
        name, experiment_times = f"the times of '{condition.name}'", read_reals(times_by_name[condition.name])
        if experiment_times is None:
            mistakes.append(
                f"{name} are {shorten_repr(times_by_name[condition.name])}; they must be finite and increasing numbers"
            )
            continue
        output_times[condition.name] = t = np.atleast_1d(experiment_times)
        messages = _time_mistakes(name, t, condition.start)
        mistakes += messages or time_mistakes(float(t[0]), float(t[-1]), condition.start, is_start_given=True)
        signals = dict(zip(problem.model.inputs, condition.inputs, strict=True))
        mistakes += [] if messages else _span_mistakes(signals, f"'{condition.name}'", condition.start, t[-1])
        if not messages and t[-1] > condition.schedule.known_until:
            mistakes.append(
                f"{name} extend to {t[-1]:g}, but doses of '{condition.name}' repeat up to the last measurement at "
                f"{condition.schedule.known_until:g} only; pass their number, count="
            )
    return output_times, mistakes


def _time_mistakes(label: str, t: Array, start: float) -> list[str]:
    if t.ndim != 1 or t.size == 0 or not np.isfinite(t).all() or (np.diff(t) <= 0).any():
        return [f"{label} must be finite and increasing"]
    return [f"{label} start at {t[0]:g}, before the start of the experiment at {start:g}"] if t[0] < start else []


def _span_mistakes(signals: Mapping[str, Input], owner_label: str, start: float, end: float) -> list[str]:
    late = [(n, s.span[1]) for n, s in signals.items() if end > s.span[1]]
    early = [(n, s.span[0]) for n, s in signals.items() if start < s.span[0] - 1e-9 * abs(end - start)]
    return [
        f"input '{n}' of {owner_label} is defined only up to {last_time:g}; extend it to {end:g}"
        for n, last_time in late
    ] + [
        f"input '{n}' of {owner_label} is defined only from {first_time:g} on; extend it to {start:g}"
        for n, first_time in early
    ]
