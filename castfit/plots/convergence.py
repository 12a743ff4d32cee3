"""Pictures of a solve: trajectories that are broken at the nodes, how iterations join them, and how the cost falls.

After Peifer and Timmer (2007, Fig. 2), for the states that `GaussNewton.iterate` yields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.status import raise_if_mistakes
from castfit.plots._canvas import (
    BLUE,
    RED,
    Canvas,
    add_note,
    add_title,
    labels,
    legend_above,
    new_figure,
    save_or_show,
    tidy_panels,
)
from castfit.plots._course import ConvergenceCurves, OutputTrace, SolveHistory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from castfit.fit.fit import Transcription
    from castfit.problem.problem import Posable
    from castfit.result.result import Result
    from castfit.solve.homotopy import GaussNewtonState
    from castfit.solve.staged import StagedProblem

_WIDTH, _HEIGHT = 3.0, 1.5  # of a snapshot's panel, in inches
_FRAME_WIDTH, _FRAME_HEIGHT, _FRAME_COLUMNS = 3.6, 1.9, 3
_HEADING, _STRIP = 0.8, 1.5  # heights above the panels, and of the curves below them
_LAST_FRAME_FACTOR = 8  # Duration of the last frame of an animation, in durations of the other frames.
_MAX_FRAMES_PER_SECOND = 50  # Frames per second at most: the file format counts hundredths of seconds.
_DOTS_PER_INCH = 100  # Dots per inch of an animation.
_MIN_LOG_VALUE = 1e-16  # Smallest gap that is drawn on a logarithmic axis.


def iterations(
    states: Iterable[GaussNewtonState],
    problem: Posable,
    transcription: Transcription | StagedProblem,
    *,
    choose: Sequence[int] | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Plot trajectories that break and join: snapshots side by side, cost, gaps and damping of all iterations below.

    Every stage is integrated from its own node, by shooting and collocation alike, and drawn as a piece by itself, so
    that the gaps between stages show as jumps.  A stage that cannot be integrated ends where the integration stops.
    The largest gap is the solver's own: any violated constraint, in units of the states; with collocation it vanishes
    as soon as the polynomials satisfy their equations, while jumps as large as their error remain.

    Parameters
    ----------
    states : iterable of GaussNewtonState
        All that `GaussNewton.iterate` yields.
    problem : Problem or Posed
    transcription : MultipleShooting, SingleShooting, Collocation or StagedProblem
        What was iterated.
    choose : sequence of int, optional
        Iterations of which snapshots are shown; by default the first one, the last one, and two between.
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Raises
    ------
    InputError
        If there are no states, if they belong to another transcription, or for iterations that did not happen.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> multiple = cf.MultipleShooting(5)
    >>> states = list(cf.GaussNewton().iterate(problem, multiple))
    >>> figure = cf.plots.iterations(states, problem, multiple, choose=[0, states[-1].iteration])
    """
    course = SolveHistory.from_states(states, problem, transcription)
    shown_iterations = course.chosen(choose)
    snapshots = [course.pieces(k) for k in shown_iterations]
    figure, above, curves = _sheet(course, _WIDTH * max(len(shown_iterations), 2) + 0.4, _HEIGHT * len(course.rows))
    cells = above.subplots(len(course.rows), len(shown_iterations), squeeze=False, sharex=_shared(course), sharey="row")
    handles: dict[str, Any] = {}
    for column, k, pieces in zip(cells.T, shown_iterations, snapshots, strict=True):
        for axes, row in zip(column, course.rows, strict=True):
            trace = OutputTrace.on(axes, row, len(pieces[row.experiment]))
            trace.show(pieces)
            handles |= trace.handles
        add_title(column[0], course.heading(k), pad=6)
        labels(column[-1], "time", size=8, labelpad=1)
    for axes, row in zip(cells[:, 0], course.rows, strict=True):
        labels(axes, y=row.label)
        axes.set_ylim(*row.limits(snapshots))
    for k in shown_iterations:
        curves.mark(k)
    legend_above(above, {**handles, **curves.handles})
    if course.note:
        add_note(figure, course.note)
    return save_or_show(figure, path)


def animate(
    states: Iterable[GaussNewtonState],
    problem: Posable,
    transcription: Transcription | StagedProblem,
    path: str | Path,
    *,
    frames_per_second: float = 4.0,
) -> Figure:
    """Write the picture of `iterations` as an animated GIF with one frame per iteration.

    Parameters
    ----------
    states, problem, transcription
        As for `iterations`.
    path : str or Path
        Where to write the animation; it ends in ``.gif``.
    frames_per_second : float

    Returns
    -------
    Figure
        The last frame.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> multiple = cf.MultipleShooting(5)
    >>> states = list(cf.GaussNewton().iterate(problem, multiple))
    >>> figure = cf.plots.animate(states, problem, multiple, "course.gif")
    """
    mistakes = [] if Path(path).suffix.lower() == ".gif" else [f"path is '{path}'; animations end in .gif"]
    if not 0 < frames_per_second <= _MAX_FRAMES_PER_SECOND:
        mistakes.append(
            f"frames_per_second is {frames_per_second}; expected a number between 0 and {_MAX_FRAMES_PER_SECOND}"
        )
    raise_if_mistakes("plots.animate", mistakes)
    course = SolveHistory.from_states(states, problem, transcription)
    columns = min(len(course.rows), _FRAME_COLUMNS if len(course.rows) > 4 else 2)
    rows = -(-len(course.rows) // columns)
    figure, above, curves = _sheet(course, _FRAME_WIDTH * max(columns, 2), _FRAME_HEIGHT * rows)
    figure.set_dpi(_DOTS_PER_INCH)
    frames = [course.pieces(k) for k in range(len(course.states))]
    above_all = figure.suptitle(course.heading(0), x=0.02, ha="left", fontsize=10)
    traces: list[OutputTrace] = []
    for i, row in enumerate(course.rows):
        axes = above.add_subplot(rows, columns, i + 1)
        add_title(axes, row.label, pad=4)
        axes.set_ylim(*row.limits(frames))
        traces.append(OutputTrace.on(axes, row, len(frames[0][row.experiment])))
    marks = curves.mark(0)
    legend_above(above, {name: handle for part in (*traces, curves) for name, handle in part.handles.items()})
    moving = [above_all, *marks, *(line for trace in traces for line in trace.lines)]

    def show(k: int) -> None:
        above_all.set_text(course.heading(k))
        for trace in traces:
            trace.show(frames[k])
        curves.move(marks, k)

    _write_animation(figure, moving, show, len(frames), Path(path), 1000 / frames_per_second)
    return figure


def _write_animation(
    figure: Canvas, moving: Sequence[Any], show: Callable[[int], None], count: int, path: Path, duration: float
) -> None:
    """Draw what stands still once, and what moves over it in every frame; durations are in milliseconds."""
    from PIL import Image  # comes with matplotlib

    for artist in moving:
        artist.set_animated(True)
    figure.canvas.draw()
    figure.set_layout_engine("none")
    background = figure.canvas.copy_from_bbox(figure.bbox)
    images: list[Image.Image] = []
    for k in range(count):
        show(k)
        figure.canvas.restore_region(background)
        for artist in moving:
            (artist.axes or figure).draw_artist(artist)
        images.append(Image.fromarray(np.array(figure.canvas.buffer_rgba())[..., :3]))
    for artist in moving:
        artist.set_animated(False)
    durations = [round(duration)] * (count - 1) + [round(_LAST_FRAME_FACTOR * duration)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0)


def _shared(course: SolveHistory) -> str:
    """Experiments may last differently long: rows then have their own times."""
    return "all" if len({row.experiment for row in course.rows}) == 1 else "row"


def _sheet(course: SolveHistory, width: float, height: float) -> tuple[Canvas, Canvas, ConvergenceCurves]:
    """Return a figure, its part for panels of the given size in inches, and the curves in a strip below it.

    There are none before the first iteration.
    """
    heights = [height + _HEADING, _STRIP][: len(course.states)]
    figure = new_figure(width, sum(heights))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    return figure, parts[0], ConvergenceCurves.on(parts[1], course) if len(parts) > 1 else ConvergenceCurves()


def history(result: Result, path: str | Path | None = None) -> Figure:
    """Plot how far the objective was above its lowest value at each iteration, and how far the pieces were apart.

    Parameters
    ----------
    result : Result
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Raises
    ------
    InputError
        For a result that knows no iterations.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> figure = cf.plots.history(result)
    """
    rows = [row for row in result.history if np.isfinite(row["cost"])]
    raise_if_mistakes("plots.history", [] if rows else ["the result has no iterations to plot"])
    cost, largest_gaps = (np.array([row[key] for row in rows]) for key in ("cost", "infeasibility"))
    iteration_numbers = np.arange(len(rows))
    has_gaps = bool(np.max(largest_gaps) > _MIN_LOG_VALUE)
    figure: Any = new_figure(6.4, 3.6 if has_gaps else 2.2)
    panels = tidy_panels(figure, 2 if has_gaps else 1, 1, sharex=True)[:, 0]
    above = np.maximum(cost - min(float(cost.min()), result.cost), 0.0)
    floor = max(_MIN_LOG_VALUE, 1e-12 * float(above.max(initial=1.0)))
    for axes, values, title, colour, marker in zip(
        panels,
        (above, largest_gaps),
        ("objective above its lowest", "largest gap"),
        (BLUE, RED),
        ("o", "s"),
        strict=False,
    ):
        axes.plot(
            iteration_numbers,
            np.where(values > floor, values, np.nan),
            "-",
            marker=marker,
            color=colour,
            markersize=3.5,
        )
        if np.any(values > floor):
            axes.set_yscale("log")
        add_title(axes, title, pad=4)
    labels(panels[-1], "iteration", size=8)
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    return save_or_show(figure, path)
