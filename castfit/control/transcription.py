"""A question on a grid of stages: its program, its start, and error estimates of a solution.

The polynomials of a stage satisfy the model's equations at the collocation points.  Their residual between the points,
integrated by a finer rule, is the error at the stage's end to leading order:

    e_k = | int_0^1 h f(p(tau)) - p'(tau) dtau |,        for the integrals  | int_0^1 h L(p(tau)) dtau - L_k |
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np

from castfit.control.program import Program, ProgramLayout, build_layout
from castfit.control.stages import StageGraphs, StageMethod, StageRows
from castfit.control.terms import INTEGRAL
from castfit.experiment.inputs import Input

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.control.grid import StageGrid
    from castfit.control.question import ControlQuestion
    from castfit.control.trajectory import PlanTrajectory
    from castfit.control.units import PlanUnits

_EXTRA_QUADRATURE_POINTS = 3  # points of the error estimate's quadrature beyond the collocation degree


@dataclass(frozen=True, eq=False)
class DecisionValues:
    """Decision: values of all free inputs (n_u,) and the quantities (n_q,), in their own units."""

    values: Array
    quantities: Array

    def horizon(self, question: ControlQuestion) -> float:
        """Return the length of the horizon."""
        return float(self.quantities[0]) if question.has_free_horizon else question.horizon

    def inputs(self, question: ControlQuestion) -> dict[str, Input]:
        """Return all inputs of the model as functions of time."""
        out, offset, horizon = dict[str, Input](), 0, self.horizon(question)
        for name in question.inputs:
            if name not in question.free_inputs:
                out[name] = question.known_inputs[name]
                continue
            size, edges = question.free_inputs[name].size, question.free_inputs[name].edges(question.start, horizon)
            values = self.values[offset : offset + size]
            linear = question.free_inputs[name].linear
            out[name] = Input.linear(edges, values) if linear else Input.piecewise_constant(edges[:-1], values)
            offset += size
        return out

    def with_scaled_horizon(self, factor: float) -> DecisionValues:
        """Return the decision with a free horizon multiplied by a factor."""
        return replace(self, quantities=self.quantities * np.append(factor, np.ones(self.quantities.size - 1)))

    def quantities_by_name(self, question: ControlQuestion) -> dict[str, float]:
        """Return the quantities by name."""
        return dict(zip((q.name for q in question.quantities), self.quantities.tolist(), strict=True))


class TranscribedPlan:
    """Question discretised on a grid: its `program`, its start, and `decided`, which reads the decision."""

    def __init__(
        self, question: ControlQuestion, method: StageMethod, grid: StageGrid, units: PlanUnits | None,
        graphs: StageGraphs | None = None,
    ) -> None:  # fmt: skip
        self.question, self.method, self.grid = question, method, grid
        self.graphs = StageGraphs(question, method) if graphs is None else graphs
        self.layout: ProgramLayout = build_layout(
            self.graphs, grid.find_value_indices(question), len(question.scenarios)
        )
        self.numbers = grid.compute_stage_numbers(question)
        self.units = cast("PlanUnits", units)  # None if only times and initial states are needed
        kinds = [t for t in question.terms if t.kind == INTEGRAL]
        self.state_term_indices = [kinds.index(t) for t in self.graphs.state_terms]  # among all integrals

    @cached_property
    def program(self) -> Program:
        """The nonlinear program."""
        question = self.question
        is_costless = [np.full(u.size, n in question.nonlinear_inputs) for n, u in question.free_inputs.items()]
        costless_indices = np.flatnonzero(np.concatenate([np.empty(0, dtype=np.bool_), *is_costless]))
        return self._build_program(self.graphs.objective(), self.graphs.curvature(), costless_indices)

    @cached_property
    def feasibility_program(self) -> Program:
        """The program of the nearest feasible point."""
        return self._build_program((), None, np.arange(self.layout.size, dtype=np.intp))

    def _build_program(
        self, terms: Sequence[StageRows], curvature: Sequence[StageRows] | None, proximal_indices: Index
    ) -> Program:
        rows = self.graphs.rows(self.grid.times(self.question.start, self.question.horizon))
        return Program(self.graphs, self.layout, self.numbers, terms, rows, self._scale(), curvature, proximal_indices)

    def bounds(self) -> tuple[Array, Array]:
        """Return the bounds of all variables, (n,) each."""
        question, layout = self.question, self.layout
        low, high = np.full(layout.size, -np.inf), np.full(layout.size, np.inf)
        for limits, side in ((low, "lower"), (high, "upper")):
            values = [np.full(u.size, getattr(u, side), dtype=float) for u in question.free_inputs.values()]
            limits[layout.inputs] = np.concatenate(values) if values else np.empty(0)
            limits[layout.quantities] = [
                (np.log(max(getattr(q, side), 1e-300)) if q.log else getattr(q, side)) for q in question.quantities
            ]
        low[layout.slack[int(question.is_worst_case) :]] = 0.0
        return low, high

    @property
    def P(self) -> Array:
        """The numbers (scenarios, n_P) of the question; numbers of free initial states have no effect."""
        question = self.question
        initial = [v if isinstance(v, float) else 0.0 for v in question.initial.values()]
        return np.array([[*p, *initial, question.start, question.horizon] for p in question.scenarios])

    def with_numbers(self, question: ControlQuestion) -> TranscribedPlan:
        """Return a copy of the program for a question with other numbers P."""
        out = copy(self)
        out.question = question
        return out

    def to_search_scale(self, decision: DecisionValues) -> Array:
        """Return quantities in search scale."""
        return np.array([np.log(v) if q.log else v
                         for q, v in zip(self.question.quantities, decision.quantities, strict=True)])  # fmt: skip

    def extract_decision(self, x: Array) -> DecisionValues:
        """Extract the decision from the variables, with quantities in natural values, clipped to their bounds."""
        search_values = x[self.layout.quantities]
        natural_values = [
            np.exp(v) if q.log else v for q, v in zip(self.question.quantities, search_values, strict=True)
        ]
        bounds = [(q.lower, q.upper) for q in self.question.quantities]
        clipped = [float(np.clip(v, low, high)) for v, (low, high) in zip(natural_values, bounds, strict=True)]
        return DecisionValues(x[self.layout.inputs].copy(), np.array(clipped))

    @cached_property
    def _initial_function(self) -> Any:
        graphs = self.graphs
        return ca.Function("first", [graphs.y, graphs.e, graphs.P], [graphs.initial().graph, graphs.p])

    def compute_initial_states(self, decision: DecisionValues, P: Array) -> tuple[Array, Array]:
        """Return parameters (scenarios, n_p) and initial states (scenarios, n_x) of a decision."""
        graphs, n_p = self.graphs, self.question.model.system.p.numel()
        evaluate = self._initial_function
        y = np.zeros(graphs.y.numel())
        begin = graphs.n_s + graphs.n_w
        y[begin : begin + graphs.n_v] = decision.values[self.grid.find_value_indices(self.question)[0]]
        y[begin + graphs.n_v :][: graphs.q.numel()] = self.to_search_scale(decision)
        evaluations: list[Any] = [evaluate(y, self.numbers[0], row) for row in P]
        p: Array = np.array([np.asarray(f[1], dtype=float).ravel() for f in evaluations]).reshape(P.shape[0], n_p)
        initial_states: Any = [np.asarray(f[0]).ravel()[: graphs.n_x] for f in evaluations]
        return p, np.array(initial_states, dtype=float)

    def times(self, decision: DecisionValues, extra_points: Sequence[float] = ()) -> tuple[Array, Index]:
        """Return the times of edges and inner points, and each stage's indices from start to end."""
        question = self.question
        edges = self.grid.times(question.start, decision.horizon(question))
        inner = np.sort([*(c for c in self.method.points if c < 1.0), *extra_points])
        between = edges[:-1, None] + np.diff(edges)[:, None] * inner
        K, m = between.shape
        all_times = np.concatenate([np.concatenate([edges[:-1, None], between], axis=1).ravel(), edges[-1:]])
        return all_times, np.arange(m + 2, dtype=np.intp)[None] + (m + 1) * np.arange(K, dtype=np.intp)[:, None]

    def fill_variables(self, decision: DecisionValues, tables: Sequence[tuple[Array, Array]]) -> Array:
        """Return variables with states from tables: times (n,), and states with integrals, (n, n_s + n_z)."""
        layout, n_s, (times, point_indices) = self.layout, self.graphs.n_s, self.times(decision)
        x = np.zeros(layout.size)
        x[layout.inputs], x[layout.quantities] = decision.values, self.to_search_scale(decision)
        inner_indices = (
            point_indices[:, 1:] if self.method.scheme == "radau" else point_indices[:, 1:-1]
        )  # the last point is the end
        for i, (table_times, values) in enumerate(tables):
            columns: list[Any] = [np.interp(times, table_times, column) for column in values.T]
            states: Array = np.stack(columns, axis=1)
            x[layout.nodes[i]] = states[np.append(point_indices[:, 0], point_indices[-1, -1])][:, :n_s]
            if self.graphs.n_w:
                x[layout.inner[i]] = states[inner_indices].reshape(self.grid.stages, -1)
        return x

    def build_start(self, decision: DecisionValues, courses: Sequence[PlanTrajectory | None], initial: Array) -> Array:
        """Return variables with states from trajectories; without one, with constant `initial` (scenarios, n_x)."""
        tables: list[tuple[Array, Array]] = []
        for course, x in zip(courses, initial, strict=True):
            constant_states = np.concatenate([x, np.zeros(len(self.state_term_indices)), self.question.algebraic_guess])
            columns = [] if course is None else [course.x, course.integrals[:, self.state_term_indices], course.z]
            tables.append(
                (np.zeros(1), constant_states[None]) if course is None else (course.t, np.concatenate(columns, axis=1))
            )
        return self.fill_variables(decision, tables)

    def build_state_tables(self, x: Array, decision: DecisionValues) -> list[tuple[Array, Array]]:
        """Return the states of variables x (n,) as tables, for `filled`; multiple shooting has nodes only."""
        n_s, K, d = self.graphs.n_s, self.grid.stages, self.method.points.size
        edges = self.grid.times(self.question.start, decision.horizon(self.question))
        times = edges[:-1, None] + np.diff(edges)[:, None] * np.append(0.0, self.method.points)
        out: list[tuple[Array, Array]] = []
        for nodes, inner in zip(x[self.layout.nodes], x[self.layout.inner], strict=True):
            w = inner.reshape(K, d, n_s + self.graphs.n_z)
            begin_states = np.concatenate([nodes[:-1], w[:, 0, n_s:]], axis=1) if d else nodes[:-1]
            stage_states = np.concatenate([begin_states[:, None], w], axis=1)
            end_state = np.concatenate([nodes[-1], stage_states[-1, -1, n_s:]])
            out.append(
                (
                    np.append(times, edges[-1]),
                    np.concatenate([stage_states.reshape(-1, end_state.size), end_state[None]]),
                )
            )
        return out

    def errors(self, x: Array, P: Array, unit: float) -> Array:
        """Return the relative error of each stage, (K,); see the module. Integrals are in units of `unit`."""
        graphs, K = self.graphs, self.grid.stages
        units = np.concatenate([self.units.states, np.full(len(graphs.summed_terms), unit)])
        max_errors = np.zeros(K)
        for positions, row in zip(self.layout.positions, P, strict=True):
            stage_errors = self._errors.map(K)(x[positions].T, self.numbers.T, np.tile(row[:, None], (1, K)))
            max_errors = np.maximum(
                max_errors, np.max(np.abs(np.asarray(stage_errors)) / units[:, None], axis=0, initial=0.0)
            )
        return max_errors

    @cached_property
    def _errors(self) -> Any:
        graphs, table = self.graphs, self.method.table
        assert table is not None
        nodes, weights = np.polynomial.legendre.leggauss(table.degree + _EXTRA_QUADRATURE_POINTS)
        n, total = graphs.n_s + graphs.n_z, ca.SX(graphs.n_s + len(graphs.summed_terms), 1)
        inner = ca.reshape(graphs.w, n, table.degree)
        node_states = ca.horzcat(graphs.s, inner[: graphs.n_s, :])
        for tau, weight in zip(0.5 * (1 + nodes), 0.5 * weights, strict=True):
            state = ca.mtimes(node_states, ca.DM(table.state_basis(tau)))
            z = ca.mtimes(inner[graphs.n_s :, :], ca.DM(table.algebraic_basis(tau)))
            rate, _, integrand = graphs.rates(graphs.build_point(float(tau), state, z))
            total += float(weight) * graphs.h * ca.vertcat(rate, integrand)
        change = ca.vertcat(graphs.end.x - graphs.s, graphs.integrals)
        return ca.Function("errors", [graphs.y, graphs.e, graphs.P], [ca.densify(total - change)])

    def _scale(self) -> Array:
        scale, units, layout = np.ones(self.layout.size), self.units, self.layout
        scale[layout.inputs], scale[layout.quantities] = units.values, units.quantities
        scale[layout.nodes] = units.states
        if layout.inner.size:
            scale[layout.inner] = np.tile(np.concatenate([units.states, units.algebraic]), self.method.degree)
        if self.question.soft_price is not None:
            sizes = [max((abs(b) for b in (c.lower, c.upper) if np.isfinite(b)), default=0.0) or 1.0
                     for c in self.question.path]  # fmt: skip
            scale[layout.slack[int(self.question.is_worst_case) :]] = sizes
        return scale
