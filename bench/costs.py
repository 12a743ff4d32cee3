"""``castfit bench costs``: what iterations of the transcriptions take, for the choice of the default.

Fits of models of many sizes are timed, without rescues, and their memory is traced; times and memory per iteration are
told by the features of castfit.fit.choice with coefficients that are not negative, by least squares of relative
errors.  Iterations are means over the textbook models, from starts a decade away, failures included.  With ``--folder
castfit/fit`` the table is put where castfit reads it.
"""

from __future__ import annotations

import json
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

import castfit as cf
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.fit.choice import MEASURED_COSTS_PATH, PROBE_SOLVER, CostFeatures, features
from castfit.problem.problem import Problem

from .cpu_clock import cpu_timed
from .library import machine
from .many_experiments import many_experiments, one_long_experiment
from .sizes import mass_action, reaction
from .table import Kind, Report, collect_rows, record
from .textbook import QUESTIONS
from .textbook_models import MODELS

NAME = "costs"
_CVODES = cf.SingleShooting(cf.IntegratorOptions("cvodes"))  # what there is without a compiled integrator
SOLVERS = {"single": cf.GaussNewton("box"), "multiple": cf.GaussNewton(), "collocation": cf.GaussNewton()}
_N_STARTS = 3  # number of starting points per model
_REPEATS, _SHORT = 5, 1.0  # fits by the clock at most, CPU seconds after which there is no further one

Pose = Callable[[], Problem]
CASES: dict[str, Pose] = {
    **{f"pde {n}": (lambda n=n: reaction(n)[0]) for n in (3, 10, 20, 40, 80)},
    **{f"network {n}": (lambda n=n: mass_action(n)[0]) for n in (4, 10, 20, 40, 60)},
    **{f"experiments {n}": (lambda n=n: many_experiments(n)) for n in (1, 10, 100)},
    **{f"values {n}": (lambda n=n: one_long_experiment(n)) for n in (100, 1000, 10_000)},
    **{f"textbook {n}": (lambda n=n: MODELS[n].all_states()) for n in ("decay", "two compartments", "Lotka-Volterra")},
    **{f"pde {n}, SUNDIALS": (lambda n=n: reaction(n)[0]) for n in (500, 1000)},
    **{f"network {n}, SUNDIALS": (lambda n=n: mass_action(n)[0]) for n in (80, 120)},
}
"""Problems that are timed."""


@dataclass(frozen=True)
class IterationCost:
    """What an iteration of a fit took: the features of its time and memory, CPU seconds, and traced bytes."""

    case: str
    method: str
    iterations: int
    of_time: tuple[float, ...]
    of_memory: tuple[float, ...]
    seconds: float
    memory: float


def timed(case: str, problem: Problem, kind: str) -> IterationCost | None:
    """Fit with memory traced, and again by the clock, the least of some; None where nothing is learned."""
    transcription = _CVODES if "SUNDIALS" in case else kind

    def fit() -> Any:
        return cf.fit(problem, transcription, SOLVERS[kind], retry=False)

    compiled_problem = problem.posed
    prospect = CostFeatures.from_problem(
        compiled_problem,
        compiled_problem.guess,
        _CVODES.transcribe(compiled_problem, compiled_problem.guess) if transcription is _CVODES else None,
    )
    name, features_of_cost = next(item for item in features(prospect).items() if item[0].partition(",")[0] == kind)
    tracemalloc.start()
    result = fit()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if not result.success:
        return None
    durations: list[float] = []
    while not durations or (len(durations) < _REPEATS and sum(durations) < _SHORT):
        durations.append(cpu_timed(fit)[1])
    return IterationCost(case, name, result.iterations, *features_of_cost, min(durations) / result.iterations, peak)


def coefficients(features: Sequence[Sequence[float]], figures: Sequence[float]) -> list[float]:
    """Return numbers that are not negative with which features tell figures, by least squares of relative errors."""
    A, y = np.array(features, dtype=float), np.array(figures, dtype=float)
    unit = np.maximum(A.max(axis=0), 1e-300)
    return [float(f"{c:.3g}") for c in nnls(A / unit / y[:, None], np.ones(y.size))[0] / unit]


def iterations(progress: Progress, models: Sequence[str] = tuple(MODELS), starts: int = _N_STARTS) -> dict[str, Any]:
    """Return how many iterations textbook models take on average, by transcription and kind of model."""
    counts: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in SOLVERS}
    for table, (_, pose) in QUESTIONS.items():
        for name in models:
            progress(f"{NAME}: {table}, {name}")
            problem, place = pose(MODELS[name]), tuple(MODELS).index(name)
            for k in range(starts):
                start = MODELS[name].far_start((0, k, place))
                compiled_problem, theta = problem.posed, problem.posed.theta_from(start)
                staged = cf.SingleShooting().transcribe(compiled_problem, theta)
                prospect = CostFeatures.from_problem(compiled_problem, theta, staged).with_stiffness(
                    compiled_problem, staged
                )
                for kind, solver in SOLVERS.items():
                    method = PROBE_SOLVER if kind == "single" else solver
                    counts[kind][prospect.kind].append(
                        cf.fit(problem, kind, method, start=start, retry=False).iterations
                    )
    return {
        kind: {model_kind: round(float(np.mean(n)), 1) for model_kind, n in counts_by_kind.items()}
        for kind, counts_by_kind in counts.items()
    }


def run_costs(progress: Progress = lambda _: None, cases: Sequence[str] = tuple(CASES)) -> Iterator[IterationCost]:
    """Time every case by every transcription."""
    for case in cases:
        problem = CASES[case]()
        for kind in SOLVERS:
            if kind != "single" and "SUNDIALS" in case:
                continue
            progress(f"{NAME}: {case}, {kind}")
            cost = timed(case, problem, kind)
            if cost is not None:
                yield cost


def table(rows: Sequence[IterationCost], counts: dict[str, Any]) -> dict[str, Any]:
    """Return what castfit reads."""
    seconds: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for name in dict.fromkeys(row.method for row in rows):
        method_rows = [row for row in rows if row.method == name]
        seconds[name] = coefficients([row.of_time for row in method_rows], [row.seconds for row in method_rows])
    for kind in SOLVERS:
        method_rows = [row for row in rows if row.method.partition(",")[0] == kind]
        memory[kind] = coefficients([row.of_memory for row in method_rows], [row.memory for row in method_rows])
    return {"castfit": cf.__version__, "machine": machine(), "iterations": counts, "seconds": seconds, "bytes": memory}


def _run(name: str, progress: Progress, folder: str | None = None) -> Report:
    rows, status = collect_rows(run_costs(progress))
    coefficients_table = table(rows, iterations(progress))
    if folder is not None and not status:
        (Path(folder) / MEASURED_COSTS_PATH.name).write_text(
            json.dumps(coefficients_table, indent=1) + "\n", encoding="utf-8"
        )

    def format_ratio(row: IterationCost, features: tuple[float, ...], weights: list[float], figure: float) -> str:
        return f"{float(np.dot(weights, features)) / figure:.2f}"

    sheet = TextTable.from_items(
        rows,
        ("case", lambda r: r.case),
        ("by", lambda r: r.method),
        (">iterations", lambda r: f"{r.iterations}"),
        (">an iteration", lambda r: f"{1e3 * r.seconds:.3g} ms"),
        (">predicted / it", lambda r: format_ratio(r, r.of_time, coefficients_table["seconds"][r.method], r.seconds)),
        (">memory", lambda r: f"{r.memory / 1e6:.3g} MB"),
        (
            ">predicted / it",
            lambda r: format_ratio(r, r.of_memory, coefficients_table["bytes"][r.method.partition(",")[0]], r.memory),
        ),
    )
    return Report((sheet,), record(name, [asdict(r) for r in rows], **coefficients_table, **status))


KIND = Kind(lambda: (NAME,), ("folder",), _run, lambda _: "what iterations take, by which the default is chosen")
