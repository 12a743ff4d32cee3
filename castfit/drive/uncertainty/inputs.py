"""Argument checks for drivers that start from a result or a problem."""

from __future__ import annotations

from typing import Any

import numpy as np

from castfit._support.arguments import describe_rejected
from castfit._support.status import raise_if_mistakes
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import kind_mistakes
from castfit.result.result import Result

UNKNOWN_MODEL = "the loaded result has no model; call result.with_problem(problem) first"


def solved_problem(where: str, result: Any, mistakes: list[str]) -> CompiledProblem:
    """Return the problem that a result solves, as it was solved.

    Raises InputError, with the mistakes found so far, if the result is not a solution or has no problem.
    """
    if not isinstance(result, Result):
        raise_if_mistakes(where, [f"result is {describe_rejected(result, 'expected the result of a fit')}", *mistakes])
    problem = result.problem
    if problem is None:
        raise_if_mistakes(where, [UNKNOWN_MODEL, *mistakes])
    if not result.success:
        raise_if_mistakes(where, [f"result is not a solution ({result.status.value}); pass a converged fit", *mistakes])
    assert problem is not None
    raise_if_mistakes(where, [*kind_mistakes(problem), *mistakes] if not result.names else [])
    return problem.posed.with_absolute_sigma(absolute_sigma=result.absolute_sigma)


def problem_mistakes(argument: Any, remedy: str) -> list[str]:
    """Return messages if the argument is neither a problem that can be estimated nor a result with its problem."""
    if isinstance(argument, Result):
        return [UNKNOWN_MODEL] if argument.problem is None else kind_mistakes(argument.problem)
    if not hasattr(argument, "posed"):
        return [f"the first argument is {describe_rejected(argument, remedy)}"]
    return kind_mistakes(argument)


def as_seed(rng: int | np.random.Generator) -> int:
    """Return a seed: the number itself, or one that a generator draws."""
    return int(rng) if isinstance(rng, (int, np.integer)) else int(np.random.default_rng(rng).integers(2**63))
