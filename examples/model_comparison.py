"""
Which model do the data need?
=============================

An enzyme turns a substrate over.  Is the reaction of first order, saturated (Michaelis and Menten), or also inhibited
by too much of the substrate?  More parameters always fit better.  What a better fit is worth, given what it estimates,
is a question with an answer.
"""

import numpy as np

import castfit as cf

# %%
# Three models of one data set.  The second is the third with ``inhibition = 0``.

s = cf.symbols("s")
k, vmax, Km, inhibition = cf.symbols("k vmax Km inhibition")
times = np.linspace(0, 10, 21)
rng = np.random.default_rng(7)


rate = vmax * s / (Km + s + inhibition * s**2)
full = cf.Model({s: -rate}, parameters=[vmax, Km, inhibition], initial={s: 10})
truth = {"vmax": 2.0, "Km": 1.0, "inhibition": 0.07}
data = cf.simulate(full, truth, times)["s"] + 0.1 * rng.standard_normal(times.size)
experiment = cf.Experiment({"s": data}, time=times, sigma=0.1)

positive = {"vmax": cf.Parameter(1.0, lower=0), "Km": cf.Parameter(2.0, lower=0)}
first_order = cf.Problem(cf.Model({s: -k * s}, parameters=[k], initial={s: 10}), experiment, parameters={"k": 0.2})
saturated = cf.Problem(full, experiment, parameters={**positive, "inhibition": cf.Parameter(0.0, fixed=True)})
inhibited = cf.Problem(full, experiment, parameters={**positive, "inhibition": cf.Parameter(0.01, lower=0)})

fits = {
    "first order": cf.fit(first_order),
    "saturated": cf.fit(saturated),
    "inhibited": cf.fit(inhibited),
}

# %%
# The table: -2 log likelihood, how many numbers were estimated, and what remains of the advantage when these are paid
# for (AICc, for there are only 21 values).

models = cf.compare_models(fits)
print(models)
assert models.best == "inhibited"
assert models.weights["inhibited"] > 0.95

# %%
# The saturated model is the inhibited one at ``inhibition = 0``.  That is a bound, so twice the logarithm of the
# likelihoods' ratio is chi2 with one degree of freedom in half the cases only, and zero in the others.

test = cf.likelihood_ratio(fits["saturated"], fits["inhibited"])
print(test)
assert test.dof == 1
assert test.at_bound == ("inhibition",)
assert test.p_value < 0.01

# %%
# Does the chosen one describe the data?  Every test is a number and a sentence; the last lines name values that the
# estimates hang on, if there are any.

print(fits["inhibited"].diagnostics)
figure = fits["inhibited"].plot()
assert fits["inhibited"].goodness.described
assert not fits["first order"].goodness.described

# %%
# Fits of other data are refused, and named: their likelihoods have nothing to do with each other.

half = cf.Problem(full, cf.Experiment({"s": data[::2]}, time=times[::2], sigma=0.1), parameters=inhibited.parameters)
try:
    cf.compare_models({**fits, "half of the data": cf.fit(half)})
except cf.InputError as error:
    print(error)
else:
    raise AssertionError("other data must be refused")
