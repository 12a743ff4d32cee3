"""Compilation of constraints into relations of quantities, and rows at points of experiments.

    relation   lower <= h(theta) <= upper                 of quantities, over all experiments
    path       lower <= c(t, x, z, p, u) <= upper         at points of one experiment: times that are named, measured
                                                          times, or every point of a grid along the path

A symbol of a local parameter, or a name such as ``x(0)``, means the value in every experiment that has it.  Points at
which something is held but nothing is measured are the condition's `watched` times.

Notation
--------
n      (n_theta,)  all estimated quantities in natural scale
h, H   (m,), (m, n_theta)  relations and their derivatives by theta
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of, read_real, shorten_repr
from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit._support.status import unknown_names
from castfit.experiment.events import occurrences
from castfit.model.expressions import NOT_A_NUMBER, holds_nan, pattern
from castfit.model.model import Model
from castfit.problem.compiled_experiments import Condition, Graph
from castfit.problem.constraints import ALONG, QUANTITIES, Constraint, expression_text
from castfit.problem.lie_derivatives import conservation, graph_of, symbols_in, value_of
from castfit.problem.parameter_map import MappedExpressions
from castfit.problem.quantities import Quantity, meanings

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.problem.compiled_problem import CompiledProblem


_N_PATH_INTERVALS = 24  # equal parts of an experiment at whose ends a path constraint is first imposed
_COMPARISONS = (ca.OP_LE, ca.OP_LT, ca.OP_EQ, ca.OP_NE, ca.OP_AND, ca.OP_OR, ca.OP_NOT)
_SAME_TIME_ULPS = 16  # units in the last place by which two equal times may differ
_CONSTRAINT_RTOL = 1e-9  # relative violation up to which a constant satisfies a constraint


@dataclass(frozen=True, eq=False)
class Relation:
    """``lower <= h(n) <= upper`` of quantities; h is a row of `MappedExpressions` over all of n.

    `constraint` is the user's constraint; `experiment_name` is its experiment, or "".
    """

    name: str
    constraint: Constraint
    experiment_name: str
    lower: float
    upper: float
    expression: MappedExpressions

    @property
    def involved_mask(self) -> Mask:
        """Return the mask of the quantities that the relation contains, (n_theta,)."""
        return self.expression.pattern[0]

    def restrict(self, keep: Index, n: Array) -> Relation | None:
        """Return the relation as a function of the entries `keep` of n, the others fixed; None if it is constant."""
        expression = self.expression.restrict(keep, n)
        return replace(self, expression=expression) if expression.pattern.any() else None

    def contradictions(self, n: Array) -> list[str]:
        """Describe by how much the relation is violated at natural values n (n_theta,); empty if it is satisfied."""
        value = float(self.expression.values(n)[0][0])
        bound = min(max(value, self.lower), self.upper)
        if abs(value - bound) <= _CONSTRAINT_RTOL * (1.0 + abs(bound)):
            return []
        return [f"these values contradict the constraint {self.name}, by {abs(value - bound):.3g}"]

    def identity(self) -> tuple[Any, ...]:
        """Return the parts that identify the relation in fingerprints."""
        part = self.expression
        return self.name, self.lower, self.upper, part.labels, part.names, part.source, part.numbers


def evaluate_relations(relations: Sequence[Relation], n: Array, slope: Array) -> tuple[Array, Array]:
    """Return h (m,) and H (m, n_theta); slope is d n / d theta."""
    h, H = np.empty(len(relations)), np.empty((len(relations), n.size))
    for i, relation in enumerate(relations):
        value, by_n = relation.expression.values(n)
        h[i], H[i] = value[0], by_n[0] * slope
    return h, H


def bend(relations: Sequence[Relation], n: Array, log: Mask, weight: Array) -> Array:
    """Return  sum_i weight_i d2 h_i / d theta2, (n_theta, n_theta)."""
    out = np.zeros((n.size, n.size))
    slope = np.where(log, n, 1.0)
    for relation, factor in zip(relations, weight, strict=True):
        gradient, hessian = relation.expression.curvature(n, np.array([factor]))
        out += slope[:, None] * hessian * slope
        out[np.diag_indices(n.size)] += np.where(log, n, 0.0) * gradient
    return out


@dataclass(frozen=True)
class CompiledConstraints:
    """Compiled constraints: relations, constraints at points, and per condition the watched times without data."""

    relations: tuple[Relation, ...]
    path: tuple[Constraint, ...]
    watched_times: tuple[Array, ...]


def compile_constraints(compiled_problem: CompiledProblem, constraints: Sequence[Constraint]) -> CompiledConstraints:
    """Compile constraints that contain no mistake (see `held_mistakes`)."""
    relations: list[Relation] = []
    path: list[Constraint] = []
    for constraint in (part for c in constraints for part in _parts(compiled_problem, c)):
        new_relations = _relations(compiled_problem, constraint)
        relations += new_relations
        if not new_relations:
            path.append(constraint)
    watched = tuple(_watched(compiled_problem.conditions[i], path) for i in range(len(compiled_problem.conditions)))
    return CompiledConstraints(tuple(relations), tuple(path), watched)


def _parts(compiled_problem: CompiledProblem, c: Constraint) -> list[Constraint]:
    """Split a conserved sum into parameter equations and its total at the start; keep other constraints unchanged."""
    if c.of == "value" and c.times == ALONG and c.lower == c.upper:
        conserved_sum = conservation(value_of(c, compiled_problem.model), compiled_problem.model)
        has_events = any(x.schedule.instants for x in compiled_problem.conditions)
        if not conserved_sum.obstacle and not conserved_sum.equations and not has_events:
            return _at_start(compiled_problem, c)  # the model keeps it: copies of one equation would tell nothing new
    if c.of != "total":
        return [c]
    conserved_sum = conservation(value_of(c, compiled_problem.model), compiled_problem.model)
    constraints: list[Constraint] = []
    for equation in conserved_sum.equations:
        name = f"{c.name}: {expression_text(equation)} == 0"
        constraints.append(Constraint(equation, 0.0, 0.0, name, QUANTITIES, c.experiments, text=name))
    return [*constraints, *(_at_start(compiled_problem, c) if np.isfinite(c.lower) else [])]


def _at_start(compiled_problem: CompiledProblem, c: Constraint) -> list[Constraint]:
    """Return a constraint as one at the start of every experiment that it is about."""
    relevant_conditions = [x for x in compiled_problem.conditions if not c.experiments or x.name in c.experiments]
    starts = dict.fromkeys(x.start for x in relevant_conditions)
    return [
        replace(
            c, times=(start,), experiments=tuple(x.name for x in relevant_conditions if x.start == start), of="value"
        )
        for start in starts
    ]


def _watched(condition: Condition, path: Sequence[Constraint]) -> Array:
    """Return the times at which something is held but nothing measured, with those that are watched already."""
    time_arrays: list[Array] = [condition.watched_times]
    for c in path:
        if c.experiments and condition.name not in c.experiments:
            continue
        if isinstance(c.times, tuple) and not condition.is_steady_state:
            time_arrays.append(np.array(c.times))
        elif c.times == ALONG and not condition.is_steady_state:
            time_arrays.append(np.linspace(condition.start, condition.end, _N_PATH_INTERVALS + 1))
    times = np.unique(np.concatenate(time_arrays))
    if times.size == 0:
        return times
    return times[~_is_among(times, condition.points.times)]


def _is_among(times: Array, sorted_times: Array) -> Mask:
    """Check which times (n,) are among the sorted `sorted_times` ones, up to rounding."""
    right_indices = np.clip(np.searchsorted(sorted_times, times), 0, sorted_times.size - 1)
    gap = np.minimum(
        np.abs(sorted_times[right_indices] - times), np.abs(sorted_times[np.maximum(right_indices - 1, 0)] - times)
    )
    return gap <= _SAME_TIME_ULPS * np.spacing(np.maximum(np.abs(times), abs(float(sorted_times[-1]))))


def with_watched_times(condition: Condition, times: Array) -> Condition:
    """Return the condition with more watched times, of which some may be known."""
    all_times = np.unique(np.concatenate([condition.watched_times, times]))
    return replace(condition, watched_times=all_times[~_is_among(all_times, condition.points.times)])


def _matches_symbol(name: str, quantity: Quantity, experiment: str) -> bool:
    of_parameter = quantity.kind == "parameter" and quantity.symbol_name == name
    return quantity.experiment == experiment and (of_parameter or quantity.name == f"{name}[{experiment}]")


def _relations(compiled_problem: CompiledProblem, constraint: Constraint) -> list[Relation]:
    """Return a constraint as relations of quantities, one per experiment that it is about; none if it is no such."""
    if constraint.of != "value" or constraint.times not in (None, QUANTITIES):
        return []
    names = tuple(dict.fromkeys(s.name() for s in ca.symvar(constraint.expression)))
    if any(
        n in {*compiled_problem.model.states, *compiled_problem.model.algebraic_states, *compiled_problem.model.inputs}
        for n in names
    ):
        return []
    overridden_names = {n for e in compiled_problem.experiments for n in e.parameters}
    experiment_names = [
        e.name for e in compiled_problem.experiments if not constraint.experiments or e.name in constraint.experiments
    ]
    name_meanings = meanings(
        names,
        experiment_names,
        compiled_problem.parameters,
        compiled_problem.quantities,
        _matches_symbol,
        local_names=overridden_names,
    )
    if not name_meanings:
        return []
    graph = Graph.from_expressions([constraint.expression], {})
    has_many_experiments = len(compiled_problem.experiments) > 1
    relations: list[Relation] = []
    for m in name_meanings:
        needs_label = has_many_experiments and m.experiment and constraint.experiments != (m.experiment,)
        name = f"{constraint.name} ({m.experiment})" if needs_label else constraint.name
        part = graph.part([0], [name], m.entry, m.number, len(compiled_problem.quantities))
        if part.pattern.any():
            relations.append(Relation(name, constraint, m.experiment, constraint.lower, constraint.upper, part))
    return relations


# Which rows vary, and what else can be told from the structure


@dataclass(frozen=True)
class ConstraintDependencies:
    """Dependences of each constraint at points: on states x, algebraic states, parameters p (n_h, n_x | - | n_p)."""

    x: Mask
    z: Mask
    p: Mask


_SUPPORT: PerObjectCache[Any, ConstraintDependencies] = PerObjectCache()


def constraint_dependencies(compiled_problem: CompiledProblem) -> ConstraintDependencies:
    """Return the dependences of the constraints at points on states, algebraic states and parameters."""

    def build(problem: CompiledProblem) -> ConstraintDependencies:
        system = problem.model.system
        column = ca.vertcat(ca.SX(0, 1), *(graph_of(c, problem.model) for c in problem.path))
        by_x, by_z, by_p = (_dependence(column, v) for v in (system.x, system.z, system.p))
        return ConstraintDependencies(by_x, np.logical_or.reduce(by_z, axis=1), by_p)

    return _SUPPORT.get(compiled_problem, build)


def constant_at_start(compiled_problem: CompiledProblem, i: int) -> Mask:
    """Check which constraints at points are constant at the start of experiment i, whatever is estimated."""
    link, dependencies = compiled_problem.conditions[i].link, constraint_dependencies(compiled_problem)
    is_free = np.zeros(dependencies.p.shape[1], dtype=np.bool_)
    is_free[link.free_parameters] = True
    is_moved = np.logical_or.reduce(dependencies.x & ~link.is_initial_fixed, axis=1) | np.logical_or.reduce(
        dependencies.p & is_free, axis=1
    )
    return np.logical_not(is_moved | dependencies.z)


def _dependence(column: ca.SX, variables: ca.SX) -> Mask:
    if not (column.numel() and variables.numel()):
        return np.zeros((column.numel(), variables.numel()), dtype=np.bool_)
    return pattern(ca.jacobian_sparsity(column, variables))


# What can be wrong


def shape_mistakes(constraint: Constraint) -> list[str]:
    """Find mistakes of a constraint that do not depend on the problem."""
    name, expression = constraint.name, constraint.expression
    lower, upper = read_real(constraint.lower), read_real(constraint.upper)
    mistakes: list[str] = []
    if not is_one_of(constraint.of, "total"):
        if lower is None or upper is None or not (lower <= upper and lower < np.inf and upper > -np.inf):
            bounds_text = f"{shorten_repr(constraint.lower)} and {shorten_repr(constraint.upper)}"
            mistakes.append(f"{name} has the bounds {bounds_text}; give lower <= upper, infinite for none")
        elif np.isinf(lower) and np.isinf(upper):
            mistakes.append(f"{name} has no bound; give lower=, upper= or both")
    argument: Any = expression
    if not isinstance(argument, ca.SX) or argument.numel() != 1 or not ca.symvar(argument):
        return [*mistakes, f"{name} is {shorten_repr(argument)}; give a scalar SX expression of the model's symbols"]
    if holds_nan(expression):
        mistakes.append(f"{name} {NOT_A_NUMBER}")
    if not expression.is_symbolic() and expression.op() in _COMPARISONS:
        mistakes.append(
            f"{name} is the comparison {shorten_repr(expression)}; write Constraint(expression, lower=, upper=)"
        )
    return mistakes


def symbol_mistakes(constraint: Constraint, model: Model, other_names: Iterable[str]) -> list[str]:
    """Find symbols that are neither in the model nor among the names of quantities."""
    argument: Any = constraint.expression
    if not isinstance(argument, ca.SX) or argument.numel() != 1:
        return []
    known_names = {*symbols_in(model), *model.outputs, *other_names}
    symbol_names = [s.name() for s in ca.symvar(argument)]
    return unknown_names(f"{constraint.name} contains '{{}}', which is not in the model", symbol_names, known_names)


def held_mistakes(compiled_problem: CompiledProblem, constraints: Sequence[Constraint]) -> list[str]:
    """Find mistakes of constraints that depend on this problem."""
    mistakes: list[str] = []
    labels = [q.name.partition("[")[0] for q in compiled_problem.quantities]
    names = [c.name for c in compiled_problem.conditions]
    for c in constraints:
        constraint_mistakes = shape_mistakes(c)
        constraint_mistakes = constraint_mistakes or symbol_mistakes(
            c,
            compiled_problem.model,
            (*(q.name for q in compiled_problem.quantities), *labels, *compiled_problem.parameters),
        )
        constraint_mistakes += unknown_names(f"{c.name} is about '{{}}'", c.experiments, names)
        mistakes += constraint_mistakes or _place_mistakes(compiled_problem, c)
    return mistakes


def _place_mistakes(compiled_problem: CompiledProblem, c: Constraint) -> list[str]:
    """Find constraints that are said of quantities but contain more, or at times that do not exist."""
    if _relations(compiled_problem, c):
        return []
    model = compiled_problem.model
    symbol_names = {s.name() for s in ca.symvar(c.expression)}
    varying = symbol_names & {
        *model.states,
        *model.algebraic_states,
        *model.inputs,
        model.system.t.name(),
        *model.outputs,
    }
    if c.times == QUANTITIES:
        if varying:
            varying_name = sorted(varying)[0]
            remedy = (
                f"say when: cf.at(time, ...), or cf.along(...) for all times{_initial(compiled_problem, varying_name)}"
            )
            return [f"{c.name} contains '{varying_name}', which changes in time; {remedy}"]
        fixed_names = ", ".join(sorted(symbol_names))
        return [f"{c.name} contains nothing that is estimated: {fixed_names} are given; leave it out"]
    unknown_symbols = [n for n in symbol_names if n not in {*symbols_in(model), *model.outputs}]
    if unknown_symbols:
        return [
            f"{c.name} contains '{unknown_symbols[0]}' together with time-dependent symbols; use the symbol of the "
            "model's parameter or state instead"
        ]
    if c.of == "total":
        return _conserved_mistakes(compiled_problem, c)
    if c.of == "rate" and _jumps(value_of(c, model), model):
        return [f"{c.name}: it contains an input, whose rate is not known; choose an expression of states"]
    return [
        f"{c.name}: {m}"
        for i, condition in enumerate(compiled_problem.conditions)
        if not c.experiments or condition.name in c.experiments
        for m in _time_mistakes(compiled_problem, i, c)
    ]


def _conserved_mistakes(compiled_problem: CompiledProblem, c: Constraint) -> list[str]:
    conserved_sum = conservation(value_of(c, compiled_problem.model), compiled_problem.model)
    if conserved_sum.obstacle:
        return [f"{c.name}: {conserved_sum.obstacle}"]
    return [
        m
        for part in _parts(compiled_problem, c)
        if part.times == QUANTITIES
        for m in _place_mistakes(compiled_problem, part)
    ]


def _initial(compiled_problem: CompiledProblem, name: str) -> str:
    labels = [
        q.name.partition("[")[0]
        for q in compiled_problem.quantities
        if q.kind == "initial state" and q.symbol_name == name
    ]
    return f"; the initial value is cf.quantity('{labels[0]}')" if labels else ""


def _jumps(value: ca.SX, model: Model) -> bool:
    s = model.system
    if s.u.numel() == 0:
        return False
    return bool(ca.depends_on(value, s.u) or (s.z.numel() and ca.depends_on(value, s.z) and ca.depends_on(s.alg, s.u)))


def _time_mistakes(compiled_problem: CompiledProblem, i: int, c: Constraint) -> list[str]:
    """Find times outside an experiment."""
    condition, experiment = compiled_problem.conditions[i], compiled_problem.experiments[i]
    if not isinstance(c.times, tuple):
        return []
    if condition.is_steady_state:
        finite_times = [t for t in c.times if np.isfinite(t)]
        return [f"{condition.name} is observed at rest only; give the time np.inf"] if finite_times else []
    mistakes: list[str] = []
    for t in c.times:
        if not np.isfinite(t):
            mistakes.append(f"the time {t:g} is for experiments observed at rest; {condition.name} runs in time")
        elif t < condition.start:
            mistakes.append(f"t = {t:g} lies before the start {condition.start:g} of {condition.name}")
        elif t > condition.end:
            if t > condition.schedule.known_until:
                mistakes.append(
                    f"t = {t:g} lies behind the end {condition.end:g} of {condition.name}, whose doses go on; give "
                    "Doses(count=) so that all are known"
                )
            mistakes += [
                f"input '{n}' of {condition.name} is given up to {u.span[1]:g} only, t = {t:g} lies behind; extend it"
                for n, u in zip(compiled_problem.model.inputs, condition.inputs, strict=True)
                if u.span[1] < t - 1e-9 * abs(t - condition.start)
            ]
            if experiment.events and not mistakes:
                mistakes += _later_events(compiled_problem, i, t)
    return mistakes


def _later_events(compiled_problem: CompiledProblem, i: int, t: float) -> list[str]:
    """Refuse times behind the end where events of the experiment may lie between."""
    condition, experiment = compiled_problem.conditions[i], compiled_problem.experiments[i]
    n_before, n_after = (len(tuple(occurrences(experiment.events, end))) for end in (condition.end, t))
    if n_before == n_after:
        return []
    return [
        f"t = {t:g} lies behind the end {condition.end:g} of {condition.name}, with events between; add a row of NaN "
        "at that time to its data"
    ]


def constant_mistakes(compiled_problem: CompiledProblem, theta: Array) -> list[str]:
    """Find constraints that given initial values contradict whatever is estimated."""
    mistakes: list[str] = []
    if not compiled_problem.path:
        return mistakes
    system = compiled_problem.model.system
    column = ca.vertcat(*(graph_of(c, compiled_problem.model) for c in compiled_problem.path))
    function = system.function("path", column)
    for i, condition in enumerate(compiled_problem.conditions):
        constant = constant_at_start(compiled_problem, i)
        natural = condition.link.natural(theta[condition.theta])
        u = [float(signal(condition.start)) for signal in condition.inputs]
        values = np.asarray(function(condition.start, natural.a, condition.z_guess, natural.p, u)).ravel()
        for c, fixed, value in zip(compiled_problem.path, constant, values.tolist(), strict=True):
            applies_at_start = c.times == ALONG or (isinstance(c.times, tuple) and condition.start in c.times)
            if not fixed or not applies_at_start or (c.experiments and condition.name not in c.experiments):
                continue
            slack = _CONSTRAINT_RTOL * (1.0 + abs(value))
            if not c.lower - slack <= value <= c.upper + slack:
                mistakes.append(
                    f"{c.name}: at the start of {condition.name} it is {value:.6g} whatever is estimated; free an "
                    "initial state, or change the constraint"
                )
    return mistakes


def applies_at(
    compiled_problem: CompiledProblem, i: int, times: Array, measured: Mask, is_distinct: Mask, varying: frozenset[str]
) -> Mask:
    """Return a mask of where the constraints at points apply in condition i, (K, M, n_h), of points at times (K, M).

    measured : (K, M) True where something is measured
    is_distinct : (K, M) True at points that are neither padding nor a replicate of the point before
    varying : parameters that may differ between experiments
    """
    condition = compiled_problem.conditions[i]
    is_applied = np.repeat(is_distinct[:, :, None], len(compiled_problem.path), axis=2)
    at_start = is_distinct & (times == condition.start)
    for j, c in enumerate(compiled_problem.path):
        if c.experiments and condition.name not in c.experiments:
            is_applied[:, :, j] = False
        elif c.times is None:
            names = {symbol.name() for symbol in ca.symvar(c.expression)}
            is_applied[:, :, j] &= measured
            if names <= {
                *compiled_problem.model.parameters
            }:  # once: copies of an equation leave an optimizer no freedom
                is_first = (np.cumsum(is_applied[:, :, j]) == 1).reshape(is_distinct.shape)
                is_applied[:, :, j] &= is_first & (i == 0 or bool(names & varying))
        elif isinstance(c.times, tuple):
            is_applied[:, :, j] = is_distinct & _nearest(condition, times, c.times)
    if compiled_problem.path and at_start.any():
        is_timed = [c.times is not None for c in compiled_problem.path]
        is_applied[at_start] &= ~(constant_at_start(compiled_problem, i) & np.array(is_timed))
    return is_applied


def _nearest(condition: Condition, times: Array, target_times: Sequence[float]) -> Mask:
    """Return a mask of the points at the wanted times; wanted times without a point are ignored."""
    if condition.is_steady_state:
        target_times = [float(condition.points.times[-1])]
    return _is_among(times.ravel(), np.unique(target_times)).reshape(times.shape)
