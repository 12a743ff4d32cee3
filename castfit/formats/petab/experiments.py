"""Construction of experiments from PEtab tables: initial values, pre-equilibration, later changes and measured data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isinf
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.status import InputError
from castfit.experiment.events import Event, ParameterSwitch
from castfit.experiment.experiment import Experiment
from castfit.experiment.steady import conservation_laws
from castfit.formats.petab.formulas import Graph, expression
from castfit.formats.petab.identifiers import Constants, Entities, Naming
from castfit.formats.petab.observing import Datum, Observing
from castfit.formats.petab.parsing import FormulaError
from castfit.formats.petab.problem_tables import NAN, ExperimentRow, Period, ProblemTables
from castfit.model.model import Model
from castfit.simulate.steady_state import steady_state


@dataclass(frozen=True)
class PeriodValues:
    """Values that one period assigns: constants and initial values, by name. `chosen`: the states set at the start.

    `where` is the table row of each target.
    """

    constants: dict[str, Graph]
    states: dict[str, Graph]
    chosen: frozenset[str]


@dataclass(frozen=True)
class Reader:
    """Reader of experiment rows; errors are appended to `mistakes`."""

    stated: ProblemTables
    entities: Entities
    naming: Naming
    mistakes: list[str]

    def plan(self, row: ExperimentRow) -> dict[float, PeriodValues]:
        """Return the assigned values of each period of an experiment, keyed by the period's time."""
        later = row.during[0].time if row.during else 0.0
        return {p.time: self._values(p, row, moving=p.time > later) for p in row.periods}

    def _values(self, period: Period, row: ExperimentRow, *, moving: bool) -> PeriodValues:
        given = self._given(period, row)
        entities = self.entities
        if not moving and (row.before is None or period is row.before):
            begin = 0.0 if isinf(period.time) else period.time
            given = {n: self._at_begin(v, begin) for n, v in given.items()}
        states = {n: v for n, v in given.items() if n in entities.state_of}
        self._refuse_states(given, period, row, moving=moving)
        if moving:
            constants = {n: v for n, v in given.items() if n not in states}
            return PeriodValues(constants, {entities.state_of[n]: v for n, v in states.items()}, frozenset())
        try:
            start = entities.start(given)
        except InputError as error:
            self._add(f"{row.where}: {m}" for m in error.problems)
            return PeriodValues({}, {}, frozenset())
        chosen = frozenset(entities.state_of[n] for n in states)
        initial = {
            n: v
            for n, v in start.initial.items()
            if n in chosen or (states and not ca.is_equal(ca.SX(v), ca.SX(entities.initial.get(n, 0)), 20))
        }
        follow = [
            n
            for n, v in start.parameters.items()
            if n not in given and n not in self.naming.targets and self._differs(n, v)
        ]
        self._add(
            f"{row.where}: '{n}' is computed from an initial value that a condition sets, which is not supported"
            for n in follow
        )
        return PeriodValues({n: v for n, v in start.parameters.items() if n in self.naming.targets}, initial, chosen)

    def _at_begin(self, value: Graph, time: float) -> Graph:
        """Return a value with the model's own initial states, which are the current ones when an experiment begins."""
        if not isinstance(value, ca.SX) or value.is_constant():
            return value
        old, states = self._begin
        return ca.SX(ca.substitute([value], [old], [ca.vertcat(time, states)])[0])

    @cached_property
    def _begin(self) -> tuple[ca.SX, ca.SX]:
        """Time and states that have initial values, and these values."""
        entities = self.entities
        symbols = [(s, entities.initial[n]) for n, (s, _) in entities.rates.items() if n in entities.initial]
        return ca.vertcat(entities.time, *(s for s, _ in symbols)), ca.vertcat(*(ca.SX(v) for _, v in symbols))

    def _differs(self, name: str, value: Graph) -> bool:
        """Check whether a value of a constant differs from its value in the model."""
        return not ca.is_equal(ca.SX(value), ca.SX(self.entities.values[name]), 20)

    def _given(self, period: Period, row: ExperimentRow) -> dict[str, Graph]:
        """Return the values assigned by the conditions of a period, keyed by model identifier."""
        given: dict[str, Graph] = {}
        said: dict[str, tuple[str, str]] = {}
        for change in (c for name in period.conditions for c in self.stated.conditions.get(name, ())):
            if said.get(change.target, (change.value, ""))[0] != change.value:
                value, where = said[change.target]
                self._add(
                    [
                        f"{change.where}: '{change.target}' is {change.value} here and {value} in {where}, at the same "
                        f"time in experiment '{row.name}'"
                    ]
                )
            said[change.target] = (change.value, change.where)
            target = self.stated.mapping.get(change.target, change.target)
            if target not in self.entities.constants and target not in self.entities.state_of:
                continue  # said elsewhere
            if change.value == NAN:
                continue  # of a species: it keeps what it has
            try:
                given[target] = expression(change.value, self.naming.known)
            except FormulaError as error:
                self._add([f"{change.where}: the value of '{change.target}': {error}"])
        return given

    def _refuse_states(self, given: Mapping[str, Graph], period: Period, row: ExperimentRow, *, moving: bool) -> None:
        """Refuse values that depend on states where only parameters may be in them."""
        entities = self.entities
        moves = ca.vertcat(entities.time, *(s for s, _ in entities.rates.values()), *entities.algebraic)
        for name, value in given.items():
            if moving and name in entities.state_of:
                continue
            if isinstance(value, ca.SX) and ca.depends_on(value, moves):
                when = "at the start" if not moving else f"at {period.time:g}"
                self._add(
                    [f"{row.where}: '{name}' is set {when} to what depends on states or time, which is not supported"]
                )

    def _add(self, found: Iterable[str]) -> None:
        self.mistakes.extend(m for m in dict.fromkeys(found) if m not in self.mistakes)

    def refuse(self, row: ExperimentRow, data: Sequence[Datum]) -> None:
        """Record an error for each feature of an experiment or its data that castfit cannot express."""
        at_rest = [d.row.where for d in data if isinf(d.row.time)]
        events = self.entities.events
        if at_rest and (events or len(row.during) > 1):
            what = "events" if events else "several periods"
            self._add([f"{at_rest[0]}: steady-state measurements of a model with {what} are not supported"])
        if row.before is not None and any(e.when is not None for e in events):
            why = "rest is where the equations stand still, whatever events do on the way"
            fix = "let the experiment begin at a time that is long before, in a period of its own"
            what = "pre-equilibration of a model with events that states trigger is not supported"
            self._add([f"{row.where}: {what}: {why}; {fix}"])


def changes_of_rest(stated: ProblemTables, model: Model, events: Sequence[Event]) -> list[str]:
    """Refuse events at known times that would change where pre-equilibration ends, in whose time they happen as well.

    So says version 2 of the format; version 1 says nothing, and there they happen in the experiment alone.  What they
    change matters if it is in a sum that the model conserves: all else comes to rest whatever it was.
    """
    rows = [row for row in stated.experiments if row.before is not None and stated.version == 2]
    known = [event for event in events if event.when is None]
    if not (rows and known):
        return []
    system = model.system
    sizes = (system.x.numel(), system.z.numel(), system.p.numel(), system.u.numel())
    vary = np.ones(sizes[2], dtype=np.bool_)
    laws = conservation_laws(system.function("ode", ca.densify(system.ode)), *map(np.ones, sizes), vary=vary)
    kept = {n for n, of in zip(model.states, laws.coefficients.T, strict=True) if of.any()}
    said: list[str] = []
    for event in known:
        changed = sorted(kept.intersection(event.changes))
        if changed:
            what = ", ".join(f"'{n}'" for n in changed)
            why = f"an event at a known time changes {what}, in pre-equilibration as well, and so where it ends"
            said.append(f"{rows[0].where}: {why}, which is not supported; let a condition change it")
    return said


def experiments_of(
    row: ExperimentRow,
    plan: Mapping[float, PeriodValues],
    data: Sequence[Datum],
    observing: Observing,
    entities: Entities,
    put: Constants,
    notes: list[str],
) -> Iterable[Experiment]:
    """Yield one experiment with the time-course data and a separate one with the steady-state measurements.

    What happens after the last measurement is left out, and noted.
    """
    at_rest = [d for d in data if isinf(d.row.time)]
    in_time = [d for d in data if not isinf(d.row.time)]
    first = row.during[0] if row.during else Period(0.0, ())
    during = plan.get(first.time, PeriodValues({}, {}, frozenset()))
    for some, label in ((in_time, row.name), (at_rest, f"{row.name} at rest" if in_time else row.name)):
        if not some:
            continue
        initial: Any = {n: put(v) for n, v in during.states.items()}
        if row.before is not None:
            before = plan[row.before.time]
            initial = steady_state(
                parameters=_constants(before, put),
                initial={n: put(v) for n, v in {**entities.initial, **before.states}.items()},
                replace={n: v for n, v in initial.items() if n in during.chosen},
            )
        end = max(d.row.time for d in some)
        events: list[Any] = []
        for period in row.during[1:]:
            if period.time <= end:
                events += _changes(period, plan[period.time], put)
            else:
                notes.append(f"{label}: its period at {period.time:g} begins after the last measurement, at {end:g}")
        for event in (_event(e, put) for e in entities.events):  # after a period's changes, where both happen at once
            if not isinstance(event.time, float) or event.when is not None or event.time <= end:
                events.append(event)
            else:
                notes.append(f"{label}: the event at {event.time:g} comes after the last measurement, at {end:g}")
        series, sigma, noise = _data(some, observing, put)
        own = {**_constants(during, put), **_placeholders(row.name, observing, put)}
        yield Experiment(
            series, sigma=sigma, noise=noise, initial=initial, parameters=own, events=events, start=first.time,
            name=label,
        )  # fmt: skip


def _constants(values: PeriodValues, put: Constants) -> dict[str, Graph]:
    """Return all constants that any condition sets: as these values say, else the model's own."""
    return {**put.defaults, **{n: put(v) for n, v in values.constants.items()}}


def _placeholders(experiment: str, observing: Observing, put: Constants) -> dict[str, Graph]:
    """Return the values of placeholders; of observables that are not measured here any."""
    every = {n: v for of in observing.placeholders.values() for n, v in of.items()}
    return {n: put(v) for n, v in {**every, **observing.placeholders.get(experiment, {})}.items()}


def _event(event: Event, put: Constants) -> Event:
    """Return an event of the model with numbers for constants."""
    changes = {n: put(v) for n, v in event.changes.items()}
    if event.when is None:
        return Event(put(event.time), changes, measured=event.measured)
    priority = None if event.priority is None else put(event.priority)
    return Event(
        None, changes, when=put.graph(event.when), measured=event.measured, direction=event.direction,
        count=event.count, at_start=event.at_start, priority=priority, persistent=event.persistent, rng=event.rng,
        forbidden=event.forbidden,
    )  # fmt: skip


def _changes(period: Period, values: PeriodValues, put: Constants) -> list[Any]:
    """Return the events at the beginning of a period. A value measured at that time is measured after the changes."""
    found: list[Any] = []
    if values.constants:
        found.append(ParameterSwitch(period.time, {n: put(v) for n, v in values.constants.items()}, "after"))
    if values.states:
        found.insert(0, Event(period.time, {n: put(v) for n, v in values.states.items()}, measured="after"))
    return found


def _data(
    data: Sequence[Datum], observing: Observing, put: Constants
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    series: dict[str, Any] = {}
    sigma: dict[str, Any] = {}
    noise: dict[str, Any] = {}
    of: dict[str, list[Datum]] = {}
    for d in data:
        of.setdefault(d.output, []).append(d)
    for output, own in of.items():
        own.sort(key=lambda d: d.row.time)
        series[output] = (np.array([d.row.time for d in own]), np.array([d.row.value for d in own]))
        said = {id(d.sigma): d.sigma for d in own}  # most values share theirs
        spreads = {key: put(value) for key, value in said.items()}
        first = spreads[id(own[0].sigma)]
        noise[output] = observing.noise[output]
        sigma[output] = first if isinstance(first, ca.SX) else np.array([spreads[id(d.sigma)] for d in own])
    return series, sigma, noise
