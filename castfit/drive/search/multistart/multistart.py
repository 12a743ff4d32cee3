"""Multistart: fits from many starts, in parallel if wanted, and what they say together.

starts --draw--> tasks --run (here, processes, executor)--> one row each --> optima, outlook, best result
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.arguments import is_count, is_one_of, option_mistakes, read_sequence, shorten_repr, within_reason
from castfit._support.renamed import accept_old_names
from castfit._support.status import InputError, Status, raise_if_mistakes
from castfit._support.time_limit import guarded
from castfit.drive.run.checkpoint import Checkpoint, describe_method, read_seed, run_header
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.loop import ProgressReport, call_with_time_limit, run_tasks
from castfit.drive.run.optima import ObjectiveMeasure, group_optima
from castfit.drive.run.options import RunOptions, require_problem
from castfit.drive.run.run_result import FitAnswer, termination_message
from castfit.drive.search.multistart.result import (
    CheckpointState,
    MultistartProgress,
    MultistartResult,
    StartPlan,
    StartRow,
)
from castfit.drive.search.multistart.sampling import DrawnStarts, draw, screen_draws
from castfit.fit.choice import choose
from castfit.fit.fit import fit
from castfit.fit.methods import Solver, Transcription, parts_from
from castfit.fit.start.decomposition.blocks import decomposition_mistakes
from castfit.fit.start.decomposition.search import Decomposed
from castfit.fit.start.soft_start import SoftStart
from castfit.problem.problem import Posable
from castfit.result.result import Result


@accept_old_names(start_max_time="fit_max_time")
@guarded
def multistart(
    problem: Posable,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    *,
    starts: int | Sequence[Mapping[str, float]] = 100,
    rng: int | np.random.Generator = 0,
    sampling: str | Callable[[np.random.Generator], Mapping[str, float]] | None = None,
    limits: Mapping[str, Any] | None = None,
    start_strategy: str | None = None,
    screen: int = 1,
    max_draws: int | None = None,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    fit_max_time: float = np.inf,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[MultistartProgress], Any] | None = None,
    verbose: int | None = None,
) -> MultistartResult:
    """Fit from many starts.

    The numbers do not depend on `workers`: each start has a random stream of its own, and the rows of the result stand
    in the order of the starts.

    Parameters
    ----------
    problem : Problem or Posed
    transcription, solver : optional
        As for `fit`.
    starts : int or sequence of mappings
        How many, or the starts themselves, ``{name: value}``; what is not named starts at its guess.
    rng : int or numpy.random.Generator
    sampling : {"sobol", "latin_hypercube", "uniform", "log_uniform"} or callable, optional
        How starts are drawn.  A scrambled Sobol sequence (the default) and a Latin hypercube fill the space between the
        limits evenly, "uniform" draws each start by itself, all three in the logarithm of quantities with
        ``scale="log"``; "log_uniform" draws the logarithm of every quantity.  A function takes a random generator and
        returns ``{name: value}``.  For 2 n starts, Sobol's sequence and "uniform" begin with those for n.
    limits : mapping from quantity name, optional
        Where starts are drawn: (lower, upper), or a distribution with ``cdf`` and ``ppf`` as in scipy.stats, which is
        cut off at the quantity's bounds.  By default as its ``Parameter(starts=...)`` says, else between the bounds;
        where one is missing, up to a factor of a thousand from the guess of what is on logarithmic scale, else ten
        times the guess to that side, and `message` says so.
    start_strategy : {"decomposed", "soft"}, optional
        What improves a drawn start before the fit: "decomposed" first estimates the equations that share no parameter
        apart from each other (see `Decomposed`), each from this start and many others; "soft" lets constant states
        and parameters find each other while equations harden (see `SoftStart`).
    screen : int
        Of how many draws the best is taken as a start, as simulations of low accuracy tell: a few milliseconds each,
        and often the difference between a poor valley and a good one where parameters are known to decades.
    max_draws : int, optional
        A start that cannot be evaluated is drawn anew until this many were drawn, by default 10; 1 leaves it a
        failure.
    workers : int or concurrent.futures.Executor
        1 runs in this process, n in n processes; a script then needs ``if __name__ == "__main__":``.  Executors reach
        other machines: ``dask.distributed.Client(...).get_executor()``, ``mpi4py.futures.MPIPoolExecutor()``.
    max_time : float
        Seconds for all starts; those that are running then are cut off, the others are not run.
    fit_max_time : float
        Seconds for one start.  Processes and executors that give no answer long after it are taken to hang; processes
        are then ended and replaced.  Within one process (workers=1) nothing can end a start between two iterations,
        and a cluster of which nothing was heard yet is waited for until `max_time`.
    checkpoint : str or Path, optional
        A file to which every finished start is written at once.
    resume : bool
        Whether to continue the checkpoint if it exists: what is finished is not repeated, and starts that were lost
        or cut off are run again.  The number of starts may have grown.
    callback : callable, optional
        Called in this process with a `MultistartProgress` after each start, and every two seconds; no more
        are run when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the run (live on a terminal), one line per start.  By default a line on a terminal or in a
        notebook, from two seconds on until the end.

    Returns
    -------
    MultistartResult
        Also if starts, or all of them, failed: then ``success`` is False, or a row says what happened.

    Raises
    ------
    InputError
        For misuse: options out of range, infinite limits, what cannot be sent to other processes, a checkpoint
        that exists and is not to be continued, or that belongs to another problem.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.multistart(problem, starts=3, limits={"k1": (0, 1e-4), "k2": (0, 1e-3)}, rng=0)
    >>> found.success, len(found.starts)
    (True, 3)
    """
    run = RunOptions(
        workers=workers, max_time=max_time, fit_max_time=fit_max_time, callback=callback,
        verbose=verbose, checkpoint=checkpoint, resume=resume,
    )  # fmt: skip
    mistakes: list[str] = []
    chosen_transcription, chosen_solver = parts_from(transcription, solver, mistakes)
    mistakes += option_mistakes(
        ("max_draws", max_draws, max_draws is None or is_count(max_draws, 1), "give at least 1"),
        within_reason("screen", screen, 1000),
    )
    mistakes += run.file_mistakes() + run.mistakes()
    require_problem("multistart", problem, mistakes)
    if start_strategy is not None:
        strategy_message = f"start_strategy is {shorten_repr(start_strategy)}; expected 'decomposed', 'soft' or None"
        if is_one_of(start_strategy, "decomposed"):
            mistakes += decomposition_mistakes(problem.posed)
        elif not is_one_of(start_strategy, "soft"):
            mistakes.append(strategy_message)
    deadline = np.inf if mistakes else run.with_plain_numbers().deadline
    draws = draw(problem, starts, sampling, limits, rng, mistakes, deadline)
    if read_sequence(starts) is not None:
        options_set = {"screen": is_count(screen, 2), "max_draws": max_draws is not None}
        mistakes += [
            f"starts were passed, so no starting points are sampled; remove {n}="
            for n, is_set in options_set.items()
            if is_set
        ]
    raise_if_mistakes("multistart", mistakes)
    draw_limit = 10 if max_draws is None else int(max_draws)
    if transcription is None:
        chosen_transcription = choose(problem.posed, problem.posed.guess, straight=False, bound=True).transcription
    draws = screen_draws(problem, draws, int(screen), deadline)
    run = run.with_plain_numbers()
    job = run.pickle_job(
        "multistart", "problem, transcription and solver", (problem, chosen_transcription, chosen_solver)
    )
    header = run_header(
        "multistart",
        problem,
        chosen_transcription,
        chosen_solver,
        fit_max_time=run.fit_max_time,
        max_draws=draw_limit,
        seed=read_seed(rng),
        sampling=sampling if isinstance(sampling, str) else describe_method(sampling),
        start_strategy=start_strategy,
        **({"screen": int(screen)} if screen > 1 else {}),
    )
    log = StartLog(draws, draw_limit, run.began, problem)
    labels = {"transcription": chosen_transcription.label, "solver": chosen_solver.label}
    with run.open_checkpoint(header) as file:
        if file is not None:
            log.resume(file, labels)

        def task(i: int, start: Mapping[str, float]) -> tuple[int, tuple[Any, ...]]:
            origin = {None: start, "decomposed": Decomposed(start, draws.seeds[i]), "soft": SoftStart(start)}
            return i, (job, origin[start_strategy], run.fit_max_time, run.deadline)

        def enter(i: int, outcome: Any) -> ProgressReport | None:
            new_start = log.enter(i, outcome)
            if new_start is not None:
                tasks.appendleft(task(i, new_start))
                return None
            row = log.rows[i]
            if file is not None and row.finished:
                file.append({"row": row, **({"result": log.best} if log.best_row is row else {})})
            if row.status in ("not_run", Status.INTERRUPTED.value):
                return None
            progress = log.progress(row)
            return ProgressReport(
                progress, progress.sentence, row.sentence, progress.finished, progress.total, timed=True
            )

        tasks = deque(task(i, row.start) for i, row in log.rows.items() if not row.finished)
        stop_status = run_tasks(run, _attempt, tasks, enter, limit=run.fit_max_time, progress=log.current_progress)
        result = MultistartResult.from_rows(
            log.best,
            log.rows.values(),
            merit=ObjectiveMeasure.from_problem(problem),
            drawn=draws.initial_starts,
            message=log.message(run, stop_status, file.trouble if file else ""),
            time=run.seconds,
            header=header,
            **labels,
        )
        if file is not None:
            file.append({"end": {"message": result.message, "time": result.time}})
    return result


class StartLog:
    """The rows of a run that is under way, one for each start, also before it ended."""

    def __init__(self, draws: DrawnStarts, max_draws: int, clock: float, problem: Posable) -> None:
        self.rows = {i: StartRow(i, start) for i, start in enumerate(draws.initial_starts)}
        self.best: Result | None = None
        self.best_row: StartRow | None = None
        self.last_row: StartRow | None = None
        self._draws, self._max_draws, self._clock = draws, max_draws, clock
        self._problem, self._merit = problem, ObjectiveMeasure.from_problem(problem)
        self._restored = 0

    def enter(self, i: int, outcome: Any) -> Mapping[str, float] | None:
        """Enter an outcome; return another start if this one cannot be evaluated."""
        row = self.rows[i].with_draw(outcome)
        failed = row.status == Status.START_FAILED.value
        if failed and row.draws < self._max_draws and self._draws.redraw is not None:
            new_start = self._draws.redraw(i)
            self.rows[i] = StartRow(
                i, new_start, draws=row.draws, evaluations=row.evaluations, failures=row.failures, time=row.time
            )
            return new_start
        self.rows[i] = row
        if isinstance(outcome, FitAnswer) and (self.best_row is None or row.rank < self.best_row.rank):
            self.best_row, self.best = row, outcome.result.with_known_problem(self._problem)
        return None

    def resume(self, file: Checkpoint, labels: Mapping[str, str]) -> None:
        """Take over the records of a checkpoint, and write down starts that are new to it."""
        with file.intact():
            checkpoint_state = CheckpointState.from_records(file.records, self._merit)
        initial_starts = self._draws.initial_starts
        saved_starts = () if checkpoint_state.plan is None else checkpoint_state.plan.starts_by_name
        if saved_starts != initial_starts[: len(saved_starts)]:
            saved_text = f"'{file.path}' has {len(saved_starts)} starts"
            advice = "starts= is smaller; pass at least as many"
            if len(saved_starts) <= len(initial_starts):
                advice = (
                    "this run draws other starting points; pass the same limits= (a Latin hypercube cannot be extended)"
                )
            raise InputError("checkpoint", [f"{saved_text}; {advice}"])
        if (
            checkpoint_state.plan is None
            or checkpoint_state.plan.merit is None
            or len(initial_starts) > len(saved_starts)
        ):
            file.append({"plan": StartPlan.from_starts(initial_starts, self._merit, **labels)})
        finished_rows = {i: row for i, row in checkpoint_state.rows.items() if row.finished}
        best = min(finished_rows.values(), key=lambda row: row.rank, default=None)
        if best is None:
            return
        if checkpoint_state.best is not None and min(checkpoint_state.rows.values(), key=lambda row: row.rank) is best:
            self.best_row, self.best = best, checkpoint_state.best.with_problem(self._problem)
        else:  # the best point of a saved run was that of a start that was cut off
            del finished_rows[best.index]
        self.rows |= finished_rows
        self._restored = len(finished_rows)

    def current_progress(self) -> MultistartProgress:
        """Build a progress report while starts are running."""
        rows = self.rows.values()
        return self.progress(self.last_row or next((row for row in rows if not row.finished), next(iter(rows))))

    def progress(self, last_row: StartRow) -> MultistartProgress:
        """Build the progress report of the run."""
        self.last_row = last_row
        rows = [row for row in self.rows.values() if row.status != "not_run"]
        found_optima = group_optima(
            {row.index: (row.objective, row.values) for row in rows if row.success}, self._merit
        )
        finished, total, seconds = len(rows), len(self._draws.initial_starts), time.time() - self._clock
        return MultistartProgress(
            finished=finished,
            total=total,
            last_row=last_row,
            best=self.best_row or last_row,
            n_found=len(found_optima[0].starts) if found_optima else 0,
            failed=sum(not row.success for row in rows),
            seconds=seconds,
            seconds_left=seconds / max(finished - self._restored, 1) * (total - finished),
        )

    def message(self, run: RunOptions, stop_status: Status | None, trouble: str) -> str:
        """Build the final message of the run, with the names of lost starts and any trouble with the checkpoint."""
        rows, n_wanted = list(self.rows.values()), self._draws.n_requested
        finished = sum(row.finished for row in rows)
        note = f"Only {len(rows)} of {n_wanted} starting points were sampled." if len(rows) < n_wanted else ""
        return termination_message(
            run.find_stop_reason(stop_status, finished < len(rows)),
            rows,
            finished,
            "starts",
            note,
            self._draws.note,
            trouble,
        )


_Parts = tuple[Posable, Any, Any]


@task
def _attempt(
    job: bytes | _Parts, start: Mapping[str, float] | Decomposed | SoftStart, limit: float, deadline: float
) -> FitAnswer | None:
    """Fit from one start.  Return None if the time is over."""
    problem, transcription, solver = unpickle_job(job)
    return call_with_time_limit(
        lambda seconds_left: fit(problem, transcription, solver, start=start, retry=False, max_time=seconds_left),
        limit,
        deadline,
    )
