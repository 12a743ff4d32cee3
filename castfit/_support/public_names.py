"""Classes and functions say the address at which users import them: ``castfit.InputError``, wherever it is defined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any


def publish(module: str, names: Iterable[str], found: Mapping[str, Any]) -> None:
    """Give classes and functions of castfit the address of the module that exports them by these names.

    Error messages, pickles and the reference show it.
    """
    for name in names:
        thing = found.get(name)
        if isinstance(thing, (type, FunctionType)) and thing.__module__.startswith("castfit."):
            thing.__module__, thing.__name__, thing.__qualname__ = module, name, name
