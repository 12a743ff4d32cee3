"""Second search of a fit whose quantities without bounds leave the sign or the magnitude of their guesses.

The ratio  v s / (K + s)  is the same model at K = inf and at K = -inf, so that a search from positive guesses may end
at negative values, or without end, where another optimum is lower:

    fit --> a quantity is negative or huge --> fit with positive quantities, on a logarithmic scale, from the same guess
        --> fit of the original problem from there --> the better of the first and the last
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from castfit._support.reprs import join_limited
from castfit.fit.refinement import RefinedFit, RefinementProblem
from castfit.result.result import Result

_HUGE_FACTOR = 1e4  # Multiple of the guess above which an estimate without bounds is huge.
_MIN_COST_DECREASE = 0.01  # Smallest decrease of the cost, half of -2 log L, for which the second search is returned.


class SignOfGuess(RefinedFit):
    """Second search on the sign of the guesses and on a logarithmic scale, for quantities without bounds."""

    subject = "signs of quantities without bounds"

    def __init__(self, question: RefinementProblem) -> None:
        self.question, self.results, self.names = question, list[Result](), list[str]()

    def next_question(self, answer: Result) -> RefinementProblem | None:
        """Return the problem on a logarithmic scale, then the original problem from the end of that search."""
        self.results.append(answer)
        first, problem, start = self.results[0], self.question.problem.posed, self.question.start
        is_at_guess = start is None or isinstance(start, Mapping)  # other refinements continue from a result
        if answer.status.cut_off or len(self.results) > 2 or not is_at_guess:
            return None
        if len(self.results) == 2:
            is_better = answer.cost < first.cost - _MIN_COST_DECREASE
            return RefinementProblem(self.question.problem, answer.values, is_near_solution=True) if is_better else None
        guesses = problem.to_natural(
            problem.guess if start is None else problem.theta_from(cast("Mapping[str, float]", start))
        )
        is_unbounded = np.array([
            q.kind == "parameter" and q.scale == "linear" and q.prior is None
            and np.isinf([q.lower, q.upper]).all() and q.symbol_name not in problem.unguessed | problem.noise_parameters
            for q in problem.quantities
        ], dtype=np.bool_)  # fmt: skip
        ends = np.array([*answer.values.values()])
        has_left = is_unbounded & ((ends < 0.0) | (ends > _HUGE_FACTOR * guesses))
        if not has_left.any() or (guesses <= 0.0)[is_unbounded].any():
            return None
        self.names = [name for name, is_listed in zip(problem.names, has_left, strict=True) if is_listed]
        quantities = [
            replace(q, guess=float(guess), lower=0.0, scale="log") if is_searched else q
            for q, guess, is_searched in zip(problem.quantities, guesses, is_unbounded, strict=True)
        ]
        return RefinementProblem(problem.with_quantities(quantities), start, is_near_solution=True)

    def conclude(self, answer: Result) -> Result:
        """Return the second search if it ended lower, and name both ends; otherwise return the first."""
        first, last = self.results[0], self.results[-1]
        if len(self.results) < 3 or not (last.success and last.cost < first.cost - _MIN_COST_DECREASE):
            return replace(first, iterations=answer.iterations, time=answer.time)
        listing = join_limited(f"{name} = {first.values[name]:.4g}" for name in self.names)
        note = (
            f"The first search left the guesses and ended at {listing} ({first.measure} = {first.objective:.6g}); "
            f"a search with positive values on a logarithmic scale found this result ({last.measure} = "
            f"{last.objective:.6g})."
        )
        return answer.with_status(answer.status, f"{answer.message} {note}")
