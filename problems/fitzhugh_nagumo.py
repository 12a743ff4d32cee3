"""A nerve that fires (FitzHugh 1961, Nagumo 1962): only the voltage is seen, on a scale that is unknown.

    v' = c (v − v³/3 + w)                   voltage
    w' = −(v − a + b w)/c                   recovery                       (Ramsay et al. 2007, Eq. 2)
    (v, w)(0) = (−1, 1), known

At a = b = 0.2, c = 3 the solution is a relaxation oscillation of period 9.  A recording gain · v of 80 time units, a
value every half unit, has normal errors of standard deviation 0.2; no units.  a, b, c and the gain, 2, are known to
four decades only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, exact_trajectory

TRUTH = {"a": 0.2, "b": 0.2, "c": 3.0, "gain": 2.0}
INITIAL = {"v": -1.0, "w": 1.0}
TIMES = np.arange(0, 161) / 2
SIGMA, SEED = 0.2, 1961
LIMITS = (1e-2, 1e2)
REFERENCE = Reference(
    parameters={"a": 0.1979935296, "b": 0.2549865988, "c": 2.986038484, "gain": 2.022236505},
    objective=166.0643279,
    standard_errors={"a": 0.0062061, "b": 0.055482, "c": 0.014503, "gain": 0.019817},
    source="least squares with SciPy on the variational equations, from the truth",
)


def benchmark(*, rng: Any = SEED) -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    rng : int or numpy Generator
        Draws the errors.
    """
    model = nerve_model()
    exact = TRUTH["gain"] * exact_trajectory(model, parameters=TRUTH, initial=INITIAL, times=TIMES)["v"]
    draws = np.random.default_rng(rng).standard_normal(TIMES.size)
    return Benchmark(
        name="fitzhugh_nagumo",
        description=(
            "The nerve of FitzHugh (1961) and Nagumo (1962) over nine periods, with only the voltage measured and its "
            "gain unknown: a phase that is off by half a period turns every peak into a trough."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({"recording": exact + SIGMA * draws}, time=TIMES, sigma=SIGMA),
            parameters={name: cf.Parameter(1.0, lower=LIMITS[0], upper=LIMITS[1], scale="log") for name in TRUTH},
        ),
        reference=REFERENCE if rng == SEED else Reference.at_truth(TRUTH, draws, parameter_tolerance=0.2),
        sources=(
            "FitzHugh 1961, Biophys. J. 1, 445; Nagumo, Arimoto and Yoshizawa 1962, Proc. IRE 50, 2061 (model)",
            "Ramsay, Hooker, Campbell and Cao 2007, J. R. Statist. Soc. B 69, 741 (this form, parameters, start)",
        ),
        draw_start=Uniform(dict.fromkeys(TRUTH, LIMITS), log=True),
        notes="Gain, times, noise, bounds and the distribution of starts are ours; Ramsay et al. measure both states.",
    )


def nerve_model() -> cf.Model:
    """Build the model."""
    v, w, a, b, c, gain = cf.symbols("v w a b c gain")
    return cf.Model(
        {v: c * (v - v**3 / 3 + w), w: -(v - a + b * w) / c},
        parameters=[a, b, c, gain],
        outputs={"recording": gain * v},
        initial=INITIAL,
    )
