"""PEtab's formulas as CasADi expressions."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import casadi as ca

from castfit.formats.functions import circular_functions
from castfit.formats.petab.parsing import NEGATIVE, NOT, PIECEWISE, RESERVED, FormulaError, Operation, parsed

_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_MIN_POWER_BASE = 1e-150  # smallest base of a power, if rounding made the base zero or negative

Graph = ca.SX | float


def number(text: str) -> float | None:
    """Read a number; None if a text is none."""
    try:
        return float(text)
    except ValueError:
        return None


def is_name(text: str) -> bool:
    """Check whether a text is a valid PEtab identifier that is not reserved."""
    return _NAME.match(text) is not None and text.lower() not in RESERVED


def names_in(text: str) -> frozenset[str]:
    """Return the identifiers in a formula.

    Raises FormulaError: if it cannot be read.
    """
    if is_name(text):
        return frozenset({text})
    parts = () if number(text) is not None else _parsed(text)
    return frozenset(part for part in parts if isinstance(part, str))


def expression(text: str, graphs: Mapping[str, Graph]) -> Graph:
    """Return a formula as a CasADi expression of what its identifiers are; a number where it holds none, or nothing.

    Raises FormulaError: if it cannot be read, holds an unknown identifier, or a function that CasADi has not.
    """
    value = number(text or "nan")  # an error of an empty cell is added elsewhere
    if value is not None:
        return value
    if is_name(text):
        return _look_up_symbol(text, graphs)
    operands: list[Graph] = []
    for part in _parsed(text):
        if isinstance(part, tuple):
            arguments = operands[-part[1] :]
            del operands[-part[1] :]
            operands.append(_result(text, part, arguments))
        else:
            operands.append(_look_up_symbol(part, graphs) if isinstance(part, str) else part)
    return operands[0]


@cache
def _parsed(text: str) -> tuple[float | str | Operation, ...]:
    return parsed(text, frozenset((*_FUNCTIONS, PIECEWISE)))


def _look_up_symbol(name: str, graphs: Mapping[str, Graph]) -> Graph:
    if name not in graphs:
        raise FormulaError(f"'{name}' is unknown")
    return graphs[name]


def _result(text: str, operation: Operation, operands: list[Graph]) -> Graph:
    """Apply an operation to its operands. The result is a number if all operands are numbers."""
    name = operation[0]
    function = _piecewise if name == PIECEWISE else _OPERATORS.get(operation) or _FUNCTIONS[name]
    numbers = [a for a in operands if not isinstance(a, ca.SX)]
    if len(numbers) < len(operands):
        return function(*operands)
    result = float(function(*map(ca.SX, numbers)))
    if math.isnan(result) or (math.isinf(result) and name in ("^", "pow") and all(map(math.isfinite, numbers))):
        raise FormulaError(f"'{text}' holds '{name}' of {', '.join(f'{a:g}' for a in numbers)}, which is no number")
    return result


def _piecewise(*operands: Graph) -> ca.SX:
    """Return the first value whose condition holds, else the last one."""
    *pairs, out = map(ca.SX, operands)
    for k in range(len(pairs) - 2, -1, -2):
        value, when = pairs[k], pairs[k + 1]
        out = (value if float(when) else out) if when.is_constant() else ca.if_else(when, value, out)
    return out


def power(base: Graph, exponent: Graph) -> Graph:
    """Return base^exponent, with derivatives also where rounding has made the base of an estimated power negative.

    A power with an exponent that is no number is that of a positive base: exp(exponent log base).
    """
    fixed = not isinstance(exponent, ca.SX) or exponent.is_constant()
    if fixed:
        exponent = float(exponent)
        if exponent == 0.5:
            return ca.sqrt(base)
        return ca.constpow(base, exponent) if exponent != int(exponent) or abs(exponent) > 8 else base ** int(exponent)
    if not isinstance(base, ca.SX) or base.is_constant():
        base = float(base)
        return ca.exp(exponent * math.log(base)) if base > 0 else ca.SX(base) ** exponent
    return ca.exp(exponent * ca.log(ca.fmax(base, _MIN_POWER_BASE)))


def _log(x: Graph, base: Graph | None = None) -> Any:
    return ca.log(x) if base is None else ca.log(x) / ca.log(base)


def _log2(x: Graph) -> Any:
    return _log(x, 2.0)


def _quotient(a: Any, b: Any) -> Any:
    if b.is_zero() if isinstance(b, ca.SX) else b == 0.0:
        raise FormulaError("it divides by zero")
    return a / b


_OPERATORS: dict[Operation, Callable[..., Any]] = {
    (NEGATIVE, 1): operator.neg,
    (NOT, 1): ca.logic_not,
    ("+", 2): operator.add,
    ("-", 2): operator.sub,
    ("*", 2): operator.mul,
    ("/", 2): _quotient,
    ("^", 2): power,
    ("<", 2): operator.lt,
    (">", 2): operator.gt,
    ("<=", 2): operator.le,
    (">=", 2): operator.ge,
    ("==", 2): operator.eq,
    ("!=", 2): operator.ne,
    ("&&", 2): ca.logic_and,
    ("||", 2): ca.logic_or,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "pow": power,
    "exp": ca.exp,
    "sqrt": ca.sqrt,
    "log": _log,
    "ln": ca.log,
    "log2": _log2,
    "log10": ca.log10,
    "abs": ca.fabs,
    "sign": ca.sign,
    "min": ca.fmin,
    "max": ca.fmax,
    **circular_functions("arc"),
}
