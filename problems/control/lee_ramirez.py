"""Lee and Ramirez' bioreactor: two feeds, the second of which induces a foreign protein.

    V' = u1 + u2,  X' = φ X − D X,  N' = 100 u1 / V − D N − φ X / 0.51,  P' = R X − D P,  I' = 4 u2 / V − D I,
    k1' = −k k1,   k2' = k (1 − k2),      D = (u1 + u2) / V,  k = 0.09 I / (0.034 + I),
    φ = g (k1 + 0.22 k2 / (0.22 + I)),  R = 0.233 g (0.0005 + I) / (0.022 + I),  g = N / (14.35 + N + N² / 111.5)

On [0, 10] from (1, 0.1, 40, 0, 0, 1, 0) with feeds from 0 to 1; as much protein P V as possible.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    volume, cells, nutrient, protein, inducer, shock, recovery = cf.symbols("V X N P I k1 k2")
    feed, induce = cf.symbols("feed induce")
    g = nutrient / (14.35 + nutrient * (1 + nutrient / 111.5))
    growth = g * (shock + recovery * 0.22 / (0.22 + inducer))
    making = 0.233 * g * (0.0005 + inducer) / (0.022 + inducer)
    rate, dilution = 0.09 * inducer / (0.034 + inducer), (feed + induce) / volume
    model = cf.Model(
        {
            volume: feed + induce,
            cells: (growth - dilution) * cells,
            nutrient: 100 * feed / volume - dilution * nutrient - growth * cells / 0.51,
            protein: making * cells - dilution * protein,
            inducer: 4 * induce / volume - dilution * inducer,
            shock: -rate * shock,
            recovery: rate * (1 - recovery),
        },
        inputs=[feed, induce],
        initial={volume: 1, cells: 0.1, nutrient: 40, protein: 0, inducer: 0, shock: 1, recovery: 0},
    )
    return ControlBenchmark(
        name="lee_ramirez",
        description="A fed-batch bioreactor with two feeds, as much induced protein as possible: a flat optimum.",
        model=model,
        question={
            "horizon": 10,
            "inputs": {
                "feed": cf.Input.free(100, bounds=(0, 1), guess=0.1),
                "induce": cf.Input.free(100, bounds=(0, 1), guess=0.1),
            },
            "minimise": -cf.at_end(protein) * cf.at_end(volume),
            "constraints": [cf.along(nutrient >= 0)],
        },
        objective=-6.151589,
        objective_tolerance=1e-06,
        sources=(
            "Lee and Ramirez 1994; Tholudur and Ramirez 1997; published values are about 6.15 (quoted from memory)",
            "the value: castfit, by collocation and by multiple shooting, 100 pieces",
        ),
    )
