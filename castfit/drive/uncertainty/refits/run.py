"""The run of many fits to other data: each starts at the estimate, with its whole trajectory.

recipe, index --problem--> Posed --fit (here, processes, executor)--> Refit, one row each

The method is the method of the result, because it has converged before.  If only theta has to change, and data sets
differ only in their values, most need no ordinary fit: see castfit.drive.uncertainty.refits.descent.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from castfit._support.arrays import Array
from castfit._support.json_codec import rebuild_value
from castfit._support.process_pool import LOST
from castfit._support.progress_line import duration
from castfit._support.renamed import with_old_names
from castfit._support.status import Status
from castfit._support.text_tables import TextTable
from castfit._support.time_limit import StopRequested, with_deadline
from castfit.drive.run.checkpoint import Checkpoint, run_header
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.loop import ProgressReport, run_tasks
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import CUT_OFF, STOPS, FitRecord, RunResult
from castfit.drive.uncertainty.refits.descent import WarmStartedRefits
from castfit.fit.build_result import sigma_names
from castfit.fit.fit import plain_fit as fit
from castfit.fit.fit import refit_method_options, start_at_trajectory
from castfit.fit.methods import Solver, Transcription, parts_from
from castfit.problem.compiled_problem import CHI2, PETAB, CompiledProblem
from castfit.result.covariance import neg2loglik
from castfit.result.residuals import groups
from castfit.result.result import Result
from castfit.transcribe.observation import constant

Values = Mapping[str, float]
Pairs = Mapping[str, tuple[float, float]]
Recipe = Callable[[CompiledProblem, int], CompiledProblem]
"""Returns the problem with the data of an index; pickled, and independent of the process that calls it."""
_MIN_REFIT_SECONDS = 1e-3  # seconds that a fit has at least, after a descent that failed
_OTHER_OPTIMUM_RTOL = 1e-6  # relative: another start whose cost is lower by more has found another optimum


@dataclass(frozen=True)
class RefitPlan:
    """Settings common to all fits of a run.

    starts : starts of each fit
    reads : function that reads further pairs of numbers from a fit that succeeded
    nearby_transcription : the transcription that starts from the known trajectory, if there is one
    descent : descent from the estimate, if only theta has to change
    method_labels : names of transcription and solver in checkpoints, if they are the result's
    """

    compiled_problem: CompiledProblem
    transcription: Transcription
    solver: Solver
    recipe: Recipe
    starts: tuple[Values, ...] = ()
    reads: Callable[[Result], Pairs] | None = None
    nearby_transcription: Transcription | None = None
    descent: WarmStartedRefits | None = None
    method_labels: tuple[str, str] | None = None

    def with_initial_result(self, result: Result, *, is_method_requested: bool) -> RefitPlan:
        """Add a result, with its whole trajectory, as first start; keep its method unless another one is set."""
        start_transcription = start_at_trajectory(self.compiled_problem, self.transcription, result.theta, result)
        labels = None if is_method_requested else (result.transcription, result.solver)
        return replace(
            self, starts=(result.values, *self.starts), nearby_transcription=start_transcription, method_labels=labels
        )


@with_old_names(found="requested_pairs", elsewhere="has_other_optimum")
@dataclass(frozen=True, eq=False, kw_only=True)
class Refit(FitRecord):
    """A fit to other data.

    index, name : index of the data set, from 0, and its name, such as that of an experiment left out
    status, message : a value of `castfit.Status` or "worker_died", "worker_hung", "cut_off", "error", "not_run"
    theta : (n_theta,) estimates, search scale; the best point of a fit that failed, empty if there is none
    sigmas : eliminated unknown standard deviations, the most likely values
    chi2, objective, measure : of the fit; see `Result`
    requested_pairs : additional pairs of numbers, such as the ends of an interval per quantity
    start : index of the start that led to the fit: 0 is the estimate, larger ones are additional starts
    has_other_optimum : whether another start led to a better optimum than the estimate did
    time : seconds
    """

    index: int
    name: str = ""
    status: str = "not_run"
    message: str = "Not run."
    theta: Array = field(default_factory=lambda: np.empty(0))
    cost: float = np.nan
    chi2: float = np.nan
    objective: float = np.nan
    measure: str = CHI2
    sigmas: Mapping[str, float] = field(default_factory=dict[str, float])
    requested_pairs: Pairs = field(default_factory=dict[str, tuple[float, float]])
    start: int = 0
    has_other_optimum: bool = False
    iterations: int = 0
    time: float = np.nan

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key for fits to the same data; the best fit is last."""
        return self.success, -self.cost if np.isfinite(self.cost) else -np.inf


class RefitsResult(RunResult):
    """Result of fits to other data: a row for each fit, in order."""

    rows: tuple[Refit, ...]

    @property
    def fitted(self) -> int:
        """Number of fits that succeeded."""
        return sum(row.success for row in self.rows)

    @property
    def failures(self) -> dict[str, int]:
        """Numbers of fits that ended without a solution, by cause, the most frequent first."""
        return dict(Counter(row.status for row in self._failed).most_common())

    @property
    def _failed(self) -> list[Refit]:
        return [row for row in self.rows if row.finished and not row.success]

    def _build_field_columns(self, *names: str) -> dict[str, Callable[[Refit], Any]]:
        """Return columns of a table that show fields of rows."""
        return {name: attrgetter(name) for name in names}

    def _failure_sheet(self) -> TextTable:
        """Return the table of causes, with an example message for each."""
        example = {row.status: row.message for row in reversed(self._failed)}
        return TextTable.from_items(
            self.failures.items(),
            (">failed", lambda each: f"{each[1]}"),
            ("cause", lambda each: each[0]),
            ("for instance", lambda each: example[each[0]]),
        )


@with_old_names(last="last_refit")
@dataclass(frozen=True)
class RefitProgress:
    """Progress of a run, for callbacks: numbers of fits, the fit that ended last, and seconds."""

    finished: int
    total: int
    failed: int
    last_refit: Refit
    seconds: float
    seconds_left: float

    def sentence(self, label: str) -> str:
        """Return the state of the run in one line."""
        failed = f", {self.failed} failed" if self.failed else ""
        remaining_text = f", about {duration(self.seconds_left)} left" if self.finished < self.total else ""
        return f"{self.finished} of {self.total} {label}{failed}; {self.seconds:.0f} s{remaining_text}"


def refit_options(
    transcription: Any, solver: Any, mistakes: list[str], *, result: Any, fit_max_time: Any, **options: Any
) -> tuple[Transcription, Solver, RunOptions]:
    """Read the fitting method, by default that of the result, and the options of the run.

    Append mistakes to the driver's own `mistakes`, in the order of its arguments.
    """
    part_mistakes: list[str] = []
    default_parts = refit_method_options(result) if isinstance(result, Result) else None
    requested_transcription, chosen_solver = parts_from(transcription, solver, part_mistakes, default=default_parts)
    run = RunOptions(fit_max_time=fit_max_time, **options)
    run_mistakes = run.file_mistakes() + run.mistakes()
    mistakes[:] = [*part_mistakes, *mistakes, *run_mistakes]
    return requested_transcription, chosen_solver, run if run_mistakes else run.with_plain_numbers()


def refit_all(
    where: str,
    label: str,
    plan: RefitPlan,
    blank: Sequence[Refit],
    run: RunOptions,
    entries: Mapping[str, Any],
    first_record: Mapping[str, Any],
) -> tuple[tuple[Refit, ...], str, float, Mapping[str, Any]]:
    """Fit to all data; return the rows in order, a message, the seconds, and the header of the checkpoint.

    `where` is the function that the user called, `label` a name of its fits, such as "data sets", and `blank` has a row
    for each.  The header of a checkpoint has `entries` in addition to problem and method; `first_record` is its first
    record.
    """
    method = plan.method_labels or (plan.transcription, plan.solver)
    header = run_header(where, plan.compiled_problem, *method, **entries, fit_max_time=run.fit_max_time)
    job = run.pickle_job(where, "the problem with its transcription and solver", (plan,))
    rows = {row.index: row for row in blank}
    with run.open_checkpoint(header) as file:
        restored = _resume(file, rows, first_record) if file is not None else 0
        refits, message = carry_out_refits(
            run, _refit, job, rows, label,
            describe_row=lambda row: (
                f"{label} {row.name or row.index}: {row.status}, {row.measure} = {row.objective:.6g}, {row.time:.2f} s"
            ),
            file=file, restored=restored,
        )  # fmt: skip
        return refits, message, run.seconds, header


def carry_out_refits(
    run: RunOptions,
    function: Callable[..., Any],
    job: Any,
    blank: Mapping[int, Refit],
    label: str,
    *,
    describe_row: Callable[[Refit], str],
    verb: str = "fitted",
    file: Checkpoint | None = None,
    restored: int = 0,
) -> tuple[tuple[Refit, ...], str]:
    """Run a task for each unfinished row. Return the rows in order, and a message about how the run ended.

    `label` is a name of the rows, `verb` a participle for the message, and `describe_row` describes the last row;
    `restored` is the number of finished rows that came from the file.
    """
    rows = dict(blank)
    last_rows = deque([next(iter(rows.values()))], maxlen=1)

    def enter(i: int, outcome: Any) -> ProgressReport | None:
        is_refit = isinstance(outcome, Refit)
        row = rows[i] = replace(outcome, name=rows[i].name) if is_refit else rows[i].with_lost_task(outcome)
        if file is not None and row.finished:
            file.append({"row": row})
        if row.status in ("not_run", Status.INTERRUPTED.value):
            return None
        last_rows.append(row)
        progress = current_progress()
        return ProgressReport(
            progress, progress.sentence(label), describe_row(row), progress.finished, len(rows), timed=True
        )

    def current_progress() -> RefitProgress:
        finished_rows = [r for r in rows.values() if r.finished]
        seconds_left = run.seconds / max(len(finished_rows) - restored, 1) * (len(rows) - len(finished_rows))
        failed = sum(not r.success for r in finished_rows)
        return RefitProgress(len(finished_rows), len(rows), failed, last_rows[-1], run.seconds, seconds_left)

    tasks = deque((i, (job, i, run.fit_max_time, run.deadline)) for i, row in rows.items() if not row.finished)
    stop_reason = run_tasks(run, function, tasks, enter, limit=run.fit_max_time, progress=current_progress)
    refits = tuple(rows.values())
    finished = sum(row.finished for row in refits)
    final_status = run.find_stop_reason(stop_reason, finished < len(refits))
    count = f"All {finished}" if finished == len(refits) else f"{finished} of {len(refits)}"
    lost_messages = [f"{label} {r.name or r.index}: {r.message}" for r in refits if r.status in LOST]
    parts = (
        STOPS[final_status] if final_status else "",
        f"{count} {label} were {verb}.",
        *lost_messages[:3],
        f"And {len(lost_messages) - 3} more were lost." if len(lost_messages) > 3 else "",
        file.trouble if file else "",
    )
    return refits, " ".join(p for p in parts if p)


def _resume(file: Checkpoint, rows: dict[int, Refit], first_record: Mapping[str, Any]) -> int:
    """Read the finished fits of an earlier run; return their number."""
    with file.intact():
        stored_rows = read_rows(file.records)
    if not file.records:
        file.append(first_record)
    restored_rows = {i: row for i, row in stored_rows.items() if i in rows and row.finished}
    rows.update(restored_rows)
    return len(restored_rows)


def read_rows(records: Sequence[Mapping[str, Any]]) -> dict[int, Refit]:
    """Return the rows of a checkpoint, by index."""
    refits = (rebuild_value(Refit, record["row"]) for record in records if "row" in record)
    return {row.index: row for row in refits}


@task
def _refit(job: bytes | tuple[RefitPlan], index: int, limit: float, deadline: float) -> Refit | None:
    """Fit to the data of an index from every start, in any process; return None if no time is left."""
    (plan,) = unpickle_job(job)
    if deadline <= time.time():
        return None
    row = Refit(index=index)
    with with_deadline(deadline - time.time()) as watch, suppress(StopRequested):
        row = _refit_from_all_starts(plan, index, limit)
    if watch.cause is None:
        return row
    status = CUT_OFF if watch.cause is Status.MAX_TIME else watch.cause.value
    return replace(row, status=status, message=STOPS[watch.cause])


def _refit_from_all_starts(plan: RefitPlan, index: int, limit: float) -> Refit:
    """Return the best fit from all starts, within a time limit."""
    start_time = time.perf_counter()
    best: Refit | None = None
    reference = np.inf
    for k, start in enumerate(plan.starts):
        seconds_left = limit - (time.perf_counter() - start_time)
        if best is not None and seconds_left <= 0.0:
            break
        try:
            compiled_problem = plan.recipe(plan.compiled_problem, index)
            if k == 0 and plan.descent is not None:
                with with_deadline(seconds_left):
                    row = _fast_refit(plan, compiled_problem, index, start_time)
                if row is not None:
                    best, reference = row, row.cost
                    continue
                seconds_left = max(limit - (time.perf_counter() - start_time), _MIN_REFIT_SECONDS)
            result = fit(
                compiled_problem, plan.nearby_transcription or plan.transcription, plan.solver,
                start=start, second_start=k > 0, retry=False, max_time=seconds_left,
            )  # fmt: skip
        except Exception as error:  # an error with some data ends only this fit
            return Refit(index=index, status="error", message=f"{type(error).__name__}: {error}")
        row = _read(plan, index, k, result, time.perf_counter() - start_time)
        if k == 0:
            reference = row.cost if row.success else np.inf
        if best is None or row.rank > best.rank:
            best = row
    assert best is not None
    seconds = time.perf_counter() - start_time
    is_other_optimum = best.start > 0 and reference - best.cost > _OTHER_OPTIMUM_RTOL * max(1.0, abs(reference))
    return replace(best, time=seconds, has_other_optimum=bool(is_other_optimum))


def _fast_refit(plan: RefitPlan, compiled_problem: CompiledProblem, index: int, start_time: float) -> Refit | None:
    """Descend from the estimate; return None if an ordinary fit is needed."""
    outcome = plan.descent.refit(compiled_problem) if plan.descent is not None else None
    if outcome is None:
        return None
    end, rows = outcome
    likelihood = neg2loglik(
        rows.cost,
        constant(compiled_problem) + compiled_problem.prior_constant,
        n_unknown=int(np.count_nonzero(groups(compiled_problem) >= 0)),
    )
    objective = (
        rows.chi2
        if compiled_problem.measure == CHI2
        else likelihood * (0.5 if compiled_problem.measure == PETAB else 1.0)
    )
    return Refit(
        index=index,
        status=Status.CONVERGED.value,
        message=Status.CONVERGED.message,
        theta=end.theta,
        cost=rows.cost,
        chi2=rows.chi2,
        objective=objective,
        measure=compiled_problem.measure,
        sigmas=dict(zip(sigma_names(compiled_problem), rows.sigma.tolist(), strict=True)),
        iterations=end.steps,
        time=time.perf_counter() - start_time,
    )


def _read(plan: RefitPlan, index: int, start: int, result: Result, seconds: float) -> Refit:
    return Refit(
        index=index,
        status=result.status.value,
        message=result.message,
        theta=result.theta,
        cost=result.cost,
        chi2=result.chi2,
        objective=result.objective,
        measure=result.measure,
        sigmas=dict(result.sigmas),
        requested_pairs=plan.reads(result) if plan.reads is not None and result.success else {},
        start=start,
        iterations=result.iterations,
        time=seconds,
    )
