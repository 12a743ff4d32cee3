"""How often residuals are suspected: those of noise, which should be rarely, and those that are no noise.

``castfit bench residual-tests`` draws residuals, as fits of polynomials leave them or without any fit, and judges them
as every fit is judged (`castfit.result.diagnostics`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.json_codec import replace_nonfinite
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.result.diagnostics import diagnose
from castfit.result.residuals import SIGNIFICANT, SUSPECTED

from .table import Kind, Report, number_mistakes, record

if TYPE_CHECKING:
    from castfit._support.arrays import Array

NAME = "residual-tests"
_N_DRAWS = 1000  # number of simulated data sets
Draw = Callable[[np.random.Generator, int], Any]
"""Draws n residuals of mean 0 and deviation about 1."""


def noise(rng: np.random.Generator, n: int) -> Any:
    """Draw independent normal values."""
    return rng.standard_normal(n)


def correlated(rho: float) -> Draw:
    """Return draws of a stationary autoregressive process."""

    def draw(rng: np.random.Generator, n: int) -> Any:
        e = rng.standard_normal(n)
        for i in range(1, n):
            e[i] = rho * e[i - 1] + np.sqrt(1.0 - rho**2) * e[i]
        return e

    return draw


def growing(factor: float) -> Draw:
    """Return draws whose deviation grows by a factor, with time and prediction."""
    return lambda rng, n: rng.standard_normal(n) * np.linspace(1.0, factor, n)


def heavy(rng: np.random.Generator, n: int) -> Any:
    """Draw independent values with heavy tails: Student's t with 3 degrees of freedom."""
    return rng.standard_t(3.0, n) / np.sqrt(3.0)


_CASES: tuple[tuple[str, Draw, tuple[tuple[int, int, int], ...]], ...] = (
    (
        "noise",
        noise,
        ((8, 1, 0), (14, 1, 3), (14, 4, 3), (30, 1, 0), (30, 1, 3), (30, 20, 3), (100, 4, 3), (1000, 1, 3)),
    ),
    ("neighbours correlated 0.3", correlated(0.3), ((30, 1, 0), (30, 1, 3), (100, 1, 3))),
    ("neighbours correlated 0.46", correlated(0.46), ((14, 1, 3), (30, 1, 0), (30, 1, 3), (30, 4, 3), (100, 1, 3))),
    ("neighbours correlated 0.64", correlated(0.64), ((14, 1, 3), (30, 1, 0), (30, 1, 3), (30, 20, 3))),
    ("sizes grow fivefold", growing(5.0), ((30, 1, 3), (100, 1, 3))),
    ("heavy tails (Student, 3)", heavy, ((30, 1, 3), (100, 1, 3))),
)
"""What is drawn, and sizes of fits: values and parameters of each output, and number of outputs."""


@dataclass(frozen=True)
class JudgedDraws:
    """How often fits were judged: the shares of draws in which anything was suspected, or shown.

    n, outputs, parameters : values of each output, outputs, parameters of each; of several outputs the first alone is
        no noise
    """

    residuals: str
    n: int
    outputs: int
    parameters: int
    suspected: float
    shown: float


def run_tests(name: str, draw: Draw, n: int, outputs: int, k: int, draws: int, rng: np.random.Generator) -> JudgedDraws:
    """Judge draws of residuals."""
    covariate = np.linspace(-1.0, 1.0, n)
    Q = np.linalg.qr(np.vander(covariate, k))[0] if k else np.zeros((n, 0))
    hat: Array = np.kron(np.eye(outputs), Q).astype(np.float64)
    names = np.repeat([f"y{j}" for j in range(outputs)], n)
    table: dict[str, Any] = {
        "experiment": np.full(names.size, "experiment 1"),
        "output": names,
        "time": np.tile(covariate, outputs),
        "replicate": np.zeros(names.size, dtype=int),
        "prediction": np.tile(covariate + 2.0, outputs),
    }
    grades: list[set[str]] = []
    for _ in range(draws):
        e = np.stack([(draw if j == 0 else noise)(rng, n) for j in range(outputs)])
        r = (e - (e @ Q) @ Q.T).ravel()
        table_of_draw = {**table, "normalised": r, "value": table["prediction"] + r}
        diagnostics = diagnose(
            table_of_draw, dof=r.size - k * outputs, is_sigma_known=False, hat=hat, by_experiment=False
        )
        grades.append({check.grade for checks in diagnostics.outputs.values() for check in checks.checks.values()})
    shares = (
        float(np.mean([bool(g & claims) for g in grades])) for claims in ({SIGNIFICANT, SUSPECTED}, {SIGNIFICANT})
    )
    return JudgedDraws(name, n, outputs, k, *shares)


def run(
    _: str, progress: Callable[[str], object] = lambda text: None, *, starts: int = _N_DRAWS, seed: int = 0
) -> Report:
    """Judge all cases; `starts` is the number of draws of each."""
    raise_if_mistakes(NAME, number_mistakes(starts=starts, seed=seed))
    rows: list[JudgedDraws] = []
    for name, draw, sizes in _CASES:
        for n, outputs, k in sizes:
            progress(f"{name}: n = {n}, {outputs} outputs")
            rows.append(run_tests(name, draw, n, outputs, k, starts, np.random.default_rng(seed)))
    sheet = TextTable.from_items(
        rows,
        ("residuals", lambda row: row.residuals),
        (">n", lambda row: f"{row.n}"),
        (">outputs", lambda row: f"{row.outputs}"),
        (">parameters", lambda row: f"{row.parameters}"),
        (">suspected", lambda row: f"{100 * row.suspected:.1f} %"),
        (">shown", lambda row: f"{100 * row.shown:.1f} %"),
        title=f"How often residuals are suspected, of {starts} draws",
    )
    note = "n and parameters are those of each output; of several outputs the first alone is no noise."
    return Report(
        (sheet, note), record(NAME, [replace_nonfinite(asdict(row)) for row in rows], draws=starts, seed=seed)
    )


KIND = Kind(
    lambda: (NAME,), ("starts", "seed"), run, lambda name: "how often residuals of noise and others are suspected"
)
