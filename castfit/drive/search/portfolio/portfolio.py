"""`estimate`: parameter estimation without a choice of method.

fit        the default `castfit.fit` from the guess
search     rounds of candidates by several ways from other starts, most of them by the most productive ways
           (castfit.drive.search.portfolio.allocation)
confirm    the best candidate is fitted at full accuracy, verified, and found again from independent starts
exchange   two quantities of the best point are exchanged, to find mirror optima
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.arguments import (
    flag_mistakes,
    is_count,
    is_one_of,
    option_mistakes,
    read_sequence,
    rng_mistakes,
    shorten_repr,
    within_reason,
)
from castfit._support.renamed import accept_old_names
from castfit._support.status import raise_if_mistakes, suggest
from castfit._support.time_limit import guarded
from castfit.drive.run.checkpoint import read_seed, run_header
from castfit.drive.run.options import RunOptions, require_problem
from castfit.drive.search.portfolio.allocation import PortfolioOptions
from castfit.drive.search.portfolio.limits import build_search_region, limits_mistakes
from castfit.drive.search.portfolio.result import PortfolioProgress, PortfolioResult
from castfit.drive.search.portfolio.search import run_portfolio
from castfit.drive.search.portfolio.strategies import WAYS
from castfit.fit.start.decomposition.blocks import decomposition_mistakes
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import Posable
from castfit.solve.gauss_newton import GaussNewton
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.trajectory import every_state_measured


@accept_old_names(ways="strategies")
@guarded
def estimate(
    problem: Posable,
    *,
    max_time: float = 60.0,
    rng: int | np.random.Generator = 0,
    finds: int = 3,
    limits: Mapping[str, Any] | None = None,
    strategies: Sequence[str] | None = None,
    screen: int = 8,
    race: bool = True,
    workers: int | Executor = 1,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[PortfolioProgress], Any] | None = None,
    verbose: int | None = None,
) -> PortfolioResult:
    """Estimate parameters without choosing a method, and report whether the optimum was found again.

    The default fit from the guess comes first.  Several ways of searching follow from other starts; the most productive
    ways get most of the work.  The search ends if the best optimum fits the data and was found `finds` times from
    independent starts.  If it does not fit the data, but explains at least half of the variance of every output, the
    search ends after at least a thousand candidates, when a better optimum is unlikely.  It also ends at the time
    limit.  Except for that limit, the numbers depend neither on `workers` nor on computing times.

    Parameters
    ----------
    problem : Problem or Posed
    max_time : float
        Time limit in seconds.
    rng : int or numpy.random.Generator
    finds : int
        Number of independent starts that must end in the best optimum.
    limits : mapping from quantity name to (lower, upper), optional
        Limits between which starts are drawn, evenly on the scale of each quantity.  The default is
        ``Parameter(starts=...)`` if it is set, otherwise the bounds.  If a bound is missing, starts lie within a
        factor of a thousand of the guess on a logarithmic scale, and within ten times the guess to either side on a
        linear one.
    strategies : sequence of {"fit", "box", "growing", "soft", "incremental", "decomposed", "moved"}, optional
        Search strategies; by default all that suit the problem.  "fit": the default fit from random starts.  "box":
        single shooting with a trust region from the best of several draws.  "growing": the same on growing horizons.
        "soft": the same after relaxed equations from constant states, if not all states are measured.  "incremental":
        `castfit.incremental`, and "decomposed": fits after separate estimation of equations that share no parameter,
        both if all states are measured.  "moved": local fits from moved good points.
    screen : int
        Number of draws of which the best one is the start of a candidate.
    race : bool
        Whether a candidate is dropped if its cost is above the median of earlier candidates at the same iteration.
    workers : int or concurrent.futures.Executor
        As for `multistart`.
    checkpoint : str or Path, optional
        File to which every candidate is appended as soon as it ends.
    resume : bool
        Whether to continue the checkpoint if it exists.
    callback : callable, optional
        Called in this process with a `PortfolioProgress` after each candidate, and every two seconds; the
        search ends when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the search (live on a terminal), one line per candidate.  By default a line on a terminal
        or in a notebook, from two seconds on until the end.

    Returns
    -------
    PortfolioResult
        Also if no candidate converged, or the search was interrupted; ``print`` shows a summary.

    Raises
    ------
    InputError
        For options out of range, objects that cannot be pickled, or a checkpoint of another problem.

    Examples
    --------
    >>> import castfit as cf
    >>> found = cf.estimate(cf.problems.load("bellman").problem, rng=0)
    >>> print(found.best.status.value, round(found.best.chi2, 3))
    converged 21.867
    """
    run = RunOptions(
        workers=workers, max_time=max_time, callback=callback, verbose=verbose, checkpoint=checkpoint, resume=resume
    )
    mistakes = run.mistakes() + run.file_mistakes() + rng_mistakes(rng) + flag_mistakes(race=race)
    mistakes += option_mistakes(
        ("finds", finds, is_count(finds, 1), "give at least 1"),
        within_reason("screen", screen, 1000),
    )
    chosen_ways = _read_strategies(strategies, mistakes)
    require_problem("estimate", problem, mistakes)
    mistakes += limits_mistakes(problem, limits)
    raise_if_mistakes("estimate", mistakes)
    run = run.with_plain_numbers()
    if strategies is None:
        chosen_ways = applicable_strategies(problem.posed)
    options = PortfolioOptions(chosen_ways, int(screen), race=bool(race))
    region = build_search_region(problem.posed, limits)
    header = run_header(
        "estimate", problem, Collocation(), GaussNewton(), seed=read_seed(rng), strategies=list(chosen_ways),
        screen=int(screen), race=bool(race), limits=[region.lower.tolist(), region.upper.tolist()],
    )  # fmt: skip
    return run_portfolio(problem, options, region, run, header, rng=rng, finds=int(finds))


def applicable_strategies(compiled: CompiledProblem) -> tuple[str, ...]:
    """Return the ways that suit a problem.

    Relaxed equations are used only if some states are unobserved, incremental fits and decomposition only if all are
    measured.
    """
    measured = every_state_measured(compiled)
    is_unsuitable = {
        "soft": measured or bool(compiled.triggered),
        "incremental": not measured
        or any(c.schedule.instants for c in compiled.conditions)
        or bool(compiled.model.algebraic_states),
        "decomposed": not measured or bool(decomposition_mistakes(compiled)),
    }
    return tuple(way for way in WAYS if not is_unsuitable.get(way, False))


def _read_strategies(strategies: Any, mistakes: list[str]) -> tuple[str, ...]:
    if strategies is None:
        return tuple(WAYS)
    names = read_sequence(strategies)
    if not names or isinstance(strategies, str):
        mistakes.append(f"strategies is {shorten_repr(strategies)}; expected a list of names from {', '.join(WAYS)}")
        return ()
    mistakes += [
        f"strategies contains {shorten_repr(w)}: {suggest(str(w), WAYS)}" for w in names if not is_one_of(w, *WAYS)
    ]
    return tuple(dict.fromkeys(str(w) for w in names))
