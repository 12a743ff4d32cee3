"""Conversion of user arguments to profile tasks: fit, levels, quantities, sigmas, expressions as text or symbols."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arguments import describe_rejected, is_one_of, read_real, read_sequence, shorten_repr
from castfit._support.arrays import Array
from castfit._support.status import suggest
from castfit.drive.uncertainty.profile.predictions import OfPrediction, OutputAt, PredictedOutput, prediction
from castfit.drive.uncertainty.profile.targets import ExpressionTarget, OfQuantity, OfSigma, Target
from castfit.fit.laplace_kinks import find_kinks
from castfit.model import functions as functions
from castfit.problem.compiled_experiments import Graph
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.parameter_map import MappedExpressions
from castfit.problem.problem import Posable
from castfit.problem.quantities import fixed_value
from castfit.result.result import Result

_OPERATORS: dict[type, str] = {
    ast.Add: "__add__",
    ast.Sub: "__sub__",
    ast.Mult: "__mul__",
    ast.Div: "__truediv__",
    ast.Pow: "__pow__",
}
_NO_INDEX = -1  # for names that no quantity has, or several


def owner(result: Any, mistakes: list[str]) -> Posable | None:
    """Return the problem of a result that can be profiled."""
    if not isinstance(result, Result):
        mistakes.append(f"result is {describe_rejected(result, 'expected the Result of a fit')}")
        return None
    if result.problem is None:
        mistakes.append("the loaded result has no model; call result.with_problem(problem) first")
        return None
    if not result.success:
        mistakes.append(f"result is not a solution ({result.status.value}); pass a converged fit")
    if find_kinks(result.problem.posed):
        mistakes.append("profiles are undefined at the kinks of Laplace priors (lasso); use other priors")
    return result.problem


def read_levels(levels: Any, mistakes: list[str]) -> tuple[float, ...]:
    """Return confidence levels, ascending."""
    values = [levels] if read_real(levels) is not None else (read_sequence(levels) or [])
    numbers = [read_real(level) for level in values]
    if not numbers or any(n is None or not 0.0 < n < 1.0 for n in numbers):
        mistakes.append(f"confidence_levels is {shorten_repr(levels)}; expected numbers between 0 and 1, such as 0.95")
        return (0.95,)
    return tuple(sorted({n for n in numbers if n is not None}))


def read_targets(
    result: Result, compiled_problem: CompiledProblem, names: Any, mistakes: list[str], holds: str = "names contains"
) -> tuple[Target, ...]:
    """Return the targets to profile. Append input errors to `mistakes`; `holds` names the argument in them.

    `names` is a name, an expression, an `OutputAt`, a sequence of these, or a mapping from names to expressions; None
    means every estimated quantity.  The best fit determines the magnitudes.
    """
    if names is None:
        return tuple(_of_quantity(compiled_problem, result, j) for j in range(len(compiled_problem.names)))
    entries: list[tuple[str, Any]] = []
    if isinstance(names, (str, ca.SX, OutputAt)):
        entries = [(_label(names), names)]
    elif isinstance(names, Mapping):
        entries = [(str(n), e) for n, e in names.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    else:
        listed = read_sequence(names)
        if listed is None or not listed:
            mistakes.append(
                f"names is {shorten_repr(names)}; expected names of quantities, expressions, or a mapping to them"
            )
            return ()
        entries = [(_label(entry), entry) for entry in listed]
    targets: list[Target] = []
    for label, entry in entries:
        n = sum(isinstance(other, OfPrediction) for other in targets)
        target = _read(result, compiled_problem, label, entry, n, mistakes, holds)
        if target is not None and any(target.name == other.name for other in targets):
            mistakes.append(f"{holds} '{target.name}' twice; remove one")
        elif target is not None:
            targets.append(target)
    return tuple(targets)


def _label(entry: Any) -> str:
    return entry.label if isinstance(entry, OutputAt) else entry if isinstance(entry, str) else str(entry)


def _read(
    result: Result, compiled_problem: CompiledProblem, label: str, entry: Any, n: int, mistakes: list[str], holds: str
) -> Target | None:
    if isinstance(entry, str) and entry in compiled_problem.names:
        return _of_quantity(compiled_problem, result, compiled_problem.names.index(entry))
    if isinstance(entry, str) and entry in result.sigmas:
        return OfSigma(entry, "sigma", True, -np.inf, np.inf, 1.0, group=list(result.sigmas).index(entry))
    known_names = (*compiled_problem.names, *result.sigmas)
    if isinstance(entry, OutputAt):
        return _of_prediction(result, compiled_problem, label, entry, n, mistakes)
    if isinstance(entry, str):
        graph = _parsed(entry, compiled_problem, mistakes, known_names, holds)
        if graph is None:
            return None
    elif isinstance(entry, ca.SX) and entry.numel() == 1:
        graph = entry
    else:
        mistakes.append(f"{holds} {shorten_repr(entry)}; expected the name of a quantity or a scalar expression")
        return None
    part = _part(graph, compiled_problem, label, mistakes)
    return None if part is None else _of_expression(result, label, part, mistakes)


def _of_quantity(compiled_problem: CompiledProblem, result: Result, j: int) -> OfQuantity:
    quantity, (lower, upper) = compiled_problem.quantities[j], compiled_problem.bounds
    log, theta = bool(compiled_problem.log[j]), float(result.theta[j])
    error = result.standard_errors.get(quantity.name, np.nan)
    width = float(upper[j] - lower[j])
    sizes = [abs(theta), error if np.isfinite(error) else 0.0]
    scale = 1.0 if log else max(sizes) or (0.1 * width if np.isfinite(width) else 1.0) or 1.0
    return OfQuantity(quantity.name, quantity.kind, log, float(lower[j]), float(upper[j]), scale, theta_index=j)


def _of_prediction(
    result: Result, compiled_problem: CompiledProblem, label: str, entry: OutputAt, n: int, mistakes: list[str]
) -> OfPrediction | None:
    """Read an output at a time."""
    conditions, outputs, own_mistakes = (
        [c.name for c in compiled_problem.conditions],
        compiled_problem.model.output_names,
        list[str](),
    )
    if not is_one_of(entry.output, *outputs):
        own_mistakes.append(
            f"{label}: {shorten_repr(entry.output)} is no output: {suggest(str(entry.output), outputs)}"
        )
    if entry.experiment is None and len(conditions) > 1:
        own_mistakes.append(
            f"{label}: the problem has several experiments; set experiment= to one of {', '.join(conditions)}"
        )
    elif entry.experiment is not None and not is_one_of(entry.experiment, *conditions):
        own_mistakes.append(
            f"{label}: {shorten_repr(entry.experiment)} is no experiment: {suggest(str(entry.experiment), conditions)}"
        )
    mistakes += own_mistakes
    if own_mistakes:
        return None
    i = 0 if entry.experiment is None else conditions.index(entry.experiment)
    if entry.time < compiled_problem.conditions[i].start:
        mistakes.append(
            f"{label}: the time is before the start of the experiment at {compiled_problem.conditions[i].start:g}; "
            "pass a later time"
        )
        return None
    times = np.unique(
        [entry.time, max(entry.time, compiled_problem.conditions[i].end)]
    )  # the end as well, because at the start an output may depend on nothing yet
    linear = result.predict({conditions[i]: times}, bands="linear")[conditions[i]]
    value = float(linear[entry.output][0])
    if not linear[f"{entry.output} upper"][0] > value:
        mistakes.append(f"{label} does not depend on any estimated quantity; remove it")
        return None
    return prediction(label, PredictedOutput(i, entry.output, float(entry.time), value, abs(value) or 1.0), n)


def _of_expression(result: Result, label: str, part: MappedExpressions, mistakes: list[str]) -> ExpressionTarget | None:
    log = tuple(bool(x) for x in result.log)
    linear_target = ExpressionTarget(label, "expression", False, -np.inf, np.inf, 1.0, part=part, theta_log=log)
    value, slope = linear_target.value(result.theta)
    if not (np.isfinite(value) and np.isfinite(slope).all()):
        mistakes.append(f"{label} is {value:g} at the estimates; pass an expression that is finite there")
        return None
    logarithmic = value > 0.0 and _is_power_product(part, np.where(result.log, np.exp(result.theta), result.theta))
    scale = 1.0 if logarithmic else abs(value) or float(np.abs(slope).max()) or 1.0
    return ExpressionTarget(label, "expression", logarithmic, -np.inf, np.inf, scale, part=part, theta_log=log)


def _is_power_product(part: MappedExpressions, natural: Array) -> bool:
    """Check whether the expression is a product of powers of positive quantities, and therefore positive."""
    used_indices = np.flatnonzero(part.pattern.any(axis=0))
    if (natural[used_indices] <= 0.0).any():
        return False
    powers: list[Array] = []
    for k in range(3):
        shifted_values = natural.copy()
        shifted_values[used_indices] *= 1.0 + 0.37 * k + 0.11 * np.arange(used_indices.size)  # anywhere else
        with np.errstate(all="ignore"):
            values, slopes = part.values(shifted_values)
            powers.append(slopes[0, used_indices] * shifted_values[used_indices] / values[0])
    return bool(np.isfinite(powers).all() and np.ptp(np.array(powers), axis=0).max() < 1e-9)


def _part(graph: ca.SX, compiled_problem: CompiledProblem, label: str, mistakes: list[str]) -> MappedExpressions | None:
    """Return an expression as a function of the natural values of all quantities."""
    compiled_graph = Graph.from_expressions([graph], {})
    entry: dict[str, int] = {}
    number: dict[str, float] = {}
    for name in compiled_graph.names:
        index = _meant(name, compiled_problem)
        fixed = compiled_problem.parameters.get(name)
        if index != _NO_INDEX:
            entry[name] = index
        elif fixed is not None and fixed.fixed and not isinstance(fixed.value, Mapping):
            number[name] = fixed_value(fixed, "")
        else:
            matching_names = [q.name for q in compiled_problem.quantities if q.symbol_name == name]
            advice = (
                f"several experiments have a value of it; choose one of {', '.join(matching_names)}"
                if matching_names
                else suggest(name, compiled_problem.names)
            )
            mistakes.append(f"{label} contains '{name}', which is not estimated: {advice}")
    if not entry and not mistakes:
        mistakes.append(f"{label} contains no estimated quantity; remove it")
    if mistakes:
        return None
    return compiled_graph.part([0], [label], entry, number, len(compiled_problem.names))


def _meant(name: str, compiled_problem: CompiledProblem) -> int:
    """Return the index of the quantity with a name, or of the only one of the parameter or state with that name."""
    if name in compiled_problem.names:
        return compiled_problem.names.index(name)
    matches = [j for j, q in enumerate(compiled_problem.quantities) if q.symbol_name == name]
    return matches[0] if len(matches) == 1 else _NO_INDEX


def _parsed(
    expression: str, compiled_problem: CompiledProblem, mistakes: list[str], known_names: tuple[str, ...], holds: str
) -> ca.SX | None:
    """Read an expression such as "k1 / k2" or "log(k1) + x(0)"."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError:
        mistakes.append(f"{holds} '{expression}': {suggest(expression, known_names)}")
        return None
    unknown_names: list[str] = []

    def build(node: ast.expr) -> Any:
        node_text = ast.unparse(node)
        if node_text in compiled_problem.names:
            return ca.SX.sym(node_text)
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return ca.SX(node.value)
        if isinstance(node, ast.Name):
            if _meant(node.id, compiled_problem) == _NO_INDEX and node.id not in compiled_problem.parameters:
                unknown_names.append(node.id)
            return ca.SX.sym(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return getattr(build(node.left), _OPERATORS[type(node.op)])(build(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            inner = build(node.operand)
            return -inner if isinstance(node.op, ast.USub) else inner
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions.__all__:
            return getattr(functions, node.func.id)(*(build(a) for a in node.args))
        unknown_names.append(node_text)
        return ca.SX(0)

    graph = build(tree)
    if unknown_names:
        mistakes += [
            f"{holds} '{expression}' with the unknown name '{n}': {suggest(n, known_names)}" for n in unknown_names
        ]
        return None
    return graph
