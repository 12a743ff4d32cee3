"""Candidates of a selection: problems by name, or one problem with alternatives for some of its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np

from castfit._support.arguments import items, named, real, text
from castfit._support.status import InputError, check, unknown_names
from castfit.problem.fingerprint import fingerprint
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Problem, kind_mistakes
from castfit.result.same_data import differing_data


class EstimatedChoice(Enum):
    """The alternative of a parameter that is no number: ``cf.estimated``, as the problem states it.

    Examples
    --------
    >>> import castfit as cf
    >>> {"k2": [0, cf.estimated]}
    {'k2': [0, cf.estimated]}
    """

    ESTIMATED = "estimated"

    def __repr__(self) -> str:
        return "cf.estimated"


estimated = EstimatedChoice.ESTIMATED
"""In choices of `select`: the parameter is estimated, as the problem states it, bounds and prior included."""

Alternative = float | EstimatedChoice


@dataclass(frozen=True)
class CandidateModel:
    """One model: the problem that it is made of, and by the parameters that are chosen about what each is."""

    name: str
    of: str
    chosen: Mapping[str, Alternative] = field(default_factory=dict[str, Alternative])

    @property
    def free(self) -> frozenset[str]:
        """The parameters that were chosen to be estimated."""
        return frozenset(n for n, v in self.chosen.items() if v is estimated)

    def within(self, larger: CandidateModel) -> bool:
        """Whether a larger candidate of the same problem becomes this one where more of its parameters are held."""
        same = all(v is estimated or self.chosen[n] == v for n, v in larger.chosen.items())
        return self.of == larger.of and bool(self.chosen) and self.free < larger.free and same


@dataclass(frozen=True, eq=False)
class Candidates:
    """All that may be fitted.

    problems : by name; one of the name "" if there are choices
    choices : alternatives by parameter, the held ones first
    total : how many there are, if somebody else says what they are
    """

    problems: Mapping[str, Problem]
    choices: Mapping[str, tuple[Alternative, ...]] = field(default_factory=dict[str, tuple[Alternative, ...]])
    total: int = 0

    @property
    def count(self) -> int:
        """Number of candidates."""
        if self.total:
            return self.total
        return prod(map(len, self.choices.values())) if self.choices else len(self.problems)

    def __iter__(self) -> Iterator[CandidateModel]:
        if not self.choices:
            yield from (CandidateModel(name, name) for name in self.problems)
        for each in product(*self.choices.values()):
            if self.choices:
                yield self.of(dict(zip(self.choices, each, strict=True)))

    def of(self, chosen: Mapping[str, Alternative]) -> CandidateModel:
        """Return the candidate with these alternatives; it is called by what it estimates, and unusual numbers."""
        parts = [n if v is estimated else f"{n}={v:g}" for n, v in chosen.items()
                 if v is estimated or v != self.choices[n][0]]  # fmt: skip
        return CandidateModel(" ".join(parts) or "(none)", "", chosen)

    @property
    def smallest(self) -> CandidateModel:
        """The candidate that estimates least."""
        return self.of({n: every[0] for n, every in self.choices.items()})

    @property
    def largest(self) -> CandidateModel:
        """The candidate that estimates all that it may."""
        return self.of({n: every[-1] for n, every in self.choices.items()})

    def changed(self, candidate: CandidateModel, at: Iterable[str]) -> Iterator[CandidateModel]:
        """Yield the candidates that differ in all of these parameters and in no others."""
        names = list(at)
        others = [[v for v in self.choices[n] if v != candidate.chosen[n]] for n in names]
        for each in product(*others):
            yield self.of({**candidate.chosen, **dict(zip(names, each, strict=True))})

    def neighbours(self, candidate: CandidateModel, *, more: bool = True, fewer: bool = True) -> list[CandidateModel]:
        """Return the candidates with one parameter changed, so that not fewer or not more are estimated."""
        found = [other for n in self.choices for other in self.changed(candidate, [n])]
        size = len(candidate.free)
        return [o for o in found if (more or len(o.free) <= size) and (fewer or len(o.free) >= size)]

    def swaps(self, candidate: CandidateModel) -> list[CandidateModel]:
        """Return the candidates in which one parameter more is estimated and one fewer."""
        pairs = [(a, b) for a, b in combinations(self.choices, 2) if (a in candidate.free) != (b in candidate.free)]
        found = (other for pair in pairs for other in self.changed(candidate, pair))
        return [other for other in found if len(other.free) == len(candidate.free)]

    def problem(self, candidate: CandidateModel) -> Problem:
        """Build the problem of a candidate."""
        base = self.problems[candidate.of]
        if not candidate.chosen:
            return base
        changed = {
            n: replace(base.parameters[n], fixed=False) if isinstance(v, EstimatedChoice) else Parameter(v, fixed=True)
            for n, v in candidate.chosen.items()
        }
        return base.replace(parameters={**base.parameters, **changed})


def read(given: Any, choices: Any) -> Candidates:
    """Read and check the arguments of `select`.

    Raises InputError: with every mistake, before anything is fitted.
    """
    if isinstance(given, Problem):
        return _of_choices(given, choices)
    mistakes: list[str] = [] if choices is None else ["choices applies to one problem; pass either choices or several problems"]
    problems = named("problems", given, mistakes)
    mistakes += [f"'{n}' is {text(p)}; give a Problem" for n, p in problems.items() if not isinstance(p, Problem)]
    if not mistakes:
        mistakes += [f"'{n}': {m}" for n, p in problems.items() for m in kind_mistakes(p, may_be_fixed=True)]
    if not mistakes and len(problems) < 2:
        mistakes.append("fewer than two problems; pass the problems to be compared, or choices=")
    check("select", mistakes)
    first, *others = problems
    for name in others:
        mistakes += differing_data(problems[first], problems[name], (f"'{first}'", f"'{name}'"))
    prints = {n: _identity(p) for n, p in problems.items()}
    mistakes += [
        f"'{a}' and '{b}' are the same model; remove one" for a, b in combinations(problems, 2)
        if prints[a] == prints[b]
    ]  # fmt: skip
    check("select", mistakes)
    return Candidates(problems)


def _identity(problem: Problem) -> dict[str, Any]:
    """Return the fingerprint of a problem without its guesses, as the identity of the model."""
    found = fingerprint(problem)
    return {k: v[1:] if k.startswith("guess, bounds") else v for k, v in found.items()}


def _of_choices(problem: Problem, choices: Any) -> Candidates:
    if choices is None:
        check("select", ["one problem was passed; set choices={'k': [0, cf.estimated], ...}, or pass several problems"])
    mistakes = kind_mistakes(problem, may_be_fixed=True)
    given = named("choices", choices, mistakes)
    mistakes += unknown_names("choices has the unknown parameter '{}'", given, problem.parameters)
    found: dict[str, tuple[Alternative, ...]] = {}
    for name, value in given.items():
        alternatives = items(value)
        read = [v if isinstance(v, EstimatedChoice) else real(v) for v in alternatives or []]
        wrong = [v for v, r in zip(alternatives or [], read, strict=True) if r is None or not _is_alternative(r)]
        if alternatives is None or wrong:
            what = text(value if alternatives is None else wrong[0])
            mistakes.append(f"choices of '{name}' contain {what}; expected finite numbers and cf.estimated")
        elif len({repr(r) for r in read}) < max(len(read), 2):
            few = "the same alternative twice" if len(read) > 1 else "one alternative"
            mistakes.append(f"choices of '{name}' have {few}; give different ones, such as [0, cf.estimated]")
        else:
            held = [r for r in read if isinstance(r, float)]
            found[name] = (*held, *([estimated] if estimated in read else []))
    if not given and not mistakes:
        mistakes.append("choices is empty; name a parameter, as in {'k': [0, cf.estimated]}")
    check("select", mistakes)
    space = Candidates({"": problem}, found)
    for candidate in (space.smallest, space.largest):
        try:
            space.problem(candidate)
        except InputError as error:
            check("select", [f"'{candidate.name}': {m}" for m in error.problems])
    return space


def _is_alternative(value: float | EstimatedChoice) -> bool:
    return isinstance(value, EstimatedChoice) or bool(np.isfinite(value))
