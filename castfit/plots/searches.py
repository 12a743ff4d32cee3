"""Pictures of searches: objectives of all starts, success of methods, the best value over time, model selection."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from castfit._support.status import InputError
from castfit._support.ties import stable_order
from castfit.plots._canvas import (
    BEHIND,
    BLUE,
    FAINT,
    INK,
    MARKERS,
    RED,
    SOFT,
    STYLES,
    Axes,
    add_title,
    escape_text,
    labels,
    legend,
    new_figure,
    objective_symbol,
    save_or_show,
    single,
    tidy_panels,
)
from castfit.problem.compiled_problem import CHI2

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.drive.model_comparison.selection_result import SelectionResult
    from castfit.drive.search.compare.result import ComparisonResult
    from castfit.drive.search.multistart.result import MultistartResult
    from castfit.drive.search.scatter.result import BestSoFar


_LETTERS_PER_INCH = 11  # Letters of a heading per inch.
_OTHER = "0.7"  # optima beyond the palette
_PALETTE = (BLUE, *BEHIND)
_SAME_VALUE_RTOL = 1e-3  # Relative range of a quantity up to which all starts agree.
_MAX_LEGEND_OPTIMA = 4  # Optima in the legend at most.
_MIN_AXIS_RANGE = 0.05  # Range of the objectives, relative for chi2, below which differences are rounding.
_LOG_AXIS_RATIO = 100.0  # Ratio of chi2 values, or of values of a quantity, above which an axis is logarithmic.
_METHODS = (BLUE, RED, *BEHIND)
_TIME_MARGIN_FACTOR = 1.5  # Factor between the first or last success and the end of the time axis.
_MIN_CHI2 = 1e-30  # Smallest chi2 on a logarithmic axis.


def waterfall(result: MultistartResult, path: str | Path | None = None) -> Figure:
    """Plot the objective of all starts, the lowest first: a flat step is an optimum that many starts found.

    Starts that ended without success are crosses; those that have none are counted in the title.

    Parameters
    ----------
    result : MultistartResult
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.multistart(problem, starts=3, limits={"k1": (0, 1e-4), "k2": (0, 1e-3)}, rng=0)
    >>> figure = cf.plots.waterfall(found)
    """
    rows = sorted(
        (row for row in result.starts if np.isfinite(row.objective)), key=lambda row: (row.objective, row.index)
    )
    figure, axes = single(6.4, 3.6)
    colours = _colours(result)
    for k, optimum in enumerate(result.optima):
        positions = [i for i, row in enumerate(rows) if row.index in optimum.starts]
        label = (
            f"{objective_symbol(result.measure)} = {optimum.objective:.6g}: {_count(len(positions))}"
            if k < _MAX_LEGEND_OPTIMA
            else None
        )
        marker = MARKERS[k % len(MARKERS)]
        (dots,) = axes.plot(
            positions, [rows[i].chi2 for i in positions], marker, color=colours[k], markersize=4.5, label=label
        )
        figure.label_artists(label or "further optima", dots)
    failed = [i for i, row in enumerate(rows) if not row.success]
    if failed:
        label = f"without success: {_count(len(failed))}"
        axes.plot(failed, [rows[i].chi2 for i in failed], "x", color=SOFT, markersize=4, label=label)
    squares = result.measure == CHI2
    values = [row.objective for row in rows if row.objective > 0 or not squares]
    span = max(values, default=0.0) - min(values, default=0.0)
    if squares and values and max(values) > _LOG_AXIS_RATIO * min(values):
        axes.set_yscale("log")
    elif not squares and span > _LOG_AXIS_RATIO**2:  # a likelihood has no zero: the best is at the bottom
        axes.set_yscale("symlog", linthresh=max(abs(min(values)), _LOG_AXIS_RATIO))
    elif values and span < (
        _MIN_AXIS_RANGE * max(values) if squares else _MIN_AXIS_RANGE
    ):  # rounding, which is not to be seen
        room = _MIN_AXIS_RANGE * max(values) if squares else 1.0
        axes.set_ylim(min(values) - room, max(values) + room)
    axes.xaxis.get_major_locator().set_params(integer=True)
    labels(axes, "starts, sorted", objective_symbol(result.measure))
    if rows:
        legend(axes)
    _title(axes, result, len(result.starts) - len(rows), f"have no {objective_symbol(result.measure)}")
    return save_or_show(figure, path)


def parameters(result: MultistartResult, path: str | Path | None = None) -> Figure:
    """Plot the estimates of all successful starts: one line per start across all quantities, coloured by optimum.

    Each quantity is scaled to its range over the starts, which is written at its ends.  A positive quantity that spans
    several decades is drawn on a logarithmic scale.  Lines that agree in one quantity and fan out in another
    show what an optimum leaves open.

    Parameters
    ----------
    result : MultistartResult
    path : str or Path, optional

    Raises
    ------
    InputError
        If no start succeeded.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.multistart(problem, starts=3, limits={"k1": (0, 1e-4), "k2": (0, 1e-3)}, rng=0)
    >>> figure = cf.plots.parameters(found)
    """
    rows = {row.index: row for row in result.starts if row.success}
    if not rows:
        raise InputError(
            "plots.parameters", ["no start succeeded, so there are no estimates to plot; see plots.waterfall"]
        )
    names = tuple(next(iter(rows.values())).values)
    spans = {name: _ValueRange(name, rows.values()) for name in names}
    figure, axes = single(max(4.0, 1.6 + 0.7 * len(names)), 3.8)
    axes.grid(visible=False, axis="y")
    axes.spines[["left", "bottom"]].set_visible(False)
    colours = _colours(result)
    positions = np.arange(len(names))
    for x in positions:
        axes.axvline(x, color=FAINT, linewidth=1.5, zorder=0)
    for k in reversed(range(len(result.optima))):  # the best on top
        for i in result.optima[k].starts:
            heights = [spans[name].height(rows[i].values[name]) for name in names]
            line_options = {"linewidth": 1.6, "alpha": 0.9} if k == 0 else {"linewidth": 0.9, "alpha": 0.6}
            axes.plot(
                positions,
                heights,
                "-",
                marker=MARKERS[k % len(MARKERS)],
                color=colours[k],
                markersize=3.5,
                **line_options,
            )
    axes.set_yticks([])
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(-0.14, 1.14)
    turned = 90 if len(names) > 12 or max(map(len, names)) > 8 else 0
    axes.set_xticks(
        positions, [escape_text(f"{name} (log)" if spans[name].log else name) for name in names], rotation=turned
    )
    for x, name in enumerate(names):
        for height, value, side in spans[name].ends:
            axes.text(x, height, f"{value:.3g}", ha="center", va=side, fontsize=7, color=SOFT)
    _title(axes, result, len(result.starts) - len(rows), "without success")
    return save_or_show(figure, path)


class _ValueRange:
    """The range of a quantity over all starts, and where a value lies in it."""

    def __init__(self, name: str, rows: Any) -> None:
        values = np.array([row.values[name] for row in rows])
        self.low, self.high = float(values.min()), float(values.max())
        self.log = self.low > 0 and self.high > _LOG_AXIS_RATIO * self.low
        self.single = self.high - self.low <= _SAME_VALUE_RTOL * max(abs(self.low), abs(self.high))

    @property
    def ends(self) -> list[tuple[float, float, str]]:
        """Heights, values and vertical alignments of the labels at the ends of the range."""
        if self.single:
            return [(0.54, self.low, "bottom")]
        return [(-0.04, self.low, "top"), (1.04, self.high, "bottom")]

    def height(self, value: float) -> float:
        """Map a value to 0 ... 1; all to the middle if they are equal."""
        if self.single:
            return 0.5
        low, high, position = np.log([self.low, self.high, value]) if self.log else (self.low, self.high, value)
        return float((position - low) / (high - low))


def _count(number: int) -> str:
    return f"{number} start{'' if number == 1 else 's'}"


def _colours(result: MultistartResult) -> list[str]:
    return [_PALETTE[k] if k < len(_PALETTE) else _OTHER for k in range(len(result.optima))]


def _title(axes: Axes, result: MultistartResult, missing: int, missing_reason: str) -> None:
    best_optimum = result.optima[0] if result.optima else None
    total = len(result.starts)
    best_text = "none succeeded"
    if best_optimum is not None:
        best_text = (
            f"best {objective_symbol(result.measure)} = {best_optimum.objective:.6g} found "
            f"{len(best_optimum.starts)} times"
        )
    missing_text = f", {missing} {missing_reason}" if missing else ""
    width = axes.figure.get_figure(root=True).get_size_inches()[0]  # which is narrow where quantities are few
    add_title(
        axes, textwrap.fill(f"{total} starts: {best_text}{missing_text}", int(_LETTERS_PER_INCH * width)), size=10
    )


def success(result: ComparisonResult, path: str | Path | None = None) -> Figure:
    """Plot the share of starts from which each method has found the global optimum, against the time that it had.

    A curve that rises early is fast, one that ends high is reliable; its end is the success rate.

    Parameters
    ----------
    result : ComparisonResult
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.compare(problem, ["single", "collocation"], starts=[{"k1": 1e-6}, {"k1": 1e-5}])
    >>> figure = cf.plots.success(found)
    """
    from matplotlib.ticker import LogLocator

    times = {row.method: np.sort([t.time for t in result.trials
                                  if t.method == row.method and result.category(t) == "correct"])
             for row in result.rows}  # fmt: skip
    all_times = np.concatenate([method_times for method_times in times.values()])
    shortest_time, longest_time = (float(all_times.min()), float(all_times.max())) if all_times.size else (0.1, 10.0)
    figure, axes = single(6.4, 3.8)
    for k, row in enumerate(result.rows):
        method_times = times[row.method]
        shares = 100 * np.arange(method_times.size + 1) / max(row.starts, 1)
        (curve,) = axes.step(
            np.append(method_times[:1], method_times),
            shares[: method_times.size + 1] if method_times.size else [],
            where="post",
            color=_METHODS[k % len(_METHODS)],
            linestyle=STYLES[k % len(STYLES)],
            linewidth=1.8,
            marker=MARKERS[k % len(MARKERS)],
            markevery=[-1]
            if method_times.size
            else [],  # curves end at their success rates, without covering each other
            markersize=5,
            label=escape_text(f"{row.method}: {row.correct} of {row.starts}"),
        )
        figure.label_artists(row.method, curve)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(which="minor", labelsize=8, labelcolor=INK)
    axes.set_xlim(shortest_time / _TIME_MARGIN_FACTOR, longest_time * _TIME_MARGIN_FACTOR)
    axes.set_ylim(-3, 103)
    labels(axes, "time per start in s", "found the global optimum in %")
    legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5))
    title = f"{len(result.drawn)} starts, {objective_symbol(result.measure)} = {result.best_objective:.6g}"
    add_title(axes, title, size=10)
    return save_or_show(figure, path)


class SearchHistory(Protocol):
    """Protocol of searches with a history and totals, such as a `ScatterResult`."""

    @property
    def history(self) -> Sequence[BestSoFar]:
        """The best objective whenever it fell."""
        ...

    @property
    def measure(self) -> str:
        """Name of the measure by which points are compared."""
        ...

    @property
    def simulations(self) -> int:
        """Simulations in all."""
        ...

    @property
    def time(self) -> float:
        """Seconds in all."""
        ...


def curves(
    searches: Mapping[str, Sequence[SearchHistory]], path: str | Path | None = None, *, target: float | None = None
) -> Figure:
    """Plot the best objective against simulations and against time, one line per search, one colour per method.

    Parameters
    ----------
    searches : mapping from a method's name to its searches
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    target : float, optional
        A value to mark.

    Raises
    ------
    InputError
        If no search found a point that can be simulated.
    """
    if not any(search.history for group in searches.values() for search in group):
        raise InputError("plots.curves", ["no search has a value to show; nothing could be simulated"])
    measures = {search.measure for group in searches.values() for search in group}
    squares = measures == {CHI2}
    figure = new_figure(8.4, 3.6)
    panels = tidy_panels(figure, 1, 2, sharey=True)[0]
    for axes, progress_field, total_field in zip(
        panels, ("simulations", "seconds"), ("simulations", "time"), strict=True
    ):
        for k, (name, group) in enumerate(searches.items()):
            for i, search in enumerate(s for s in group if s.history):
                positions, values = _steps(search, progress_field, float(getattr(search, total_field)))
                label = name if i == 0 and len(searches) > 1 else None
                colour = _PALETTE[k % len(_PALETTE)]
                axes.step(positions, values, where="post", color=colour, linewidth=1.2, alpha=0.85, label=label)
        if target is not None and (target > 0 or not squares):
            axes.axhline(target, color=SOFT, linewidth=0.8, linestyle="--")
        axes.set_xscale("log")
        if squares:
            axes.set_yscale("log")
        labels(axes, progress_field)
    labels(panels[0], y=f"best {objective_symbol(next(iter(measures)) if len(measures) == 1 else 'objective')}")
    if len(searches) > 1:
        legend(panels[1])
    return save_or_show(figure, path)


def _steps(search: SearchHistory, progress_field: str, end: float) -> tuple[Array, Array]:
    """Return the positions and values at which the objective decreased, extended to the end of the search."""
    positions = [float(getattr(moment, progress_field)) for moment in search.history]
    floor = _MIN_CHI2 if search.measure == CHI2 else -np.inf
    values = [max(moment.objective, floor) for moment in search.history]
    return np.array([*positions, max(end, positions[-1])]), np.array([*values, values[-1]])


_MAX_BARS = 12  # Bars in a panel at most.
_LINEAR_RANGE = 10.0  # Difference of the criterion up to which the axis is linear.
_MAX_NAME_LETTERS = 28  # Letters of a name at most.


def selection(found: SelectionResult, path: str | Path | None = None) -> Figure:
    """Plot the criterion of all candidates, with the path of the search, importances of quantities, and weights.

    Parameters
    ----------
    found : SelectionResult
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, m = cf.symbols("x k m")
    >>> model = cf.Model({x: -k * x - m}, parameters=[k, m], initial={x: 2})
    >>> data = cf.Experiment({"x": [1.49, 1.09, 0.83, 0.59, 0.46, 0.33]}, time=[1, 2, 3, 4, 5, 6], sigma=0.02)
    >>> problem = cf.Problem(model, data, parameters={"k": 0.5, "m": 0.1})
    >>> found = cf.select(problem, choices={"k": [0, cf.estimated], "m": [0, cf.estimated]})
    >>> figure = cf.plots.selection(found)
    """
    shares = [*found.importance.items()]
    order = stable_order([share for _, share in shares], descending=True)
    importance = dict(shares[int(i)] for i in order[:_MAX_BARS].flat)
    weights = {n: found.weights[n] for n in found.names[:_MAX_BARS]}
    figure = new_figure(10.0, 1.4 + 0.22 * max(len(importance), len(weights), 8))
    left, middle, right = tidy_panels(figure, 1, 3)[0]
    delta = {n: d for n, d in found.delta.items() if np.isfinite(d)}
    sizes = {n: found.size(n) for n in delta}
    (dots,) = left.plot([sizes[n] for n in delta], list(delta.values()), "o", color=SOFT, markersize=4)
    figure.label_artists("candidates", dots)
    path_names = [n for n in found.path if n in delta]
    left.plot(
        [sizes[n] for n in path_names],
        [delta[n] for n in path_names],
        "-o",
        color=BLUE,
        markersize=4,
        label="best so far",
    )
    if found.names and found.names[0] in delta:
        left.plot(sizes[found.names[0]], 0.0, "o", color=RED, markersize=6, label="best")
    left.set_yscale("symlog", linthresh=_LINEAR_RANGE)
    left.set_ylim(bottom=-0.05 * _LINEAR_RANGE)
    left.xaxis.get_major_locator().set_params(integer=True)
    labels(left, "estimated", f"{found.criterion}, less the best")
    if path_names:
        legend(left)
    for axes, bars, title in ((middle, importance, "importance"), (right, weights, "weight")):
        positions = np.arange(len(bars))[::-1]
        axes.barh(positions, list(bars.values()), color=BLUE, height=0.6)
        axes.set_yticks(
            positions,
            [escape_text(n if len(n) <= _MAX_NAME_LETTERS else f"{n[: _MAX_NAME_LETTERS - 3]}...") for n in bars],
            color=INK,
        )
        axes.set_xlim(0.0, 1.02)
        axes.grid(visible=False, axis="y")
        labels(axes, title)
    add_title(left, f"{len(found.names)} candidates")
    return save_or_show(figure, path)
