"""Van der Pol's oscillator, driven to rest by a bounded input.

    x0' = (1 − x1²) x0 − x1 + u,   x1' = x0,   minimise ∫ x0² + x1² + u² dt

On [0, 10] from (0, 1), |u| ≤ 1, 20 pieces, x1 ≥ −0.25 along the way: the first example of CasADi's users.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    x0, x1, u = cf.symbols("x0 x1 u")
    model = cf.Model({x0: (1 - x1**2) * x0 - x1 + u, x1: x0}, inputs=[u], initial={x0: 0, x1: 1})
    return ControlBenchmark(
        name="van_der_pol",
        description="Van der Pol's oscillator brought to rest by a bounded input on 20 pieces: a sum of squares.",
        model=model,
        question={
            "horizon": 10,
            "inputs": {"u": cf.Input.free(20, bounds=(-1, 1))},
            "minimise": cf.integral(x0**2 + x1**2 + u**2),
            "constraints": [cf.along(x1 >= -0.25)],
        },
        objective=2.9330071,
        objective_tolerance=1e-06,
        sources=(
            "CasADi's example collection, direct collocation and multiple shooting; rockit's example hello world",
            "the value: rockit 0.2, degree 4, 20 pieces",
        ),
    )
