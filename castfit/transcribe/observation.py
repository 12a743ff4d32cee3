"""Observation of states at points, the cost of measured values, and its local model as rows.

`Observer` evaluates outputs at integrated states; collocation evaluates its own polynomials.  `MeasurementRows` weights
the observed expressions at the points of one experiment: rows  weight (g - target)  of outputs, their slopes and their
curvature.  Values with another cost than the square of a row, or with several rows, are in `slots`, with the functions
of their density.

Notation
--------
K, M    stages, points per stage: points are batched as (K, M)
n_o     outputs;  n_g  outputs and spreads observed at a point;  n_r  rows of a point
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import BatchedFunction, PerObjectCache
from castfit._support.records import dataclass
from castfit.densities.noise.density import DensityFunctions, density_functions
from castfit.problem.constraint_compilation import applies_at
from castfit.problem.lie_derivatives import graph_of
from castfit.solve.staged import Specification

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.model.model import System
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.transcribe.stage_division import StagedMeasurements


_ASSUMED_SIGNAL_SD = 15.0  # assumed size of a value, in standard deviations, if these are unknown


class PointwiseExpressions:
    """A column of expressions (n, 1) over a model's symbols: values, Jacobian and weighted Hessian at points.

    A point is (t, x, z, p, u); its local variables, with respect to which derivatives are taken, are (x, z, p_free),
    n_l in number, where p_free are the parameters in the places `free`.  Building costs one small graph however many
    points there are, and whatever the degree of collocation.

    All methods take the arguments of a point as arrays (..., size), with equal or broadcastable leading axes.  What
    they return is a view that the next call overwrites.
    """

    def __init__(self, system: System, column: ca.SX, free: Index) -> None:
        self._system, self._column = system, column
        self._variables = ca.vertcat(system.x, system.z, *(system.p[int(i)] for i in free))

    def values(self, t: Array, x: Array, z: Array, p: Array, u: Array) -> Array:
        """Return the values, (..., n)."""
        return self._values(t, x, z, p, u)[..., 0]

    def jacobian(self, t: Array, x: Array, z: Array, p: Array, u: Array) -> Array:
        """Return the derivatives with respect to the local variables, (..., n, n_l)."""
        return self._jacobian(t, x, z, p, u)

    @property
    def places(self) -> tuple[Index, Index]:
        """Rows and columns of the entries of the Jacobian that `jacobian_entries` computes, (k,), row by row."""
        return self._jacobian.places

    def jacobian_entries(self, t: Array, x: Array, z: Array, p: Array, u: Array) -> Array:
        """Return the entries of the Jacobian at `places`, (..., k): of large sparse ones few."""
        return self._jacobian.entries(t, x, z, p, u)

    def hessian(self, t: Array, x: Array, z: Array, p: Array, u: Array, weight: Array) -> Array:
        """Return  sum_i weight_i d2 expression_i, (..., n_l, n_l); expressions of weight zero may be infinite."""
        return self._hessian(t, x, z, p, u, weight)

    @cached_property
    def states(self) -> Index | None:
        """Return the position in x of the state that each expression is, (n,); None if any is not a state."""
        index_by_hash = {x.element_hash(): i for i, x in enumerate(ca.vertsplit(self._system.x))}
        entries = ca.vertsplit(self._column) if self._column.numel() else []
        indices = [index_by_hash.get(e.element_hash(), -1) if e.is_symbolic() else -1 for e in entries]
        return None if -1 in indices else np.array(indices, dtype=np.intp)

    @cached_property
    def is_linear(self) -> bool:
        """Whether the Hessian vanishes identically."""
        return self._hessian.empty

    @cached_property
    def _values(self) -> BatchedFunction:
        return BatchedFunction("values", self._system.arguments, self._column)

    @cached_property
    def _jacobian(self) -> BatchedFunction:
        return BatchedFunction("jacobian", self._system.arguments, ca.jacobian(self._column, self._variables))

    @cached_property
    def _hessian(self) -> BatchedFunction:
        weight = ca.SX.sym("weight", self._column.numel())
        total = ca.SX(self._variables.numel(), self._variables.numel())
        for w, expression in zip(ca.vertsplit(weight), ca.vertsplit(self._column), strict=True):
            # A switch, not a product with zero, since unmeasured expressions may be infinite.
            total += ca.if_else(w != 0, w * ca.hessian(expression, self._variables)[0], 0)
        return BatchedFunction("hessian", [*self._system.arguments, weight], total)


@dataclass(frozen=True)
class NonGaussianOutput:
    """The n values of one output of an experiment that cost otherwise than  1/2 ((prediction - value) / sigma)^2.

    They stand at stage, point (n,).  Their density depends on the entries `columns` (n_eta,) of g, the first of which
    is the output; theirs are `rows` (n_r,) of a point, of which the first is that of the output.  spread, datum (n,)
    are standard deviations, where these are numbers (1 elsewhere), and measured values, size (n,) how large these are,
    in units of their rows.
    """

    functions: DensityFunctions
    stage: Index
    point: Index
    columns: Index
    rows: Index
    spread: Array
    datum: Array
    size: Array

    def collect_density_arguments(self, g: Array) -> tuple[Array, Array, Array]:
        """Return the arguments of the density's functions."""
        return g[self.stage[:, None], self.point[:, None], self.columns], self.spread, self.datum

    @property
    def places(self) -> tuple[Index, Index, Index]:
        """Return the positions of its rows in an array (K, M, n_rows), each (n, n_r)."""
        return self.stage[:, None], self.point[:, None], self.rows[None, :]


@dataclass(frozen=True)
class MeasurementRows:
    """Map from g (K, M, n_g), the observed expressions at the points of one experiment, to rows (K, M, n_r).

    The first entries of g are outputs, the others spreads; the first rows are those of outputs.  A row is
    weight * (g - target), both (K, M, n_o), and 0 where the weight is 0: there g may be infinite, or a slot has the
    value.  names (n_r,) are the labels of the rows of a point; group (n_o,) is the index of the unknown sigma that is
    eliminated for each output, -1 if there is none.
    """

    target: Array
    weight: Array
    slots: tuple[NonGaussianOutput, ...]
    n_g: int
    names: tuple[str, ...]
    group: Index

    @property
    def n_r(self) -> int:
        """Number of rows of a point."""
        return len(self.names)

    @cached_property
    def _weighs_all(self) -> bool:
        return not self.slots and self.n_r == self.target.shape[2] and bool((self.weight > 0).all())

    def rows(self, g: Array) -> tuple[Array, float]:
        """Return the rows (K, M, n_r), and what the data cost beyond half their squares."""
        n_o, total_excess = self.target.shape[2], 0.0
        if self._weighs_all:
            return (g[..., :n_o] - self.target) * self.weight, total_excess
        r = np.zeros((*g.shape[:2], self.n_r))
        with np.errstate(invalid="ignore"):
            r[..., :n_o] = np.where(self.weight > 0, (g[..., :n_o] - self.target) * self.weight, 0.0)
        for slot in self.slots:
            r[slot.places], excess = slot.functions.rows(*slot.collect_density_arguments(g))
            total_excess += float(np.sum(excess))
        return r, total_excess

    def describe_invalid_sigma(self, g: Array, stage: int, point: int, row: int) -> str:
        """Explain a row that is not finite because its computed sigma is not positive; empty for other causes."""
        for slot in self.slots:
            is_match = (slot.stage == stage) & (slot.point == point) & (slot.rows == row).any()
            if slot.functions.computed_spread and is_match.any():
                predicted, spread = g[stage, point, slot.columns[:2]].tolist()
                if np.isfinite(predicted) and spread <= 0.0:
                    name = self.names[int(slot.rows[0])]
                    return (
                        f"sigma of {name} is {spread:g}, where {name} is {predicted:g}: such a value has no "
                        f"probability; leave it out, or give sigma a floor, as in sqrt(0.01**2 + (share * {name})**2)"
                    )
        return ""

    def excess(self, g: Array) -> Array:
        """Return the cost of the data of each stage in excess of half the squared rows, (K,)."""
        out = np.zeros(g.shape[0])
        for slot in self.slots:
            np.add.at(out, slot.stage, slot.functions.rows(*slot.collect_density_arguments(g))[1])
        return out

    def select_stages(self, stages: Index) -> MeasurementRows:
        """Return the row map of the selected stages (k,), in this order; a stage may be repeated."""
        slots: list[NonGaussianOutput] = []
        for slot in self.slots:  # whose values stand in the order of stages
            start_index, end_index = (np.searchsorted(slot.stage, stages, side=side) for side in ("left", "right"))
            count = end_index - start_index
            rows: Index = np.repeat(start_index - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
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
                out[slot.places] = slot.functions.slopes(*slot.collect_density_arguments(g)) @ of_eta
        return out

    def gradient(self, g: Array, factor: Array) -> Array:
        """Return the derivative by g, (K, M, n_g), of the cost, in which rows (K, M, n_r) count `factor` times."""
        n_o = self.target.shape[2]
        out = np.zeros((*g.shape[:2], self.n_g))
        with np.errstate(invalid="ignore"):
            row_gradient = factor[..., :n_o] * (g[..., :n_o] - self.target) * self.weight**2
            out[..., :n_o] = np.where(self.weight > 0, row_gradient, 0.0)
        for slot in self.slots:
            slot_gradient = slot.functions.gradient(*slot.collect_density_arguments(g)) * factor[slot.places][:, :1]
            np.add.at(out, (slot.stage[:, None], slot.point[:, None], slot.columns[None, :]), slot_gradient)
        return out

    def curvature(self, g: Array, factor: Array, dg: Array) -> Array:
        """Return the second derivatives by g of the same, times derivatives of g (K, M, n_g, n), (K, M, n_g, n)."""
        n_o = self.target.shape[2]
        out = np.zeros_like(dg)
        out[:, :, :n_o] = (factor[..., :n_o] * self.weight**2)[..., None] * dg[:, :, :n_o]
        for slot in self.slots:
            hessian = slot.functions.hessian(*slot.collect_density_arguments(g)) * factor[slot.places][:, :1, None]
            positions = (slot.stage[:, None], slot.point[:, None], slot.columns)
            np.add.at(out, positions, hessian @ dg[positions])
        return out

    def information(self, g: Array) -> Array:
        """Return the factors of rows for statistics, (K, M n_r), or the matrices, (K, M n_r, M n_r)."""
        stages, n = g.shape[0], g.shape[1] * self.n_r
        out = np.ones((*g.shape[:2], self.n_r))
        matrices: list[tuple[NonGaussianOutput, Array]] = []
        for slot in self.slots:
            slot_information = slot.functions.information(*slot.collect_density_arguments(g))
            if slot_information.ndim == 2:
                out[slot.places] = slot_information
            else:
                matrices.append((slot, slot_information))
        out = out.reshape(stages, n)
        if not matrices:
            return out
        full_matrices = out[:, :, None] * np.eye(n)
        for slot, slot_information in matrices:
            row_index = slot.point[:, None] * self.n_r + slot.rows
            full_matrices[slot.stage[:, None, None], row_index[:, :, None], row_index[:, None, :]] = slot_information
        return full_matrices

    def specification(
        self, condition: Condition, variables: tuple[int, int], limits: tuple[Array, Array], edges: Array,
        state_names: tuple[str, ...], kinds: tuple[str, ...], times: Array,
    ) -> Specification:  # fmt: skip
        """Return the chain of the experiment: numbers of nodes and inner variables, path constraints and points."""
        return Specification(
            condition.name, condition.theta, *variables, self.row_mask, *limits, edges, state_names, kinds, times,
            group=self.groups, datum_mask=self.datum_mask, spread=self.spreads,
        )  # fmt: skip

    @cached_property
    def is_reweighted(self) -> bool:
        """Whether `information` is anything but 1."""
        return any(slot.functions.reweighted for slot in self.slots)

    def standardised(self, g: Array) -> tuple[Array, Array, Array]:
        """Return prediction, spread (1 where it is unknown) and normalised residual of each value, (K, M, n_o).

        Residuals of results are observed minus predicted; the rows of a solver have the opposite sign.  A residual of
        an unknown sigma that is eliminated is in units of what the data are weighted by.
        """
        n_o = self.target.shape[2]
        predicted = g[..., :n_o].copy()
        spread = np.divide(1.0, self.weight, out=np.ones_like(self.weight), where=self.weight > 0)
        residual = self.rows(g)[0][..., :n_o]
        for slot in self.slots:
            positions = (slot.stage, slot.point, np.full(slot.stage.size, slot.columns[0]))
            eta, number, datum = slot.collect_density_arguments(g)
            spread[positions] = eta[:, 1] if slot.functions.computed_spread else number
            residual[positions] = slot.functions.residual(eta, number, datum)
        return predicted, spread, 0.0 - residual

    @cached_property
    def values_mask(self) -> Mask:
        """True where an output has a measured value, (K, M, n_o)."""
        out: Mask = self.weight > 0
        for slot in self.slots:
            out[slot.stage, slot.point, slot.rows[0]] = True
        return out

    @cached_property
    def used_mask(self) -> Mask:
        """Return a mask of the observed expressions that enter a cost, (K, M, n_g); others may be infinite."""
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
        """Return the unknown sigma of each row, (K, M n_r); -1 if there is none."""
        out = np.full((*self.weight.shape[:2], self.n_r), -1, dtype=np.intp)
        out[..., : self.group.size] = self.group
        return out.reshape(out.shape[0], -1)

    @cached_property
    def spreads(self) -> Index:
        """Return the column of the computed spread of each row in g, (K, M n_r); -1 if there is none."""
        out = np.full((*self.weight.shape[:2], self.n_r), -1, dtype=np.intp)
        for slot in self.slots:
            if slot.functions.computed_spread:
                out[slot.places] = slot.columns[1]
        return out.reshape(out.shape[0], -1)

    @cached_property
    def sizes(self) -> Array:
        """Return the magnitudes of the measured values, in units of their rows, (K, M n_r)."""
        out = np.zeros((*self.weight.shape[:2], self.n_r))
        out[..., : self.group.size] = np.abs(self.target) * self.weight
        for slot in self.slots:
            out[slot.stage, slot.point, slot.rows[0]] = slot.size
        return out.reshape(out.shape[0], -1)

    @cached_property
    def signal(self) -> Array:
        """Return the mean magnitude of the values of each output, in units of their rows, (K, M n_r)."""
        out = np.zeros((*self.weight.shape[:2], self.n_r))
        count = np.maximum((self.weight > 0).sum(axis=(0, 1)), 1)
        out[..., : self.group.size] = np.abs(self.target).sum(axis=(0, 1)) / count * self.weight
        for slot in self.slots:
            out[slot.stage, slot.point, slot.rows[0]] = np.mean(slot.size)
        return out.reshape(out.shape[0], -1)


def measurement_rows(problem: CompiledProblem, i: int, staging: StagedMeasurements) -> MeasurementRows:
    """Build the measurement rows of condition i."""
    condition, observed_names = problem.conditions[i], (*problem.outputs, *problem.spreads)
    weight, slots, names = staging.weight.copy(), list[NonGaussianOutput](), [*problem.outputs]
    for j, output in enumerate(condition.observed):
        if output is None or output.is_weighted:
            continue
        stage, point = np.nonzero(staging.weight[:, :, j] > 0)
        if stage.size == 0:
            continue
        functions = density_functions(output.noise, computed=output.is_spread_computed)
        spread, datum = 1.0 / staging.weight[stage, point, j], staging.values[stage, point, j]
        extra_rows = np.arange(len(names), len(names) + functions.n_r - 1)
        names += [f"the noise of {problem.outputs[j]}"] * extra_rows.size
        slots.append(
            NonGaussianOutput(
                functions,
                stage,
                point,
                np.array([observed_names.index(n) for n in output.predicted_outputs]),
                np.array([j, *extra_rows]),
                spread,
                datum,
                _sizes(functions, spread, datum),
            )
        )
        weight[:, :, j] = 0.0
    group = np.array([-1 if output is None else output.group for output in condition.observed], dtype=np.intp)
    return MeasurementRows(staging.values, weight, tuple(slots), len(observed_names), tuple(names), group)


_CONSTANTS: PerObjectCache[CompiledProblem, float] = PerObjectCache()


def constant(problem: CompiledProblem) -> float:
    """Return the constant between the cost of residuals and -log of the density, with eliminated sigmas set to 1."""
    return _CONSTANTS.get(problem, _constant)


def _constant(problem: CompiledProblem) -> float:
    total = 0.0
    for condition in problem.conditions:
        points, mask = condition.points, condition.points.mask
        for j, output in enumerate(condition.observed):
            if (
                output is not None
                and output.noise.is_residual_noise
                and not output.is_spread_computed
                and mask[:, j].any()
            ):
                value, sigma = points.values[mask[:, j], j], points.sigma[mask[:, j], j]
                total += density_functions(output.noise, computed=False).constant(sigma, value)
        dependent = condition.whitening(problem.outputs)
        total += 0.0 if dependent is None else 0.5 * dependent.log_det
    return total


def _sizes(functions: DensityFunctions, spread: Array, datum: Array) -> Array:
    """Return the magnitudes of values, in units of their rows: the residual of twice the value, 1 if there is none."""
    if functions.computed_spread:
        return np.full(datum.size, _ASSUMED_SIGNAL_SD)
    eta = np.repeat(2.0 * datum[:, None], functions.n_eta, axis=1)
    size = np.abs(functions.residual(eta, spread, datum))
    return np.where(np.isfinite(size) & (size > 0.0), size, 1.0)


@dataclass(frozen=True)
class ObservedValues:
    """Values at points.

    g (K, M, n_g) observed expressions;  r (K, M * n_r) rows;  excess: the cost in excess of half their squares;
    c (K, M * n_h) path constraints
    """

    g: Array
    r: Array
    excess: float
    c: Array


@dataclass(frozen=True)
class Observation:
    """Derivatives at points: r_x (K, M, n_r, n_x), r_z, r_p (all parameters p), and the same of c."""

    r_x: Array
    r_z: Array
    r_p: Array
    c_x: Array
    c_z: Array
    c_p: Array


def active_constraint_mask(problem: CompiledProblem, i: int, staging: StagedMeasurements) -> Mask:
    """Return a mask of where the problem's constraints apply in condition i, (K, M, number of constraints).

    A constraint applies at its own times, at every point if it holds along the path, or at every measured time.  It
    applies once for replicates, and a constraint of parameters alone applies once in all.
    """
    if not problem.path:
        return np.zeros((*staging.times.shape, 0), dtype=np.bool_)
    return applies_at(problem, i, staging.times, staging.is_first_replicate, staging.is_distinct, problem.varying)


@dataclass(frozen=True)
class _ObserverRows:
    """Rows that an observer evaluates: outputs and spreads, constraints, bounded states (as positions in x).

    names : those of constraints and bounded states
    """

    names: tuple[str, ...]
    bounded: tuple[int, ...]
    limits: Array  # (n_h, 2)
    expressions: PointwiseExpressions


# The rows of each problem, with and without bounds of states, built once however many fits use them.
_ROWS: PerObjectCache[CompiledProblem, dict[bool, _ObserverRows]] = PerObjectCache()


def _rows(problem: CompiledProblem, *, state_bounds: bool) -> _ObserverRows:
    system = problem.model.system
    names = list(problem.state_bounds) if state_bounds else []
    bounded = [problem.model.states.index(n) for n in names]
    graphs = [graph_of(c, problem.model) for c in problem.path]
    graphs += [system.x[i] for i in bounded]
    limits = [(c.lower, c.upper) for c in problem.path] + [problem.state_bounds[n] for n in names]
    column = ca.densify(ca.vertcat(problem.observed, *graphs))
    return _ObserverRows(
        (*(c.name for c in problem.path), *names),
        tuple(bounded),
        np.array(limits, dtype=float).reshape(-1, 2),
        PointwiseExpressions(system, column, np.arange(system.p.numel())),
    )


class Observer:
    """The measured outputs and path constraints of a problem as batched functions.

    With `state_bounds` bounds of states are path constraints here, where no node variable carries them.
    """

    def __init__(self, problem: CompiledProblem, *, state_bounds: bool) -> None:
        self._problem = problem
        cache = _ROWS.get(problem, lambda _: {})
        if state_bounds not in cache:
            cache[state_bounds] = _rows(problem, state_bounds=state_bounds)
        self._rows = cache[state_bounds]
        self._n_g = len(problem.outputs) + len(problem.spreads)

    @property
    def expressions(self) -> PointwiseExpressions:
        """Return the observed expressions, then constraints, as functions of a point."""
        return self._rows.expressions

    @property
    def constraint_names(self) -> tuple[str, ...]:
        """Return the names of the path constraints at a point."""
        return self._rows.names

    def constraint_bounds(self, i: int, staging: StagedMeasurements, *, nodes: bool) -> tuple[Array, Array]:
        """Return bounds of the path constraint rows of condition i, (K, M * n_h) each; infinite where none applies.

        Bounded states are unbounded at the start where their value is given: a constant is no constraint.  With `nodes`
        they are bounded between nodes and at the end alone: nodes have bounds of their own.
        """
        limits, positions = self._rows.limits, list(self._rows.bounded)
        rows = (staging.tau.shape[0], staging.tau.shape[1] * limits.shape[0])
        states = np.repeat(staging.is_first_replicate[:, :, None], len(positions), axis=2)
        states[0, staging.tau[0] == 0.0] &= ~self._problem.conditions[i].link.is_initial_fixed[positions]
        if nodes:
            states[staging.tau == 0.0] = False
            states[:-1][staging.tau[:-1] == 1.0] = False
        bounded = np.concatenate([active_constraint_mask(self._problem, i, staging), states], axis=2)
        lower = np.where(bounded, limits[:, 0], -np.inf).reshape(rows)
        upper = np.where(bounded, limits[:, 1], np.inf).reshape(rows)
        return lower, upper

    def values(self, measured: MeasurementRows, times: Array, x: Array, z: Array, p: Array, u: Array) -> ObservedValues:
        """Evaluate rows and constraints at times (K, M), states x (K, M, n_x), z (K, M, n_z), inputs u (K, M, n_u)."""
        stages = times.shape[0]
        observed = self._rows.expressions.values(times[..., None], x, z, p, u).copy()
        g = observed[..., : self._n_g]
        r, excess = measured.rows(g)
        return ObservedValues(g, r.reshape(stages, -1), excess, observed[..., self._n_g :].reshape(stages, -1))

    def slopes(self, times: Array, x: Array, z: Array, p: Array, u: Array) -> Array:
        """Evaluate derivatives of the observed expressions with respect to (x, z, p), (K, M, n_g, n)."""
        return self._rows.expressions.jacobian(times[..., None], x, z, p, u)[:, :, : self._n_g].copy()

    def jacobians(self, measured: MeasurementRows, times: Array, x: Array, z: Array, p: Array, u: Array) -> Observation:
        """Evaluate derivatives of rows and constraints with respect to x, z, p; arguments as in `values`."""
        slopes = self._rows.expressions.jacobian(times[..., None], x, z, p, u)
        n_x, n_z = x.shape[2], z.shape[2]
        g = self._rows.expressions.values(times[..., None], x, z, p, u) if measured.slots else np.empty(0)
        rows = measured.slopes(g, slopes[:, :, : self._n_g])
        blocks = (slice(0, n_x), slice(n_x, n_x + n_z), slice(n_x + n_z, None))
        constraints = slopes[:, :, self._n_g :].copy()
        return Observation(*(rows[..., b] for b in blocks), *(constraints[..., b] for b in blocks))
