"""What the identifiers of an SBML model mean, as the tables of a problem refer to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import casadi as ca

from castfit.petab.formulas import Graph, expression, names_in
from castfit.petab.needs import library
from castfit.status import check


@dataclass(frozen=True)
class Entities:
    """A model taken apart.

    Attributes
    ----------
    time : casadi.SX
    rates : mapping from a state to its symbol and right-hand side
    meaning : mapping from every identifier to what it is, over states, constants and time
    constants : mapping from the name of a constant to its symbol
    values : mapping from the name of a constant to its value: a number, or an expression of other constants
    initial : mapping from a state to its initial value, over constants
    """

    time: ca.SX
    rates: Mapping[str, tuple[ca.SX, ca.SX]]
    meaning: Mapping[str, ca.SX]
    constants: Mapping[str, ca.SX]
    values: Mapping[str, ca.SX | float]
    initial: Mapping[str, ca.SX | float]
    events: tuple[object, ...] = field(default=())


def read_entities(path: Path) -> Entities:
    """Read a model: species in their compartments, reactions, rules."""
    sbml = library("libsbml")
    document = sbml.readSBMLFromFile(str(path))
    for option in ("expandFunctionDefinitions", "promoteLocalParameters"):
        wanted = sbml.ConversionProperties()
        wanted.addOption(option, True)
        document.convert(wanted)
    model = document.getModel()
    check("petab.load", [] if model is not None else [f"{path.name} is no SBML model"])
    time = ca.SX.sym("time")

    def text(holder: Any) -> str:
        return str(sbml.formulaToL3String(holder.getMath()))

    rules = list(model.getListOfRules())
    assigned = {r.getVariable(): text(r) for r in rules if r.isAssignment()}
    rated = {r.getVariable(): text(r) for r in rules if r.isRate()}
    started = {a.getSymbol(): text(a) for a in model.getListOfInitialAssignments()}
    missing = ["algebraic rules"] if any(r.isAlgebraic() for r in rules) else []
    missing += ["events"] if model.getNumEvents() else []
    check("petab.load", [f"{path.name} has {what}, which cannot be read yet" for what in missing])
    meaning: dict[str, ca.SX] = {}
    constants: dict[str, ca.SX] = {}
    states: dict[str, ca.SX] = {}
    values: dict[str, Graph] = {}
    initial: dict[str, Graph] = {}
    species = {s.getId(): s for s in model.getListOfSpecies()}
    reactions = list(model.getListOfReactions())
    sides = [(r, [(-1.0, x) for x in r.getListOfReactants()] + [(1.0, x) for x in r.getListOfProducts()])
             for r in reactions]  # fmt: skip
    changed = {x.getSpecies() for _, both in sides for _, x in both}
    changed = {n for n in changed if not species[n].getBoundaryCondition()}

    def add(name: str, value: float, *, moving: bool) -> None:
        if name not in assigned:
            meaning[name] = ca.SX.sym(name)
            (states if moving else constants)[name] = meaning[name]
            (initial if moving else values)[name] = value

    for c in model.getListOfCompartments():
        add(c.getId(), c.getSize() if c.isSetSize() else 1.0, moving=c.getId() in rated)
    for p in model.getListOfParameters():
        add(p.getId(), p.getValue(), moving=p.getId() in rated)
    for name in species:
        add(name, 0.0, moving=name in rated or name in changed)
    pending = dict(assigned)
    while pending:
        ready = [n for n, f in pending.items() if names_in(f) - {"time"} <= meaning.keys()]
        check("petab.load", [] if ready else [f"{path.name}: the rules of {', '.join(pending)} go in a circle"])
        for name in ready:
            meaning[name] = ca.SX(expression(pending.pop(name), {**meaning, "time": time}))
    known: dict[str, Graph] = {**meaning, "time": time}
    for name, s in species.items():
        if name not in assigned:
            (initial if name in states else values)[name] = _start(s, meaning[s.getCompartment()])
    for name, f in started.items():
        (initial if name in states else values)[name] = expression(f, known)
    rates = {n: ca.SX(expression(rated[n], known)) if n in rated else ca.SX(0) for n in states}
    for reaction, both in sides:
        flux = ca.SX(expression(text(reaction.getKineticLaw()), known))
        for sign, x in both:
            name = x.getSpecies()
            if name in changed and name not in rated:
                amount = species[name].getHasOnlySubstanceUnits()
                size = ca.SX(1) if amount else meaning[species[name].getCompartment()]
                rates[name] += sign * (x.getStoichiometry() if x.isSetStoichiometry() else 1.0) * flux / size
    start = _without_states(initial, states, time)
    return Entities(time, {n: (s, rates[n]) for n, s in states.items()}, meaning, constants, values, start)


def _start(species: Any, size: ca.SX) -> Graph:
    """Return the initial amount, or concentration, whichever the species means."""
    amount = bool(species.getHasOnlySubstanceUnits())
    if species.isSetInitialAmount():
        return float(species.getInitialAmount()) if amount else species.getInitialAmount() / size
    value = float(species.getInitialConcentration()) if species.isSetInitialConcentration() else 0.0
    return value * size if amount else value


def _without_states(initial: Mapping[str, Graph], states: Mapping[str, ca.SX], time: ca.SX) -> dict[str, Graph]:
    """Put initial values of states, and the time 0, into initial values that refer to them."""
    old = ca.vertcat(*states.values(), time)
    new = ca.vertcat(*(ca.SX(initial[n]) for n in states), 0)
    for _ in states:
        new = ca.substitute(new, old, new)
    return {n: new[i] for i, n in enumerate(states)}
