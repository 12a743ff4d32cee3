"""A chaotic system of which one state is seen (Lorenz 1963): simulated data.

    x' = s (y − x),      y' = x (r − z) − y,      z' = x y − b z          (Lorenz 1963, Eqs. 25-27)
    (x, y, z)(0) = (1, 1, 1), known

At s = 10, r = 28, b = 8/3 neighbouring solutions separate like exp(0.9 t).  Only x is measured, at t = 0.1, 0.2, ...,
10 with normal errors of standard deviation 0.5; no units.  All three parameters are known to five decades only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, exact_trajectory

TRUTH = {"s": 10.0, "r": 28.0, "b": 8 / 3}
INITIAL = {"x": 1.0, "y": 1.0, "z": 1.0}
TIMES = np.arange(1, 101) / 10
SIGMA, SEED = 0.5, 1963
LIMITS = (1e-2, 1e3)
REFERENCE = Reference(
    parameters={"s": 10.25957362, "r": 27.85958926, "b": 2.667397596},
    objective=103.8940427,
    standard_errors={"s": 0.15997, "r": 0.11096, "b": 0.01213},
    source="least squares with SciPy on the variational equations, from the truth",
)


def benchmark(*, rng: Any = SEED) -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    rng : int or numpy Generator
        Draws the errors.
    """
    model = lorenz_model()
    exact = exact_trajectory(model, parameters=TRUTH, initial=INITIAL, times=np.append(0.0, TIMES))["x"][1:]
    draws = np.random.default_rng(rng).standard_normal(TIMES.size)
    return Benchmark(
        name="lorenz",
        description=(
            "The chaotic system of Lorenz (1963) with only x measured: from most starts single shooting sees a "
            "trajectory that has nothing to do with the data, since errors grow a thousandfold in eight time units."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({"x": exact + SIGMA * draws}, time=TIMES, start=0.0, sigma=SIGMA),
            parameters={name: cf.Parameter(1.0, lower=LIMITS[0], upper=LIMITS[1], scale="log") for name in TRUTH},
        ),
        reference=REFERENCE if rng == SEED else Reference.at_truth(TRUTH, draws, parameter_tolerance=0.01),
        sources=("Lorenz 1963, J. Atmos. Sci. 20, 130 (model and values)",),
        draw_start=Uniform(dict.fromkeys(TRUTH, LIMITS), log=True),
        notes="Initial state, times, noise, bounds and the distribution of starts are ours.",
    )


def lorenz_model() -> cf.Model:
    """Build the model."""
    x, y, z, s, r, b = cf.symbols("x y z s r b")
    return cf.Model({x: s * (y - x), y: x * (r - z) - y, z: x * y - b * z}, parameters=[s, r, b], initial=INITIAL)
