"""Candidates of a selection, problems by name or alternatives of parameters of one problem, and the fit of one."""

from __future__ import annotations

import time
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
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.run_result import CUT_OFF, FitRecord
from castfit.drive.search.multistart.multistart import multistart
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import Solver, Transcription
from castfit.problem.fingerprint import fingerprint
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Posable, Problem, kind_mistakes
from castfit.result.result import Result
from castfit.result.same_data import differing_data
from castfit.transcribe.single_shooting import SingleShooting


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


Job = tuple[Candidates, Transcription | None, Solver | None]
_RETRY_STARTS = 6  # random starts, if neither start leads to a solution
_RETRY_SCREEN_SIZE = 20  # points, the best of which is one random start


@dataclass(frozen=True)
class CandidateStart:
    """Start of a fit: the values of the problem, or a `point`, without its values outside of the bounds.

    label : name of the start in messages
    exact : whether values outside of the bounds are moved to the bound, as for the point of a nested candidate
    """

    label: str = "nominal values"
    point: Mapping[str, float] | None = None
    exact: bool = False

    def build_start(self, problem: Posable) -> dict[str, float] | None:
        """Return the start (name: value) of a problem, for quantities that the point contains and bounds allow."""
        if self.point is None:
            return None
        start: dict[str, float] = {}
        for q in problem.quantities:
            value = self.point.get(q.name, self.point.get(q.symbol_name, np.nan))
            value = min(max(value, q.lower), q.upper) if self.exact else value
            if q.lower <= value <= q.upper and (q.scale != "log" or value > 0.0):
                start[q.name] = value
        return start


@dataclass(frozen=True, eq=False, kw_only=True)
class CandidateFit(FitRecord):
    """The fit of a candidate.

    name : of the candidate; number : number of earlier fits of it
    status, message : a value of `castfit.Status`, or "worker_died", "cut_off", "error", "not_run" ...
    result : without its problem; None if there is none
    start : label of the start that led to the result
    fits : number of fits that were needed; time : seconds
    """

    name: str
    number: int = 0
    status: str = "not_run"
    message: str = "Not run."
    result: Result | None = None
    start: str = ""
    fits: int = 0
    time: float = np.nan

    @property
    def neg2loglik(self) -> float:
        """-2 log likelihood of data and priors; NaN if there is no solution."""
        return self.result.neg2loglik if self.success and self.result is not None else np.nan


@task
def fit_candidate(
    job: bytes | Job,
    row: CandidateFit,
    candidate: CandidateModel,
    starts: tuple[CandidateStart, ...],
    seed: int,
    limit: float,
    deadline: float,
) -> CandidateFit | None:
    """Fit a candidate from every start, and from random ones if none succeeds; None if no time is left."""
    space, transcription, solver = unpickle_job(job)
    start_time = time.perf_counter()
    problem = space.problem(candidate)
    best, best_start, n_fits = None, "", 0

    def remaining_time() -> float:
        return min(deadline - time.time(), limit - (time.perf_counter() - start_time))

    for start in starts if problem.names else starts[:1]:
        if remaining_time() <= 0.0:
            break
        # Single shooting starts at the estimates; collocation starts at the data, and may end at a poor fit.
        first_transcription = transcription if start.point is None or transcription is not None else SingleShooting()
        result = fit(
            problem,
            first_transcription,
            solver,
            start=start.build_start(problem),
            max_time=remaining_time(),
            second_start=False,
            retry=False,
        )
        n_fits += 1
        if best is None or _rank(result) < _rank(best):
            best, best_start = result, start.label
    if best is not None and not best.success and problem.names and remaining_time() > 0.0:
        result = fit(problem, transcription, solver, max_time=remaining_time())
        n_fits += 1
        if _rank(result) < _rank(best):
            best, best_start = result, "nominal values"
    if best is not None and not best.success and problem.names and remaining_time() > 0.0:
        multistart_result = multistart(
            problem,
            transcription,
            solver,
            starts=_RETRY_STARTS,
            screen=_RETRY_SCREEN_SIZE,
            rng=seed,
            max_time=remaining_time(),
            verbose=0,
        )
        n_fits += len(multistart_result.starts)
        if multistart_result.best is not None and _rank(multistart_result.best) < _rank(best):
            best, best_start = multistart_result.best, "drawn starts"
    if best is None:
        return None
    is_cut_off = not best.success and deadline <= time.time()
    return replace(
        row,
        status=CUT_OFF if is_cut_off else best.status.value,
        message="The time limit of the run was reached." if is_cut_off else best.message,
        result=replace(best, problem=None, method=None),
        start=best_start,
        fits=n_fits,
        time=time.perf_counter() - start_time,
    )


def _rank(result: Result) -> tuple[bool, float]:
    return not result.success, result.cost if np.isfinite(result.cost) else np.inf
