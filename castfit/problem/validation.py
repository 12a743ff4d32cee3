"""Validation of estimation problems; mistakes are reported as messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of, read_mapping, shorten_repr
from castfit._support.arrays import Array, Mask
from castfit._support.bounds import bound_mistakes
from castfit._support.status import InputError, suggest, unknown_names
from castfit.densities.priors import PriorTerm, prior_bound_conflicts, prior_mistakes
from castfit.densities.priors.distributions import start_mistakes
from castfit.experiment.estimated_inputs import EstimatedInput
from castfit.experiment.events import (
    Doses,
    Event,
    ParameterSwitch,
    ScheduledEvent,
    event_symbols,
    input_jumps,
    is_after_data,
    occurrences,
)
from castfit.experiment.experiment import Consistent, Experiment, Free, SteadyStart
from castfit.experiment.inputs import Input
from castfit.model.dae_index import unmatched_parts
from castfit.model.expressions import pattern
from castfit.model.model import Model, System
from castfit.model.scaled_outputs import measured_with
from castfit.problem.compiled_problem import LOSS, NO_LIKELIHOOD, CompiledProblem
from castfit.problem.constraint_compilation import shape_mistakes, symbol_mistakes
from castfit.problem.constraints import repeated_names
from castfit.problem.observables import parameter_of, unknowns
from castfit.problem.parameters import Parameter, ProblemStatement, estimated_inputs, initial_values, measured_times
from castfit.problem.quantities import every_parameter, names_used, noise_names


def statement_mistakes(statement: ProblemStatement) -> list[str]:
    """Find every mistake that concerns names, values and coverage."""
    model = statement.model
    mistakes: list[str] = []
    if not statement.experiments:
        mistakes.append("no experiment given; estimation needs measurements")
    names = [e.name for e in statement.experiments]
    repeated = [n for n, count in Counter(names).items() if count > 1]
    mistakes += [f"two experiments are named '{n}'; names must differ" for n in repeated]
    lacks_noise = [e.sigma is None and not e.noise for e in statement.experiments]
    if any(lacks_noise) and any(e.sigma is not None for e in statement.experiments):
        mistakes.append("some experiments have sigma and some not; give it for all or for none, or say unknown()")
    mistakes += _unknown_sigma_mistakes(statement)
    names_by_experiment = [names_used(model, e) for e in statement.experiments]
    reserved_names = dict.fromkeys((*model.states, *model.algebraic_states), "a state") | dict.fromkeys(
        model.inputs, "an input"
    )
    reserved_names[model.system.t.name()] = "the time"
    mistakes += _noise_mistakes(statement)
    for name in statement.parameters:
        if name in reserved_names:
            mistakes.append(f"'{name}' is no parameter but {reserved_names[name]} of the model; choose another name")
        elif name not in model.parameters and not any(name in used_names for used_names in names_by_experiment):
            mistakes.append(f"'{name}' is no parameter of the model: {suggest(name, model.parameters)}")
    of_scales = measured_with(model.scalings, model.scalings)
    for name in (n for n in every_parameter(model, statement.parameters) if n not in model.generated):
        users = [
            e for e, used_names in zip(statement.experiments, names_by_experiment, strict=True) if name in used_names
        ]
        needing_names = [e.name for e in users if name not in e.parameters]
        if name not in statement.parameters:
            if needing_names or not (users or name in of_scales):
                mistakes.append(f"parameter '{name}' has no guess; add it to parameters={{...}}")
            continue
        if users and not needing_names:
            mistakes.append(f"every experiment has its own value of '{name}'; leave it out of the problem's parameters")
        mistakes += _parameter_mistakes(name, statement.parameters[name], names, needing_names)
    mistakes += unknown_names("state_bounds names '{}', which is no state", statement.state_bounds, model.own_states)
    mistakes += repeated_names(statement.constraints)
    for constraint in statement.constraints:
        mistakes += shape_mistakes(constraint)
        expression: Any = constraint.expression
        symbols = ca.symvar(expression) if isinstance(expression, ca.SX) else []
        generated = [s.name() for s in symbols if s.name().endswith((")", "]"))]  # names of quantities: looked up later
        mistakes += symbol_mistakes(constraint, model, (*statement.parameters, *generated))
    mistakes += _input_mistakes(statement)
    for entry in statement.priors:
        mistakes += prior_mistakes(entry.label, entry.prior) if isinstance(entry, PriorTerm) else []
    for experiment in statement.experiments:
        mistakes += [f"{experiment.name}: {m}" for m in _experiment_mistakes(statement, experiment)]
    return mistakes


def _noise_mistakes(statement: ProblemStatement) -> list[str]:
    """Find values that are given to white noise, and events that hold it."""
    noises, remedy = {*statement.model.noises}, "it has no value at a time; leave it out"
    mistakes = [
        f"'{n}' is white noise of the model, not a parameter: {remedy}" for n in statement.parameters if n in noises
    ]
    for e in statement.experiments if noises else ():
        graphs = [v for v in (*(m.sigma for m in e.noise.values()), *e.initial.values()) if isinstance(v, ca.SX)]
        symbol_names = {s.name() for graph in graphs for s in ca.symvar(graph)}
        assigned_noises = noises & {*e.parameters, *event_symbols(e.events), *symbol_names}
        where = "parameters, events, initial values and sigma"
        mistakes += [f"{e.name}: '{n}' is white noise: {remedy} of {where}" for n in sorted(assigned_noises)]
    return mistakes


def _unknown_sigma_mistakes(statement: ProblemStatement) -> list[str]:
    """Find unknown sigmas with contradicting specifications, or whose parameter's name is taken."""
    variants: dict[str, set[tuple[Any, ...]]] = {}
    parameter_names, clashing_names = every_parameter(statement.model, statement.parameters), dict[str, None]()
    for name, _, noise, s in unknowns(statement.experiments):
        clashing_names |= dict.fromkeys({parameter_of(noise, name)} & {*parameter_names})
        variants.setdefault(name, set()).add((s.guess, s.lower, s.upper, repr(s.prior)))
    return [
        f"the unknown sigma '{name}' is given in {len(kinds)} different ways; say the same wherever it is named"
        for name, kinds in variants.items()
        if len(kinds) > 1
    ] + [f"the name '{name}' is that of an unknown sigma; rename the parameter" for name in clashing_names]


def scale_mistakes(model: Model, parameters: Mapping[str, Parameter]) -> list[str]:
    """Find scales of outputs that are specified both in the model and in the problem's parameters."""
    mistakes: list[str] = []
    for scaling in {s.scale: s for s in model.scalings.values()}.values():
        if scaling.says_more and scaling.scale in parameters:
            mistakes.append(
                f"'{scaling.scale}' is described by scaled(...) and in parameters={{...}}; leave one of them out"
            )
        local = [
            n for n in scaling.parameters if n in parameters and not is_one_of(parameters[n].local, True, np.True_)
        ]
        if scaling.per_experiment and local:
            mistakes.append(f"'{local[0]}' differs between experiments by scaled(per_experiment=True); add local=True")
    return mistakes


def _parameter_mistakes(
    name: str, parameter: Parameter, experiments: Sequence[str], needing: Sequence[str]
) -> list[str]:
    """Find mistakes in a parameter whose value the experiments `needing` use."""
    value, label = parameter.value, f"parameter '{name}'"
    mistakes = [
        f"{label}: {flag} is {shorten_repr(choice)}; give True or False"
        for flag, choice in (("fixed", parameter.fixed), ("local", parameter.local))
        if not is_one_of(choice, True, False, np.True_, np.False_)
    ]
    if isinstance(value, Mapping):
        if not is_one_of(parameter.local, True, np.True_):
            return [*mistakes, f"{label} has a value per experiment but is not local; add local=True"]
        values_by_experiment = read_mapping(label, value, mistakes)
        mistakes += unknown_names(f"{label} has a value for '{{}}'", values_by_experiment, experiments)
        mistakes += [f"local {label} has no value for '{e}'" for e in needing if e not in values_by_experiment]
        mistakes += [
            f"{label} has a value for '{e}', which has its own or does not use it; leave one of them out"
            for e in values_by_experiment
            if e in experiments and e not in needing
        ]
        values = [(f"{label}, {e}", v) for e, v in values_by_experiment.items()]
    else:
        values = [(label, value)]
    bounds = (parameter.lower, parameter.upper)
    value_mistakes = [m for where, v in values for m in bound_mistakes(where, v, *bounds, parameter.scale)]
    distribution_mistakes = prior_mistakes(label, parameter.prior) + start_mistakes(label, parameter.starts, *bounds)
    if parameter.starts is not None and is_one_of(parameter.fixed, True, np.True_):
        distribution_mistakes.append(f"{label} is fixed, so that no starts of it are drawn; leave starts= out")
    if not value_mistakes and not distribution_mistakes and not is_one_of(parameter.fixed, True, np.True_):
        distribution_mistakes = [
            m for where, v in values for m in prior_bound_conflicts(where, float(v), *bounds, parameter.prior)
        ]
    return mistakes + value_mistakes + distribution_mistakes


def _experiment_mistakes(statement: ProblemStatement, experiment: Experiment) -> list[str]:
    model, start, end = statement.model, experiment.start, experiment.end
    neither = "'{}' is measured but is neither a state nor an output"
    mistakes = unknown_names(neither, experiment.measured, model.output_names)
    within_lines = {*model.states} - {*model.own_states}
    initial = {n: v for n, v in initial_values(model, experiment).items() if n not in within_lines}
    parameters = every_parameter(model, statement.parameters)
    mistakes += unknown_names("'{}' has its own value but is no parameter", experiment.parameters, parameters)
    local_expressions = {n: v for n, v in experiment.parameters.items() if isinstance(v, ca.SX)}
    mistakes += _unknown_symbols("parameter '{}'", local_expressions, parameters)
    neither = "sigma contains '{}', which is neither in the model nor among the problem's parameters"
    mistakes += unknown_names(neither, dict.fromkeys(noise_names(model, experiment)), parameters)
    mistakes += _find_circular_values(local_expressions)
    state_names = (*model.own_states, *model.algebraic_states)
    mistakes += unknown_names("initial names '{}', which is no state", initial, state_names)
    mistakes += _consistency_mistakes(model, experiment, initial)
    mistakes += [
        f"state '{n}' has no initial value; give a number, free(guess) or an expression"
        for n in model.own_states
        if n not in initial and experiment.steady is None
    ]
    for name, value in initial.items():
        if isinstance(value, ca.SX):
            mistakes += _unknown_symbols("the initial value of '{}'", {name: value}, parameters)
        elif not isinstance(value, (Free, Consistent)) and name in statement.state_bounds:
            lower, upper = statement.state_bounds[name]
            if not lower <= value <= upper:
                mistakes.append(
                    f"the initial value {value:g} of '{name}' lies outside its state_bounds [{lower:g}, {upper:g}]"
                )
    mistakes += unknown_names("'{}' is no input of the model", experiment.inputs, model.inputs)
    rounding = 1e-9 * abs(end - start)
    for name in model.inputs:
        if name not in experiment.inputs:
            mistakes.append(f"input '{name}' is missing; give a number or an Input")
            continue
        first_time, last_time = experiment.inputs[name].span
        if first_time > start + rounding or last_time < end - rounding:
            mistakes.append(
                f"input '{name}' is given on [{first_time:g}, {last_time:g}] but the experiment runs over "
                f"[{start:g}, {end:g}]; extend it"
            )
    mistakes += _event_mistakes(statement, experiment, parameters)
    mistakes += [] if experiment.steady is None else _steady_mistakes(model, experiment, parameters)
    output_graphs = [model.outputs[n] for n in experiment.measured if n in model.outputs]
    depends_on_parameters = (
        ca.depends_on(ca.vertcat(*output_graphs), model.system.p) if output_graphs and model.parameters else False
    )
    if end <= start and not depends_on_parameters and all(e.end <= e.start for e in statement.experiments):
        mistakes.append(f"nothing is measured after the start {start:g}; estimation needs later times")
    return mistakes


def _consistency_mistakes(model: Model, experiment: Experiment, initial: Mapping[str, Any]) -> list[str]:
    """Find mistakes in initial values of algebraic states, and of differential ones that follow from them."""
    consistent_states = [n for n in model.own_states if isinstance(initial.get(n), Consistent)]
    fixed_states = [n for n in model.algebraic_states if n in initial and not isinstance(initial[n], Consistent)]
    if not consistent_states:
        return [
            f"the initial value of the algebraic state '{n}' follows from the equations; give at most a guess, a "
            "number, or say consistent(guess) of a differential state that follows from it"
            for n in fixed_states
            if isinstance(initial[n], (Free, ca.SX))
        ]
    listed = " and ".join(f"'{n}'" for n in consistent_states)
    if experiment.steady is not None:
        return [f"the initial value of {listed} cannot be consistent(...) beside a steady state; leave one of them out"]
    if model.lines:
        return [f"the initial value of {listed} cannot be consistent(...) in a model with delays; give a number"]
    if len(fixed_states) != len(consistent_states):
        fixed_text = ", ".join(f"'{n}'" for n in fixed_states) or "none"
        return [
            f"the initial value of {listed} is to follow from the algebraic equations, so {len(consistent_states)} "
            f"algebraic {'state needs a value' if len(consistent_states) == 1 else 'states need values'}, "
            f"but {fixed_text} has; give as many"
        ]
    system = model.system
    unknown_symbols = [s for s in ca.vertsplit(system.x) if s.name() in consistent_states]
    unknown_symbols += [s for s in ca.vertsplit(system.z) if s.name() not in fixed_states]
    parts = unmatched_parts(_dependence(system.alg, ca.vertcat(*unknown_symbols)))
    if not parts.over_equations:
        return []
    equation_names = ", ".join(model.algebraic_states[i] for i in parts.over_equations)
    undetermined_names = ", ".join(unknown_symbols[j].name() for j in parts.under_states)
    return [
        f"the algebraic equations do not determine the initial value of {undetermined_names}, and the equations of "
        f"{equation_names} have too few unknowns; let other states be consistent(...), or give other algebraic states "
        "a value"
    ]


def _steady_mistakes(model: Model, experiment: Experiment, parameters: Sequence[str]) -> list[str]:
    """Find mistakes in the steady state before an experiment."""
    assert experiment.steady is not None
    steady_start = experiment.steady
    mistakes: list[str] = []
    switched = model.with_switches.system  # before the experiment nothing has switched
    if ca.depends_on(ca.vertcat(switched.ode, switched.alg), switched.t):
        mistakes.append("there is no steady state: the model's equations contain the time")
    state_names = (*model.own_states, *model.algebraic_states)
    mistakes += unknown_names("steady_state: initial names '{}', which is no state", steady_start.initial, state_names)
    mistakes += unknown_names("steady_state: '{}' is no input of the model", steady_start.inputs, model.inputs)
    mistakes += unknown_names("steady_state: '{}' is no parameter", steady_start.parameters, parameters)
    mistakes += _unknown_symbols("steady_state: parameter '{}'", steady_start.parameters, parameters)
    circles, previous_circles = (
        _find_circular_values({n: v for n, v in group.items() if isinstance(v, ca.SX)})
        for group in (experiment.parameters, experiment.before.parameters)
    )
    mistakes += [] if circles else [f"steady_state: {m}" for m in previous_circles]
    mistakes += _unknown_symbols("steady_state: the initial value of '{}'", steady_start.initial, parameters)
    if isinstance(steady_start.initial, SteadyStart):
        return [*mistakes, *_steady_mistakes(model, experiment.before, parameters)]
    start_values = {**model.initial, **steady_start.initial}
    mistakes += [
        f"steady_state: state '{n}' has no value from which to come to rest; give initial={{'{n}': ...}}, which also "
        "tells conserved sums"
        for n in model.own_states
        if n not in start_values
    ]
    return mistakes


def _unknown_symbols(template: str, values: Mapping[str, Any], parameters: Sequence[str]) -> list[str]:
    """Find the symbols in expressions that are no parameters; {} stands for the name of the value."""
    return [
        mistake
        for name, value in values.items()
        for mistake in unknown_names(
            f"{template.format(name)} contains '{{}}', which is no parameter", _names([value]), parameters
        )
    ]


def _find_circular_values(expressions: Mapping[str, ca.SX]) -> list[str]:
    """Find parameters whose value in an experiment depends on itself, each circle once."""
    dependencies = {n: [s.name() for s in ca.symvar(v) if s.name() in expressions] for n, v in expressions.items()}
    circles: dict[frozenset[str], list[str]] = {}

    def follow(path: list[str]) -> None:
        for name in dependencies[path[-1]]:
            if name in path:
                circle = path[path.index(name) :]
                circles.setdefault(frozenset(circle), [*circle, name])
            else:
                follow([*path, name])

    for name in expressions:
        follow([name])
    return [
        f"parameter '{circle[0]}' depends on itself ({' -> '.join(circle)}), since names mean values in this "
        f"experiment; give the common value a name of its own, such as '{circle[0]}_ref', in the problem's parameters"
        for circle in circles.values()
    ]


# Estimated inputs, and events


def reset_mistakes(model: Model, experiment: Experiment) -> list[str]:
    """Find values of an interval without length, and values that are relative to themselves alone."""
    single_value_mistakes = [
        f"'{m.output}' is relative to its first value, and no other is measured; leave it out"
        for m in model.memories
        if m.kind == "relative" and m.output in experiment.measured
        if measured_times(experiment, m.output).size == 1
    ]
    return single_value_mistakes + [
        f"'{m.output}' is measured at the start, where its first interval has no length; leave that row out, or give "
        "another start"
        for m in model.memories
        if m.kind != "relative" and m.output in experiment.measured
        if measured_times(experiment, m.output)[0] <= experiment.start
    ]


def _input_mistakes(statement: ProblemStatement) -> list[str]:
    """Find every mistake in the specification of estimated inputs."""
    mistakes: list[str] = []
    uses_by_label: dict[str, list[tuple[str, EstimatedInput, Experiment]]] = {}
    for e in statement.experiments:
        for input_name, u in estimated_inputs(e).items():
            uses_by_label.setdefault(u.label(input_name), []).append((input_name, u, e))
            mistakes += [f"{e.name}: {m}" for m in _input_placement_mistakes(input_name, e)]
    model_names = {*statement.model.parameters, *statement.model.states, *statement.model.algebraic_states}
    for label, uses in uses_by_label.items():
        if len({u.identity for _, u, _ in uses}) > 1:
            mistakes.append(
                f"the estimated input '{label}' is given in different ways; say the same wherever it is named, or give "
                "names, name=, or per_experiment=True with the same knots"
            )
            continue
        input_name, u, _ = uses[0]
        mistakes += [
            f"'{n}' is a value of the estimated input '{label}' and a name in the model; rename one of them"
            for n in u.names(input_name)
            if n in model_names
        ]
        groups = [[e] for *_, e in uses] if u.per_experiment else [[e for *_, e in uses]]
        mistakes += [m for group in groups for m in _find_useless_knots(label, u, group)]
    return mistakes


def local_mistakes(model: Model, experiments: Iterable[Experiment], parameters: Mapping[str, Parameter]) -> list[str]:
    """Find values of a per-experiment input whose parameters are not local."""
    return [
        f"'{n}' differs between experiments by Input.estimated(per_experiment=True); add local=True"
        for e in experiments
        for input_name, u in estimated_inputs(e).items()
        if u.per_experiment and input_name in model.inputs
        for n in u.names(input_name)
        if n in parameters and not is_one_of(parameters[n].local, True, np.True_)
    ]


def _find_useless_knots(label: str, u: EstimatedInput, experiments: list[Experiment]) -> list[str]:
    """Find knots on whose values no measurement depends."""
    start, end = min(e.start for e in experiments), max(e.end for e in experiments)
    t = u.knots
    steps = u.kind == "piecewise_constant"
    is_late = t >= end if steps else np.append(False, t[:-1] >= end)
    is_early = np.append(t[1:] <= start, False)
    mistakes: list[str] = []
    if is_late.any():
        mistakes.append(
            f"the knot {t[is_late][-1]:g} of '{label}' lies behind the last measurement at {end:g}"
            f"{', and a value holds from its knot on' if steps else ''}; nothing depends on it, leave it out"
        )
    if is_early.any():
        mistakes.append(
            f"the knot {t[is_early][0]:g} of '{label}' lies before the start {start:g}, and so does the next one; "
            "nothing depends on it, leave it out"
        )
    return mistakes


def _input_placement_mistakes(input_name: str, experiment: Experiment) -> list[str]:
    """Find values, events and sigmas of an experiment in which an estimated input cannot be used."""
    mistakes = [
        f"'{n}', a value of the input '{input_name}', is given by the experiment; fix it in the problem's parameters"
        for n in estimated_inputs(experiment)[input_name].names(input_name)
        if n in experiment.parameters
    ]
    for i, event in enumerate(experiment.events):
        simple = isinstance(event, Event) and not isinstance(event.time, ca.SX) and event.when is None
        if not simple and input_name in event_symbols([event]):
            mistakes.append(
                f"event {i + 1} contains the input '{input_name}', which is estimated; only an Event at a known time "
                "can contain an estimated input"
            )
    for output, noise in experiment.noise.items():
        graphs: list[Any] = [*noise.symbols, noise.sigma]
        if any(s.name() == input_name for g in graphs if isinstance(g, ca.SX) for s in ca.symvar(g)):
            mistakes.append(
                f"sigma of '{output}' contains the input '{input_name}', which is estimated; add an output of the "
                "model that equals it, and write sigma with the output's name"
            )
    return mistakes


def _event_mistakes(statement: ProblemStatement, experiment: Experiment, parameters: Sequence[str]) -> list[str]:
    """Find every mistake in the events of an experiment; `parameters` are the names of all that there are."""
    model, start, end = statement.model, experiment.start, experiment.end
    mistakes: list[str] = []
    events = (event for event in experiment.events if not isinstance(event, ParameterSwitch))
    for i, event in enumerate(events):
        label = f"event {i + 1}"
        mistakes += _name_mistakes(label, event, model, parameters)
        happens = occurrences([event], end)
        times = [o.time for o in happens if isinstance(o.time, float) and o.when is None]
        early = [t for t in times if t < start]
        if early:
            mistakes.append(f"{label} happens at t = {early[0]:g}, before the start {start:g}; events come after it")
        elif is_after_data(event, end):
            mistakes.append(
                f"{label} happens at t = {min(times):g}, after the last measurement at {end:g}; no data can show it"
            )
    happens = occurrences(experiment.events, end)
    signals = [u for u in experiment.inputs.values() if isinstance(u, Input)]
    if model.algebraic_states and any(u.measured == "after" for u in signals):
        happens += input_jumps(signals, start, end)
    return mistakes + _side_mistakes(happens)


def _name_mistakes(label: str, event: Event | Doses, model: Model, parameters: Sequence[str]) -> list[str]:
    """Find names that an event must not use."""
    mistakes: list[str] = []
    changed = tuple(event.changes) if isinstance(event, Event) else (event.into,)
    for name in changed:
        if name in model.algebraic_states:
            mistakes.append(
                f"{label} changes the algebraic state '{name}', which follows from the equations; change states"
            )
        elif name not in model.own_states:
            mistakes.append(f"{label} changes '{name}', which is no state: {suggest(name, model.own_states)}")
        elif name in model.delayed_states and not (isinstance(event, Doses) and event.duration is not None):
            mistakes.append(
                f"{label} changes '{name}', whose past the model needs: no delay line holds a jump; give an infusion"
            )
    anything = {*parameters, *model.states, *model.inputs, model.system.t.name()}
    if isinstance(event, Event):
        state_expressions, parameter_expressions = (
            [*event.changes.values(), event.when, event.priority],
            [("its time", event.time)],
        )
    else:
        amounts = [*event.amount, event.bioavailability]
        state_expressions = [] if event.duration is not None else amounts
        parameter_expressions = (
            [("the amount of an infusion", v) for v in amounts] if event.duration is not None else []
        )
        parameter_expressions += [("its times", v) for v in event.times]
        parameter_expressions += [("its duration", event.duration), ("its lag", event.lag)]
    for name in _names(state_expressions):
        if name in model.algebraic_states:
            mistakes.append(f"{label} contains the algebraic state '{name}'; write it in terms of states")
        elif name not in anything:
            mistakes.append(f"{label} contains '{name}', which is not in the model: {suggest(name, sorted(anything))}")
    for where, value in parameter_expressions:
        for name in _names([value]):
            if name in anything and name not in parameters:
                mistakes.append(f"{label}: {where} contains '{name}'; only parameters may appear there")
            elif name not in parameters:
                mistakes.append(
                    f"{label}: {where} contains '{name}', which is no parameter: {suggest(name, parameters)}"
                )
    return list(dict.fromkeys(mistakes))


def _names(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(s.name() for v in values if isinstance(v, ca.SX) for s in ca.symvar(v)))


def _side_mistakes(happens: Sequence[ScheduledEvent]) -> list[str]:
    """Find times at which values are measured both before and after the events."""
    sides: dict[float, set[str]] = {}
    for o in happens:
        if o.end_time is None and o.when is None and isinstance(o.time, float):
            sides.setdefault(o.time, set()).add(o.measured)
    return [
        f"at t = {t:g} one event or jump is measured 'before' and another 'after'; give all of one time the same"
        for t, time_sides in sides.items()
        if len(time_sides) > 1
    ]


# Checks of the compiled problem


def name_mistakes(compiled_problem: CompiledProblem) -> list[str]:
    """Find quantities of one name: a parameter may be called as castfit calls an initial state or a local value."""
    descriptions_by_name: dict[str, list[str]] = {}
    for q in compiled_problem.quantities:
        kind = f"{'local' if q.experiment is not None else 'shared'} parameter" if q.kind == "parameter" else q.kind
        descriptions_by_name.setdefault(q.name, []).append(f"the {kind} '{q.symbol_name}'")
    return [
        f"the name '{name}' would mean {' and '.join(descriptions)}; rename the parameter, the state or the experiment"
        for name, descriptions in descriptions_by_name.items()
        if len(descriptions) > 1
    ]


class UnmeasuredError(InputError):
    """No measurement depends on some estimated quantities, `names`; nothing else is wrong."""

    def __init__(self, where: str, mistakes: Mapping[str, str]) -> None:
        super().__init__(where, mistakes.values())
        self.names = tuple(mistakes)

    def __reduce__(self) -> tuple[type[UnmeasuredError], tuple[Any, ...]]:
        return type(self), (self.where, dict(zip(self.names, self.problems, strict=True)))


def support_mistakes(compiled_problem: CompiledProblem) -> dict[str, str]:
    """Find estimated quantities that no measurement can depend on, by the structure of the graph."""
    system = compiled_problem.model.system
    x, z, p = system.x, system.z, system.p
    unknown_symbols = ca.vertcat(x, z)
    equations = ca.vertcat(system.ode, _order_equations(system))
    flow = _dependence(equations, unknown_symbols)  # flow[i, j]: equation i contains unknown j
    by_parameter = _dependence(equations, p)
    observe, observe_p = (
        _dependence(compiled_problem.observed, unknown_symbols),
        _dependence(compiled_problem.observed, p),
    )
    supported: set[int] = set()
    for condition in compiled_problem.conditions:
        output_names = (*compiled_problem.outputs, *compiled_problem.spreads)
        columns = [
            output_names.index(n)
            for observable in condition.observed
            if observable is not None
            for n in observable.predicted_outputs
        ]
        is_reached, n_x, schedule = _any_row(observe[columns]), x.numel(), condition.schedule
        for _ in range(unknown_symbols.numel()):
            is_reached = is_reached | _any_row(flow[is_reached])
            jumped, _rows = schedule.find_dependencies(is_reached[:n_x], np.zeros(p.numel(), dtype=np.bool_))
            is_reached[:n_x] |= jumped
        parameters = _any_row(observe_p[columns]) | _any_row(by_parameter[is_reached])
        _, of_events = schedule.find_dependencies(is_reached[:n_x], parameters)
        rows = np.concatenate([parameters, is_reached[:n_x], of_events])
        supported.update(condition.theta[_any_row(condition.link.pattern[rows])].tolist())
    return {
        quantity.name: f"no measurement depends on the free {quantity.kind} '{quantity.name}'; "
        f"{'give it a value' if quantity.kind == 'initial state' else 'fix it (fixed=True)'}"
        for j, quantity in enumerate(compiled_problem.quantities)
        if j not in supported and not compiled_problem.informed_mask[j] and not _is_constrained(compiled_problem, j)
    }


def _is_constrained(compiled_problem: CompiledProblem, j: int) -> bool:
    """Whether a relation of quantities, or a path constraint, may determine an unmeasured quantity."""
    return bool(compiled_problem.path) or any(
        r.lower == r.upper and r.involved_mask[j] for r in compiled_problem.relations
    )


def _order_equations(system: System) -> ca.SX:
    """Return the algebraic equations in the order of the unknowns that they determine."""
    if system.z.numel() == 0:
        return system.alg
    _, rows, columns, *_ = ca.jacobian_sparsity(system.alg, system.z).btf()
    return ca.vertcat(*(system.alg[rows[columns.index(j)]] for j in range(len(columns))))


def guess_mistakes(compiled_problem: CompiledProblem) -> list[str]:
    """Find initial values and parameters that cannot be computed at the guess."""
    failure = compiled_problem.priors(compiled_problem.guess).failure
    mistakes = [f"{failure}, the guess; change prior or guess"] if failure else []
    return (
        mistakes
        + point_mistakes(compiled_problem, compiled_problem.guess, "the guess")
        + _event_guess_mistakes(compiled_problem)
    )


def _event_guess_mistakes(compiled_problem: CompiledProblem) -> list[str]:
    """Find events that cannot happen at the guess."""
    mistakes: list[str] = []
    for condition in compiled_problem.conditions:
        schedule, natural = condition.schedule, condition.link.natural(compiled_problem.guess[condition.theta])
        if not schedule.instants or not np.isfinite(natural.e).all():  # reported with the other expressions
            continue
        reason = schedule.describe_obstacle(natural.e, condition.start)
        if reason:
            mistakes.append(f"{condition.name}: {reason}, at the guess; change the guess or the expression")
        visible_instants = [i for i in schedule.instants if i.is_moving and natural.e[i.time] < condition.end]
        if any(i.is_moving and i.trigger is None for i in schedule.instants) and not visible_instants:
            mistakes.append(
                f"{condition.name}: at the guess all estimated times lie after the last measurement at "
                f"{condition.end:g}, where no data show them; change the guess"
            )
    return mistakes


def point_mistakes(compiled_problem: CompiledProblem, theta: Array, point_name: str = "") -> list[str]:
    """Find initial values, parameters and delays that cannot be computed at theta (n_theta,).

    Messages name the point `point_name`; without a name, impossible times of events are mistakes too.
    """
    names = [f"the initial value of '{n}'" for n in compiled_problem.model.states]
    where, remedy = (f", {point_name}", "expression or guess") if point_name else ("", "expression or values")
    mistakes: list[str] = []
    for condition in compiled_problem.conditions:
        q = theta[condition.theta]
        natural = condition.link.natural(q)
        reason = condition.link.failure(q, natural)
        if reason:
            mistakes.append(f"{condition.name}: {reason}{where}; change {remedy}")
        else:
            at_point = f"at {point_name}" if point_name else "at these values"
            mistakes += [
                f"{condition.name}: {name} is {value} {at_point}; change it"
                for name, value in zip(names, natural.a, strict=True)
                if not np.isfinite(value)
            ]
            happens = "" if point_name else condition.schedule.describe_obstacle(natural.e, condition.start)
            mistakes += [f"{condition.name}: {happens}; change the values"] if happens else []
        mistakes += [f"{condition.name}: {message}" for message in tau_mistakes(compiled_problem.model, natural.p)]
    return mistakes


def tau_mistakes(model: Model, p: Array) -> list[str]:
    """Find delays that are not positive at parameters p (n_p,)."""
    return [
        f"the delay of {line.name} is {tau:g}; a delay is positive"
        for line, tau in zip(model.lines, model.delays(p), strict=True)
        if not 0.0 < tau < np.inf
    ]


def _any_row(rows: Mask) -> Mask:
    """Return a mask of the columns that are True in any row."""
    return np.logical_or.reduce(rows, axis=0)


def _dependence(rows: ca.SX, columns: ca.SX) -> Mask:
    """Return the pattern of rows that depend on columns, (n_rows, n_columns)."""
    return pattern(ca.jacobian_sparsity(rows, columns))


def noisy_mistakes(problem: CompiledProblem) -> list[str]:
    """List the features that cannot be combined with noises in a model, with alternatives."""
    model, mistakes = problem.model, list[str]()
    prefix = f"the model has process noise ({', '.join(model.noises)}), so"
    if problem.constraints or problem.state_bounds:
        mistakes.append(f"{prefix} constraints and state_bounds cannot be enforced along the path; remove them")
    if model.lines:
        mistakes.append(f"{prefix} delays are unsupported; write them as a linear chain of states")
    if model.memories:
        mistakes.append(
            f"{prefix} outputs must not be per_interval, interval_mean or relative_to_first; use plain outputs"
        )
    if problem.correlations:
        mistakes.append(
            f"{prefix} measurement errors must be independent; write their autocorrelated part as a state with noise"
        )
    if any(term.chosen for term in problem.smoothness_penalties):
        mistakes.append(
            f"{prefix} smoothness='auto' is unsupported; set a number, or write the input as a state with process noise"
        )
    if problem.measure == LOSS:
        mistakes.append(NO_LIKELIHOOD)
    observed = zip(problem.outputs, zip(*(c.observed for c in problem.conditions), strict=True), strict=True)
    for output in [
        name for name, observables in observed if any(o is not None and o.noise.kinked for o in observables)
    ]:
        mistakes.append(f"{prefix} the noise model of '{output}' must be smooth, because the Laplace approximation is "
                     "invalid at kinks; use StudentT")  # fmt: skip
    for c in problem.conditions:
        if c.is_steady_state:
            mistakes.append(f"{c.name}: {prefix} it has no steady state; pass finite times")
        if c.schedule.triggers:
            mistakes.append(f"{c.name}: {prefix} state-triggered events are unsupported; set the event times")
        elif c.schedule.is_moving:
            mistakes.append(f"{c.name}: {prefix} event times cannot be estimated; fix them")
        if any(i.change is not None and not i.change.is_linear for i in c.schedule.instants):
            mistakes.append(f"{c.name}: {prefix} events must change states linearly; use fixed factors")
    return mistakes
