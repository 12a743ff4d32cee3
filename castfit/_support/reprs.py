"""Reprs that fit a line and say the most important: arrays by their shape, options only where they are not the default.

What an object holds in full is for `print`, for attributes, and in notebooks for tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from numbers import Real
from typing import Any, TypeVar, cast

import numpy as np

T = TypeVar("T")

MAX_LINE_WIDTH = 120  # largest width of a one-line repr in characters
_MAX_LISTED_ENTRIES = 4  # largest number of entries of a collection that are listed
_MAX_ENTRY_WIDTH = 48  # largest width of one entry in characters


def add_brief_repr(cls: type[T]) -> type[T]:
    """Give a dataclass a one-line repr, ``Name(field=value, ...)``, without fields at their defaults."""

    def represent(self: Any) -> str:
        pairs = ((f, getattr(self, f.name)) for f in fields(self) if f.repr)
        parts = [f"{f.name}={format_value(value)}" for f, value in pairs if not _is_default(f, value)]
        return one_line(f"{type(self).__name__}({', '.join(parts)})")

    represent.__name__, represent.__qualname__ = "__repr__", f"{cls.__qualname__}.__repr__"
    setattr(cls, "__repr__", represent)  # noqa: B010 - the checker knows no assignment to a method
    return cls


def one_line(text: str, width: int = MAX_LINE_WIDTH) -> str:
    """Join text into one line, truncated at `width`; a truncated text ends with a closing bracket."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else f"{flat[: width - 4].rstrip(', ')}...)"


def join_limited(names: Iterable[str], width: int = 60) -> str:
    """List as many names as fit, and count the rest."""
    all_names = list(names)
    listed_names: list[str] = []
    for name in all_names:
        if listed_names and len(", ".join([*listed_names, name])) > width:
            return f"{', '.join(listed_names)} and {len(all_names) - len(listed_names)} more"
        listed_names.append(name)
    return ", ".join(listed_names)


def join_with_and(names: Sequence[str]) -> str:
    """Write all names as a sentence does: a, b and c."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def format_value(value: Any) -> str:
    """Show a value within a line."""
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return repr(array.tolist()) if array.size <= _MAX_LISTED_ENTRIES else f"array{array.shape}"
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, Enum):
        return repr(value.value)
    if isinstance(value, Real):
        return f"{value:.6g}" if isinstance(value, (float, np.floating)) else f"{value}"
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_ENTRY_WIDTH else f"{value[: _MAX_ENTRY_WIDTH - 3]}...")
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return _few(
            "{",
            [f"{_key(k)}: {format_value(v)}" for k, v in entries.items()]
            if len(entries) <= _MAX_LISTED_ENTRIES
            else entries,
        )
    if isinstance(value, (tuple, list, frozenset, set)):
        group = cast("Collection[Any]", value)
        return _few("(", [format_value(v) for v in group] if len(group) <= _MAX_LISTED_ENTRIES else group)
    text = repr(value)
    return (
        text.removeprefix("SX(").removesuffix(")") if text.startswith("SX(") else one_line(text, 2 * _MAX_ENTRY_WIDTH)
    )


def _few(opening: str, parts: Collection[Any]) -> str:
    """List parts that are text and not long; else count them."""
    closing = {"{": "}", "(": ")"}[opening]
    text = ", ".join(parts) if all(isinstance(part, str) for part in parts) else ""
    if len(parts) <= _MAX_LISTED_ENTRIES and len(text) <= _MAX_ENTRY_WIDTH:
        return f"{opening}{text}{',' if opening == '(' and len(parts) == 1 else ''}{closing}"
    return f"{opening}{len(parts)} entries{closing}"


def _key(key: Any) -> str:
    return repr(key) if isinstance(key, str) else format_value(key)


def _is_default(field: Any, value: Any) -> bool:
    """Check whether a field has its default; arrays and expressions are compared by identity only."""
    factory: Callable[[], Any] | Any = field.default_factory
    default = factory() if factory is not MISSING else field.default
    if default is MISSING:
        return False
    if value is default:
        return True
    same_kind = type(value) is type(default) or (isinstance(value, Real) and isinstance(default, Real))
    try:
        return same_kind and not isinstance(value, np.ndarray) and bool(value == default)
    except (TypeError, ValueError, RuntimeError):  # an expression has no truth, an array several
        return False
