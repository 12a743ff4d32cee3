"""What the identifiers of an SBML model mean, as the tables of a problem refer to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import casadi as ca

from castfit.formats import sbml as sbml
from castfit.experiment.events import Event
from castfit.formats.petab.formulas import Graph
from castfit.problem.imported_model import Loaded, Start
from castfit._support.status import InputError


@dataclass(frozen=True)
class Entities:
    """A model taken apart.

    Attributes
    ----------
    time : casadi.SX
    rates : mapping from a state to its symbol and right-hand side
    algebraic : mapping from the symbol of an algebraic state to what is zero
    meaning : mapping from every identifier to what it is, over states, constants and time
    constants : mapping from the name of a constant to its symbol
    values : mapping from the name of a constant to its value: a number, or an expression of other constants
    initial : mapping from a state to its initial value, over constants
    events : tuple of Event
        Of every experiment.
    state_of : mapping from an identifier that has an initial value of its own to the state that it sets
    start : callable
        Initial states and constants where values are given, by identifier.
    """

    time: ca.SX
    rates: Mapping[str, tuple[ca.SX, ca.SX]]
    algebraic: Mapping[ca.SX, ca.SX]
    meaning: Mapping[str, ca.SX]
    constants: Mapping[str, ca.SX]
    values: Mapping[str, Graph]
    initial: Mapping[str, ca.SX]
    events: tuple[Event, ...]
    state_of: Mapping[str, str]
    start: Callable[[Mapping[str, Graph]], Start]


def read_entities(path: Path, mistakes: list[str]) -> Entities:
    """Read a model, in which every constant is one, those too that the file computes once, by initial assignments.

    Raises
    ------
    InputError
        With the mistakes that were found before, and all that is wrong with the model or cannot be expressed.
    """
    try:
        return _taken_apart(sbml.load(path, parameters="all"))
    except InputError as error:
        raise InputError("petab.load", [*mistakes, *(f"{path.name}: {m}" for m in error.problems)]) from error


def _amounts(found: Loaded) -> dict[str, str]:
    """Return the states that hold amounts of species, by what means the concentration."""
    return {
        n: f"{n}_amount" for n in found.species if n not in found.model.states and f"{n}_amount" in found.model.states
    }


def _taken_apart(found: Loaded) -> Entities:
    system = found.model.system
    parts = {n: (_split(getattr(system, n))) for n in ("x", "ode", "z", "alg", "p")}
    constants = {s.name(): s for s in parts["p"]}
    meaning = {n: g for n, g in found.expressions.items() if n != "time"} | {"time": system.t}
    states = {n: n for n in found.model.states if n in found.expressions} | _amounts(found)
    return Entities(
        system.t,
        {s.name(): (s, rate) for s, rate in zip(parts["x"], parts["ode"], strict=True)},
        dict(zip(parts["z"], parts["alg"], strict=True)),
        {**constants, **meaning},
        constants,
        found.values,
        found.model.initial,
        found.events,
        states,
        found.start,
    )


def _split(column: ca.SX) -> list[ca.SX]:
    return ca.vertsplit(column) if column.numel() else []
