"""
Is it identifiable, and what to measure next
============================================

A drug is swallowed, enters the blood with the rate ``ka`` and leaves it with ``ke``.  Of the dose the part ``F``
arrives, in a volume ``V`` that nobody knows.  What can be learnt from concentrations in the blood depends on two things
that are easily confused: on the model's structure, and on the data.
"""

import numpy as np

import castfit as cf

# %%
# The model, and twelve samples of a patient: all from the first hour on, so that the rise is over.

gut, blood = cf.symbols("gut blood")
ka, ke, V, F = cf.symbols("ka ke V F")
model = cf.Model(
    {gut: -ka * gut, blood: ka * gut - ke * blood},
    parameters=[ka, ke, V, F],
    outputs={"concentration": blood / V},
    initial={gut: 100 * F, blood: 0},
)
truth = {"ka": 4.0, "ke": 0.25, "V": 20.0, "F": 0.8}
sigma = 0.05
rng = np.random.default_rng(1)


def samples(times):
    """Measure at times."""
    exact = cf.simulate(model, truth, times)["concentration"]
    return cf.Experiment({"concentration": exact + sigma * rng.standard_normal(len(times))}, time=times, sigma=sigma)


late = samples(np.linspace(1, 12, 12))
guesses = {"ka": 2.0, "ke": 0.3, "V": 10.0, "F": 0.5}
all_parameters = {name: cf.Parameter(value, scale="log") for name, value in guesses.items()}

# %%
# Structure first, before any fit: would dense data without errors determine everything?  Exact arithmetic on the
# equations answers that; the values of the data do not matter.  Only the ratio of volume and fraction enters.  More
# data would not help.

problem = cf.Problem(model, late, parameters=all_parameters)
structural_analysis = cf.identifiability(problem, rng=0)
print(structural_analysis)
assert structural_analysis.structure.rank == 3
assert structural_analysis.kinds["V"] == structural_analysis.kinds["F"] == "structurally not identifiable"

# %%
# The fit itself needs no care: the ratio is estimated, V and F have infinite intervals, and nothing breaks.

result = cf.fit(problem)
region = result.confidence_region()
print(region)
assert np.isinf(result.standard_errors["V"])
assert region.axes[-1].sentence == "V*F is not determined"

# %%
# So F is fixed (V then means V/F).  Now everything is identifiable in principle.  But these data hardly know ka: the
# rise was over before the first sample.  That is the other kind, and it is the data's fault.

problem = cf.Problem(model, late, parameters={**all_parameters, "F": cf.Parameter(0.8, fixed=True)})
result = cf.fit(problem)
study = cf.identifiability(result, rng=0)
print(study)
assert study.structure.identifiable
worst = study.region.axes[-1]
assert max(worst.form, key=lambda name: abs(worst.form[name])) == "ka"

# %%
# What to measure next?  The study tries every output at every time: one early sample is worth more than all that
# could follow later.

advice = study.suggestions[0]
print(advice)
assert advice.output == "concentration"
assert advice.time < 1

# %%
# Do as it says, with one sample, and compare.

refined = cf.fit(problem.replace(experiments=[late, samples(np.array([advice.time]))]))
print(refined)
figure = refined.plot()
gain = result.standard_errors["ka"] / result.values["ka"] / (refined.standard_errors["ka"] / refined.values["ka"])
print(f"ka is known {gain:.1f} times better; {advice.error_before / advice.error_after:.1f} times were promised")
assert gain > 1.5
assert 0.5 < gain / (advice.error_before / advice.error_after) < 2
