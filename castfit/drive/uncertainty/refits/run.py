"""The run of many fits to other data: each begins at the estimate, with its whole trajectory.

recipe, index --problem--> Posed --fit (here, processes, executor)--> Refit, one row each

What a fit costs besides its iterations is small: transcribing anew takes a twentieth of it.  What cost most, simulating
the estimate's trajectory to start from, is done once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from castfit._support.progress_line import duration
from castfit._support.process_pool import LOST, lost
from castfit.drive.uncertainty.refits.row import LOWER, Refit
from castfit.drive.run.checkpoint import Checkpoint
from castfit.drive.run.found import CUT_OFF, STOPS
from castfit.drive.run.jobs import task, thaw
from castfit.drive.run.loop import Told, carry_out
from castfit.drive.run.options import RunOptions
from castfit.fit.fit import at_trajectory, fit
from castfit.fit.methods import Solver, Transcription
from castfit.problem.compiled_problem import Posed
from castfit.result.result import Result
from castfit._support.status import InputError, Status

Values = Mapping[str, float]
Reads = Callable[[Result], Mapping[str, tuple[float, float]]]


class Recipe(Protocol):
    """How the data of a fit are made; pickled, and the same wherever it is called."""

    def problem(self, posed: Posed, index: int) -> Posed:
        """Return the problem with the data of this index."""
        ...


@dataclass(frozen=True)
class Plan:
    """What all fits of a run share.

    Attributes
    ----------
    posed : Posed
    transcription : Transcription
        With its states started at the estimate's trajectory, where it has states.
    solver : Solver
    recipe : Recipe
    starts : tuple of mappings
        Where each fit begins; the first is the estimate.
    reads : callable or None
        What else is read from a fit that succeeded.
    """

    posed: Posed
    transcription: Transcription
    solver: Solver
    recipe: Recipe
    starts: tuple[Values, ...]
    reads: Reads | None = None

    @classmethod
    def at(
        cls,
        result: Result,
        posed: Posed,
        transcription: Transcription,
        solver: Solver,
        recipe: Recipe,
        *others: Values,
        reads: Reads | None = None,
    ) -> Plan:
        """Begin at a result with its whole trajectory, and at other starts beside."""
        near = at_trajectory(posed, transcription, result.theta, result)
        return cls(posed, near, solver, recipe, (result.values, *others), reads)


@dataclass(frozen=True)
class Progress:
    """How far a run is, for callbacks.

    finished, total, failed : numbers of fits
    last : Refit that ended just now
    seconds, seconds_left : float
    """

    finished: int
    total: int
    failed: int
    last: Refit
    seconds: float
    seconds_left: float

    def sentence(self, what: str) -> str:
        """Return the state of things in one line."""
        failed = f", {self.failed} failed" if self.failed else ""
        left = f", about {duration(self.seconds_left)} left" if self.finished < self.total else ""
        return f"{self.finished} of {self.total} {what}{failed}; {self.seconds:.0f} s{left}"


@dataclass(frozen=True)
class Run:
    """What became of a run: its rows in order, and how it ended, in words."""

    rows: tuple[Refit, ...]
    message: str
    time: float


def carry(
    where: str,
    what: str,
    plan: Plan,
    blank: Sequence[Refit],
    run: RunOptions,
    header: Mapping[str, Any],
    first: Mapping[str, Any],
) -> Run:
    """Fit to all data.

    Parameters
    ----------
    where, what : str
        The function that the user called; what its fits are called, such as "data sets".
    plan : Plan
    blank : sequence of Refit
        A row for each fit, before it is run.
    run : RunOptions
    header, first : mapping
        What a checkpoint belongs to, and its first record.
    """
    job = run.freeze(where, "the problem with its transcription and solver", (plan,))
    rows = {row.index: row for row in blank}
    with run.opened(header) as file:
        restored = _resume(file, rows, first) if file is not None else 0

        def enter(i: int, outcome: Any) -> Told | None:
            row = rows[i] = _entered(rows[i], outcome)
            if file is not None and row.finished:
                file.append({"row": row})
            if row.status == Status.INTERRUPTED.value:
                raise KeyboardInterrupt
            if row.status == "not_run":
                return None
            done = [r for r in rows.values() if r.finished]
            seconds = time.time() - run.began
            left = seconds / max(len(done) - restored, 1) * (len(rows) - len(done))
            failed = sum(not r.success for r in done)
            now = Progress(len(done), len(rows), failed, row, seconds, left)
            last = f"{what} {row.name or row.index}: {row.status}, chi2 = {row.chi2:.6g}, {row.time:.2f} s"
            return Told(now, now.sentence(what), last, len(done), len(rows), timed=True)

        tasks = deque((i, (job, i, run.start_max_time, run.deadline)) for i, row in rows.items() if not row.finished)
        stopped = carry_out(run, _refit, tasks, enter, limit=run.start_max_time)
        ended = tuple(rows[row.index] for row in blank)
        finished = sum(row.finished for row in ended)
        by = run.stopped(stopped, finished < len(ended))
        count = f"All {len(ended)} {what} were fitted." if finished == len(ended) else ""
        gone = [f"{what} {r.name or r.index}: {r.message}" for r in ended if r.status in LOST]
        parts = (
            STOPS[by] if by else "",
            count or f"{finished} of {len(ended)} {what} were fitted.",
            *gone[:3],
            f"And {len(gone) - 3} more were lost." if len(gone) > 3 else "",
            file.trouble if file else "",
        )
        return Run(ended, " ".join(p for p in parts if p), run.seconds)


def _resume(file: Checkpoint, rows: dict[int, Refit], first: Mapping[str, Any]) -> int:
    """Take over what an earlier run has finished; return how many fits that are."""
    kept = read_rows(file.records)
    if not file.records:
        file.append(first)
    known = {i: row for i, row in kept.items() if i in rows and row.finished}
    rows.update(known)
    return len(known)


def read_rows(records: Sequence[Mapping[str, Any]]) -> dict[int, Refit]:
    """Return the rows that a checkpoint holds, by their index."""
    from castfit._support.json_codec import rebuilt

    found = (rebuilt(Refit, record["row"]) for record in records if "row" in record)
    return {row.index: row for row in found}


def _entered(row: Refit, outcome: Any) -> Refit:
    """Return the row with the outcome of its task."""
    if isinstance(outcome, InputError):
        raise outcome
    if isinstance(outcome, Refit):
        return replace(outcome, name=row.name)
    status, message = lost(outcome)
    return replace(row, status=status, message=message)


@task
def _refit(job: bytes | tuple[Plan], index: int, limit: float, deadline: float) -> Refit | None:
    """Fit to the data of an index from every start, wherever this is called; None if there is no time."""
    (plan,) = thaw(job)
    began = time.perf_counter()
    best: Refit | None = None
    reference = np.inf
    for k, start in enumerate(plan.starts):
        left = min(deadline - time.time(), limit - (time.perf_counter() - began))
        if left <= 0.0:
            if best is None or deadline <= time.time():
                return None if best is None else replace(best, status=CUT_OFF, message="The time of the run ended.")
            break
        try:
            posed = plan.recipe.problem(plan.posed, index)
            result = fit(
                posed, plan.transcription, plan.solver,
                start=start, second_start=k > 0, retry=False, max_time=left,
            )  # fmt: skip
        except Exception as error:  # whatever data may lead to, it costs this fit only
            return Refit(index=index, status="error", message=f"{type(error).__name__}: {error}")
        row = _read(plan, index, k, result, time.perf_counter() - began)
        if result.status is Status.INTERRUPTED:
            return row
        if result.status is Status.MAX_TIME and deadline <= time.time() + 1e-3:
            return replace(row, status=CUT_OFF, message="The time of the whole run ended.")
        if k == 0:
            reference = row.cost if row.success else np.inf
        if best is None or _rank(row) > _rank(best):
            best = row
    assert best is not None
    seconds = time.perf_counter() - began
    elsewhere = best.start > 0 and reference - best.cost > LOWER * max(1.0, abs(reference))
    return replace(best, time=seconds, elsewhere=bool(elsewhere))


def _rank(row: Refit) -> tuple[bool, float]:
    return row.success, -row.cost if np.isfinite(row.cost) else -np.inf


def _read(plan: Plan, index: int, start: int, result: Result, seconds: float) -> Refit:
    found: Mapping[str, tuple[float, float]] = {}
    if plan.reads is not None and result.success:
        found = plan.reads(result)
    return Refit(
        index=index,
        status=result.status.value,
        message=result.message,
        theta=result.theta,
        cost=result.cost,
        chi2=result.chi2,
        sigmas=dict(result.sigmas),
        found=found,
        start=start,
        iterations=result.iterations,
        time=seconds,
    )
