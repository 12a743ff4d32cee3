"""A three-step pathway with gene expression: eight states, sixteen experiments, thirty-six parameters.

A substrate S becomes the product P through two metabolites M1, M2; enzymes E1, E2, E3 catalyse the steps, and genes
G1, G2, G3 express them.  S and P are held constant in each experiment (Mendes 2001; Moles, Mendes and Banga 2003):

    G1' = V1/(1 + (P/Ki1)^ni1 + (Ka1/S)^na1)  − k1 G1        E1' = V4 G1/(K4 + G1) − k4 E1
    G2' = V2/(1 + (P/Ki2)^ni2 + (Ka2/M1)^na2) − k2 G2        E2' = V5 G2/(K5 + G2) − k5 E2
    G3' = V3/(1 + (P/Ki3)^ni3 + (Ka3/M2)^na3) − k3 G3        E3' = V6 G3/(K6 + G3) − k6 E3
    r1  = kcat1 E1 (S − M1)/Km1 /(1 + S/Km1 + M1/Km2)        M1' = r1 − r2
    r2  = kcat2 E2 (M1 − M2)/Km3/(1 + M1/Km3 + M2/Km4)       M2' = r2 − r3
    r3  = kcat3 E3 (M2 − P)/Km5 /(1 + M2/Km5 + P/Km6)

No units are given.  All states are measured at t = 0, 6, ..., 120 with S in {0.1, 0.46416, 2.1544, 10} and P in
{0.05, 0.13572, 0.3684, 1}, S changing fastest; the initial state is the same everywhere, and known.  Data are simulated
from the published parameters, exactly or with errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, exact_trajectory, positive

TRUTH = {
    "V1": 1.0, "Ki1": 1.0, "ni1": 2.0, "Ka1": 1.0, "na1": 2.0, "k1": 1.0,
    "V2": 1.0, "Ki2": 1.0, "ni2": 2.0, "Ka2": 1.0, "na2": 2.0, "k2": 1.0,
    "V3": 1.0, "Ki3": 1.0, "ni3": 2.0, "Ka3": 1.0, "na3": 2.0, "k3": 1.0,
    "V4": 0.1, "K4": 1.0, "k4": 0.1, "V5": 0.1, "K5": 1.0, "k5": 0.1, "V6": 0.1, "K6": 1.0, "k6": 0.1,
    "kcat1": 1.0, "Km1": 1.0, "Km2": 1.0, "kcat2": 1.0, "Km3": 1.0, "Km4": 1.0, "kcat3": 1.0, "Km5": 1.0, "Km6": 1.0,
}  # fmt: skip
HILL = tuple(name for name in TRUTH if name.startswith("n"))
INITIAL = {
    "G1": 0.66667, "G2": 0.57254, "G3": 0.41758, "E1": 0.4, "E2": 0.36409, "E3": 0.29457, "M1": 1.419, "M2": 0.93464,
}  # fmt: skip
SUBSTRATE, PRODUCT = (0.1, 0.46416, 2.1544, 10.0), (0.05, 0.13572, 0.3684, 1.0)
TIMES = 6.0 * np.arange(21)
DEFAULT_SEED = 0  # seed of the measurement errors
# Compiled, a sweep with all sensitivities takes 60 ms, with a Rosenbrock method 100 ms, and the residuals err by 1e-6.
SIMULATION = cf.IntegratorOptions(method="cvodes", relative_tolerance=1e-6, absolute_tolerance=1e-8, compile="auto")


def benchmark(*, noise: float = 0.0, rng: Any = DEFAULT_SEED, lower: float = 1e-12) -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    noise : float
        Standard deviation of each error, relative to the noise-free value; it is sigma of the fit.  Without noise
        sigma is 1, so that the objective is the plain sum of squares.
    rng : int or numpy Generator
        Draws the errors, experiment by experiment and state by state in the order of the equations.
    lower : float
        Lower bound of all parameters but the Hill coefficients ni and na, which lie between 0.1 and 10; the upper
        one is 1000.  The literature has 1e-12, and 1e-3 as an easier case.
    """
    noise = noise if noise == 0 else positive("noise", noise)
    lower = positive("lower", lower, below=0.1)
    model = three_step_model()
    generator = np.random.default_rng(rng)
    errors = generator.standard_normal((16, 8, TIMES.size)) if noise else np.zeros((16, 8, TIMES.size))
    conditions = [{"S": s, "P": p} for p in PRODUCT for s in SUBSTRATE]
    experiments = []
    for fixed, error in zip(conditions, errors, strict=True):
        exact = exact_trajectory(model, parameters={**TRUTH, **fixed}, initial=INITIAL, times=TIMES)
        sigma = {name: noise * np.abs(values) if noise else np.ones(TIMES.size) for name, values in exact.items()}
        data = {name: exact[name] + sigma[name] * e for name, e in zip(model.states, error, strict=True)}
        experiments.append(cf.Experiment(data, time=TIMES, sigma=sigma))
    bounds = {name: (0.1, 10.0) if name in HILL else (lower, 1e3) for name in TRUTH}
    return Benchmark(
        name="three_step",
        description=(
            "A pathway of three enzymatic steps whose enzymes are expressed under feedback, after Mendes (2001): 36 "
            "parameters from 16 simulated experiments in which all eight states are measured. A standard trial of "
            "global optimization; local fits of the whole model from starts all over the bounds do not get there."
        ),
        problem=cf.Problem(
            model,
            experiments,
            parameters={
                **{n: cf.Parameter(0.5, lower=low, upper=up, scale="log") for n, (low, up) in bounds.items()},
                **{
                    fixed_name: cf.Parameter({f"experiment {i + 1}": c[fixed_name] for i, c in enumerate(conditions)},
                                       local=True, fixed=True)
                    for fixed_name in ("S", "P")
                },
            },
        ),
        reference=(
            Reference.at_truth(TRUTH, errors, parameter_tolerance=10 * noise)
            if noise
            else Reference(
                parameters=TRUTH,
                objective=0.0,
                source="the parameters that the data were simulated with",
                parameter_tolerance=0.02,
            )
        ),
        sources=(
            "Mendes 2001, in Foundations of Systems Biology, MIT Press, 163 (model, parameters)",
            "Moles, Mendes and Banga 2003, Genome Res. 13, 2467 (16 experiments)",
            "Rodriguez-Fernandez, Egea and Banga 2006, BMC Bioinformatics 7, 483 (scatter search)",
            "github.com/kmaeda16/RCGAToolbox @c4d6737 and github.com/csynbiosys/AMIGO2R2016b @e4bf6a4 (equations, "
            "initial state, times; their data agree with these to 5e-7)",
        ),
        draw_start=Uniform(bounds, log=True),
        notes=(
            "Without noise the smallest sum of squares is zero; a fit has found it below 1e-4. RCGAToolbox and AMIGO "
            "number the same 16 experiments in different orders; here S changes fastest. The guess is ours."
        ),
        transcriptions={"single": {"integrator": SIMULATION}},
    )  # fmt: skip


def three_step_model() -> cf.Model:
    """Build the model with its known initial state; S and P are parameters that every experiment fixes."""
    G1, G2, G3, E1, E2, E3, M1, M2 = states = cf.symbols(" ".join(INITIAL))
    parameters = dict(zip(TRUTH, cf.symbols(" ".join(TRUTH)), strict=True))
    S, P = cf.symbols("S P")

    def expression(i: int, activator: Any) -> Any:
        V, Ki, ni, Ka, na = (parameters[f"{name}{i}"] for name in ("V", "Ki", "ni", "Ka", "na"))
        return V / (1 + (P / Ki) ** ni + (Ka / activator) ** na)

    def translation(i: int, gene: Any) -> Any:
        return parameters[f"V{i}"] * gene / (parameters[f"K{i}"] + gene)

    def conversion(i: int, enzyme: Any, substrate: Any, product: Any) -> Any:
        kcat, Km, Km_after = parameters[f"kcat{i}"], parameters[f"Km{2 * i - 1}"], parameters[f"Km{2 * i}"]
        return kcat * enzyme * (substrate - product) / Km / (1 + substrate / Km + product / Km_after)

    gain = [
        *(expression(i, activator) for i, activator in ((1, S), (2, M1), (3, M2))),
        *(translation(i, gene) for i, gene in ((4, G1), (5, G2), (6, G3))),
    ]
    r1, r2, r3 = conversion(1, E1, S, M1), conversion(2, E2, M1, M2), conversion(3, E3, M2, P)
    rates = [
        production - parameters[f"k{i + 1}"] * state
        for i, (production, state) in enumerate(zip(gain, states, strict=False))
    ]
    return cf.Model(
        ode=dict(zip(states, [*rates, r1 - r2, r2 - r3], strict=True)),
        parameters=[*parameters.values(), S, P],
        initial=INITIAL,
    )
