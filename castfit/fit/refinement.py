"""Loop that solves, checks and solves a finer problem, until the answer requires no further refinement.

    question --prepare--> --solve--> answer --next_question--> finer question --solve--> ... --None--> conclude

    delay lines        number of nodes, until the estimates converge               castfit.fit.delay_refinement
    smooth inputs      weights of the roughness penalty, by their likelihood       castfit.fit.smoothing_weights
    Laplace priors     which quantities end at their kinks                         castfit.fit.laplace_kinks
    ratios             sign of the guess and logarithmic scale, without bounds     castfit.fit.sign_of_guess
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
from typing import Any, ClassVar, Generic, TypeVar

from castfit._support.records import dataclass
from castfit.problem.problem import Posable
from castfit.result.result import Result

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
