"""Pictures of a solve: trajectories that are broken at the nodes, and how iterations join them.

After Peifer and Timmer (2007, Fig. 2), for the states that `GaussNewton.iterate` yields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.plots._canvas import INK, SOFT, Canvas, finish, new_figure
from castfit.plots._course import Course
from castfit.plots._traces import Curves, Trace
from castfit._support.status import check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from castfit.fit.fit import Transcription
    from castfit.problem.problem import Posable
    from castfit.solve.state import GaussNewtonState
    from castfit.solve.staged import StagedProblem

_WIDTH, _HEIGHT = 3.0, 1.5  # of a snapshot's panel, in inches
_FRAME_WIDTH, _FRAME_HEIGHT, _FRAME_COLUMNS = 3.6, 1.9, 3
_HEADING, _STRIP = 0.8, 1.5  # heights above the panels, and of the curves below them
_PAUSE = 8  # times longer than the others the last frame of an animation is seen
_FASTEST = 50  # frames per second; the format counts hundredths of seconds
_DOTS_PER_INCH = 100


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
    course = Course.of(states, problem, transcription)
    shown = course.chosen(choose)
    snapshots = [course.pieces(k) for k in shown]
    figure, above, curves = _sheet(course, _WIDTH * max(len(shown), 2) + 0.4, _HEIGHT * len(course.rows))
    cells = above.subplots(len(course.rows), len(shown), squeeze=False, sharex=_shared(course), sharey="row")
    handles: dict[str, Any] = {}
    for column, k, pieces in zip(cells.T, shown, snapshots, strict=True):
        for axes, row in zip(column, course.rows, strict=True):
            trace = Trace.on(axes, row, len(pieces[row.experiment]))
            trace.show(pieces)
            handles |= trace.handles
        column[0].set_title(course.heading(k), loc="left", fontsize=9, color=INK, pad=6)
        column[-1].set_xlabel("time", fontsize=8, color=INK, labelpad=1)
    for axes, row in zip(cells[:, 0], course.rows, strict=True):
        axes.set_ylabel(row.label, fontsize=9, color=INK)
        axes.set_ylim(*row.limits(snapshots))
    for k in shown:
        curves.mark(k)
    _legend(above, {**handles, **curves.handles})
    if course.note:
        figure.supxlabel(course.note, x=0.01, ha="left", fontsize=8, color=SOFT)
    return finish(figure, path)


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
    if not 0 < frames_per_second <= _FASTEST:
        mistakes.append(f"frames_per_second is {frames_per_second}; give a number between 0 and {_FASTEST}")
    check("plots.animate", mistakes)
    course = Course.of(states, problem, transcription)
    columns = min(len(course.rows), _FRAME_COLUMNS if len(course.rows) > 4 else 2)
    rows = -(-len(course.rows) // columns)
    figure, above, curves = _sheet(course, _FRAME_WIDTH * max(columns, 2), _FRAME_HEIGHT * rows)
    figure.set_dpi(_DOTS_PER_INCH)
    frames = [course.pieces(k) for k in range(len(course.states))]
    heading = figure.suptitle(course.heading(0), x=0.02, ha="left", fontsize=10)
    traces: list[Trace] = []
    for i, row in enumerate(course.rows):
        axes = above.add_subplot(rows, columns, i + 1)
        axes.set_title(row.label, loc="left", fontsize=9, color=INK, pad=4)
        axes.set_ylim(*row.limits(frames))
        traces.append(Trace.on(axes, row, len(frames[0][row.experiment])))
    marks = curves.mark(0)
    _legend(above, {name: handle for part in (*traces, curves) for name, handle in part.handles.items()})
    moving = [heading, *marks, *(line for trace in traces for line in trace.lines)]

    def show(k: int) -> None:
        heading.set_text(course.heading(k))
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
    durations = [round(duration)] * (count - 1) + [round(_PAUSE * duration)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0)


def _shared(course: Course) -> str:
    """Experiments may last differently long: rows then have their own times."""
    return "all" if len({row.experiment for row in course.rows}) == 1 else "row"


def _sheet(course: Course, width: float, height: float) -> tuple[Canvas, Canvas, Curves]:
    """Return a figure, its part for panels of the given size in inches, and the curves in a strip below it.

    There are none before the first iteration.
    """
    heights = [height + _HEADING, _STRIP][: len(course.states)]
    figure = new_figure(width, sum(heights))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    return figure, parts[0], Curves.on(parts[1], course) if len(parts) > 1 else Curves()


def _legend(canvas: Canvas, handles: dict[str, Any]) -> Any:
    return canvas.legend(
        handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles), fontsize=8, frameon=False
    )
