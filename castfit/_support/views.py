"""Pictures, pages and bands of what a room has found, by the rooms above it: ``result.plot()`` draws itself.

Imports go downwards, so that nothing can import what shows it.  Its methods ask here for what the root of the package
provides, which stands above every room.  Results and their views have the type `Any`, because their classes are not
known here.
"""

from __future__ import annotations

from typing import Any

_provided: list[Any] = []


def register_views(root_views: Any) -> None:
    """Set the object that `views` returns."""
    _provided[:] = [root_views]


def views() -> Any:
    """Return the object provided by the package root.

    Its attributes are `names`, `plots`, `reports`, `search_curves` and `profile_bands`.
    """
    return _provided[0]
