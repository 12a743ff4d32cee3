"""Profile likelihood of quantities: each side of each profile is a task; all results together decide the next step.

    best fit --> both sides of every quantity --> a better fit?   yes: fit from there, and all again
                          |                                       no
                          v
             is any point that another profile passed below the curve of its own quantity?  yes: follow from there
                          |                                                                 no
                          v
             branches --> lowest everywhere --> limits, verdicts

Tasks are independent of each other and of the process that runs them.  Parallel and resumed runs therefore give the
same numbers.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.arguments import as_reusable, flag_mistakes, is_one_of, level_rule, option_mistakes, read_real
from castfit._support.arrays import Array
from castfit._support.json_codec import rebuild_value
from castfit._support.process_pool import LostTask
from castfit._support.renamed import accept_old_names, with_old_names
from castfit._support.status import InputError, Status, raise_if_mistakes
from castfit._support.time_limit import guarded
from castfit.drive.run.checkpoint import describe_estimate, run_header
from castfit.drive.run.loop import ProgressReport, run_tasks
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import STOPS
from castfit.drive.uncertainty.profile.branches import (
    BOUND,
    CUT,
    FAR,
    INTERRUPTED,
    ZERO,
    ContinuationLimits,
    ContinuationResult,
    ProfileBranch,
    interpolate_delta,
    join_sides,
    merge_halves,
    threshold,
)
from castfit.drive.uncertainty.profile.continuation import MIN_IMPROVEMENT_DELTA
from castfit.drive.uncertainty.profile.reading import owner, read_levels, read_targets
from castfit.drive.uncertainty.profile.result import Other, Profile, Profiles
from castfit.drive.uncertainty.profile.targets import Target
from castfit.drive.uncertainty.profile.tasks import ProfileSetting, follow_target, parts_along
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import Solver, Transcription
from castfit.problem.problem import Posable
from castfit.result.result import Result

_MAX_RESTARTS = 5  # restarts of a run from a better fit
_CROSS_CHECK_ROUNDS = 2  # rounds in which profiles are compared with points of the others
_INTERPOLATION_MARGIN = 0.05  # of the highest threshold: a smaller difference may be an interpolation error
_MIN_SIDE_TIME_FRACTION = 0.25  # expected time of one side, relative to the first fit, which builds the functions
_OPEN = (FAR, ZERO, BOUND)  # ends of a branch beyond which values are not excluded
_SAME_OPTIMUM_DELTA = 1e-2  # of -2 log L: optima with a smaller difference are the same


@with_old_names(last="last_label")
@dataclass(frozen=True)
class ProfileProgress:
    """Progress after each side, for callbacks: finished and total sides, label of the last one, elapsed seconds."""

    finished: int
    total: int
    last_label: str
    seconds: float

    @property
    def sentence(self) -> str:
        """State of the run in one line."""
        return f"{self.finished} of {self.total} sides: {self.last_label}; {self.seconds:.0f} s"


@accept_old_names(levels="confidence_levels")
@guarded
def profile(
    result: Result,
    names: Any = None,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    *,
    confidence_levels: float | Sequence[float] = 0.95,
    limits: str = "auto",
    everywhere: bool = False,
    reach: float = 1e4,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[ProfileProgress], Any] | None = None,
    verbose: int | None = None,
) -> Profiles:
    """Compute the profile likelihood of quantities: confidence limits that need no linearization.

    Parameters
    ----------
    result : Result
        A fit that succeeded, with its problem.
    names : str, expression, sequence or mapping, optional
        The targets: names of estimated quantities or of eliminated sigmas (as in ``result.sigmas``), expressions of
        quantities, as text such as ``"k1 / k2"`` or with CasADi's symbols, ``{name: expression}``, or predictions,
        ``OutputAt("x", 3.0)``.
        By default every estimated quantity.
    transcription, solver : optional
        As for `fit`; by default the transcription that found the result (elements of collocation are accurate to 1e-6,
        which is enough for limits) and Gauss-Newton.
    confidence_levels : float or sequence of float
        Confidence levels; limits of all of them come from one run.
    limits : {"auto", "chi2", "F"}
        Distribution of the threshold: chi-square, as for known sigmas, or F, as for sigmas that are estimated from the
        same data; by default the choice of ``result.confidence_intervals``.
    everywhere : bool
        Whether to continue beyond the limits to the bounds, or to `reach`, to find other optima.
    reach : float
        Range of a quantity that the data do not limit: this multiple of its value, or, on a logarithmic scale, this
        factor.
    workers : int or concurrent.futures.Executor
        1 runs in this process, n in n processes, unless the run ends before they have started; a script then needs
        ``if __name__ == "__main__":``.
    max_time : float
        Seconds; the profiles computed by then are returned.
    checkpoint : str or Path, optional
        A file to which every finished side is written at once.
    resume : bool
        Whether to continue the checkpoint if it exists.
    callback : callable, optional
        Called in this process with a `ProfileProgress` after each side; no more are followed when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the run (live on a terminal), one line per side.  By default a line on a terminal or in a
        notebook, from two seconds on until the end.

    Returns
    -------
    Profiles
        A mapping from name to `Profile`.  The verdict of a side tells if it could not be followed to its end.

    Raises
    ------
    InputError
        For misuse: a fit that failed, unknown names, options out of range, a foreign checkpoint.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> profiles = cf.profile(result, ["k1", "k1 / k2"])
    >>> profiles.verdicts
    {'k1': ('bounded', 'bounded'), 'k1 / k2': ('bounded', 'bounded')}
    >>> low, high = profiles["k1"].limits(0.95)
    >>> low < result.parameters["k1"] < high
    True
    """
    run = RunOptions(workers=workers, max_time=max_time, callback=callback, verbose=verbose, checkpoint=checkpoint,
                     resume=resume)  # fmt: skip
    mistakes: list[str] = []
    names = as_reusable(names)
    requested_transcription, chosen_solver = parts_along(transcription, solver, result, mistakes)
    mistakes += run.file_mistakes() + run.mistakes() + flag_mistakes(everywhere=everywhere)
    reach_factor = read_real(reach)
    mistakes += option_mistakes(
        ("limits", limits, is_valid_limits := is_one_of(limits, "auto", "chi2", "F"), "choose 'auto', 'chi2' or 'F'"),
        ("reach", reach, reach_factor is not None and 1.0 < reach_factor < np.inf, "expected a factor above 1"),
    )
    levels = read_levels(confidence_levels, mistakes)
    problem = owner(result, mistakes)
    is_usable = problem is not None and result.success
    statistic, thresholds = (
        choose_thresholds(result, limits, levels, mistakes) if is_usable and is_valid_limits else ("", {})
    )
    targets = read_targets(result, problem.posed, names, mistakes) if problem is not None and is_usable else ()
    raise_if_mistakes("profile", mistakes)
    assert problem is not None
    assert reach_factor is not None
    goal = ContinuationLimits(tuple(thresholds.values()), bool(everywhere), reach_factor)
    run = run.with_plain_numbers()
    header = run_header(
        "profile", problem, requested_transcription, chosen_solver,
        names=", ".join(t.name for t in targets), limits=statistic,
        confidence_levels=", ".join(thresholds), everywhere=bool(everywhere), reach=reach_factor,
        start=describe_estimate(
            result.values, result.standard_errors, ", ".join(f"{value:.9g}" for value in result.theta)
        ),
    )  # fmt: skip
    session = _Session(problem, requested_transcription, chosen_solver, goal, run, result.time)
    with run.open_checkpoint(header) as file:
        session.read_records(file)
        best, sides, stop_reason = session.best_of(result, names)
        trouble = file.trouble if file is not None else ""
        best_targets = targets if best is result else read_targets(best, problem.posed, names, [])
        finished = session.finished(best, sides, best_targets, thresholds)
        complete = stop_reason is None and all(f is not None and not f.cut for f in sides.values())
        other_optima = session.find_other_optima(best, sides) if complete else ()
        message = _message(run.find_stop_reason(stop_reason, not complete), sides, len(targets), trouble)
        improved = max(2.0 * (result.cost - best.cost), 0.0) if best is not result else 0.0
        return Profiles(
            finished, best, improved, other_optima, statistic, message, complete, run.seconds, session.solves,
            dict(session.evaluations), requested_transcription.label, chosen_solver.label, header,
        )  # fmt: skip


@accept_old_names(level="confidence_level")
def profile_limits(result: Result, confidence_level: float = 0.95) -> dict[str, tuple[float, float]]:
    """Return the confidence interval of every estimated quantity by its profile.

    For arguments that expect a function, such as ``castfit.coverage(problem, intervals=castfit.profile_limits)``.

    Parameters
    ----------
    result : Result
    confidence_level : float

    Raises
    ------
    InputError
        As `profile`.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> sorted(cf.profile_limits(result)) == sorted(result.names)
    True
    """
    mistakes = option_mistakes(level_rule(confidence_level, read_real(confidence_level)))
    owner(result, mistakes)
    raise_if_mistakes("profile_limits", mistakes)
    return profile(result, confidence_levels=confidence_level).limits()


def choose_thresholds(
    result: Result, limits: str, levels: Sequence[float], mistakes: list[str]
) -> tuple[str, dict[str, float]]:
    """Return the distribution, and per level the threshold of -2 log L above its minimum."""
    statistic = limits if limits != "auto" else ("chi2" if result.absolute_sigma else "F")
    if statistic == "F" and result.dof <= 0:
        mistakes.append("no degrees of freedom are left to estimate the noise; pass sigma or limits='chi2'")
        return statistic, {}
    return statistic, {
        f"{level:g}": threshold(level, n_data=result.n_data, dof=result.dof, statistic=statistic)
        for level in sorted(set(levels))
    }


@dataclass
class _Session:
    """State of a run in progress: followed sides, the best fit they belong to, and the checkpoint records."""

    problem: Posable
    transcription: Transcription
    solver: Solver
    goal: ContinuationLimits
    run: RunOptions
    fit_time: float
    solves: int = 0
    evaluations: Counter[str] = field(default_factory=Counter[str])
    file: Any = None
    stored_sides: dict[str, ContinuationResult] = field(default_factory=dict[str, ContinuationResult])
    fits: dict[str, Result] = field(default_factory=dict[str, Result])
    target_of: dict[int, int] = field(default_factory=dict[int, int])

    def read_records(self, file: Any) -> None:
        """Read the records of an earlier run."""
        self.file = file
        with file.intact() if file is not None else nullcontext():
            for record in file.records if file is not None else ():
                if "side" in record:
                    self.stored_sides[record["side"]] = rebuild_value(ContinuationResult, record["followed"])
                elif "fit" in record:
                    self.fits[record["fit"]] = rebuild_value(Result, record["result"]).with_known_problem(self.problem)

    def best_of(self, result: Result, names: Any) -> tuple[Result, dict[int, ContinuationResult | None], Status | None]:
        """Follow all sides, and again from any better fit; return the best fit, the sides, and the stop status."""
        best, sides, stop_reason = result, dict[int, ContinuationResult | None](), None
        for generation in range(_MAX_RESTARTS + 1):
            targets = read_targets(best, self.problem.posed, names, [])
            setting = ProfileSetting.from_result(best, self.problem.posed, self.transcription, self.solver, targets)
            job = self.run.pickle_job("profile", "problem, transcription and solver", (setting, targets, self.goal))
            side_tasks = {i: (job, i // 2, 1 if i % 2 else -1, self.run.deadline) for i in range(2 * len(targets))}
            sides, stop_reason = self._round(targets, side_tasks, generation)
            for _ in range(_CROSS_CHECK_ROUNDS):
                if stop_reason is not None or _first_better(sides) is not None:
                    break
                new_starts = _passed_below(targets, sides, self.goal.top)
                if not new_starts:
                    break
                keys = range(max(sides) + 1, max(sides) + 1 + len(new_starts))
                self.target_of |= {i: k for i, (k, _) in zip(keys, new_starts, strict=True)}
                branch_tasks = {
                    i: (job, k, theta, self.run.deadline) for i, (k, theta) in zip(keys, new_starts, strict=True)
                }
                new_sides, stop_reason = self._round(targets, branch_tasks, generation)
                sides |= new_sides
            better = _first_better(sides)
            if better is None or stop_reason is not None or generation == _MAX_RESTARTS:
                break
            new_fit = self._fitted(best, better, f"better {generation}")
            if new_fit is None or not new_fit.cost < best.cost - 0.25 * MIN_IMPROVEMENT_DELTA:
                break
            best = new_fit
        return best, sides, stop_reason

    def _fitted(self, best: Result, theta: Array, key: str) -> Result | None:
        """Fit from a point; return None if the fit fails."""
        if key not in self.fits:
            values = dict(zip(self.problem.posed.names, self.problem.posed.to_natural(theta).tolist(), strict=True))
            seconds_left = max(self.run.deadline - time.time(), 1e-3)
            result = fit(
                self.problem, self.transcription, self.solver, start=values, second_start=False, retry=False,
                absolute_sigma=best.absolute_sigma if not self.problem.posed.noise_parameters else None,
                confidence_level=best.confidence_level, max_time=seconds_left,
            )  # fmt: skip
            if result.status in (Status.MAX_TIME, Status.INTERRUPTED):
                return None
            self.fits[key] = result
            if self.file is not None:
                self.file.append({"fit": key, "result": result})
        result = self.fits[key]
        return result if result.success else None

    def _round(
        self, targets: Sequence[Target], work: Mapping[int, tuple[Any, ...]], generation: int
    ) -> tuple[dict[int, ContinuationResult | None], Status | None]:
        """Run tasks: 2k and 2k + 1 are the sides of target k, later ones are branches from other points."""
        sides: dict[int, ContinuationResult | None] = dict.fromkeys(work)
        tasks: deque[tuple[int, tuple[Any, ...]]] = deque(work.items())

        def enter(i: int, outcome: Any) -> ProgressReport | None:
            if isinstance(outcome, InputError):
                raise outcome
            if outcome is None or isinstance(outcome, (LostTask, str)):
                sides[i] = (
                    None if outcome is None else ContinuationResult(status=getattr(outcome, "message", str(outcome)))
                )
                return None
            self._enter(i, outcome, sides, tasks)
            if self.file is not None and not outcome.cut:
                self.file.append({"side": f"{generation}/{i}", "followed": outcome})
            k = self.target_of.get(i, i // 2)
            last_label.append(f"{targets[k].name} {'beside' if i in self.target_of else 'above' if i % 2 else 'below'}")
            progress = build_progress()
            return ProgressReport(progress, progress.sentence, last_label[-1], progress.finished, len(work))

        def build_progress() -> ProfileProgress:
            n_done = sum(f is not None for f in sides.values())
            return ProfileProgress(n_done, len(work), last_label[-1], self.run.seconds)

        last_label = deque([""], maxlen=1)

        for i in work:
            stored_side = self.stored_sides.get(f"{generation}/{i}")
            if stored_side is not None and any(key == i for key, _ in tasks):
                _drop(tasks, {i})
                self._enter(i, stored_side, sides, tasks)
        seconds = _MIN_SIDE_TIME_FRACTION * self.fit_time
        stop_reason = None
        if work:
            stop_reason = run_tasks(
                self.run, follow_target, tasks, enter, limit=np.inf, expected=seconds, progress=build_progress
            )
        better_sides = [i for i, f in sides.items() if f is not None and f.better is not None]
        if better_sides:  # whether later sides were followed depends on the workers
            sides = {i: f if i <= min(better_sides) else None for i, f in sides.items()}
        return sides, stop_reason

    def _enter(
        self, i: int, outcome: ContinuationResult, sides: dict[int, ContinuationResult | None], tasks: deque[Any]
    ) -> None:
        sides[i] = outcome
        self.solves += outcome.solves
        self.evaluations.update({"values": outcome.evaluations, "jacobians": outcome.jacobians})
        if outcome.better is not None:
            _drop(tasks, {key for key, _ in tasks if key >= i})

    def finished(
        self,
        best: Result,
        sides: Mapping[int, ContinuationResult | None],
        targets: Sequence[Target],
        thresholds: dict[str, float],
    ) -> dict[str, Profile]:
        """Return the profiles of the targets that were followed on at least one side."""
        profiles: dict[str, Profile] = {}
        for k, target in enumerate(targets):
            pair = [sides.get(2 * k), sides.get(2 * k + 1)]
            if any(f is not None and f.branches for f in pair):
                other_results = [f for i, n in self.target_of.items() if n == k and (f := sides.get(i)) is not None]
                other_branches = [branch for f in other_results for branch in f.branches]
                profiles[target.name] = _assembled(best, target, pair, other_branches, thresholds)
        return profiles

    def find_other_optima(self, best: Result, sides: Mapping[int, ContinuationResult | None]) -> tuple[Other, ...]:
        """Fit from the minima along the paths, and return the other optima."""
        optima: list[Other] = []
        for i, side in sorted(sides.items()):
            for n, theta in enumerate(() if side is None else side.valleys):
                result = self._fitted(best, theta, f"valley {i}/{n}")
                if result is None:
                    continue
                rise = 2.0 * (result.cost - best.cost)
                duplicates = [
                    o
                    for o in optima
                    if abs(o.objective - rise) <= _SAME_OPTIMUM_DELTA and _close(o.values, result.values)
                ]
                if not duplicates and not (abs(rise) <= _SAME_OPTIMUM_DELTA and _close(best.values, result.values)):
                    optima.append(Other(result.values, rise))
        return tuple(sorted(optima, key=lambda o: o.objective))


def _drop(tasks: deque[Any], keys: set[int]) -> None:
    """Remove tasks, in place."""
    remaining = [entry for entry in tasks if entry[0] not in keys]
    tasks.clear()
    tasks.extend(remaining)


def _first_better(sides: Mapping[int, ContinuationResult | None]) -> Array | None:
    """Return the better fit found by the first task that found one; None if no task did."""
    return next((f.better for _, f in sorted(sides.items()) if f is not None and f.better is not None), None)


def _close(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    return all(abs(a[n] - b[n]) <= 1e-2 * max(abs(a[n]), abs(b[n])) for n in a)


def _assembled(
    best: Result, target: Target, sides: Sequence[ContinuationResult | None], other_branches: Sequence[ProfileBranch],
    thresholds: Mapping[str, float],
) -> Profile:  # fmt: skip
    """Assemble the profile of a target from both sides; a missing side ends at the estimate."""
    below, above = sides
    if below is not None and below.branches:
        main_side = below
        main_branch = replace(below.branches[0], ends=(below.branches[0].ends[0], _why_missing(above)))
        main_branch = (
            join_sides(below.branches[0], above.branches[0]) if above is not None and above.branches else main_branch
        )
    else:
        assert above is not None
        main_side, main_branch = (
            above,
            replace(above.branches[0], ends=(_why_missing(below), above.branches[0].ends[1])),
        )
    extra_branches = [branch for side in sides if side is not None for branch in side.branches[1:]]
    estimate = float(target.natural(np.array(main_side.estimate)))
    linear = {key: _linear(best, target, main_side, float(key), top) for key, top in thresholds.items()}
    return Profile(
        target.name, target.kind, "log" if target.log else "linear", estimate, main_side.curvature, best.names,
        tuple(bool(x) for x in best.log), dict(thresholds), linear,
        (main_branch, *merge_halves([*other_branches, *extra_branches])),
    )  # fmt: skip


def _why_missing(side: ContinuationResult | None) -> str:
    return INTERRUPTED if side is not None and side.status else CUT


def _linear(best: Result, target: Target, side: ContinuationResult, level: float, top: float) -> tuple[float, float]:
    """Return the interval from the covariance, or from the parabola at the best fit if there is no covariance."""
    if target.name in best.names:
        return best.confidence_intervals(level)[target.name]
    reach = np.sqrt(2.0 * top / side.curvature) if side.curvature > 0.0 else np.inf
    low, high = target.natural(np.array([side.estimate - reach, side.estimate + reach]))
    return float(low), float(high)


def _message(
    stop_reason: Status | None, sides: Mapping[int, ContinuationResult | None], n_targets: int, trouble: str
) -> str:
    """Build the message about how the run ended."""
    total = 2 * n_targets
    sides = {i: f for i, f in sides.items() if i < total}
    n_done = sum(f is not None and not f.cut and not f.status for f in sides.values())
    count = (
        f"All {total} profile branches were computed."
        if n_done == total
        else f"{n_done} of {total} profile branches were computed."
    )
    failed_statuses = sorted({f.status for f in sides.values() if f is not None and f.status and not f.cut})
    messages = [STOPS[stop_reason]] if stop_reason is not None else []
    messages += [count, *(f"Failed branches: {status}." for status in failed_statuses), *([trouble] if trouble else [])]
    return " ".join(messages)


def _passed_below(
    targets: Sequence[Target], sides: Mapping[int, ContinuationResult | None], top: float
) -> list[tuple[int, Array]]:
    """Return new starting points: a target's index, and theta at the point farthest below its curve.

    Every point of a profile is an upper bound of the profiles of all other quantities.  If the point is below the curve
    of another quantity, another optimum is lower than the followed one there.  Continuation cannot notice this kink,
    because the followed optimum does not end.
    """
    points = [
        (theta, float(delta))
        for side in sides.values()
        if side is not None
        for branch in side.branches
        for theta, delta in zip(branch.theta, branch.delta, strict=True)
        if delta <= top
    ]
    new_starts: list[tuple[int, Array]] = []
    for k, target in enumerate(targets):
        pair = [sides.get(2 * k), sides.get(2 * k + 1)]
        if any(side is None or not side.branches for side in pair):
            continue
        below, above = (side.branches for side in pair if side is not None)
        curves = [join_sides(below[0], above[0]), *below[1:], *above[1:]]
        c = np.array([target.coordinate_of(theta) for theta, _ in points])
        is_known = np.isfinite(c)
        if not is_known.any():
            continue
        height = np.min([interpolate_delta(curve, np.where(is_known, c, np.nan)) for curve in curves], axis=0)
        height = np.where(np.isfinite(height), height, top)  # values that were not followed are excluded
        first_c, last_c = curves[0].c[0], curves[0].c[-1]
        low, high = (end not in _OPEN for end in curves[0].ends)
        is_known &= (low | (c >= first_c)) & (high | (c <= last_c))  # or far enough
        deficit = np.where(is_known, height - np.array([delta for _, delta in points]), 0.0)
        worst_index = int(np.argmax(deficit))
        if deficit[worst_index] > _INTERPOLATION_MARGIN * top:
            new_starts.append((k, points[worst_index][0]))
    return new_starts
