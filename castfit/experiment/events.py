"""Events that change the states of a system at certain times, and doses.

An event replaces states by expressions of what they were; a dose adds an amount to one state, at once or by an
infusion.  Everything may depend on parameters, times as well: a lag time is estimated like a rate constant.

Events at one time happen in the order in which they are listed, each on the state that the one before it left; the
changes of one event happen at once, and so do events whose conditions become true together.  A time that is estimated
and meets one that is known counts as later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike

from castfit._support.arguments import (
    is_count,
    is_one_of,
    number_remedy,
    option_mistakes,
    read_mapping,
    read_real,
    read_reals,
    read_sequence,
    shorten_repr,
    symbol_or_text_name,
)
from castfit._support.pickling import Picklable
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit.experiment.inputs import Input
from castfit.model.comparisons import is_condition
from castfit.model.expressions import number_or_expression

Value = float | ca.SX

_SIDES = ("before", "after")
_CONDITION_SIDE = "if_true"  # of a condition: after the event if it is true at the time of the event
DIRECTIONS = {"rising": 1, "falling": -1, "either": 0}
_DEFAULT_EVENT_COUNT = 20  # largest number of occurrences of a state-triggered event if `count` is not set
_MAX_EVENT_COUNT = 100_000  # largest number of doses or occurrences: more suggest an error in the unit of time
_LARGEST_SEED = 2**32 - 1
_INTERVAL_RTOL = 1e-9  # rounding error of a dosing time, relative to the interval between doses


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False, init=False)
class Event(Picklable):
    """A change of states at one time, or when states reach something.

    Parameters
    ----------
    time : float or expression of parameters
        When, in the experiment's time, not before its start.  Where it is an expression it is estimated with the
        parameters in it, and must stay behind the start; beyond the last measurement it has no effect.
    changes : mapping from state to float or expression
        The new value of each state that changes, from states, parameters, inputs and time just before:
        ``{x: x + dose, y: 0.5 * y}``.
    measured : {"before", "after", "if_true"}
        Whether a value measured at the very time of the event was measured before or after it.  With "if_true", which
        requires a condition, it was measured after the event if the condition is true at that time, as ``t >= 3``.
    when : expression of states, parameters, inputs and time, instead of `time`
        The event happens where this passes zero; or, if it is a condition such as ``x > 1`` or
        ``casadi.logic_and(x > 1, t < 5)``, whenever that becomes true, by a jump as well.  By single and multiple
        shooting and in simulations.
    direction : {"either", "rising", "falling"}
        In which direction it must pass zero.
    at_start : bool
        Whether it happens at the start, too, if the condition is true there.
    count : int
        How often that may happen; more often is a failure.
    priority : float or expression, optional
        Of a condition: which comes first where several are true at one time.  The one of the highest priority happens,
        then that of those left, each on the states that the one before it left; one without priority comes last.
        Where none has a priority, all happen at once.
    persistent : bool
        Of a condition: whether it happens although it is no longer true when its turn comes.
    rng : int, optional
        Seed by which those of the same priority are put in order, anew at every such time, and alike in every
        integration; by default they follow the order in which they are listed.
    forbidden : str
        Of a condition: why it must not come true, in words.  That it does is a failure which says so.

    Raises
    ------
    InputError
        Listing every mistake.

    Examples
    --------
    >>> import castfit as cf
    >>> x, y, dose, when = cf.symbols("x y dose when")
    >>> cf.Event(24, {x: x + dose})
    Event(time=24, changes={'x': (x+dose)})
    >>> cf.Event(when, {x: 0.5 * x, y: 0}, measured="after")
    Event(time=when, changes={'x': (0.5*x), 'y': 0}, measured='after')
    >>> cf.Event(when=x - 3, changes={y: -0.8 * y}, direction="falling")
    Event(time=inf, changes={'y': (-0.8*y)}, when=(x-3), direction='falling', count=20)
    >>> cf.Event(when=x < 3, changes={y: y + dose}, at_start=True)
    Event(time=inf, changes={'y': (y+dose)}, when=(x<3), count=20, at_start=True)
    """

    time: Value
    changes: Mapping[str, Value]
    measured: str = "before"
    when: ca.SX | None = None
    direction: str = "either"
    count: int = 1
    at_start: bool = False
    priority: Value | None = None
    persistent: bool = True
    rng: int | None = None
    forbidden: str = ""

    def __init__(
        self,
        time: Value | None = None,
        changes: Mapping[Any, Value] | None = None,
        *,
        measured: str = "before",
        when: ca.SX | None = None,
        direction: str = "either",
        count: int = _DEFAULT_EVENT_COUNT,
        at_start: bool = False,
        priority: Value | None = None,
        persistent: bool = True,
        rng: int | None = None,
        forbidden: str = "",
    ) -> None:
        mistakes: list[str] = []
        new_values = {
            n: _value(f"the new value of '{n}'", v, mistakes)
            for n, v in read_mapping("changes", changes, mistakes).items()
        }
        if not new_values and not mistakes:
            mistakes.append("nothing changes; give the new values of states, as in {x: x + dose}")
        event_time: Value = np.inf
        if (time is None) == (when is None):
            mistakes.append("give either a time or when=, an expression that passes zero")
        elif when is None:
            event_time = _value("time", time, mistakes)
        elif not isinstance(_value("when", when, mistakes), ca.SX):
            mistakes.append(f"when is {shorten_repr(when)}; give an expression of states that passes zero")
        condition = isinstance(when, ca.SX) and when.numel() == 1 and is_condition(when)
        mistakes += [] if condition and is_one_of(measured, _CONDITION_SIDE) else _side_mistakes(measured)
        count_remedy = "give the largest number of events, a positive integer"
        mistakes += option_mistakes(
            ("direction", direction, is_one_of(direction, *DIRECTIONS), "choose 'either', 'rising' or 'falling'"),
            ("count", count, is_count(count, 1, _MAX_EVENT_COUNT), count_remedy),
        )
        if when is None and not (is_one_of(direction, "either") and is_one_of(count, 1, _DEFAULT_EVENT_COUNT)):
            mistakes.append("direction and count apply only to when=; remove them for an event at a time")
        if condition and not is_one_of(direction, "either"):
            mistakes.append(
                "a condition has no direction; write for example when=x > 3, or when=x - 3 with a direction"
            )
        if at_start is not False and not (at_start is True and condition):
            mistakes.append(
                f"at_start is {shorten_repr(at_start)}; it may be True where when= is a condition, such as x > 3"
            )
        rank = None if priority is None else _value("priority", priority, mistakes)
        is_seed = rng is None or is_count(rng, 0, _LARGEST_SEED)
        mistakes += option_mistakes(
            ("persistent", persistent, is_one_of(persistent, True, False), "give True or False"),
            ("rng", rng, is_seed, "give a seed, an integer that is not negative"),
            ("forbidden", forbidden, isinstance(cast("Any", forbidden), str), "say in words why it must not happen"),
        )
        ordered = rank is not None or persistent is not True or rng is not None or not is_one_of(forbidden, "")
        if ordered and not condition:
            option_names = "priority, persistent, rng and forbidden apply only to a condition"
            mistakes.append(f"{option_names}; write for example when=x > 3")
        raise_if_mistakes("Event", mistakes)
        vars(self).update(
            time=event_time, changes=new_values, measured=measured, when=when, direction=direction, at_start=at_start
        )
        vars(self).update(count=1 if when is None else count, priority=rank, persistent=persistent)
        vars(self).update(rng=rng, forbidden=forbidden)


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False, init=False)
class Doses(Picklable):
    """Amounts given to one state, once or repeatedly, at once or by infusions.

    Parameters
    ----------
    into : state or its name
        The state that receives the amount, such as the amount of drug in the gut; for a concentration give
        ``amount=dose / volume``.
    amount : float, expression, or sequence of them
        What is added by each dose, or by one each; for an infusion an expression of parameters alone.
    times : float, expression of parameters, or sequence of them
        When the doses are given, or the infusions begin; by default 0.
    every : float, optional
        The interval after which a single time repeats: `count` times in all, or, without it, up to the last
        measurement.
    count : int, optional
        Number of doses, with `every`.
    duration : float or expression of parameters, optional
        The amount is infused at a constant rate, amount / duration, from its time for so long.  Infusions may overlap.
    lag : float or expression of parameters
        Added to all times.
    bioavailability : float or expression
        The fraction of the amount that arrives.
    measured : {"before", "after"}
        Whether a value measured at the very time of a dose was measured before (a trough) or after it.

    Raises
    ------
    InputError
        Listing every mistake: negative durations, times that do not fit the amounts, ...

    Examples
    --------
    >>> import castfit as cf
    >>> gut, blood, ka, ke = cf.symbols("gut blood ka ke")
    >>> lag, F = cf.symbols("lag F")
    >>> cf.Doses(into=gut, amount=320, times=0, every=24, count=7, lag=lag, bioavailability=F)
    Doses(into='gut', amount=(320,), times=(0,), every=24, count=7, lag=lag, bioavailability=F)
    >>> cf.Doses(into=blood, amount=[100, 50], times=[0, 12], duration=2)
    Doses(into='blood', amount=(100, 50), times=(0, 12), duration=2)
    """

    into: str
    amount: tuple[Value, ...]
    times: tuple[Value, ...]
    every: float | None = None
    count: int | None = None
    duration: Value | None = None
    lag: Value = 0.0
    bioavailability: Value = 1.0
    measured: str = "before"

    def __init__(
        self,
        into: ca.SX | str,
        amount: Value | Sequence[Value] | ArrayLike,
        times: Value | Sequence[Value] | ArrayLike = 0.0,
        *,
        every: float | None = None,
        count: int | None = None,
        duration: Value | None = None,
        lag: Value = 0.0,
        bioavailability: Value = 1.0,
        measured: str = "before",
    ) -> None:
        mistakes: list[str] = []
        name = symbol_or_text_name(into)
        if name is None:
            mistakes.append(f"into is {shorten_repr(into)}; give a state of the model, or its name")
        amounts, when = _values("amount", amount, mistakes), _values("times", times, mistakes)
        if every is not None:
            interval = read_real(every)
            if interval is None or not 0 < interval < np.inf:
                mistakes.append(f"every is {shorten_repr(every)}; give the positive time between doses")
            if len(when) != 1:
                mistakes.append(f"every repeats one time, but {len(when)} are given; list all times, or give the first")
            if count is not None and not is_count(count, 1, _MAX_EVENT_COUNT):
                mistakes.append(f"count is {shorten_repr(count)}; give the number of doses, a positive integer")
            if len(amounts) != 1:
                mistakes.append("every repeats one amount; give one, or list all times")
        elif count is not None:
            mistakes.append("count is the number of repeated doses; give every= too")
        elif len(amounts) not in (1, len(when)):
            mistakes.append(f"{len(amounts)} amounts are given for {len(when)} times; give one, or one for each")
        infusion_duration = None if duration is None else _value("duration", duration, mistakes)
        if isinstance(infusion_duration, float) and infusion_duration <= 0:
            mistakes.append(
                f"duration is {infusion_duration:g}; it must be positive; without duration= a dose is given at once"
            )
        dose_lag, fraction = _value("lag", lag, mistakes), _value("bioavailability", bioavailability, mistakes)
        for label, number in (("lag", dose_lag), ("bioavailability", fraction)):
            if isinstance(number, float) and number < 0:
                mistakes.append(f"{label} is {number:g}; it must not be negative")
        mistakes += _side_mistakes(measured)
        if infusion_duration is not None and is_one_of(measured, "after"):
            mistakes.append("measured is for doses at once, and an infusion changes nothing at once; leave it out")
        raise_if_mistakes("Doses", mistakes)
        vars(self).update(into=name, amount=amounts, times=when, every=None if every is None else float(every))
        vars(self).update(
            count=count, duration=infusion_duration, lag=dose_lag, bioavailability=fraction, measured=measured
        )

    @property
    def endless(self) -> bool:
        """Whether the doses continue up to the last measurement."""
        return self.every is not None and self.count is None


@dataclass(frozen=True, eq=False)
class ParameterSwitch(Picklable):
    """Parameters of the model that have other values from a time on; made of estimated inputs and PEtab's periods."""

    time: float
    values: Mapping[str, Value]
    measured: str = "before"


Happening = Event | Doses | ParameterSwitch


@dataclass(frozen=True, eq=False)
class ScheduledEvent:
    """One thing that happens at one time, `what` in words.

    changes : new states, for an event
    into, amount : the state that a dose goes into, and how much; of an infusion how much per time, and `until` when
    when : the event that states trigger, of which this is one of those that may happen
    values : what parameters are from then on
    """

    label: str
    time: Value
    measured: str
    changes: Mapping[str, Value] | None = None
    into: str = ""
    amount: Value = 0.0
    end_time: Value | None = None
    when: Event | None = None
    values: Mapping[str, Value] | None = None


def occurrences(events: Iterable[Happening], end: float) -> list[ScheduledEvent]:
    """List all scheduled events in the order of definition; repeated doses without a count end at `end`."""
    scheduled_events: list[ScheduledEvent] = []
    for event in events:
        if isinstance(event, Event):
            trigger = None if event.when is None else event
            for side in ("after", "before") if event.measured == _CONDITION_SIDE else (event.measured,):
                scheduled_events += [
                    ScheduledEvent("the event", event.time, side, event.changes, when=trigger)
                ] * event.count
        elif isinstance(event, ParameterSwitch):
            scheduled_events.append(ScheduledEvent("the knot", event.time, event.measured, values=event.values))
        else:
            scheduled_events += _doses(event, end)
    return scheduled_events


def is_after_data(event: Happening, end: float) -> bool:
    """Whether an event happens at known times only, and after the last measurement."""
    happens = occurrences([event], end)
    return all(isinstance(o.time, float) and o.when is None and o.time > end for o in happens)


def _doses(doses: Doses, end: float) -> list[ScheduledEvent]:
    first_time, times = doses.times[0], list(doses.times)
    if doses.every is not None:
        count = doses.count
        if count is None:
            reference_time = first_time if isinstance(first_time, float) else 0.0
            count = int(
                np.clip(np.floor((end - reference_time) / doses.every + _INTERVAL_RTOL) + 1, 1, _MAX_EVENT_COUNT)
            )
        times = [first_time + i * doses.every for i in range(count)]
    amounts = doses.amount if len(doses.amount) > 1 else doses.amount * len(times)
    scheduled_events: list[ScheduledEvent] = []
    for time, amount in zip(times, amounts, strict=True):
        effective_amount = amount if is_one_of(doses.bioavailability, 1.0) else doses.bioavailability * amount
        start_time = time if is_one_of(doses.lag, 0.0) else time + doses.lag
        if doses.duration is None:
            scheduled_events.append(
                ScheduledEvent(
                    f"the dose into '{doses.into}'", start_time, doses.measured, None, doses.into, effective_amount
                )
            )
        else:
            label, rate, end_time = (
                f"the infusion into '{doses.into}'",
                effective_amount / doses.duration,
                start_time + doses.duration,
            )
            scheduled_events.append(ScheduledEvent(label, start_time, doses.measured, None, doses.into, rate, end_time))
    return scheduled_events


def input_jumps(inputs: Iterable[Input], start: float, end: float) -> list[ScheduledEvent]:
    """List the jumps of inputs, at which states stay as they are."""
    return [
        ScheduledEvent("the jump of an input", float(t), u.measured, changes={})
        for u in inputs
        for t in u.jumps
        if start < t <= end
    ]


def single_occurrence(event: Happening) -> Happening:
    """Return an event that states trigger as one that may happen once; others as they are."""
    if not isinstance(event, Event) or event.when is None:
        return event
    twin = Event.__new__(Event)
    vars(twin).update({**vars(event), "count": 1})
    return twin


def events_until(events: Iterable[Happening], end: float) -> tuple[Happening, ...]:
    """Return the events of which something may happen up to a time."""
    return tuple(
        e
        for e in events
        if any(not isinstance(o.time, float) or o.time <= end or o.when for o in occurrences([e], end))
    )


def event_symbols(events: Iterable[Happening]) -> frozenset[str]:
    """Return the names of all symbols in the expressions of events."""
    return frozenset(s.name() for event in events for v in _expressions(event) for s in ca.symvar(v))


def _expressions(event: Happening) -> list[ca.SX]:
    if isinstance(event, Event):
        values: list[Value | None] = [event.time, event.when, event.priority, *event.changes.values()]
    elif isinstance(event, ParameterSwitch):
        values = [*event.values.values()]
    else:
        values = [*event.amount, *event.times, event.duration, event.lag, event.bioavailability]
    return [v for v in values if isinstance(v, ca.SX)]


def read_events(argument: Any, mistakes: list[str]) -> tuple[Happening, ...]:
    """Read the events of an experiment."""
    if _happens(argument):
        return (argument,)
    entries = [] if argument is None else read_sequence(argument)
    if entries is None:
        mistakes.append(f"events is {shorten_repr(argument)}; give a list of Event(...) and Doses(...)")
        return ()
    mistakes += [
        f"events contains {shorten_repr(e)}; give Event(...) or Doses(...)" for e in entries if not _happens(e)
    ]
    return tuple(e for e in entries if _happens(e))


def _happens(event: Any) -> bool:
    return isinstance(event, (Event, Doses, ParameterSwitch))


def _side_mistakes(measured: Any) -> list[str]:
    return [] if is_one_of(measured, *_SIDES) else [f"measured is {shorten_repr(measured)}; choose 'before' or 'after'"]


def _value(label: str, value: Any, mistakes: list[str]) -> Value:
    remedy = number_remedy(value, "give a finite number or a scalar SX expression")
    return number_or_expression(label, value, remedy, mistakes)


def _values(label: str, argument: Any, mistakes: list[str]) -> tuple[Value, ...]:
    """Read one or several numbers or expressions."""
    if isinstance(argument, ca.SX) and argument.numel():
        parts = list(ca.vertsplit(ca.vec(argument))) if argument.numel() != 1 else [argument]
        return tuple(_value(label, v, mistakes) for v in parts)
    array = read_reals(argument)
    entries: Sequence[Any] | None = (
        array.ravel().tolist() if array is not None and array.ndim <= 1 else read_sequence(argument)
    )
    default_remedy = "give a number, an expression, or a list of them"
    remedy = number_remedy(argument, default_remedy)
    if not entries or remedy != default_remedy:
        mistakes.append(f"{label} is {shorten_repr(argument)}; {remedy}")
        return (np.nan,) * len(entries or [argument])
    return tuple(_value(label, v, mistakes) for v in entries)
