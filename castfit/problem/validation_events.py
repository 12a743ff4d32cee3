"""What can be wrong with the events of an experiment, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

from castfit.experiment.events import Doses, Event, Occurrence, Setting, occurrences
from castfit._support.status import suggest

if TYPE_CHECKING:
    from castfit.experiment.experiment import Experiment
    from castfit.model.model import Model
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.parameters import Statement


def event_mistakes(said: Statement, experiment: Experiment, parameters: Sequence[str]) -> list[str]:
    """Find every mistake in the events of an experiment; `parameters` are the names of all that there are."""
    model, start, end = said.model, experiment.start, experiment.end
    mistakes: list[str] = []
    given = (event for event in experiment.events if not isinstance(event, Setting))
    for i, event in enumerate(given):
        what = f"event {i + 1}"
        mistakes += _name_mistakes(what, event, model, parameters)
        happens = occurrences([event], end)
        times = [o.time for o in happens if isinstance(o.time, float) and o.when is None]
        early = [t for t in times if t < start]
        if early:
            mistakes.append(f"{what} happens at t = {early[0]:g}, before the start {start:g}; events come after it")
        elif times and len(times) == len(happens) and min(times) > end:
            mistakes.append(
                f"{what} happens at t = {min(times):g}, after the last measurement at {end:g}; no data can show it"
            )
    return mistakes + _side_mistakes(occurrences(experiment.events, end))


def _name_mistakes(what: str, event: Event | Doses, model: Model, parameters: Sequence[str]) -> list[str]:
    """Find names that an event must not use."""
    mistakes: list[str] = []
    changed = tuple(event.changes) if isinstance(event, Event) else (event.into,)
    for name in changed:
        if name in model.algebraic_states:
            mistakes.append(
                f"{what} changes the algebraic state '{name}', which follows from the equations; change states"
            )
        elif name not in model.own_states:
            mistakes.append(f"{what} changes '{name}', which is no state: {suggest(name, model.own_states)}")
        elif name in model.delayed_states and not (isinstance(event, Doses) and event.duration is not None):
            mistakes.append(
                f"{what} changes '{name}', whose past the model needs: no delay line holds a jump; give an infusion"
            )
    anything = {*parameters, *model.own_states, *model.inputs, model.system.t.name()}
    if isinstance(event, Event):
        free, fixed = [*event.changes.values(), event.when], [("its time", event.time)]
    else:
        given = [*event.amount, event.bioavailability]
        free = [] if event.duration is not None else given
        fixed = [("the amount of an infusion", v) for v in given] if event.duration is not None else []
        fixed += [("its times", v) for v in event.times]
        fixed += [("its duration", event.duration), ("its lag", event.lag)]
    for name in _names(free):
        if name in model.algebraic_states:
            mistakes.append(f"{what} contains the algebraic state '{name}'; write it in terms of states")
        elif name not in anything:
            mistakes.append(f"{what} contains '{name}', which is not in the model: {suggest(name, sorted(anything))}")
    for where, value in fixed:
        for name in _names([value]):
            if name in anything and name not in parameters:
                mistakes.append(f"{what}: {where} contains '{name}'; only parameters may appear there")
            elif name not in parameters:
                mistakes.append(
                    f"{what}: {where} contains '{name}', which is no parameter: {suggest(name, parameters)}"
                )
    return list(dict.fromkeys(mistakes))


def _names(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(s.name() for v in values if isinstance(v, ca.SX) for s in ca.symvar(v)))


def _side_mistakes(happens: Sequence[Occurrence]) -> list[str]:
    """Find times at which something is to be measured before and after."""
    sides: dict[float, set[str]] = {}
    for o in happens:
        if o.until is None and o.when is None and isinstance(o.time, float):
            sides.setdefault(o.time, set()).add(o.measured)
    return [
        f"at t = {t:g} one event is measured 'before' and another 'after'; give all events of one time the same"
        for t, of in sides.items()
        if len(of) > 1
    ]


def event_guess_mistakes(posed: Posed) -> list[str]:
    """Find events that cannot happen at the guess."""
    mistakes: list[str] = []
    for condition in posed.conditions:
        schedule, at = condition.schedule, condition.link.natural(posed.guess[condition.theta])
        if not schedule or not np.isfinite(at.e).all():  # reported with the other expressions
            continue
        reason = schedule.impossible(at.e, condition.start)
        if reason:
            mistakes.append(f"{condition.name}: {reason}, at the guess; change the guess or the expression")
        late = [i for i in schedule.instants if i.moves and at.e[i.time] < condition.end]
        if any(i.moves and i.trigger is None for i in schedule.instants) and not late:
            mistakes.append(
                f"{condition.name}: at the guess all estimated times lie after the last measurement at "
                f"{condition.end:g}, where no data show them; change the guess"
            )
    return mistakes
