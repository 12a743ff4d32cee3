"""Michaelis-Menten from six progress curves
=========================================

An enzyme turns a substrate into product::

    s' = -vmax s / (km + s)

Six curves begin at different concentrations.  vmax and km are common to all of them; the concentration at the beginning
is only roughly what the pipette says, and how large the errors are nobody knows.
"""

import numpy as np
from scipy.optimize import least_squares
from scipy.special import lambertw

import castfit as cf

# %%
# The equation has a closed form with Lambert's function W (Schnell and Mendoza 1997).  Data are made from it here, and
# SciPy shall check the answer with it.
TRUE = {"vmax": 1.2, "km": 3.0}
PIPETTED = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
TIMES = np.linspace(0, 15, 16)[1:]
MEASUREMENT_SIGMA = 0.05  # standard deviation of the measurement errors


def closed_form(t, s0, vmax, km):
    """Return s(t)."""
    return km * lambertw(s0 / km * np.exp((s0 - vmax * t) / km)).real


rng = np.random.default_rng(4)
begins = [s0 * (1 + 0.03 * rng.standard_normal()) for s0 in PIPETTED]
curves = [closed_form(TIMES, s0, **TRUE) + MEASUREMENT_SIGMA * rng.standard_normal(TIMES.size) for s0 in begins]

# %%
# One model, six experiments.  ``cf.free`` estimates the initial state of each.
s = cf.symbols("s")
vmax, km = cf.symbols("vmax km")
model = cf.Model({s: -vmax * s / (km + s)}, parameters=[vmax, km])
experiments = [
    cf.Experiment({"s": curve}, time=TIMES, start=0, initial={"s": cf.free(s0, lower=0)}, name=f"{s0:g} mM")
    for s0, curve in zip(PIPETTED, curves, strict=True)
]
problem = cf.Problem(
    model,
    experiments,
    parameters={
        "vmax": cf.Parameter(10, bounds=(1e-3, 1e3), scale="log"),
        "km": cf.Parameter(10, bounds=(1e-3, 1e3), scale="log"),
    },
)
result = cf.fit(problem)
print(result)
figure = result.plot()


# %%
# SciPy finds the same with the closed form: there the initial states are six more unknowns of `least_squares`.
def residuals(p):
    """Return the residuals of all curves."""
    return np.concatenate([closed_form(TIMES, s0, p[0], p[1]) - y for s0, y in zip(p[2:], curves, strict=True)])


exact = least_squares(residuals, [*TRUE.values(), *PIPETTED], xtol=1e-14, ftol=1e-14, gtol=1e-14)
print(f"vmax = {exact.x[0]:.6f}, km = {exact.x[1]:.6f} by the closed form")
assert result.success
assert np.allclose([result.parameters["vmax"], result.parameters["km"]], exact.x[:2], rtol=1e-5)
for name, value in TRUE.items():
    assert abs(result.parameters[name] - value) < 3 * result.standard_errors[name]
