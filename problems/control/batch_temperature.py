"""A batch reactor whose temperature is chosen: A becomes B, and B decays.

    a' = −k1 a²,   b' = k1 a² − k2 b,   k1 = 4000 exp(−2500 / T),   k2 = 620000 exp(−5000 / T)

From a = 1, b = 0, at 298 ≤ T ≤ 398 K for one hour; as much B as possible.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    a, b, temperature = cf.symbols("a b T")
    k1, k2 = 4000 * cf.exp(-2500 / temperature), 620000 * cf.exp(-5000 / temperature)
    model = cf.Model({a: -k1 * a**2, b: k1 * a**2 - k2 * b}, inputs=[temperature], initial={a: 1, b: 0})
    return ControlBenchmark(
        name="batch_temperature",
        description="The temperature of a batch reactor, so that there is as much of an intermediate as possible.",
        model=model,
        question={
            "horizon": 1,
            "inputs": {"T": cf.Input.free(100, bounds=(298, 398))},
            "minimise": -cf.at_end(b),
        },
        objective=-0.610792,
        objective_tolerance=1e-06,
        sources=(
            "Ray 1981; Dadebo and McAuley 1995: 0.610775 on a coarse grid",
            "the value: castfit, by collocation and by multiple shooting, 100 pieces; 0.6108029 with 1600",
        ),
    )
