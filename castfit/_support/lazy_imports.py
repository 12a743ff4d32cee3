"""Pictures, pages and drivers by name, imported when wanted: a result can be shown, and more, without knowing how."""

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


def made(name: str) -> Any:
    """Return a function of `castfit.drive`, such as ``"profile.bands.prediction_bands"``."""
    *room, function = name.split(".")
    return getattr(import_module(".".join(["castfit.drive", *room])), function)
