"""The book of a scatter search: what was simulated and found, in order; it says when enough is enough."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from castfit._support.arrays import Array
from castfit._support.json_codec import plain, rebuilt
from castfit._support.process_pool import ERROR, lost
from castfit.drive.run.found import STOPS
from castfit.drive.search.scatter.method.basins import Climb
from castfit.drive.search.scatter.method.members import Member
from castfit.drive.search.scatter.method.search import Ascent
from castfit.drive.search.scatter.result import LocalSearch, Moment
from castfit.drive.search.scatter.staff import Halt, Staff
from castfit.drive.search.scatter.tasks import Searched, Work, search_locally
from castfit.result.result import Result
from castfit._support.status import InputError, Status

OUT_OF_SIMULATIONS = "The limit of simulations was reached."


@dataclass(frozen=True)
class Limits:
    """When to stop: number of simulations, end of the time as `time.time` gives it, value to reach."""

    max_eval: float
    deadline: float
    vtr: float


@dataclass
class Ledger:
    """What a checkpoint keeps of a book, its result apart.

    Attributes
    ----------
    moments : list of Moment
        The best value against simulations and time, entered whenever it fell.
    searches : list of LocalSearch
    simulations, sweeps : int
        Simulations in all, and how many of them were sensitivity sweeps.
    failures : Counter
    best_x, best_f
        The best point of the cube and its value.
    seconds : float
        Time of the search up to the last record.
    """

    moments: list[Moment] = field(default_factory=list[Moment])
    searches: list[LocalSearch] = field(default_factory=list[LocalSearch])
    simulations: int = 0
    sweeps: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    best_x: Array | None = None
    best_f: float = np.inf
    seconds: float = 0.0


class Book(Ledger):
    """An objective that enters everything; see `castfit.drive.scatter.method.search.Objective`.

    Attributes
    ----------
    result : Result or None
        Of the local search that ended at the best point; None if it was not found by one.
    told : callable
        Called after every task.
    """

    def __init__(self, staff: Staff, work: Work, limits: Limits, seed: int) -> None:
        super().__init__()
        self._staff, self._work, self._limits, self._seed = staff, work, limits, seed
        self._began = time.time()
        self.result: Result | None = None
        self.told: Callable[[], None] = lambda: None

    @property
    def elapsed(self) -> float:
        """Seconds of the search, those of the run which it continues included."""
        return self.seconds + time.time() - self._began

    def values(self, X: Array) -> Array:
        """Simulate members, as many as are allowed."""
        room = int(min(len(X), max(self._limits.max_eval - self.simulations, 0)))
        found = self._staff.simulate(X[:room])
        for x, f in zip(X, found.values, strict=False):
            self.simulations += 1
            self._enter(x, f, None)
        self.failures += found.failures
        self.told()
        self.check()
        if len(found.values) < len(X):  # one of the limits was met at this very block
            raise Halt(STOPS[Status.MAX_TIME] if len(found.values) < room else OUT_OF_SIMULATIONS)
        return np.array(found.values)

    def improve(self, start: Member, climbs: Sequence[Climb]) -> Ascent | None:
        """Search locally."""
        paths = [climb.path for climb in climbs]
        found = self._staff.call(search_locally, start.x, paths, self.best_f, self._seed)
        if isinstance(found, InputError):
            raise found
        if not isinstance(found, Searched):
            cause, message = lost(found)
            self.searches.append(LocalSearch(start.f, np.inf, {}, 0, ERROR, message, self.elapsed))
            self.failures.update([cause])
            self.check()
            return None
        spent = sum(found.evaluations.values())
        self.simulations += spent
        self.sweeps += found.evaluations["jacobians"]
        self.failures += found.failures
        end = found.path[-1]
        values = dict(zip(self._work.problem.names, self._work.natural(end).tolist(), strict=True))
        status = "joined" if found.joined else found.result.status.value
        self.searches.append(LocalSearch(start.f, found.f, values, spent, status, found.result.message, self.elapsed))
        self._enter(end, found.f, found.result)
        self.told()
        if found.result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        self.check()
        return Ascent(found.path, found.f)

    def _enter(self, x: Array, f: float, result: Result | None) -> None:
        if f < self.best_f:
            self.best_x, self.best_f, self.result = np.array(x), float(f), result
            self.moments.append(Moment(self.simulations, self.elapsed, self.best_f))

    def check(self) -> None:
        """Raise `Halt` where a limit is met."""
        if self.best_f <= self._limits.vtr:
            raise Halt("The value to reach was reached.")
        if self.simulations >= self._limits.max_eval:
            raise Halt(OUT_OF_SIMULATIONS)
        if time.time() >= self._limits.deadline:
            raise Halt(STOPS[Status.MAX_TIME])

    def record(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the book, its result apart."""
        return plain(self) | {"seconds": self.elapsed}

    def restore(self, record: Mapping[str, Any], result: Result | None) -> None:
        """Take over what an earlier run has entered."""
        kept: Ledger = rebuilt(Ledger, record)
        for f in fields(Ledger):
            setattr(self, f.name, getattr(kept, f.name))
        self.result = result
