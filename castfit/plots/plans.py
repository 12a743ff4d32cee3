"""A picture of a plan: states with the bounds that hold along the way, and the inputs that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.arguments import read_names
from castfit._support.status import raise_if_mistakes, unknown_names
from castfit.plots._canvas import escape_text, labels, new_figure, save_or_show, tidy_panels
from castfit.plots._colours import BLUE, RED

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.control.plan import Plan

WIDTH, HEIGHT = 6.0, 1.6

_MAX_COLUMN_PANELS = 5  # Panels up to which a figure has one column.


def plan(found: Plan, path: str | Path | None = None, *, names: Sequence[str] | None = None) -> Figure:
    """Plot states and chosen inputs of a plan over time; dotted lines are bounds.

    Parameters
    ----------
    found : Plan
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    names : sequence of str, optional
        States and inputs, in this order; by default all states and all chosen inputs.

    Raises
    ------
    InputError
        For an unknown name.

    Examples
    --------
    >>> import castfit as cf
    >>> x, u = cf.symbols("x u")
    >>> model = cf.Model({x: u}, inputs=[u], initial={x: 1})
    >>> free = {"u": cf.Input.free(pieces=10, bounds=(-1, 1))}
    >>> found = cf.control(model, horizon=2, inputs=free, minimise=cf.integral(x**2 + u**2))
    >>> cf.plots.plan(found)
    <Picture of ... x ... inches with 2 axes>
    """
    available_names = [*found.states, *found.inputs]
    mistakes: list[str] = []
    shown_names = read_names("names", names, [*found.states, *found.free_inputs], mistakes)
    mistakes += unknown_names("unknown state or input '{}'", shown_names, available_names)
    raise_if_mistakes("plots.plan", mistakes)
    columns = 1 if len(shown_names) <= _MAX_COLUMN_PANELS else 2
    rows = -(-len(shown_names) // columns)
    figure = new_figure(WIDTH * (1 + 0.5 * (columns - 1)), HEIGHT * rows + 0.3)
    panels = tidy_panels(figure, rows, columns, sharex="col").T.ravel()
    for unused_axes in panels[len(shown_names) :]:
        unused_axes.set_visible(False)
    for axes, name in zip(panels, shown_names, strict=False):
        labels(axes, y=escape_text(name), size=8)
        if name in found.states:
            for values in np.atleast_2d(found.states[name]):
                axes.plot(found.times, values, color=BLUE, linewidth=1.4)
        else:
            u = found.inputs[name]
            values = u(np.maximum(np.nextafter(found.times, -np.inf), found.times[0]))
            axes.plot(found.times, values, color=RED, linewidth=1.4)
        for bound in found.bounds_of(name):
            axes.axhline(bound, color="0.5", linestyle=":", linewidth=1.0)
    for panel_index in {min(rows, len(shown_names)) - 1, len(shown_names) - 1}:
        labels(panels[panel_index], x=found.time_name, size=8)
        panels[panel_index].tick_params(labelbottom=True)
    return save_or_show(figure, path)
