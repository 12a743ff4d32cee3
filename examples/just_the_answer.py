"""Just the answer
===============

One output on an unknown scale, parameters known to decades, unknown noise: an estimate without choosing a method.

Three genes repress each other in a ring, and the ring oscillates.  Only one protein is seen, by a fluorescence whose
scale nobody knows.  From most starts a fit ends in a curve that does not oscillate at all, and says that it has
converged: it has, at an optimum that is not the best one.  So the question is not only what the best values are, but
how sure one can be that there are no better ones.

`castfit.estimate` fits, doubts the answer, searches by other ways from other starts, goes on with those that pay, and
tells how often the best optimum was found.
"""

import numpy as np

import castfit as cf

# %%
# The ring, and what is seen of it.

a, b, c = cf.symbols("a b c")
make, lose, scale = cf.symbols("make lose scale")
model = cf.Model(
    {a: make / (1 + c**3) - lose * a, b: make / (1 + a**3) - lose * b, c: make / (1 + b**3) - lose * c},
    parameters=[make, lose, scale],
    outputs={"fluorescence": scale * c},
)
truth = {"make": 10.0, "lose": 1.0, "scale": 300.0}
start = {"a": 1.0, "b": 2.0, "c": 3.0}
times = np.linspace(0.4, 15, 40)
clean = cf.simulate(model, times=times, parameters=truth, initial=start)["fluorescence"]
measured = clean + 30 * np.random.default_rng(1).standard_normal(times.size)
experiment = cf.Experiment({"fluorescence": measured}, time=times, sigma=cf.unknown(), initial=start)

# %%
# Nothing is known of the parameters but four decades for each.

decades = {
    "make": cf.Parameter(0.3, bounds=(0.1, 1e3), scale="log"),
    "lose": cf.Parameter(0.03, bounds=(1e-2, 1e2), scale="log"),
    "scale": cf.Parameter(10.0, bounds=(1.0, 1e4), scale="log"),
}
problem = cf.Problem(model, experiment, parameters=decades)

# %%
# The answer, and its story: what was tried, what was found how often, how sure it is.

result = cf.estimate(problem, max_time=50, rng=0)
print(result)
figure = result.best.plot()
assert result.success
for name, value in truth.items():
    assert abs(np.log(result.best.parameters[name] / value)) < 0.1, name
