"""`estimate`: the answer, without a choice of method: fit, doubt, search, confirm.

fit        as `castfit.fit` does it, from the guess
doubt      other ways, from other starts: does any find a better optimum, or the same again?
search     rounds of candidates, most of them by the ways that paid (castfit.drive.portfolio.plan)
confirm    what is best was fitted at full accuracy, verified, and found again from starts of its own
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from castfit._json import rebuilt
from castfit._pool import LOST, Task, lost
from castfit._reading import flag_mistakes, is_count, is_one_of, items, option_mistakes, rng_mistakes, text
from castfit.drive.optima import Merit
from castfit.drive.portfolio.limits import limits_mistakes, search_field
from castfit.drive.portfolio.plan import Options, State, Tried, next_round
from castfit.drive.portfolio.result import Candidate, PortfolioProgress, PortfolioResult, Way
from castfit.drive.portfolio.ways import SAME, WAYS, End, Order, candidate
from castfit.drive.run.checkpoint import run_header, seed_of
from castfit.drive.run.found import STOPS
from castfit.drive.run.loop import Told, carry_out
from castfit.drive.run.options import RunOptions, require_problem
from castfit.posed import Posed
from castfit.problem import Posable
from castfit.result import Result
from castfit.solve.gauss_newton import GaussNewton
from castfit.status import InputError, Status, check, suggest
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.trajectory import every_state_measured

_PART = 0.5  # of the time, for one candidate


def estimate(
    problem: Posable,
    *,
    max_time: float = 60.0,
    rng: int | np.random.Generator = 0,
    finds: int = 3,
    limits: Mapping[str, Any] | None = None,
    ways: Sequence[str] | None = None,
    screen: int = 8,
    race: bool = True,
    workers: int | Executor = 1,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[PortfolioProgress], Any] | None = None,
    verbose: int = 0,
) -> PortfolioResult:
    """Estimate parameters without choosing a method, and say how sure the answer is.

    The default fit from the guess comes first; then several ways to search go on from other starts, most of the time by
    those that pay.  The search ends when the best optimum was found `finds` times from starts of their own, describes
    the data, and no better one is likely; or when the time is over.  But for that limit the numbers depend neither on
    `workers` nor on how long anything takes.

    Parameters
    ----------
    problem : Problem or Posed
    max_time : float
        Seconds.
    rng : int or numpy.random.Generator
    finds : int
        How often the best optimum is to be found before it is believed.
    limits : mapping from quantity name to (lower, upper), optional
        Where starts are drawn, evenly on the scale of each quantity.  By default between the bounds; where there are
        none, a factor of a thousand about the guess of what is on logarithmic scale, else ten times the guess to either
        side.
    ways : sequence of {"fit", "box", "growing", "soft", "recombined"}, optional
        The ways to search, by default all that suit the problem: the default fit from random starts; single shooting in
        a box from the best of several draws; the same on ever longer horizons; where not all states are measured, after
        soft equations from constant states; from recombined good points.
    screen : int
        Of how many draws the best is taken.
    race : bool
        Whether candidates are dropped that are worse than half of those before them at the same point.
    workers : int or concurrent.futures.Executor
        As for `multistart`.
    checkpoint : str or Path, optional
        A file to which every candidate is written at once.
    resume : bool
        Whether to continue the checkpoint if it exists.
    callback : callable, optional
        Called in this process with a `PortfolioProgress` after each candidate; the search ends when it returns True.
    verbose : {0, 1, 2}
        Nothing, the state of the search (live on a terminal), one line per candidate.

    Returns
    -------
    PortfolioResult
        Also if nothing was found, or the search was interrupted; ``print`` tells the story.

    Raises
    ------
    InputError
        For misuse: options out of range, what cannot be sent to other processes, a checkpoint that belongs to another
        problem.

    Examples
    --------
    >>> import castfit as cf
    >>> found = cf.estimate(cf.problems.load("bellman").problem, rng=0)
    >>> print(found.best.status.value, round(found.best.chi2, 3))
    converged 21.867
    """
    run = RunOptions(
        workers=workers, max_time=max_time, callback=callback, verbose=verbose, checkpoint=checkpoint, resume=resume
    )
    mistakes = run.mistakes() + run.file_mistakes() + rng_mistakes(rng) + flag_mistakes(race=race)
    mistakes += option_mistakes(
        ("finds", finds, is_count(finds, 1), "give at least 1"),
        ("screen", screen, is_count(screen, 1), "give at least 1"),
    )
    chosen = _ways(ways, mistakes)
    require_problem("estimate", problem, mistakes)
    mistakes += limits_mistakes(problem, limits)
    check("estimate", mistakes)
    run = run.cleaned()
    if ways is None:
        chosen = suiting(problem.posed)
    options = Options(chosen, int(screen), bool(race))
    field = search_field(problem.posed, limits)
    job = run.freeze("estimate", "the problem", (problem, field))
    header = run_header(
        "estimate", problem, Collocation(), GaussNewton(), seed=seed_of(rng), ways=list(chosen), screen=int(screen),
        race=bool(race), limits=[field.lower.tolist(), field.upper.tolist()],
    )  # fmt: skip
    merit = Merit.of(problem)
    with run.opened(header) as file:
        search = _Search(problem, options, field, np.random.default_rng(rng), job, run, int(finds))
        if file is not None:
            for record in file.records:
                search.known[int(record["index"])] = rebuilt(End, record["end"])

        def enter(i: int, outcome: Any) -> Told | None:
            end = search.enter(i, outcome)
            if end is None:
                return None
            if file is not None and i not in search.known:
                file.append({"index": i, "end": end})
            now = search.progress()
            return Told(now, now.sentence, now.sentence, now.candidates, now.candidates)

        search.plan()
        stopped = carry_out(run, candidate, search.tasks, enter, limit=_PART * run.max_time)
        warnings = (file.trouble,) if file is not None and file.trouble else ()
    return search.result(stopped, merit, warnings)


def suiting(posed: Posed) -> tuple[str, ...]:
    """Return the ways that suit a problem: where all states are measured, nobody need find them by soft equations."""
    soft = not every_state_measured(posed) and not any(c.schedule.triggers for c in posed.conditions)
    return tuple(way for way in WAYS if way != "soft" or soft)


def _ways(given: Any, mistakes: list[str]) -> tuple[str, ...]:
    if given is None:
        return tuple(WAYS)
    named = items(given)
    if not named or isinstance(given, str):
        mistakes.append(f"ways is {text(given)}; give a list of names, of {', '.join(WAYS)}")
        return ()
    mistakes += [f"ways contains {text(w)}: {suggest(str(w), WAYS)}" for w in named if not is_one_of(w, *WAYS)]
    return tuple(dict.fromkeys(str(w) for w in named))


class _Search:
    """A search that is under way: rounds are planned, carried out in any order, and entered in theirs."""

    def __init__(
        self, problem: Posable, options: Options, field: Any, rng: np.random.Generator, job: Any, run: RunOptions,
        finds: int,
    ) -> None:  # fmt: skip
        self.problem, self.options, self.field, self.run, self.finds = problem, options, field, run, finds
        self.tasks: deque[Task] = deque()
        self.known: dict[int, End] = {}
        self.state = State()
        self.reason = ""
        self.losses: list[str] = []
        self._rng, self._job = rng, job
        self._round: list[tuple[str, Order]] = []
        self._ends: dict[int, End] = {}
        self._best: Result | None = None
        self._found: list[Tried] = []

    def plan(self) -> None:
        """Plan rounds until there is something to be carried out, or the search is at its end."""
        while not self.tasks and not self.reason:
            self._round = next_round(self.state, self.options, self.field, self._rng)
            first = len(self.state.tried)
            for k, (_, order) in enumerate(self._round):
                if first + k in self.known:
                    self._ends[first + k] = self.known[first + k]
                else:
                    limit = _PART * self.run.max_time
                    self.tasks.append((first + k, (self._job, order, limit, self.run.deadline)))
            if not self.tasks:
                self._close()

    def enter(self, i: int, outcome: Any) -> End | None:
        """Enter an outcome; None if it does not count."""
        if isinstance(outcome, InputError):
            raise outcome
        if outcome is None:
            self.reason = STOPS[Status.MAX_TIME]
            self.tasks.clear()
            return None
        if not isinstance(outcome, End):
            status, message = lost(outcome)
            if status in LOST:
                self.losses.append(f"Candidate {i}: {message}")
            outcome = End()
        if outcome.result is not None and outcome.result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        self._ends[i] = outcome
        if len(self._ends) == len(self._round):
            self._close()
            self.plan()
        return outcome

    def _close(self) -> None:
        """Enter a round in the order in which it was planned, whatever order it was carried out in."""
        first = len(self.state.tried)
        tried = [
            Tried(first + k, order.way, move, self._ends[first + k]) for k, (move, order) in enumerate(self._round)
        ]
        self.state, self._ends = self.state.extended(tried, self.field), {}
        self._keep()
        self.reason = self._done()

    def _keep(self) -> None:
        """Keep the best result, and of all others only the numbers."""
        results = [t.end.result for t in self.state.tried if t.end.result is not None]
        if not results:
            return
        self._best = min(results, key=lambda r: (not r.success, r.cost if np.isfinite(r.cost) else np.inf))

    def _done(self) -> str:
        """Say why the search is at its end; empty while it is not."""
        found = len(self.state.finds())
        if found < self.finds or self._best is None:
            return ""
        if self._best.goodness.described:
            return f"It describes the data and was found {found} times: this will do."
        own = [t for t in self.state.tried if t.way != "recombined" and t.end.settled]
        distinct: list[float] = []
        for cost in sorted(t.end.cost for t in own):
            if not distinct or cost > distinct[-1] + SAME:
                distinct.append(cost)
        w, N = len(distinct), len(own)
        if 2 * w**2 + 3 * w + 2 <= N:  # Boender and Rinnooy Kan (1987), see castfit.drive.optima
            return f"{N} optima from starts of their own are {w} different ones: a better one is unlikely."
        return ""

    def progress(self) -> PortfolioProgress:
        """Say how far the search is."""
        count = len(self.state.tried) + len(self._ends)
        return PortfolioProgress(count, self.state.best, len(self.state.finds()), self.run.seconds)

    def result(self, stopped: Status | None, merit: Merit, warnings: tuple[str, ...]) -> PortfolioResult:
        """Close the search."""
        first = len(self.state.tried)
        rest = [
            Tried(first + k, order.way, move, self._ends[first + k])
            for k, (move, order) in enumerate(self._round)
            if first + k in self._ends
        ]
        if rest:
            self.state = self.state.extended(rest, self.field)
            self._keep()
        reason = STOPS[stopped] if stopped else self.reason or STOPS[Status.MAX_TIME]
        best = None if self._best is None else self._best.with_problem(self.problem)
        self._found = self.state.finds(independent=False)
        found = len(self.state.finds())
        described = best is not None and best.success and best.goodness.described
        return PortfolioResult(
            best=best,
            reason=reason,
            candidates=tuple(self._row(t, merit) for t in self.state.tried),
            ways=tuple(self._way(name) for name in self.options.ways),
            sure=stopped is None and found >= self.finds and reason != STOPS[Status.MAX_TIME],
            finds=found,
            described=described,
            time=self.run.seconds,
            floor=merit.floor,
            warnings=(*self.losses, *warnings),
        )

    def _row(self, t: Tried, merit: Merit) -> Candidate:
        result = t.end.result
        ok = result is not None and result.success
        return Candidate(
            t.index, t.way, t.move,
            merit(result.cost, result.chi2) if result is not None and ok else np.nan,
            t.end.cost, ok, t in self._found, t.end.dropped,
            {} if result is None else result.values, t.end.seconds,
        )  # fmt: skip

    def _way(self, name: str) -> Way:
        mine = [t for t in self.state.tried if t.way == name]
        best, improvements = np.inf, 0
        for t in self.state.tried:
            if t.cost < best - SAME:
                improvements += t.way == name
                best = t.cost
        found = sum(t.way == name for t in self.state.finds(independent=False))
        return Way(
            name, len(mine), sum(t.end.dropped for t in mine), sum(t.end.settled for t in mine), found, improvements,
            sum(t.end.seconds for t in mine),
        )  # fmt: skip
