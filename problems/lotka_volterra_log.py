"""Predator and prey, of which only the prey is counted, as a logarithm: simulated data.

    x' = a x − b x y          prey
    y' = c x y − d y          predators                    (Lotka 1925, Volterra 1926)
    (x, y)(0) = (4, 1), known

At a = 1, b = 0.5, c = 0.2, d = 0.6 the solution has a period of about nine.  ln x is measured at t = 0.5, 1, ..., 30
with normal errors of standard deviation 0.1; no units.  All parameters are known to four decades only.
"""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, exact_trajectory

TRUTH = {"a": 1.0, "b": 0.5, "c": 0.2, "d": 0.6}
INITIAL = {"x": 4.0, "y": 1.0}
TIMES = np.arange(1, 61) / 2
SIGMA, SEED = 0.1, 1926
LIMITS = (1e-2, 1e2)
REFERENCE = Reference(
    parameters={"a": 0.8780541336, "b": 0.3977240884, "c": 0.2314238637, "d": 0.6848133859},
    objective=53.80320981,
    standard_errors={"a": 0.13076, "b": 0.11519, "c": 0.036902, "d": 0.11044},
    source="least squares with SciPy on the variational equations, from the truth",
)


def benchmark(*, rng: Any = SEED) -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    rng : int or numpy Generator
        Draws the errors.
    """
    model = prey_model()
    states = exact_trajectory(model, parameters=TRUTH, initial=INITIAL, times=np.append(0.0, TIMES))
    draws = np.random.default_rng(rng).standard_normal(TIMES.size)
    return Benchmark(
        name="lotka_volterra_log",
        description=(
            "Lotka and Volterra's prey over three periods, counted on a logarithmic scale; the predators are not "
            "seen. From a wide start prey die out or explode, and ln x says nothing about the parameters any more."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({"log_x": np.log(states["x"][1:]) + SIGMA * draws}, time=TIMES, start=0.0, sigma=SIGMA),
            parameters={name: cf.Parameter(1.0, lower=LIMITS[0], upper=LIMITS[1], scale="log") for name in TRUTH},
        ),
        reference=REFERENCE if rng == SEED else Reference.at_truth(TRUTH, draws, parameter_tolerance=0.2),
        sources=("Lotka 1925, Elements of Physical Biology; Volterra 1926, Nature 118, 558 (model)",),
        draw_start=Uniform(dict.fromkeys(TRUTH, LIMITS), log=True),
        notes="Values, times, noise, bounds and the distribution of starts are ours.",
    )


def prey_model() -> cf.Model:
    """Build the model."""
    x, y, a, b, c, d = cf.symbols("x y a b c d")
    return cf.Model(
        {x: a * x - b * x * y, y: c * x * y - d * y},
        parameters=[a, b, c, d],
        outputs={"log_x": ca.log(x)},
        initial=INITIAL,
    )
