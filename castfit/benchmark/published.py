"""Published tables, run again: many random starts of one problem, method by method.

Every start of a method is one `fit`.  It is

    correct              a converged fit whose chi2 is that of the best optimum known, within 0.1 %
    wrong                a converged fit that ended elsewhere
    integration_error    the model could not be integrated
    optimization_error   anything else: iteration or time limits, steps that became too small

(the categories of Michalik, Hannemann and Marquardt 2009).  The best optimum known is the lowest of a fit from the
reference parameters and of all fits of the table.  Noise and starts follow from the seed alone, so that the numbers
are the same for any number of workers; times are wall-clock seconds per start, after one fit that is not counted.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from castfit.fit import Solver, Transcription, fit
from castfit.integrate import IntegratorOptions
from castfit.problem import Problem
from castfit.problems import Benchmark, PublishedTable, load
from castfit.result import Result
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.ipopt import Ipopt
from castfit.status import Status, check, suggest
from castfit.transcribe.direct_collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

# Calcium needs no more; at 1e-8 a fit takes a third longer and finds the same optima.
_INTEGRATOR = IntegratorOptions(relative_tolerance=1e-6, absolute_tolerance=1e-8, compile="auto")
_SAME_OPTIMUM = 1e-3
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Method:
    """A way to fit: transcription, solver, and whether the search may go on from the measured states."""

    transcription: Transcription
    solver: Solver
    second_start: bool
    description: str


METHODS: dict[str, Method] = {
    "default": Method(
        MultipleShooting(25, integrator=_INTEGRATOR),
        GaussNewton(),
        True,
        "multiple shooting, 25 intervals, all of Gauss-Newton's rescues",
    ),
    "softening": Method(
        MultipleShooting(25, integrator=_INTEGRATOR),
        GaussNewton(),
        False,
        "the same, but never started again from the measured states",
    ),
    "natural-level": Method(
        MultipleShooting(25, integrator=_INTEGRATOR),
        GaussNewton(homotopy="always"),
        False,
        "softened problems first, then condensing with the natural level function",
    ),
    "paper": Method(
        MultipleShooting(17, integrator=_INTEGRATOR),
        GaussNewton(homotopy="never"),
        False,
        "17 intervals, natural level function, no homotopy",
    ),
    "single": Method(
        SingleShooting(integrator=_INTEGRATOR), GaussNewton(homotopy="never"), False, "single shooting, no homotopy"
    ),
    "hemker": Method(
        SingleShooting(integrator=_INTEGRATOR),
        GaussNewton(step_control="hemker", homotopy="never"),
        False,
        "single shooting with Hemker's step rule",
    ),
    "collocation": Method(Collocation(elements=800), GaussNewton(), True, "collocation, 800 elements, Gauss-Newton"),
    "collocation/ipopt": Method(
        Collocation(elements=800), Ipopt(), False, "collocation, 800 elements, IPOPT with exact Hessian"
    ),
}


@dataclass(frozen=True)
class Row:
    """What one method did; times in seconds, `expected_time` to the global optimum (inf if it was never found)."""

    method: str
    starts: int
    correct: int
    wrong: int
    integration_error: int
    optimization_error: int
    success_rate: float
    median_time: float
    expected_time: float


@dataclass(frozen=True)
class TableResult:
    """A repeated table: our rows, and the chi2 that counts as the global optimum."""

    table: PublishedTable
    seed: int | None
    best: float
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class _Outcome:
    status: Status
    chi2: float
    seconds: float
    failed_integration: bool


@dataclass(frozen=True)
class _Task:
    """One start of one method, as plain data that reaches a worker process."""

    problem: str
    options: tuple[tuple[str, Any], ...]
    method: str
    start: tuple[tuple[str, float], ...]
    max_time: float


def run_table(
    table: PublishedTable,
    *,
    methods: Sequence[str] | None = None,
    starts: int | None = None,
    seed: int | None = None,
    workers: int = 1,
    max_time: float = 60.0,
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
    progress : callable
        Told what is being done.

    Raises
    ------
    InputError
        For unknown methods or numbers out of range.
    """
    chosen = tuple(methods) if methods is not None else table.methods
    count = table.starts if starts is None else starts
    mistakes = [f"there is no method '{m}': {suggest(m, METHODS)}" for m in chosen if m not in METHODS]
    mistakes += [f"{n} is {v}; give at least 1" for n, v in (("starts", count), ("workers", workers)) if v < 1]
    mistakes += [f"seed is {seed}; give a number that is not negative"] if seed is not None and seed < 0 else []
    mistakes += [] if max_time > 0 else [f"max_time is {max_time}; give a positive number of seconds"]
    check(table.name, mistakes)

    options = {**table.options, **({} if seed is None else {"rng": seed})}
    benchmark = load(table.problem, **options)
    draws = np.random.SeedSequence(0 if seed is None else seed).spawn(count)
    points = [tuple(benchmark.draw_start(np.random.default_rng(draw)).items()) for draw in draws]
    key = tuple(sorted(options.items()))
    tasks = [_Task(table.problem, key, method, point, max_time) for method in chosen for point in points]
    outcomes: list[_Outcome] = []
    for task, outcome in zip(tasks, _outcomes(tasks, workers), strict=True):
        outcomes.append(outcome)
        done = len(outcomes) % count or count
        progress(f"{table.name}, {task.method}: {done} of {count} starts")
    by_method = {m: outcomes[i * count : (i + 1) * count] for i, m in enumerate(chosen)}
    best = min([_from_reference(benchmark), *(o.chi2 for o in outcomes if o.status.success)])
    return TableResult(table, seed, best, tuple(_row(m, found, best) for m, found in by_method.items()))


def _outcomes(tasks: Sequence[_Task], workers: int) -> Iterator[_Outcome]:
    """Run all tasks, in order."""
    if workers == 1:
        yield from map(_run, tasks)
        return
    # Workers that share cores with each other's linear algebra would only get in each other's way.
    saved = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield from pool.map(_run, tasks)
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@lru_cache(maxsize=4)
def _benchmark(name: str, options: tuple[tuple[str, Any], ...]) -> Benchmark:
    return load(name, **dict(options))


@lru_cache(maxsize=64)
def _warm_up(name: str, options: tuple[tuple[str, Any], ...], method: str) -> None:
    """Build and compile the integrators by a fit from the reference, once per process and method."""
    benchmark = _benchmark(name, options)
    _fit(benchmark.problem, METHODS[method], benchmark.reference.parameters, 20.0)


def _fit(problem: Problem, method: Method, start: Mapping[str, float], max_time: float) -> Result:
    return fit(
        problem,
        method.transcription,
        method.solver,
        start=start,
        second_start=method.second_start,
        max_time=max_time,
    )


def _run(task: _Task) -> _Outcome:
    _warm_up(task.problem, task.options, task.method)
    problem = _benchmark(task.problem, task.options).problem
    began = time.perf_counter()
    result = _fit(problem, METHODS[task.method], dict(task.start), task.max_time)
    seconds = time.perf_counter() - began
    failed = result.status in (Status.START_FAILED, Status.EVALUATION_FAILED)
    return _Outcome(result.status, result.chi2, seconds, failed)


def _from_reference(benchmark: Benchmark) -> float:
    """Return chi2 of the optimum nearest to the reference parameters."""
    result = fit(
        benchmark.problem,
        METHODS["default"].transcription,
        GaussNewton(homotopy="never"),
        start=benchmark.reference.parameters,
        second_start=False,
    )
    return result.chi2 if result.success else np.inf


def _row(method: str, outcomes: Sequence[_Outcome], best: float) -> Row:
    converged = [o for o in outcomes if o.status.success]
    correct = sum(o.chi2 <= best * (1 + _SAME_OPTIMUM) for o in converged)
    failed = sum(o.failed_integration for o in outcomes)
    seconds = [o.seconds for o in outcomes]
    rate = correct / len(outcomes)
    return Row(
        method,
        len(outcomes),
        correct,
        len(converged) - correct,
        failed,
        len(outcomes) - len(converged) - failed,
        rate,
        float(np.median(seconds)),
        float(np.mean(seconds)) / rate if rate else np.inf,
    )
