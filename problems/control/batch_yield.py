"""A batch reactor with a bounded control of the rate: the most of the product in between.

    a' = −(u + u²/2) a,   b' = u a,   minimise −b(1)

On [0, 1] from (1, 0), 0 ≤ u ≤ 5.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    a, b, u = cf.symbols("a b u")
    model = cf.Model({a: -(u + u**2 / 2) * a, b: u * a}, inputs=[u], initial={a: 1, b: 0})
    return ControlBenchmark(
        name="batch_yield",
        description="The yield of a batch reactor whose rates an input controls, linear on 100 pieces: an end value.",
        model=model,
        question={
            "horizon": 1,
            "inputs": {"u": cf.Input.free(100, "linear", guess=1.0, bounds=(0, 5))},
            "minimise": -cf.at_end(b),
        },
        objective=-0.573545,
        objective_tolerance=1e-06,
        sources=(
            "Ray 1981, Advanced Process Control; Bachmann, Ochel et al. 2012, OpenModelica's example (0.5735450575)",
        ),
    )
