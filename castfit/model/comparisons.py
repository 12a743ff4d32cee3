"""Conditions taken apart: the comparisons in them, and how their truth follows from the signs of differences.

    a < b      s > 0  with s the sign of b - a          a <= b     s >= 0
    a == b     s == 0                                   a != b     s != 0

So a condition such as ``logic_and(x > 1, t <= 5)`` changes only where one of its differences passes zero, which is
located like any other zero.  Near a zero its truth follows from the located signs, not from rounded values.

A comparison of piecewise values compares each of them:  if_else(c, a, b) < d  is  (c and a < d) or (not c and b < d).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import field
from functools import reduce
from itertools import permutations, product
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.records import dataclass

_COMPARISONS = (ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE)
_MAX_ENUMERATED_COMPARISONS = 7  # largest number of comparisons whose 2^n truth values are all evaluated
_MAX_PIECES = 16  # largest number of values of a piecewise expression that are compared one by one ...
_MAX_VARYING_PIECES = 3  # ... and of those among them that are no numbers
_LOGICAL = (*_COMPARISONS, ca.OP_NOT, ca.OP_AND, ca.OP_OR)
_PIECEWISE = (*_LOGICAL, ca.OP_IF_ELSE_ZERO)
_PARTIAL = (  # operations that are not finite for all numbers
    ca.OP_SQRT, ca.OP_LOG, ca.OP_LOG1P, ca.OP_DIV, ca.OP_INV, ca.OP_POW, ca.OP_CONSTPOW, ca.OP_FMOD, ca.OP_REMAINDER,
    ca.OP_TAN, ca.OP_ASIN, ca.OP_ACOS, ca.OP_ACOSH, ca.OP_ATANH,
)  # fmt: skip


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

    def becomes_true_by_jump(self, axis: int, direction: int, *, at_once: bool) -> bool | None:
        """Check whether the condition becomes true at the time at which a difference jumps.

        direction : 1 if the difference rises, -1 if it falls, 0 for either
        at_once : whether the difference has its new value at the very time of the jump

        The results are those of `becomes_true`.
        """
        truth_values = self._everywhere((-1.0, 0.0, 1.0))
        if truth_values is None:
            return True
        truths = np.moveaxis(truth_values, axis, 0)
        changes = [(i, j) for i, j in permutations(range(3), 2) if direction * (j - i) >= 0]
        return at_once if any((truths[j] & ~truths[i]).any() for i, j in changes) else None

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
        if not n_signs:
            return np.asarray(float(self.truth) != 0.0)
        truth = self.function().map(len(values) ** n_signs)
        sign_combinations = np.array(list(product(values, repeat=n_signs))).reshape(-1, n_signs)
        return np.asarray(cast("Any", truth)(sign_combinations.T), dtype=float).reshape((len(values),) * n_signs) != 0.0

    def function(self) -> ca.Function:
        """Return the truth as a function of all signs (n,)."""
        return ca.Function("truth", [ca.vertcat(*self.signs) if self.signs else ca.SX(0, 1)], [self.truth])

    def _truth(self, e: ca.SX) -> ca.SX:
        op = ca.OP_NE if e.is_constant() or e.is_symbolic() else e.op()
        if op == ca.OP_NOT:
            return ca.logic_not(self._truth(e.dep(0)))
        if op in (ca.OP_AND, ca.OP_OR):
            combine = ca.logic_and if op == ca.OP_AND else ca.logic_or
            return combine(self._truth(e.dep(0)), self._truth(e.dep(1)))
        left, right, op = (e.dep(0), e.dep(1), op) if is_condition(e) else (ca.SX(0), e, ca.OP_NE)
        cases = [
            (ca.logic_and(g, h), self._compare(op, a, b))
            for (g, a), (h, b) in product(self._pieces(left), self._pieces(right))
        ]
        return cases[0][1] if len(cases) == 1 else reduce(ca.logic_or, (ca.logic_and(*case) for case in cases))

    def _compare(self, op: int, left: ca.SX, right: ca.SX) -> ca.SX:
        s = ca.sign(right - left) if left.is_constant() and right.is_constant() else self._sign(right, left)
        return {ca.OP_LT: s > 0, ca.OP_LE: s >= 0, ca.OP_EQ: s == 0, ca.OP_NE: s != 0}[op]

    def _pieces(self, e: ca.SX) -> list[tuple[ca.SX, ca.SX]]:
        """Return the truth values that select among the values of a piecewise expression, and these values.

        An expression is one piece if it contains no conditions, if it has too many pieces, or if a piece may be
        undefined outside of its own conditions.
        """
        if not _contains(e, _PIECEWISE):
            return [(ca.SX(1), e)]
        n_differences, pieces = len(self.differences), self._split(e)
        varying = [value for _, value in pieces if not value.is_constant()]
        is_small = len(pieces) <= _MAX_PIECES and len(varying) <= _MAX_VARYING_PIECES
        if is_small and not _may_be_undefined(ca.SX(ca.vertcat(*varying))):
            return pieces
        del self.differences[n_differences:], self.signs[n_differences:]
        return [(ca.SX(1), e)]

    def _split(self, e: ca.SX) -> list[tuple[ca.SX, ca.SX]]:
        if is_condition(e):
            truth = self._truth(e)
            return [(truth, ca.SX(1)), (ca.logic_not(truth), ca.SX(0))]
        if e.op() == ca.OP_IF_ELSE_ZERO:
            truth = self._truth(e.dep(0))
            return [
                *((ca.logic_and(truth, guard), value) for guard, value in self._pieces(e.dep(1))),
                (ca.logic_not(truth), ca.SX(0)),
            ]
        rebuild = ca.SX.unary if e.n_dep() == 1 else ca.SX.binary
        if _is_if_else(e):
            truth, branches = self._truth(e.dep(0).dep(0)), (self._pieces(e.dep(i).dep(1)) for i in range(2))
            selections = zip((truth, ca.logic_not(truth)), branches, strict=True)
            pieces = [(ca.logic_and(chosen, guard), value) for chosen, branch in selections for guard, value in branch]
        else:
            pieces = [
                (reduce(ca.logic_and, (guard for guard, _ in parts)), rebuild(e.op(), *(value for _, value in parts)))
                for parts in product(*(self._pieces(e.dep(i)) for i in range(e.n_dep())))
            ]
        merged: dict[float | int, tuple[ca.SX, ca.SX]] = {}
        for guard, value in pieces:
            key = float(value) if value.is_constant() else hash(value)
            merged[key] = (ca.logic_or(merged[key][0], guard) if key in merged else guard), value
        return list(merged.values())

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


def without_jumps(e: ca.SX, jumps: dict[int, tuple[ca.SX, ca.SX]]) -> ca.SX:
    """Replace floor and ceil in an expression by symbols; add these, with what they stand for, to `jumps`."""
    if not _contains(e, (ca.OP_FLOOR, ca.OP_CEIL)):
        return e
    if e.op() in (ca.OP_FLOOR, ca.OP_CEIL):
        return jumps.setdefault(hash(e), (ca.SX.sym("jump"), e))[0]
    rebuild = ca.SX.unary if e.n_dep() == 1 else ca.SX.binary
    return rebuild(e.op(), *(without_jumps(e.dep(i), jumps) for i in range(e.n_dep())))


def _is_if_else(e: ca.SX) -> bool:
    """Check whether an expression has the value of one of two branches, as ``if_else`` makes it."""
    if e.op() != ca.OP_ADD or any(
        e.dep(i).is_symbolic() or e.dep(i).is_constant() or e.dep(i).op() != ca.OP_IF_ELSE_ZERO for i in range(2)
    ):
        return False
    condition, opposite = e.dep(0).dep(0), e.dep(1).dep(0)
    return is_condition(opposite) and opposite.op() == ca.OP_NOT and ca.is_equal(opposite.dep(0), condition, 20)


def _may_be_undefined(e: ca.SX) -> bool:
    """Check whether an expression contains operations that are not finite for all numbers, or conditions."""
    f, constants = ca.Function("operations", ca.symvar(e), [e]), set[int]()
    for i in range(f.n_instructions()):
        op = f.instruction_id(i)
        divides_by_number = op == ca.OP_DIV and f.instruction_input(i)[1] in constants
        if op in (*_PARTIAL, *_PIECEWISE) and not divides_by_number:
            return True
        change = constants.update if op == ca.OP_CONST else constants.difference_update
        change(f.instruction_output(i))
    return False


def _contains(e: ca.SX, operations: Container[int]) -> bool:
    """Check whether an expression contains any of some operations."""
    f = ca.Function("operations", ca.symvar(e), [e])
    return any(f.instruction_id(i) in operations for i in range(f.n_instructions()))
