"""Pictures of how estimates hang together: correlations, pairs of quantities, directions."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.arguments import is_count, is_one_of, read_names, read_sequence, shorten_repr
from castfit._support.renamed import accept_old_names
from castfit._support.status import raise_if_mistakes, unknown_names
from castfit._support.ties import stable_order
from castfit.plots._canvas import (
    BLUE,
    INK,
    RED,
    SOFT,
    Axes,
    confidence_ellipse,
    escape_text,
    labels,
    legend_above,
    new_figure,
    save_or_show,
    tidy,
    tidy_panels,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from castfit.drive.uncertainty.profile.contours import Contours
    from castfit.result.confidence_region import ConfidenceRegion
    from castfit.result.result import Result

_MAX_NUMBERED_QUANTITIES = 12  # Quantities up to which a correlation matrix shows numbers instead of signs.
_MIN_SIGNED_CORRELATION = 0.3  # Absolute correlation from which on its sign is shown.
_MAX_PAIRED_QUANTITIES = 6  # Quantities of which all pairs are drawn by default.
_MIN_SHOWN_WEIGHT = 0.05  # Absolute weight in a direction from which on a quantity is shown.


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
    if count < 2 or not np.isfinite(result.correlation).any():
        return _nothing(figure, f"There are no correlations. {result.identifiability.sentence}", path)
    axes = figure.subplots()
    # The matrix is symmetric: rows from the second, columns up to the last, and only what lies below the diagonal.
    below = np.tri(count - 1, dtype=bool)
    coefficients = result.correlation[1:, :-1]
    axes.imshow(np.where(below, 0.0, np.nan), cmap="Greys", vmin=-1.0, vmax=12.0)
    picture = axes.imshow(np.where(below, coefficients, np.nan), cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    axes.set_xticks(
        range(count - 1), list(map(escape_text, names[:-1])), rotation=90 if max(map(len, names)) > 5 else 0
    )
    axes.set_yticks(range(count - 1), list(map(escape_text, names[1:])))
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(count) - 0.5, minor=True)
    axes.set_yticks(np.arange(count) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
    for i, j in zip(*np.nonzero(below & np.isfinite(coefficients)), strict=True):
        colour = "white" if abs(coefficients[i, j]) > 0.6 else INK
        number = f"{coefficients[i, j]:.2f}".replace("-", "−")
        sign = (
            "" if abs(coefficients[i, j]) < _MIN_SIGNED_CORRELATION else "+" if coefficients[i, j] > 0 else "−"
        )  # both ends are dark in grey
        written = number if count <= _MAX_NUMBERED_QUANTITIES else sign
        axes.text(j, i, written, ha="center", va="center", color=colour, fontsize=8)
    bar = figure.colorbar(picture, ax=axes, shrink=0.7, aspect=24, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.set_label("correlation", size=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8)
    return save_or_show(figure, path)


def directions(result: Result, path: str | Path | None = None, *, most: int = 6) -> Figure:
    """Plot the principal axes of the confidence region as bars: which combinations are known, how well or badly.

    A panel per axis, the worst known first: bars are the shares of the quantities in it, in relative changes; above
    stands how well the combination is known.  Directions that the data leave open are in red, and hatched.

    Parameters
    ----------
    result : Result
    path : str or Path, optional
    most : int
        How many axes to show: the worst known ones.

    Raises
    ------
    InputError
        For a fit that failed.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.directions(result)
    """
    raise_if_mistakes(
        "plots.directions",
        [] if is_count(most, 1) else [f"most is {shorten_repr(most)}; expected an integer of at least 1"],
    )
    region = result.confidence_region()
    axes_of = region.axes[::-1][:most]
    names = [n for n in region.names if any(abs(a.weights.get(n, 0.0)) > _MIN_SHOWN_WEIGHT for a in axes_of)] or [
        *region.names
    ]
    longest = max(map(len, names))
    height = 0.55 + 0.2 * len(names)
    figure = new_figure(7.4, max(len(axes_of), 1) * height + 0.4)
    if not axes_of:
        return _nothing(figure, f"There are no directions. {result.identifiability.sentence}", path)
    panels = tidy_panels(figure, len(axes_of), 1, sharex=True)[:, 0]
    for axes, axis in zip(panels, axes_of, strict=True):
        axes.grid(visible=False, axis="y")
        weights = [axis.weights.get(n, 0.0) for n in names]
        unbounded = np.isinf(axis.standard_error)
        style = {"color": "white", "edgecolor": RED, "hatch": "////"} if unbounded else {"color": BLUE}
        axes.barh(range(len(names)), weights, height=0.62, **style)
        axes.axvline(0, color=SOFT, linewidth=0.8)
        axes.set_yticks(range(len(names)), map(escape_text, names), fontsize=8 if longest < 16 else 7)
        axes.invert_yaxis()
        axes.set_xlim(-1.05, 1.05)
        title_text = escape_text(textwrap.shorten(axis.sentence, 100, placeholder=" ..."))
        axes.set_title(title_text, loc="left", fontsize=9, color=RED if unbounded else INK, pad=3)
    labels(panels[-1], "weight in the combination, as relative change", size=8)
    return save_or_show(figure, path)


@accept_old_names(level="confidence_level")
def ellipses(
    result: Result,
    path: str | Path | None = None,
    *,
    names: Sequence[str] | None = None,
    confidence_level: float | None = None,
    contours: Mapping[tuple[str, str], Sequence[NDArray[np.float64]]] | Sequence[Contours] = (),
) -> Figure:
    """Plot the confidence ellipses of all pairs of quantities, in the linear approximation; the cross is the estimate.

    The inner ellipse is where one quantity by itself would be looked for: its shadow on an axis is the quantity's
    interval.  The outer one, dashed, holds both quantities together with the given probability.

    Parameters
    ----------
    result : Result
    path : str or Path, optional
    names : sequence of str, optional
        Which quantities; by default all that have a standard error, at most six: those that are correlated most.
    confidence_level : float, optional
        By default the result's `confidence_level`.
    contours : sequence of Contours, or mapping from pair of names to curves, optional
        What is drawn over the ellipses: ``[cf.contours(result, "k1", "k2")]``, or curves (n, 2) in natural scale.

    Raises
    ------
    InputError
        For a fit that failed, and unknown names.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.ellipses(result)
    """
    region = result.confidence_region(confidence_level)
    finite = [n for n, e in zip(region.names, region.standard_errors, strict=True) if np.isfinite(e) and e > 0.0]
    mistakes: list[str] = []
    selected_names = read_names("names", names, finite, mistakes)
    mistakes += unknown_names("'{}' was not estimated", selected_names, region.names)
    mistakes += [
        f"'{n}' has no standard error; remove it from names"
        for n in selected_names
        if is_one_of(n, *region.names) and n not in finite
    ]
    items: Any = () if isinstance(contours, Mapping) else read_sequence(contours)
    items = [contours] if items is None else items
    mistakes += [f"contours contains {shorten_repr(c)}; expected Contours" for c in items if not hasattr(c, "lines")]
    mistakes += [
        f"contours has the key {shorten_repr(pair)}; expected two names"
        for pair in (contours if isinstance(contours, Mapping) else ())
        if not (isinstance(cast("Any", pair), tuple) and len(pair) == 2)
    ]
    raise_if_mistakes("plots.ellipses", mistakes)
    lines = contours if isinstance(contours, Mapping) else {c.names: tuple(c.lines.values()) for c in items}
    absent = [pair for pair in lines if not {*pair} <= {*selected_names}]
    mistakes += [f"contours contains {' and '.join(map(str, pair))}, which are not in names" for pair in absent]
    raise_if_mistakes("plots.ellipses", mistakes)
    if names is None and len(selected_names) > _MAX_PAIRED_QUANTITIES:
        strongest = np.nanmax(np.where(np.eye(len(region.names)) > 0, 0.0, np.abs(region.correlation)), axis=1)
        order = stable_order([strongest[region.names.index(n)] for n in selected_names], descending=True)
        selected_names = [selected_names[int(i)] for i in np.sort(order[:_MAX_PAIRED_QUANTITIES]).flat]
    if len(selected_names) < 2:
        return _nothing(new_figure(4.4, 2.2), "There are no pairs of quantities with standard errors.", path)
    return _pairs(result, region, selected_names, lines, path)


def _pairs(
    result: Result,
    region: ConfidenceRegion,
    names: Sequence[str],
    contours: Mapping[tuple[str, str], Sequence[NDArray[np.float64]]],
    path: str | Path | None,
) -> Figure:
    """Draw the ellipses of all pairs below a diagonal."""
    count = len(names) - 1
    size = 2.1 if count < 4 else 1.7
    figure = new_figure(0.6 + max(count * size, 3.4), 0.8 + max(count * size, 2.6))
    cells, panels = figure.add_gridspec(count, count), dict[tuple[int, int], Axes]()
    handles: dict[str, Any] = {}
    compiled_problem = None if result.problem is None else result.problem.posed
    joint_label = f"both together, {100 * region.confidence_level:g} %"
    for (i, row), (j, column) in product(enumerate(names[1:]), enumerate(names[:-1])):
        if j > i:
            continue
        axes = figure.add_subplot(cells[i, j], sharex=panels.get((j, j)), sharey=panels.get((i, 0)))
        panels[i, j] = axes
        axes.label_outer()
        tidy(axes)
        axes.tick_params(labelsize=7)
        indices = [region.names.index(column), region.names.index(row)]
        errors = region.standard_errors[indices]
        C = region.correlation[np.ix_(indices, indices)] * np.outer(errors, errors)
        circle = confidence_ellipse(C)
        for label, radius, style in (
            ("one by itself", region.factor, {"color": BLUE, "linewidth": 1.4}),
            (joint_label, region.radius_of(2), {"color": SOFT, "linewidth": 1.0, "linestyle": "--"}),
        ):
            x, y = (_natural(region, k, radius * part) for k, part in zip(indices, circle, strict=True))
            (handles[label],) = axes.plot(x, y, **style)
            figure.label_artists(label, handles[label])
        axes.plot(region.values[indices[0]], region.values[indices[1]], "+", color=INK, markersize=6)
        for pair, flip in (((column, row), 1), ((row, column), -1)):
            for curve in contours.get(pair, ()):
                x, y = np.asarray(curve, dtype=float).T[::flip]
                (handles["profile"],) = axes.plot(x, y, color=RED, linewidth=1.2, linestyle=(0, (1.5, 1.2)))
                figure.label_artists("profile", handles["profile"])
        axes.ticklabel_format(axis="both", style="sci", scilimits=(-3, 4), useMathText=True)
        axes.xaxis.get_offset_text().set_fontsize(7)
        axes.yaxis.get_offset_text().set_fontsize(7)
        axes.locator_params(nbins=4)
        if i == count - 1:
            labels(axes, escape_text(column if compiled_problem is None else compiled_problem.label(column)), size=8)
        if j == 0:
            labels(axes, y=escape_text(row if compiled_problem is None else compiled_problem.label(row)), size=8)
    legend_above(figure, handles)
    return save_or_show(figure, path)


def _natural(region: ConfidenceRegion, k: int, offset: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return natural values of a quantity so far from its estimate in search scale."""
    value = region.values[k]
    with np.errstate(over="ignore"):  # of what the data leave open
        return value * np.exp(offset) if region.log[k] else value + offset


def _nothing(figure: Any, reason: str, path: str | Path | None) -> Figure:
    """Write the reason why a figure is empty in the middle of it."""
    axes = figure.subplots()
    axes.axis("off")
    axes.text(0.5, 0.5, textwrap.fill(escape_text(reason), 40), ha="center", va="center", color=SOFT)
    return save_or_show(figure, path)
