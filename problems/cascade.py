"""A signalling cascade seen through two blots: logarithms, unknown scales and unknown noise.

    x1' = v1 L(t) (1 − x1) − d1 x1              L(t) = dose · exp(−k t)
    x2' = v2 x1 (1 − x2) − d2 x2
    x3' = v3 x2 (1 − x3) − d3 x3                                           (after Heinrich, Neel and Rapoport 2002)
    x(0) = 0, known

x_i is the activated fraction of the i-th kinase; the ligand decays with time.  Cells get a dose of 0.1, 1 or 10 at
t = 0; log10(s2 x2) and log10(s3 x3) are blotted at 20 times from 0.25 to 50 in every case, with normal errors whose one
standard deviation (0.03 was used) is unknown.  The seven rate constants and both scales are known to five decades
only.

Another optimum, with d1 and d2 exchanged, is near the truth; its sum of squares is 0.0908976.
"""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, exact_trajectory

TRUTH = {
    "v1": 0.5, "d1": 0.3, "v2": 1.0, "d2": 0.2, "v3": 0.4, "d3": 0.1, "k": 0.05, "s2": 3.0, "s3": 20.0,
}  # fmt: skip
DOSES = (0.1, 1.0, 10.0)
TIMES = np.array([0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 21, 25, 30, 35, 40, 50])
NOISE, SEED = 0.03, 2002
LIMITS = (1e-3, 1e2)
REFERENCE = Reference(
    parameters={
        "v1": 0.5596238121, "d1": 0.1308870564, "v2": 0.6988658357, "d2": 0.3851792131, "v3": 0.5027339301,
        "d3": 0.1095509464, "k": 0.05921243108, "s2": 3.873680594, "s3": 20.76192478,
    },
    objective=0.08986550143,
    standard_errors={
        "v1": 0.038435, "d1": 0.024026, "v2": 0.097561, "d2": 0.050555, "v3": 0.054111, "d3": 0.0075933, "k": 0.0050861,
        "s2": 0.36806, "s3": 0.75608,
    },
    source="least squares with SciPy on the variational equations, from an estimate",
)  # fmt: skip


def benchmark(*, rng: Any = SEED) -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    rng : int or numpy Generator
        Draws the errors, experiment by experiment, first those of x2.
    """
    model = cascade_model()
    draws = np.random.default_rng(rng).standard_normal((len(DOSES), 2, TIMES.size))
    experiments: list[cf.Experiment] = []
    for dose, errors in zip(DOSES, draws, strict=True):
        initial = dict.fromkeys(model.states, 0.0)
        states = exact_trajectory(
            model, parameters={**TRUTH, "dose": dose}, initial=initial, times=np.append(0.0, TIMES)
        )
        data = {
            "blot2": np.log10(TRUTH["s2"] * states["x2"][1:]) + NOISE * errors[0],
            "blot3": np.log10(TRUTH["s3"] * states["x3"][1:]) + NOISE * errors[1],
        }
        experiments.append(cf.Experiment(data, time=TIMES, start=0.0, parameters={"dose": dose}, name=f"dose {dose:g}"))
    return Benchmark(
        name="cascade",
        description=(
            "Three kinases that activate one another, seen through two blots on logarithmic scales with unknown "
            "brightness and unknown noise, at three doses: what most models of signalling look like."
        ),
        problem=cf.Problem(
            model,
            experiments,
            parameters={name: cf.Parameter(1.0, lower=LIMITS[0], upper=LIMITS[1], scale="log") for name in TRUTH},
        ),
        reference=REFERENCE if rng == SEED else Reference.at_truth(TRUTH, NOISE * draws, parameter_tolerance=1.0),
        sources=("Heinrich, Neel and Rapoport 2002, Mol. Cell 9, 957 (model)",),
        draw_start=Uniform(dict.fromkeys(TRUTH, LIMITS), log=True),
        notes="Values, doses, times, noise, bounds and the distribution of starts are ours; sigma counts as unknown.",
    )


def cascade_model() -> cf.Model:
    """Build the model."""
    t, x1, x2, x3, dose = cf.symbols("t x1 x2 x3 dose")
    v1, d1, v2, d2, v3, d3, k, s2, s3 = rates = cf.symbols(" ".join(TRUTH))
    ligand = dose * ca.exp(-k * t)
    return cf.Model(
        {
            x1: v1 * ligand * (1 - x1) - d1 * x1,
            x2: v2 * x1 * (1 - x2) - d2 * x2,
            x3: v3 * x2 * (1 - x3) - d3 * x3,
        },
        parameters=[*rates, dose],
        time=t,
        outputs={"blot2": ca.log10(s2 * x2), "blot3": ca.log10(s3 * x3)},
        initial=dict.fromkeys((x1, x2, x3), 0),
    )
