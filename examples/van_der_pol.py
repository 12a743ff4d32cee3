"""Van der Pol and a pendulum from bad starts
==========================================

Oscillations are where least squares has its many wrong optima: a guess of the frequency that is off by a third gives a
curve that runs out of phase, and the best that a fit can do from there is to flatten it.  Single shooting sees
that landscape.  Multiple shooting and collocation do not have to: their states begin at the data.
"""

import numpy as np
from scipy.integrate import solve_ivp

import castfit as cf


def simulated(right, initial, times, sigma, seed):
    """Solve an equation with SciPy and add noise; (states, times)."""
    exact = solve_ivp(right, (0, times[-1]), initial, t_eval=times, rtol=1e-10, atol=1e-12).y
    return exact + sigma * np.random.default_rng(seed).standard_normal(exact.shape)


# %%
# Van der Pol's oscillator with mu = 2, of which both states are measured, from mu = 0.2 and a frequency that is twice
# what it should be.
times = np.linspace(0.5, 25, 50)
x, v, mu, w = cf.symbols("x v mu w")
model = cf.Model({x: v, v: mu * (1 - x**2) * v - w**2 * x}, parameters=[mu, w])
data = simulated(lambda t, z: [z[1], 2 * (1 - z[0] ** 2) * z[1] - z[0]], [1, 0], times, 0.1, 1)
experiment = cf.Experiment({"x": data[0], "v": data[1]}, time=times, start=0, sigma=0.1, initial={"x": 1, "v": 0})
problem = cf.Problem(model, experiment, parameters={"mu": cf.Parameter(0.2, lower=0), "w": cf.Parameter(2.0, lower=0)})

result = cf.fit(problem)
print(result)
figure = result.plot()
assert result.success
assert abs(result.parameters["mu"] - 2) < 3 * result.standard_errors["mu"]
assert abs(result.parameters["w"] - 1) < 3 * result.standard_errors["w"]

# %%
# From the same start every method, side by side:
for method in ("single", "multiple", "collocation", "incremental"):
    other = cf.incremental(problem).result if method == "incremental" else cf.fit(problem, method)
    print(f"{method:12} mu = {other.parameters['mu']:.4f}   w = {other.parameters['w']:.4f}   chi2 = {other.chi2:.1f}")

# %%
# A pendulum with friction, of which only the angle is measured, over many swings.  Gravity over length is guessed at 3
# and is 9.81.
times = np.linspace(0.1, 12, 120)
a, b, g, c = cf.symbols("a b g c")
pendulum = cf.Model({a: b, b: -g * cf.sin(a) - c * b}, parameters=[g, c])
data = simulated(lambda t, z: [z[1], -9.81 * np.sin(z[0]) - 0.2 * z[1]], [2.5, 0], times, 0.05, 2)
swings = cf.Experiment({"a": data[0]}, time=times, start=0, sigma=0.05, initial={"a": cf.free(2.0), "b": 0})
result = cf.fit(
    cf.Problem(pendulum, swings, parameters={"g": cf.Parameter(3, lower=0), "c": cf.Parameter(0.5, lower=0)})
)
print(result)
figure = result.plot()
assert result.success
assert abs(result.parameters["g"] - 9.81) < 3 * result.standard_errors["g"]
