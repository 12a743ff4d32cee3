"""Question of `control`, read and checked: all mistakes are reported at once, before anything is solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of, read_mapping, read_real, read_sequence, shorten_repr
from castfit._support.bounds import bound_mistakes
from castfit._support.status import raise_if_mistakes, suggest
from castfit.control.terms import INTEGRAL, collect_terms
from castfit.experiment.experiment import Consistent, Free, as_input
from castfit.experiment.free_inputs import FreeInput
from castfit.model.expressions import substitute_by_name
from castfit.model.model import Model, by_name
from castfit.problem.constraints import ALONG, Constraint, read_constraints, repeated_names
from castfit.problem.parameters import Parameter
from castfit.simulate.simulate import FittedValues, parameter_values

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.control.terms import HorizonTerm
    from castfit.experiment.inputs import Input

HORIZON = "horizon"
_MIN_HORIZON_FRACTION = 1e-9  # shortest horizon, as a fraction of the guess: a plan has a length
_TIME_TOLERANCE = 1e-9  # distance up to which a time is at an end of the horizon, as a fraction of its length


@dataclass(frozen=True)
class DecisionVariable:
    """A quantity to optimise: the horizon, a parameter or an initial state ``x(0)``; `log` for log scale.

    guess, lower, upper : natural values
    """

    name: str
    guess: float
    lower: float
    upper: float
    log: bool = False


@dataclass(frozen=True, eq=False)
class ControlQuestion:
    """Control question: model, free quantities, objective and constraints, over symbols of the model's system.

    Attributes
    ----------
    horizon : float
        Length of the horizon, or its guess if it is among the quantities.
    inputs : mapping from input to FreeInput or Input
    quantities : tuple of DecisionVariable
        Optimised quantities besides inputs.
    scenarios : tuple of (n_p,) arrays
        Values of the parameters; arbitrary for free ones.
    initial : mapping from own state to float, expression or None
        None if it is among the quantities.
    objective : casadi.SX
        Expression of `terms`, parameters and quantities; a number if all feasible plans are equally good.
    path, points, horizon_constraints : tuple of Constraint
        Constraints along the horizon, at times, and of the whole horizon.
    """

    model: Model
    start: float
    horizon: float
    inputs: Mapping[str, FreeInput | Input]
    quantities: tuple[DecisionVariable, ...]
    scenarios: tuple[Array, ...]
    is_worst_case: bool
    initial: Mapping[str, Any]
    algebraic_guess: Array
    objective: ca.SX
    terms: tuple[HorizonTerm, ...]
    path: tuple[Constraint, ...]
    points: tuple[Constraint, ...]
    horizon_constraints: tuple[Constraint, ...]
    soft_price: float | None

    @property
    def free_inputs(self) -> dict[str, FreeInput]:
        """The free inputs, in the model's order."""
        return {n: u for n, u in self.inputs.items() if isinstance(u, FreeInput)}

    @property
    def known_inputs(self) -> dict[str, Input]:
        """The fixed inputs."""
        return {n: u for n, u in self.inputs.items() if not isinstance(u, FreeInput)}

    @cached_property
    def unlimited_inputs(self) -> tuple[str, ...]:
        """The free inputs without bounds and without cost or constraint along the horizon, linear in the equations."""
        inputs = {n: u for n, u in self.free_inputs.items() if n in self._costless_inputs}
        return tuple(
            n for n, u in inputs.items() if n not in self.nonlinear_inputs and not np.isfinite([u.lower, u.upper]).any()
        )

    @cached_property
    def nonlinear_inputs(self) -> tuple[str, ...]:
        """The free inputs without a bound on each side and without cost that enter the equations nonlinearly."""
        f = ca.vertcat(self.model.system.ode, self.model.system.alg)
        symbols = {n: _input_symbol(self.model, n) for n in self._costless_inputs}
        return tuple(n for n, u in symbols.items() if ca.depends_on(ca.SX(ca.jacobian(f, u)), u))

    @cached_property
    def _costless_inputs(self) -> tuple[str, ...]:
        """The free inputs without a bound on each side, and without cost or constraint along the horizon."""
        system, out = self.model.system, list[str]()
        integrals = [t.expression for t in self.terms if t.kind == INTEGRAL]
        costs = ca.SX(ca.vertcat(*integrals, *(c.expression for c in (*self.path, *self.points))))
        for name, u in self.free_inputs.items():
            algebraic = system.z if _depends_on_input(self.model, name, [system.alg]) else ca.SX(0, 1)
            affected_symbols = ca.vertcat(_input_symbol(self.model, name), algebraic)
            if not ca.depends_on(costs, affected_symbols) and not np.isfinite([u.lower, u.upper]).all():
                out.append(name)
        return tuple(out)

    @property
    def has_free_horizon(self) -> bool:
        """Whether the horizon is among the quantities, the first then."""
        return any(q.name == HORIZON for q in self.quantities)

    def index_of(self, name: str) -> int | None:
        """Return the index of a quantity by name, None if there is no such quantity."""
        return next((i for i, q in enumerate(self.quantities) if q.name == name), None)


def read_question(
    model: Any, horizon: Any, inputs: Any, minimise: Any, constraints: Any, parameters: Any, initial: Any,
    start: Any, scenarios: Any, soft: Any, mistakes: list[str],
) -> ControlQuestion:  # fmt: skip
    """Read and check the arguments of `control`.

    Raise an InputError with all `mistakes`, including earlier ones.
    """
    if not isinstance(model, Model):
        raise_if_mistakes("control", [f"the first argument is {shorten_repr(model)}; give a Model", *mistakes])
    if model.with_switches is not model:
        mistakes.append("the model switches at times (if_else, fmax and the like of time); give a known Input instead")
    begin = read_real(start)
    if begin is None or not np.isfinite(begin):
        mistakes.append(f"start is {shorten_repr(start)}; give a finite number")
        begin = 0.0
    quantities: list[DecisionVariable] = []
    length = _read_horizon(horizon, quantities, mistakes)
    signals = read_inputs(model, inputs, begin, length, bool(quantities), mistakes)
    numbers = _read_parameters(model, parameters, quantities, mistakes)
    initial_states = _read_initial(model, initial, quantities, mistakes)
    guesses = [initial_states.pop(n, 1.0) for n in model.algebraic_states]
    has_free_input = any(isinstance(u, FreeInput) for u in signals.values()) or len(signals) < len(model.inputs)
    if not has_free_input and not quantities:
        reason = "has no inputs" if not model.inputs else "has no free input"
        mistakes.append(f"nothing can be decided: the model {reason}; declare Model(..., inputs=[u]) and give "
                        "inputs={'u': cf.Input.free(pieces=20)}, or let a parameter, an initial state or the horizon "
                        "be free")  # fmt: skip
    if not is_one_of(scenarios, "mean", "worst"):
        mistakes.append(f"scenarios is {shorten_repr(scenarios)}; choose 'mean' or 'worst'")
    if soft is not None and not (read_real(soft) or 0.0) > 0.0:
        mistakes.append(
            f"soft is {shorten_repr(soft)}; give a positive price for each unit of a constraint's violation"
        )
    known_names = {
        *model.outputs,
        *model.parameters,
        *model.inputs,
        model.system.t.name(),
        *(q.name for q in quantities),
    }
    objective = _read_objective(model, minimise, known_names, mistakes)
    if is_one_of(scenarios, "worst") and len(numbers) == 1:
        mistakes.append("scenarios='worst' needs several scenarios; pass a list of parameters, or remove scenarios=")
    path, points, whole_horizon = _read_constraints(model, constraints, known_names, begin, length, bool(quantities) and
                                            quantities[0].name == HORIZON, mistakes)  # fmt: skip
    if soft is not None and not (path or mistakes):
        mistakes.append("soft= applies to constraints along the horizon, and there are none; remove soft=, or "
                        "pass constraints=[cf.along(...)]")  # fmt: skip
    terms = collect_terms([objective, *(c.expression for c in whole_horizon)])
    terms = tuple(replace(t, expression=_substitute_outputs(model, t.expression)) for t in terms)
    all_expressions = [model.system.ode, model.system.alg, *(e.expression for e in (*terms, *path, *points))]
    idle = [
        n for n, u in signals.items() if isinstance(u, FreeInput) and not _depends_on_input(model, n, all_expressions)
    ]
    mistakes += [f"input '{n}' is free and enters no equation, objective or constraint; give it a number" for n in idle]
    raise_if_mistakes("control", mistakes)
    return ControlQuestion(
        model, begin, length, signals, tuple(quantities), tuple(numbers), is_one_of(scenarios, "worst"),
        initial_states, np.array(guesses, dtype=float), objective, terms, path, points, whole_horizon,
        None if soft is None else float(soft),
    )  # fmt: skip


def _depends_on_input(model: Model, name: str, expressions: Sequence[ca.SX]) -> bool:
    return ca.depends_on(ca.SX(ca.vertcat(*expressions)), _input_symbol(model, name))


def _input_symbol(model: Model, name: str) -> ca.SX:
    return model.system.u[model.inputs.index(name)]


def _substitute_outputs(model: Model, expression: ca.SX) -> ca.SX:
    """Write an expression over the symbols of the model's system; names of outputs stand for their expressions."""
    state_names = {*model.states, *model.algebraic_states}
    outputs = {n: e for n, e in model.outputs.items() if n not in state_names}
    return by_name(substitute_by_name(model.to_system_symbols(expression), outputs), model.system)


def _read_decision(
    label: str, name: str, spec: Any, guess: Any, quantities: list[DecisionVariable], mistakes: list[str]
) -> bool:
    """Read a quantity to optimise. Return whether it is valid."""
    new_mistakes = bound_mistakes(label, guess, spec.lower, spec.upper, spec.scale)
    if spec.prior is not None or getattr(spec, "local", False) or getattr(spec, "starts", None) is not None:
        new_mistakes.append(
            f"{label} has a prior, starts, or is local; there are no data here, give a value and bounds only"
        )
    if not new_mistakes and name == HORIZON and (guess <= 0.0 or spec.lower < 0.0):
        new_mistakes.append("the horizon may become negative; give cf.free(guess, lower=...) with lower > 0")
    mistakes += new_mistakes
    if not new_mistakes:
        lower = max(spec.lower, _MIN_HORIZON_FRACTION * guess) if name == HORIZON else spec.lower
        quantities.append(DecisionVariable(name, float(guess), lower, spec.upper, spec.scale == "log"))
    return not new_mistakes


def _read_horizon(horizon: Any, quantities: list[DecisionVariable], mistakes: list[str]) -> float:
    if isinstance(horizon, Free):
        is_valid = _read_decision("the horizon", HORIZON, horizon, horizon.guess, quantities, mistakes)
        return float(horizon.guess) if is_valid else 1.0
    length = read_real(horizon)
    if length is None or not 0.0 < length < np.inf:
        mistakes.append(
            f"horizon is {shorten_repr(horizon)}; give a positive number, or cf.free(2.0, lower=0.1) to choose it"
        )
        return 1.0
    return length


def read_inputs(
    model: Model, inputs: Any, start: float, length: float, timed: bool, mistakes: list[str]
) -> dict[str, FreeInput | Input]:
    """Read the inputs of a model, free and known, and check that these are known over the horizon."""
    user_inputs = {} if inputs is None else read_mapping("inputs", inputs, mistakes)
    mistakes += [f"'{n}' is no input: {suggest(n, model.inputs)}" for n in user_inputs if n not in model.inputs]
    out: dict[str, FreeInput | Input] = {}
    for n in model.inputs:
        if n not in user_inputs:
            mistakes.append(
                f"input '{n}' is missing; give cf.Input.free(pieces=20, bounds=(...)), a number or an Input"
            )
            continue
        value = user_inputs[n]
        out[n] = signal = value if isinstance(value, FreeInput) else as_input(n, value, mistakes)
        if isinstance(signal, FreeInput):
            continue
        low, high = signal.span
        if timed and signal.kind != "constant":
            mistakes.append(f"input '{n}' varies in time and the horizon is free; give a constant, or fix the horizon")
        elif low > start + _TIME_TOLERANCE * length or high < start + (1.0 - _TIME_TOLERANCE) * length:
            mistakes.append(f"input '{n}' is known from {low:g} to {high:g} only; the horizon ends at "
                            f"{start + length:g}")  # fmt: skip
    return out


def _read_parameters(
    model: Model, parameters: Any, quantities: list[DecisionVariable], mistakes: list[str]
) -> list[Array]:
    """Return the parameters of each scenario. Add the free ones to the quantities."""
    scenarios = (
        None if parameters is None or isinstance(parameters, (Mapping, FittedValues)) else read_sequence(parameters)
    )
    single: list[Any] = [parameters]
    scenario_values = [
        parameter_values(model, scenario, mistakes) for scenario in (single if scenarios is None else scenarios)
    ]
    if not scenario_values:
        mistakes.append("parameters is an empty list; give one mapping for each scenario")
    freed: dict[str, Parameter] = {}
    for values in scenario_values:
        for name, value in values.items():
            if isinstance(value, Parameter) and not value.fixed:
                freed.setdefault(name, value)
    for name, value in freed.items():
        _read_decision(f"parameter '{name}'", name, value, value.value, quantities, mistakes)
    out: list[Array] = []
    for i, values in enumerate(scenario_values):
        scenario_text = f" in scenario {i + 1}" if len(scenario_values) > 1 else ""
        p = np.zeros(len(model.parameters))
        for j, name in enumerate(model.parameters):
            value = values.get(name)
            number = read_real(value.value if isinstance(value, Parameter) else value)
            if name in freed or name in model.noises:
                p[j] = 0.0 if number is None or name in model.noises else number
            elif number is None or not np.isfinite(number):
                mistakes.append(f"parameter '{name}' has no value{scenario_text}; give a number, or "
                                "cf.Parameter(guess, bounds=...) to choose it")  # fmt: skip
            else:
                p[j] = number
        out.append(p)
    return out


def _read_initial(
    model: Model, initial: Any, quantities: list[DecisionVariable], mistakes: list[str]
) -> dict[str, Any]:
    user_values = {} if initial is None else read_mapping("initial", initial, mistakes)
    state_names = (*model.own_states, *model.algebraic_states)
    mistakes += [
        f"initial names '{n}', which is no state: {suggest(n, state_names)}"
        for n in user_values
        if n not in state_names
    ]
    general = {n: float(v) if v.is_constant() else v for n, v in model.initial.items()}
    initial_values, out = {**general, **user_values}, dict[str, Any]()
    for n in state_names:
        value = initial_values.get(n, 1.0 if n in model.algebraic_states else None)
        value = value.guess if isinstance(value, Consistent) else value
        if isinstance(value, Free) and n in model.own_states:
            _read_decision(f"initial state '{n}'", f"{n}(0)", value, value.guess, quantities, mistakes)
            out[n] = None
            continue
        number = read_real(value)
        if isinstance(value, ca.SX) and value.is_constant():
            number = float(value)
        if isinstance(value, ca.SX) and number is None:
            unknown_names = [s.name() for s in ca.symvar(value) if s.name() not in model.parameters]
            mistakes += [f"initial state '{n}' contains '{s}', which is no parameter" for s in unknown_names]
            out[n] = by_name(value, model.system)
        elif number is None or not np.isfinite(number):
            mistakes.append(
                f"initial state '{n}' is {shorten_repr(value)}; give a number, an expression of parameters, or "
                "cf.free(guess) to choose it"
            )
        else:
            out[n] = number
    return out


def _read_objective(model: Model, minimise: Any, known_names: set[str], mistakes: list[str]) -> ca.SX:
    number = read_real(minimise)
    if number is not None and np.isfinite(number):
        return ca.SX(number)
    if not isinstance(minimise, ca.SX) or minimise.numel() != 1:
        mistakes.append(f"minimise is {shorten_repr(minimise)}; give an expression such as cf.integral(x**2 + u**2), "
                        "-cf.at_end(x) or cf.final_time()")  # fmt: skip
        return ca.SX(0)
    return _read_objective_expression(model, "minimise", ca.densify(minimise), known_names, mistakes)


def _read_objective_expression(
    model: Model, label: str, expression: ca.SX, known_names: set[str], mistakes: list[str]
) -> ca.SX:
    """Read an expression of terms and quantities; symbols that vary along the horizon may occur in terms only."""
    terms = collect_terms([expression])
    for term in terms:
        _check_names(f"{label}, {term.symbol}", term.expression, known_names, mistakes)
    term_hashes = {hash(t.symbol) for t in terms}
    outer_symbols = [s for s in ca.symvar(expression) if hash(s) not in term_hashes]
    varying = {*model.outputs, *model.inputs, model.system.t.name()}
    for s in outer_symbols:
        if s.name() in varying:
            mistakes.append(f"{label} contains '{s.name()}', which changes along the horizon; use "
                            f"cf.at_end({s.name()}), cf.integral({s.name()}), or cf.along(...), cf.at(t, ...) of a "
                            "constraint")  # fmt: skip
        elif s.name() not in known_names:
            mistakes.append(f"{label} contains '{s.name()}': {suggest(s.name(), sorted(known_names))}")
    return substitute_by_name(
        expression, {s.name(): s for s in ca.vertsplit(model.system.p)} if model.parameters else {}
    )


def _check_names(label: str, expression: ca.SX, known_names: set[str], mistakes: list[str]) -> None:
    unknown_names = sorted({s.name() for s in ca.symvar(expression)} - known_names)
    mistakes += [f"{label} contains '{n}': {suggest(n, sorted(known_names))}" for n in unknown_names]


def _read_constraints(
    model: Model, constraints: Any, known_names: set[str], start: float, length: float, timed: bool, mistakes: list[str]
) -> tuple[tuple[Constraint, ...], ...]:
    all_constraints = () if constraints is None else read_constraints(constraints, mistakes)
    mistakes += repeated_names(all_constraints)
    path, points, whole_horizon = list[Any](), list[Any](), list[Any]()
    for c in all_constraints:
        if c.of != "value":
            mistakes.append(f"constraint '{c.name}' bounds a rate of change, which control does not support; "
                            "define the rate as an output and bound it along the horizon")  # fmt: skip
            continue
        if c.experiments:
            mistakes.append(f"constraint '{c.name}' names experiments; there are none here")
        if isinstance(c.times, tuple):
            outside_times = [
                t for t in c.times if not start - _TIME_TOLERANCE <= t <= start + length * (1 + _TIME_TOLERANCE)
            ]
            if timed:
                mistakes.append(
                    f"constraint '{c.name}' is at a time and the horizon is free; use cf.at_end or cf.along"
                )
            elif outside_times:
                mistakes.append(f"constraint '{c.name}' is at t = {outside_times[0]:g}, outside of the horizon from "
                                f"{start:g} to {start + length:g}")  # fmt: skip
        if c.times == ALONG or isinstance(c.times, tuple):
            if collect_terms([c.expression]):
                mistakes.append(f"constraint '{c.name}' contains an integral or an end value; remove cf.along or cf.at")
                continue
            _check_names(f"constraint '{c.name}'", c.expression, known_names, mistakes)
            rewritten = replace(c, expression=_substitute_outputs(model, c.expression))
            (path if c.times == ALONG else points).append(rewritten)
        else:
            whole_horizon.append(
                replace(
                    c,
                    expression=_read_objective_expression(
                        model, f"constraint '{c.name}'", c.expression, known_names, mistakes
                    ),
                )
            )
    return tuple(path), tuple(points), tuple(whole_horizon)
