"""PEtab's formulas: from text to operations in the order in which a stack of operands carries them out, and to CasADi.

The syntax is that of PEtab's specification: `^` binds strongest, and to the right; then signs and `!`, products, sums,
comparisons; last `&&` and `||`, which bind alike.  All others bind to the left.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import casadi as ca

from castfit._support.status import suggest
from castfit.formats.functions import circular_functions

Operation = tuple[str, int]
"""What it is called, and how many operands it takes."""

NEGATIVE, NOT, PIECEWISE = "negative", "!", "piecewise"
RESERVED = frozenset({"inf", "nan", "true", "false"})

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\|\||&&|[<>=!]=|[-+*/^<>!(),]))",
    re.ASCII,
)
_LITERALS = {"inf": float("inf"), "true": 1.0, "false": 0.0}
_STRENGTH = {
    **dict.fromkeys(("||", "&&"), 1),
    **dict.fromkeys(("==", "!=", "<", ">", "<=", ">="), 2),
    **dict.fromkeys(("+", "-"), 3),
    **dict.fromkeys(("*", "/"), 4),
    "^": 6,
}
_PREFIX_PRECEDENCE = 5  # precedence of prefix operators
_NUMBERS_OF_OPERANDS = {"log": (1, 2), **dict.fromkeys(("pow", "min", "max"), (2,))}  # of functions; 1 otherwise


class FormulaError(ValueError):
    """A formula that cannot be read or expressed; the message says why."""


@cache
def parsed(text: str, functions: frozenset[str]) -> tuple[float | str | Operation, ...]:
    """Return a formula's numbers, names and operations, operands before what takes them.

    Raises FormulaError: if it cannot be read, or calls something that is none of `functions`.
    """
    reader = _Parser(text, functions)
    try:
        reader.read(0)
    except RecursionError as error:
        raise FormulaError(f"'{text}' cannot be read: it is nested too deeply") from error
    if reader.next:
        raise reader.build_error()
    return tuple(reader.found)


class _Parser:
    """Parser state: the remaining text of a formula and the operations found so far."""

    def __init__(self, text: str, functions: frozenset[str]) -> None:
        self.text, self.functions, self.at = text, functions, 0
        self.found: list[float | str | Operation] = []
        self.next = self.kind = ""
        self.advance()

    def build_error(self) -> FormulaError:
        """Return the error for an unexpected token or an early end of the formula."""
        reason = (
            f"'{self.next}' was not expected at position {self.at - len(self.next) + 1}"
            if self.next
            else "it ends early"
        )
        fix = "; write powers as a ^ b" if "**" in self.text else ""
        return FormulaError(f"'{self.text}' cannot be read: {reason}{fix}")

    def advance(self) -> str:
        """Go on to the next token; return the present one."""
        token, match = self.next, _TOKEN.match(self.text, self.at)
        if match is not None:
            self.kind, self.next, self.at = match.lastgroup or "", match[match.lastgroup or 0], match.end()
            return token
        remainder = self.text[self.at :].strip()
        if remainder:
            raise FormulaError(f"'{self.text}' cannot be read: '{remainder[0]}' is no part of formulas")
        self.kind = self.next = ""
        return token

    def read(self, min_strength: int) -> None:
        """Read an operand, and all that operators that bind at least so strongly join to it."""
        self.operand()
        while self.kind == "sign" and (strength := _STRENGTH.get(self.next, -1)) >= max(min_strength, 1):
            sign = self.advance()
            self.read(strength if sign == "^" else strength + 1)
            self.found.append((sign, 2))

    def operand(self) -> None:
        """Read one operand: a number, name, function call, prefixed operand or parenthesised formula."""
        kind, token = self.kind, self.next
        if kind == "number":
            self.found.append(float(self.advance()))
        elif kind == "name":
            self.advance()
            if self.next == "(":
                self.call(token)
            elif token in _LITERALS:
                self.found.append(_LITERALS[token])
            elif token.lower() in RESERVED:
                raise FormulaError(f"'{self.text}' cannot be read: '{token}' is reserved")
            else:
                self.found.append(token)
        elif token in ("+", "-", "!"):
            self.advance()
            self.read(_PREFIX_PRECEDENCE)
            if token != "+":
                self.found.append((NOT if token == "!" else NEGATIVE, 1))
        elif token == "(":
            self.advance()
            self.read(0)
            self.close()
        else:
            raise self.build_error()

    def call(self, name: str) -> None:
        """Read the operands of a function."""
        if name not in self.functions:
            raise FormulaError(f"'{self.text}' cannot be read: the function '{name}' is unknown: "
                               f"{suggest(name, sorted(self.functions))}")  # fmt: skip
        self.advance()
        self.read(0)
        count = 1
        while self.next == ",":
            self.advance()
            self.read(0)
            count += 1
        self.close()
        allowed_counts = _NUMBERS_OF_OPERANDS.get(name, (1,))
        if count % 2 == 0 if name == PIECEWISE else count not in allowed_counts:
            expected = "an odd number of operands" if name == PIECEWISE else " or ".join(map(str, allowed_counts))
            raise FormulaError(f"'{self.text}' cannot be read: '{name}' takes {expected}, not {count}")
        self.found.append((name, count))

    def close(self) -> None:
        """Go past a closing parenthesis."""
        if self.next != ")":
            raise self.build_error()
        self.advance()


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
