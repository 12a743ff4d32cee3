"""`bootstrap`: draw data sets with the scatter of the fit, fit each, and evaluate the estimates.

result --recipe--> data sets --fit (here, processes, executor)--> draws of the estimates --> errors, intervals, bands
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import (
    is_count,
    is_one_of,
    level_rule,
    option_mistakes,
    rng_mistakes,
    shorten_repr,
    within_reason,
)
from castfit._support.arrays import Array
from castfit._support.json_codec import check_shapes, rebuild_value
from castfit._support.public_names import public
from castfit._support.renamed import accept_old_names
from castfit._support.reprs import join_limited
from castfit._support.status import InputError, raise_if_mistakes
from castfit._support.text_tables import TabularReport, TextTable, format_interval, format_to_error
from castfit._support.time_limit import guarded
from castfit.drive.run.checkpoint import describe_estimate
from castfit.drive.run.run_result import SavedResult, build_columns
from castfit.drive.search.multistart.sampling import draw
from castfit.drive.uncertainty.draws import DrawsResult
from castfit.drive.uncertainty.inputs import as_seed, solved_problem
from castfit.drive.uncertainty.refits.bootstrap_intervals import acceleration, bca, percentile, worst_case_limits
from castfit.drive.uncertainty.refits.descent import WarmStartedRefits
from castfit.drive.uncertainty.refits.leave_out import LeaveOutResult
from castfit.drive.uncertainty.refits.resampling import KINDS, case_deletion, kind_mistakes, resampling
from castfit.drive.uncertainty.refits.run import (
    Refit,
    RefitPlan,
    RefitProgress,
    RefitsResult,
    read_rows,
    refit_all,
    refit_options,
)
from castfit.fit.methods import Solver, Transcription
from castfit.problem.fingerprint import digest
from castfit.problem.parameter_map import natural_value
from castfit.result.result import Result, select_table_names

METHODS = ("percentile", "bca")
_MIN_DRAWS_FOR_SPREAD = 2  # draws from which standard deviations are computed


@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class BootstrapResult(DrawsResult, RefitsResult, SavedResult, TabularReport):
    """Result of a bootstrap: estimates from data sets that were drawn about a fit.

    Attributes
    ----------
    result : Result
        The fit.
    kind : str
        Method by which data were drawn.
    rows : tuple of Refit
        One for each data set, also if its fit failed or was not run.
    message : str
        Summary of how the run ended.
    time : float
        Seconds; after a resumed run, those of its last part.
    header : dict
        The problem's fingerprint and the options, for `save`.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> drawn = cf.bootstrap(result, samples=20, rng=0)
    >>> lower, upper = drawn.confidence_intervals(0.8, method="percentile")["k1"]
    >>> 0 < lower < upper
    True
    """

    _driver, _contents = "bootstrap", "a bootstrap"

    result: Result
    kind: str
    rows: tuple[Refit, ...]
    message: str
    time: float
    header: Mapping[str, Any]

    @cached_property
    def solved(self) -> tuple[Refit, ...]:
        """The rows of fits that succeeded, from which all statistics are computed."""
        return tuple(row for row in self.rows if row.success)

    @property
    def thetas(self) -> Array:
        """The estimates of all fits that succeeded, search scale, (n, n_theta)."""
        return self._thetas

    @cached_property
    def _thetas(self) -> Array:
        return np.array([row.theta for row in self.solved]).reshape(-1, len(self.names))

    @property
    def sigmas(self) -> dict[str, Array]:
        """The unknown standard deviations that were eliminated, (n,) each: the most likely values."""
        return {name: np.array([row.sigmas.get(name, np.nan) for row in self.solved]) for name in self.result.sigmas}

    @property
    def table(self) -> dict[str, NDArray[Any]]:
        """All data sets as columns, for instance for ``pandas.DataFrame(drawn.table)``; NaN where a fit failed."""
        cells = {
            "data set": attrgetter("index"),
            **self._build_field_columns("status", "chi2", "start", "iterations", "time"),
        }
        values_by_index = dict(zip((row.index for row in self.solved), self.natural.tolist(), strict=True))
        absent = dict.fromkeys(self.names, np.nan)

        def values(row: Refit) -> dict[str, float]:
            return (
                dict(zip(self.names, values_by_index[row.index], strict=True))
                if row.index in values_by_index
                else absent
            )

        return build_columns(self.rows, cells, values=values)

    @property
    def covariance(self) -> Array:
        """Covariance of the draws, natural scale, (n_theta, n_theta)."""
        if len(self.solved) < _MIN_DRAWS_FOR_SPREAD:
            return np.full((len(self.names), len(self.names)), np.nan)
        return np.atleast_2d(np.cov(self.natural, rowvar=False))

    @property
    def standard_errors(self) -> dict[str, float]:
        """Standard deviations of the draws, natural scale."""
        with np.errstate(invalid="ignore"):
            return dict(zip(self.names, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    @property
    def correlation(self) -> Array:
        """Correlation of the draws, (n_theta, n_theta); NaN for quantities without scatter."""
        errors = np.sqrt(np.diag(self.covariance))
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.covariance / errors[:, None] / errors

    @property
    def bias(self) -> dict[str, float]:
        """Excess of the mean of the draws over the estimate, natural scale; subtract it to correct the estimate."""
        mean = self.natural.mean(axis=0) if len(self.solved) else np.full(len(self.names), np.nan)
        return {n: float(m) - self.result.values[n] for n, m in zip(self.names, mean, strict=True)}

    @accept_old_names(level="confidence_level")
    def confidence_intervals(
        self, confidence_level: float | None = None, method: str = "bca", *, jackknife: LeaveOutResult | None = None
    ) -> dict[str, tuple[float, float]]:
        """Return the interval of each estimate.

        Parameters
        ----------
        confidence_level : float, optional
            By default the result's `confidence_level`.
        method : {"bca", "percentile"}
            "percentile" uses quantiles of the draws; "bca" corrects them for bias and for a spread that changes with
            the quantity, which requires the influence of each measurement on the estimates.
        jackknife : LeaveOutResult, optional
            Influences for "bca" from `castfit.leave_out`, of experiments or of values.  By default the linear
            approximation at the estimate is used, which needs no fits.

        Returns
        -------
        dict
            NaN if there are too few draws for the level, and with "bca" if all draws lie on one side of the estimate.
        """
        level = self.result.confidence_level if confidence_level is None else confidence_level
        jackknife_result: Any = jackknife
        mistakes = option_mistakes(
            level_rule(confidence_level, level),
            ("method", method, is_one_of(method, *METHODS), "choose 'bca' or 'percentile'"),
            (
                "jackknife",
                jackknife,
                jackknife_result is None or isinstance(jackknife_result, LeaveOutResult),
                "expected castfit.leave_out(...)",
            ),
        )
        if jackknife_result is not None and is_one_of(method, "percentile"):
            mistakes.append("jackknife has an effect only with method='bca'; remove it")
        if isinstance(jackknife_result, LeaveOutResult) and jackknife_result.names != self.names:
            mistakes.append("jackknife belongs to another fit; pass castfit.leave_out of the same result")
        raise_if_mistakes("confidence_intervals", mistakes)
        level = float(level)
        if method == "percentile":
            pairs = [percentile(column, level) for column in self.thetas.T]
        else:
            a = self._acceleration if jackknife_result is None else acceleration(jackknife_result.moves)
            triples = zip(self.thetas.T, self.result.theta.tolist(), a.tolist(), strict=True)
            pairs = [bca(column, estimate, factor, level) for column, estimate, factor in triples]
        ends = natural_value(np.array(pairs).reshape(-1, 2), self.result.log[:, None])
        return {name: (low, high) for name, (low, high) in zip(self.names, ends.tolist(), strict=True)}

    @cached_property
    def _acceleration(self) -> Array:
        problem = self.result.problem
        if problem is None:
            message = "the loaded bootstrap has no model; call drawn.with_problem(problem) first"
            raise InputError("confidence_intervals", [message])
        compiled_problem = problem.posed.with_absolute_sigma(absolute_sigma=self.result.absolute_sigma)
        return acceleration(case_deletion(compiled_problem, self.result))

    @property
    def limits(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Intervals by method, the most reliable first, at the result's `confidence_level`."""
        methods = [m for m in METHODS[::-1] if m == "percentile" or self.result.problem is not None]
        return {"BCa" if m == "bca" else m: self.confidence_intervals(method=m) for m in methods}

    def _records(self) -> Iterable[Mapping[str, Any]]:
        first_record = {"kind": self.kind, "samples": len(self.rows), "result": self.result}
        return [first_record, *({"row": row} for row in self.rows if row.finished)]

    @classmethod
    def _restored(cls, header: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> BootstrapResult | None:
        if not records:
            return None
        first_record = records[0]
        rows_by_index = read_rows(records)
        rows = tuple(
            rows_by_index.get(i, Refit(index=i))
            for i in range(max(int(first_record["samples"]), *(i + 1 for i in rows_by_index), 0))
        )
        message = f"Loaded from a file: {len(rows_by_index)} of {len(rows)} data sets were fitted."
        return cls(rebuild_value(Result, first_record["result"]), first_record["kind"], rows, message, np.nan, header)

    def use_all(self) -> None:
        """Compute all that needs no problem."""
        self.summary()
        check_shapes((f"row {r.index}", r.theta, (len(self.result.names),)) for r in self.rows if r.success)

    def summary(self) -> str:
        """Return the text that `print` shows."""
        failure_lines = [*self._failure_sheet().lines, *self._without(), ""] if self._failed else []
        return "\n".join(
            [*self._head(), "", *self._sheet().lines, *self._table_names[1], "", *failure_lines, *self._remarks()]
        )

    @property
    def parts(self) -> tuple[TextTable | str, ...]:
        """Parts of the summary: the method, the table, failed fits, and remarks about the intervals."""
        failure_parts = (self._failure_sheet(), *self._without()) if self._failed else ()
        return *self._head(), self._sheet(), *self._table_names[1], *failure_parts, *self._remarks()

    def _head(self) -> tuple[str, str]:
        duration_text = "" if np.isnan(self.time) else f", {self.time:.1f} s"
        return f"bootstrap, {self.kind}: {KINDS[self.kind]}{duration_text}", self.message

    @property
    def _table_names(self) -> tuple[tuple[str, ...], list[str]]:
        return select_table_names(self.names, "confidence_intervals()")

    def _sheet(self) -> TextTable:
        level = f"{100 * self.result.confidence_level:g} %"
        methods = [m for m in METHODS if m == "percentile" or self.result.problem is not None]
        intervals = [self.confidence_intervals(method=m) for m in methods] + [self.result.confidence_intervals()]
        headers = [f"{level} {'BCa' if m == 'bca' else m}" for m in methods] + [f"{level} linear"]
        rows: list[tuple[str, ...]] = []
        for name in self._table_names[0]:
            value = self.result.values[name]
            error, linear = self.standard_errors[name], self.result.standard_errors[name]
            cells = [
                format_interval(pairs[name], value) if np.isfinite(pairs[name]).all() else "-" for pairs in intervals
            ]
            rows.append(
                (name, format_to_error(value, error), f"{self.bias[name]:.2g}", _error(error), _error(linear), *cells)
            )
        return TextTable(("", ">value", ">bias", ">std. error", ">linear", *headers), tuple(rows))

    def _without(self) -> list[str]:
        """Describe how much the failed fits could widen the intervals."""
        failed = len(self._failed)
        level = self.result.confidence_level
        growth_texts: list[str] = []
        for name, column in zip(self.names, self.thetas.T, strict=True):
            low, high = percentile(column, level)
            lower_limit, upper_limit = worst_case_limits(column, failed, level)
            growth_texts.append(f"{name} {_growth(high - low, upper_limit - lower_limit)}")
        growth_text = ", ".join(growth_texts[:6]) + (", ..." if len(growth_texts) > 6 else "")
        return [
            f"{failed} of {failed + len(self.solved)} fits failed; standard errors and intervals use the successful "
            "fits.",
            "If all failed fits were beyond one of the limits, the percentile intervals would be wider (estimation "
            f"scale): {growth_text}.",
        ]

    def _remarks(self) -> list[str]:
        messages: list[str] = []
        min_draws = int(np.ceil(2.0 / (1.0 - self.result.confidence_level))) - 1
        if len(self.solved) < min_draws:
            level = f"{100 * self.result.confidence_level:g} %"
            messages.append(
                f"{len(self.solved)} samples are too few for {level} intervals; at least {min_draws} are needed."
            )
        n_other_optimum = sum(row.has_other_optimum for row in self.solved)
        if n_other_optimum:
            messages.append(
                f"In {n_other_optimum} of {len(self.solved)} data sets another starting point led to a better optimum "
                "than the estimate did. The samples come from several optima."
            )
        names_at_bound = [n for n in self.names if n in self.result.active]
        if names_at_bound:
            messages.append(
                f"{join_limited(names_at_bound)} is at a bound at the estimate, and its samples accumulate there."
            )
        compiled_problem = None if self.result.problem is None else self.result.problem.posed
        if compiled_problem is not None and compiled_problem.every_prior:
            messages.append(
                "The priors were not resampled. If they carry information, the uncertainty is larger than the scatter "
                "of the estimates."
            )
        if compiled_problem is not None and len(self.solved) >= min_draws:
            interval_pair = self.confidence_intervals(), self.confidence_intervals(method="percentile")
            undetermined_names = [
                n for n in self.names if np.isnan(interval_pair[0][n]).any() and np.isfinite(interval_pair[1][n]).all()
            ]
            if undetermined_names:
                messages.append(
                    f"BCa limits of {join_limited(undetermined_names)} need extreme quantiles that {len(self.solved)} "
                    "samples do not determine; increase samples."
                )
        if compiled_problem is not None:
            messages.append(
                "BCa acceleration: from leaving out one measurement at a time (linear approximation at the estimate)."
            )
        return messages

    def __repr__(self) -> str:
        failed = len(self._failed)
        return (
            f"BootstrapResult({self.kind}: {len(self.solved)} samples of {shorten_repr(list(self.names))}, "
            f"{failed} failed)"
        )


def _error(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "inf" if value > 0 else "-"


def _growth(old_width: float, new_width: float) -> str:
    if not np.isfinite(new_width):
        return "without limit"
    return f"by {100 * (new_width / old_width - 1):.0f} %" if old_width > 0.0 else "as they are"


@guarded
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
    callback: Callable[[RefitProgress], Any] | None = None,
    verbose: int | None = None,
) -> BootstrapResult:
    """Estimate uncertainty by fits to data sets that are drawn about a fit.

    Every fit starts at the estimate, with its whole trajectory.  The numbers do not depend on `workers`, because the
    data of each fit come from a separate random stream.  Priors are not resampled: if they carry information, the
    scatter of the estimates is smaller than their uncertainty; `castfit.sample` includes both.

    Parameters
    ----------
    result : Result
        Of a fit that succeeded, with its problem.
    kind : {"residual", "wild", "parametric"}
        "residual" adds to each prediction the residual of another value of the same output, scaled to the size of an
        error by its leverage; it assumes only that all errors of an output have the same distribution.  "wild" keeps
        the size of each value's own residual and draws its sign, for errors of unknown, unequal size.  "parametric"
        draws from the noise models at the estimates, with estimated sigmas corrected for bias.  The first two kinds are
        unsupported for counts, values with limits of detection and user-defined likelihoods.
    samples : int
        Number of data sets: about 100 for standard errors, 1000 for limits of 95 % intervals.
    rng : int or numpy.random.Generator
    transcription, solver : optional
        As for `fit`; by default those of the result, preceded by a descent from the estimate of two or three
        integrations if only the estimates have to change.
    starts : int or sequence of mappings
        Additional starts of each data set, drawn as by `multistart`, or given; the best optimum is used.
    limits : mapping from quantity name, optional
        Limits of the drawn starts, as for `multistart`; by default the bounds.
    workers : int or concurrent.futures.Executor
        As for `multistart`.
    max_time, fit_max_time : float
        Seconds for the run, and for one data set.  The result has the fits that ended by then.
    checkpoint : str or Path, optional
        A file to which every fit is written at once.
    resume : bool
        Whether to continue the checkpoint if it exists; finished fits are not repeated.  `samples` may be larger.
    callback : callable, optional
        Called in this process with a `RefitProgress` after each fit, and every two seconds; no more are run
        when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the run (live on a terminal), one line per fit.  By default a line on a terminal or in a
        notebook, from two seconds on until the end.

    Returns
    -------
    BootstrapResult
        Failed fits are counted by their cause, and the summary bounds their effect on the intervals.

    Raises
    ------
    InputError
        For misuse: a result that is no solution or has no problem, a kind that its noise does not allow, options out of
        range, a checkpoint of another run.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> drawn = cf.bootstrap(result, kind="parametric", samples=20, rng=0)
    >>> drawn
    BootstrapResult(parametric: 20 samples of ['k1', 'k2'], 0 failed)
    """
    is_known_kind, seed_mistakes = is_one_of(kind, *KINDS), rng_mistakes(rng)
    mistakes = option_mistakes(
        ("kind", kind, is_known_kind, f"choose {', '.join(map(repr, KINDS))}"),
        within_reason("samples", samples, 10**5),
    )
    mistakes += seed_mistakes
    is_method_requested = transcription is not None or solver is not None
    requested_transcription, chosen_solver, run = refit_options(
        transcription, solver, mistakes, result=result, workers=workers, max_time=max_time, fit_max_time=fit_max_time,
        callback=callback, verbose=verbose, checkpoint=checkpoint, resume=resume,
    )  # fmt: skip
    compiled_problem = solved_problem("bootstrap", result, mistakes)
    seed = 0 if seed_mistakes else as_seed(rng)
    mistakes += kind_mistakes(kind, compiled_problem, result) if is_known_kind else []
    has_no_starts = is_count(starts, 0, 0)
    if isinstance(starts, bool) or (isinstance(starts, (int, np.integer)) and starts < 0):
        mistakes.append(
            f"starts is {shorten_repr(starts)}; expected the number of additional starting points, 0 for none"
        )
        has_no_starts = True
    other_starts = (
        () if has_no_starts or mistakes else draw(compiled_problem, starts, None, limits, seed, mistakes).initial_starts
    )
    if has_no_starts and limits is not None:
        mistakes.append("limits has an effect only with starts > 0; set starts=3, for example, or remove limits")
    raise_if_mistakes("bootstrap", mistakes)
    recipe = resampling(kind, compiled_problem, result, seed)
    plan = RefitPlan(
        compiled_problem, requested_transcription, chosen_solver, recipe.problem, tuple(other_starts)
    ).with_initial_result(result, is_method_requested=is_method_requested)
    if not is_method_requested:
        plan = replace(plan, descent=WarmStartedRefits(compiled_problem, result.integrator, result.theta, result.cost))
    exact_digest = digest(result.theta, recipe.predictions, recipe.spreads, recipe.errors)
    estimate = describe_estimate(result.values, result.standard_errors, exact_digest)
    entries = {"kind": kind, "seed": seed, "estimate": estimate, "starts": [dict(start) for start in other_starts]}
    first_record = {"kind": kind, "samples": int(samples), "result": result}
    blank = [Refit(index=i) for i in range(int(samples))]
    return BootstrapResult(result, kind, *refit_all("bootstrap", "data sets", plan, blank, run, entries, first_record))
