"""Fishing of predator and prey, relaxed: when is it worth it.

    x0' = x0 − x0 x1 − 0.4 x0 w,   x1' = −x1 + x0 x1 − 0.2 x1 w,   minimise ∫ (x0 − 1)² + (x1 − 1)² dt

On [0, 12] from (0.5, 0.7), 0 ≤ w ≤ 1.  w is 0, 1, then singular.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    x0, x1, w = cf.symbols("x0 x1 w")
    model = cf.Model(
        {x0: x0 - x0 * x1 - 0.4 * x0 * w, x1: -x1 + x0 * x1 - 0.2 * x1 * w}, inputs=[w], initial={x0: 0.5, x1: 0.7}
    )
    return ControlBenchmark(
        name="fishing",
        description="Lotka and Volterra's fish brought to rest by fishing, relaxed: a long singular arc.",
        model=model,
        question={
            "horizon": 12,
            "inputs": {"w": cf.Input.free(300, bounds=(0, 1))},
            "minimise": cf.integral((x0 - 1) ** 2 + (x1 - 1) ** 2),
        },
        objective=1.34409,
        objective_tolerance=1e-05,
        sources=("Sager 2005; mintOC, Lotka-Volterra fishing problem, relaxed (1.34408)",),
    )
