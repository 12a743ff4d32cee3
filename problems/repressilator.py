"""Three genes that repress each other in a ring (Elowitz and Leibler 2000): one protein is seen, its scale unknown.

    m_i' = rate (−m_i + α/(1 + p_jⁿ) + leak),      j the gene before i           messengers
    p_i' = β (m_i − p_i)                                                        proteins
    m(0) = (0.5, 0.1, 0.2),  p(0) = (2, 1, 3), known;  n = 2

after Elowitz and Leibler 2000 (Box 1), with the rate at which messengers decay for their unit of time.  At rate = 1,
α = 50, leak = 0.05 and β = 0.5 the ring oscillates with a period of about eighteen.  gain · p1 is measured at t = 1, 2,
..., 60 with normal errors of standard deviation 0.5; no units.  rate, α, leak, β and the gain, 2, are known to four
decades only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, exact_trajectory

TRUTH = {"rate": 1.0, "alpha": 50.0, "leak": 0.05, "beta": 0.5, "gain": 2.0}
INITIAL = {"m1": 0.5, "m2": 0.1, "m3": 0.2, "p1": 2.0, "p2": 1.0, "p3": 3.0}
HILL_COEFFICIENT = 2  # exponent of the repression
TIMES = np.arange(1.0, 61.0)
SIGMA, SEED = 0.5, 2000
LIMITS = {"rate": (1e-2, 1e2), "alpha": (1e-1, 1e3), "leak": (1e-4, 1.0), "beta": (1e-2, 1e2), "gain": (1e-2, 1e2)}
REFERENCE = Reference(
    parameters={
        "rate": 0.9730399832,
        "alpha": 49.57570388,
        "leak": 0.05711138352,
        "beta": 0.508673421,
        "gain": 2.011582602,
    },
    objective=51.4738619,
    standard_errors={"rate": 0.024586, "alpha": 2.2822, "leak": 0.028997, "beta": 0.0085225, "gain": 0.045359},
    source="least squares with SciPy on the variational equations, from the truth",
)


def benchmark(*, rng: Any = SEED) -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    rng : int or numpy Generator
        Draws the errors.
    """
    model = ring_model()
    states = exact_trajectory(model, parameters=TRUTH, initial=INITIAL, times=np.append(0.0, TIMES))
    draws = np.random.default_rng(rng).standard_normal(TIMES.size)
    values = TRUTH["gain"] * states["p1"][1:] + SIGMA * draws
    guess = {name: float(np.sqrt(low * high)) for name, (low, high) in LIMITS.items()}
    return Benchmark(
        name="repressilator",
        description=(
            "The synthetic ring of three genes of Elowitz and Leibler (2000), of which one protein is seen through a "
            "reporter of unknown brightness; five of six states are hidden."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({"reporter": values}, time=TIMES, start=0.0, sigma=SIGMA),
            parameters={
                name: cf.Parameter(guess[name], lower=low, upper=high, scale="log")
                for name, (low, high) in LIMITS.items()
            },
        ),
        reference=REFERENCE if rng == SEED else Reference.at_truth(TRUTH, draws, parameter_tolerance=0.5),
        sources=("Elowitz and Leibler 2000, Nature 403, 335 (model)",),
        draw_start=Uniform(LIMITS, log=True),
        notes="Values, times, noise, bounds and the distribution of starts are ours.",
    )


def ring_model() -> cf.Model:
    """Build the model."""
    m1, m2, m3, p1, p2, p3 = cf.symbols(" ".join(INITIAL))
    rate, alpha, leak, beta, gain = k = cf.symbols(" ".join(TRUTH))
    ring = ((m1, p1, p3), (m2, p2, p1), (m3, p3, p2))
    messengers = {m: rate * (alpha / (1 + repressor**HILL_COEFFICIENT) + leak - m) for m, _, repressor in ring}
    proteins = {p: beta * (m - p) for m, p, _ in ring}
    return cf.Model({**messengers, **proteins}, parameters=k, outputs={"reporter": gain * p1}, initial=INITIAL)
