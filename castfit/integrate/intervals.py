"""Interval arithmetic: bounds of an expression whose arguments lie in intervals.

Every operation of the expression's graph is carried out on pairs of bounds (Moore, Kearfott, Cloud: Introduction to
Interval Analysis, 2009, chapters 2 to 5), on many boxes at once.  An interval that does not contain zero proves that
the expression has no zero in the box; the bounds are those of exact arithmetic except for rounding.  Operations that
jump, such as floor, also return where they may jump, since their derivatives do not show it.  The bounds of unknown
operations are infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Mask

    Bounds = tuple[Array, Array]


class Enclosure:
    """Bounds of the entries of a column (m,) as a function of arguments (n,)."""

    def __init__(self, arguments: ca.SX, column: ca.SX) -> None:
        self._function = f = ca.Function("enclosed", [arguments], [ca.densify(column)])
        self.size = column.numel()
        self._work = f.sz_w()
        self._steps = [
            (f.instruction_id(i), tuple(f.instruction_input(i)), tuple(f.instruction_output(i)))
            for i in range(f.n_instructions())
        ]
        self._constants = {
            i: f.instruction_constant(i) for i, (op, _, _) in enumerate(self._steps) if op == ca.OP_CONST
        }

    def __call__(self, low: Array, high: Array) -> tuple[Array, Array, Mask]:
        """Return bounds (N, m) for arguments between low and high (N, n), and a mask of possible jumps, (N,)."""
        count = low.shape[0]
        bounds = np.empty((2, count, self.size))
        jumps = np.zeros(count, dtype=np.bool_)
        work: list[Bounds] = [(low[:, 0], low[:, 0])] * self._work if low.shape[1] else [_EMPTY] * self._work
        with np.errstate(all="ignore"):
            for i, (op, inputs, outputs) in enumerate(self._steps):
                if op == ca.OP_CONST:
                    value = np.full(count, self._constants[i])
                    work[outputs[0]] = value, value
                elif op == ca.OP_INPUT:
                    work[outputs[0]] = low[:, inputs[1]], high[:, inputs[1]]
                elif op == ca.OP_OUTPUT:
                    bounds[0, :, outputs[1]], bounds[1, :, outputs[1]] = work[inputs[0]]
                else:
                    a = work[inputs[0]]
                    b = work[inputs[1]] if len(inputs) > 1 else a
                    (lo, hi), jump = _apply_operation(op, a, b)
                    if jump is not None:
                        jumps |= jump
                    is_nan = np.isnan(lo) | np.isnan(hi)
                    if is_nan.any():
                        lo, hi = np.where(is_nan, -np.inf, lo), np.where(is_nan, np.inf, hi)
                    work[outputs[0]] = lo, hi
        return bounds[0], bounds[1], jumps


_EMPTY: Bounds = (np.empty(0), np.empty(0))


def _apply_operation(op: int, a: Bounds, b: Bounds) -> tuple[Bounds, Mask | None]:
    """Return the bounds of an operation, and a mask of possible jumps; None if it cannot jump."""
    if op in _INCREASING_FUNCTIONS:
        f = _INCREASING_FUNCTIONS[op]
        return (f(a[0]), f(a[1])), None
    if op in _CONTINUOUS_OPERATIONS:
        return _CONTINUOUS_OPERATIONS[op](a, b), None
    if op in _JUMPING_OPERATIONS:
        out = _JUMPING_OPERATIONS[op](a, b)
        return out, out[0] != out[1]
    if op in (ca.OP_FMOD, ca.OP_REMAINDER):
        round_quotient = np.trunc if op == ca.OP_FMOD else np.round
        q = _divide(a, b)
        is_exact = (round_quotient(q[0]) == round_quotient(q[1])) & (b[0] == b[1])
        turns = round_quotient(q[0])
        remainder = _subtract(a, _multiply((turns, turns), b))
        reach = np.maximum(np.abs(b[0]), np.abs(b[1]))
        return (np.where(is_exact, remainder[0], -reach), np.where(is_exact, remainder[1], reach)), ~is_exact
    if op == ca.OP_COPYSIGN:
        size, sign = _magnitude(a, a), _JUMPING_OPERATIONS[ca.OP_SIGN](b, b)
        return _multiply(size, sign), sign[0] != sign[1]
    if op == ca.OP_ATAN2:
        crossing = (a[0] <= 0) & (a[1] >= 0) & (b[0] <= 0)
        corners = [np.arctan2(y, x) for y in a for x in b]
        low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
        return (np.where(crossing, -np.pi, low), np.where(crossing, np.pi, high)), crossing & ~_is_point(a, b)
    infinite = np.full_like(a[0], np.inf)
    return (-infinite, infinite), np.ones(a[0].shape, dtype=np.bool_)


def _is_point(a: Bounds, b: Bounds) -> Mask:
    return (a[0] == a[1]) & (b[0] == b[1])


def _add(a: Bounds, b: Bounds) -> Bounds:
    return a[0] + b[0], a[1] + b[1]


def _subtract(a: Bounds, b: Bounds) -> Bounds:
    return a[0] - b[1], a[1] - b[0]


def _multiply(a: Bounds, b: Bounds) -> Bounds:
    corners = [x * y for x in a for y in b]
    corners = [np.where(np.isnan(c), 0.0, c) for c in corners]  # zero times infinity counts as zero
    return np.minimum.reduce(corners), np.maximum.reduce(corners)


def _invert(a: Bounds, _: Bounds) -> Bounds:
    low, high = 1.0 / a[1], 1.0 / a[0]
    contains_zero = (a[0] <= 0) & (a[1] >= 0)
    return np.where(contains_zero, -np.inf, low), np.where(contains_zero, np.inf, high)


def _divide(a: Bounds, b: Bounds) -> Bounds:
    is_exact = _is_point(a, b)
    low, high = _multiply(a, _invert(b, b))
    return np.where(is_exact, a[0] / b[0], low), np.where(is_exact, a[0] / b[0], high)


def _magnitude(a: Bounds, _: Bounds) -> Bounds:
    contains_zero = (a[0] <= 0) & (a[1] >= 0)
    low_size, high_size = np.abs(a[0]), np.abs(a[1])
    return np.where(contains_zero, 0.0, np.minimum(low_size, high_size)), np.maximum(low_size, high_size)


def _square(a: Bounds, b: Bounds) -> Bounds:
    low, high = _magnitude(a, b)
    return low * low, high * high


def _even_function(f: Callable[[Array], Array]) -> Callable[[Bounds, Bounds], Bounds]:
    """Return the bounds of an even function that rises with the magnitude of its argument."""

    def bounds(a: Bounds, b: Bounds) -> Bounds:
        low, high = _magnitude(a, b)
        return f(low), f(high)

    return bounds


def _power(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a^b, infinite for a pole, or for a negative base whose power is not one integer."""
    is_integer = (b[0] == b[1]) & (b[0] == np.round(b[0]))
    is_exact = _is_point(a, b)
    corners = [x**y for x in a for y in b]
    low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
    is_even = is_integer & (b[0] % 2 == 0)
    contains_zero = (a[0] <= 0) & (a[1] >= 0)
    low = np.where(is_even & contains_zero & (b[0] > 0), 0.0, low)
    pole = contains_zero & (b[0] < 0)
    low, high = np.where(pole, -np.inf, low), np.where(pole, np.inf, high)
    undefined = ~is_integer & (a[0] < 0) & ~is_exact
    low, high = np.where(undefined, -np.inf, low), np.where(undefined, np.inf, high)
    return np.where(is_exact, a[0] ** b[0], low), np.where(is_exact, a[0] ** b[0], high)


def _sine(a: Bounds, _: Bounds) -> Bounds:
    return _wave_bounds(a, np.sin, 0.5 * np.pi)


def _cosine(a: Bounds, _: Bounds) -> Bounds:
    return _wave_bounds(a, np.cos, 0.0)


def _wave_bounds(a: Bounds, f: Callable[[Array], Array], crest: float) -> Bounds:
    """Return the bounds of a wave with a crest there and every whole turn from it."""
    low_value, high_value = f(a[0]), f(a[1])

    def contains_turn(position: float) -> Mask:
        return np.floor((a[1] - position) / (2 * np.pi)) > np.floor((a[0] - position) / (2 * np.pi))

    low = np.where(contains_turn(crest + np.pi), -1.0, np.minimum(low_value, high_value))
    return low, np.where(contains_turn(crest), 1.0, np.maximum(low_value, high_value))


def _tangent(a: Bounds, _: Bounds) -> Bounds:
    pole = np.floor((a[1] - 0.5 * np.pi) / np.pi) > np.floor((a[0] - 0.5 * np.pi) / np.pi)
    return np.where(pole, -np.inf, np.tan(a[0])), np.where(pole, np.inf, np.tan(a[1]))


def _truth_bounds(sure: Mask, possible: Mask) -> Bounds:
    return sure.astype(float), possible.astype(float)


def _conditional(a: Bounds, b: Bounds) -> Bounds:
    """Return b where a is true, and else 0."""
    is_true, is_false = (a[0] > 0) | (a[1] < 0), (a[0] == 0) & (a[1] == 0)
    low = np.where(is_true, b[0], np.minimum(b[0], 0.0))
    high = np.where(is_true, b[1], np.maximum(b[1], 0.0))
    return np.where(is_false, 0.0, low), np.where(is_false, 0.0, high)


def _compare_equal(a: Bounds, b: Bounds) -> tuple[Mask, Mask]:
    return _is_point(a, b) & (a[0] == b[0]), (a[0] <= b[1]) & (b[0] <= a[1])


def _surely_and_possibly_true(a: Bounds) -> tuple[Mask, Mask]:
    return (a[0] > 0) | (a[1] < 0), (a[0] != 0) | (a[1] != 0)


_INCREASING_FUNCTIONS: dict[int, Callable[[Array], Array]] = {
    ca.OP_ASSIGN: lambda a: a, ca.OP_EXP: np.exp, ca.OP_LOG: np.log, ca.OP_SQRT: np.sqrt, ca.OP_ASIN: np.arcsin,
    ca.OP_ATAN: np.arctan, ca.OP_SINH: np.sinh, ca.OP_TANH: np.tanh, ca.OP_ASINH: np.arcsinh, ca.OP_ACOSH: np.arccosh,
    ca.OP_ATANH: np.arctanh, ca.OP_LOG1P: np.log1p, ca.OP_EXPM1: np.expm1, ca.OP_TWICE: lambda a: 2 * a,
    ca.OP_ERF: np.vectorize(math.erf, otypes=[float]),
}  # fmt: skip
_CONTINUOUS_OPERATIONS: dict[int, Callable[[Bounds, Bounds], Bounds]] = {
    ca.OP_ADD: _add,
    ca.OP_SUB: _subtract,
    ca.OP_MUL: _multiply,
    ca.OP_DIV: _divide,
    ca.OP_INV: _invert,
    ca.OP_NEG: lambda a, _: (-a[1], -a[0]),
    ca.OP_SQ: _square,
    ca.OP_POW: _power,
    ca.OP_CONSTPOW: _power,
    ca.OP_FABS: _magnitude,
    ca.OP_COSH: _even_function(np.cosh),
    ca.OP_SIN: _sine,
    ca.OP_COS: _cosine,
    ca.OP_TAN: _tangent,
    ca.OP_ACOS: lambda a, _: (np.arccos(a[1]), np.arccos(a[0])),
    ca.OP_FMIN: lambda a, b: (np.minimum(a[0], b[0]), np.minimum(a[1], b[1])),
    ca.OP_FMAX: lambda a, b: (np.maximum(a[0], b[0]), np.maximum(a[1], b[1])),
    ca.OP_IF_ELSE_ZERO: _conditional,
    ca.OP_HYPOT: lambda a, b: (
        np.hypot(_magnitude(a, a)[0], _magnitude(b, b)[0]),
        np.hypot(_magnitude(a, a)[1], _magnitude(b, b)[1]),
    ),
}
_JUMPING_OPERATIONS: dict[int, Callable[[Bounds, Bounds], Bounds]] = {
    ca.OP_FLOOR: lambda a, _: (np.floor(a[0]), np.floor(a[1])),
    ca.OP_CEIL: lambda a, _: (np.ceil(a[0]), np.ceil(a[1])),
    ca.OP_SIGN: lambda a, _: (np.sign(a[0]), np.sign(a[1])),
    ca.OP_LT: lambda a, b: _truth_bounds(a[1] < b[0], a[0] < b[1]),
    ca.OP_LE: lambda a, b: _truth_bounds(a[1] <= b[0], a[0] <= b[1]),
    ca.OP_EQ: lambda a, b: _truth_bounds(*_compare_equal(a, b)),
    ca.OP_NE: lambda a, b: _truth_bounds(*(~m for m in reversed(_compare_equal(a, b)))),
    ca.OP_NOT: lambda a, _: _truth_bounds(*(~m for m in reversed(_surely_and_possibly_true(a)))),
    ca.OP_AND: lambda a, b: _truth_bounds(
        *(x & y for x, y in zip(_surely_and_possibly_true(a), _surely_and_possibly_true(b), strict=True))
    ),
    ca.OP_OR: lambda a, b: _truth_bounds(
        *(x | y for x, y in zip(_surely_and_possibly_true(a), _surely_and_possibly_true(b), strict=True))
    ),
}


def may_jump(expression: ca.SX) -> bool:
    """Check whether an expression may jump at a point that its derivative does not show, such as floor(t)."""
    f = ca.Function("jumps", ca.symvar(expression), [expression])
    return any(f.instruction_id(i) in _JUMPING_CODES for i in range(f.n_instructions()))


_JUMPING_CODES = {*_JUMPING_OPERATIONS, ca.OP_FMOD, ca.OP_REMAINDER, ca.OP_COPYSIGN, ca.OP_IF_ELSE_ZERO}
