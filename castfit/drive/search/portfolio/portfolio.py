"""`estimate`: the answer, without a choice of method: fit, doubt, search, confirm.

fit        as `castfit.fit` does it, from the guess
doubt      other ways, from other starts: does any find a better optimum, or the same again?
search     rounds of candidates, most of them by the ways that paid (castfit.drive.search.portfolio.allocation)
confirm    what is best is fitted at full accuracy, verified, and found again from starts of its own
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
    """Estimate parameters without choosing a method, and say how sure the answer is.

    The default fit from the guess comes first; then several ways to search go on from other starts, most of the time by
    those that pay.  The search ends when the best optimum was found `finds` times from starts of their own and
    describes the data; if it does not, but explains half of their variance at least, when no better one is likely
    after a thousand candidates; or when the time is over.  But for that limit the numbers depend neither on `workers`
    nor on how long anything takes.

    Parameters
    ----------
    problem : Problem or Posed
    max_time : float
        Seconds.
    rng : int or numpy.random.Generator
    finds : int
        How often the best optimum is to be found before it is believed.
    limits : mapping from quantity name to (lower, upper), optional
        Where starts are drawn, evenly on the scale of each quantity.  By default as its ``Parameter(starts=...)`` says,
        else between the bounds; where there are
        none, a factor of a thousand about the guess of what is on logarithmic scale, else ten times the guess to either
        side.
    strategies : sequence of {"fit", "box", "growing", "soft", "incremental", "decomposed", "moved"}, optional
        The ways to search, by default all that suit the problem: the default fit from random starts; single shooting in
        a box from the best of several draws; the same on ever longer horizons; where not all states are measured, after
        soft equations from constant states; where they are, `castfit.incremental`, and fits after equations that share
        no parameter were estimated apart; good points that are moved, and go down again.
    screen : int
        Of how many draws the best is taken.
    race : bool
        Whether candidates are dropped that are worse than half of those before them at the same point.
    workers : int or concurrent.futures.Executor
        As for `multistart`.
    checkpoint : str or Path, optional
        A file to which every candidate is written at once.
    resume : bool
        Whether to continue the checkpoint if it exists.
    callback : callable, optional
        Called in this process with a `PortfolioProgress` after each candidate; the search ends when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the search (live on a terminal), one line per candidate.  By default a line on a terminal
        or in a notebook, from two seconds on until the end.

    Returns
    -------
    PortfolioResult
        Also if nothing was found, or the search was interrupted; ``print`` tells the story.

    Raises
    ------
    InputError
        For misuse: options out of range, what cannot be sent to other processes, a checkpoint that belongs to another
        problem.

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
        "estimate", problem, Collocation(), GaussNewton(), seed=read_seed(rng), strategies=list(chosen_ways), screen=int(screen),
        race=bool(race), limits=[region.lower.tolist(), region.upper.tolist()],
    )  # fmt: skip
    return run_portfolio(problem, options, region, run, header, rng=rng, finds=int(finds))


def applicable_strategies(compiled: CompiledProblem) -> tuple[str, ...]:
    """Return the ways that suit a problem.

    Where all states are measured, nobody need find them by soft equations; elsewhere incremental single shooting has
    nothing to hold on to.
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
