"""A picture of what moves what: the effects of all quantities on the outputs over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.status import raise_if_mistakes
from castfit._support.ties import stable_order
from castfit.plots._canvas import add_title, escape_text, labels, legend_above, new_figure, save_or_show, tidy
from castfit.plots._colours import BEHIND, BLUE, INK, RED, SOFT, STYLES
from castfit.plots._grid import Grid
from castfit.plots._scales import dense, owner
from castfit.result.bands import sensitivities as slopes

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.result.result import Result

_N_CURVE_POINTS = 200  # Points of a curve.
_MAX_LINES = 8  # Lines in a panel at most.
_PALETTE = (BLUE, RED, *BEHIND[3:4], *BEHIND[:3], "0.2")
_HEIGHT, _HEADING = 2.0, 0.7


def sensitivities(result: Result, path: str | Path | None = None) -> Figure:
    """Plot how much each quantity moves each measured output over time.

    A line is ``|p| dy / dp``, the change of the output, in its own unit, that a relative change of the quantity p of 1
    would make if effects were linear.  Lines of the same shape belong to quantities that these data hardly tell apart;
    times at which lines differ are worth measuring at.  Dots are where something was measured.

    Parameters
    ----------
    result : Result
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Raises
    ------
    InputError
        For a loaded result without its problem.
    SimulationError
        If the model cannot be integrated.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.sensitivities(result)
    """
    compiled_problem = owner(result).posed
    nothing = "nothing is estimated, so there are no sensitivities to plot"
    raise_if_mistakes("plots.sensitivities", [] if result.names else [nothing])
    grid = Grid.from_problem(compiled_problem)
    figure: Any = new_figure(grid.width, grid.rows * _HEIGHT + _HEADING)
    values = np.array(list(result.values.values()))
    unit = np.where(
        compiled_problem.log, 1.0, np.where(values != 0.0, np.abs(values), 1.0)
    )  # d theta of a relative change of 1
    times = {
        c.name: dense(c, _N_CURVE_POINTS)
        for c in compiled_problem.conditions
        if any(p.condition is c for p in grid.panels)
    }
    slopes_by_name = {
        c.name: slopes(result.theta, compiled_problem, c, times[c.name], result.integrator) * unit
        for c in compiled_problem.conditions
        if c.name in times
    }
    names, outputs = result.names, compiled_problem.model.output_names
    peaks = np.max(
        [np.max(np.abs(s), axis=(0, 1)) / max(float(np.abs(s).max()), 1e-300) for s in slopes_by_name.values()], 0
    )
    chosen = sorted(stable_order(peaks, descending=True)[:_MAX_LINES].tolist())
    cells = figure.add_gridspec(grid.rows, grid.columns)
    handles: dict[str, Any] = {}
    for panel in grid.panels:
        axes = figure.add_subplot(cells[panel.row, panel.column])
        tidy(axes)
        output = compiled_problem.outputs[panel.output]
        S, t = slopes_by_name[panel.condition.name][:, outputs.index(output)], times[panel.condition.name]
        axes.axhline(0, color=SOFT, linewidth=0.6)
        for k, j in enumerate(chosen):
            style = {"color": _PALETTE[k % len(_PALETTE)], "linestyle": STYLES[k % len(STYLES)], "linewidth": 1.4}
            (handles[names[j]],) = axes.plot(t, S[:, j], **style)
            figure.label_artists(names[j], handles[names[j]])
        measured = panel.condition.points.times[panel.condition.points.mask[:, panel.output]]
        axes.plot(measured, np.zeros(measured.size), "o", color=INK, markersize=2.5, clip_on=False)
        title = (
            f"{compiled_problem.label(output)}, {panel.condition.name}"
            if len(compiled_problem.conditions) > 1
            else compiled_problem.label(output)
        )
        add_title(axes, escape_text(title), pad=4)
        labels(axes, escape_text(compiled_problem.label("time")), size=8, labelpad=1)
    hidden = len(names) - len(chosen)
    selection_text = f" (the {len(chosen)} largest of {len(names)})" if hidden else ""
    legend_title = f"change of the output for a relative change of 1{selection_text}"
    legend_above(figure, handles, max_columns=8, title=legend_title, handlelength=2.6)
    return save_or_show(figure, path)
