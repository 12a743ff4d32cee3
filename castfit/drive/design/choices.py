"""Choices of a design besides samples: initial states, inputs, doses and their times, as symbols in candidates.

A choice is a CasADi symbol, which may stand in any expression, and in several places at once: a dose d in the morning
and 100 - d in the evening.  A graph carries only symbols, so this module stores the bounds of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_count, option_mistakes, read_real, shorten_repr
from castfit._support.arrays import Array
from castfit._support.status import raise_if_mistakes
from castfit.drive.design.candidate import Candidate, with_fields
from castfit.experiment.events import Doses, Event
from castfit.experiment.inputs import Input
from castfit.model.expressions import substitute_by_name

_MAX_PIECES = 1000  # pieces of an input that is chosen
_CHOICE_NUMBERS = count(1)
# Every choice by the name of its symbol, which is unique.
_CHOICES_BY_NAME: dict[str, DesignChoice] = {}


@dataclass(frozen=True, eq=False)
class DesignChoice:
    """Numbers between bounds, one for each of equal pieces of an experiment."""

    symbol: ca.SX
    low: float
    high: float
    pieces: int = 1

    @property
    def name(self) -> str:
        """Name of the symbol."""
        return self.symbol.name()

    @property
    def middle(self) -> Array:
        """The values half way between the bounds, (pieces,)."""
        return np.full(self.pieces, 0.5 * (self.low + self.high))


def choose(low: float, high: float, *, pieces: int = 1) -> Any:
    """Create a symbol for a number that `design` chooses: an initial state, an input, a dose or a time.

    Parameters
    ----------
    low, high : float
        Between which it lies, in its unit.
    pieces : int
        Of an input: into how many equal pieces, from the start to the candidate's last time, on each of which it has
        its own value.

    Returns
    -------
    casadi.SX
        A symbol: it may stand in expressions, and the same one in several places,
        ``events=[cf.Doses(gut, d, 0), cf.Doses(gut, 100 - d, 12)]``.

    Raises
    ------
    InputError
        Listing every mistake: bounds that are no numbers or in the wrong order, a number of pieces that is none.

    Examples
    --------
    >>> import castfit as cf
    >>> heated = {"T": cf.choose(300, 700, pieces=8)}
    >>> candidate = cf.Candidate([1, 2, 4], initial={"a": cf.choose(0.5, 5)}, inputs=heated)
    """
    lower, upper = (np.nan if number is None else number for number in (read_real(low), read_real(high)))
    mistakes = option_mistakes(
        ("pieces", pieces, is_count(pieces, 1, _MAX_PIECES), f"give an integer from 1 to {_MAX_PIECES}"),
    )
    if not np.isfinite(upper - lower):
        mistakes.append(f"the bounds are {shorten_repr(low)} and {shorten_repr(high)}; give two finite numbers")
    elif not lower < upper:
        remedy = "exchange them" if lower > upper else "give the number itself"
        mistakes.append(f"low = {lower:g} is not below high = {upper:g}; {remedy}")
    raise_if_mistakes("choose", mistakes)
    choice = DesignChoice(
        ca.SX.sym(f"choose({lower:g}, {upper:g}) #{next(_CHOICE_NUMBERS)}"), lower, upper, int(pieces)
    )
    _CHOICES_BY_NAME[choice.name] = choice
    return choice.symbol


def collect_choices(values: Iterable[Any]) -> tuple[DesignChoice, ...]:
    """Return the choices in expressions, each once."""
    names = (s.name() for v in values if isinstance(v, ca.SX) for s in ca.symvar(v))
    return tuple(_CHOICES_BY_NAME[n] for n in dict.fromkeys(names) if n in _CHOICES_BY_NAME)


def choice_locations(candidate: Candidate) -> dict[str, Any]:
    """Return the expressions of a candidate that contain choices, by a description of their place."""
    entries: list[tuple[str, Any]] = [(f"{n}(0)", v) for n, v in candidate.initial.items()]
    entries += [*candidate.parameters.items(), *candidate.inputs.items()]
    for event in candidate.events or ():
        if isinstance(event, Doses):
            doses = [*(("amount", v) for v in event.amount), *(("time", v) for v in event.times)]
            doses += [(field_name, getattr(event, field_name)) for field_name in ("duration", "lag", "bioavailability")]
            entries += [(f"{field_name} of the dose into {event.into}", v) for field_name, v in doses]
        elif isinstance(event, Event):
            entries += [
                ("time of the event", event.time),
                *((f"{n} at the event", v) for n, v in event.changes.items()),
            ]
    entries = [(location, v) for location, v in entries if collect_choices([v])]
    totals, counts_so_far = Counter(location for location, _ in entries), Counter[str]()
    values_by_location: dict[str, Any] = {}
    for location, value in entries:
        counts_so_far[location] += 1
        values_by_location[location if totals[location] == 1 else f"{location} ({counts_so_far[location]})"] = value
    return values_by_location


def candidate_choices(candidates: Iterable[Candidate], mistakes: list[str]) -> tuple[DesignChoice, ...]:
    """Return all choices of candidates. Add a mistake for a piecewise choice that is not an input."""
    choices_by_name: dict[str, DesignChoice] = {}
    for candidate in candidates:
        for location, value in choice_locations(candidate).items():
            local_choices = collect_choices([value])
            choices_by_name |= {c.name: c for c in local_choices}
            if location not in candidate.inputs and any(c.pieces > 1 for c in local_choices):
                mistakes.append(f"'{location}' has pieces=, which only inputs support; remove pieces=")
    return tuple(choices_by_name.values())


def piece_edges(candidate: Candidate, value: Any, start: float) -> Array:
    """Return the edges of the pieces of an input, (n + 1,)."""
    pieces = max((c.pieces for c in collect_choices([value])), default=1)
    return np.linspace(start, max(float(candidate.times[-1]), start + 1e-300), pieces + 1)


def substitute_choices(candidate: Candidate, numbers: Mapping[str, Array], start: float) -> Candidate:
    """Return a candidate with numbers (pieces,) in the place of choices, of an experiment that begins at `start`."""
    if not choice_locations(candidate):
        return candidate
    first_values = {name: float(values[0]) for name, values in numbers.items()}

    def substitute_number(value: Any) -> Any:
        if not isinstance(value, ca.SX):
            return value
        result = substitute_by_name(value, first_values)
        return float(result) if result.is_constant() else result

    def substitute_signal(value: Any) -> Any:
        if not collect_choices([value]):
            return value
        edges = piece_edges(candidate, value, start)
        substitutions = [{n: v[min(j, v.size - 1)] for n, v in numbers.items()} for j in range(edges.size - 1)]
        piece_values = [substitute_by_name(value, substitution) for substitution in substitutions]
        return (
            Input.piecewise_constant(edges[:-1], [float(v) for v in piece_values])
            if len(piece_values) > 1
            else float(piece_values[0])
        )

    def substitute_event(old_event: Any) -> Any:
        new_event: Any = copy(old_event)
        fields: dict[str, Any] = {**vars(old_event)}
        for name, value in fields.items():
            if isinstance(value, tuple):
                vars(new_event)[name] = tuple(substitute_number(v) for v in fields[name])
            else:
                vars(new_event)[name] = (
                    _map_values(fields[name], substitute_number)
                    if isinstance(value, Mapping)
                    else substitute_number(value)
                )
        return new_event

    return with_fields(
        candidate,
        initial=_map_values(candidate.initial, substitute_number),
        parameters=_map_values(candidate.parameters, substitute_number),
        inputs=_map_values(candidate.inputs, substitute_signal),
        events=None if candidate.events is None else tuple(substitute_event(e) for e in candidate.events),
    )


def _map_values(values: Mapping[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: function(value) for name, value in values.items()}


def chosen_values(candidate: Candidate, numbers: Mapping[str, Array]) -> dict[str, Any]:
    """Return the chosen values by their place: a number, or (pieces,) for a piecewise input."""
    values_by_location: dict[str, Any] = {}
    for location, value in choice_locations(candidate).items():
        size = max(c.pieces for c in collect_choices([value]))
        expressions = [
            substitute_by_name(value, {n: v[min(j, v.size - 1)] for n, v in numbers.items()}) for j in range(size)
        ]
        piece_values = np.array([float(v) if v.is_constant() else np.nan for v in expressions])
        values_by_location[location] = piece_values if size > 1 else float(piece_values[0])
    return values_by_location
