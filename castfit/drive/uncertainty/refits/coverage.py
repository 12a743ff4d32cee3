"""`coverage`: how often intervals contain the truth, for a model, its measurement times and its noise.

truth --noise models--> data sets --fit (here, processes, executor)--> intervals --> share that contains the truth
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import (
    is_one_of,
    level_rule,
    option_mistakes,
    read_mapping,
    read_real,
    rng_mistakes,
    shorten_repr,
    within_reason,
)
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.renamed import accept_old_names, with_old_names
from castfit._support.status import raise_if_mistakes, suggest
from castfit._support.text_tables import align_columns, format_to_error
from castfit._support.time_limit import guarded
from castfit.drive.run.checkpoint import describe_estimate, describe_method
from castfit.drive.run.options import require_problem
from castfit.drive.run.run_result import build_columns
from castfit.drive.uncertainty.inputs import as_seed, solved_problem
from castfit.drive.uncertainty.profile.profile import profile_limits
from castfit.drive.uncertainty.refits.resampling import Resampling, drawing_mistakes, kind_mistakes, resampling
from castfit.drive.uncertainty.refits.run import (
    Refit,
    RefitPlan,
    RefitProgress,
    RefitsResult,
    refit_all,
    refit_options,
)
from castfit.fit.methods import Solver, Transcription
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.fingerprint import digest
from castfit.problem.problem import Posable
from castfit.result.covariance import quantile
from castfit.result.residuals import groups
from castfit.result.result import Result
from castfit.transcribe.single_shooting import SingleShooting

_COVERAGE_TEST_LEVEL = 0.99  # probability of the range of a share, outside of which a deviation is reported

Intervals = Callable[[Result, float], Mapping[str, tuple[float, float]]]
"""Returns the intervals of a result at a level, by name; defined in a module, so that processes can call it."""


@dataclass(frozen=True)
class Covered:
    """Coverage of the intervals of one quantity, and bias of its estimates.

    intervals : number of intervals
    share, error : the fraction of them that contains the truth, NaN without any, and its binomial standard error
    below, above : the fractions that lie entirely below and above the truth
    bias, bias_error : mean estimate minus truth, natural scale, and its standard error from the number of data sets
    scatter, standard_error : standard deviation of the estimates; mean of the standard errors that the fits give
    width : mean width of the intervals
    """

    truth: float
    intervals: int
    share: float
    error: float
    below: float
    above: float
    bias: float
    bias_error: float
    scatter: float
    standard_error: float
    width: float

    def verdict(self, level: float) -> str:
        """Return a phrase that compares the observed coverage with the nominal level."""
        if not self.intervals:
            return "no interval"
        low, high = wilson(self.share, self.intervals, _COVERAGE_TEST_LEVEL)
        if low <= level <= high:
            return "as promised"
        return "too narrow" if self.share < level else "too wide"


def wilson(share: float, count: int, level: float) -> tuple[float, float]:
    """Compute the Wilson score interval of a probability from an observed share of `count` cases [Wilson 1927]."""
    z2 = quantile(level, np.inf) ** 2 / count
    middle = (share + z2 / 2) / (1 + z2)
    reach = np.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return float(middle - reach), float(middle + reach)


@with_old_names(level="confidence_level")
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class CoverageResult(RefitsResult):
    """Result of a coverage study: how often intervals contain the truth, for data sets drawn at the truth.

    Attributes
    ----------
    posed : Posed
        The design.
    truth : dict
        The true values by name.
    confidence_level : float
        The nominal probability.
    intervals : str
        Kind of intervals.
    rows : tuple of Refit
        One for each data set.
    message : str
        Summary of how the run ended.
    time : float
        Seconds.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> checked = cf.coverage(result, samples=8)
    >>> 0 <= checked.quantities["k1"].share <= 1
    True
    """

    posed: CompiledProblem
    truth: Mapping[str, float]
    confidence_level: float
    intervals: str
    rows: tuple[Refit, ...]
    message: str
    time: float

    @cached_property
    def quantities(self) -> dict[str, Covered]:
        """Coverage results of each quantity."""
        solved = [row for row in self.rows if row.success]
        thetas = np.array([row.theta for row in solved]).reshape(-1, len(self.posed.names))
        with np.errstate(over="ignore"):
            natural = self.posed.to_natural(thetas)
        return {
            name: _covered(self.truth[name], solved, name, natural[:, self.posed.names.index(name)])
            for name in self.truth
        }

    @property
    def share(self) -> float:
        """The fraction of all intervals that contains the truth."""
        entries = [c for c in self.quantities.values() if c.intervals]
        total = sum(c.intervals for c in entries)
        return sum(c.share * c.intervals for c in entries) / total if total else np.nan

    @property
    def table(self) -> dict[str, NDArray[Any]]:
        """All data sets as columns: status, estimates, and the ends of every interval; NaN if there is none."""
        cells = {"data set": attrgetter("index"), **self._build_field_columns("status", "chi2")}
        for k, side in enumerate(("lower", "upper")):
            for name in self.truth:
                cells[f"{name} {side}"] = _end(name, k)
        return build_columns(self.rows, cells)

    def summary(self) -> str:
        """Return the text that `print` shows."""
        headers = ("", "truth", "inside", "below", "above", "bias", "scatter", "std. error", "width", "")
        rows: list[tuple[str, ...]] = [headers]
        for name, c in self.quantities.items():
            coverage_text = f"{100 * c.share:.1f} ± {100 * c.error:.1f} %"
            sides = (f"{100 * c.below:.1f} %", f"{100 * c.above:.1f} %")
            bias = f"{c.bias:.2g} ± {c.bias_error:.1g}"
            figures = (f"{c.scatter:.3g}", f"{c.standard_error:.3g}", f"{c.width:.3g}")
            rows.append(
                (
                    name,
                    format_to_error(c.truth, c.scatter),
                    coverage_text,
                    *sides,
                    bias,
                    *figures,
                    c.verdict(self.confidence_level),
                )
            )
        count = f"{self.fitted} data sets"
        level = f"{100 * self.confidence_level:g} %"
        lines = [f"coverage of {self.intervals} intervals, nominal {level}, {count}: {self.time:.1f} s"]
        lines += [self.message, "", *align_columns(rows, "<" + ">" * 8 + "<")]
        failed = len(self._failed)
        if failed:
            min_share = self.share * self.fitted / (self.fitted + failed) if self.fitted else 0.0
            lines += ["", *self._failure_sheet().lines]
            lines.append(
                f"{failed} fits failed and have no interval; counting them as misses, the coverage would be "
                f"{100 * min_share:.1f} %."
            )
        n_missing = {n: self.fitted - c.intervals for n, c in self.quantities.items() if c.intervals < self.fitted}
        if n_missing:
            missing_text = ", ".join(f"{n} in {count}" for n, count in n_missing.items())
            lines += ["", f"No interval although the fit converged (at a bound, or not identifiable): {missing_text}."]
        return "\n".join(lines)

    def __repr__(self) -> str:
        share = f"{100 * self.share:.1f} %" if self.fitted else "none"
        level = f"{100 * self.confidence_level:g} %"
        return f"CoverageResult({self.intervals}, nominal {level}: {share} of {self.fitted} data sets)"


@accept_old_names(level="confidence_level")
@guarded
def coverage(
    problem: Posable | Result,
    truth: Mapping[str, float] | None = None,
    *,
    sigma: float | Mapping[str, float] | None = None,
    samples: int = 500,
    confidence_level: float = 0.95,
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
    callback: Callable[[RefitProgress], Any] | None = None,
    verbose: int | None = None,
) -> CoverageResult:
    """Fit data sets that are drawn at known values, and count the intervals that contain the known values.

    The problem defines the design: model, times, outputs, noise models and bounds.  Its measured values have no effect,
    except on standard deviations that are relative to them.

    Parameters
    ----------
    problem : Problem, Posed or Result
        The design; of a result, its estimates are the truth, sigmas included.
    truth : mapping from name to value, optional
        True values of estimated quantities, natural scale; others are at their guess.
    sigma : float or mapping from name to float, optional
        True values of unknown standard deviations, which the fits eliminate, by the names of `unknown`, or their
        outputs; a number for all.  A result contains them.
    samples : int
        Number of data sets; with 500, the standard error of a share of 0.95 is 0.01.
    confidence_level : float
        The nominal probability.
    intervals : {"linear", "profile"} or callable
        "linear" are those of ``result.confidence_intervals``, "profile" those of `castfit.profile`; or a function of a
        `Result` and a level that returns ``{name: (lower, upper)}``, defined in a module.
    start : {"truth", "guess"}
        Start of the fits.
    rng, transcription, solver, workers, max_time, fit_max_time, checkpoint, resume, callback, verbose
        As for `bootstrap`.

    Returns
    -------
    CoverageResult
        Per quantity the share of intervals that contain the truth, with its binomial error, bias and widths.

    Raises
    ------
    InputError
        For misuse: names that are not estimated, a missing sigma, noise models without samples, ...

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> checked = cf.coverage(result, samples=8)  # 500 tell something
    >>> checked.fitted, list(checked.quantities)
    (8, ['k1', 'k2'])
    """
    seed_mistakes = rng_mistakes(rng)
    number = read_real(confidence_level)
    mistakes = option_mistakes(
        within_reason("samples", samples, 10**5),
        level_rule(confidence_level, confidence_level),
        ("intervals", intervals, is_one_of(intervals, *KINDS) or callable(intervals),
         "choose 'linear' or 'profile', or pass a function of a Result and a level"),
        ("start", start, is_one_of(start, "truth", "guess"), "choose 'truth' or 'guess'"),
    )  # fmt: skip
    mistakes += seed_mistakes
    is_method_requested = transcription is not None or solver is not None
    requested_transcription, chosen_solver, run = refit_options(
        transcription, solver, mistakes, result=problem, workers=workers, max_time=max_time, fit_max_time=fit_max_time,
        callback=callback, verbose=verbose, checkpoint=checkpoint, resume=resume,
    )  # fmt: skip
    seed = 0 if seed_mistakes else as_seed(rng)
    if isinstance(problem, Result):
        compiled_problem = solved_problem("coverage", problem, mistakes)
        if truth is not None or sigma is not None:
            mistakes.append("truth and sigma are part of the result; to use other values pass its problem")
        mistakes += kind_mistakes("parametric", compiled_problem, problem)
        raise_if_mistakes("coverage", mistakes)
        theta, recipe = problem.theta, resampling("parametric", compiled_problem, problem, seed)
        sigmas, errors = problem.sigmas, problem.standard_errors
    else:
        require_problem("coverage", problem, mistakes)
        compiled_problem = problem.posed
        theta, sigmas = _theta(compiled_problem, truth, mistakes), _sigmas(compiled_problem, sigma, mistakes)
        errors = dict[str, float]()
        mistakes += drawing_mistakes(compiled_problem)
        raise_if_mistakes("coverage", mistakes)
        recipe = _at_truth(compiled_problem, theta, sigmas, seed)
    assert number is not None
    values = dict(zip(compiled_problem.names, compiled_problem.to_natural(theta).tolist(), strict=True))
    read_intervals = partial(_ends, KINDS[intervals] if isinstance(intervals, str) else intervals, number)
    plan = RefitPlan(compiled_problem, requested_transcription, chosen_solver, recipe.problem, reads=read_intervals)
    if isinstance(problem, Result) and start == "truth":
        plan = plan.with_initial_result(problem, is_method_requested=is_method_requested)
    else:
        plan = replace(plan, starts=({} if start == "guess" else values,))
    label = intervals if isinstance(intervals, str) else describe_method(intervals)
    entries = {
        "seed": seed, "confidence_level": number, "intervals": label, "start": start,
        "truth": describe_estimate(values | sigmas, errors, digest(theta, recipe.predictions, recipe.spreads)),
    }  # fmt: skip
    blank = [Refit(index=i) for i in range(int(samples))]
    outcome = refit_all("coverage", "data sets", plan, blank, run, entries, {"level": number, "intervals": label})
    return CoverageResult(compiled_problem, values, number, label, *outcome[:3])


def _linear(result: Result, level: float) -> Mapping[str, tuple[float, float]]:
    return result.confidence_intervals(level)


# Intervals by their names.
KINDS: Mapping[str, Intervals] = {"linear": _linear, "profile": profile_limits}


def _ends(intervals: Intervals, level: float, result: Result) -> dict[str, tuple[float, float]]:
    """Read intervals and standard errors from a fit."""
    intervals_by_name = intervals(result, level)
    errors = {f"standard error of {n}": (e, e) for n, e in result.standard_errors.items()}
    return {name: (float(low), float(high)) for name, (low, high) in intervals_by_name.items()} | errors


def _theta(compiled_problem: CompiledProblem, truth: Any, mistakes: list[str]) -> Array:
    theta = compiled_problem.to_natural(compiled_problem.guess)
    for name, value in read_mapping("truth", truth, mistakes).items():
        number = read_real(value)
        if name not in compiled_problem.names:
            mistakes.append(f"truth: '{name}' is not estimated: {suggest(name, compiled_problem.names)}")
            continue
        q = compiled_problem.quantities[compiled_problem.names.index(name)]
        if number is None or not np.isfinite(number) or not q.lower <= number <= q.upper:
            mistakes.append(f"truth: '{name}' is {shorten_repr(value)}; expected a number between its bounds")
        elif q.scale == "log" and number <= 0.0:
            mistakes.append(f"truth: '{name}' is {number:g}, but its scale is 'log'; expected a positive number")
        else:
            theta[compiled_problem.names.index(name)] = number
    return compiled_problem.to_search(theta)


def _sigmas(compiled_problem: CompiledProblem, sigma: Any, mistakes: list[str]) -> dict[str, float]:
    """Return the true value of each sigma that is eliminated."""
    labels = [name or "sigma" for name in compiled_problem.groups]
    if not labels:
        if sigma is not None:
            mistakes.append("sigma= was passed, but all standard deviations are known; remove it")
        return {}
    if isinstance(sigma, Mapping):
        values = read_mapping("sigma", sigma, mistakes)
        mistakes += [
            f"sigma: '{n}' is not an unknown standard deviation: {suggest(n, labels)}"
            for n in values
            if n not in labels
        ]
    else:
        values = {} if sigma is None else dict.fromkeys(labels, sigma)
    sigmas = dict[str, float]()
    for name in labels:
        number = read_real(values.get(name))
        if number is None or not 0.0 < number < np.inf:
            value_text = "missing" if values.get(name) is None else shorten_repr(values[name])
            mistakes.append(f"the true standard deviation '{name}' is {value_text}; set sigma= to a positive number")
        sigmas[name] = number or 1.0
    return sigmas


def _at_truth(compiled_problem: CompiledProblem, theta: Array, sigmas: Mapping[str, float], seed: int) -> Resampling:
    """Return the generator of data at true values."""
    staged = SingleShooting().transcribe(compiled_problem, theta).explicit()
    evaluation = staged.evaluate(theta)
    if not evaluation.ok:
        raise_if_mistakes(
            "coverage",
            [f"the model cannot be simulated at the true values ({staged.describe_failure(theta)}); pass other values"],
        )
    predictions, spreads, _ = (np.concatenate(part) for part in zip(*staged.standardised(theta), strict=True))
    spreads = spreads * np.append(list(sigmas.values()), 1.0)[groups(compiled_problem)]
    return Resampling("parametric", predictions, spreads, np.full(predictions.size, np.nan), seed)


def _end(name: str, k: int) -> Callable[[Refit], float]:
    return lambda row: row.requested_pairs.get(name, (np.nan, np.nan))[k]


def _covered(truth: float, solved: list[Refit], name: str, estimates: Array) -> Covered:
    ends = np.array([row.requested_pairs.get(name, (np.nan, np.nan)) for row in solved]).reshape(-1, 2)
    has_interval = np.isfinite(ends).any(axis=1) & ~np.isnan(ends).any(
        axis=1
    )  # an interval with one infinite end counts
    errors = np.array([row.requested_pairs.get(f"standard error of {name}", (np.nan, np.nan))[0] for row in solved])
    low: Array = ends[has_interval, 0]
    high: Array = ends[has_interval, 1]
    n, has_many_estimates = int(has_interval.sum()), estimates.size > 1
    share = float(np.mean((low <= truth) & (truth <= high))) if n else np.nan
    scatter = float(np.std(estimates, ddof=1)) if has_many_estimates else np.nan
    return Covered(
        truth=truth,
        intervals=n,
        share=share,
        error=float(np.sqrt(share * (1 - share) / n)) if n else np.nan,
        below=float(np.mean(high < truth)) if n else np.nan,
        above=float(np.mean(low > truth)) if n else np.nan,
        bias=float(np.mean(estimates)) - truth if estimates.size else np.nan,
        bias_error=scatter / np.sqrt(estimates.size) if has_many_estimates else np.nan,
        scatter=scatter,
        standard_error=float(np.mean(errors[has_interval])) if n else np.nan,
        width=float(np.mean(high - low)) if n else np.nan,
    )
