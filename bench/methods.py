"""The methods that tables compare: those with a name of their own here, and all that `castfit.compare` knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from castfit.drive.search.compare.benchmarks import recommended_options
from castfit.drive.search.compare.methods import FitMethod, Incremental, Method, methods_from
from castfit.integrate import IntegratorOptions
from castfit.problems import Benchmark
from castfit.solve.gauss_newton import GaussNewton
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

INTEGRATOR = IntegratorOptions(relative_tolerance=1e-6, absolute_tolerance=1e-8, compile="auto")
"""How tables with a tolerance integrate, by measurement on calcium.

CPU seconds per start of table 1, the optimum's own fit and data included: ESDIRK 0.39, compiled Rosenbrock 0.66.
CVODES at 1e-6 is so rough that convergence stays in doubt.
"""

METHODS: dict[str, Method] = {
    "default": FitMethod(MultipleShooting(25), words="multiple shooting, 25 intervals, with all rescues"),
    "homotopy": FitMethod(MultipleShooting(25), second_start=False, words="the same, never from the measured states"),
    "natural-level": FitMethod(
        MultipleShooting(25),
        GaussNewton(homotopy="always"),
        second_start=False,
        words="softened problems, then condensing with the natural level function",
    ),
    "paper": FitMethod(
        MultipleShooting(17),
        GaussNewton(homotopy="never", max_iter=150),
        second_start=False,
        words="17 intervals, natural level function, no homotopy",
    ),
    "single": FitMethod(
        SingleShooting(),
        GaussNewton(homotopy="never", max_iter=150),
        second_start=False,
        words="single shooting, natural level function, no homotopy",
    ),
    "hemker": FitMethod(
        SingleShooting(),
        GaussNewton("hemker", homotopy="never"),
        second_start=False,
        words="single shooting with Hemker's step rule",
    ),
    "iss": Incremental(is_original=True, words="incremental single shooting as published, without fallbacks"),
}
"""The papers' methods and ours, where a name of the grammar of `castfit.compare` would not say enough."""


def table_methods(names: Iterable[str], benchmark: Benchmark, mistakes: list[str]) -> dict[str, Method]:
    """Return methods by name, transcriptions as the benchmark recommends; what is wrong is added to `mistakes`."""
    return methods_from(list(names), mistakes, recommended_options(benchmark), METHODS)


def integrated(method: Method, options: IntegratorOptions) -> Method:
    """Return a method with another integrator; one that has no transcription chooses its own."""
    transcription: Any = getattr(method, "transcription", None)
    if transcription is None:
        return method
    changeable: Any = method
    return replace(changeable, transcription=replace(transcription, integrator=options))
