"""Robertson: eleven decades of time, nine of rates
================================================

Three reactions between three species, the test problem of everybody who writes an integrator for stiff equations
(Robertson 1966; Hairer and Wanner 1996)::

    a' = -k1 a + k3 b c,    b' = k1 a - k3 b c - k2 b^2,    c' = k2 b^2

with k1 = 0.04, k2 = 3e7, k3 = 1e4.  b is never more than 4e-5, and everything happens over eleven decades of time.
"""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

import castfit as cf

TRUE = {"k1": 0.04, "k2": 3e7, "k3": 1e4}
TIMES = np.geomspace(1e-3, 1e5, 41)


def curves(p):
    """Return a, b, c at the times by SciPy's Radau, (3, 41)."""
    k1, k2, k3 = p

    def right(t, z):
        slow, fast, back = k1 * z[0], k2 * z[1] ** 2, k3 * z[1] * z[2]
        return [back - slow, slow - back - fast, fast]

    return solve_ivp(right, (0, TIMES[-1]), [1, 0, 0], "Radau", TIMES, rtol=1e-9, atol=1e-13).y


# %%
# All three are measured with errors of 2 %.
rng = np.random.default_rng(3)
exact = curves(list(TRUE.values()))
measured = exact * (1 + 0.02 * rng.standard_normal(exact.shape))
a, b, c, k1, k2, k3 = cf.symbols("a b c k1 k2 k3")
model = cf.Model(
    {a: -k1 * a + k3 * b * c, b: k1 * a - k3 * b * c - k2 * b**2, c: k2 * b**2},
    parameters=[k1, k2, k3],
    initial={a: 1, b: 0, c: 0},
)
experiment = cf.Experiment(
    dict(zip("abc", measured, strict=True)),
    time=TIMES,
    start=0,
    sigma=dict(zip("abc", 0.02 * exact, strict=True)),
)
guess = {"k1": 1.0, "k2": 1e6, "k3": 1e3}
problem = cf.Problem(model, experiment, parameters={n: cf.Parameter(v, scale="log") for n, v in guess.items()})

# %%
# How stiff that is, at the guess:
print(cf.stiffness(model, guess, TIMES))

# %%
# The fit chooses the integrator and the tolerances of each state itself.
result = cf.fit(problem)
print(result)
figure = result.plot()


# %%
# SciPy needs to be told where to begin; from the truth it ends at the same point.
def residuals(logs):
    """Return the weighted residuals, by the logarithms of the rates."""
    return ((curves(np.exp(logs)) - measured) / (0.02 * exact)).ravel()


check = least_squares(residuals, np.log(list(TRUE.values())), diff_step=1e-4)
assert result.success
assert np.allclose(np.log(list(result.parameters.values())), check.x, atol=1e-3)
assert result.chi2 < 2 * check.cost * (1 + 1e-3)
