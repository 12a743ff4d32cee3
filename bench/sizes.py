"""``castfit bench sizes``: what the default costs beside every transcription, at every size of the question.

    pde N            diffusion and reaction on N cells, five parameters, seen at three places
    network N        mass action of N states, 5 N / 3 rates, every state measured
    experiments N    N experiments with three quantities of their own (castfit._bench.many_experiments)
    values N         one experiment with N values
    titration        a DAE whose algebraic equation is steep
    NAME             a problem of the library
    textbook NAME, all states NAME    a textbook model, begun a factor of three from the truth

Every fit runs in a process of its own, so that peak memory is its own.  CPU times are those of the first fit, which
builds what is built once and is what a user waits for, and the least of some that follow.  The best transcription is
the one of those that reach the lowest objective (chi2 to 1 % and 0.01) that takes the least time then; the default's
memory is compared with its.

Every fit is told on standard error as it ends.  With ``--folder FOLDER`` it is kept there in sizes.jsonl, too, and a
run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np

import castfit as cf
from castfit import problems as library
from castfit._support.progress_line import time_left
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.cli.command import print_line
from castfit.drive.search.compare.benchmarks import Progress
from castfit.problem.problem import Problem

from .cpu_clock import cpu_clock
from .many_experiments import many_experiments, one_long_experiment
from .process_usage import cpu_seconds, limit_cpu, limit_memory, peak_memory
from .table import Kind, Report, collect_rows, number_mistakes, record, unknown_mistakes
from .textbook_models import MODELS

NAME = "sizes"
MAX_TIME = 60.0  # seconds per fit
_MAX_MEMORY_GB = 4.0  # memory limit of a process in gigabytes; a fit that needs more has failed
_TIME_OVERRUN_FACTOR = 4.0  # multiple of a fit's time limit after which its process is ended
_FITS, _SHORT = 15, 0.5  # fits at most, CPU seconds after which there is no third
_OPTIMUM_RTOL = 0.01
"""Difference from the best chi2 up to which a fit counts, relative to chi2 or to 1 if chi2 is smaller."""
_NEAR, _NEAR_MEMORY = 1.5, 2.0
_DEFAULT = "default"
_PLACES = (0.1, 0.4, 0.8)
_REACTION = {"D": 0.02, "r": 2.0, "cap": 1.0, "inflow": 0.3, "loss": 0.2}

TRANSCRIPTIONS = ("single", "multiple", "collocation")
METHODS = (_DEFAULT, *TRANSCRIPTIONS)

Pose = Callable[[], tuple[Problem, Any]]


def reaction(cells: int) -> tuple[Problem, Any]:
    """Return diffusion with growth, u_t = D u_xx + r u (1 - u / cap) - loss u, inflow at one end, by finite volumes."""
    width = 1.0 / cells
    u, p = cf.symbols(f"u{i}" for i in range(cells)), dict(zip(_REACTION, cf.symbols(list(_REACTION)), strict=True))
    flows = [p["inflow"], *(p["D"] * (left - right) / width for left, right in pairwise(u)), 0]
    rates = {
        u[i]: (flows[i] - flows[i + 1]) / width + p["r"] * u[i] * (1 - u[i] / p["cap"]) - p["loss"] * u[i]
        for i in range(cells)
    }
    outputs = {f"at {place:g}": u[int(place * cells)] for place in _PLACES}
    model = cf.Model(rates, parameters=list(p.values()), outputs=outputs, initial=dict.fromkeys(u, 0.05))
    times = np.linspace(0.25, 4.0, 16)
    exact = cf.simulate(model, times=times, parameters=_REACTION)
    noise = np.random.default_rng(2)
    data = {name: exact[name] + 0.01 * noise.standard_normal(times.size) for name in outputs}
    experiment = cf.Experiment(data, time=times, sigma=0.01)
    guesses = {name: cf.Parameter(1.5 * value, lower=0.0) for name, value in _REACTION.items()}
    return cf.Problem(model, experiment, parameters=guesses), None


def mass_action(states: int) -> tuple[Problem, Any]:
    """Return a ring of conversions with two thirds as many reactions of second order, from starts off by up to 2."""
    rng = np.random.default_rng(0)
    count = 5 * states // 3
    x, k = cf.symbols(f"x{i + 1}" for i in range(states)), cf.symbols(f"k{j + 1}" for j in range(count))
    rates: list[Any] = [0] * states
    for j in range(count):
        a, b, c = (j, -1, (j + 1) % states) if j < states else (int(i) for i in rng.choice(states, 3, replace=False))
        flow = k[j] * x[a] * (x[b] if b >= 0 else 1)
        for i, sign in ((a, -1), (b, -1), (c, 1)):
            if i >= 0:
                rates[i] += sign * flow
    model = cf.Model(dict(zip(x, rates, strict=True)), parameters=k)
    truth = dict(zip((f"k{j + 1}" for j in range(count)), 10 ** rng.uniform(-1, 0.5, count), strict=True))
    initial = dict(zip((f"x{i + 1}" for i in range(states)), rng.uniform(0.2, 2.0, states), strict=True))
    times = np.linspace(0.25, 5.0, 20)
    exact = cf.simulate(model, times=times, parameters=truth, initial=initial)
    sigma = {name: 0.02 * float(np.abs(exact[name]).max()) for name in initial}
    data = {name: exact[name] + sigma[name] * rng.standard_normal(times.size) for name in initial}
    experiment = cf.Experiment(data, time=times, sigma=sigma, initial=initial)
    guesses = {
        name: cf.Parameter(value * 2 ** rng.uniform(-1, 1), lower=1e-4, upper=1e4, scale="log")
        for name, value in truth.items()
    }
    return cf.Problem(model, experiment, parameters=guesses), None


def titration() -> tuple[Problem, Any]:
    """Return a weak acid to which base is added: the pH jumps by five units at t = 5."""
    h, pKa, c, rate, base = cf.symbols("pH pKa c rate base")
    volume, ten = 0.05, np.log(10.0)
    exp: Any = ca.exp
    H, Ka = exp(-ten * h), exp(-ten * pKa)
    charge = H + 0.1 * base / (volume + base) - 1e-14 / H - c * volume / (volume + base) * Ka / (Ka + H)
    model = cf.Model({base: rate}, algebraic={h: charge}, parameters=[pKa, c, rate])
    times = np.linspace(0, 10, 41)
    exact = cf.simulate(
        model, times=times, parameters={"pKa": 4.76, "c": 0.1, "rate": 0.01}, initial={"base": 0.0, "pH": 3.0}
    )
    data = exact["pH"] + 0.05 * np.random.default_rng(0).standard_normal(41)
    experiment = cf.Experiment({"pH": data}, time=times, sigma=0.05, initial={"base": 0.0, "pH": 3.0})
    parameters = {"pKa": 4.3, "c": cf.Parameter(0.08, 0, 1), "rate": cf.Parameter(0.01, fixed=True)}
    return cf.Problem(model, experiment, parameters=parameters), None


def _textbook(name: str, *, every: bool) -> tuple[Problem, Any]:
    model = MODELS[name]
    rng = np.random.default_rng(tuple(MODELS).index(name))
    start = {name: value * 3 ** rng.uniform(-1, 1) for name, value in model.truth.items()}
    return model.all_states() if every else model.one_output(), start


def _of_library(name: str) -> tuple[Problem, Any]:
    benchmark = library.load(name)
    return benchmark.problem, benchmark.starts["reference"]


CASES: dict[str, Pose] = {
    **{f"pde {n}": (lambda n=n: reaction(n)) for n in (20, 50, 100, 200, 500, 1000)},
    **{f"network {n}": (lambda n=n: mass_action(n)) for n in (10, 20, 40, 80, 120, 240)},
    **{f"experiments {n}": (lambda n=n: (many_experiments(n), None)) for n in (1, 10, 100, 1000, 10_000)},
    **{f"values {n}": (lambda n=n: (one_long_experiment(n), None)) for n in (10, 100, 1000, 10_000, 100_000)},
    "titration": titration,
    **{name: (lambda name=name: _of_library(name)) for name in library.names()},
    **{f"textbook {name}": (lambda name=name: _textbook(name, every=False)) for name in MODELS},
    **{f"all states {name}": (lambda name=name: _textbook(name, every=True)) for name in MODELS},
}
"""Cases by name: a problem, and where to begin."""


@dataclass(frozen=True)
class SizedFit:
    """One case by one method.

    Attributes
    ----------
    case, method, transcription, status : str
        `transcription` is the one that found the result.
    objective, margin : float
        chi2 or -2 log L, inf where the fit ended in no solution; by how much it may exceed the lowest.
    first, again : float
        CPU seconds of the first fit in its process, compilers included, and the least of those after it.
    memory : float
        Megabytes at the peak.
    iterations : int
    """

    case: str
    method: str
    transcription: str
    status: str
    objective: float
    margin: float
    first: float
    again: float
    memory: float
    iterations: int


def measured(case: str, method: str, max_time: float) -> SizedFit:
    """Fit one case by one method in this process, twice and more often where that is short."""
    limit_memory(int(_MAX_MEMORY_GB * 2**30))
    limit_cpu(_TIME_OVERRUN_FACTOR * max_time)
    problem, start = CASES[case]()
    took: list[float] = []
    result = None
    while len(took) < 2 or (len(took) < _FITS and sum(took) < _SHORT):
        began = cpu_seconds()
        with cpu_clock():
            result = cf.fit(problem, None if method == _DEFAULT else method, start=start, max_time=max_time)
        took.append(cpu_seconds() - began)
        if took[0] > max_time / 2:  # nothing is to be learned from the second
            break
    assert result is not None
    objective = result.objective if result.success else np.inf
    margin = _OPTIMUM_RTOL * (max(result.chi2, 1.0) if result.measure == "chi2" else result.n_data)
    return SizedFit(case, method, result.transcription, result.status.value, objective, margin, took[0],
                    min(took[1:] or took), peak_memory(), result.iterations)  # fmt: skip


def run_sizes(
    *,
    methods: Sequence[str] = METHODS,
    problems: Sequence[str] | None = None,
    max_time: float = MAX_TIME,
    folder: str | Path | None = None,
    progress: Progress = lambda _: None,
    told: Progress = lambda _: None,
) -> Iterator[tuple[SizedFit, ...]]:
    """Fit every case by every method, one case after the other.

    Parameters
    ----------
    methods : sequence of str
        Of `METHODS`.
    problems : sequence of str, optional
        Beginnings of cases; by default all.
    max_time : float
        CPU seconds per fit.
    folder : path, optional
        Where every fit is kept as it ends; those that stand there are not repeated.
    progress : callable
        Told what is being done.
    told : callable
        Told every fit as it ends, and how long the rest will take.

    Raises
    ------
    InputError
        For unknown names or numbers out of range.
    """
    chosen_cases = [c for c in CASES if problems is None or any(c.startswith(b) for b in problems)]
    missing = [b for b in problems or () if not any(c.startswith(b) for c in CASES)]
    mistakes = unknown_mistakes("method", methods, METHODS) + unknown_mistakes("case", missing, CASES)
    raise_if_mistakes(NAME, [*mistakes, *number_mistakes(max_time=max_time)])

    file = None if folder is None else Path(folder) / f"{NAME}.jsonl"
    saved_fits = _read(file)

    def rows() -> Iterator[tuple[SizedFit, ...]]:
        began, n_finished = time.monotonic(), 0
        left = sum((case, method) not in saved_fits for case in chosen_cases for method in methods)
        for case in chosen_cases:
            fits: list[SizedFit] = []
            for method in methods:
                fit = saved_fits.get((case, method))
                if fit is None:
                    progress(f"{NAME}: {case}, {method}")
                    fit, n_finished, left = _run_in_process(case, method, max_time), n_finished + 1, left - 1
                    if file is not None:
                        with file.open("a", encoding="utf-8") as stream:
                            stream.write(json.dumps(asdict(fit)) + "\n")
                    told(_line(fit) + time_left(time.monotonic() - began, n_finished, left))
                fits.append(fit)
            yield tuple(fits)

    return rows()


def _run_in_process(case: str, method: str, max_time: float) -> SizedFit:
    """Fit one case by one method in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=_context()) as pool:
        try:
            return pool.submit(measured, case, method, max_time).result()
        except (MemoryError, BrokenProcessPool) as error:
            failure = type(error).__name__
            return SizedFit(case, method, "", failure, np.inf, 0.0, np.inf, np.inf, np.inf, 0)


def _context() -> BaseContext:
    """Return how processes begin: where the system forks, from one that has imported castfit, and fitted nothing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _read(file: Path | None) -> dict[tuple[str, str], SizedFit]:
    """Return the fits that an earlier run has kept."""
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    return {(fit.case, fit.method): fit for fit in (SizedFit(**json.loads(line)) for line in lines)}


def _line(fit: SizedFit) -> str:
    """Say what a fit took."""
    took = f"{fit.first:.3g} s, again {fit.again:.3g} s, {fit.memory:.0f} MB"
    return f"{fit.case}, {fit.method}: {fit.status}, {fit.objective:.6g}, {took}"


def good(fits: Sequence[SizedFit]) -> list[SizedFit]:
    """Return those that reached the lowest objective of a case, to the margin of chi2 or what that is in -2 log L."""
    lowest = min(fit.objective for fit in fits)
    return [fit for fit in fits if fit.objective <= lowest + fit.margin and np.isfinite(fit.objective)]


def ratios(fits: Sequence[SizedFit]) -> tuple[float, float]:
    """Return time and memory of the default over those of the best transcription; inf where it found something poorer.

    One, where no transcription found what the default did.
    """
    good_fits = good(fits)
    default = next((fit for fit in fits if fit.method == _DEFAULT), None)
    other_fits = [fit for fit in good_fits if fit.method != _DEFAULT]
    if default is None or default not in good_fits:
        return np.inf, np.inf
    if not other_fits:
        return 1.0, 1.0
    best = min(other_fits, key=lambda fit: fit.again)
    return default.again / best.again, default.memory / best.memory


def build_tables(cases: Sequence[Sequence[SizedFit]]) -> tuple[TextTable | str, ...]:
    """Return one row per fit, and what the default costs beside the best transcription."""
    ratios_by_fit = {fit: ratios(fits) for fits in cases for fit in fits if fit.method == _DEFAULT}
    sheet = TextTable.from_items(
        [fit for fits in cases for fit in fits],
        ("case", lambda f: f.case),
        ("method", lambda f: f.method),
        ("found by", lambda f: f.transcription.partition(" (")[0]),
        ("ended", lambda f: f.status),
        (">objective", lambda f: f"{f.objective:.6g}"),
        (">first", lambda f: f"{f.first:.3g} s"),
        (">again", lambda f: f"{f.again:.3g} s"),
        (">memory", lambda f: f"{f.memory:.0f} MB"),
        (">iterations", lambda f: f"{f.iterations}"),
        (">time", lambda f: f"{ratios_by_fit[f][0]:.2f}" if f in ratios_by_fit else ""),
        (">memory", lambda f: f"{ratios_by_fit[f][1]:.2f}" if f in ratios_by_fit else ""),
    )
    if not ratios_by_fit:
        return (sheet,)
    time_, memory = (np.array(values) for values in zip(*ratios_by_fit.values(), strict=True))
    share_near_best = float(np.mean((time_ <= _NEAR) & (memory <= _NEAR_MEMORY)))
    return sheet, "", (
        f"default: within {_NEAR:g} times the CPU time and {_NEAR_MEMORY:g} times the memory of the best transcription "
        f"in {share_near_best:.0%} of {time_.size} cases; at most {time_.max():.2f} and {memory.max():.2f} times"
    )  # fmt: skip


def _run(
    name: str,
    progress: Progress,
    methods: Sequence[str] = METHODS,
    problems: Sequence[str] | None = None,
    max_time: float = MAX_TIME,
    folder: str | None = None,
) -> Report:
    fits = run_sizes(methods=methods, problems=problems, max_time=max_time, folder=folder, progress=progress,
                     told=lambda line: print_line(line, sys.stderr))  # fmt: skip
    rows, status = collect_rows(fits)
    records = [asdict(fit) for fits in rows for fit in fits]
    return Report(build_tables(rows), record(name, records, castfit=cf.__version__, **status))


KIND = Kind(
    lambda: (NAME,),
    ("methods", "problems", "max_time", "folder"),
    _run,
    lambda _: "the default beside every transcription, at every size of the question",
)
