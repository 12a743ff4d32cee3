"""Pictures of a population: every individual with two predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.status import check, suggest
from castfit.plots._canvas import finish, heading, labels, new_figure, plain, tidy_panels, time_axis
from castfit.plots._colours import BLUE, INK, RED, SOFT

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.drive.population.result import MixedEffectsResult

_MOST, _COLUMNS = 12, 4
_TIMES = 120


def individuals(
    result: MixedEffectsResult, path: str | Path | None = None, *, individuals: Sequence[str] | None = None
) -> Figure:
    """Plot data with the prediction of each individual and that of somebody typical, a panel for each.

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
    posed = result.question.problem
    known = {c.name: c for c in posed.conditions}
    wanted = list(individuals) if individuals is not None else list(known)[:_MOST]
    check(
        "plots.individuals",
        [f"'{n}' is no individual: {suggest(n, list(known)[:20])}" for n in wanted if n not in known],
    )
    outputs = [n for j, n in enumerate(posed.outputs) if any(known[w].points.mask[:, j].any() for w in wanted)]
    cells = [(name, output) for output in outputs for name in wanted]
    columns = min(_COLUMNS, len(wanted))
    rows = -(-len(wanted) // columns) * len(outputs)
    figure = new_figure(2.4 * columns, 1.9 * rows + 0.4)
    grid = tidy_panels(figure, rows, columns, sharey=len(outputs) == 1)
    times = {n: _times(known[n].start, known[n].end) for n in wanted}
    own, typical = (result.predict(times, individuals=wanted, typical=t) for t in (False, True))
    per_output = -(-len(wanted) // columns)
    for place, (name, output) in enumerate(cells):
        k, i = divmod(place, len(wanted))
        axes = grid[k * per_output + i // columns][i % columns]
        c, j = known[name], posed.outputs.index(output)
        axes.plot(typical[name]["time"], typical[name][output], color=SOFT, linewidth=1.0, linestyle="--",
                  label="typical" if place == 0 else None)  # fmt: skip
        axes.plot(own[name]["time"], own[name][output], color=BLUE, linewidth=1.4,
                  label="individual" if place == 0 else None)  # fmt: skip
        shown = c.points.values[:, j]
        axes.plot(c.points.times, shown, "o", color=RED, markersize=3, label="data" if place == 0 else None)
        title = name if len(outputs) == 1 else f"{output}, {name}"
        heading(axes, plain(title), size=8, pad=3)
        if i % columns == 0:
            labels(axes, y=plain(posed.label(output)), size=8)
        time_axis(axes, posed, [c], shown=i + columns >= len(wanted) or c.origin is not None, size=8)
    for axes in grid.ravel():
        if not axes.has_data():
            axes.remove()
    note = "" if len(wanted) == len(known) else f"{len(wanted)} of {len(known)} individuals are shown."
    figure.legend(loc="outside upper right", ncols=3, fontsize=8, frameon=False, labelcolor=INK)
    if note:
        figure.suptitle(note, fontsize=8, color=SOFT, x=0.01, ha="left")
    return finish(figure, path)


def _times(start: float, end: float) -> Any:
    return np.linspace(start, end, _TIMES)
