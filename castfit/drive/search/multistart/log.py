"""The rows of a multistart that is under way: what its starts took, what they found, what is the best so far."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from castfit._support.status import InputError, Status
from castfit.drive.run.checkpoint import Checkpoint
from castfit.drive.run.optima import Merit, optima
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import Answer, ending
from castfit.drive.search.multistart.result import CheckpointState, MultistartProgress, StartPlan, StartRow
from castfit.drive.search.multistart.sampling import DrawnStarts
from castfit.problem.problem import Posable
from castfit.result.result import Result


class StartLog:
    """The rows of a run that is under way, one for each start, also before it ended."""

    def __init__(self, draws: DrawnStarts, max_draws: int, clock: float, problem: Posable) -> None:
        self.rows = {i: StartRow(i, start) for i, start in enumerate(draws.first)}
        self.best: Result | None = None
        self.best_row: StartRow | None = None
        self._draws, self._max_draws, self._clock = draws, max_draws, clock
        self._problem, self._merit = problem, Merit.of(problem)
        self._restored = 0

    def enter(self, i: int, outcome: Any) -> Mapping[str, float] | None:
        """Enter an outcome; return another start if this one cannot be evaluated."""
        row = self.rows[i].drawn(outcome, self._merit)
        failed = row.status == Status.START_FAILED.value
        if failed and row.draws < self._max_draws and self._draws.again is not None:
            again = self._draws.again(i)
            self.rows[i] = StartRow(
                i, again, draws=row.draws, evaluations=row.evaluations, failures=row.failures, time=row.time
            )
            return again
        self.rows[i] = row
        if isinstance(outcome, Answer) and (self.best_row is None or row.rank < self.best_row.rank):
            self.best_row, self.best = row, outcome.result.answering(self._problem)
        return None

    def resume(self, file: Checkpoint, labels: Mapping[str, str]) -> None:
        """Take over the records of a checkpoint, and write down starts that are new to it."""
        kept = CheckpointState.of(file.records)
        drawn = self._draws.first
        before = () if kept.plan is None else kept.plan.drawn
        if before != drawn[: len(before)]:
            had = f"'{file.path}' has {len(before)} starts"
            how = "fewer were asked for; give at least as many"
            if len(before) <= len(drawn):
                how = "others were drawn now; continue it with the same starts (a Latin hypercube cannot grow)"
            raise InputError("checkpoint", [f"{had}; {how}"])
        if kept.plan is None or len(drawn) > len(before):
            file.append({"plan": StartPlan.of(drawn, self._merit.floor, **labels)})
        self._restore(kept)

    def _restore(self, kept: CheckpointState) -> None:
        """Take over what an earlier run has finished."""
        done = {i: row for i, row in kept.rows.items() if row.finished}
        best = min(done.values(), key=lambda row: row.rank, default=None)
        if best is None:
            return
        if kept.best is not None and min(kept.rows.values(), key=lambda row: row.rank) is best:
            self.best_row, self.best = best, kept.best.with_problem(self._problem)
        else:  # the best point of a saved run was that of a start that was cut off
            del done[best.index]
        self.rows |= done
        self._restored = len(done)

    def progress(self, last: StartRow) -> MultistartProgress:
        """Say how far the run is."""
        rows = [row for row in self.rows.values() if row.status != "not_run"]
        found = optima({row.index: (row.chi2, row.values) for row in rows if row.success}, floor=self._merit.floor)
        finished, total, seconds = len(rows), len(self._draws.first), time.time() - self._clock
        return MultistartProgress(
            finished=finished,
            total=total,
            last=last,
            best=self.best_row or last,
            found=len(found[0].starts) if found else 0,
            failed=sum(not row.success for row in rows),
            seconds=seconds,
            seconds_left=seconds / max(finished - self._restored, 1) * (total - finished),
        )

    def message(self, run: RunOptions, by: Status | None, trouble: str) -> str:
        """Say how the run ended, naming every start that was lost, and any trouble with the checkpoint."""
        rows, wanted = list(self.rows.values()), self._draws.wanted
        finished = sum(row.finished for row in rows)
        short = f"The time sufficed to draw {len(rows)} of {wanted} starts." if len(rows) < wanted else ""
        return ending(run.stopped(by, finished < len(rows)), rows, finished, "starts", short, trouble)
