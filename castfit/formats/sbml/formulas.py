"""Formulas: libsbml's syntax trees as CasADi expressions.

libsbml parses; here a tree is walked.  What an identifier stands for is asked of a lookup, so that one formula can be
read at any time, at the start, or inside a function definition or kinetic law with names of its own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import pairwise
from typing import Any

import casadi as ca

from castfit.formats.functions import circular_functions
from castfit.formats.optional import library
from castfit.model.comparisons import Comparisons

Lookup = Callable[[str], ca.SX]

AVOGADRO_CONSTANT = 6.02214179e23  # value defined by SBML Level 3, per mole

_LANCZOS = (  # coefficients of log Gamma, g = 7, n = 9 (Lanczos 1964; coefficients by Godfrey 2001)
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)


class UnsupportedSbmlFormula(Exception):
    """Error for a formula with an element that has no CasADi expression; the message names the element."""


@dataclass(frozen=True)
class Definition:
    """A function definition: the names of its arguments, and the tree of its body."""

    arguments: tuple[str, ...]
    body: Any


@dataclass(frozen=True)
class Scope:
    """Values, rates and functions that the names in a formula stand for.

    lookup : the value of an identifier
    rate : the time derivative of an identifier's value
    derivative : the time derivative of an expression
    delayed : the value that a tree had a time ago, itself a tree, in a scope
    functions : mapping from str to Definition
    """

    lookup: Lookup
    time: ca.SX
    rate: Lookup
    derivative: Callable[[ca.SX], ca.SX]
    delayed: Callable[[Any, Any, Scope], ca.SX]
    functions: Mapping[str, Definition]

    def inside(self, names: Mapping[str, ca.SX]) -> Scope:
        """Return the scope in which some names stand for something else."""

        def lookup(name: str) -> ca.SX:
            return names[name] if name in names else self.lookup(name)

        def rate(name: str) -> ca.SX:
            return self.derivative(names[name]) if name in names else self.rate(name)

        return replace(self, lookup=lookup, rate=rate)


def expression(tree: Any, scope: Scope) -> ca.SX:
    """Return a formula as an expression.

    Raises NotExpressible: for delays that change, distributions and the like.
    """
    kind = _kinds().get(tree.getType(), "what libsbml cannot read")
    if kind == "name":
        return scope.lookup(tree.getName())
    if kind in _NUMBERS:
        return ca.SX(_NUMBERS[kind](tree))
    if kind == "time":
        return scope.time
    children = [tree.getChild(i) for i in range(tree.getNumChildren())]
    if kind == "rate of":
        return scope.rate(children[0].getName())
    if kind == "call":
        return _call_function(tree.getName(), [expression(child, scope) for child in children], scope)
    if kind == "delay":
        return scope.delayed(children[0], children[1], scope)
    if kind == "piecewise" and children:
        return _piecewise([expression(child, scope) for child in children], scope.time)
    if kind not in _OPERATIONS:
        raise UnsupportedSbmlFormula(f"'{tree.getName() or kind}' in a formula")
    return _OPERATIONS[kind]([expression(child, scope) for child in children])


def _call_function(name: str, arguments: Sequence[ca.SX], scope: Scope) -> ca.SX:
    if name not in scope.functions:
        raise UnsupportedSbmlFormula(f"the function '{name}', which is not defined")
    definition = scope.functions[name]
    if definition.body is None:
        raise UnsupportedSbmlFormula(f"the function '{name}', whose definition is empty")
    if len(arguments) != len(definition.arguments):
        raise UnsupportedSbmlFormula(
            f"the function '{name}' with {len(arguments)} arguments instead of {len(definition.arguments)}"
        )
    return expression(definition.body, scope.inside(dict(zip(definition.arguments, arguments, strict=True))))


@cache
def _kinds() -> dict[int, str]:
    """Return names of libsbml's kinds of nodes, which are numbers."""
    libsbml = library("libsbml", "sbml.load")
    return {getattr(libsbml, f"AST_{name}"): kind for name, kind in _SAID.items()}


_CIRCULAR = circular_functions("arc")
_PLAIN = ("abs", "ceiling", "exp", "factorial", "floor", "ln", "max", "min", "quotient", "rem")
_SAID = {
    "NAME": "name",
    "NAME_TIME": "time",
    "NAME_AVOGADRO": "avogadro",
    "INTEGER": "integer",
    "REAL": "number",
    "REAL_E": "number",
    "RATIONAL": "number",
    "CONSTANT_E": "e",
    "CONSTANT_PI": "pi",
    "CONSTANT_TRUE": "true",
    "CONSTANT_FALSE": "false",
    "FUNCTION": "call",
    "FUNCTION_RATE_OF": "rate of",
    "FUNCTION_DELAY": "delay",
    "FUNCTION_PIECEWISE": "piecewise",
    "FUNCTION_POWER": "power",
    "POWER": "power",
    "FUNCTION_ROOT": "root",
    "FUNCTION_LOG": "log",
    "PLUS": "+",
    "MINUS": "-",
    "TIMES": "*",
    "DIVIDE": "/",
    "LOGICAL_AND": "and",
    "LOGICAL_OR": "or",
    "LOGICAL_XOR": "xor",
    "LOGICAL_NOT": "not",
    "LOGICAL_IMPLIES": "implies",
    "RELATIONAL_EQ": "==",
    "RELATIONAL_NEQ": "!=",
    "RELATIONAL_GT": ">",
    "RELATIONAL_GEQ": ">=",
    "RELATIONAL_LT": "<",
    "RELATIONAL_LEQ": "<=",
    "LAMBDA": "lambda",
    **{f"FUNCTION_{name.upper()}": name for name in (*_PLAIN, *_CIRCULAR)},
}

_NUMBERS: dict[str, Callable[[Any], float]] = {
    "integer": lambda tree: float(tree.getInteger()),
    "number": lambda tree: float(tree.getReal()),
    "avogadro": lambda _: AVOGADRO_CONSTANT,
    "e": lambda _: math.e,
    "pi": lambda _: math.pi,
    "true": lambda _: 1.0,
    "false": lambda _: 0.0,
}


def _plainly(function: Any) -> Callable[[list[ca.SX]], ca.SX]:
    """Wrap a function of separate arguments as a function of one list of arguments."""
    return lambda operands: function(*operands)


def _folded(
    function: Any, empty: float, convert: Callable[[ca.SX], ca.SX] | None = None
) -> Callable[[list[ca.SX]], ca.SX]:
    """Wrap a function of two arguments as a function of a list; `convert` is applied to each entry first."""
    return lambda operands: (
        reduce(function, map(convert, operands) if convert else operands) if operands else ca.SX(empty)
    )


def _chain(compare: Any) -> Callable[[list[ca.SX]], ca.SX]:
    """Compare each with the next, as in  a < b < c."""
    conjunction = _folded(ca.logic_and, 1.0)
    return lambda operands: conjunction([compare(a, b) for a, b in pairwise(operands)])


def truth(value: ca.SX) -> ca.SX:
    """Return a number as a truth value: anything but 0 is true."""
    logical = (ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE, ca.OP_NOT, ca.OP_AND, ca.OP_OR)
    if not value.is_constant() and not value.is_symbolic() and value.op() in logical:
        return value
    return value != 0


def _either(a: ca.SX, b: ca.SX) -> ca.SX:
    """Build the exclusive or of two conditions.

    It compares no truth values, which would hide the comparisons of the conditions.
    """
    return ca.logic_or(ca.logic_and(a, ca.logic_not(b)), ca.logic_and(ca.logic_not(a), b))


def _minus(operands: list[ca.SX]) -> ca.SX:
    return -operands[0] if len(operands) == 1 else operands[0] - operands[1]


def _log(operands: list[ca.SX]) -> ca.SX:
    return ca.log10(operands[0]) if len(operands) == 1 else ca.log(operands[1]) / ca.log(operands[0])


def _root(operands: list[ca.SX]) -> ca.SX:
    if len(operands) == 1 or (operands[0].is_constant() and float(operands[0]) == 2.0):
        return ca.sqrt(operands[-1])
    degree, value = operands
    if degree.is_constant() and float(degree) % 2 == 1.0:  # odd: negative numbers have one
        return ca.sign(value) * ca.fabs(value) ** (1 / degree)
    return value ** (1 / degree)


def _piecewise(operands: list[ca.SX], time: ca.SX) -> ca.SX:
    """Return pieces (value, condition, value, condition, ..., otherwise).

    If no condition holds and there is no otherwise, the value is NaN.  Between two conditions that meet, as x < 1 and
    x > 1 do, it is the value of the last.
    """
    pairs = list(zip(operands[0::2], operands[1::2], strict=False))
    if len(operands) % 2:
        result = operands[-1]
    else:
        covered = Comparisons.from_condition(
            reduce(ca.logic_or, (truth(condition) for _, condition in pairs))
        ).holds_between()
        result = pairs[-1][0] if covered else ca.log(-1 - time**2)  # NaN by itself would be taken for a mistake
    for value, condition in reversed(pairs):
        result = ca.if_else(truth(condition), value, result)
    return result


def _factorial(operands: list[ca.SX]) -> ca.SX:
    """Return x! = Gamma(x + 1)."""
    x = operands[0]
    if x.is_constant():
        return ca.SX(math.gamma(float(x) + 1.0))
    base = x + 7.5
    series = _LANCZOS[0] + sum((c / (x + i) for i, c in enumerate(_LANCZOS[1:], start=1)), start=ca.SX(0))
    return ca.exp(0.5 * math.log(2 * math.pi) + (x + 0.5) * ca.log(base) - base) * series


def _quotient(a: ca.SX, b: ca.SX) -> ca.SX:
    """Return a / b without its fraction; towards zero."""
    ratio = a / b
    return ca.sign(ratio) * ca.floor(ca.fabs(ratio))


_OPERATIONS: dict[str, Callable[[list[ca.SX]], ca.SX]] = {
    "+": _folded(operator.add, 0.0),
    "*": _folded(operator.mul, 1.0),
    "-": _minus,
    "/": lambda operands: operands[0] / operands[1],
    "power": lambda operands: operands[0] ** operands[1],
    "root": _root,
    "log": _log,
    "ln": _plainly(ca.log),
    "exp": _plainly(ca.exp),
    "abs": _plainly(ca.fabs),
    "ceiling": _plainly(ca.ceil),
    "floor": _plainly(ca.floor),
    "factorial": _factorial,
    "max": _folded(ca.fmax, -math.inf),
    "min": _folded(ca.fmin, math.inf),
    "quotient": _plainly(_quotient),
    "rem": lambda operands: operands[0] - operands[1] * _quotient(operands[0], operands[1]),
    **{name: _plainly(function) for name, function in _CIRCULAR.items()},
    "and": _folded(ca.logic_and, 1.0, truth),
    "or": _folded(ca.logic_or, 0.0, truth),
    "xor": _folded(_either, 0.0, truth),
    "not": lambda operands: ca.logic_not(truth(operands[0])),
    "implies": lambda operands: ca.logic_or(ca.logic_not(truth(operands[0])), truth(operands[1])),
    "==": _chain(operator.eq),
    "!=": _plainly(operator.ne),
    "<": _chain(operator.lt),
    "<=": _chain(operator.le),
    ">": _chain(operator.gt),
    ">=": _chain(operator.ge),
}
