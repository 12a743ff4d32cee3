"""Optimal control of the library's problems: optima reached, and CPU time beside rockit in turns.

rockit runs in a Python of its own, ``rockit_problems.py``: the same pieces, Radau collocation of degree 3, IPOPT at the
same tolerance.  What is measured is everything from the model's symbols to the optimum; of castfit that includes
division of elements and the integration that confirms the plan.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import castfit as cf
from castfit._support.json_codec import replace_nonfinite
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.problems import control_names, load_control

from .table import Kind, Report, record

NAME = "control"
_N_TURNS = 3  # number of timed solutions


@dataclass(frozen=True)
class PlanRow:
    """One problem by one transcription: what was found, CPU seconds, and those of rockit with its optimum."""

    problem: str
    transcription: str
    objective: float
    integrated: float
    reference: float
    reached: bool
    success: bool
    iterations: int
    seconds: float
    rockit: float = np.nan
    rockit_objective: float = np.nan


def rows(rockit: str | None, progress: Callable[[str], object]) -> Iterator[PlanRow]:
    """Go through all problems; times are the least of three turns."""
    for name in control_names():
        for transcription in ("collocation", "multiple"):
            progress(f"{name}, {transcription}")
            seconds, peer, other = list[float](), list[float](), np.nan
            for _ in range(_N_TURNS):
                began = time.process_time()
                benchmark = load_control(name)
                plan = cf.control(benchmark.model, transcription=transcription, **benchmark.question)
                seconds.append(time.process_time() - began)
                if rockit is not None and transcription == "collocation":
                    answer = _rockit(rockit, name)
                    peer.append(answer["seconds"])
                    other = answer["objective"]
            yield PlanRow(
                name, transcription, plan.objective, plan.integrated, benchmark.objective,
                benchmark.is_reached(plan.integrated), plan.success, plan.iterations, min(seconds),
                min(peer, default=np.nan), other,
            )  # fmt: skip


def _rockit(python: str, name: str) -> dict[str, float]:
    script = Path(__file__).with_name("rockit_problems.py")
    process = subprocess.run([python, str(script), name], capture_output=True, encoding="utf-8", check=False)
    raise_if_mistakes(
        NAME, [] if process.returncode == 0 else [f"rockit ended with: {process.stderr.strip().splitlines()[-1:]}"]
    )
    return json.loads(process.stdout.strip().splitlines()[-1])


def run(_: str, progress: Callable[[str], object] = lambda text: None, *, rockit: str | None = None) -> Report:
    """Solve all problems, and beside them those that rockit is asked for."""
    table_rows = list(rows(rockit, progress))
    ratios = [row.seconds / row.rockit for row in table_rows if np.isfinite(row.rockit)]
    sheet = TextTable.from_items(
        table_rows,
        ("problem", lambda row: row.problem),
        ("transcription", lambda row: row.transcription),
        (">reference", lambda row: f"{row.reference:.9g}"),
        (">found", lambda row: f"{row.objective:.9g}"),
        (">integrated", lambda row: f"{row.integrated:.9g}"),
        ("", lambda row: "" if row.reached and row.success else "missed"),
        (">iterations", lambda row: f"{row.iterations}"),
        (">CPU s", lambda row: f"{row.seconds:.3f}"),
        (">rockit CPU s", lambda row: f"{row.rockit:.3f}" if np.isfinite(row.rockit) else ""),
        (">rockit found", lambda row: f"{row.rockit_objective:.9g}" if np.isfinite(row.rockit_objective) else ""),
        title="Optimal control",
    )
    mean = float(np.exp(np.mean(np.log(ratios)))) if ratios else np.nan
    sentences = [f"CPU time over rockit's: geometric mean {mean:.3f}, greatest {max(ratios):.3f}"] if ratios else []
    return Report(
        (sheet, *sentences),
        record(NAME, [replace_nonfinite(asdict(row)) for row in table_rows], mean_ratio=replace_nonfinite(mean)),
    )


KIND = Kind(lambda: (NAME,), ("rockit",), run, lambda name: "optimal control: optima, and CPU time beside rockit")
