"""The fit of one candidate: from nominal values and from another candidate's estimates, the better of the two."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from castfit.drive.model_comparison.candidates import CandidateModel, Candidates
from castfit.drive.run.jobs import task, thaw
from castfit.drive.run.run_result import CUT_OFF, FitRecord
from castfit.drive.search.multistart.multistart import multistart
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import Solver, Transcription
from castfit.problem.problem import Posable
from castfit.result.goodness_of_fit import Criteria
from castfit.result.result import Result
from castfit.transcribe.single_shooting import SingleShooting

Job = tuple[Candidates, Transcription | None, Solver | None]
_STARTS = 6  # drawn where neither start leads to a solution ...
_SCREEN = 20  # ... each the best of so many


@dataclass(frozen=True)
class Beginning:
    """Start of a fit: the values of the problem, or a `point`, whose values outside the bounds are left out.

    exact : whether that is moved to the bound instead, as where a smaller candidate stands
    called : how messages call it
    """

    called: str = "nominal values"
    point: Mapping[str, float] | None = None
    exact: bool = False

    def of(self, problem: Posable) -> dict[str, float] | None:
        """Return the start (name: value) of a problem, as far as the point knows its quantities and bounds allow it."""
        if self.point is None:
            return None
        found: dict[str, float] = {}
        for q in problem.quantities:
            value = self.point.get(q.name, self.point.get(q.of, np.nan))
            value = min(max(value, q.lower), q.upper) if self.exact else value
            if q.lower <= value <= q.upper and (q.scale != "log" or value > 0.0):
                found[q.name] = value
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class CandidateFit(FitRecord):
    """The fit of a candidate.

    name : of the candidate; number : how many fits of it came before
    status, message : how it ended, a value of `castfit.Status`, or "worker_died", "cut_off", "error", "not_run" ...
    result : without its problem; None if there was none
    start : what led there
    fits : how many fits that took; time : seconds
    """

    name: str
    number: int = 0
    status: str = "not_run"
    message: str = "It was not run."
    result: Result | None = None
    start: str = ""
    fits: int = 0
    time: float = np.nan

    @property
    def neg2loglik(self) -> float:
        """-2 log likelihood of data and priors; NaN where there is no solution."""
        return self.result.neg2loglik if self.success and self.result is not None else np.nan


def counted(result: Result) -> Criteria:
    """Return the criteria of a fit for model selection: all estimated quantities count, also those at a bound.

    Elsewhere (`Result.criteria`) only what the data determine does; with priors that is the effective number.
    """
    found = result.criteria
    held = sum(name in result.active for name in result.names) + result.undetermined.shape[0]
    return replace(found, k=found.k + held)


@task
def fit_candidate(
    job: bytes | Job,
    row: CandidateFit,
    candidate: CandidateModel,
    begins: tuple[Beginning, ...],
    seed: int,
    limit: float,
    deadline: float,
) -> CandidateFit | None:
    """Fit a candidate from every start, if none leads to a solution from drawn ones; None if there is no time."""
    space, transcription, solver = thaw(job)
    began = time.perf_counter()
    problem = space.problem(candidate)
    best, led, count = None, "", 0

    def left() -> float:
        return min(deadline - time.time(), limit - (time.perf_counter() - began))

    for begin in begins if problem.names else begins[:1]:
        if left() <= 0.0:
            break
        # From estimates the way is down; collocation, begun at the data, would end anywhere where a model is poor.
        by = transcription if begin.point is None or transcription is not None else SingleShooting()
        found = fit(problem, by, solver, start=begin.of(problem), max_time=left(), second_start=False, retry=False)
        count += 1
        if best is None or _rank(found) < _rank(best):
            best, led = found, begin.called
    if best is not None and not best.success and problem.names and left() > 0.0:
        found = fit(problem, transcription, solver, max_time=left())
        count += 1
        if _rank(found) < _rank(best):
            best, led = found, "nominal values"
    if best is not None and not best.success and problem.names and left() > 0.0:
        drawn = multistart(
            problem, transcription, solver, starts=_STARTS, screen=_SCREEN, rng=seed, max_time=left(), verbose=0
        )
        count += len(drawn.starts)
        if drawn.best is not None and _rank(drawn.best) < _rank(best):
            best, led = drawn.best, "drawn starts"
    if best is None:
        return None
    cut = not best.success and deadline <= time.time()
    return replace(
        row,
        status=CUT_OFF if cut else best.status.value,
        message="The time of the whole run ended." if cut else best.message,
        result=replace(best, problem=None, found_by=None),
        start=led,
        fits=count,
        time=time.perf_counter() - began,
    )


def _rank(result: Result) -> tuple[bool, float]:
    return not result.success, result.cost if np.isfinite(result.cost) else np.inf
