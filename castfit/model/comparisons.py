"""Conditions taken apart: the comparisons in them, and how their truth follows from the signs of differences.

    a < b      s > 0  with s the sign of b - a          a <= b     s >= 0
    a == b     s == 0                                   a != b     s != 0

So a condition such as ``logic_and(x > 1, t <= 5)`` changes only where one of its differences passes zero, which is
located like any other zero.  Near a zero its truth follows from the located signs, not from rounded values.

A comparison of piecewise values compares each of them:  if_else(c, a, b) < d  is  (c and a < d) or (not c and b < d).
A comparison of a rounded value with a number compares the value itself:  floor(y) == 2  is  y >= 2 and not y >= 3.
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
_MAX_CONDITIONS = 5  # largest number of conditions in a piecewise expression whose values are compared one by one ...
_MAX_VARYING_PIECES = 3  # ... and of values among these that are no numbers
ROUNDING = (ca.OP_FLOOR, ca.OP_CEIL)
_LOGICAL = (*_COMPARISONS, ca.OP_NOT, ca.OP_AND, ca.OP_OR)
_PARTIAL = (  # operations that are not finite for all numbers
    ca.OP_SQRT, ca.OP_LOG, ca.OP_LOG1P, ca.OP_DIV, ca.OP_INV, ca.OP_POW, ca.OP_CONSTPOW, ca.OP_FMOD, ca.OP_REMAINDER,
    ca.OP_TAN, ca.OP_ASIN, ca.OP_ACOS, ca.OP_ACOSH, ca.OP_ATANH,
)  # fmt: skip

Replacements = dict[int, tuple[ca.SX, ca.SX]]
"""Symbols, each with the expression that it stands for, by the hash of that."""


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

    def becomes_true(self, axis: int, direction: int, *, at_jump: bool | None = None) -> bool | None:
        """Check whether the condition becomes true exactly at the zero of a difference, as in ``x >= 1``.

        direction : 1 if the difference rises, -1 if it falls, 0 for either
        at_jump : if the difference jumps, whether it has its new value at the very time of the jump

        Returns False if it becomes true beyond the zero, and None if this difference never makes it true.  Returns
        True also if there are too many cases to try.
        """
        truth_values = self._everywhere((-1.0, 0.0, 1.0))
        if truth_values is None:
            return True
        truths = np.moveaxis(truth_values, axis, 0)
        pairs = [(i, j) for i, j in permutations(range(3), 2) if direction * (j - i) >= 0]
        changes = {pair: bool((truths[pair[1]] & ~truths[pair[0]]).any()) for pair in pairs}
        if at_jump is not None:
            return at_jump if any(changes.values()) else None
        if changes.get((0, 1)) or changes.get((2, 1)):
            return True
        return False if changes.get((0, 2)) or changes.get((2, 0)) else None

    def is_special_at_zero(self, axis: int) -> bool:
        """Check whether the condition may have another truth at the zero of a difference than on both sides of it."""
        truth_values = self._everywhere((-1.0, 0.0, 1.0))
        if truth_values is None:
            return True
        below, zero, above = np.moveaxis(truth_values, axis, 0)
        return bool(((below == above) & (zero != below)).any())

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
        comparisons: Replacements = {}
        formula = replace_operations(e, _COMPARISONS, comparisons)
        symbols = [symbol for symbol, _ in comparisons.values()]
        if not {s.name() for s in ca.symvar(formula)} <= {s.name() for s in symbols}:
            return self._compare(ca.OP_NE, ca.SX(0), e)  # a number, which is true unless it is zero
        truths = [self._compare(c.op(), c.dep(0), c.dep(1)) for _, c in comparisons.values()]
        is_truth = formula.is_symbolic() or is_condition(formula)
        return ca.substitute([formula if is_truth else formula != 0], [ca.vertcat(*symbols)], [ca.vertcat(*truths)])[0]

    def _compare(self, op: int, left: ca.SX, right: ca.SX) -> ca.SX:
        """Return the truth of a comparison, of each pair of values if these are piecewise."""
        inner: Replacements = {}
        sides = [replace_operations(side, _COMPARISONS, inner) for side in (left, right)]
        symbols = ca.vertcat(*(symbol for symbol, _ in inner.values()))
        selections = list(product((0.0, 1.0), repeat=len(inner))) if len(inner) <= _MAX_CONDITIONS else []
        pairs = [ca.substitute(sides, [symbols], [ca.DM(bits)]) if bits else sides for bits in selections]
        varying = [a - b for a, b in pairs if not (a - b).is_constant()]
        if not pairs or (inner and (len(varying) > _MAX_VARYING_PIECES or any(map(_may_be_undefined, varying)))):
            return self._compare_values(op, left, right)
        truths = [self._truth(c) for _, c in inner.values()]
        cases = [
            reduce(ca.logic_and, (t if bit else ca.logic_not(t) for t, bit in zip(truths, bits, strict=True)), truth)
            for bits, truth in (
                (bits, self._compare_values(op, a, b)) for bits, (a, b) in zip(selections, pairs, strict=True)
            )
        ]
        return reduce(ca.logic_or, cases)

    def _compare_values(self, op: int, left: ca.SX, right: ca.SX) -> ca.SX:
        jumps: Replacements = {}
        rounded = replace_operations(right - left, ROUNDING, jumps)
        if len(jumps) == 1:
            ((symbol, jump),) = jumps.values()
            slope, offset = ca.jacobian(rounded, symbol), ca.substitute([rounded], [symbol], [ca.SX(0)])[0]
            if slope.is_constant() and offset.is_constant() and not slope.is_zero():
                return self._compare_rounded(op, jump, float(slope), float(offset))
        s = ca.sign(right - left) if (right - left).is_constant() else self._sign(right, left)
        return {ca.OP_LT: s > 0, ca.OP_LE: s >= 0, ca.OP_EQ: s == 0, ca.OP_NE: s != 0}[op]

    def _compare_rounded(self, op: int, jump: ca.SX, slope: float, offset: float) -> ca.SX:
        """Return the truth of a comparison of 0 with slope * jump + offset, where the jump is a floor or a ceil."""
        y = jump.dep(0)
        if jump.op() == ca.OP_CEIL:  # ceil(y) = -floor(-y)
            y, slope = -y, -slope
        limit = -offset / slope
        reaches, exceeds = (
            self._compare_values(ca.OP_LE, ca.SX(number), y) for number in (np.ceil(limit), np.floor(limit) + 1.0)
        )  # floor(y) >= limit and floor(y) > limit
        rising = {ca.OP_LT: exceeds, ca.OP_LE: reaches}
        falling = {ca.OP_LT: ca.logic_not(reaches), ca.OP_LE: ca.logic_not(exceeds)}
        is_equal = ca.logic_and(reaches, ca.logic_not(exceeds))
        return {ca.OP_EQ: is_equal, ca.OP_NE: ca.logic_not(is_equal), **(rising if slope > 0.0 else falling)}[op]

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


def replace_operations(e: ca.SX, operations: Container[int], replacements: Replacements) -> ca.SX:
    """Replace the results of some operations in an expression by symbols, which `replacements` collects."""
    f = ca.Function("operations", ca.symvar(e), [e])
    if not any(f.instruction_id(i) in operations for i in range(f.n_instructions())):
        return e
    if e.op() in operations:
        return replacements.setdefault(hash(e), (ca.SX.sym(f"operation {hash(e)}"), e))[0]
    rebuild = ca.SX.unary if e.n_dep() == 1 else ca.SX.binary
    return rebuild(e.op(), *(replace_operations(e.dep(i), operations, replacements) for i in range(e.n_dep())))


def _may_be_undefined(e: ca.SX) -> bool:
    """Check whether an expression contains an operation that is not finite for all numbers."""
    partial: Replacements = {}
    replace_operations(e, _PARTIAL, partial)
    return any(
        p.op() != ca.OP_DIV or not p.dep(1).is_constant() or _may_be_undefined(p.dep(0)) for _, p in partial.values()
    )
