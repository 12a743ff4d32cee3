"""JAK-STAT5 signalling: measured data, an input, a delay, and a free initial state.

    x1' = −k1 x1 u(t) + k2 x3(t − τ)            STAT5
    x2' = −x2² + k1 x1 u(t)                     activated STAT5
    x3' = −k2 x3 + x2²                          dimers
    x4' = −k2 x3(t − τ) + k2 x3                 in the nucleus            (Peifer and Timmer 2007, Eq. 25)

The delay is a chain of N = 8 linear filters q1, ..., q8, of which the last is x3(t − τ):

    q1' = (N/τ) (x3 − q1),     qi' = (N/τ) (q(i−1) − qi)

Measured are, in the cytoplasm, all activated STAT5, y1 = s1 (x2 + x3), and all STAT5, y2 = s2 (x1 + x2 + x3), with given standard deviations.
u is the measured activity of the receptor.  s1 = 0.33 and s2 = 0.26 are fixed, x1(0) is estimated, all other initial states are
zero.  Times are in minutes, concentrations in arbitrary units.

The paper does not say how u is interpolated, and chi2 depends on it: hence the option.  The value of u at 60 minutes is missing in two of three sources;
0.04243 is that of Data2Dynamics' model file.
"""

from __future__ import annotations

import numpy as np

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, one_of, read_table

STAGES = 8
REFERENCES: dict[str, Reference] = {}


def benchmark(*, interpolation: str = "linear") -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    interpolation : {"linear", "pchip", "cubic_spline"}
        How the input is interpolated between its 16 measured values; see `castfit.Input`.
    """
    one_of("interpolation", interpolation, ("linear", "pchip", "cubic_spline"))
    table = read_table("stat5.csv")
    interpolate = getattr(cf.Input, interpolation)
    experiment = cf.Experiment(
        {"y1": table["pSTAT5"], "y2": table["tSTAT5"]},
        time=table["t"],
        sigma={"y1": table["pSTAT5_sd"], "y2": table["tSTAT5_sd"]},
        initial={"x1": cf.free(3.8, lower=0)},
        inputs={"u": interpolate(table["t"], table["pEpoR"])},
    )
    return Benchmark(
        name="stat5",
        description=(
            "Phosphorylation, dimerisation and shuttling of STAT5 after Swameye et al. (2003), with real data: two rate constants, "
            "a delay and one initial state from 31 measured values of two sums of states. The measured input makes the "
            "right-hand side jump in its derivatives at every measurement."
        ),
        problem=cf.Problem(
            stat5_model(),
            experiment,
            parameters={
                "k1": cf.Parameter(1.0, lower=0),
                "k2": cf.Parameter(0.1, lower=0),
                "tau": cf.Parameter(8.0, lower=0.1, upper=60),
                "s1": cf.Parameter(0.33, fixed=True),
                "s2": cf.Parameter(0.26, fixed=True),
            },
        ),
        reference=REFERENCES[interpolation],
        sources=(
            "Swameye, Müller, Timmer, Sandra and Klingmüller 2003, PNAS 100, 1028 (measurements)",
            "Peifer and Timmer 2007, IET Syst. Biol. 1, 78 (model; estimates 2.12 ± 0.22, 0.109 ± 0.015, 5.2 ± 0.6, 3.71 ± 0.07)",
            "github.com/Data2Dynamics/d2d arFramework3/Examples/Swameye_PNAS2003 @61863c8 (table; u at 60 min from "
            "pnas_jak_stat3.def), identical in github.com/ICB-DCM/pyPESTO @86a0076",
        ),
        draw_start=Uniform.around({"k1": 2.0, "k2": 0.1, "tau": 5.0, "x1(0)": 3.7}, factor=5),
        notes=(
            "All published estimates are reproduced within their errors with linear and with pchip interpolation. With s1 and s2 "
            "also free the fit is still locally identifiable, against the paper. Start, bounds and the distribution of starts, "
            "within a factor of five of the estimates, are ours."
        ),
        start_strategy="simulation",
    )


def stat5_model() -> cf.Model:
    """Build the model with its delay chain."""
    x1, x2, x3, x4, u = cf.symbols("x1 x2 x3 x4 u")
    k1, k2, tau, s1, s2 = cf.symbols("k1 k2 tau s1 s2")
    q = cf.symbols(" ".join(f"q{i + 1}" for i in range(STAGES)))
    delayed = q[-1]
    chain = {after: STAGES / tau * (before - after) for before, after in zip((x3, *q[:-1]), q, strict=True)}
    return cf.Model(
        ode={
            x1: -k1 * x1 * u + k2 * delayed,
            x2: -(x2**2) + k1 * x1 * u,
            x3: -k2 * x3 + x2**2,
            x4: -k2 * delayed + k2 * x3,
            **chain,
        },
        parameters=[k1, k2, tau, s1, s2],
        inputs=[u],
        outputs={"y1": s1 * (x2 + x3), "y2": s2 * (x1 + x2 + x3)},
        initial=dict.fromkeys((x2, x3, x4, *q), 0),
    )
