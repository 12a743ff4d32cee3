"""Loop of a run of many fits: send tasks, collect outcomes, report progress, and stop early if requested."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import shorten_repr
from castfit._support.process_pool import Outcomes, Task, WorkerPool
from castfit._support.progress_line import print_progress, progress_line, renew, time_left
from castfit._support.status import Status
from castfit._support.time_limit import StopRequested, at_look, is_interrupted, with_deadline
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import FitAnswer
from castfit.result.result import Result

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds, and part of the time limit, after which callbacks are called although nothing has ended.
_CALLBACK_SECONDS, _CALLBACK_TIME_FRACTION = 1.8, 0.1


@dataclass(frozen=True)
class ProgressReport:
    """Report after a fit ended: the callback argument, the state of the run, the fit, and the number of ended fits.

    enough : whether the run has its result, so that running tasks are given up
    timed : whether `state` contains the remaining time; otherwise it is appended
    """

    progress: Any
    state: str
    last_line: str
    finished: int
    total: int
    enough: bool = False
    timed: bool = False


class Heartbeat:
    """Calls a function at looks at the clock if nothing else did for a while; the work ends if it returns True."""

    def __init__(self, call: Callable[[], bool], interval: float) -> None:
        self._call, self._interval, self._thread = call, interval, threading.get_ident()
        self._error: Exception | None = None
        self._is_stopped = False
        self.postpone()

    def postpone(self) -> None:
        """Wait for a whole interval from now on."""
        self._due = time.monotonic() + self._interval

    def look(self) -> None:
        """Call the function if it is due.  Raise StopRequested from then on if it returned True, or failed."""
        if time.monotonic() >= self._due and not self._is_stopped and self._thread == threading.get_ident():
            self._due = np.inf  # what the function calls may look at the clock
            try:
                self._is_stopped = self._call()
            except Exception as error:  # a task would take it for its own
                self._error, self._is_stopped = error, True
            self.postpone()
        if self._is_stopped:
            raise StopRequested(Status.STOPPED_BY_CALLBACK)

    def __enter__(self) -> Self:
        at_look.append(self.look)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        at_look.remove(self.look)
        if self._error is not None:
            raise self._error


class RunSession:
    """Running run: its options, its workers, and the function that reports its progress.

    `progress` builds the argument of callbacks between two of them; None if there is none.
    """

    def __init__(self, run: RunOptions, pool: WorkerPool, report: Callable[..., None]) -> None:
        self.run, self.pool, self.report = run, pool, report
        self.progress: Callable[[], Any] | None = None
        self.heartbeat = Heartbeat(
            lambda: run.callback is not None and self.progress is not None and run.call_callback(self.progress()),
            min(_CALLBACK_SECONDS, _CALLBACK_TIME_FRACTION * run.max_time),
        )

    def _idle(self) -> None:
        renew()
        self.heartbeat.look()

    def iterate_outcomes(
        self, function: Callable[..., Any], tasks: deque[Task], *, limit: float = np.inf, expected: float = np.inf
    ) -> Outcomes:
        """Yield key and outcome of tasks, as they end; see `castfit._support.process_pool.WorkerPool.run`."""
        for outcome in self.pool.run(
            function, tasks, limit=limit, deadline=self.run.deadline, idle=self._idle, expected=expected
        ):
            self.heartbeat.look()  # a task that the callback stopped has not ended
            yield outcome

    def collect_answers(self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call a function with each tuple of arguments, and return the outcomes in the same order."""
        tasks = deque(enumerate(calls))
        count = len(tasks)
        outcome_by_index = dict(self.iterate_outcomes(function, tasks))
        return [outcome_by_index[i] for i in range(count)]

    def notify(self, progress: Any, state: str, last_line: str, *, milestone: bool) -> bool:
        """Report progress and call the callback; return whether it requests to stop."""
        self.heartbeat.postpone()
        self.report(state, last_line, milestone=milestone)
        return self.run.call_callback(progress)


@contextmanager
def open_reporter(verbose: int | None) -> Generator[Callable[..., None], None, None]:
    """Yield a function that reports the progress of a run.

    verbose : 0 for no output, 1 for the state of the run, 2 for a line per finished task, None for the state on a
        terminal if the run takes longer

    The function takes the state, the line of the last task, and whether this is a milestone, which gets a line in a
    file.  On a terminal the state is rewritten in place.
    """
    with progress_line(verbose, keep=True) as show:

        def report(state: str, last_line: str = "", *, milestone: bool = False) -> None:
            if verbose == 2 and last_line:
                print_progress(last_line)
            elif show is not None:
                show(state)
            elif verbose == 1 and milestone:
                print_progress(state)

        report("no task has finished yet")
        yield report


def is_tenth(finished: int, total: int) -> bool:
    """Whether another tenth of a run has just been finished."""
    return total > 0 and 10 * finished // total > 10 * (finished - 1) // total


@contextmanager
def open_session(run: RunOptions) -> Generator[RunSession, None, None]:
    """Yield the session of a run for a ``with`` block, after which no process is left."""
    with WorkerPool(run.workers) as pool, open_reporter(run.verbose) as report:
        session = RunSession(run, pool, report)
        with session.heartbeat:
            yield session


def run_tasks(
    run: RunOptions,
    function: Callable[..., Any],
    tasks: deque[Task],
    enter: Callable[[int, Any], ProgressReport | None],
    *,
    limit: float,
    expected: float = np.inf,
    progress: Callable[[], Any] | None = None,
) -> Status | None:
    """Run tasks until all have ended, or a signal, the time limit or the callback ends them; return which.

    `enter` takes the key of a task and its outcome; it may add tasks.  `progress` builds the argument of callbacks
    while long tasks run.  Everything else is as for
    `castfit._support.process_pool.Pool.run`.
    """
    start_time, n_ended = time.perf_counter(), 0
    try:
        with with_deadline(run.deadline - time.time()), open_session(run) as session:
            session.progress = progress
            for key, outcome in session.iterate_outcomes(function, tasks, limit=limit, expected=expected):
                progress_report = enter(key, outcome)
                if progress_report is None:
                    continue
                n_ended += 1
                remaining_text = time_left(
                    time.perf_counter() - start_time, n_ended, progress_report.total - progress_report.finished
                )
                state, milestone = (
                    progress_report.state + ("" if progress_report.timed else remaining_text),
                    is_tenth(progress_report.finished, progress_report.total),
                )
                if session.notify(progress_report.progress, state, progress_report.last_line, milestone=milestone):
                    return Status.STOPPED_BY_CALLBACK
                if progress_report.enough:
                    break
    except StopRequested as stop:
        return stop.status
    return Status.INTERRUPTED if is_interrupted() else None


def call_with_time_limit(method: Callable[[float], Any], limit: float, deadline: float) -> FitAnswer | None:
    """Call ``method(max_time)`` with the seconds that are left, `limit` at most; None if there are none.

    The deadline is one of `time.time`; `read_answer` reads the answer.
    """
    seconds_left = deadline - time.time()
    if seconds_left <= 0.0:
        return None
    start_time = time.perf_counter()
    answer = read_answer(method(min(limit, seconds_left)))
    seconds, result = time.perf_counter() - start_time, replace(answer.result, problem=None)
    return replace(
        answer, result=result, seconds=seconds, cut=result.status is Status.MAX_TIME and seconds_left < limit
    )


def read_answer(answer: Any) -> FitAnswer:
    """Read an answer: a Result, a driver's result that holds one as ``result`` or ``best``, or an Answer."""
    if isinstance(answer, FitAnswer):
        return answer
    candidates = (getattr(answer, name, None) for name in ("result", "best"))
    result = next((r for r in (answer, *candidates) if isinstance(r, Result)), None)
    if result is None:
        raise TypeError(
            f"the method returned {shorten_repr(answer)}; expected a Result, or an object with .result or .best"
        )
    return FitAnswer(
        result,
        getattr(answer, "iterations", result.iterations),
        getattr(answer, "evaluations", result.evaluations),
        getattr(answer, "horizons", ()),
    )
