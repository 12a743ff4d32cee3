"""PEtab's formulas as CasADi expressions: the petab library parses them, SymPy holds them, this walks their trees."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import casadi as ca

from castfit.formats.functions import circular_functions
from castfit.formats.optional import library

_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_NOT_NAMES = frozenset({"inf", "nan", "true", "false"})
_SMALLEST = 1e-150  # what a base of a power counts as at least where rounding has made it zero or negative

Graph = ca.SX | float


class FormulaError(ValueError):
    """A formula that cannot be read or expressed; the message says why."""


def number(text: str) -> float | None:
    """Read a number; None if a text is none."""
    try:
        return float(text)
    except ValueError:
        return None


def is_name(text: str) -> bool:
    """Tell whether a text is an identifier of PEtab."""
    return _NAME.match(text) is not None and text.lower() not in _NOT_NAMES


def names_in(text: str) -> frozenset[str]:
    """Return the identifiers in a formula.

    Raises FormulaError: if it cannot be read.
    """
    if is_name(text):
        return frozenset({text})
    return frozenset() if number(text) is not None else frozenset(s.name for s in _parsed(text).free_symbols)


def expression(text: str, known: Mapping[str, Graph]) -> Graph:
    """Return a formula as a CasADi expression of what its identifiers are; a number where it holds none, or nothing.

    Raises FormulaError: if it cannot be read, holds an unknown identifier, or a function that CasADi has not.
    """
    value = number(text or "nan")  # an empty one is said elsewhere
    if value is not None:
        return value
    if is_name(text):
        return _known(text, known)
    return _walk(_parsed(text), known, {})


@cache
def _parsed(text: str) -> Any:
    sympify = library("petab.v1.math").sympify_petab
    try:
        return sympify(text)
    except FormulaError:
        raise
    except Exception as error:
        raise FormulaError(f"'{text}' cannot be read: {error}") from error


def _known(name: str, known: Mapping[str, Graph]) -> Graph:
    if name not in known:
        raise FormulaError(f"'{name}' is unknown")
    return known[name]


def _walk(node: Any, known: Mapping[str, Graph], done: dict[Any, Graph]) -> Graph:
    if node not in done:
        done[node] = _made(node, known, done)
    return done[node]


def _made(node: Any, known: Mapping[str, Graph], done: dict[Any, Graph]) -> Graph:
    if node.is_Symbol:
        return _known(node.name, known)
    if node.is_number and node.is_extended_real and not node.args:
        return float(node)
    kind = type(node).__name__
    if kind in ("BooleanTrue", "BooleanFalse"):
        return 1.0 if kind == "BooleanTrue" else 0.0
    if kind == "Piecewise":
        return _piecewise(node, known, done)
    arguments = [_walk(a, known, done) for a in node.args]
    if kind == "Pow":
        return power(*arguments)
    if kind in _FOLDED:
        out = arguments[0]
        for other in arguments[1:]:
            out = _FOLDED[kind](out, other)
        return out
    if kind in _FUNCTIONS:
        return _FUNCTIONS[kind](*(ca.SX(a) for a in arguments))
    if kind in ("ComplexInfinity", "NaN"):
        raise FormulaError("it divides by zero")
    raise FormulaError(f"'{node}' is not available here")


def _piecewise(node: Any, known: Mapping[str, Graph], done: dict[Any, Graph]) -> Graph:
    *pieces, last = [(_walk(value, known, done), _walk(when, known, done)) for value, when in node.args]
    out = last[0]
    for value, when in reversed(pieces):
        out = ca.if_else(ca.SX(when), ca.SX(value), ca.SX(out))
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
    return ca.exp(exponent * ca.log(ca.fmax(base, _SMALLEST)))


_FOLDED: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Min": ca.fmin,
    "Max": ca.fmax,
    "And": ca.logic_and,
    "Or": ca.logic_or,
}


def _log(x: ca.SX, base: ca.SX | None = None) -> ca.SX:
    return ca.log(x) if base is None else ca.log(x) / ca.log(base)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": ca.exp,
    "log": _log,
    "Abs": ca.fabs,
    "sign": ca.sign,
    **circular_functions("a"),
    "Not": ca.logic_not,
    "StrictLessThan": operator.lt,
    "StrictGreaterThan": operator.gt,
    "LessThan": operator.le,
    "GreaterThan": operator.ge,
    "Equality": operator.eq,
    "Unequality": operator.ne,
}
