"""Pictures of results: data and model with their residuals, several fits over each other."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.arguments import flag_mistakes, is_one_of, option_mistakes, rng_mistakes, shorten_repr
from castfit._support.renamed import accept_old_names
from castfit._support.status import collect_mistakes, raise_if_mistakes
from castfit.plots._canvas import (
    BEHIND,
    BLUE,
    INK,
    MARKERS,
    RED,
    SOFT,
    Canvas,
    add_note,
    escape_text,
    legend_above,
    new_figure,
    objective_symbol,
    save_or_show,
)
from castfit.plots._grid import (
    CURVE_POINTS,
    Grid,
    PanelAxes,
    arrange_on_points,
    curve_times,
    curves,
    data_sigmas,
    intervals,
    limit,
    logarithmic,
    outputs_on_one_scale,
    owner,
    panels,
)
from castfit.plots.time_courses import INPUT_HEIGHT, count_input_rows, draw_inputs
from castfit.result.path_result import PathResult
from castfit.simulate.simulate import SimulationError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.problem.compiled_experiments import Condition
    from castfit.result.result import Result
    from castfit.simulate.predictions import Prediction


_BAND_POINTS = 150  # where every draw is simulated
_MAX_NODES = 100  # Nodes up to which each is marked by a tick.
_MAX_LARGE_DOTS = 60  # Data up to which dots are large and in front of the curve.
_ROW_HEIGHT = 2.4  # Height of the data and residuals of one row in inches.
_HEADING_HEIGHT = 0.6  # Height of the heading in inches.


@accept_old_names(level="confidence_level")
def fit(
    result: Result,
    path: str | Path | None = None,
    *,
    bands: Any = None,
    noise: bool = False,
    confidence_level: float | None = None,
    rng: int | np.random.Generator = 0,
    log: bool | str = "auto",
    share: bool | str = "auto",
    nodes: bool = True,
) -> Figure:
    """Plot data with error bars, the model's curve, and the residuals (observed - predicted) in standard deviations.

    One column of panels per experiment and one row per measured output; a single experiment with many outputs, or
    many experiments with a single one, are wrapped.  Ticks along the time axis are the nodes of the transcription.
    Estimated inputs stand below, with their bands.
    A fit that failed shows as much of the model as can be integrated.

    Parameters
    ----------
    result : Result
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    bands : "linear", BootstrapResult or SampleResult, optional
        What the band about the curve is made of; see `Result.predict`.
    noise : bool
        Whether the band is that of a new measured value.
    confidence_level : float, optional
        Of the band, by default the result's confidence level.
    rng : int or numpy.random.Generator
        For the noise about the predictions of draws.
    log : {"auto", True, False, "x", "y"}
        Logarithmic axes, where that is possible; by default where times or values are spread over decades.
    share : {"auto", True, False}
        Whether panels of one output have the same scale; by default unless one experiment would look flat beside
        another.
    nodes : bool
        Whether to mark the nodes.

    Raises
    ------
    InputError
        For a loaded result without its problem, or for options that are none.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.fit(result, bands="linear")
    """
    argument: Any = result
    noisy = ["the result is that of a model with noises; use plots.paths(result)"]
    raise_if_mistakes("plots.fit", noisy if isinstance(argument, PathResult) else [])
    band: dict[str, Any] = {"bands": bands, "noise": noise, "confidence_level": confidence_level, "rng": rng}
    banded = bands is not None or noise is not False or confidence_level is not None
    mistakes = option_mistakes(
        ("log", log, is_one_of(log, "auto", True, False, "x", "y"), "choose 'auto', True, False, 'x' or 'y'"),
        ("share", share, is_one_of(share, "auto", True, False), "choose 'auto', True or False"),
    )
    mistakes += flag_mistakes(nodes=nodes)
    mistakes += collect_mistakes(lambda: result.predict({}, **band)) if banded else rng_mistakes(rng)
    raise_if_mistakes("plots.fit", mistakes)
    grid = Grid.from_problem(owner(result))
    height, below = grid.rows * _ROW_HEIGHT + _HEADING_HEIGHT, count_input_rows(result) * INPUT_HEIGHT
    figure = above = new_figure(grid.width, height + below)
    if below:
        above, beneath = figure.subfigures(2, 1, height_ratios=[height, below])
        draw_inputs(beneath, result)
    method_text = f"{result.transcription}, {result.solver}"
    title = f"{method_text}: no success"
    if result.success:
        title = f"{objective_symbol(result.measure)} = {result.objective:.5g} from {result.n_data} data; {method_text}"
    shaded = None if bands is None else band
    _draw(above, grid, {"model": result}, title, nodes=nodes, band=shaded, log=log, share=share)
    return save_or_show(figure, path)


def _shaded(result: Result, conditions: Sequence[Condition], band: Mapping[str, Any]) -> tuple[str, Prediction]:
    """Return the description and the limits of the band about a curve; `band` holds options of `Result.predict`."""
    level = result.confidence_level if band["confidence_level"] is None else band["confidence_level"]
    count = CURVE_POINTS // 3 if isinstance(band["bands"], str) else _BAND_POINTS
    band_limits = result.predict(curve_times(result, conditions, count), **band)
    return f"{100 * level:g} % of {'new values' if band['noise'] else 'the curve'}", band_limits


def comparison(results: Mapping[str, Result], path: str | Path | None = None) -> Figure:
    """Plot several fits of one problem over each other; curves that agree appear as one, with coloured edges.

    Parameters
    ----------
    results : mapping from label to Result
    path : str or Path, optional

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> figure = cf.plots.comparison({"collocation": cf.fit(problem), "single": cf.fit(problem, "single")})
    """
    return gallery({"": results}, path)


def _are_results(argument: Any) -> bool:
    results = list(cast("Mapping[str, Any]", argument).values()) if isinstance(argument, Mapping) else []
    return bool(results) and all(hasattr(r, "problem") for r in results)


def gallery(groups: Mapping[str, Mapping[str, Result]], path: str | Path | None = None) -> Figure:
    """Plot comparisons of several problems side by side.

    Parameters
    ----------
    groups : mapping from title to mapping from label to Result
    path : str or Path, optional

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> other = cf.fit(cf.problems.load("gasoil").problem)
    >>> figure = cf.plots.gallery({"bellman": {"default": result}, "gasoil": {"default": other}})
    """
    remedy = "expected a mapping from labels to at least one Result"
    raise_if_mistakes(
        "plots", [f"results is {shorten_repr(r)}; {remedy}" for r in groups.values() if not _are_results(r)]
    )
    grids = [Grid.from_problem(owner(next(iter(results.values())))) for results in groups.values()]
    widths = [grid.width for grid in grids]
    figure = new_figure(sum(widths), max(grid.rows for grid in grids) * _ROW_HEIGHT + _HEADING_HEIGHT)
    parts = figure.subfigures(1, len(grids), width_ratios=widths, squeeze=False)[0]
    for part, grid, (title, results) in zip(parts, grids, groups.items(), strict=True):
        _draw(part, grid, results, title)
    return save_or_show(figure, path)


@dataclass(frozen=True)
class Style:
    """Style of one of several fits: the first ones are wider, so that covered curves show as edges."""

    colour: str
    width: float
    size: float
    marker: str

    @classmethod
    def series(cls, count: int) -> list[Style]:
        """Return styles that are distinguishable if curves coincide."""
        widths, sizes = np.linspace(1.4, 5.0, max(count, 2))[:count], np.linspace(2.8, 7.0, max(count, 2))[:count]
        colours = [BEHIND[i % len(BEHIND)] for i in range(count - 1)] + [BLUE]
        markers = [MARKERS[(count - 1 - i) % len(MARKERS)] for i in range(count)]
        return [cls(*style) for style in zip(colours, widths[::-1], sizes[::-1], markers, strict=True)]


def _draw(
    canvas: Canvas,
    grid: Grid,
    results: Mapping[str, Result],
    title: str,
    *,
    nodes: bool = False,
    band: Mapping[str, Any] | None = None,
    log: bool | str = "auto",
    share: bool | str = "auto",
) -> None:
    """Fill a figure or a part of one: data, curves and residuals, with a title, a legend and notes."""
    first_result = next(iter(results.values()))
    shared = outputs_on_one_scale(grid) if share == "auto" else {panel.output for panel in grid.panels if share}
    pairs = panels(canvas, grid, owner(first_result), shared)
    figure = pairs[0].above.figure.get_figure(root=True)
    handles: dict[str, Any] = {}
    for pair in pairs:
        handles["data"] = container = _plot_data(pair, first_result)
        figure.label_artists("data", *container.get_children())
        for label, marks in _plot_limits(pair):
            handles[label] = marks
            figure.label_artists(label, marks)
    drawn_curves: list[Prediction] = []
    troubles: list[str] = []
    if band is not None:
        with suppress(SimulationError):
            label, limits = _shaded(first_result, grid.conditions, band)
            for pair in pairs:
                handles[label] = _plot_band(pair, first_result, limits)
                figure.label_artists(label, handles[label])
    for label, result, style in zip(results, results.values(), Style.series(len(results)), strict=True):
        curve, stops = curves(result, grid.conditions)
        for pair in pairs:
            handles[label], dots = _plot_model(pair, result, curve, style)
            figure.label_artists(label, handles[label])
            figure.label_artists(f"residuals of {label}" if len(results) > 1 else "residuals", dots)
        drawn_curves.append(curve)
        prefix = f"{label}: " if len(results) > 1 else ""
        troubles += [prefix + sentence for sentence in (stops if result.success else [result.message])]
    limit(pairs, list(results.values()), drawn_curves, shared)
    logarithmic(pairs, log, shared)
    for pair in pairs if nodes else []:
        times = first_result.trajectories[pair.panel.condition.name].times
        if pair.above.get_xscale() == "log":  # which begins behind the first nodes
            times = times[times >= pair.above.get_xlim()[0]]
        if 1 < times.size <= _MAX_NODES:
            handles["nodes"] = _plot_nodes(pair, times)
            figure.label_artists("nodes", handles["nodes"])

    notes = [textwrap.fill(escape_text(note), int(15 * grid.width)) for note in [*troubles, grid.note] if note]
    if notes:
        add_note(canvas, "\n".join(notes), RED if troubles else SOFT)
    legend_above(canvas, handles, title=textwrap.fill(escape_text(title), int(15 * grid.width)))


def _plot_data(pair: PanelAxes, result: Result) -> Any:
    """Plot measured values, and their standard deviations where they are given or were estimated."""
    points, j = pair.panel.condition.points, pair.panel.output
    measured = points.mask[:, j] & (_find_censoring_sides(pair) == 0)
    deviation = arrange_on_points(result, data_sigmas(result))[pair.panel.condition.name][measured, j]
    has_many = np.count_nonzero(measured) > _MAX_LARGE_DOTS
    return pair.above.errorbar(
        points.times[measured],
        points.values[measured, j],
        yerr=deviation if np.isfinite(deviation).all() else None,
        fmt="o",
        markersize=1.8 if has_many else 3.2,
        color=INK,
        ecolor="0.6",
        elinewidth=0.6 if has_many else 0.9,
        zorder=2.5 if has_many else 5,
    )


def _find_censoring_sides(pair: PanelAxes) -> Array:
    """Return -1 or 1 of measured values that say no more than that the true one is lower, or higher; else 0."""
    condition, j = pair.panel.condition, pair.panel.output
    observed = condition.observed[j]
    values = condition.points.values[:, j]
    return np.zeros(values.size) if observed is None else observed.noise.censoring_side(values)


def _plot_limits(pair: PanelAxes) -> list[tuple[str, Any]]:
    """Plot values beyond a limit of detection as arrows to where the true ones are."""
    points, j, side = pair.panel.condition.points, pair.panel.output, _find_censoring_sides(pair)
    artists: list[tuple[str, Any]] = []
    for sign, marker, word in ((-1, "v", "below"), (1, "^", "above")):
        is_on_side = points.mask[:, j] & (side == sign)
        if is_on_side.any():
            look = {"markersize": 4.5, "markerfacecolor": "none", "markeredgecolor": INK, "linestyle": "none"}
            (marks,) = pair.above.plot(points.times[is_on_side], points.values[is_on_side, j], marker, zorder=5, **look)
            artists.append((f"{word} the limit of detection", marks))
    return artists


def _plot_band(pair: PanelAxes, result: Result, limits: Prediction) -> Any:
    """Shade where the curve lies; its edges are seen in grey, too."""
    output = owner(result).outputs[pair.panel.output]
    band_table = limits[pair.panel.condition.name]
    low, high = (np.asarray(band_table[f"{output} {side}"], dtype=float) for side in ("lower", "upper"))
    times, step = np.asarray(band_table["time"], dtype=float), None
    step_values = intervals(result, pair.panel.condition, pair.panel.output, times, low, high)
    if step_values is not None:
        (times, low, high), step = step_values, "pre"
    is_finite = np.isfinite(low) & np.isfinite(high)
    shade = {"facecolor": BLUE, "alpha": 0.2, "edgecolor": BLUE, "linewidth": 0.6, "zorder": 2}
    return pair.above.fill_between(times, low, high, where=is_finite, step=step, **shade)


def _plot_model(pair: PanelAxes, result: Result, curves: Prediction, style: Style) -> tuple[Any, Any]:
    """Plot the model's curve, and its residuals in standard deviations; return both."""
    condition, j = pair.panel.condition, pair.panel.output
    curve = curves.get(condition.name, {"time": [np.nan]})
    times, heights = (np.asarray(curve.get(n, [np.nan]), dtype=float) for n in ("time", owner(result).outputs[j]))
    step_values = intervals(result, condition, j, times, heights)
    (times, heights), draw_style = ((times, heights), "default") if step_values is None else (step_values, "steps-pre")
    line_style = {"color": style.colour, "linewidth": style.width, "drawstyle": draw_style}
    (line,) = pair.above.plot(times, heights, zorder=3, **line_style)
    residuals = arrange_on_points(result, result.normalised_residuals)[condition.name][:, j]
    size = style.size * (0.6 if np.count_nonzero(np.isfinite(residuals)) > _MAX_LARGE_DOTS else 1.0)
    shape = {"marker": style.marker, "markersize": size, "markeredgewidth": 0, "linestyle": "none"}
    (dots,) = pair.below.plot(condition.points.times, residuals, color=style.colour, zorder=3, **shape)
    return line, dots


def _plot_nodes(pair: PanelAxes, times: Array) -> Any:
    """Mark the nodes on the time axis."""
    axis = pair.above.get_xaxis_transform()
    (marks,) = pair.above.plot(
        times, np.zeros(times.size), "|", color=SOFT, markersize=6, transform=axis, clip_on=False, zorder=4
    )
    return marks
