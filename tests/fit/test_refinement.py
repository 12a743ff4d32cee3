"""Refinements: one loop, the outermost first, each made anew for what is solved for the one outside of it."""

from __future__ import annotations

from castfit.fit.refinement import Refinement, solve_with_refinements


class Finer(Refinement[str, str]):
    """Asks twice, and says which one it is."""

    name = ""

    def __init__(self, question: str) -> None:
        self.question, self.rounds = question, 0

    def prepare(self, question: str) -> str:
        return f"{question}{self.name}0"

    def next_question(self, answer: str) -> str | None:
        self.rounds += 1
        return f"{self.question}{self.name}{self.rounds}" if self.rounds <= 2 else None

    def conclude(self, answer: str) -> str:
        return f"({answer})"


class Outer(Finer):
    name = "a"


class Inner(Finer):
    name = "b"


def test_solve_with_refinements_nests_inner_refinements():
    questions: list[str] = []

    def solve(question: str) -> str:
        questions.append(question)
        return question.upper()

    assert solve_with_refinements("q", [Outer, Inner], solve) == "((QA2B2))"
    assert questions == [f"qa{i}b{j}" for i in range(3) for j in range(3)]


def test_solve_with_refinements_without_refinements_solves_once():
    assert solve_with_refinements("q", [], str.upper) == "Q"
