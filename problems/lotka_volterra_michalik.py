"""Predator and prey from starts far away: the second example of Michalik, Hannemann and Marquardt (2009).

    y1' = −k1 y1 + k2 y1 y2          (Eq. 19)
    y2' =  k3 y2 − k4 y1 y2          (Eq. 20)
    y(0) = (0.4, 1), known

Data are simulated with k = (1, 1, 1, 0.1): both states at t = 0.5, 1, ..., 10, each value with an error of 5 % of the
noise-free value, which is also the sigma of the fit; no units.  Starts are uniform between 0 and 10.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import castfit as cf
from castfit.problems import Benchmark, PaperRow, PublishedTable, Reference, Uniform, exact_trajectory, positive

TRUTH = {"k1": 1.0, "k2": 1.0, "k3": 1.0, "k4": 0.1}
INITIAL = {"y1": 0.4, "y2": 1.0}
NOISE, SEED = 0.05, 0

# The optimum for the default options.
REFERENCE = Reference(
    parameters={"k1": 1.000371122, "k2": 0.9889439104, "k3": 1.010089942, "k4": 0.100677179},
    objective=20.33088619,
    standard_errors={"k1": 0.006043, "k2": 0.012817, "k3": 0.0077631, "k4": 0.0022006},
    source="least squares with SciPy on the variational equations, from the truth",
)

METHODS = ("incremental", "iss", "single", "multiple", "collocation", "incremental/multiple", "incremental/collocation")
TABLES = (
    PublishedTable(
        name="iss-table2",
        problem="lotka_volterra_michalik",
        starts=100,
        paper=(
            PaperRow("incremental", "69 correct, 2 wrong, 29 integration errors"),
            PaperRow("single shooting", "1 correct, 15 wrong, 84 integration errors"),
        ),
        methods=METHODS,
        source="Michalik, Hannemann and Marquardt 2009, Table 2",
    ),
    PublishedTable(
        name="iss-table3",
        problem="lotka_volterra_michalik",
        starts=1,
        paper=(
            PaperRow("t <= 0.5", "11 iterations, k = 4.4363, 3.6457, 3.2760, 6.2779"),
            PaperRow("t <= 1", "28 iterations, k = 1.0868, 1.0676, 0.9482, 0.0523"),
            PaperRow("t <= 2", "5 iterations, k = 0.9172, 0.9362, 1.0187, 0.0977"),
            PaperRow("t <= 4", "4 iterations, k = 1.0089, 0.9371, 1.0496, 0.1039"),
            PaperRow("t <= 8", "3 iterations, k = 0.9933, 0.9928, 1.0588, 0.1050"),
            PaperRow("t <= 10", "4 iterations, k = 0.9824, 0.9312, 1.0521, 0.1046; in all 55, I_equiv = 12.35"),
            PaperRow("single shooting", "the model becomes singular in iteration 2"),
        ),
        methods=METHODS,
        source="Michalik, Hannemann and Marquardt 2009, Table 3 (their noise is not published)",
        start="table 3",
    ),
)


def benchmark(*, noise: float = NOISE, rng: Any = SEED) -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    noise : float
        Standard deviation of each error, relative to the noise-free value.
    rng : int or numpy Generator
        Draws the errors, first all of y1, then all of y2.
    """
    positive("noise", noise)
    y1, y2 = cf.symbols("y1 y2")
    k1, k2, k3, k4 = cf.symbols("k1 k2 k3 k4")
    model = cf.Model(
        ode={y1: -k1 * y1 + k2 * y1 * y2, y2: k3 * y2 - k4 * y1 * y2},
        parameters=[k1, k2, k3, k4],
        initial=INITIAL,
    )
    times = 0.5 * np.arange(21)
    truth = exact_trajectory(model, parameters=TRUTH, initial=INITIAL, times=times)
    errors = np.random.default_rng(rng).standard_normal((2, 20))
    exact = {name: values[1:] for name, values in truth.items()}
    sigma = {name: noise * np.abs(values) for name, values in exact.items()}
    data = {name: exact[name] + sigma[name] * error for name, error in zip(model.states, errors, strict=True)}
    experiment = cf.Experiment(data, time=times[1:], sigma=sigma)
    is_stored = (noise, rng) == (NOISE, SEED)
    return Benchmark(
        name="lotka_volterra_michalik",
        description=(
            "The predator-prey model with states between 0.04 and 48, errors of 5 % and starts drawn between 0 and "
            "10: the example on which incremental single shooting was introduced. From most starts single shooting "
            "fails."
        ),
        problem=cf.Problem(
            model,
            experiment,
            parameters={name: cf.Parameter(5.0, lower=0) for name in model.parameters},
            state_bounds={"y1": (0, np.inf), "y2": (0, np.inf)},
        ),
        reference=REFERENCE if is_stored else Reference.at_truth(TRUTH, errors, parameter_tolerance=2.5 * noise),
        sources=("Michalik, Hannemann and Marquardt 2009, Incremental single shooting, preprint AICES-2009-8",),
        draw_start=Uniform(dict.fromkeys(model.parameters, (0.0, 10.0))),
        starts={"table 3": {"k1": 4.2176, "k2": 9.1574, "k3": 7.9221, "k4": 9.5949}},
        notes=(
            "The paper's noise is not published, so its optimum (0.9824, 0.9312, 1.0521, 0.1046) differs from this "
            "one. It names no bounds; rate constants and populations are kept from being negative here. It counts a "
            "fit as correct if every parameter lies within 5 % of the optimum."
        ),
        transcriptions={"multiple": {"intervals": 20}},
    )
