"""Two catalysts mixed along a tubular reactor.

    a' = u (10 b − a),   b' = u (a − 10 b) − (1 − u) b,   minimise a(1) + b(1) − 1

On [0, 1] from (1, 0), 0 ≤ u ≤ 1.  u is 1, then singular, then 0.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import ControlBenchmark


def benchmark() -> ControlBenchmark:
    """Build the benchmark."""
    a, b, u = cf.symbols("a b u")
    model = cf.Model({a: u * (10 * b - a), b: u * (a - 10 * b) - (1 - u) * b}, inputs=[u], initial={a: 1, b: 0})
    return ControlBenchmark(
        name="catalyst",
        description="Two catalysts mixed along a reactor: an input that enters linearly, with a singular arc.",
        model=model,
        question={
            "horizon": 1,
            "inputs": {"u": cf.Input.free(200, bounds=(0, 1), guess=0.0)},
            "minimise": cf.at_end(a) + cf.at_end(b) - 1,
        },
        objective=-0.0480557,
        objective_tolerance=1e-05,
        sources=("Gunn and Thomas 1965; Dolan, More and Munson 2004, COPS 3.0, problem 14 (-0.0480556)",),
    )
