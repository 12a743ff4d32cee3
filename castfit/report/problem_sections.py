"""Page section on the question: the typeset equations of a model, experiments and quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.experiment.experiment import Free
from castfit.report.equations import Equation, Spelling, Typesetter, formula, render_name, spelling
from castfit.report.equations import table as equations
from castfit.report.page import Content, Markup, facts, joined, table, tag

if TYPE_CHECKING:
    from castfit.experiment.experiment import Experiment
    from castfit.experiment.inputs import Input
    from castfit.model.delay import DelayedValue
    from castfit.model.model import Model
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.problem import Posable
    from castfit.problem.quantities import Quantity


@dataclass(frozen=True)
class SystemEquations:
    """The equations of a model by kind; `definitions` are of what they share."""

    rates: tuple[Equation, ...]
    algebraic: tuple[Equation, ...]
    outputs: tuple[Equation, ...]
    initial: tuple[Equation, ...]
    definitions: tuple[Equation, ...]


def system(model: Model) -> SystemEquations:
    """Typeset a model."""
    equations, time = model.definition, model.system.t.name()
    memory_states = {state for memory in model.memories for state in memory.states}
    gathered = {memory.output: memory for memory in model.memories}
    hidden = {memory.value for memory in model.memories}
    outputs: dict[str, ca.SX] = {n: e for n, e in equations.extra.items() if n not in hidden}
    for n, memory in gathered.items():  # integrated outputs, or outputs relative to their first value
        outputs[n] = equations.extra[memory.value] if memory.kind == "relative" else equations.right[memory.states[0]]
    groups = (
        {n: e for n, e in equations.right.items() if n not in memory_states},
        equations.residual,
        outputs,
        {n: e for n, e in equations.initial.items() if n not in memory_states},
    )
    graphs = [e for group in groups for e in group.values()]
    spell = spelling([*(n for group in groups for n in group), *(s.name() for s in ca.symvar(ca.vertcat(*graphs)))])
    typeset = Typesetter(graphs, _delays(equations.delayed, time, spell), spell)
    terms = iter([typeset.terms(k) for k in range(sum(map(len, groups)))])
    rates, algebraic, measured, initial = ([(n, next(terms)) for n in group] for group in groups)
    kinds = {n: memory.kind for n, memory in gathered.items()}
    return SystemEquations(
        tuple(Equation(_rate(spell(n), time), summands) for n, summands in rates),
        tuple(Equation(tag("mn", "0"), summands) for _, summands in algebraic),
        tuple(Equation(spell(n), _remembered(kinds.get(n), summands, time)) for n, summands in measured),
        tuple(Equation(tag("mrow", spell(n), _render_arguments(tag("mn", "0"))), summands) for n, summands in initial),
        tuple(typeset.definitions),
    )


def _rate(state: Markup, time: str) -> Markup:
    d = tag("mi", "d", mathvariant="normal")
    return tag("mfrac", tag("mrow", d, state), tag("mrow", d, render_name(time)))


def _render_arguments(*arguments: Markup) -> Markup:
    return tag("mrow", tag("mo", "(", stretchy="false"), arguments, tag("mo", ")", stretchy="false"))


def _delays(delayed: Sequence[DelayedValue], time: str, spell: Spelling) -> dict[int, Markup]:
    """Return the markup of delayed values by the hash of their symbols: ``x(t − τ)``."""
    markup_by_hash: dict[int, Markup] = {}
    for d in delayed:  # inner ones come first
        typesetter = Typesetter([d.expression, d.tau], markup_by_hash, spell)
        expression_markup, age = typesetter.terms(0), typesetter.terms(1)
        value = (
            tag("mrow", expression_markup)
            if d.expression.is_symbolic()
            else tag("mrow", tag("mo", "["), expression_markup, tag("mo", "]"))
        )
        delay_markup = age[0] if len(age) == 1 else _render_arguments(*age)
        markup_by_hash[hash(d.symbol)] = tag(
            "mrow", value, _render_arguments(render_name(time), tag("mo", "−"), delay_markup)
        )
    return markup_by_hash


def _remembered(kind: str | None, terms: Sequence[Markup], time: str) -> tuple[Markup, ...]:
    """Typeset an output over the interval since the previous measurement, or relative to the first value."""
    if kind is None:
        return tuple(terms)
    if kind == "relative":
        denominator = tag("msub", tag("mrow", _render_arguments(*terms)), tag("mtext", "first"))
        return (tag("mfrac", tag("mrow", terms), denominator),)
    i = tag("mi", "i")
    previous_time = tag("msub", render_name(time), tag("mrow", i, tag("mo", "−"), tag("mn", "1")))
    current_time = tag("msub", render_name(time), i)
    d = tag("mrow", tag("mspace", width="0.17em"), tag("mi", "d", mathvariant="normal"), render_name(time))
    integrand = terms if len(terms) == 1 else (_render_arguments(*terms),)
    integral = tag("mrow", tag("msubsup", tag("mo", "∫"), previous_time, current_time), integrand, d)
    if kind == "per interval":
        return (integral,)
    return (
        tag("mrow", tag("mfrac", tag("mn", "1"), tag("mrow", current_time, tag("mo", "−"), previous_time)), integral),
    )


_MAX_NAMES_LISTED = 6  # Names in a sentence at most.


def question(problem: Posable) -> Markup:
    """Return the section on the model, the experiments, and the estimated quantities."""
    compiled_problem = problem.posed
    return joined(
        tag("p", _summary(compiled_problem)),
        model(problem.original_model),
        tag("h3", "Experiments"),
        experiments(compiled_problem),
        tag("h3", "Estimated quantities"),
        quantities(compiled_problem),
        _fixed(compiled_problem),
        _limits(compiled_problem),
    )


def model(source_model: Model) -> Markup:
    """Return the equations of a model, under the names of their kinds."""
    system_equations = system(source_model)
    groups = (
        ("Model", system_equations.rates),
        ("Algebraic equations", system_equations.algebraic),
        ("where", system_equations.definitions),
        ("Outputs", system_equations.outputs),
        ("Initial values", system_equations.initial),
    )
    blocks = [tag("div", tag("h3", title), _scrolled(equations(group))) for title, group in groups if group]
    return tag("div", blocks, class_="groups")


def _scrolled(content: Markup) -> Markup:
    return tag("div", content, class_="scroll")


def _summary(compiled_problem: CompiledProblem) -> str:
    count = len(compiled_problem.conditions)
    model = compiled_problem.original_model
    kind = "differential-algebraic equations" if model.algebraic_states else "ordinary differential equations"
    experiments = f"{count} experiment{'' if count == 1 else 's'}"
    estimated = f"{len(compiled_problem.names)} quantit{'y is' if len(compiled_problem.names) == 1 else 'ies are'}"
    return (
        f"{estimated} estimated from {compiled_problem.n_data} measured values of {some(compiled_problem.outputs)} in "
        f"{experiments}, with a model of {len(model.own_states)} {kind}."
    ).replace("a model of 1 ordinary differential equations", "a model of one ordinary differential equation")


def some(names: Sequence[str]) -> str:
    """List names, of many the first ones."""
    if len(names) <= _MAX_NAMES_LISTED + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_MAX_NAMES_LISTED])} and {len(names) - _MAX_NAMES_LISTED} more"


def experiments(compiled_problem: CompiledProblem) -> Markup:
    """Return a table of the experiments; of initial states only where they are not the model's own."""
    unit = compiled_problem.unit("time")
    spell = spelling(
        [
            *compiled_problem.names,
            *compiled_problem.parameters,
            *compiled_problem.original_model.own_states,
            *compiled_problem.original_model.output_names,
        ]
    )
    starts = [_initial(compiled_problem, e) for e in compiled_problem.experiments]
    heads = ["experiment", "measured", ">values", f"times{f' ({unit})' if unit else ''}", "noise"]
    heads += ["?initial states", "?inputs", "?events", "?own parameters"]
    experiments_by_name = {e.name: (e, start) for e, start in zip(compiled_problem.experiments, starts, strict=True)}
    rows: list[list[Content]] = []
    for condition in compiled_problem.conditions:
        (experiment, start), points = experiments_by_name[condition.name], condition.points
        times = "at rest" if condition.is_steady_state else f"{points.times.min():g} to {points.times.max():g}"
        rows.append(
            [
                condition.name,
                ", ".join(n for j, n in enumerate(compiled_problem.outputs) if points.mask[:, j].any()),
                str(int(points.mask.sum())),
                times,
                _noise(compiled_problem, condition),
                _values(start, spell) if isinstance(start, dict) else start,
                _inputs(experiment.inputs),
                str(len(experiment.events) or ""),
                _values(experiment.parameters, spell),
            ]
        )
    return table(heads, rows)


def _noise(compiled_problem: CompiledProblem, condition: Condition) -> Markup:
    """Describe the noise of each output; outputs with equal noise share a line."""
    outputs_by_noise: dict[str, list[str]] = {}
    for j, (output, observed) in enumerate(zip(compiled_problem.outputs, condition.observed, strict=True)):
        if observed is None:
            continue
        sigma = condition.points.sigma[condition.points.mask[:, j], j]
        if observed.is_spread_computed:
            spread = "sigma computed"
        elif observed.group >= 0:
            spread = "sigma unknown"
        elif np.ptp(sigma) <= 1e-9 * sigma.max():
            spread = f"sigma {sigma[0]:g}"
        else:
            spread = f"sigma {sigma.min():.3g} to {sigma.max():.3g}"
        outputs_by_noise.setdefault(f"{type(observed.noise).__name__}, {spread}", []).append(output)
    if len(outputs_by_noise) == 1:
        return joined(next(iter(outputs_by_noise)))
    lines = [f"{', '.join(outputs)}: {text}" for text, outputs in outputs_by_noise.items()]
    return joined(lines[0], *((tag("br"), line) for line in lines[1:]))


def _initial(compiled_problem: CompiledProblem, experiment: Experiment) -> dict[str, Any] | str:
    """Return the initial states of an experiment that are not those that the model shows, or say that it rests."""
    if experiment.steady is not None:
        return "steady state"
    model = compiled_problem.original_model.definition.initial
    initial_values = {
        n: v
        for n, v in compiled_problem.initial_values(experiment).items()
        if n in compiled_problem.original_model.own_states
    }
    return {n: v for n, v in initial_values.items() if isinstance(v, Free) or n not in model or not _same(v, model[n])}


def _same(one: Any, other: Any) -> bool:
    return bool(ca.is_equal(ca.SX(one), ca.SX(other), 20))


def _values(values_by_name: Mapping[str, Any], spell: Spelling) -> Markup:
    parts: list[Content] = []
    for name, value in values_by_name.items():
        parts += [", "] if parts else []
        if isinstance(value, Free):
            parts.append([tag("math", spell(name)), " free"])
        elif isinstance(value, ca.SX) and not value.is_constant():
            parts.append([tag("math", spell(name)), " = ", formula(value, spell)])
        else:
            parts.append([tag("math", spell(name)), f" = {float(value):g}"])
    return joined(*parts)


def _inputs(inputs_by_name: Mapping[str, Input]) -> str:
    return ", ".join(
        f"{n} = {u.values[0]:g}" if u.kind == "constant" else f"{n} ({u.kind.replace('_', ' ')}, {u.times.size} points)"
        for n, u in inputs_by_name.items()
    )


def quantities(compiled_problem: CompiledProblem) -> Markup:
    """Return a table of guesses, bounds, scales and priors."""

    def row(q: Quantity) -> list[Content]:
        prior = "" if q.prior is None else repr(q.prior)
        return [q.name, compiled_problem.unit(q.name), f"{q.guess:g}", _between(q.lower, q.upper), q.scale, prior]

    return table(("quantity", "?unit", ">guess", "bounds", "scale", "?prior"), map(row, compiled_problem.quantities))


def _between(low: float, high: float) -> str:
    if np.isinf(low) or np.isinf(high):
        return "none" if np.isinf(low) and np.isinf(high) else f"≥ {low:g}" if np.isinf(high) else f"≤ {high:g}"
    return f"{low:g} to {high:g}"


def _fixed(compiled_problem: CompiledProblem) -> Markup:
    """List the fixed parameters with their values."""
    fixed_values = {n: p.value for n, p in compiled_problem.parameters.items() if p.fixed}
    if not fixed_values:
        return Markup("")
    value_texts = [
        (n, ", ".join(f"{e}: {v:g}" for e, v in value.items()) if isinstance(value, Mapping) else f"{value:g}")
        for n, value in fixed_values.items()
    ]
    units = [(f"{n} ({compiled_problem.unit(n)})" if compiled_problem.unit(n) else n, text) for n, text in value_texts]
    return joined(tag("h3", "Given values"), facts(units))


def _limits(compiled_problem: CompiledProblem) -> Markup:
    """List bounds of states, constraints, and priors on several quantities."""
    parts: list[Content] = []
    for n, (low, high) in compiled_problem.state_bounds.items():
        parts.append(tag("li", f"{low:g} ≤ {n} ≤ {high:g}"))
    for c in compiled_problem.constraints:
        equal = c.lower == c.upper
        low = "" if equal or np.isinf(c.lower) else f"{c.lower:g} ≤ "
        high = f" = {c.upper:g}" if equal else "" if np.isinf(c.upper) else f" ≤ {c.upper:g}"
        parts.append(tag("li", f"{c.name}: {low}", formula(c.expression), high))
    parts += [tag("li", f"prior on {term.description}") for term in compiled_problem.prior_terms]
    return joined(tag("h3", "Constraints and joint priors"), tag("ul", parts)) if parts else Markup("")
