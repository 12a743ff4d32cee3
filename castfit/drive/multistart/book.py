"""The rows of a multistart that is under way: what its starts took, what they found, what is the best so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from castfit.drive.multistart.result import (
    CUT_OFF,
    UNFINISHED,
    Kept,
    Plan,
    Progress,
    Start,
    not_run,
)
from castfit.drive.multistart.sampling import Draws
from castfit.drive.optima import Merit, optima
from castfit.drive.run.checkpoint import Checkpoint
from castfit.drive.run.found import ending
from castfit.drive.run.pool import ERROR, lost
from castfit.problem import Posable
from castfit.result import Result
from castfit.status import InputError, Status

LOST = ("worker_died", "worker_hung", ERROR)
"""Statuses of tasks that ended without an answer, besides those that were not run."""


@dataclass(frozen=True)
class Fitted:
    """A fit from one start; `cut` if the time of the whole run ended it."""

    result: Result
    cut: bool


@dataclass
class _Tally:
    """What the draws of one start took."""

    draws: int = 0
    time: float = 0.0
    evaluations: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])

    def add(self, result: Result) -> None:
        self.draws += 1
        self.time += result.time
        self.evaluations.update(result.evaluations)
        self.failures.update(result.failures)


class Book:
    """The rows of a run that is under way."""

    def __init__(self, draws: Draws, max_draws: int, clock: float, problem: Posable) -> None:
        self.rows: dict[int, Start] = {}
        self.best: Result | None = None
        self.best_row: Start | None = None
        self._draws, self._max_draws, self._clock = draws, max_draws, clock
        self._problem, self._merit = problem, Merit.of(problem)
        self._start = dict(enumerate(draws.first))
        self._tallies: dict[int, _Tally] = {}
        self._restored = 0

    def enter(self, i: int, outcome: Any) -> Mapping[str, float] | None:
        """Enter an outcome; return another start if this one cannot be evaluated."""
        if isinstance(outcome, InputError):
            raise outcome
        tally = self._tallies.setdefault(i, _Tally())
        if not isinstance(outcome, Fitted):
            cause, message = lost(outcome)
            row = replace(not_run(self._start[i], i), status=cause, message=message)
            self.rows[i] = replace(row, draws=tally.draws + (cause != "not_run"), **_counts(tally))
            return None
        result = outcome.result
        tally.add(result)
        if result.status is Status.START_FAILED and tally.draws < self._max_draws and self._draws.again is not None:
            self._start[i] = self._draws.again(i)
            return self._start[i]
        row = Start(
            index=i,
            start=dict(self._start[i]),
            values=result.values,
            chi2=self._merit(result.cost, result.chi2),
            status=CUT_OFF if outcome.cut else result.status.value,
            message="The time of the whole run ended." if outcome.cut else result.message,
            gap=result.gaps,
            draws=tally.draws,
            iterations=result.iterations,
            **_counts(tally),
        )
        self.rows[i] = row
        if self.best_row is None or self.best is None or row.rank < self.best_row.rank:
            self.best_row, self.best = row, replace(result, problem=self._problem)
        return None

    def resume(self, file: Checkpoint, labels: Mapping[str, str]) -> None:
        """Take over the records of a checkpoint, and write down starts that are new to it."""
        kept = Kept.of(file.records)
        drawn = self._draws.first
        before = () if kept.plan is None else kept.plan.drawn
        if before != drawn[: len(before)]:
            had = f"'{file.path}' has {len(before)} starts"
            how = "fewer were asked for; give at least as many"
            if len(before) <= len(drawn):
                how = "others were drawn now; continue it with the same starts (a Latin hypercube cannot grow)"
            raise InputError("checkpoint", [f"{had}; {how}"])
        if kept.plan is None or len(drawn) > len(before):
            file.append({"plan": Plan.of(drawn, self._merit.floor, **labels)})
        self._restore(kept)

    def _restore(self, kept: Kept) -> None:
        """Take over what an earlier run has finished."""
        self.rows = {i: row for i, row in kept.rows.items() if row.status not in UNFINISHED}
        self.best_row = min(self.rows.values(), key=lambda row: row.rank, default=None)
        if self.best_row is None:
            return
        if kept.best is not None and min(kept.rows.values(), key=lambda row: row.rank) is self.best_row:
            self.best = kept.best.with_problem(self._problem)
        else:  # the best point of a saved run was that of a start that was cut off
            del self.rows[self.best_row.index]
            self.best_row = None
        self._restored = len(self.rows)

    def progress(self, last: Start) -> Progress:
        """Say how far the run is."""
        rows = [row for row in self.rows.values() if row.status != "not_run"]
        found = optima({row.index: (row.chi2, row.values) for row in rows if row.success}, floor=self._merit.floor)
        finished, total, seconds = len(rows), len(self._draws.first), time.time() - self._clock
        return Progress(
            finished=finished,
            total=total,
            last=last,
            best=self.best_row or last,
            found=len(found[0].starts) if found else 0,
            failed=sum(not row.success for row in rows),
            seconds=seconds,
            seconds_left=seconds / max(finished - self._restored, 1) * (total - finished),
        )

    def message(self, stopped: Status | None, *, late: bool, trouble: str) -> str:
        """Say how the run ended, naming every start that was lost, and any trouble with the checkpoint."""
        total, rows = len(self._draws.first), [row for _, row in sorted(self.rows.items())]
        finished = sum(row.status not in UNFINISHED for row in rows)
        if stopped is None and late and finished < total:
            stopped = Status.MAX_TIME
        unrun = (row.message for row in rows if row.status == "not_run")
        gone = [f"Start {row.index}: {row.message}" for row in rows if row.status in LOST]
        wanted = self._draws.wanted
        short = f"The time sufficed to draw {total} of {wanted} starts." if total < wanted else ""
        return ending(stopped, finished, total, "starts", unrun, *gone, short, trouble)


def _counts(tally: _Tally) -> dict[str, Any]:
    return {"evaluations": dict(tally.evaluations), "failures": dict(tally.failures), "time": tally.time}
