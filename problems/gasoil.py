"""Catalytic cracking of gas oil: two states, three rate constants.

    y1' = −(p1 + p3) y1²                gas oil
    y2' = p1 y1² − p2 y2                gasoline
    y(0) = (1, 0), known

Mass fractions against a dimensionless time, measured at 21 times; the errors' variance is unknown.  The table's first
row, t = 0, repeats the initial state.  It is kept because the published objective counts 21 times, though it tells
nothing.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, read_table

REFERENCE = Reference(
    parameters={"p1": 11.84673838, "p2": 8.344519501, "p3": 1.001439968},
    objective=0.005236595834,
    standard_errors={"p1": 0.32644, "p2": 0.30778, "p3": 0.34935},
    source="least squares with SciPy on the variational equations; COPS prints 5.2366e-3",
)


def benchmark() -> Benchmark:
    """Build the benchmark."""
    y1, y2, p1, p2, p3 = cf.symbols("y1 y2 p1 p2 p3")
    model = cf.Model(
        ode={y1: -(p1 + p3) * y1**2, y2: p1 * y1**2 - p2 * y2},
        parameters=[p1, p2, p3],
        initial={y1: 1, y2: 0},
    )
    table = read_table("gasoil.csv")
    return Benchmark(
        name="gasoil",
        description=(
            "Catalytic cracking of gas oil to gasoline and side products, a small, well-behaved member of the COPS "
            "collection: three rate constants from two measured states."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({name: table[name] for name in model.states}, time=table["t"]),
            parameters={name: cf.Parameter(1.0, lower=0) for name in model.parameters},
        ),
        reference=REFERENCE,
        sources=(
            "Tjoa and Biegler 1991, Ind. Eng. Chem. Res. 30, 376",
            "Dolan, Moré and Munson 2004, COPS 3.0; github.com/MadNLP/COPSBenchmark.jl @867802f (data, bound, "
            "objective 5.2366e-3)",
        ),
        draw_start=Uniform(dict.fromkeys(model.parameters, (0.0, 20.0))),
        starts={"cops": dict.fromkeys(model.parameters, 0.0)},
        notes=(
            "COPS starts at p = 0 with the states at the data, the start named 'cops'; there the simulated y2 "
            "vanishes, so that single shooting sees nothing of p2. The guess of 1 and the distribution of starts are "
            "ours."
        ),
    )
