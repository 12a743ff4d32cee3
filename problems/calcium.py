"""Calcium oscillations: four states, spiky and stiff, eleven rate constants from starts far away.

    G'   = k1 + k2 G − k3 PLC G/(G + Km1) − k4 Ca G/(G + Km2)               active Gα
    PLC' = k5 G − k6 PLC/(PLC + Km3)                                        active PLC
    Ca'  = k7 PLC Ca ER/(ER + Km4) + k8 PLC + k9 G
           − k10 Ca/(Ca + Km5) − k11 Ca/(Ca + Km6)                          calcium in the cytoplasm
    ER'  = −k7 PLC Ca ER/(ER + Km4) + k11 Ca/(Ca + Km6)                     calcium in the endoplasmic reticulum

after Kummer et al. (2000) and Peifer and Timmer (2007, Eq. 24); no units are given.  With the parameters below the
solution is a limit cycle of period 10.95 with two spikes.  All states are measured at t = 0, 0.1, ..., 20; the
errors' standard deviation is 6.5 % of the noise-free state, and sigma of the fit is that true deviation.  The Km and
the initial state are known.  BioModels' BIOMD0000000329 has the same equations with other constants; they must not be
mixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import castfit as cf
from castfit.problems import Benchmark, PaperRow, PublishedTable, Reference, Uniform, exact_trajectory, one_of, positive

TRUTH = {
    "k1": 0.09, "k2": 2.0, "k3": 1.27, "k4": 3.73, "k5": 1.27, "k6": 32.24,
    "k7": 2.0, "k8": 0.05, "k9": 13.58, "k10": 153.0, "k11": 4.85,
}  # fmt: skip
MICHAELIS = {"Km1": 0.19, "Km2": 0.73, "Km3": 29.09, "Km4": 2.67, "Km5": 0.16, "Km6": 0.05}
INITIAL = {"G": 0.12, "PLC": 0.31, "Ca": 0.0058, "ER": 4.3}
NOISE, SEED = 0.065, 0

# The optimum for the default options.
REFERENCE = Reference(
    parameters={
        "k1": 0.08994960357, "k2": 2.004054375, "k3": 1.279691631, "k4": 3.724452853, "k5": 1.262132145,
        "k6": 32.18890911, "k7": 1.945172781, "k8": 0.04914509909, "k9": 13.75727749, "k10": 154.9008321,
        "k11": 4.75818451,
    },
    objective=787.8626756,
    standard_errors={
        "k1": 0.0011168, "k2": 0.0026757, "k3": 0.0091294, "k4": 0.032109, "k5": 0.0086027, "k6": 0.06842,
        "k7": 0.02712, "k8": 0.00080621, "k9": 0.099197, "k10": 0.87728, "k11": 0.041379,
    },
    source="least squares with SciPy on the variational equations, from the truth",
)  # fmt: skip


PAPER = (
    PaperRow("single shooting", "16 % converged, 4 % global, 44 s for a global one"),
    PaperRow("multiple shooting, 17 intervals", "96 % converged, 49 % global, 48 s for a global one"),
)

TABLES = (
    PublishedTable(
        name="calcium-table1",
        problem="calcium",
        starts=250,
        paper=PAPER,
        methods=("default", "homotopy", "natural-level", "paper", "single", "collocation"),
        source="Peifer and Timmer 2007, Table 1 (2.6 GHz Pentium 4)",
        tolerance=1e-6,
    ),
    # The other way to read their protocol, under which their own algorithm does what they report.
    PublishedTable(
        name="calcium-table1-constant",
        problem="calcium",
        starts=250,
        paper=PAPER,
        methods=("default", "paper", "single"),
        source="Peifer and Timmer 2007, Table 1, with one standard deviation per state and estimated initial states",
        cases=({"errors": "constant", "initial": "estimated"},),
        tolerance=1e-6,
    ),
)


def benchmark(
    *, noise: float = NOISE, rng: Any = SEED, errors: str = "proportional", initial: str = "known"
) -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    noise : float
        Standard deviation of each error, relative to the noise-free value.
    rng : int or numpy Generator
        Draws the errors, state by state in the order G, PLC, Ca, ER.
    errors : {"proportional", "constant"}
        Whether every value has its own standard deviation, or every state one, relative to its mean.
    initial : {"known", "estimated"}
        Estimated initial states start at the first measurements.
    """
    positive("noise", noise)
    one_of("errors", errors, ("proportional", "constant"))
    one_of("initial", initial, ("known", "estimated"))
    model = calcium_model()
    times = np.arange(201) / 10
    exact = exact_trajectory(model, parameters={**TRUTH, **MICHAELIS}, initial=INITIAL, times=times)
    draws = np.random.default_rng(rng).standard_normal((4, times.size))
    size = {name: values if errors == "proportional" else np.full_like(values, values.mean())
            for name, values in exact.items()}  # fmt: skip
    sigma = {name: noise * values for name, values in size.items()}
    data = {name: exact[name] + sigma[name] * draw for name, draw in zip(model.states, draws, strict=True)}
    unknown = {name: max(values[0], 0.0) for name, values in data.items()} if initial == "estimated" else {}
    is_stored = (noise, rng, errors, initial) == (NOISE, SEED, "proportional", "known")
    truth = {**TRUTH, **{f"{name}(0)": INITIAL[name] for name in unknown}}
    # Constant errors drown the troughs, which determine Ca(0) and k8.
    tolerance = 1.5 * noise if not unknown and errors == "proportional" else np.inf
    return Benchmark(
        name="calcium",
        description=(
            "A calcium signalling pathway that oscillates in spikes, after Kummer et al. (2000): the simulation "
            "study by which Peifer and Timmer (2007) compared multiple with single shooting. Eleven rate constants, "
            "of which the largest is 153, are estimated from starts between 0 and 1."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment(
                data, time=times, sigma=sigma, initial={name: cf.free(value) for name, value in unknown.items()}
            ),
            parameters={
                **dict.fromkeys(TRUTH, cf.Parameter(0.5, lower=0)),
                **{name: cf.Parameter(value, fixed=True) for name, value in MICHAELIS.items()},
            },
            state_bounds=dict.fromkeys(model.states, (0, np.inf)),
        ),
        reference=REFERENCE if is_stored else Reference.at_truth(truth, draws, parameter_tolerance=tolerance),
        sources=(
            "Kummer, Olsen, Dixon, Green, Bornberg-Bauer and Baier 2000, Biophys. J. 79, 1188 (model)",
            "Peifer and Timmer 2007, IET Syst. Biol. 1, 78 (parameters, protocol)",
        ),
        draw_start=Uniform(dict.fromkeys(TRUTH, (0.0, 1.0))),
        notes=(
            "Peifer and Timmer count 200 points on [0, 20] with a step of 0.1, which has 201; t = 0 is kept here "
            "although the initial state is known. They report 94 % of converged multiple shooting fits in the text "
            "and 96 % in Table 1, of which 49 % reach the global optimum with 17 intervals. Their noise is not "
            "published. Constants and states are kept from being negative here."
        ),
        transcriptions={"multiple": {"intervals": 25}, "collocation": {"elements": 800}},
    )


def calcium_model() -> cf.Model:
    """Build the model with the known initial state."""
    G, PLC, Ca, ER = cf.symbols("G PLC Ca ER")
    k1, k2, k3, k4, k5, k6, k7, k8, k9, k10, k11 = k = cf.symbols(" ".join(TRUTH))
    Km1, Km2, Km3, Km4, Km5, Km6 = Km = cf.symbols(" ".join(MICHAELIS))
    release = k7 * PLC * Ca * ER / (ER + Km4)
    uptake = k11 * Ca / (Ca + Km6)
    return cf.Model(
        ode={
            G: k1 + k2 * G - k3 * PLC * G / (G + Km1) - k4 * Ca * G / (G + Km2),
            PLC: k5 * G - k6 * PLC / (PLC + Km3),
            Ca: release + k8 * PLC + k9 * G - k10 * Ca / (Ca + Km5) - uptake,
            ER: uptake - release,
        },
        parameters=[*k, *Km],
        initial=INITIAL,
    )
