"""What names in tables stand for: parameters of the table, what conditions set, and all that formulas may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import casadi as ca

from castfit.formats.petab.entities import Entities
from castfit.formats.petab.formulas import Graph
from castfit.formats.petab.stated import ParameterRow, Stated
from castfit._support.status import suggest


@dataclass(frozen=True)
class Naming:
    """What names stand for.

    Attributes
    ----------
    table : mapping from str to ParameterRow
    targets : constants of the model that conditions set
    kept : constants of the model that stay parameters: targets, and those in the table
    known : states, constants, what rules say, parameters, time
    """

    table: Mapping[str, ParameterRow]
    targets: tuple[str, ...]
    kept: tuple[str, ...]
    known: Mapping[str, Graph]


def name_all(stated: Stated, entities: Entities, mistakes: list[str]) -> Naming:
    """Find out what all names stand for; those of which nothing is known are mistakes."""
    table = {row.name: row for row in stated.parameters}
    targets: dict[str, None] = {}
    for change in (c for group in stated.conditions.values() for c in group):
        target = stated.mapping.get(change.target, change.target)
        if target in table:
            mistakes.append(
                f"{change.where}: '{change.target}' is set here and in the parameter table ({table[target].where}); "
                "leave one of them out"
            )
        elif target in entities.constants:
            targets[target] = None
        elif target not in entities.state_of:
            ruled = target in entities.meaning
            what = "follows from a rule of the model and cannot be set" if ruled else "is not in the model"
            valid = [*entities.constants, *entities.state_of]
            mistakes.append(f"{change.where}: '{change.target}' {what}: {suggest(target, valid)}")
    mistakes += [
        f"{row.where}: '{row.name}' is a state of the model or follows from its rules; only constants are parameters"
        for row in stated.parameters
        if row.name in entities.meaning and row.name not in entities.constants
    ]
    known: dict[str, Graph] = dict(entities.meaning)
    known |= {n: ca.SX.sym(n) for n in table if n not in known}
    known |= {own: known[model] for own, model in stated.mapping.items() if model in known}
    kept = (*targets, *(n for n in table if n in entities.constants and n not in targets))
    return Naming(table, tuple(targets), kept, known)
