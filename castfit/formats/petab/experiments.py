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
from castfit.formats.petab.identifiers import Constants, ModelEntities, NameResolution
from castfit.formats.petab.observing import ObservableCompiler, PetabDatum
from castfit.formats.petab.parsing import FormulaError, Graph, expression
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
class PetabExperimentReader:
    """Reader of experiment rows; errors are appended to `mistakes`."""

    tables: ProblemTables
    entities: ModelEntities
    naming: NameResolution
    mistakes: list[str]

    def plan(self, row: ExperimentRow) -> dict[float, PeriodValues]:
        """Return the assigned values of each period of an experiment, keyed by the period's time."""
        first_time = row.during[0].time if row.during else 0.0
        return {p.time: self._values(p, row, is_later_period=p.time > first_time) for p in row.periods}

    def _values(self, period: Period, row: ExperimentRow, *, is_later_period: bool) -> PeriodValues:
        target_values = self._collect_condition_values(period, row)
        entities = self.entities
        if not is_later_period and (row.preequilibration_period is None or period is row.preequilibration_period):
            start_time = 0.0 if isinf(period.time) else period.time
            target_values = {n: self._at_begin(v, start_time) for n, v in target_values.items()}
        states = {n: v for n, v in target_values.items() if n in entities.state_of}
        self._refuse_states(target_values, period, row, is_later_period=is_later_period)
        if is_later_period:
            constants = {n: v for n, v in target_values.items() if n not in states}
            return PeriodValues(constants, {entities.state_of[n]: v for n, v in states.items()}, frozenset())
        try:
            start = entities.start(target_values)
        except InputError as error:
            self._add(f"{row.where}: {m}" for m in error.problems)
            return PeriodValues({}, {}, frozenset())
        chosen = frozenset(entities.state_of[n] for n in states)
        initial = {
            n: v
            for n, v in start.initial.items()
            if n in chosen or (states and not ca.is_equal(ca.SX(v), ca.SX(entities.initial.get(n, 0)), 20))
        }
        dependent_names = [
            n
            for n, v in start.parameters.items()
            if n not in target_values and n not in self.naming.targets and self._differs(n, v)
        ]
        self._add(
            f"{row.where}: '{n}' is computed from an initial value that a condition sets, which is not supported"
            for n in dependent_names
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

    def _collect_condition_values(self, period: Period, row: ExperimentRow) -> dict[str, Graph]:
        """Return the values assigned by the conditions of a period, keyed by model identifier."""
        target_values: dict[str, Graph] = {}
        previous_changes: dict[str, tuple[str, str]] = {}
        for change in (c for name in period.conditions for c in self.tables.conditions.get(name, ())):
            if previous_changes.get(change.target, (change.value, ""))[0] != change.value:
                value, where = previous_changes[change.target]
                self._add(
                    [
                        f"{change.where}: '{change.target}' is {change.value} here and {value} in {where}, at the same "
                        f"time in experiment '{row.name}'"
                    ]
                )
            previous_changes[change.target] = (change.value, change.where)
            target = self.tables.mapping.get(change.target, change.target)
            if target not in self.entities.constants and target not in self.entities.state_of:
                continue  # said elsewhere
            if change.value == NAN:
                continue  # of a species: it keeps what it has
            try:
                target_values[target] = expression(change.value, self.naming.graphs_by_name)
            except FormulaError as error:
                self._add([f"{change.where}: the value of '{change.target}': {error}"])
        return target_values

    def _refuse_states(
        self, target_values: Mapping[str, Graph], period: Period, row: ExperimentRow, *, is_later_period: bool
    ) -> None:
        """Refuse values that depend on states where only parameters may be in them."""
        entities = self.entities
        variables = ca.vertcat(entities.time, *(s for s, _ in entities.rates.values()), *entities.algebraic)
        for name, value in target_values.items():
            if is_later_period and name in entities.state_of:
                continue
            if isinstance(value, ca.SX) and ca.depends_on(value, variables):
                when = "at the start" if not is_later_period else f"at {period.time:g}"
                self._add(
                    [f"{row.where}: '{name}' is set {when} to what depends on states or time, which is not supported"]
                )

    def _add(self, messages: Iterable[str]) -> None:
        self.mistakes.extend(m for m in dict.fromkeys(messages) if m not in self.mistakes)

    def refuse(self, row: ExperimentRow, data: Sequence[PetabDatum]) -> None:
        """Record an error for each feature of an experiment or its data that castfit cannot express."""
        steady_locations = [d.row.where for d in data if isinf(d.row.time)]
        events = self.entities.events
        if steady_locations and (events or len(row.during) > 1):
            description = "events" if events else "several periods"
            self._add(
                [f"{steady_locations[0]}: steady-state measurements of a model with {description} are not supported"]
            )
        if row.preequilibration_period is not None and any(e.when is not None for e in events):
            reason = "rest is where the equations stand still, whatever events do on the way"
            fix = "let the experiment begin at a time that is long before, in a period of its own"
            description = "pre-equilibration of a model with events that states trigger is not supported"
            self._add([f"{row.where}: {description}: {reason}; {fix}"])


def refuse_preequilibration_events(tables: ProblemTables, model: Model, events: Sequence[Event]) -> list[str]:
    """Refuse events at known times that would change where pre-equilibration ends, in whose time they happen as well.

    This is the rule of version 2 of the format.  In version 1, which has no rule, events happen only in the experiment.
    A changed state matters only if it is part of a conserved sum: the steady state does not depend on others.
    """
    rows = [row for row in tables.experiments if row.preequilibration_period is not None and tables.version == 2]
    timed_events = [event for event in events if event.when is None]
    if not (rows and timed_events):
        return []
    system = model.system
    sizes = (system.x.numel(), system.z.numel(), system.p.numel(), system.u.numel())
    vary = np.ones(sizes[2], dtype=np.bool_)
    laws = conservation_laws(system.function("ode", ca.densify(system.ode)), *map(np.ones, sizes), vary=vary)
    conserved_states = {
        n for n, coefficients in zip(model.states, laws.coefficients.T, strict=True) if coefficients.any()
    }
    messages: list[str] = []
    for event in timed_events:
        changed = sorted(conserved_states.intersection(event.changes))
        if changed:
            names = ", ".join(f"'{n}'" for n in changed)
            reason = f"an event at a known time changes {names}, in pre-equilibration as well, and so where it ends"
            messages.append(f"{rows[0].where}: {reason}, which is not supported; let a condition change it")
    return messages


def experiments_of(
    row: ExperimentRow,
    plan: Mapping[float, PeriodValues],
    data: Sequence[PetabDatum],
    observables: ObservableCompiler,
    entities: ModelEntities,
    substitute: Constants,
    notes: list[str],
) -> Iterable[Experiment]:
    """Yield one experiment with the time-course data and a separate one with the steady-state measurements.

    Events after the last measurement are omitted, with a note.
    """
    steady_data = [d for d in data if isinf(d.row.time)]
    timed_data = [d for d in data if not isinf(d.row.time)]
    first_period = row.during[0] if row.during else Period(0.0, ())
    first_values = plan.get(first_period.time, PeriodValues({}, {}, frozenset()))
    for group, label in ((timed_data, row.name), (steady_data, f"{row.name} at rest" if timed_data else row.name)):
        if not group:
            continue
        initial: Any = {n: substitute(v) for n, v in first_values.states.items()}
        if row.preequilibration_period is not None:
            preequilibration = plan[row.preequilibration_period.time]
            initial = steady_state(
                parameters=_constants(preequilibration, substitute),
                initial={n: substitute(v) for n, v in {**entities.initial, **preequilibration.states}.items()},
                replace={n: v for n, v in initial.items() if n in first_values.chosen},
            )
        end = max(d.row.time for d in group)
        events: list[Any] = []
        for period in row.during[1:]:
            if period.time <= end:
                events += _changes(period, plan[period.time], substitute)
            else:
                notes.append(f"{label}: its period at {period.time:g} begins after the last measurement, at {end:g}")
        for event in (
            _event(e, substitute) for e in entities.events
        ):  # after a period's changes, where both happen at once
            if not isinstance(event.time, float) or event.when is not None or event.time <= end:
                events.append(event)
            else:
                notes.append(f"{label}: the event at {event.time:g} comes after the last measurement, at {end:g}")
        series, sigma, noise = _data(group, observables, substitute)
        parameters = {**_constants(first_values, substitute), **_placeholders(row.name, observables, substitute)}
        yield Experiment(
            series, sigma=sigma, noise=noise, initial=initial, parameters=parameters, events=events,
            start=first_period.time, name=label,
        )  # fmt: skip


def _constants(values: PeriodValues, substitute: Constants) -> dict[str, Graph]:
    """Return all constants that any condition sets: as these values say, else the model's own."""
    return {**substitute.defaults, **{n: substitute(v) for n, v in values.constants.items()}}


def _placeholders(experiment: str, observables: ObservableCompiler, substitute: Constants) -> dict[str, Graph]:
    """Return the values of placeholders; of observables that are not measured here any."""
    defaults = {n: v for values in observables.placeholders.values() for n, v in values.items()}
    return {n: substitute(v) for n, v in {**defaults, **observables.placeholders.get(experiment, {})}.items()}


def _event(event: Event, substitute: Constants) -> Event:
    """Return an event of the model with numbers for constants."""
    changes = {n: substitute(v) for n, v in event.changes.items()}
    if event.when is None:
        return Event(substitute(event.time), changes, measured=event.measured)
    priority = None if event.priority is None else substitute(event.priority)
    return Event(
        None, changes, when=substitute.graph(event.when), measured=event.measured, direction=event.direction,
        count=event.count, at_start=event.at_start, priority=priority, persistent=event.persistent, rng=event.rng,
        forbidden=event.forbidden,
    )  # fmt: skip


def _changes(period: Period, values: PeriodValues, substitute: Constants) -> list[Any]:
    """Return the events at the beginning of a period. A value measured at that time is measured after the changes."""
    changes: list[Any] = []
    if values.constants:
        changes.append(ParameterSwitch(period.time, {n: substitute(v) for n, v in values.constants.items()}, "after"))
    if values.states:
        changes.insert(0, Event(period.time, {n: substitute(v) for n, v in values.states.items()}, measured="after"))
    return changes


def _data(
    data: Sequence[PetabDatum], observables: ObservableCompiler, substitute: Constants
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    series: dict[str, Any] = {}
    sigma: dict[str, Any] = {}
    noise: dict[str, Any] = {}
    data_by_output: dict[str, list[PetabDatum]] = {}
    for d in data:
        data_by_output.setdefault(d.output, []).append(d)
    for output, output_data in data_by_output.items():
        output_data.sort(key=lambda d: d.row.time)
        series[output] = (np.array([d.row.time for d in output_data]), np.array([d.row.value for d in output_data]))
        sigma_by_id = {id(d.sigma): d.sigma for d in output_data}  # most values share theirs
        spreads = {key: substitute(value) for key, value in sigma_by_id.items()}
        first_spread = spreads[id(output_data[0].sigma)]
        noise[output] = observables.noise[output]
        sigma[output] = (
            first_spread if isinstance(first_spread, ca.SX) else np.array([spreads[id(d.sigma)] for d in output_data])
        )
    return series, sigma, noise
