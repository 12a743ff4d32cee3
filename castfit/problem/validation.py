"""Validation of estimation problems; mistakes are reported as messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of, named, text
from castfit._support.bounds import bound_mistakes
from castfit._support.status import InputError, suggest, unknown_names
from castfit.densities.priors import Belief, contradictions, prior_mistakes
from castfit.densities.priors.distributions import start_mistakes
from castfit.experiment.events import (
    Doses,
    Event,
    Occurrence,
    ParameterSwitch,
    input_jumps,
    occurrences,
    symbols_of,
    too_late,
)
from castfit.experiment.experiment import Consistent, Experiment, Free, SteadyStart
from castfit.experiment.inputs import Input
from castfit.model.dae_index import unmatched_parts
from castfit.model.expressions import pattern
from castfit.model.model import Model
from castfit.model.scaled_outputs import measured_with
from castfit.problem.constraint_compilation import shape_mistakes, symbol_mistakes
from castfit.problem.constraints import repeated_names
from castfit.problem.observables import parameter_of, unknowns
from castfit.problem.parameters import Parameter, Statement, estimated_inputs, initial_values, measured_times
from castfit.problem.quantities import every_parameter, names_used, noise_names

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Mask
    from castfit.experiment.estimated_inputs import EstimatedInput
    from castfit.model.model import System
    from castfit.problem.compiled_problem import Posed


def statement_mistakes(said: Statement) -> list[str]:
    """Find every mistake that concerns names, values and coverage."""
    model = said.model
    mistakes: list[str] = []
    if not said.experiments:
        mistakes.append("no experiment given; estimation needs measurements")
    names = [e.name for e in said.experiments]
    repeated = [n for n, count in Counter(names).items() if count > 1]
    mistakes += [f"two experiments are named '{n}'; names must differ" for n in repeated]
    silent = [e.sigma is None and not e.noise for e in said.experiments]
    if any(silent) and any(e.sigma is not None for e in said.experiments):
        mistakes.append("some experiments have sigma and some not; give it for all or for none, or say unknown()")
    mistakes += _unknown_sigma_mistakes(said)
    used = [names_used(model, e) for e in said.experiments]
    taken = dict.fromkeys((*model.states, *model.algebraic_states), "a state") | dict.fromkeys(model.inputs, "an input")
    taken[model.system.t.name()] = "the time"
    mistakes += _noise_mistakes(said)
    for name in said.parameters:
        if name in taken:
            mistakes.append(f"'{name}' is no parameter but {taken[name]} of the model; choose another name")
        elif name not in model.parameters and not any(name in within for within in used):
            mistakes.append(f"'{name}' is no parameter of the model: {suggest(name, model.parameters)}")
    of_scales = measured_with(model.scalings, model.scalings)
    for name in (n for n in every_parameter(model, said.parameters) if n not in model.generated):
        users = [e for e, within in zip(said.experiments, used, strict=True) if name in within]
        needing = [e.name for e in users if name not in e.parameters]
        if name not in said.parameters:
            if needing or not (users or name in of_scales):
                mistakes.append(f"parameter '{name}' has no guess; add it to parameters={{...}}")
            continue
        if users and not needing:
            mistakes.append(f"every experiment has its own value of '{name}'; leave it out of the problem's parameters")
        mistakes += _parameter_mistakes(name, said.parameters[name], names, needing)
    mistakes += unknown_names("state_bounds names '{}', which is no state", said.state_bounds, model.own_states)
    mistakes += repeated_names(said.constraints)
    for constraint in said.constraints:
        mistakes += shape_mistakes(constraint)
        given: Any = constraint.expression
        inside = ca.symvar(given) if isinstance(given, ca.SX) else []
        generated = [s.name() for s in inside if s.name().endswith((")", "]"))]  # names of quantities: looked up later
        mistakes += symbol_mistakes(constraint, model, (*said.parameters, *generated))
    mistakes += _input_mistakes(said)
    for entry in said.priors:
        mistakes += prior_mistakes(entry.label, entry.prior) if isinstance(entry, Belief) else []
    for experiment in said.experiments:
        mistakes += [f"{experiment.name}: {m}" for m in _experiment_mistakes(said, experiment)]
    return mistakes


def _noise_mistakes(said: Statement) -> list[str]:
    """Find values that are given to white noise, and events that hold it."""
    noises, remedy = {*said.model.noises}, "it has no value at a time; leave it out"
    mistakes = [f"'{n}' is white noise of the model, not a parameter: {remedy}" for n in said.parameters if n in noises]
    for e in said.experiments if noises else ():
        graphs = [v for v in (*(m.sigma for m in e.noise.values()), *e.initial.values()) if isinstance(v, ca.SX)]
        inside = {s.name() for graph in graphs for s in ca.symvar(graph)}
        held = noises & {*e.parameters, *symbols_of(e.events), *inside}
        where = "parameters, events, initial values and sigma"
        mistakes += [f"{e.name}: '{n}' is white noise: {remedy} of {where}" for n in sorted(held)]
    return mistakes


def _unknown_sigma_mistakes(said: Statement) -> list[str]:
    """Find unknown sigmas of which different things are said, or whose parameter's name is taken."""
    meant: dict[str, set[tuple[Any, ...]]] = {}
    every, taken = every_parameter(said.model, said.parameters), dict[str, None]()
    for name, _, noise, s in unknowns(said.experiments):
        taken |= dict.fromkeys({parameter_of(noise, name)} & {*every})
        meant.setdefault(name, set()).add((s.guess, s.lower, s.upper, repr(s.prior)))
    return [
        f"the unknown sigma '{name}' is given in {len(kinds)} different ways; say the same wherever it is named"
        for name, kinds in meant.items()
        if len(kinds) > 1
    ] + [f"the name '{name}' is that of an unknown sigma; rename the parameter" for name in taken]


def scale_mistakes(model: Model, given: Mapping[str, Parameter]) -> list[str]:
    """Find scales of outputs of which both the model and the problem's parameters say something."""
    found: list[str] = []
    for scaling in {s.scale: s for s in model.scalings.values()}.values():
        if scaling.says_more and scaling.scale in given:
            found.append(
                f"'{scaling.scale}' is described by scaled(...) and in parameters={{...}}; leave one of them out"
            )
        local = [n for n in scaling.parameters if n in given and not is_one_of(given[n].local, True, np.True_)]
        if scaling.per_experiment and local:
            found.append(f"'{local[0]}' differs between experiments by scaled(per_experiment=True); add local=True")
    return found


def _parameter_mistakes(
    name: str, parameter: Parameter, experiments: Sequence[str], needing: Sequence[str]
) -> list[str]:
    """Find mistakes in a parameter whose value the experiments `needing` use."""
    value, what = parameter.value, f"parameter '{name}'"
    mistakes = [
        f"{what}: {flag} is {text(choice)}; give True or False"
        for flag, choice in (("fixed", parameter.fixed), ("local", parameter.local))
        if not is_one_of(choice, True, False, np.True_, np.False_)
    ]
    if isinstance(value, Mapping):
        if not is_one_of(parameter.local, True, np.True_):
            return [*mistakes, f"{what} has a value per experiment but is not local; add local=True"]
        given = named(what, value, mistakes)
        mistakes += unknown_names(f"{what} has a value for '{{}}'", given, experiments)
        mistakes += [f"local {what} has no value for '{e}'" for e in needing if e not in given]
        mistakes += [
            f"{what} has a value for '{e}', which has its own or does not use it; leave one of them out"
            for e in given
            if e in experiments and e not in needing
        ]
        values = [(f"{what}, {e}", v) for e, v in given.items()]
    else:
        values = [(what, value)]
    bounds = (parameter.lower, parameter.upper)
    found = [m for where, v in values for m in bound_mistakes(where, v, *bounds, parameter.scale)]
    wrong = prior_mistakes(what, parameter.prior) + start_mistakes(what, parameter.starts, *bounds)
    if parameter.starts is not None and is_one_of(parameter.fixed, True, np.True_):
        wrong.append(f"{what} is fixed, so that no starts of it are drawn; leave starts= out")
    if not found and not wrong and not is_one_of(parameter.fixed, True, np.True_):
        wrong = [m for where, v in values for m in contradictions(where, float(v), *bounds, parameter.prior)]
    return mistakes + found + wrong


def _experiment_mistakes(said: Statement, experiment: Experiment) -> list[str]:
    model, start, end = said.model, experiment.start, experiment.end
    neither = "'{}' is measured but is neither a state nor an output"
    mistakes = unknown_names(neither, experiment.measured, model.output_names)
    within_lines = {*model.states} - {*model.own_states}
    initial = {n: v for n, v in initial_values(model, experiment).items() if n not in within_lines}
    parameters = every_parameter(model, said.parameters)
    mistakes += unknown_names("'{}' has its own value but is no parameter", experiment.parameters, parameters)
    own = {n: v for n, v in experiment.parameters.items() if isinstance(v, ca.SX)}
    mistakes += _unknown("parameter '{}'", own, parameters)
    neither = "sigma contains '{}', which is neither in the model nor among the problem's parameters"
    mistakes += unknown_names(neither, dict.fromkeys(noise_names(model, experiment)), parameters)
    mistakes += _circles(own)
    known = (*model.own_states, *model.algebraic_states)
    mistakes += unknown_names("initial names '{}', which is no state", initial, known)
    mistakes += _consistency_mistakes(model, experiment, initial)
    mistakes += [
        f"state '{n}' has no initial value; give a number, free(guess) or an expression"
        for n in model.own_states
        if n not in initial and experiment.steady is None
    ]
    for name, value in initial.items():
        if isinstance(value, ca.SX):
            mistakes += _unknown("the initial value of '{}'", {name: value}, parameters)
        elif not isinstance(value, (Free, Consistent)) and name in said.state_bounds:
            lower, upper = said.state_bounds[name]
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
        first, last = experiment.inputs[name].span
        if first > start + rounding or last < end - rounding:
            mistakes.append(
                f"input '{name}' is given on [{first:g}, {last:g}] but the experiment runs over "
                f"[{start:g}, {end:g}]; extend it"
            )
    mistakes += _event_mistakes(said, experiment, parameters)
    mistakes += [] if experiment.steady is None else _steady_mistakes(model, experiment, parameters)
    shown = [model.outputs[n] for n in experiment.measured if n in model.outputs]
    known = ca.depends_on(ca.vertcat(*shown), model.system.p) if shown and model.parameters else False
    if end <= start and not known and all(e.end <= e.start for e in said.experiments):
        mistakes.append(f"nothing is measured after the start {start:g}; estimation needs later times")
    return mistakes


def _consistency_mistakes(model: Model, experiment: Experiment, initial: Mapping[str, Any]) -> list[str]:
    """Find mistakes in initial values of algebraic states, and of differential ones that follow from them."""
    follow = [n for n in model.own_states if isinstance(initial.get(n), Consistent)]
    given = [n for n in model.algebraic_states if n in initial and not isinstance(initial[n], Consistent)]
    if not follow:
        return [
            f"the initial value of the algebraic state '{n}' follows from the equations; give at most a guess, a "
            "number, or say consistent(guess) of a differential state that follows from it"
            for n in given
            if isinstance(initial[n], (Free, ca.SX))
        ]
    listed = " and ".join(f"'{n}'" for n in follow)
    if experiment.steady is not None:
        return [f"the initial value of {listed} cannot be consistent(...) beside a steady state; leave one of them out"]
    if model.lines:
        return [f"the initial value of {listed} cannot be consistent(...) in a model with delays; give a number"]
    if len(given) != len(follow):
        have = ", ".join(f"'{n}'" for n in given) or "none"
        return [
            f"the initial value of {listed} is to follow from the algebraic equations, so {len(follow)} algebraic "
            f"{'state needs a value' if len(follow) == 1 else 'states need values'}, but {have} has; give as many"
        ]
    system = model.system
    unknown = [s for s in ca.vertsplit(system.x) if s.name() in follow]
    unknown += [s for s in ca.vertsplit(system.z) if s.name() not in given]
    parts = unmatched_parts(_dependence(system.alg, ca.vertcat(*unknown)))
    if not parts.over_equations:
        return []
    which = ", ".join(model.algebraic_states[i] for i in parts.over_equations)
    free = ", ".join(unknown[j].name() for j in parts.under_states)
    return [
        f"the algebraic equations do not determine the initial value of {free}, and the equations of {which} have too "
        "few unknowns; let other states be consistent(...), or give other algebraic states a value"
    ]


def _steady_mistakes(model: Model, experiment: Experiment, parameters: Sequence[str]) -> list[str]:
    """Find mistakes in the steady state before an experiment."""
    assert experiment.steady is not None
    said = experiment.steady
    mistakes: list[str] = []
    switched = model.with_switches.system  # before the experiment nothing has switched
    if ca.depends_on(ca.vertcat(switched.ode, switched.alg), switched.t):
        mistakes.append("there is no steady state: the model's equations contain the time")
    known = (*model.own_states, *model.algebraic_states)
    mistakes += unknown_names("steady_state: initial names '{}', which is no state", said.initial, known)
    mistakes += unknown_names("steady_state: '{}' is no input of the model", said.inputs, model.inputs)
    mistakes += unknown_names("steady_state: '{}' is no parameter", said.parameters, parameters)
    mistakes += _unknown("steady_state: parameter '{}'", said.parameters, parameters)
    own, before = (
        _circles({n: v for n, v in group.items() if isinstance(v, ca.SX)})
        for group in (experiment.parameters, experiment.before.parameters)
    )
    mistakes += [] if own else [f"steady_state: {m}" for m in before]
    mistakes += _unknown("steady_state: the initial value of '{}'", said.initial, parameters)
    if isinstance(said.initial, SteadyStart):
        return [*mistakes, *_steady_mistakes(model, experiment.before, parameters)]
    first = {**model.initial, **said.initial}
    mistakes += [
        f"steady_state: state '{n}' has no value from which to come to rest; give initial={{'{n}': ...}}, which also "
        "tells conserved sums"
        for n in model.own_states
        if n not in first
    ]
    return mistakes


def _unknown(what: str, values: Mapping[str, Any], parameters: Sequence[str]) -> list[str]:
    """Find the symbols in expressions that are no parameters; {} stands for the name of the value."""
    return [
        mistake
        for name, value in values.items()
        for mistake in unknown_names(
            f"{what.format(name)} contains '{{}}', which is no parameter", _names([value]), parameters
        )
    ]


def _circles(own: Mapping[str, ca.SX]) -> list[str]:
    """Find parameters whose value in an experiment depends on itself, each circle once."""
    inside = {n: [s.name() for s in ca.symvar(v) if s.name() in own] for n, v in own.items()}
    found: dict[frozenset[str], list[str]] = {}

    def follow(path: list[str]) -> None:
        for name in inside[path[-1]]:
            if name in path:
                circle = path[path.index(name) :]
                found.setdefault(frozenset(circle), [*circle, name])
            else:
                follow([*path, name])

    for name in own:
        follow([name])
    return [
        f"parameter '{circle[0]}' depends on itself ({' -> '.join(circle)}), since names mean values in this "
        f"experiment; give the common value a name of its own, such as '{circle[0]}_ref', in the problem's parameters"
        for circle in found.values()
    ]


# Inputs that are estimated, and what happens


def reset_mistakes(model: Model, experiment: Experiment) -> list[str]:
    """Find values of an interval without length, and values that are relative to themselves alone."""
    alone = [
        f"'{m.output}' is relative to its first value, and no other is measured; leave it out"
        for m in model.memories
        if m.kind == "relative" and m.output in experiment.measured
        if measured_times(experiment, m.output).size == 1
    ]
    return alone + [
        f"'{m.output}' is measured at the start, where its first interval has no length; leave that row out, or give "
        "another start"
        for m in model.memories
        if m.kind != "relative" and m.output in experiment.measured
        if measured_times(experiment, m.output)[0] <= experiment.start
    ]


def _input_mistakes(said: Statement) -> list[str]:
    """Find every mistake in the specification of estimated inputs."""
    mistakes: list[str] = []
    meant: dict[str, list[tuple[str, EstimatedInput, Experiment]]] = {}
    for e in said.experiments:
        for called, u in estimated_inputs(e).items():
            meant.setdefault(u.label(called), []).append((called, u, e))
            mistakes += [f"{e.name}: {m}" for m in _elsewhere(called, e)]
    taken = {*said.model.parameters, *said.model.states, *said.model.algebraic_states}
    for label, uses in meant.items():
        if len({u.said for _, u, _ in uses}) > 1:
            mistakes.append(
                f"the estimated input '{label}' is given in different ways; say the same wherever it is named, or give "
                "names, name=, or per_experiment=True with the same knots"
            )
            continue
        called, u, _ = uses[0]
        mistakes += [
            f"'{n}' is a value of the estimated input '{label}' and a name in the model; rename one of them"
            for n in u.names(called)
            if n in taken
        ]
        groups = [[e] for *_, e in uses] if u.per_experiment else [[e for *_, e in uses]]
        mistakes += [m for group in groups for m in _useless(label, u, group)]
    return mistakes


def local_mistakes(model: Model, experiments: Iterable[Experiment], given: Mapping[str, Parameter]) -> list[str]:
    """Find values of an input that differs between experiments of which the parameters say otherwise."""
    return [
        f"'{n}' differs between experiments by Input.estimated(per_experiment=True); add local=True"
        for e in experiments
        for called, u in estimated_inputs(e).items()
        if u.per_experiment and called in model.inputs
        for n in u.names(called)
        if n in given and not is_one_of(given[n].local, True, np.True_)
    ]


def _useless(label: str, u: EstimatedInput, experiments: list[Experiment]) -> list[str]:
    """Find knots on whose values nothing that was measured depends."""
    start, end = min(e.start for e in experiments), max(e.end for e in experiments)
    t = u.knots
    steps = u.kind == "piecewise_constant"
    late = t >= end if steps else np.append(False, t[:-1] >= end)
    early = np.append(t[1:] <= start, False)
    found: list[str] = []
    if late.any():
        found.append(
            f"the knot {t[late][-1]:g} of '{label}' lies behind the last measurement at {end:g}"
            f"{', and a value holds from its knot on' if steps else ''}; nothing depends on it, leave it out"
        )
    if early.any():
        found.append(
            f"the knot {t[early][0]:g} of '{label}' lies before the start {start:g}, and so does the next one; "
            "nothing depends on it, leave it out"
        )
    return found


def _elsewhere(called: str, experiment: Experiment) -> list[str]:
    """Find values, events and sigmas of an experiment in which an estimated input cannot be used."""
    found = [
        f"'{n}', a value of the input '{called}', is given by the experiment; fix it in the problem's parameters"
        for n in estimated_inputs(experiment)[called].names(called)
        if n in experiment.parameters
    ]
    for i, event in enumerate(experiment.events):
        simple = isinstance(event, Event) and not isinstance(event.time, ca.SX) and event.when is None
        if not simple and called in symbols_of([event]):
            found.append(
                f"event {i + 1} contains the input '{called}', which is estimated; that is possible for an Event at a "
                "known time only"
            )
    for output, noise in experiment.noise.items():
        graphs: list[Any] = [*noise.symbols, noise.sigma]
        if any(s.name() == called for g in graphs if isinstance(g, ca.SX) for s in ca.symvar(g)):
            found.append(
                f"sigma of '{output}' contains the input '{called}', which is estimated; add an output of the model "
                "that equals it, and write sigma with the output's name"
            )
    return found


def _event_mistakes(said: Statement, experiment: Experiment, parameters: Sequence[str]) -> list[str]:
    """Find every mistake in the events of an experiment; `parameters` are the names of all that there are."""
    model, start, end = said.model, experiment.start, experiment.end
    mistakes: list[str] = []
    given = (event for event in experiment.events if not isinstance(event, ParameterSwitch))
    for i, event in enumerate(given):
        what = f"event {i + 1}"
        mistakes += _name_mistakes(what, event, model, parameters)
        happens = occurrences([event], end)
        times = [o.time for o in happens if isinstance(o.time, float) and o.when is None]
        early = [t for t in times if t < start]
        if early:
            mistakes.append(f"{what} happens at t = {early[0]:g}, before the start {start:g}; events come after it")
        elif too_late(event, end):
            mistakes.append(
                f"{what} happens at t = {min(times):g}, after the last measurement at {end:g}; no data can show it"
            )
    happens = occurrences(experiment.events, end)
    signals = [u for u in experiment.inputs.values() if isinstance(u, Input)]
    if model.algebraic_states and any(u.measured == "after" for u in signals):
        happens += input_jumps(signals, start, end)
    return mistakes + _side_mistakes(happens)


def _name_mistakes(what: str, event: Event | Doses, model: Model, parameters: Sequence[str]) -> list[str]:
    """Find names that an event must not use."""
    mistakes: list[str] = []
    changed = tuple(event.changes) if isinstance(event, Event) else (event.into,)
    for name in changed:
        if name in model.algebraic_states:
            mistakes.append(
                f"{what} changes the algebraic state '{name}', which follows from the equations; change states"
            )
        elif name not in model.own_states:
            mistakes.append(f"{what} changes '{name}', which is no state: {suggest(name, model.own_states)}")
        elif name in model.delayed_states and not (isinstance(event, Doses) and event.duration is not None):
            mistakes.append(
                f"{what} changes '{name}', whose past the model needs: no delay line holds a jump; give an infusion"
            )
    anything = {*parameters, *model.states, *model.inputs, model.system.t.name()}
    if isinstance(event, Event):
        free, fixed = [*event.changes.values(), event.when, event.priority], [("its time", event.time)]
    else:
        given = [*event.amount, event.bioavailability]
        free = [] if event.duration is not None else given
        fixed = [("the amount of an infusion", v) for v in given] if event.duration is not None else []
        fixed += [("its times", v) for v in event.times]
        fixed += [("its duration", event.duration), ("its lag", event.lag)]
    for name in _names(free):
        if name in model.algebraic_states:
            mistakes.append(f"{what} contains the algebraic state '{name}'; write it in terms of states")
        elif name not in anything:
            mistakes.append(f"{what} contains '{name}', which is not in the model: {suggest(name, sorted(anything))}")
    for where, value in fixed:
        for name in _names([value]):
            if name in anything and name not in parameters:
                mistakes.append(f"{what}: {where} contains '{name}'; only parameters may appear there")
            elif name not in parameters:
                mistakes.append(
                    f"{what}: {where} contains '{name}', which is no parameter: {suggest(name, parameters)}"
                )
    return list(dict.fromkeys(mistakes))


def _names(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(s.name() for v in values if isinstance(v, ca.SX) for s in ca.symvar(v)))


def _side_mistakes(happens: Sequence[Occurrence]) -> list[str]:
    """Find times at which something is to be measured before and after."""
    sides: dict[float, set[str]] = {}
    for o in happens:
        if o.until is None and o.when is None and isinstance(o.time, float):
            sides.setdefault(o.time, set()).add(o.measured)
    return [
        f"at t = {t:g} one event or jump is measured 'before' and another 'after'; give all of one time the same"
        for t, of in sides.items()
        if len(of) > 1
    ]


# What can be told only of the problem that follows


def name_mistakes(posed: Posed) -> list[str]:
    """Find quantities of one name: a parameter may be called as castfit calls an initial state or a local value."""
    meant: dict[str, list[str]] = {}
    for q in posed.quantities:
        kind = f"{'local' if q.experiment is not None else 'shared'} parameter" if q.kind == "parameter" else q.kind
        meant.setdefault(q.name, []).append(f"the {kind} '{q.of}'")
    return [
        f"the name '{name}' would mean {' and '.join(what)}; rename the parameter, the state or the experiment"
        for name, what in meant.items()
        if len(what) > 1
    ]


class UnmeasuredError(InputError):
    """No measurement depends on some estimated quantities, `names`; nothing else is wrong."""

    def __init__(self, where: str, mistakes: Mapping[str, str]) -> None:
        super().__init__(where, mistakes.values())
        self.names = tuple(mistakes)

    def __reduce__(self) -> tuple[type[UnmeasuredError], tuple[Any, ...]]:
        return type(self), (self.where, dict(zip(self.names, self.problems, strict=True)))


def support_mistakes(posed: Posed) -> dict[str, str]:
    """Find estimated quantities that no measurement can depend on, by the structure of the graph."""
    system = posed.model.system
    x, z, p = system.x, system.z, system.p
    unknown = ca.vertcat(x, z)
    equations = ca.vertcat(system.ode, _matched(system))
    flow = _dependence(equations, unknown)  # flow[i, j]: equation i contains unknown j
    by_parameter = _dependence(equations, p)
    observe, observe_p = _dependence(posed.observed, unknown), _dependence(posed.observed, p)
    supported: set[int] = set()
    for condition in posed.conditions:
        seen = (*posed.outputs, *posed.spreads)
        columns = [seen.index(n) for of in condition.observed if of is not None for n in of.predicted]
        reached, n_x, schedule = _any(observe[columns]), x.numel(), condition.schedule
        for _ in range(unknown.numel()):
            reached = reached | _any(flow[reached])
            jumped, _rows = schedule.reaching(reached[:n_x], np.zeros(p.numel(), dtype=np.bool_))
            reached[:n_x] |= jumped
        parameters = _any(observe_p[columns]) | _any(by_parameter[reached])
        _, of_events = schedule.reaching(reached[:n_x], parameters)
        rows = np.concatenate([parameters, reached[:n_x], of_events])
        supported.update(condition.theta[_any(condition.link.pattern[rows])].tolist())
    return {
        quantity.name: f"no measurement depends on the free {quantity.kind} '{quantity.name}'; "
        f"{'give it a value' if quantity.kind == 'initial state' else 'fix it (fixed=True)'}"
        for j, quantity in enumerate(posed.quantities)
        if j not in supported and not posed.informed[j] and not _bound_up(posed, j)
    }


def _bound_up(posed: Posed, j: int) -> bool:
    """Whether an equation of quantities, or a constraint at points, may determine a quantity that nothing measures."""
    return bool(posed.path) or any(r.lower == r.upper and r.involved[j] for r in posed.relations)


def _matched(system: System) -> ca.SX:
    """Return the algebraic equations in the order of the unknowns that they determine."""
    if system.z.numel() == 0:
        return system.alg
    _, rows, columns, *_ = ca.jacobian_sparsity(system.alg, system.z).btf()
    return ca.vertcat(*(system.alg[rows[columns.index(j)]] for j in range(len(columns))))


def guess_mistakes(posed: Posed) -> list[str]:
    """Find initial values and parameters that cannot be computed at the guess."""
    wrong = posed.priors(posed.guess).failure
    mistakes = [f"{wrong}, the guess; change prior or guess"] if wrong else []
    return mistakes + point_mistakes(posed, posed.guess, "the guess") + _event_guess_mistakes(posed)


def _event_guess_mistakes(posed: Posed) -> list[str]:
    """Find events that cannot happen at the guess."""
    mistakes: list[str] = []
    for condition in posed.conditions:
        schedule, at = condition.schedule, condition.link.natural(posed.guess[condition.theta])
        if not schedule.instants or not np.isfinite(at.e).all():  # reported with the other expressions
            continue
        reason = schedule.impossible(at.e, condition.start)
        if reason:
            mistakes.append(f"{condition.name}: {reason}, at the guess; change the guess or the expression")
        late = [i for i in schedule.instants if i.moves and at.e[i.time] < condition.end]
        if any(i.moves and i.trigger is None for i in schedule.instants) and not late:
            mistakes.append(
                f"{condition.name}: at the guess all estimated times lie after the last measurement at "
                f"{condition.end:g}, where no data show them; change the guess"
            )
    return mistakes


def point_mistakes(posed: Posed, theta: Array, called: str = "") -> list[str]:
    """Find initial values, parameters and delays that cannot be computed at theta (n_theta,).

    Where it is `called` something, messages say so; else times of events that cannot be are mistakes, too.
    """
    names = [f"the initial value of '{n}'" for n in posed.model.states]
    where, remedy = (f", {called}", "expression or guess") if called else ("", "expression or values")
    mistakes: list[str] = []
    for condition in posed.conditions:
        q = theta[condition.theta]
        at = condition.link.natural(q)
        reason = condition.link.failure(q, at)
        if reason:
            mistakes.append(f"{condition.name}: {reason}{where}; change {remedy}")
        else:
            at_point = f"at {called}" if called else "at these values"
            mistakes += [
                f"{condition.name}: {name} is {value} {at_point}; change it"
                for name, value in zip(names, at.a, strict=True)
                if not np.isfinite(value)
            ]
            happens = "" if called else condition.schedule.impossible(at.e, condition.start)
            mistakes += [f"{condition.name}: {happens}; change the values"] if happens else []
        mistakes += [f"{condition.name}: {found}" for found in tau_mistakes(posed.model, at.p)]
    return mistakes


def tau_mistakes(model: Model, p: Array) -> list[str]:
    """Find delays that are not positive at parameters p (n_p,)."""
    return [
        f"the delay of {line.name} is {tau:g}; a delay is positive"
        for line, tau in zip(model.lines, model.delays(p), strict=True)
        if not 0.0 < tau < np.inf
    ]


def _any(rows: Mask) -> Mask:
    """Return a mask of the columns that are True in any row."""
    return np.logical_or.reduce(rows, axis=0)


def _dependence(rows: ca.SX, columns: ca.SX) -> Mask:
    """Return the pattern of rows that depend on columns, (n_rows, n_columns)."""
    return pattern(ca.jacobian_sparsity(rows, columns))
