"""Enzyme kinetics without the steady-state assumption (ESCEP): stiff, two states, three parameters.

    s' = −(1 − c) s + q c                         substrate
    c' = inverse_epsilon ((1 − c) s − p c)        enzyme-substrate complex       (Hemker 1972, Eq. 1.18)
    s(0) = 1,  c(0) = 0,  p = q + p_minus_q

Everything is dimensionless: epsilon is the ratio of enzyme to substrate, q = k₋₁/(k₁ S₀), p − q = k₂/(k₁ S₀).  The
complex is measured 23 times, from 0.0002 on its fast time scale to 30 on the slow one, rounded to four digits; the
errors' variance is unknown.  The search moves in the logarithms of the three parameters, as Hemker's does.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, read_table

REFERENCE = Reference(
    parameters={"inverse_epsilon": 999.8993788, "q": 0.9900050472, "p_minus_q": 0.009997112363},
    objective=1.98737002e-08,
    standard_errors={"inverse_epsilon": 0.087131, "q": 4.3139e-05, "p_minus_q": 5.9887e-06},
    objective_tolerance=1e-2,
    source="least squares with SciPy on the variational equations",
)


def benchmark() -> Benchmark:
    """Build the benchmark."""
    s, c = cf.symbols("s c")
    inverse_epsilon, q, p_minus_q = cf.symbols("inverse_epsilon q p_minus_q")
    model = cf.Model(
        ode={
            s: -(1 - c) * s + q * c,
            c: inverse_epsilon * ((1 - c) * s - (q + p_minus_q) * c),
        },
        parameters=[inverse_epsilon, q, p_minus_q],
        initial={s: 1, c: 0},
    )
    table = read_table("escep.csv")
    start = {"inverse_epsilon": 1600.0, "q": 0.8, "p_minus_q": 1.2}
    return Benchmark(
        name="escep",
        description=(
            "An enzyme, its substrate and their complex without the steady-state assumption, after Hemker (1972): "
            "stiff by a factor of almost 10⁶, and only the complex is measured. The data agree with a simulation "
            "with (1000, 0.99, 0.01) to within 7e-5."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({"c": table["c"]}, time=table["t"]),
            parameters={name: cf.Parameter(value, scale="log") for name, value in start.items()},
        ),
        reference=REFERENCE,
        sources=(
            "Hemker 1972, Numerical methods for differential equations in system simulation and in parameter "
            "estimation",
            "github.com/JeffBezanson/numal EXAMPLES/_peide.c @f0d88e3 (data, start)",
        ),
        draw_start=Uniform.around(REFERENCE.parameters),
        notes=(
            "Residuals at the optimum are rounding errors of 3e-5, so an integration error of 1e-6 already shows in "
            "chi2. The distribution of starts is ours: the logarithms are drawn within a factor of ten of the "
            "optimum."
        ),
        start_strategy="simulation",
    )
