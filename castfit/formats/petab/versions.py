"""The two versions of the format.

Version 1 has scales of parameters, a wide table of conditions, and placeholders known by their names; version 2 has
experiments of periods, a long table of conditions with formulas, and placeholders by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf, isfinite, isinf, isnan

from castfit._support.status import suggest
from castfit.densities.priors.distributions import start_mistakes
from castfit.formats.petab.parsing import FormulaError, is_name, names_in, number
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
    PetabFileIndex,
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

_SCALES = {LIN: LIN, LOG: LOG, LOG10: LOG10}
_DISTRIBUTIONS_1 = {NORMAL: NORMAL, LAPLACE: LAPLACE}
_PRIORS_1: Mapping[str, int] = dict.fromkeys(
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
_ESTIMATE_1 = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False}

# Columns of the tables by version: required columns, optional columns, and columns of the other version.
_NEEDED = {
    1: {
        "parameter": ("parameterId", "parameterScale", "lowerBound", "upperBound", "estimate"),
        "observable": ("observableId", "observableFormula", "noiseFormula"),
        "measurement": ("observableId", "simulationConditionId", "measurement", "time"),
    },
    2: {
        "parameter": ("parameterId", "estimate"),
        "observable": ("observableId", "observableFormula", "noiseFormula"),
        "measurement": ("observableId", "measurement", "time"),
    },
}
_OPTIONAL = {
    1: {
        "parameter": (
            "parameterName", "nominalValue", "initializationPriorType", "initializationPriorParameters",
            "objectivePriorType", "objectivePriorParameters",
        ),
        "observable": ("observableName", "observableTransformation", "noiseDistribution"),
        "measurement": ("preequilibrationConditionId", "observableParameters", "noiseParameters"),
    },
    2: {
        "parameter": (
            "parameterName", "nominalValue", "lowerBound", "upperBound", "priorDistribution", "priorParameters",
        ),
        "observable": ("observableName", "noiseDistribution", "observablePlaceholders", "noisePlaceholders"),
        "measurement": ("experimentId", "observableParameters", "noiseParameters"),
    },
}  # fmt: skip
_FOREIGN: Mapping[int, Mapping[str, Mapping[str, str]]] = {
    1: {
        "parameter": {"priorDistribution": "objectivePriorType says it in version 1"},
        "observable": dict.fromkeys(
            ("observablePlaceholders", "noisePlaceholders"),
            "placeholders are known by their names in version 1, observableParameter1_... and noiseParameter1_...",
        ),
        "measurement": {},
    },
    2: {
        "parameter": {"objectivePriorType": "priorDistribution says it in version 2"},
        "observable": {
            "observableTransformation": "noiseDistribution says it in version 2, as log-normal or log-laplace"
        },
        "measurement": dict.fromkeys(
            ("simulationConditionId", "preequilibrationConditionId"),
            "experimentId says it in version 2, and the experiment table has its conditions",
        ),
    },
}


def _find_doubts(version: int, **rows_by_kind: Iterable[TsvRow]) -> tuple[str, ...]:
    """Return a warning for each column of the tables that seems to be misspelt."""
    return tuple(
        doubt
        for kind, rows in rows_by_kind.items()
        for doubt in misspelled_columns(
            rows, (*_NEEDED[version][kind], *_OPTIONAL[version][kind], *_FOREIGN[version][kind])
        )
    )


def read_version_1(overview: PetabFileIndex, mistakes: list[str]) -> ProblemTables:
    """Read the tables of a PEtab version 1 problem; errors are appended to `mistakes`."""
    rows = partial(read_rows, overview, mistakes)

    parameters = by_name(rows("parameter", *_NEEDED[1]["parameter"]), "parameterId", mistakes)
    observables = by_name(rows("observable", *_NEEDED[1]["observable"]), "observableId", mistakes)
    refuse_other_version_columns(parameters.values(), _FOREIGN[1]["parameter"], mistakes)
    refuse_other_version_columns(observables.values(), _FOREIGN[1]["observable"], mistakes)
    conditions = by_name(rows("condition", "conditionId"), "conditionId", mistakes)
    measured = rows("measurement", *_NEEDED[1]["measurement"])
    experiments = _experiments_1(measured, conditions, mistakes)
    mapping = map_names(rows("mapping", "petabEntityId", "modelEntityId"))
    return ProblemTables(
        overview.file,
        1,
        overview.model,
        tuple(_parameter_1(row, mapping.get(name, name), observables, mistakes) for name, row in parameters.items()),
        tuple(_observable_1(row, name, mistakes) for name, row in observables.items()),
        {name: _changes(row, mistakes) for name, row in conditions.items()},
        tuple(dict.fromkeys(experiments)),
        tuple(_measurement_1(row, e.name, mistakes) for row, e in zip(measured, experiments, strict=True)),
        mapping,
        _find_doubts(1, parameter=parameters.values(), observable=observables.values(), measurement=measured),
    )


def _parameter_1(row: TsvRow, name: str, observables: Container[str], mistakes: list[str]) -> ParameterRow:
    scale = choice(row, "parameterScale", _SCALES, LIN, mistakes)
    if not row.text("parameterScale"):
        mistakes.append(f"{row.where}: parameterScale is empty; choose lin, log or log10")
    estimated = choice(row, "estimate", _ESTIMATE_1, "", mistakes)
    kind, numbers = row.text("objectivePriorType"), row.text("objectivePriorParameters")
    prior_entry = prior(row, kind, "objectivePriorParameters", _PRIORS_1, mistakes) if kind and estimated else None
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
    if kind not in _PRIORS_1:
        mistakes.append(f"{row.where}: initializationPriorType is '{kind}': {suggest(kind, _PRIORS_1)}")
        return None
    start_prior = prior(row, kind, "initializationPriorParameters", _PRIORS_1, mistakes)
    if start_prior is None:
        return None
    begins = beginnings(replace(parameter_row, begins=start_prior))
    messages = start_mistakes(f"{row.where}: '{parameter_row.name}'", begins, parameter_row.lower, parameter_row.upper)
    mistakes += messages
    return None if messages else start_prior


def _observable_1(row: TsvRow, name: str, mistakes: list[str]) -> ObservableRow:
    axis = choice(row, "observableTransformation", _SCALES, LIN, mistakes)
    distribution = choice(row, "noiseDistribution", _DISTRIBUTIONS_1, NORMAL, mistakes)
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


def _experiments_1(
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


def _measurement_1(row: TsvRow, experiment: str, mistakes: list[str]) -> MeasurementRow:
    measurement_row = measurement(row, experiment, mistakes)
    if measurement_row.time < 0:
        mistakes.append(f"{row.where}: time is {measurement_row.time:g}, before the experiment begins at 0")
    return measurement_row


_DISTRIBUTIONS_2 = {
    NORMAL: (LIN, NORMAL),
    LAPLACE: (LIN, LAPLACE),
    "log-normal": (LOG, NORMAL),
    "log-laplace": (LOG, LAPLACE),
}
_PRIORS_2: Mapping[str, int] = {
    "cauchy": 2,
    "chisquare": 1,
    "exponential": 1,
    "gamma": 2,
    "laplace": 2,
    "log-laplace": 2,
    "log-normal": 2,
    "log-uniform": 2,
    "normal": 2,
    "rayleigh": 1,
    "uniform": 2,
}
_ESTIMATE_2 = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
_ALONE = "the experiment"  # of measurements that name none


def read_version_2(overview: PetabFileIndex, mistakes: list[str]) -> ProblemTables:
    """Read the tables of a PEtab version 2 problem; errors are appended to `mistakes`."""
    rows = partial(read_rows, overview, mistakes)

    parameters = by_name(rows("parameter", *_NEEDED[2]["parameter"]), "parameterId", mistakes)
    observables = by_name(rows("observable", *_NEEDED[2]["observable"]), "observableId", mistakes)
    refuse_other_version_columns(parameters.values(), _FOREIGN[2]["parameter"], mistakes)
    refuse_other_version_columns(observables.values(), _FOREIGN[2]["observable"], mistakes)
    conditions = _conditions(rows("condition", "conditionId", "targetId", "targetValue"), mistakes)
    experiments = _experiments_2(rows("experiment", "experimentId", "time", "conditionId"), conditions, mistakes)
    table_rows = rows("measurement", *_NEEDED[2]["measurement"])
    refuse_other_version_columns(table_rows, _FOREIGN[2]["measurement"], mistakes)
    mapping = map_names(rows("mapping", "petabEntityId", "modelEntityId"))
    measurement_rows = tuple(_measurement_2(row, experiments, mistakes) for row in table_rows)
    if any(m.experiment == _ALONE for m in measurement_rows):
        where = next(m.where for m in measurement_rows if m.experiment == _ALONE)
        experiments[_ALONE] = ExperimentRow(where, _ALONE, (Period(0.0, ()),))
    return ProblemTables(
        overview.file,
        2,
        overview.model,
        _with_priors(_parameter_2(row, mapping.get(name, name), mistakes) for name, row in parameters.items()),
        tuple(_observable_2(row, name, mistakes) for name, row in observables.items()),
        conditions,
        tuple(experiments.values()),
        measurement_rows,
        mapping,
        _find_doubts(2, parameter=parameters.values(), observable=observables.values(), measurement=table_rows),
    )


def _parameter_2(row: TsvRow, name: str, mistakes: list[str]) -> ParameterRow:
    estimated = choice(row, "estimate", _ESTIMATE_2, "", mistakes)
    kind = row.text("priorDistribution")
    prior_entry = prior(row, kind, "priorParameters", _PRIORS_2, mistakes) if kind and estimated else None
    if row.text("priorParameters") and not kind:
        mistakes.append(f"{row.where}: priorParameters is given, but no priorDistribution; give both")
    return parameter(row, name, LIN, estimated, prior_entry, mistakes)


def _with_priors(rows: Iterable[ParameterRow]) -> tuple[ParameterRow, ...]:
    """Return the rows; where some have priors, others that are estimated have even ones between their bounds."""
    rows = tuple(rows)
    if all(row.prior is None for row in rows):
        return rows
    return tuple(
        replace(row, prior=PriorEntry("uniform", (row.lower, row.upper)))
        if row.estimated and row.prior is None and isfinite(row.lower) and isfinite(row.upper)
        else row
        for row in rows
    )


def _observable_2(row: TsvRow, name: str, mistakes: list[str]) -> ObservableRow:
    axis, distribution = choice(row, "noiseDistribution", _DISTRIBUTIONS_2, NORMAL, mistakes)
    placeholder_groups = tuple(
        _listed(row, column, mistakes) for column in ("observablePlaceholders", "noisePlaceholders")
    )

    def placeholders(_: str, inside: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        mistakes.extend(
            f"{row.where}: the placeholder '{p}' of '{name}' is in neither of its formulas"
            for group in placeholder_groups
            for p in group
            if p not in inside
        )
        return placeholder_groups[0], placeholder_groups[1]

    return observable(row, name, axis, distribution, placeholders, mistakes)


def _listed(row: TsvRow, column: str, mistakes: list[str]) -> tuple[str, ...]:
    names = tuple(part.strip() for part in row.text(column).split(";") if part.strip())
    mistakes += [f"{row.where}: {column} holds '{p}', which is no identifier" for p in names if not is_name(p)]
    return names


def _conditions(rows: tuple[TsvRow, ...], mistakes: list[str]) -> dict[str, tuple[ConditionChange, ...]]:
    out: dict[str, tuple[ConditionChange, ...]] = {}
    for row in rows:
        name, target, value = (row.text(c) for c in ("conditionId", "targetId", "targetValue"))
        missing_columns = [c for c, v in (("conditionId", name), ("targetId", target), ("targetValue", value)) if not v]
        mistakes += [
            f"{row.where}: {c} is {'NaN, which is no value' if c in row.nan else 'empty'}" for c in missing_columns
        ]
        if missing_columns:
            continue
        if isinf(number(value) or 0.0):
            mistakes.append(f"{row.where}: targetValue is {value}; give a finite number")
            continue
        try:
            names_in(value)
        except FormulaError as error:
            mistakes.append(f"{row.where}: targetValue: {error}")
            continue
        earlier = [c for c in out.get(name, ()) if c.target == target]
        mistakes += [f"{row.where}: '{name}' sets '{target}' twice, first in {c.where}" for c in earlier]
        out[name] = (*out.get(name, ()), ConditionChange(row.where, target, value))
    return out


def _experiments_2(
    rows: tuple[TsvRow, ...], conditions: Mapping[str, tuple[ConditionChange, ...]], mistakes: list[str]
) -> dict[str, ExperimentRow]:
    periods: dict[str, dict[float, tuple[str, ...]]] = {}
    first_rows: dict[str, TsvRow] = {}
    for row in rows:
        name, condition, time = row.text("experimentId"), row.text("conditionId"), row.number("time", mistakes)
        if not is_name(name):
            mistakes.append(f"{row.where}: experimentId is '{name}', which is no identifier")
            continue
        first_rows.setdefault(name, row)
        if condition and condition not in conditions:
            mistakes.append(
                f"{row.where}: conditionId '{condition}' is not in the condition table: "
                f"{suggest(condition, conditions)}"
            )
        if isnan(time) or time == inf:
            if time == inf:
                mistakes.append(
                    f"{row.where}: time is inf; a period begins at a time, or at -inf for pre-equilibration"
                )
            continue
        conditions_by_time = periods.setdefault(name, {})
        conditions_by_time[time] = (*conditions_by_time.get(time, ()), *([condition] if condition else []))
    out: dict[str, ExperimentRow] = {}
    for name, conditions_by_time in periods.items():
        experiment_periods = tuple(Period(t, conditions_by_time[t]) for t in sorted(conditions_by_time))
        out[name] = ExperimentRow(first_rows[name].where, name, experiment_periods)
        if not out[name].during:
            mistakes.append(f"{first_rows[name].where}: '{name}' has no period after its pre-equilibration; add one")
    return out


def _measurement_2(row: TsvRow, experiments: Mapping[str, ExperimentRow], mistakes: list[str]) -> MeasurementRow:
    name = row.text("experimentId")
    if name and name not in experiments:
        mistakes.append(
            f"{row.where}: experimentId '{name}' is not in the experiment table: {suggest(name, experiments)}"
        )
    measurement_row = measurement(row, name or _ALONE, mistakes)
    experiment = experiments.get(name)
    begin = experiment.during[0].time if experiment is not None and experiment.during else 0.0
    if measurement_row.time < begin:
        mistakes.append(f"{row.where}: time is {measurement_row.time:g}, before the experiment begins at {begin:g}")
    if row.text("modelId"):
        mistakes.append(
            f"{row.where}: modelId is given; problems with one model can be read_version_2, which need none"
        )
    return measurement_row
