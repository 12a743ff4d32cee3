"""``castfit bench readme``: every figure of the README that castfit reaches, measured again in one run.

A claim has the words that stand in the README, and what measures it; tests hold the two together.  Counts are
repeated exactly, times as the machine has them: CPU seconds of one process.  Figures of other programs and of papers
are quoted there with their sources, and no part of this run; what SciPy does is measured, as it is always at hand.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import castfit as cf
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.problems import load, tables

from .ablation import PARTLY_OBSERVED, run_ablation
from .adjoint_scaling import adjoint_scaling
from .coverage import run_kind
from .many_experiments import timed
from .paper_tables import run_table
from .table import Kind, Report, collect_rows, record, unknown_mistakes
from .textbook import run_textbook

NAME = "readme"


@dataclass(frozen=True)
class Claim:
    """What the README says of castfit, where, and what measures it."""

    name: str
    says: str
    measure: Callable[[], str]


@dataclass(frozen=True)
class RepeatedClaim:
    """A claim, what came out this time, and the CPU seconds that it took to find out."""

    name: str
    says: str
    now: str
    cpu: float


def _textbook(table: str, method: str, starts: int) -> Callable[[], str]:
    def measure() -> str:
        with_best = ("fit", method) if method != "fit" else ("fit",)
        rows = [
            row
            for row in run_textbook(table, methods=with_best, starts=starts, seed=20, max_time=20.0)
            if row.method == method
        ]
        n_hits, runs = sum(row.hits for row in rows), sum(len(row.runs) for row in rows)
        return f"{n_hits} of {runs}, {sum(row.cpu for row in rows):.0f} s"

    return measure


def _paper(table: str, methods: Sequence[str] | None = None, **options: Any) -> Callable[[], str]:
    def measure() -> str:
        row = run_table(tables()[table], methods=methods, **options).rows[-1]
        return f"{row.correct} of {row.starts}, {row.median_time:.2g} s"

    return measure


def _ratio_to_ipopt() -> str:
    """Time of IPOPT over that of Gauss-Newton on the same equations: six problems, medians of three fits."""
    ratios: list[float] = []
    for name in ("alpha_pinene", "stat5", "lotka_volterra", "bellman", "gasoil", "methanol"):
        problem = load(name).problem
        for transcription in (cf.SingleShooting(), cf.MultipleShooting(10), cf.Collocation()):
            castfit_seconds, ipopt_seconds = (
                statistics.median(cf.fit(problem, transcription, solver, max_time=60).time for _ in range(3))
                for solver in (cf.GaussNewton(), cf.Ipopt())
            )
            ratios.append(ipopt_seconds / castfit_seconds)
    return f"{min(ratios):.1f} to {max(ratios):.0f} times, median {statistics.median(ratios):.1f}"


def _profiles() -> str:
    """CPU seconds of the profiles of stat5 with both scales free: a problem with a valley."""
    problem = load("stat5").problem
    values = {name: problem.parameters[name].value for name in ("s1", "s2")}
    free = {name: cf.Parameter(value, bounds=(0.05, 5), scale="log") for name, value in values.items()}
    result = cf.fit(problem.replace(parameters={**problem.parameters, **free}), "single")
    began = time.process_time()
    profiles = cf.profile(result)
    limits = [limit for name in profiles for limit in profiles[name].limits(0.95)]
    return f"{len(limits)} limits, {time.process_time() - began:.1f} s"


def _population() -> str:
    """Theophylline's log-likelihood, and the CPU seconds of the fit."""
    benchmark = load("theophylline")
    began = time.process_time()
    result = cf.mixed_effects(benchmark.problem, benchmark.population)
    return f"log L {-result.neg2loglik / 2:.2f}, {time.process_time() - began:.1f} s"


def _adjoint() -> str:
    (one,) = adjoint_scaling(states=(20,), parameters=(500,), methods=("esdirk",)).timings
    return f"{one.adjoint:.1f} simulations, forward {one.forward:.0f}"


def _experiments() -> str:
    one = timed("experiments", "single", 1000, 0)
    return f"{one.seconds:.0f} s"


def _coverage() -> str:
    return f"{100 * run_kind('unknown sigma').share:.1f} %"


def _search() -> str:
    rows = run_ablation(
        problems=PARTLY_OBSERVED, methods=("default",), starts=4, seed=950, max_time=120.0, to_the_end=True
    )
    runs = [run for row in rows for run in row.runs]
    return f"{sum(run.hit for run in runs)} of {len(runs)}"


CLAIMS = (
    Claim("textbook, all states measured", "24 of 24, 2 s", _textbook("textbook-all-states", "fit", 1)),
    Claim("the same by SciPy", "14 of 24, 81 s", _textbook("textbook-all-states", "scipy", 1)),
    Claim("textbook, one state on an unknown scale", "72 of 72, 12 s", _textbook("textbook", "fit", 3)),
    Claim("calcium oscillations", "250 of 250", _paper("calcium-table1", ("default",), starts=250, seed=7)),
    Claim("Bock's notorious problem, mu = 40", "100 of 100", _paper("iss-table1", ("incremental",))),
    Claim("Gauss-Newton against IPOPT", "median 1.9", _ratio_to_ipopt),
    Claim("profiles of stat5", "12 limits, 1.5 s", _profiles),
    Claim("theophylline, mixed effects", "log L -176.99, 0.7 s", _population),
    Claim("gradient along 500 parameters", "0.8 simulations, forward 6", _adjoint),
    Claim("1,000 experiments, 3,004 quantities", "7 s", _experiments),
    Claim("95 % intervals, 500 data sets", "96.2 %", _coverage),
    Claim("partly observed, parameters known to decades", "24 of 24", _search),
)


def measured(names: Sequence[str], progress: Progress) -> Iterator[RepeatedClaim]:
    """Measure claims, one after the other."""
    for claim in CLAIMS:
        if claim.name in names:
            progress(f"{NAME}: {claim.name}")
            began = time.process_time()
            yield RepeatedClaim(claim.name, claim.says, claim.measure(), time.process_time() - began)


def _run(name: str, progress: Progress, problems: Sequence[str] | None = None) -> Report:
    claim_names = [claim.name for claim in CLAIMS]
    raise_if_mistakes(NAME, unknown_mistakes("claim", problems or (), claim_names))
    rows, status = collect_rows(measured(problems or claim_names, progress))
    sheet = TextTable.from_items(
        rows,
        ("what", lambda row: row.name),
        ("README", lambda row: row.says),
        ("now", lambda row: row.now),
        (">CPU s", lambda row: f"{row.cpu:.0f}"),
    )
    return Report((sheet,), record(NAME, [asdict(row) for row in rows], castfit=cf.__version__, **status))


KIND = Kind(lambda: (NAME,), ("problems",), _run, lambda name: "every figure of the README, in one run")
