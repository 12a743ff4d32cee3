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

from castfit._support.arguments import is_one_of, real, text
from castfit._support.casadi_functions import Built
from castfit._support.records import dataclass
from castfit._support.status import unknown_names
from castfit.experiment.events import occurrences
from castfit.model.expressions import NOT_A_NUMBER, holds_nan, pattern
from castfit.model.model import Model
from castfit.problem.compiled_experiments import Condition, Graph
from castfit.problem.constraints import ALONG, QUANTITIES, Constraint, expression_text
from castfit.problem.lie_derivatives import conservation, graph_of, symbols_in, value_of
from castfit.problem.parameter_map import MappedExpressions
from castfit.problem.quantities import meanings

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.quantities import Quantity


_GRID = 24  # equal parts of an experiment at whose ends a constraint along the path is held first
_COMPARISONS = (ca.OP_LE, ca.OP_LT, ca.OP_EQ, ca.OP_NE, ca.OP_AND, ca.OP_OR, ca.OP_NOT)
_SAME = 16  # units in the last place
_MET = 1e-9  # relative: a constant that violates a constraint by no more meets it


@dataclass(frozen=True, eq=False)
class Relation:
    """``lower <= h(n) <= upper`` of quantities; h is a row of `MappedExpressions` over all of n.

    `said` is the constraint that it comes from, `where` the experiment that it is about, or "".
    """

    name: str
    said: Constraint
    where: str
    lower: float
    upper: float
    expression: MappedExpressions

    @property
    def involved(self) -> Mask:
        """Return the mask of the quantities that the relation contains, (n_theta,)."""
        return self.expression.pattern[0]

    def kept(self, keep: Index, n: Array) -> Relation | None:
        """Return the relation as a function of the entries `keep` of n, the others fixed; None if it is constant."""
        shorter = self.expression.kept(keep, n)
        return replace(self, expression=shorter) if shorter.pattern.any() else None

    def contradictions(self, n: Array) -> list[str]:
        """Describe by how much the relation is violated at natural values n (n_theta,); empty if it is satisfied."""
        value = float(self.expression.values(n)[0][0])
        bound = min(max(value, self.lower), self.upper)
        if abs(value - bound) <= _MET * (1.0 + abs(bound)):
            return []
        return [f"these values contradict the constraint {self.name}, by {abs(value - bound):.3g}"]

    def identity(self) -> tuple[Any, ...]:
        """Return the parts that identify the relation in fingerprints."""
        part = self.expression
        return self.name, self.lower, self.upper, part.what, part.names, part.source, part.numbers


def related(relations: Sequence[Relation], n: Array, slope: Array) -> tuple[Array, Array]:
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
    watched: tuple[Array, ...]


def hold(posed: Posed, constraints: Sequence[Constraint]) -> CompiledConstraints:
    """Work out constraints in which there is no mistake (see `held_mistakes`)."""
    relations: list[Relation] = []
    path: list[Constraint] = []
    for constraint in (part for c in constraints for part in _parts(posed, c)):
        found = _relations(posed, constraint)
        relations += found
        if not found:
            path.append(constraint)
    watched = tuple(_watched(posed.conditions[i], path) for i in range(len(posed.conditions)))
    return CompiledConstraints(tuple(relations), tuple(path), watched)


def _parts(posed: Posed, c: Constraint) -> list[Constraint]:
    """Split a conserved sum into parameter equations and its total at the start; keep other constraints unchanged."""
    if c.of == "value" and c.times == ALONG and c.lower == c.upper:
        found = conservation(value_of(c, posed.model), posed.model)
        happens = any(x.schedule.instants for x in posed.conditions)
        if not found.never and not found.equations and not happens:
            return _at_start(posed, c)  # the model keeps it: copies of one equation would tell nothing new
    if c.of != "total":
        return [c]
    found = conservation(value_of(c, posed.model), posed.model)
    out: list[Constraint] = []
    for equation in found.equations:
        name = f"{c.name}: {expression_text(equation)} == 0"
        out.append(Constraint(equation, 0.0, 0.0, name, QUANTITIES, c.experiments, shown=name))
    return [*out, *(_at_start(posed, c) if np.isfinite(c.lower) else [])]


def _at_start(posed: Posed, c: Constraint) -> list[Constraint]:
    """Return a constraint as one at the start of every experiment that it is about."""
    about = [x for x in posed.conditions if not c.experiments or x.name in c.experiments]
    starts = dict.fromkeys(x.start for x in about)
    return [
        replace(c, times=(start,), experiments=tuple(x.name for x in about if x.start == start), of="value")
        for start in starts
    ]


def _watched(condition: Condition, path: Sequence[Constraint]) -> Array:
    """Return the times at which something is held but nothing measured, with those that are watched already."""
    wanted: list[Array] = [condition.watched]
    for c in path:
        if c.experiments and condition.name not in c.experiments:
            continue
        if isinstance(c.times, tuple) and not condition.settled:
            wanted.append(np.array(c.times))
        elif c.times == ALONG and not condition.settled:
            wanted.append(np.linspace(condition.start, condition.end, _GRID + 1))
    every = np.unique(np.concatenate(wanted))
    if every.size == 0:
        return every
    return every[~_among(every, condition.points.times)]


def _among(times: Array, known: Array) -> Mask:
    """Check which times (n,) are among the sorted `known` ones, up to rounding."""
    after = np.clip(np.searchsorted(known, times), 0, known.size - 1)
    gap = np.minimum(np.abs(known[after] - times), np.abs(known[np.maximum(after - 1, 0)] - times))
    return gap <= _SAME * np.spacing(np.maximum(np.abs(times), abs(float(known[-1]))))


def watching(condition: Condition, times: Array) -> Condition:
    """Return the condition with more watched times, of which some may be known."""
    every = np.unique(np.concatenate([condition.watched, times]))
    return replace(condition, watched=every[~_among(every, condition.points.times)])


def _means(name: str, quantity: Quantity, experiment: str) -> bool:
    of_parameter = quantity.kind == "parameter" and quantity.of == name
    return quantity.experiment == experiment and (of_parameter or quantity.name == f"{name}[{experiment}]")


def _relations(posed: Posed, constraint: Constraint) -> list[Relation]:
    """Return a constraint as relations of quantities, one per experiment that it is about; none if it is no such."""
    if constraint.of != "value" or constraint.times not in (None, QUANTITIES):
        return []
    names = tuple(dict.fromkeys(s.name() for s in ca.symvar(constraint.expression)))
    if any(n in {*posed.model.states, *posed.model.algebraic_states, *posed.model.inputs} for n in names):
        return []
    own = {n for e in posed.experiments for n in e.parameters}
    about = [e.name for e in posed.experiments if not constraint.experiments or e.name in constraint.experiments]
    found = meanings(names, about, posed.parameters, posed.quantities, _means, own=own)
    if not found:
        return []
    graph = Graph.of([constraint.expression], {})
    several = len(posed.experiments) > 1
    out: list[Relation] = []
    for m in found:
        told = several and m.experiment and constraint.experiments != (m.experiment,)
        name = f"{constraint.name} ({m.experiment})" if told else constraint.name
        part = graph.part([0], [name], m.entry, m.number, len(posed.quantities))
        if part.pattern.any():
            out.append(Relation(name, constraint, m.experiment, constraint.lower, constraint.upper, part))
    return out


# Which rows vary, and what else can be told from the structure


@dataclass(frozen=True)
class Support:
    """Dependences of each constraint at points: on states x, algebraic states, parameters p (n_h, n_x | - | n_p)."""

    x: Mask
    z: Mask
    p: Mask


_SUPPORT: Built[Any, Support] = Built()


def support_of(posed: Posed) -> Support:
    """Return the dependences of the constraints at points on states, algebraic states and parameters."""

    def build(given: Posed) -> Support:
        system = given.model.system
        column = ca.vertcat(ca.SX(0, 1), *(graph_of(c, given.model) for c in given.path))
        by_x, by_z, by_p = (_dependence(column, v) for v in (system.x, system.z, system.p))
        return Support(by_x, np.logical_or.reduce(by_z, axis=1), by_p)

    return _SUPPORT.get(posed, build)


def constant_at_start(posed: Posed, i: int) -> Mask:
    """Check which constraints at points are constant at the start of experiment i, whatever is estimated."""
    link, on = posed.conditions[i].link, support_of(posed)
    free = np.zeros(on.p.shape[1], dtype=np.bool_)
    free[link.free] = True
    moved = np.logical_or.reduce(on.x & ~link.given, axis=1) | np.logical_or.reduce(on.p & free, axis=1)
    return np.logical_not(moved | on.z)


def _dependence(column: ca.SX, by: ca.SX) -> Mask:
    if not (column.numel() and by.numel()):
        return np.zeros((column.numel(), by.numel()), dtype=np.bool_)
    return pattern(ca.jacobian_sparsity(column, by))


# What can be wrong


def shape_mistakes(constraint: Constraint) -> list[str]:
    """Find mistakes of a constraint that do not depend on the problem."""
    name, expression = constraint.name, constraint.expression
    lower, upper = real(constraint.lower), real(constraint.upper)
    mistakes: list[str] = []
    if not is_one_of(constraint.of, "total"):
        if lower is None or upper is None or not (lower <= upper and lower < np.inf and upper > -np.inf):
            shown = f"{text(constraint.lower)} and {text(constraint.upper)}"
            mistakes.append(f"{name} has the bounds {shown}; give lower <= upper, infinite for none")
        elif np.isinf(lower) and np.isinf(upper):
            mistakes.append(f"{name} has no bound; give lower=, upper= or both")
    given: Any = expression
    if not isinstance(given, ca.SX) or given.numel() != 1 or not ca.symvar(given):
        return [*mistakes, f"{name} is {text(given)}; give a scalar SX expression of the model's symbols"]
    if holds_nan(expression):
        mistakes.append(f"{name} {NOT_A_NUMBER}")
    if not expression.is_symbolic() and expression.op() in _COMPARISONS:
        mistakes.append(f"{name} is the comparison {text(expression)}; write Constraint(expression, lower=, upper=)")
    return mistakes


def symbol_mistakes(constraint: Constraint, model: Model, others: Iterable[str]) -> list[str]:
    """Find symbols that are neither in the model nor among the names of quantities."""
    given: Any = constraint.expression
    if not isinstance(given, ca.SX) or given.numel() != 1:
        return []
    known = {*symbols_in(model), *model.outputs, *others}
    found = [s.name() for s in ca.symvar(given)]
    return unknown_names(f"{constraint.name} contains '{{}}', which is not in the model", found, known)


def held_mistakes(posed: Posed, constraints: Sequence[Constraint]) -> list[str]:
    """Find mistakes of constraints that depend on this problem."""
    mistakes: list[str] = []
    labels = [q.name.partition("[")[0] for q in posed.quantities]
    names = [c.name for c in posed.conditions]
    for c in constraints:
        wrong = shape_mistakes(c)
        wrong = wrong or symbol_mistakes(
            c, posed.model, (*(q.name for q in posed.quantities), *labels, *posed.parameters)
        )
        wrong += unknown_names(f"{c.name} is about '{{}}'", c.experiments, names)
        mistakes += wrong or _place_mistakes(posed, c)
    return mistakes


def _place_mistakes(posed: Posed, c: Constraint) -> list[str]:
    """Find constraints that are said of quantities but contain more, or at times that do not exist."""
    if _relations(posed, c):
        return []
    model = posed.model
    inside = {s.name() for s in ca.symvar(c.expression)}
    varying = inside & {*model.states, *model.algebraic_states, *model.inputs, model.system.t.name(), *model.outputs}
    if c.times == QUANTITIES:
        if varying:
            some = sorted(varying)[0]
            remedy = f"say when: cf.at(time, ...), or cf.along(...) for all times{_initial(posed, some)}"
            return [f"{c.name} contains '{some}', which changes in time; {remedy}"]
        held = ", ".join(sorted(inside))
        return [f"{c.name} contains nothing that is estimated: {held} are given; leave it out"]
    strange = [n for n in inside if n not in {*symbols_in(model), *model.outputs}]
    if strange:
        return [
            f"{c.name} contains '{strange[0]}' beside what changes in time; use the symbol of the model's parameter or "
            "state instead"
        ]
    if c.of == "total":
        return _conserved_mistakes(posed, c)
    if c.of == "rate" and _jumps(value_of(c, model), model):
        return [f"{c.name}: it contains an input, whose rate is not known; choose an expression of states"]
    mistakes: list[str] = []
    for i, condition in enumerate(posed.conditions):
        if c.experiments and condition.name not in c.experiments:
            continue
        mistakes += [f"{c.name}: {m}" for m in _time_mistakes(posed, i, c)]
    return mistakes


def _conserved_mistakes(posed: Posed, c: Constraint) -> list[str]:
    found = conservation(value_of(c, posed.model), posed.model)
    if found.never:
        return [f"{c.name}: {found.never}"]
    return [m for part in _parts(posed, c) if part.times == QUANTITIES for m in _place_mistakes(posed, part)]


def _initial(posed: Posed, name: str) -> str:
    found = [q.name.partition("[")[0] for q in posed.quantities if q.kind == "initial state" and q.of == name]
    return f"; the initial value is cf.quantity('{found[0]}')" if found else ""


def _jumps(value: ca.SX, model: Model) -> bool:
    s = model.system
    if s.u.numel() == 0:
        return False
    return bool(ca.depends_on(value, s.u) or (s.z.numel() and ca.depends_on(value, s.z) and ca.depends_on(s.alg, s.u)))


def _time_mistakes(posed: Posed, i: int, c: Constraint) -> list[str]:
    """Find times outside an experiment."""
    condition, experiment = posed.conditions[i], posed.experiments[i]
    if not isinstance(c.times, tuple):
        return []
    if condition.settled:
        wrong = [t for t in c.times if np.isfinite(t)]
        return [f"{condition.name} is observed at rest only; give the time np.inf"] if wrong else []
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
                for n, u in zip(posed.model.inputs, condition.inputs, strict=True)
                if u.span[1] < t - 1e-9 * abs(t - condition.start)
            ]
            if experiment.events and not mistakes:
                mistakes += _later_events(posed, i, t)
    return mistakes


def _later_events(posed: Posed, i: int, t: float) -> list[str]:
    """Refuse times behind the end where events of the experiment may lie between."""
    condition, experiment = posed.conditions[i], posed.experiments[i]
    before, after = (len(tuple(occurrences(experiment.events, end))) for end in (condition.end, t))
    if before == after:
        return []
    return [
        f"t = {t:g} lies behind the end {condition.end:g} of {condition.name}, with events between; add a row of NaN "
        "at that time to its data"
    ]


def constant_mistakes(posed: Posed, theta: Array) -> list[str]:
    """Find constraints that given initial values contradict whatever is estimated."""
    mistakes: list[str] = []
    if not posed.path:
        return mistakes
    system = posed.model.system
    column = ca.vertcat(*(graph_of(c, posed.model) for c in posed.path))
    function = system.function("path", column)
    for i, condition in enumerate(posed.conditions):
        constant = constant_at_start(posed, i)
        at = condition.link.natural(theta[condition.theta])
        u = [float(signal(condition.start)) for signal in condition.inputs]
        values = np.asarray(function(condition.start, at.a, condition.z_guess, at.p, u)).ravel()
        for c, fixed, value in zip(posed.path, constant, values.tolist(), strict=True):
            begins = c.times == ALONG or (isinstance(c.times, tuple) and condition.start in c.times)
            if not fixed or not begins or (c.experiments and condition.name not in c.experiments):
                continue
            slack = _MET * (1.0 + abs(value))
            if not c.lower - slack <= value <= c.upper + slack:
                mistakes.append(
                    f"{c.name}: at the start of {condition.name} it is {value:.6g} whatever is estimated; free an "
                    "initial state, or change the constraint"
                )
    return mistakes


def applies_at(posed: Posed, i: int, times: Array, measured: Mask, own: Mask, varying: frozenset[str]) -> Mask:
    """Return a mask of where the constraints at points apply in condition i, (K, M, n_h), of points at times (K, M).

    measured, own : (K, M) where something is measured; what is neither padding nor a replicate of the point before
    varying : parameters that may differ between experiments
    """
    condition = posed.conditions[i]
    out = np.repeat(own[:, :, None], len(posed.path), axis=2)
    at_start = own & (times == condition.start)
    for j, c in enumerate(posed.path):
        if c.experiments and condition.name not in c.experiments:
            out[:, :, j] = False
        elif c.times is None:
            names = {symbol.name() for symbol in ca.symvar(c.expression)}
            out[:, :, j] &= measured
            if names <= {*posed.model.parameters}:  # once: copies of an equation leave an optimizer no freedom
                once = (np.cumsum(out[:, :, j]) == 1).reshape(own.shape)
                out[:, :, j] &= once & (i == 0 or bool(names & varying))
        elif isinstance(c.times, tuple):
            out[:, :, j] = own & _nearest(condition, times, c.times)
    if posed.path and at_start.any():
        held = [c.times is not None for c in posed.path]
        out[at_start] &= ~(constant_at_start(posed, i) & np.array(held))
    return out


def _nearest(condition: Condition, times: Array, wanted: Sequence[float]) -> Mask:
    """Return a mask of the points at the wanted times; wanted times without a point are ignored."""
    if condition.settled:
        wanted = [float(condition.points.times[-1])]
    return _among(times.ravel(), np.unique(wanted)).reshape(times.shape)
