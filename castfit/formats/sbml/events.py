"""Conversion of SBML events to castfit's events.

A trigger of time and numbers alone becomes true at known times.  A trigger that compares time with an expression of
parameters becomes true at a time that is estimated with them.  Any transcription can put a stage boundary at such
times.  Any other trigger is a condition that is watched; then all triggers are watched, so that simultaneous events are
detected.  Simultaneous events without an order happen at once, each with the values before them, as specified.

At known times a delayed event happens later. Its new values were computed at the trigger, which is possible if they
contain no state, or are computed when it happens. Priorities order simultaneous events, the highest first: if two set
the same variable, the later one wins, and values that are computed when an event happens include the earlier changes.
If a delay or a priority needs more, the triggers are watched although their times are known
(castfit.formats.sbml.waiting_events).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit.experiment.events import Event
from castfit.formats.sbml.classification import QuantityRole
from castfit.formats.sbml.document import SbmlEvent
from castfit.formats.sbml.formulas import truth
from castfit.formats.sbml.values import SbmlValues
from castfit.formats.sbml.waiting_events import EventLimits, WatchedEvent, watched_events
from castfit.integrate.intervals import may_jump
from castfit.model.comparisons import Comparisons
from castfit.model.delay import substitute_symbols
from castfit.model.model import Model


@dataclass(frozen=True)
class _EventTime:
    """An event at a time, a number or an expression of parameters.

    `after` : the trigger is true at that very time;  `at_trigger` : its values are those of when it was triggered.
    """

    time: float | ca.SX
    changes: Mapping[ca.SX, ca.SX]
    is_true_at_time: bool
    priority: float | None = None
    at_trigger: bool = True


def events_of(values: SbmlValues, limits: EventLimits) -> tuple[Event, ...]:
    """Convert the events of a file to castfit's events; unsupported constructs are added to `values.mistakes`."""
    timed_events: list[_EventTime] = []
    triggered_events: list[WatchedEvent] = []
    is_exact = True
    for sbml_event in values.contents.events:
        label = f"event {sbml_event.name}"
        trigger = truth(values.formula(f"the trigger of {label}", sbml_event.trigger))
        new_values = _new_values(values, sbml_event)
        changes = _changes(values, new_values)
        expressions = ca.vertcat(trigger, *changes.values())
        for name, symbol in values.algebraic.items():
            if ca.depends_on(expressions, symbol):
                values.mistakes.append(
                    f"{label} depends on '{name}', which follows from a nonlinear algebraic equation"
                )
        if not changes or (trigger.is_constant() and (sbml_event.initially or not float(trigger))):
            continue  # nothing happens
        triggered_events.append(WatchedEvent(sbml_event, trigger, new_values, partial(_changes, values)))
        times = _times_of(values, trigger, changes, initially=sbml_event.initially)
        delayed_events = [None] if times is None else [_later(values, sbml_event, event) for event in times]
        is_exact = is_exact and all(event is not None for event in delayed_events)
        timed_events += [event for event in delayed_events if event is not None]
    if not is_exact:
        return watched_events(values, triggered_events, limits)
    return tuple(
        Event(e.time, dict(e.changes), measured="after" if e.is_true_at_time else "before")
        for e in _merged(timed_events)
    )


def _times_of(
    values: SbmlValues, trigger: ca.SX, changes: Mapping[ca.SX, ca.SX], *, initially: bool
) -> Sequence[_EventTime] | None:
    """Return when an event happens; None if its trigger must be watched."""
    if trigger.is_constant():
        return [_EventTime(0.0, changes, is_true_at_time=True)]
    parts = Comparisons.from_condition(trigger)
    slopes = [_slope(values, g) for g in parts.differences]
    if all(slope is not None for slope in slopes):
        zeros = [
            ca.simplify(-_at_zero(values, g) / float(s or 0.0)) for g, s in zip(parts.differences, slopes, strict=True)
        ]
        signs = np.sign(np.array(slopes, dtype=float))
        if all(t.is_constant() for t in zeros):
            times = _times(parts, np.array([float(t) for t in zeros]), signs, initially=initially)
            return [_EventTime(t, changes, is_true_at_time) for t, is_true_at_time in times]
        if len(zeros) == 1 and parts.function()(signs) and initially and _number(values, zeros[0]) > 0.0:
            return [_EventTime(zeros[0], changes, bool(parts.function()(0.0)))]
    return None


def _later(values: SbmlValues, sbml_event: SbmlEvent, event: _EventTime) -> _EventTime | None:
    """Return an event with its priority, at the time to which its delay moves it; None if it must be watched."""
    label = f"event {sbml_event.name}"
    priority: float | None = None
    if sbml_event.priority is not None:
        priority_formula = values.formula(f"the priority of {label}", sbml_event.priority)
        compartments = {n for n, q in values.contents.quantities.items() if q.kind == "compartment"}
        if not priority_formula.is_constant() or any(
            n in compartments for e in values.contents.events for n in e.assignments
        ):
            return None
        priority = float(priority_formula)
    event = replace(event, priority=priority, at_trigger=sbml_event.at_trigger)
    if sbml_event.delay is None:
        return event
    delay = values.formula(f"the delay of {label}", sbml_event.delay)
    variables = ca.vertcat(values.time, values.varying)
    if not sbml_event.persistent or ca.depends_on(delay, variables):
        return None
    if not _number(values, delay) >= 0.0:
        values.mistakes.append(f"the delay of {label} is {_number(values, delay):g}; it must not be negative")
    changes = dict(event.changes)
    if sbml_event.at_trigger:
        if any(ca.depends_on(value, variables[1:]) for value in changes.values()):
            return None
        trigger_time = ca.SX(event.time)
        changes = {s: ca.substitute([ca.SX(v)], [values.time], [trigger_time])[0] for s, v in changes.items()}
    time = ca.SX(event.time) + delay
    return replace(event, time=float(time) if time.is_constant() else time, changes=changes)


def _number(values: SbmlValues, time: ca.SX) -> float:
    """Return a time at the file's values of parameters; NaN if it gives none."""
    symbols = ca.symvar(time)
    numbers = [values.numbers.get(s.name(), np.nan) for s in symbols]
    return float(cast("Any", ca.Function("time", symbols, [time]).call(numbers)[0]))


def _slope(values: SbmlValues, g: ca.SX) -> float | None:
    """Return the slope in time of a difference that is linear in time, if the slope is a nonzero number.

    None otherwise.
    """
    if ca.depends_on(g, values.varying) or may_jump(g):
        return None
    slope = ca.simplify(ca.jacobian(g, values.time))
    return float(slope) if slope.is_constant() and float(slope) != 0.0 else None


def _at_zero(values: SbmlValues, g: ca.SX) -> ca.SX:
    return ca.substitute([g], [values.time], [ca.SX(0)])[0]


def _times(parts: Comparisons, zeros: Any, slopes: Any, *, initially: bool) -> list[tuple[float, bool]]:
    """Return when a condition of time becomes true, from 0 on, and whether it is true at that very time."""
    function: Any = parts.function()

    def true(t: float) -> bool:
        return bool(float(function(slopes * np.sign(t - zeros))))

    marks = np.unique(np.append(zeros[zeros >= 0.0], 0.0))
    midpoints = np.append(0.5 * (marks[:-1] + marks[1:]), marks[-1] + 1.0)
    out: list[tuple[float, bool]] = []
    was_true = initially
    for mark, midpoint in zip(marks.tolist(), midpoints.tolist(), strict=True):
        is_true, is_true_later = true(mark), true(midpoint)
        if (is_true and not was_true) or (is_true_later and not is_true):
            out.append((mark, is_true))
        was_true = is_true_later
    return out


def _merged(events: Sequence[_EventTime]) -> list[_EventTime]:
    """Merge events of the same time into one, with changes applied at once or, by their priorities, one by one."""
    groups: list[list[_EventTime]] = []
    for event in events:
        same = next((group for group in groups if _same_time(group[0].time, event.time)), None)
        if same is None:
            groups.append([event])
        else:
            same.append(event)
    return [_merge_simultaneous(group) for group in groups]


def _merge_simultaneous(events: Sequence[_EventTime]) -> _EventTime:
    """Return events of one time as one: first those that are true at that very time, then those that are after it."""
    changes: dict[str, tuple[ca.SX, ca.SX]] = {}
    for is_true_at_time in (True, False):
        is_ordered = any(event.priority is not None for event in events if event.is_true_at_time is is_true_at_time)
        earlier_changes = dict(changes)  # events triggered later see it
        new_changes: dict[str, tuple[ca.SX, ca.SX]] = {}
        for event in sorted(events, key=lambda e: np.inf if e.priority is None else -e.priority):
            if event.is_true_at_time is is_true_at_time:
                visible_changes = (
                    earlier_changes | new_changes if is_ordered and not event.at_trigger else earlier_changes
                )
                new_changes |= {
                    s.name(): (s, _substitute_changes(v, visible_changes)) for s, v in event.changes.items()
                }
        changes |= new_changes
    return _EventTime(events[0].time, dict(changes.values()), any(event.is_true_at_time for event in events))


def _substitute_changes(value: ca.SX, changes: Mapping[str, tuple[ca.SX, ca.SX]]) -> ca.SX:
    """Return a value after changes."""
    if not changes:
        return value
    old, new = ca.vertcat(*(s for s, _ in changes.values())), ca.vertcat(*(ca.SX(v) for _, v in changes.values()))
    return ca.substitute([ca.SX(value)], [old], [new])[0]


def _same_time(left: float | ca.SX, right: float | ca.SX) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        return isinstance(left, float) and isinstance(right, float) and left == right
    return ca.is_equal(left, right, 20)


def _new_values(values: SbmlValues, sbml_event: SbmlEvent) -> dict[str, ca.SX]:
    """Return the new values that an event assigns, by name."""
    label = f"event {sbml_event.name}"
    new_values: dict[str, ca.SX] = {}
    for name, tree in sbml_event.assignments.items():
        role = values.roles.get(name)
        if role is None or not (role.is_state or role is QuantityRole.EQUILIBRIUM):
            reason = "" if role is None else f", which follows from {role.value}"
            values.mistakes.append(f"{label} changes '{name}'{reason}")
        else:
            new_values[name] = values.formula(f"the new value of '{name}' in {label}", tree)
    return new_values


def _changes(values: SbmlValues, new_values: Mapping[str, ca.SX]) -> dict[ca.SX, ca.SX]:
    """Return the new value of each state that changes.

    A new concentration is an amount in the volume before the event: where the event changes the volume too, the
    concentration ends up as another one (case 01779 of the SBML Test Suite).
    """
    fast_species = {*values.fast.state_species, *values.fast.determined}
    changes = {
        values.states[n]: value * values.size(n) if values.holds_amount(n) else value
        for n, value in new_values.items()
        if n not in fast_species
    }
    if fast_species & new_values.keys():
        amounts = {n: _new_amount(values, n, new_values) for n in fast_species}
        determined = [amounts[n] for n in values.fast.determined]
        changes |= {
            values.states[n]: amounts[n] - values.fast.combined(n, determined) for n in values.fast.state_species
        }
    return changes | _thinned(values, new_values)


def _new_amount(values: SbmlValues, name: str, new_values: Mapping[str, ca.SX]) -> ca.SX:
    if name not in new_values:
        return values.amount(name)
    return new_values[name] if values.is_amount(name) else new_values[name] * values.size(name)


def with_delays(events: tuple[Event, ...], lines: Mapping[str, tuple[ca.SX, ca.SX]], model: Model) -> tuple[Event, ...]:
    """Return the events with the last nodes of a model's delay lines in the place of delayed values."""
    if not lines:
        return events
    ends = [d.symbol for d in model.definition.delayed], [ca.SX.sym(line.nodes[-1]) for line in model.lines]
    old = [symbol for symbol, _ in lines.values()]
    new = substitute_symbols([value for _, value in lines.values()], *ends)

    def substitute(value: Any) -> Any:
        return substitute_symbols([value], old, new)[0] if isinstance(value, ca.SX) else value

    return tuple(map_event(e, substitute) for e in events)


def map_event(event: Event, transform: Callable[[Any], Any], extra_changes: Mapping[str, ca.SX] | None = None) -> Event:
    """Return an event with its values put through a function, and more changes."""
    e = event
    changes = {n: transform(v) for n, v in {**e.changes, **(extra_changes or {})}.items()}
    if e.when is None:
        return Event(transform(e.time), changes, measured=e.measured)
    return Event(
        None, changes, measured=e.measured, when=transform(e.when), direction=e.direction, count=e.count,
        at_start=e.at_start, priority=transform(e.priority), persistent=e.persistent, rng=e.rng, forbidden=e.forbidden,
    )  # fmt: skip


def _size_after(values: SbmlValues, species: str, new_values: Mapping[str, ca.SX]) -> ca.SX:
    """Return the size of a species' compartment after an event's changes."""
    size = values.size(species)
    pairs = [(values.states[n], v) for n, v in new_values.items() if n in values.states and not values.holds_amount(n)]
    if not pairs:
        return size
    return ca.substitute([size], [ca.vertcat(*(s for s, _ in pairs))], [ca.vertcat(*(v for _, v in pairs))])[0]


def _thinned(values: SbmlValues, new_values: Mapping[str, ca.SX]) -> dict[ca.SX, ca.SX]:
    """Return the concentrations that are states by rate rules, where an event changes their compartment's size."""
    out: dict[ca.SX, ca.SX] = {}
    for name, q in values.contents.quantities.items():
        if q.kind != "species" or values.roles[name] is not QuantityRole.RATE or values.is_amount(name):
            continue
        size_before, size_after = values.size(name), _size_after(values, name, new_values)
        if not ca.is_equal(size_before, size_after, 5):
            out[values.states[name]] = new_values.get(name, values.states[name]) * size_before / size_after
    return out
