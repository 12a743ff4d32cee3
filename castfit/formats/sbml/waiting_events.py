"""Events that wait for their delay to pass, or for their turn among simultaneous events.

What an event sets may have been worked out when its trigger became true, while it happens later: after a delay, or
after events of a higher priority.  In between it is held by states that nothing but events changes.  An event becomes
several of castfit's,

    take        when the trigger becomes true: it waits in the first free place, is due at t + delay, and stores its
                new value m there
    happen      for each place: if it waits and is due, it sets m and waits no longer
    call off    if its trigger is not persistent: once the trigger is false, it waits no longer
    too many    if no place is free: an error that names the limit

so that the sensitivities of its time and of its values follow from the jumps of states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import casadi as ca
import numpy as np

from castfit.experiment.events import Event
from castfit.formats.sbml.classification import QuantityRole
from castfit.formats.sbml.document import SbmlEvent
from castfit.formats.sbml.values import SbmlValues
from castfit.model.comparisons import ROUNDING, Comparisons, Replacements, is_condition, replace_operations

MAX_OCCURRENCES = 100_000  # largest number of occurrences of one event
MAX_PENDING_EVENTS = 1_000  # largest number of pending (delayed) occurrences of one event
_LIMIT_GROWTH_FACTOR = 6  # factor by which a limit that was reached is raised: 3, 18, 108
_HIGHEST_PRIORITY = 1e300  # priority of events that must happen before all others of the same time
_SAMPLE_TIMES = (0.37, 1.9, 7.3)  # times at which it is found out whether a function of time rises or falls
FLAG_THRESHOLD = 0.5  # threshold between 0 (false) and 1 (true) of a flag that is stored as a state


@dataclass(frozen=True)
class EventLimits:
    """Limits of the occurrences of an event and of waiting events of a kind, and the seed for order at equal priority.

    `fixed` are the names of those that are not to grow.
    """

    count: int = 100
    waiting: int = 3
    rng: int = 0
    fixed: frozenset[str] = frozenset()

    def grown(self, *, waiting: bool) -> EventLimits | None:
        """Return larger limits, of `waiting` or of `count`; None where they may not grow."""
        name, current_limit, max_limit = (
            ("waiting", self.waiting, MAX_PENDING_EVENTS) if waiting else ("count", self.count, MAX_OCCURRENCES)
        )
        return (
            None
            if name in self.fixed or current_limit >= max_limit
            else replace(self, **{name: min(_LIMIT_GROWTH_FACTOR * current_limit, max_limit)})
        )


Changes = Callable[[Mapping[str, ca.SX]], dict[ca.SX, ca.SX]]
"""New values by name -> new states."""


@dataclass(frozen=True)
class WatchedEvent:
    """An event whose trigger is watched, with the new values by name; `changes` converts them to state changes."""

    sbml_event: SbmlEvent
    trigger: ca.SX
    new: Mapping[str, ca.SX]
    changes: Changes


@dataclass(frozen=True)
class EventQueueSlots:
    """Slots for waiting events of one kind: occupancy of each slot, and its stored values by name.

    `beyond` is 1 once none was free.
    """

    waits: Sequence[ca.SX]
    stored_symbols: Mapping[str, Sequence[ca.SX]]
    overflow_flag: ca.SX

    def occupy_free_slot(self, stored_values: Mapping[str, ca.SX]) -> dict[ca.SX, ca.SX]:
        """Return the changes by which the first place that is free is taken."""
        changes: dict[ca.SX, ca.SX] = {}
        is_full = ca.SX(1)
        for i, wait in enumerate(self.waits):
            is_free = ca.logic_and(is_full, wait < FLAG_THRESHOLD)
            new_states = {
                wait: ca.SX(1),
                **{symbols[i]: stored_values[name] for name, symbols in self.stored_symbols.items()},
            }
            changes |= {s: ca.if_else(is_free, value, s) for s, value in new_states.items()}
            is_full = ca.logic_and(is_full, wait > FLAG_THRESHOLD)
        return changes | {self.overflow_flag: ca.if_else(is_full, 1, self.overflow_flag)}


def places(values: SbmlValues, name: str, count: int, labels: Sequence[str]) -> EventQueueSlots:
    """Create the slots for waiting events, with the `labels` values of each by name; all slots are states."""
    numbers = range(1, count + 1)
    return EventQueueSlots(
        [values.memory(f"{name} waits, {i}") for i in numbers],
        {label: [values.memory(f"{name} {label}, {i}") for i in numbers] for label in labels},
        values.memory(f"{name} too many"),
    )


def too_many(slots: EventQueueSlots, name: str) -> Event:
    """Return the failure that no place was free."""
    message = f"more than {len(slots.waits)} of {name} wait at once; load with a larger waiting="
    return Event(
        when=slots.overflow_flag > FLAG_THRESHOLD, changes={slots.overflow_flag: 0}, count=1, forbidden=message
    )


def watched_events(values: SbmlValues, events: Sequence[WatchedEvent], limits: EventLimits) -> tuple[Event, ...]:
    """Convert a file's events to castfit's events, all of them watched."""
    return tuple(
        castfit_event for event in events for castfit_event in _TriggerState(values, event, events, limits).events()
    )


@dataclass(frozen=True)
class _TriggerState:
    values: SbmlValues
    event: WatchedEvent
    watched_events: Sequence[WatchedEvent]
    limits: EventLimits

    def events(self) -> list[Event]:
        """Return the castfit events that represent the event."""
        sbml_event, time = self.event.sbml_event, self.values.time
        delay = ca.SX(0)
        if sbml_event.delay is not None:
            delay = self.values.formula(f"the delay of event {sbml_event.name}", sbml_event.delay)
        is_delayed = not delay.is_zero()
        if delay.is_constant() and not float(delay) >= 0.0:
            self.values.mistakes.append(
                f"the delay of event {sbml_event.name} is {float(delay):g}; it must not be negative"
            )
        stored_names = [
            n
            for n, value in self.event.new.items()
            if sbml_event.at_trigger and self._moves(value, is_delayed=is_delayed)
        ]
        if not (is_delayed or stored_names):
            changes = self.event.changes(self.event.new)
            ordering = {"persistent": sbml_event.persistent, **self._order} if self._ordered else {}
            return [self._watched(self._trigger, changes, at_start=True, **ordering)]
        count = self.limits.waiting if is_delayed or self._can_retrigger else 1
        name = f"event {sbml_event.name}"
        slots = places(
            self.values, name, count, (*(["is due"] if is_delayed else []), *(f"sets {n}" for n in stored_names))
        )
        queue_changes = slots.occupy_free_slot(
            {"is due": time + delay, **{f"sets {n}": self.event.new[n] for n in stored_names}}
        )
        priority = _HIGHEST_PRIORITY if self._ordered else None
        events = [self._watched(self._trigger, queue_changes, at_start=True, priority=priority)]
        waits = slots.waits
        if not sbml_event.persistent:
            cancel_condition = ca.logic_and(
                reduce(ca.logic_or, [wait > FLAG_THRESHOLD for wait in waits]), ca.logic_not(self.event.trigger)
            )
            events.append(self._watched(cancel_condition, dict.fromkeys(waits, ca.SX(0)), priority=_HIGHEST_PRIORITY))
        for i, wait in enumerate(waits):
            due_condition = (
                ca.logic_and(wait > FLAG_THRESHOLD, time >= slots.stored_symbols["is due"][i])
                if is_delayed
                else wait > FLAG_THRESHOLD
            )
            new_values = {
                n: slots.stored_symbols[f"sets {n}"][i] if n in stored_names else value
                for n, value in self.event.new.items()
            }
            events.append(
                self._watched(
                    due_condition, {**self.event.changes(new_values), wait: ca.SX(0)}, persistent=False, **self._order
                )
            )
        return [*events, too_many(slots, name)]

    @property
    def _trigger(self) -> ca.SX:
        trigger = self.event.trigger
        return self.values.time >= 0 if trigger.is_constant() else trigger

    def _watched(self, when: ca.SX, changes: Mapping[ca.SX, ca.SX], *, at_start: bool = False, **options: Any) -> Event:
        """Return an event that is watched; a value at its very time shows it where the condition is true there."""
        assert is_condition(when)
        begins = at_start and not self.event.sbml_event.initially
        side = self._side
        measured = "after" if begins and side == "before" else side
        count = self.limits.count
        return Event(when=when, changes=dict(changes), measured=measured, count=count, at_start=begins, **options)

    @property
    def _side(self) -> str:
        """Return "after" if the trigger is true at the very time at which it becomes true, "before" if after it only.

        Return "if_true" if this depends on the time.  Data are taken at times that a clock names: where time alone
        passes something, that decides.
        """
        values, parts = self.values, Comparisons.from_condition(self._trigger)
        constant_names = {s.name() for n, s in values.states.items() if values.roles[n] is QuantityRole.HELD}
        constant_names |= {s.name() for s in values.memories.values()}
        variables = ca.vertcat(*(s for s in ca.vertsplit(values.varying) if s.name() not in constant_names))
        clock_results, other_results = set[bool | None](), set[bool | None]()
        for k, g in enumerate(parts.differences):
            jumps: Replacements = {}
            smooth = replace_operations(g, ROUNDING, jumps)
            direction = self._find_direction(smooth, values.time)
            slopes = ca.jacobian(smooth, ca.vertcat(values.time, variables))
            if (
                jumps
                and (not slopes.is_zero() or len({jump.op() for _, jump in jumps.values()}) > 1)
                and parts.is_special_at_zero(k)
            ):
                values.mistakes.append(
                    f"the trigger of event {self.event.sbml_event.name} changes at single times at which floor or ceil "
                    "jumps; use an inequality, such as time - floor(time) < 0.5 for floor(time) == time"
                )
            if ca.depends_on(g, variables):
                other_results.add(parts.becomes_true(k, 0))
            elif ca.depends_on(g, values.time) and (direction or not jumps):
                clock_results.add(parts.becomes_true(k, direction))
            for symbol, jump in jumps.values():
                rises = self._find_direction(jump.dep(0), values.time)
                direction = rises * self._find_direction(smooth, symbol)
                if rises:  # floor has its new value at once if its argument rises, and ceil later
                    clock_results.add(
                        parts.becomes_true(k, direction, at_jump=(jump.op() == ca.OP_FLOOR) == (rises > 0))
                    )
        if {True, False} <= clock_results:
            return "if_true"
        return "after" if True in (clock_results if clock_results - {None} else other_results) else "before"

    def _find_direction(self, g: ca.SX, symbol: ca.SX) -> int:
        """Return the sign of a derivative at some times, by the file's values of parameters; 0 if it has none."""
        values, slope = self.values, ca.jacobian(g, symbol)
        if not {s.name() for s in ca.symvar(slope)} <= {values.time.name(), *values.numbers}:
            return 0
        slopes = [values.number(ca.substitute([slope], [values.time], [ca.SX(t)])[0]) for t in _SAMPLE_TIMES]
        return int(np.sign(slopes[0])) if len(set(np.sign(slopes))) == 1 else 0

    @property
    def _ordered(self) -> bool:
        """Whether any event has a priority, or may be called off by another one."""
        states = self.values.varying
        return any(
            e.sbml_event.priority is not None or (not e.sbml_event.persistent and ca.depends_on(e.trigger, states))
            for e in self.watched_events
        )

    @property
    def _order(self) -> dict[str, Any]:
        """The event's place among simultaneous events."""
        return {"priority": self._priority, "rng": self.limits.rng} if self._ordered else {}

    @property
    def _priority(self) -> ca.SX | None:
        sbml_event = self.event.sbml_event
        return (
            None
            if sbml_event.priority is None
            else self.values.formula(f"the priority of event {sbml_event.name}", sbml_event.priority)
        )

    @property
    def _changed(self) -> ca.SX:
        """The states that events change, this one only if it may be triggered again before it happens."""
        other_events = [e for e in self.watched_events if e is not self.event or e.sbml_event.persistent]
        return ca.vertcat(*{s.name(): s for e in other_events for s in e.changes(e.new)}.values())

    def _moves(self, value: ca.SX, *, is_delayed: bool) -> bool:
        """Check whether a value may change between the trigger and the execution of the event."""
        if is_delayed:
            return ca.depends_on(value, ca.vertcat(self.values.time, self.values.varying))
        return self._ordered and ca.depends_on(value, self._changed)

    @property
    def _can_retrigger(self) -> bool:
        """Whether events can make its trigger true again while it waits for its turn."""
        return self.event.sbml_event.persistent and ca.depends_on(self.event.trigger, self._changed)
