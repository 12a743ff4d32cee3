"""Version 1 of the format: scales of parameters, a wide table of conditions, placeholders known by their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import partial
from math import isinf

from castfit._support.status import suggest
from castfit.densities.priors.distributions import start_mistakes
from castfit.formats.petab.formulas import is_name, number
from castfit.formats.petab.priors import beginnings
from castfit.formats.petab.problem_tables import (
    LAPLACE,
    LIN,
    LOG,
    LOG10,
    NAN,
    NORMAL,
    ConditionChange,
    ExperimentRow,
    MeasurementRow,
    ObservableRow,
    ParameterRow,
    Period,
    PriorEntry,
    ProblemTables,
)
from castfit.formats.petab.reading import (
    TsvRow,
    by_name,
    choice,
    mapped,
    measurement,
    misplaced,
    misspelt,
    observable,
    parameter,
    prior,
    read_rows,
)
from castfit.formats.petab.yaml_file import Overview

_SCALES = {LIN: LIN, LOG: LOG, LOG10: LOG10}
_DISTRIBUTIONS = {NORMAL: NORMAL, LAPLACE: LAPLACE}
_PRIORS: Mapping[str, int] = dict.fromkeys(
    (
        "uniform",
        "normal",
        "laplace",
        "logNormal",
        "logLaplace",
        "parameterScaleUniform",
        "parameterScaleNormal",
        "parameterScaleLaplace",
    ),
    2,
)
_BETWEEN_BOUNDS = ("uniform", "parameterScaleUniform")  # without numbers of their own
_OF_PARAMETERS_2 = {
    "priorDistribution": "objectivePriorType says it in version 1",
}
_OF_OBSERVABLES_2 = {
    column: "placeholders are known by their names in version 1, observableParameter1_... and noiseParameter1_..."
    for column in ("observablePlaceholders", "noisePlaceholders")
}
_ESTIMATE = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False}
_PARAMETERS = ("parameterId", "parameterScale", "lowerBound", "upperBound", "estimate")
_OBSERVABLES = ("observableId", "observableFormula", "noiseFormula")
_MEASUREMENTS = ("observableId", "simulationConditionId", "measurement", "time")
_MORE_OF_PARAMETERS = (
    "parameterName", "nominalValue", "initializationPriorType", "initializationPriorParameters", "objectivePriorType",
    "objectivePriorParameters",
)  # fmt: skip
_MORE_OF_OBSERVABLES = ("observableName", "observableTransformation", "noiseDistribution")
_MORE_OF_MEASUREMENTS = ("preequilibrationConditionId", "observableParameters", "noiseParameters")


def read(overview: Overview, mistakes: list[str]) -> ProblemTables:
    """Read the tables of a PEtab version 1 problem; errors are appended to `mistakes`."""
    rows = partial(read_rows, overview, mistakes)

    parameters = by_name(rows("parameter", *_PARAMETERS), "parameterId", mistakes)
    observables = by_name(rows("observable", *_OBSERVABLES), "observableId", mistakes)
    misplaced(parameters.values(), _OF_PARAMETERS_2, mistakes)
    misplaced(observables.values(), _OF_OBSERVABLES_2, mistakes)
    conditions = by_name(rows("condition", "conditionId"), "conditionId", mistakes)
    measured = rows("measurement", *_MEASUREMENTS)
    experiments = _experiments(measured, conditions, mistakes)
    mapping = mapped(rows("mapping", "petabEntityId", "modelEntityId"))
    return ProblemTables(
        overview.file,
        1,
        overview.model,
        tuple(_parameter(row, mapping.get(name, name), observables, mistakes) for name, row in parameters.items()),
        tuple(_observable(row, name, mistakes) for name, row in observables.items()),
        {name: _changes(row, mistakes) for name, row in conditions.items()},
        tuple(dict.fromkeys(experiments)),
        tuple(_measurement(row, e.name, mistakes) for row, e in zip(measured, experiments, strict=True)),
        mapping,
        (
            *misspelt(parameters.values(), (*_PARAMETERS, *_MORE_OF_PARAMETERS, *_OF_PARAMETERS_2)),
            *misspelt(observables.values(), (*_OBSERVABLES, *_MORE_OF_OBSERVABLES, *_OF_OBSERVABLES_2)),
            *misspelt(measured, (*_MEASUREMENTS, *_MORE_OF_MEASUREMENTS)),
        ),
    )


def _parameter(row: TsvRow, name: str, observables: Container[str], mistakes: list[str]) -> ParameterRow:
    scale = choice(row, "parameterScale", _SCALES, LIN, mistakes)
    if not row.text("parameterScale"):
        mistakes.append(f"{row.where}: parameterScale is empty; choose lin, log or log10")
    estimated = choice(row, "estimate", _ESTIMATE, "", mistakes)
    kind, numbers = row.text("objectivePriorType"), row.text("objectivePriorParameters")
    known = prior(row, kind, "objectivePriorParameters", _PRIORS, mistakes) if kind and estimated else None
    if numbers and not kind:
        mistakes.append(f"{row.where}: objectivePriorParameters is given, but no objectivePriorType; give both")
    placeholder = re.match(r"(?:observable|noise)Parameter\d+_(.+)", name)
    if placeholder and placeholder[1] in observables:
        mistakes.append(f"{row.where}: '{name}' is a placeholder, which measurements fill; take it out of this table")
    found = parameter(row, name, scale, estimated, known, mistakes)
    return replace(found, begins=_begins(row, found, mistakes))


def _begins(row: TsvRow, found: ParameterRow, mistakes: list[str]) -> PriorEntry | None:
    """Return the distribution of start values; None for a uniform one between the bounds on the parameter's scale."""
    kind, numbers = row.text("initializationPriorType"), row.text("initializationPriorParameters")
    if numbers and not kind:
        kind = "parameterScaleUniform"
    if not kind or not found.estimated:
        return None
    if kind in _BETWEEN_BOUNDS and not numbers:
        return PriorEntry(kind, (found.lower, found.upper)) if kind == "uniform" and found.scale != LIN else None
    if kind not in _PRIORS:
        mistakes.append(f"{row.where}: initializationPriorType is '{kind}': {suggest(kind, _PRIORS)}")
        return None
    known = prior(row, kind, "initializationPriorParameters", _PRIORS, mistakes)
    if known is None:
        return None
    begins = beginnings(replace(found, begins=known))
    wrong = start_mistakes(f"{row.where}: '{found.name}'", begins, found.lower, found.upper)
    mistakes += wrong
    return None if wrong else known


def _observable(row: TsvRow, name: str, mistakes: list[str]) -> ObservableRow:
    axis = choice(row, "observableTransformation", _SCALES, LIN, mistakes)
    distribution = choice(row, "noiseDistribution", _DISTRIBUTIONS, NORMAL, mistakes)
    found = observable(row, name, axis, distribution, _placeholders, mistakes)
    inside = f"{found.formula} {found.noise}"
    mistakes += [
        f"{row.where}: the formulas of '{name}' have placeholders up to '{of[-1]}', but not '{p}'; number them from 1"
        for of in (found.placeholders, found.noise_placeholders)
        for p in of
        if not re.search(rf"\b{p}\b", inside)
    ]
    return found


def _placeholders(name: str, inside: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return  observableParameter1_name, ...  and  noiseParameter1_name, ...  as far as the formulas count."""
    return _numbered("observableParameter", name, inside), _numbered("noiseParameter", name, inside)


def _numbered(prefix: str, name: str, inside: frozenset[str]) -> tuple[str, ...]:
    pattern = re.compile(rf"{prefix}(\d+)_{re.escape(name)}\Z")
    found = [int(match[1]) for match in map(pattern.match, inside) if match]
    return tuple(f"{prefix}{k}_{name}" for k in range(1, max(found, default=0) + 1))


def _changes(row: TsvRow, mistakes: list[str]) -> tuple[ConditionChange, ...]:
    cells = {c: v for c, v in row.cells.items() if c not in ("conditionId", "conditionName")}
    mistakes += [
        f"{row.where}: '{column}' is '{value}', which is neither a number nor the name of a parameter"
        for column, value in cells.items()
        if number(value) is None and not is_name(value)
    ]
    infinite = {column: value for column, value in cells.items() if isinf(number(value) or 0.0)}
    mistakes += [f"{row.where}: '{column}' is {value}; give a finite number" for column, value in infinite.items()]
    cells |= {c: NAN for c in sorted(row.nan) if c != "conditionName"}
    return tuple(ConditionChange(row.where, c, value) for c, value in cells.items() if c not in infinite)


def _experiments(
    measured: tuple[TsvRow, ...], conditions: dict[str, TsvRow], mistakes: list[str]
) -> tuple[ExperimentRow, ...]:
    """Return the experiment of each measurement: a condition, and another one before it or none."""
    pairs = [(row.text("preequilibrationConditionId"), row.text("simulationConditionId")) for row in measured]
    times_after = Counter(after for _, after in dict.fromkeys(pairs))
    several = {after for after, times in times_after.items() if times > 1}
    known: dict[tuple[str, str], ExperimentRow] = {}
    for row, (before, after) in zip(measured, pairs, strict=True):
        for column, name in (("simulationConditionId", after), ("preequilibrationConditionId", before)):
            if not name and column == "simulationConditionId":
                mistakes.append(f"{row.where}: {column} is empty; name a condition")
            elif name and name not in conditions:
                mistakes.append(f"{row.where}: {column} '{name}' is not in the condition table: "
                                f"{suggest(name, conditions)}")  # fmt: skip
        if (before, after) not in known:
            label = f"{after} after {before}" if before and after in several else after
            periods = ((Period(float("-inf"), (before,)),) if before else ()) + (Period(0.0, (after,)),)
            known[before, after] = ExperimentRow(row.where, label, periods)
    return tuple(known[pair] for pair in pairs)


def _measurement(row: TsvRow, experiment: str, mistakes: list[str]) -> MeasurementRow:
    found = measurement(row, experiment, mistakes)
    if found.time < 0:
        mistakes.append(f"{row.where}: time is {found.time:g}, before the experiment begins at 0")
    return found
