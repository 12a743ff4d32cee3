"""Pictures over time: paths of models with process noise, plans, individuals of a population, estimated inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import flag_mistakes, read_names
from castfit._support.status import raise_if_mistakes, unknown_names
from castfit.experiment.inputs import Placeholder
from castfit.plots._canvas import (
    BLUE,
    INK,
    MARKERS,
    RED,
    SOFT,
    Canvas,
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

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.control.plan import Plan
    from castfit.drive.population.result import MixedEffectsResult
    from castfit.result.path_result import PathResult
    from castfit.result.result import Result


_PATH_WIDTH, _PATH_HEIGHT = 4.2, 1.9
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
    figure = new_figure(_PATH_WIDTH * max(len(experiment_names), 1), _PATH_HEIGHT * rows + 0.3)
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


_PLAN_WIDTH, _PLAN_HEIGHT = 6.0, 1.6

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
    figure = new_figure(_PLAN_WIDTH * (1 + 0.5 * (columns - 1)), _PLAN_HEIGHT * rows + 0.3)
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


_INPUT_WIDTH, INPUT_HEIGHT = 5.0, 2.2
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
    count = max(len(_collect_inputs(result)), 1)
    figure = new_figure(_INPUT_WIDTH * min(count, _N_COLUMNS), INPUT_HEIGHT * -(-count // _N_COLUMNS))
    draw_inputs(figure, result)
    return save_or_show(figure, path)


def count_input_rows(result: Result) -> int:
    """Return the number of rows of panels; an input that experiments share has one panel."""
    return -(-len(_collect_inputs(result)) // _N_COLUMNS)


def _collect_inputs(result: Result) -> list[tuple[str, Placeholder]]:
    inputs_by_name: dict[tuple[str, str], tuple[str, Placeholder]] = {}
    for condition in () if result.problem is None else result.problem.conditions:
        for u in condition.inputs:
            if isinstance(u, Placeholder):
                owner = condition.name if u.spec.per_experiment else ""
                inputs_by_name.setdefault((u.spec.label(u.input_name), owner), (condition.name, u))
    return list(inputs_by_name.values())[:_MAX_INPUTS]


def draw_inputs(canvas: Canvas, result: Result) -> None:
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
