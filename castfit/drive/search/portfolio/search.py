"""Driver of a portfolio search: rounds of candidates are planned, run in any order, and entered in the planned order.

    plan --> candidates --> candidates below every solution are confirmed --> enough finds? --> plan ...

A search is defined by its parts (castfit.drive.search.portfolio.allocation.PortfolioOptions): ways with their draws and
screening, local fits and their race, the pool.  Between two rounds, a candidate below every solution is fitted at full
accuracy, one at a time; other candidates in the same valley count without a fit.  Before the end, two quantities of the
best point are exchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.json_codec import rebuild_value
from castfit._support.process_pool import LOST, Task, lost_task_status
from castfit._support.status import InputError, Status
from castfit.drive.run.checkpoint import Header
from castfit.drive.run.loop import ProgressReport, run_tasks
from castfit.drive.run.optima import ObjectiveMeasure, additional_fits_needed
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import STOPS
from castfit.drive.search.portfolio.allocation import (
    CandidateRecord,
    PortfolioOptions,
    PortfolioState,
    build_exchange_order,
    build_valley_order,
    plan_round,
)
from castfit.drive.search.portfolio.limits import SearchRegion
from castfit.drive.search.portfolio.result import PortfolioProgress, PortfolioResult, SearchCandidate, StrategySummary
from castfit.drive.search.portfolio.strategies import (
    CONFIRM,
    EXCHANGED,
    FOLLOW,
    SAME_COST_TOL,
    CandidateOrder,
    CandidateOutcome,
    make_candidate,
)
from castfit.problem.problem import Posable
from castfit.result.result import Result

if TYPE_CHECKING:
    from castfit._support.arrays import Array

_MAX_TIME_SHARE = 0.5  # share of the time limit for one candidate
# Candidates required if the best one does not fit the data: wide valleys are found often at an early stage.
_MIN_CANDIDATES_IF_MISFIT = 1000
# Unexplained fraction of an output's variance above which a misfit never ends the search.
_MAX_UNEXPLAINED_FRACTION = 0.5
_MIN_FIT_SECONDS = 1e-3  # time limit in seconds of a fit that only evaluates its starting point
_RESERVE_SHARE_AND_SECONDS = 0.1, 10.0  # share of the time limit, and at most seconds, for the last confirmation


def run_portfolio(
    problem: Posable, options: PortfolioOptions, region: SearchRegion, run: RunOptions, header: Header, *,
    rng: int | np.random.Generator, finds: int,
) -> PortfolioResult:  # fmt: skip
    """Run a search with given parts; see `castfit.estimate` for the arguments."""
    job = run.pickle_job("estimate", "the problem", (problem, region))
    with run.open_checkpoint(header) as file:
        search = _PortfolioSearch(problem, options, region, np.random.default_rng(rng), job, run, finds)
        if file is not None:
            with file.intact():
                search.saved_outcomes |= {
                    int(record["index"]): rebuild_value(CandidateOutcome, record["end"]) for record in file.records
                }

        def enter(i: int, outcome: Any) -> ProgressReport | None:
            end = search.enter(i, outcome)
            if end is not None and file is not None and i not in search.saved_outcomes:
                file.append({"index": i, "end": end})
            if end is None:
                return None
            progress = search.progress()
            is_finished = bool(search.reason)
            return ProgressReport(
                progress, progress.sentence, progress.sentence, progress.candidates, progress.candidates, is_finished
            )

        search.plan()
        stop_status = run_tasks(
            run, make_candidate, search.tasks, enter, limit=_MAX_TIME_SHARE * run.max_time, progress=search.progress
        )
        warnings = (file.trouble,) if file is not None and file.trouble else ()
    return search.result(stop_status, warnings)


class _PortfolioSearch:
    """Running search."""

    def __init__(
        self, problem: Posable, options: PortfolioOptions, region: SearchRegion, rng: np.random.Generator, job: Any,
        run: RunOptions, finds: int,
    ) -> None:  # fmt: skip
        self.problem, self.options, self.region, self.run, self.finds = problem, options, region, run, finds
        self.tasks: deque[Task] = deque()
        self.saved_outcomes: dict[int, CandidateOutcome] = {}
        self.state = PortfolioState()
        self.reason = ""
        self.losses: list[str] = []
        self._rng, self._job, self._merit = rng, job, ObjectiveMeasure.from_problem(problem)
        self._planned_orders: deque[tuple[int, CandidateOrder]] = deque()
        self._count = 0
        self._ends: dict[int, CandidateOutcome] = {}
        self._confirming_index: int | None = None
        self._following_index: int | None = None
        self._checking_index: int | None = None
        self._best: Result | None = None
        self._rank = (True, np.inf)
        self._is_late = self._is_closing = False
        self._is_exchanging, self._exchanged_cost = False, np.inf

    def plan(self) -> None:
        """Plan until there are orders to carry out, or the search ends."""
        while not self._planned_orders and not self.reason:
            self._confirming_index = (
                self.state.last_resort_index if self._is_late else self.state.find_unconfirmed(is_last=self._is_closing)
            )
            is_polishing = self._confirming_index is None and (self._is_late or self._has_enough_finds)
            if is_polishing:
                self._confirming_index = self.state.unpolished_index
            if self._confirming_index is not None:
                theta = self.state.records[self._confirming_index].end.theta
                orders = [CandidateOrder(CONFIRM, theta=theta, accurate=is_polishing)]
            elif not self._is_late and (valley := self.state.find_valley(is_last=self._is_closing)) is not None:
                self._following_index = valley
                orders = [build_valley_order(self.state, self.options, valley)]
            elif not self._is_late and (valley := self.state.unchecked_index) is not None:
                self._checking_index = valley
                orders = [CandidateOrder(CONFIRM, theta=self.state.records[valley].end.theta)]
            elif self._is_late:
                self.reason = STOPS[Status.MAX_TIME]
                return
            elif self._is_exchanging:
                self._is_exchanging, self._exchanged_cost = False, self.state.best
                orders = [build_exchange_order(self.state, self.options, self._rng)]
            else:
                orders = plan_round(self.state, self.options, self.region, self._rng)
            share, max_seconds = _RESERVE_SHARE_AND_SECONDS
            for order in orders:
                number, self._count = self._count, self._count + 1
                self._planned_orders.append((number, order))
                if number in self.saved_outcomes:
                    self._ends[number] = self.saved_outcomes[number]
                    continue
                reserved_seconds = 0.0 if order.way == CONFIRM else min(share * self.run.max_time, max_seconds)
                limit = _MAX_TIME_SHARE * self.run.max_time
                self.tasks.append((number, (self._job, order, limit, self.run.deadline - reserved_seconds)))
            self._absorb()

    def enter(self, i: int, outcome: Any) -> CandidateOutcome | None:
        """Enter an outcome; return None if it does not count."""
        if isinstance(outcome, InputError):
            raise outcome
        if outcome is None:  # there was no time for it
            self._is_late, self._checking_index = True, None
            self.tasks.clear()
            self._flush()
            if self._confirming_index is not None:
                self.reason = STOPS[Status.MAX_TIME]
            self.plan()
            return None
        if not isinstance(outcome, CandidateOutcome):
            status, message = lost_task_status(outcome)
            if status in LOST:
                self.losses.append(f"Candidate {i}: {message}")
            outcome = CandidateOutcome()
        self._ends[i] = outcome
        self._absorb()
        self.plan()
        return outcome

    def _absorb(self) -> None:
        """Enter the finished candidates in the planned order, up to the first unfinished one."""
        while self._planned_orders and self._planned_orders[0][0] in self._ends and not self.reason:
            self._enter_candidate(*self._planned_orders.popleft())
            reason = self._find_stop_reason()
            self._is_closing = bool(reason) and self.state.has_unfinished
            if self._is_closing:
                if self.state.is_closable:
                    self._planned_orders.clear()
                    self.tasks.clear()
            elif reason and self.options.doubt and self.state.best < self._exchanged_cost:
                self._is_exchanging = True
                self._planned_orders.clear()  # The other orders of the round are not needed.
                self.tasks.clear()
            else:
                self.reason = reason

    def _flush(self) -> None:
        """Enter the finished candidates, and discard the unfinished ones."""
        while self._planned_orders:
            entry = self._planned_orders.popleft()
            if entry[0] in self._ends:
                self._enter_candidate(*entry)

    def _enter_candidate(self, number: int, order: CandidateOrder) -> None:
        """Enter a candidate or its confirmation."""
        end = self._ends.pop(number)
        if order.way == FOLLOW:
            if self._following_index is not None:
                self.state, self._following_index = self.state.with_followed(self._following_index, end), None
        elif order.way != CONFIRM:
            record = CandidateRecord(len(self.state.records), order.way, end, order.family)
            self.state = self.state.with_records([record], self.region)
        elif self._checking_index is not None:
            self.state, self._checking_index = self.state.with_checked(self._checking_index, end), None
        elif self._confirming_index is not None:
            self.state, self._confirming_index = self.state.with_confirmed(self._confirming_index, end), None
        if end.result is not None and (self._best is None or _rank_outcome(end) < self._rank):
            self._best, self._rank = end.result, _rank_outcome(end)

    @property
    def _has_enough_finds(self) -> bool:
        return self.state.find_best_hits().size >= self.finds

    def _find_stop_reason(self) -> str:
        """Return the reason for the end of the search, or an empty string if it continues."""
        if not self._has_enough_finds or self._best is None:
            return ""
        if (
            not self._best.success and self.state.find_valley(is_last=True) is None
        ):  # else it is followed to its end first
            return ""
        if self._best.goodness.described:
            return f"the optimum was found the requested number of times ({self.finds})."
        T = self.state.table
        if T.size < _MIN_CANDIDATES_IF_MISFIT or any(
            part > _MAX_UNEXPLAINED_FRACTION for part in self._best.goodness.unexplained.values()
        ):
            return ""
        # Candidates that end far above the best are not followed to their optima: they count where they ended.
        costs: Array = np.sort(T["cost"][T["independent"] & ~T["dropped"] & np.isfinite(T["cost"])])
        w, N, last_index = 0, costs.size, -1
        while last_index < N - 1:  # the next one that differs
            w, last_index = (
                w + 1,
                int(costs.searchsorted(float(costs[last_index + 1]) + SAME_COST_TOL, side="right")) - 1,
            )
        if not additional_fits_needed(w, N):
            return f"{N} independent candidates ended in {w} different optima; a better one is unlikely."
        return ""

    def progress(self) -> PortfolioProgress:
        """Build the progress report of the search."""
        chi2 = self._best.chi2 if self._best is not None and self._best.success else np.inf
        lowest = self._best.cost if self._best is not None and not self._rank[0] else np.inf
        objective = self._best.objective if np.isfinite(lowest) and self._best is not None else np.inf
        return PortfolioProgress(
            len(self.state.records), self.state.best, chi2, self.state.find_best_hits().size, self.run.seconds, lowest,
            objective, self._merit.measure,
        )  # fmt: skip

    def result(self, stop_status: Status | None, warnings: tuple[str, ...]) -> PortfolioResult:
        """Close the search."""
        if not self.reason:
            self._flush()
        self._look_at_last_resort()
        reason = STOPS[stop_status] if stop_status else self.reason or STOPS[Status.MAX_TIME]
        best = None if self._best is None else self._best.with_problem(self.problem)
        best_indices = set(self.state.find_best_hits(independent=False).tolist())
        n_found = self.state.find_best_hits().size
        described = best is not None and best.success and best.goodness.described
        return PortfolioResult(
            best=best,
            reason=reason,
            candidates=tuple(_build_row(t, best=t.index in best_indices) for t in self.state.records),
            strategies=tuple(self._build_way(name) for name in (*self.options.ways, EXCHANGED)),
            stopping_rule_met=stop_status is None and n_found >= self.finds and reason != STOPS[Status.MAX_TIME],
            hits=n_found,
            is_adequate=described,
            time=self.run.seconds,
            merit=self._merit,
            spread=_compute_spread([t.end.start_theta for t in self.state.find_best_records()], self.region),
            warnings=(*self.losses, *warnings),
            note=self.region.note,
        )

    def _look_at_last_resort(self) -> None:
        """Evaluate the best candidate if no fit was done, so that the search has a best point."""
        index = self.state.last_resort_index
        if self._best is not None or index is None:
            return
        end = make_candidate(
            self._job, CandidateOrder(CONFIRM, theta=self.state.records[index].end.theta), _MIN_FIT_SECONDS, np.inf
        )
        if isinstance(end, CandidateOutcome) and end.result is not None:
            self.state, self._best = self.state.with_confirmed(index, end), end.result

    def _build_way(self, name: str) -> StrategySummary:
        records = [t for t in self.state.records if t.way == name]
        best, improvements = np.inf, 0
        for t in self.state.records:
            if t.cost < best - SAME_COST_TOL:
                improvements += t.way == name
                best = t.cost
        n_found = sum(t.way == name for t in self.state.find_best_records(independent=False))
        return StrategySummary(
            name, len(records), sum(t.end.dropped for t in records), sum(t.end.is_converged for t in records), n_found,
            improvements, sum(t.end.seconds for t in records),
        )  # fmt: skip


def _compute_spread(start_points: Sequence[Sequence[float]], region: SearchRegion) -> float:
    """Compute the median distance of starts over quantities, relative to the sampled range.

    Return NaN for fewer than two starts.
    """
    starts, width = np.array([start for start in start_points if start]), region.upper - region.lower
    if len(starts) < 2 or not (width > 0.0).any():
        return np.nan
    return float(np.median(np.ptp(starts, axis=0)[width > 0.0] / width[width > 0.0]))


def _build_row(t: CandidateRecord, *, best: bool) -> SearchCandidate:
    result = t.end.result
    ok = result is not None and result.success
    return SearchCandidate(
        t.index, t.way,
        result.objective if result is not None and ok else np.nan,
        result.chi2 if result is not None and ok else np.nan,
        t.end.cost, ok, best, t.end.dropped, {} if result is None else result.values, t.end.seconds, t.end.start_theta,
    )  # fmt: skip


def _rank_outcome(end: CandidateOutcome) -> tuple[bool, float]:
    """Return a sort key of a fitted candidate: solutions, and valley floors where these are clearly lower.

    Then the others.
    """
    if end.result is None:
        return True, np.inf
    cost = end.result.cost if np.isfinite(end.result.cost) else np.inf
    return not end.is_converged, cost if end.result.success else cost + SAME_COST_TOL
