"""Names that were given up go on for one version, with a warning that says what to write."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def warn_renamed(old: str, new: str) -> None:
    """Warn that `old` is now `new`, with FutureWarning, which Python shows to users and not only to developers."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and (level < 3 or frame.f_globals.get("__name__") == "contextlib"):
        level, frame = level + 1, frame.f_back  # a door between, or another context, is no caller
    warnings.warn(
        f"{old} was renamed to {new}; the old name will be removed in the next version", FutureWarning, stacklevel=level
    )


def accept_old_names(**names: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Take options of a function by their old names, too: `renamed(old="new")`; its signature shows the new ones."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        public_name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for old in names.keys() & kwargs.keys():
                new = names[old]
                warn_renamed(f"{public_name}({old}=...)", f"{public_name}({new}=...)")
                if new in kwargs:
                    raise TypeError(f"{function.__name__}() got both '{old}' and '{new}', which are the same argument")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_attribute(old: str, new: str) -> Any:
    """Return a property that gives attribute `new` by its old name."""

    def read(instance: Any) -> Any:
        warn_renamed(f"{type(instance).__name__}.{old}", f"{type(instance).__name__}.{new}")
        return getattr(instance, new)

    return property(read, doc=f"The old name of `{new}`.")


def with_old_names(**names: str) -> Callable[[type[_T]], type[_T]]:
    """Keep old names of attributes of a class, and of arguments of its constructor: `with_old_names(old="new")`."""

    def decorate(cls: type[_T]) -> type[_T]:
        for old, new in names.items():
            setattr(cls, old, renamed_attribute(old, new))
        return cls

    return decorate


def old_module_names(module: str, namespace: Mapping[str, Any], **names: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that also finds members by their old names, given as ``Old="New"``."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        warn_renamed(f"{module}.{name}", f"{module}.{names[name]}")
        return namespace[names[name]]

    return find
