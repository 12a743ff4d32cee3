"""A picture of the path of a model with noise: data, smoothed values with their band, and the innovations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from castfit._support.arguments import flag_mistakes, read_names
from castfit._support.status import raise_if_mistakes, unknown_names
from castfit.plots._canvas import (
    add_title,
    escape_text,
    labels,
    legend,
    legend_above,
    new_figure,
    save_or_show,
    shade_band,
    tidy_panels,
    time_axis,
)
from castfit.plots._colours import BLUE, MARKERS, RED

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.result.path_result import PathResult

WIDTH, HEIGHT = 4.2, 1.9
_MAX_EXPERIMENTS = 4  # Experiments that are drawn by default at most.
_INNOVATION_BAND_SD = 2.0  # Half-width of the band of innovations in standard deviations.


def paths(
    result: PathResult, path: str | Path | None = None, *, outputs: Sequence[str] | None = None,
    experiments: Sequence[str] | None = None, innovations: bool = True, confidence_level: float | None = None,
) -> Figure:  # fmt: skip
    """Plot the path of each experiment with its band, the data, and the innovations.

    Parameters
    ----------
    result : PathResult
        With its problem.
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    outputs : sequence of str, optional
        By default what is measured, and the states.
    experiments : sequence of str, optional
        By default the first four.
    innovations : bool
        Whether a row below shows the innovations, in their standard deviations.
    confidence_level : float, optional
        Of the band at each time; by default that of the result.

    Raises
    ------
    InputError
        For an unknown name.

    Examples
    --------
    >>> import castfit as cf
    >>> x, w, s = cf.symbols("x w s")
    >>> model = cf.Model({x: s * w}, parameters=[s], noises=[w])
    >>> data = [1.1, 0.9, 1.6, 2.2, 1.9, 2.4, 3.3, 3.1, 2.6, 2.9, 3.5, 4.1]
    >>> experiment = cf.Experiment({"x": data}, time=range(12), sigma=0.2, initial={"x": cf.Normal(1, 1)})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"s": cf.Parameter(0.3, scale="log")}))
    >>> cf.plots.paths(result)
    <Picture of ... x ... inches with 2 axes>
    """
    compiled_problem = result.owner("plots.paths").posed
    conditions_by_name = {c.name: c for c in compiled_problem.conditions}
    mistakes = flag_mistakes(innovations=innovations)
    experiment_names = read_names("experiments", experiments, list(conditions_by_name)[:_MAX_EXPERIMENTS], mistakes)
    measured = dict.fromkeys(n for name in result.tracks for n in result.innovations[name].outputs)
    all_outputs = dict.fromkeys((*measured, *compiled_problem.model.own_states))
    shown_outputs = read_names("outputs", outputs, all_outputs, mistakes, may_be_empty=True)
    names = next(iter(result.tracks.values())).names if result.tracks else ()
    mistakes += unknown_names("unknown experiment '{}'", experiment_names, result.tracks)
    mistakes += unknown_names("unknown state or output '{}'", shown_outputs, names)
    raise_if_mistakes("plots.paths", mistakes)
    rows = len(shown_outputs) + innovations
    figure = new_figure(WIDTH * max(len(experiment_names), 1), HEIGHT * rows + 0.3)
    panels, handles = tidy_panels(figure, rows, max(len(experiment_names), 1), sharex="col"), dict[str, Any]()
    for column, name in enumerate(experiment_names):
        innovation_series, condition = result.innovations[name], conditions_by_name[name]
        for row, output in enumerate(shown_outputs):
            axes, band = panels[row, column], result.path(output, name, confidence_level=confidence_level)
            handles["band of the path"] = axes.fill_between(
                band.times, band.lower, band.upper, color=BLUE, alpha=0.2, linewidth=0
            )
            handles["most probable path"] = axes.plot(band.times, band.values, color=BLUE, linewidth=1.3)[0]
            if output in innovation_series.outputs:
                values = innovation_series.values[:, innovation_series.outputs.index(output)]
                handles["data"] = axes.plot(innovation_series.times, values, "o", color=RED, markersize=2.5)[0]
            if column == 0:
                labels(axes, y=escape_text(compiled_problem.label(output)), size=8)
            if row == 0 and len(conditions_by_name) > 1:
                add_title(axes, escape_text(name), size=8, pad=3)
        if innovations:
            axes = panels[-1, column]
            shade_band(axes, _INNOVATION_BAND_SD)
            for j, output in enumerate(innovation_series.outputs):
                axes.plot(innovation_series.times, innovation_series.standardised[:, j], MARKERS[j % len(MARKERS)],
                          markersize=2.5, color=BLUE, label=escape_text(output))  # fmt: skip
            if len(innovation_series.outputs) > 1 and column == 0:
                legend(axes, size=7, ncols=len(innovation_series.outputs))
            if column == 0:
                labels(axes, y="innovation", size=8)
        time_axis(panels[-1, column], compiled_problem, [condition], size=8)
    legend_above(figure, handles)
    return save_or_show(figure, path)
