"""`leave_out`: fit without each experiment, or without each value, in turn: the influence of single data.

The jackknife follows from these fits: with  theta_(i)  the estimate without i of n,

    bias            (n - 1) (mean theta_(i) - theta)
    standard error  sqrt((n - 1) / n  sum (theta_(i) - mean)^2)        [Efron and Tibshirani 1993, chapter 11]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import is_one_of, option_mistakes
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import align_columns, format_to_error
from castfit._support.ties import first_argmax, stable_order
from castfit._support.time_limit import guarded
from castfit.drive.run.checkpoint import describe_estimate
from castfit.drive.run.run_result import build_columns
from castfit.drive.uncertainty.inputs import solved_problem
from castfit.drive.uncertainty.refits.run import (
    Refit,
    RefitPlan,
    RefitProgress,
    RefitsResult,
    refit_all,
    refit_options,
)
from castfit.fit.methods import Solver, Transcription
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.fingerprint import digest
from castfit.problem.parameter_map import natural_value
from castfit.result.residuals import replicates
from castfit.result.result import Result, select_table_names

_MAX_SUMMARY_ROWS = 12  # rows that a summary shows
_INFLUENCE_SHIFT_SE = 2.0  # standard errors: data that shift an estimate by at least this are reported


def _without_experiment(compiled_problem: CompiledProblem, index: int) -> CompiledProblem:
    return compiled_problem.with_experiments([c.name for i, c in enumerate(compiled_problem.conditions) if i != index])


def _without_value(compiled_problem: CompiledProblem, index: int) -> CompiledProblem:
    condition, i, j = _values(compiled_problem)[index]
    return compiled_problem.without_value(condition.name, i, compiled_problem.outputs[j])


def _values(compiled_problem: CompiledProblem) -> list[tuple[Condition, int, int]]:
    """List the positions of the measured values by experiment, time and output."""
    return [(c, int(i), int(j)) for c in compiled_problem.conditions for i, j in np.argwhere(c.points.mask)]


@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class LeaveOutResult(RefitsResult):
    """Estimates without each experiment, or each value, in turn.

    Attributes
    ----------
    result : Result
        The fit to everything.
    each : {"experiment", "value"}
        What was left out.
    rows : tuple of Refit
        One for each, by its name.
    message : str
        How the run ended, in words.
    time : float
        Seconds.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> without = cf.leave_out(result, "value")
    >>> len(without.rows) == result.n_data
    True
    """

    result: Result
    each: str
    rows: tuple[Refit, ...]
    message: str
    time: float

    @property
    def names(self) -> tuple[str, ...]:
        """The estimated quantities."""
        return self.result.names

    @cached_property
    def thetas(self) -> Array:
        """Estimates of each row, search scale, (n_rows, n_theta); NaN where there is none."""
        out = np.full((len(self.rows), len(self.names)), np.nan)
        for i, (row, unseen) in enumerate(zip(self.rows, self.unseen, strict=True)):
            if row.success:
                out[i] = row.theta
                out[i, [self.names.index(n) for n in unseen]] = np.nan
        return out

    @property
    def unseen(self) -> tuple[tuple[str, ...], ...]:
        """Quantities, per row, that the remaining data do not determine: they have no estimates there."""
        return tuple(tuple(row.requested_pairs) for row in self.rows)

    @property
    def moves(self) -> Array:
        """Changes of the estimates in search scale, (n_rows, n_theta); NaN if there is no estimate."""
        return self.thetas - self.result.theta

    @property
    def shifts(self) -> dict[str, Array]:
        """Shifts of each quantity in standard errors of the fit to all data, (n_rows,); NaN if unknown."""
        slope = np.where(self.result.log, [self.result.values[n] for n in self.names], 1.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            errors = np.array([self.result.standard_errors[n] for n in self.names]) / slope
            relative_shifts = (self.thetas - self.result.theta) / errors
        return dict(zip(self.names, np.where(np.isfinite(relative_shifts), relative_shifts, np.nan).T, strict=True))

    @property
    def standard_errors(self) -> dict[str, float]:
        """Jackknife standard errors, natural scale.

        NaN if fits failed or fewer than two of them determine a quantity.
        """
        n = len(self.rows)
        natural_values = self._natural
        with np.errstate(invalid="ignore"):
            spread = np.sqrt((n - 1) / n * np.sum((natural_values - natural_values.mean(axis=0)) ** 2, axis=0))
        return dict(zip(self.names, (spread if n > 1 else spread * np.nan).tolist(), strict=True))

    @property
    def bias(self) -> dict[str, float]:
        """Jackknife bias, natural scale; NaN as for `standard_errors`."""
        n, mean = len(self.rows), self._natural.mean(axis=0)
        return {k: (n - 1) * (float(m) - self.result.values[k]) for k, m in zip(self.names, mean, strict=True)}

    @property
    def _natural(self) -> Array:
        return natural_value(self.thetas, self.result.log)

    @property
    def table(self) -> dict[str, NDArray[Any]]:
        """All rows as columns, for instance for ``pandas.DataFrame(left.table)``."""
        cells = {"without": attrgetter("name"), **self._build_field_columns("status", "chi2", "time")}
        values_by_index = dict(zip((row.index for row in self.rows), self._natural.tolist(), strict=True))
        return build_columns(
            self.rows, cells, values=lambda row: dict(zip(self.names, values_by_index[row.index], strict=True))
        )

    def summary(self) -> str:
        """Return the text that `print` shows."""
        lines = [f"left out, one {self.each} at a time: {self.time:.1f} s", self.message, ""]
        lines += self._table()
        if self._failed:
            failure_note = (
                f"{len(self._failed)} of {len(self.rows)} fits failed, so jackknife standard errors are not available."
            )
            lines += ["", *self._failure_sheet().lines, failure_note]
        return "\n".join([*lines, "", *self._remarks()]).rstrip()

    def _table(self) -> list[str]:
        max_shifts = [float(np.nan_to_num(max((abs(s[i]) for s in self.shifts.values()), default=0.0)))
               for i in range(len(self.rows))]  # fmt: skip
        order = stable_order(max_shifts, descending=True) if self.each == "value" else np.arange(len(max_shifts))
        shown_indices: list[int] = order[:_MAX_SUMMARY_ROWS].tolist()
        names, hint_lines = select_table_names(self.names, "table")
        rows: list[tuple[str, ...]] = [("without", "status", *names)]
        rows.append(("nothing", self.result.status.value, *self._cells(names, self.result.values)))
        for i in shown_indices:
            estimates = dict(zip(self.names, self._natural[i].tolist(), strict=True))
            rows.append((self.rows[i].name, self.rows[i].status, *self._cells(names, estimates)))
        n_more = len(max_shifts) - len(shown_indices)
        remainder_lines = (
            [f"and {n_more} more with smaller shifts" if self.each == "value" else f"and {n_more} more"]
            if n_more > 0
            else []
        )
        return [*align_columns(rows, "<<" + ">" * len(names)), *remainder_lines, *hint_lines]

    def _cells(self, names: Iterable[str], values: Mapping[str, float]) -> list[str]:
        errors = self.result.standard_errors
        return [format_to_error(values[n], errors[n]) if np.isfinite(values[n]) else "-" for n in names]

    def _remarks(self) -> list[str]:
        messages: list[str] = []
        unknown_messages: list[str] = []
        for name, shift in self.shifts.items():
            if not np.isfinite(shift).any():
                continue
            i = first_argmax(np.abs(shift))
            if abs(shift[i]) >= _INFLUENCE_SHIFT_SE:
                messages.append(
                    f"Removing {self.rows[i].name} changes {name} by {shift[i]:+.2g} standard errors: check these data."
                )
        for row, names in zip(self.rows, self.unseen, strict=True):
            experiment_suffix = f"[{row.name[1:-1]}]"  # local parameters of the experiment that is left out
            unseen = [name for name in names if self.each == "value" or not name.endswith(experiment_suffix)]
            if unseen:
                unknown_messages.append(f"Without {row.name}, {', '.join(unseen)} would not be identifiable.")
        messages = [*_first_lines(messages), *_first_lines(unknown_messages)]
        if not messages and all(row.success for row in self.rows):
            messages.append(f"No {self.each} changes an estimate by {_INFLUENCE_SHIFT_SE:g} standard errors or more.")
        return messages

    def __repr__(self) -> str:
        return f"LeaveOutResult({len(self.rows)} fits, each without one {self.each})"


@guarded
def leave_out(
    result: Result,
    each: str = "experiment",
    *,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    fit_max_time: float = np.inf,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[RefitProgress], Any] | None = None,
    verbose: int | None = None,
) -> LeaveOutResult:
    """Fit without each experiment, or each measured value, in turn.

    Parameters
    ----------
    result : Result
        Of a fit that succeeded, with its problem; each fit starts there.
    each : {"experiment", "value"}
        What is left out.
    transcription, solver, workers, max_time, fit_max_time, checkpoint, resume, callback, verbose
        As for `bootstrap`.

    Returns
    -------
    LeaveOutResult
        A row for each fit; the summary names influential data.

    Raises
    ------
    InputError
        For misuse, and for experiments if there is only one.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> without = cf.leave_out(result, "value")
    >>> without
    LeaveOutResult(14 fits, each without one value)
    """
    mistakes = option_mistakes(("each", each, is_one_of(each, "experiment", "value"), "choose 'experiment' or 'value'"))
    is_method_requested = transcription is not None or solver is not None
    requested_transcription, chosen_solver, run = refit_options(
        transcription, solver, mistakes, result=result, workers=workers, max_time=max_time, fit_max_time=fit_max_time,
        callback=callback, verbose=verbose, checkpoint=checkpoint, resume=resume,
    )  # fmt: skip
    compiled_problem = solved_problem("leave_out", result, mistakes)
    if is_one_of(each, "experiment") and len(compiled_problem.conditions) == 1:
        mistakes.append("the problem has one experiment; use leave_out(result, 'value') or bootstrap(result)")
    if is_one_of(each, "value") and compiled_problem.n_data == 1:
        mistakes.append("the problem has one measurement, so none can be left out")
    raise_if_mistakes("leave_out", mistakes)
    recipe = _without_experiment if each == "experiment" else _without_value
    plan = RefitPlan(
        compiled_problem, requested_transcription, chosen_solver, recipe, reads=_undetermined
    ).with_initial_result(result, is_method_requested=is_method_requested)
    blank = [Refit(index=i, name=name) for i, name in enumerate(_names(compiled_problem, each))]
    entries = {"each": each, "estimate": describe_estimate(result.values, result.standard_errors, digest(result.theta))}
    outcome = refit_all("leave_out", f"fits without one {each}", plan, blank, run, entries, {"each": each})
    return LeaveOutResult(result, each, *outcome[:3])


def _first_lines(lines: list[str]) -> list[str]:
    """Return the lines that a summary shows, and the number of remaining ones."""
    n_more = len(lines) - _MAX_SUMMARY_ROWS
    return [*lines[:_MAX_SUMMARY_ROWS], f"And {n_more:,} more such lines."] if n_more > 0 else lines


def _names(compiled_problem: CompiledProblem, each: str) -> list[str]:
    if each == "experiment":
        return [f"'{c.name}'" for c in compiled_problem.conditions]
    numbers = {c.name: replicates(c.points.times, c.points.mask) for c in compiled_problem.conditions}
    names: list[str] = []
    for c, i, j in _values(compiled_problem):
        number, time = numbers[c.name], c.points.times[i]
        replicate_text = f" ({number[i, j] + 1})" if number[c.points.times == time, j].max() else ""
        experiment_text = f" of '{c.name}'" if len(numbers) > 1 else ""
        time_text = "at rest" if c.is_steady_state else f"at {time:g}"
        names.append(f"{compiled_problem.outputs[j]} {time_text}{replicate_text}{experiment_text}")
    return names


def _undetermined(result: Result) -> dict[str, tuple[float, float]]:
    """Return the quantities that the data of a fit do not determine."""
    return {n: (np.nan, np.nan) for n, error in result.standard_errors.items() if np.isposinf(error)}
