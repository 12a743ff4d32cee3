"""Public addresses of classes and functions, such as ``castfit.InputError``, and checks of argument names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from types import FunctionType
from typing import Any, TypeVar, cast

from castfit._support.arguments import CallGuard

T = TypeVar("T")

_doors: dict[Any, Any] = {}  # by functions, and by themselves


def public(module: str, name: str | None = None) -> Callable[[type[T]], type[T]]:
    """Give a class, where it is defined, the address of the module that exports it, by its name or another one.

    Error messages, pickles and the reference show it, also for objects whose class was never imported by name.
    """
    return lambda cls: with_public_address(cls, module, name or cls.__name__)


def assign_public_addresses(module: str, names: Iterable[str], namespace: MutableMapping[str, Any]) -> None:
    """Give classes and functions of castfit the address of the module that exports them by these names."""
    for name in names:
        if name in namespace:
            namespace[name] = with_public_address(namespace[name], module, name)


def with_public_address(member: Any, module: str, name: str) -> Any:
    """Return a class or a function of castfit with its public address; anything else as it is.

    Impossible calls end in a sentence: functions have a door that users alone go through, constructors and methods
    one of their own.
    """
    if not isinstance(member, (type, FunctionType)) or not member.__module__.startswith("castfit."):
        return member
    public_name = f"{module.replace('castfit', 'cf', 1)}.{name}"
    if isinstance(member, FunctionType):
        member = _guarded_function(member, public_name)
    else:
        _guard_methods(member, public_name)
    if member.__module__ != "castfit":  # the shortest address stays, whichever module is imported last
        member.__module__, member.__name__, member.__qualname__ = module, name, name
    return member


def _guarded_function(function: FunctionType, name: str) -> Any:
    """Return a function behind its door: always the same, and itself if it is."""
    if function not in _doors:
        call: Any = CallGuard(function, name)(function)
        _doors[function] = _doors[call] = call
    return _doors[function]


def _guard_methods(cls: type, name: str) -> None:
    """Wrap the constructor and the public methods of a class in call guards."""
    members: dict[str, Any] = dict(vars(cls))
    if "__init__" in members:
        members["__init__"] = getattr(cls, "__init__")  # noqa: B009 - which a record writes when it is asked for
    for key, method in members.items():
        kind = cast("Any", type(method))
        bound = kind in (classmethod, staticmethod)
        plain_function = method.__func__ if bound else method
        is_public = key == "__init__" or not key.startswith("_")
        if is_public and isinstance(plain_function, FunctionType) and plain_function not in _doors:
            call = _guarded_function(plain_function, name if key == "__init__" else f"{name}.{key}")
            setattr(cls, key, kind(call) if bound else call)
