"""Dataclasses whose constructors are written when they are first called, which most never are in one script.

``dataclasses.dataclass`` writes and compiles six methods for every class: of the 275 of a first fit that is a third of
all its time.  Here the fields, `fields`, `replace`, matching and messages still come from ``dataclasses``;
comparison, hash and repr are common to all classes, and the constructor is compiled at its first call.  A class that
inherits from another dataclass is built entirely by ``dataclasses``.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any


class _DefaultFactory:
    """Placeholder in signatures for a default that is created anew at every call."""

    def __repr__(self) -> str:
        return "<factory>"


_ANEW = _DefaultFactory()


class _LazyConstructor:
    """Placeholder for the constructor of a class, which is compiled at its first use."""

    def __init__(self, cls: type, *, frozen: bool) -> None:
        self._cls, self._frozen = cls, frozen
        self._home = vars(sys.modules[cls.__module__])  # its public address may be another one

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        constructor: Any = _constructor(self._cls, self._home, frozen=self._frozen)
        if vars(self._cls)["__init__"] is self:
            setattr(self._cls, "__init__", constructor)  # noqa: B010 - the checker knows no assignment to a method
        return constructor if instance is None else constructor.__get__(instance, owner)


def _constructor(cls: Any, module_namespace: dict[str, Any], *, frozen: bool) -> Callable[..., None]:
    closure_values: dict[str, Any] = {"_anew": _ANEW}
    positional, keyword_only, assignments = ["self"], ["*"], list[str]()
    for f in fields(cls):
        factory: Any = f.default_factory
        default, has_factory = f"_default_{f.name}", factory is not MISSING
        closure_values[default] = factory if has_factory else f.default
        if f.init:
            default_text = "=_anew" if has_factory else "" if f.default is MISSING else f"={default}"
            (keyword_only if f.kw_only else positional).append(f.name + default_text)
        if f.init or has_factory:
            value = f"{default}() if {f.name} is _anew else {f.name}" if has_factory and f.init else f.name
            assignments.append(f"{f.name}={value if f.init else f'{default}()'}")
    # Frozen instances are filled in one call: a third of the time of one `object.__setattr__` per field.
    lines = (
        [f"self.__dict__.update({', '.join(assignments)})"]
        if frozen
        else [f"self.{assignment}" for assignment in assignments]
    )
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    signature = ", ".join(positional + (keyword_only if len(keyword_only) > 1 else []))
    body = "\n  ".join(lines or ["pass"])
    definitions: dict[str, Any] = {}
    exec(
        f"def make({', '.join(closure_values)}):\n def __init__({signature}):\n  {body}\n return __init__",
        module_namespace,
        definitions,
    )
    constructor: Any = definitions["make"](**closure_values)
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    constructor.__annotations__ = {f.name: f.type for f in fields(cls) if f.init} | {"return": None}
    return constructor


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _add_equality(cls: Any, methods: dict[str, Any]) -> None:
    """Give a class equality of its fields, and a hash where these cannot change."""
    values = _getter([f.name for f in fields(cls) if f.compare])
    hashed = _getter([f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)])
    members: dict[str, Any] = {**vars(cls)}
    hashes = members.get("__hash__") is not None or ("__hash__" in members and "__eq__" not in members)

    def equals(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: Any) -> int:
        return hash(hashed(self))

    if "__eq__" not in members:
        methods["__eq__"] = equals
    if not hashes:
        methods["__hash__"] = hash_of if cls.__dataclass_params__.frozen else None


def _add_immutability(cls: Any, methods: dict[str, Any]) -> None:
    """Make a class's fields read-only: assignment and deletion raise FrozenInstanceError."""
    names = frozenset(f.name for f in fields(cls))

    def put(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def remove(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    methods["__setattr__"], methods["__delattr__"] = put, remove


def _add_repr(cls: Any, methods: dict[str, Any]) -> None:
    names = [f.name for f in fields(cls) if f.repr]

    def represent(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    if "__repr__" not in vars(cls):
        methods["__repr__"] = recursive_repr()(represent)


def _build_constructor(cls: Any, *, init: bool, repr: bool, eq: bool, frozen: bool, kw_only: bool) -> Any:
    if any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:]):
        return dataclasses.dataclass(init=init, repr=repr, eq=eq, frozen=frozen, kw_only=kw_only)(cls)
    cls.__doc__ = cls.__doc__ or cls.__name__  # for a signature constructors would be compiled
    record_class: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    params, methods = record_class.__dataclass_params__, dict[str, Any]()
    params.init, params.repr, params.eq, params.frozen = init, repr, eq, frozen
    if init and "__init__" not in vars(record_class):
        setattr(record_class, "__init__", _LazyConstructor(record_class, frozen=frozen))  # noqa: B010
    if repr:
        _add_repr(record_class, methods)
    if eq:
        _add_equality(record_class, methods)
    if frozen:
        _add_immutability(record_class, methods)
    for name, method in methods.items():
        if method is not None:
            method.__name__, method.__qualname__ = name, f"{record_class.__qualname__}.{name}"
            method.__module__ = record_class.__module__
        setattr(record_class, name, method)
    return record_class


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: Any = None,
        /,
        *,
        init: bool = True,
        repr: bool = True,
        eq: bool = True,
        frozen: bool = False,
        kw_only: bool = False,
    ) -> Any:
        """Make a dataclass, as ``dataclasses.dataclass`` does."""
        options = {"init": init, "repr": repr, "eq": eq, "frozen": frozen, "kw_only": kw_only}
        return (
            (lambda record_class: _build_constructor(record_class, **options))
            if cls is None
            else _build_constructor(cls, **options)
        )
