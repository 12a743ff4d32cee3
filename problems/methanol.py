"""Methanol to hydrocarbons: three states, five rate constants, one of which ends at its bound.

    y1' = −(2 p2 − p1 y2 / d + p3 + p4) y1
    y2' = p1 y1 (p2 y1 − y2) / d + p3 y1
    y3' = p1 y1 (y2 + p5 y1) / d + p4 y1          d = (p2 + p5) y1 + y2
    y(0) = (1, 0, 0), known                       p ≥ 0

Mass fractions against a dimensionless time, measured at 17 times; the errors' variance is unknown.  The table's first
row, t = 0, repeats the initial state.  It is kept because the published objective counts 17 times, though it tells
nothing.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, read_table

REFERENCE = Reference(
    parameters={"p1": 1.775181024, "p2": 2.167982919, "p3": 1.857559499, "p4": 1.802447311, "p5": 0.0},
    objective=0.009022289851,
    standard_errors={"p1": 0.29737, "p2": 0.15053, "p3": 0.1956, "p4": 0.073843},
    source="least squares with SciPy on the variational equations; COPS prints 9.02229e-3",
)


def benchmark() -> Benchmark:
    """Build the benchmark."""
    y1, y2, y3 = cf.symbols("y1 y2 y3")
    p1, p2, p3, p4, p5 = cf.symbols("p1 p2 p3 p4 p5")
    d = (p2 + p5) * y1 + y2
    model = cf.Model(
        ode={
            y1: -(2 * p2 - p1 * y2 / d + p3 + p4) * y1,
            y2: p1 * y1 * (p2 * y1 - y2) / d + p3 * y1,
            y3: p1 * y1 * (y2 + p5 * y1) / d + p4 * y1,
        },
        parameters=[p1, p2, p3, p4, p5],
        initial={y1: 1, y2: 0, y3: 0},
    )
    table = read_table("methanol.csv")
    return Benchmark(
        name="methanol",
        description=(
            "Conversion of methanol to olefins, a member of the COPS collection: five rate constants from three "
            "measured states. The last constant ends at its bound of zero, so that only four are estimated with an "
            "error."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({name: table[name] for name in model.states}, time=table["t"]),
            parameters={name: cf.Parameter(1.0, lower=0) for name in model.parameters},
        ),
        reference=REFERENCE,
        sources=(
            "Dolan, Moré and Munson 2004, COPS 3.0; github.com/MadNLP/COPSBenchmark.jl @867802f (data, bound, start, "
            "objective 9.02229e-3)",
        ),
        draw_start=Uniform(dict.fromkeys(model.parameters, (0.0, 10.0))),
        notes=(
            "The start is that of COPS; the distribution of starts is ours. With p2 = p5 = 0 the right-hand side "
            "divides by zero at t = 0."
        ),
    )
