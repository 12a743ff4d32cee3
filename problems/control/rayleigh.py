"""Rayleigh's tunnel-diode oscillator, brought to rest.

    x1' = x2,   x2' = −x1 + x2 (1.4 − 0.14 x2²) + 4 u,   minimise ∫ u² + x1² dt

On [0, 4.5] from (−5, −5) to (0, 0) with |u| ≤ 1.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    x1, x2, u = cf.symbols("x1 x2 u")
    model = cf.Model({x1: x2, x2: -x1 + x2 * (1.4 - 0.14 * x2**2) + 4 * u}, inputs=[u], initial={x1: -5, x2: -5})
    return ControlBenchmark(
        name="rayleigh",
        description="Rayleigh's oscillator brought to rest by a bounded input: two arcs at a bound.",
        model=model,
        question={
            "horizon": 4.5,
            "inputs": {"u": cf.Input.free(200, bounds=(-1, 1))},
            "minimise": cf.integral(u**2 + x1**2),
            "constraints": [cf.at_end(x1) == 0, cf.at_end(x2) == 0],
        },
        objective=44.7209,
        objective_tolerance=2e-05,
        sources=(
            "Jacobson and Mayne 1970, Differential Dynamic Programming",
            "Maurer and Augustin 2001 (44.7209, quoted from memory)",
        ),
    )
