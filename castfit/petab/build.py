"""From what tables say, and what the model's identifiers mean, to a castfit problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf, sqrt
from typing import Any

import casadi as ca
import numpy as np

from castfit.experiment import Experiment
from castfit.model import Model
from castfit.petab.entities import Entities
from castfit.petab.formulas import FormulaError, Graph, expression
from castfit.petab.observing import Datum, Observing, observe
from castfit.petab.priors import distribution
from castfit.petab.stated import LIN, ExperimentRow, ParameterRow, Period, Stated
from castfit.problem import Problem
from castfit.statement import Parameter
from castfit.status import check, suggest
from castfit.steady import steady_state


@dataclass(frozen=True)
class _Names:
    """What names stand for.

    table : parameters of the table
    targets : constants of the model that conditions set
    known : what formulas may use: states, constants, rules, parameters
    defaults : values of constants that no table names: numbers or expressions of others
    """

    table: Mapping[str, ParameterRow]
    targets: tuple[str, ...]
    known: Mapping[str, Graph]
    kept: tuple[str, ...]


def build(stated: Stated, entities: Entities, mistakes: list[str]) -> Problem:
    """Return the problem; all mistakes, those found before too, are raised at once.

    Raises
    ------
    InputError
        Listing every mistake with its file and line.
    """
    names = _names(stated, entities, mistakes)
    observing = observe(stated.observables, stated.measurements, names.known, mistakes)
    plans = {e.name: _plan(e, stated, entities, names, mistakes) for e in stated.experiments}
    check("petab.load", mistakes)
    put = _Put.of(entities, names)
    experiments = [
        made
        for row in stated.experiments
        for made in _experiments(row, plans[row.name], [d for d in observing.data if d.row.experiment == row.name],
                                 observing, put, names)
    ]  # fmt: skip
    model = _model(entities, names, observing, put)
    used = {*model.parameters, *_inside(experiments)}
    parameters = {n: _parameter(row, stated.version) for n, row in names.table.items() if n in used}
    return Problem(model, experiments, parameters=parameters)


def _names(stated: Stated, entities: Entities, mistakes: list[str]) -> _Names:
    table = {row.name: row for row in stated.parameters}
    changes = [change for group in stated.conditions.values() for change in group]
    targets: dict[str, None] = {}
    for change in changes:
        name = change.target
        if name in table:
            mistakes.append(f"{change.where}: '{name}' is set here and in the parameter table ({table[name].where})")
        elif name in entities.constants:
            targets[name] = None
        elif name not in entities.rates:
            known = [*entities.constants, *entities.rates]
            what = "follows from a rule of the model" if name in entities.meaning else "is not in the model"
            mistakes.append(f"{change.where}: '{name}' {what}: {suggest(name, known)}")
    known: dict[str, Graph] = {**entities.meaning, "time": entities.time}
    known |= {n: ca.SX.sym(n) for n in table if n not in known}
    kept = (*targets, *(n for n in table if n in entities.constants and n not in targets))
    return _Names(table, tuple(targets), known, kept)


@dataclass(frozen=True)
class _Put:
    """Puts values in the place of the constants that nothing changes."""

    old: ca.SX
    new: ca.SX
    defaults: Mapping[str, Graph]

    @classmethod
    def of(cls, entities: Entities, names: _Names) -> _Put:
        """Work out the values, which may be expressions of other constants."""
        every = [n for n in entities.constants if n not in names.kept]
        old = ca.vertcat(*(entities.constants[n] for n in every))
        new = ca.vertcat(*(ca.SX(entities.values[n]) for n in every))
        for _ in every:
            if not every or not ca.depends_on(new, old):
                break
            new = ca.substitute(new, old, new)
        put = cls(old, ca.SX(new), {})
        return cls(old, ca.SX(new), {n: put(entities.values[n]) for n in names.targets})

    def __call__(self, value: Graph) -> Graph:
        """Return an expression with numbers for constants; a number where nothing else is in it."""
        if not isinstance(value, ca.SX) or value.is_constant():
            return float(value)
        if self.old.numel():
            value = ca.SX(ca.substitute([value], [self.old], [self.new])[0])
        return float(value) if value.is_constant() else value


@dataclass(frozen=True)
class _Values:
    """What a period sets: constants and states of the model."""

    constants: dict[str, Graph]
    states: dict[str, Graph]


def _plan(
    row: ExperimentRow, stated: Stated, entities: Entities, names: _Names, mistakes: list[str]
) -> dict[float, _Values]:
    return {p.time: _values(p, row, stated, entities, names, mistakes) for p in row.periods}


def _values(
    period: Period, row: ExperimentRow, stated: Stated, entities: Entities, names: _Names, mistakes: list[str]
) -> _Values:
    out = _Values({}, {})
    said: dict[str, tuple[str, str]] = {}
    for condition in period.conditions:
        for change in stated.conditions.get(condition, ()):
            if change.target in said and said[change.target][0] != change.value:
                mistakes.append(
                    f"{change.where}: '{change.target}' is {change.value}, but {said[change.target][1]} sets it to "
                    f"{said[change.target][0]} at the same time in '{row.name}'"
                )
            said[change.target] = (change.value, change.where)
            try:
                value = expression(change.value, names.known)
            except FormulaError as error:
                message = f"{change.where}: the value of '{change.target}': {error}"
                if message not in mistakes:
                    mistakes.append(message)
                continue
            (out.states if change.target in entities.rates else out.constants)[change.target] = value
    return out


def _experiments(
    row: ExperimentRow,
    plan: Mapping[float, _Values],
    data: Sequence[Datum],
    observing: Observing,
    put: _Put,
    names: _Names,
) -> Iterable[Experiment]:
    """Return what is measured at times, and, apart, what is measured at rest."""
    at_rest = [d for d in data if isinf(d.row.time)]
    in_time = [d for d in data if not isinf(d.row.time)]
    for some, label in ((in_time, row.name), (at_rest, f"{row.name} at rest" if in_time else row.name)):
        if some:
            yield _experiment(row, label, plan, some, observing, put)


def _experiment(
    row: ExperimentRow,
    label: str,
    plan: Mapping[float, _Values],
    data: Sequence[Datum],
    observing: Observing,
    put: _Put,
) -> Experiment:
    first = row.during[0]
    during = plan[first.time]
    initial: Any = {n: put(v) for n, v in during.states.items()}
    if row.before is not None:
        before = plan[row.before.time]
        initial = steady_state(
            parameters=_overrides(before, put), initial={n: put(v) for n, v in before.states.items()}, replace=initial
        )
    own = {**_overrides(during, put), **_placeholders(row.name, observing, put)}
    series, sigma, noise = _data(data, observing, put)
    return Experiment(
        series, sigma=sigma or None, noise=noise or None, initial=initial, parameters=own, start=first.time, name=label
    )


def _overrides(values: _Values, put: _Put) -> dict[str, Graph]:
    """Return all constants that any condition sets: this one's values, else the model's own."""
    return {**put.defaults, **{n: put(v) for n, v in values.constants.items()}}


def _placeholders(experiment: str, observing: Observing, put: _Put) -> dict[str, Graph]:
    """Return the values of placeholders; of observables that are not measured here any."""
    every = {n: v for of in observing.placeholders.values() for n, v in of.items()}
    return {n: put(v) for n, v in {**every, **observing.placeholders.get(experiment, {})}.items()}


def _data(
    data: Sequence[Datum], observing: Observing, put: _Put
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    series: dict[str, Any] = {}
    sigma: dict[str, Any] = {}
    noise: dict[str, Any] = {}
    for output in dict.fromkeys(d.output for d in data):
        own = sorted((d for d in data if d.output == output), key=lambda d: d.row.time)
        series[output] = (np.array([d.row.time for d in own]), np.array([d.row.value for d in own]))
        spreads = [put(d.sigma) for d in own]
        noise[output] = observing.noise[output]
        sigma[output] = spreads[0] if isinstance(spreads[0], ca.SX) else np.array(spreads)
    return series, sigma, noise


def _model(entities: Entities, names: _Names, observing: Observing, put: _Put) -> Model:
    rates = {symbol: put(rate) for symbol, rate in entities.rates.values()}
    outputs = {n: put(graph) for n, graph in observing.outputs.items()}
    initial = {n: put(v) for n, v in entities.initial.items()}
    graphs = [ca.SX(g) for g in (*rates.values(), *outputs.values(), *initial.values())]
    inside = {s.name(): s for s in ca.symvar(ca.vertcat(*graphs))}
    states = {symbol.name() for symbol in rates}
    parameters = {n: entities.constants[n] for n in names.kept}
    parameters |= {n: s for n, s in inside.items() if n not in states and n != entities.time.name()}
    return Model(rates, parameters=parameters.values(), outputs=outputs, time=entities.time, initial=initial)


def _inside(experiments: Iterable[Experiment]) -> set[str]:
    """Return the names in expressions of experiments."""
    found: set[str] = set()
    for e in experiments:
        before = {} if e.steady is None else {**e.steady.parameters, **e.steady.initial}
        spreads = [model.sigma for model in e.noise.values()]
        for value in (*e.parameters.values(), *e.initial.values(), *before.values(), *spreads):
            if isinstance(value, ca.SX):
                found |= {s.name() for s in ca.symvar(value)}
    return found


def _parameter(row: ParameterRow, version: int) -> Parameter:
    if not row.estimated:
        assert row.nominal is not None
        return Parameter(row.nominal, fixed=True)
    scale = "linear" if row.scale == LIN else "log"
    value = row.nominal
    if value is None:
        value = 0.5 * (row.lower + row.upper) if scale == "linear" else sqrt(row.lower * row.upper)
    value = min(max(value, row.lower), row.upper)
    prior = distribution(row, truncated=version > 1)
    return Parameter(value, row.lower, row.upper, scale, prior=prior)
