"""Jumps of delayed values: where an event makes a state jump, what it was a time tau ago jumps tau later.

At a known time that is an event of its own.  An event that is watched leaves the new value m and the time t + tau in a
place where they wait, as events with delays do (castfit.formats.sbml.waiting_events).
"""

from __future__ import annotations

import casadi as ca

from castfit.experiment.events import Event
from castfit.formats.sbml.events import restated
from castfit.formats.sbml.values import FollowedDelay, SbmlValues
from castfit.formats.sbml.waiting_events import HALF, EventLimits, places, too_many

_BEFORE_OTHERS = 1e200  # a priority: what was so a time ago is so before anything that happens now


def with_late_jumps(values: SbmlValues, events: tuple[Event, ...], limits: EventLimits) -> tuple[Event, ...]:
    """Return the events together with the jumps of delayed values that they cause.

    At equal times these jumps come first.
    """
    late: list[Event] = []
    now: list[Event] = []
    ordered = any(e.priority is not None or not e.persistent for e in events)
    for number, e in enumerate(events):
        more: dict[str, ca.SX] = {}
        for name, f in values.followed.items():
            state = values.states[f.value.state].name()
            if state not in e.changes:
                continue
            new, what = ca.SX(e.changes[state]), f"{name}, jump {number + 1}"
            if e.when is None:
                value = new
                if ca.depends_on(new, ca.vertcat(values.time, values.varying, *values.memories.values())):
                    value = values.memory(what)
                    more[value.name()] = new
                due = e.time + f.tau
                late.append(
                    Event(float(due) if due.is_constant() else due, {f.state: value - f.begun}, measured=e.measured)
                )
            else:
                added, happen = _watched(values, e, f, new, what, limits, ordered=ordered)
                more |= added
                late += happen
        now.append(restated(e, lambda v: v, more) if more else e)
    return (*late, *now)


def _watched(
    values: SbmlValues, e: Event, f: FollowedDelay, new: ca.SX, what: str, limits: EventLimits, *, ordered: bool
) -> tuple[dict[str, ca.SX], list[Event]]:
    """Return the further changes of a watched event, and the events for the jumps that follow it.

    Those of one time follow each other as the events did, which are numbered where they have an order.
    """
    found = places(values, what, limits.waiting, ("is due", "sets", *(("has number",) if ordered else ())))
    number = values.memory("number of the jump")
    said: dict[str, ca.SX] = {"is due": values.time + f.tau, "sets": new, "has number": number}
    change = {s.name(): v for s, v in found.taken(said).items()}
    if ordered:
        change[number.name()] = number + 1
    turns = [_BEFORE_OTHERS * (1 - 1e-9 * of) for of in found.of.get("has number", [])]
    jumps = [
        Event(
            when=ca.logic_and(wait > HALF, values.time >= due),
            changes={f.state: value - f.begun, wait: 0},
            measured=e.measured,
            count=limits.count,
            priority=turns[i] if ordered else None,
        )
        for i, (wait, due, value) in enumerate(zip(found.waits, found.of["is due"], found.of["sets"], strict=True))
    ]
    return change, [*jumps, too_many(found, what)]
