"""Oxidation of nitric oxide, 2 NO + O2 ⇌ 2 NO2: one state, two rate constants.

    z' = k1 (126.2 − z) (91.9 − z)² − k2 z²,     z(0) = 0

z, the progress of the reaction, and all constants beside k1 and k2 are pressures (mm Hg), t is in minutes; k1 is in
1/(mm Hg² min), k2 in 1/(mm Hg min).  z is measured 14 times; the errors' variance is unknown.  The two constants
differ in size by a factor of 60 and from one by 10⁴ and more.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, read_table

REFERENCE = Reference(
    parameters={"k1": 4.577087754e-06, "k2": 0.000279624092},
    objective=21.86670965,
    standard_errors={"k1": 1.5709e-07, "k2": 5.4633e-05},
    source="least squares with SciPy on the variational equations",
)


def benchmark() -> Benchmark:
    """Build the benchmark."""
    z, k1, k2 = cf.symbols("z k1 k2")
    model = cf.Model(
        ode={z: k1 * (126.2 - z) * (91.9 - z) ** 2 - k2 * z**2},
        parameters=[k1, k2],
        initial={z: 0},
    )
    table = read_table("bellman.csv")
    start = {"k1": 1e-6, "k2": 1e-4}
    return Benchmark(
        name="bellman",
        description=(
            "Homogeneous oxidation of nitric oxide after Bellman et al. (1967), a classic from the first days of "
            "parameter estimation: one state, one measured series, two rate constants of very different size."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({"z": table["z"]}, time=table["t"]),
            parameters={name: cf.Parameter(value, lower=0) for name, value in start.items()},
        ),
        reference=REFERENCE,
        sources=(
            "Bellman, Jacquez, Kalaba and Schwimmer 1967, Math. Biosci. 1, 71 (model, table)",
            "Jorquera and Gelmi, course material (the same table)",
        ),
        draw_start=Uniform.around(REFERENCE.parameters),
        notes=(
            "Start and distribution of starts are ours: the logarithms are drawn within a factor of ten of the "
            "optimum. The exact point z(0) = 0 that some collections list is the initial state and no measurement."
        ),
    )
