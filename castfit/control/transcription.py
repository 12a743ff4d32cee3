"""A question on a grid of stages: its program, where that starts, and what its solution says of the grid.

The polynomials of a stage satisfy the model's equations at the collocation points.  What they leave in between,
integrated by a finer rule, is the error at the stage's end to leading order:

    e_k = | int_0^1 h f(p(tau)) - p'(tau) dtau |,        for the integrals  | int_0^1 h L(p(tau)) dtau - L_k |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.control.grid import StageGrid
from castfit.control.program import Program, ProgramLayout, lay_out
from castfit.control.stages import StageGraphs, StageMethod, StageRows
from castfit.experiment.inputs import Input

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.control.question import ControlQuestion
    from castfit.control.trajectory import PlanCourse
    from castfit.control.units import PlanUnits

_FINER = 3  # more points of the rule that sees errors


@dataclass(frozen=True, eq=False)
class PlanDecision:
    """What was decided: values of all free inputs (n_u,), and the quantities (n_q,), in their own units."""

    values: Array
    quantities: Array

    def horizon(self, question: ControlQuestion) -> float:
        """Return the length of the horizon."""
        return float(self.quantities[0]) if question.timed else question.horizon

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

    def named(self, question: ControlQuestion) -> dict[str, float]:
        """Return the quantities by name."""
        return dict(zip((q.name for q in question.quantities), self.quantities.tolist(), strict=True))


class TranscribedPlan:
    """A question on a grid; `solve` it, `decided` reads what was decided."""

    def __init__(
        self, question: ControlQuestion, method: StageMethod, grid: StageGrid, units: PlanUnits,
        graphs: StageGraphs | None = None, row_units: dict[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.question, self.method, self.grid, self.units = question, method, grid, units
        self.graphs = StageGraphs(question, method) if graphs is None else graphs
        self.layout: ProgramLayout = lay_out(self.graphs, grid.used(question), len(question.scenarios))
        self.numbers = grid.numbers(question)
        self._errors: ca.Function | None = None
        self.row_units = {} if row_units is None else row_units  # of constraints, by name

    @cached_property
    def _rows(self) -> list[StageRows]:
        """All rows of the program."""
        question, graphs = self.question, self.graphs
        times = self.grid.times(question.start, question.horizon)
        rows = [graphs.initial(), graphs.equations, *graphs.path(), *graphs.points(times), *graphs.whole()]
        if question.worst:
            graph = graphs.objective()[1] - graphs.slack[0]
            rows.append(StageRows("the worst case", graph, np.array([-np.inf]), np.zeros(1), (self.grid.stages - 1,)))
        return rows

    @cached_property
    def program(self) -> Program:
        """The nonlinear program."""
        question, graphs = self.question, self.graphs
        prices = np.zeros(graphs.slack.numel())
        terms: list[tuple[ca.SX, tuple[int, ...] | None]] = []
        if question.worst:
            prices[0] = 1.0
        else:
            per_stage, end = graphs.objective()
            terms = [(end, (self.grid.stages - 1,)), *([(per_stage, None)] if graphs.summed else [])]
        if question.soft is not None:
            prices[int(question.worst) :] = question.soft
        units = [self._row_unit(r) for r in self._rows]
        return Program(graphs, self.layout, self.numbers, terms, self._rows, self._scale(), units, prices)

    def measure(self, x: Array, P: Array) -> None:
        """Find the units of constraints: by how much they move with variables x (n,) that move by their own units."""
        graphs, scale = self.graphs, self._scale()
        for rows in self._rows:
            if rows.states:
                continue
            slope = ca.Function("slope", [graphs.y, graphs.e, graphs.P], [ca.jacobian(rows.graph, graphs.y)])
            evaluate: Any = slope
            size = 0.0
            for k in np.unique(np.linspace(0, self.grid.stages - 1, 5).astype(int)) if rows.columns is None else [
                c % self.grid.stages for c in rows.columns]:  # fmt: skip
                at = self.layout.at[0][k]
                found = np.abs(np.asarray(ca.DM(evaluate(x[at], self.numbers[k], P[0])), dtype=float)) * scale[at]
                size = max(size, float(np.max(found[np.isfinite(found)], initial=0.0)))
            self.row_units[rows.name] = max(size, self.row_units.get(rows.name, 0.0))

    def objective_size(self, x: Array, P: Array) -> float:
        """Return the size of the objective near x: the largest of its values and slopes; 1 if it has none.

        Near it, too: a sum of squares may have neither where everything is zero.
        """
        moved = x.copy()
        moved[self.layout.inputs] += self.units.values
        sizes = [s for at in (x, moved) for s in (abs(self.program.values(at, P)[0]), self.program.slope_size(at, P))]
        return max([s for s in sizes if np.isfinite(s)], default=0.0) or 1.0

    def bounds(self) -> tuple[Array, Array]:
        """Return the bounds of all variables, (n,) each."""
        question, layout = self.question, self.layout
        low, high = np.full(layout.size, -np.inf), np.full(layout.size, np.inf)
        for at, bound in ((low, "lower"), (high, "upper")):
            values = [np.full(u.size, getattr(u, bound), dtype=float) for u in question.free_inputs.values()]
            at[layout.inputs] = np.concatenate(values) if values else np.empty(0)
            at[layout.quantities] = [
                (np.log(max(getattr(q, bound), 1e-300)) if q.log else getattr(q, bound)) for q in question.quantities
            ]
        low[layout.slack[int(question.worst) :]] = 0.0
        return low, high

    def P(self, initial: Array, scenarios: Sequence[Array]) -> Array:
        """Return numbers (scenarios, n_P) from initial states (n_x,), of which those that are given matter."""
        own = len(self.question.model.own_states)
        return np.array([[*p, *initial[:own], self.question.horizon] for p in scenarios])

    def sought(self, decision: PlanDecision) -> Array:
        """Return quantities as they are searched."""
        return np.array([np.log(v) if q.log else v
                         for q, v in zip(self.question.quantities, decision.quantities, strict=True)])  # fmt: skip

    def decided(self, x: Array) -> PlanDecision:
        """Read what was decided off the variables."""
        sought = x[self.layout.quantities]
        found = [np.exp(v) if q.log else v for q, v in zip(self.question.quantities, sought, strict=True)]
        bounds = [(q.lower, q.upper) for q in self.question.quantities]
        clipped = [float(np.clip(v, low, high)) for v, (low, high) in zip(found, bounds, strict=True)]
        return PlanDecision(x[self.layout.inputs].copy(), np.array(clipped))

    @cached_property
    def _first(self) -> Any:
        graphs = self.graphs
        return ca.Function("first", [graphs.y, graphs.e, graphs.P], [graphs.initial().graph, graphs.p])

    def first(self, decision: PlanDecision, P: Array) -> tuple[Array, Array]:
        """Return parameters (scenarios, n_p) and initial states (scenarios, n_x) of a decision."""
        graphs, n_p = self.graphs, self.question.model.system.p.numel()
        evaluate = self._first
        y = np.zeros(graphs.y.numel())
        begin = graphs.n_s + graphs.n_w
        y[begin : begin + graphs.n_v] = decision.values[self.grid.used(self.question)[0]]
        y[begin + graphs.n_v :][: graphs.q.numel()] = self.sought(decision)
        found: list[Any] = [evaluate(y, self.numbers[0], row) for row in P]
        p: Array = np.array([np.asarray(f[1], dtype=float).ravel() for f in found]).reshape(P.shape[0], n_p)
        first: Any = [np.asarray(f[0]).ravel()[: graphs.n_x] for f in found]
        return p, np.array(first, dtype=float)

    def times(self, decision: PlanDecision, extra: Sequence[float] = ()) -> tuple[Array, Index]:
        """Return times at edges and inner points, and which of them belong to each stage: its begin, points, end."""
        question = self.question
        edges = self.grid.times(question.start, decision.horizon(question))
        inner = np.sort([*(c for c in self.method.points if c < 1.0), *extra])
        between = edges[:-1, None] + np.diff(edges)[:, None] * inner
        K, m = between.shape
        every = np.concatenate([np.concatenate([edges[:-1, None], between], axis=1).ravel(), edges[-1:]])
        return every, np.arange(m + 2, dtype=np.intp)[None] + (m + 1) * np.arange(K, dtype=np.intp)[:, None]

    def filled(self, decision: PlanDecision, courses: Sequence[PlanCourse | None], initial: Array) -> Array:
        """Return variables with states from courses at `times`; where there is none, at their initial values."""
        layout, graphs = self.layout, self.graphs
        x = np.zeros(layout.size)
        x[layout.inputs], x[layout.quantities] = decision.values, self.sought(decision)
        _, place = self.times(decision)
        chosen = place[:, 1:] if self.method.scheme == "radau" else place[:, 1:-1]  # the last point is the end
        kinds = [i for i, t in enumerate(t for t in self.question.terms if t.kind == "integral") if t in graphs.carried]
        for i, course in enumerate(courses):
            if course is None:
                z = self.question.algebraic_guess
                x[layout.nodes[i][:, : graphs.n_x]] = initial[i]
                each = np.concatenate([initial[i], np.zeros(len(graphs.carried)), z])
                x[layout.inner[i]] = np.tile(each, layout.inner[i].shape[1] // max(each.size, 1)) if graphs.n_w else 0.0
                continue
            states = np.concatenate([course.x, course.integrals[:, kinds]], axis=1)
            x[layout.nodes[i]] = states[np.append(place[:, 0], place[-1, -1])]
            if graphs.n_w:
                both = np.concatenate([states, course.z], axis=1)
                x[layout.inner[i]] = both[chosen].reshape(self.grid.stages, -1)
        return x

    def onto(self, x: Array, finer: TranscribedPlan, shift: float = 0.0) -> Array:
        """Return the same polynomials, a part of the horizon later, as variables of another grid."""
        table, graphs = self.method.table, self.graphs
        assert table is not None
        out, new, old = np.zeros(finer.layout.size), finer.layout, self.layout
        out[new.inputs], out[new.quantities], out[new.slack] = x[old.inputs], x[old.quantities], x[old.slack]
        edges = finer.grid.edges
        points = np.minimum(edges[:-1, None] + np.diff(edges)[:, None] * table.points + shift, 1.0)
        edges = np.minimum(edges + shift, 1.0)
        for i in range(len(old.at)):
            for at, to in ((edges, new.nodes[i]), (points.ravel(), new.inner[i])):
                stage = np.clip(np.searchsorted(self.grid.edges, at, side="left") - 1, 0, self.grid.stages - 1)
                tau = (at - self.grid.edges[stage]) / np.diff(self.grid.edges)[stage]
                w = x[old.inner[i]].reshape(self.grid.stages, table.degree, -1)
                y = np.concatenate([x[old.nodes[i]][:-1, None], w[:, :, : graphs.n_s]], axis=1)[stage]
                states = np.einsum("mj,mje->me", table.state_basis(tau), y)
                if to is new.nodes[i]:
                    out[to] = states
                    continue
                z = np.einsum("mj,mje->me", table.algebraic_basis(tau), w[stage][:, :, graphs.n_s :])
                out[to] = np.concatenate([states, z], axis=1).reshape(to.shape)
        return out

    def errors(self, x: Array, P: Array, unit: float) -> Array:
        """Return the relative error of each stage, (K,), as above; integrals in a unit of the objective."""
        graphs, table = self.graphs, self.method.table
        assert table is not None
        if self._errors is None:
            nodes, weights = np.polynomial.legendre.leggauss(table.degree + _FINER)
            n, total = graphs.n_s + graphs.n_z, ca.SX(graphs.n_s + len(graphs.summed), 1)
            inner = ca.reshape(graphs.w, n, table.degree)
            every = ca.horzcat(graphs.s, inner[: graphs.n_s, :])
            for tau, weight in zip(0.5 * (1 + nodes), 0.5 * weights, strict=True):
                state = ca.mtimes(every, ca.DM(table.state_basis(tau)))
                z = ca.mtimes(inner[graphs.n_s :, :], ca.DM(table.algebraic_basis(tau)))
                rate, _, integrand = graphs.rates(graphs.place(float(tau), state, z))
                total += float(weight) * graphs.h * ca.vertcat(rate, integrand)
            change = ca.vertcat(graphs.end.x - graphs.s, graphs.integrals)
            self._errors = ca.Function("errors", [graphs.y, graphs.e, graphs.P], [ca.densify(total - change)])
        units = np.concatenate([self.units.states, np.full(len(graphs.summed), unit)])
        worst = np.zeros(self.grid.stages)
        for i, row in enumerate(P):
            found = self._errors.map(self.grid.stages)(x[self.layout.at[i]].T, self.numbers.T,
                                                         np.tile(row[:, None], (1, self.grid.stages)))  # fmt: skip
            worst = np.maximum(worst, np.max(np.abs(np.asarray(found)) / units[:, None], axis=0, initial=0.0))
        return worst

    def _scale(self) -> Array:
        scale = np.ones(self.layout.size)
        scale[self.layout.inputs], scale[self.layout.quantities] = self.units.values, self.units.quantities
        both = np.concatenate([self.units.states, self.units.algebraic])
        for nodes, inner in zip(self.layout.nodes, self.layout.inner, strict=True):
            scale[nodes] = self.units.states
            if inner.shape[1]:
                scale[inner] = np.tile(both, inner.shape[1] // both.size)
        return scale

    def _row_unit(self, rows: StageRows) -> Array:
        if rows.states:
            return np.array([1.0 if i < 0 else self.units.states[i] for i in rows.states])
        return np.full(rows.lower.size, self.unit_of(rows.name, *rows.lower, *rows.upper))

    def unit_of(self, name: str, *bounds: float) -> float:
        """Return the unit of a constraint: that of its bounds, or of what moves it."""
        return max((abs(b) for b in bounds if np.isfinite(b)), default=0.0) or self.row_units.get(name) or 1.0
