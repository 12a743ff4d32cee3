"""How often confidence intervals contain the truth: fits of synthetic data, of which the truth is known.

``castfit bench coverage`` draws data of Lotka and Volterra's model with normal errors of unknown sigma, errors relative
to the value of unknown size, and Poisson counts, by `castfit.coverage`, which does it for any design.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.densities.noise.counts import Poisson
from castfit.densities.noise.density import Noise
from castfit.densities.noise.gaussian import Gaussian
from castfit.drive.search.compare.benchmarks import Progress
from castfit.drive.uncertainty.refits.coverage import CoverageResult, coverage
from castfit.experiment.experiment import Experiment
from castfit.model.model import Model, symbols
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Problem
from castfit.simulate.simulate import simulate

from .table import Kind, Report, number_mistakes, record

if TYPE_CHECKING:
    from castfit._support.arrays import Array

NAME = "coverage"
_N_TRIALS = 500  # number of simulated data sets

_TIMES = np.arange(1.0, 11.0)
_TRUE = {"k1": 1.0, "k2": 1.0, "k3": 1.0, "k4": 1.0}
_INDIVIDUALS_PER_UNIT = 50.0  # number of counted individuals per unit of the model
_SIGMA, _RELATIVE = 0.05, 0.05


@cache
def _model() -> Model:
    x, y = symbols("x y")
    k1, k2, k3, k4 = symbols("k1 k2 k3 k4")
    equations = {x: -k1 * x + k2 * x * y, y: k3 * y - k4 * x * y}
    outputs = {"predators": _INDIVIDUALS_PER_UNIT * x, "prey": _INDIVIDUALS_PER_UNIT * y}
    return Model(equations, parameters=[k1, k2, k3, k4], outputs=outputs)


@cache
def _exact() -> Mapping[str, Array]:
    return simulate(_model(), _TRUE, _TIMES, initial={"x": 0.4, "y": 1.0})


@cache
def _relative() -> Mapping[str, Noise]:
    c, x, y = symbols("c x y")
    return {"x": Gaussian(c * x), "y": Gaussian(c * y)}


def design(kind: str) -> tuple[Problem, Mapping[str, float], float | None]:
    """Return the problem of a kind of noise, its truth, and the standard deviation that the fits do not know."""
    exact = _exact()
    extra: dict[str, Any] = {}
    if kind == "counts":
        data = {n: np.round(exact[n]) for n in ("predators", "prey")}
        experiment_options: dict[str, Any] = {"noise": Poisson()}
    else:
        data = {n: exact[n] for n in ("x", "y")}
        experiment_options = {"sigma": None} if kind == "unknown sigma" else {"noise": dict(_relative())}
        if kind == "relative errors":
            extra = {"c": Parameter(0.1, scale="log")}
    experiment = Experiment(data, time=_TIMES, initial={"x": 0.4, "y": 1.0}, **experiment_options)
    problem = Problem(_model(), experiment, parameters={**dict.fromkeys(_TRUE, 0.9), **extra})
    truth = {**_TRUE, "c": _RELATIVE} if extra else _TRUE
    return problem, truth, _SIGMA if kind == "unknown sigma" else None


KINDS = ("unknown sigma", "relative errors", "counts")


def run_kind(kind: str, *, samples: int = _N_TRIALS, seed: int = 0, **options: Any) -> CoverageResult:
    """Check the intervals of one kind of noise, by fits that begin at a guess."""
    problem, truth, sigma = design(kind)
    parts: dict[str, Any] = {"transcription": "single", "start": "guess", **options}
    return coverage(problem, truth, sigma=sigma, samples=samples, rng=seed, **parts)


def _run(name: str, progress: Progress, seed: int = 0, starts: int = _N_TRIALS, workers: int = 1) -> Report:
    raise_if_mistakes("coverage", number_mistakes(seed=seed, trials=starts))

    def run_with_progress(kind: str) -> CoverageResult:
        def callback(now: Any) -> None:
            progress(f"lotka_volterra, {kind}: {now.sentence('data sets')}")

        return run_kind(kind, samples=starts, seed=seed, workers=workers, callback=callback)

    rows = [(f"lotka_volterra, {kind}", run_with_progress(kind)) for kind in KINDS]
    shares = [{n: c.share for n, c in coverage.quantities.items()} for _, coverage in rows]
    sheet = TextTable.from_items(
        zip(rows, shares, strict=True),
        ("problem", lambda r: r[0][0]),
        (">fits", lambda r: f"{r[0][1].fitted}"),
        (">inside", lambda r: f"{100 * r[0][1].share:.1f} %"),
        ("of each", lambda r: ", ".join(f"{n} {100 * share:.1f} %" for n, share in r[1].items())),
        ("other ends", lambda r: ", ".join(f"{count} {end}" for end, count in r[0][1].failures.items())),
        title=f"Intervals of nominal {100 * rows[0][1].confidence_level:g} % that contain the truth",
    )
    records = [
        {
            "name": name,
            "level": coverage.confidence_level,
            "fitted": coverage.fitted,
            "ends": coverage.failures,
            "quantities": {n: vars(c) for n, c in coverage.quantities.items()},
        }
        for name, coverage in rows
    ]
    return Report((sheet,), record(name, records, trials=starts, seed=seed))


KIND = Kind(lambda: (NAME,), ("starts", "seed", "workers"), _run, lambda name: "how often intervals contain the truth")
