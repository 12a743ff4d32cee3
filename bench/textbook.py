"""Textbook models from starts a decade away: how often the default fit, and `estimate`, find the optimum.

``castfit bench textbook`` measures one state of each model, on a scale that is unknown; ``castfit bench
textbook-all-states`` measures every state.  A hit is a fit that ends in a solution whose chi2 is at most 1 % above the
lowest that any method found for the model, from the truth or from afar.  CPU seconds contain what is built for the
first start of a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import castfit as cf
from castfit._support.status import Status, raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.problem.problem import Problem

from .cpu_clock import cpu_clock
from .scipy_fit import fit_by_scipy
from .table import Kind, Report, collect_rows, number_mistakes, record, unknown_mistakes
from .textbook_models import KIND_OF, MODELS

MAX_FIT_SECONDS = 60.0  # time limit of one fit in seconds
_HIT_CHI2_RATIO = 1.01  # ratio to the lowest chi2 up to which a run is a hit

Method = Callable[[Problem, dict[str, float], int, float], tuple[Any, float]]


def _fit(*parts: str) -> Method:
    def run(problem: Problem, start: dict[str, float], seed: int, max_time: float) -> tuple[Any, float]:
        result = cf.fit(problem, *parts, start=start, max_time=max_time)
        return result.status, result.chi2 if result.success else np.inf

    return run


def _estimate(problem: Problem, start: dict[str, float], seed: int, max_time: float) -> tuple[Any, float]:
    result = cf.estimate(problem.posed.starting_at(start), rng=seed, max_time=max_time)
    if result.best is None:
        return "nothing found", np.inf
    return result.best.status, result.best.chi2 if result.best.success else np.inf


def _scipy(problem: Problem, start: dict[str, float], seed: int, max_time: float) -> tuple[Any, float]:
    return fit_by_scipy(problem, start, max_time)


METHODS: dict[str, Method] = {
    "fit": _fit(),
    "estimate": _estimate,
    "single": _fit("single"),
    "multiple": _fit("multiple"),
    "scipy": _scipy,
}
"""The default fit, the default search, single and multiple shooting as they are, and what one writes with SciPy."""

QUESTIONS: dict[str, tuple[str, Callable[[Any], Problem]]] = {
    "textbook": ("one state measured, on a scale that is unknown", lambda model: model.one_output()),
    "textbook-all-states": ("all states measured", lambda model: model.all_states()),
}


@dataclass(frozen=True)
class TextbookRun:
    """A fit: the seed of its start, how it ended, its chi2 (inf if it ended in no solution), CPU seconds."""

    seed: int
    status: str
    chi2: float
    cpu: float


@dataclass(frozen=True)
class TextbookRow:
    """What a method did with a model; `best` is the lowest chi2 that any method found."""

    model: str
    kind: str
    method: str
    best: float
    runs: tuple[TextbookRun, ...]

    @property
    def hits(self) -> int:
        """How many runs found the optimum."""
        return sum(run.chi2 <= _HIT_CHI2_RATIO * self.best for run in self.runs)

    @property
    def cpu(self) -> float:
        """CPU seconds of all runs."""
        return sum(run.cpu for run in self.runs)


def run_textbook(
    table: str,
    *,
    methods: Sequence[str] = ("fit", "estimate"),
    problems: Sequence[str] | None = None,
    starts: int = 3,
    seed: int = 0,
    max_time: float = MAX_FIT_SECONDS,
    progress: Progress = lambda text: None,
) -> Iterator[TextbookRow]:
    """Fit every model from far starts, the rows of one model after the other.

    Parameters
    ----------
    table : str
        One of `QUESTIONS`.
    methods : sequence of str
        Of `METHODS`.
    problems : sequence of str, optional
        Names of models; by default all.
    starts, seed : int
    max_time : float
        CPU seconds per fit.
    progress : callable
        Told what is being done.

    Raises
    ------
    InputError
        For unknown names or numbers out of range.
    """
    chosen_names = tuple(MODELS) if problems is None else tuple(problems)
    mistakes = unknown_mistakes("method", methods, METHODS)
    mistakes += unknown_mistakes("model", chosen_names, MODELS)
    mistakes += number_mistakes(starts=starts, seed=seed, max_time=max_time)
    raise_if_mistakes(table, mistakes)

    def rows() -> Iterator[TextbookRow]:
        _, pose = QUESTIONS[table]
        for name in chosen_names:
            model = MODELS[name]
            problem = pose(model)
            fit_from_truth = cf.fit(problem, "single", cf.GaussNewton("box"), start=model.truth)
            runs: dict[str, tuple[TextbookRun, ...]] = {}
            for method in methods:
                progress(f"{table}: {name}, {method}")
                place = tuple(MODELS).index(name)
                runs[method] = tuple(
                    _run(METHODS[method], problem, model.far_start((seed, k, place)), seed + k, max_time)
                    for k in range(starts)
                )
            objectives = [
                fit_from_truth.chi2 if fit_from_truth.success else np.inf,
                *(run.chi2 for method_runs in runs.values() for run in method_runs),
            ]
            for method, of in runs.items():
                yield TextbookRow(name, KIND_OF[name], method, min(objectives), of)

    return rows()


def _run(method: Method, problem: Problem, start: dict[str, float], seed: int, max_time: float) -> TextbookRun:
    began = time.process_time()
    with cpu_clock():
        status, chi2 = method(problem, start, seed, max_time)
    if status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return TextbookRun(seed, str(getattr(status, "value", status)), chi2, time.process_time() - began)


def build_tables(table: str, rows: Sequence[TextbookRow]) -> tuple[TextTable | str, ...]:
    """Return the table, and the sums of every method."""
    castfit_table = TextTable.from_items(
        rows,
        ("model", lambda row: row.model),
        ("kind", lambda row: row.kind),
        ("method", lambda row: row.method),
        (">found", lambda row: f"{row.hits} of {len(row.runs)}"),
        (">chi2", lambda row: f"{row.best:.6g}"),
        (">worst", lambda row: f"{max(run.chi2 for run in row.runs):.6g}"),
        (">CPU s", lambda row: f"{row.cpu:.2f}"),
        title=f"{table}: {QUESTIONS[table][0]}",
    )
    sums: list[str] = []
    for method in dict.fromkeys(row.method for row in rows):
        method_rows = [row for row in rows if row.method == method]
        count, cpu = sum(len(row.runs) for row in method_rows), sum(row.cpu for row in method_rows)
        sums.append(f"{method}: {sum(row.hits for row in method_rows)} of {count} found, {cpu:.1f} CPU s")
    return castfit_table, "", *sums


def _report(name: str, progress: Progress, **options: Any) -> Report:
    rows, status = collect_rows(run_textbook(name, progress=progress, **options))
    records = [{**asdict(row), "hits": row.hits, "cpu": row.cpu} for row in rows]
    return Report(build_tables(name, rows), record(name, records, castfit=cf.__version__, **status))


KIND = Kind(
    lambda: QUESTIONS,
    ("starts", "seed", "methods", "max_time", "problems"),
    _report,
    lambda name: f"24 textbook models from a decade away: {QUESTIONS[name][0]}",
)
