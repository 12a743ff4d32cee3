"""``castfit bench select``: model selection against what is known to be right.

The test cases of PEtab Select in a folder (model, criterion, estimates of ``expected.yaml``), the models of the
reference's path through the large one, and data sets that were simulated by the true model of four doubtful terms: how
often the choice contains the truth, and averaged intervals cover it.
"""

from __future__ import annotations

import ast
import csv
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import castfit as cf
from castfit._support.status import raise_if_mistakes
from castfit.drive.search.compare.benchmarks import Progress

from .cpu_clock import cpu_timed
from .table import CaseRow, Kind, Report, cases, number_mistakes

NAME = "select"
TRUTH = {"k1": 0.6, "k2": 0.0, "k3": 0.0, "k4": 0.25}
_LARGE = "0009"
_N_DATA_SETS = 20  # number of simulated data sets
_DATA_SIGMA = 0.02  # standard deviation of the simulated errors, in the units of the output


def four_terms(seed: int) -> cf.Problem:
    """Return data of A, which turns into B, which leaves (k1, k4): nothing comes back (k2), nothing pairs (k3)."""
    a, b, k1, k2, k3, k4 = cf.symbols("a b k1 k2 k3 k4")
    rates = {a: -k1 * a + k2 * b - k3 * a**2, b: k1 * a - k2 * b - k4 * b}
    model = cf.Model(rates, parameters=[k1, k2, k3, k4], initial={a: 1, b: 0})
    times, noise = np.linspace(1, 12, 12), _DATA_SIGMA * np.random.default_rng(seed).standard_normal((2, 12))
    first_term = np.exp(-TRUTH["k1"] * times)
    second = TRUTH["k1"] / (TRUTH["k4"] - TRUTH["k1"]) * (first_term - np.exp(-TRUTH["k4"] * times))
    data = cf.Experiment({"a": first_term + noise[0], "b": second + noise[1]}, time=times, sigma=_DATA_SIGMA)
    return cf.Problem(model, data, parameters={n: cf.Parameter(0.3, bounds=(-1, 5)) for n in TRUTH})


def simulated(sets: int, seed: int) -> Iterator[CaseRow]:
    """Choose among eight models of data sets of the true one."""
    began, contain, covered = time.process_time(), 0, dict.fromkeys(TRUTH, 0)
    for i in range(sets):
        selection = cf.select(
            four_terms(1000 * (seed + 1) + i), "single", choices={n: [0, cf.estimated] for n in ("k2", "k3", "k4")}
        )
        contain += "k4" in selection.names[0].split()
        for name, value in TRUTH.items():
            low, high = selection.average(name).interval
            covered[name] += low <= value <= high
    seconds = time.process_time() - began
    yield CaseRow(
        f"{sets} data sets", "AICc chooses a model that contains the true one", f"{contain}", f"{sets}", seconds
    )
    shares = ", ".join(f"{n} {100 * c / sets:.0f}" for n, c in covered.items())
    share = 100 * sum(covered.values()) / (sets * len(TRUTH))
    yield CaseRow("", f"intervals cover, in %: {shares}", f"{share:.1f} %", "95 %")


def petab_case(folder: Path) -> Iterator[CaseRow]:
    """Carry out a case of PEtab Select."""
    import yaml

    right = yaml.safe_load((folder / "expected.yaml").read_text(encoding="utf-8"))
    selection, seconds = cpu_timed(lambda: cf.petab.select(folder / "petab_select_problem.yaml"))
    yield CaseRow(
        folder.name, f"model, of {len(selection.fits)} fitted", selection.names[0], right["model_hash"], seconds
    )
    value, expected_value = selection.criteria[selection.names[0]], right["criteria"][selection.criterion]
    yield CaseRow("", selection.criterion, f"{value:.9f}", f"{expected_value:.9f}")
    values = selection[selection.names[0]].values
    off = max((abs(values.get(n, math.inf) - v) for n, v in (right["estimated_parameters"] or {}).items()), default=0.0)
    yield CaseRow("", "largest difference of an estimate", f"{off:.1e}", "0")


def path_of(folder: Path) -> Iterator[CaseRow]:
    """Fit the models of the reference's path through the large case."""
    from castfit.formats.petab.selection import problem_of

    with open(folder / "expected_summary.tsv", encoding="utf-8") as file:
        rows: list[Any] = list(csv.DictReader(file, delimiter="\t"))
    with open(folder / "model_space.tsv", encoding="utf-8") as file:
        names = next(csv.reader(file, delimiter="\t"))[2:]
    base = problem_of(folder / "petab" / "petab_problem.yaml", frozenset(names))
    reference = {r["current model"]: float(r["current model criterion"]) for r in rows}
    began = time.process_time()
    problems = {
        key: base.replace(parameters={**base.parameters, **{
            n: cf.Parameter(1.0, fixed=True) for n in names if n not in ast.literal_eval(key)
        }})
        for key, value in reference.items() if math.isfinite(value)
    }  # fmt: skip
    selection = cf.select(problems, "single", "box")
    fits = sum(row.fits for row in selection.fits.values())
    each = (time.process_time() - began) / len(problems)
    for k, key in enumerate(sorted(problems, key=lambda k: -reference[k])):
        off = selection.criteria[key] - reference[key]
        label = f"AICc of {len(ast.literal_eval(key))} estimated, {off:+.1e} (at or below)"
        yield CaseRow(_LARGE if k == 0 else "", label, f"{selection.criteria[key]:.6f}", f"{reference[key]:.6f}", each)
    yield CaseRow("", f"{fits} fits in all", "", "")


def _run(name: str, progress: Progress, *, folder: str = "", starts: int = _N_DATA_SETS, seed: int = 0) -> Report:
    has_folder = not folder or Path(folder).is_dir()
    raise_if_mistakes(
        f"bench {name}",
        number_mistakes(starts=starts, seed=seed) + ([] if has_folder else [f"there is no folder '{folder}'"]),
    )

    def run() -> Iterator[CaseRow]:
        cases = sorted(p.parent for p in Path(folder).glob("*/expected.yaml")) if folder else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of stoichiometries
            for case in cases:
                progress(f"{NAME}: {case.name}")
                yield from path_of(case) if case.name == _LARGE else petab_case(case)
        progress(f"{NAME}: {starts} data sets")
        yield from simulated(starts, seed)

    return cases(name, "model selection", run())


KIND = Kind(
    lambda: (NAME,),
    ("folder", "starts", "seed"),
    _run,
    lambda name: "model selection: PEtab Select's cases in a folder, and data sets of a true model",
)
