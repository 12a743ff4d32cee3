"""``castfit bench peers``: fits of small models in units of their integration, and Lotka and Volterra's beside JAX.

A fit of a small model is mostly what surrounds the compiled integration.  Every problem is fitted several times in one
process, statistics and verification included; the least CPU time of a fit is told beside what the compiled integrator
of the search took of it.  With an interpreter in which JAX, diffrax and optimistix are installed, these fit Lotka and
Volterra's model in turns with castfit, by a tolerance that makes their states as accurate as castfit's at the start.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.integrate import solve_ivp

from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.fit.fit import fit
from castfit.integrate.esdirk_binding import IntegrationOutcome, NativeModel, PreparedTask
from castfit.problems import load, names
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting

from .cpu_clock import cpu_timed
from .table import Kind, Report, collect_rows, record, unknown_mistakes

if TYPE_CHECKING:
    from castfit._support.arrays import Array

NAME = "peers"
PROBLEMS = ("lotka_volterra", "stat5", "calcium")
_N_REPEATS = 30  # number of timed fits, of which the fastest counts
_MAX_PEER_SECONDS = 900.0  # time limit of another program in seconds: JAX compiles for half a minute
_BESIDE = "lotka_volterra"


@dataclass(frozen=True)
class SmallFit:
    """What a warm fit of a problem takes: CPU milliseconds, the least of all repeats.

    Attributes
    ----------
    problem, by : str
    fit, kernel : float
        A whole fit, and of that the compiled integration of the search; NaN where that is not told.
    linearized : float
        Residuals with their Jacobian at the start.
    error : float
        The largest of the states at the start; NaN where nothing is known.
    note : str
    """

    problem: str
    by: str
    fit: float
    kernel: float
    linearized: float
    error: float = float("nan")
    note: str = ""


def small_fit(name: str) -> SmallFit:
    """Time fits of a problem of the library by single shooting, and its residuals with their Jacobian."""
    problem = load(name).problem
    shooting = SingleShooting()
    staged = shooting.transcribe(problem, problem.guess)
    kernel: list[float] = []

    def time_fit() -> None:
        with _integrating() as spent:
            fit(problem, shooting)
        kernel.append(sum(spent))

    time_fit()  # builds, and compiles
    seconds = [cpu_timed(time_fit)[1] for _ in range(_N_REPEATS)]
    best = int(np.argmin(seconds))
    points = staged.start * (1.0 + 1e-9 * np.arange(_N_REPEATS)[:, None])
    dense = staged.dense_evaluator
    linearize: Callable[[Any], object] = staged.linearize if dense is None else dense.rows
    linearized = min(cpu_timed(lambda v=v: linearize(v))[1] for v in points)
    error = _error(staged) if name == _BESIDE else float("nan")
    return SmallFit(name, "castfit", 1e3 * seconds[best], 1e3 * kernel[best + 1], 1e3 * linearized, error)


@contextmanager
def _integrating() -> Generator[list[float]]:
    """Collect the seconds of computing time of every call of the compiled integrator within a ``with`` block."""
    integrate, run_task, durations = NativeModel.integrate, PreparedTask.run, list[float]()

    def timed(self: NativeModel, *arguments: Any, **options: Any) -> IntegrationOutcome:
        start_seconds = self.spent_seconds
        outcome = integrate(self, *arguments, **options)
        durations.append(self.spent_seconds - start_seconds)
        return outcome

    def timed_again(self: PreparedTask, *arguments: Any) -> bool:
        start_seconds = self.stepper.model.spent_seconds
        outcome = run_task(self, *arguments)
        durations.append(self.stepper.model.spent_seconds - start_seconds)
        return outcome

    NativeModel.integrate, PreparedTask.run = timed, timed_again
    try:
        yield durations
    finally:
        NativeModel.integrate, PreparedTask.run = integrate, run_task


def _exact(staged: ShootingProblem) -> Array:
    """Return Lotka and Volterra's states at the start, (10, 2), by another integrator at a tolerance of 1e-12."""
    p1, p2, p3, p4 = staged.start
    times = staged.problem.conditions[0].points.times

    def rates(_: float, y: Array) -> list[float]:
        return [-p1 * y[0] + p2 * y[0] * y[1], p3 * y[1] - p4 * y[0] * y[1]]

    solution = solve_ivp(rates, (0.0, times[-1]), [0.4, 1.0], t_eval=times, rtol=1e-12, atol=1e-13, method="DOP853")
    return solution.y.T


def _error(staged: ShootingProblem) -> float:
    predicted, _, _ = staged.standardised(staged.start)[0]
    return float(np.abs(predicted.reshape(-1, 2) - _exact(staged)).max())


def beside_jax(interpreter: str, own_fit: SmallFit) -> SmallFit:
    """Let JAX fit Lotka and Volterra's model with an interpreter of its own, states as accurate as ours."""
    problem = load(_BESIDE).problem
    staged = SingleShooting().transcribe(problem, problem.guess)
    points = staged.problem.conditions[0].points
    question = {
        "times": points.times.tolist(),
        "data": points.values.tolist(),
        "initial": [0.4, 1.0],
        "start": staged.start.tolist(),
        "exact": _exact(staged).tolist(),
        "error": own_fit.error,
    }
    nan = float("nan")
    with resources.as_file(resources.files(__package__ or "bench").joinpath("jax_lotka_volterra.py")) as script:
        try:
            process = subprocess.run(
                [interpreter, str(script), str(_N_REPEATS)], input=json.dumps(question), capture_output=True,
                env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}, check=True,
                timeout=_MAX_PEER_SECONDS, encoding="utf-8",
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            error_lines = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
            return SmallFit(_BESIDE, "JAX", nan, nan, nan, nan, shorten(" ".join(error_lines), 200))
    answer: dict[str, Any] = json.loads(process.stdout)
    versions = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
    note = f"tolerance {answer['tolerance']:.1g}, {answer['iterations']} iterations"
    return SmallFit(_BESIDE, versions, answer["fit"], nan, answer["linearized"], answer["error"], note)


def _run(name: str, progress: Progress, *, problems: Sequence[str] = PROBLEMS, jax: str | None = None) -> Report:
    mistakes = unknown_mistakes("problem", problems, names())
    if jax is not None and not os.access(jax, os.X_OK):
        mistakes.append(
            f"--jax '{jax}' is no program; name the Python in which jax, diffrax and optimistix are installed"
        )
    raise_if_mistakes("bench peers", mistakes)

    def timed() -> Iterator[SmallFit]:
        for problem in problems:
            progress(f"{NAME}: {problem}")
            own_fit = small_fit(problem)
            yield own_fit
            if problem == _BESIDE and jax is not None:
                yield beside_jax(jax, own_fit)

    rows, status = collect_rows(timed())
    sheet = TextTable.from_items(
        rows,
        ("problem", lambda row: row.problem),
        ("by", lambda row: row.by),
        ("fit, ms", lambda row: f"{row.fit:.2f}"),
        ("of that the kernel", lambda row: _format_known(row.kernel, ".2f")),
        ("fit / kernel", lambda row: _format_known(row.fit / row.kernel, ".1f")),
        ("residuals with Jacobian, ms", lambda row: f"{row.linearized:.2f}"),
        ("error of states", lambda row: _format_known(row.error, ".1g")),
        ("", lambda row: row.note),
        title=f"{name}: warm fits of small models, CPU time, the least of {_N_REPEATS}",
    )
    return Report((sheet,), record(name, [asdict(row) for row in rows], repeats=_N_REPEATS, **status))


def _format_known(value: float, format_spec: str) -> str:
    return format(value, format_spec) if np.isfinite(value) else ""


KIND = Kind(
    lambda: (NAME,),
    ("problems", "jax"),
    _run,
    lambda _: "warm fits of small models in units of their integration, and beside JAX",
)
