"""A model's equations from a function of symbols, ``f(t, x, p)``, such as integrators of numbers take."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.arguments import read_sequence, shorten_repr
from castfit._support.status import InputError, raise_if_mistakes, suggest, unknown_names

_WHERE = "Model.from_function"
_CONDITION = "write conditions on symbols as cf.if_else(x > 0, a, b), cf.fmax(x, 0) or np.where(x > 0, a, b)"
_ARITHMETIC = "write it with arithmetic, castfit's functions such as cf.exp, or NumPy's, such as np.exp"


class SymbolArray(np.ndarray[Any, Any]):
    """Symbols as an array, (n,), which also knows them by name: ``x[0]``, ``x["S"]``, ``S, I, R = x``."""

    @classmethod
    def from_symbols(cls, symbols: Sequence[ca.SX]) -> SymbolArray:
        """Make the array of symbols."""
        array = np.empty(len(symbols), dtype=object)
        for i, symbol in enumerate(symbols):
            array[i] = symbol
        return array.view(cls)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        names = [symbol.name() for symbol in self]
        raise_if_mistakes(_WHERE, [] if key in names else [f"there is no '{key}': {suggest(key, names)}"])
        return super().__getitem__(names.index(key))


def call_user_function(function: Callable[..., Any], label: str, arguments: Sequence[Any]) -> Any:
    """Call a function of the user with symbols, and explain an exception with its usual causes."""
    if not callable(function):
        raise InputError(_WHERE, [f"{label} is {shorten_repr(function)}; give a function of t, x and p"])
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*numpy function was called on a casadi value", FutureWarning)
            return function(*arguments)
    except InputError:
        raise
    except Exception as error:  # whatever a user's function raises
        remedy = _CONDITION if "truth value" in str(error) else _ARITHMETIC
        signature = f"{label}({', '.join('txpu'[: len(arguments)])})"
        message = f"{signature} cannot be called with symbols ({type(error).__name__}: {str(error).strip()}); {remedy}"
        raise InputError(_WHERE, [message]) from error


def rates(returned: Any, states: Sequence[str]) -> list[Any]:
    """Read the derivatives that a model function returned, by name or in the order of the states."""
    if isinstance(returned, Mapping):
        by_name = cast("Mapping[Any, Any]", returned)
        mistakes = unknown_names("f returns a derivative of '{}', which is no state", map(str, by_name), states)
        mistakes += [f"f returns no derivative of '{name}'; return 0 if it is constant" for name in states
                     if name not in by_name]  # fmt: skip
        raise_if_mistakes(_WHERE, mistakes)
        return [by_name[name] for name in states]
    derivatives = list(_flat(returned))
    if len(derivatives) != len(states):
        message = f"f returns {len(derivatives)} derivatives for {len(states)} states ({', '.join(states)})"
        raise InputError(_WHERE, [f"{message}; return one for each, in their order, or by name"])
    return derivatives


def _flat(value: Any) -> Iterable[Any]:
    """Yield the entries of numbers, expressions, and nested sequences or columns."""
    if isinstance(value, (ca.SX, ca.DM)):
        yield from ca.vertsplit(ca.vec(ca.SX(value)))
        return
    entries = read_sequence(value)
    if entries is None:
        yield value
        return
    for entry in entries:
        yield from _flat(entry)
