"""A hanging chain: least potential energy at a given length.

    x' = u,   minimise ∫ x √(1 + u²) ds,   ∫ √(1 + u²) ds = 4

From x(0) = 1 to x(1) = 3: a catenary.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    x, u = cf.symbols("x u")
    model = cf.Model({x: u}, inputs=[u], initial={x: 1})
    length = cf.sqrt(1 + u**2)
    guess = cf.Input.linear([0, 1], [-6.0, 10.0])
    return ControlBenchmark(
        name="hanging_chain",
        description="A chain of given length between two points: a constraint on an integral.",
        model=model,
        question={
            "horizon": 1,
            "inputs": {"u": cf.Input.free(100, "linear", guess=guess)},
            "minimise": cf.integral(x * length),
            "constraints": [cf.at_end(x) == 3, cf.integral(length) == 4],
        },
        objective=5.068480111,
        objective_tolerance=1e-07,
        sources=(
            "Dolan, More and Munson 2004, COPS 3.0, problem 4 (5.06891, on a coarse grid); closed form, the catenary",
        ),
    )
