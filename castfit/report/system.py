"""A model's equations typeset, as it was given: delays and integrals as such, not by the states that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import casadi as ca

from castfit.report.equations import Equation, Typesetter
from castfit.report.markup import Markup, tag
from castfit.report.mathml_names import Spelling, name, spelling

if TYPE_CHECKING:
    from castfit.model.delay import DelayedValue
    from castfit.model.model import Model


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
    for n, memory in gathered.items():  # what is integrated, or related to its first value
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
    return tag("mfrac", tag("mrow", d, state), tag("mrow", d, name(time)))


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
        markup_by_hash[hash(d.symbol)] = tag("mrow", value, _render_arguments(name(time), tag("mo", "−"), delay_markup))
    return markup_by_hash


def _remembered(kind: str | None, terms: Sequence[Markup], time: str) -> tuple[Markup, ...]:
    """Typeset an output over the interval since the previous measurement, or relative to the first value."""
    if kind is None:
        return tuple(terms)
    if kind == "relative":
        denominator = tag("msub", tag("mrow", _render_arguments(*terms)), tag("mtext", "first"))
        return (tag("mfrac", tag("mrow", terms), denominator),)
    i = tag("mi", "i")
    previous_time = tag("msub", name(time), tag("mrow", i, tag("mo", "−"), tag("mn", "1")))
    current_time = tag("msub", name(time), i)
    d = tag("mrow", tag("mspace", width="0.17em"), tag("mi", "d", mathvariant="normal"), name(time))
    integrand = terms if len(terms) == 1 else (_render_arguments(*terms),)
    integral = tag("mrow", tag("msubsup", tag("mo", "∫"), previous_time, current_time), integrand, d)
    if kind == "per interval":
        return (integral,)
    return (
        tag("mrow", tag("mfrac", tag("mn", "1"), tag("mrow", current_time, tag("mo", "−"), previous_time)), integral),
    )
