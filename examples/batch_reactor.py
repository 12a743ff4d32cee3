"""
A batch reactor: where the extended Kalman filter fails
=======================================================

Two reversible reactions in a closed reactor, A = B + C and 2 B = C, of which only the total pressure is measured. The
first guess of the concentrations is poor. An extended Kalman filter follows the pressure with concentrations that are
negative, and never comes back: it knows a mean and a covariance, but not that there is no less than nothing. A moving
horizon with bounds finds the way within a few samples.

The equations are those of Haseltine and Rawlings (2005) and of example 4.27 of Rawlings, Mayne and Diehl; the data are
simulated here, with errors of 0.25.
"""

import matplotlib.pyplot as plt
import numpy as np

import castfit as cf

a, b, c, w1, w2, w3 = cf.symbols("a b c w1 w2 w3")
dissociation_rate = 0.5 * a - 0.05 * b * c
dimerisation_rate = 0.2 * b**2 - 0.01 * c
disturbance = 0.002
model = cf.Model(
    {
        a: -dissociation_rate + disturbance * w1,
        b: dissociation_rate - 2 * dimerisation_rate + disturbance * w2,
        c: dissociation_rate + dimerisation_rate + disturbance * w3,
    },
    noises=[w1, w2, w3],
    outputs={"pressure": 32.84 * (a + b + c)},
)
times = np.arange(0.25, 30.01, 0.25)
truth = cf.simulate(model, {}, times, initial={"a": 0.5, "b": 0.05, "c": 0.0})
pressure = truth["pressure"] + 0.25 * np.random.default_rng(1).standard_normal(times.size)

# %%
# The filter
# ----------
# Only states are estimated. What was thought of them before is wrong: A and C at 1 and 4 instead of 0.5 and 0.
guess = {"a": cf.Normal(1, 0.5), "b": cf.Normal(0, 0.5), "c": cf.Normal(4, 0.5)}
experiment = cf.Experiment({"pressure": pressure}, time=times, sigma=0.25, start=0, initial=guess)
fitted = cf.fit(cf.Problem(model, experiment))
print(fitted.white)
filtered = cf.kalman(fitted)
final_concentrations = {name: filtered.filtered(name).values[-1] for name in "abc"}
print(final_concentrations)

# %%
# The moving horizon
# ------------------
# Ten samples, an arrival cost for all before them, and bounds: one estimate at each sample, as in a plant.
estimator = cf.moving_horizon(fitted, horizon=10, bounds={name: (0.0, np.inf) for name in "abc"})
steps = [estimator.step(t, {"pressure": value}) for t, value in zip(times, pressure, strict=True)]
print(steps[-1])

figure, panels = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for axes, name in zip(panels, "abc", strict=True):
    band = filtered.filtered(name)
    axes.axhline(0, color="0.8", linewidth=1)
    axes.plot(times, truth[name], color="0.5", linewidth=3, label="truth")
    axes.plot(band.times, band.values, "--", color="tab:red", label="extended Kalman filter")
    axes.plot(times, [step.states[name] for step in steps], color="tab:blue", label="moving horizon")
    axes.set(title=f"concentration of {name.upper()}", xlabel="time")
panels[0].legend(fontsize=8)
plt.show()

assert min(final_concentrations.values()) < -0.1, final_concentrations
for name in "abc":
    assert abs(steps[-1].states[name] - truth[name][-1]) < 0.01
    assert min(step.states[name] for step in steps) > -1e-9
