"""Terms of objectives and constraints of a whole horizon: integrals, values at its end, its length.

Each is a CasADi symbol, which any expression may contain: ``cf.integral(u**2) + 10 * cf.at_end(x)``,
``-cf.log(cf.at_end(x))``.  A graph carries only symbols, so this module stores the term of each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.arguments import read_real, shorten_repr
from castfit._support.status import raise_if_mistakes
from castfit.problem.constraints import expression_text

if TYPE_CHECKING:
    from collections.abc import Sequence

INTEGRAL, END, TIME = "integral", "end", "time"

_RELATIONS: dict[int, Callable[[ca.SX, ca.SX], ca.SX]] = {
    ca.OP_LT: operator.lt, ca.OP_LE: operator.le, ca.OP_EQ: operator.eq,
}  # fmt: skip

_TERMS_BY_SYMBOL: dict[int, HorizonTerm] = {}
"""Terms by the hash of their symbols.  A term keeps its symbol alive, so that no other symbol has its hash."""

_TERMS_BY_KEY: dict[tuple[str, int], HorizonTerm] = {}
"""Terms by kind and expression, so that equal calls return the same symbol."""


@dataclass(frozen=True, eq=False)
class HorizonTerm:
    """A symbol for the integral or the end value of an expression, or for the final time."""

    kind: str
    symbol: ca.SX
    expression: ca.SX


def integral(expression: Any) -> Any:
    """Return the integral of an expression over the horizon, for objectives and constraints of `control`.

    Parameters
    ----------
    expression : casadi.SX or float
        Expression of states, algebraic states, inputs, parameters and time.

    Returns
    -------
    casadi.SX
        A symbol: it may stand in any expression, ``cf.sqrt(cf.integral(u**2))``.

    Raises
    ------
    InputError
        If the expression is not a scalar, or contains such symbols.

    Examples
    --------
    >>> import castfit as cf
    >>> x, u = cf.symbols("x u")
    >>> cf.integral(x**2 + u**2)
    SX(integral(sq(x)+sq(u)))
    """
    return _term("integral", INTEGRAL, expression)


def at_end(expression: Any) -> Any:
    """Return the value of an expression at the end of the horizon, for objectives and constraints of `control`.

    Parameters
    ----------
    expression : casadi.SX
        Expression of states, algebraic states, inputs, parameters and time; or a relation between two such expressions.

    Returns
    -------
    casadi.SX
        A symbol: ``minimise=-cf.at_end(b)``, ``constraints=[cf.at_end(x) == 1]``.  For a relation, the relation of the
        end values: ``cf.at_end(x == 1)`` is the same.

    Raises
    ------
    InputError
        If the expression is not a scalar, or contains such symbols.

    Examples
    --------
    >>> import castfit as cf
    >>> x = cf.symbols("x")
    >>> cf.at_end(x) == 1
    SX((at_end(x)==1))
    >>> cf.at_end(x == 1)
    SX((at_end(x)==1))
    """
    if isinstance(expression, ca.SX) and expression.is_scalar(True) and expression.op() in _RELATIONS:
        left, right = (s if s.is_constant() else at_end(s) for s in (expression.dep(0), expression.dep(1)))
        return _RELATIONS[expression.op()](left, right)
    return _term("at_end", END, expression)


def final_time() -> Any:
    """Return the length of the horizon, for objectives and constraints of `control` where it is free.

    Returns
    -------
    casadi.SX
        A symbol: ``minimise=cf.final_time()``.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.final_time()
    SX(final_time)
    """
    return _registered_term(TIME, "final_time", ca.SX(0)).symbol


def collect_terms(expressions: Iterable[ca.SX]) -> tuple[HorizonTerm, ...]:
    """Return the terms in expressions, each once."""
    symbols: Sequence[ca.SX] = ca.symvar(ca.SX(ca.vertcat(*expressions)))
    return tuple(_TERMS_BY_SYMBOL[hash(s)] for s in symbols if hash(s) in _TERMS_BY_SYMBOL)


def _term(function_name: str, kind: str, argument: Any) -> ca.SX:
    graph = ca.densify(argument) if isinstance(argument, ca.SX) and argument.numel() == 1 else None
    if graph is None:
        number = read_real(argument)
        is_invalid = number is None or not np.isfinite(number)
        raise_if_mistakes(
            function_name,
            [f"expression is {shorten_repr(argument)}; give a scalar expression of the model's symbols"]
            if is_invalid
            else [],
        )
        graph = ca.SX(number or 0.0)
    if collect_terms([graph]):
        raise_if_mistakes(
            function_name,
            ["expression contains cf.integral, cf.at_end or cf.final_time; they cannot be nested"],
        )
    return _registered_term(kind, f"{function_name}({expression_text(graph)[:60]})", graph).symbol


def _registered_term(kind: str, name: str, graph: ca.SX) -> HorizonTerm:
    key = kind, 0 if kind == TIME else hash(graph)
    if key not in _TERMS_BY_KEY:
        term = HorizonTerm(kind, ca.SX.sym(name), graph)
        _TERMS_BY_KEY[key] = _TERMS_BY_SYMBOL[hash(term.symbol)] = term
    return _TERMS_BY_KEY[key]
