"""``castfit bench scaling``: time and memory of fits by the number of experiments, and of measured values.

    A' = -(k10 + k12) A + k21 B,   B' = k12 A - k21 B,   y = A + b,   z = s B

k10, k12, k21 and s are shared; every experiment has its own A(0), B(0) and background b, so n experiments have 3 n + 4
quantities, and the model a closed form to check the fits by.  One long experiment of Lotka and Volterra's model has
up to 10^6 values.  Every case runs in a process of its own, so that peak memory is its own; times are CPU times.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.integrate import solve_ivp

from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.experiment.experiment import Experiment, free
from castfit.fit.fit import fit
from castfit.model.model import Model, symbols
from castfit.plots._canvas import BLUE, INK, RED, new_figure, save_or_show, tidy
from castfit.problem.problem import Parameter, Problem

from .process_usage import cpu_seconds, peak_memory
from .table import Kind, Report, number_mistakes, record

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.result.result import Result

NAME = "scaling"
EXPERIMENTS, VALUES = (100, 1000, 10_000), (10_000, 100_000, 1_000_000)
TRUTH = {"k10": 0.3, "k12": 0.5, "k21": 0.4, "s": 2.0}
DATA_SIGMA = 0.05  # standard deviation of the simulated errors, in the units of the outputs
_N_POINTS = 12  # number of measurement times per experiment
_HORIZON_LENGTH = 50.0  # duration of an experiment, in units of the model's time
_MAX_FIT_SECONDS = 900.0  # time limit of one fit in seconds


@dataclass(frozen=True)
class ManyTiming:
    """One fit.

    Attributes
    ----------
    what : str
        "experiments" or "values", what `count` counts.
    method : str
    count, iterations : int
    build, seconds, per_iteration : float
        CPU seconds of the problem, of its fit, and between two iterations (median).
    memory : float
        Megabytes at the peak.
    off : float
        Relative difference of chi2 from that of the closed form at the estimates; NaN where there is none.
    success : bool
    """

    what: str
    method: str
    count: int
    iterations: int
    build: float
    seconds: float
    per_iteration: float
    memory: float
    off: float
    success: bool


def many_experiments(count: int, rng: int | np.random.Generator = 0) -> Problem:
    """Return the problem of `count` experiments with three own and four shared quantities."""
    generator = np.random.default_rng(rng)
    A, B, k10, k12, k21, s, b = (symbols(name) for name in ("A", "B", "k10", "k12", "k21", "s", "b"))
    model = Model(
        {A: -(k10 + k12) * A + k21 * B, B: k12 * A - k21 * B},
        parameters=[k10, k12, k21, s, b],
        outputs={"y": A + b, "z": s * B},
    )
    times = np.linspace(0.25, 6.0, _N_POINTS)
    local_values = np.column_stack(
        [5.0 * np.exp(0.3 * generator.standard_normal(count)), np.exp(0.3 * generator.standard_normal(count)),
         0.5 + 0.2 * generator.standard_normal(count)]
    )  # fmt: skip
    data = closed_form(np.array(list(TRUTH.values())), local_values, times)
    data = data + DATA_SIGMA * generator.standard_normal(data.shape)
    initial = {"A": free(4.0), "B": free(1.0)}
    experiments = [Experiment({"y": y, "z": z}, time=times, sigma=DATA_SIGMA, initial=initial) for y, z in data]
    guesses = {name: Parameter(0.3, lower=0.0) for name in ("k10", "k12", "k21")}
    return Problem(model, experiments, parameters={**guesses, "s": 1.5, "b": Parameter(0.3, local=True)})


def closed_form(shared: Array, local_values: Array, times: Array) -> Array:
    """Return y and z of every experiment, (n, 2, n_times), by the eigenvectors of the linear model."""
    k10, k12, k21, s = shared
    w, V = np.linalg.eig(np.array([[-(k10 + k12), k21], [k12, -k21]]))
    states = np.real(
        np.einsum("ij,tj,jk,nk->nit", V, np.exp(np.outer(times, w)), np.linalg.inv(V), local_values[:, :2])
    )
    return np.stack([states[:, 0] + local_values[:, 2:], s * states[:, 1]], axis=1)


def one_long_experiment(count: int, rng: int | np.random.Generator = 0) -> Problem:
    """Return the problem of one experiment with `count` measured values of two states."""
    generator = np.random.default_rng(rng)
    A, B, k1, k2, k3, k4 = (symbols(name) for name in ("A", "B", "k1", "k2", "k3", "k4"))
    model = Model({A: k1 * A - k2 * A * B, B: k3 * A * B - k4 * B}, parameters=[k1, k2, k3, k4])
    times = np.linspace(0.0, _HORIZON_LENGTH, count // 2 + 1)[1:]
    solution = solve_ivp(
        lambda _, x: [x[0] - x[0] * x[1], x[0] * x[1] - x[1]], (0.0, _HORIZON_LENGTH), [0.4, 1.0], t_eval=times,
        rtol=1e-9, atol=1e-10,
    )  # fmt: skip
    values = np.asarray(solution.y, dtype=float) + DATA_SIGMA * generator.standard_normal((2, times.size))
    experiment = Experiment(
        {"A": values[0], "B": values[1]}, time=times, sigma=DATA_SIGMA, initial={"A": free(0.4), "B": free(1.0)}
    )
    return Problem(
        model, experiment, parameters={name: Parameter(0.95, lower=0.0) for name in ("k1", "k2", "k3", "k4")}
    )


def timed(counted_name: str, method: str, count: int, seed: int) -> ManyTiming:
    """Fit one case in this process."""
    began = time.process_time()
    problem = many_experiments(count, seed) if counted_name == "experiments" else one_long_experiment(count, seed)
    build_time = time.process_time()
    ticks: list[float] = []
    result = fit(problem, method, callback=lambda _: ticks.append(time.process_time()))
    end_time = time.process_time()
    return ManyTiming(
        counted_name,
        method,
        count,
        result.iterations,
        build_time - began,
        end_time - build_time,
        float(np.median(np.diff(ticks))) if len(ticks) > 1 else np.nan,
        peak_memory(),
        _off(result, count) if counted_name == "experiments" else np.nan,
        result.success,
    )


def _off(result: Result, count: int) -> float:
    """Compare chi2 with that of the closed form at the same estimates."""
    values = result.values
    parameter_names = [(f"A(0)[{e}]", f"B(0)[{e}]", f"b[{e}]") for e in (f"experiment {i + 1}" for i in range(count))]
    local_values = np.array([[values[name] for name in names] for names in parameter_names])
    if result.problem is None:
        return np.nan
    points = [condition.points for condition in result.problem.conditions]
    exact = closed_form(np.array([values[name] for name in TRUTH]), local_values, points[0].times)
    data = np.array([of_one.values.T for of_one in points])
    return abs(float(np.sum(((exact - data) / DATA_SIGMA) ** 2)) / result.chi2 - 1.0)


def slope(timings: Sequence[ManyTiming], figure: Callable[[ManyTiming], float]) -> float:
    """Return the slope of a figure over the count, both as logarithms, over the last decade or two."""
    if len(timings) < 2:
        return np.nan
    counts = np.log([t.count for t in timings])
    return float(np.polyfit(counts, np.log([figure(t) for t in timings]), 1)[0])


def scaling(
    *,
    experiments: Sequence[int] = EXPERIMENTS,
    values: Sequence[int] = VALUES,
    rng: int = 0,
    max_time: float = _MAX_FIT_SECONDS,
    progress: Progress = lambda _: None,
) -> tuple[ManyTiming, ...]:
    """Time fits of many experiments, by single shooting and collocation, and of one long one.

    Parameters
    ----------
    experiments, values : sequences of int
        Numbers of experiments, and of values of the long one, increasing.
    rng : int
        Seed of the noise.
    max_time : float
        CPU seconds in all: no case is begun that would, in proportion to the one before, not fit into what is left.
    progress : callable
        Told what runs.
    """
    cases = [("experiments", "single", experiments), ("experiments", "collocation", experiments),
             ("values", "multiple", values), ("values", "collocation", values)]  # fmt: skip
    began = cpu_seconds()
    timings: list[ManyTiming] = []
    for counted_name, method, counts in cases:
        previous_seconds, previous_count = 0.0, 0
        for count in counts:
            seconds_left = max_time - (cpu_seconds() - began)
            if previous_count and previous_seconds * count / previous_count > seconds_left:
                break
            progress(f"{count:,} {counted_name}, {method}")
            start = cpu_seconds()
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                timings.append(pool.submit(timed, counted_name, method, count, rng).result())
            previous_seconds, previous_count = cpu_seconds() - start, count
    return tuple(timings)


def _sheets(timings: Sequence[ManyTiming]) -> list[TextTable]:
    sheets: list[TextTable] = []
    for counted_name in ("experiments", "values"):
        rows = [t for t in timings if t.what == counted_name]
        sheets.append(
            TextTable.from_items(
                rows,
                (f">{counted_name}", lambda t: f"{t.count:,}"),
                ("method", lambda t: t.method),
                (">build", lambda t: f"{t.build:.2f} s"),
                (">fit", lambda t: f"{t.seconds:.3g} s"),
                (">iterations", lambda t: f"{t.iterations}"),
                (">an iteration", lambda t: f"{t.per_iteration:.3g} s"),
                (">memory", lambda t: f"{t.memory:.0f} MB"),
                (">chi2 off", lambda t: f"{t.off:.1e}" if np.isfinite(t.off) else ""),
                title=f"Fits by the number of {counted_name}, CPU time",
            )
        )
    return sheets


def slopes(timings: Sequence[ManyTiming]) -> dict[str, dict[str, float]]:
    """Return the slopes of time, time of an iteration and memory, by what is counted and method."""
    slopes_by_case: dict[str, dict[str, float]] = {}
    for counted_name, method in dict.fromkeys((t.what, t.method) for t in timings):
        rows = [t for t in timings if (t.what, t.method) == (counted_name, method)]
        slopes_by_case[f"{counted_name}, {method}"] = {
            "fit": slope(rows, lambda t: t.seconds),
            "iteration": slope(rows, lambda t: t.per_iteration),
            "memory": slope(rows, lambda t: t.memory),
        }
    return slopes_by_case


def draw_scaling(timings: Sequence[ManyTiming], path: str | Path | None = None) -> Figure:
    """Plot time (left) and memory (right), a colour per transcription; one long experiment dashed.

    Parameters
    ----------
    timings : sequence
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    """
    figure = new_figure(7.2, 3.4)
    left, right = figure.subplots(1, 2)
    lines = list(dict.fromkeys((t.what, t.method) for t in timings))
    for counted_name, method in lines:
        case_timings = [t for t in timings if (t.what, t.method) == (counted_name, method)]
        dash, colour = "-" if counted_name == "experiments" else "--", RED if method == "collocation" else BLUE
        counts = [t.count for t in case_timings]
        style = {"color": colour, "linewidth": 1.6, "linestyle": dash, "marker": "o", "markersize": 4}
        left.plot(counts, [t.seconds for t in case_timings], label=f"{counted_name}, {method}", **style)
        right.plot(counts, [t.memory for t in case_timings], **style)
    for axes, label in ((left, "CPU seconds of a fit"), (right, "megabytes")):
        tidy(axes)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("number", fontsize=9, color=INK)
        axes.set_ylabel(label, fontsize=9, color=INK)
    left.legend(fontsize=7, frameon=False, labelcolor=INK)
    return save_or_show(figure, path)


def _run(
    name: str, progress: Progress, seed: int = 0, plot: str | None = None, max_time: float = _MAX_FIT_SECONDS
) -> Report:
    raise_if_mistakes(NAME, number_mistakes(seed=seed, max_time=max_time))
    timings = scaling(rng=seed, max_time=max_time, progress=progress)
    if plot is not None:
        draw_scaling(timings, plot)
    lines = TextTable.from_items(
        slopes(timings).items(),
        ("", lambda item: item[0]),
        (">fit", lambda item: f"{item[1]['fit']:.2f}"),
        (">an iteration", lambda item: f"{item[1]['iteration']:.2f}"),
        (">memory", lambda item: f"{item[1]['memory']:.2f}"),
        title="Slopes: 1 is in proportion to the number",
    )
    experiment_sheet, value_sheet = _sheets(timings)
    return Report(
        (experiment_sheet, "", value_sheet, "", lines), record(name, [vars(t) for t in timings], slopes=slopes(timings))
    )


KIND = Kind(
    lambda: (NAME,),
    ("seed", "plot", "max_time"),
    _run,
    lambda _: "time and memory of fits by the number of experiments and of measured values",
)
