"""Jumps of delayed values: where an event makes a state jump, what it was a time tau ago jumps tau later.

At a known time that is an event of its own.  An event that is watched leaves the new value m and the time t + tau in a
place where they wait, as events with delays do (castfit.formats.sbml.waiting_events).
"""

from __future__ import annotations

import casadi as ca

from castfit.experiment.events import Event
from castfit.formats.sbml.events import map_event
from castfit.formats.sbml.values import SbmlValues, TrackedDelay
from castfit.formats.sbml.waiting_events import FLAG_THRESHOLD, EventLimits, places, too_many

_BEFORE_OTHERS = 1e200  # priority of delayed jumps: they precede the model's events of the same time


def with_late_jumps(values: SbmlValues, events: tuple[Event, ...], limits: EventLimits) -> tuple[Event, ...]:
    """Return the events together with the jumps of delayed values that they cause.

    At equal times these jumps come first.
    """
    delayed_jumps: list[Event] = []
    current_events: list[Event] = []
    is_ordered = any(e.priority is not None or not e.persistent for e in events)
    for number, e in enumerate(events):
        extra_changes: dict[str, ca.SX] = {}
        for name, f in values.followed.items():
            state = values.states[f.value.state].name()
            if state not in e.changes:
                continue
            new_value, label = ca.SX(e.changes[state]), f"{name}, jump {number + 1}"
            if e.when is None:
                value = new_value
                if ca.depends_on(new_value, ca.vertcat(values.time, values.varying, *values.memories.values())):
                    value = values.memory(label)
                    extra_changes[value.name()] = new_value
                due_time = e.time + f.tau
                delayed_jumps.append(
                    Event(
                        float(due_time) if due_time.is_constant() else due_time,
                        {f.state: value - f.initial_polynomial},
                        measured=e.measured,
                    )
                )
            else:
                stored_changes, jumps = _watched(values, e, f, new_value, label, limits, is_ordered=is_ordered)
                extra_changes |= stored_changes
                delayed_jumps += jumps
        current_events.append(map_event(e, lambda v: v, extra_changes) if extra_changes else e)
    return (*delayed_jumps, *current_events)


def _watched(
    values: SbmlValues,
    e: Event,
    f: TrackedDelay,
    new_value: ca.SX,
    label: str,
    limits: EventLimits,
    *,
    is_ordered: bool,
) -> tuple[dict[str, ca.SX], list[Event]]:
    """Return the further changes of a watched event, and the events for the jumps that follow it.

    Simultaneous jumps follow each other in the order of their events, which are numbered if they have an order.
    """
    slots = places(values, label, limits.waiting, ("is due", "sets", *(("has number",) if is_ordered else ())))
    number = values.memory("number of the jump")
    stored_values: dict[str, ca.SX] = {"is due": values.time + f.tau, "sets": new_value, "has number": number}
    change = {s.name(): v for s, v in slots.occupy_free_slot(stored_values).items()}
    if is_ordered:
        change[number.name()] = number + 1
    priorities = [
        _BEFORE_OTHERS * (1 - 1e-9 * jump_number) for jump_number in slots.stored_symbols.get("has number", [])
    ]
    jumps = [
        Event(
            when=ca.logic_and(wait > FLAG_THRESHOLD, values.time >= due),
            changes={f.state: value - f.initial_polynomial, wait: 0},
            measured=e.measured,
            count=limits.count,
            priority=priorities[i] if is_ordered else None,
        )
        for i, (wait, due, value) in enumerate(
            zip(slots.waits, slots.stored_symbols["is due"], slots.stored_symbols["sets"], strict=True)
        )
    ]
    return change, [*jumps, too_many(slots, label)]
