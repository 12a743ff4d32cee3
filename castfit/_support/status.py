"""Statuses of a solve, with their messages, and exceptions for misuse."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from typing import Any, cast

from castfit._support.renamed import with_old_names


@with_old_names(sentence="message", remedy="advice")
class Status(str, Enum):
    """Status of a fit; the value is a stable key, `sentence` is its message.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> cf.fit(problem).status
    <Status.CONVERGED: 'converged'>
    >>> cf.fit(problem, max_time=1e-9).status.success
    False
    """

    CONVERGED = "converged"
    ACCEPTABLE = "acceptable"
    MAX_ITERATIONS = "max_iterations"
    MAX_TIME = "max_time"
    INTERRUPTED = "interrupted"
    STOPPED_BY_CALLBACK = "stopped_by_callback"
    WORKERS_LOST = "workers_lost"
    INFEASIBLE = "infeasible"
    START_FAILED = "start_failed"
    EVALUATION_FAILED = "evaluation_failed"
    STEP_TOO_SMALL = "step_too_small"
    DIVERGING = "diverging"
    UNRESOLVABLE = "unresolvable"
    INACCURATE = "inaccurate"
    LINEAR_ALGEBRA_FAILED = "linear_algebra_failed"
    SOLVER_ERROR = "solver_error"

    @property
    def success(self) -> bool:
        """Whether the point is a solution."""
        return self in SOLVED

    @property
    def cut_off(self) -> bool:
        """Whether the user, the clock or the loss of the workers ended it."""
        return self in (Status.INTERRUPTED, Status.STOPPED_BY_CALLBACK, Status.MAX_TIME, Status.WORKERS_LOST)

    @property
    def message(self) -> str:
        """The status in words."""
        return _SENTENCES[self]

    @property
    def advice(self) -> str:
        """Recommended next step, if the sentence does not contain it; empty otherwise."""
        return _REMEDIES.get(self, "")


# The statuses of solutions; their values as text compare equal to them.
SOLVED = (Status.CONVERGED, Status.ACCEPTABLE)

_SENTENCES = {
    Status.CONVERGED: "The optimality conditions hold to the requested tolerance.",
    Status.ACCEPTABLE: "The optimality conditions hold to the acceptable tolerance, but not to the requested one.",
    Status.MAX_ITERATIONS: "The iteration limit was reached; raise max_iter or start closer.",
    Status.MAX_TIME: "The time limit was reached; raise max_time or start closer.",
    Status.INTERRUPTED: "Interrupted by the user; the result is the best point found.",
    Status.STOPPED_BY_CALLBACK: "Stopped by the callback; the result is the best point found.",
    Status.WORKERS_LOST: "The connection to the workers was lost; the result is the best point found.",
    Status.INFEASIBLE: "No continuous trajectory was found within the bounds.",
    Status.START_FAILED: "The model could not be integrated at the starting point.",
    Status.EVALUATION_FAILED: "The model could not be integrated near the last point, even with the shortest step.",
    Status.STEP_TOO_SMALL: "The step size became too small before the optimality conditions were met.",
    Status.DIVERGING: "The iterates diverge; set bounds on the parameters.",
    Status.UNRESOLVABLE: (
        "The final states are so sensitive to the initial states that rounding errors exceed the measurement errors. "
        "Single shooting cannot find the optimum; use MultipleShooting or Collocation."
    ),
    Status.INACCURATE: (
        "The search ended, but integrating the model with error control does not reproduce the solution."
    ),
    Status.LINEAR_ALGEBRA_FAILED: "The linear solver failed in a step, usually because the problem is singular.",
    Status.SOLVER_ERROR: "The solver stopped with an error of its own.",
}

_OTHERWISE = (
    "Try start='matching', another starting point, bounds, scale='log' for the parameters, another transcription "
    "(SingleShooting(), MultipleShooting(10), Collocation()), or multistart."
)
_REMEDIES = {
    Status.INFEASIBLE: _OTHERWISE,
    Status.START_FAILED: "Try another starting point, bounds, start='matching', MultipleShooting() or Collocation().",
    Status.EVALUATION_FAILED: _OTHERWISE,
    Status.STEP_TOO_SMALL: _OTHERWISE,
    Status.DIVERGING: _OTHERWISE,
    Status.LINEAR_ALGEBRA_FAILED: (
        "Set bounds on, or fix, parameters that the data do not determine, or try another starting point."
    ),
    Status.SOLVER_ERROR: "Try the other solver (GaussNewton() or Ipopt()) or another starting point.",
}


class CastfitError(ValueError):
    """Base of castfit's exceptions: they report misuse, never a fit that failed.

    Examples
    --------
    >>> import castfit as cf
    >>> issubclass(cf.InputError, cf.CastfitError)
    True
    """


class InputError(CastfitError):
    """Something in the user's input is wrong; the message lists every mistake that was found.

    Attributes
    ----------
    problems : tuple of str
        One sentence per mistake, each naming the thing and the fix.

    Examples
    --------
    >>> import castfit as cf
    >>> try:
    ...     cf.Experiment({"x": [1.0, 2.0]}, time=[1, 0], sigma=-1)
    ... except cf.InputError as error:
    ...     print(len(error.problems), "mistakes")
    2 mistakes
    """

    def __init__(self, where: str, problems: Iterable[str]) -> None:
        self.where = where
        self.problems = tuple(" ".join(problem.split("\n")) for problem in problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        count = len(self.problems)
        super().__init__(f"{where}: {count} mistake{'s' if count != 1 else ''} found\n{lines}")

    def __reduce__(self) -> tuple[type[InputError], tuple[Any, ...]]:
        """Pickle by the constructor's arguments, so that the error crosses process borders."""
        return type(self), (self.where, self.problems)


_MAX_LISTED_NAMES = 50  # largest number of valid names in a message, as there may be thousands of experiments


def suggest(name: Any, valid: Iterable[str]) -> str:
    """Return a hint such as ``did you mean 'k1'? (valid: k1, k2)``, or ``choose from k1, k2`` where none is near."""
    names = list(valid)
    if not names:
        return "there are none"
    text = str(name) if isinstance(name, str) else ""
    case_matches = [n for n in names if n.casefold() == text.casefold()]
    close_names = case_matches or difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    listing = ", ".join(names[:_MAX_LISTED_NAMES]) + (
        f", and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
    )
    return f"did you mean '{close_names[0]}'? (valid: {listing})" if close_names else f"choose from {listing}"


def unknown_names(sentence: str, names: Iterable[str], valid: Collection[str]) -> list[str]:
    """Return a message with a suggestion for each name that is not valid; {} in `sentence` stands for the name."""
    return [
        f"{sentence.replace('{}', str(name))}: {suggest(name, valid)}"
        for name in cast("Iterable[Any]", names)
        if not (isinstance(name, str) and name in valid)
    ]


def collect_mistakes(action: Callable[[], Any]) -> list[str]:
    """Run a check and return the mistakes that it finds, to be listed with others."""
    try:
        action()
    except InputError as error:
        return list(error.problems)
    return []


def raise_if_mistakes(where: str, problems: list[str]) -> None:
    """Raise `InputError` when any mistake was collected."""
    if problems:
        raise InputError(where, problems)
