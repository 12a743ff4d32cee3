"""Experiments of a problem over a finite field: parameters and starts at drawn quantities, then the series of outputs.

The unknowns U are the quantities, then the states that equations determine: steady states before an experiment,
consistent starts, and algebraic states at the start.  U is drawn such that these equations hold.  The derivatives of
the equations are rows of the Jacobian, as the derivatives of the outputs are.

An experiment is a sequence of pieces between its events and the jumps of its inputs.  If the first piece that moves
does not determine everything, all pieces are computed with durations c s, where c is drawn and s is a symbol.  A
combination is then determined if it is determined for almost all durations.

Notation: p prime; U (m,); B draws of U, C conditions computed together; r directions; n_s terms in s; jets (..., 1 + m)
of values and derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.reprs import join_limited
from castfit._support.time_limit import check_deadline
from castfit.problem.map_initial_states import ConsistentInitialRows, SteadyStateRows
from castfit.problem.parameter_map import MappedExpressions
from castfit.result.structure.branches import Branches
from castfit.result.structure.courses import Course, PieceState, polynomial
from castfit.result.structure.finite_field import (
    RedrawError,
    Residues,
    multiply,
    null_space,
    reduce_rows,
    to_residue,
    to_residues,
)
from castfit.result.structure.output_series import DifferentiatedGraph, ModelGraph
from castfit.result.structure.power_series import Draws, NotCoveredError, product, reciprocal, without_logarithm

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.experiment.inputs import Input
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.parameter_map import NaturalValues, ParameterLink

_MANY_TERMS = 10  # terms in s that are enough, unless states are connected by longer paths
_MAX_CHUNK = 64  # largest number of conditions that are computed together
_EULER_STEP = 1e-6  # step, relative to an experiment's duration, with which states leave a kink at the start
_TINY_STATE = 1e-100  # value of a state that is still zero then
_GENERIC_TIME = 1e-3  # after the start, at which functions are checked
_MANY_ORDERS = 60  # number of orders that are enough, unless states are connected by longer paths
_MAX_SELECTIONS = 40  # number of choices of unknowns for which equations are solved
_COMMON_DENOMINATOR = 60  # of coefficients of conservation laws


class ModelGraphs:
    """Graphs of a problem's model, one for each set of branches; they do not depend on draws."""

    def __init__(self, compiled_problem: CompiledProblem, may_continue: Callable[[], bool]) -> None:
        self.problem, self.may_continue = compiled_problem, may_continue
        self.model, self.system = compiled_problem.model, compiled_problem.model.system
        outputs = [without_logarithm(self.model.outputs[n]) for n in compiled_problem.outputs]
        columns = [self.system.ode, self.system.alg, ca.vertcat(*outputs)]
        self._branches = Branches(self.system.arguments, [ca.densify(column) for column in columns])
        self._rates = self.system.function("rates", ca.densify(self.system.ode))
        settling = self.model.settling
        self.settling = settling.function("settling", ca.densify(ca.vertcat(settling.ode, settling.alg)))
        self._functions: dict[int, tuple[ca.Function, Branches]] = {}
        self._graphs: dict[Any, Any] = {}
        self.has_durations = False  # whether pieces behind the first that moves were computed

    @property
    def depth(self) -> int:
        """Largest number of operations that follow each other."""
        return max(max(graph.graph.depths) for graph in self._graphs.values())

    @property
    def assumptions(self) -> list[str]:
        """The assumptions of the answer, in words."""
        model, conditions = self.model, self.problem.conditions
        signals = [
            n
            for i, n in enumerate(model.inputs)
            if any(polynomial(c.inputs[i], c.start, c.end) is None for c in conditions)
        ]
        singular = [model.states[j] for j in np.flatnonzero(self.is_singular)]
        definition = [model.to_system_symbols(e) for group in model.definition.groups for e in group.values()]
        symbols = {s.name() for value in Branches([], definition).values for s in ca.symvar(value)}
        candidates = (
            (any(c.link.is_initial_fixed.any() for c in conditions), "known initial states as given"),
            (bool(singular), f"{join_limited(singular)} not starting at zero, where a function is singular"),
            (bool(signals), f"{join_limited(signals)} taken as a generic signal"),
            (self.has_durations, "almost all durations between events"),
            (
                bool(symbols - {s.name for s in model.switches}),
                "in the branches of its conditions and kinks at the guess",
            ),
        )
        return [text for applies, text in candidates if applies]

    @cached_property
    def is_singular(self) -> Mask:
        """Return the mask of the states that begin at zero where the equations or their derivatives are not finite."""
        is_singular = np.zeros(self.system.x.numel(), dtype=np.bool_)
        for condition in self.problem.conditions:
            natural = self.natural(condition)
            p = np.where(np.isfinite(natural.p), natural.p, 1.0)
            z, u = condition.z_guess, np.array([float(v(condition.start)) for v in condition.inputs])
            function: Any = self.model_graph(
                condition.start, natural.a, z, p, u, condition.end - condition.start
            ).function
            x, t = np.where(is_singular, 1.0, natural.a), condition.start + _GENERIC_TIME
            zeros = np.flatnonzero((x == 0.0) & condition.link.is_initial_fixed)
            if zeros.size and not np.isfinite(function(t, x, z, p, u).full()).all():
                x[zeros] = 1.0
                for j in zeros:
                    x[j] = 0.0
                    is_singular[j] = not np.isfinite(function(t, x, z, p, u).full()).all()
                    x[j] = float(is_singular[j])
        return is_singular

    def natural(self, condition: Condition) -> NaturalValues:
        """Return parameters, starts and event times at the guess; without branches, no steady state is computed."""
        link = condition.link
        if not self._branches.operations:
            link = replace(link, parts=tuple(part for part in link.parts if isinstance(part, MappedExpressions)))
        return link.natural(self.problem.guess[condition.theta])

    def model_graph(self, t: float, x: Array, z: Array, p: Array, u: Array, duration: float) -> ModelGraph:
        """Return the graph in the branches that hold just after a point."""
        decisions: Any = np.empty(0)
        if self._branches.operations:
            rates: Any = self._rates(t, x, z, p, u)
            change = _EULER_STEP * duration * np.nan_to_num(rates.full()[:, 0])
            later_x = np.where(x + change == 0.0, _TINY_STATE, x + change)
            decisions = self._branches.evaluate(t + _EULER_STEP * duration, later_x, z, p, u)
        key = decisions.tobytes()
        if key not in self._graphs:
            self._graphs[key] = ModelGraph(self.system.arguments, self._branches.resolve(decisions))
        return self._graphs[key]

    def differentiated(self, function: ca.Function, *point: Any) -> DifferentiatedGraph:
        """Return the first output of a function, a column, in its branches at a point, by default at ones."""
        if id(function) not in self._functions:
            arguments = [ca.SX.sym("a", function.size1_in(i)) for i in range(function.n_in())]
            branches = Branches(arguments, [ca.densify(function.call(arguments)[0])])
            self._functions[id(function)] = function, branches
        branches = self._functions[id(function)][1]
        decisions = branches.evaluate(*(point or (np.ones(a.numel()) for a in branches.arguments)))
        key = id(function), decisions.tobytes()
        if key not in self._graphs:
            self._graphs[key] = DifferentiatedGraph(branches.arguments, branches.resolve(decisions)[0])
        return self._graphs[key]


@dataclass(frozen=True, eq=False)
class _Block:
    """States that equations determine: positions `w` in U.

    part : of a link, for the steady state before an experiment; None for algebraic states at the start
    graph : equations of (t, x, z, p, u), of which `rows` count
    """

    part: SteadyStateRows | None
    condition: Condition
    w: Index
    graph: DifferentiatedGraph
    rows: slice


class DrawnProblem:
    """A problem at drawn unknowns.

    basis (m, r) : directions that are not determined by the rows computed so far
    orders : largest number of orders that were computed
    """

    def __init__(self, graphs: ModelGraphs, draws: Draws, examined: Index) -> None:
        problem = graphs.problem
        self.graphs, self.draws, self.p, self.orders = graphs, draws, draws.p, 0
        self.n_quantities = len(problem.quantities)
        self.unknowns = draws.residues(self.n_quantities)
        # Numbers in place of initial states that are zero, if a function is singular there.
        self._starts = draws.residues(graphs.system.x.numel()) * graphs.is_singular
        self._signals: dict[Any, Residues] = {}
        self._blocks: dict[Any, _Block] = {}
        self._positions: dict[int, Index] = {}  # in U, of the states that a part of a link computes
        for condition in problem.conditions:
            for part in condition.link.parts:
                self._collect(part, condition)
            if problem.model.algebraic_states:
                self._add_block(None, condition)
        columns = np.append(examined, np.arange(self.n_quantities, self.unknowns.size))
        self.basis: Residues = np.eye(self.unknowns.size, dtype=np.int64)[:, columns]
        if self._blocks or any(relation.lower == relation.upper for relation in problem.relations):
            self._solve()

    def signal(self, u: Input, n: int) -> Residues:
        """Return n coefficients of a generic signal; equal inputs of several experiments have the same."""
        key = u.kind, u.times.tobytes(), u.values.tobytes()
        signal = self._signals.get(key, self.draws.residues(0))
        self._signals[key] = np.append(signal, self.draws.residues(max(n - signal.size, 0)))
        return self._signals[key][:n]

    # Quantities, and states that equations determine

    def _collect(self, part: Any, condition: Condition) -> None:
        """Add the states that a part of a link computes, unless the same equations were added before."""
        if isinstance(part, ConsistentInitialRows):
            self._positions[id(part)] = self._draw_states(part.rows.size)
        elif isinstance(part, SteadyStateRows):
            for inner in part.inner.parts:
                self._collect(inner, condition)
            self._positions[id(part)] = self._add_block(part, condition).w[part.states]

    def _draw_states(self, n: int) -> Index:
        self.unknowns = np.append(self.unknowns, self.draws.residues(n))
        return np.arange(self.unknowns.size - n, self.unknowns.size)

    def _add_block(self, part: SteadyStateRows | None, condition: Condition) -> _Block:
        problem, n_x, n_z = self.graphs.problem, self.graphs.system.x.numel(), self.graphs.system.z.numel()
        if part is None:
            rows, n, graph = slice(n_x, n_x + n_z), n_z, Course.first_graph(self.graphs, condition)
        else:
            x = self.graphs.natural(condition).a
            p = part.inner.natural(problem.to_natural(problem.guess)[condition.theta]).p
            rows, n, solver = slice(0, n_x + n_z), n_x + n_z, part.solver
            graph = self.graphs.differentiated(self.graphs.settling, solver.time, x, solver.z_guess, p, solver.u)
        block = _Block(part, condition, self._draw_states(n), graph, rows)
        arguments, initial = (jets[0, :, 0] for jets in self._arguments(block, self.unknowns[None]))
        used = np.setdiff1d(graph.columns, np.arange(1, 1 + n))
        key = condition.name if part is None else (id(graph), arguments[used].tobytes(), initial.tobytes())
        if self._blocks.setdefault(key, block) is not block:
            self.unknowns = self.unknowns[:-n]
        return self._blocks[key]

    def rows_of(self, link: ParameterLink, condition: Condition, U: Residues) -> Residues:
        """Return the jets of the rows of a link at unknowns U (B, m), as (B, n_y, 1 + m)."""
        jets = np.zeros((len(U), link.base.size, 1 + U.shape[1]), dtype=np.int64)
        jets[:, :, 0] = to_residues(link.base, self.p)
        starts = jets[:, link.n_p : link.n_p + self._starts.size, 0]
        starts[:] = np.where(starts == 0, self._starts, starts)
        entries = np.flatnonzero(link.quantity_rows >= 0)
        jets[:, link.quantity_rows[entries]] = _unit_jets(U, condition.theta[entries])
        for part in link.parts:
            if isinstance(part, MappedExpressions):
                jets[:, part.rows] = self._expressions(part, condition.theta, U)
            else:
                jets[:, part.rows] = _unit_jets(U, self._positions[id(part)])
        return jets

    def algebraic_states(self, condition: Condition) -> Residues:
        """Return the jets of the algebraic states at the start, (n_z, 1 + m)."""
        block = self._blocks.get(condition.name)
        return _unit_jets(self.unknowns[None], np.empty(0, dtype=np.intp) if block is None else block.w)[0]

    def _expressions(self, part: MappedExpressions, theta: Index, U: Residues) -> Residues:
        jets = np.zeros((len(U), part.source.size, 1, 1 + U.shape[1]), dtype=np.int64)
        jets[:, :, 0, 0] = to_residues(part.numbers, self.p)
        is_quantity = part.source >= 0
        jets[:, is_quantity, 0] = _unit_jets(U, theta[part.source[is_quantity]])
        return self.graphs.differentiated(part.jacobian_function).apply(jets, self.draws)[:, :, 0]

    def _arguments(self, block: _Block, U: Residues) -> tuple[Residues, Residues]:
        """Return the jets of the arguments of a block's equations (B, n_in, 1 + m), and the jets of a."""
        part, condition = block.part, block.condition
        link = condition.link if part is None else part.inner
        y, w = self.rows_of(link, condition, U), _unit_jets(U, block.w)
        a = y[:, link.n_p : link.n_p + self.graphs.system.x.numel()]
        t, u = condition.start, [float(v(condition.start)) for v in condition.inputs]
        if part is not None:
            t, u = part.solver.time, part.solver.u.tolist()
        numbers = np.zeros((len(U), 1 + len(u), y.shape[2]), dtype=np.int64)
        numbers[..., 0] = to_residues(np.array([t, *u]), self.p)
        states = [w] if part is not None else [a, w]
        return np.concatenate([numbers[:, :1], *states, y[:, : link.n_p], numbers[:, 1:]], axis=1), a

    def _equations(self, U: Residues) -> Residues:
        """Return the jets of the residuals of all equations, (B, n, 1 + m)."""
        jets, p = list[Residues](), self.p
        for block in self._blocks.values():
            arguments, a = self._arguments(block, U)
            jets.append(block.graph.apply(arguments[:, :, None], self.draws)[:, block.rows, 0])
            if block.part is not None:
                laws = to_residues(np.round(block.part.solver.laws.coefficients * _COMMON_DENOMINATOR), p)
                changes = (arguments[:, 1 : 1 + a.shape[1]] - a) % p
                jets.append(np.stack([multiply(laws, change, p) for change in changes]))
            for part in block.condition.link.parts if block.part is None else ():
                if isinstance(part, ConsistentInitialRows):  # Some algebraic states have values.
                    names = [n.removesuffix("(0)") for n in part.parameter_names[part.inner.n_p :]]
                    z = block.w[[self.graphs.model.algebraic_states.index(n) for n in names]]
                    values = self.rows_of(part.inner, block.condition, U)[:, -part.inner.n_e :]
                    jets.append(_unit_jets(U, z) - values)
        for relation in self.graphs.problem.relations:
            if relation.lower == relation.upper:
                jets.append(self._expressions(relation.expression, np.arange(self.n_quantities), U))
                jets[-1][..., 0] -= to_residue(relation.lower, p)
        return np.concatenate(jets, axis=1) % p

    def _solve(self) -> None:
        """Change some unknowns, which enter the equations linearly, such that the equations hold; add their rows."""
        p, m, n = self.p, self.unknowns.size, self.n_quantities
        equations = self._equations(self.unknowns[None])[0]
        J = equations[:, 1:]
        shifted = (self.unknowns + np.diag(self.draws.residues(m))) % p
        is_changed = (self._equations(shifted)[..., 1:] != J).any(axis=1)  # (shifted unknown, column)
        rank = len(reduce_rows(J, p)[1])
        for attempt in range(_MAX_SELECTIONS):
            order = self.draws.rng.permutation(m)
            order = order if attempt % 2 else np.append(order[order >= n], order[order < n])
            chosen = _independent_columns(J, order, is_changed, p)
            if len(chosen) == rank:
                break
        else:
            raise NotCoveredError("nonlinear equations of the states at the start")
        rows, _ = reduce_rows(np.hstack([J[:, chosen], -equations[:, :1]]), p)
        self.unknowns[chosen] = (self.unknowns[chosen] + rows[:rank, -1]) % p
        equations = self._equations(self.unknowns[None])[0]
        if equations[:, 0].any() or not self.unknowns[:n].all():
            raise RedrawError
        self.basis = multiply(self.basis, null_space(multiply(equations[:, 1:], self.basis, p), p), p)

    # Experiments

    def run(self) -> str:
        """Add the rows of all experiments. Return a name of the part of the problem that is not covered, or ""."""
        groups: dict[Any, list[Course]] = {}
        for condition in self.graphs.problem.conditions:
            course = Course.from_condition(self, condition)
            groups.setdefault(course.key, []).append(course)
        chunks = [chunk for group in groups.values() for chunk in _chunks(group)]
        for chunk in [chunk for chunk in chunks if not self._run_relevant(self._run_first_pieces, chunk)]:
            self._run_relevant(self._run_all_pieces, chunk)
        is_cut = self.basis.shape[1] and any(c.schedule.triggers for c in self.graphs.problem.conditions)
        return "an event that states trigger" if is_cut else ""

    def _run_relevant(self, run: Callable[[list[Course]], bool], courses: list[Course]) -> bool:
        """Run a computation with those directions only along which rows of the courses change."""
        is_relevant = self.basis[np.unique(np.concatenate([c.support for c in courses]))].any(axis=0)
        other_directions, self.basis = self.basis[:, ~is_relevant], self.basis[:, is_relevant]
        is_finished = run(courses)
        self.basis = np.hstack([self.basis, other_directions])
        return is_finished

    def _check_time(self) -> None:
        check_deadline()
        if not self.graphs.may_continue():
            raise NotCoveredError("so large a problem in the available time")

    def _run_first_pieces(self, courses: list[Course]) -> bool:
        """Compute the pieces up to the first that moves. Return whether later ones do not matter."""
        head, state, p = courses[0], PieceState.begin(self, courses, 1), self.p
        for i, piece in enumerate(head.pieces):
            previous_state, state = state, state.enter(i)
            m, path, last_gain = self.basis.shape[1], piece.graph.longest_path, 0
            fewest = min(state.n_x + m, max(_MANY_ORDERS, 2 * path))
            patience = min(state.n_x, max(_MANY_ORDERS // 2, path))
            limit = 1 if piece.is_instant or head.condition.is_steady_state else 3 * (state.n_x + m) + 1
            series, rows = state.series(i, limit), [previous_state.time_rows(state, i, i - 1)[:, 0]]
            while self.basis.shape[1] and series.k < limit and series.k <= max(fewest, last_gain + patience):
                self._check_time()
                rows.append(series.advance()[state.is_observed][:, 0])
                is_last = series.k == limit or series.k > max(fewest, last_gain + patience)
                if is_last or sum(map(len, rows)) >= self.basis.shape[1] // 2:
                    null, rows = null_space(np.concatenate(rows), p), []
                    if null.shape[1] < null.shape[0]:
                        self.basis, last_gain = multiply(self.basis, null, p), series.k
                        series.project(null)
            self.orders = max(self.orders, series.k)
            if not self.basis.shape[1]:
                return True
            state = state.with_directions(series)
            if not piece.is_instant and not series.is_at_rest:
                return i + 1 == len(head.pieces)
        return True

    def _run_all_pieces(self, courses: list[Course]) -> bool:
        """Compute all pieces with durations as symbols. Return True."""
        r, p = self.basis.shape[1], self.p
        if not r:
            return True
        self.graphs.has_durations = True
        n_x, path = self.graphs.system.x.numel(), max(piece.graph.longest_path for piece in courses[0].pieces)
        n_s = min(n_x + r + 1, max(_MANY_TERMS, path + 2))
        n = max(n_s, min(n_x + r, max(_MANY_ORDERS, 2 * path))) + 1
        state, rows, previous, repetitions = PieceState.begin(self, courses, n_s), list[Residues](), 0, 0
        for i, piece in enumerate(courses[0].pieces):
            is_repeated = i > 0 and all(c.slopes_key(c.pieces[i]) == c.slopes_key(c.pieces[i - 1]) for c in courses)
            repetitions = repetitions + 1 if is_repeated else 0
            if repetitions > r:  # Each of equal pieces determines something more, or none does.
                continue
            previous_state, state = state, state.enter(i)
            rows.append(previous_state.time_rows(state, i, previous))
            series = state.series(i, 1 if piece.is_instant else n)
            for _ in range(1 if piece.is_instant else n):
                self._check_time()
                rows.append(series.advance()[state.is_observed])
            state, previous = state if piece.is_instant else state.end_of(series), i
        matrix = np.concatenate(rows).swapaxes(1, 2)
        null = null_space(np.concatenate(rows).reshape(-1, r), p)
        if r - series_rank(matrix, p) != null.shape[1]:
            raise NotCoveredError("a combination that depends on the durations between events")
        self.basis = multiply(self.basis, null, p)
        return True


def _unit_jets(U: Residues, positions: Index) -> Residues:
    """Return the jets of some unknowns at U (B, m), (B, n, 1 + m)."""
    jets = np.zeros((len(U), positions.size, 1 + U.shape[1]), dtype=np.int64)
    jets[:, :, 0] = U[:, positions]
    jets[:, np.arange(positions.size), 1 + positions] = 1
    return jets


def _independent_columns(J: Residues, order: Index, is_changed: Any, p: int) -> list[int]:
    """Choose independent columns in an order, such that no chosen unknown changes the column of another or its own."""
    chosen, pivots, reduced = list[int](), list[int](), list[Residues]()
    for j in order.tolist():
        if is_changed[j, [*chosen, j]].any() or is_changed[chosen, j].any():
            continue
        column = J[:, j].copy()
        for pivot, other in zip(pivots, reduced, strict=True):
            column = (column - column[pivot] * other) % p
        if column.any():
            pivots.append(int(np.flatnonzero(column)[0]))
            reduced.append(column * pow(int(column[pivots[-1]]), -1, p) % p)
            chosen.append(j)
    return chosen


def _chunks(courses: Sequence[Course]) -> Iterator[list[Course]]:
    """Split experiments into chunks that are computed together: small ones first, since few may determine all."""
    start, size = 0, 1
    while start < len(courses):
        yield list(courses[start : start + size])
        start, size = start + size, min(2 * size, _MAX_CHUNK)


def series_rank(matrix: Residues, p: int) -> int:
    """Return the rank of a matrix of power series in s (m, r, n_s), as far as n_s terms tell: at least that."""
    rank = 0
    while matrix.any():
        order = int(np.flatnonzero(matrix.any(axis=(0, 1)))[0])
        matrix = matrix[:, :, order:]
        i, j = np.argwhere(matrix[:, :, 0])[0]
        row = product(matrix[i], reciprocal(matrix[i, j], p), p)
        matrix = np.delete((matrix - product(matrix[:, j, None], row[None], p)) % p, i, axis=0)
        rank += 1
    return rank
