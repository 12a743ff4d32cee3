"""`coverage`: whether intervals contain the truth as often as they promise, for a model, its times and its noise.

truth --noise models--> data sets --fit (here, processes, executor)--> intervals --> share that contains the truth
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.arguments import is_count, is_one_of, named, option_mistakes, real, rng_mistakes, text
from castfit.drive.uncertainty.coverage.result import CoverageResult
from castfit.drive.uncertainty.profile.profile import profile_limits
from castfit.drive.uncertainty.refits.asked import asked_of, seeded
from castfit.drive.uncertainty.refits.recipes import Redrawn, kind_mistakes, redrawn, undrawable
from castfit.drive.uncertainty.refits.row import Refit
from castfit.drive.uncertainty.refits.run import Plan, Progress, carry
from castfit.drive.run.checkpoint import described, run_header
from castfit.drive.run.options import RunOptions, require_problem
from castfit.problem.fingerprint import digest
from castfit.fit.methods import Solver, Transcription, parts_from
from castfit.problem.compiled_problem import Posed
from castfit.problem.problem import Posable
from castfit.result.result import Result
from castfit._support.status import check, suggest
from castfit.transcribe.single_shooting import SingleShooting

Intervals = Callable[[Result, float], Mapping[str, tuple[float, float]]]
"""Returns the intervals of a result at a level, by name; defined in a module, so that processes can call it."""


def coverage(
    problem: Posable | Result,
    truth: Mapping[str, float] | None = None,
    *,
    sigma: float | Mapping[str, float] | None = None,
    samples: int = 500,
    level: float = 0.95,
    intervals: str | Intervals = "linear",
    start: str = "truth",
    rng: int | np.random.Generator = 0,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    fit_max_time: float = np.inf,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[Progress], Any] | None = None,
    verbose: int = 0,
) -> CoverageResult:
    """Fit data sets that are drawn at known values, and count the intervals that contain these.

    The design is the problem's: its model, times, outputs, noise models and bounds; its measured values do not matter,
    but for standard deviations that were given relative to them.

    Parameters
    ----------
    problem : Problem, Posed or Result
        The design; of a result, its estimates are the truth, sigmas included.
    truth : mapping from name to value, optional
        True values of estimated quantities, natural scale; others are at their guess.
    sigma : float or mapping from name to float, optional
        True standard deviations that the fits do not know and eliminate, by the names of `unknown`, or their outputs;
        a number for all.  A result knows them.
    samples : int
        How many data sets: with 500, shares are known to one part in a hundred.
    level : float
        The nominal probability.
    intervals : {"linear", "profile"} or callable
        "linear" are those of ``result.confidence_intervals``, "profile" those of `castfit.profile`; or a function of a
        `Result` and a level that returns ``{name: (lower, upper)}``, defined in a module.
    start : {"truth", "guess"}
        Where fits begin.
    rng, transcription, solver, workers, max_time, fit_max_time, checkpoint, resume, callback, verbose
        As for `bootstrap`.

    Returns
    -------
    CoverageResult
        Per quantity the share of intervals that contain the truth, with its binomial error, bias and widths.

    Raises
    ------
    InputError
        For misuse: names that are not estimated, a sigma that is missing, noise that cannot be drawn, ...

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> checked = cf.coverage(result, samples=8)  # 500 tell something
    >>> checked.fitted, list(checked.quantities)
    (8, ['k1', 'k2'])
    """
    run = RunOptions(
        workers=workers, max_time=max_time, start_max_time=fit_max_time, callback=callback,
        verbose=verbose, checkpoint=checkpoint, resume=resume,
    )  # fmt: skip
    mistakes: list[str] = []
    asked, chosen = parts_from(transcription, solver, mistakes)
    wrong = rng_mistakes(rng)
    number = real(level)
    mistakes += option_mistakes(
        ("samples", samples, is_count(samples, 1), "give at least 1"),
        ("level", level, number is not None and 0.0 < number < 1.0, "it lies between 0 and 1"),
        ("intervals", intervals, is_one_of(intervals, *KINDS) or callable(intervals),
         "choose 'linear' or 'profile', or give a function of a Result and a level"),
        ("start", start, is_one_of(start, "truth", "guess"), "choose 'truth' or 'guess'"),
    )  # fmt: skip
    mistakes += wrong + [m.replace("start_max_time", "fit_max_time") for m in run.file_mistakes() + run.mistakes()]
    seed = 0 if wrong else seeded(rng)
    if isinstance(problem, Result):
        posed = asked_of("coverage", problem, mistakes)
        if truth is not None or sigma is not None:
            mistakes.append("a result says the truth and its sigmas itself; give its problem for other ones")
        mistakes += kind_mistakes("parametric", posed, problem)
        check("coverage", mistakes)
        theta, recipe = problem.theta, redrawn("parametric", posed, problem, seed)
    else:
        require_problem("coverage", problem, mistakes)
        posed = problem.posed
        theta, sigmas = _theta(posed, truth, mistakes), _sigmas(posed, sigma, mistakes)
        mistakes += undrawable(posed)
        check("coverage", mistakes)
        recipe = _at_truth(posed, theta, sigmas, seed)
    run = run.cleaned()
    assert number is not None
    values = dict(zip(posed.names, posed.to_natural(theta).tolist(), strict=True))
    reads = partial(_ends, KINDS[intervals] if isinstance(intervals, str) else intervals, number)
    near = values if start == "truth" else {}
    if isinstance(problem, Result) and start == "truth":
        plan = Plan.at(problem, posed, asked, chosen, recipe, reads=reads)
    else:
        plan = Plan(posed, asked, chosen, recipe, (near,), reads)
    label = intervals if isinstance(intervals, str) else described(intervals)
    header = run_header(
        "coverage", posed, asked, chosen, seed=seed, level=number, intervals=label, start=start,
        truth=digest(theta, recipe.predictions, recipe.spreads), fit_max_time=run.start_max_time,
    )  # fmt: skip
    blank = [Refit(index=i) for i in range(int(samples))]
    ended = carry("coverage", "data sets", plan, blank, run, header, {"level": number, "intervals": label})
    return CoverageResult(posed, values, number, label, ended.rows, ended.message, ended.time)


def _linear(result: Result, level: float) -> Mapping[str, tuple[float, float]]:
    return result.confidence_intervals(level)


KINDS: Mapping[str, Intervals] = {"linear": _linear, "profile": profile_limits}
"""Intervals by their names."""


def _ends(intervals: Intervals, level: float, result: Result) -> dict[str, tuple[float, float]]:
    """Read intervals and standard errors from a fit."""
    found = intervals(result, level)
    errors = {f"standard error of {n}": (e, e) for n, e in result.standard_errors.items()}
    return {name: (float(low), float(high)) for name, (low, high) in found.items()} | errors


def _theta(posed: Posed, truth: Any, mistakes: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    theta = posed.to_natural(posed.guess)
    for name, value in named("truth", truth, mistakes).items():
        number = real(value)
        if name not in posed.names:
            mistakes.append(f"truth: '{name}' is not estimated: {suggest(name, posed.names)}")
            continue
        q = posed.quantities[posed.names.index(name)]
        if number is None or not np.isfinite(number) or not q.lower <= number <= q.upper:
            mistakes.append(f"truth: '{name}' is {text(value)}; give a number between its bounds")
        elif q.scale == "log" and number <= 0.0:
            mistakes.append(f"truth: '{name}' is {number:g}, but its scale is 'log'; give a positive number")
        else:
            theta[posed.names.index(name)] = number
    return posed.to_search(theta)


def _sigmas(posed: Posed, given: Any, mistakes: list[str]) -> list[float]:
    """Return the true value of each sigma that is eliminated."""
    labels = [name or "sigma" for name in posed.groups]
    if not labels:
        if given is not None:
            mistakes.append("sigma is given, but the problem knows all standard deviations; leave it out")
        return []
    if isinstance(given, Mapping):
        values = named("sigma", given, mistakes)
        mistakes += [f"sigma: '{n}' is unknown nowhere: {suggest(n, labels)}" for n in values if n not in labels]
    else:
        values = {} if given is None else dict.fromkeys(labels, given)
    out: list[float] = []
    for name in labels:
        number = real(values.get(name))
        if number is None or not 0.0 < number < np.inf:
            shown = "missing" if values.get(name) is None else text(values[name])
            mistakes.append(f"the true standard deviation '{name}' is {shown}; give sigma=, a positive number")
        out.append(number or 1.0)
    return out


def _at_truth(posed: Posed, theta: np.ndarray[Any, np.dtype[np.float64]], sigmas: list[float], seed: int) -> Redrawn:
    """Make the recipe of data at true values."""
    staged = SingleShooting().transcribe(posed, theta).explicit()
    at = staged.evaluate(theta)
    if not at.ok:
        check("coverage", [f"the model cannot be simulated at the truth ({staged.explain(theta)}); give other values"])
    predictions, spreads, _ = (np.concatenate(part) for part in zip(*staged.standardised(theta), strict=True))
    observed = [c.observed[j] for c in posed.conditions for j in np.nonzero(c.points.mask)[1]]
    factor = np.append(sigmas, 1.0)[np.array([-1 if of is None else of.group for of in observed])]
    return Redrawn("parametric", predictions, spreads * factor, np.full(predictions.size, np.nan), seed)
