"""Two-dimensional profiles: the region of two quantities that the data do not exclude, by its contour.

For several values of the first quantity, between its own limits, the second quantity is followed from its optimum, down
and up, until the objective is at the threshold.  These slices start from the spine of the region, which may be strongly
curved.  Further regions beyond the first limits of a slice are not searched for.

    sigma known      delta <= chi2_2(level)
    sigma unknown    delta <= n log(1 + 2 F_{2, dof}(level) / dof)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from castfit._support.arguments import is_count, option_mistakes
from castfit._support.arrays import Array
from castfit._support.blas_threads import one_blas_thread
from castfit._support.json_codec import rebuild_value
from castfit._support.public_names import public
from castfit._support.renamed import accept_old_names
from castfit._support.status import InputError, Status, raise_if_mistakes
from castfit._support.time_limit import StopRequested, guarded, with_deadline
from castfit._support.views import views
from castfit.drive.run.checkpoint import describe_estimate, run_header
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.loop import ProgressReport, run_tasks
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import STOPS
from castfit.drive.uncertainty.profile.branches import (
    CUT,
    INTERRUPTED,
    LIMIT,
    AcceptedInterval,
    ContinuationLimits,
    ProfileBranch,
    ProfilePoint,
    join_sides,
    regions,
)
from castfit.drive.uncertainty.profile.continuation import follow_branches
from castfit.drive.uncertainty.profile.corrector import ENDED, CorrectorContext
from castfit.drive.uncertainty.profile.predictions import OfPrediction
from castfit.drive.uncertainty.profile.reading import owner, read_levels, read_targets
from castfit.drive.uncertainty.profile.targets import Target
from castfit.drive.uncertainty.profile.tasks import ProfileSetting, make_anchor, parts_along, with_fitted_sigmas
from castfit.fit.methods import Solver, Transcription
from castfit.result.result import Result
from castfit.solve.staged import StagedProblem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNKNOWN = np.full((2, 2), np.nan)
_STEPS_TO_THRESHOLD = 2  # steps in which the root of the objective reaches the root of the threshold
_THRESHOLD_MARGIN_FACTOR = 1.5  # times the threshold, up to which interpolated ends of the spine may lie above it


@public("castfit")
@dataclass(frozen=True, eq=False)
class Contours:
    """The joint confidence regions of two quantities.

    Attributes
    ----------
    names : (str, str)
    scales : (str, str)
        "linear" or "log": the scale of the steps and of the figures.
    estimate : (float, float)
        Of the best fit.
    lines : mapping from confidence level to (n, 2) array
        Points of the contour in order, natural scale; the first is repeated at the end.
    ellipses : mapping from confidence level to (n, 2) array
        The same from the linear statistics; empty if they are infinite.
    closed : mapping from confidence level to bool
        False if a bound, or the end of a slice that was not followed further, is part of the line.
    thresholds : mapping from confidence level to float
        Increase of -2 log L on the lines.
    message : str
        How the run ended, in words.
    complete : bool
    time : float
        Seconds.
    solves : int
        Number of constrained fits.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("lotka_volterra").problem)
    >>> found = cf.contours(result, "p1", "p2", confidence_levels=0.95, slices=4)
    >>> found.names, found.closed[0.95]
    (('p1', 'p2'), True)
    """

    names: tuple[str, str]
    scales: tuple[str, str]
    estimate: tuple[float, float]
    lines: Mapping[float, Array]
    ellipses: Mapping[float, Array]
    closed: Mapping[float, bool]
    thresholds: Mapping[float, float]
    message: str
    complete: bool
    time: float
    solves: int

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot the contours over the ellipses; also write the figure to `path` if it is given."""
        return views().plots.contours(self, path)

    def __repr__(self) -> str:
        """Return a one-line summary of the contours."""
        levels = ", ".join(f"{100 * level:g} %" for level in self.lines)
        return f"Contours({self.names[0]}, {self.names[1]}: {levels or 'none'}; {self.message})"


@accept_old_names(levels="confidence_levels")
@guarded
@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def contours(
    result: Result,
    first: Any,
    second: Any,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    *,
    confidence_levels: float | Sequence[float] = (0.68, 0.95),
    slices: int = 12,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    verbose: int | None = None,
) -> Contours:
    """Find the joint confidence regions of two quantities by profile likelihood.

    Parameters
    ----------
    result : Result
        A fit that succeeded, with its problem.
    first, second : str or expression
        As for `profile`; no predictions.
    transcription, solver : optional
        As for `fit`.
    confidence_levels : float or sequence of float
        Joint confidence levels.
    slices : int
        Number of intervals of the first quantity; each contour has slices at one value more.
    workers : int or concurrent.futures.Executor
        1 runs in this process, n in n processes, each half of each line a task; a script then needs
        ``if __name__ == "__main__":``.
    max_time : float
        Seconds; lines that are unfinished by then are missing.
    checkpoint : str or Path, optional
        A file to which every finished half is written at once.
    resume : bool
        Whether to continue the checkpoint if it exists.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the run (live on a terminal), one line per half.  By default a line on a terminal or in a
        notebook, from two seconds on until the end.

    Raises
    ------
    InputError
        For misuse: a fit that failed, unknown names, options out of range, a foreign checkpoint.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("lotka_volterra").problem)
    >>> found = cf.contours(result, "p1", "p2", confidence_levels=0.95, slices=4)
    >>> found.lines[0.95].shape[1], found.complete
    (2, True)
    """
    run = RunOptions(workers=workers, max_time=max_time, verbose=verbose, checkpoint=checkpoint, resume=resume)
    mistakes = run.file_mistakes() + run.mistakes()
    requested_transcription, chosen_solver = parts_along(transcription, solver, result, mistakes)
    found_levels = read_levels(confidence_levels, mistakes)
    mistakes += option_mistakes(("slices", slices, is_count(slices, 4, 1000), "expected an integer from 4 to 1000"))
    problem = owner(result, mistakes)
    raise_if_mistakes("contours", mistakes if problem is None else [])
    assert problem is not None
    compiled_problem = with_fitted_sigmas(problem.posed, result)
    arguments = {"first is": first, "second is": second}
    targets = tuple(
        t
        for phrase, argument in arguments.items()
        for t in read_targets(result, compiled_problem, [argument], mistakes, phrase)
    )
    if len(targets) == 2 and targets[0].name == targets[1].name:
        mistakes.append(f"first and second are both '{targets[0].name}'; pass two different quantities")
    mistakes += [f"{t.name} is a prediction; expected a quantity or an expression" for t in targets
                 if isinstance(t, OfPrediction)]  # fmt: skip
    if not result.absolute_sigma and result.dof <= 0:
        mistakes.append("no degrees of freedom are left to estimate the noise; pass sigma")
    raise_if_mistakes("contours", mistakes)
    setting = ProfileSetting.from_result(result, compiled_problem, requested_transcription, chosen_solver, targets)
    tops = {level: _threshold(level, result) for level in found_levels}
    run = run.with_plain_numbers()
    header = run_header(
        "contours", problem, requested_transcription, chosen_solver,
        names=", ".join(t.name for t in targets), slices=int(slices),
        confidence_levels=", ".join(f"{level:g}" for level in tops),
        start=describe_estimate(
            result.values, result.standard_errors, ", ".join(f"{value:.9g}" for value in result.theta)
        ),
    )  # fmt: skip
    with run.open_checkpoint(header) as file:
        halves, stop_reason = _halves(run, (setting, targets), tops, int(slices), file)
    finished_halves = [half for pair in halves.values() for half in pair if half is not None]
    complete_pairs = {level: (a, b) for level, (a, b) in halves.items() if a is not None and b is not None}
    cut_statuses = sorted({half.status for half in finished_halves if half.status})
    stop_reason = run.find_stop_reason(stop_reason, len(complete_pairs) < len(tops) and not cut_statuses)
    stop_reason = Status(cut_statuses[0]) if stop_reason is None and cut_statuses else stop_reason
    centre, covariance = (
        (finished_halves[0].centre, finished_halves[0].covariance)
        if finished_halves
        else (np.full(2, np.nan), _UNKNOWN)
    )
    lines, closed = dict[float, Array](), dict[float, bool]()
    n_missed = 0
    for level, (below, above) in complete_pairs.items():
        if not below.status and not above.status:
            line, closed[level] = _line(below, above)
            lines[level] = _natural(targets, line)
            n_missed += int(np.isnan(line).any(axis=1).sum())
    message = "All contour lines were computed." if stop_reason is None else STOPS.get(stop_reason, stop_reason.message)
    if n_missed:
        message += f" Integration with error control gives another objective at {n_missed} points: use finer elements."
    is_finite = bool(np.isfinite(centre).all())
    ellipses = {level: _natural(targets, _ellipse(centre, covariance, top)) for level, top in tops.items()}
    first_value, second_value = _natural(targets, centre[None])[0].tolist()
    return Contours(
        (targets[0].name, targets[1].name),
        tuple("log" if t.log else "linear" for t in targets),  # pyright: ignore[reportArgumentType]
        (first_value, second_value),
        lines,
        ellipses if is_finite else {},
        closed,
        tops,
        message,
        stop_reason is None,
        run.seconds,
        sum(half.solves for half in finished_halves),
    )


def _threshold(level: float, result: Result) -> float:
    """Return the increase of -2 log L on a joint contour of two quantities."""
    if result.absolute_sigma:
        return float(scipy.special.chdtri(2, 1.0 - level))
    ratio = float(scipy.special.fdtri(2, result.dof, level))
    return float(result.n_data * np.log1p(2.0 * ratio / result.dof))


@dataclass(frozen=True, eq=False)
class HalfContour:
    """One half of a contour: the slices on one side of the best fit in the first quantity.

    lower, upper : ends of the slices, in coordinates; NaN if integration does not reproduce them
    is_complete : whether every end is a confidence limit
    centre, covariance : (2,), (2, 2) the best fit, and the covariance from the curvature of the objective there
    status : a value of `Status` if the half is missing, else empty
    """

    lower: tuple[tuple[float, float], ...] = ()
    upper: tuple[tuple[float, float], ...] = ()
    is_complete: bool = False
    centre: Array = field(default_factory=lambda: np.full(2, np.nan))
    covariance: Array = field(default_factory=lambda: _UNKNOWN)
    solves: int = 0
    status: str = ""


@task
def half_line(
    job: bytes | tuple[ProfileSetting, tuple[Target, ...]], top: float, slices: int, half_index: int, deadline: float
) -> HalfContour | None:
    """Compute one half of a line, 0 below the best fit and 1 above; return None if no time is left."""
    setting, targets = unpickle_job(job)
    seconds_left = deadline - time.time()
    if seconds_left <= 0.0:
        return None
    try:
        with with_deadline(seconds_left):
            return _PlaneSlices(setting, targets[0], targets[1], deadline).half(top, slices, half_index)
    except StopRequested as end:
        return HalfContour(status=end.status.value)


def _halves(
    run: RunOptions,
    parts: tuple[ProfileSetting, tuple[Target, ...]],
    tops: Mapping[float, float],
    slices: int,
    file: Any,
) -> tuple[dict[float, list[HalfContour | None]], Status | None]:
    """Run the tasks of all lines; return both halves per level, and the status that stopped the run."""
    keys = [(level, half_index, f"{level:g}/{half_index}") for level in tops for half_index in (0, 1)]
    with file.intact() if file is not None else nullcontext():
        records = file.records if file is not None else ()
        restored_halves = {record["half"]: rebuild_value(HalfContour, record["found"]) for record in records}
    halves: dict[str, HalfContour] = {key: restored_halves[key] for *_, key in keys if key in restored_halves}
    job = run.pickle_job("contours", "problem, transcription and solver", parts)
    tasks: deque[tuple[int, tuple[Any, ...]]] = deque(
        (i, (job, tops[level], slices, half_index, run.deadline))
        for i, (level, half_index, key) in enumerate(keys)
        if key not in halves
    )

    def enter(i: int, outcome: Any) -> ProgressReport | None:
        level, half_index, key = keys[i]
        if isinstance(outcome, InputError):
            raise outcome
        if outcome is None:
            return None
        if not isinstance(outcome, HalfContour):
            raise RuntimeError(f"contours: {getattr(outcome, 'message', outcome)}")
        halves[key] = outcome
        if file is not None and not outcome.status:
            file.append({"half": key, "found": outcome})
        last_label = f"{100 * level:g} %, {'above' if half_index else 'below'}"
        state = f"{len(halves)} of {len(keys)} halves: {last_label}; {run.seconds:.0f} s"
        return ProgressReport(None, state, last_label, len(halves), len(keys))

    stop_reason = run_tasks(run, half_line, tasks, enter, limit=np.inf) if tasks else None
    return {level: [halves.get(f"{level:g}/{half_index}") for half_index in (0, 1)] for level in tops}, stop_reason


def _line(below: HalfContour, above: HalfContour) -> tuple[Array, bool]:
    """Return the contour of two halves, (n, 2), and whether every point is a confidence limit."""
    points = [*sorted((*below.lower, *above.lower)), *sorted((*below.upper, *above.upper), reverse=True)]
    points = [p for i, p in enumerate(points) if i == 0 or p != points[i - 1]]
    return np.array([*points, points[0]]), below.is_complete and above.is_complete


def _natural(targets: Sequence[Target], points: Array) -> Array:
    """Return natural values of coordinates (n, 2)."""
    return np.column_stack([target.natural(column) for target, column in zip(targets, points.T, strict=True)])


def _ellipse(centre: Array, covariance: Array, top: float) -> Array:
    """Return the contour of the linear statistics, (n, 2); empty if it is infinite."""
    if not np.isfinite(covariance).all() or np.linalg.det(covariance) <= 0.0:
        return np.empty((0, 2))
    angle = np.linspace(0.0, 2.0 * np.pi, 121)
    root = np.linalg.cholesky(covariance)
    return centre + np.sqrt(top) * np.column_stack([np.cos(angle), np.sin(angle)]) @ root.T


class _PlaneSlices:
    """The slices of a plane."""

    def __init__(self, setting: ProfileSetting, first_target: Target, second_target: Target, deadline: float) -> None:
        self.setting, self.first, self.second, self.deadline = setting, first_target, second_target, deadline
        self.solves = 0

    def half(self, top: float, slices: int, half_index: int) -> HalfContour:
        """Return one half of the contour, 0 below the best fit and 1 above."""
        tracer, target, best = self._open_corrector(self.first)
        centre, covariance = self._curvature(target, best)
        interval = _across(tracer, target, best, ContinuationLimits((top,), parts=2 * _STEPS_TO_THRESHOLD))[1]
        lower, upper, is_complete = (
            list[tuple[float, float]](),
            list[tuple[float, float]](),
            interval.ends == (LIMIT, LIMIT),
        )
        share = 0.5 * (1.0 - np.cos(np.pi * np.arange(slices + 1) / slices))
        spot: ProfilePoint = best
        middle = int(np.argmin(np.abs(interval.lower + share * (interval.upper - interval.lower) - best.c)))
        order = range(middle + 1, slices + 1) if half_index else range(middle, -1, -1)
        for k in order:
            c = interval.lower + float(share[k]) * (interval.upper - interval.lower)
            spot = self._follow_spine(tracer, target, spot, c, top)
            tip = (k == 0 and interval.ends[0] == LIMIT) or (k == slices and interval.ends[1] == LIMIT)
            slice_ = self._slice(tracer, target, spot, top, tip=tip)
            lower.append((c, slice_.lower))
            upper.append((c, slice_.upper))
            is_complete = is_complete and (tip or slice_.ends == (LIMIT, LIMIT))
        self.solves += tracer.solves
        is_complete = is_complete and bool(np.isfinite([*lower, *upper]).all())
        return HalfContour(tuple(lower), tuple(upper), is_complete, centre, covariance, self.solves)

    def _open_corrector(self, target: Target) -> tuple[CorrectorContext, Target, ProfilePoint]:
        start = self.setting.open_corrector(target, self.deadline)
        if isinstance(start, Status):
            raise StopRequested(start)
        return start

    def _follow_spine(
        self, tracer: CorrectorContext, target: Target, spot: ProfilePoint, c: float, top: float
    ) -> ProfilePoint:
        """Follow the spine, which stays below the threshold, to a value of the first quantity."""
        while True:
            is_same_layout = spot.v.size == tracer.staged.layout.n_v
            h = c - spot.c
            if abs(h) <= 1e-9 * max(target.scale, abs(c)):
                return spot
            for _ in range(8):
                v = spot.v + h * spot.tangent if is_same_layout else tracer.staged.start
                candidate = tracer.spot(target, spot.c + h, v, h)
                if candidate in ENDED or (
                    isinstance(candidate, ProfilePoint) and candidate.delta <= _THRESHOLD_MARGIN_FACTOR * top
                ):
                    break
                h *= 0.25  # a point far above the threshold has left the spine
            else:
                raise StopRequested(Status.STEP_TOO_SMALL)
            if not isinstance(candidate, ProfilePoint):
                raise StopRequested(candidate)
            spot = candidate

    def _slice(
        self, spine: CorrectorContext, target: Target, spot: ProfilePoint, top: float, *, tip: bool
    ) -> AcceptedInterval:
        """Follow the second quantity in both directions with the first quantity fixed."""

        def wrap(staged: StagedProblem) -> StagedProblem:
            return target.with_fixed_value(self.setting.wrapped(staged), spot.c)

        tracer = replace(spine, staged=target.with_fixed_value(spine.staged, spot.c), wrap=wrap, solves=0)
        anchor = make_anchor(tracer, self.second, spot.v)
        if isinstance(anchor, Status):
            raise StopRequested(anchor)
        second, start = anchor
        if tip:
            return AcceptedInterval(start.c, start.c, (LIMIT, LIMIT))
        branch, interval = _across(
            tracer, second, start, ContinuationLimits((top,), parts=_STEPS_TO_THRESHOLD), reset_staging=True
        )
        self.solves += tracer.solves
        lower, upper = (c if branch.reproduced(c, top) else np.nan for c in (interval.lower, interval.upper))
        return replace(interval, lower=lower, upper=upper)

    def _curvature(self, target: Target, best: ProfilePoint) -> tuple[Array, Array]:
        """Return the coordinates of the best fit, and the covariance from the curvature of the objective."""
        _, second, spot = self._open_corrector(self.second)
        # The profiles give the variances; the slope of one coordinate along the profile of the other, the covariance.
        shifted_coordinate = second.coordinate_of(best.theta + best.tangent[: best.theta.size] * 1e-4 * target.scale)
        slope = (shifted_coordinate - second.coordinate_of(best.theta)) / (1e-4 * target.scale)
        with np.errstate(all="ignore"):
            a, b = 2.0 / best.curvature, 2.0 / spot.curvature
        return np.array([best.c, spot.c]), np.array([[a, slope * a], [slope * a, b]])


def _across(
    tracer: CorrectorContext,
    target: Target,
    start: ProfilePoint,
    goal: ContinuationLimits,
    *,
    reset_staging: bool = False,
) -> tuple[ProfileBranch, AcceptedInterval]:
    """Follow a target in both directions; return the branch, and its region that contains the start.

    With `reset_staging`, the upper side starts without the mesh refinements of the lower side.
    """
    base, halves = tracer.staged, list[ProfileBranch]()
    for side in (-1, 1):
        tracer.staged = base if reset_staging else tracer.staged
        halves.append(follow_branches(tracer, target, start, side, goal).branches[0])
        for end, status in ((CUT, Status.MAX_TIME), (INTERRUPTED, Status.INTERRUPTED)):
            if end in halves[-1].ends:
                raise StopRequested(status)
    branch = join_sides(*halves)
    for region in regions([branch], goal.top):
        if region.holds(start.c):
            return branch, region
    raise StopRequested(Status.STEP_TOO_SMALL)
