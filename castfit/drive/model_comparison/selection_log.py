"""Log of a running selection: proposals, fits, the best candidate, and fits that missed their optimum."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any
from zlib import crc32

import numpy as np

from castfit._support.arguments import shorten_repr
from castfit._support.json_codec import rebuild_value
from castfit._support.renamed import with_old_names
from castfit._support.reprs import join_limited
from castfit._support.status import Status
from castfit._support.time_limit import check_interrupt
from castfit.drive.model_comparison.candidates import (
    CandidateFit,
    CandidateModel,
    Candidates,
    CandidateStart,
    Job,
    fit_candidate,
)
from castfit.drive.model_comparison.likelihood_ratio import find_nested_point
from castfit.drive.model_comparison.search import CandidateProposal
from castfit.drive.run.checkpoint import Checkpoint
from castfit.drive.run.loop import RunSession
from castfit.drive.run.run_result import CUT_OFF
from castfit.result.result import Result

_NESTED_EXCESS = 1e-6  # tolerated excess of -2 log L over a nested model
_MAX_REFIT_ROUNDS = 3  # rounds of fits that start from nested models
_CRITERION_DECIMALS = 3  # decimals to which models are ranked by a criterion


@with_old_names(last="last_fit")
@dataclass(frozen=True)
class SelectionProgress:
    """Progress of a selection: fits ended and proposed so far, the last fit, the best candidate and its criterion."""

    finished: int
    total: int
    last_fit: CandidateFit
    best: str
    criterion: float

    @property
    def sentence(self) -> str:
        """State of the run in one line."""
        best = f"; best '{self.best}', {self.criterion:.6g}" if self.best else ""
        return f"{self.finished} of {self.total} candidates proposed so far were fitted{best}"


class SelectionLog:
    """The candidates of a run, their fits, and their ranking."""

    def __init__(self, space: Candidates, criterion: str, job: bytes | Job, seed: int) -> None:
        self.space, self.criterion = space, criterion
        self.rows: dict[str, CandidateFit] = {}
        self.predecessors: dict[str, str] = {}
        self.path: list[str] = []
        self.corrected: list[str] = []
        self.stuck: dict[str, str] = {}
        self.external_criteria: dict[str, float] = {}
        """Criteria of an external library."""
        self.stop_status: Status | None = None
        self.last_fit: CandidateFit | None = None
        self._candidates: dict[str, CandidateModel] = {}
        self._results: dict[str, Result] = {}
        self._job, self._seed = job, seed

    def candidate(self, name: str) -> CandidateModel:
        """Return a candidate that was proposed."""
        return self._candidates[name]

    def is_proposed(self, name: str) -> bool:
        """Whether a candidate was proposed before."""
        return name in self.rows

    def result(self, name: str) -> Result:
        """Return the result of a successful fit, with its problem; raise LookupError if it failed."""
        row = self.rows[name]
        if row.result is None or not row.success:
            raise LookupError(name)
        if name not in self._results:
            self._results[name] = row.result.with_known_problem(self.space.problem(self._candidates[name]))
        return self._results[name]

    def value(self, name: str) -> float:
        """Return the criterion of a candidate; NaN if there is no solution."""
        row = self.rows[name]
        if row.result is None or not row.success:
            return np.nan
        return self.external_criteria.get(name, float(getattr(row.result.criteria, self.criterion.lower())))

    @property
    def order(self) -> list[str]:
        """Names of the successful fits: by criterion, then by number of estimates, then by name."""
        return rank_by_criterion({n: self.value(n) for n, row in self.rows.items() if row.success}, self.rows)

    @property
    def best(self) -> str | None:
        """The first candidate of the order; None if no fit succeeded."""
        return next(iter(self.order), None)

    def nearest(self, candidate: CandidateModel) -> str:
        """Return the best fitted candidate that is nested in this one; empty if there is none."""
        contained_names = (n for n in self.order if self._candidates[n].is_nested_in(candidate))
        return next(contained_names, "")

    @property
    def sentences(self) -> list[str]:
        """Sentences about the fits: their number, corrections by contained models, and failures."""
        n_fitted = len(self.order)
        lines = [f"{n_fitted} of {self.space.count} candidates were fitted." if n_fitted < self.space.count
                 else f"All {n_fitted} candidates were fitted."]  # fmt: skip
        corrected_names = [n for n in self.corrected if n not in self.stuck]
        if corrected_names:
            names_text = join_limited(f"'{n}'" for n in corrected_names)
            lines.append(
                f"{names_text} had not reached the optimum (a nested model fits better) and was fitted again from the "
                "nested model."
            )
        lines += [
            f"'{name}' has a higher objective than {start}, which is nested in it: its optimum was not found, and its "
            "weight is too small."
            for name, start in self.stuck.items()
        ]
        lines += [f"'{n}' was not fitted: {row.message}" for n, row in self.rows.items() if not row.success]
        return lines

    def fit(self, batch: Iterable[CandidateProposal], session: RunSession, file: Checkpoint | None) -> bool:
        """Fit a batch, and again the models that fit worse than nested ones; return whether to continue."""
        starts: dict[str, tuple[CandidateStart, ...]] = {}
        for proposal in batch:
            name = proposal.candidate.name
            self._candidates[name] = proposal.candidate
            self.rows.setdefault(name, CandidateFit(name=name))
            self.predecessors[name] = proposal.predecessor
            preceding_row = self.rows.get(proposal.predecessor)
            is_warm = preceding_row is not None and preceding_row.success and preceding_row.result is not None
            starts[name] = (
                CandidateStart(),
                *([_warm(preceding_row)] if is_warm and preceding_row is not None else []),
            )
        can_continue = self._carry_out(starts, session, file)
        for _ in range(_MAX_REFIT_ROUNDS):
            refits = self._above(set(starts)) if can_continue else {}
            if not refits:
                break
            previous_rows = {name: self.rows[name] for name in refits}
            self.rows |= {n: replace(row, number=row.number + 1, status="not_run") for n, row in previous_rows.items()}
            can_continue = self._carry_out({n: (start,) for n, start in refits.items()}, session, file)
            for name, previous_row in previous_rows.items():
                refitted_row = self.rows[name]
                if refitted_row.success and refitted_row.neg2loglik < previous_row.neg2loglik - _NESTED_EXCESS:
                    self.corrected += [name] if name not in self.corrected else []
                else:
                    self.rows[name] = replace(previous_row, number=refitted_row.number)
                    self.stuck[name] = refits[name].label
                self._results.pop(name, None)
        best = self.best
        if best is not None and (not self.path or self.path[-1] != best):
            self.path.append(best)
        return can_continue

    def _carry_out(
        self, starts: Mapping[str, tuple[CandidateStart, ...]], session: RunSession, file: Checkpoint | None
    ) -> bool:
        """Fit candidates from their starts; return whether all fits ended."""
        run, names, session.progress = session.run, list(starts), self.progress
        saved_rows = {} if file is None else self._read_saved_fits(file)
        tasks: deque[Any] = deque()
        for i, name in enumerate(names):
            row = self.rows[name]
            if (name, row.number) in saved_rows:
                self.rows[name] = saved_rows[name, row.number]
                continue
            seed = crc32(f"{self._seed} {name}".encode())
            arguments = (self._job, row, self._candidates[name], starts[name], seed, run.fit_max_time, run.deadline)
            tasks.append((i, arguments))
        for i, outcome in session.iterate_outcomes(fit_candidate, tasks, limit=run.fit_max_time):
            row = self.rows[names[i]]
            row = self.rows[names[i]] = outcome if isinstance(outcome, CandidateFit) else row.with_lost_task(outcome)
            if file is not None and row.finished:
                file.append({"row": row})
            if row.status in ("not_run", Status.INTERRUPTED.value):
                continue
            self.last_fit = row
            progress = self.progress()
            if session.notify(progress, progress.sentence, f"{row.name}: {row.status}", milestone=True):
                self.stop_status = Status.STOPPED_BY_CALLBACK
                return False
        check_interrupt()
        return not any(self.rows[name].status in ("not_run", CUT_OFF) for name in names)

    def progress(self) -> SelectionProgress:
        """Build the progress report of the run."""
        n_finished, best = sum(r.finished for r in self.rows.values()), self.best or ""
        last_fit = self.last_fit or next(iter(self.rows.values()))
        return SelectionProgress(n_finished, len(self.rows), last_fit, best, self.value(best) if best else np.nan)

    def _read_saved_fits(self, file: Checkpoint) -> dict[tuple[str, int], CandidateFit]:
        """Return the fits of an earlier run."""
        with file.intact():
            rows = [rebuild_value(CandidateFit, record["row"]) for record in file.records if "row" in record]
        return {(row.name, row.number): row for row in rows}

    def _above(self, names: set[str]) -> dict[str, CandidateStart]:
        """Find models that fit worse than a nested model, each with the best nested point as new start."""
        lower_points: dict[str, tuple[float, CandidateStart]] = {}
        fitted_names = [n for n, row in self.rows.items() if row.success and row.result and not row.result.neg2logprior]
        for small, large in permutations(fitted_names, 2):
            low, high = self.rows[small].neg2loglik, self.rows[large].neg2loglik
            if not (low < high - _NESTED_EXCESS) or large in self.stuck or not {small, large} & names:
                continue
            point = self.find_nested_point(small, large)
            if point is not None and (large not in lower_points or low < lower_points[large][0]):
                lower_points[large] = low, CandidateStart(f"the estimates of '{small}'", point, exact=True)
        return {name: start for name, (_, start) in lower_points.items()}

    def find_nested_point(self, small: str, large: str) -> Mapping[str, float] | None:
        """Return the point at which a larger model equals a smaller one; None if they are not nested."""
        smaller, larger = self._candidates[small], self._candidates[large]
        result = self.rows[small].result
        assert result is not None
        if smaller.chosen:
            fixed_values = {n: v for n, v in smaller.chosen.items() if isinstance(v, float)}
            return {**result.values, **fixed_values} if smaller.is_nested_in(larger) else None
        larger_result = self.rows[large].result
        if larger_result is None or not set(result.names) < set(larger_result.names):
            return None
        return find_nested_point(self.result(small), self.result(large))


def _warm(row: CandidateFit) -> CandidateStart:
    assert row.result is not None
    return CandidateStart(f"the estimates of {shorten_repr(row.name)}", row.result.values)


def rank_by_criterion(values: Mapping[str, float], rows: Mapping[str, CandidateFit]) -> list[str]:
    """Sort names by a rounded criterion, then by number of estimates, then by name."""

    def key(name: str) -> tuple[float, int, str]:
        result, value = rows[name].result, values[name]
        size = 0 if result is None else len(result.names) + len(result.sigmas)
        return (round(value, _CRITERION_DECIMALS) if np.isfinite(value) else np.inf), size, name

    return sorted(values, key=key)
