"""An epidemic from counts per week
================================

An epidemic from counts per week: influenza in Baltimore, autumn 1918.

What is reported is no state of a model but what happened since the last report, and only a share of it: cases per week,
counted, more variable than Poisson's.

    s' = -b s i,    i' = b s i - g i                    shares of the population
    reported in a week  =  reach * integral of b s i    negative binomial, dispersion unknown

`reach` is the population times the reporting rate, of which only the product can be known from cases.  The mean
duration of infectiousness, 1/g, is known from households to be about 2.6 days; cases alone determine little but b - g,
so this is given as a prior::

    python examples/epidemic.py [PICTURE]

Data: daily onsets among the inhabitants of Baltimore who were visited, W. H. Frost and E. Sydenstricker, Influenza in
Maryland: preliminary statistics of certain localities, Public Health Reports 34 (1919) 491-504; here summed by weeks.
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

import castfit as cf

DAILY = [
    *(5, 1, 6, 15, 2, 3, 8), *(7, 2, 15, 4, 17, 4, 10), *(31, 11, 13, 36, 13, 33, 17), *(15, 32, 27, 70, 58, 32, 69),
    *(54, 80, 405, 192, 243, 204, 280), *(229, 304, 265, 196, 372, 158, 222), *(141, 172, 553, 148, 95, 144, 85),
    *(143, 87, 73, 70, 62, 116, 44), *(38, 60, 45, 60, 27, 51, 34), *(22, 16, 11, 18, 11, 10, 8),
    *(13, 3, 3, 6, 6, 13, 5), *(6, 6, 5, 5, 1, 2, 2), *(3, 8, 4, 1, 2, 3, 1),
]  # fmt: skip
WEEKS = np.arange(1.0, 14.0)
CASES = np.array(DAILY, dtype=float).reshape(13, 7).sum(axis=1)
DAYS_PER_WEEK = 7.0  # days


def problem() -> cf.Problem:
    """Return the question; rates are per week."""
    s, i, b, g, i0, reach = cf.symbols("s i b g i0 reach")
    model = cf.Model(
        {s: -b * s * i, i: b * s * i - g * i},
        parameters=[b, g, i0, reach],
        outputs={"cases": cf.per_interval(reach * b * s * i)},
        initial={s: 1 - i0, i: i0},
    )
    data = cf.Experiment({"cases": CASES}, time=WEEKS, noise={"cases": cf.NegativeBinomial()})
    return cf.Problem(
        model,
        data,
        parameters={
            "b": cf.Parameter(4.0, scale="log", bounds=(0.1, 50)),
            "g": cf.Parameter(
                DAYS_PER_WEEK / 2.6, scale="log", bounds=(0.1, 50), prior=cf.Normal(DAYS_PER_WEEK / 2.6, 0.3)
            ),
            "i0": cf.Parameter(1e-3, scale="log", bounds=(1e-9, 0.5)),
            "reach": cf.Parameter(1e4, scale="log", bounds=(10, 1e7)),
        },
    )


def main() -> None:
    epidemic_problem = problem()
    result = cf.fit(epidemic_problem)
    print(result)
    reproduction = result.parameters["b"] / result.parameters["g"]
    print(f"\nbasic reproduction number {reproduction:.2f}")
    print(result.diagnostics)

    (band,) = result.predict(WEEKS, bands="linear", noise=True).values()
    coverage = np.mean((band["cases lower"] <= CASES) & (band["cases upper"] >= CASES))
    print(f"{100 * coverage:.0f} % of the weeks lie within the 95 % band of new values")

    for transcription in (cf.SingleShooting(), cf.MultipleShooting(5)):
        other_result = cf.fit(epidemic_problem, transcription)
        assert abs(other_result.neg2loglik - result.neg2loglik) < 1e-3, other_result.message
    poisson = cf.fit(
        epidemic_problem.replace(experiments=[cf.Experiment({"cases": CASES}, time=WEEKS, noise=cf.Poisson())])
    )
    print(f"AIC: negative binomial {result.aic:.1f}, Poisson {poisson.aic:.1f}")
    assert result.success
    assert result.aic < poisson.aic - 100
    assert 1.2 < reproduction < 4
    assert coverage >= 0.8

    figure = picture(result)
    if len(sys.argv) > 1:
        figure.savefig(sys.argv[1])


def picture(result: cf.Result) -> Figure:
    """Return weeks as bars, the model, and both bands: of the model, and of new values."""
    (mean,) = result.predict(WEEKS, bands="linear").values()
    (new,) = result.predict(WEEKS, bands="linear", noise=True).values()
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.bar(WEEKS, CASES, width=0.8, color="0.85", label="reported")
    axes.fill_between(
        WEEKS, np.maximum(new["cases lower"], 0), new["cases upper"], alpha=0.2, label="95 % of new values"
    )
    axes.fill_between(WEEKS, mean["cases lower"], mean["cases upper"], alpha=0.5, label="95 % band of the model")
    axes.plot(WEEKS, mean["cases"], "o-", color="C0", label="model")
    axes.set_xlabel("week of the epidemic, Baltimore 1918")
    axes.set_ylabel("cases per week")
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
