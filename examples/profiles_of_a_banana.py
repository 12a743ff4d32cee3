"""
Profiles of a banana
====================

A standard error is the width of a parabola.  Where the model is far from linear, the region of the parameters that
describe the data as well as the best ones do is no ellipse but bent like a banana, and the parabola's interval is
wrong: too short on one side, too long on the other.  A profile needs no parabola.  It holds one quantity at a number,
fits all others anew, and follows the best fit as that number moves, until the objective has risen by as much as a
confidence level allows.
"""

# %%
# A reaction that saturates, x' = k (A - x), measured five times before it does.  The initial rate A k is seen well;
# how high x would rise, and how fast, hardly.
import numpy as np

import castfit as cf

x, A, k = cf.symbols("x A k")
model = cf.Model({x: k * (A - x)}, parameters=[A, k])
experiment = cf.Experiment(
    {"x": [0.62, 1.18, 1.47, 1.90, 2.31]}, time=[0.5, 1.0, 1.5, 2.0, 3.0], sigma=0.12, initial={"x": 0.0}
)
problem = cf.Problem(
    model,
    experiment,
    parameters={
        "A": cf.Parameter(3.0, lower=0.1, upper=1e3, scale="log"),
        "k": cf.Parameter(0.5, lower=1e-4, upper=1e2, scale="log"),
    },
)
result = cf.fit(problem)
print(result)

# %%
# The profiles of both parameters, and of the initial rate, an expression, at two levels from one run.
profiles = cf.profile(result, ["A", "k", "A * k"], confidence_levels=(0.68, 0.95))
print(profiles)

# %%
# The interval of A by its profile is far from symmetric, even in the logarithm; that of the linear statistics is not.
low, high = profiles["A"].limits(0.95)
linear = result.confidence_intervals(0.95)["A"]
best = result.parameters["A"]
print(f"A = {best:.3g}: by profile [{low:.3g}, {high:.3g}], linear [{linear[0]:.3g}, {linear[1]:.3g}]")
assert np.log(high / best) > 1.3 * np.log(best / low)
assert np.isclose(np.log(linear[1] / best), np.log(best / linear[0]))

# %%
# Who is right?  For this model the solution is known, x = A (1 - exp(-k t)), and linear in k's companion, so that the
# profile of A can be had by trying all k.
t, data = np.array([0.5, 1.0, 1.5, 2.0, 3.0]), np.array([0.62, 1.18, 1.47, 1.90, 2.31])
rates = np.geomspace(1e-3, 5.0, 200_001)


def chi2(height):
    """Return the smallest sum of squares for a given A."""
    misfit = (height * (1.0 - np.exp(-np.outer(rates, t))) - data) / 0.12
    return float(np.min(np.sum(misfit**2, axis=1)))


for end in (low, high):
    rise = chi2(end) - result.chi2
    print(f"A = {end:.4g}: chi2 is higher by {rise:.3f}; the threshold is {profiles['A'].threshold(0.95):.3f}")
    assert abs(rise - profiles["A"].threshold(0.95)) < 0.02

# %%
# The product is known ten times better than its factors, which is why they bend round it.
rate = profiles["A * k"].limits(0.95)
assert rate[1] / rate[0] < 1.7 < high / low

# %%
# Together: the joint region of both, whose contour is the banana; the dashed ellipse is what standard errors believe.
region = cf.contours(result, "A", "k", confidence_levels=0.95, slices=8)
heights, speeds = region.lines[0.95].T
assert region.complete
assert region.closed[0.95]
assert heights.max() > 1.2 * region.ellipses[0.95][:, 0].max()
region.plot()

# %%
# Each panel shows the objective (line), the parabola of the linear statistics (dashed) and the thresholds.
figure = profiles.plot()
assert len(figure.axes) == 3
