"""An outlier
==========

A decay, measured twenty times; twice somebody has noted a wrong digit.  Least squares believes them.  Student's t and
Huber's loss do not, and the diagnostics of the ordinary fit point at the values.
"""

import numpy as np

import castfit as cf

times = np.arange(1.0, 21.0)
rng = np.random.default_rng(8)
values = 10 * np.exp(-0.15 * times) + 0.1 * rng.standard_normal(times.size)
values[11] += 2.0
values[15] += 1.5

x, k = cf.symbols("x k")
model = cf.Model({x: -k * x}, parameters=[k])


def problem(**noise):
    """Pose the problem with a model of the noise."""
    experiment = cf.Experiment({"x": values}, time=times, start=0, initial={"x": cf.free(5.0, lower=0)}, **noise)
    return cf.Problem(model, experiment, parameters={"k": cf.Parameter(1.0, lower=0)})


# %%
# Least squares, and what its residuals say:
gaussian_fit = cf.fit(problem(sigma=0.1))
print(gaussian_fit)
print(gaussian_fit.diagnostics)
figure = cf.plots.residuals(gaussian_fit)

# %%
# Heavy tails.  With ``StudentT`` the size of ordinary errors is estimated, too; with Huber's loss it is given.
heavy = cf.fit(problem(noise={"x": cf.StudentT(df=3)}))
huber = cf.fit(problem(sigma=0.1), loss="huber")
print(heavy)
figure = heavy.plot()

# %%
for name, result in (("least squares", gaussian_fit), ("Student's t", heavy), ("Huber", huber)):
    print(f"{name:14} k = {result.parameters['k']:.4f} +- {result.standard_errors['k']:.4f}")
assert abs(gaussian_fit.parameters["k"] - 0.15) > 3 * gaussian_fit.standard_errors["k"]
assert abs(heavy.parameters["k"] - 0.15) < 3 * heavy.standard_errors["k"]
assert abs(huber.parameters["k"] - 0.15) < abs(gaussian_fit.parameters["k"] - 0.15)
