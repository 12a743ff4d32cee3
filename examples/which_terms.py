"""
Which terms does a model need?
==============================

A turns into B, and B leaves.  Is there a way back?  A loss of second order?  Three doubtful terms make eight models.
All are fitted; then the question is not only which is best, but how sure that is, and what all of them say together.
"""

import numpy as np

import castfit as cf

# %%
# One problem states all that may be estimated.  In truth the way back, ``k2``, and the loss of second order, ``k3``,
# are not there.

a, b = cf.symbols("a b")
k1, k2, k3, k4 = cf.symbols("k1 k2 k3 k4")
rates = {a: -k1 * a + k2 * b - k3 * a**2, b: k1 * a - k2 * b - k4 * b}
model = cf.Model(rates, parameters=[k1, k2, k3, k4], initial={a: 1, b: 0})
truth = {"k1": 0.6, "k2": 0.0, "k3": 0.0, "k4": 0.25}
times, rng = np.linspace(1, 12, 12), np.random.default_rng(4)
exact = cf.simulate(model, truth, times)
data = {n: exact[n] + 0.02 * rng.standard_normal(times.size) for n in ("a", "b")}
experiment = cf.Experiment(data, time=times, sigma=0.02)
problem = cf.Problem(model, experiment, parameters={n: cf.Parameter(0.3, bounds=(-1, 5)) for n in truth})

# %%
# Each doubtful term is estimated, or held at zero.

selection = cf.select(problem, "single", choices={n: [0, cf.estimated] for n in ("k2", "k3", "k4")})
print(selection)
assert selection.complete
assert selection.names[0] == "k4"  # the true model, in which k1 is estimated, too
assert selection.importance["k4"] > 0.99 > selection.importance["k2"]

# %%
# The picture: every model by what it estimates and how far it is from the best, how much weight the models have that
# estimate a term, and how much each model has.

figure = selection.plot()

# %%
# The best model alone is too sure of itself, for it forgets that it was chosen.  The average does not.

best_k4, average = selection.best["k4"], selection.average("k4")
print(repr(best_k4), repr(average), sep="\n")
assert average.standard_error > best_k4.standard_error
assert average.interval[0] < truth["k4"] < average.interval[1]

# %%
# A search that looks one step ahead finds the same with fewer fits, which matters where terms are many.

forecast = cf.select(problem, "single", choices={n: [0, cf.estimated] for n in ("k2", "k3", "k4")}, method="forecast")
print(forecast.message)
assert forecast.names[0] == selection.names[0]
assert len(forecast.fits) < len(selection.fits)

# %%
# How much more probable do the data make the best model than the largest one, if each rate was equally probable between
# its bounds beforehand?  By the evidence, far more than by AICc: wide bounds are a bold guess, and cost.

evidence = selection.evidence()
print(evidence)
assert evidence.log_bayes_factor("k4", "k2 k3 k4") > 3.0
