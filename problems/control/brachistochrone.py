"""The curve of fastest descent.

    x' = v sin θ,   y' = v cos θ,   v' = g cos θ,   minimise T

From rest at the origin to (2, 2), y downwards, g = 9.81: a cycloid.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    x, y, v, theta = cf.symbols("x y v theta")
    model = cf.Model(
        {x: v * cf.sin(theta), y: v * cf.cos(theta), v: 9.81 * cf.cos(theta)},
        inputs=[theta],
        initial={x: 0, y: 0, v: 0},
    )
    return ControlBenchmark(
        name="brachistochrone",
        description="Bernoulli's curve of fastest descent to (2, 2): a free final time and end constraints.",
        model=model,
        question={
            "horizon": cf.free(1.0, lower=0.1),
            "inputs": {"theta": cf.Input.free(30, "linear", guess=0.8, bounds=(0, 3.2))},
            "minimise": cf.final_time(),
            "constraints": [cf.at_end(x) == 2, cf.at_end(y) == 2],
        },
        objective=0.82433867,
        objective_tolerance=1e-06,
        sources=("Johann Bernoulli 1696; the value: closed form, the cycloid through (2, 2)",),
    )
