"""A picture of estimated inputs: the function of time, its band, and the knots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.experiment.inputs import Placeholder
from castfit.plots._canvas import Canvas, add_title, new_figure, save_or_show, tidy_panels, time_axis
from castfit.plots._colours import BLUE

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.result.result import Result

WIDTH, HEIGHT = 5.0, 2.2
_MAX_INPUTS = 8  # Estimated inputs that are drawn at most.
_N_COLUMNS = 3  # Columns of panels.
_MAX_BAND_MARGIN = 3.0  # Part of a wide band that is shown on each side, in units of the range of the estimate.


def inputs(result: Result, path: str | Path | None = None) -> Figure:
    """Plot every estimated input over time with its band, and its values at the knots.

    Parameters
    ----------
    result : Result
        With its problem.
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("stat5", receptor="estimated").problem)
    >>> figure = cf.plots.inputs(result)
    """
    count = panels(result)
    figure = new_figure(WIDTH * min(max(count, 1), _N_COLUMNS), HEIGHT * -(-max(count, 1) // _N_COLUMNS))
    draw(figure, result)
    return save_or_show(figure, path)


def panels(result: Result) -> int:
    """Return the number of panels; an input that experiments share has one panel."""
    return 0 if result.problem is None else len(_collect_inputs(result))


def rows(result: Result) -> int:
    """Return the number of rows of panels."""
    return -(-panels(result) // _N_COLUMNS)


def _collect_inputs(result: Result) -> list[tuple[str, Placeholder]]:
    assert result.problem is not None
    inputs_by_name: dict[tuple[str, str], tuple[str, Placeholder]] = {}
    for condition in result.problem.conditions:
        for u in condition.inputs:
            if isinstance(u, Placeholder):
                owner = condition.name if u.spec.per_experiment else ""
                inputs_by_name.setdefault((u.spec.label(u.input_name), owner), (condition.name, u))
    return list(inputs_by_name.values())[:_MAX_INPUTS]


def draw(canvas: Canvas, result: Result) -> None:
    """Fill a figure, or a part of one."""
    curves = result.estimated_inputs()
    assert result.problem is not None
    compiled_problem = result.problem.posed
    shown_inputs, has_several = _collect_inputs(result), len(compiled_problem.conditions) > 1
    columns = min(len(shown_inputs), _N_COLUMNS)
    axes = tidy_panels(canvas, -(-len(shown_inputs) // columns), columns).ravel()
    for panel, (experiment, u) in zip(axes, shown_inputs, strict=False):
        table = curves[experiment]
        t, y = table["time"], table[u.input_name]
        low, high = table[f"{u.input_name} lower"], table[f"{u.input_name} upper"]
        step = {"step": "post"} if u.spec.kind == "piecewise_constant" else {}
        panel.fill_between(t, low, high, color=BLUE, alpha=0.2, linewidth=0, **step)
        panel.plot(t, y, color=BLUE, linewidth=1.6, **({"drawstyle": "steps-post"} if step else {}))
        knots = u.spec.knots[(u.spec.knots >= t[0]) & (u.spec.knots <= t[-1])]
        panel.plot(knots, np.interp(knots, t, y), "o", color=BLUE, markersize=2.5)
        span = float(np.ptp(y)) or float(np.abs(y).max()) or 1.0
        bottom, top = float(y.min()) - _MAX_BAND_MARGIN * span, float(y.max()) + _MAX_BAND_MARGIN * span
        ends = np.nan_to_num(np.concatenate([low, high, y]), nan=float(y.mean()), posinf=top, neginf=bottom)
        panel.set_ylim(max(bottom, float(ends.min()) - 0.05 * span), min(top, float(ends.max()) + 0.05 * span))
        label = u.spec.label(u.input_name)
        experiment_text = f", {experiment}" if has_several and u.spec.per_experiment else ""
        free = result.effective.get(label)
        freedom_text = "" if free is None else f": {free:.3g} effective degrees of freedom"
        add_title(panel, f"{label}{experiment_text}{freedom_text}", pad=4)
        time_axis(
            panel,
            compiled_problem,
            [c for c in compiled_problem.conditions if c.name == experiment],
            size=8,
            labelpad=1,
        )
    for panel in axes[len(shown_inputs) :]:
        panel.axis("off")
