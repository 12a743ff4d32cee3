"""The libraries that PEtab needs, imported when they are, with a message that helps where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from castfit._support.status import InputError

_INSTALL = "install the extra:  pip install 'castfit[petab]'"


def library(name: str) -> Any:
    """Return a module of an optional library.

    Raises InputError: if it is not installed, with how to get it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError("petab", [f"the library '{name.split('.')[0]}' is missing ({error}); {_INSTALL}"]) from error
