"""A batch reactor with ions in equilibrium
========================================

Some of what a model contains is too fast to be followed: ions exchange protons at once, and charges balance at every
moment.  Such parts are algebraic equations, and model and equilibria together are a differential-algebraic equation
(DAE).  This is the one that the Dow Chemical Co. posed in 1981 (Biegler, Damiano and Blau 1986, AIChE J. 32, 29), with
the measurements of one of its experiments.

An acid HA reacts with BM, by its ion; a catalyst M makes the second product AB of it::

    M- + BM  <=> MBM-        A- + BM -> ABM-        M- + AB <=> ABM-          slow, three rate constants
    HA <=> A- + H+           HABM <=> ABM- + H+     MBMH <=> MBM- + H+        at once, two ratios of constants

::

    python examples/batch_reactor_dae.py
"""

from __future__ import annotations

import numpy as np

import castfit as cf

# %%
# The model
# ---------
# Six amounts follow their rates.  Four unknowns follow from four algebraic equations: the ions A, ABM and MBM, and
# S = K2 / [H+], which tells how many protons are about.  The last equation is the balance of charges; it determines S
# although it does not contain it, so the order in which equations are given does not matter.

HA, BM, HABM, AB, MBMH, M = cf.symbols("HA BM HABM AB MBMH M")
S, A, ABM, MBM = cf.symbols("S A ABM MBM")
k1, k2, k_minus_1, beta1, beta2 = cf.symbols("k1 k2 k_minus_1 beta1 beta2")

forward = k1 * M * BM - k_minus_1 * MBM
coupling = k2 * A * BM
exchange = k1 * M * AB - k_minus_1 / 2 * ABM
amounts = {
    HA: -coupling,
    BM: -forward - coupling,
    HABM: coupling + exchange,
    AB: -exchange,
    MBMH: forward,
    M: -forward - exchange,
}
equilibria = {A: A - S * HA, ABM: ABM - beta2 * S * HABM, MBM: MBM - beta1 * S * MBMH}
model = cf.Model(
    amounts,
    algebraic={**equilibria, S: M + A + ABM + MBM - 0.0131},
    parameters=[k1, k2, k_minus_1, beta1, beta2],
    initial={HA: 1.6497, BM: 8.2262, HABM: 0, AB: 0, MBMH: 0, M: 0.0131},
)

# %%
# What is wrong with algebraic equations is said before anything is computed.  Had we added up the equilibria instead of
# the charges, nothing new would have been said; had we used what is conserved, no algebraic state would appear in it:

wrong_equations = {
    "the sum of the equilibria": A + ABM + MBM - S * (HA + beta2 * HABM + beta1 * MBMH),
    "the balance of HA": HA + HABM + AB - 1.6497,
}
for description, equation in wrong_equations.items():
    try:
        cf.Model(amounts, algebraic={**equilibria, S: equation}, parameters=[k1, k2, k_minus_1, beta1, beta2])
        raise AssertionError("this should have been refused")
    except cf.InputError as mistake:
        print(f"With {description}: {mistake}\n")

# %%
# A simulation
# ------------
# Initial values of algebraic states follow from the equations; at most a guess is wanted, here zero.  The first hours
# turn HA into HABM; AB comes later, and there are ever more free ions of the catalyst.

published = {"k1": 1.8934, "k2": 2.7585, "k_minus_1": 1754.0, "beta1": 0.0061894, "beta2": 0.0048}
guess = {"S": 0, "A": 0, "ABM": 0, "MBM": 0}
course = cf.simulate(model, published, [0, 1, 5, 20, 100, 300], initial=guess)
for name in ("time", "HA", "HABM", "AB", "M", "S"):
    print(f"{name:>5}", *(f"{value:10.4g}" for value in course[name]))
charge = course["M"] + course["A"] + course["ABM"] + course["MBM"]
assert np.allclose(charge, 0.0131, rtol=1e-9)
assert np.allclose(course["HA"] + course["HABM"] + course["AB"], 1.6497, rtol=1e-7)  # nothing gets lost

# %%
# The data
# --------
# Four of the amounts were measured 21 times in twelve days, with standard deviations of about 0.02 mol/kg.

library = cf.problems.load("batch_reactor").problem.experiments[0]
experiment = cf.Experiment(library.data, sigma=library.sigma, initial=guess)

# %%
# Four parameters by three transcriptions
# ---------------------------------------
# Shooting integrates, with algebraic states that satisfy their equations at every moment; collocation has them among
# its variables, and they satisfy their equations only in the end.

begin = {"k1": 1.0, "k2": 1.0, "beta1": 0.01, "beta2": 0.01}
start = {name: cf.Parameter(value, scale="log") for name, value in begin.items()}
problem = cf.Problem(model, experiment, parameters={**start, "k_minus_1": cf.Parameter(1754.0, fixed=True)})
methods = {
    "single shooting": cf.SingleShooting(),
    "multiple shooting": cf.MultipleShooting("data"),
    "collocation": cf.Collocation(),
}
results = {name: cf.fit(problem, method) for name, method in methods.items()}
for name, result in results.items():
    values = ", ".join(f"{key} = {value:.5g}" for key, value in result.parameters.items())
    print(f"{name:>17}: {values}; chi2 = {result.chi2:.4f}")
    assert result.success
    assert all(abs(value / published[key] - 1) < 2e-3 for key, value in result.parameters.items())
print(results["collocation"])
figure = results["collocation"].plot()

# %%
# What the data do not tell
# -------------------------
# The rate constant k_minus_1 was held.  Let free, it runs to any bound: only its products with beta1 and beta2 matter,
# and the fit says so.

free = {**start, "beta1": cf.Parameter(0.006, scale="log"), "beta2": cf.Parameter(0.005, scale="log")}
free["k_minus_1"] = cf.Parameter(1754.0, lower=10, upper=1e4, scale="log")
everything = cf.fit(cf.Problem(model, experiment, parameters=free))
print(everything)
assert everything.active == {"k_minus_1": "upper"}
reference, estimates = results["collocation"].parameters, everything.parameters
for name in ("beta1", "beta2"):
    product = 1754.0 * reference[name]
    assert abs(estimates["k_minus_1"] * estimates[name] / product - 1) < 0.1
