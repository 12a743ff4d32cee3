"""Pictures, pages and bands of what a room has found, by the rooms above it: ``result.plot()`` draws itself.

Imports go downwards, so that nothing can import what shows it.  Its methods ask here for what the root of the package
provides, which stands above every room; `Views` says what that is, and the checker of types sees that the rooms have
it.  What is shown is `Any`, as its class is unknown down here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    Drawing = Callable[[Any, "str | Path | None"], Figure]


class Plots(Protocol):
    """Functions of `castfit.plots`: each draws what it is given, also to a file if there is a path."""

    @property
    def contours(self) -> Drawing: ...
    @property
    def fit(self) -> Callable[..., Figure]: ...
    @property
    def histograms(self) -> Drawing: ...
    @property
    def individuals(self) -> Callable[..., Figure]: ...
    @property
    def profiles(self) -> Drawing: ...
    @property
    def stiffness(self) -> Drawing: ...
    @property
    def success(self) -> Drawing: ...
    @property
    def waterfall(self) -> Drawing: ...


class Reports(Protocol):
    """Functions of `castfit.report`: a page in a file, and the card that a notebook shows."""

    @property
    def report(self) -> Callable[..., Path]: ...
    @property
    def card(self) -> Callable[[Any], str]: ...


class Views(Protocol):
    """What rooms above make of a result; each is imported when it is asked for."""

    @property
    def plots(self) -> Plots:
        """Pictures."""
        ...

    @property
    def search_curves(self) -> Drawing:
        """The picture of searches by name: how the best chi2 falls."""
        ...

    @property
    def reports(self) -> Reports:
        """Pages."""
        ...

    @property
    def profile_bands(self) -> Callable[..., dict[str, dict[str, Any]]]:
        """Bands of predictions by profile likelihood, which need fits."""
        ...


_provided: list[Views] = []


def provide(found: Views) -> None:
    """Say what `views` returns."""
    _provided[:] = [found]


def views() -> Views:
    """Return what the root of the package provides."""
    return _provided[0]
