"""Log of a scatter search: it runs simulations and local searches, records their results, and decides when to stop.

The order of the answers is that of the questions, so that nothing depends on who answered.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from castfit._support.arrays import Array
from castfit._support.json_codec import rebuild_value, to_jsonable
from castfit._support.process_pool import ERROR, LostTask, lost_task_status
from castfit._support.status import InputError, Status
from castfit._support.time_limit import check_interrupt
from castfit.drive.run.loop import RunSession
from castfit.drive.run.run_result import STOPS
from castfit.drive.search.scatter.method.choice import LocalSearchPath
from castfit.drive.search.scatter.method.members import Member
from castfit.drive.search.scatter.method.search import LocalSearchOutcome
from castfit.drive.search.scatter.result import BestSoFar, LocalSearch
from castfit.drive.search.scatter.tasks import (
    Job,
    LocalSearchResult,
    SearchContext,
    SimulatedBlock,
    search_locally,
    simulate_block,
)
from castfit.result.result import Result

OUT_OF_SIMULATIONS = "The limit of simulations was reached."

_CHUNKS_PER_WORKER = 4  # number of chunks per process, which evens out members that take longer
_ON_EXECUTORS = 8  # members per task where the number of workers is not known


class SearchStopped(Exception):
    """Ends the search between two tasks; its text says why."""


@dataclass
class LogRecord:
    """Record of a log for a checkpoint, without its result.

    Values are heights (`castfit.drive.run.optima.Merit`).

    moments : the best value against simulations and time, entered whenever it fell;  simulations : in all, `sweeps` of
    them with sensitivities;  best_x (n,), best_f : the best point of the cube;  seconds : up to the last record
    """

    moments: list[BestSoFar] = field(default_factory=list[BestSoFar])
    searches: list[LocalSearch] = field(default_factory=list[LocalSearch])
    simulations: int = 0
    sweeps: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    best_x: Array | None = None
    best_f: float = np.inf
    seconds: float = 0.0


class SearchLog(LogRecord):
    """An objective that enters everything; see `castfit.drive.search.scatter.method.search.CubeObjective`.

    It halts the search after `max_eval` simulations, at the deadline of the run, and at a value as low as `vtr`.
    `result` is that of the local search that ended at the best point, None if no one did; `told` is called after every
    round of tasks.
    """

    def __init__(
        self, session: RunSession, job: Job, work: SearchContext, seed: int, *, max_eval: float, vtr: float
    ) -> None:
        super().__init__()
        self._session, self._job, self._work, self._seed = session, job, work, seed
        self._max_eval, self._vtr = max_eval, vtr
        self._began = time.time()
        self.result: Result | None = None
        self.report_progress: Callable[[], None] = lambda: None

    @property
    def elapsed(self) -> float:
        """Seconds of the search, including the runs that it continues."""
        return self.seconds + time.time() - self._began

    def values(self, X: Array) -> Array:
        """Simulate members, as many as are allowed."""
        n_allowed = int(min(len(X), max(self._max_eval - self.simulations, 0)))
        block = self._simulate(X[:n_allowed])
        for x, f in zip(X, block.values, strict=False):
            self.simulations += 1
            self._enter(x, f, None)
        self.failures += block.failures
        self.report_progress()
        self.check()
        if len(block.values) < len(X):  # one of the limits was met at this very block
            raise SearchStopped(STOPS[Status.MAX_TIME] if len(block.values) < n_allowed else OUT_OF_SIMULATIONS)
        return np.array(block.values)

    def improve(self, start: Member, climbs: Sequence[LocalSearchPath]) -> LocalSearchOutcome | None:
        """Search locally."""
        paths = [climb.path for climb in climbs]
        (outcome,) = self._call_workers(search_locally, (start.x, paths, self.best_f, self._seed))
        if isinstance(outcome, InputError):
            raise outcome
        if not isinstance(outcome, LocalSearchResult):
            cause, message = lost_task_status(outcome)
            self.searches.append(LocalSearch(start.f, np.inf, {}, 0, ERROR, message, self.elapsed))
            self.failures.update([cause])
            self.check()
            return None
        n_simulations = sum(outcome.evaluations.values())
        self.simulations += n_simulations
        self.sweeps += outcome.evaluations["jacobians"]
        self.failures.update(outcome.result.failures)
        end = outcome.path[-1]
        values = dict(zip(self._work.problem.names, self._work.natural(end).tolist(), strict=True))
        status = "joined" if outcome.joined else outcome.result.status.value
        self.searches.append(
            LocalSearch(start.f, outcome.f, values, n_simulations, status, outcome.result.message, self.elapsed)
        )
        self._enter(end, outcome.f, outcome.result)
        self.report_progress()
        self.check()
        return LocalSearchOutcome(outcome.path, outcome.f)

    def _simulate(self, X: Array) -> SimulatedBlock:
        """Simulate members at the rows of X (k, n); fewer values than rows if the time is over."""
        workers, size = self._session.run.workers, _ON_EXECUTORS
        if isinstance(workers, int):
            size = max(1, -(-len(X) // (_CHUNKS_PER_WORKER * workers)))
        pieces = [X[i : i + size] for i in range(0, len(X), size)]
        answers = zip(self._call_workers(simulate_block, *((piece,) for piece in pieces)), pieces, strict=True)
        return _join_blocks(
            pieces, (a if isinstance(a, SimulatedBlock) else self._simulate_one_by_one(x) for a, x in answers)
        )

    def _simulate_one_by_one(self, X: Array) -> SimulatedBlock:
        """Repeat a task that ended its workers member by member, so that only the cause is lost."""
        pieces = [x[None] for x in X]
        answers = (self._call_workers(simulate_block, (piece,))[0] for piece in pieces)
        return _join_blocks(
            pieces,
            (a if isinstance(a, SimulatedBlock) else SimulatedBlock((np.inf,), Counter({a.cause: 1})) for a in answers),
        )

    def _call_workers(self, function: Callable[..., Any], *calls: tuple[Any, ...]) -> list[Any]:
        """Return ``function(job, *arguments, deadline)`` for each call; `LostTask` for one that ended every worker."""
        answers = self._session.collect_answers(
            function, ((self._job, *call, self._session.run.deadline) for call in calls)
        )
        for answer in answers:
            if (
                isinstance(answer, LostTask) and answer.cause == "not_run"
            ):  # values that nobody computes are not infinite
                raise SearchStopped(answer.message)
        return answers

    def _enter(self, x: Array, f: float, result: Result | None) -> None:
        if f < self.best_f:
            self.best_x, self.best_f, self.result = np.array(x), float(f), result
            self.moments.append(BestSoFar(self.simulations, self.elapsed, self.best_f))

    def check(self) -> None:
        """Raise `SearchStopped` where a limit is met, `StopRequested` after a signal."""
        check_interrupt()
        if self.best_f <= self._vtr:
            raise SearchStopped("The target objective was reached.")
        if self.simulations >= self._max_eval:
            raise SearchStopped(OUT_OF_SIMULATIONS)
        if time.time() >= self._session.run.deadline:
            raise SearchStopped(STOPS[Status.MAX_TIME])

    def record(self) -> dict[str, Any]:
        """Return the record of the log for a checkpoint, without its result."""
        return to_jsonable(self) | {"seconds": self.elapsed}

    def restore(self, record: Mapping[str, Any], result: Result | None) -> None:
        """Take over what an earlier run has entered."""
        moments = [{"objective": entry.get("chi2"), **entry} for entry in record["moments"]]  # as called before
        saved_log: LogRecord = rebuild_value(LogRecord, {**record, "moments": moments})
        for f in fields(LogRecord):
            setattr(self, f.name, getattr(saved_log, f.name))
        self.result = result


def _join_blocks(pieces: Sequence[Array], answers: Iterable[SimulatedBlock]) -> SimulatedBlock:
    """Join the answers to pieces, up to and including the first incomplete one."""
    values: list[float] = []
    failures: Counter[str] = Counter()
    for piece, answer in zip(pieces, answers, strict=False):
        values += answer.values
        failures += answer.failures
        if len(answer.values) < len(piece):
            break
    return SimulatedBlock(tuple(values), failures)
