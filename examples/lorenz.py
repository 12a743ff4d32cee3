"""Lorenz: parameters of a chaotic system
======================================

::

    x' = sigma (y - x),    y' = x (rho - z) - y,    z' = x y - beta z

Two trajectories that begin 1e-6 apart are a diameter apart after 15 units of time.  Over such a horizon chi2 has more
local minima than anybody can count, and a simulation from the right parameters looks nothing like the data unless the
initial state is known to six digits.  Collocation and multiple shooting do not simulate over the whole horizon: each
stage begins at what was measured, and the gaps close while the parameters are found.
"""

import numpy as np
from scipy.integrate import solve_ivp

import castfit as cf

TRUE = {"sigma": 10.0, "rho": 28.0, "beta": 8 / 3}
TIMES = np.linspace(0, 15, 301)


def lorenz(t, v):
    """Return the derivatives."""
    return [10 * (v[1] - v[0]), v[0] * (28 - v[2]) - v[1], v[0] * v[1] - 8 / 3 * v[2]]


exact = solve_ivp(lorenz, (0, 15), [-8, 7, 27], t_eval=TIMES, rtol=1e-11, atol=1e-11).y
measured = exact + 0.5 * np.random.default_rng(5).standard_normal(exact.shape)

# %%
# All three states are measured with errors of 0.5; the initial state is estimated as well.
x, y, z, sigma, rho, beta = cf.symbols("x y z sigma rho beta")
model = cf.Model({x: sigma * (y - x), y: x * (rho - z) - y, z: x * y - beta * z}, parameters=[sigma, rho, beta])
experiment = cf.Experiment(
    dict(zip("xyz", measured, strict=True)),
    time=TIMES,
    sigma=0.5,
    initial={n: cf.free(v) for n, v in zip("xyz", measured[:, 0], strict=True)},
)
problem = cf.Problem(model, experiment, parameters={"sigma": 5.0, "rho": 15.0, "beta": 1.0})

# %%
result = cf.fit(problem)
print(result)
figure = result.plot()
assert result.success
for name, value in TRUE.items():
    assert abs(result.parameters[name] - value) < 3.5 * result.standard_errors[name]

# %%
# Multiple shooting finds the same from the same start; single shooting says why it cannot.
multiple = cf.fit(problem, cf.MultipleShooting(30))
print(multiple.message)
assert abs(multiple.chi2 / result.chi2 - 1) < 1e-6
single = cf.fit(problem, "single", max_time=10)
print(single.message)
assert not single.success or abs(single.chi2 / result.chi2 - 1) < 1e-3
