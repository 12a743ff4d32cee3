"""Observables: which outputs of the model they become, and what the errors of each measured value are.

An observable with placeholders is another function of the model for every set of overrides.  It becomes

    one output                       where all its values have the same overrides
    one output with parameters       where they differ between experiments only: the placeholders become parameters
    one output per set               where they differ within an experiment

Laplace's errors of a logarithm, with  r = (log mu - log m) / s,  have the density  exp(-|r|) / (2 s m)  of the value
itself, of decades with a factor log 10 in each logarithm; rows are the same as in `Laplace`, with d log mu in the place
of d mu.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.reprs import add_brief_repr
from castfit._support.status import suggest
from castfit.densities.noise.density import Density, Noise, floor_spread, lower_triangular, pairs, secant_curvature
from castfit.densities.noise.models import Gaussian, Laplace, LogNormal
from castfit.formats.petab.parsing import FormulaError, Graph, expression, number
from castfit.formats.petab.problem_tables import LAPLACE, LIN, LOG10, MeasurementRow, ObservableRow

_KINK_HALF_WIDTH = 1e-3  # half width of the parabola that replaces the kink of abs(r) at 0, as in Laplace


@add_brief_repr
@dataclass(frozen=True, eq=False)
class LogLaplace(Noise):
    """Double exponential errors of the logarithm; the density is that of the measured value itself.

    sigma : scale of the logarithm's errors, without unit; nothing means unknown
    base {"e", 10} : which logarithm
    """

    in_unit_of_output: ClassVar[bool] = False
    is_heavy_tailed: ClassVar[bool] = True
    base: Any = field(default="e", kw_only=True)

    @property
    def _unit(self) -> float:
        return float(np.log(10.0)) if self.base == 10 else 1.0

    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return ``|r| + log 2 s + log m``."""
        r = (ca.log(mu) - ca.log(m)) / (self._unit * s)
        size = ca.fabs(r)
        value = ca.if_else(size > _KINK_HALF_WIDTH, size, 0.5 * r**2 / _KINK_HALF_WIDTH + 0.5 * _KINK_HALF_WIDTH)
        weight = 1 / ca.fmax(size, _KINK_HALF_WIDTH)
        c = secant_curvature(weight * r**2 - 1, size, 1.0, 1.0)
        factor = ca.diag(ca.vertcat(ca.sqrt(weight) / (self._unit * mu), ca.sqrt(c))) / s
        cost = value + ca.log(2 * s) + ca.log(m * self._unit)
        information = ca.vertcat(ca.sqrt(1 / weight), ca.sqrt(1 / c))
        triangular = lower_triangular(ca.vertcat(mu, s), m, cost, r / np.sqrt(2.0), factor, information)
        return Density(
            triangular.eta,
            m,
            triangular.cost,
            triangular.residual,
            triangular.factor,
            triangular.rows,
            triangular.information,
            factor @ factor.T,
        )

    def error(self, mu: Array, s: Array, m: Array) -> Array:
        """Return the errors r, on the axis of the logarithm."""
        return (np.log(mu) - np.log(m)) / (self._unit * s)

    def value_at(self, mu: Array, s: Array, r: Array) -> Array:
        """Return the values whose errors are r."""
        return mu * np.exp(-self._unit * s * r)

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return the standard deviations of values whose median is mu; NaN where the tail is too heavy for one."""
        b = self._unit * np.asarray(s, dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = np.where(b < 0.5, 1 / (1 - 4 * b**2) - 1 / (1 - b**2) ** 2, np.nan)
        return np.abs(mu) * np.sqrt(variance)

    @property
    def additive(self) -> bool:
        """Whether a value is its prediction plus an error, on the axis of the logarithm."""
        return True

    def starting_spread(self, mu: Array, m: Array) -> float:
        """Return the mean absolute deviation of the logarithm."""
        prediction, value = pairs(mu, m)
        with np.errstate(all="ignore"):
            size = np.abs(np.log(prediction) - np.log(value)) / self._unit
        return floor_spread(float(np.mean(size)) if size.size else np.nan, np.log(value), 1.0)

    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Draw measured values."""
        return np.asarray(mu) * np.exp(self._unit * rng.laplace(0.0, s, np.shape(mu)))

    def value_mistakes(self, values: Array) -> list[str]:
        """Refuse values that have no logarithm."""
        bad = values[values <= 0]
        return [f"it contains {bad.flat[0]:g}; errors of a logarithm need positive values"] if bad.size else []


@dataclass(frozen=True)
class PetabDatum:
    """One measured value with its output and its standard deviation, a number or an expression."""

    row: MeasurementRow
    output: str
    sigma: Graph


@dataclass(frozen=True)
class ObservableCompiler:
    """Compiled observables of a problem.

    outputs : mapping from a name to its expression
    noise : mapping from an output to its noise model, without a spread
    data : one for each row of the measurements
    placeholders : mapping from an experiment to values of placeholders that became parameters
    labels : mapping from an output to the observable that it belongs to
    """

    outputs: dict[str, ca.SX]
    noise: dict[str, Noise]
    data: tuple[PetabDatum, ...]
    placeholders: dict[str, dict[str, Graph]]
    labels: dict[str, str]


@dataclass
class _Reader:
    graphs_by_name: Mapping[str, Graph]
    mistakes: list[str]
    expression_cache: dict[tuple[Any, ...], Graph] = field(default_factory=dict[tuple[Any, ...], Graph])

    def value(self, where: str, text: str, extra: Mapping[str, Graph]) -> Graph:
        """Return a formula; of equal formulas with equal overrides the same graph."""
        key = (text, *((n, str(v)) for n, v in extra.items()))
        if key not in self.expression_cache:
            try:
                self.expression_cache[key] = expression(text, {**self.graphs_by_name, **extra})
            except FormulaError as error:
                message = f"{where}: {error}"
                self.mistakes += [] if message in self.mistakes else [message]
                self.expression_cache[key] = float("nan")
        return self.expression_cache[key]


def compile_observables(
    rows: Sequence[ObservableRow],
    measurements: Sequence[MeasurementRow],
    graphs: Mapping[str, Graph],
    moving: Container[str],
    mistakes: list[str],
) -> ObservableCompiler:
    """Build the outputs, noise models and data from the tables, given the expressions of identifiers in `graphs`."""
    by_name = {row.name: row for row in rows}
    mistakes += [
        f"{row.where}: observableId '{name}' is what the model calls one of its own; give the observable another name"
        for name, row in by_name.items()
        if name in graphs and ca.SX(graphs[name]).is_symbolic()
    ]
    reader = _Reader({**_observables_by_name(by_name, graphs), **graphs}, mistakes)
    measurements_by_observable: dict[str, list[MeasurementRow]] = {}
    for m in measurements:
        if m.observable not in by_name:
            mistakes.append(f"{m.where}: observableId '{m.observable}' is not in the observables table: "
                            f"{suggest(m.observable, by_name)}")  # fmt: skip
        elif _right(m, by_name[m.observable], moving, mistakes):
            measurements_by_observable.setdefault(m.observable, []).append(m)
    out = ObservableCompiler({}, {}, (), {}, {})
    data: dict[int, PetabDatum] = {}
    for name, observable_measurements in measurements_by_observable.items():
        data |= _observable(by_name[name], observable_measurements, reader, out)
    return ObservableCompiler(out.outputs, out.noise, tuple(data[id(m)] for m in measurements if id(m) in data),
                     out.placeholders, out.labels)  # fmt: skip


def _observables_by_name(rows: Mapping[str, ObservableRow], graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """Return the expressions of observables that formulas may contain: those without placeholders and cycles."""
    observable_graphs: dict[str, Graph] = {}
    pending = {n: row for n, row in rows.items() if n not in graphs}
    for _ in rows:
        for name, row in list(pending.items()):
            with suppress(FormulaError):  # a circular reference is reported elsewhere; an unresolved one is tried again
                observable_graphs[name] = expression(row.formula, {**graphs, **observable_graphs})
                del pending[name]
    return observable_graphs


def _right(m: MeasurementRow, row: ObservableRow, moving: Container[str], mistakes: list[str]) -> bool:
    """Check the number of overrides, and that they are no states."""
    is_valid = True
    for column, overrides, placeholders in (
        ("observableParameters", m.overrides, row.placeholders),
        ("noiseParameters", m.noise_overrides, row.noise_placeholders),
    ):
        if len(overrides) != len(placeholders):
            is_valid = False
            need = f"takes {len(placeholders)}" if placeholders else "takes none"
            mistakes.append(f"{m.where}: {column} holds {len(overrides)} values, but '{row.name}' ({row.where}) {need}")
        for text in (text for text in overrides if text in moving):
            is_valid = False
            mistakes.append(
                f"{m.where}: {column} holds '{text}', which is a state of the model or follows from its rules; give a "
                "number or a parameter"
            )
    if row.axis != LIN and m.value <= 0:
        is_valid = False
        mistakes.append(
            f"{m.where}: measurement is {m.value:g}, but errors of '{row.name}' are on a logarithmic scale; "
            "it must be positive"
        )
    return is_valid


def _observable(
    row: ObservableRow, rows: Sequence[MeasurementRow], reader: _Reader, out: ObservableCompiler
) -> dict[int, PetabDatum]:
    spreads = _spreads(row, rows, reader)
    keys = {id(m): (m.overrides, "" if not isinstance(spreads[id(m)], ca.SX) else m.noise_overrides) for m in rows}
    experiment_keys = {(m.experiment, keys[id(m)]) for m in rows}
    has_several_sets = len({e for e, _ in experiment_keys}) < len(experiment_keys)
    overrides = dict.fromkeys(m.overrides for m in rows)
    if has_several_sets:
        first_rows = dict[tuple[Any, ...], MeasurementRow]()
        for m in rows:
            first_rows.setdefault(keys[id(m)], m)
        names = _own_outputs(row, first_rows, reader, out)
        return {id(m): PetabDatum(m, names[keys[id(m)]], spreads[id(m)]) for m in rows}
    if len(overrides) == 1:
        extra = _replaced(row.placeholders, rows[0].overrides, reader, rows[0].where)
        _add(row, row.name, extra, reader, out)
        return {id(m): PetabDatum(m, row.name, spreads[id(m)]) for m in rows}
    symbols: dict[str, Graph] = {p: reader.graphs_by_name.get(p, ca.SX.sym(p)) for p in row.placeholders}
    _add(row, row.name, symbols, reader, out)
    for m in {m.experiment: m for m in rows}.values():  # the overrides of an experiment are all the same here
        values = _replaced(row.placeholders, m.overrides, reader, m.where)
        out.placeholders.setdefault(m.experiment, {}).update(values)
    return {id(m): PetabDatum(m, row.name, spreads[id(m)]) for m in rows}


def _spreads(row: ObservableRow, rows: Sequence[MeasurementRow], reader: _Reader) -> dict[int, Graph]:
    """Return the standard deviations of values, by their rows: the same for the same overrides."""
    cached: dict[tuple[tuple[str, ...], tuple[str, ...]], Graph] = {}
    out: dict[int, Graph] = {}
    for m in rows:
        key, mistakes = (m.overrides, m.noise_overrides), len(reader.mistakes)
        out[id(m)] = cached[key] if key in cached else _spread(row, m, reader)
        if len(reader.mistakes) == mistakes:  # otherwise every row reports the error
            cached[key] = out[id(m)]
    return out


def _own_outputs(
    row: ObservableRow, rows: Mapping[tuple[Any, ...], MeasurementRow], reader: _Reader, out: ObservableCompiler
) -> dict[tuple[Any, ...], str]:
    """Create an output for each set of overrides, from its first row, and return names that show their differences."""
    names = {key: f"{row.name} ({label})" for key, label in _labels(rows).items()}
    for key, name in names.items():
        _add(row, name, _replaced(row.placeholders, key[0], reader, rows[key].where), reader, out)
    return names


def _labels(keys: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], str]:
    """Return short names of sets of overrides, all different: what they have in common is left out if it can be."""
    overrides = {key: (*key[0], *key[1]) for key in keys}
    columns = list(itertools.zip_longest(*overrides.values()))
    varying_overrides = {
        key: [v for v, column in zip(s, columns, strict=False) if len({*column}) > 1] for key, s in overrides.items()
    }
    for choice in (varying_overrides, overrides):
        labels = {key: ", ".join(dict.fromkeys(values)) for key, values in choice.items()}
        if len({*labels.values()}) == len(labels) and all(labels.values()):
            return labels
    return {key: ", ".join(values) for key, values in overrides.items()}


def _add(row: ObservableRow, name: str, extra: Mapping[str, Graph], reader: _Reader, out: ObservableCompiler) -> None:
    out.outputs[name] = ca.SX(reader.value(f"{row.where}: observableFormula of '{row.name}'", row.formula, extra))
    out.noise[name] = noise_model(row)
    out.labels[name] = row.name


def _replaced(placeholders: Iterable[str], overrides: Iterable[str], reader: _Reader, where: str) -> dict[str, Graph]:
    """Return the values that replace the placeholders."""
    out: dict[str, Graph] = {}
    for placeholder, text in zip(placeholders, overrides, strict=True):
        value = number(text)
        out[placeholder] = reader.value(where, text, {}) if value is None else value
    return out


def _spread(row: ObservableRow, m: MeasurementRow, reader: _Reader) -> Graph:
    """Return the standard deviation of a value: a number, or an expression of parameters and states."""
    extra = _replaced(row.noise_placeholders, m.noise_overrides, reader, m.where)
    if row.placeholders or row.name not in reader.graphs_by_name:
        extra = {**_replaced(row.placeholders, m.overrides, reader, m.where), **extra}
    where = f"{row.where}: noiseFormula of '{row.name}'"
    prediction = reader.value(f"{row.where}: observableFormula of '{row.name}'", row.formula, extra)
    spread = reader.value(where, row.noise, {**extra, row.name: prediction})
    if isinstance(spread, ca.SX) and spread.is_constant():
        spread = float(spread)
    if not isinstance(spread, ca.SX) and not 0 < spread < float("inf"):
        if spread == spread:
            reader.mistakes.append(f"{m.where}: the noise of '{row.name}' is {spread:g}; it must be positive")
        return 1.0
    return spread


def noise_model(row: ObservableRow) -> Noise:
    """Return the noise model of an observable, without its standard deviation."""
    if row.distribution == LAPLACE:
        return Laplace() if row.axis == LIN else LogLaplace(base=10 if row.axis == LOG10 else "e")
    if row.axis == LIN:
        return Gaussian()
    return LogNormal(base=10) if row.axis == LOG10 else LogNormal()
