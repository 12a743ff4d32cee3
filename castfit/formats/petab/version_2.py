"""Version 2 of the format: experiments of periods, a long table of conditions with formulas, placeholders by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf, isfinite, isinf, isnan

from castfit._support.status import suggest
from castfit.formats.petab.formulas import is_name, names_in, number
from castfit.formats.petab.parsing import FormulaError
from castfit.formats.petab.problem_tables import (
    LAPLACE,
    LIN,
    LOG,
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

_DISTRIBUTIONS = {
    NORMAL: (LIN, NORMAL),
    LAPLACE: (LIN, LAPLACE),
    "log-normal": (LOG, NORMAL),
    "log-laplace": (LOG, LAPLACE),
}
_PRIORS: Mapping[str, int] = {
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
_ESTIMATE = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
_OF_PARAMETERS_1 = {
    "objectivePriorType": "priorDistribution says it in version 2",
}
_OF_MEASUREMENTS_1 = {
    column: "experimentId says it in version 2, and the experiment table has its conditions"
    for column in ("simulationConditionId", "preequilibrationConditionId")
}
_OF_OBSERVABLES_1 = {
    "observableTransformation": "noiseDistribution says it in version 2, as log-normal or log-laplace",
}
_PARAMETERS = ("parameterId", "estimate")
_OBSERVABLES = ("observableId", "observableFormula", "noiseFormula")
_MEASUREMENTS = ("observableId", "measurement", "time")
_MORE_OF_PARAMETERS = (
    "parameterName", "nominalValue", "lowerBound", "upperBound", "priorDistribution", "priorParameters",
)  # fmt: skip
_MORE_OF_OBSERVABLES = ("observableName", "noiseDistribution", "observablePlaceholders", "noisePlaceholders")
_MORE_OF_MEASUREMENTS = ("experimentId", "observableParameters", "noiseParameters")
_ALONE = "the experiment"  # of measurements that name none


def read(overview: PetabFileIndex, mistakes: list[str]) -> ProblemTables:
    """Read the tables of a PEtab version 2 problem; errors are appended to `mistakes`."""
    rows = partial(read_rows, overview, mistakes)

    parameters = by_name(rows("parameter", *_PARAMETERS), "parameterId", mistakes)
    observables = by_name(rows("observable", *_OBSERVABLES), "observableId", mistakes)
    refuse_other_version_columns(parameters.values(), _OF_PARAMETERS_1, mistakes)
    refuse_other_version_columns(observables.values(), _OF_OBSERVABLES_1, mistakes)
    conditions = _conditions(rows("condition", "conditionId", "targetId", "targetValue"), mistakes)
    experiments = _experiments(rows("experiment", "experimentId", "time", "conditionId"), conditions, mistakes)
    table_rows = rows("measurement", *_MEASUREMENTS)
    refuse_other_version_columns(table_rows, _OF_MEASUREMENTS_1, mistakes)
    mapping = map_names(rows("mapping", "petabEntityId", "modelEntityId"))
    measurement_rows = tuple(_measurement(row, experiments, mistakes) for row in table_rows)
    if any(m.experiment == _ALONE for m in measurement_rows):
        where = next(m.where for m in measurement_rows if m.experiment == _ALONE)
        experiments[_ALONE] = ExperimentRow(where, _ALONE, (Period(0.0, ()),))
    return ProblemTables(
        overview.file,
        2,
        overview.model,
        _with_priors(_parameter(row, mapping.get(name, name), mistakes) for name, row in parameters.items()),
        tuple(_observable(row, name, mistakes) for name, row in observables.items()),
        conditions,
        tuple(experiments.values()),
        measurement_rows,
        mapping,
        (
            *misspelled_columns(parameters.values(), (*_PARAMETERS, *_MORE_OF_PARAMETERS, *_OF_PARAMETERS_1)),
            *misspelled_columns(observables.values(), (*_OBSERVABLES, *_MORE_OF_OBSERVABLES, *_OF_OBSERVABLES_1)),
            *misspelled_columns(table_rows, (*_MEASUREMENTS, *_MORE_OF_MEASUREMENTS, *_OF_MEASUREMENTS_1)),
        ),
    )


def _parameter(row: TsvRow, name: str, mistakes: list[str]) -> ParameterRow:
    estimated = choice(row, "estimate", _ESTIMATE, "", mistakes)
    kind = row.text("priorDistribution")
    prior_entry = prior(row, kind, "priorParameters", _PRIORS, mistakes) if kind and estimated else None
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


def _observable(row: TsvRow, name: str, mistakes: list[str]) -> ObservableRow:
    axis, distribution = choice(row, "noiseDistribution", _DISTRIBUTIONS, NORMAL, mistakes)
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


def _experiments(
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


def _measurement(row: TsvRow, experiments: Mapping[str, ExperimentRow], mistakes: list[str]) -> MeasurementRow:
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
        mistakes.append(f"{row.where}: modelId is given; problems with one model can be read, which need none")
    return measurement_row
