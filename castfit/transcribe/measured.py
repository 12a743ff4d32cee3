"""From what is observed at points to rows: what every measured value costs, and the local model of it.

`Measured` weights what is observed at the points of one experiment: rows  weight (g - target)  of outputs, their slopes
and their curvature.  Values that cost otherwise than the square of that, or need several rows, stand in `slots`, with
the functions of their density.  Shooting sees states that were integrated, collocation its polynomials.

Notation
--------
K, M    stages, points per stage
n_o     outputs;  n_g  outputs and spreads, what is observed at a point;  n_r  rows of a point
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit.densities.noise.functions import DensityFunctions, functions_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array
    from castfit.problem.compiled_problem import Posed
    from castfit.transcribe.grid import Staging

    Index = NDArray[np.intp]
    Mask = NDArray[np.bool_]

_TYPICAL = 15.0  # standard deviations that a value is large, before anything is known of them


@dataclass(frozen=True)
class Slot:
    """The n values of one output of an experiment that cost otherwise than  1/2 ((prediction - value) / sigma)^2.

    Attributes
    ----------
    functions : DensityFunctions
    stage, point : (n,) int arrays
        Where they stand.
    columns : (n_eta,) int array
        Which entries of g their density depends on; the first is the output.
    rows : (n_r,) int array
        Which rows of a point are theirs; the first is that of the output.
    spread, datum : (n,) arrays
        Their standard deviations, where these are numbers (1 elsewhere), and the measured values.
    size : (n,) array
        How large the measured values are, in units of their rows.
    """

    functions: DensityFunctions
    stage: Index
    point: Index
    columns: Index
    rows: Index
    spread: Array
    datum: Array
    size: Array

    def seen(self, g: Array) -> tuple[Array, Array, Array]:
        """Return the arguments of the density's functions."""
        return g[self.stage[:, None], self.point[:, None], self.columns], self.spread, self.datum

    @property
    def places(self) -> tuple[Index, Index, Index]:
        """Return the positions of its rows in an array (K, M, n_rows), each (n, n_r)."""
        return self.stage[:, None], self.point[:, None], self.rows[None, :]


@dataclass(frozen=True)
class Measured:
    """How g (K, M, n_g), what is observed at the points of one experiment, becomes rows (K, M, n_r).

    The first entries of g are outputs, the others spreads; the first rows are those of outputs.

    Attributes
    ----------
    target, weight : (K, M, n_o) arrays
        A row is  weight * (g - target), and 0 where the weight is 0: there g may be infinite, or a slot has the value.
    slots : tuple of Slot
    n_g : int
    names : tuple of n_r str
        What the rows of a point are.
    group : (n_o,) int array
        The unknown sigma of each output that is eliminated, -1 if there is none.
    """

    target: Array
    weight: Array
    slots: tuple[Slot, ...]
    n_g: int
    names: tuple[str, ...]
    group: Index

    @property
    def n_r(self) -> int:
        """Number of rows of a point."""
        return len(self.names)

    def rows(self, g: Array) -> tuple[Array, float]:
        """Return the rows (K, M, n_r), and what the data cost beyond half their squares."""
        n_o, beyond = self.target.shape[2], 0.0
        r = np.zeros((*g.shape[:2], self.n_r))
        with np.errstate(invalid="ignore"):
            r[..., :n_o] = np.where(self.weight > 0, (g[..., :n_o] - self.target) * self.weight, 0.0)
        for slot in self.slots:
            r[slot.places], excess = slot.functions.rows(*slot.seen(g))
            beyond += float(np.sum(excess))
        return r, beyond

    def excess(self, g: Array) -> Array:
        """Return what the data of each stage cost beyond half the squares of their rows, (K,)."""
        out = np.zeros(g.shape[0])
        for slot in self.slots:
            np.add.at(out, slot.stage, slot.functions.rows(*slot.seen(g))[1])
        return out

    def of_stages(self, stages: Index) -> Measured:
        """Return the same of some stages (k,), each in its new place; one may stand in several."""
        slots: list[Slot] = []
        for slot in self.slots:  # whose values stand in the order of stages
            first, last = (np.searchsorted(slot.stage, stages, side=side) for side in ("left", "right"))
            count = last - first
            rows: Index = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
            slots.append(
                replace(
                    slot,
                    stage=np.repeat(np.arange(stages.size, dtype=np.intp), count),
                    point=slot.point[rows],
                    spread=slot.spread[rows],
                    datum=slot.datum[rows],
                    size=slot.size[rows],
                )
            )
        return replace(self, target=self.target[stages], weight=self.weight[stages], slots=tuple(slots))

    def slopes(self, g: Array, dg: Array) -> Array:
        """Return the derivatives of the rows from those of g, (K, M, n_g, n) -> (K, M, n_r, n)."""
        n_o, weight = self.target.shape[2], self.weight[..., None]
        out = np.zeros((*dg.shape[:2], self.n_r, dg.shape[3]))
        with np.errstate(invalid="ignore"):
            out[:, :, :n_o] = np.where(weight > 0, dg[:, :, :n_o] * weight, 0.0)
            for slot in self.slots:
                of_eta = dg[slot.stage[:, None], slot.point[:, None], slot.columns]
                out[slot.places] = slot.functions.slopes(*slot.seen(g)) @ of_eta
        return out

    def gradient(self, g: Array, factor: Array) -> Array:
        """Return the derivative by g, (K, M, n_g), of the cost, in which rows (K, M, n_r) count `factor` times."""
        n_o = self.target.shape[2]
        out = np.zeros((*g.shape[:2], self.n_g))
        with np.errstate(invalid="ignore"):
            part = factor[..., :n_o] * (g[..., :n_o] - self.target) * self.weight**2
            out[..., :n_o] = np.where(self.weight > 0, part, 0.0)
        for slot in self.slots:
            found = slot.functions.gradient(*slot.seen(g)) * factor[slot.places][:, :1]
            np.add.at(out, (slot.stage[:, None], slot.point[:, None], slot.columns[None, :]), found)
        return out

    def bend(self, g: Array, factor: Array, dg: Array) -> Array:
        """Return the second derivatives by g of the same, times derivatives of g (K, M, n_g, n), (K, M, n_g, n)."""
        n_o = self.target.shape[2]
        out = np.zeros_like(dg)
        out[:, :, :n_o] = (factor[..., :n_o] * self.weight**2)[..., None] * dg[:, :, :n_o]
        for slot in self.slots:
            hessian = slot.functions.hessian(*slot.seen(g)) * factor[slot.places][:, :1, None]
            at = (slot.stage[:, None], slot.point[:, None], slot.columns)
            np.add.at(out, at, hessian @ dg[at])
        return out

    def information(self, g: Array) -> Array:
        """Return by what rows are multiplied for statistics, (K, M n_r), or by which matrices, (K, M n_r, M n_r)."""
        stages, n = g.shape[0], g.shape[1] * self.n_r
        out = np.ones((*g.shape[:2], self.n_r))
        matrices: list[tuple[Slot, Array]] = []
        for slot in self.slots:
            found = slot.functions.information(*slot.seen(g))
            if found.ndim == 2:
                out[slot.places] = found
            else:
                matrices.append((slot, found))
        out = out.reshape(stages, n)
        if not matrices:
            return out
        wide = out[:, :, None] * np.eye(n)
        for slot, found in matrices:
            at = slot.point[:, None] * self.n_r + slot.rows
            wide[slot.stage[:, None, None], at[:, :, None], at[:, None, :]] = found
        return wide

    @cached_property
    def reweighted(self) -> bool:
        """Whether `information` is anything but 1."""
        return any(slot.functions.reweighted for slot in self.slots)

    def standardised(self, g: Array) -> tuple[Array, Array, Array]:
        """Return prediction, spread (1 where it is unknown) and normalised residual of each value, (K, M, n_o).

        A residual of an unknown sigma that is eliminated is in units of what the data are weighted by.
        """
        n_o = self.target.shape[2]
        predicted = g[..., :n_o].copy()
        spread = np.divide(1.0, self.weight, out=np.ones_like(self.weight), where=self.weight > 0)
        residual = self.rows(g)[0][..., :n_o]
        for slot in self.slots:
            at = (slot.stage, slot.point, np.full(slot.stage.size, slot.columns[0]))
            eta, number, datum = slot.seen(g)
            spread[at] = eta[:, 1] if slot.functions.computed_spread else number
            residual[at] = slot.functions.residual(eta, number, datum)
        return predicted, spread, residual

    @cached_property
    def values_mask(self) -> Mask:
        """True where an output has a measured value, (K, M, n_o)."""
        out: Mask = self.weight > 0
        for slot in self.slots:
            out[slot.stage, slot.point, slot.rows[0]] = True
        return out

    @cached_property
    def used(self) -> Mask:
        """True where what is observed is part of a cost, (K, M, n_g); elsewhere it may be infinite."""
        out = np.zeros((*self.weight.shape[:2], self.n_g), dtype=np.bool_)
        out[..., : self.weight.shape[2]] = self.weight > 0
        for slot in self.slots:
            out[slot.stage[:, None], slot.point[:, None], slot.columns] = True
        return out

    @cached_property
    def datum_mask(self) -> Mask:
        """True at the row of each measured value, (K, M n_r)."""
        out = np.zeros((*self.weight.shape[:2], self.n_r), dtype=np.bool_)
        out[..., : self.weight.shape[2]] = self.values_mask
        return out.reshape(out.shape[0], -1)

    @cached_property
    def row_mask(self) -> Mask:
        """True at all rows that belong to measured values, (K, M n_r)."""
        out = self.datum_mask.reshape(*self.weight.shape[:2], self.n_r).copy()
        for slot in self.slots:
            out[slot.places] = True
        return out.reshape(out.shape[0], -1)

    @cached_property
    def groups(self) -> Index:
        """Which unknown sigma each row has, (K, M n_r), -1 where there is none."""
        out = np.full((*self.weight.shape[:2], self.n_r), -1, dtype=np.intp)
        out[..., : self.group.size] = self.group
        return out.reshape(out.shape[0], -1)

    @cached_property
    def spreads(self) -> Index:
        """Which computed spread each row has, by its place in what is observed, (K, M n_r); -1 where there is none."""
        out = np.full((*self.weight.shape[:2], self.n_r), -1, dtype=np.intp)
        for slot in self.slots:
            if slot.functions.computed_spread:
                out[slot.places] = slot.columns[1]
        return out.reshape(out.shape[0], -1)

    @cached_property
    def sizes(self) -> Array:
        """How large measured values are, in units of their rows, (K, M n_r)."""
        out = np.zeros((*self.weight.shape[:2], self.n_r))
        out[..., : self.group.size] = np.abs(self.target) * self.weight
        for slot in self.slots:
            out[slot.stage, slot.point, slot.rows[0]] = slot.size
        return out.reshape(out.shape[0], -1)

    @cached_property
    def signal(self) -> Array:
        """How large values of each output are on the average, in units of their rows, (K, M n_r)."""
        out = np.zeros((*self.weight.shape[:2], self.n_r))
        count = np.maximum((self.weight > 0).sum(axis=(0, 1)), 1)
        out[..., : self.group.size] = np.abs(self.target).sum(axis=(0, 1)) / count * self.weight
        for slot in self.slots:
            out[slot.stage, slot.point, slot.rows[0]] = np.mean(slot.size)
        return out.reshape(out.shape[0], -1)


def measured_by(problem: Posed, i: int, staging: Staging) -> Measured:
    """Arrange how the measurements of condition i cost."""
    condition, seen = problem.conditions[i], (*problem.outputs, *problem.spreads)
    weight, slots, names = staging.weight.copy(), list[Slot](), [*problem.outputs]
    for j, of in enumerate(condition.observed):
        if of is None or of.weighted:
            continue
        stage, point = np.nonzero(staging.weight[:, :, j] > 0)
        if stage.size == 0:
            continue
        functions = functions_of(of.noise, computed=of.computed)
        spread, datum = 1.0 / staging.weight[stage, point, j], staging.values[stage, point, j]
        extra = np.arange(len(names), len(names) + functions.n_r - 1)
        names += [f"the noise of {problem.outputs[j]}"] * extra.size
        slots.append(
            Slot(
                functions,
                stage,
                point,
                np.array([seen.index(n) for n in of.predicted]),
                np.array([j, *extra]),
                spread,
                datum,
                _sizes(functions, spread, datum),
            )
        )
        weight[:, :, j] = 0.0
    group = np.array([-1 if of is None else of.group for of in condition.observed], dtype=np.intp)
    return Measured(staging.values, weight, tuple(slots), len(seen), tuple(names), group)


def constant(problem: Posed) -> float:
    """Return what is missing in the cost of residuals for -log of the density, for sigmas that are eliminated at 1."""
    total = 0.0
    for condition in problem.conditions:
        points, mask = condition.points, condition.points.mask
        for j, of in enumerate(condition.observed):
            if of is not None and of.noise.plain and not of.computed and mask[:, j].any():
                value, sigma = points.values[mask[:, j], j], points.sigma[mask[:, j], j]
                total += functions_of(of.noise, computed=False).constant(sigma, value)
    return total


def _sizes(functions: DensityFunctions, spread: Array, datum: Array) -> Array:
    """Return how large values are, in units of their rows: the residual of twice the value, 1 where there is none."""
    if functions.computed_spread:
        return np.full(datum.size, _TYPICAL)
    eta = np.repeat(2.0 * datum[:, None], functions.n_eta, axis=1)
    size = np.abs(functions.residual(eta, spread, datum))
    return np.where(np.isfinite(size) & (size > 0.0), size, 1.0)
