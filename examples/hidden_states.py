"""
Hidden states: a nerve of which only the voltage is recorded
============================================================

FitzHugh's and Nagumo's nerve has a voltage and a recovery that nobody can measure; the amplifier's gain is unknown,
and of the constants we know four decades. A simulation from a wrong guess fires at the wrong times, and every peak
stands where a trough should be. States that begin constant, and equations that harden step by step, find the answer.
"""

import matplotlib.pyplot as plt
import numpy as np

import castfit as cf

# %%
# The recording
# -------------
# Eighty time units, nine periods, a value every half unit. The problem is in the library; its data are simulated.
benchmark = cf.problems.load("fitzhugh_nagumo")
problem = benchmark.problem
print(benchmark.description)

# %%
# From a guess that is wrong by factors of four and five
# ------------------------------------------------------
# Single shooting sees one trajectory, and that one has another period.
guess = {"a": 0.05, "b": 1.0, "c": 10.0, "gain": 10.0}
direct = cf.fit(problem, "single", start=guess, max_time=20)
print(direct.success, direct.chi2)

# %%
# Soft equations
# --------------
# The states begin constant. Violating an equation costs little at first, so that the data pull the voltage to where it
# was recorded; then the price rises, and the constants follow. The fit that comes after it is the ordinary one.
result = cf.fit(problem, start=cf.SoftStart(guess))
print(result.summary())

# %%
# The recovery was never measured; the model says what it did.
times = np.linspace(0, 80, 801)
(prediction,) = result.predict(times, outputs={"recovery": cf.symbols("w")}).values()
(poor,) = direct.predict(times).values()
points = problem.conditions[0].points
figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5))
above.plot(points.times, points.values[:, 0], ".", color="0.6", label="recording")
above.plot(times, prediction["recording"], label="soft start")
above.plot(times, poor["recording"], ":", label="single shooting")
above.set_ylabel("recording")
above.legend(loc="upper right")
below.plot(times, prediction["recovery"])
below.set_ylabel("recovery")
below.set_xlabel("time")
plt.show()

assert benchmark.reference.is_reached(result.chi2)
assert result.chi2 < direct.chi2
