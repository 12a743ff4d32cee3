"""Published tables, run again: many random starts of one problem, method by method.

Every start of a method is one fit.  It is

    correct              a converged fit whose chi2 is that of the best optimum known, within 0.1 %
    wrong                a converged fit that ended elsewhere
    integration_error    the model could not be integrated
    optimization_error   anything else: iteration or time limits, steps that became too small

(the categories of Michalik, Hannemann and Marquardt 2009).  The best optimum known is the lowest of a fit from the
reference parameters and of all fits of the case.  Noise and starts follow from the seed alone, so that the counts are
the same for any number of workers, up to fits that the time limit ends; times are wall-clock seconds per start.  What
is built and compiled once per process is built by a fit that is not counted.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from castfit.benchmark.methods import INTEGRATOR, METHODS
from castfit.integrate import IntegratorOptions
from castfit.problems import Benchmark, PublishedTable, load
from castfit.status import Status, check, suggest

_SAME_OPTIMUM = 1e-3
_WARM_UP_TIME = 20.0
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Row:
    """What one method did in one case.

    Attributes
    ----------
    method : str
    case : mapping
        Options of the benchmark that set this row apart, such as ``{"mu": 20}``.
    starts, correct, wrong, integration_error, optimization_error : int
    success_rate : float
        correct / starts
    median_time, expected_time : float
        Seconds per start; and until the global optimum is found, inf if it never was.
    """

    method: str
    case: Mapping[str, Any]
    starts: int
    correct: int
    wrong: int
    integration_error: int
    optimization_error: int
    success_rate: float
    median_time: float
    expected_time: float

    def record(self) -> dict[str, Any]:
        """Return what JSON gets: the case's options as entries of their own, None for infinity."""
        entries = {"method": self.method, **self.case, **{k: v for k, v in vars(self).items() if k != "case"}}
        return {k: None if v == np.inf else v for k, v in entries.items()}


@dataclass(frozen=True)
class TableResult:
    """A repeated table: its rows, and per case the chi2 that counts as the global optimum."""

    table: PublishedTable
    seed: int | None
    rows: tuple[Row, ...]
    best: tuple[float, ...]

    def record(self) -> dict[str, Any]:
        """Return what JSON gets."""
        best = [chi2 if np.isfinite(chi2) else None for chi2 in self.best]
        return {"table": self.table.name, "seed": self.seed, "best": best, "rows": [row.record() for row in self.rows]}


@dataclass(frozen=True)
class _Setting:
    """What the starts of one row share, as plain data that reaches a worker process."""

    problem: str
    options: tuple[tuple[str, Any], ...]
    method: str
    integrator: IntegratorOptions
    max_time: float


_Start = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class _Outcome:
    status: Status
    chi2: float
    seconds: float


def run_table(
    table: PublishedTable,
    *,
    methods: Sequence[str] | None = None,
    starts: int | None = None,
    seed: int | None = None,
    workers: int = 1,
    max_time: float = 60.0,
    tolerance: float | None = None,
    progress: Callable[[str], object] = lambda text: None,
) -> TableResult:
    """Repeat a published table.

    Parameters
    ----------
    table : PublishedTable
    methods : sequence of str, optional
        Names in `METHODS`; by default those of the table.
    starts : int, optional
        By default as many as the paper.
    seed : int, optional
        Draws noise and starts; by default the stored noise and starts of seed 0.
    workers : int
        Processes; times are comparable only if each has a core of its own.
    max_time : float
        Seconds per start.
    tolerance : float, optional
        Relative tolerance of the integrator, a hundred times the absolute one.
    progress : callable
        Told what is being done.

    Returns
    -------
    TableResult

    Raises
    ------
    InputError
        For unknown methods or numbers out of range.
    KeyboardInterrupt
        On Ctrl-C.
    """
    chosen = tuple(methods) if methods is not None else table.methods
    count = table.starts if starts is None else starts
    mistakes = [f"there is no method '{m}': {suggest(m, METHODS)}" for m in chosen if m not in METHODS]
    mistakes += [f"{n} is {v}; give at least 1" for n, v in (("starts", count), ("workers", workers)) if v < 1]
    mistakes += [f"seed is {seed}; give a number that is not negative"] if seed is not None and seed < 0 else []
    mistakes += [] if max_time > 0 else [f"max_time is {max_time}; give a positive number of seconds"]
    check(table.name, mistakes)
    integrator = INTEGRATOR
    if tolerance is not None:
        integrator = replace(INTEGRATOR, relative_tolerance=tolerance, absolute_tolerance=1e-2 * tolerance)

    drawn = {} if seed is None else {"rng": seed}
    seeds = np.random.SeedSequence(0 if seed is None else seed).spawn(count)
    rows: list[Row] = []
    best: list[float] = []
    with _runner(workers) as run:
        for case in table.cases:
            options = tuple(sorted({**case, **drawn}.items()))
            benchmark = _benchmark(table.problem, options)
            points = [tuple(benchmark.draw_start(np.random.default_rng(s)).items()) for s in seeds]
            found: dict[str, list[_Outcome]] = {method: [] for method in chosen}
            for method, outcomes in found.items():
                setting = _Setting(table.problem, options, method, integrator, max_time)
                what = ", ".join([table.name, *(f"{k} = {v}" for k, v in case.items()), method])
                for outcome in run(setting, points):
                    outcomes.append(outcome)
                    progress(f"{what}: {len(outcomes)} of {count} starts")
            known = [_from_reference(benchmark), *(o for outcomes in found.values() for o in outcomes)]
            best.append(min((o.chi2 for o in known if o.status.success), default=np.nan))
            rows += [_row(method, case, outcomes, best[-1]) for method, outcomes in found.items()]
    return TableResult(table, seed, tuple(rows), tuple(best))


_Run = Callable[[_Setting, Sequence[_Start]], Iterator[_Outcome]]


@contextmanager
def _runner(workers: int) -> Generator[_Run, None, None]:
    """Yield a function that runs the starts of a row, in order."""
    if workers == 1:
        yield lambda setting, points: (_uninterrupted(_run(setting, point)) for point in points)
        return
    # Workers that share cores with each other's linear algebra would only get in each other's way.
    saved = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
        try:
            yield lambda setting, points: map(_uninterrupted, pool.map(_run, [setting] * len(points), points))
        finally:
            pool.shutdown(cancel_futures=True)
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _uninterrupted(outcome: _Outcome) -> _Outcome:
    """Pass on what Ctrl-C asked for: solvers take it for themselves."""
    if outcome.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return outcome


@cache
def _benchmark(name: str, options: tuple[tuple[str, Any], ...]) -> Benchmark:
    return load(name, **dict(options))


@cache
def _warm_up(setting: _Setting) -> Status:
    """Build and compile what the fits of a row need, by a fit from a start of its own; once per process."""
    benchmark = _benchmark(setting.problem, setting.options)
    limit = min(_WARM_UP_TIME, setting.max_time)
    fit = METHODS[setting.method]
    return fit(benchmark.problem, benchmark.draw_start(0), integrator=setting.integrator, max_time=limit).status


def _run(setting: _Setting, point: _Start) -> _Outcome:
    warmed = _warm_up(setting)
    if warmed is Status.INTERRUPTED:
        return _Outcome(warmed, np.nan, 0.0)
    problem, fit = _benchmark(setting.problem, setting.options).problem, METHODS[setting.method]
    began = time.perf_counter()
    result = fit(problem, dict(point), integrator=setting.integrator, max_time=setting.max_time)
    return _Outcome(result.status, result.chi2, time.perf_counter() - began)


def _from_reference(benchmark: Benchmark) -> _Outcome:
    """Return the optimum nearest to the reference parameters."""
    fit = METHODS["default"]
    result = fit(benchmark.problem, benchmark.reference.parameters, integrator=INTEGRATOR, max_time=np.inf)
    return _uninterrupted(_Outcome(result.status, result.chi2, result.time))


def _row(method: str, case: Mapping[str, Any], outcomes: Sequence[_Outcome], best: float) -> Row:
    converged = [o for o in outcomes if o.status.success]
    correct = sum(o.chi2 <= best * (1 + _SAME_OPTIMUM) for o in converged)
    failed = sum(o.status in (Status.START_FAILED, Status.EVALUATION_FAILED) for o in outcomes)
    seconds = [o.seconds for o in outcomes]
    rate = correct / len(outcomes)
    return Row(
        method=method,
        case=case,
        starts=len(outcomes),
        correct=correct,
        wrong=len(converged) - correct,
        integration_error=failed,
        optimization_error=len(outcomes) - len(converged) - failed,
        success_rate=rate,
        median_time=float(np.median(seconds)),
        expected_time=float(np.mean(seconds)) / rate if rate else np.inf,
    )
