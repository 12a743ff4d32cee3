"""`bootstrap`: draw data as the fit says they scatter, fit each, and look at the estimates.

result --recipe--> data sets --fit (here, processes, executor)--> draws of the estimates --> errors, intervals, bands
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.arguments import is_count, is_one_of, option_mistakes, rng_mistakes, text
from castfit.drive.uncertainty.bootstrap.result import WHAT, BootstrapResult
from castfit.drive.search.multistart.sampling import draw
from castfit.drive.uncertainty.refits.asked import asked_of, seeded
from castfit.drive.uncertainty.refits.recipes import KINDS, kind_mistakes, redrawn
from castfit.drive.uncertainty.refits.row import Refit
from castfit.drive.uncertainty.refits.run import Plan, Progress, carry
from castfit.drive.run.checkpoint import run_header
from castfit.drive.run.options import RunOptions
from castfit.problem.fingerprint import digest
from castfit.fit.methods import Solver, Transcription, parts_from
from castfit.result.result import Result
from castfit._support.status import check


def bootstrap(
    result: Result,
    kind: str = "residual",
    *,
    samples: int = 1000,
    rng: int | np.random.Generator = 0,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    starts: int | Sequence[Mapping[str, float]] = 0,
    limits: Mapping[str, Any] | None = None,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    fit_max_time: float = np.inf,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[Progress], Any] | None = None,
    verbose: int = 0,
) -> BootstrapResult:
    """Fit data sets that are drawn about a fit, to see how its estimates scatter.

    Every fit begins at the estimate, with its whole trajectory.  The numbers do not depend on `workers`: the data of
    each fit come from a random stream of their own.  Priors stay as they are, so that where they hold information
    estimates scatter less than is unknown about them; `castfit.sample` counts both.

    Parameters
    ----------
    result : Result
        Of a fit that succeeded, with its problem.
    kind : {"residual", "wild", "parametric"}
        "residual" adds to each prediction the residual of another value of the same output, made as large as an error
        by its leverage: nothing is assumed of their distribution but that it is the same for all.  "wild" keeps the
        size of each value's own residual and draws its sign, for errors that differ in size and nobody knows how.
        "parametric" draws from the noise models, any of them, at the estimates; sigmas that were estimated without
        bias.  The first two are refused for counts, values with limits of detection and likelihoods of your own.
    samples : int
        How many data sets; some 100 for standard errors, 1000 for limits of 95 % intervals.
    rng : int or numpy.random.Generator
    transcription, solver : optional
        As for `fit`.
    starts : int or sequence of mappings
        From how many other starts each data set is fitted beside, drawn as by `multistart`; the best optimum counts.
    limits : mapping from quantity name, optional
        Where those are drawn, as for `multistart`; by default between the bounds.
    workers : int or concurrent.futures.Executor
        As for `multistart`.
    max_time, fit_max_time : float
        Seconds for everything, and for one data set.  What is there when they end counts.
    checkpoint : str or Path, optional
        A file to which every fit is written at once.
    resume : bool
        Whether to continue the checkpoint if it exists: what is finished is not repeated.  `samples` may have grown.
    callback : callable, optional
        Called in this process with a `Progress` after each fit; no more are run when it returns True.
    verbose : {0, 1, 2}
        Nothing, the state of the run (live on a terminal), one line per fit.

    Returns
    -------
    BootstrapResult
        Also if fits failed: they are counted by their cause, and its summary says what they may do to the intervals.

    Raises
    ------
    InputError
        For misuse: a result that is no solution or does not know its problem, a kind that its noise does not allow,
        options out of range, a checkpoint that belongs to something else.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> drawn = cf.bootstrap(result, kind="parametric", samples=20, rng=0)
    >>> drawn
    BootstrapResult(parametric: 20 draws of ['k1', 'k2'], 0 failed)
    """
    run = RunOptions(
        workers=workers, max_time=max_time, start_max_time=fit_max_time, callback=callback,
        verbose=verbose, checkpoint=checkpoint, resume=resume,
    )  # fmt: skip
    mistakes: list[str] = []
    asked, chosen = parts_from(transcription, solver, mistakes)
    posed = asked_of("bootstrap", result, mistakes)
    right = is_one_of(kind, *KINDS)
    mistakes += option_mistakes(
        ("kind", kind, right, f"choose {', '.join(map(repr, KINDS))}"),
        ("samples", samples, is_count(samples, 1), "give at least 1"),
    )
    wrong = rng_mistakes(rng)
    mistakes += wrong
    seed = 0 if wrong else seeded(rng)
    mistakes += [m.replace("start_max_time", "fit_max_time") for m in run.file_mistakes() + run.mistakes()]
    mistakes += kind_mistakes(kind, posed, result) if right else []
    none = is_count(starts, 0, 0)
    if isinstance(starts, bool) or (isinstance(starts, (int, np.integer)) and starts < 0):
        mistakes.append(f"starts is {text(starts)}; give 0 for none, or how many")
        none = True
    others = () if none or mistakes else draw(posed, starts, None, limits, seed, mistakes).first
    if none and limits is not None:
        mistakes.append("limits say where other starts are drawn; give starts=3, say, or leave limits out")
    check("bootstrap", mistakes)
    run = run.cleaned()
    recipe = redrawn(kind, posed, result, seed)
    header = run_header(
        "bootstrap",
        posed,
        asked,
        chosen,
        kind=kind,
        seed=seed,
        estimate=digest(result.theta, recipe.predictions, recipe.spreads, recipe.errors),
        starts=[dict(start) for start in others],
        fit_max_time=run.start_max_time,
    )
    plan = Plan.at(result, posed, asked, chosen, recipe, *others)
    blank = [Refit(index=i) for i in range(int(samples))]
    first = {"kind": kind, "samples": int(samples), "result": result}
    ended = carry("bootstrap", WHAT, plan, blank, run, header, first)
    return BootstrapResult(result, kind, ended.rows, ended.message, ended.time, header)
