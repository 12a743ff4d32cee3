"""Classes and functions as users import them: ``castfit.InputError``, wherever it is defined; misspelt arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from types import FunctionType
from typing import Any, TypeVar, cast

from castfit._support.arguments import Door

T = TypeVar("T")

_doors: dict[Any, Any] = {}  # by functions, and by themselves


def public(module: str, name: str | None = None) -> Callable[[type[T]], type[T]]:
    """Give a class, where it is defined, the address of the module that exports it, by its name or another one.

    Error messages, pickles and the reference show it, also of objects whose class nobody has asked for by name.
    """
    return lambda cls: published(cls, module, name or cls.__name__)


def publish(module: str, names: Iterable[str], found: MutableMapping[str, Any]) -> None:
    """Give classes and functions of castfit the address of the module that exports them by these names."""
    for name in names:
        if name in found:
            found[name] = published(found[name], module, name)


def published(thing: Any, module: str, name: str) -> Any:
    """Return a class or a function of castfit with its public address; anything else as it is.

    Impossible calls end in a sentence: functions have a door that users alone go through, constructors and methods
    one of their own.
    """
    if not isinstance(thing, (type, FunctionType)) or not thing.__module__.startswith("castfit."):
        return thing
    called = f"{module.replace('castfit', 'cf', 1)}.{name}"
    if isinstance(thing, FunctionType):
        thing = _behind_door(thing, called)
    else:
        _with_doors(thing, called)
    if thing.__module__ != "castfit":  # the shortest address stays, whichever module is imported last
        thing.__module__, thing.__name__, thing.__qualname__ = module, name, name
    return thing


def _behind_door(function: FunctionType, name: str) -> Any:
    """Return a function behind its door: always the same, and itself if it is."""
    if function not in _doors:
        call: Any = Door(function, name)(function)
        _doors[function] = _doors[call] = call
    return _doors[function]


def _with_doors(cls: type, name: str) -> None:
    """Wrap the constructor and the public methods of a class in call guards."""
    own: dict[str, Any] = dict(vars(cls))
    if "__init__" in own:
        own["__init__"] = getattr(cls, "__init__")  # noqa: B009 - which a record writes when it is asked for
    for key, method in own.items():
        kind = cast("Any", type(method))
        bound = kind in (classmethod, staticmethod)
        inside = method.__func__ if bound else method
        public = key == "__init__" or not key.startswith("_")
        if public and isinstance(inside, FunctionType) and inside not in _doors:
            call = _behind_door(inside, name if key == "__init__" else f"{name}.{key}")
            setattr(cls, key, kind(call) if bound else call)
