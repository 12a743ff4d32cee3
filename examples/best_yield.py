"""
The best yield, and what if the rates are others
================================================

A becomes B, and B decays: how warm should the reactor be, and when, so that there is as much B as possible at the end?
`cf.control` finds the temperature. Rates are never known exactly: a plan for three possible reactors is a little
worse for the middle one, and better on average.
"""

import matplotlib.pyplot as plt
import numpy as np

import castfit as cf

# %%
# The model
# ---------
# Two reactions with different activation energies: warmth makes B faster, and destroys it faster still.
a, b, T, factor = cf.symbols("a b T factor")
k1, k2 = 4000 * cf.exp(-2500 / T), factor * 620000 * cf.exp(-5000 / T)
model = cf.Model({a: -k1 * a**2, b: k1 * a**2 - k2 * b}, parameters=[factor], inputs=[T], initial={a: 1, b: 0})
question = {
    "horizon": 1,
    "inputs": {"T": cf.Input.free(50, bounds=(298, 398))},
    "minimise": -cf.at_end(b),
}

# %%
# The nominal plan
# ----------------
# The objective is confirmed by an integration with error control; a coarse grid in the literature gives 0.610775.
plan = cf.control(model, parameters={"factor": 1.0}, **question)
print(plan)

# %%
# Three reactors
# --------------
# The second rate may be half or twice as large. The same temperatures have to do for all.
cases = [{"factor": f} for f in (0.5, 1.0, 2.0)]
mean = cf.control(model, parameters=cases, **question)
worst = cf.control(model, parameters=cases, scenarios="worst", **question)


def yields(design):
    """Return the yields of the three reactors."""
    signals = {"T": design.inputs["T"]}
    return np.array([cf.simulate(model, case, [0, 1], inputs=signals)["b"][-1] for case in cases])


for name, candidate_plan in (("nominal", plan), ("mean", mean), ("worst case", worst)):
    print(f"{name:10} yields {yields(candidate_plan).round(4)}, mean {yields(candidate_plan).mean():.5f}")

# %%
figure, axes = plt.subplots(figsize=(7, 4))
t = np.linspace(0, 1, 501)
for name, candidate_plan in (("nominal", plan), ("best mean", mean), ("best worst case", worst)):
    axes.plot(t, candidate_plan.inputs["T"](t), label=name)
axes.set_xlabel("time")
axes.set_ylabel("temperature in kelvin")
axes.legend()
plt.show()

assert plan.success
assert mean.success
assert worst.success
assert abs(plan.objective + 0.61079) < 1e-4
assert yields(mean).mean() > yields(plan).mean()
assert yields(worst).min() >= yields(mean).min() - 1e-6
