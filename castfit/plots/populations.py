"""Pictures of a population: every individual with two predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import read_names
from castfit._support.status import raise_if_mistakes, unknown_names
from castfit.plots._canvas import add_title, escape_text, labels, new_figure, save_or_show, tidy_panels, time_axis
from castfit.plots._colours import BLUE, INK, RED, SOFT

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.drive.population.result import MixedEffectsResult

_MOST, _COLUMNS = 12, 4
_N_CURVE_POINTS = 120  # Points of a curve.


def individuals(
    result: MixedEffectsResult, path: str | Path | None = None, *, individuals: Sequence[str] | None = None
) -> Figure:
    """Plot data with the predictions of each individual and of a typical individual, a panel for each.

    Parameters
    ----------
    result : MixedEffectsResult
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    individuals : sequence of str, optional
        By default the first 12.

    Raises
    ------
    InputError
        For an unknown name.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    >>> data = [[7.2, 5.1, 2.4], [6.1, 3.6, 1.4], [8.0, 6.7, 4.3], [7.5, 5.4, 3.0]]
    >>> animals = [cf.Experiment({"x": values}, [1.0, 2.0, 4.0], sigma=0.2) for values in data]
    >>> problem = cf.Problem(model, animals, parameters={"k": cf.Parameter(0.3, local=True)})
    >>> result = cf.mixed_effects(problem, cf.Population({"k": cf.Individual()}))
    >>> cf.plots.individuals(result)
    <Picture of ... x ... inches with 4 axes>
    """
    compiled_problem = result.question.problem
    conditions_by_name = {c.name: c for c in compiled_problem.conditions}
    mistakes: list[str] = []
    selected_names = read_names("individuals", individuals, list(conditions_by_name)[:_MOST], mistakes)
    mistakes += unknown_names("unknown individual '{}'", selected_names, conditions_by_name)
    raise_if_mistakes("plots.individuals", mistakes)
    outputs = [
        n
        for j, n in enumerate(compiled_problem.outputs)
        if any(conditions_by_name[w].points.mask[:, j].any() for w in selected_names)
    ]
    cells = [(name, output) for output in outputs for name in selected_names]
    columns = min(_COLUMNS, len(selected_names))
    rows = -(-len(selected_names) // columns) * len(outputs)
    figure = new_figure(2.4 * columns, 1.9 * rows + 0.4)
    grid = tidy_panels(figure, rows, columns, sharey=len(outputs) == 1)
    times = {n: _times(conditions_by_name[n].start, conditions_by_name[n].end) for n in selected_names}
    individual_curves, typical_curves = (
        result.predict(times, individuals=selected_names, typical=t) for t in (False, True)
    )
    per_output = -(-len(selected_names) // columns)
    for place, (name, output) in enumerate(cells):
        k, i = divmod(place, len(selected_names))
        axes = grid[k * per_output + i // columns][i % columns]
        c, j = conditions_by_name[name], compiled_problem.outputs.index(output)
        axes.plot(typical_curves[name]["time"], typical_curves[name][output], color=SOFT, linewidth=1.0, linestyle="--",
                  label="typical" if place == 0 else None)  # fmt: skip
        axes.plot(individual_curves[name]["time"], individual_curves[name][output], color=BLUE, linewidth=1.4,
                  label="individual" if place == 0 else None)  # fmt: skip
        measured = c.points.values[:, j]
        axes.plot(c.points.times, measured, "o", color=RED, markersize=3, label="data" if place == 0 else None)
        title = name if len(outputs) == 1 else f"{output}, {name}"
        add_title(axes, escape_text(title), size=8, pad=3)
        if i % columns == 0:
            labels(axes, y=escape_text(compiled_problem.label(output)), size=8)
        time_axis(
            axes, compiled_problem, [c], has_labels=i + columns >= len(selected_names) or c.origin is not None, size=8
        )
    for axes in grid.ravel():
        if not axes.has_data():
            axes.remove()
    note = (
        ""
        if len(selected_names) == len(conditions_by_name)
        else f"{len(selected_names)} of {len(conditions_by_name)} individuals are shown."
    )
    figure.legend(loc="outside upper right", ncols=3, fontsize=8, frameon=False, labelcolor=INK)
    if note:
        figure.suptitle(note, fontsize=8, color=SOFT, x=0.01, ha="left")
    return save_or_show(figure, path)


def _times(start: float, end: float) -> Any:
    return np.linspace(start, end, _N_CURVE_POINTS)
