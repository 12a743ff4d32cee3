"""Expressions over named symbols: symbols exchanged by name, what depends on what, NaN in a graph, and pickling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

if TYPE_CHECKING:
    from castfit._support.arrays import Mask

NOT_A_NUMBER = (
    "is or contains NaN, which is what math.exp, float and the like make of a symbol; "
    "write castfit.exp, castfit.log, castfit.sqrt, ..."
)


def holds_nan(expression: ca.SX) -> bool:
    """Tell whether NaN stands in a graph."""
    if expression.is_constant():
        return bool(np.isnan(float(expression)))
    if "nan" not in str(expression):  # much faster than going through the graph; a name may hold it too
        return False
    graph = ca.Function("graph", ca.symvar(expression), [expression])
    constants = (k for k in range(graph.n_instructions()) if graph.instruction_id(k) == ca.OP_CONST)
    return any(np.isnan(graph.instruction_constant(k)) for k in constants)


def exchanged(expression: ca.SX, values: Mapping[str, Any]) -> ca.SX:
    """Put numbers or expressions in the place of symbols, by name; other symbols stay."""
    found = [s for s in ca.symvar(expression) if s.name() in values]
    if not found:
        return expression
    new = ca.vertcat(*(ca.SX(values[s.name()]) for s in found))
    return ca.SX(ca.substitute([expression], [ca.vertcat(*found)], [new])[0])


def pattern(sparsity: ca.Sparsity) -> Mask:
    """Return where a matrix may differ from zero."""
    out = np.zeros(sparsity.shape, dtype=np.bool_)
    rows, columns = sparsity.get_triplet()
    out[rows, columns] = True
    return out


@dataclass(frozen=True)
class PickledExpressions:
    """Numbers and expressions in a form that pickles, as bare SX does not: a function of their symbols, by name."""

    function: ca.Function
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[Any]) -> PickledExpressions:
        """Take numbers and scalar expressions."""
        column = ca.densify(ca.vertcat(*(ca.SX(v) for v in values)))
        found = ca.symvar(column)
        return cls(ca.Function("values", found, [column]), tuple(s.name() for s in found))

    def values(self) -> list[Any]:
        """Return them on new symbols; numbers are floats."""
        column = ca.SX(self.function.call([ca.SX.sym(n) for n in self.names])[0])
        return [float(v) if v.is_constant() else v for v in ca.vertsplit(column)]
