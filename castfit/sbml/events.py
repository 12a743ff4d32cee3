"""Events: what a file says of them, as castfit's events.

A trigger of time and parameters alone becomes true at times that are known or estimated, so that any transcription can
put the boundary of a stage there.  Any other trigger is watched.
"""

from __future__ import annotations

from collections.abc import Mapping

import casadi as ca

from castfit.events import Event
from castfit.sbml.contents import Happening
from castfit.sbml.formulas import truth
from castfit.sbml.roles import Role
from castfit.sbml.values import Values


def events_of(values: Values) -> tuple[Event, ...]:
    """Return castfit's events for those of a file; what cannot be said is added to `values.mistakes`."""
    found: list[Event] = []
    for happening in values.contents.events:
        what = f"the trigger of event {happening.name}"
        trigger = truth(values.formula(what, happening.trigger))
        changes = _changes(values, happening)
        if not changes:
            continue
        if trigger.is_constant() or trigger.op() not in (ca.OP_LT, ca.OP_LE):
            values.mistakes.append(f"{what} is not a comparison")
            continue
        g = trigger.dep(1) - trigger.dep(0)
        after = "after" if trigger.op() == ca.OP_LE else "before"
        if any(ca.depends_on(g, s) for s in (*values.states.values(), *values.algebraic.values())):
            found.append(Event(when=g, changes=changes, direction="rising", measured=after))
            continue
        slope = ca.simplify(ca.jacobian(g, values.time))
        if not slope.is_constant() or float(slope) <= 0.0:
            values.mistakes.append(f"{what} is not a comparison")
            continue
        at = ca.simplify(ca.substitute(-g / slope, values.time, 0))
        found.append(Event(float(at) if at.is_constant() else at, changes, measured=after))
    return tuple(found)


def _changes(values: Values, happening: Happening) -> dict[ca.SX, ca.SX]:
    """Return the new value of each state that an event changes."""
    what = f"event {happening.name}"
    new = {n: values.formula(f"the new value of '{n}' in {what}", tree) for n, tree in happening.assignments.items()}
    changes: dict[ca.SX, ca.SX] = {}
    for name, value in new.items():
        role = values.roles.get(name)
        if role is None or not role.is_state:
            by = "" if role is None else f", which follows from {role.value}"
            values.mistakes.append(f"{what} changes '{name}'{by}")
            continue
        changes[values.states[name]] = value * _size_after(values, name, new) if values.holds_amount(name) else value
    return changes | _thinned(values, new)


def _size_after(values: Values, species: str, new: Mapping[str, ca.SX]) -> ca.SX:
    """Return the size of a species' compartment after an event's changes."""
    size = values.size(species)
    pairs = [(values.states[n], v) for n, v in new.items() if n in values.states and not values.holds_amount(n)]
    if not pairs:
        return size
    return ca.substitute([size], [ca.vertcat(*(s for s, _ in pairs))], [ca.vertcat(*(v for _, v in pairs))])[0]


def _thinned(values: Values, new: Mapping[str, ca.SX]) -> dict[ca.SX, ca.SX]:
    """Return the concentrations that are states by rate rules, where an event changes their compartment's size."""
    out: dict[ca.SX, ca.SX] = {}
    for name, q in values.contents.quantities.items():
        if q.kind != "species" or values.roles[name] is not Role.RATE or name in new or values.is_amount(name):
            continue
        before, after = values.size(name), _size_after(values, name, new)
        if not ca.is_equal(before, after, 5):
            out[values.states[name]] = values.states[name] * before / after
    return out
