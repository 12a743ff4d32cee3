"""Objects that hold CasADi expressions, pickled: bare SX does not pickle, but functions do."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import casadi as ca

from castfit._support.records import dataclass

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class _PackedExpression:
    """An expression as a function of its symbols, and their names."""

    function: ca.Function
    names: tuple[str, ...]


class Picklable:
    """A dataclass whose fields may be expressions, or hold some in mappings and tuples; nothing else of it is pickled.

    Expressions return on new symbols of the same names, and numbers return as floats.
    """

    def __reduce__(self) -> Any:
        state: dict[str, Any] = {f.name: _pack_expression(getattr(self, f.name)) for f in fields(cast("Any", self))}
        return _restore, (type(self), state)


class ProcessLocal:
    """Base of objects that stay in their process: copies share the object, and pickles contain None in its place."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def _restore(cls: Any, state: dict[str, Any]) -> Any:
    instance: Any = object.__new__(cls)
    instance.__dict__.update(_unpack_expression(state))
    return instance


def _pack_expression(value: Any) -> Any:
    if isinstance(value, ca.SX):
        symbols = ca.symvar(value)
        return _PackedExpression(ca.Function("value", symbols, [value]), tuple(s.name() for s in symbols))
    return _map_contents(value, _pack_expression)


def _unpack_expression(value: Any) -> Any:
    if isinstance(value, _PackedExpression):
        expression = ca.SX(value.function.call([ca.SX.sym(n) for n in value.names])[0])
        return float(expression) if expression.is_constant() else expression
    return _map_contents(value, _unpack_expression)


def _map_contents(value: Any, change: Any) -> Any:
    """Change what a mapping or a tuple holds; anything else stays."""
    if isinstance(value, dict):
        return {key: change(entry) for key, entry in cast("dict[Any, Any]", value).items()}
    return tuple(change(entry) for entry in cast("tuple[Any, ...]", value)) if type(value) is tuple else value
