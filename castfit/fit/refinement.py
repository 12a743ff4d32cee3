"""Loop that solves, checks and solves a finer problem, until the answer requires no further refinement.

    question --begun--> --solve--> answer --refined--> finer question --solve--> ... --None--> concluded

    delay lines        as many nodes as it takes until estimates stand still       castfit.fit.delay_refinement
    smooth inputs      weights of roughness, by their likelihood                   castfit.fit.smoothing_weights
    Laplace priors     which quantities end at their kinks                         castfit.fit.laplace_kinks
    constraints        points in time at which they are held along the path        castfit.fit.constraint_exchange
    collocation        elements, until the solution agrees with the integrator     castfit.fit.attempt

The first three repeat a whole fit (question: `RefinementProblem`, answer: Result), the last two a search within it (question:
`castfit.fit.attempt.Staging`, answer: what it came to).  Each stands inside those above it: whatever is solved for an
outer one is solved with all inner ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from castfit._support.records import dataclass

if TYPE_CHECKING:
    from castfit.problem.problem import Posable
    from castfit.result.result import Result

Q = TypeVar("Q")
A = TypeVar("A")


class Refinement(ABC, Generic[Q, A]):
    """Refinement by repeated solves. A new object is created for each question and keeps its state.

    what : in words
    """

    subject: ClassVar[str]

    def prepare(self, question: Q) -> Q:
        """Return the first question to solve."""
        return question

    @abstractmethod
    def refined(self, answer: A) -> Q | None:
        """Return the next question to solve, or None if the answer is good enough or cannot be improved."""

    def joined(self, previous_answer: A, new_answer: A) -> A:
        """Return the answer after a finer question was solved."""
        return new_answer

    def concluded(self, answer: A) -> A:
        """Return the answer to the original question, with remarks on the refinement."""
        return answer

    def finished(self, answer: A, solve: Callable[[Q], A]) -> A:
        """Go on from a first answer until nothing finer is asked for."""
        while (finer_question := self.refined(answer)) is not None:
            answer = self.joined(answer, solve(finer_question))
        return self.concluded(answer)


def solve_with_refinements(
    question: Q, refinements: Sequence[Callable[[Q], Refinement[Q, A]]], solve: Callable[[Q], A]
) -> A:
    """Solve a question with the refinements that it needs, the outermost first."""
    if not refinements:
        return solve(question)
    make, *inner = refinements
    solve_inner = partial(solve_with_refinements, refinements=inner, solve=solve)
    refinement = make(question)
    return refinement.finished(solve_inner(refinement.prepare(question)), solve_inner)


@dataclass(frozen=True)
class RefinementProblem:
    """A problem and where its fit starts; `near`: so close to the solution that nothing else need be tried."""

    problem: Posable
    start: Any
    is_near_solution: bool = False


class RefinedFit(Refinement[RefinementProblem, "Result"]):
    """One that repeats a whole fit."""

    def joined(self, previous_answer: Result, new_answer: Result) -> Result:
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
