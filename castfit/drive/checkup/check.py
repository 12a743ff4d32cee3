"""`doctor`: checks of a fit and its problem, in under a minute by default, with advice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from castfit._support.arguments import is_count, option_mistakes, read_real, rng_mistakes
from castfit._support.blas_threads import one_blas_thread
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr, join_limited
from castfit._support.status import InputError, Status, raise_if_mistakes, unknown_names
from castfit._support.text_tables import TabularReport, TextTable
from castfit._support.time_limit import StopRequested, guarded, is_interrupted, with_deadline
from castfit.drive.checkup.examinations import (
    EXAMINATIONS,
    MIN_CHECK_SECONDS,
    NO_TIME_LEFT,
    CheckContext,
    report_skipped,
)
from castfit.drive.run.run_result import STOPS
from castfit.drive.uncertainty.inputs import problem_mistakes
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import Solver, Transcription, given_parts
from castfit.integrate import IntegratorOptions
from castfit.problem.problem import Posable, start_mistakes
from castfit.result.result import Result

_INTERRUPTED = "interrupted."
_MAX_FIT_TIME_FRACTION = 0.3  # fraction of max_time for the fit


@with_old_names(fine="ok")
@add_brief_repr
@dataclass(frozen=True, repr=False)
class CheckResult:
    """Result of one check, with advice if needed.

    fine : whether nothing needs attention; None if the check was skipped
    """

    name: str
    ok: bool | None
    sentence: str
    advice: str = ""

    @property
    def mark(self) -> str:
        """Label at the start of the line."""
        return {True: "ok", False: "LOOK", None: "-"}[self.ok]

    def __str__(self) -> str:
        return f"{self.mark:>4}  {self.name}: {self.sentence}{f' {self.advice}' if self.advice else ''}"


@with_old_names(fine="ok")
@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False, repr=False)
class Checkup(TabularReport):
    """Result of `doctor`; ``print`` shows a line per check.

    Attributes
    ----------
    lines : tuple of CheckResult
    result : Result or None
        The fit that was examined.
    time : float
        Seconds.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k1, k2 = cf.symbols("x k1 k2")
    >>> model = cf.Model({x: -k1 * k2 * x}, parameters=[k1, k2])
    >>> experiment = cf.Experiment({"x": [0.55, 0.3, 0.17]}, time=[1, 2, 3], sigma=0.02, initial={"x": 1})
    >>> problem = cf.Problem(model, experiment, parameters={"k1": 0.5, "k2": 1.0})
    >>> found = cf.doctor(problem, starts=0)
    >>> found.ok
    False
    >>> found["redundant parameters"].ok
    False
    """

    lines: tuple[CheckResult, ...]
    result: Result | None
    time: float

    @property
    def ok(self) -> bool:
        """Whether no check needs attention."""
        return not any(line.ok is False for line in self.lines)

    @property
    def advice(self) -> tuple[str, ...]:
        """Recommended actions, in the order of the lines."""
        return tuple(f"{line.name}: {line.advice or line.sentence}" for line in self.lines if line.ok is False)

    def __getitem__(self, name: str) -> CheckResult:
        """Return the result of a check."""
        lines = {line.name: line for line in self.lines}
        raise_if_mistakes("doctor", unknown_names("unknown check '{}'", [name], lines))
        return lines[name]

    @property
    def parts(self) -> tuple[TextTable, str]:
        """The checks as a table, and a conclusion."""
        table = TextTable.from_items(
            self.lines,
            ("", lambda line: line.mark),
            ("check", lambda line: line.name),
            ("found", lambda line: line.sentence),
            ("what to do", lambda line: line.advice),
        )
        n_warnings = sum(line.ok is False for line in self.lines)
        late_checks, cut_checks = (
            join_limited(line.name for line in self.lines if line.ok is None and line.sentence.endswith(ending))
            for ending in (NO_TIME_LEFT, _INTERRUPTED)
        )
        conclusion = "No problem found so far." if late_checks or cut_checks else "No check needs attention."
        if n_warnings:
            conclusion = f"{n_warnings} of {len(self.lines)} checks need{'s' if n_warnings == 1 else ''} attention."
        if late_checks:
            conclusion += f" Not run for lack of time: {late_checks}. Increase max_time."
        if cut_checks:
            conclusion += f" {STOPS[Status.INTERRUPTED]} Not run: {cut_checks}."
        return table, conclusion

    def __str__(self) -> str:
        return "\n".join([*map(str, self.lines), "", self.parts[1]])


@guarded
@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def doctor(
    problem: Result | Posable,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    *,
    start: Mapping[str, float] | None = None,
    starts: int = 12,
    rng: int | np.random.Generator = 0,
    max_time: float = 60.0,
    callback: Callable[[str], Any] | None = None,
) -> Checkup:
    """Check a fit and its problem before its results are used.

    The checks: convergence; the gradient against finite differences and adjoint states; data without information;
    scale; stiffness; redundant and symmetric parameters; identifiability; residuals; sensitivity to tolerances; other
    transcriptions; and other starts.

    Parameters
    ----------
    problem : Result, Problem or Posed
        A problem is fitted first.
    transcription, solver, start : optional
        As for `fit`.
    starts : int
        Largest number of other starting points.
    rng : int or numpy.random.Generator
        Draws parameter values and starting points.
    max_time : float
        Seconds: starting points are tried until then; checks that begin later are skipped.
    callback : callable, optional
        Called with the name of each check before it begins.

    Returns
    -------
    Checkup
        Also if the fit fails.

    Raises
    ------
    InputError
        Listing every mistake in the arguments.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.doctor(problem, starts=0)
    >>> found.ok, found["residuals"].ok
    (False, False)
    >>> print(found["redundant parameters"])
      ok  redundant parameters: none (exact rank 2 of 2).
    """
    start_time, limit = time.perf_counter(), read_real(max_time)
    problem_or_result: Any = problem
    start_values: Any = start
    mistakes = rng_mistakes(rng)
    mistakes += option_mistakes(
        ("max_time", max_time, limit is not None and limit > 0.0, "pass a positive number of seconds"),
        ("starts", starts, is_count(starts), "pass a number of starting points"),
        ("callback", callback, callback is None or callable(callback), "give a function of a name"),
        (
            "start",
            start,
            start_values is None or isinstance(start_values, Mapping),
            "give a mapping from names to values",
        ),
    )
    method = given_parts(transcription, solver, mistakes)
    mistakes += problem_mistakes(problem_or_result, "pass a Problem or a Result")
    if isinstance(problem_or_result, Result) and start is not None:
        mistakes.append("start applies only to a Problem; remove it for a Result")
    elif isinstance(start_values, Mapping):
        mistakes += start_mistakes(problem_or_result, start_values)
    raise_if_mistakes("doctor", mistakes)
    assert limit is not None

    def make_countdown(share: float) -> Callable[[], float]:
        return lambda: start_time + share * limit - time.perf_counter()

    def say(name: str) -> None:
        if callback is not None:
            callback(name)

    say("fit")
    result = (
        problem_or_result
        if isinstance(problem_or_result, Result)
        else fit(problem_or_result, *method, start=start, max_time=_MAX_FIT_TIME_FRACTION * limit)
    )
    fitted_problem: Any = result.problem or problem_or_result  # with the fit's number of nodes in delay lines
    compiled_problem, is_success = fitted_problem.posed, result.success
    context = CheckContext(
        problem=fitted_problem,
        compiled_problem=compiled_problem,
        theta=result.theta
        if is_success
        else compiled_problem.guess
        if start is None
        else compiled_problem.theta_from(start),
        result=result,
        options=result.integrator if is_success else IntegratorOptions(),
        method=method,
        starts=starts,
        rng=np.random.default_rng(rng),
        seconds_left=make_countdown(1.0),
    )
    lines: list[CheckResult] = []
    for name, share, examine in EXAMINATIONS:
        say(name)
        seconds_left = make_countdown(share)
        finding = report_skipped(f"skipped: {NO_TIME_LEFT}")
        if (seconds_left() > 0.0 or share == 1.0) and not is_interrupted():
            try:
                with with_deadline(max(context.seconds_left(), MIN_CHECK_SECONDS)), suppress(StopRequested):
                    finding = examine(replace(context, seconds_left=seconds_left))
            except InputError as error:  # the check does not support such a problem
                finding = report_skipped(f"skipped: {error.problems[0]}.")
        if is_interrupted():  # the check may not have seen everything
            finding = report_skipped(f"skipped: {_INTERRUPTED}")
        lines.append(CheckResult(name, *finding))
    return Checkup(tuple(lines), result, time.perf_counter() - start_time)
