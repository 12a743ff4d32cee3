"""Expressions over named symbols: symbols exchanged by name, what depends on what, and NaN in a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.arguments import real, text

if TYPE_CHECKING:
    from castfit._support.arrays import Mask

NOT_A_NUMBER = (
    "is or contains NaN, which is what math.exp, float and the like make of a symbol; "
    "write castfit.exp, castfit.log, castfit.sqrt, ..."
)


def holds_nan(expression: ca.SX) -> bool:
    """Check whether an expression graph contains NaN."""
    if expression.is_constant():
        return bool(np.isnan(float(expression)))
    if "nan" not in str(expression):  # much faster than going through the graph; a name may hold it too
        return False
    graph = ca.Function("graph", ca.symvar(expression), [expression])
    constants = (k for k in range(graph.n_instructions()) if graph.instruction_id(k) == ca.OP_CONST)
    return any(np.isnan(graph.instruction_constant(k)) for k in constants)


def number_or_expression(what: str, value: Any, remedy: str, mistakes: list[str]) -> float | ca.SX:
    """Read a finite number or a scalar expression; a constant one is a number."""
    single = isinstance(value, ca.SX) and value.numel() == 1
    if single and not value.is_constant():
        if not holds_nan(value):
            return value
        mistakes.append(f"{what} {NOT_A_NUMBER}")
        return np.nan
    number = float(value) if single else real(value)
    if number is not None and np.isfinite(number):
        return number
    mistakes.append(f"{what} is {text(value)}; {remedy}")
    return np.nan


def exchanged(expression: ca.SX, values: Mapping[str, Any]) -> ca.SX:
    """Replace symbols by numbers or expressions, by name. Other symbols stay."""
    found = [s for s in ca.symvar(expression) if s.name() in values]
    if not found:
        return expression
    new = ca.vertcat(*(ca.SX(values[s.name()]) for s in found))
    return ca.SX(ca.substitute([expression], [ca.vertcat(*found)], [new])[0])


def pattern(sparsity: ca.Sparsity) -> Mask:
    """Return the mask of the structural nonzeros of a matrix."""
    out = np.zeros(sparsity.shape, dtype=np.bool_)
    rows, columns = sparsity.get_triplet()
    out[rows, columns] = True
    return out
