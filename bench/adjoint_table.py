"""``castfit bench adjoint-table``: Lotka and Volterra's model, by adjoint states, from where simulation meets a pole.

Aydogmus and Tor (2018) fit ten draws of noise from (0.5, 0.5, 0.5, -0.2), where the model has a pole at t = 3.3, with
scalar matching conditions and an SQP method.  Here every draw is fitted with matching conditions as vectors and as
scalars, by several solvers; a fit counts if it succeeds in the optimum that the vector has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.process_pool import WorkerPool, lost_task_status
from castfit._support.status import Status, raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.experiment.experiment import Experiment
from castfit.fit.fit import fit
from castfit.model.model import Model, symbols
from castfit.problem.problem import Problem
from castfit.problems import PaperRow
from castfit.simulate.simulate import simulate
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.ipopt import Ipopt
from castfit.solve.sqp import Sqp
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

from .cpu_clock import cpu_clock
from .table import Kind, Report, number_mistakes, record, reported, unknown_mistakes

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.fit.methods import Solver, Transcription
    from castfit.result.result import Result

NAME = "adjoint-table"
_SOURCE = "Aydogmus and Tor, A modified multiple shooting algorithm ... using adjoint sensitivity analysis"
_PAPER = (
    PaperRow("scalar, SQP of MATLAB", "8 iterations; of 10 draws"),
    PaperRow("p1, p2, p3, p4", "0.9832 ± 0.0554, 0.9870 ± 0.0590, 1.0254 ± 0.0397, 1.0290 ± 0.0371"),
)
_N_STARTS = 100  # number of random starting points
_MAX_FIT_SECONDS = 120.0  # time limit of one fit in seconds
_TIMES = np.arange(1.0, 11.0)
_DATA_SIGMA = 0.05  # standard deviation of the simulated errors, in the units of the states
_TRUE: Mapping[str, float] = {"p1": 1.0, "p2": 1.0, "p3": 1.0, "p4": 1.0}
_START = {"p1": 0.5, "p2": 0.5, "p3": 0.5, "p4": -0.2}
_CHI2_RTOL = 1e-4  # relative difference of chi2 up to which a fit reached the reference optimum

_VECTOR = MultipleShooting("data", derivatives="adjoint")
_SCALAR = MultipleShooting("data", derivatives="adjoint", matching="scalar")
METHODS: Mapping[str, tuple[Transcription, Solver]] = {
    "vector/gauss_newton": (_VECTOR, GaussNewton()),
    "vector/sqp": (_VECTOR, Sqp()),
    "vector/ipopt": (_VECTOR, Ipopt()),
    "scalar/sqp": (_SCALAR, Sqp()),
    "scalar/ipopt": (_SCALAR, Ipopt()),
    "single/gauss_newton": (SingleShooting(), GaussNewton()),
}
"""The methods of the table, by name."""


@dataclass(frozen=True)
class AdjointTrial:
    """One fit: whether it succeeded in the right optimum, how it ended, and what it took."""

    correct: bool
    end: str
    estimates: tuple[float, ...]
    iterations: int
    backward: int
    time: float


@dataclass(frozen=True)
class AdjointRow:
    """All draws by one method.

    Attributes
    ----------
    method : str
    draws, correct : int
        Fits, and those that succeeded in the right optimum.
    iterations, most, backward, time : float
        Medians, of iterations also the largest number, of the draws that count; backward integrations per interval.
    means, deviations : tuple of float
        Of the estimates.
    ends : mapping
        How the others ended, and how often.
    """

    method: str
    draws: int
    correct: int
    iterations: float
    most: float
    backward: float
    time: float
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    ends: Mapping[str, int]


@cache
def _model() -> Model:
    x, y = symbols("x y")
    p1, p2, p3, p4 = symbols("p1 p2 p3 p4")
    return Model({x: -p1 * x + p2 * x * y, y: p3 * y - p4 * x * y}, parameters=[p1, p2, p3, p4])


@cache
def _exact() -> Mapping[str, Array]:
    return simulate(_model(), _TRUE, _TIMES, initial={"x": 0.4, "y": 1.0})


def draw_problem(rng: np.random.Generator) -> Problem:
    """Draw the paper's data, ten values of both states with a standard deviation of 0.05."""
    data = {n: _exact()[n] + _DATA_SIGMA * rng.standard_normal(_TIMES.size) for n in ("x", "y")}
    experiment = Experiment(data, time=_TIMES, sigma=_DATA_SIGMA, initial={"x": 0.4, "y": 1.0})
    return Problem(_model(), experiment, parameters=dict(_START))


def adjoint_table(
    *,
    methods: Sequence[str] | None = None,
    draws: int = _N_STARTS,
    seed: int = 0,
    workers: int = 1,
    max_time: float = _MAX_FIT_SECONDS,
    progress: Progress = lambda _: None,
) -> tuple[AdjointRow, ...]:
    """Fit all draws by all methods.

    Parameters
    ----------
    methods : sequence of str, optional
        Of `METHODS`; by default all.
    draws : int
        Data sets; each has a random stream of its own, so that workers make no difference.
    seed : int
    workers : int
    max_time : float
        CPU seconds per fit.
    progress : callable, optional

    Raises
    ------
    InputError
        For unknown methods and numbers out of range.
    """
    names = tuple(METHODS if methods is None else methods)
    mistakes = unknown_mistakes("method", names, METHODS)
    mistakes += number_mistakes(seed=seed, max_time=max_time, starts=draws, workers=workers)
    raise_if_mistakes(NAME, mistakes)
    seeds = np.random.SeedSequence(seed).spawn(draws)
    cases = [(name, s) for name in names for s in seeds]
    tasks = deque((k, (*case, max_time)) for k, case in enumerate(cases))
    trials: dict[int, AdjointTrial] = {}
    with WorkerPool(workers) as pool:
        for k, outcome in pool.run(_trial, tasks):
            trials[k] = (
                outcome
                if isinstance(outcome, AdjointTrial)
                else AdjointTrial(False, lost_task_status(outcome)[0], (), 0, 0, np.nan)
            )
            progress(f"{NAME}: {len(trials)} of {len(cases)} fits, the last by {cases[k][0]}")
    return tuple(_row(name, [trials[n * draws + i] for i in range(draws)]) for n, name in enumerate(names))


def _trial(name: str, seed: np.random.SeedSequence, max_time: float) -> AdjointTrial:
    """Fit one draw, without any help from other starts or methods."""
    problem = draw_problem(np.random.default_rng(seed))
    reference = fit(problem, _VECTOR, GaussNewton(), start=_TRUE)
    with cpu_clock():
        result = fit(problem, *METHODS[name], second_start=False, retry=False, max_time=max_time)
    if Status.INTERRUPTED in (reference.status, result.status):
        raise KeyboardInterrupt
    same = abs(result.chi2 - reference.chi2) <= _CHI2_RTOL * reference.chi2
    correct = result.success and same
    end = "" if correct else result.status.value if not result.success else "another optimum"
    return AdjointTrial(
        correct, end, tuple(result.parameters.values()), result.iterations, _backward(result), result.time
    )


def _backward(result: Result) -> int:
    """Count the backward integrations per interval: two for a Jacobian of two states, one for a product."""
    return 2 * result.evaluations.get("jacobians", 0) + result.evaluations.get("products", 0)


def _row(name: str, trials: Sequence[AdjointTrial]) -> AdjointRow:
    good = [t for t in trials if t.correct]
    estimates = np.array([t.estimates for t in good]).reshape(len(good), len(_TRUE))
    ends = [t.end for t in trials if not t.correct]

    def median(values: Sequence[float]) -> float:
        return float(np.median(values)) if values else np.nan

    return AdjointRow(
        name,
        len(trials),
        len(good),
        median([t.iterations for t in good]),
        max((float(t.iterations) for t in good), default=np.nan),
        median([t.backward for t in good]),
        median([t.time for t in good]),
        tuple(estimates.mean(axis=0).tolist()) if good else (),
        tuple(estimates.std(axis=0, ddof=1).tolist()) if len(good) > 1 else (),
        {end: ends.count(end) for end in dict.fromkeys(ends)},
    )


def _estimate(k: int, row: AdjointRow) -> str:
    return f"{row.means[k]:.4f} ± {row.deviations[k]:.4f}" if row.deviations else f"{row.means[k]:.4f}"


def _run(
    name: str,
    progress: Progress,
    starts: int = _N_STARTS,
    methods: Sequence[str] | None = None,
    **options: Any,
) -> Report:
    rows = adjoint_table(methods=methods, draws=starts, progress=progress, **options)
    sheet = TextTable.from_items(
        rows,
        ("ours", lambda r: r.method),
        (">correct", lambda r: f"{r.correct} of {r.draws}"),
        (">iterations", lambda r: f"{r.iterations:g} (at most {r.most:g})" if r.correct else ""),
        (">backward integrations", lambda r: f"{r.backward:g}" if r.correct and r.backward else ""),
        (">time", lambda r: f"{r.time:.2f} s" if r.correct else ""),
        ("other ends", lambda r: ", ".join(f"{count} {end}" for end, count in r.ends.items())),
    )
    estimates = TextTable.from_items(
        [r for r in rows if r.means],
        ("estimates", lambda r: r.method),
        *((f">{n}", partial(_estimate, k)) for k, n in enumerate(_TRUE)),
        title="Means and standard deviations",
    )
    words = (
        "From (0.5, 0.5, 0.5, -0.2).  Medians of the fits that count; backward integrations per interval.  scalar/sqp",
        "collects the gradients of the squared gaps into a Jacobian; the paper takes them as they are.",
    )
    return Report((reported(NAME, _SOURCE, _PAPER), "", sheet, "", *words, "", estimates),
                  record(NAME, [vars(row) for row in rows], draws=starts, **options))  # fmt: skip


KIND = Kind(
    lambda: (NAME,),
    ("starts", "seed", "workers", "methods", "max_time"),
    _run,
    lambda _: "adjoint multiple shooting: vector and scalar matching, several solvers (Aydogmus and Tor)",
)
