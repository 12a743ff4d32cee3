"""A fed-batch: errors in per cent
===============================

A fed-batch culture, biomass and substrate measured with errors of some per cent: what constant errors mislead to.

Cells X grow on a substrate S by Monod's law while a pump feeds fresh medium with 25 g/L of it::

    X' = mu S / (K + S) X - F/V X
    S' = -mu S / (K + S) X / Y + F/V (25 - S)
    V' = F(t)

The reading of either probe scatters by a share of the true value.  The substrate falls from 8 g/L to 0.1 g/L, and only
values near K = 0.6 g/L and below tell anything of K; taken for as inexact as the first ones, they count for nothing.

- What misleads: one sigma for all values of an output.  The interval of K is several times wider than these data allow,
  and the result says why: the residuals of S change in size with the prediction.
- What helps: a sigma in proportion to the prediction, ``cf.Gaussian(sigma=share_s * S)``, whose share is estimated
  along.  Of the measured value, `cf.relative`, it would be smaller wherever the reading is too small by chance::

    python examples/fed_batch.py
"""

from __future__ import annotations

import numpy as np

import castfit as cf

TRUTH = {"mu": 0.42, "K": 0.6, "Y": 0.48}
RELATIVE_SIGMA = 0.08  # standard deviation of the measurement errors, relative to the value
TIMES = np.linspace(1.0, 20.0, 39)  # h

X, S, V, F, mu, K, Y, share_x, share_s = cf.symbols("X S V F mu K Y share_x share_s")
growth = mu * S / (K + S) * X
model = cf.Model(
    {X: growth - F / V * X, S: -growth / Y + F / V * (25.0 - S), V: F},
    parameters=[mu, K, Y],
    inputs=[F],
    initial={X: 0.2, S: 8.0, V: 1.0},
)
pump = cf.Input.piecewise_constant([0, 6, 12], [0.0, 0.04, 0.08])  # L/h

rng = np.random.default_rng(1)
exact = cf.simulate(model, TRUTH, TIMES, inputs={"F": pump})
data = {name: exact[name] * (1 + RELATIVE_SIGMA * rng.standard_normal(TIMES.size)) for name in ("X", "S")}


def fitted(noise: dict[str, cf.Gaussian], shares: dict[str, cf.Parameter]) -> cf.Result:
    """Fit with a noise model of each output."""
    guesses = {n: cf.Parameter(v, scale="log") for n, v in {"mu": 0.3, "K": 1.0, "Y": 0.4}.items()}
    experiment = cf.Experiment(data, time=TIMES, inputs={"F": pump}, noise=noise)
    return cf.fit(cf.Problem(model, experiment, parameters={**guesses, **shares}))


def factor(result: cf.Result) -> float:
    """Return by which factor the limits of K's interval differ."""
    low, high = result["K"].interval
    return high / low


constant = fitted({"X": cf.Gaussian(), "S": cf.Gaussian()}, {})
print("One sigma for each output\n\n", constant, "\n", sep="")

share = cf.Parameter(0.1, scale="log", bounds=(1e-3, 1))
result = fitted(
    {"X": cf.Gaussian(sigma=share_x * X), "S": cf.Gaussian(sigma=share_s * S)}, {"share_x": share, "share_s": share}
)
print("A share of the prediction\n\n", result, sep="")

for name, value in TRUTH.items():
    estimate = result[name]
    standardized_error = np.log(estimate.value / value) / (estimate.standard_error / estimate.value)
    print(f"{name}: {estimate.value:.3f}, true {value}, {standardized_error:+.1f} standard errors away")
    assert abs(standardized_error) < 2
print(f"K's limits differ by a factor of {factor(constant):.2f} with constant sigmas, {factor(result):.2f} with shares")

assert result.success
assert constant.diagnostics.outputs["S"].with_prediction.p_value < 1e-3
assert result.diagnostics.outputs["S"].with_prediction.p_value > 0.05
assert np.log(factor(result)) < 0.7 * np.log(factor(constant))
assert result.aic < constant.aic - 20
result.plot()
