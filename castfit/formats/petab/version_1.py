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
    map_names,
    measurement,
    misspelled_columns,
    observable,
    parameter,
    prior,
    read_rows,
    refuse_other_version_columns,
)
from castfit.formats.petab.yaml_file import PetabFileIndex

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


def read(overview: PetabFileIndex, mistakes: list[str]) -> ProblemTables:
    """Read the tables of a PEtab version 1 problem; errors are appended to `mistakes`."""
    rows = partial(read_rows, overview, mistakes)

    parameters = by_name(rows("parameter", *_PARAMETERS), "parameterId", mistakes)
    observables = by_name(rows("observable", *_OBSERVABLES), "observableId", mistakes)
    refuse_other_version_columns(parameters.values(), _OF_PARAMETERS_2, mistakes)
    refuse_other_version_columns(observables.values(), _OF_OBSERVABLES_2, mistakes)
    conditions = by_name(rows("condition", "conditionId"), "conditionId", mistakes)
    measured = rows("measurement", *_MEASUREMENTS)
    experiments = _experiments(measured, conditions, mistakes)
    mapping = map_names(rows("mapping", "petabEntityId", "modelEntityId"))
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
            *misspelled_columns(parameters.values(), (*_PARAMETERS, *_MORE_OF_PARAMETERS, *_OF_PARAMETERS_2)),
            *misspelled_columns(observables.values(), (*_OBSERVABLES, *_MORE_OF_OBSERVABLES, *_OF_OBSERVABLES_2)),
            *misspelled_columns(measured, (*_MEASUREMENTS, *_MORE_OF_MEASUREMENTS)),
        ),
    )


def _parameter(row: TsvRow, name: str, observables: Container[str], mistakes: list[str]) -> ParameterRow:
    scale = choice(row, "parameterScale", _SCALES, LIN, mistakes)
    if not row.text("parameterScale"):
        mistakes.append(f"{row.where}: parameterScale is empty; choose lin, log or log10")
    estimated = choice(row, "estimate", _ESTIMATE, "", mistakes)
    kind, numbers = row.text("objectivePriorType"), row.text("objectivePriorParameters")
    prior_entry = prior(row, kind, "objectivePriorParameters", _PRIORS, mistakes) if kind and estimated else None
    if numbers and not kind:
        mistakes.append(f"{row.where}: objectivePriorParameters is given, but no objectivePriorType; give both")
    placeholder = re.match(r"(?:observable|noise)Parameter\d+_(.+)", name)
    if placeholder and placeholder[1] in observables:
        mistakes.append(f"{row.where}: '{name}' is a placeholder, which measurements fill; take it out of this table")
    parameter_row = parameter(row, name, scale, estimated, prior_entry, mistakes)
    return replace(parameter_row, begins=_begins(row, parameter_row, mistakes))


def _begins(row: TsvRow, parameter_row: ParameterRow, mistakes: list[str]) -> PriorEntry | None:
    """Return the distribution of start values; None for a uniform one between the bounds on the parameter's scale."""
    kind, numbers = row.text("initializationPriorType"), row.text("initializationPriorParameters")
    if numbers and not kind:
        kind = "parameterScaleUniform"
    if not kind or not parameter_row.estimated:
        return None
    if kind in _BETWEEN_BOUNDS and not numbers:
        return (
            PriorEntry(kind, (parameter_row.lower, parameter_row.upper))
            if kind == "uniform" and parameter_row.scale != LIN
            else None
        )
    if kind not in _PRIORS:
        mistakes.append(f"{row.where}: initializationPriorType is '{kind}': {suggest(kind, _PRIORS)}")
        return None
    start_prior = prior(row, kind, "initializationPriorParameters", _PRIORS, mistakes)
    if start_prior is None:
        return None
    begins = beginnings(replace(parameter_row, begins=start_prior))
    messages = start_mistakes(f"{row.where}: '{parameter_row.name}'", begins, parameter_row.lower, parameter_row.upper)
    mistakes += messages
    return None if messages else start_prior


def _observable(row: TsvRow, name: str, mistakes: list[str]) -> ObservableRow:
    axis = choice(row, "observableTransformation", _SCALES, LIN, mistakes)
    distribution = choice(row, "noiseDistribution", _DISTRIBUTIONS, NORMAL, mistakes)
    observable_row = observable(row, name, axis, distribution, _placeholders, mistakes)
    formulas = f"{observable_row.formula} {observable_row.noise}"
    mistakes += [
        f"{row.where}: the formulas of '{name}' have placeholders up to '{placeholders[-1]}', but not '{p}'; "
        "number them from 1"
        for placeholders in (observable_row.placeholders, observable_row.noise_placeholders)
        for p in placeholders
        if not re.search(rf"\b{p}\b", formulas)
    ]
    return observable_row


def _placeholders(name: str, formula_names: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return  observableParameter1_name, ...  and  noiseParameter1_name, ...  as far as the formulas count."""
    return _numbered("observableParameter", name, formula_names), _numbered("noiseParameter", name, formula_names)


def _numbered(prefix: str, name: str, formula_names: frozenset[str]) -> tuple[str, ...]:
    pattern = re.compile(rf"{prefix}(\d+)_{re.escape(name)}\Z")
    numbers = [int(match[1]) for match in map(pattern.match, formula_names) if match]
    return tuple(f"{prefix}{k}_{name}" for k in range(1, max(numbers, default=0) + 1))


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
    condition_counts = Counter(condition for _, condition in dict.fromkeys(pairs))
    repeated_conditions = {condition for condition, times in condition_counts.items() if times > 1}
    experiments: dict[tuple[str, str], ExperimentRow] = {}
    for row, (preequilibration, condition) in zip(measured, pairs, strict=True):
        for column, name in (("simulationConditionId", condition), ("preequilibrationConditionId", preequilibration)):
            if not name and column == "simulationConditionId":
                mistakes.append(f"{row.where}: {column} is empty; name a condition")
            elif name and name not in conditions:
                mistakes.append(f"{row.where}: {column} '{name}' is not in the condition table: "
                                f"{suggest(name, conditions)}")  # fmt: skip
        if (preequilibration, condition) not in experiments:
            label = (
                f"{condition} after {preequilibration}"
                if preequilibration and condition in repeated_conditions
                else condition
            )
            periods = ((Period(float("-inf"), (preequilibration,)),) if preequilibration else ()) + (
                Period(0.0, (condition,)),
            )
            experiments[preequilibration, condition] = ExperimentRow(row.where, label, periods)
    return tuple(experiments[pair] for pair in pairs)


def _measurement(row: TsvRow, experiment: str, mistakes: list[str]) -> MeasurementRow:
    measurement_row = measurement(row, experiment, mistakes)
    if measurement_row.time < 0:
        mistakes.append(f"{row.where}: time is {measurement_row.time:g}, before the experiment begins at 0")
    return measurement_row
