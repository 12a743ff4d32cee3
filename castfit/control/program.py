"""The nonlinear program of all stages: sparse matrices scattered from stage functions mapped over the stages.

    minimise  sum_k L(y_k, e_k, P) + phi(y_K-1, e_K-1, P)     subject to rows(y_k, e_k, P) within bounds

Every row and every term is an expression of one stage's variables, which include the next node.  First and second
derivatives are derivatives of the stage's graph, mapped; the positions of their entries are fixed.  The program is one
CasADi graph without a Python loop, and its Hessian costs as much as the Hessians of all stages.  Variables are in units
of `scale`.  Rows are in units of their bounds, or if these are zero, of their changes by one unit of the variables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np

from castfit._support.silence import capture_output
from castfit._support.status import InputError, Status
from castfit._support.time_limit import with_deadline
from castfit.control.gauss_newton import LeastSquaresControlSolver
from castfit.solve.assembly import EntryScatter
from castfit.solve.ipopt import IPOPT_STATUS, IpoptCallback, ipopt_solver

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit._support.time_limit import Deadline
    from castfit.control.stages import StageGraphs, StageRows


_FEASIBILITY_OPTIONS = {"tol": 1e-4, "max_iter": 200}  # for IPOPT at the nearest feasible point

TIE_BREAK_FRACTION = 1e-8
"""Weight of the mean square of inputs without cost, relative to the objective's size."""


@dataclass(frozen=True, eq=False)
class ProgramLayout:
    """Layout of the variables: input values, quantities, slacks, then nodes and inner states per scenario.

    positions : of each stage's variables (scenarios, K, n_y)
    nodes, inner : (scenarios, K + 1, n_s) and (scenarios, K, n_w)
    """

    size: int
    positions: Index
    inputs: Index
    quantities: Index
    slack: Index
    nodes: Index
    inner: Index


def build_layout(graphs: StageGraphs, used: Index, scenarios: int) -> ProgramLayout:
    """Build the layout; used (K, n_v) are the indices of a stage's values among the values of all inputs."""
    sizes = int(used.max(initial=-1)) + 1, graphs.q.numel(), graphs.slack.numel()
    K, width, n_shared = used.shape[0], graphs.n_s + graphs.n_w, sum(sizes)
    inputs, quantities, slack = np.split(_range(n_shared), np.cumsum(sizes)[:-1])
    n_per_scenario = width * K + graphs.n_s
    begin = n_shared + n_per_scenario * _range(scenarios)[:, None, None] + width * _range(K + 1)[:, None]
    nodes, inner = begin + _range(graphs.n_s), begin[:, :-1] + graphs.n_s + _range(graphs.n_w)
    common = np.concatenate([used, np.tile(np.concatenate([quantities, slack]), (K, 1))], axis=1)
    common = np.broadcast_to(common, (scenarios, *common.shape))
    positions = np.concatenate([nodes[:, :-1], inner, common, nodes[:, 1:]], axis=2).astype(np.intp)
    return ProgramLayout(n_shared + scenarios * n_per_scenario, positions, inputs, quantities, slack, nodes, inner)


@dataclass(frozen=True, eq=False)
class ProgramSolution:
    """Final point of a solver: x (n,) in the variables' own units, multipliers of the rows, status and iterations.

    worst_constraint : name of the most violated constraint, or of the largest multiplier; "" without violations
    prefers_small_inputs : whether the program had the additional cost of `Program.set_tie_break`
    """

    x: Array
    multipliers: Array
    objective: float
    status: Status
    iterations: int
    worst_constraint: str
    solver: str
    prefers_small_inputs: bool = False


class Program:
    """The program; `terms` add up to the objective, a mean over the scenarios; numbers (K, n_e) of the stages.

    The argument P (scenarios, n_P) contains the numbers of the scenarios.

    proximal_indices : variables with an additional term 1/2 sum w (x - r)**2 in units; `proximity` (2, m) is w and r
    linear : whether all rows are linear in the variables
    curvature : of the Gauss-Newton method, a function of x and p; None if the objective is not a sum of squares
    units : of rows, by name
    """

    def __init__(
        self, graphs: StageGraphs, layout: ProgramLayout, numbers: Array, terms: Sequence[StageRows],
        rows: Sequence[StageRows], scale: Array, curvature: Sequence[StageRows] | None, proximal_indices: Index,
    ) -> None:  # fmt: skip
        self.layout, self.scale, self._graphs = layout, scale, graphs
        self.units: dict[str, float] = {}
        n, (S, n_P) = layout.size, (layout.positions.shape[0], graphs.P.numel())
        sizes = [
            r.graph.numel() * S * (layout.positions.shape[1] if r.columns is None else len(r.columns)) for r in rows
        ]
        self.count, ends = sum(sizes), np.cumsum(sizes).tolist()
        self._rows = [(r, (end - size + _range(size)).reshape(-1, r.graph.numel()))
                      for r, size, end in zip(rows, sizes, ends, strict=True)]  # fmt: skip
        m = proximal_indices.size
        x, p = ca.MX.sym("x", n), ca.MX.sym("p", n_P * S + self.count + 2 * m)
        lam_f, lam_g = ca.MX.sym("lam_f"), ca.MX.sym("lam_g", self.count)
        scenario_numbers, row_scale, weights, reference = ca.vertsplit(
            p, np.cumsum([0, n_P * S, self.count, m, m]).tolist()
        )
        stage_data, v, P = (layout.positions, numbers), x * scale, ca.reshape(scenario_numbers, n_P, S)
        f, magnitude, gradient, hessian, jacobian, squares = ca.MX(0), ca.MX(0), *(_SparseEntries() for _ in range(4))
        self.linear = True
        for term in terms:
            mapped = _BatchedExpression(graphs, term.graph / S, term.columns, *stage_data, v, P)
            f, magnitude = f + ca.sum2(mapped.value), magnitude + ca.sum2(ca.fabs(mapped.value))
            gradient.add(mapped.slope, mapped.columns, np.zeros_like(mapped.columns), scale[mapped.columns])
            hessian.add_second(*mapped.build_second_derivatives(lam_f), scale)
        distance = x[proximal_indices.tolist()] - reference
        f += 0.5 * ca.dot(weights, distance**2)
        gradient.add(weights * distance, proximal_indices, np.zeros_like(proximal_indices), np.ones(m))
        hessian.add(lam_f * weights, proximal_indices, proximal_indices, np.ones(m))
        for term in curvature or ():
            mapped = _BatchedExpression(graphs, ca.SX(0, 1), term.columns, *stage_data, v, P)
            squares.add_second(*mapped.entries(term.graph / S), scale)
        squares.add(weights, proximal_indices, proximal_indices, np.ones(m))
        row_values = list[ca.MX]()
        for row, places in self._rows:
            mapped = _BatchedExpression(graphs, row.graph, row.columns, *stage_data, v, P)
            row_values.append(ca.vec(mapped.value))
            local: Index = places[:, mapped.local_rows].ravel()
            jacobian.add(mapped.slope * row_scale[local.tolist()], local, mapped.columns, scale[mapped.columns])
            second = mapped.build_second_derivatives(
                ca.reshape((lam_g * row_scale)[places.ravel().tolist()], *places.shape[::-1])
            )
            hessian.add_second(*second, scale)
            self.linear &= second[1].size == 0
        g = ca.vertcat(*row_values) * row_scale if row_values else ca.MX(0, 1)
        self.functions: list[Any] = [
            ca.Function("nlp", [x, p], [f, g], ["x", "p"], ["f", "g"]),
            ca.Function("nlp_grad_f", [x, p], [f, ca.densify(gradient.matrix((n, 1)))], ["x", "p"], ["f", "grad_f_x"]),
            ca.Function("nlp_jac_g", [x, p], [g, jacobian.matrix((self.count, n))], ["x", "p"], ["g", "jac_g_x"]),
            ca.Function("nlp_hess_l", [x, p, lam_f, lam_g], [hessian.matrix((n, n), upper=True)],
                        ["x", "p", "lam_f", "lam_g"], ["triu_hess_gamma_x_x"]),
        ]  # fmt: skip
        self._magnitude: Any = ca.Function("magnitude", [x, p], [magnitude])
        self.curvature: Any = None if not curvature else ca.Function("curvature", [x, p], [squares.matrix((n, n))])
        self._row_scales = np.ones(self.count)
        self._proximal_indices, self.proximity = proximal_indices, np.zeros((2, m))
        self._solvers: dict[str, Any] = {}
        self._watch: Deadline | None = None
        self._errors: list[BaseException] = []

    def numbers(self, P: Array) -> Array:
        """Return the parameter vector p of all functions of the program."""
        return np.concatenate([P.ravel(), self._row_scales, self.proximity.ravel()])

    @cached_property
    def gauss_newton(self) -> LeastSquaresControlSolver | None:
        """Gauss-Newton solver of the program; None if the objective is not a sum of squares."""
        return LeastSquaresControlSolver(self) if self.curvature is not None and ca.has_conic("piqp") else None

    @cached_property
    def limits(self) -> tuple[Array, Array]:
        """The bounds of all rows, in their units."""
        pair = np.empty((2, self.count))
        for row, places in self._rows:
            pair[:, places] = np.array([row.lower, row.upper])[:, None, None]
        return pair[0] * self._row_scales, pair[1] * self._row_scales

    def measure(self, x: Array, P: Array) -> float:
        """Set the units of rows near x. Return the size of the objective: of its values and slopes.

        A second point near x is included: a sum of squares may have zero value and slope at x.
        """
        shifted, sizes = x.copy(), list[float]()
        shifted[self.layout.inputs] += self.scale[self.layout.inputs]
        _, J, _ = self.derivatives(x, P, np.zeros(self.count))
        slopes = np.asarray(abs(J).max(axis=1).todense()).ravel() if J.nnz else np.zeros(self.count)
        slopes = np.where(np.isfinite(slopes), slopes, 0.0)
        for row, places in self._rows:
            bound = max((abs(b) for b in (row.lower, row.upper) if np.isfinite(b)), default=0.0)
            unit = np.full(places.shape[1], bound) if bound > 0.0 else slopes[places].max(axis=0, initial=0.0)
            unit = np.where(unit > 0.0, unit, 1.0)
            self._row_scales[places] = 1.0 / unit
            self.units[row.name] = max(float(unit.max(initial=0.0)), self.units.get(row.name, 0.0))
        for point in (x, shifted):
            f, slope = self.functions[1](point / self.scale, self.numbers(P))
            sizes += [abs(float(f)), float(np.abs(np.asarray(slope)).max(initial=0.0))]
        return max([s for s in sizes if np.isfinite(s)], default=0.0) or 1.0

    def solve(
        self, x: Array, P: Array, lower: Array, upper: Array, options: Mapping[str, Any], max_time: float
    ) -> ProgramSolution:
        """Solve by IPOPT from x (n,), within bounds of the variables (n,)."""
        self._errors[:] = []
        ipopt_options = {"print_level": 0, "sb": "yes", **options}
        lbg, ubg = self.limits
        with with_deadline(max_time) as watch, capture_output() as log:
            self._watch = watch
            solver = self._solver(ipopt_options, log)
            try:
                result: Any = solver(x0=x / self.scale, p=self.numbers(P), lbx=lower / self.scale,
                                     ubx=upper / self.scale, lbg=lbg, ubg=ubg)  # fmt: skip
            except RuntimeError as error:
                if self._errors:
                    raise self._errors[0] from None
                raise InputError("control", [f"IPOPT stopped: {str(error).splitlines()[-1]}"]) from None
        stats: dict[str, Any] = solver.stats()
        code = str(stats["return_status"])
        status = watch.cause or IPOPT_STATUS.get(code, Status.SOLVER_ERROR)
        status = Status.MAX_TIME if code == "User_Requested_Stop" and watch.cause is None else status
        end: Array = np.asarray(result["x"], dtype=float).ravel()
        end = np.where(np.isfinite(end), end, x / self.scale) * self.scale
        return self.build_solution(
            np.clip(end, lower, upper),
            P,
            np.asarray(result["lam_g"], dtype=float).ravel(),
            status,
            int(stats["iter_count"]),
        )

    def find_nearest(self, x: Array, P: Array, lower: Array, upper: Array, watch: Deadline) -> ProgramSolution:
        """Search for the feasible point nearest to x (n,)."""
        self.measure(x, P)
        self.proximity = np.stack([np.ones(x.size), x / self.scale])
        remaining_time = max(watch.deadline - time.perf_counter(), 1e-3)
        return self.solve(x, P, lower, upper, _FEASIBILITY_OPTIONS, remaining_time)

    def build_solution(
        self, x: Array, P: Array, multipliers: Array, status: Status, iterations: int, solver: str = "IPOPT"
    ) -> ProgramSolution:
        """Return a solution at x, with the objective there: the point of IPOPT may violate bounds by 1e-8."""
        f, g = self.values(x, P)
        f -= self.tie_break(x)
        lower, upper = self.limits
        excess = np.maximum(np.maximum(lower - g, g - upper), 0.0)
        excess = np.where(np.isfinite(excess), excess, np.inf)
        constraint_rows = [(row.name, places) for row, places in self._rows[2:]]  # the first two rows are the model
        for sizes in (excess, np.abs(multipliers)) if excess.max(initial=0.0) >= 1e-6 else ():
            worst, name = max(
                ((float(sizes[positions].max(initial=0.0)), name) for name, positions in constraint_rows),
                default=(0.0, ""),
            )
            if worst >= 1e-6:
                break
        else:
            name = ""
        prefers_small_inputs = bool(self.proximity.any())
        return ProgramSolution(x, multipliers, f, status, iterations, name, solver, prefers_small_inputs)

    def set_tie_break(self, size: float) -> None:
        """Prefer small inputs without cost: add their mean square in units, times 1e-8 of the objective's size."""
        weights = np.full(self._proximal_indices.size, 2.0 * TIE_BREAK_FRACTION * size)
        self.proximity = np.stack([weights / max(weights.size, 1), np.zeros(weights.size)])

    def tie_break(self, x: Array) -> float:
        """Return the additional term of the objective at x."""
        weights, reference = self.proximity
        return 0.5 * float(weights @ ((x / self.scale)[self._proximal_indices] - reference) ** 2)

    def values(self, x: Array, P: Array) -> tuple[float, Array]:
        """Evaluate the objective, and all rows in their units."""
        f, g = self.functions[0](x / self.scale, self.numbers(P))
        return float(f), np.asarray(g).ravel()

    def size_objective(self, x: Array, P: Array, multipliers: Array) -> float:
        """Return the size of the terms of the objective: sum_k |L_k| + sum_k |lam_{k+1} . (s_{k+1} - s_k)|.

        It includes costs that are the end values of states, and is not small if terms of an objective of 0 cancel.
        """
        changes = np.diff(x[self.layout.nodes], axis=1).reshape(-1, self._graphs.n_s)
        costates = (multipliers * self._row_scales)[self._rows[1][1][:, -self._graphs.n_s :]]
        return float(self._magnitude(x / self.scale, self.numbers(P))) + float(
            np.abs(np.sum(costates * changes, axis=1)).sum()
        )

    def derivatives(self, x: Array, P: Array, multipliers: Array) -> tuple[Any, Any, Array]:
        """Return the Hessian of the Lagrangian and the Jacobian of rows (SciPy), in units, and the rows' values."""
        arguments = x / self.scale, self.numbers(P)
        g, jacobian = self.functions[2](*arguments)
        upper = self.functions[3](*arguments, 1.0, multipliers).sparse()
        full = upper + upper.T
        full.setdiag(upper.diagonal())
        return full.tocsr(), jacobian.sparse().tocsr(), np.asarray(g, dtype=float).ravel()

    def _solver(self, options: dict[str, Any], log: Any) -> Any:
        key = repr(sorted(options.items()))
        if key not in self._solvers:
            n, m, p = self.layout.size, self.count, self.functions[0].size1_in(1)
            report_inputs = [
                (ca.nlpsol_out(i), ca.Sparsity.dense(size, 1)) for i, size in enumerate((n, 1, m, n, m, p))
            ]
            report = IpoptCallback(
                "report", report_inputs, [("ret", ca.Sparsity.dense(1, 1))], self._report, self._errors
            )
            self._solvers[key] = ipopt_solver([*self.functions, report], options, log), report
        return self._solvers[key][0]

    def _report(self, *iterate: Array) -> Sequence[Any]:
        return [float(self._watch is not None and self._watch.cause is not None)]


class _BatchedExpression:
    """An expression (m,) of stage symbols at some stages of all scenarios, with the entries of its derivatives.

    value (m, count); slope (entries * count,), with `local_rows` (entries,), and `columns` (count * entries,) in x
    """

    def __init__(
        self,
        graphs: StageGraphs,
        graph: ca.SX,
        columns: tuple[int, ...] | None,
        positions: Index,
        numbers: Array,
        v: ca.MX,
        P: ca.MX,
    ) -> None:
        S, K, n_y = positions.shape
        stages = _range(K) if columns is None else np.array(columns, dtype=np.intp) % K
        self._positions, self._graphs, self._graph = positions[:, stages].reshape(-1, n_y), graphs, graph
        self.count: int = S * stages.size
        self._arguments = [
            ca.reshape(v[self._positions.ravel().tolist()], n_y, self.count), ca.DM(np.tile(numbers[stages], (S, 1)).T),
            P[:, np.repeat(_range(S), stages.size).tolist()],
        ]  # fmt: skip
        J = ca.jacobian(graph, graphs.y)
        self.local_rows, column = (np.array(t, dtype=np.intp) for t in J.sparsity().get_triplet())
        self.value, slope = self._map([graph, _nonzeros(J)])
        self.slope, self.columns = ca.vec(slope), self._positions[:, column].ravel()

    def build_second_derivatives(self, multiplier: ca.MX) -> tuple[ca.MX, Index, Index]:
        """Return the entries of the second derivative, multiplied (m, 1 | count), and their rows and columns in x."""
        lam = ca.SX.sym("lam", self._graph.numel())
        multipliers = multiplier if multiplier.shape[1] == self.count else ca.repmat(multiplier, 1, self.count)
        return self.entries(ca.hessian(ca.dot(lam, self._graph), self._graphs.y)[0], lam, multipliers)

    def entries(
        self, matrix: ca.SX, lam: ca.SX | None = None, value: ca.MX | None = None
    ) -> tuple[ca.MX, Index, Index]:
        """Return the entries of matrices (n_y, n_y) of all stages, and their rows and columns in x."""
        row, column = (np.array(t, dtype=np.intp) for t in matrix.sparsity().get_triplet())
        (values,) = self._map([_nonzeros(matrix)], lam, value)
        return ca.vec(values), self._positions[:, row].ravel(), self._positions[:, column].ravel()

    def _map(self, expressions: Sequence[ca.SX], lam: ca.SX | None = None, value: ca.MX | None = None) -> list[ca.MX]:
        symbols = [self._graphs.y, self._graphs.e, self._graphs.P, *([] if lam is None else [lam])]
        function: Any = ca.Function("stage", symbols, list(expressions), {"cse": True})
        mapped = function.map(self.count)(*self._arguments, *([] if value is None else [value]))
        return list(cast("tuple[Any, ...]", mapped)) if isinstance(mapped, tuple) else [mapped]


def _range(n: int) -> Index:
    return np.arange(n, dtype=np.intp)


def _nonzeros(matrix: ca.SX) -> ca.SX:
    """Return the entries of a sparse matrix, in CasADi's order."""
    entries: list[Any] = matrix.nonzeros()
    stacked: Any = ca.vertcat
    return ca.SX(stacked(*entries)) if entries else ca.SX(0, 1)


class _SparseEntries:
    """Entries of a sparse matrix in any order; entries at the same position are added."""

    def __init__(self) -> None:
        self._values, self._rows, self._columns, self._units = list[ca.MX](), list[Any](), list[Any](), list[Any]()

    def add(self, values: ca.MX, rows: Index, columns: Index, units: Array) -> None:
        self._values.append(values)
        self._rows.append(rows)
        self._columns.append(columns)
        self._units.append(units)

    def add_second(self, values: ca.MX, rows: Index, columns: Index, scale: Array) -> None:
        self.add(values, rows, columns, scale[rows] * scale[columns])

    def matrix(self, shape: tuple[int, int], *, upper: bool = False) -> ca.MX:
        if not self._values:
            return ca.MX(*shape)
        row, column = np.concatenate(self._rows), np.concatenate(self._columns)
        indices = np.flatnonzero(row <= column) if upper else np.arange(row.size)
        scatter = EntryScatter(row[indices], column[indices], shape)
        values = ca.vertcat(*self._values) * np.concatenate(self._units)
        return scatter.graph(values[indices.tolist()] if upper else values)
