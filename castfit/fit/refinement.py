"""Loop that solves, checks and solves a finer problem, until the answer requires no further refinement.

    question --prepare--> --solve--> answer --next_question--> finer question --solve--> ... --None--> conclude

    delay lines        number of nodes, until the estimates converge               castfit.fit.delay_refinement
    smooth inputs      weights of the roughness penalty, by their likelihood       castfit.fit.smoothing_weights
    Laplace priors     which quantities end at their kinks                         castfit.fit.laplace_kinks
    ratios             sign of the guess and logarithmic scale, without bounds     SignOfGuess
    constraints        points in time at which path constraints are enforced       castfit.fit.constraint_exchange
    collocation        elements, until the solution agrees with the integrator     castfit.fit.attempt

The first four repeat a whole fit (question: `RefinementProblem`, answer: `Result`).  The last two repeat a search
within it (question: `castfit.fit.attempt.SolveStaging`, answer: `SolveOutcome` or `Attempt`).  Refinements are nested:
every solve of an outer one includes all inner ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np

from castfit._support.records import dataclass
from castfit._support.reprs import join_limited
from castfit.problem.problem import Posable
from castfit.result.result import Result

_HUGE_FACTOR = 1e4  # Multiple of the guess above which an estimate without bounds is huge.
_MIN_COST_DECREASE = 0.01  # Smallest decrease of the cost, half of -2 log L, for which the second search is returned.

Q = TypeVar("Q")
A = TypeVar("A")


class Refinement(ABC, Generic[Q, A]):
    """Refinement by repeated solves. A new object is created for each question and keeps its state.

    subject : what is refined, for messages
    """

    subject: ClassVar[str]

    def prepare(self, question: Q) -> Q:
        """Return the first question to solve."""
        return question

    @abstractmethod
    def next_question(self, answer: A) -> Q | None:
        """Return the next question to solve, or None if the answer is good enough or cannot be improved."""

    def merge_answers(self, previous_answer: A, new_answer: A) -> A:
        """Return the answer after a finer question was solved."""
        return new_answer

    def conclude(self, answer: A) -> A:
        """Return the answer to the original question, with remarks on the refinement."""
        return answer

    def refine_until_done(self, answer: A, solve: Callable[[Q], A]) -> A:
        """Refine from a first answer until no finer question remains."""
        while (finer_question := self.next_question(answer)) is not None:
            answer = self.merge_answers(answer, solve(finer_question))
        return self.conclude(answer)


def solve_with_refinements(
    question: Q, refinements: Sequence[Callable[[Q], Refinement[Q, A]]], solve: Callable[[Q], A]
) -> A:
    """Solve a question with the given refinements, the outermost first."""
    if not refinements:
        return solve(question)
    make, *inner = refinements
    solve_inner = partial(solve_with_refinements, refinements=inner, solve=solve)
    refinement = make(question)
    return refinement.refine_until_done(solve_inner(refinement.prepare(question)), solve_inner)


@dataclass(frozen=True)
class RefinementProblem:
    """Problem and starting point of a fit; no other strategy is needed if `is_near_solution`."""

    problem: Posable
    start: Any
    is_near_solution: bool = False


class RefinedFit(Refinement[RefinementProblem, "Result"]):
    """Refinement that repeats a whole fit."""

    def merge_answers(self, previous_answer: Result, new_answer: Result) -> Result:
        """Return the later result with the work of both."""
        a, b = previous_answer, new_answer
        return replace(
            b,
            iterations=a.iterations + b.iterations,
            evaluations=_sums(a.evaluations, b.evaluations),
            failures=_sums(a.failures, b.failures),
            time=a.time + b.time,
            history=a.history + b.history,
            strategies=tuple(dict.fromkeys(a.strategies + b.strategies)),
        )


def _sums(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {**a, **b}}


class SignOfGuess(RefinedFit):
    """Second search on the sign of the guesses and on a logarithmic scale, for quantities without bounds.

    The ratio  v s / (K + s)  is the same model at K = inf and at K = -inf, so that a search from positive guesses may
    end at negative values, or without end, where another optimum is lower:

        fit --> a quantity is negative or huge --> fit with positive quantities, on a logarithmic scale, from the guess
            --> fit of the original problem from there --> the better of the first and the last
    """

    subject = "signs of quantities without bounds"

    def __init__(self, question: RefinementProblem) -> None:
        self.question, self.results, self.ends = question, list[Result](), ""

    def next_question(self, answer: Result) -> RefinementProblem | None:
        """Return the problem on a logarithmic scale, then the original problem from the end of that search."""
        self.results.append(answer)
        problem, start = self.question.problem.posed, self.question.start
        if (
            len(self.results) == 2
            and not answer.status.cut_off
            and answer.cost < self.results[0].cost - _MIN_COST_DECREASE
        ):
            return RefinementProblem(self.question.problem, answer.values, is_near_solution=True)
        is_at_guess = start is None or isinstance(start, Mapping)  # other refinements continue from a result
        if answer.status.cut_off or len(self.results) > 1 or not is_at_guess or problem.prior_terms:
            return None
        guesses = problem.to_natural(
            problem.guess if start is None else problem.theta_from(cast("Mapping[str, float]", start))
        )
        is_unbounded = np.array([
            q.kind == "parameter" and q.scale == "linear" and q.prior is None
            and np.isinf([float(q.lower), float(q.upper)]).all()
            and q.symbol_name not in problem.unguessed | problem.noise_parameters
            for q in problem.quantities
        ], dtype=np.bool_)  # fmt: skip
        ends = problem.to_natural(answer.theta)
        rows = [*zip(problem.quantities, guesses.tolist(), ends.tolist(), is_unbounded, strict=True)]
        left = [
            f"{q.name} = {end:.4g}"
            for q, guess, end, is_searched in rows
            if is_searched and not 0.0 <= end <= _HUGE_FACTOR * guess
        ]
        if not left or (guesses <= 0.0)[is_unbounded].any():
            return None
        self.ends = join_limited(left)
        quantities = [
            replace(q, guess=guess, lower=0.0, scale="log") if is_searched else q for q, guess, _, is_searched in rows
        ]
        return RefinementProblem(problem.with_quantities(quantities), start, is_near_solution=True)

    def conclude(self, answer: Result) -> Result:
        """Return the second search if it ended lower, and name both ends; otherwise return the first."""
        first = self.results[0]
        if len(self.results) < 3 or not (answer.success and answer.cost < first.cost - _MIN_COST_DECREASE):
            return first if answer is first else replace(first, iterations=answer.iterations, time=answer.time)
        return answer.with_status(
            answer.status,
            f"{answer.message} The first search left the guesses and ended at {self.ends} ({first.measure} = "
            f"{first.objective:.6g}); a search with positive values on a logarithmic scale found this result "
            f"({answer.measure} = {answer.objective:.6g}).",
        )
