"""Comparison of methods from the same starts, by their results and times.

    starts x methods --run (here, processes, executor)--> one trial each --> categories --> one row per method

Methods take turns at every start, so that a run that is cut short has tried all of them alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np

from castfit._support.arguments import read_real, shorten_repr
from castfit._support.renamed import accept_old_names
from castfit._support.status import InputError, Status, raise_if_mistakes
from castfit._support.time_limit import guarded
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.loop import ProgressReport, call_with_time_limit, run_tasks
from castfit.drive.run.optima import ObjectiveMeasure
from castfit.drive.run.options import RunOptions, require_problem
from castfit.drive.run.run_result import FitAnswer, termination_message
from castfit.drive.search.compare.methods import Method, methods_from
from castfit.drive.search.compare.result import ComparisonResult, MethodRow, MethodTrial
from castfit.drive.search.multistart.sampling import draw
from castfit.problem.problem import Posable
from castfit.result.result import Result

_WARM_UP_TIME = 10.0  # seconds


@accept_old_names(start_max_time="fit_max_time")
@guarded
def compare(
    problem: Posable,
    methods: Sequence[str] | Mapping[str, Any],
    *,
    starts: int | Sequence[Mapping[str, float]] = 20,
    rng: int | np.random.Generator = 0,
    sampling: str | Callable[[np.random.Generator], Mapping[str, float]] | None = None,
    limits: Mapping[str, Any] | None = None,
    reference: float | None = None,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    fit_max_time: float = np.inf,
    callback: Callable[[MethodTrial], Any] | None = None,
    verbose: int | None = None,
) -> ComparisonResult:
    """Run several methods from the same starts, and count the optima that they find.

    Counts do not depend on `workers`, except for trials that a time limit ends.  Times are seconds on the wall clock;
    they are comparable only if each worker has a core of its own.  Every process first runs each method once from its
    first start.  This run is not counted, so that times do not include building and compiling.

    Parameters
    ----------
    problem : Problem or Posed
    methods : sequence of str, or mapping from str
        Names: a transcription ("single", "multiple", "collocation"), optionally with a solver
        ("collocation/ipopt"); a driver, optionally around these ("incremental", "incremental/multiple",
        "scatter_search").
        The values of a mapping are such names, transcriptions, pairs (transcription, solver), or functions that are
        called as ``function(problem, start=..., max_time=...)`` and return what `fit` or a driver returns.
    starts, rng, sampling, limits
        As for `multistart`, except that a start is never drawn anew.
    reference : float, optional
        Objective of the global optimum, in the `measure` of the problem, if it is known; by default the lowest of all
        fits that converge.
    workers : int or concurrent.futures.Executor
        As for `multistart`.
    max_time : float
        Seconds for everything; trials that run then are cut off and, with those that did not begin, not counted.
    fit_max_time : float
        Seconds for one method from one start.
    callback : callable, optional
        Called in this process with every `MethodTrial`; no more are run when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the run (live on a terminal), one line per trial.  By default a line on a terminal or in a
        notebook, from two seconds on until the end.

    Returns
    -------
    ComparisonResult
        Also of a run that was interrupted: then with the trials that had finished.

    Raises
    ------
    InputError
        For misuse: methods that do not exist, options out of range, what cannot be sent to other processes.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.compare(problem, ["single", "collocation"], starts=[{"k1": 1e-6}, {"k1": 1e-5}])
    >>> [(row.method, row.success_rate) for row in found.rows]
    [('single', 1.0), ('collocation', 1.0)]
    """
    mistakes: list[str] = []
    chosen_methods = methods_from(methods, mistakes)
    run = RunOptions(workers=workers, max_time=max_time, fit_max_time=fit_max_time, callback=callback, verbose=verbose)
    mistakes += run.mistakes()
    reference_value = read_real(reference)
    if reference is not None and (reference_value is None or not np.isfinite(reference_value)):
        mistakes.append(
            f"reference is {shorten_repr(reference)}; expected the objective of the global optimum, or None"
        )
    require_problem("compare", problem, mistakes)
    draws = draw(problem, starts, sampling, limits, rng, mistakes)
    initial_starts = draws.initial_starts
    raise_if_mistakes("compare", mistakes)
    run = run.with_plain_numbers()

    job = run.pickle_job("compare", "problem and methods", (problem, chosen_methods, set[str]()))
    pairs = [(i, name) for i in range(len(initial_starts)) for name in chosen_methods]
    seeds = np.random.default_rng(rng).integers(2**32, size=len(initial_starts)).tolist()
    shared = (job, run.fit_max_time, run.deadline)
    tasks = deque((k, (*shared, name, initial_starts[i], seeds[i])) for k, (i, name) in enumerate(pairs))
    merit = ObjectiveMeasure.from_problem(problem)
    trials = [MethodTrial(name, i) for i, name in pairs]
    best: Result | None = None
    rank, finished = (np.inf, 0), 0

    def enter(k: int, outcome: Any) -> ProgressReport | None:
        nonlocal best, rank, finished
        try:
            trial = trials[k] = trials[k].with_outcome(outcome)
        except InputError as error:
            raise InputError(f"compare, method '{pairs[k][1]}'", error.problems) from None
        if isinstance(outcome, FitAnswer):
            trial = trials[k] = replace(trial, horizons=outcome.horizons)
            if trial.success and (trial.objective, k) < rank:
                best, rank = outcome.result, (trial.objective, k)
        if not trial.finished:
            return None
        finished += 1
        return ProgressReport(trial, f"{finished} of {len(pairs)} fits", trial.sentence, finished, len(pairs))

    stop_status = run_tasks(run, _attempt, tasks, enter, limit=run.fit_max_time + _WARM_UP_TIME)
    stop_status = run.find_stop_reason(stop_status, finished < len(trials))
    ends = [end for end in (reference_value, None if best is None else rank[0]) if end is not None]
    optimum = min(ends, default=np.nan)
    return ComparisonResult(
        rows=tuple(MethodRow.from_trials(name, trials, optimum, merit=merit) for name in chosen_methods),
        trials=tuple(trials),
        drawn=initial_starts,
        best=None if best is None else best.with_known_problem(problem),
        best_objective=optimum,
        merit=merit,
        descriptions={name: method.description for name, method in chosen_methods.items()},
        stopped=stop_status,
        message=termination_message(stop_status, trials, finished, "fits", draws.note),
        time=run.seconds,
    )


_Shared = tuple[Posable, dict[str, Method], set[str]]  # the names are of methods that this process has warmed up


@task
def _attempt(
    job: bytes | _Shared, limit: float, deadline: float, name: str, start: Mapping[str, float], seed: int
) -> FitAnswer | None:
    """Run a method from a start.  Return None if the time is over."""
    problem, methods, warm = unpickle_job(job)

    def run_method(max_time: float) -> Any:
        return methods[name](problem, start=start, max_time=max_time, seed=seed)

    if name not in warm:
        warm.add(name)
        warm_up = call_with_time_limit(run_method, min(limit, _WARM_UP_TIME), deadline)
        if warm_up is None or warm_up.result.status is Status.INTERRUPTED:
            return warm_up
    return call_with_time_limit(run_method, limit, deadline)
