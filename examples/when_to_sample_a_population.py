"""When to sample a population
===========================

How many subjects, who is measured when, and how well typical values and the variation between subjects are known then.

Warfarin by mouth: 32 subjects, eight blood samples each, is the first example of the R package PopED.  Clearance CL,
volume V and absorption ka differ between subjects; errors are additive (a) and proportional (b)::

    gut' = -ka gut        blood' = ka gut - CL / V blood        conc = blood / V

- What misleads: equal distances.  Absorption is over within hours, while clearance shows after days.
- What helps: to ask for a mix.  With three samples a subject no single schedule tells everything: some subjects tell of
  absorption, others of clearance and the noise.  How many there are of each kind is a convex problem, and its
  certificate holds for all schedules that were compared::

    python examples/when_to_sample_a_population.py
"""

from __future__ import annotations

import numpy as np

import castfit as cf

gut, blood, conc, CL, V, ka, a, b = cf.symbols("gut blood conc CL V ka a b")
rates = {gut: -ka * gut, blood: ka * gut - CL / V * blood}
model = cf.Model(rates, parameters=[CL, V, ka], outputs={"conc": blood / V}, initial={gut: 70.0, blood: 0.0})
times = np.array([0.5, 1, 2, 6, 24, 36, 72, 120])  # h
pilot = cf.Experiment({"conc": np.ones(8)}, times, sigma={"conc": cf.sqrt(a**2 + (b * conc) ** 2)})
guesses = {n: cf.Parameter(v, local=True) for n, v in {"CL": 0.15, "V": 8.0, "ka": 1.0}.items()}
guesses |= {n: cf.Parameter(v, lower=0, scale="log") for n, v in {"a": 0.5, "b": 0.1}.items()}
units = {"time": "h", "conc": "mg/L", "CL": "L/h", "V": "L", "ka": "1/h"}
problem = cf.Problem(model, pilot, parameters=guesses, units=units)
omega = {"CL": 0.07**0.5, "V": 0.02**0.5, "ka": 0.6**0.5}
population = cf.Population({n: cf.Individual(omega=v) for n, v in omega.items()})

# %%
# The schedule of the textbook.  PopED prints 5.096246 % for CL, 3.031164 % for V, 14.260384 % for ka.

adult_design = cf.design(problem, cf.Candidate(times, name="adults"), budget=32, population=population)
print(adult_design)

# %%
# Eight times of a grid, chosen.  Each time may be moved a little between those of the grid; samples of one subject are
# at least an hour apart.

grid = np.concatenate([np.arange(0.5, 6, 0.5), np.arange(6, 25, 2), np.arange(28, 121, 4)])
eight = cf.Candidate(grid, per_subject=8, spacing=1, continuous_times=True, name="adults")
better = cf.design(problem, eight, budget=32, population=population)
print(better)
worth = np.exp((adult_design.value - better.value) / len(better.after))
print(f"{32 / worth:.1f} of these subjects tell as much as 32 of the first schedule.")

# %%
# Three samples of each of 64 subjects are 192 instead of 256, and typical values are known better.

three = cf.Candidate(grid, per_subject=3, spacing=1, name="adults")
mixed = cf.design(problem, three, budget=64, population=population)
print(mixed)
figure = mixed.plot()

# %%
# Is it true?  The information is that of a linear approximation.  One simulated trial, fitted by mixed effects, whose
# standard errors do not know of it:

rng = np.random.default_rng(3)
trial = []
for subject in mixed.experiments:
    individual_parameters = {
        n: v * np.exp(omega[n] * rng.standard_normal()) for n, v in {"CL": 0.15, "V": 8.0, "ka": 1.0}.items()
    }
    t = subject.data["conc"][0]
    true = cf.simulate(model, individual_parameters, t, start=0)["conc"]
    values = true + np.sqrt(0.5**2 + (0.1 * true) ** 2) * rng.standard_normal(t.size)
    trial.append(subject.with_values({"conc": values}))
result = cf.mixed_effects(mixed.problem.replace(experiments=trial), population)
print(result)
for name in ("CL", "V", "ka", "omega(CL)", "omega(ka)"):
    print(f"{name}: promised ±{100 * mixed.after[name]:.1f} %, this trial ±{100 * result[name].relative_error:.1f} %")

assert abs(100 * adult_design.after["CL"] - 5.096246) < 1e-5
assert worth > 1.15
assert better.efficiency > 0.999
assert mixed.efficiency > 0.99
assert np.count_nonzero(mixed.counts) > 1
assert abs(result["CL"].relative_error / mixed.after["CL"] - 1) < 0.4
