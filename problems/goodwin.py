"""A gene that represses itself (Goodwin 1965): only its messenger is seen, on a scale that is unknown.

    x' = k1/(1 + z¹²) − k2 x          messenger
    y' = k3 x − k4 y                  protein
    z' = k5 y − k6 z                  repressor                             (Griffith 1968, Eq. 1, with n = 12)
    (x, y, z)(0) = (0.1, 2, 0.1), known

Sustained oscillations need n > 8 and similar rates of decay; at (1, 0.2, 1, 0.3, 1, 0.15) the period is about thirty.
gain · x is measured at t = 0, 2, ..., 100 with normal errors of standard deviation 0.02; no units.  The six rate
constants and the gain, 5, are known to four decades only.

From x alone protein and repressor can hardly be told apart: exchanging k4 with k6, and k3 with k5 up to what the
initial states say, is a second optimum whose chi2 differs in the seventh digit.  The truth is near the poorer one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, exact_trajectory

TRUTH = {"k1": 1.0, "k2": 0.2, "k3": 1.0, "k4": 0.3, "k5": 1.0, "k6": 0.15, "gain": 5.0}
INITIAL = {"x": 0.1, "y": 2.0, "z": 0.1}
HILL_COEFFICIENT = 12  # exponent of the repression
TIMES = np.arange(0.0, 101.0, 2.0)
SIGMA, SEED = 0.02, 1965
LIMITS = (1e-2, 1e2)
REFERENCE = Reference(
    parameters={
        "k1": 1.077603613,
        "k2": 0.2003146111,
        "k3": 0.934370131,
        "k4": 0.3010720843,
        "k5": 1.066996604,
        "k6": 0.1499697096,
        "gain": 4.958711357,
    },
    objective=68.32756843,
    standard_errors={
        "k1": 0.11586,
        "k2": 0.0021006,
        "k3": 0.063331,
        "k4": 0.0027875,
        "k5": 0.095203,
        "k6": 0.0033994,
        "gain": 0.2,
    },
    source="least squares with SciPy on the variational equations, from the truth",
)


def benchmark(*, rng: Any = SEED) -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    rng : int or numpy Generator
        Draws the errors.
    """
    model = gene_model()
    exact = TRUTH["gain"] * exact_trajectory(model, parameters=TRUTH, initial=INITIAL, times=TIMES)["x"]
    draws = np.random.default_rng(rng).standard_normal(TIMES.size)
    return Benchmark(
        name="goodwin",
        description=(
            "Goodwin's oscillator: a gene whose product represses it, with only the messenger measured and its gain "
            "unknown. Most of the parameter space does not oscillate at all, and fits there end on a straight line."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({"blot": exact + SIGMA * draws}, time=TIMES, sigma=SIGMA),
            parameters={name: cf.Parameter(1.0, lower=LIMITS[0], upper=LIMITS[1], scale="log") for name in TRUTH},
        ),
        reference=REFERENCE if rng == SEED else Reference.at_truth(TRUTH, draws, parameter_tolerance=0.5),
        sources=("Goodwin 1965, Adv. Enzyme Regul. 3, 425; Griffith 1968, J. Theor. Biol. 20, 202 (model)",),
        draw_start=Uniform(dict.fromkeys(TRUTH, LIMITS), log=True),
        notes="Values, times, noise, bounds and the distribution of starts are ours.",
    )


def gene_model() -> cf.Model:
    """Build the model."""
    x, y, z = cf.symbols("x y z")
    k1, k2, k3, k4, k5, k6, gain = k = cf.symbols(" ".join(TRUTH))
    return cf.Model(
        {x: k1 / (1 + z**HILL_COEFFICIENT) - k2 * x, y: k3 * x - k4 * y, z: k5 * y - k6 * z},
        parameters=k,
        outputs={"blot": gain * x},
        initial=INITIAL,
    )
