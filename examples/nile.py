"""
The Nile: a model that errs, and why
====================================

For a hundred years the flow of the Nile was measured at Aswan. What was its level, apart from good and bad years? A
level that never changes is a poor model, and its intervals are far too short. A level that walks is an honest one. And
once it is known what disturbed it, nothing is left to walk.

Data: annual flow at Aswan, 1871 to 1970, in 1e8 cubic metres (Cobb 1978; Durbin and Koopman 2012, section 2.2.5).
"""

import matplotlib.pyplot as plt
import numpy as np

import castfit as cf

# fmt: off
FLOW = np.array([
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180, 799, 958, 1140,
    1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833, 701, 916, 692, 1020, 1050, 969,
    831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759,
    781, 865, 845, 944, 984, 897, 822, 1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890,
    744, 749, 838, 1050, 918, 986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
], dtype=float)
# fmt: on
YEARS = np.arange(1871.0, 1971.0)
level, w, s, fall = cf.symbols("level w s fall")
common_arguments = {"time": YEARS, "sigma": cf.unknown(), "start": 1871}

# %%
# A level that never changes
# --------------------------
# The residuals of neighbouring years are alike, and the fit says so: the model misses something, and the interval of
# the level, 886 to 953, is worth nothing.
constant = cf.Model({level: 0})
constant_fit = cf.fit(
    cf.Problem(constant, cf.Experiment({"level": FLOW}, **common_arguments, initial={"level": cf.free(900)}))
)
print(constant_fit)

# %%
# A level that walks
# ------------------
# ``w`` is white noise of unit intensity, so that the level wanders off by s in a year, and by ten times as much in a
# century. Level, s and the errors of measurement follow from one likelihood: that of Durbin and Koopman.
walking = cf.Model({level: s * w}, parameters=[s], noises=[w])
level_prior = {"level": cf.Normal(1000, 1000)}
parameters = {"s": cf.Parameter(20.0, scale="log")}
walk = cf.fit(
    cf.Problem(walking, cf.Experiment({"level": FLOW}, **common_arguments, initial=level_prior), parameters=parameters)
)
print(walk)

# %%
# What is left is white: that is what the model says of itself, and it could have been otherwise.
print(walk.laplace_check(rng=0))

# %%
# A dam
# -----
# In 1899 the works at the first dam of Aswan began. A fall by an unknown amount explains so much that the level has no
# reason left to walk: s may be 0.
dam = cf.Model({level: s * w}, parameters=[s], noises=[w])
change = cf.Event(1898.5, {level: level - fall})
experiment = cf.Experiment({"level": FLOW}, **common_arguments, initial=level_prior, events=[change])
dam_fit = cf.fit(cf.Problem(dam, experiment, parameters={**parameters, "fall": 200.0}))
print(dam_fit)

# %%
figure, axes = plt.subplots(figsize=(8, 4))
axes.plot(YEARS, FLOW, ".", color="0.5", label="flow")
for result, name, colour in ((walk, "a level that walks", "C0"), (dam_fit, "with a fall in 1899", "C3")):
    band = result.path("level")
    axes.plot(band.times, band.values, color=colour, label=name)
    axes.fill_between(band.times, band.lower, band.upper, color=colour, alpha=0.2, linewidth=0)
axes.set_ylabel("1e8 cubic metres a year")
axes.legend()
plt.show()

assert abs(walk.values["s"] ** 2 - 1469.1) < 15
assert abs(walk.values["sigma(level)"] ** 2 - 15099) < 30
assert dam_fit["s"].verdict == "may be 0"
assert dam_fit.aic < walk.aic - 10
assert 190 < dam_fit.values["fall"] < 310
