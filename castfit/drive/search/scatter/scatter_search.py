"""Scatter search: a global search for the optimum whose local searches are fits.

problem --restated--> box --cube--> generations (see `method`) --log--> best point --fit--> result
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.arguments import flag_mistakes, is_one_of, is_within, option_mistakes, rng_mistakes
from castfit._support.json_codec import rebuild_value
from castfit._support.status import Status, raise_if_mistakes, suggest
from castfit._support.time_limit import StopRequested, guarded
from castfit.drive.run.checkpoint import describe_method, read_seed, run_header
from castfit.drive.run.loop import open_session
from castfit.drive.run.options import RunOptions, require_problem
from castfit.drive.run.run_result import STOPS
from castfit.drive.search.scatter.bounds import SearchBounds, read_search_bounds, with_log_scales
from castfit.drive.search.scatter.log import SearchLog, SearchStopped
from castfit.drive.search.scatter.method.options import ScatterOptions
from castfit.drive.search.scatter.method.search import SearchState, begin_search, run_generation
from castfit.drive.search.scatter.result import Generation, ScatterResult
from castfit.drive.search.scatter.tasks import SearchContext
from castfit.fit.methods import Solver, Transcription, parts_from
from castfit.fit.start.decomposition.blocks import decomposition_mistakes
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import Posable
from castfit.result.result import Result
from castfit.solve.gauss_newton import GaussNewton
from castfit.transcribe.single_shooting import SingleShooting

INTEGRATOR = IntegratorOptions(relative_tolerance=1e-7, absolute_tolerance=1e-9)
SOLVER = GaussNewton("levenberg_marquardt", homotopy="never", max_iter=200)

_PER_QUANTITY = 100  # simulations
_STARTS = (None, "matching", "decomposed")
_CHOOSE = f"choose one of {', '.join(map(repr, _STARTS))}"
_REMOVED_OPTIONS = {"islands": "the option islands= was removed; remove it"}


@guarded
def scatter_search(
    problem: Posable,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    *,
    rng: int | np.random.Generator = 0,
    max_eval: float | None = None,
    max_time: float = np.inf,
    vtr: float = -np.inf,
    log_vars: Iterable[str] | str = "auto",
    include_guess: bool = True,
    local_start: str | None = None,
    join_reach: float = 0.02,
    workers: int | Executor = 1,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[Generation], Any] | None = None,
    verbose: int | None = None,
    **options: Any,
) -> ScatterResult:
    """Search for the global optimum by scatter search with local fits (SSm; Rodriguez-Fernandez et al. 2006).

    A small reference set of good and diverse points is combined into new ones; now and then a fit sets out from the
    point that promises most, judged by its value and by its distance from everything that earlier fits passed through.
    The numbers depend neither on `workers` nor on how long anything takes, unless the time limit ends the search.

    Parameters
    ----------
    problem : Problem or Posed
        All bounds must be finite.
    transcription : SingleShooting, MultipleShooting or Collocation, optional
        Of the fits; by default single shooting.  Members are always simulated, with the integrator of this
        transcription.
    solver : GaussNewton or Ipopt, optional
        Of the fits; by default Gauss-Newton with Levenberg and Marquardt's steps and without homotopy: it is another
        fit that leads out of a bad optimum.  Both may be names, as in `fit`.
    rng : int or numpy.random.Generator
    max_eval : float, optional
        Number of simulations after which the search ends, by default 100 for each of 10 + n_theta; a sensitivity sweep
        counts as one.  A fit that has begun is finished.
    max_time : float
        Seconds after which the search ends.
    vtr : float
        Value to reach: the search ends when the objective is as low, in the `measure` of the result.
    log_vars : "auto" or sequence of str
        Parameters that are searched in their logarithm, besides those with ``scale="log"``.  "auto" takes those whose
        bounds are not negative and span a factor of 1000 at least.  Where the lower bound is zero, the search ends at
        a millionth of the upper one; the last fit, of the problem as it was given, may go on to zero.
    include_guess : bool
        Whether the problem's guess is among the first points.
    local_start : {None, "matching", "decomposed"}
        How a fit starts: at the member, or as `start` of `castfit.fit` says, with the member in place of the guess.
        Simulations of parts of a model, by which "decomposed" finds its starts, are not counted.
    join_reach : float
        A fit that comes so close to the path of an earlier one, as a root mean square over the quantities in units of
        their ranges, is broken off, unless it is the best so far.  0 lets all fits go on to their end.
    workers : int or concurrent.futures.Executor
        1 runs in this process, n in n processes; a script then needs ``if __name__ == "__main__":``.  Simulations of
        a generation are divided among the workers; local fits follow one another.
    checkpoint : str or Path, optional
        A file to which the state of the search is written after every generation.
    resume : bool
        Whether to continue the checkpoint if it exists, to the same end as if the search had not been interrupted.
        Limits and workers may differ from those of the first run.
    callback : callable, optional
        Called in this process with a `Generation` after each generation, and every two seconds; the search
            ends when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the search (live on a terminal), one line per generation.  By default a line on a terminal
        or in a notebook, from two seconds on until the end.
    **options
        Those of the method itself, with the names of SSm and eSS where they have one:

        dim_refset : int
            Size b of the reference set.
        n_diverse : int, optional
            Number of diverse points, by default ten times `dim_refset`.
        subranges : int
            Into how many parts the frequency memory divides each quantity's range.
        first_refset : {"quality", "corners"}
            Whether the first reference set holds the best of the diverse points, or corners and midpoint.
        prob_bound : float
            Probability that a component which leaves the box is put on the bound, instead of inside.
        go_beyond : bool
            Whether children that outdo their parents are followed further in the same direction (eSS).
        local_n1, local_n2, local_searches : int
            Generations before the first fits and from one time to the next; at most how many fits each time.
        balance : float
            0 chooses starts of fits by quality, 1 by their distance from earlier fits.
        merit_filter : bool
            Whether starts must be as good as the last one.
        distance_filter : {"paths", "minima", "none"}
            Whether starts must keep away from the paths of earlier fits, or from the minima they found.
        relax_after : int
            Refusals in a row after which both filters are relaxed.
        min_distance, min_difference : float
            Least distance (root mean square) and least relative difference in value of two members; a reference set
            whose values vary less is taken to lie in a flat zone and is reset.
        regeneration : {"directions", "distance"}
            How new members of an exhausted reference set are chosen.
        aggressive : bool
            Whether only the best member is kept then, instead of the better half.
        restart_after : int, optional
            Generations without progress after which the search begins anew, keeping its memory; after each restart
            it waits longer and draws more diverse points.

    Returns
    -------
    ScatterResult
        Also if the search was interrupted: then with the best point so far.

    Raises
    ------
    InputError
        For misuse: infinite bounds, options out of range, what cannot be sent to other processes, a checkpoint that
        exists and is not to be continued, or that belongs to another problem or other options.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> bounded = problem.replace(
    ...     parameters={n: cf.Parameter(1e-4, bounds=(1e-8, 1e-1), scale="log") for n in problem.names}
    ... )
    >>> found = cf.scatter_search(bounded, rng=0, max_eval=200)
    >>> round(found.chi2, 3)
    21.867
    """
    run = RunOptions(
        workers=workers, max_time=max_time, callback=callback, verbose=verbose, checkpoint=checkpoint,
        resume=resume,
    )  # fmt: skip
    method_options, mistakes = _read_options(options)
    method = parts_from(transcription, solver, mistakes, default=(SingleShooting(INTEGRATOR), SOLVER))
    mistakes += rng_mistakes(rng)
    mistakes += option_mistakes(
        ("max_eval", max_eval, max_eval is None or is_within(max_eval, 1), "give at least 1"),
        ("vtr", vtr, is_within(vtr), "pass the target objective"),
        ("local_start", local_start, is_one_of(local_start, *_STARTS), _CHOOSE),
        ("join_reach", join_reach, is_within(join_reach, 0, 1), "give a number from 0 to 1"),
    )
    mistakes += flag_mistakes(include_guess=include_guess) + run.mistakes() + run.file_mistakes()
    require_problem("scatter_search", problem, mistakes)
    searched = with_log_scales(problem, log_vars, mistakes)
    box = read_search_bounds(searched, mistakes)
    if is_one_of(local_start, "decomposed"):
        mistakes += decomposition_mistakes(problem.posed)
    raise_if_mistakes("scatter_search", mistakes)
    run = run.with_plain_numbers()

    work = SearchContext(searched, *method, box, local_start, float(join_reach))
    job = run.pickle_job("scatter_search", "problem, transcription and solver", (work,))
    header = run_header(
        "scatter_search",
        searched,
        *method,
        options=describe_method(method_options),
        **{"local searches": describe_method((local_start, float(join_reach), include_guess))},
        seed=read_seed(rng),
    )
    seed = int(np.random.default_rng(rng).integers(2**63, size=1)[0])
    guess = box.cube(searched.guess)[None] if include_guess else None
    merit = work.merit
    max_simulations = _PER_QUANTITY * (10 + len(searched.names)) if max_eval is None else float(max_eval)
    with run.open_checkpoint(header) as file, open_session(run) as session:
        log = SearchLog(session, job, work, seed, max_eval=max_simulations, vtr=merit.height_at(float(vtr)))
        state: SearchState | None = None
        if file is not None:
            with file.intact():
                state = _resume_state(file.records, log)

        def build_generation() -> Generation:
            best = merit.at_height(log.best_f)
            return Generation(
                _count_generations(state), log.simulations, len(log.searches), best, log.elapsed, merit.measure
            )

        session.progress = build_generation
        log.report_progress = lambda: session.report(build_generation().sentence)
        saved = log.result
        try:
            log.check()
            while True:
                state = (
                    run_generation(log, state, method_options)
                    if state
                    else begin_search(log, box.lower.size, seed, method_options, guess)
                )
                result_record = {} if log.result is saved else {"result": log.result}
                if file is not None and file.append({"state": state, "book": log.record(), **result_record}):
                    saved = log.result
                if session.notify(
                    build_generation(),
                    build_generation().sentence,
                    build_generation().sentence,
                    milestone=_is_round(build_generation().generation),
                ):
                    raise SearchStopped(STOPS[Status.STOPPED_BY_CALLBACK])
        except SearchStopped as halt:
            reason = str(halt)
        except StopRequested as stop:
            reason = STOPS[stop.status]
            session.pool.dismiss()
        best = _build_best_result(
            problem, searched, box, work, log, run.deadline, is_interrupted=reason == STOPS[Status.INTERRUPTED]
        )
    return ScatterResult(
        best=best,
        reason=reason,
        history=tuple(replace(m, objective=merit.at_height(m.objective)) for m in log.moments),
        searches=tuple(replace(s, start=merit.at_height(s.start), end=merit.at_height(s.end)) for s in log.searches),
        simulations=log.simulations,
        n_sensitivity_evaluations=log.sweeps,
        generations=_count_generations(state),
        failures=dict(log.failures),
        time=log.elapsed,
        transcription=method[0].label,
        solver=method[1].label,
        names=searched.names,
        logarithmic=tuple(q.name for q in searched.quantities if q.scale == "log"),
        merit=merit,
        warnings=(file.trouble,) if file is not None and file.trouble else (),
    )


def _resume_state(records: Iterable[Mapping[str, Any]], log: SearchLog) -> SearchState | None:
    """Restore the log from the records of a checkpoint. Return the search state, or None if there are no records.

    A result is in the record of the generation that found it, not in those that follow.
    """
    merged_record: dict[str, Any] = {}
    for record in records:
        merged_record |= record
    if not merged_record:
        return None
    log.restore(merged_record["book"], rebuild_value(Result | None, merged_record.get("result")))
    return rebuild_value(SearchState, merged_record["state"])


def _is_round(number: int) -> bool:
    """Whether a number is 0, 1, 2, 5, 10, 20, 50, ..., of which a run without known end tells."""
    return number == 0 or f"{number}".rstrip("0") in ("1", "2", "5")


def _count_generations(state: SearchState | None) -> int:
    """Return the number of complete generations; the first reference set is generation 0."""
    return 0 if state is None else state.generation


def _build_best_result(
    problem: Posable,
    searched: CompiledProblem,
    box: SearchBounds,
    work: SearchContext,
    log: SearchLog,
    deadline: float,
    *,
    is_interrupted: bool,
) -> Result | None:
    """Return the fit of the problem as it was given from the best point; unfinished if the time is over."""
    if log.best_x is None:
        return None
    if log.result is not None and searched is problem.posed:
        return log.result.with_problem(problem)
    natural = dict(zip(searched.names, searched.to_natural(box.theta(log.best_x)).tolist(), strict=True))
    quantities = [q for q in problem.quantities if q.name in natural]
    start = {q.name: float(np.clip(natural[q.name], q.lower, q.upper)) for q in quantities}
    seconds_left = deadline - time.time()
    is_over = is_interrupted or seconds_left <= 0.0
    with np.errstate(all="ignore"):
        result = work.fit(
            problem, start, np.inf if is_over else seconds_left, (lambda iteration: True) if is_over else None
        )
    if is_over:
        status = Status.INTERRUPTED if is_interrupted else Status.MAX_TIME
        result = result.with_status(status, status.message)
    log.simulations += sum(result.evaluations.values())
    log.sweeps += result.evaluations.get("jacobians", 0)
    return result


def _read_options(arguments: dict[str, Any]) -> tuple[ScatterOptions, list[str]]:
    """Read the options of the method itself."""
    option_names = [f.name for f in fields(ScatterOptions)]
    option_errors = [
        _REMOVED_OPTIONS.get(n, f"there is no option '{n}': {suggest(n, option_names)}")
        for n in arguments
        if n not in option_names
    ]
    method_options = ScatterOptions(**{n: v for n, v in arguments.items() if n in option_names})
    return method_options, option_errors + method_options.mistakes()
