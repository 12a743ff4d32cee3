"""The equations of one stage as graphs, by collocation or by Runge-Kutta steps; all stages share them.

With tau in [0, 1] on a stage of length h that begins at t_k, D the differentiation matrix, l_j the basis polynomials
and b the weights of a collocation table with points c,

    d_i  : h f(t_i, x_i, z_i, u(t_i), p) - sum_j D_ij x_j = 0,    alg(t_i, x_i, z_i, u(t_i), p) = 0,    x_0 = s_k
    x_k  : sum_j l_j(1) x_j - s_{k+1} = 0
    L_k  = h sum_i b_i L(t_i, x_i, z_i, u(t_i), p)                  the integral over the stage

An integral has the accuracy of a state.  Integrals that the objective does not sum linearly are states, for instance in
a root, a logarithm or a constraint.

Notation
--------
y (n_y,)   variables of a stage: s_k, inner states w_k, values of free inputs v_k, quantities q, s_{k+1}
e (n_e,)   numbers of a stage: start and length as fractions of the horizon, for each free input the fractions of its
           piece at the start and end of the stage, for each known input the coefficients (4,) of its cubic
P (n_P,)   numbers of a scenario: parameters, initial states, start and length of the horizon
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.reprs import add_brief_repr
from castfit.control.question import HORIZON
from castfit.control.terms import END, INTEGRAL
from castfit.model.expressions import substitute_by_name
from castfit.transcribe.elements import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._support.arrays import Array
    from castfit.control.question import ControlQuestion
    from castfit.control.terms import HorizonTerm
    from castfit.problem.constraints import Constraint
    from castfit.transcribe.elements import CollocationScheme


@add_brief_repr
@dataclass(frozen=True)
class StageMethod:
    """Discretisation of a stage: collocation, or a number of Runge-Kutta steps."""

    degree: int = 3
    scheme: str = "radau"
    steps: int = 0

    @property
    def table(self) -> CollocationScheme | None:
        """The collocation table; None for Runge-Kutta steps."""
        return None if self.steps else table(self.scheme, self.degree)

    @property
    def order(self) -> int:
        """Order of the method at the stages' ends."""
        return 4 if self.table is None else self.table.order

    @property
    def points(self) -> Array:
        """Fractions of a stage at its inner states, (d,)."""
        return table(self.scheme, self.degree).points if not self.steps else np.empty(0)


@dataclass(frozen=True)
class StagePoint:
    """A point of a stage: time, states (integrals among them), algebraic states, inputs."""

    t: ca.SX
    x: ca.SX
    z: ca.SX
    u: ca.SX


@dataclass(frozen=True, eq=False)
class StageRows:
    """Expressions (m,) of y, e, P, each between two bounds at some stages; `columns` is None for all stages."""

    name: str
    graph: ca.SX
    lower: float = -np.inf
    upper: float = np.inf
    columns: tuple[int, ...] | None = None


class StageGraphs:
    """Symbols and expressions of one stage of a question.

    Attributes
    ----------
    y, e, P : casadi.SX
        Symbols of the expressions.
    summed_terms : tuple of HorizonTerm
        The integrals that the objective sums linearly.
    state_terms : tuple of HorizonTerm
        The integrals that are additional states.
    slack : casadi.SX
        The worst case, if it is the objective, and the violations of soft path constraints.
    """

    def __init__(self, question: ControlQuestion, method: StageMethod) -> None:
        self.question, self.method, system = question, method, question.model.system
        objective, integrals = question.objective, [t for t in question.terms if t.kind == INTEGRAL]
        self.summed_terms, self.state_terms = _split_integrals(question, objective, integrals)
        self.n_x, self.n_z = system.x.numel(), system.z.numel()
        self.n_s = self.n_x + len(self.state_terms)
        self.n_w = 0 if self.method.steps else self.method.degree * (self.n_s + self.n_z)
        free = question.free_inputs
        self.n_v = sum(1 + variable.linear for variable in free.values())
        n_slack = int(question.is_worst_case) + (len(question.path) if question.soft_price is not None else 0)
        sizes = self.n_s, self.n_w, self.n_v, len(question.quantities), n_slack, self.n_s
        names = ("s", "w", "v", "q", "slack", "next")
        self.s, self.w, self.v, self.q, self.slack, self.next = map(ca.SX.sym, names, sizes)
        self.y = ca.vertcat(self.s, self.w, self.v, self.q, self.slack, self.next)
        self.e = ca.SX.sym("e", 2 + 2 * len(free) + 4 * len(question.known_inputs))
        n_p = system.p.numel()
        self.P = ca.SX.sym("P", n_p + len(question.model.own_states) + 2)
        values = [ca.exp(self.q[i]) if variable.log else self.q[i] for i, variable in enumerate(question.quantities)]
        self.values_by_name = {
            variable.name: value for variable, value in zip(question.quantities, values, strict=True)
        }
        self.horizon = self.values_by_name[HORIZON] if question.has_free_horizon else self.P[-1]
        self.h = self.horizon * self.e[1]
        numbers = zip(question.model.parameters, ca.vertsplit(self.P[:n_p]) if n_p else [], strict=True)
        self.p = ca.vertcat(*(self.values_by_name.get(n, number) for n, number in numbers)) if n_p else ca.SX(0, 1)
        rates = [system.ode, *(t.expression for t in self.state_terms)]
        summed = ca.vertcat(*(t.expression for t in self.summed_terms))
        self._rates = ca.Function("rates", system.arguments, [ca.vertcat(*rates), system.alg, ca.SX(summed)])
        self._nodes = list[tuple[ca.SX, StagePoint]]()  # points of the integrands, with weights
        self.integrals = ca.SX(len(self.summed_terms), 1)
        build = self._build_runge_kutta if self.method.steps else self._build_collocation
        defects, end, self.inner_points, self.end = build()
        self.begin = self.build_point(0.0, self.s, ca.SX(self.n_z, 1))
        self.equations = StageRows("the model's equations", ca.vertcat(defects, end - self.next), 0.0, 0.0)

    def build_point(self, tau: float, x: ca.SX, z: ca.SX) -> StagePoint:
        """Return the point at a fraction tau of the stage, with states x and algebraic states z."""
        question, edge_index, cubic_index = self.question, 2, 2 + 2 * len(self.question.free_inputs)
        elapsed, value_index, u = tau * self.h, 0, list[ca.SX]()
        for name in question.model.inputs:
            if name not in question.free_inputs:
                c = self.e[cubic_index : cubic_index + 4]
                u.append(c[0] + elapsed * (c[1] + elapsed * (c[2] + elapsed * c[3])))
                cubic_index += 4
                continue
            if question.free_inputs[name].linear:
                fraction = self.e[edge_index] + tau * (self.e[edge_index + 1] - self.e[edge_index])
                u.append(self.v[value_index] + fraction * (self.v[value_index + 1] - self.v[value_index]))
            else:
                u.append(self.v[value_index])
            edge_index, value_index = edge_index + 2, value_index + 1 + question.free_inputs[name].linear
        t = self.P[-2] + self.horizon * (self.e[0] + tau * self.e[1])
        return StagePoint(t, x, z, ca.vertcat(*u) if u else ca.SX(0, 1))

    def evaluate_at(self, place: StagePoint, expressions: Sequence[ca.SX]) -> ca.SX:
        """Evaluate expressions of the model's symbols, and of quantities by name, at a point."""
        system = self.question.model.system
        column = substitute_stacked(expressions, self.values_by_name, system.p)
        graph = ca.Function("at", [*system.arguments, self.q], [column])
        return ca.SX(graph(place.t, place.x[: self.n_x], place.z, self.p, place.u, self.q))

    def rates(self, place: StagePoint) -> tuple[ca.SX, ca.SX, ca.SX]:
        """Return the derivatives of the states, the residuals of the algebraic equations, and the summed integrands."""
        values: Any = self._rates(place.t, place.x[: self.n_x], place.z, self.p, place.u)
        return values

    def _add_rates(self, weight: Any, place: StagePoint) -> tuple[ca.SX, ca.SX]:
        """Return the derivatives and algebraic residuals at a point. Add its contribution to the integrals."""
        rate, residual, integrand = self.rates(place)
        self.integrals += weight * integrand
        self._nodes.append((weight, place))
        return rate, residual

    def _build_collocation(self) -> tuple[ca.SX, ca.SX, list[StagePoint], StagePoint]:
        scheme = self.method.table
        assert scheme is not None
        n, d = self.n_s + self.n_z, scheme.degree
        inner_nodes = [self.w[i * n : (i + 1) * n] for i in range(d)]
        nodes = [self.s, *(node_values[: self.n_s] for node_values in inner_nodes)]
        algebraic = [
            ca.reshape(node_values[self.n_s :], self.n_z, 1) for node_values in inner_nodes
        ]  # a slice of a single state is a row
        defects = list[ca.SX]()
        for i, node_values in enumerate(inner_nodes):
            place = self.build_point(float(scheme.points[i]), node_values[: self.n_s], algebraic[i])
            rate, residual = self._add_rates(self.h * float(scheme.weights[i]), place)
            slope = sum((float(c) * x for c, x in zip(scheme.derivative[i], nodes, strict=True)), ca.SX(self.n_s, 1))
            defects += [self.h * rate - slope, residual]
        end = sum((float(c) * x for c, x in zip(scheme.end, nodes, strict=True) if c), ca.SX(self.n_s, 1))
        z = sum((float(c) * node_values for c, node_values in zip(scheme.algebraic_basis(1.0), algebraic, strict=True)),
                ca.SX(self.n_z, 1))  # fmt: skip
        return ca.vertcat(*defects), end, [place for _, place in self._nodes], self.build_point(1.0, end, z)

    def _build_runge_kutta(self) -> tuple[ca.SX, ca.SX, list[StagePoint], StagePoint]:
        """Take steps of the classical method."""
        steps, empty, x, h = self.method.steps, ca.SX(0, 1), self.s, self.h / self.method.steps
        for i in range(steps):
            slopes, change = [ca.SX(self.n_s, 1)], ca.SX(self.n_s, 1)
            for tau, share in ((0.0, 6), (0.5, 3), (0.5, 3), (1.0, 6)):
                place = self.build_point((i + tau) / steps, x + h * tau * slopes[-1], empty)
                slopes.append(self._add_rates(h / share, place)[0])
                change += h / share * slopes[-1]
            x = x + change
        end = self.build_point(1.0, self.next, empty)
        return empty, x, [end], end

    def initial(self) -> StageRows:
        """Return the equations of the first stage's initial states."""
        return StageRows("initial states", ca.densify(self._build_initial_states() - self.s), 0.0, 0.0, (0,))

    def is_affected_at_start(self, constraint: Constraint) -> bool:
        """Check whether the decision variables affect a path constraint at the start of the horizon."""
        system, is_not_horizon = (
            self.question.model.system,
            [quantity.name != HORIZON for quantity in self.question.quantities],
        )
        value_at_start = ca.SX(
            ca.substitute(
                [self.evaluate_at(self.begin, [constraint.expression])], [self.s], [self._build_initial_states()]
            )[0]
        )
        decision_symbols = ca.vertcat(
            *(q for q, is_included in zip(ca.vertsplit(self.q), is_not_horizon, strict=True) if is_included)
        )
        return ca.depends_on(constraint.expression, system.u) or ca.depends_on(value_at_start, ca.SX(decision_symbols))

    def _build_initial_states(self) -> ca.SX:
        """Return the values of the first stage's initial states, (n_s,)."""
        question, model = self.question, self.question.model
        n_p, values = model.system.p.numel(), dict[str, ca.SX]()
        for i, n in enumerate(model.own_states):
            value = question.initial[n]
            if value is None:
                values[n] = self.values_by_name[f"{n}(0)"]
            elif isinstance(value, ca.SX):
                values[n] = self.evaluate_at(self.begin, [value])
            else:
                values[n] = self.P[n_p + i]
        initial_states = ca.vertcat(*values.values(), *ca.vertsplit(self.s)[len(values) : self.n_x])
        for line in model.lines:  # the history of a delay line may depend on the other initial states
            for n in line.nodes:
                values[n] = self.evaluate_at(
                    StagePoint(self.begin.t, initial_states, self.begin.z, self.begin.u), [model.initial[n]]
                )
        return ca.SX(ca.vertcat(*(values[n] for n in model.states), ca.SX(len(self.state_terms), 1)))

    def objective(self) -> list[StageRows]:
        """Return the terms of each stage and of the horizon's end in the objective, with the cost of slacks."""
        question, last_stage = self.question, (-1,)
        price = (
            0.0
            if question.soft_price is None
            else question.soft_price * ca.sum1(self.slack[int(question.is_worst_case) :])
        )
        if question.is_worst_case:
            return [StageRows("objective", ca.densify(self.slack[0] + price), columns=last_stage)]
        factors, remainder = self._split_objective()
        end = StageRows("objective", ca.densify(self.substitute_terms(remainder) + price), columns=last_stage)
        per_stage = ca.densify(ca.mtimes(self.substitute_terms(factors), self.integrals))
        return [end, StageRows("objective", per_stage)] if self.summed_terms else [end]

    def _split_objective(self) -> tuple[ca.SX, ca.SX]:
        """Return the coefficients of the summed integrals in the objective, (1, n), and the rest of the objective."""
        graph, sums = self.question.objective, ca.SX(ca.vertcat(*(t.symbol for t in self.summed_terms)))
        remainder = (
            ca.SX(ca.substitute([graph], [sums], [ca.SX.zeros(sums.numel())])[0]) if self.summed_terms else graph
        )
        return ca.SX(ca.jacobian(graph, sums)), remainder

    def curvature(self) -> list[StageRows] | None:
        """Return the Gauss-Newton curvature (n_y, n_y) of each stage and of the end; None if there is none."""
        question, (factors, remainder) = self.question, self._split_objective()
        if question.is_worst_case or question.has_free_horizon or not factors.is_constant():
            return None
        running = (
            ca.mtimes(factors, ca.vertcat(*(t.expression for t in self.summed_terms)))
            if self.summed_terms
            else ca.SX(0)
        )
        ends = [t for t in question.terms if t.kind == END]
        if ends:
            symbols, values = ca.vertcat(*(t.symbol for t in ends)), ca.vertcat(*(t.expression for t in ends))
            remainder = ca.SX(ca.substitute([remainder], [symbols], [values])[0])
        model_names = {s.name() for s in ca.symvar(ca.vertcat(*question.model.system.arguments))}
        if any(s.name() not in model_names for s in ca.symvar(remainder)):
            return None
        contributions = [(running, self._nodes, None), (remainder, [(ca.SX(1), self.end)], (-1,))]
        curvatures = [
            (self._build_gauss_newton_matrix(e, places), columns)
            for e, places, columns in contributions
            if not e.is_constant()
        ]
        return None if any(H is None for H, _ in curvatures) or not curvatures else [
            StageRows("curvature", ca.SX(H), columns=columns) for H, columns in curvatures if H is not None
        ]  # fmt: skip

    def _build_gauss_newton_matrix(self, expression: ca.SX, places: Sequence[tuple[ca.SX, StagePoint]]) -> ca.SX | None:
        """Return sum w J' Q J over points, with J of squared terms, or of the variables of a convex quadratic.

        Return None if neither form applies or the sum is zero.
        """
        system, rows = self.question.model.system, extract_squares(expression)
        inner = ca.vertsplit(ca.vertcat(system.x, system.z, system.u))
        bend = ca.hessian(expression, ca.vertcat(*inner))[0]
        if rows is not None:
            inner, bend = [row for _, row in rows], ca.diag(ca.SX([2.0 * factor for factor, _ in rows]))
        elif not bend.is_constant():
            return None
        else:
            values = np.linalg.eigvalsh(np.array(ca.DM(ca.densify(bend)))).tolist()
            if values[0] < -1e-12 * values[-1]:
                return None
        total = ca.SX(self.y.numel(), self.y.numel())
        for weight, place in places:
            J = ca.jacobian(self.evaluate_at(place, inner), self.y)
            total += weight * ca.mtimes([J.T, bend, J])
        return ca.sparsify(total) if ca.sparsify(total).nnz() else None

    def rows(self, edges: Array) -> list[StageRows]:
        """Return all rows between bounds; edges (K + 1,) of stages are times."""
        rows = [self.initial(), self.equations, *self._build_all_path_rows(), *self._build_point_rows(edges)]
        rows += [StageRows(c.name, ca.densify(self.substitute_terms(c.expression)), c.lower, c.upper, (-1,))
                 for c in self.question.horizon_constraints]  # fmt: skip
        if self.question.is_worst_case:
            graph = self.substitute_terms(self.question.objective) - self.slack[0]
            rows.append(StageRows("the worst case", ca.densify(graph), upper=0.0, columns=(-1,)))
        return rows

    def _build_all_path_rows(self) -> list[StageRows]:
        """Return path constraints at all points of a stage, and at its start if free inputs may jump there.

        A constraint of states alone is included at the start of the first stage if decision variables affect it.
        """
        system, out = self.question.model.system, list[StageRows]()
        for i, c in enumerate(self.question.path):
            is_known_at_start = not (
                self.n_z and ca.depends_on(c.expression, system.z)
            )  # algebraic states are not known at the start
            jumps = is_known_at_start and ca.depends_on(c.expression, system.u)
            for place in (*self.inner_points, *([self.begin] if jumps else [])):
                out += self._build_path_rows(c, self.evaluate_at(place, [c.expression]), i)
            if is_known_at_start and not jumps and self.is_affected_at_start(c):
                out += self._build_path_rows(c, self.evaluate_at(self.begin, [c.expression]), i, (0,))
        return out

    def _build_point_rows(self, edges: Array) -> list[StageRows]:
        """Return the rows of constraints at times, which are among the edges (K + 1,) of stages."""
        out: list[StageRows] = []
        for c in self.question.points:
            assert isinstance(c.times, tuple)
            ends = [int(np.argmin(np.abs(edges - t))) for t in c.times]
            for place, columns in ((self.begin, [0] if 0 in ends else []), (self.end, [k - 1 for k in ends if k])):
                if columns:
                    out.append(
                        StageRows(c.name, self.evaluate_at(place, [c.expression]), c.lower, c.upper, tuple(columns))
                    )
        return out

    def _build_path_rows(
        self, constraint: Constraint, value: ca.SX, i: int, columns: tuple[int, ...] | None = None
    ) -> list[StageRows]:
        """Return the rows of one path constraint at one point, with slacks if constraints are soft."""
        low, high, name = constraint.lower, constraint.upper, constraint.name
        if self.question.soft_price is None:
            return [StageRows(name, value, low, high, columns)]
        slack = self.slack[int(self.question.is_worst_case) + i]
        rows = [StageRows(name, value + slack, lower=low, columns=columns)] if np.isfinite(low) else []
        return rows + ([StageRows(name, value - slack, upper=high, columns=columns)] if np.isfinite(high) else [])

    def substitute_terms(self, expression: ca.SX) -> ca.SX:
        """Write an expression of terms over the variables of the last stage."""
        symbols, replacements = list[ca.SX](), list[ca.SX]()
        for term in self.question.terms:
            symbols.append(term.symbol)
            if term in self.state_terms:
                replacements.append(self.end.x[self.n_x + self.state_terms.index(term)])
            else:
                replacements.append(self.evaluate_at(self.end, [term.expression]) if term.kind == END else self.horizon)
        substituted = (
            ca.SX(ca.substitute([expression], [ca.vertcat(*symbols)], [ca.vertcat(*replacements)])[0])
            if symbols
            else expression
        )
        p = self.question.model.system.p
        substituted = ca.SX(ca.substitute([substituted], [p], [self.p])[0]) if p.numel() else substituted
        return substitute_by_name(substituted, self.values_by_name)


def extract_squares(expression: ca.SX) -> list[tuple[float, ca.SX]] | None:
    """Return the terms (factor, row) of a sum of factor * row**2 with positive factors; None for other sums."""
    op = expression.op()
    if expression.is_constant():
        return []
    if op == ca.OP_SQ:
        return [(1.0, expression.dep(0))]
    parts = [expression.dep(i) for i in range(expression.n_dep())]
    if op == ca.OP_ADD:
        part_squares = [extract_squares(part) for part in parts]
        return None if None in part_squares else [row for inner in part_squares for row in inner or ()]
    constant_index = next((i for i, part in enumerate(parts) if part.is_constant()), 0)
    number = float(parts[constant_index]) if len(parts) == 2 and parts[constant_index].is_constant() else 0.0
    inverse = 1.0 / number if number and constant_index else 0.0
    factor = {ca.OP_TWICE: 2.0, ca.OP_MUL: number, ca.OP_DIV: inverse}.get(op, 0.0)
    rows = extract_squares(parts[-1 if op == ca.OP_TWICE else 1 - constant_index]) if factor > 0.0 else None
    return None if rows is None else [(factor * inner, row) for inner, row in rows]


def substitute_stacked(expressions: Sequence[ca.SX], values_by_name: dict[str, ca.SX], p: ca.SX) -> ca.SX:
    """Stack expressions, with quantities other than parameters substituted for their names."""
    parameter_names = {s.name() for s in (ca.vertsplit(p) if p.numel() else [])}
    other_values = {n: v for n, v in values_by_name.items() if n not in parameter_names}
    return ca.densify(substitute_by_name(ca.SX(ca.vertcat(*expressions)), other_values)) if expressions else ca.SX(0, 1)


def _split_integrals(
    question: ControlQuestion, objective: ca.SX, integrals: Sequence[HorizonTerm]
) -> tuple[tuple[HorizonTerm, ...], tuple[HorizonTerm, ...]]:
    """Separate the integrals that the objective sums over stages from those that must be states."""
    varying = ca.vertcat(*(t.symbol for t in question.terms if t.kind in (INTEGRAL, END)))
    bound = ca.SX(ca.vertcat(*(c.expression for c in question.horizon_constraints)))
    summed = tuple(
        t for t in integrals
        if not question.is_worst_case and not ca.depends_on(bound, t.symbol)
        and not ca.depends_on(ca.jacobian(objective, t.symbol), varying)
    )  # fmt: skip
    return summed, tuple(t for t in integrals if t not in summed)
