"""Branches of expressions: comparisons, and what jumps or kinks, in the form that they have at a point.

a < b, a <= b, a == b, not, and, or, sign, floor, ceil      the number that they are
if c then a, fmin(a, b), fmax(a, b), fabs(a)                a, b, 0 or -a
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.graphs import apply_operation, rewrite_operations

_NUMBERS = (ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE, ca.OP_NOT, ca.OP_AND, ca.OP_OR, ca.OP_SIGN, ca.OP_FLOOR, ca.OP_CEIL)
_SELECTIONS = (ca.OP_IF_ELSE_ZERO, ca.OP_FMIN, ca.OP_FMAX, ca.OP_FABS)


class Branches:
    """Columns of expressions of some arguments, with their branching operations; `values` are their decisions.

    A decision is the value of a branching operation, or 1 if a selection returns its first argument (of "if c then a":
    whether c holds).
    """

    def __init__(self, arguments: Sequence[ca.SX], columns: Sequence[ca.SX]) -> None:
        self.arguments, self.columns, self.operations = list(arguments), list(columns), list[int]()
        values: list[ca.SX] = []

        def collect(op: int, operands: Sequence[ca.SX]) -> None:
            self.operations.append(op)
            a, b = operands[0], operands[-1]
            choice = {ca.OP_IF_ELSE_ZERO: a != 0, ca.OP_FMIN: a <= b, ca.OP_FMAX: a >= b, ca.OP_FABS: a >= 0}
            values.append(choice[op] if op in choice else apply_operation(op, operands))

        rewrite_operations(self.columns, (*_NUMBERS, *_SELECTIONS), collect)
        self.values = values

    @cached_property
    def _function(self) -> ca.Function:
        return ca.Function("decisions", self.arguments, [ca.densify(ca.vertcat(*self.values))])

    def evaluate(self, *point: Any) -> Array:
        """Return the decisions at a point of the arguments."""
        function: Any = self._function
        return np.asarray(function(*point), dtype=np.float64)[:, 0]

    def resolve(self, decisions: Array) -> list[ca.SX]:
        """Return the columns in the form that they have for these decisions."""
        remaining = iter(decisions.tolist())

        def choose(op: int, operands: Sequence[ca.SX]) -> ca.SX:
            decision, a, b = next(remaining), operands[0], operands[-1]
            if op in _NUMBERS:
                return ca.SX(decision)
            if op == ca.OP_IF_ELSE_ZERO:
                return b if decision else ca.SX(0)
            return (a if decision else -a) if op == ca.OP_FABS else a if decision else b

        return rewrite_operations(self.columns, (*_NUMBERS, *_SELECTIONS), choose) if self.operations else self.columns
