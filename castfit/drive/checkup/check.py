"""`check`: what a careful person would try before believing a fit, in under a minute, each line fine or what to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.blas_threads import one_blas_thread
from castfit._support.reprs import brief
from castfit._support.arguments import is_count, option_mistakes, real, rng_mistakes, text
from castfit.drive.checkup.examinations import (
    Line,
    Patient,
    gradient,
    other_starts,
    other_transcriptions,
    practical,
    redundant,
    residuals,
    scale,
    stiff,
    symmetric,
    the_fit,
    tolerances,
    unused_data,
)
from castfit.fit.fit import fit
from castfit.integrate import IntegratorOptions
from castfit.fit.methods import parts_from
from castfit.problem.problem import kind_mistakes
from castfit.result.result import Result
from castfit._support.status import InputError
from castfit._support.status import check as refuse

if TYPE_CHECKING:
    from castfit.fit.methods import Solver, Transcription
    from castfit.problem.problem import Posable

_SHARES = {"fit": 0.3, "gradient": 0.4, "redundant": 0.5, "symmetric": 0.6, "transcriptions": 0.85, "starts": 1.0}
"""Which part of the time may be gone when each of these ends."""


@brief
@dataclass(frozen=True, eq=False, repr=False)
class Checkup:
    """What `check` found; ``print`` shows a line per check.

    Attributes
    ----------
    lines : tuple of Line
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
    >>> found = cf.check(problem, starts=0)
    >>> found.fine
    False
    >>> found.advice[0]
    'redundant parameters: Fix one of them, write the model with the combination, or measure another output.'
    """

    lines: tuple[Line, ...]
    result: Result | None
    time: float

    @property
    def fine(self) -> bool:
        """Whether nothing needs a look."""
        return not any(line.fine is False for line in self.lines)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, in the order of the lines."""
        return tuple(f"{line.name}: {line.advice or line.sentence}" for line in self.lines if line.fine is False)

    def __getitem__(self, name: str) -> Line:
        """Return the line of a check."""
        return next(line for line in self.lines if line.name == name)

    def __str__(self) -> str:
        wrong = sum(line.fine is False for line in self.lines)
        end = "Nothing to do." if not wrong else f"{wrong} of {len(self.lines)} need{'s' if wrong == 1 else ''} a look."
        return "\n".join([*map(str, self.lines), "", end])


@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def check(
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
    """Try what a careful person would try before believing a fit.

    The gradient against differences (and adjoint states, where there are any), scale, data that say nothing, stiffness,
    the fit itself, redundant and symmetric parameters, identifiability, residuals, sensitivity to tolerances, whether
    other transcriptions agree, and other starts.

    Parameters
    ----------
    problem : Result, Problem or Posed
        A problem is fitted first.
    transcription, solver, start : optional
        As for `fit`.
    starts : int
        How many other starts are tried, at most.
    rng : int or numpy.random.Generator
        Draws random values and starts.
    max_time : float
        Seconds: starts are tried until then, other checks are left out where no time is left.
    callback : callable, optional
        Told the name of each check before it begins.

    Returns
    -------
    Checkup
        Also where the fit fails.

    Raises
    ------
    InputError
        For misuse.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.check(problem, starts=0)
    >>> found.fine
    True
    >>> print(found["redundant parameters"])
    fine  redundant parameters: none (rank 2 of 2 at random values).
    """
    began, limit = time.perf_counter(), real(max_time)
    given: Any = problem
    begun: Any = start
    asked: Any = given.problem if isinstance(given, Result) else given
    mistakes = rng_mistakes(rng)
    mistakes += option_mistakes(
        ("max_time", max_time, limit is not None and limit > 0.0, "give a positive number of seconds"),
        ("starts", starts, is_count(starts), "give a number of starts"),
        ("callback", callback, callback is None or callable(callback), "give a function of a name"),
        ("start", start, begun is None or isinstance(begun, Mapping), "give a mapping from names to values"),
    )
    method = parts_from(transcription, solver, mistakes)
    if isinstance(given, Result) and asked is None:
        mistakes.append("a loaded result does not know its model; use result.with_problem(problem) first")
    elif not isinstance(given, Result) and not hasattr(given, "posed"):
        mistakes.append(f"the first argument is {text(given)}; give a Problem or a Result")
    else:
        mistakes += kind_mistakes(asked)
    refuse("check", mistakes)
    assert limit is not None
    assert asked is not None

    def until(share: float) -> Callable[[], float]:
        return lambda: began + share * limit - time.perf_counter()

    def say(name: str) -> None:
        if callback is not None:
            callback(name)

    say("fit")
    found = given if isinstance(given, Result) else fit(asked, *method, start=start, max_time=_SHARES["fit"] * limit)
    asked = found.problem or asked  # with as many nodes in delay lines as the fit needed
    posed = asked.posed
    good = found.success
    patient = Patient(
        problem=asked,
        posed=posed,
        theta=found.theta if good else posed.guess if start is None else posed.theta_from(start),
        result=found,
        options=found.integrator if good else IntegratorOptions(),
        rng=np.random.default_rng(rng),
        left=until(1.0),
    )

    def solve(values: Mapping[str, float], seconds: float) -> Result:
        return fit(asked, *method, start=values, retry=False, max_time=seconds)

    steps: tuple[tuple[str, float, Callable[[Patient], Line]], ...] = (
        ("fit", 1.0, the_fit),
        ("gradient", _SHARES["gradient"], gradient),
        ("data", 1.0, unused_data),
        ("scale", 1.0, scale),
        ("stiffness", 1.0, stiff),
        ("redundant parameters", _SHARES["redundant"], redundant),
        ("symmetric parameters", _SHARES["symmetric"], symmetric),
        ("identifiability", 1.0, practical),
        ("residuals", 1.0, residuals),
        ("tolerances", _SHARES["transcriptions"], tolerances),
        ("other transcriptions", _SHARES["transcriptions"], other_transcriptions),
        ("other starts", 1.0, lambda p: other_starts(p, solve, starts)),
    )
    lines: list[Line] = []
    for name, share, examine in steps:
        say(name)
        left = until(share)
        if left() <= 0.0 and share < 1.0:
            lines.append(Line(name, None, "not examined: no time was left."))
            continue
        try:
            lines.append(examine(replace(patient, left=left)))
        except InputError as error:  # a check that does not take such a problem
            lines.append(Line(name, None, f"not examined: {error.problems[0]}."))
    return Checkup(tuple(lines), found, time.perf_counter() - began)
