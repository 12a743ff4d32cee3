"""Tables of a PEtab problem, independent of the version of the format.

Formulas and names stay text here; what they mean is worked out with the model beside them (see
loading.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from castfit.formats.petab.parsing import names_in

NORMAL, LAPLACE = "normal", "laplace"
LIN, LOG, LOG10 = "lin", "log", "log10"


@dataclass(frozen=True)
class PriorEntry:
    """An objective prior: its kind in PEtab's words of version 1 or 2, and its numbers."""

    kind: str
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class TableRow:
    """Base of all rows: `where` is the location of the row, file and line."""

    where: str


@dataclass(frozen=True)
class ParameterRow(TableRow):
    """A row of the parameter table; `scale` is lin, log or log10, bounds and nominal value are natural.

    `begins` is the distribution of the starts of a search.
    """

    name: str
    scale: str
    lower: float
    upper: float
    nominal: float | None
    estimated: bool
    prior: PriorEntry | None = None
    label: str = ""
    begins: PriorEntry | None = None


@dataclass(frozen=True)
class ObservableRow(TableRow):
    """A row of the observables table: errors are normal or Laplace's on an axis that is lin, log or log10."""

    name: str
    formula: str
    noise: str
    axis: str
    distribution: str
    placeholders: tuple[str, ...]
    noise_placeholders: tuple[str, ...]
    label: str = ""


NAN = "NaN"


@dataclass(frozen=True)
class ConditionChange(TableRow):
    """One change that a condition makes: a target in the model, and its value, a formula or a number, as text.

    `NAN` in version 1 says that a species keeps what it has.
    """

    target: str
    value: str


@dataclass(frozen=True)
class Period:
    """Period that begins at `time`, with the conditions in force; the time is -inf for pre-equilibration."""

    time: float
    conditions: tuple[str, ...]


@dataclass(frozen=True)
class ExperimentRow(TableRow):
    """An experiment: its periods in order of time."""

    name: str
    periods: tuple[Period, ...]

    @property
    def preequilibration_period(self) -> Period | None:
        """The pre-equilibration period, in which the model reaches steady state; None if there is none."""
        return self.periods[0] if self.periods and self.periods[0].time == float("-inf") else None

    @property
    def during(self) -> tuple[Period, ...]:
        """The periods of the experiment itself."""
        return self.periods[1:] if self.preequilibration_period else self.periods


@dataclass(frozen=True)
class MeasurementRow(TableRow):
    """One measured value; overrides of placeholders are names or numbers, as text."""

    observable: str
    experiment: str
    value: float
    time: float
    overrides: tuple[str, ...]
    noise_overrides: tuple[str, ...]


@dataclass(frozen=True)
class ProblemTables:
    """All tables of a problem.

    file : the YAML file
    parameters, observables, experiments, measurements : tuples of rows
    conditions : mapping from a condition to its changes
    mapping : mapping from PEtab's names to those of the model, where they differ
    doubts : columns that seem to be misspelt, in words
    """

    file: Path
    version: int
    model_file: Path
    parameters: tuple[ParameterRow, ...]
    observables: tuple[ObservableRow, ...]
    conditions: Mapping[str, tuple[ConditionChange, ...]]
    experiments: tuple[ExperimentRow, ...]
    measurements: tuple[MeasurementRow, ...]
    mapping: Mapping[str, str] = field(default_factory=dict[str, str])
    doubts: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """All names in formulas, conditions and overrides, which must be readable."""
        formulas = {f for row in self.observables for f in (row.formula, row.noise)}
        values = {c.value for changes in self.conditions.values() for c in changes}
        overrides = {text for m in self.measurements for text in (*m.overrides, *m.noise_overrides)}
        return frozenset(n for text in {*formulas, *values, *overrides} for n in names_in(text))
