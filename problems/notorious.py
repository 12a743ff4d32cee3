"""The notorious problem of Bulirsch and Bock: one parameter, and errors that grow like exp(μ t).

    y1' = y2
    y2' = μ² y1 − (μ² + p²) sin(p t)
    y(0) = (0, π), known

Both states are measured at t = 0.1, 0.2, ..., 1 with standard deviation 0.05; the true p is π; no units.  Everything
is known in closed form (Michalik, Hannemann and Marquardt 2009, Eqs. 17-18):

    y1 = sin(p t)   + (π − p)/μ sinh(μ t)
    y2 = p cos(p t) + (π − p)   cosh(μ t)

At μ = 60 a rounding error in p is amplified to 10¹⁰ at t = 1, so that integration from t = 0 is useless: truth and
reference come from the closed form.

Correction.  Michalik et al. print y(0) = (π, 0); their own solution starts at (0, π).
"""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

import castfit as cf
from castfit.problems import Benchmark, PaperRow, PublishedTable, Reference, Uniform, one_of, positive

MU, NOISE, SEED = 60.0, 0.05, 0
TIMES = np.arange(1, 11) / 10

TABLES = (
    PublishedTable(
        name="iss-table1",
        problem="notorious",
        starts=100,
        paper=(
            PaperRow("incremental", "18 / 100 / 99 / 100 correct for mu = 5 / 10 / 20 / 40; 82 wrong, 1 error"),
            PaperRow("single shooting", "16 / 75 / 20 / 0 correct; 84 wrong for mu = 5, else errors"),
        ),
        methods=("incremental", "iss", "single", "multiple", "collocation", "incremental/multiple",
                 "incremental/collocation"),
        source="Michalik, Hannemann and Marquardt 2009, Table 1",
        cases=({"mu": 5}, {"mu": 10}, {"mu": 20}, {"mu": 40}),
    ),
)  # fmt: skip


def benchmark(*, mu: float = MU, noise: float = NOISE, rng: Any = SEED, starts: str = "published") -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    mu : float
        How unstable the system is; the literature has 5, 10, 20, 40 and 60.
    noise : float
        Standard deviation of the errors.
    rng : int or numpy Generator
        Draws the errors, first all of y1, then all of y2.
    starts : {"published", "narrow"}
        Whether `draw_start` is uniform between −500 and 500 or between 0 and 2π.
    """
    positive("mu", mu, below=700)  # cosh overflows
    positive("noise", noise)
    span = {"published": (-500.0, 500.0), "narrow": (0.0, 2 * np.pi)}[one_of("starts", starts, ("published", "narrow"))]
    t, y1, y2, p = cf.symbols("t y1 y2 p")
    model = cf.Model(
        ode={y1: y2, y2: mu**2 * y1 - (mu**2 + p**2) * ca.sin(p * t)},
        parameters=[p],
        time=t,
        initial={y1: 0, y2: np.pi},
    )
    errors = noise * np.random.default_rng(rng).standard_normal((2, TIMES.size))
    data = solution(0.0, mu, TIMES)[0] + errors
    return Benchmark(
        name="notorious",
        description=(
            "A linear oscillation inside a system whose errors grow like exp(μ t), after Bulirsch (1971) and Bock "
            "(1983): for μ of 40 and more no forward integration from t = 0 is right at t = 1, and only methods that "
            "divide the horizon stay accurate."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment(dict(zip(("y1", "y2"), data, strict=True)), time=TIMES, sigma=noise),
            parameters={"p": 1.0},
        ),
        reference=exact_reference(data, mu, noise),
        sources=(
            "Bulirsch 1971; Bock 1983",
            "Michalik, Hannemann and Marquardt 2009, Incremental single shooting, preprint AICES-2009-8 (protocol)",
            "Schittkowski 2002; github.com/PSOPT/psopt examples/notorious @8471bca (μ = 60)",
        ),
        draw_start=Uniform({"p": span}),
        notes=(
            "The initial values printed by Michalik et al. are swapped; corrected here. The standard error of p is "
            "the statistical one, about exp(−μ): far below what double precision can show for a large μ."
        ),
        transcriptions={"multiple": {"intervals": 10}},
    )


def solution(shift: float, mu: float, t: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the states (2, n) for p = π + shift, and their derivatives with respect to p (2, n)."""
    p = np.pi + shift
    sine, cosine = np.sin(p * t), np.cos(p * t)
    states = np.array([sine - shift / mu * np.sinh(mu * t), p * cosine - shift * np.cosh(mu * t)])
    slopes = np.array([t * cosine - np.sinh(mu * t) / mu, cosine - p * t * sine - np.cosh(mu * t)])
    return states, slopes


def exact_reference(data: NDArray[np.float64], mu: float, noise: float) -> Reference:
    """Fit the closed-form solution by Gauss-Newton in p − π, which is far below the spacing of numbers near π."""
    shift = 0.0
    for _ in range(20):
        states, slopes = solution(shift, mu, TIMES)
        shift += np.sum(slopes * (data - states)) / np.sum(slopes**2)
    states, slopes = solution(shift, mu, TIMES)
    return Reference(
        parameters={"p": np.pi + shift},
        objective=float(np.sum(((data - states) / noise) ** 2)),
        source="least squares with the closed-form solution",
        objective_tolerance=1e-3,
        parameter_tolerance=1e-6,
        standard_errors={"p": float(noise / np.sqrt(np.sum(slopes**2)))},
    )
