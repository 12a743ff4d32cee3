"""A chemostat with feed
=====================

Bacteria grow on a substrate that is fed, at a rate that is changed twice::

    x' = mu(s) x - d x,    s' = d (feed - s) - mu(s) x / y,    mu(s) = mumax s / (ks + s)

The dilution rate d is an input, constant between the times at which the pump is set; the fit puts stages between these
times.  Biomass is measured well, substrate badly, with errors that grow with the value.
"""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

import castfit as cf

x, s, d = cf.symbols("x s d")
mumax, ks, y = cf.symbols("mumax ks y")
FEED_CONCENTRATION = 10.0  # substrate concentration in the feed
growth = mumax * s / (ks + s) * x
model = cf.Model(
    {x: growth - d * x, s: d * (FEED_CONCENTRATION - s) - growth / y}, parameters=[mumax, ks, y], inputs=[d]
)
pump = cf.Input.piecewise_constant([0, 12, 24], [0.1, 0.35, 0.2])

# %%
# Data are simulated by SciPy, one setting of the pump after the other.
TRUE = {"mumax": 0.45, "ks": 0.8, "y": 0.5}
TIMES = np.arange(1.0, 37.0)


def curves(mumax, ks, y):
    """Return x and s at the times, (2, 36)."""
    state, pieces = [0.3, 8.0], []
    for begin, end, rate in ((0, 12, 0.1), (12, 24, 0.35), (24, 36, 0.2)):

        def right(t, v, rate=rate):
            mu = mumax * v[1] / (ks + v[1])
            return [(mu - rate) * v[0], rate * (FEED_CONCENTRATION - v[1]) - mu * v[0] / y]

        solution = solve_ivp(right, (begin, end), state, t_eval=np.arange(begin + 1, end + 1), rtol=1e-10, atol=1e-12)
        state = solution.y[:, -1]
        pieces.append(solution.y)
    return np.hstack(pieces)


rng = np.random.default_rng(11)
exact = curves(**TRUE)
sigma = np.array([np.full(36, 0.05), 0.1 + 0.1 * exact[1]])
measured = exact + sigma * rng.standard_normal(exact.shape)

# %%
# The fit, from a guess that washes the bacteria out.
experiment = cf.Experiment(
    {"x": measured[0], "s": measured[1]},
    time=TIMES,
    start=0,
    sigma={"x": sigma[0], "s": sigma[1]},
    initial={"x": 0.3, "s": 8.0},
    inputs={"d": pump},
)
guess = {"mumax": 0.2, "ks": 5.0, "y": 1.0}
problem = cf.Problem(model, experiment, parameters={n: cf.Parameter(v, scale="log") for n, v in guess.items()})
result = cf.fit(problem)
print(result)
figure = result.plot()

# %%
# SciPy agrees.
check = least_squares(
    lambda p: ((curves(*p) - measured) / sigma).ravel(), list(TRUE.values()), x_scale=list(TRUE.values())
)
assert result.success
assert np.allclose(list(result.parameters.values()), check.x, rtol=1e-4)
assert np.isclose(result.chi2, 2 * check.cost, rtol=1e-6)
