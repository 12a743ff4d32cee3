"""Influenza at a boarding school
==============================

Influenza at a boarding school in 1978: two kinds of errors, two answers, and no overlap.

Of 763 boys one came back ill; two weeks later 512 had been in bed.  Boys in bed are taken for the infectious ones::

    s' = -beta s i / 763        i' = beta s i / 763 - gamma i        in bed: i

- What misleads: an interval that is narrow because the errors were assumed so.  With one sigma for all days the days of
  many boys decide, and 1/gamma is 2.3 days.  With counts more variable than Poisson's, as the case study in Stan by
  L. Grinsztajn and others takes them, the first and the last days count as well, and it is 1.8 days.  The 95 %
  intervals exclude each other's estimates.
- What helps: to fit with either and to say which.  Fourteen values cannot tell the two apart, by AIC; and both models
  of the errors leave residuals whose neighbours are alike::

    python examples/boarding_school.py

Data: Influenza in a boarding school, British Medical Journal 1 (1978) 587, read off its figure, as tabulated in the R
package outbreaks.
"""

from __future__ import annotations

import numpy as np

import castfit as cf

IN_BED = [3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4]
POPULATION_SIZE = 763.0  # number of boys
SAME = {"beta": 1.66923, "gamma": 0.443450}  # by SciPy: solve_ivp (LSODA, 1e-10) and least_squares
COUNTS = {"beta": 1.72664, "gamma": 0.541046}  # and minimize (Nelder-Mead), with nbinom's density written out

s, i, beta, gamma = cf.symbols("s i beta gamma")
model = cf.Model(
    {s: -beta * s * i / POPULATION_SIZE, i: beta * s * i / POPULATION_SIZE - gamma * i},
    parameters=[beta, gamma],
    initial={s: POPULATION_SIZE - 1, i: 1},
    outputs={"in bed": i},
)


def fitted(noise: cf.Gaussian | cf.NegativeBinomial) -> cf.Result:
    """Fit with a noise model."""
    experiment = cf.Experiment({"in bed": IN_BED}, time=np.arange(1.0, 15.0), noise=noise)
    parameters = {n: cf.Parameter(v, scale="log") for n, v in {"beta": 1.0, "gamma": 1.0}.items()}
    return cf.fit(cf.Problem(model, experiment, parameters=parameters))


same, counts = fitted(cf.Gaussian()), fitted(cf.NegativeBinomial())
for result, by_scipy in ((same, SAME), (counts, COUNTS)):
    print(result, "\n")
    assert result.success
    for name, value in by_scipy.items():
        assert abs(result[name].value - value) < 1e-3 * value

for result, label in ((same, "one sigma"), (counts, "counts")):
    duration, reproduction = 1 / result.parameters["gamma"], result.parameters["beta"] / result.parameters["gamma"]
    print(f"{label}: in bed for {duration:.2f} days, reproduction number {reproduction:.1f}, AIC {result.aic:.1f}")

assert same["gamma"].interval[1] < counts["gamma"].value
assert counts["gamma"].interval[0] > same["gamma"].value
assert abs(same.aic - counts.aic) < 5
assert all(r.diagnostics.outputs["in bed"].autocorrelation.number > 0.3 for r in (same, counts))
counts.plot()
