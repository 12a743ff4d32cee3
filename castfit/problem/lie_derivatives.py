"""Graphs of constraints over the model's symbols: values, rates along solutions, and conserved sums.

The rate of y = g(t, x, z) along the solutions of  x' = f, 0 = alg  is

    y' = g_x f + g_t + g_z z',     alg_z z' = -(alg_x f + alg_t)

A sum is conserved where its rate vanishes whatever the states.  Where the rate is linear in the parameters, as for mass
action, that is a set of linear equations in these: rates at many states, reduced to independent rows.
"""

from __future__ import annotations

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.records import dataclass
from castfit.model.expressions import substitute_by_name
from castfit.model.model import Model, by_name
from castfit.problem.constraints import Constraint

_ZERO_RATE_RTOL = 1e-10  # size of a rate relative to its terms, below which it counts as zero
_SAMPLES_PER_PARAMETER = 6  # number of random states, per parameter, at which a rate is evaluated


def graph_of(constraint: Constraint, model: Model) -> ca.SX:
    """Return the bounded value or rate as a graph over the model's symbols; output names become expressions."""
    value = value_of(constraint, model)
    return lie_derivative(value, model) if constraint.of == "rate" else value


def value_of(constraint: Constraint, model: Model) -> ca.SX:
    """Return a constraint's expression over the model's symbols."""
    model_symbols = symbols_in(model)
    outputs = {n: graph for n, graph in model.outputs.items() if n not in model_symbols}
    return by_name(substitute_by_name(model.to_system_symbols(constraint.expression), outputs), model.system)


def symbols_in(model: Model) -> set[str]:
    """Return the names of a model's symbols."""
    return {*model.states, *model.algebraic_states, *model.parameters, *model.inputs, model.system.t.name()}


def lie_derivative(value: ca.SX, model: Model) -> ca.SX:
    """Return the derivative of an expression by time along the model's solutions, at constant inputs."""
    s = model.system
    rate = ca.jtimes(value, s.x, s.ode) + ca.jacobian(value, s.t)
    if s.z.numel() and ca.depends_on(value, s.z):
        right_side = ca.jtimes(s.alg, s.x, s.ode) + ca.jacobian(s.alg, s.t)
        rate -= ca.mtimes(ca.jacobian(value, s.z), ca.solve(ca.jacobian(s.alg, s.z), right_side))
    return ca.densify(rate)


@dataclass(frozen=True)
class ConservedSum:
    """When a model conserves a sum: always, or where all `equations` in its parameters are zero.

    `never` says why no parameters make it conserved, or why that cannot be told.
    """

    equations: tuple[ca.SX, ...] = ()
    obstacle: str = ""


def conservation(value: ca.SX, model: Model) -> ConservedSum:
    """Find out when the value of an expression stays constant along all solutions of a model."""
    s = model.system
    rate = lie_derivative(value, model)
    slope = ca.jacobian(value, s.x)
    terms = ca.mtimes(ca.fabs(slope), ca.fabs(s.ode))
    n_p = s.p.numel()
    linear = bool(ca.is_linear(rate, s.p)) if n_p else True
    by_p = ca.jacobian(rate, s.p)
    constant_part = ca.substitute(rate, s.p, ca.DM.zeros(n_p)) if n_p and linear else rate
    function = s.function("rate", rate, terms, ca.densify(by_p), constant_part)
    rng = np.random.default_rng(0)  # where a function is looked at, no part of any answer
    size = _SAMPLES_PER_PARAMETER * (n_p + 2)
    sizes = [a.numel() for a in s.arguments]
    rows: list[Array] = []
    is_variable = False
    for _ in range(size):
        point = [np.exp(rng.uniform(-1.0, 1.0, n)) for n in sizes]
        outputs = [np.asarray(part, dtype=float).ravel() for part in function(*point)]
        if not all(np.isfinite(part).all() for part in outputs):
            continue
        is_variable |= bool(np.abs(outputs[0][0]) > _ZERO_RATE_RTOL * max(float(outputs[1][0]), np.finfo(float).tiny))
        rows.append(np.concatenate([outputs[2], outputs[3]]))
    if not rows:
        return ConservedSum(obstacle="its rate cannot be computed")
    if not is_variable:
        return ConservedSum()
    if not linear:
        return ConservedSum(obstacle="its rate is not linear in the parameters; state the relation of these itself")
    reduced = _reduce_rows(np.array(rows))
    if any(not np.any(row[:-1]) for row in reduced):
        return ConservedSum(obstacle="it changes whatever the parameters")
    symbols = ca.vertsplit(s.p)
    equations = [
        sum((ca.SX(float(a)) * p for a, p in zip(row[:-1], symbols, strict=True) if a), ca.SX(float(row[-1])))
        for row in reduced
    ]
    return ConservedSum(tuple(ca.SX(e) for e in equations))


def _reduce_rows(rows: Array) -> Array:
    """Return the independent rows in reduced echelon form, each with the leading entry 1."""
    reduced_rows = rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True), np.finfo(float).tiny)
    rank = int(np.linalg.matrix_rank(reduced_rows, tol=_ZERO_RATE_RTOL * np.linalg.norm(reduced_rows)))
    _, _, basis = np.linalg.svd(reduced_rows)
    reduced_rows, row = basis[:rank].copy(), 0
    for column in range(reduced_rows.shape[1]):
        if row == rank:
            break
        pivot = row + int(np.argmax(np.abs(reduced_rows[row:, column])))
        if abs(reduced_rows[pivot, column]) < 1e-8:
            continue
        reduced_rows[[row, pivot]] = reduced_rows[[pivot, row]]
        reduced_rows[row] /= reduced_rows[row, column]
        other_rows = np.arange(rank) != row
        reduced_rows[other_rows] -= reduced_rows[other_rows, column, None] * reduced_rows[row]
        row += 1
    reduced_rows[np.abs(reduced_rows) < 1e-9] = 0.0
    rounded_rows = np.round(reduced_rows)
    return np.where(np.abs(reduced_rows - rounded_rows) < 1e-9, rounded_rows, reduced_rows)
