"""Park and Ramirez' bioreactor: secreted protein by one feed.

    x1' = g1 (x2 − x1) − D x1,  x2' = g2 x3 − D x2,  x3' = g3 x3 − D x3,  x4' = −7.3 g3 x3 + D (20 − x4),  x5' = u
    g3 = 21.87 x4 / ((x4 + 0.4) (x4 + 62.5)),  g1 = 4.75 g3 / (0.12 + g3),  g2 = x4 exp(−5 x4) / (0.1 + x4),  D = u / x5

On [0, 15] from (0, 0, 1, 5, 1) with 0 ≤ u ≤ 2; as much secreted protein x1 x5 as possible.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    secreted, total, cells, glucose, volume, feed = cf.symbols("secreted total cells glucose volume feed")
    g3 = 21.87 * glucose / ((glucose + 0.4) * (glucose + 62.5))
    g1, g2 = 4.75 * g3 / (0.12 + g3), glucose / (0.1 + glucose) * cf.exp(-5 * glucose)
    dilution = feed / volume
    model = cf.Model(
        {
            secreted: g1 * (total - secreted) - dilution * secreted,
            total: g2 * cells - dilution * total,
            cells: (g3 - dilution) * cells,
            glucose: -7.3 * g3 * cells + dilution * (20 - glucose),
            volume: feed,
        },
        inputs=[feed],
        initial={secreted: 0, total: 0, cells: 1, glucose: 5, volume: 1},
    )
    return ControlBenchmark(
        name="park_ramirez",
        description="A fed-batch bioreactor with one feed, as much secreted protein as possible: a flat optimum.",
        model=model,
        question={
            "horizon": 15,
            "inputs": {"feed": cf.Input.free(150, bounds=(0, 2), guess=0.5)},
            "minimise": -cf.at_end(secreted) * cf.at_end(volume),
        },
        objective=-32.687727,
        objective_tolerance=1e-06,
        sources=(
            "Park and Ramirez 1988; published values are 32.4 to 32.7 (quoted from memory)",
            "the value: castfit, by collocation and by multiple shooting, 150 pieces, from five constant feeds",
        ),
    )
