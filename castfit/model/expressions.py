"""Expressions over named symbols: symbols exchanged by name, what depends on what, and NaN in a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arguments import read_real, shorten_repr
from castfit._support.arrays import Mask

NOT_A_NUMBER = (
    "is or contains NaN, which math.exp, float and similar functions return for a symbol; "
    "use castfit.exp, castfit.log, castfit.sqrt, ..."
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


def number_or_expression(label: str, value: Any, remedy: str, mistakes: list[str]) -> float | ca.SX:
    """Read a finite number or a scalar expression; a constant one is a number."""
    is_expression = isinstance(value, ca.SX) and value.numel() == 1
    if is_expression and not value.is_constant():
        if not holds_nan(value):
            return value
        mistakes.append(f"{label} {NOT_A_NUMBER}")
        return np.nan
    number = float(value) if is_expression else read_real(value)
    if number is not None and np.isfinite(number):
        return number
    mistakes.append(f"{label} is {shorten_repr(value)}; {remedy}")
    return np.nan


def substitute_by_name(expression: ca.SX, values: Mapping[str, Any]) -> ca.SX:
    """Replace symbols by numbers or expressions, by name. Other symbols stay."""
    symbols = [s for s in ca.symvar(expression) if s.name() in values]
    if not symbols:
        return expression
    replacements = ca.vertcat(*(ca.SX(values[s.name()]) for s in symbols))
    return ca.SX(ca.substitute([expression], [ca.vertcat(*symbols)], [replacements])[0])


def pattern(sparsity: ca.Sparsity) -> Mask:
    """Return the mask of the structural nonzeros of a matrix."""
    mask = np.zeros(sparsity.shape, dtype=np.bool_)
    rows, columns = sparsity.get_triplet()
    mask[rows, columns] = True
    return mask
