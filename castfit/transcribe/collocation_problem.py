"""Direct collocation: polynomials on elements, whose collocation equations are constraints.

Stage k is one element [t_k, t_k + h].  With tau in [0, 1], D the differentiation matrix and c the points of a table,

    s_k                    differential states at t_k
    w_k = (x_1, z_1, ..., x_d, z_d)            states at t_i = t_k + c_i h
    d_k : h ode(t_i, x_i, z_i, p, u_i) - sum_j D_ij x_j = 0     (x_0 = s_k),  i = 1 ... d, and
          scale alg(t_i, x_i, z_i, p, u_i)               = 0    in the same order as w_k
    x_k = sum_j l_j(1) x_j                     state at the end; with Radau points this is x_d; then what happens there

Measured points are on the element's polynomials, which have degree d through (s_k, x_1 ... x_d) for differential states
and degree d - 1 through (z_1 ... z_d) for algebraic ones.  Row j of d_k has the unit of entry j of w_k, so that
``scale[chain.inner]`` is typical of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import field, replace
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit.integrate.lanes import merge, snap_times
from castfit.problem.lie_derivatives import graph_of
from castfit.solve.staged import (
    ChainValues,
    Evaluation,
    Failure,
    HessianBlocks,
    Jacobians,
    Layout,
    Linearization,
    Multipliers,
    Specification,
    build_layout,
    read_only_copy,
)
from castfit.transcribe.elements import (
    CollocationScheme,
    ElementConstants,
    LocalDerivatives,
    PointEquations,
    signals,
    table,
)
from castfit.transcribe.experiment_trajectories import as_measured
from castfit.transcribe.observation import (
    MeasurementRows,
    PointwiseExpressions,
    active_constraint_mask,
    measurement_rows,
)
from castfit.transcribe.stage_division import StageDivision, StagedMeasurements, arrange, divide_all
from castfit.transcribe.transcribed_problem import TranscribedProblem, parameter_scale, relations_of, variable_bounds

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit._support.sparse_rows import SparseRows
    from castfit.model.model import System
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.parameter_map import NaturalValues

    Trajectory = Callable[..., tuple[Array, Array]]

# The functions of each problem, built once however many fits use them.
_EQUATIONS: PerObjectCache[CompiledProblem, PointEquations] = PerObjectCache()


def collocation_problem(
    problem: CompiledProblem,
    edges: Sequence[Array],
    *,
    theta: Array,
    trajectories: Sequence[Trajectory],
    unit: Array | None = None,
    degree: int = 3,
    scheme: str = "radau",
) -> CollocationProblem:
    """Lay a problem out on elements, with boundaries (K + 1,) per experiment; the search starts at theta (n_theta,).

    Breakpoints of inputs are added to the boundaries, so that no element contains one.

    trajectories : start of the states, per experiment a function of times (n,), not decreasing, that returns states
        (n, n_x) and algebraic states (n, n_z); with ``is_after_event=True`` those after events at these times
    unit (n_x + n_z,) : typical magnitudes of states that are zero there, by default 1
    """
    problem, scheme_table = problem.posed, table(scheme, degree)
    equations = _EQUATIONS.get(problem, _equations)
    refined = [merge(e, snap_times(c.breakpoints, e)) for e, c in zip(edges, problem.conditions, strict=True)]
    divisions = divide_all(problem, refined, theta)
    stagings = [arrange(c, d.edges, d.is_measured_after) for c, d in zip(problem.conditions, divisions, strict=True)]
    elements = [
        _elements(problem, i, staging, division, scheme_table, relative=equations.is_relative)
        for i, (staging, division) in enumerate(zip(stagings, divisions, strict=True))
    ]
    starts = [
        _start(e, c, theta, trajectory)
        for e, c, trajectory in zip(elements, problem.conditions, trajectories, strict=True)
    ]
    magnitude = _magnitude(starts, unit)
    elements = _scaled(problem, equations, elements, starts, theta, magnitude)
    layout = _layout(problem, elements, scheme_table)

    n_x, d = elements[0].n_x, scheme_table.degree
    (lower, upper), scale = variable_bounds(problem, layout), np.empty(layout.n_v)
    scale[: theta.size] = parameter_scale(problem, theta)
    for chain in layout.chains:
        scale[chain.nodes], scale[chain.inner] = magnitude[:n_x], np.tile(magnitude, d)
        inner = chain.inner.reshape(chain.n_stages, d, -1)
        for name, (low, high) in problem.state_bounds.items():
            positions = inner[:, :, problem.model.states.index(name)]
            lower[positions], upper[positions] = low, high
    nodes = tuple(y[:, 0, :n_x] for y in starts)
    inners = tuple(y[:, 1:].reshape(y.shape[0], -1) for y in starts)
    start = np.clip(layout.pack(theta, nodes, inners), lower, upper)
    signal = tuple(e.measured.signal for e in elements)
    return CollocationProblem(problem, equations, tuple(elements), layout, lower, upper, scale, start, signal)


@dataclass
class _PointCache:
    """Cache of the last point that was evaluated, and of the results there."""

    key: bytes = b""
    v: Array = field(default_factory=lambda: np.empty(0))
    evaluation: Evaluation | None = None
    linearization: Linearization | None = None
    slopes: tuple[LocalDerivatives, ...] = ()
    naturals: tuple[NaturalValues, ...] = ()


@dataclass(frozen=True)
class QuantitySlopes:
    """Derivatives by the quantities of one experiment: the parts R_q, D_q, X_q and A of its `Jacobians`.

    None where they vanish; inner (K n_w, n_q)
    """

    rows: Array | None
    inner: SparseRows
    ends: Array | None
    initial: Array

    @property
    def is_finite(self) -> bool:
        """Check whether all derivatives are finite."""
        blocks = (self.rows, self.inner.entry, self.ends, self.initial)
        return all(bool(np.isfinite(block).all()) for block in blocks if block is not None)


class CollocationProblem(TranscribedProblem):
    """A staged problem of collocation elements; build it with `collocation_problem`."""

    capabilities = (Linearization, HessianBlocks)

    def __init__(
        self,
        problem: CompiledProblem,
        equations: PointEquations,
        elements: tuple[ElementConstants, ...],
        layout: Layout,
        lower: Array,
        upper: Array,
        scale: Array,
        start: Array,
        signal: tuple[Array, ...],
    ) -> None:
        self._set_problem(problem, layout, signal, layout.theta(start))
        self.equations, self.elements = equations, elements
        self.lower, self.upper, self.scale, self.start = (
            read_only_copy(lower),
            read_only_copy(upper),
            read_only_copy(scale),
            read_only_copy(start),
        )
        self._uses_hessians = False  # whether Hessians are requested, which need the slopes at points
        self._clear_cache()
        self._start_eliminated()

    def _clear_cache(self) -> None:
        self._memory = _PointCache()

    def _copy_without_cache(self) -> CollocationProblem:
        other = copy(self)
        other._clear_cache()
        return other

    def _iterate_scaled_slopes(self, v: Array) -> Iterator[tuple[MeasurementRows, Array]]:
        for i, (e, chain, natural) in enumerate(zip(self.elements, self.layout.chains, self._naturals(v), strict=True)):
            neutral = replace(natural, p=self._projection.neutral(i, natural.p))
            observed = e.slopes(self.equations, neutral, *chain.local(v)[1:]).observed
            yield e.measured, observed[..., : e.n_e] * self.magnitude

    @property
    def table(self) -> CollocationScheme:
        """The collocation table of all elements."""
        return self.elements[0].table

    @property
    def divisions(self) -> tuple[StageDivision, ...]:
        """The elements of each experiment."""
        return tuple(elements.division for elements in self.elements)

    def times(self, v: Array) -> tuple[Array, ...]:
        """Return the element boundaries at v, per chain (K + 1,)."""
        pairs = zip(self.divisions, self._recall(v).naturals, strict=True)
        return tuple(division.compute_boundaries(natural.e) for division, natural in pairs)

    def disarranged(self, v: Array) -> bool:
        """Whether estimated times of events are no longer where the elements have them."""
        pairs = zip(self.divisions, self._recall(v).naturals, strict=True)
        return not all(division.is_valid(natural.e) for division, natural in pairs)

    @property
    def magnitude(self) -> Array:
        """Typical magnitudes of states and algebraic states, (n_e,)."""
        return self.scale[self.layout.chains[0].inner[0, : self.elements[0].n_e]]

    def algebraic_states(self, v: Array) -> tuple[Array, ...]:
        """Return the algebraic states at the first collocation point of every element, (K, n_z) per experiment."""
        algebraic = (
            e.states(*c.local(v)[1:])[:, 1, e.n_x :] for e, c in zip(self.elements, self.layout.chains, strict=True)
        )
        return tuple(algebraic)

    def data_sizes(self) -> tuple[Array, ...]:
        """Return the size of every measured value in its own standard deviation, (K, n_r) per chain."""
        return tuple(e.measured.sizes for e in self.elements)

    def evaluate(self, v: Array) -> Evaluation:
        """Evaluate all elements; an element with a value that is not finite is a failure."""
        memory = self._recall(v)
        v = memory.v
        if memory.evaluation is None:
            all_values, failures = list[ChainValues](), list[Failure]()
            for i in range(len(self.elements)):
                with np.errstate(all="ignore"):
                    values, failed = self._values(i, v)
                all_values.append(values)
                failures += failed
            memory.evaluation = self._evaluation(v, all_values, failures)
        return memory.evaluation

    def linearize(self, v: Array) -> Linearization:
        """Evaluate all elements with their Jacobian blocks."""
        evaluation, memory = self.evaluate(v), self._memory
        v = memory.v
        if memory.linearization is None:
            with np.errstate(all="ignore"):
                derivatives = [self._jacobians(i, v) for i in range(len(self.elements))]
            all_slopes = tuple(slopes for slopes, _ in derivatives)
            memory.slopes = all_slopes if self._uses_hessians else ()
            failed = {(failure.chain, failure.stage) for failure in evaluation.failures}
            failures = [
                failure
                for i in range(len(self.elements))
                for failure in self._explain(i, *_pieces(all_slopes[i]), "the derivative of ")
                if (failure.chain, failure.stage) not in failed
            ]
            failures += [] if evaluation.failures else self._report_link_failures(v, memory.naturals, slopes=True)
            blocks, measured = (jacobians for _, jacobians in derivatives), (e.measured for e in self.elements)
            memory.linearization = self._linearization(
                evaluation, blocks, failures, measured, lambda: self._iterate_observables(v)
            )
        return memory.linearization

    def by_quantities(self, v: Array) -> Iterator[QuantitySlopes]:
        """Yield, per experiment, the partial derivatives at v by its quantities, with the states fixed."""
        for e, chain, natural in zip(self.elements, self.layout.chains, self._recall(v).naturals, strict=True):
            _, s, w = chain.local(self._memory.v)
            with np.errstate(all="ignore"):
                ends = e.end_blocks(natural, s, w).q if any(e.division.crossings) else None
                rows = e.observed_by_quantities(self.equations, natural, s, w)
                inner = e.inner_by_quantities(self.equations, natural, s, w)
            yield QuantitySlopes(rows, inner, ends, natural.da)

    def _iterate_observables(self, v: Array) -> Iterator[tuple[MeasurementRows, Array]]:
        naturals = self._recall(v).naturals
        for elements, chain, natural in zip(self.elements, self.layout.chains, naturals, strict=True):
            yield (
                elements.measured,
                elements.evaluate_outputs(self.equations, elements.parameters(natural), *chain.local(v)[1:]),
            )

    def hessian(
        self,
        v: Array,
        multipliers: tuple[Multipliers, ...],
        weight: Array | None = None,
        related: Array | None = None,
    ) -> HessianBlocks:
        """Return the Hessian of weighted squares and constraints in blocks (see `StagedProblem.hessian`)."""
        linearization = self.linearize(v)
        v = linearization.v
        of_group = np.ones(self.layout.n_groups + 1) if weight is None else weight
        self._uses_hessians, memory = True, self._memory
        with np.errstate(all="ignore"):
            if not memory.slopes:
                triples = zip(self.elements, self.layout.chains, memory.naturals, strict=True)
                memory.slopes = tuple(e.slopes(self.equations, n, *c.local(v)[1:]) for e, c, n in triples)
            blocks = tuple(
                self._hessian(i, v, linearization, chain_multipliers, of_group)
                for i, chain_multipliers in enumerate(multipliers)
            )
        return HessianBlocks(blocks, self._relations_hessian(v, related))

    def interpolants(self, v: Array) -> tuple[Trajectory, ...]:
        """Return per experiment the polynomials at v, from times (n,) to states (n, n_x) and (n, n_z)."""
        return tuple(
            _interpolant(elements, edges, elements.states(*chain.local(v)[1:]))
            for elements, edges, chain in zip(self.elements, self.times(v), self.layout.chains, strict=True)
        )

    def _recall(self, v: Array) -> _PointCache:
        key = self._projection.key(v)
        if key != self._memory.key:
            v = self._projected(v) if self.eliminated.size else v.copy()
            self._memory = _PointCache(key, v, naturals=self._naturals(v))
        return self._memory

    def _naturals(self, v: Array) -> tuple[NaturalValues, ...]:
        return tuple(c.link.natural(v[c.theta]) for c in self.problem.conditions)

    def _projected(self, v: Array) -> Array:
        naturals = self._naturals(v)

        def observe(of_p: Sequence[Array]) -> Iterator[tuple[MeasurementRows, Array]]:
            for e, chain, natural, p in zip(self.elements, self.layout.chains, naturals, of_p, strict=True):
                parameters = e.parameters(replace(natural, p=p))
                yield e.measured, e.evaluate_outputs(self.equations, parameters, *chain.local(v)[1:]).copy()

        with np.errstate(all="ignore"):
            return self._projection.project(v, naturals, observe)

    def _values(self, i: int, v: Array) -> tuple[ChainValues, list[Failure]]:
        elements, (q, s, w) = self.elements[i], self.layout.chains[i].local(v)
        condition = self.problem.conditions[i]
        natural = self._memory.naturals[i]
        values = elements.values(self.equations, natural, s, w)
        stages = s.shape[0]
        flow = values.d.reshape(stages, -1, elements.n_e)
        observed = np.concatenate([b.reshape(*elements.tau.shape, -1) for b in (values.r, values.c)], axis=2)
        is_finite = bool(np.isfinite(observed).all())
        observed_values = (
            None if is_finite else elements.evaluate_outputs(self.equations, elements.parameters(natural), s, w)
        )
        failures = self._explain(i, flow, observed, "", observed_values)
        reason = condition.failure(q, natural)
        if reason:
            failures.insert(0, Failure(condition.name, 0, "not_finite", reason))
        for j in np.flatnonzero(~np.isfinite(values.a) & (not reason)):
            name = self.problem.model.states[j]
            failures.append(Failure(condition.name, 0, "not_finite", f"the initial value of {name}"))
        for failure in failures:
            for block in (values.r, values.d, values.c):
                block[failure.stage] = np.nan
        return values, failures

    def _jacobians(self, i: int, v: Array) -> tuple[LocalDerivatives, Jacobians]:
        elements, (_, s, w) = self.elements[i], self.layout.chains[i].local(v)
        natural = self._memory.naturals[i]
        dp = elements.parameter_slopes(natural, self.equations.free)
        slopes = elements.slopes(self.equations, natural, s, w)
        r, c = elements.observed_blocks(slopes, dp)
        d, x = elements.inner_blocks(slopes, dp), elements.end_blocks(natural, s, w)
        return slopes, Jacobians(r.s, r.w, r.q, d.s, d.w, d.q, x.s, x.w, x.q, c.s, c.w, c.q, natural.da)

    def _hessian(
        self, i: int, v: Array, linearization: Linearization, multipliers: Multipliers, weight: Array
    ) -> tuple[Array, Array]:
        elements, (q, s, w) = self.elements[i], self.layout.chains[i].local(v)
        slopes, natural = self._memory.slopes[i], self._memory.naturals[i]
        link, free, points = self.problem.conditions[i].link, self.equations.free, elements.tau.shape
        factor = (weight / np.append(linearization.sigma, 1.0) ** 2)[self.layout.chains[i].group].reshape(*points, -1)
        inner, path = multipliers.inner.reshape(s.shape[0], -1, elements.n_e), multipliers.path.reshape(*points, -1)
        stagewise, by_free = elements.hessian(self.equations, slopes, natural, s, w, inner, path, factor)
        by_p, by_e = elements.parameter_weights(by_free, free, natural.p.size, natural.e.size)
        if any(elements.division.crossings):
            matching = np.vstack([multipliers.matching, np.zeros((1, elements.n_x))])
            curvature, of_e = elements.end_curvature(natural, s, w, matching)
            stagewise, by_e = stagewise + curvature, by_e + of_e
        return stagewise, link.curvature(q, by_p, multipliers.initial, by_e)

    def _explain(self, i: int, flow: Array, observed: Array, prefix: str, g: Array | None = None) -> list[Failure]:
        """Name the first thing that is not finite in each element; flow (K, d, n_e, ...), observed (K, M, n_g, ...)."""
        if np.isfinite(flow).all() and np.isfinite(observed).all():
            return []
        model, elements = self.problem.model, self.elements[i]
        rates = [f"the right-hand side of {n}" for n in model.states]
        rates += [f"the algebraic equation of {n}" for n in model.algebraic_states]
        rows = [*elements.measured.names, *(c.name for c in self.problem.path)]
        failures: dict[int, Failure] = {}
        spans = elements.edges[:-1, None], np.diff(elements.edges)[:, None]
        points, measured = spans[0] + elements.table.points * spans[1], spans[0] + elements.tau * spans[1]
        for block, times, names in ((flow, points, rates), (observed, measured, rows)):
            bad = ~np.isfinite(block).reshape(*block.shape[:3], -1).all(axis=3)
            for k, j, row in np.argwhere(bad).tolist():
                reason = "" if g is None or names is rates else elements.measured.describe_invalid_sigma(g, k, j, row)
                detail = f"at t = {times[k, j]:g} {reason}"
                detail = detail if reason else f"{prefix}{names[row]} is not finite at t = {times[k, j]:g}"
                failures.setdefault(k, Failure(self.layout.chains[i].name, k, "not_finite", detail))
        return list(failures.values())


def _equations(problem: CompiledProblem) -> PointEquations:
    system, free = problem.model.system, problem.free_parameters
    conditions = problem.conditions
    rates = [
        level.parameter for c in conditions for level in c.schedule.levels if c.link.moving_events[level.height_row]
    ]
    free = np.union1d(free, np.array(rates, dtype=np.intp))
    relative = any(c.schedule.is_moving for c in conditions)
    constraints = [graph_of(c, problem.model) for c in problem.path]
    observed = ca.vertcat(problem.observed, *constraints)
    if relative:
        n_p = system.p.numel()
        system, observed = _in_relative_time(system, observed)
        free = np.append(free, [n_p, n_p + 1])
    flow = ca.vertcat(system.ode, system.alg)
    return PointEquations(
        PointwiseExpressions(system, flow, free), PointwiseExpressions(system, observed, free), free, relative
    )


def _in_relative_time(system: System, observed: ca.SX) -> tuple[System, ca.SX]:
    """Rewrite a system for elements that move: time is tau in [0, 1] (see `PointEquations`)."""
    n_u = system.u.numel()
    tau, start, length, origin = (ca.SX.sym(name) for name in ("tau", "start", "length", "origin"))
    cubics = ca.SX.sym("cubics", 4, n_u)
    t = start + length * tau
    s = t - origin
    u = (cubics[0, :] + s * (cubics[1, :] + s * (cubics[2, :] + s * cubics[3, :]))).T
    ode, alg, observed = ca.substitute(
        [length * system.ode, system.alg, observed], [system.t, system.u], [t, u if n_u else system.u]
    )
    p, controls = ca.vertcat(system.p, start, length), ca.vertcat(origin, ca.vec(cubics))
    return replace(system, t=tau, p=p, u=controls, ode=ode, alg=alg), observed


def _elements(
    problem: CompiledProblem,
    i: int,
    staging: StagedMeasurements,
    division: StageDivision,
    scheme_table: CollocationScheme,
    *,
    relative: bool,
) -> ElementConstants:
    """Tabulate the constants of the elements of one experiment; algebraic equations are not scaled yet."""
    condition, edges, tau = problem.conditions[i], staging.edges, staging.tau
    applies = active_constraint_mask(problem, i, staging)
    n_x, n_z = len(problem.model.states), len(problem.model.algebraic_states)
    cubics = np.zeros((edges.size - 1, len(condition.inputs), 4))
    for j, signal in enumerate(condition.inputs):
        cubics[:, j] = signal.cubics(edges)
    h = staging.duration
    times, inputs = (
        (staging.start[:, None] + scheme_table.points * h[:, None])[..., None],
        signals(cubics, scheme_table.points * h[:, None]),
    )
    point_times, point_inputs = staging.times[..., None], signals(cubics, tau * h[:, None])
    point_inputs = as_measured(condition.inputs, staging.times, point_inputs)
    lengths = h
    if relative:
        controls = np.concatenate([edges[:-1, None], cubics.reshape(h.size, -1)], axis=1)[:, None]
        times, inputs = np.broadcast_to(scheme_table.points[:, None], times.shape), controls
        point_times, point_inputs, lengths = (
            tau[..., None],
            _replace_late_inputs(controls, point_inputs, condition),
            np.ones(h.size),
        )
    basis = np.zeros((*tau.shape, scheme_table.degree + 1, n_x + n_z))
    basis[..., :n_x] = scheme_table.state_basis(tau)[..., None]
    basis[:, :, 1:, n_x:] = scheme_table.algebraic_basis(tau)[..., None]
    return ElementConstants(
        table=scheme_table,
        n_x=n_x,
        edges=edges,
        cubics=cubics,
        factor=np.concatenate([np.tile(lengths[:, None, None], n_x), np.ones((h.size, 1, n_z))], axis=2),
        times=times,
        inputs=inputs,
        tau=tau,
        point_times=point_times,
        point_inputs=point_inputs,
        basis=basis,
        measured=measurement_rows(problem, i, staging),
        constraint_mask=applies.astype(float),
        division=division,
        is_relative=relative,
    )


def _replace_late_inputs(controls: Array, point_inputs: Array, condition: Condition) -> Array:
    """Return the inputs in relative time (K, 1 | M, 1 + 4 n_u) at measured points, which see (K, M, n_u)."""
    late = [j for j, signal in enumerate(condition.inputs) if signal.measured == "after"]
    if not late:
        return controls
    out = np.repeat(controls, point_inputs.shape[1], axis=1)
    for j in late:
        out[..., 1 + 4 * j], out[..., 2 + 4 * j : 5 + 4 * j] = point_inputs[..., j], 0.0
    return out


def _start(elements: ElementConstants, condition: Condition, theta: Array, trajectory: Trajectory) -> Array:
    """Return the starting states y (K, d + 1, n_e); the first node is the initial state itself."""
    inner = elements.edges[:-1, None] + elements.table.points * np.diff(elements.edges)[:, None]
    times = np.concatenate([elements.edges[:-1, None], inner], axis=1)
    x, z = trajectory(times.ravel())
    y = np.concatenate([x, z], axis=1).reshape(*times.shape, elements.n_e)
    if any(elements.division.crossings):
        x, z = trajectory(times[:, 0], is_after_event=True)
        y[:, 0] = np.concatenate([x, z], axis=1)
    y[0, 0, : elements.n_x] = condition.link.natural(theta[condition.theta]).a
    return y


def _magnitude(starts: Sequence[Array], unit: Array | None) -> Array:
    """Return the largest absolute value of each state over all experiments, (n_e,); its unit if it stays at zero.

    Whatever is smaller than rounding errors of its unit stays at zero.
    """
    largest: Array = np.max([np.abs(y).max(axis=(0, 1)) for y in starts], axis=0)
    typical: Array = np.ones(largest.size) if unit is None else unit
    return np.where(largest > np.finfo(float).eps * typical, largest, typical)


def _scaled(
    problem: CompiledProblem,
    equations: PointEquations,
    elements: Sequence[ElementConstants],
    starts: Sequence[Array],
    theta: Array,
    magnitude: Array,
) -> list[ElementConstants]:
    n_x = elements[0].n_x
    if magnitude.size == n_x:
        return list(elements)
    largest = np.zeros(magnitude.size - n_x)
    for e, y, condition in zip(elements, starts, problem.conditions, strict=True):
        p = e.parameters(condition.link.natural(theta[condition.theta]))
        slopes = equations.flow.jacobian(e.times, y[:, 1:, :n_x], y[:, 1:, n_x:], p, e.inputs)
        terms = np.abs(slopes[:, :, n_x:, n_x : magnitude.size]) * magnitude[n_x:]
        largest = np.maximum(largest, np.where(np.isfinite(terms), terms, 0.0).max(axis=(0, 1, 3)))
    gain = np.where(largest > 0, magnitude[n_x:] / np.where(largest > 0, largest, 1.0), 1.0)
    scale = np.concatenate([np.ones(n_x), gain])
    return [replace(e, factor=e.factor * scale) for e in elements]


def _layout(problem: CompiledProblem, elements: Sequence[ElementConstants], scheme_table: CollocationScheme) -> Layout:
    n_x, n_e = len(problem.model.states), len(problem.model.states) + len(problem.model.algebraic_states)
    limits = np.array([(c.lower, c.upper) for c in problem.path], dtype=float).reshape(-1, 2)
    specifications: list[Specification] = []
    for condition, experiment_elements in zip(problem.conditions, elements, strict=True):
        applies, stages = experiment_elements.constraint_mask > 0, experiment_elements.tau.shape[0]
        lower, upper = (np.where(applies, limits[:, k], (-np.inf, np.inf)[k]).reshape(stages, -1) for k in range(2))
        times = (
            experiment_elements.edges[:-1, None] + experiment_elements.tau * np.diff(experiment_elements.edges)[:, None]
        )
        specifications.append(
            experiment_elements.measured.specification(
                condition, (n_x, scheme_table.degree * n_e), (lower, upper), experiment_elements.edges,
                problem.model.states, tuple(c.name for c in problem.path), times,
            )
        )  # fmt: skip
    return build_layout(problem.names, tuple(specifications), len(problem.groups), relations_of(problem))


def _pieces(slopes: LocalDerivatives) -> tuple[Array, Array]:
    return slopes.flow, np.concatenate([slopes.rows, slopes.constraints], axis=2)


def _interpolant(elements: ElementConstants, edges: Array, y: Array) -> Trajectory:
    """Evaluate an experiment's polynomials between boundaries (K + 1,).

    A time on a boundary belongs to the element that ends there, or, after events, to that which begins.
    """

    def trajectory(times: Array, *, is_after_event: bool = False) -> tuple[Array, Array]:
        n_x = elements.n_x
        k = np.clip(np.searchsorted(edges, times, side="right" if is_after_event else "left") - 1, 0, edges.size - 2)
        length = np.diff(edges)[k]
        tau = np.where(length > 0.0, (times - edges[k]) / np.where(length > 0.0, length, 1.0), 1.0)
        x = np.einsum("nj,nje->ne", elements.table.state_basis(tau), y[k, :, :n_x])
        z = np.einsum("nj,nje->ne", elements.table.algebraic_basis(tau), y[k, 1:, n_x:])
        return x, z

    return trajectory
