"""The heat equation, by lines
===========================

A rod is heated at one end with unknown power, loses heat along its length, and is watched by three thermometers::

    u_t = k u_xx - h u,    -k u_x(0) = q,    u_x(1) = 0,    u = 0 at first

A partial differential equation becomes a model by the method of lines: the rod is cut into cells, each with a
temperature that is a state.  CasADi's symbols take arithmetic like numbers, so a comprehension writes the equations.
"""

from itertools import pairwise

import numpy as np
from scipy.integrate import solve_ivp

import castfit as cf

k, h, q = cf.symbols("k h q")


def rod(n):
    """Return the model with n cells, measured at 0.1, 0.4 and 0.8."""
    u = cf.symbols(f"u{i}" for i in range(n))
    width = 1 / n
    flows = [q, *(k * (left - right) / width for left, right in pairwise(u)), 0]
    rates = {u[i]: (flows[i] - flows[i + 1]) / width - h * u[i] for i in range(n)}

    def temperature_at(place):
        """Interpolate between the centres of the cells."""
        i = min(int(place * n - 0.5), n - 2)
        share = place * n - 0.5 - i
        return (1 - share) * u[i] + share * u[i + 1]

    outputs = {f"at {place:g}": temperature_at(place) for place in (0.1, 0.4, 0.8)}
    return cf.Model(rates, parameters=[k, h, q], outputs=outputs, initial=dict.fromkeys(u, 0))


# %%
# Data from a rod with 400 cells that SciPy integrates, so that the error of the method of lines is seen.
TRUE = {"k": 0.15, "h": 0.3, "q": 2.0}
TIMES = np.linspace(0.25, 8, 32)


def fine(n=400):
    """Return the temperatures at the three places, (3, 32)."""
    width = 1 / n

    def right(t, u):
        flow = np.concatenate([[TRUE["q"]], TRUE["k"] * (u[:-1] - u[1:]) / width, [0.0]])
        return (flow[:-1] - flow[1:]) / width - TRUE["h"] * u

    band = {"lband": 1, "uband": 1}
    temperatures = solve_ivp(right, (0, 8), np.zeros(n), "LSODA", TIMES, rtol=1e-9, atol=1e-11, **band).y
    centres = (np.arange(n) + 0.5) * width
    return np.array([[np.interp(place, centres, u) for u in temperatures.T] for place in (0.1, 0.4, 0.8)])


exact = fine()
measured = exact + 0.05 * np.random.default_rng(2).standard_normal(exact.shape)

# %%
# The error falls with the square of the width; 20 cells are enough for these data.
experiment = cf.Experiment(
    {f"at {place:g}": row for place, row in zip((0.1, 0.4, 0.8), measured, strict=True)},
    time=TIMES,
    start=0,
    sigma=0.05,
)
guess = {name: cf.Parameter(1.0, scale="log") for name in TRUE}
for n in (5, 10, 20):
    model = rod(n)
    simulation = cf.simulate(model, TRUE, TIMES)
    error = max(
        np.abs(simulation[f"at {place:g}"] - row).max() for place, row in zip((0.1, 0.4, 0.8), exact, strict=True)
    )
    result = cf.fit(cf.Problem(model, experiment, parameters=guess))
    estimates = "   ".join(f"{name} = {value:.4f}" for name, value in result.parameters.items())
    print(f"{n:3d} cells   largest error {error:.4f}   {estimates}   chi2 = {result.chi2:.2f}   {result.time:.2f} s")

# %%
print(result)
figure = result.plot()
assert result.success
for name, value in TRUE.items():
    assert abs(result.parameters[name] - value) < 3 * result.standard_errors[name]
