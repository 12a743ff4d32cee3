"""The libraries that formats need, imported when they are, with a message that helps where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from castfit._support.status import InputError

_ALONE = ("pypesto",)  # what belongs to no extra of ours


def library(name: str, where: str = "petab") -> Any:
    """Return a module of an optional library.

    Raises InputError: if it is not installed, with how to get it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")
        requirement = package if package in _ALONE else "'castfit[petab]'"
        raise InputError(where, [f"{package} is not installed; pip install {requirement}"]) from error
