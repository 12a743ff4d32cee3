"""From rest to rest in the shortest time.

    x' = v,   v' = u,   |u| ≤ 1,   minimise T

From 0 to 1: full thrust for one unit of time, full brake for another.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    x, v, u = cf.symbols("x v u")
    model = cf.Model({x: v, v: u}, inputs=[u], initial={x: 0, v: 0})
    return ControlBenchmark(
        name="double_integrator",
        description="A point brought from rest to rest in the shortest time: bang-bang.",
        model=model,
        question={
            "horizon": cf.free(3.0, lower=0.1),
            "inputs": {"u": cf.Input.free(50, bounds=(-1, 1))},
            "minimise": cf.final_time(),
            "constraints": [cf.at_end(x) == 1, cf.at_end(v) == 0],
        },
        objective=2.0,
        objective_tolerance=1e-07,
        sources=("Pontryagin et al. 1962; closed form",),
    )
