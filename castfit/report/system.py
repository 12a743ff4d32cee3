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
    from castfit.model.delay import Delayed
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
    said, time = model.said, model.system.t.name()
    held = {state for memory in model.memories for state in memory.states}
    gathered = {memory.output: memory for memory in model.memories}
    hidden = {memory.value for memory in model.memories}
    outputs: dict[str, ca.SX] = {n: e for n, e in said.extra.items() if n not in hidden}
    for n, memory in gathered.items():  # what is integrated, or related to its first value
        outputs[n] = said.extra[memory.value] if memory.kind == "relative" else said.right[memory.states[0]]
    groups = (
        {n: e for n, e in said.right.items() if n not in held},
        said.residual,
        outputs,
        {n: e for n, e in said.initial.items() if n not in held},
    )
    graphs = [e for group in groups for e in group.values()]
    spell = spelling([*(n for group in groups for n in group), *(s.name() for s in ca.symvar(ca.vertcat(*graphs)))])
    typeset = Typesetter(graphs, _delays(said.delayed, time, spell), spell)
    terms = iter([typeset.terms(k) for k in range(sum(map(len, groups)))])
    rates, algebraic, measured, initial = ([(n, next(terms)) for n in group] for group in groups)
    kinds = {n: memory.kind for n, memory in gathered.items()}
    return SystemEquations(
        tuple(Equation(_rate(spell(n), time), found) for n, found in rates),
        tuple(Equation(tag("mn", "0"), found) for _, found in algebraic),
        tuple(Equation(spell(n), _remembered(kinds.get(n), found, time)) for n, found in measured),
        tuple(Equation(tag("mrow", spell(n), _called(tag("mn", "0"))), found) for n, found in initial),
        tuple(typeset.definitions),
    )


def _rate(state: Markup, time: str) -> Markup:
    d = tag("mi", "d", mathvariant="normal")
    return tag("mfrac", tag("mrow", d, state), tag("mrow", d, name(time)))


def _called(*inside: Markup) -> Markup:
    return tag("mrow", tag("mo", "(", stretchy="false"), inside, tag("mo", ")", stretchy="false"))


def _delays(delayed: Sequence[Delayed], time: str, spell: Spelling) -> dict[int, Markup]:
    """Return the markup of delayed values by the hash of their symbols: ``x(t − τ)``."""
    shown: dict[int, Markup] = {}
    for d in delayed:  # inner ones come first
        inside = Typesetter([d.expression, d.tau], shown, spell)
        what, age = inside.terms(0), inside.terms(1)
        value = tag("mrow", what) if d.expression.is_symbolic() else tag("mrow", tag("mo", "["), what, tag("mo", "]"))
        back = age[0] if len(age) == 1 else _called(*age)
        shown[hash(d.symbol)] = tag("mrow", value, _called(name(time), tag("mo", "−"), back))
    return shown


def _remembered(kind: str | None, terms: Sequence[Markup], time: str) -> tuple[Markup, ...]:
    """Typeset an output that is measured over the interval since the previous measurement, or relative to the first
    one.
    """
    if kind is None:
        return tuple(terms)
    if kind == "relative":
        below = tag("msub", tag("mrow", _called(*terms)), tag("mtext", "first"))
        return (tag("mfrac", tag("mrow", terms), below),)
    i = tag("mi", "i")
    before = tag("msub", name(time), tag("mrow", i, tag("mo", "−"), tag("mn", "1")))
    now = tag("msub", name(time), i)
    d = tag("mrow", tag("mspace", width="0.17em"), tag("mi", "d", mathvariant="normal"), name(time))
    inside = terms if len(terms) == 1 else (_called(*terms),)
    integral = tag("mrow", tag("msubsup", tag("mo", "∫"), before, now), inside, d)
    if kind == "per interval":
        return (integral,)
    return (tag("mrow", tag("mfrac", tag("mn", "1"), tag("mrow", now, tag("mo", "−"), before)), integral),)
