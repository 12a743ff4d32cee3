"""What all pictures share: colours, figures without pyplot, axes without clutter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

# matplotlib's stubs leave keyword arguments unknown, so figures are drawn on without their types.
Canvas = Axes = Any

# Okabe and Ito's palette, which people with any colour vision can tell apart.
BLUE, RED = "#0072B2", "#D55E00"
BEHIND = ("#E69F00", "#56B4E9", "#CC79A7", "#009E73", "#F0E442")
INK, SOFT, FAINT = "0.25", "0.45", "0.92"
# What tells series apart where there is no colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_DECADES = 1000.0  # from the smallest to the largest value that are log-spaced
_LOW = 0.1  # of the largest value, below which half of such values are


def new_figure(width: float, height: float) -> Canvas:
    """Make a figure of the given size in inches."""
    from castfit.plots._figure import Picture

    figure: Any = Picture.of(width, height, 150)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05)
    return figure


def tidy(axes: Axes) -> None:
    """Take away frames, and make ticks and grid quiet."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(labelsize=8, color=SOFT, labelcolor=INK, length=3)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def plain(text: str) -> str:
    """Return text that matplotlib shows as it is: no formula, whatever signs it holds."""
    return text.replace("$", r"\$")


def log_spaced(values: Iterable[ArrayLike]) -> bool:
    """Tell whether values spread over decades rather than evenly, so that a logarithmic axis shows them better."""
    every = np.unique(np.concatenate([np.ravel(np.asarray(v, dtype=float)) for v in values]))
    every = every[np.isfinite(every)]
    if every.size < 4 or every[0] <= 0.0:
        return False
    return bool(every[-1] >= _DECADES * every[0] and np.median(every) <= _LOW * every[-1])


def finish(figure: Canvas, path: str | Path | None) -> Figure:
    """Write the figure if a path is given, and return it."""
    if path is not None:
        figure.savefig(path)
    return figure
