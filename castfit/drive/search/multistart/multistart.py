"""Multistart: fits from many starts, in parallel if wanted, and what they say together.

starts --draw--> tasks --run (here, processes, executor)--> one row each --> optima, outlook, best result
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.arguments import is_count, is_one_of, option_mistakes, text
from castfit._support.renamed import renamed
from castfit._support.status import Status, check
from castfit.drive.run.checkpoint import described, run_header, seed_of
from castfit.drive.run.jobs import task, thaw
from castfit.drive.run.loop import ProgressReport, carry_out, in_time
from castfit.drive.run.optima import Merit
from castfit.drive.run.options import RunOptions, require_problem
from castfit.drive.run.run_result import Answer
from castfit.drive.search.multistart.log import StartLog
from castfit.drive.search.multistart.result import MultistartProgress, MultistartResult
from castfit.drive.search.multistart.sampling import draw, screened
from castfit.fit.fit import fit
from castfit.fit.methods import Solver, Transcription, parts_from
from castfit.fit.start.decomposition.blocks import decomposition_mistakes
from castfit.fit.start.decomposition.search import Decomposed
from castfit.fit.start.soft_start import SoftStart
from castfit.problem.problem import Posable


@renamed(start_max_time="fit_max_time")
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
    max_draws: int = 10,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    fit_max_time: float = np.inf,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[MultistartProgress], Any] | None = None,
    verbose: int = 0,
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
        cut off at the quantity's bounds.  By default as its ``Parameter(starts=...)`` says, else between the bounds,
        which must then be finite.
    start_strategy : {"decomposed", "soft"}, optional
        What improves a drawn start before the fit: "decomposed" first estimates the equations that share no parameter
        apart from each other (see `Decomposed`), each from this start and many others; "soft" lets constant states
        and parameters find each other while equations harden (see `SoftStart`).
    screen : int
        Of how many draws the best is taken as a start, as simulations of low accuracy tell: a few milliseconds each,
        and often the difference between a poor valley and a good one where parameters are known to decades.
    max_draws : int
        A start that cannot be evaluated is drawn anew until this many were drawn; 1 leaves it a failure.
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
        Called in this process with a `MultistartProgress` after each start; no more are run when it returns True.
    verbose : {0, 1, 2}
        Nothing, the state of the run (live on a terminal), one line per start.

    Returns
    -------
    MultistartResult
        Also if starts, or all of them, failed: then ``success`` is False, or a row says what happened.

    Raises
    ------
    InputError
        For misuse: options out of range, limits that are infinite, what cannot be sent to other processes, a checkpoint
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
    asked, chosen = parts_from(transcription, solver, mistakes)
    mistakes += option_mistakes(
        ("max_draws", max_draws, is_count(max_draws, 1), "give at least 1"),
        ("screen", screen, is_count(screen, 1), "give at least 1"),
    )
    mistakes += run.file_mistakes() + run.mistakes()
    require_problem("multistart", problem, mistakes)
    if start_strategy is not None:
        unknown = f"start_strategy is {text(start_strategy)}; give 'decomposed', 'soft' or None"
        if is_one_of(start_strategy, "decomposed"):
            mistakes += decomposition_mistakes(problem.posed)
        elif not is_one_of(start_strategy, "soft"):
            mistakes.append(unknown)
    deadline = np.inf if mistakes else run.cleaned().deadline
    draws = draw(problem, starts, sampling, limits, rng, mistakes, deadline)
    if is_count(screen, 2) and draws.again is None:
        mistakes.append("the starts are given, so none is the best of several draws; leave out screen=")
    check("multistart", mistakes)
    draws = screened(problem, draws, int(screen), deadline)
    run = run.cleaned()
    job = run.freeze("multistart", "problem, transcription and solver", (problem, asked, chosen))
    header = run_header(
        "multistart",
        problem,
        asked,
        chosen,
        fit_max_time=run.fit_max_time,
        max_draws=int(max_draws),
        seed=seed_of(rng),
        sampling=sampling if isinstance(sampling, str) else described(sampling),
        start_strategy=start_strategy,
        **({"screen": int(screen)} if screen > 1 else {}),
    )
    log = StartLog(draws, max_draws, run.began, problem)
    labels = {"transcription": asked.label, "solver": chosen.label}
    with run.opened(header) as file:
        if file is not None:
            log.resume(file, labels)

        def task(i: int, start: Mapping[str, float]) -> tuple[int, tuple[Any, ...]]:
            origin = {None: start, "decomposed": Decomposed(start, draws.seeds[i]), "soft": SoftStart(start)}
            return i, (job, origin[start_strategy], run.fit_max_time, run.deadline)

        def enter(i: int, outcome: Any) -> ProgressReport | None:
            another = log.enter(i, outcome)
            if another is not None:
                tasks.appendleft(task(i, another))
                return None
            row = log.rows[i]
            if file is not None and row.finished:
                file.append({"row": row, **({"result": log.best} if log.best_row is row else {})})
            if row.status == Status.INTERRUPTED.value:
                raise KeyboardInterrupt
            if row.status == "not_run":
                return None
            now = log.progress(row)
            return ProgressReport(now, now.sentence, row.sentence, now.finished, now.total, timed=True)

        tasks = deque(task(i, row.start) for i, row in log.rows.items() if not row.finished)
        stopped = carry_out(run, _attempt, tasks, enter, limit=run.fit_max_time)
        result = MultistartResult.of(
            log.best,
            log.rows.values(),
            floor=Merit.of(problem).floor,
            drawn=draws.first,
            message=log.message(run, stopped, file.trouble if file else ""),
            time=run.seconds,
            header=header,
            **labels,
        )
        if file is not None:
            file.append({"end": {"message": result.message, "time": result.time}})
    return result


_Parts = tuple[Posable, Any, Any]


@task
def _attempt(
    job: bytes | _Parts, start: Mapping[str, float] | Decomposed | SoftStart, limit: float, deadline: float
) -> Answer | None:
    """Fit from one start, wherever this is called; None if there is no time."""
    problem, transcription, solver = thaw(job)
    return in_time(
        lambda left: fit(problem, transcription, solver, start=start, retry=False, max_time=left), limit, deadline
    )
