"""What to measure next
====================

Four values of an intermediate, and money for six more: when?  And how well will both rates be known then?

A becomes B, B becomes C; B is measured (Box and Lucas 1959)::

    a' = -k1 a        b' = k1 a - k2 b

- What misleads: times at equal distances, and many different ones.  Two times, three values each, are as good as any
  design can be, which the certificate shows: nothing is worth more than its price.
- What helps: to check the promise.  Forty simulated experiments, each fitted again, scatter as it says.  And to ask
  for a third time, which costs little, where the model itself is in doubt::

    python examples/what_to_measure_next.py
"""

from __future__ import annotations

import numpy as np

import castfit as cf

a, b, k1, k2 = cf.symbols("a b k1 k2")
model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1.0, b: 0.0})
times = np.array([1.0, 2.0, 4.0, 8.0])
exact = cf.simulate(model, {"k1": 0.7, "k2": 0.2}, times)["b"]
pilot = cf.Experiment({"b": exact + 0.03 * np.random.default_rng(1).standard_normal(4)}, times, sigma=0.03)
guesses = {"k1": cf.Parameter(0.5, scale="log"), "k2": cf.Parameter(0.3, scale="log")}
result = cf.fit(cf.Problem(model, pilot, parameters=guesses))

candidate = cf.Candidate(np.linspace(0.1, 20, 200), ["b"], name="next")
design = cf.design(result, candidate, budget=6)
print(design)
figure = design.plot()

verified = design.verify(40, rng=0)
print(verified)

three = cf.design(result, candidate, budget=6, distinct=3)
print(f"With three times: {100 * three.efficiency:.0f} % of the best.")

assert design.table["time"].size == 2
assert design.efficiency > 0.99 > design.equidistant_efficiency
assert 0.9 < three.efficiency <= design.efficiency
for name in ("k1", "k2"):
    predicted_error = design.after[name] * result.values[name]
    assert (
        abs(verified.quantities[name].scatter / predicted_error - 1) < 0.35
    )  # of forty: within three of its own errors
