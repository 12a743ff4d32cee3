"""Pictures and pages by name, imported when one is wanted: a result can be shown without knowing how."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def picture(name: str) -> Any:
    """Return a function of `castfit.plots`, such as ``"fit"`` or ``"searches.curves"``."""
    *room, function = name.split(".")
    return getattr(import_module(".".join(["castfit.plots", *room])), function)


def page(name: str) -> Any:
    """Return a function of `castfit.report`, such as ``"report"``."""
    return getattr(import_module("castfit.report"), name)
