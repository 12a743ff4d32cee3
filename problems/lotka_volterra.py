"""Predator and prey: two states, four parameters, ten measurements of both states.

    y1' = −p1 y1 + p2 y1 y2          predators
    y2' =  p3 y2 − p4 y1 y2          prey
    y(0) = (0.4, 1), known

The data are fixed: simulated once with p = (1, 1, 1, 1) and errors of standard deviation 0.05 at t = 1, ..., 10, all
without units.  Only their sum of squares is used, so the variance counts as unknown.  Many parameter values lead to a
pole; p = (0.5, 0.5, 0.5, −0.2), the start named "pole", has one at t = 3.3064.

Correction.  Aydogmus and Tor print the second equation with y1 y1 in place of y1 y2 (Eq. 18), which drives y2 to
−5164 at t = 10; and they give the variance as 0.05 in one place and the standard deviation as 0.05 in another, of
which the second agrees with the data.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, read_table

REFERENCE = Reference(
    parameters={"p1": 0.9837424302, "p2": 0.9803889162, "p3": 1.01690755, "p4": 1.022713281},
    objective=0.02753637909,
    standard_errors={"p1": 0.024025, "p2": 0.021596, "p3": 0.022819, "p4": 0.026675},
    source="least squares with SciPy on the variational equations",
)


def benchmark() -> Benchmark:
    """Build the benchmark."""
    y1, y2 = cf.symbols("y1 y2")
    p1, p2, p3, p4 = cf.symbols("p1 p2 p3 p4")
    model = cf.Model(
        ode={y1: -p1 * y1 + p2 * y1 * y2, y2: p3 * y2 - p4 * y1 * y2},
        parameters=[p1, p2, p3, p4],
        initial={y1: 0.4, y2: 1},
    )
    table = read_table("lotka_volterra.csv")
    experiment = cf.Experiment({name: table[name] for name in model.states}, time=table["t"])
    start = {"p1": 0.8, "p2": 0.8, "p3": 1.5, "p4": 1.5}
    return Benchmark(
        name="lotka_volterra",
        description=(
            "The predator-prey model of Lotka and Volterra with ten fixed measurements of both states. Small and "
            "friendly near the solution; many other parameter values have a pole inside the horizon, where single "
            "shooting stops and multiple shooting does not."
        ),
        problem=cf.Problem(
            model,
            experiment,
            parameters={name: cf.Parameter(value, lower=-1, upper=5) for name, value in start.items()},
        ),
        reference=REFERENCE,
        sources=(
            "Schittkowski 2002, Numerical Data Fitting in Dynamical Systems",
            "github.com/PSOPT/psopt examples/predator @8471bca (data, bounds, start)",
            "Aydogmus and Tor, A modified multiple shooting algorithm for parameter estimation in ODEs using adjoint "
            "sensitivity analysis (the start with a pole)",
        ),
        draw_start=Uniform(dict.fromkeys(start, (-1.0, 5.0))),
        starts={"pole": {"p1": 0.5, "p2": 0.5, "p3": 0.5, "p4": -0.2}},
        notes=(
            "No distribution of starts is published; draw_start is uniform between the published bounds. PSOPT also "
            "keeps both states between 0 and 3, which does not matter at the solution and is left out."
        ),
    )
