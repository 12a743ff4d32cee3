"""Large populations: one compartment with absorption, eleven samples of each individual, three own parameters."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable, format_to_error
from castfit.densities.noise.unknown import unknown
from castfit.drive.population.mixed_effects import mixed_effects
from castfit.drive.population.result import MixedEffectsResult
from castfit.drive.population.spec import Individual, Population
from castfit.drive.search.compare.benchmarks import Progress
from castfit.experiment.experiment import Experiment
from castfit.model.model import Model, symbols
from castfit.problem.problem import Parameter, Problem

from .cpu_clock import cpu_clock
from .table import Kind, Report, number_mistakes, record

TRUTH = {"ka": 1.5, "CL": 3.0, "V": 30.0}  # 1/h, L/h, L
OMEGA = {"ka": 0.4, "CL": 0.25, "V": 0.2}
SIGMA = 0.15  # mg/L
DOSES = (80.0, 100.0, 120.0)  # mg
TIMES = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 12.0, 24.0])  # h
GUESS = {"ka": 1.0, "CL": 2.0, "V": 20.0}
_SIZES = (100, 1000, 10_000)
_PREFIX = "population-"


@dataclass(frozen=True)
class PopulationRun:
    """A fit of simulated individuals, with wall-clock and CPU seconds, those of posing the problem included."""

    result: MixedEffectsResult
    wall: float
    cpu: float

    @property
    def truth(self) -> dict[str, float]:
        """What the data were simulated with, by name."""
        return {**TRUTH, "sigma(conc)": SIGMA, **{f"omega({n})": value for n, value in OMEGA.items()}}

    @property
    def distances(self) -> dict[str, float]:
        """By how many standard errors estimates exceed the truth."""
        estimates, errors = self.result.values, self.result.standard_errors
        return {n: (estimates[n] - value) / errors[n] for n, value in self.truth.items()}

    @property
    def shown(self) -> TextTable:
        """Truth and estimates."""
        errors = self.result.standard_errors
        rows = tuple(
            (name, f"{value:g}", format_to_error(self.result.values[name], errors[name]), f"{errors[name]:.2g}",
             f"{self.distances[name]:+.1f}")
            for name, value in self.truth.items()
        )  # fmt: skip
        return TextTable(("", ">truth", ">estimate", ">std. error", ">off by std. errors"), rows)


def simulated(individuals: int, rng: int | np.random.Generator) -> Problem:
    """Draw individuals and their data, by the closed form."""
    generator = np.random.default_rng(rng)
    individual_values = {n: TRUTH[n] * np.exp(OMEGA[n] * generator.standard_normal(individuals)) for n in TRUTH}
    doses = generator.choice(DOSES, individuals)
    ka, ke = individual_values["ka"][:, None], (individual_values["CL"] / individual_values["V"])[:, None]
    exact: Array = (
        doses[:, None]
        * ka
        / (individual_values["V"][:, None] * (ka - ke))
        * (np.exp(-ke * TIMES) - np.exp(-ka * TIMES))
    )
    data = exact + SIGMA * generator.standard_normal(exact.shape)
    gut, blood, k, CL, V = symbols("gut blood ka CL V")
    model = Model({gut: -k * gut, blood: k * gut - CL / V * blood}, parameters=[k, CL, V], outputs={"conc": blood / V})
    patients = [
        Experiment({"conc": row}, TIMES, sigma=unknown(), initial={"gut": float(dose), "blood": 0.0}, name=f"{i + 1}")
        for i, (row, dose) in enumerate(zip(data, doses, strict=True))
    ]
    return Problem(model, patients, parameters={n: Parameter(value, local=True) for n, value in GUESS.items()})


def population_run(
    individuals: int, *, rng: int | np.random.Generator = 0, workers: int = 1, max_time: float = np.inf
) -> PopulationRun:
    """Simulate individuals and fit their population.

    Parameters
    ----------
    individuals : int
    rng : int or Generator
    workers : int
        Threads.
    max_time : float
        CPU seconds with one worker, else seconds.
    """
    began = time.perf_counter(), time.process_time()
    problem = simulated(individuals, rng)
    population = Population({n: Individual() for n in TRUTH})
    with cpu_clock(workers):
        result = mixed_effects(problem, population, workers=workers, max_time=max_time)
    return PopulationRun(result, time.perf_counter() - began[0], time.process_time() - began[1])


def _run(name: str, progress: Progress, seed: int = 0, workers: int = 1, max_time: float = np.inf) -> Report:
    raise_if_mistakes("bench", number_mistakes(seed=seed, workers=workers, max_time=max_time))
    progress(name)
    population_result = population_run(int(name.removeprefix(_PREFIX)), rng=seed, workers=workers, max_time=max_time)
    took = (
        f"{population_result.wall:.1f} s, {population_result.cpu:.1f} s of CPU, "
        f"{population_result.result.sweeps} sweeps over all individuals"
    )
    rows = [
        {
            "name": n,
            "truth": value,
            "estimate": population_result.result.values[n],
            "error": population_result.result.standard_errors[n],
        }
        for n, value in population_result.truth.items()
    ]
    entry = {
        "success": population_result.result.success,
        "wall": population_result.wall,
        "cpu": population_result.cpu,
        "sweeps": population_result.result.sweeps,
    }
    return Report((population_result.shown, f"{population_result.result.message} {took}"), record(name, rows, **entry))


KIND = Kind(
    lambda: tuple(f"{_PREFIX}{size}" for size in _SIZES),
    ("seed", "workers", "max_time"),
    _run,
    lambda name: f"mixed effects of {name.removeprefix(_PREFIX)} simulated individuals, against the truth",
)
