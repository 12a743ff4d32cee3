"""Predictions of outputs at given times, fixed like any other quantity.

A predicted value joins the data as a row  w (y(t) - z).  The weight w is 0 except in the profile of that value.  Every
transcription then has the value at its time, with derivatives, and a row with w = 0 adds no cost.  One staged problem
serves all times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from castfit._support.arguments import option_mistakes, read_real
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.status import raise_if_mistakes
from castfit.densities.noise.gaussian import Gaussian
from castfit.drive.uncertainty.profile.targets import E, ModifiedStagedProblem, RowTarget, scaled_rows
from castfit.experiment.experiment import MeasurementPoints
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.observables import ObservedOutput
from castfit.solve.staged import Evaluation, Layout, StagedProblem

_UNIT_SEPARATION = 1e-6  # relative difference between the units of added rows, which identifies the rows


@public("castfit")
@dataclass(frozen=True)
class OutputAt:
    """An output of the model at a time, as the target of a profile.

    Parameters
    ----------
    output : str
    time : float
    experiment : str, optional
        Required if there are several experiments.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("lotka_volterra").problem)
    >>> profiles = cf.profile(result, cf.OutputAt("y1", 3.5))
    >>> profiles["y1(t = 3.5)"].sides()[1].kind
    'bounded'
    """

    output: str
    time: float
    experiment: str | None = None

    def __post_init__(self) -> None:
        time, name = read_real(self.time), cast("Any", self.experiment)
        rules = [
            ("output", self.output, isinstance(cast("Any", self.output), str), "expected the name of an output"),
            ("time", self.time, time is not None and np.isfinite(time), "expected a finite number"),
            ("experiment", name, name is None or isinstance(name, str), "expected the name of an experiment"),
        ]
        raise_if_mistakes("OutputAt", option_mistakes(*rules))

    @property
    def label(self) -> str:
        """Name in tables."""
        where = f", {self.experiment}" if self.experiment is not None else ""
        return f"{self.output}(t = {self.time:g}{where})"


@dataclass(frozen=True)
class PredictedOutput:
    """A prediction: position of its condition, output, time, the value at the best fit, and the unit of its row."""

    condition: int
    output: str
    time: float
    value: float
    unit: float


def augment_problem(compiled_problem: CompiledProblem, predicted_outputs: Sequence[PredictedOutput]) -> CompiledProblem:
    """Return the problem with a row for each prediction, in additional outputs."""
    outputs = tuple(dict.fromkeys(a.output for a in predicted_outputs))
    conditions: list[object] = []
    for i, condition in enumerate(compiled_problem.conditions):
        condition_outputs = [a for a in predicted_outputs if a.condition == i]
        points, padding = condition.points, ((0, len(condition_outputs)), (0, len(outputs)))
        values, sigma = (np.pad(array, padding, constant_values=np.nan) for array in (points.values, points.sigma))
        for row, a in enumerate(condition_outputs, points.times.size):
            column = points.values.shape[1] + outputs.index(a.output)
            values[row, column], sigma[row, column] = a.value, a.unit
        times = np.append(points.times, [a.time for a in condition_outputs])
        order = np.argsort(times, kind="stable")
        augmented_points = MeasurementPoints(times[order], values[order], sigma[order])
        observed_outputs = tuple(
            ObservedOutput(Gaussian(), -1, (n,)) if any(a.output == n for a in condition_outputs) else None
            for n in outputs
        )
        conditions.append(
            replace(condition, points=augmented_points, observed=(*condition.observed, *observed_outputs))
        )
    return replace(compiled_problem, conditions=tuple(conditions), outputs=(*compiled_problem.outputs, *outputs))  # pyright: ignore


@dataclass(frozen=True, eq=False)
class PredictionRows:
    """The rows of predictions: all have weight 0 except the fixed one.

    places : per prediction (chain, stage, row)
    units, values : (n,) scales and reference values of the rows
    fixed_row : index of the fixed prediction, -1 if none is fixed;  z, w : its value and weight
    """

    layout: Layout
    places: tuple[tuple[int, int, int], ...]
    units: Array
    values: Array
    fixed_row: int = -1
    z: float = 0.0
    w: float = 0.0

    def __call__(self, evaluation: E) -> E:
        """Return the evaluation with these rows weighted."""
        if not evaluation.ok:
            return evaluation
        factors = [np.ones(chain.row_mask.shape) for chain in self.layout.chains]
        shift = [np.zeros(chain.row_mask.shape) for chain in self.layout.chains]
        for n, (chain, stage, row) in enumerate(self.places):
            factors[chain][stage, row] = self.w * self.units[n] if n == self.fixed_row else 0.0
            if n == self.fixed_row:
                shift[chain][stage, row] = self.w * (self.values[n] - self.z)
        return scaled_rows(evaluation, factors, shift)

    def value(self, evaluation: Evaluation, n: int) -> float:
        """Return prediction n at an evaluation of the inner problem."""
        chain, stage, row = self.places[n]
        return float(evaluation.values[chain].r[stage, row] * self.units[n] + self.values[n])


def release_predictions(staged: StagedProblem, predicted_outputs: Sequence[PredictedOutput]) -> ModifiedStagedProblem:
    """Return a staged problem of `augment_problem` in which no prediction is fixed."""
    row_positions: dict[int, tuple[int, int, int]] = {}
    spreads = staged.standardised(staged.start)
    units = [a.unit for a in predicted_outputs]
    for i, (chain, (_, spread, _)) in enumerate(zip(staged.layout.chains, spreads, strict=True)):
        data_positions = np.argwhere(chain.datum_mask)
        for n, unit in enumerate(units):
            if predicted_outputs[n].condition != i:
                continue
            matching_rows = np.flatnonzero(np.abs(spread - unit) <= 0.1 * _UNIT_SEPARATION * unit)
            # A measurement may have the same spread by chance; the added row is the last one of its time.
            row_positions[n] = (i, int(data_positions[matching_rows[-1], 0]), int(data_positions[matching_rows[-1], 1]))
    rows = tuple(row_positions[n] for n in range(len(predicted_outputs)))
    return ModifiedStagedProblem(
        staged, PredictionRows(staged.layout, rows, np.array(units), np.array([a.value for a in predicted_outputs]))
    )


@dataclass(frozen=True, eq=False)
class OfPrediction(RowTarget):
    """An output at a time, by its position among the predictions of the run."""

    n: int = 0
    prediction: PredictedOutput | None = None

    def with_fixed_value(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with the weighted row."""
        inner, rows = _taken_apart(staged)
        return ModifiedStagedProblem(inner, replace(rows, fixed_row=self.n, z=c, w=self.weight))

    def coordinate(self, evaluation: Evaluation, fixed_problem: StagedProblem) -> float:
        """Return the prediction."""
        inner, rows = _taken_apart(fixed_problem)
        if rows.fixed_row != self.n:
            return rows.value(inner.evaluate(evaluation.v), self.n)
        chain, stage, row = rows.places[self.n]
        return float(evaluation.values[chain].r[stage, row] / rows.w + rows.z)

    def own_cost(self, evaluation: Evaluation, fixed_problem: StagedProblem) -> float:
        """Return half the square of the row."""
        chain, stage, row = _taken_apart(fixed_problem)[1].places[self.n]
        return 0.5 * float(evaluation.values[chain].r[stage, row]) ** 2

    def own_rows(self, rows: Array, fixed_problem: StagedProblem) -> Array:
        """Return the rows without this one."""
        chain, stage, row = _taken_apart(fixed_problem)[1].places[self.n]
        masks = [c.row_mask for c in fixed_problem.layout.chains]
        row_offset = sum(int(m.sum()) for m in masks[:chain]) + int(masks[chain][:stage].sum())
        return np.delete(rows, row_offset + int(masks[chain][stage, :row].sum()))


def _taken_apart(staged: StagedProblem) -> tuple[StagedProblem, PredictionRows]:
    """Return the inner problem of `release_predictions` or `OfPrediction.with_fixed_value`, and the added rows."""
    assert isinstance(staged, ModifiedStagedProblem)
    assert isinstance(staged.change, PredictionRows)
    return staged.inner, staged.change


def prediction(label: str, predicted_output: PredictedOutput, n: int) -> OfPrediction:
    """Return a prediction as number n of its run; its unit identifies its row."""
    unique_output = replace(predicted_output, unit=predicted_output.unit * (1.0 + _UNIT_SEPARATION * (1.0 + n)))
    return OfPrediction(
        label, "prediction", False, -np.inf, np.inf, predicted_output.unit, n=n, prediction=unique_output
    )
