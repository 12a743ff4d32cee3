"""Candidates of a selection: problems by name, or one problem with alternatives for some of its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np

from castfit._support.arguments import read_mapping, read_real, read_sequence, shorten_repr
from castfit._support.renamed import with_old_names
from castfit._support.status import InputError, raise_if_mistakes, unknown_names
from castfit.problem.fingerprint import fingerprint
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Problem, kind_mistakes
from castfit.result.same_data import differing_data


class EstimatedChoice(Enum):
    """The alternative ``cf.estimated`` of a parameter: it is estimated as in the problem.

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
"""In choices of `select`: the parameter is estimated as in the problem, with its bounds and prior."""

Alternative = float | EstimatedChoice


@with_old_names(of="problem_name")
@dataclass(frozen=True)
class CandidateModel:
    """One candidate: its name, the name of its problem, and the chosen alternatives by parameter."""

    name: str
    problem_name: str
    chosen: Mapping[str, Alternative] = field(default_factory=dict[str, Alternative])

    @property
    def free(self) -> frozenset[str]:
        """The parameters that were chosen to be estimated."""
        return frozenset(n for n, v in self.chosen.items() if v is estimated)

    def is_nested_in(self, larger: CandidateModel) -> bool:
        """Check whether a larger candidate of the same problem becomes this one if more of its parameters are fixed."""
        shares_choices = all(v is estimated or self.chosen[n] == v for n, v in larger.chosen.items())
        return (
            self.problem_name == larger.problem_name
            and bool(self.chosen)
            and self.free < larger.free
            and shares_choices
        )


@dataclass(frozen=True, eq=False)
class Candidates:
    """All candidates of a selection.

    problems : by name; one with the name "" if there are choices
    choices : alternatives by parameter, fixed values first
    total : number of candidates, if an external search proposes them
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
        for combination in product(*self.choices.values()):
            if self.choices:
                yield self.build_candidate(dict(zip(self.choices, combination, strict=True)))

    def build_candidate(self, chosen: Mapping[str, Alternative]) -> CandidateModel:
        """Return the candidate with these alternatives; its name lists what it estimates, and unusual fixed values."""
        parts = [n if v is estimated else f"{n}={v:g}" for n, v in chosen.items()
                 if v is estimated or v != self.choices[n][0]]  # fmt: skip
        return CandidateModel(" ".join(parts) or "(none)", "", chosen)

    @property
    def smallest(self) -> CandidateModel:
        """The candidate with the fewest estimates."""
        return self.build_candidate({n: alternatives[0] for n, alternatives in self.choices.items()})

    @property
    def largest(self) -> CandidateModel:
        """The candidate with the most estimates."""
        return self.build_candidate({n: alternatives[-1] for n, alternatives in self.choices.items()})

    def changed(self, candidate: CandidateModel, parameter_names: Iterable[str]) -> Iterator[CandidateModel]:
        """Yield the candidates that differ in all of these parameters and in no others."""
        names = list(parameter_names)
        other_alternatives = [[v for v in self.choices[n] if v != candidate.chosen[n]] for n in names]
        for combination in product(*other_alternatives):
            yield self.build_candidate({**candidate.chosen, **dict(zip(names, combination, strict=True))})

    def neighbours(
        self, candidate: CandidateModel, *, allow_more: bool = True, allow_fewer: bool = True
    ) -> list[CandidateModel]:
        """Return the candidates with one parameter changed; without more, or fewer, estimates if not allowed."""
        neighbors = [other for n in self.choices for other in self.changed(candidate, [n])]
        size = len(candidate.free)
        return [o for o in neighbors if (allow_more or len(o.free) <= size) and (allow_fewer or len(o.free) >= size)]

    def swaps(self, candidate: CandidateModel) -> list[CandidateModel]:
        """Return the candidates in which one parameter more is estimated and one fewer."""
        pairs = [(a, b) for a, b in combinations(self.choices, 2) if (a in candidate.free) != (b in candidate.free)]
        swapped = (other for pair in pairs for other in self.changed(candidate, pair))
        return [other for other in swapped if len(other.free) == len(candidate.free)]

    def problem(self, candidate: CandidateModel) -> Problem:
        """Build the problem of a candidate."""
        base = self.problems[candidate.problem_name]
        if not candidate.chosen:
            return base
        changed = {
            n: replace(base.parameters[n], fixed=False) if isinstance(v, EstimatedChoice) else Parameter(v, fixed=True)
            for n, v in candidate.chosen.items()
        }
        return base.replace(parameters={**base.parameters, **changed})


def read(argument: Any, choices: Any) -> Candidates:
    """Read and check the arguments of `select`.

    Raises InputError with all mistakes, before the first fit.
    """
    if isinstance(argument, Problem):
        return _of_choices(argument, choices)
    mistakes: list[str] = (
        [] if choices is None else ["choices applies to one problem; pass either choices or several problems"]
    )
    problems = read_mapping("problems", argument, mistakes)
    mistakes += [
        f"'{n}' is {shorten_repr(p)}; expected a Problem" for n, p in problems.items() if not isinstance(p, Problem)
    ]
    if not mistakes:
        mistakes += [f"'{n}': {m}" for n, p in problems.items() for m in kind_mistakes(p, may_be_fixed=True)]
    if not mistakes and len(problems) < 2:
        mistakes.append("fewer than two problems; pass the problems to be compared, or choices=")
    raise_if_mistakes("select", mistakes)
    first_name, *other_names = problems
    for name in other_names:
        mistakes += differing_data(problems[first_name], problems[name], (f"'{first_name}'", f"'{name}'"))
    fingerprints = {n: _identity(p) for n, p in problems.items()}
    mistakes += [
        f"'{a}' and '{b}' are the same model; remove one" for a, b in combinations(problems, 2)
        if fingerprints[a] == fingerprints[b]
    ]  # fmt: skip
    raise_if_mistakes("select", mistakes)
    return Candidates(problems)


def _identity(problem: Problem) -> dict[str, Any]:
    """Return the fingerprint of a problem without its guesses, as the identity of the model."""
    entries = fingerprint(problem)
    return {k: v[1:] if k.startswith("guess, bounds") else v for k, v in entries.items()}


def _of_choices(problem: Problem, choices: Any) -> Candidates:
    if choices is None:
        raise_if_mistakes(
            "select", ["one problem was passed; set choices={'k': [0, cf.estimated], ...}, or pass several problems"]
        )
    mistakes = kind_mistakes(problem, may_be_fixed=True)
    choices_by_name = read_mapping("choices", choices, mistakes)
    mistakes += unknown_names("choices has the unknown parameter '{}'", choices_by_name, problem.parameters)
    alternatives_by_name: dict[str, tuple[Alternative, ...]] = {}
    for name, value in choices_by_name.items():
        alternatives = read_sequence(value)
        values = [v if isinstance(v, EstimatedChoice) else read_real(v) for v in alternatives or []]
        invalid = [v for v, r in zip(alternatives or [], values, strict=True) if r is None or not _is_alternative(r)]
        if alternatives is None or invalid:
            shown_value = shorten_repr(value if alternatives is None else invalid[0])
            mistakes.append(f"choices of '{name}' contain {shown_value}; expected finite numbers and cf.estimated")
        elif len({repr(r) for r in values}) < max(len(values), 2):
            fault = "the same alternative twice" if len(values) > 1 else "one alternative"
            mistakes.append(f"choices of '{name}' have {fault}; pass different ones, such as [0, cf.estimated]")
        else:
            fixed_values = [r for r in values if isinstance(r, float)]
            alternatives_by_name[name] = (*fixed_values, *([estimated] if estimated in values else []))
    if not choices_by_name and not mistakes:
        mistakes.append("choices is empty; name a parameter, as in {'k': [0, cf.estimated]}")
    raise_if_mistakes("select", mistakes)
    space = Candidates({"": problem}, alternatives_by_name)
    for candidate in (space.smallest, space.largest):
        try:
            space.problem(candidate)
        except InputError as error:
            raise_if_mistakes("select", [f"'{candidate.name}': {m}" for m in error.problems])
    return space


def _is_alternative(value: float | EstimatedChoice) -> bool:
    return isinstance(value, EstimatedChoice) or bool(np.isfinite(value))
