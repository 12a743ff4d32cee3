"""Pictures of global searches: how the best value falls, and where local fits from many starts end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from castfit.plots._canvas import BEHIND, BLUE, INK, SOFT, finish, new_figure, tidy
from castfit._support.status import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from castfit.drive.search.scatter.result import Moment

    Array = NDArray[np.float64]

_PALETTE = (BLUE, *BEHIND)
_FLOOR = 1e-30  # of chi2 on a logarithmic axis


class Search(Protocol):
    """Whatever has a history and an end, as a `ScatterResult` does."""

    @property
    def history(self) -> Sequence[Moment]:
        """The best chi2 whenever it fell."""
        ...

    @property
    def simulations(self) -> int:
        """Simulations in all."""
        ...

    @property
    def time(self) -> float:
        """Seconds in all."""
        ...


def curves(
    searches: Mapping[str, Sequence[Search]], path: str | Path | None = None, *, target: float | None = None
) -> Figure:
    """Plot the best chi2 against simulations and against time, one line per search, one colour per method.

    Parameters
    ----------
    searches : mapping from a method's name to its searches
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    target : float, optional
        A value to mark.

    Raises
    ------
    InputError
        If no search found a point that can be simulated.
    """
    if not any(search.history for group in searches.values() for search in group):
        raise InputError("plots.curves", ["no search has a value to show; nothing could be simulated"])
    figure = new_figure(8.4, 3.6)
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, what, last in zip(panels, ("simulations", "seconds"), ("simulations", "time"), strict=True):
        tidy(axes)
        for k, (name, group) in enumerate(searches.items()):
            for i, search in enumerate(s for s in group if s.history):
                at, chi2 = _steps(search, what, float(getattr(search, last)))
                label = name if i == 0 and len(searches) > 1 else None
                colour = _PALETTE[k % len(_PALETTE)]
                axes.step(at, chi2, where="post", color=colour, linewidth=1.2, alpha=0.85, label=label)
        if target is not None and target > 0:
            axes.axhline(target, color=SOFT, linewidth=0.8, linestyle="--")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(what, fontsize=9, color=INK)
    panels[0].set_ylabel("best χ²", fontsize=9, color=INK)
    if len(searches) > 1:
        panels[1].legend(fontsize=8, frameon=False, labelcolor=INK)
    return finish(figure, path)


def _steps(search: Search, what: str, last: float) -> tuple[Array, Array]:
    """Return where the value fell, and to what, drawn on to the end of the search."""
    at = [float(getattr(moment, what)) for moment in search.history]
    chi2 = [max(moment.chi2, _FLOOR) for moment in search.history]
    return np.array([*at, max(last, at[-1])]), np.array([*chi2, chi2[-1]])


def histogram(chi2: Sequence[float], path: str | Path | None = None, *, target: float | None = None) -> Figure:
    """Plot how often local fits ended at which chi2, on a logarithmic axis; fits without a value are counted in words.

    Parameters
    ----------
    chi2 : sequence of float
    path : str or Path, optional
    target : float, optional
        The global optimum, to be marked.

    Raises
    ------
    InputError
        If no fit has a value.
    """
    values = np.maximum(np.array([f for f in chi2 if np.isfinite(f)]), _FLOOR)
    if not values.size:
        raise InputError("plots.histogram", ["no fit has a value of chi2; there is nothing to show"])
    figure = new_figure(6.0, 3.4)
    axes = figure.subplots()
    tidy(axes)
    low, high = float(np.floor(np.log10(values.min()))), float(np.ceil(np.log10(values.max())))
    decades = max(int(high - low), 1)
    edges = np.logspace(low, low + decades, 4 * decades + 1)
    axes.hist(values, bins=edges, color=BLUE, alpha=0.85)
    if target is not None and target > 0:
        axes.axvline(target, color=SOFT, linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlabel("χ² at the end", fontsize=9, color=INK)
    axes.set_ylabel("fits", fontsize=9, color=INK)
    missing = len(chi2) - len(values)
    axes.set_title(
        f"{len(chi2)} fits" + (f", {missing} without a value" if missing else ""), loc="left", fontsize=10, color=INK
    )
    return finish(figure, path)
