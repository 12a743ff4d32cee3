"""Common elements of all figures: colours, figures that pyplot shows, plain axes, labels, legends and notes."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import shorten_repr
from castfit._support.status import InputError, raise_if_mistakes
from castfit._support.whole_files import folder_mistakes
from castfit.experiment.measurements import UNITS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from castfit._support.arrays import Array
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem


# Okabe and Ito's palette, which people with any colour vision can tell apart.
BLUE, RED = "#0072B2", "#D55E00"
BEHIND = ("#E69F00", "#56B4E9", "#CC79A7", "#009E73", "#F0E442")
INK, SOFT, FAINT = "0.25", "0.45", "0.92"
# What tells series apart where there is no colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))


# matplotlib's stubs leave keyword arguments unknown, so figures are drawn on without their types.
Canvas = Axes = Any

_LOG_AXIS_RATIO = 1000.0  # Ratio of the largest to the smallest value from which on an axis may be logarithmic.
_ELLIPSE_POINTS = 181  # Points of an ellipse.
_LOG_AXIS_MEDIAN = 0.1  # Median of the values, as a fraction of the largest, up to which an axis may be logarithmic.

_unseen: ContextVar[bool] = ContextVar("unseen", default=False)


@contextmanager
def off_pyplot() -> Generator[None, None, None]:
    """Keep the figures drawn in this context out of pyplot, for callers that only write them to a file."""
    token = _unseen.set(True)
    try:
        yield
    finally:
        _unseen.reset(token)


def new_figure(width: float, height: float) -> Canvas:
    """Make a figure of the given size in inches."""
    from castfit.plots._figure import ManagedFigure

    figure: Any = ManagedFigure.with_size(width, height, 150)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05)
    return figure


def single(width: float, height: float) -> tuple[Canvas, Axes]:
    """Make a figure of one panel; its size is in inches."""
    figure = new_figure(width, height)
    return figure, tidy_panels(figure, 1, 1)[0, 0]


def tidy_panels(canvas: Canvas, rows: int, columns: int, **shared: Any) -> Axes:
    """Make the panels of a figure or of a part of one, (rows, columns), without frames."""
    panels = canvas.subplots(rows, columns, squeeze=False, **shared)
    for axes in panels.flat:
        tidy(axes)
    return panels


def add_panel(canvas: Canvas, cell: Any, **shared: Any) -> Axes:
    """Make a panel without frames in a cell of a grid."""
    axes = canvas.add_subplot(cell, **shared)
    tidy(axes)
    return axes


def tile_panels(
    count: int, max_columns: int, size: tuple[float, float], above: tuple[float, float]
) -> tuple[Canvas, Axes]:
    """Make a figure of so many panels, `max_columns` in a row, each of a size in inches, with some room besides.

    Returns
    -------
    figure, axes
        With axes (rows, columns), of which those that are too many are hidden.
    """
    columns = max(1, min(max_columns, count))
    rows = max(1, -(-count // columns))
    figure = new_figure(columns * size[0] + above[0], rows * size[1] + above[1])
    panels = tidy_panels(figure, rows, columns)
    for axes in panels.ravel()[count:]:
        axes.set_visible(False)
    return figure, panels


def tidy(axes: Axes) -> None:
    """Take away frames, and make ticks and grid quiet."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    look = {"labelsize": 8, "color": SOFT, "labelcolor": INK, "length": 3}
    axes.tick_params(**look, gridOn=True, grid_color=FAINT, grid_linewidth=0.6)  # in one go: all ticks are gone through
    axes.set_axisbelow(True)
    axes.set_title("", y=1.0)  # in its place: to look for one costs as much as to draw the ticks


def labels(axes: Axes, x: str = "", y: str = "", *, size: float = 9, **place: float) -> None:
    """Name an axis, or both."""
    for words, name in ((x, axes.set_xlabel), (y, axes.set_ylabel)):
        if words:
            name(words, fontsize=size, color=INK, **place)


def time_axis(
    axes: Axes,
    compiled_problem: CompiledProblem,
    conditions: Sequence[Condition],
    *,
    has_labels: bool = True,
    **look: Any,
) -> None:
    """Label the time axis of experiments: with dates if times were given as dates, else with the unit of time.

    has_labels : whether it has labels, and not one below it
    """
    units, origins = {c.time_unit for c in conditions}, {c.origin for c in conditions}
    unit, origin = (units.pop(), origins.pop()) if len(units) == len(origins) == 1 else (None, None)
    if origin is not None and unit is not None:
        from castfit.plots._dates import with_dates

        axes.set_xscale("linear")
        with_dates(axes.xaxis, origin, np.timedelta64(UNITS[unit], "s"))
        axes.xaxis.offsetText.set(visible=has_labels, size=8, color=INK)
    if has_labels:
        axis_label = compiled_problem.label("time")
        in_unit = axis_label if unit is None or axis_label != "time" else f"time ({unit})"
        label = in_unit if origin is None else "date"
        labels(axes, escape_text(label), **look)


def objective_symbol(measure: str) -> str:
    """Typeset the name of the measure by which fits are compared."""
    return measure.replace("chi2", "χ²").replace("-2", "−2")


def add_title(axes: Axes, text: str, *, size: float = 9, pad: float = 6.0) -> None:
    """Write above a panel what it shows."""
    axes.set_title(text, loc="left", fontsize=size, color=INK, pad=pad, y=1.0)


def legend(axes: Axes, *, size: float = 8, **place: Any) -> None:
    """Add a legend to a panel."""
    axes.legend(fontsize=size, frameon=False, labelcolor=INK, **place)


def legend_above(
    canvas: Canvas, handles: Mapping[str, Any], *, max_columns: int = 100, title: str = "", **look: Any
) -> None:
    """Add a legend above all panels, with at most `max_columns` entries per row, below a title."""
    place = {"loc": "outside upper left", "ncols": min(len(handles), max_columns), "fontsize": 8, "frameon": False}
    legend = canvas.legend(handles.values(), map(escape_text, handles), **place, **look)
    if title:
        legend.set_title(title, prop={"size": 9})
        legend.set_alignment("left")


def add_note(canvas: Canvas, text: str, colour: str = SOFT) -> None:
    """Write a sentence below all panels."""
    canvas.supxlabel(text, x=0.01, ha="left", fontsize=8, color=colour)


def shade_band(axes: Axes, half: float) -> None:
    """Shade the values about zero that are nothing remarkable."""
    axes.axhspan(-half, half, color=FAINT, linewidth=0, zorder=0)
    axes.axhline(0, color=SOFT, linewidth=0.6, zorder=1)


def confidence_ellipse(covariance: Array) -> Array:
    """Return the curve (2, n) about zero at which the quadratic form of a covariance (2, 2) is 1."""
    values, vectors = np.linalg.eigh(covariance)
    turn = np.linspace(0.0, 2.0 * np.pi, _ELLIPSE_POINTS)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ np.array([np.cos(turn), np.sin(turn)])


def escape_text(text: str) -> str:
    """Return text that matplotlib shows as it is: no formula, whatever signs it holds."""
    return str(text).replace("$", r"\$")


def log_spaced(values: Iterable[ArrayLike]) -> bool:
    """Check whether values spread over decades rather than evenly, so that a logarithmic axis shows them better."""
    finite_values = np.unique(np.concatenate([np.ravel(np.asarray(v, dtype=float)) for v in values]))
    finite_values = finite_values[np.isfinite(finite_values)]
    if finite_values.size < 4 or finite_values[0] <= 0.0:
        return False
    return bool(
        finite_values[-1] >= _LOG_AXIS_RATIO * finite_values[0]
        and np.median(finite_values) <= _LOG_AXIS_MEDIAN * finite_values[-1]
    )


def save_or_show(figure: Canvas, path: str | Path | None) -> Figure:
    """Write the figure if a path is given, else let pyplot show it; return it.

    A written figure is not registered with pyplot, so a loop that writes many figures need not close them.
    """
    if path is not None:
        mistakes = [] if hasattr(path, "write") else folder_mistakes(path)
        raise_if_mistakes("plot", [f"{m}; pass other arguments by name" for m in mistakes])
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:  # such as an unknown format
            raise InputError("plot", [f"path is {shorten_repr(path)}: {error}"]) from error
    elif not _unseen.get():
        figure.give_to_pyplot()
    return figure
