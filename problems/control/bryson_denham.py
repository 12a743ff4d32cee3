"""A point that turns round before a wall, with the least effort.

    x' = v,   v' = u,   minimise 1/2 ∫ u² dt,   x ≤ 1/9

On [0, 1] from x = 0, v = 1 to x = 0, v = −1.  For a wall at l ≤ 1/6 the optimum is 4 / (9 l), and x stays at the wall
from 3 l to 1 − 3 l.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    x, v, u = cf.symbols("x v u")
    model = cf.Model({x: v, v: u}, inputs=[u], initial={x: 0, v: 1})
    return ControlBenchmark(
        name="bryson_denham",
        description="Bryson and Denham's point before a wall: a state constraint that is active on an interval.",
        model=model,
        question={
            "horizon": 1,
            "inputs": {"u": cf.Input.free(60, "linear")},
            "minimise": cf.integral(u**2) / 2,
            "constraints": [cf.along(x <= 1 / 9), cf.at_end(x) == 0, cf.at_end(v) == -1],
        },
        objective=4.0,
        objective_tolerance=1e-06,
        sources=(
            "Bryson, Denham and Dreyfus 1963, AIAA J. 1, 2544",
            "Bryson and Ho 1975, Applied Optimal Control, section 3.11 (closed form)",
        ),
    )
