"""The nonlinear program of all stages: sparse matrices scattered from stage functions that are mapped over the stages.

    minimise  sum_k L(y_k, e_k, P) + phi(y_K-1, e_K-1, P)     subject to rows(y_k, e_k, P) within bounds

Every row and every term is an expression of one stage's variables; that of a stage's end is matched to the next node,
so that these are among its variables.  First and second derivatives are those of the stage's graph, mapped, and where
their entries go is known beforehand: the program is one CasADi graph without a loop in Python, and its Hessian costs as
much as that of one stage times their number.  All of it is in units of `scale`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np

from castfit._support.silence import captured
from castfit._support.status import InputError, Status
from castfit._support.time_limit import watched
from castfit.solve.assembly import EntryScatter
from castfit.solve.ipopt import IPOPT_STATUS, IpoptCallback

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit._support.time_limit import Watch
    from castfit.control.stages import StageGraphs, StageRows


@dataclass(frozen=True, eq=False)
class ProgramLayout:
    """Where variables stand: values of inputs first, then quantities, slacks, and per scenario nodes and inner states.

    at : per scenario the positions of each stage's variables (K, n_y)
    nodes, inner : per scenario (K + 1, n_s) and (K, n_w)
    """

    size: int
    at: tuple[Index, ...]
    inputs: Index
    quantities: Index
    slack: Index
    nodes: tuple[Index, ...]
    inner: tuple[Index, ...]


def lay_out(graphs: StageGraphs, used: Index, scenarios: int) -> ProgramLayout:
    """Lay variables out; used (K, n_v) are the places of a stage's values among those of all inputs."""
    n_u = int(used.max(initial=-1)) + 1
    n_q, n_slack, K = graphs.q.numel(), graphs.slack.numel(), used.shape[0]
    inputs, quantities = np.arange(n_u), n_u + np.arange(n_q)
    slack, offset = n_u + n_q + np.arange(n_slack), n_u + n_q + n_slack
    nodes, inner, at = list[Any](), list[Any](), list[Any]()
    for _ in range(scenarios):
        width = graphs.n_s + graphs.n_w
        nodes.append(offset + width * np.arange(K + 1)[:, None] + np.arange(graphs.n_s))
        inner.append(offset + width * np.arange(K)[:, None] + graphs.n_s + np.arange(graphs.n_w))
        offset += width * K + graphs.n_s
        shared = np.broadcast_to(np.concatenate([quantities, slack]), (K, n_q + n_slack))
        at.append(np.concatenate([nodes[-1][:-1], inner[-1], used, shared, nodes[-1][1:]], axis=1).astype(np.intp))
    return ProgramLayout(offset, tuple(at), inputs, quantities, slack, tuple(nodes), tuple(inner))


@dataclass(frozen=True, eq=False)
class ProgramSolution:
    """Where IPOPT ended: x (n,) in the variables' own units, multipliers of rows, and how."""

    x: Array
    multipliers: Array
    bound_multipliers: Array
    objective: float
    status: Status
    code: str
    iterations: int
    worst: str


class Program:
    """The program; `parts` are terms of the objective, with a factor, and rows, both of the same stage symbols."""

    def __init__(
        self,
        graphs: StageGraphs,
        layout: ProgramLayout,
        numbers: Array,
        terms: Sequence[tuple[ca.SX, tuple[int, ...] | None]],
        rows: Sequence[StageRows],
        scale: Array,
        row_units: Sequence[Array],
        prices: Array,
    ) -> None:
        self.layout, self.scale, self.rows = layout, scale, tuple(rows)
        self._graphs, self._numbers = graphs, numbers
        x, scenarios = ca.MX.sym("x", layout.size), len(layout.at)
        P = ca.MX.sym("P", graphs.P.numel(), scenarios)
        v = x * scale
        lam_f, f = ca.MX.sym("lam_f"), ca.MX(0)
        gradient, hessian = _Entries(), _Entries()
        for term, columns in terms:
            for i in range(scenarios):
                of = _Mapped(graphs, term / scenarios, columns, layout.at[i], v, numbers, P[:, i])
                f += ca.sum2(of.value)
                gradient.add(of.slope, of.columns, np.zeros_like(of.columns), scale[of.columns])
                h, row, column = of.bend(lam_f)
                hessian.add(h, row, column, scale[row] * scale[column])
        if layout.slack.size:
            f += ca.dot(ca.DM(prices), v[layout.slack.tolist()])
            gradient.add(ca.MX(ca.DM(prices)), layout.slack, np.zeros_like(layout.slack), scale[layout.slack])
        held, jacobian = list[ca.MX](), _Entries()
        low, high, names, offset = list[Any](), list[Any](), list[Any](), 0
        multipliers = list[Any]()
        for row, by in zip(rows, row_units, strict=True):
            for i in range(scenarios):
                of = _Mapped(graphs, row.graph / by, row.columns, layout.at[i], v, numbers, P[:, i])
                held.append(ca.vec(of.value))
                stage, m = of.value.shape[1], row.graph.numel()
                local = offset + np.arange(stage)[:, None] * m + of.local_rows
                jacobian.add(of.slope, local.ravel(), of.columns, scale[of.columns])
                low.append(np.tile(row.lower / by, stage))
                high.append(np.tile(row.upper / by, stage))
                names.append((row.name, offset + np.arange(stage * m)))
                multipliers.append((of, by, offset))
                offset += stage * m
        self.count, self.names = offset, tuple(names)
        lam_g = ca.MX.sym("lam_g", offset)
        for of, _, begin in multipliers:
            m, stage = of.value.shape
            h, row_at, column_at = of.bend(ca.reshape(lam_g[begin : begin + m * stage], m, stage))
            hessian.add(h, row_at, column_at, scale[row_at] * scale[column_at])
        self.lower = np.concatenate(low) if low else np.empty(0)
        self.upper = np.concatenate(high) if high else np.empty(0)
        g, n, p = ca.vertcat(*held) if held else ca.MX(0, 1), layout.size, ca.vec(P)
        flat = ca.MX.sym("p", p.numel())
        grad = gradient.matrix((n, 1))
        functions = [
            ("nlp", [x, flat], [f, g], ["x", "p"], ["f", "g"]),
            ("nlp_grad_f", [x, flat], [f, ca.densify(grad)], ["x", "p"], ["f", "grad_f_x"]),
            ("nlp_jac_g", [x, flat], [g, jacobian.matrix((offset, n))], ["x", "p"], ["g", "jac_g_x"]),
            ("nlp_hess_l", [x, flat, lam_f, lam_g], [hessian.matrix((n, n), upper=True)],
             ["x", "p", "lam_f", "lam_g"], ["triu_hess_gamma_x_x"]),
        ]  # fmt: skip
        given = ca.reshape(flat, P.shape[0], scenarios)
        self.functions: list[ca.Function] = []
        for name, arguments, results, of_arguments, of_results in functions:
            outer = [P if a is flat else a for a in arguments]
            inner = ca.Function(name, outer, results)
            called: Any = _called(inner, *[given if a is flat else a for a in arguments])
            self.functions.append(ca.Function(name, arguments, _listed(called), of_arguments, of_results))
        self._solvers: dict[str, Any] = {}
        self._watch: Watch | None = None
        self._errors: list[BaseException] = []
        self._last: Array | None = None

    def solve(
        self, x: Array, P: Array, lower: Array, upper: Array, options: Mapping[str, Any], max_time: float,
        multipliers: tuple[Array, Array] | None = None,
    ) -> ProgramSolution:  # fmt: skip
        """Solve from x (n,) with numbers P (scenarios, n_P), within bounds of the variables (n,)."""
        self._last, self._errors[:] = None, []
        chosen = {"print_level": 0, "sb": "yes", **options}
        with watched(max_time) as watch, captured() as log:
            self._watch = watch
            solver = self._solver(chosen, log)
            given: dict[str, Any] = {"x0": x / self.scale, "p": P.ravel(), "lbx": lower / self.scale,
                                     "ubx": upper / self.scale, "lbg": self.lower, "ubg": self.upper}  # fmt: skip
            if multipliers is not None:
                given |= {"lam_g0": multipliers[0], "lam_x0": multipliers[1]}
            try:
                found: Any = _called(solver, **given)
            except RuntimeError as error:
                if self._errors:
                    raise self._errors[0] from None
                raise InputError("control", [f"IPOPT stopped: {str(error).splitlines()[-1]}"]) from None
        stats: dict[str, Any] = solver.stats()
        code = str(stats["return_status"])
        status = watch.cause or IPOPT_STATUS.get(code, Status.SOLVER_ERROR)
        status = Status.MAX_TIME if code == "User_Requested_Stop" and watch.cause is None else status
        end: Array = np.asarray(found["x"], dtype=float).ravel()
        end = np.clip(np.where(np.isfinite(end), end, x / self.scale) * self.scale, lower, upper)
        g: Array = np.asarray(found["g"], dtype=float).ravel()
        return ProgramSolution(
            end, np.asarray(found["lam_g"], dtype=float).ravel(), np.asarray(found["lam_x"], dtype=float).ravel(),
            float(found["f"]), status, code, int(stats["iter_count"]), self._violated(g),
        )  # fmt: skip

    def values(self, x: Array, P: Array) -> tuple[float, Array]:
        """Evaluate the objective, and all rows in their units."""
        f, g = _called(self.functions[0], x / self.scale, P.ravel())
        return float(f), np.asarray(g).ravel()

    def derivatives(self, x: Array, P: Array, multipliers: Array) -> tuple[Any, Any, Array]:
        """Return the Hessian of the Lagrangian and the Jacobian of rows (SciPy), in units, and the rows' values."""
        at = x / self.scale, P.ravel()
        g, jacobian = _called(self.functions[2], *at)
        upper = _called(self.functions[3], *at, 1.0, multipliers).sparse()
        full = upper + upper.T
        full.setdiag(upper.diagonal())
        return full.tocsr(), jacobian.sparse().tocsr(), np.asarray(g, dtype=float).ravel()

    def slope_size(self, x: Array, P: Array) -> float:
        """Return the largest entry of the objective's gradient, variables in their units."""
        return float(np.abs(np.asarray(_called(self.functions[1], x / self.scale, P.ravel())[1])).max(initial=0.0))

    def _violated(self, g: Array) -> str:
        excess = np.maximum(np.maximum(self.lower - g, g - self.upper), 0.0)
        excess = np.where(np.isfinite(excess), excess, np.inf)
        if not excess.size or excess.max() < 1e-6:
            return ""
        worst = int(np.argmax(excess))
        return next(name for name, places in self.names if worst in places)

    def _solver(self, options: dict[str, Any], log: Any) -> ca.Function:
        key = repr(sorted(options.items()))
        if key not in self._solvers:
            nlp, gradient, jacobian, hessian = self.functions
            n, m = self.layout.size, self.count
            dense = ca.Sparsity.dense
            sizes = (n, 1, m, n, m, nlp.size1_in(1))
            report = IpoptCallback(
                "report", [(ca.nlpsol_out(i), dense(size, 1)) for i, size in enumerate(sizes)],
                [("ret", dense(1, 1))], self._report, self._errors,
            )  # fmt: skip
            given: dict[str, Any] = {
                "grad_f": gradient, "jac_g": jacobian, "hess_lag": hessian, "no_nlp_grad": True,
                "calc_lam_p": False, "print_time": False,
                "iteration_callback": report, "ipopt": options,
            }  # fmt: skip
            try:
                self._solvers[key] = ca.nlpsol("plan", "ipopt", nlp, given), report
            except RuntimeError as error:
                said = " ".join([*str(error).strip().splitlines()[1:], *log.tail(3)])
                raise InputError("control", [f"IPOPT refuses an option: {said}"]) from None
        return self._solvers[key][0]

    def _report(self, *now: Array) -> Sequence[Any]:
        return [float(self._watch is not None and self._watch.cause is not None)]


class _Mapped:
    """An expression (m,) of stage symbols at some stages, with the entries of its derivatives.

    value (m, stages); slope (entries * stages,), with `local_rows` (entries,), and `columns` (stages * entries,) in x
    """

    def __init__(
        self, graphs: StageGraphs, graph: ca.SX, columns: tuple[int, ...] | None, at: Index, v: ca.MX,
        numbers: Array, P: ca.MX,
    ) -> None:  # fmt: skip
        stages = range(at.shape[0]) if columns is None else [c % at.shape[0] for c in columns]
        of = np.array(stages, dtype=np.intp)
        self._at, self._graphs, self._graph = at[of], graphs, graph
        self._arguments = [
            ca.reshape(v[self._at.ravel().tolist()], at.shape[1], of.size), ca.DM(numbers[of].T), P,
        ]  # fmt: skip
        J = ca.jacobian(graph, graphs.y)
        row, column = (np.array(t, dtype=np.intp) for t in J.sparsity().get_triplet())
        entries = _nonzeros(J)
        self.value, slope = self._map([graph, entries])
        self.slope, self.local_rows = ca.vec(slope), np.broadcast_to(row, (of.size, row.size))
        self.columns = self._at[:, column].ravel()

    def bend(self, multiplier: ca.MX) -> tuple[ca.MX, Index, Index]:
        """Return the entries of the second derivative, multiplied, and where they go in x."""
        lam = ca.SX.sym("lam", self._graph.numel())
        H = ca.hessian(ca.dot(lam, self._graph), self._graphs.y)[0]
        row, column = (np.array(t, dtype=np.intp) for t in H.sparsity().get_triplet())
        entries = _nonzeros(H)
        count = self._at.shape[0]
        wide = ca.repmat(multiplier, 1, count) if multiplier.shape[1] != count else multiplier
        (found,) = self._map([entries], lam, wide)
        return ca.vec(found), self._at[:, row].ravel(), self._at[:, column].ravel()

    def _map(self, expressions: Sequence[ca.SX], lam: ca.SX | None = None, value: ca.MX | None = None) -> list[ca.MX]:
        graphs, count = self._graphs, self._at.shape[0]
        symbols = [graphs.y, graphs.e, graphs.P, *([] if lam is None else [lam])]
        function = ca.Function("stage", symbols, list(expressions), {"cse": True})
        mapped = function.map("stages", "serial", count, [2], [])
        found = _called(mapped, *self._arguments, *([] if value is None else [value]))
        return _listed(found)


def _called(function: Any, *arguments: Any, **named: Any) -> Any:
    return function(*arguments, **named)


def _listed(found: Any) -> list[Any]:
    """Return results of a CasADi function, which are no tuple where there is one."""
    return list(cast("tuple[Any, ...]", found)) if isinstance(found, tuple) else [found]


def _nonzeros(matrix: ca.SX) -> ca.SX:
    """Return the entries of a sparse matrix, in CasADi's order."""
    found: list[Any] = matrix.nonzeros()
    return ca.SX(_called(ca.vertcat, *found)) if found else ca.SX(0, 1)


class _Entries:
    """Entries of a sparse matrix as they come, added up where several have one place."""

    def __init__(self) -> None:
        self._values, self._rows, self._columns, self._units = list[ca.MX](), list[Any](), list[Any](), list[Any]()

    def add(self, values: ca.MX, rows: Index, columns: Index, units: Array) -> None:
        self._values.append(values)
        self._rows.append(rows)
        self._columns.append(columns)
        self._units.append(units)

    def matrix(self, shape: tuple[int, int], *, upper: bool = False) -> ca.MX:
        if not self._values:
            return ca.MX(*shape)
        row, column = np.concatenate(self._rows), np.concatenate(self._columns)
        kept = np.flatnonzero(row <= column) if upper else np.arange(row.size)
        scatter = EntryScatter(row[kept], column[kept], shape)
        values = ca.vertcat(*self._values) * np.concatenate(self._units)
        return scatter.graph(values[kept.tolist()] if upper else values)
