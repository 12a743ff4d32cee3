"""Every problem of a folder at its nominal parameters: how fast it loads, its objective, its gradient.

A problem passes if it loads in 2 s of CPU time, or in 1 ms a measured value; if its objective is that of the collection
within 1e-3, or one part in a million of values above 1e4; and if its gradient is that of differences, within 1e-5.
Gradients are compared along random directions, at the nominal parameters, at the bounds next to them where these have
no logarithm, or nearby where differences cannot be computed; not of models so large that sensitivities would take
minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.status import CastfitError
from castfit._support.text_tables import TextTable
from castfit.formats.petab.likelihood import Objective, accurate
from castfit.formats.petab.loading import LoadedProblem, load_tables

from .gradients import SmoothObjective

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[np.float64]]

_SECONDS, _A_ROW = 2.0, 1e-3
_OFF, _SHARE, _LARGE = 1e-3, 1e-6, 1e4
_GRADIENT_RTOL = 1e-5  # relative error up to which a gradient is correct
_N_DIRECTIONS = 3  # number of random directions in which gradients are compared
_STEPS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5)  # of differences, along directions whose largest entry is 1
_POINTS, _AROUND = 6, 0.1  # tried until differences can be computed: the nominal one, then others near it
_MAX_GRADIENT_SIZE = 20_000  # number of states times parameters up to which gradients are compared


@dataclass(frozen=True)
class NominalEntry:
    """What one problem is at its nominal parameters.

    loading : CPU seconds;  rows : measured values;  nominal, reference : negative log likelihood
    gradient_error : relative to its largest entry, or 1; NaN where it was not compared
    trouble : why it could not be read or evaluated
    """

    problem: str
    rows: int = 0
    states: int = 0
    parameters: int = 0
    loading: float = np.nan
    nominal: float = np.nan
    reference: float = np.nan
    gradient_error: float = np.nan
    trouble: str = ""

    @property
    def loads(self) -> bool:
        """Whether it loads fast enough."""
        return self.loading <= max(_SECONDS, _A_ROW * self.rows)

    @property
    def agrees(self) -> bool | None:
        """Whether the objective is what it must be; None where nobody says what that is."""
        if np.isnan(self.reference):
            return None
        allowed = _SHARE * abs(self.reference) if abs(self.reference) > _LARGE else _OFF
        return bool(abs(self.nominal - self.reference) <= allowed)

    @property
    def right(self) -> bool | None:
        """Whether the gradient is that of differences; None where it was not compared."""
        return None if np.isnan(self.gradient_error) else self.gradient_error <= _GRADIENT_RTOL


def run_nominal(
    paths: Mapping[str, Path], references: Mapping[str, float], progress: Callable[[str], object]
) -> Iterator[NominalEntry]:
    """Go through problems, one entry after the other."""
    import_module("libsbml")  # whose import is no part of loading
    for name, path in paths.items():
        yield _entry(name, path, references.get(name, np.nan), progress)


def _entry(name: str, path: Path, reference: float, progress: Callable[[str], object]) -> NominalEntry:
    progress(f"{name}: reading")
    began = time.process_time()
    try:
        loaded = load_tables(path, lambda said: progress(f"{name}: {said}"))
    except CastfitError as error:
        return NominalEntry(name, reference=reference, trouble=str(error))
    loading, problem = time.process_time() - began, loaded.problem
    size = len(loaded.tables.measurements), len(problem.model.states), len(problem.names)
    theta = nominal_theta(loaded)
    progress(f"{name}: objective")
    try:
        computed_value = Objective(problem, problem.guess).evaluate(theta).negative_log_likelihood
    except CastfitError as error:
        return NominalEntry(name, *size, loading, reference=reference, trouble=str(error))
    error = np.nan
    if size[1] * size[2] <= _MAX_GRADIENT_SIZE:
        progress(f"{name}: gradient")
        point = theta if np.isfinite(theta).all() else np.array(problem.guess)
        objective, rng = SmoothObjective(problem, problem.guess, accurate(1e-10)), np.random.default_rng(1)
        for k in range(_POINTS):
            error = differentiate_along(
                objective, point if k == 0 else point + _AROUND * rng.uniform(-1.0, 1.0, point.size)
            )
            if np.isfinite(error):
                break
        else:
            error = np.inf
    return NominalEntry(name, *size, loading, computed_value, reference, error)


def nominal_theta(loaded: LoadedProblem) -> Array:
    """Return the nominal values of the table in search scale (n_theta,), those too that lie outside of their bounds."""
    problem, nominal_values = loaded.problem, {row.name: row.nominal for row in loaded.tables.parameters}
    guesses = problem.to_natural(problem.guess)
    natural = [g if (v := nominal_values[n]) is None else v for n, g in zip(problem.names, guesses, strict=True)]
    with np.errstate(divide="ignore"):
        return problem.to_search(np.array(natural, dtype=float))


def differentiate_along(objective: SmoothObjective, theta: Array) -> float:
    """Return the largest difference of the gradient from central differences along random directions.

    It is relative to the largest derivative along them, or 1; of several steps the best counts, as far as neighbouring
    steps agree; NaN where they cannot be computed.
    """
    gradient, rng = objective.gradient(theta), np.random.default_rng(0)
    if not np.isfinite(gradient).all():
        return np.nan
    worst, size = 0.0, 1.0
    for _ in range(_N_DIRECTIONS):
        direction = rng.uniform(-1.0, 1.0, theta.size)
        derivatives: list[float] = []
        for step in _STEPS:
            near_difference, far_difference = (
                objective.value(theta + k * step * direction) - objective.value(theta - k * step * direction)
                for k in (1, 2)
            )
            derivatives.append((8 * near_difference - far_difference) / (12 * step))
        change = np.abs(np.diff(derivatives))
        best = derivatives[1 + int(np.argmin(np.where(np.isfinite(change), change, np.inf)))]
        exact = float(gradient @ direction)
        if not np.isfinite(best):
            return np.nan
        worst, size = max(worst, abs(best - exact)), max(size, abs(exact), float(np.abs(gradient).max()))
    return worst / size


def nominal_sheet(entries: list[NominalEntry]) -> TextTable:
    """Return the table."""
    return TextTable.from_items(
        entries,
        ("problem", lambda e: e.problem.partition("_")[0]),
        (">rows", lambda e: str(e.rows)),
        (">states", lambda e: str(e.states)),
        (">parameters", lambda e: str(e.parameters)),
        (">load", lambda e: f"{e.loading:.2f} s"),
        (">objective", lambda e: f"{e.nominal:.4f}"),
        (">off by", lambda e: "-" if e.agrees is None else f"{abs(e.nominal - e.reference):.1e}"),
        (">gradient", lambda e: "-" if e.right is None else f"{e.gradient_error:.0e}"),
        ("", verdict),
    )


def verdict(entry: NominalEntry) -> str:
    """Say what is not as it must be."""
    if entry.trouble:
        return "not read"
    checks = [("loads slowly", entry.loads), ("objective", entry.agrees), ("gradient", entry.right)]
    return ", ".join(label for label, fine in checks if fine is False) or "as it must be"
