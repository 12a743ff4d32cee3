"""Contents of an SBML file, copied from libsbml's document without interpretation: quantities, rules, events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from castfit.formats.sbml.formulas import Definition


@dataclass(frozen=True)
class SbmlQuantity:
    """A compartment, species, parameter or species reference.

    kind {"compartment", "species", "parameter", "species reference"}
    constant : whether the file says that it never changes
    value : size, value, stoichiometry, or initial amount or concentration, if it is given
    compartment : of a species
    as_amount : whether a species means its amount in formulas; else its concentration
    given_as_amount : whether `value` is an amount
    boundary : whether reactions leave a species alone
    factor : the parameter that converts reactions' extents to the species' amount, if any
    dimensions : of a compartment
    """

    name: str
    kind: str
    constant: bool
    value: float | None
    compartment: str = ""
    as_amount: bool = False
    given_as_amount: bool = False
    boundary: bool = False
    factor: str = ""
    dimensions: float = 3.0


@dataclass(frozen=True)
class SpeciesReference:
    """A reactant (sign -1) or product (+1): the species and its stoichiometry, a number or a named quantity."""

    species: str
    sign: float
    stoichiometry: float | None
    reference: str


@dataclass(frozen=True)
class Reaction:
    """A reaction; `law` is the tree of its rate, `own` are the parameters that only this law knows."""

    name: str
    law: Any
    local_parameters: Mapping[str, float | None]
    participants: tuple[SpeciesReference, ...]
    fast: bool


@dataclass(frozen=True)
class SbmlEvent:
    """An event: trees of its trigger, delay, priority and of the new values."""

    name: str
    trigger: Any
    initially: bool
    persistent: bool
    at_trigger: bool
    delay: Any
    priority: Any
    assignments: Mapping[str, Any]


@dataclass(frozen=True)
class SbmlDocument:
    """A whole file.

    `initial`, `assigned` and `rates` are trees by what they determine, `algebraic` those that are zero; `document` is
    what owns the trees.
    """

    name: str
    quantities: Mapping[str, SbmlQuantity]
    reactions: Mapping[str, Reaction]
    functions: Mapping[str, Definition]
    initial: Mapping[str, Any]
    assigned: Mapping[str, Any]
    rates: Mapping[str, Any]
    algebraic: tuple[Any, ...]
    events: tuple[SbmlEvent, ...]
    document: Any = field(repr=False)


def parse_document(document: Any) -> SbmlDocument:
    """Take apart a document of Level 3."""
    model = document.getModel()
    quantities = {q.name: q for q in _quantities(model)}
    rules = list(model.getListOfRules())
    return SbmlDocument(
        model.getId() or "the model",
        quantities,
        {r.getId(): _reaction(r) for r in model.getListOfReactions()},
        {f.getId(): _definition(f) for f in model.getListOfFunctionDefinitions()},
        {a.getSymbol(): a.getMath() for a in model.getListOfInitialAssignments() if a.isSetMath()},
        {r.getVariable(): r.getMath() for r in rules if r.isAssignment() and r.isSetMath()},
        {r.getVariable(): r.getMath() for r in rules if r.isRate() and r.isSetMath()},
        tuple(r.getMath() for r in rules if r.isAlgebraic() and r.isSetMath()),
        tuple(_happening(e, i) for i, e in enumerate(model.getListOfEvents()) if _acts(e)),
        document,
    )


def _quantities(model: Any) -> Iterator[SbmlQuantity]:
    for c in model.getListOfCompartments():
        size = _number(c, "Size")
        dimensions = float(c.getSpatialDimensionsAsDouble()) if c.isSetSpatialDimensions() else 3.0
        yield SbmlQuantity(c.getId(), "compartment", bool(c.getConstant()), size, dimensions=dimensions)
    for s in model.getListOfSpecies():
        as_amount = bool(s.isSetInitialAmount())
        yield SbmlQuantity(
            s.getId(),
            "species",
            bool(s.getConstant()),
            _number(s, "InitialAmount" if as_amount else "InitialConcentration"),
            s.getCompartment(),
            bool(s.getHasOnlySubstanceUnits()),
            as_amount,
            bool(s.getBoundaryCondition()),
            s.getConversionFactor() or model.getConversionFactor(),
        )
    for p in model.getListOfParameters():
        yield SbmlQuantity(p.getId(), "parameter", bool(p.getConstant()), _number(p, "Value"))
    for r in model.getListOfReactions():
        for reference in (*r.getListOfReactants(), *r.getListOfProducts()):
            if reference.isSetId():
                number = _number(reference, "Stoichiometry")
                yield SbmlQuantity(reference.getId(), "species reference", bool(reference.getConstant()), number)


def _number(element: Any, name: str) -> float | None:
    """Return an attribute of libsbml's that may not be set."""
    return float(getattr(element, f"get{name}")()) if getattr(element, f"isSet{name}")() else None


def _reaction(reaction: Any) -> Reaction:
    law = reaction.getKineticLaw() if reaction.isSetKineticLaw() else None
    tree = law.getMath() if law is not None and law.isSetMath() else None
    local_parameters = {} if law is None else {p.getId(): _number(p, "Value") for p in law.getListOfLocalParameters()}
    sides = ((-1.0, reaction.getListOfReactants()), (1.0, reaction.getListOfProducts()))
    participants = tuple(
        SpeciesReference(r.getSpecies(), sign, _number(r, "Stoichiometry"), r.getId() if r.isSetId() else "")
        for sign, group in sides
        for r in group
    )
    return Reaction(
        reaction.getId(), tree, local_parameters, participants, bool(reaction.isSetFast() and reaction.getFast())
    )


def _definition(function: Any) -> Definition:
    names = tuple(function.getArgument(i).getName() for i in range(function.getNumArguments()))
    return Definition(names, function.getBody())


def _acts(event: Any) -> bool:
    """Check whether an event has a trigger and at least one assignment, both with formulas."""
    return bool(event.isSetTrigger() and event.getTrigger().isSetMath()) and any(
        a.isSetMath() for a in event.getListOfEventAssignments()
    )


def _happening(event: Any, number: int) -> SbmlEvent:
    trigger = event.getTrigger()
    return SbmlEvent(
        event.getId() or f"number {number + 1}",
        trigger.getMath(),
        bool(trigger.getInitialValue()) if trigger.isSetInitialValue() else True,
        bool(trigger.getPersistent()) if trigger.isSetPersistent() else True,
        bool(event.getUseValuesFromTriggerTime()),
        event.getDelay().getMath() if event.isSetDelay() and event.getDelay().isSetMath() else None,
        event.getPriority().getMath() if event.isSetPriority() and event.getPriority().isSetMath() else None,
        {a.getVariable(): a.getMath() for a in event.getListOfEventAssignments() if a.isSetMath()},
    )
