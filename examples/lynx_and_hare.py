"""Lynx and hare
=============

Lynx and hare in Canada, 1900 to 1920: what "chi2 = n" does not say, and what the errors are taken for.

Pelts that the Hudson's Bay Company bought, in thousands, stand for how many animals there were (Lotka and Volterra)::

    hare' = alpha hare - beta hare lynx        lynx' = delta hare lynx - gamma lynx

- What misleads: a chi2 of 42 from 42 data.  Where sigma is not known it is chosen so that chi2 is the number of data;
  that is so for every model, good or bad, and says nothing; castfit tells -2 log L instead.  What does say something:
  how much of the variance is left unexplained (18 % of the hare's), residuals, and other assumptions about the errors.
- Errors in proportion, ``cf.LogNormal()``, are those of the case study in Stan by B. Carpenter, Predator-prey
  population dynamics (2018).  Errors of one size give other estimates: four thousand lynxes to begin with instead of
  six, and less growth of hares, 0.48 instead of 0.54 a year.  The likelihood even prefers these, which nobody sees who
  fits but once::

    python examples/lynx_and_hare.py

Data: pelts collected by the Hudson's Bay Company, year by year, as in that case study.
"""

from __future__ import annotations

import numpy as np

import castfit as cf

HARE = [30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1,
        40.3, 57.0, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7]  # fmt: skip
LYNX = [4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4,
        8.0, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]  # fmt: skip
# By SciPy: solve_ivp (LSODA, 1e-10) and minimize (Nelder-Mead).
BY_SCIPY = {"alpha": 0.540014, "beta": 0.0271561, "gamma": 0.796599, "delta": 0.0237020}

hare, lynx, alpha, beta, gamma, delta = cf.symbols("hare lynx alpha beta gamma delta")
model = cf.Model(
    {hare: alpha * hare - beta * hare * lynx, lynx: delta * hare * lynx - gamma * lynx},
    parameters=[alpha, beta, gamma, delta],
)


def fitted(noise: cf.Gaussian | cf.LogNormal) -> cf.Result:
    """Fit from round numbers, with a noise model for both."""
    experiment = cf.Experiment(
        {"hare": HARE, "lynx": LYNX},
        time=np.arange(21.0),  # years since 1900
        noise=noise,
        initial={"hare": cf.free(30.0, scale="log"), "lynx": cf.free(4.0, scale="log")},
    )
    guesses = {"alpha": 0.5, "beta": 0.02, "gamma": 0.5, "delta": 0.02}
    parameters = {n: cf.Parameter(v, scale="log") for n, v in guesses.items()}
    return cf.fit(cf.Problem(model, experiment, parameters=parameters))


same = fitted(cf.Gaussian())
print("Errors of one size\n\n", same, "\n", sep="")
result = fitted(cf.LogNormal())
print("Errors in proportion\n\n", result, sep="")

for name, value in BY_SCIPY.items():
    estimate = result[name]
    print(f"{name}: {estimate.value:.4f} ± {estimate.standard_error:.4f}, by SciPy {value}")
    assert abs(estimate.value - value) < 1e-3 * value
print(f"AIC: in proportion {result.aic:.1f}, of one size {same.aic:.1f}")
assert result.success
assert abs(result.chi2 - 42) < 1e-6
assert abs(same.chi2 - 42) < 1e-6
assert same.aic < result.aic - 10
assert same["lynx(0)"].interval[1] < result["lynx(0)"].value
result.plot()
