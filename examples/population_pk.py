"""A population: theophylline in twelve subjects
=============================================

A population: theophylline in twelve subjects, as mixed effects, beside R's nlme.

Twelve subjects swallowed theophylline, and its concentration in their serum was measured eleven times over a day
(Boeckmann, Sheiner and Beal 1994).  Nobody asks for the parameters of these twelve: what matters is how absorption and
clearance are distributed in people.  That is a mixed-effects model; R's ``nlme`` ships these very data with it::

    python examples/population_pk.py
"""

from __future__ import annotations

import numpy as np

import castfit as cf

# %%
# The model and the subjects
# --------------------------
# One compartment with absorption from the gut.  Doses are per kilogram of body weight, so the clearance is, too.

gut, body, ka, ke, CL = cf.symbols("gut body ka ke CL")
model = cf.Model(
    {gut: -ka * gut, body: ka * gut - ke * body},
    parameters=[ka, ke, CL],
    outputs={"conc": body * ke / CL},
    initial={body: 0},
)

# %%
# The library has the table; every subject is an experiment, with the dose in the gut at the start.  Nothing is said of
# the noise: its standard deviation is estimated.

subjects = list(cf.problems.load("theophylline").problem.experiments)
print(subjects[0])

problem = cf.Problem(
    model,
    subjects,
    parameters={
        "ka": cf.Parameter(1.0, local=True),  # every subject has its own,
        "CL": cf.Parameter(0.05, local=True),
        "ke": cf.Parameter(0.1, scale="log"),  # this one is common to all
    },
    units={"time": "h", "conc": "mg/L", "ka": "1/h", "ke": "1/h", "CL": "L/h/kg"},
)

# %%
# Two-stage estimates would fit each subject by itself.  They scatter more than the subjects do, since each carries its
# own error; that of ka in subject 9, who absorbs at once, is half of the value:

separate_fit = cf.fit(problem, "single")
print(
    f"ka of subject 9: {separate_fit.values['ka[subject 9]']:.1f} ± "
    f"{separate_fit.standard_errors['ka[subject 9]']:.1f} per hour"
)

# %%
# The population
# --------------
# ``cf.Population`` says how own parameters are distributed: log-normally, uncorrelated.  `omega` is the guess of the
# standard deviation of the logarithm.

population = cf.Population({"ka": cf.Individual(omega=0.5), "CL": cf.Individual(omega=0.3)})
result = cf.mixed_effects(problem, population)
print(result)

# %%
# The same from R 4.2, nlme 3.1-162, by maximum likelihood (``nlme(conc ~ SSfol(Dose, Time, lKe, lKa, lCl), Theoph,
# fixed = lKe + lKa + lCl ~ 1, random = pdDiag(lKa + lCl ~ 1))``).  nlme holds the sensitivities while it moves the
# typical values, so that it ends beside the maximum, by a few percent of the standard errors.

nlme = {
    "ka": np.exp(0.465737),
    "CL": np.exp(-3.227223),
    "ke": np.exp(-2.454705),
    "sigma(conc)": 0.709255,
    "omega(ka)": 0.643574,
    "omega(CL)": 0.166928,
}
print(f"{'':12} {'castfit':>10} {'nlme':>10}")
for name, value in nlme.items():
    print(f"{name:12} {result.values[name]:10.5g} {value:10.5g}")
    assert abs(result.values[name] / value - 1) < 0.05
print(f"{'log L':12} {-result.neg2loglik / 2:10.3f} {-177.0214:10.3f}")
assert -result.neg2loglik / 2 > -177.0214 - 0.01

# %%
# Individuals
# -----------
# What is known of each subject combines its data with the population.  Subject 9 is drawn towards the others: from an
# absorption of 9 per hour, of which its data know little, to three quarters of that.

nine = result.individuals["subject 9"]
print(nine)
assert 1.6 < nine.parameters["ka"] < separate_fit.values["ka[subject 9]"]

# %%
# In all, data say much of each subject: nearly no shrinkage.

print({name: f"{100 * share:.0f} %" for name, share in result.shrinkage.items()})
figure = result.plot()

# %%
# A question to the population: does ke vary, too?
# ------------------------------------------------
# With a distribution for ke, its omega goes to its bound, where there is no variation: the likelihood does not rise.

own_ke = problem.replace(parameters={**problem.parameters, "ke": cf.Parameter(0.1, local=True)})
everything = cf.Population({name: cf.Individual(omega=0.3) for name in ("ka", "CL", "ke")})
wider = cf.mixed_effects(own_ke, everything, standard_errors=False)
print(f"-2 log L falls by {result.neg2loglik - wider.neg2loglik:.3f}; omega(ke) = {wider.values['omega(ke)']:.2g}")
assert result.neg2loglik - wider.neg2loglik < 3.84  # the 95 % quantile for one more parameter
