"""Packages whose folders lie beside castfit/ in a checkout, and inside it where castfit is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def beside(package: str, folder: str) -> ModuleType:
    """Import a package under its installed name, from the folder beside castfit/ if it is not installed."""
    if importlib.util.find_spec(package) is not None:
        return importlib.import_module(package)
    place = Path(__file__).resolve().parents[2] / folder
    spec = importlib.util.spec_from_file_location(
        package, place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    return module
