"""Goddard's rocket: as high as it can rise.

    h' = v,   v' = (F − D) / m − 1 / h²,   m' = −F / c,   D = 310 v² exp(−500 (h − 1)),   c = 1/2

From h = 1, v = 0, m = 1 to m = 0.6 with thrust 0 ≤ F ≤ 3.5 and a free final time; greatest final height.  The thrust is
full, then singular, then off.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    h, v, m, thrust = cf.symbols("h v m thrust")
    drag = 310 * v**2 * cf.exp(-500 * (h - 1))
    model = cf.Model(
        {h: v, v: (thrust - drag) / m - 1 / h**2, m: -2 * thrust}, inputs=[thrust], initial={h: 1, v: 0, m: 1}
    )
    return ControlBenchmark(
        name="goddard",
        description="Goddard's rocket in COPS' form: the greatest height, with a singular arc.",
        model=model,
        question={
            "horizon": cf.free(0.2, bounds=(0.05, 1)),
            "inputs": {"thrust": cf.Input.free(200, bounds=(0, 3.5))},
            "minimise": -cf.at_end(h),
            "constraints": [cf.at_end(m) == 0.6, cf.along(v >= 0)],
        },
        objective=-1.0128369,
        objective_tolerance=1e-06,
        sources=(
            "Goddard 1919; Bryson and Ho 1975; Dolan, More and Munson 2004, COPS 3.0, problem 10",
            "the value: LINDO's log of COPS with 400 points, 1.01283634; with 200 pieces here 1.0128369",
        ),
    )
