"""Conditions taken apart: the comparisons in them, and how their truth follows from the signs of differences.

    a < b      s > 0  with s the sign of b - a          a <= b     s >= 0
    a == b     s == 0                                   a != b     s != 0

So a condition such as ``logic_and(x > 1, t <= 5)`` changes only where one of its differences passes zero, which is
located like any other zero.  Near a zero its truth follows from the located signs, not from rounded values.
"""

from __future__ import annotations

from dataclasses import field
from itertools import product
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.records import dataclass

_COMPARISONS = (ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE)
_MAX_ENUMERATED_COMPARISONS = 7  # largest number of comparisons whose 2^n truth values are all evaluated
_LOGICAL = (*_COMPARISONS, ca.OP_NOT, ca.OP_AND, ca.OP_OR)


def is_condition(expression: ca.SX) -> bool:
    """Check whether an expression is a condition with a truth value, such as ``x > 1``."""
    return not (expression.is_constant() or expression.is_symbolic()) and expression.op() in _LOGICAL


@dataclass
class Comparisons:
    """Differences in a condition, symbols of their signs, and its truth value (0 or 1) in terms of the signs."""

    differences: list[ca.SX] = field(default_factory=list[ca.SX])
    signs: list[ca.SX] = field(default_factory=list[ca.SX])
    truth: ca.SX = field(default_factory=lambda: ca.SX(0))

    @classmethod
    def from_condition(cls, condition: ca.SX) -> Comparisons:
        """Take a condition apart."""
        comparisons = cls()
        comparisons.truth = comparisons._truth(condition)
        return comparisons

    def becomes_true(self, axis: int, direction: int) -> bool | None:
        """Check whether the condition becomes true exactly at the zero of a difference, as in ``x >= 1``.

        direction : 1 if the difference rises, -1 if it falls, 0 for either

        Returns False if it becomes true beyond the zero, and None if this difference never makes it true.  Returns
        True also if there are too many cases to try.
        """
        truth_values = self._everywhere((-1.0, 0.0, 1.0))
        if truth_values is None:
            return True
        truth_below, truth_at_zero, truth_above = np.moveaxis(truth_values, axis, 0)
        changes = [(truth_below, truth_above)] * (direction >= 0) + [(truth_above, truth_below)] * (direction <= 0)
        if any((truth_at_zero & ~earlier).any() for earlier, _ in changes):
            return True
        return False if any((later & ~earlier).any() for earlier, later in changes) else None

    def holds_between(self) -> bool:
        """Check whether the condition is true for all nonzero differences.

        Return True also if there are too many cases to try.
        """
        truth_values = self._everywhere((-1.0, 1.0))
        return truth_values is None or bool(truth_values.all())

    def _everywhere(self, values: tuple[float, ...]) -> Array | None:
        """Return the truth for all signs among some values, one axis for each; None if these are too many."""
        n_signs = len(self.signs)
        if n_signs > _MAX_ENUMERATED_COMPARISONS:
            return None
        truth = self.function().map(len(values) ** n_signs)
        sign_combinations = np.array(list(product(values, repeat=n_signs))).reshape(-1, n_signs)
        return np.asarray(cast("Any", truth)(sign_combinations.T), dtype=float).reshape((len(values),) * n_signs) != 0.0

    def function(self) -> ca.Function:
        """Return the truth as a function of all signs (n,)."""
        return ca.Function("truth", [ca.vertcat(*self.signs) if self.signs else ca.SX(0, 1)], [self.truth])

    def _truth(self, e: ca.SX) -> ca.SX:
        if e.is_constant():
            return ca.SX(float(float(e) != 0.0))
        op = ca.OP_NE if e.is_symbolic() else e.op()
        if op == ca.OP_NE and not e.is_symbolic() and e.dep(1).is_zero() and _is_piecewise(e.dep(0)):
            return self._truth(e.dep(0))
        if op == ca.OP_IF_ELSE_ZERO:
            return ca.logic_and(self._truth(e.dep(0)), self._truth(e.dep(1)))
        if op == ca.OP_ADD and _is_piecewise(e):
            return ca.logic_or(self._truth(e.dep(0)), self._truth(e.dep(1)))
        if op == ca.OP_NOT:
            return ca.logic_not(self._truth(e.dep(0)))
        if op in (ca.OP_AND, ca.OP_OR):
            combine = ca.logic_and if op == ca.OP_AND else ca.logic_or
            return combine(self._truth(e.dep(0)), self._truth(e.dep(1)))
        if op in (ca.OP_EQ, ca.OP_NE) and not e.is_symbolic() and is_condition(e.dep(0)) and is_condition(e.dep(1)):
            one, other = self._truth(e.dep(0)), self._truth(e.dep(1))
            return one == other if op == ca.OP_EQ else one != other
        if op not in _COMPARISONS or e.is_symbolic():
            return self._sign(e, ca.SX(0)) != 0
        s = self._sign(e.dep(1), e.dep(0))
        return {ca.OP_LT: s > 0, ca.OP_LE: s >= 0, ca.OP_EQ: s == 0, ca.OP_NE: s != 0}[op]

    def _sign(self, one: ca.SX, other: ca.SX) -> ca.SX:
        """Return the sign of a difference, whichever way round it is known already."""
        difference, opposite = one - other, other - one
        for recorded_difference, sign in zip(self.differences, self.signs, strict=True):
            if ca.is_equal(recorded_difference, difference, 20):
                return sign
            if ca.is_equal(recorded_difference, opposite, 20):
                return -sign
        self.differences.append(difference)
        self.signs.append(ca.SX.sym(f"s{len(self.signs)}"))
        return self.signs[-1]


def _is_piecewise(e: ca.SX) -> bool:
    """Check whether an expression is a sum of if-else terms with truth values.

    At most one term is assumed to be nonzero.
    """
    if e.is_constant() or e.is_symbolic():
        return False
    if e.op() == ca.OP_IF_ELSE_ZERO:
        value = e.dep(1)
        return is_condition(value) or value.is_constant() or _is_piecewise(value)
    return e.op() == ca.OP_ADD and _is_piecewise(e.dep(0)) and _is_piecewise(e.dep(1))
