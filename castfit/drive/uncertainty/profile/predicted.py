"""Predictions of outputs at times, held like any other quantity.

A value that nobody measured joins the data as a row  w (y(t) - z)  of which w is 0 but in the profile of that value: it
is where its time is in every transcription, with its derivatives, and costs nothing where it is not wanted.  One staged
problem serves all times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.drive.uncertainty.profile.pinned import Dress, Dressed, E, scaled_rows
from castfit.drive.uncertainty.profile.targets import STIFF, Target
from castfit.experiment.experiment import Points
from castfit.densities.noise.gaussian import Gaussian
from castfit.problem.observables import Observed
from castfit.solve.staged import Evaluation

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.compiled_problem import Posed
    from castfit.solve.staged import Layout, StagedProblem

_APART = 1e-6  # relative differences of spreads by which added rows are told from each other


@dataclass(frozen=True)
class OutputAt:
    """An output of the model at a time, as something to be profiled.

    Parameters
    ----------
    output : str
    time : float
    experiment : str, optional
        Needed where there are several.

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

    @property
    def label(self) -> str:
        """Its name in tables."""
        where = f", {self.experiment}" if self.experiment is not None else ""
        return f"{self.output}(t = {self.time:g}{where})"


@dataclass(frozen=True)
class Asked:
    """A prediction: position of its condition, output, time, the value at the best fit, and the unit of its row."""

    condition: int
    output: str
    time: float
    value: float
    unit: float


def augmented(posed: Posed, asked: Sequence[Asked]) -> Posed:
    """Return the problem with a row for each prediction, in columns of their own."""
    outputs = tuple(dict.fromkeys(a.output for a in asked))
    conditions: list[object] = []
    for i, condition in enumerate(posed.conditions):
        own = [a for a in asked if a.condition == i]
        points, width = condition.points, condition.points.values.shape[1]
        values = np.full((len(own), width + len(outputs)), np.nan)
        sigma = np.full_like(values, np.nan)
        for row, a in enumerate(own):
            values[row, width + outputs.index(a.output)] = a.value
            sigma[row, width + outputs.index(a.output)] = a.unit
        nothing = np.full((points.times.size, len(outputs)), np.nan)
        times = np.concatenate([points.times, [a.time for a in own]])
        order = np.argsort(times, kind="stable")
        whole = Points(
            times[order],
            np.vstack([np.hstack([points.values, nothing]), values])[order],
            np.vstack([np.hstack([points.sigma, nothing]), sigma])[order],
        )
        plain = tuple(Observed(Gaussian(), -1, (n,)) if any(a.output == n for a in own) else None for n in outputs)
        conditions.append(replace(condition, points=whole, observed=(*condition.observed, *plain)))
    return replace(posed, conditions=tuple(conditions), outputs=(*posed.outputs, *outputs))  # pyright: ignore


@dataclass(frozen=True, eq=False)
class Rows(Dress):
    """The rows of predictions: none counts but the one that is held.

    layout : Layout
    places : per prediction (chain, stage, row)
    units : (n,) by what rows are divided
    values : (n,) from what they are counted
    held : int, the position of the one that is held; -1 if none is
    z, w : where, and how steeply
    """

    layout: Layout
    places: tuple[tuple[int, int, int], ...]
    units: Array
    values: Array
    held: int = -1
    z: float = 0.0
    w: float = 0.0

    def on(self, at: E) -> E:
        """Return the evaluation with these rows as they count."""
        if not at.ok:
            return at
        factors = [np.ones(chain.row_mask.shape) for chain in self.layout.chains]
        shift = [np.zeros(chain.row_mask.shape) for chain in self.layout.chains]
        for n, (chain, stage, row) in enumerate(self.places):
            factors[chain][stage, row] = self.w * self.units[n] if n == self.held else 0.0
            if n == self.held:
                shift[chain][stage, row] = self.w * (self.values[n] - self.z)
        return scaled_rows(at, factors, shift)

    def value(self, at: Evaluation, n: int) -> float:
        """Return prediction n at an evaluation of the problem inside."""
        chain, stage, row = self.places[n]
        return float(at.values[chain].r[stage, row] * self.units[n] + self.values[n])


def unheld(staged: StagedProblem, asked: Sequence[Asked]) -> Dressed:
    """Return a staged problem of `augmented` with none of the predictions counting."""
    places: dict[int, tuple[int, int, int]] = {}
    spreads = staged.standardised(staged.start)
    units = [a.unit for a in asked]
    for i, (chain, (_, spread, _)) in enumerate(zip(staged.layout.chains, spreads, strict=True)):
        where = np.argwhere(chain.datum_mask)
        for n, unit in enumerate(units):
            if asked[n].condition != i:
                continue
            hit = np.flatnonzero(np.abs(spread - unit) <= 0.1 * _APART * unit)
            # A datum may have the same spread by chance; the added row is the last one of its time.
            places[n] = (i, int(where[hit[-1], 0]), int(where[hit[-1], 1]))
    rows = tuple(places[n] for n in range(len(asked)))
    return Dressed(staged, Rows(staged.layout, rows, np.array(units), np.array([a.value for a in asked])))


def units(values: Array, sizes: Array) -> Array:
    """Return units of rows, different for all predictions, (n,)."""
    return sizes * (1.0 + _APART * (1.0 + np.arange(values.size)))


@dataclass(frozen=True, eq=False)
class OfPrediction(Target):
    """An output at a time, by its position among the predictions of the run."""

    n: int = 0
    asked: Asked | None = None
    weight: float = 1.0

    def held(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with the row counting."""
        assert isinstance(staged, Dressed)
        assert isinstance(staged.dress, Rows)
        return Dressed(staged.inner, replace(staged.dress, held=self.n, z=c, w=self.weight))

    def coordinate(self, at: Evaluation, held: StagedProblem) -> float:
        """Return the prediction."""
        assert isinstance(held, Dressed)
        assert isinstance(held.dress, Rows)
        rows = held.dress
        if rows.held != self.n:
            return rows.value(held.inner.evaluate(at.v), self.n)
        chain, stage, row = rows.places[self.n]
        return float(at.values[chain].r[stage, row] / rows.w + rows.z)

    def own_cost(self, at: Evaluation, held: StagedProblem) -> float:
        """Return half the square of the row."""
        assert isinstance(held, Dressed)
        assert isinstance(held.dress, Rows)
        chain, stage, row = held.dress.places[self.n]
        return 0.5 * float(at.values[chain].r[stage, row]) ** 2

    def own_rows(self, rows: Array, held: StagedProblem) -> Array:
        """Leave out the row."""
        assert isinstance(held, Dressed)
        assert isinstance(held.dress, Rows)
        chain, stage, row = held.dress.places[self.n]
        masks = [c.row_mask for c in held.layout.chains]
        before = sum(int(m.sum()) for m in masks[:chain]) + int(masks[chain][:stage].sum())
        return np.delete(rows, before + int(masks[chain][stage, :row].sum()))

    def stiffened(self, curvature: float) -> Target:
        """Return the target with a row of a thousand times the profile's own steepness."""
        return replace(self, weight=STIFF * max(np.sqrt(max(curvature, 0.0)), 1.0 / self.scale))


def numbered(target: OfPrediction, n: int) -> OfPrediction:
    """Return a prediction as number n of its run, its row told from the others by its unit."""
    assert target.asked is not None
    unit = target.asked.unit * (1.0 + _APART * (1.0 + n))
    return replace(target, n=n, asked=replace(target.asked, unit=unit))
