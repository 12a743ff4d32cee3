"""What drivers that begin at a result ask of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from castfit._support.arguments import text
from castfit.problem.compiled_problem import Posed
from castfit.result.result import Result
from castfit._support.status import check


def asked_of(where: str, result: Any, mistakes: list[str]) -> Posed:
    """Return the problem that a result solves, as it was solved.

    Raises
    ------
    InputError
        At once, with the mistakes found so far, if it is no solution of a problem that is known.
    """
    if not isinstance(result, Result):
        check(where, [f"result is {text(result)}; give the result of a fit", *mistakes])
    problem = result.problem
    if problem is None:
        said = "a loaded result does not know its model; use result.with_problem(problem) first"
        check(where, [said, *mistakes])
    if not result.success:
        check(where, [f"the fit did not succeed ({result.status.value}); begin at a solution", *mistakes])
    assert problem is not None
    return problem.posed.assuming(absolute_sigma=result.absolute_sigma)


def seeded(rng: int | np.random.Generator) -> int:
    """Return a seed: the number itself, or one that a generator draws."""
    return int(rng) if isinstance(rng, (int, np.integer)) else int(np.random.default_rng(rng).integers(2**63))
