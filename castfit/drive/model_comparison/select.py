"""`select`: fit few or very many candidates, and rank, weigh and average them.

candidates --search--> batches --fit, checked against the models they contain--> order, weights, averages
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.arguments import is_one_of, option_mistakes, rng_mistakes
from castfit._support.status import raise_if_mistakes
from castfit._support.time_limit import StopRequested, guarded
from castfit.drive.model_comparison.candidates import Candidates, read
from castfit.drive.model_comparison.search import MAX_EXHAUSTIVE_CANDIDATES, METHODS, Search
from castfit.drive.model_comparison.selection_log import SelectionLog, SelectionProgress
from castfit.drive.model_comparison.selection_result import SelectionResult
from castfit.drive.run.checkpoint import describe_method, read_seed
from castfit.drive.run.loop import open_session
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import STOPS
from castfit.drive.uncertainty.inputs import as_seed
from castfit.fit.build_result import versions
from castfit.fit.methods import Solver, Transcription, given_parts
from castfit.problem.compiled_problem import LOSS, NO_LIKELIHOOD
from castfit.problem.fingerprint import digest, fingerprint
from castfit.problem.problem import Problem

CRITERIA = ("AIC", "AICc", "BIC")


@guarded
def select(
    problems: Problem | Mapping[str, Problem],
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    *,
    choices: Mapping[str, Sequence[Any]] | None = None,
    criterion: str = "AICc",
    method: str = "auto",
    rng: int | np.random.Generator = 0,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    fit_max_time: float = np.inf,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[SelectionProgress], Any] | None = None,
    verbose: int | None = None,
) -> SelectionResult:
    """Fit candidate models to the same data, and compare, weigh and average them.

    Each candidate is fitted from its nominal values and from the estimates of an earlier candidate; the better fit is
    used.  If a model fits worse than a nested model, it has missed its optimum, and is fitted again from the nested
    model.  The numbers do not depend on `workers`.

    Parameters
    ----------
    problems : Problem, or mapping from name to Problem
        One problem with `choices`, or the candidates themselves.
    transcription, solver : optional
        As for `fit`.
    choices : mapping from parameter name to alternatives, optional
        What each may be: numbers at which it is held, and ``cf.estimated`` as the problem states it:
        ``{"k2": [0, cf.estimated]}``.
    criterion : {"AICc", "AIC", "BIC"}
        What is to be small.  All that is estimated counts, also what stands at a bound.
    method : {"auto", "all", "forward", "backward", "forecast", "famos"}
        In which order: all candidates; from the smallest or the largest, one parameter at a time; to those neighbours
        (drops, adds, swaps) that a linearization of the whole model forecasts to be better; or FAMoS, by PEtab Select
        (extra ``petab``).  "auto" fits all up to 64, and else goes by forecasts.  What is not "all" may miss the best.
    rng : int or numpy.random.Generator
        For drawn starts, where neither start of a candidate leads to a solution.
    workers : int or concurrent.futures.Executor
        1 runs in this process, n in n processes; a script then needs ``if __name__ == "__main__":``.
    max_time, fit_max_time : float
        Seconds for the run, and for one candidate.
    checkpoint : str or Path, optional
        A file to which every finished fit is written at once.
    resume : bool
        Whether to continue the checkpoint if it exists; finished fits are not repeated.
    callback : callable, optional
        Called with a `SelectionProgress` after each fit, and every two seconds; the search ends when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the run, one line per fit.  By default a line on a terminal or in a notebook, from two
        seconds on until the end.

    Returns
    -------
    SelectionResult
        ``print`` shows the ranking, and below it the candidates that could not be fitted, with reasons.

    Raises
    ------
    InputError
        For misuse: different data, the same model twice, too few data for the criterion, unknown names, invalid
        alternatives, and options out of range.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, m = cf.symbols("x k m")
    >>> model = cf.Model({x: -k * x - m}, parameters=[k, m], initial={x: 2})
    >>> data = cf.Experiment({"x": [1.49, 1.09, 0.83, 0.59, 0.46, 0.33]}, time=[1, 2, 3, 4, 5, 6], sigma=0.02)
    >>> problem = cf.Problem(model, data, parameters={"k": 0.5, "m": 0.1})
    >>> found = cf.select(problem, choices={"k": [0, cf.estimated], "m": [0, cf.estimated]})
    >>> found.names[0]
    'k'
    >>> found.importance["k"] > 0.99 > 0.5 > found.importance["m"]
    True
    """
    run = RunOptions(
        workers=workers, max_time=max_time, fit_max_time=fit_max_time, callback=callback,
        verbose=verbose, checkpoint=checkpoint, resume=resume,
    )  # fmt: skip
    mistakes: list[str] = []
    requested_transcription, chosen_solver = given_parts(transcription, solver, mistakes)
    methods = ("auto", *METHODS, "famos")
    mistakes += option_mistakes(
        ("criterion", criterion, is_one_of(criterion, *CRITERIA), f"choose {_listed(CRITERIA)}"),
        ("method", method, is_one_of(method, *methods), f"choose {_listed(methods)}"),
    )
    if is_one_of(method, *methods[2:]) and not isinstance(problems, Problem):
        mistakes.append(f"method='{method}' applies to choices; named problems are always all fitted, so remove it")
    raise_if_mistakes("select", [*mistakes, *rng_mistakes(rng), *run.file_mistakes(), *run.mistakes()])
    space = read(problems, choices)
    chosen_method = method if method != "auto" else "all" if space.count <= MAX_EXHAUSTIVE_CANDIDATES else "forecast"
    raise_if_mistakes("select", _undefined(space, criterion))
    choice_texts = {n: list(map(repr, alternatives)) for n, alternatives in space.choices.items()}
    entries = {"criterion": criterion, "method": chosen_method, "choices": choice_texts}
    if chosen_method == "famos":
        from castfit.drive.model_comparison.petab_selection import famos as begin  # needs an extra
    else:
        begin = METHODS[chosen_method]
    return run_selection(
        "select", space, criterion, chosen_method, lambda log: begin(space, log, criterion), run.with_plain_numbers(),
        (requested_transcription, chosen_solver), rng, entries,
    )  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"


def _undefined(space: Candidates, criterion: str) -> list[str]:
    """Return a message if a criterion is undefined for every candidate: too few data, or no likelihoods."""
    problems = [space.problem(space.smallest)] if space.choices else list(space.problems.values())
    if any(p.posed.measure == LOSS for p in problems):
        return [NO_LIKELIHOOD]
    if criterion != "AICc":
        return []
    sizes = [(p.n_data, len(p.names) + len(p.posed.groups)) for p in problems]
    n, min_estimated = sizes[0][0], min(k for _, k in sizes)
    if n > min_estimated + 1:
        return []
    return [f"AICc needs at least two measurements more than estimated quantities: {n} measurements, at least "
            f"{min_estimated} quantities; choose criterion='BIC' or 'AIC', or add data"]  # fmt: skip


def run_selection(
    where: str,
    space: Candidates,
    criterion: str,
    method: str,
    search: Callable[[SelectionLog], Search],
    run: RunOptions,
    parts: tuple[Transcription | None, Solver | None],
    rng: Any,
    entries: Mapping[str, Any],
) -> SelectionResult:
    """Carry out a search; the checkpoint's header has `entries` in addition to the problems and their methods."""
    job = run.pickle_job(where, "the problems with their transcription and solver", (space, *parts))
    log = SelectionLog(space, criterion, job, as_seed(rng))
    header = {
        "driver": where,
        "problems": {n: digest(*fingerprint(p).items()) for n, p in space.problems.items()},
        "transcription": describe_method(parts[0]),
        "solver": describe_method(parts[1]),
        "seed": read_seed(rng),
        "fit_max_time": run.fit_max_time,
        **entries,
        "versions": dict(versions()),
    }
    interrupted, is_complete = None, False
    with run.open_checkpoint(header) as file:
        try:
            with open_session(run) as session:
                for batch in search(log):
                    if not log.fit(batch, session, file):
                        break
                else:
                    is_complete = True
        except StopRequested as stop:
            interrupted = stop.status
        stop_status = run.find_stop_reason(interrupted or log.stop_status, not is_complete)
        trouble = file.trouble if file is not None else ""
    message = " ".join(part for part in (STOPS[stop_status] if stop_status else "", *log.sentences, trouble) if part)
    return SelectionResult.from_log(log, method=method, is_complete=is_complete, message=message, time=run.seconds)
