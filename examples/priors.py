"""Priors
======

Priors: what is known beforehand, what earlier data say, and which of several patients differ.

A drug is swallowed, absorbed into the blood at a rate ka, and eliminated at a rate ke::

    gut' = -ka gut,    blood' = ka gut - ke blood,    measured: concentration = blood / V

1. Blood was drawn only after the absorption was nearly over: ka needs what the literature says of it.
2. A second study goes on from the first: its result is the prior.
3. Four patients have an elimination rate each; the lasso finds out who is not like the others.
"""

import numpy as np

import castfit as cf

gut, blood = cf.symbols("gut blood")
ka, ke, V = cf.symbols("ka ke V")
model = cf.Model(
    {gut: -ka * gut, blood: ka * gut - ke * blood},
    parameters=[ka, ke, V],
    outputs={"concentration": blood / V},
)
TRUE = {"ka": 1.5, "ke": 0.2, "V": 20.0}
rng = np.random.default_rng(6)


def study(times, name, **other):
    """Simulate measurements with an error of 0.1 after a dose of 100."""
    p = {**TRUE, **other}
    share = p["ka"] / (p["ka"] - p["ke"]) * (np.exp(-p["ke"] * times) - np.exp(-p["ka"] * times))
    concentration = 100 * share / p["V"] + 0.1 * rng.standard_normal(times.size)
    data = {"concentration": concentration}
    return cf.Experiment(data, time=times, sigma=0.1, initial={"gut": 100.0, "blood": 0.0}, name=name)


# 1. What the literature says: a rate of absorption of 1.4 per hour, give or take a fifth; a clearance, which is an
#    expression of two parameters, of 4.2 +- 0.4 litres per hour.
late = study(np.array([3.0, 4.0, 6.0, 8.0, 12.0]), "late samples")
guess = {"ka": cf.Parameter(1.0, lower=0, upper=20), "ke": cf.Parameter(0.3, lower=0), "V": cf.Parameter(15.0, lower=0)}
literature_priors = {ka: cf.priors.LogNormal(np.log(1.4), 0.2), ke * V: cf.Normal(4.2, 0.4)}

late_fit = cf.fit(cf.Problem(model, late, parameters=guess, priors=literature_priors))
print(late_fit, end="\n\n")
influence = cf.prior_influence(late_fit)
print(influence, end="\n\n")
assert late_fit.success
assert abs(late_fit.parameters["ka"] - 1.5) < 2 * late_fit.standard_errors["ka"]
assert influence.shares["ka"] > 0.5  # most of what is known of ka is known from the literature

# 2. An earlier result as prior: the same as fitting all data at once, without the data of the first study.
early = study(np.array([0.25, 0.5, 1.0, 2.0, 5.0]), "early samples")
second = cf.fit(cf.Problem(model, early, parameters=guess, priors=cf.Prior(late_fit)))
full_fit = cf.fit(cf.Problem(model, [late, early], parameters=guess, priors=literature_priors))
print("          ", "first      ", "then second", "both at once")
for name in TRUE:
    row = (f"{r.parameters[name]:.3f} +- {r.standard_errors[name]:.3f}" for r in (late_fit, second, full_fit))
    print(f"{name:>10} ", "  ".join(row))
    assert abs(second.parameters[name] - full_fit.parameters[name]) < 0.5 * full_fit.standard_errors[name]

# 3. Each patient has an elimination rate of its own, equal to that of the first unless the data object.
times = np.array([0.5, 1.0, 2.0, 4.0, 7.0, 10.0])
rates = {"A": 0.2, "B": 0.2, "C": 0.32, "D": 0.2}
patients = [study(times, name, ke=rate) for name, rate in rates.items()]
local = {**guess, "ke": cf.Parameter(0.3, lower=0.01, scale="log", local=True)}
equal = cf.lasso("ke", 60.0, towards="equal", on="log")
chosen = cf.fit(cf.Problem(model, patients, parameters=local, priors=equal))
print()
print(chosen)
figure = chosen.plot()
assert "At the kink of the prior: ke[B] / ke[A], ke[D] / ke[A]. Off it: ke[C] / ke[A]." in chosen.message
assert abs(chosen.parameters["ke[B]"] / chosen.parameters["ke[A]"] - 1) < 1e-8
