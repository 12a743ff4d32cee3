"""Pictures of results: data and model with their residuals, several fits over each other, correlations."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.plots._canvas import BEHIND, BLUE, FAINT, INK, RED, SOFT, Axes, Canvas, finish, new_figure, tidy
from castfit.simulate import SimulationError
from castfit.status import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from castfit.conditions import Condition
    from castfit.problem import Posable
    from castfit.result import Result
    from castfit.simulate import Prediction

    Array = NDArray[np.float64]

_CURVE_POINTS = 600
_BAND_POINTS = 150  # where every draw is simulated
_MOST_COLUMNS, _MOST_PANELS = 4, 12
_MOST_NODES = 100  # more ticks than that would be a bar
_MANY_POINTS = 60  # smaller dots, and behind the curve
_MOST_WRITTEN = 12  # a larger correlation matrix shows colours only
_WIDTHS = (6.4, 4.6, 3.8, 3.4)  # of a panel in inches, by the number of columns
_HEIGHT = 2.4  # of data and residuals together
_HEADING = 0.6


def fit(result: Result, path: str | Path | None = None, **bands: Any) -> Figure:
    """Plot data with error bars, the model's curve, and the residuals in standard deviations.

    One column of panels per experiment and one row per measured output; a single experiment with many outputs, or
    many experiments with a single one, are wrapped.  Ticks along the time axis are the nodes of the transcription.
    A fit that failed shows as much of the model as can be integrated.

    Parameters
    ----------
    result : Result
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    **bands
        Options of ``result.predict``: what bands about the curves are made of, whether with noise, their level.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.fit(result)
    """
    if bands:
        result.predict({}, **bands)  # says what is wrong before anything is drawn
    grid = _Grid.of(_problem(result))
    figure = new_figure(grid.width, grid.rows * _HEIGHT + _HEADING)
    how = f"{result.transcription}, {result.solver}"
    title = f"{how}: χ² = {result.chi2:.5g} from {result.n_data} data" if result.success else f"{how}: no success"
    _draw(figure, grid, {"model": result}, title, nodes=True, bands=bands)
    return finish(figure, path)


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
    grids = [_Grid.of(_problem(next(iter(results.values())))) for results in groups.values()]
    widths = [grid.width for grid in grids]
    figure = new_figure(sum(widths), max(grid.rows for grid in grids) * _HEIGHT + _HEADING)
    parts = figure.subfigures(1, len(grids), width_ratios=widths, squeeze=False)[0]
    for part, grid, (title, results) in zip(parts, grids, groups.items(), strict=True):
        _draw(part, grid, results, title)
    return finish(figure, path)


def correlation(result: Result, path: str | Path | None = None) -> Figure:
    """Plot the correlations between the estimates; grey where there is none, as at a bound.

    Parameters
    ----------
    result : Result
    path : str or Path, optional

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.correlation(result)
    """
    names, count = result.names, len(result.names)
    size = 1.6 + 0.42 * min(count, 24)
    figure = new_figure(size + 0.8, size)
    axes = figure.subplots()
    if count < 2 or not np.isfinite(result.correlation).any():
        axes.axis("off")
        reason = textwrap.fill(f"There are no correlations. {result.identifiability.sentence}", 32)
        axes.text(0.5, 0.5, reason, ha="center", va="center", color=SOFT)
        return finish(figure, path)
    # The matrix is symmetric: rows from the second, columns up to the last, and only what lies below the diagonal.
    below = np.tri(count - 1, dtype=bool)
    shown = result.correlation[1:, :-1]
    axes.imshow(np.where(below, 0.0, np.nan), cmap="Greys", vmin=-1.0, vmax=12.0)
    picture = axes.imshow(np.where(below, shown, np.nan), cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    axes.set_xticks(range(count - 1), names[:-1], rotation=90 if max(map(len, names)) > 5 else 0)
    axes.set_yticks(range(count - 1), names[1:])
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(count) - 0.5, minor=True)
    axes.set_yticks(np.arange(count) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
    if count <= _MOST_WRITTEN:
        for i, j in zip(*np.nonzero(below & np.isfinite(shown)), strict=True):
            colour = "white" if abs(shown[i, j]) > 0.6 else INK
            axes.text(j, i, f"{shown[i, j]:.2f}".replace("-", "−"), ha="center", va="center", color=colour, fontsize=8)
    bar = figure.colorbar(picture, ax=axes, shrink=0.7, aspect=24, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.set_label("correlation", size=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8)
    return finish(figure, path)


@dataclass(frozen=True)
class _Panel:
    """One measured output of one experiment, and where it stands."""

    row: int
    column: int
    condition: Condition
    output: int


@dataclass(frozen=True)
class _Grid:
    """The arrangement of panels; `note` says what was left out."""

    panels: tuple[_Panel, ...]
    rows: int
    columns: int
    note: str

    @classmethod
    def of(cls, problem: Posable) -> _Grid:
        """Put experiments in columns and outputs in rows; wrap where there is only one of either."""
        conditions, outputs = problem.conditions, range(len(problem.outputs))
        measured = [(c, j) for c in conditions for j in outputs if c.points.mask[:, j].any()]
        if len(conditions) == 1 or len(outputs) == 1:
            shown = measured[:_MOST_PANELS]
            rows = -(-len(shown) // _MOST_COLUMNS)
            columns = -(-len(shown) // (3 if len(conditions) == 1 else rows))
            panels = [_Panel(*divmod(i, columns), *what) for i, what in enumerate(shown)]
        else:
            columns = min(len(conditions), _MOST_COLUMNS)
            column = {c.name: i for i, c in enumerate(conditions[:columns])}
            seen = sorted({j for c, j in measured if c.name in column})[: _MOST_PANELS // columns]
            panels = [
                _Panel(seen.index(j), column[c.name], c, j) for c, j in measured if c.name in column and j in seen
            ]
        note = f"{len(panels)} of {len(measured)} panels are shown." if len(panels) < len(measured) else ""
        return cls(tuple(panels), 1 + max(panel.row for panel in panels), columns, note)

    @property
    def width(self) -> float:
        """Width of all columns in inches."""
        return self.columns * _WIDTHS[self.columns - 1]

    def shows_time(self, panel: _Panel) -> bool:
        """Whether a panel labels its times: nothing right below has the same ones."""
        return not any(
            (p.row, p.column, p.condition) == (panel.row + 1, panel.column, panel.condition) for p in self.panels
        )

    def shows_values(self, panel: _Panel) -> bool:
        """Whether a panel labels its values: nothing right before it has the same ones."""
        return not any((p.row, p.column, p.output) == (panel.row, panel.column - 1, panel.output) for p in self.panels)


@dataclass(frozen=True)
class _Pair:
    """The axes of a panel: data and model above, residuals below."""

    panel: _Panel
    above: Axes
    below: Axes


@dataclass(frozen=True)
class _Style:
    """How one of several fits is drawn: the first ones wider, so that those behind show as edges."""

    colour: str
    width: float
    size: float

    @classmethod
    def series(cls, count: int) -> list[_Style]:
        """Return styles that can be told apart where curves coincide."""
        widths, sizes = np.linspace(1.4, 5.0, max(count, 2))[:count], np.linspace(2.8, 7.0, max(count, 2))[:count]
        colours = [BEHIND[i % len(BEHIND)] for i in range(count - 1)] + [BLUE]
        return [cls(*style) for style in zip(colours, widths[::-1], sizes[::-1], strict=True)]


def _problem(result: Result) -> Posable:
    if result.problem is None:
        raise InputError("plots", ["a loaded result does not know its data; use result.with_problem(problem) first"])
    return result.problem


def _draw(
    canvas: Canvas,
    grid: _Grid,
    results: Mapping[str, Result],
    title: str,
    *,
    nodes: bool = False,
    bands: Mapping[str, Any] | None = None,
) -> None:
    """Fill a figure or a part of one: data, curves and residuals, with a title, a legend and notes."""
    first = next(iter(results.values()))
    pairs = _axes(canvas, grid, _problem(first))
    handles: dict[str, Any] = {}
    for pair in pairs:
        handles["data"] = _plot_data(pair, first)
    curves: list[Prediction] = []
    troubles: list[str] = []
    for label, result, style in zip(results, results.values(), _Style.series(len(results)), strict=True):
        curve, stops = _curves(result, bands or {})
        for pair in pairs:
            handles[label] = _plot_model(pair, result, curve, style)
            band = _plot_band(pair, result, curve) if bands else None
            if band is not None:
                handles[_band_label(result, bands or {})] = band
        curves.append(curve)
        prefix = f"{label}: " if len(results) > 1 else ""
        troubles += [prefix + sentence for sentence in (stops if result.success else [result.message])]
    for pair in pairs if nodes else []:
        times = first.trajectories[pair.panel.condition.name].times
        if 1 < times.size <= _MOST_NODES:
            handles["nodes"] = _plot_nodes(pair, times)
    _limit(pairs, list(results.values()), curves)

    notes = [textwrap.fill(note, int(15 * grid.width)) for note in [*troubles, grid.note] if note]
    if notes:
        canvas.supxlabel("\n".join(notes), x=0.01, ha="left", fontsize=8, color=RED if troubles else SOFT)
    legend = canvas.legend(
        handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles), fontsize=8, frameon=False
    )
    legend.set_title(textwrap.fill(title, int(13 * grid.width)), prop={"size": 10})
    legend.set_alignment("left")


def _axes(canvas: Canvas, grid: _Grid, problem: Posable) -> list[_Pair]:
    """Make the axes: panels of one experiment share their times, panels of one output their values."""
    cells = canvas.add_gridspec(2 * grid.rows, grid.columns, height_ratios=[2.8, 1] * grid.rows)
    pairs: list[_Pair] = []
    for panel in grid.panels:
        name, output = panel.condition.name, problem.outputs[panel.output]
        time = next((p.above for p in pairs if p.panel.condition is panel.condition), None)
        value = next((p.above for p in pairs if p.panel.output == panel.output), None)
        above = canvas.add_subplot(cells[2 * panel.row, panel.column], sharex=time, sharey=value)
        residual = pairs[0].below if pairs else None
        below = canvas.add_subplot(cells[2 * panel.row + 1, panel.column], sharex=above, sharey=residual)
        several = len(problem.conditions) > 1
        heading = f"{output}, {name}" if several else output
        above.set_title(heading, loc="left", fontsize=9, color=INK, pad=4)
        for axes in (above, below):
            tidy(axes)
        above.tick_params(axis="x", length=0)
        above.tick_params(labelbottom=False, labelleft=grid.shows_values(panel))
        below.tick_params(labelbottom=grid.shows_time(panel), labelleft=panel.column == 0)
        if grid.shows_time(panel):
            below.set_xlabel("time", fontsize=8, color=INK, labelpad=1)
        if panel.column == 0:
            below.set_ylabel("residual / σ", fontsize=7.5, color=INK)
        below.axhspan(-2, 2, color=FAINT, linewidth=0, zorder=0)
        below.axhline(0, color=SOFT, linewidth=0.6, zorder=1)
        pairs.append(_Pair(panel, above, below))
    return pairs


def _plot_data(pair: _Pair, result: Result) -> Any:
    """Plot measured values, and their standard deviations where they are given or were estimated."""
    points, j = pair.panel.condition.points, pair.panel.output
    measured = points.mask[:, j]
    deviation = _on_points(result, _deviations(result))[pair.panel.condition.name][measured, j]
    many = np.count_nonzero(measured) > _MANY_POINTS
    return pair.above.errorbar(
        points.times[measured],
        points.values[measured, j],
        yerr=deviation if np.isfinite(deviation).all() else None,
        fmt="o",
        markersize=1.8 if many else 3.2,
        color=INK,
        ecolor="0.6",
        elinewidth=0.6 if many else 0.9,
        zorder=2.5 if many else 5,
    )


def _plot_model(pair: _Pair, result: Result, curves: Prediction, style: _Style) -> Any:
    """Plot the model's curve, and its residuals in standard deviations."""
    condition, j = pair.panel.condition, pair.panel.output
    curve = curves.get(condition.name, {"time": [np.nan]})
    heights = curve.get(_problem(result).outputs[j], [np.nan])
    (line,) = pair.above.plot(curve["time"], heights, color=style.colour, linewidth=style.width, zorder=3)
    residuals = _on_points(result, result.normalised_residuals)[condition.name][:, j]
    size = style.size * (0.6 if np.count_nonzero(np.isfinite(residuals)) > _MANY_POINTS else 1.0)
    pair.below.plot(
        condition.points.times, residuals, "o", color=style.colour, markersize=size, markeredgewidth=0, zorder=3
    )
    return line


def _plot_band(pair: _Pair, result: Result, curves: Prediction) -> Any | None:
    """Fill between the limits of a prediction, where these are known and finite."""
    curve, output = curves.get(pair.panel.condition.name), _problem(result).outputs[pair.panel.output]
    if curve is None or f"{output} lower" not in curve:
        return None
    low, high = np.asarray(curve[f"{output} lower"]), np.asarray(curve[f"{output} upper"])
    known = np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return None
    return pair.above.fill_between(curve["time"], low, high, where=known, color=BLUE, alpha=0.2, linewidth=0, zorder=1)


def _band_label(result: Result, bands: Mapping[str, Any]) -> str:
    level = result.confidence_level if bands.get("level") is None else bands["level"]
    return f"{100 * level:g} %{' of new values' if bands.get('noise') else ''}"


def _plot_nodes(pair: _Pair, times: Array) -> Any:
    """Mark the nodes on the time axis."""
    axis = pair.above.get_xaxis_transform()
    (marks,) = pair.above.plot(
        times, np.zeros(times.size), "|", color=SOFT, markersize=6, transform=axis, clip_on=False, zorder=4
    )
    return marks


def _deviations(result: Result) -> Array:
    """Return the standard deviations of the data, (n_data,); NaN where they are not known."""
    if result.solution.deviations.size == result.n_data:
        return result.solution.deviations
    given = np.concatenate([c.points.sigma[c.points.mask] for c in _problem(result).conditions])
    return given * (1.0 if result.absolute_sigma else result.noise)  # saved by an earlier version


def _on_points(result: Result, values: Array) -> dict[str, Array]:
    """Arrange what is known of measured values, (n_data,), on each experiment's points, (n_points, n_outputs)."""
    conditions = _problem(result).conditions
    ends = np.cumsum([c.points.mask.sum() for c in conditions])
    out: dict[str, Array] = {}
    for condition, own in zip(conditions, np.split(values, ends[:-1]), strict=True):
        table = np.full(condition.points.mask.shape, np.nan)
        table[condition.points.mask] = own
        out[condition.name] = table
    return out


def _curves(result: Result, bands: Mapping[str, Any]) -> tuple[Prediction, list[str]]:
    """Evaluate the model densely; where it cannot be integrated to the end, as far as it goes, and say so."""
    many = _BAND_POINTS if bands and not isinstance(bands.get("bands"), str) else _CURVE_POINTS
    times = {c.name: np.linspace(c.start, c.end, many) for c in _problem(result).conditions}
    try:
        return result.predict(times, **bands), []
    except SimulationError:
        stops: list[str] = []
        curves: Prediction = {}
        for name, t in times.items():
            try:
                curves.update(result.predict({name: t}))
            except SimulationError as stop:
                stops.append(str(stop))
                before = t[t < stop.time][:-1]
                with suppress(SimulationError):
                    curves.update(result.predict({name: before}) if before.size > 1 else {})
        return curves, stops


def _limit(pairs: Sequence[_Pair], results: Sequence[Result], curves: Sequence[Prediction]) -> None:
    """Show all data and residuals, and of curves that leave the data no more than their span on either side."""
    result = results[0]
    outputs = _problem(result).outputs
    for j in {pair.panel.output for pair in pairs}:
        points = [pair.panel.condition.points for pair in pairs if pair.panel.output == j]
        away = _on_points(result, np.nan_to_num(_deviations(result)))
        names = [pair.panel.condition.name for pair in pairs if pair.panel.output == j]
        ends = [p.values[:, j] + sign * away[n][:, j] for p, n in zip(points, names, strict=True) for sign in (-1, 1)]
        low, high = np.nanmin(np.concatenate(ends)), np.nanmax(np.concatenate(ends))
        span = high - low or abs(high) or 1.0
        shown = {pair.panel.condition.name for pair in pairs if pair.panel.output == j}
        heights = [curve[name][outputs[j]] for curve in curves for name in shown & curve.keys()]
        reach = np.clip(np.concatenate([*heights, [low, high]]), low - span, high + span)
        low, high = np.nanmin(reach), np.nanmax(reach)
        next(pair.above for pair in pairs if pair.panel.output == j).set_ylim(
            low - 0.06 * (high - low), high + 0.06 * (high - low)
        )
    sizes = np.concatenate([np.abs(r.normalised_residuals) for r in results])
    largest = 1.15 * max(2.6, np.max(sizes[np.isfinite(sizes)], initial=0.0))
    pairs[0].below.set_ylim(-largest, largest)
    if largest < 6:
        pairs[0].below.set_yticks([-2, 0, 2])
