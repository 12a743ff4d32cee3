"""Resolution of identifiers of the model and the tables, and replacement of unchanged constants by their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import casadi as ca

from castfit._support.status import InputError, suggest
from castfit.experiment.events import Event
from castfit.formats import sbml as sbml
from castfit.formats.petab.parsing import Graph
from castfit.formats.petab.problem_tables import NAN, ParameterRow, ProblemTables
from castfit.problem.imported_model import ImportedModel, ImportedStart


@dataclass(frozen=True)
class ModelEntities:
    """A model taken apart.

    rates : mapping from a state to its symbol and right-hand side
    algebraic : mapping from the symbol of an algebraic state to what is zero
    meaning : mapping from every identifier to what it is, over states, constants and time
    constants : mapping from the name of a constant to its symbol
    values : mapping from the name of a constant to its value: a number, or an expression of other constants
    initial : mapping from a state to its initial value, over constants
    events : of every experiment
    state_of : mapping from an identifier that has an initial value of its own to the state that it sets
    start : initial states and constants where values are given, by identifier
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
    start: Callable[[Mapping[str, Graph]], ImportedStart]

    @property
    def moving(self) -> frozenset[str]:
        """The identifiers that are not constants: states, time, and quantities determined by rules."""
        return frozenset(n for n in self.meaning if n not in self.constants)


def read_entities(path: Path, mistakes: list[str]) -> ModelEntities:
    """Read a model, in which every constant is one, those too that the file computes once, by initial assignments.

    Raises InputError: with the mistakes that were found before, and all that is wrong with the model or cannot be
    expressed.
    """
    try:
        return _taken_apart(sbml.load(path, parameters="all"))
    except InputError as error:
        raise InputError("petab.load", [*mistakes, *(f"{path.name}: {m}" for m in error.problems)]) from error


def _amounts(loaded: ImportedModel) -> dict[str, str]:
    """Return the states that hold amounts of species, by what means the concentration."""
    return {
        n: f"{n}_amount"
        for n in loaded.species
        if n not in loaded.model.states and f"{n}_amount" in loaded.model.states
    }


def _taken_apart(loaded: ImportedModel) -> ModelEntities:
    system = loaded.model.system
    parts = {n: (_split(getattr(system, n))) for n in ("x", "ode", "z", "alg", "p")}
    constants = {s.name(): s for s in parts["p"]}
    meaning = {n: g for n, g in loaded.expressions.items() if n != "time"} | {"time": system.t}
    states = {n: n for n in loaded.model.states if n in loaded.expressions} | _amounts(loaded)
    return ModelEntities(
        system.t,
        {s.name(): (s, rate) for s, rate in zip(parts["x"], parts["ode"], strict=True)},
        dict(zip(parts["z"], parts["alg"], strict=True)),
        {**constants, **meaning},
        constants,
        loaded.values,
        loaded.model.initial,
        loaded.events,
        states,
        loaded.start,
    )


def _split(column: ca.SX) -> list[ca.SX]:
    return ca.vertsplit(column) if column.numel() else []


@dataclass(frozen=True)
class NameResolution:
    """Mapping of names in the tables to their expressions.

    table : mapping from str to ParameterRow
    targets : constants of the model that conditions set
    parameter_constants : constants of the model that stay parameters: targets, and those in the table
    """

    table: Mapping[str, ParameterRow]
    targets: tuple[str, ...]
    parameter_constants: tuple[str, ...]
    graphs_by_name: Mapping[str, Graph]


def resolve_names(tables: ProblemTables, entities: ModelEntities, mistakes: list[str]) -> NameResolution:
    """Resolve all names of the tables, and append an error to `mistakes` for each unknown or inadmissible target."""
    table = {row.name: row for row in tables.parameters}
    targets: dict[str, None] = {}
    for change in (c for group in tables.conditions.values() for c in group):
        target = tables.mapping.get(change.target, change.target)
        if target in table:
            mistakes.append(
                f"{change.where}: '{change.target}' is set here and in the parameter table ({table[target].where}); "
                "leave one of them out"
            )
        elif target in entities.constants and change.value == NAN:
            remedy = "only a species may be, which then keeps what it has; give a number, or leave the cell empty"
            mistakes.append(f"{change.where}: '{change.target}' is NaN; {remedy}")
        elif target in entities.constants:
            targets[target] = None
        elif target not in entities.state_of:
            is_ruled = target in entities.meaning
            reason = "follows from a rule of the model and cannot be set" if is_ruled else "is not in the model"
            valid = [*entities.constants, *entities.state_of]
            mistakes.append(f"{change.where}: '{change.target}' {reason}: {suggest(target, valid)}")
    mistakes += [
        f"{row.where}: '{row.name}' is a state of the model or follows from its rules; only constants are parameters"
        for row in tables.parameters
        if row.name in entities.moving
    ]
    graphs: dict[str, Graph] = dict(entities.meaning)
    graphs |= {n: ca.SX.sym(n) for n in table if n not in graphs}
    graphs |= {
        petab_name: graphs[model_name] for petab_name, model_name in tables.mapping.items() if model_name in graphs
    }
    parameter_names = (*targets, *(n for n in table if n in entities.constants and n not in targets))
    return NameResolution(table, tuple(targets), parameter_names, graphs)


@dataclass(frozen=True)
class Constants:
    """Puts values in the place of constants.

    old, new (n, 1) : symbols of the constants that nothing changes, and their values
    defaults : mapping from the name of a constant that conditions set to its value where they do not
    """

    old: ca.SX
    new: ca.SX
    defaults: Mapping[str, Graph]

    @classmethod
    def from_entities(
        cls, entities: ModelEntities, parameter_names: Iterable[str], targets: Iterable[str]
    ) -> Constants:
        """Compute the values, which may be expressions of other constants.

        parameter_names : constants that stay parameters, including the `targets` of conditions
        """
        retained = {*parameter_names}
        names = [n for n in entities.constants if n not in retained and n in entities.values]
        old = ca.vertcat(*(entities.constants[n] for n in names))
        new = ca.vertcat(*(ca.SX(entities.values[n]) for n in names))
        for _ in names:
            if not ca.depends_on(new, old):
                break
            new = ca.substitute(new, old, new)
        substitution = cls(ca.SX(old), ca.SX(new), {})
        return cls(
            substitution.old,
            substitution.new,
            {n: substitution(entities.values[n]) for n in targets if n in entities.values},
        )

    def __call__(self, value: Graph) -> Graph:
        """Return an expression with numbers for constants; a number where nothing else is in it."""
        if not isinstance(value, ca.SX) or value.is_constant():
            return float(value)
        if self.old.numel():
            value = ca.SX(ca.substitute([value], [self.old], [self.new])[0])
        return float(value) if value.is_constant() else value

    def graph(self, value: Graph) -> ca.SX:
        """Return the result of `__call__` as a CasADi expression, even if it is a number."""
        return ca.SX(self(value))
