"""Heat a reactor to learn from it
===============================

A becomes B, B becomes C; how fast depends on the temperature.  One run of an hour, nine times at which everything is
measured, eight temperatures and the first concentration of A to choose: which run tells most about the four constants
of Arrhenius?  It is the example of Pyomo.DoE (Wang and Dowling 2022)::

    A' = -k1 A      B' = k1 A - k2 B      C' = k2 B      k_i = A_i exp(-E_i / (R T))

- What misleads: to heat once, early.  It is what a search that begins near there finds, log10 det M = 19.291; but it is
  a local optimum.
- What helps: many starts, and to look beside where they end.  Heated an eighth later, 19.431: the volume of the
  confidence ellipsoid is smaller by 15 %.  Nothing proves that this is the best; what is certain is its value, which
  is that of the integrated model::

    python examples/heat_to_learn.py
"""

from __future__ import annotations

import numpy as np

import castfit as cf

A, B, C, A1, A2, E1, E2, T = cf.symbols("A B C A1 A2 E1 E2 T")
k1, k2 = (a * cf.exp(-1000 * e / (8.314 * T)) for a, e in ((A1, E1), (A2, E2)))
model = cf.Model(
    {A: -k1 * A, B: k1 * A - k2 * B, C: k2 * B},
    parameters=[A1, A2, E1, E2],
    inputs=[T],
    initial={A: 5.0, B: 0.0, C: 0.0},
)
pilot = cf.Experiment({"A": [1.0], "B": [1.0], "C": [1.0]}, [1.0], sigma=0.01, inputs={"T": 500.0})
problem = cf.Problem(model, pilot, parameters={"A1": 84.79, "A2": 371.72, "E1": 7.78, "E2": 15.05})


def run(temperature: object, concentration: object, **options: object) -> cf.Design:
    """Return the design of one run that is measured nine times."""
    candidate = cf.Candidate(
        np.linspace(0, 1, 9), ["A", "B", "C"], cost_unit="experiment", name="run",
        initial={"A": concentration}, inputs={"T": temperature},
    )  # fmt: skip
    return cf.design(problem, candidate, budget=1, **options)


def log10_det(design: cf.Design) -> float:
    """Return log10 det M, of relative changes."""
    return -design.value / np.log(10)


early = run(cf.Input.piecewise_constant(np.arange(8) / 8, [472.92, *[300.0] * 7]), 5.0)
design = run(cf.choose(300, 700, pieces=8), cf.choose(1, 5), starts=8)
print(design)
print(f"heated early {log10_det(early):.5f}, as chosen {log10_det(design):.5f}")
figure = design.plot()

assert abs(log10_det(early) - 19.29129) < 1e-5
assert log10_det(design) > 19.431
assert abs(design.chosen["run"]["A(0)"] - 5) < 1e-6
