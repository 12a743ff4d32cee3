"""The fit of one candidate: the better of fits from nominal values and from another candidate's estimates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from castfit.drive.model_comparison.candidates import CandidateModel, Candidates
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.run_result import CUT_OFF, FitRecord
from castfit.drive.search.multistart.multistart import multistart
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import Solver, Transcription
from castfit.problem.problem import Posable
from castfit.result.result import Result
from castfit.transcribe.single_shooting import SingleShooting

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
