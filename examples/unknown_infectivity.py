"""An epidemic whose infectivity changes, nobody knows how
===========================================================

Contacts fall when people grow careful, rise again when they forget.  The infectivity b(t) is then no parameter but an
unknown function of time.  It is estimated from weekly counts together with the number of people infected at first:

    s' = -b(t) s i,    i' = b(t) s i - g i            shares of the population
    reported in a week  =  N * reported share * integral of b s i,  Poisson

The data are synthetic, so that we can look whether the truth lies in the band.

    python examples/unknown_infectivity.py [PICTURE]
"""

from __future__ import annotations

import sys

import numpy as np

import castfit as cf

WEEKS = np.arange(1.0, 31.0)
PEOPLE, REPORTED = 1e6, 0.4
RECOVERY_RATE = 7.0 / 5.0  # recovery rate per week: five days on average
INITIAL_INFECTED_SHARE = 2e-4  # share of people infected at the start

# %%
# What happened
# -------------
# Measures in week 5 halve the infectivity within two weeks; from week 14 on they are forgotten bit by bit.


def infectivity(t: np.ndarray) -> np.ndarray:
    """Return the true b(t), per week."""
    careful = 1.0 / (1.0 + np.exp(-(t - 5.0) / 0.7)) - 0.6 / (1.0 + np.exp(-(t - 16.0) / 2.0))
    return 2.6 * (1.0 - 0.55 * careful)


def draw(rng: np.random.Generator) -> np.ndarray:
    """Draw weekly counts of the true epidemic."""
    fine = np.linspace(0, WEEKS[-1], 601)
    experiment = cf.Experiment({"cases": np.ones(WEEKS.size)}, time=WEEKS, noise=cf.Poisson(),
                          inputs={"b": cf.Input.linear(fine, infectivity(fine))})  # fmt: skip
    expected = cf.simulate(cf.Problem(model(), experiment, parameters=START))["experiment 1"]["cases"]
    return rng.poisson(expected)


START = {"i0": cf.Parameter(INITIAL_INFECTED_SHARE, scale="log", bounds=(1e-7, 0.1))}


def model() -> cf.Model:
    """Return the epidemic, with infectivity as an input."""
    s, i, b, i0 = cf.symbols("s i b i0")
    return cf.Model(
        {s: -b * s * i, i: b * s * i - RECOVERY_RATE * i},
        parameters=[i0],
        inputs=[b],
        outputs={"cases": cf.per_interval(PEOPLE * REPORTED * b * s * i), "reproduction": b * s / RECOVERY_RATE},
        initial={s: 1 - i0, i: i0},
    )


# %%
# What is asked
# -------------
# ``Input.estimated`` makes the values of b at its knots quantities of the problem, one per week here.  On a logarithmic
# scale b stays positive.  Far fewer than 31 values can be told apart by 30 counts; how smooth b is, the data say
# themselves: the weight of the roughness is the likeliest one.


def problem(counts: np.ndarray) -> cf.Problem:
    """Return the question."""
    unknown = cf.Input.estimated(np.arange(0.0, 31.0), "cubic_spline", guess=1.5, scale="log")
    data = cf.Experiment({"cases": counts}, time=WEEKS, noise=cf.Poisson(), inputs={"b": unknown})
    return cf.Problem(model(), data, parameters=START)


def inside(result: cf.Result) -> np.ndarray:
    """Tell at which times the truth lies in the 95 % band."""
    (band,) = result.estimated_inputs(np.linspace(0, 30, 121)).values()
    truth = infectivity(band["time"])
    return (band["b lower"] <= truth) & (truth <= band["b upper"])


def main() -> None:
    result = cf.fit(problem(draw(np.random.default_rng(1))))
    assert result.success, result.message

    # %%
    # What was found
    # --------------
    # The last lines of the table say how many degrees of freedom b uses.  They count in AIC as parameters do.
    print(result)

    (band,) = result.estimated_inputs(np.arange(0.0, 31.0, 5.0)).values()
    print("\nweek  infectivity   95 % band      truth")
    for row in zip(band["time"], band["b"], band["b lower"], band["b upper"], infectivity(band["time"]), strict=True):
        print("{:4.0f}  {:11.2f}   {:.2f} - {:.2f}   {:8.2f}".format(*row))
    share = inside(result).mean()
    print(f"\nThe truth lies in the band at {100 * share:.0f} % of all times.")
    assert share > 0.85
    assert 5 < result.effective["b"] < 25

    result.plot(*sys.argv[1:])


if __name__ == "__main__":
    main()
