"""
A closed loop: estimate, plan, and again
========================================

Van der Pol's oscillator is to be brought to rest by a bounded input, while something unknown pushes it and only its
position is measured, with errors. At every sample `cf.moving_horizon` says where the oscillator is and what pushes it,
and ``plan.again`` plans from there: the first piece of each plan is applied.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

import castfit as cf

x0, x1, d, u, w, s = cf.symbols("x0 x1 d u w s")
STEP, SAMPLES, TRUTH = 0.25, 60, 0.4
rng = np.random.default_rng(1)

# %%
# What pushes is a state that walks
# ---------------------------------
# The disturbance is unknown and may change: a state driven by white noise. How fast it walks follows from a record, in
# which the input was moved on purpose.
walking = cf.Model(
    {x0: (1 - x1**2) * x0 - x1 + u + d, x1: x0, d: s * w}, parameters=[s], noises=[w], inputs=[u]
)  # fmt: skip
plant = cf.Model({x0: (1 - x1**2) * x0 - x1 + u + d, x1: x0}, parameters=[d], inputs=[u])
times = np.arange(0.0, 10.01, STEP)
random_input = cf.Input.piecewise_constant(times[:-1:4], rng.uniform(-1, 1, 10))
record = cf.simulate(plant, {"d": 0.2}, times, initial={"x0": 0, "x1": 1}, inputs={"u": random_input})
experiment = cf.Experiment(
    {"x1": record["x1"] + 0.01 * rng.standard_normal(times.size)}, time=times, sigma=0.01, inputs={"u": random_input},
    start=0, initial={"x0": cf.Normal(0, 0.3), "x1": cf.Normal(1, 0.3), "d": cf.Normal(0, 0.5)},
)  # fmt: skip
result = cf.fit(cf.Problem(walking, experiment, parameters={"s": cf.Parameter(0.1, scale="log", bounds=(0.02, 1))}))

# %%
# A plan
# ------
# Bounds of states are soft: an estimate may violate them, and a plan must be possible from there as well. A
# tolerance of 1e-4 is far below what the loop does not know, and makes each plan as quick as it can be.
plan = cf.control(
    plant, horizon=24 * STEP, inputs={"u": cf.Input.free(24, bounds=(-1, 1))}, parameters={"d": 0.0},
    initial={"x0": 0, "x1": 1}, minimise=cf.integral(x0**2 + x1**2 + 0.1 * (u + d) ** 2),
    constraints=[cf.along(x0 >= -0.5)], soft=100.0, transcription=cf.Collocation(elements=24, tolerance=1e-4),
)  # fmt: skip
print(plan)

# %%
# The loop
# --------
estimator = cf.moving_horizon(result, horizon=10)
state, applied, spent = {"x0": 0.0, "x1": 1.0}, 0.0, []
rows = [(0.0, 0.0, 1.0, 0.0, 0.0)]
for k in range(SAMPLES):
    path = cf.simulate(
        plant, {"d": TRUTH}, [0, STEP], initial=state, inputs={"u": applied}
    )  # what happens, and nobody knows
    state = {n: float(path[n][-1]) for n in ("x0", "x1")}
    began = time.process_time()
    estimate = estimator.step((k + 1) * STEP, {"x1": state["x1"] + 0.01 * rng.standard_normal()}, inputs={"u": applied})
    state_estimates = {n: estimate.states[n] for n in ("x0", "x1")}
    plan = plan.again(state_estimates, parameters={"d": estimate.states["d"]}, shift=STEP)
    spent.append(1e3 * (time.process_time() - began))
    applied = float(plan.inputs["u"].values[0])
    rows.append(((k + 1) * STEP, state["x0"], state["x1"], applied, estimate.states["d"]))
print(f"estimate and plan: {np.median(spent):.1f} ms of CPU time in the middle, {max(spent):.1f} ms at most")

t, x0_path, x1_path, inputs, disturbance = np.array(rows).T
figure, axes = plt.subplots(3, 1, figsize=(7, 5), sharex=True)
axes[0].plot(t, x1_path, label="x1, measured")
axes[0].plot(t, x0_path, label="x0, not measured")
axes[0].legend()
axes[1].step(t, inputs, where="post", color="C3")
axes[1].set_ylabel("u")
axes[2].plot(t, disturbance, color="C2")
axes[2].axhline(TRUTH, linestyle=":", color="0.5")
axes[2].set_ylabel("d, estimated")
axes[2].set_xlabel("t")
plt.show()

assert abs(disturbance[-20:].mean() - TRUTH) < 0.05
assert np.abs(x0_path[-20:]).max() < 0.1
assert abs(inputs[-20:].mean() + TRUTH) < 0.1
