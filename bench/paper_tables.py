"""Published tables, run again: many random starts of one problem, method by method, case by case.

Every case is a comparison (`castfit.compare`); outcomes are sorted into its categories.  The best optimum known is the
lowest of the library's reference, of a fit from its parameters, and of all fits of the case.  Noise and starts follow
from the seed alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from castfit._support.status import Status, raise_if_mistakes
from castfit._support.text_tables import Column, TextTable
from castfit.drive.run.optima import ObjectiveMeasure
from castfit.drive.search.compare.benchmarks import Progress, drawn_starts, progress_callback
from castfit.drive.search.compare.compare import compare
from castfit.drive.search.compare.methods import Method, methods_from
from castfit.drive.search.compare.result import COUNTS, Columns, ComparisonResult, MethodRow, count_correct, legend
from castfit.drive.search.incremental.result import Horizon
from castfit.fit.fit import fit
from castfit.problems import Benchmark, PublishedTable, load, tables
from castfit.transcribe.multiple_shooting import MultipleShooting

from .cpu_clock import cpu_clock
from .methods import INTEGRATOR, METHODS, integrated, table_methods
from .table import COMMON, Kind, Report, number_mistakes, record, reported


@dataclass(frozen=True)
class TableResult:
    """A repeated table.

    Attributes
    ----------
    table : PublishedTable
    seed : int or None
    rows : tuple of MethodRow
        One per case and method.
    best : tuple of float
        Per case the chi2 that counts as the global optimum.
    cases : tuple of ComparisonResult
        All fits of every case.
    stopped : Status or None
        What ended the run early.
    """

    table: PublishedTable
    seed: int | None
    rows: tuple[MethodRow, ...]
    best: tuple[float, ...]
    cases: tuple[ComparisonResult, ...] = ()
    stopped: Status | None = None

    @property
    def courses(self) -> dict[str, tuple[Horizon, ...]]:
        """The horizons of incremental fits, of a table with a single start; empty for others."""
        if self.table.start is None:
            return {}
        return {trial.method: trial.horizons for case in self.cases for trial in case.trials if trial.horizons}

    def record(self) -> dict[str, Any]:
        """Return what JSON gets."""
        rows = [row.record() for row in self.rows]
        for row in rows:
            if row["method"] in self.courses:
                row["horizons"] = [
                    {"horizon": h.horizon, "iterations": h.iterations, "chi2": h.chi2, **h.estimates}
                    for h in self.courses[row["method"]]
                ]
        status_entry = {} if self.stopped is None else {"stopped": self.stopped.value}
        return record(self.table.name, rows, seed=self.seed, best=self.best, **status_entry)

    @property
    def shown(self) -> tuple[TextTable | str, ...]:
        """The paper's rows, then ours; of a table with one start also the courses of the fits."""
        cases = map(_case, self.table.cases[0])
        further_columns = _EQUIVALENT if any(np.isfinite(row.equivalent_iterations) for row in self.rows) else ()
        castfit_table = TextTable.from_items(
            self.rows, ("ours", lambda row: row.method), *cases, *COUNTS, *further_columns
        )
        words = (legend(case.descriptions) for case in self.cases[:1])
        status_lines = [] if self.stopped is None else [self.stopped.message]
        courses = (_course(method, course) for method, course in self.courses.items())
        return (
            reported(self.table.name, self.table.source, self.table.paper),
            "",
            castfit_table,
            "",
            *words,
            count_correct(*self.best, merit=self.cases[0].merit if self.cases else None),
            *status_lines,
            *courses,
        )


_EQUIVALENT: Columns = (
    (">I_equiv", lambda row: f"{row.equivalent_iterations:.1f}" if np.isfinite(row.equivalent_iterations) else ""),
)


def _case(parameter: str) -> Column[MethodRow]:
    return f">{parameter}", lambda row: f"{row.case[parameter]}"


def _course(method: str, horizons: Sequence[Horizon]) -> TextTable:
    """Return the estimates of an incremental fit, horizon by horizon."""
    return TextTable.from_items(
        horizons,
        (">horizon", lambda h: f"{h.horizon:g}"),
        (">iterations", lambda h: f"{h.iterations}"),
        *map(_estimate, horizons[0].estimates),
        (">chi2", lambda h: f"{h.chi2:.4g}"),
        ("", lambda h: h.fallback),
        title=f"{method}: estimates per horizon",
    )


def _estimate(name: str) -> Column[Horizon]:
    return f">{name}", lambda h: f"{h.estimates[name]:.4f}"


def run_table(
    table: PublishedTable,
    *,
    methods: Sequence[str] | None = None,
    starts: int | None = None,
    seed: int | None = None,
    workers: int = 1,
    max_time: float = 60.0,
    tolerance: float | None = None,
    progress: Progress = lambda text: None,
) -> TableResult:
    """Repeat a published table.

    Parameters
    ----------
    table : PublishedTable
    methods : sequence of str, optional
        Names in `METHODS`, or names as in `castfit.compare`; by default those of the table.
    starts : int, optional
        By default as many as the paper.
    seed : int, optional
        Draws noise and starts; by default the stored noise and starts of seed 0.
    workers : int
        Processes; times are comparable only if each has a core of its own.
    max_time : float
        CPU seconds per start with one worker, else seconds.
    tolerance : float, optional
        Relative tolerance of the integrator, a hundred times the absolute one; by default the table's.
    progress : callable
        Told what is being done.

    Returns
    -------
    TableResult
        Also after Ctrl-C: then with the fits that had finished.

    Raises
    ------
    InputError
        For unknown methods or numbers out of range.
    """
    count = table.starts if starts is None else starts
    names = tuple(methods) if methods is not None else table.methods
    mistakes: list[str] = []
    methods_from(list(names), mistakes, also=METHODS)
    mistakes += number_mistakes(starts=count, workers=workers, seed=seed, max_time=max_time)
    if table.start is not None and count > 1:
        mistakes.append(f"starts is {count}; the table has a single start, '{table.start}'")
    raise_if_mistakes(table.name, mistakes)

    seed_entry = {} if seed is None else {"rng": seed}
    rows: list[MethodRow] = []
    cases: list[ComparisonResult] = []
    stop_status: Status | None = None
    try:
        for case in table.cases:
            benchmark = load(table.problem, **case, **seed_entry)
            label = ", ".join([table.name, *(f"{k} = {v}" for k, v in case.items())])
            table_starts = None if table.start is None else [benchmark.starts[table.start]]
            with cpu_clock(workers):
                comparison = compare(
                    benchmark.problem,
                    _chosen(names, benchmark, table.tolerance if tolerance is None else tolerance),
                    starts=table_starts or drawn_starts(benchmark.draw_start, count, seed or 0),
                    reference=_optimum(benchmark),
                    workers=workers,
                    fit_max_time=max_time,
                    callback=progress_callback(label, count * len(names), progress),
                )
            cases.append(comparison)
            rows += [replace(row, case=case) for row in comparison.rows]
            if comparison.stopped is not None:
                stop_status = comparison.stopped
                break
    except KeyboardInterrupt:
        stop_status = Status.INTERRUPTED
    return TableResult(
        table,
        seed,
        tuple(rows),
        tuple(case_comparison.best_objective for case_comparison in cases),
        tuple(cases),
        stop_status,
    )


def _chosen(names: Sequence[str], benchmark: Benchmark, tolerance: float | None) -> dict[str, Method]:
    methods = table_methods(names, benchmark, [])
    if tolerance is None:
        return methods
    options = replace(INTEGRATOR, relative_tolerance=tolerance, absolute_tolerance=1e-2 * tolerance)
    return {name: integrated(method, options) for name, method in methods.items()}


def _optimum(benchmark: Benchmark) -> float:
    """Return the objective of the optimum nearest to the reference parameters, as `castfit.compare` takes it."""
    intervals: Mapping[str, Any] = benchmark.transcriptions.get("multiple", {})
    method = MultipleShooting(**intervals)
    result = fit(benchmark.problem, method, start=benchmark.reference.parameters)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    reference_objective = ObjectiveMeasure.from_problem(benchmark.problem).at_height(benchmark.reference.objective)
    return min(result.objective, reference_objective) if result.success else reference_objective


def _run(name: str, progress: Progress, **options: Any) -> Report:
    result = run_table(tables()[name], progress=progress, **options)
    return Report(result.shown, result.record())


KIND = Kind(lambda: tables(), (*COMMON, "tolerance"), _run, lambda name: tables()[name].source)
