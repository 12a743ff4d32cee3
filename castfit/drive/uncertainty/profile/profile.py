"""Profile likelihood of quantities: each side of each profile is a task; all results together decide the next step.

    best fit --> both sides of every quantity --> a better fit?   yes: fit from there, and all again
                          |                                       no
                          v
             is any point that another profile passed below the curve of its own quantity?  yes: follow from there
                          |                                                                 no
                          v
             branches --> lowest everywhere --> limits, verdicts

Tasks do not depend on each other and are the same wherever they run, so that parallel and resumed runs end in the same
numbers.
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

from castfit._support.arguments import flag_mistakes, is_one_of, kept, level_rule, option_mistakes, real
from castfit._support.arrays import Array
from castfit._support.json_codec import rebuilt
from castfit._support.process_pool import Lost
from castfit._support.renamed import renamed
from castfit._support.status import InputError, Status, check
from castfit.drive.run.checkpoint import run_header
from castfit.drive.run.loop import ProgressReport, carry_out
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import STOPS
from castfit.drive.uncertainty.profile.branches import (
    BOUND,
    CUT,
    FAR,
    INTERRUPTED,
    ZERO,
    Branch,
    Followed,
    Goal,
    at,
    joined,
    merged,
    threshold,
)
from castfit.drive.uncertainty.profile.continuation import BETTER
from castfit.drive.uncertainty.profile.reading import owner, read_levels, read_targets
from castfit.drive.uncertainty.profile.result import Other, Profile, Profiles
from castfit.drive.uncertainty.profile.targets import Target
from castfit.drive.uncertainty.profile.tasks import ProfileSetting, follow_target, parts_along
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import Solver, Transcription
from castfit.problem.problem import Posable
from castfit.result.result import Result

_RESTARTS = 5
_PATCHES = 2  # rounds in which profiles are compared with points of the others
_BELOW = 0.05  # of the highest threshold: what is lower by less may be interpolation
_FITS = 0.25  # that a side takes at least, of the first fit of a problem, which builds its functions
_OPEN = (FAR, ZERO, BOUND)  # ends of a branch beyond which values are not excluded
_SAME = 1e-2  # of -2 log L: optima closer than that are one


@dataclass(frozen=True)
class ProfileProgress:
    """Progress after each side, for a callback: finished and total sides, a description of the last one, elapsed
    seconds.
    """

    finished: int
    total: int
    last: str
    seconds: float

    @property
    def sentence(self) -> str:
        """The state of things in one line."""
        return f"{self.finished} of {self.total} sides: {self.last}; {self.seconds:.0f} s"


@renamed(levels="confidence_levels")
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
    """Follow the best fit along quantities that are held, one after the other: limits that need no linearization.

    Parameters
    ----------
    result : Result
        A fit that succeeded, with its problem.
    names : str, expression, sequence or mapping, optional
        What is profiled: names of estimated quantities, of sigmas that were eliminated (as in ``result.sigmas``),
        expressions of quantities, as text such as ``"k1 / k2"`` or of CasADi's symbols, or ``{name: expression}``, and
        predictions, ``OutputAt("x", 3.0)``.
        By default every estimated quantity.
    transcription, solver : optional
        As for `fit`; by default the transcription that found the result (elements of collocation are accurate to 1e-6,
        which is enough for limits) and Gauss-Newton.
    confidence_levels : float or sequence of float
        Confidence levels; limits of all of them come from one run.
    limits : {"auto", "chi2", "F"}
        By which distribution: chi-square, as for known sigmas, or F, as for sigmas that are estimated from the same
        data; by default the same choice as that of ``result.confidence_intervals``.
    everywhere : bool
        Whether to go on beyond the limits to the bounds, or as far as `reach`, to look for other optima there.
    reach : float
        How far a quantity is followed that nothing excludes: to so many times its value, or, on a logarithmic scale,
        by this factor.
    workers : int or concurrent.futures.Executor
        1 runs in this process, n in n processes, unless all is done before these would have started; a script then
        needs ``if __name__ == "__main__":``.
    max_time : float
        Seconds; what was followed until then is returned.
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
        A mapping from name to `Profile`.  Also if sides could not be followed to an end: then their verdict says so.

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
    names = kept(names)
    asked, chosen = parts_along(transcription, solver, result, mistakes)
    mistakes += run.file_mistakes() + run.mistakes() + flag_mistakes(everywhere=everywhere)
    far = real(reach)
    mistakes += option_mistakes(
        ("limits", limits, known := is_one_of(limits, "auto", "chi2", "F"), "choose 'auto', 'chi2' or 'F'"),
        ("reach", reach, far is not None and 1.0 < far < np.inf, "give a factor above 1"),
    )
    found_levels = read_levels(confidence_levels, mistakes)
    problem = owner(result, mistakes)
    usable = problem is not None and result.success
    by, thresholds = choose_thresholds(result, limits, found_levels, mistakes) if usable and known else ("", {})
    targets = read_targets(result, problem.posed, names, mistakes) if problem is not None and usable else ()
    check("profile", mistakes)
    assert problem is not None
    assert far is not None
    goal = Goal(tuple(thresholds.values()), bool(everywhere), far)
    run = run.cleaned()
    header = run_header(
        "profile", problem, asked, chosen, names=", ".join(t.name for t in targets), limits=by,
        confidence_levels=", ".join(thresholds), everywhere=bool(everywhere), reach=far,
        start=", ".join(f"{value:.9g}" for value in result.theta),
    )  # fmt: skip
    session = _Session(problem, asked, chosen, goal, run, result.time)
    with run.opened(header) as file:
        session.open(file)
        best, sides, stopped = session.best_of(result, names)
        trouble = file.trouble if file is not None else ""
        of_best = targets if best is result else read_targets(best, problem.posed, names, [])
        finished = session.finished(best, sides, of_best, thresholds)
        complete = stopped is None and all(f is not None and not f.cut for f in sides.values())
        others = session.others(best, sides) if complete else ()
        message = _message(run.stopped(stopped, not complete), sides, len(targets), trouble)
        improved = max(2.0 * (result.cost - best.cost), 0.0) if best is not result else 0.0
        return Profiles(
            finished, best, improved, others, by, message, complete, run.seconds, session.solves,
            dict(session.evaluations), asked.label, chosen.label, header,
        )  # fmt: skip


@renamed(level="confidence_level")
def profile_limits(result: Result, confidence_level: float = 0.95) -> dict[str, tuple[float, float]]:
    """Return the confidence interval of every estimated quantity by its profile.

    For what asks for intervals by a function, as ``castfit.coverage(problem, intervals=castfit.profile_limits)``.

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
    mistakes = option_mistakes(level_rule(confidence_level, real(confidence_level)))
    owner(result, mistakes)
    check("profile_limits", mistakes)
    return profile(result, confidence_levels=confidence_level).limits()


def choose_thresholds(
    result: Result, limits: str, levels: Sequence[float], mistakes: list[str]
) -> tuple[str, dict[str, float]]:
    """Return by which distribution, and per level by how much -2 log L may rise."""
    by = limits if limits != "auto" else ("chi2" if result.absolute_sigma else "F")
    if by == "F" and result.dof <= 0:
        mistakes.append("no degrees of freedom are left to estimate the noise; pass sigma or limits='chi2'")
        return by, {}
    return by, {
        f"{level:g}": threshold(level, n_data=result.n_data, dof=result.dof, by=by) for level in sorted(set(levels))
    }


@dataclass
class _Session:
    """State of a run in progress: followed sides, the best fit they belong to, and the checkpoint records."""

    problem: Posable
    transcription: Transcription
    solver: Solver
    goal: Goal
    run: RunOptions
    fit_time: float
    solves: int = 0
    evaluations: Counter[str] = field(default_factory=Counter[str])
    file: Any = None
    known: dict[str, Followed] = field(default_factory=dict[str, Followed])
    fits: dict[str, Result] = field(default_factory=dict[str, Result])
    target_of: dict[int, int] = field(default_factory=dict[int, int])

    def open(self, file: Any) -> None:
        """Take over what an earlier run has written."""
        self.file = file
        with file.intact() if file is not None else nullcontext():
            for record in file.records if file is not None else ():
                if "side" in record:
                    self.known[record["side"]] = rebuilt(Followed, record["followed"])
                elif "fit" in record:
                    self.fits[record["fit"]] = rebuilt(Result, record["result"]).answering(self.problem)

    def best_of(self, result: Result, names: Any) -> tuple[Result, dict[int, Followed | None], Status | None]:
        """Follow all sides, again from any better fit that they find; return it, the sides, and what stopped it."""
        best, sides, stopped = result, dict[int, Followed | None](), None
        for generation in range(_RESTARTS + 1):
            targets = read_targets(best, self.problem.posed, names, [])
            setting = ProfileSetting.at(best, self.problem.posed, self.transcription, self.solver, targets)
            work = self.run.freeze("profile", "problem, transcription and solver", (setting, targets, self.goal))
            whole = {i: (work, i // 2, 1 if i % 2 else -1, self.run.deadline) for i in range(2 * len(targets))}
            sides, stopped = self._round(targets, whole, generation)
            for _ in range(_PATCHES):
                if stopped is not None or _first_better(sides) is not None:
                    break
                lower = _passed_below(targets, sides, self.goal.top)
                if not lower:
                    break
                keys = range(max(sides) + 1, max(sides) + 1 + len(lower))
                self.target_of |= {i: k for i, (k, _) in zip(keys, lower, strict=True)}
                more = {i: (work, k, theta, self.run.deadline) for i, (k, theta) in zip(keys, lower, strict=True)}
                found, stopped = self._round(targets, more, generation)
                sides |= found
            better = _first_better(sides)
            if better is None or stopped is not None or generation == _RESTARTS:
                break
            again = self._fitted(best, better, f"better {generation}")
            if again is None or not again.cost < best.cost - 0.25 * BETTER:
                break
            best = again
        return best, sides, stopped

    def _fitted(self, best: Result, theta: Array, key: str) -> Result | None:
        """Fit from a point; None if that leads nowhere."""
        if key not in self.fits:
            values = dict(zip(self.problem.posed.names, self.problem.posed.to_natural(theta).tolist(), strict=True))
            left = max(self.run.deadline - time.time(), 1e-3)
            found = fit(
                self.problem, self.transcription, self.solver, start=values, second_start=False, retry=False,
                absolute_sigma=best.absolute_sigma if not self.problem.posed.noise_parameters else None,
                confidence_level=best.confidence_level, max_time=left,
            )  # fmt: skip
            if found.status in (Status.MAX_TIME, Status.INTERRUPTED):
                return None
            self.fits[key] = found
            if self.file is not None:
                self.file.append({"fit": key, "result": found})
        found = self.fits[key]
        return found if found.success else None

    def _round(
        self, targets: Sequence[Target], work: Mapping[int, tuple[Any, ...]], generation: int
    ) -> tuple[dict[int, Followed | None], Status | None]:
        """Run tasks; sides 2k and 2k + 1 are those of target k, what comes later are branches from elsewhere."""
        sides: dict[int, Followed | None] = dict.fromkeys(work)
        tasks: deque[tuple[int, tuple[Any, ...]]] = deque(work.items())

        def enter(i: int, outcome: Any) -> ProgressReport | None:
            if isinstance(outcome, InputError):
                raise outcome
            if outcome is None or isinstance(outcome, (Lost, str)):
                sides[i] = None if outcome is None else Followed(status=getattr(outcome, "message", str(outcome)))
                return None
            self._enter(i, outcome, sides, tasks)
            if self.file is not None and not outcome.cut:
                self.file.append({"side": f"{generation}/{i}", "followed": outcome})
            if outcome.cut == Status.INTERRUPTED.value:
                raise KeyboardInterrupt
            done = sum(f is not None for f in sides.values())
            k = self.target_of.get(i, i // 2)
            last = f"{targets[k].name} {'beside' if i in self.target_of else 'above' if i % 2 else 'below'}"
            now = ProfileProgress(done, len(work), last, self.run.seconds)
            return ProgressReport(now, now.sentence, last, done, len(work))

        for i in work:
            known = self.known.get(f"{generation}/{i}")
            if known is not None and any(key == i for key, _ in tasks):
                _drop(tasks, {i})
                self._enter(i, known, sides, tasks)
        seconds = _FITS * self.fit_time
        stopped = carry_out(self.run, follow_target, tasks, enter, limit=np.inf, expected=seconds) if work else None
        finds = [i for i, f in sides.items() if f is not None and f.better is not None]
        if finds:  # what comes after the first of them was followed or not, as workers happened to be free
            sides = {i: f if i <= min(finds) else None for i, f in sides.items()}
        return sides, stopped

    def _enter(self, i: int, outcome: Followed, sides: dict[int, Followed | None], tasks: deque[Any]) -> None:
        sides[i] = outcome
        self.solves += outcome.solves
        self.evaluations.update({"values": outcome.evaluations, "jacobians": outcome.jacobians})
        if outcome.better is not None:
            _drop(tasks, {key for key, _ in tasks if key >= i})

    def finished(
        self,
        best: Result,
        sides: Mapping[int, Followed | None],
        targets: Sequence[Target],
        thresholds: dict[str, float],
    ) -> dict[str, Profile]:
        """Return the profiles of the targets that were followed on at least one side."""
        out: dict[str, Profile] = {}
        for k, target in enumerate(targets):
            both = [sides.get(2 * k), sides.get(2 * k + 1)]
            if any(f is not None and f.branches for f in both):
                beside = [branch for i, of in self.target_of.items() if of == k and (f := sides.get(i)) is not None
                          for branch in f.branches]  # fmt: skip
                out[target.name] = _assembled(best, target, both, beside, thresholds)
        return out

    def others(self, best: Result, sides: Mapping[int, Followed | None]) -> tuple[Other, ...]:
        """Fit from the minima that were met on the way, and return those that are other optima."""
        found: list[Other] = []
        for i, side in sorted(sides.items()):
            for n, theta in enumerate(() if side is None else side.valleys):
                there = self._fitted(best, theta, f"valley {i}/{n}")
                if there is None:
                    continue
                rise = 2.0 * (there.cost - best.cost)
                same = [o for o in found if abs(o.objective - rise) <= _SAME and _close(o.values, there.values)]
                if not same and not (abs(rise) <= _SAME and _close(best.values, there.values)):
                    found.append(Other(there.values, rise))
        return tuple(sorted(found, key=lambda o: o.objective))


def _drop(tasks: deque[Any], keys: set[int]) -> None:
    """Leave out tasks, in place."""
    kept = [entry for entry in tasks if entry[0] not in keys]
    tasks.clear()
    tasks.extend(kept)


def _first_better(sides: Mapping[int, Followed | None]) -> Array | None:
    """Return the better fit found by the first task that found one; None if no task did."""
    return next((f.better for _, f in sorted(sides.items()) if f is not None and f.better is not None), None)


def _close(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    return all(abs(a[n] - b[n]) <= 1e-2 * max(abs(a[n]), abs(b[n])) for n in a)


def _assembled(
    best: Result, target: Target, both: Sequence[Followed | None], beside: Sequence[Branch],
    thresholds: Mapping[str, float],
) -> Profile:  # fmt: skip
    """Assemble the profile of a target from both sides; a missing side ends at the estimate."""
    below, above = both
    if below is not None and below.branches:
        have = below
        own = replace(below.branches[0], ends=(below.branches[0].ends[0], _why_missing(above)))
        own = joined(below.branches[0], above.branches[0]) if above is not None and above.branches else own
    else:
        assert above is not None
        have, own = above, replace(above.branches[0], ends=(_why_missing(below), above.branches[0].ends[1]))
    more = [branch for side in both if side is not None for branch in side.branches[1:]]
    estimate = float(target.natural(np.array(have.estimate)))
    linear = {key: _linear(best, target, have, float(key), top) for key, top in thresholds.items()}
    return Profile(
        target.name, target.kind, "log" if target.log else "linear", estimate, have.curvature, best.names,
        tuple(bool(x) for x in best.log), dict(thresholds), linear, (own, *merged([*beside, *more])),
    )  # fmt: skip


def _why_missing(side: Followed | None) -> str:
    return INTERRUPTED if side is not None and side.status else CUT


def _linear(best: Result, target: Target, at: Followed, level: float, top: float) -> tuple[float, float]:
    """Return the interval from the covariance, or from the parabola at the best fit if there is no covariance."""
    if target.name in best.names:
        return best.confidence_intervals(level)[target.name]
    reach = np.sqrt(2.0 * top / at.curvature) if at.curvature > 0.0 else np.inf
    low, high = target.natural(np.array([at.estimate - reach, at.estimate + reach]))
    return float(low), float(high)


def _message(stopped: Status | None, sides: Mapping[int, Followed | None], n_targets: int, trouble: str) -> str:
    """Build the message about how the run ended."""
    total = 2 * n_targets
    sides = {i: f for i, f in sides.items() if i < total}
    done = sum(f is not None and not f.cut and not f.status for f in sides.values())
    count = f"All {total} profile branches were computed." if done == total else f"{done} of {total} profile branches were computed."
    lost = sorted({f.status for f in sides.values() if f is not None and f.status and not f.cut})
    said = [STOPS[stopped]] if stopped is not None else []
    said += [count, *(f"Not followed: {why}." for why in lost), *([trouble] if trouble else [])]
    return " ".join(said)


def _passed_below(
    targets: Sequence[Target], sides: Mapping[int, Followed | None], top: float
) -> list[tuple[int, Array]]:
    """Return from where to follow again: a target's position, and theta at the point farthest below its curve.

    Along the profile of one quantity every other one takes values too: whatever a profile passed is an upper bound of
    all others.  Where it is below the curve of that other one, another optimum is lower than the one that was followed,
    although that one never ended: a kink that no step along the curve can notice.
    """
    points = [
        (theta, float(delta))
        for side in sides.values()
        if side is not None
        for branch in side.branches
        for theta, delta in zip(branch.theta, branch.delta, strict=True)
        if delta <= top
    ]
    out: list[tuple[int, Array]] = []
    for k, target in enumerate(targets):
        both = [sides.get(2 * k), sides.get(2 * k + 1)]
        if any(side is None or not side.branches for side in both):
            continue
        below, above = (side.branches for side in both if side is not None)
        curves = [joined(below[0], above[0]), *below[1:], *above[1:]]
        c = np.array([target.coordinate_of(theta) for theta, _ in points])
        known = np.isfinite(c)
        if not known.any():
            continue
        height = np.min([at(curve, np.where(known, c, np.nan)) for curve in curves], axis=0)
        height = np.where(np.isfinite(height), height, top)  # where it was not followed, as it is excluded there
        first, last = curves[0].c[0], curves[0].c[-1]
        low, high = (end not in _OPEN for end in curves[0].ends)
        known &= (low | (c >= first)) & (high | (c <= last))  # or because that is far enough
        deficit = np.where(known, height - np.array([delta for _, delta in points]), 0.0)
        worst = int(np.argmax(deficit))
        if deficit[worst] > _BELOW * top:
            out.append((k, points[worst][0]))
    return out
