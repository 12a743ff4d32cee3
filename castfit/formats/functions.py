"""Circular and hyperbolic functions, their reciprocals and their inverses, by the names that formats give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca

Function = Callable[[Any], Any]

_PAIRS: tuple[tuple[str, Function, str, Function], ...] = (
    ("sin", ca.sin, "csc", ca.asin),
    ("cos", ca.cos, "sec", ca.acos),
    ("tan", ca.tan, "cot", ca.atan),
    ("sinh", ca.sinh, "csch", ca.asinh),
    ("cosh", ca.cosh, "sech", ca.acosh),
    ("tanh", ca.tanh, "coth", ca.atanh),
)


def circular_functions(arc: str) -> dict[str, Function]:
    """Return the functions; names of inverses begin with `arc`."""
    out: dict[str, Function] = {}
    for name, function, reciprocal, inverse in _PAIRS:
        out |= {name: function, reciprocal: _reciprocal(function)}
        out |= {f"{arc}{name}": inverse, f"{arc}{reciprocal}": _of_reciprocal(inverse)}
    return out


def _reciprocal(function: Function) -> Function:
    """Take the reciprocal of a function, as in  sec x = 1 / cos x."""
    return lambda x: 1 / function(x)


def _of_reciprocal(function: Function) -> Function:
    """Apply a function to the reciprocal, as in  arccot x = arctan 1/x."""
    return lambda x: function(1 / x)
