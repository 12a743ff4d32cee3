"""
Sunspots: a pendulum that boys pelt with peas
=============================================

The number of sunspots swings with a period of about eleven years. In 1927 Udny Yule asked what disturbs it. Errors of
measurement, superposed on the swing of a pendulum? Or is it the pendulum itself that is hit, as if boys had got into
the room and were pelting it with peas, now from one side, now from the other? A blow is never forgotten: the phase of
all that follows has changed.

Data: yearly means of Wolf's and Wolfer's sunspot numbers, 1749 to 1924, the years that Yule took (National Geophysical
Data Center; public domain). Their roots are modelled, so that a quiet sun and a stormy one are hit alike.
"""

import matplotlib.pyplot as plt
import numpy as np

import castfit as cf

# fmt: off
NUMBERS = np.array([
    80.9, 83.4, 47.7, 47.8, 30.7, 12.2, 9.6, 10.2, 32.4, 47.6, 54, 62.9, 85.9, 61.2, 45.1, 36.4, 20.9, 11.4, 37.8,
    69.8, 106.1, 100.8, 81.6, 66.5, 34.8, 30.6, 7, 19.8, 92.5, 154.4, 125.9, 84.8, 68.1, 38.5, 22.8, 10.2, 24.1,
    82.9, 132, 130.9, 118.1, 89.9, 66.6, 60, 46.9, 41, 21.3, 16, 6.4, 4.1, 6.8, 14.5, 34, 45, 43.1, 47.5, 42.2,
    28.1, 10.1, 8.1, 2.5, 0, 1.4, 5, 12.2, 13.9, 35.4, 45.8, 41.1, 30.1, 23.9, 15.6, 6.6, 4, 1.8, 8.5, 16.6, 36.3,
    49.6, 64.2, 67, 70.9, 47.8, 27.5, 8.5, 13.2, 56.9, 121.5, 138.3, 103.2, 85.7, 64.6, 36.7, 24.2, 10.7, 15, 40.1,
    61.5, 98.5, 124.7, 96.3, 66.6, 64.5, 54.1, 39, 20.6, 6.7, 4.3, 22.7, 54.8, 93.8, 95.8, 77.2, 59.1, 44, 47, 30.5,
    16.3, 7.3, 37.6, 74, 139, 111.2, 101.6, 66.2, 44.7, 17, 11.3, 12.4, 3.4, 6, 32.3, 54.3, 59.7, 63.7, 63.5, 52.2,
    25.4, 13.1, 6.8, 6.3, 7.1, 35.6, 73, 85.1, 78, 64, 41.8, 26.2, 26.7, 12.1, 9.5, 2.7, 5, 24.4, 42, 63.5, 53.8,
    62, 48.5, 43.9, 18.6, 5.7, 3.6, 1.4, 9.6, 47.4, 57.1, 103.9, 80.6, 63.6, 37.6, 26.1, 14.2, 5.8, 16.7,
], dtype=float)
# fmt: on
YEARS = np.arange(1749.0, 1925.0)

# %%
# Errors of measurement
# ---------------------
# An undisturbed pendulum has one period for all time. It drifts in and out of step with the sun, and the fit says that
# its residuals are no noise.
x, v, w, level, period, memory, s = cf.symbols("x v w level period memory s")
pull = (2 * np.pi / period) ** 2 + 1 / memory**2
root = {"root": level + x}
data = {"root": np.sqrt(NUMBERS)}
undriven_model = cf.Model({x: v, v: -((2 * np.pi / period) ** 2) * x}, parameters=[level, period], outputs=root)
swing = cf.Experiment(data, time=YEARS, start=1749, sigma=cf.unknown(), initial={"x": cf.free(2), "v": cf.free(0)})
superposed = cf.fit(cf.Problem(undriven_model, swing, parameters={"level": 6, "period": 11.1}))
print(superposed)

# %%
# Blows
# -----
# Now the pendulum loses its swing over a memory of some years, and white noise hits its velocity. Level, period,
# memory, the strength of the blows and errors of measurement are estimated by one likelihood, with the path. What is
# left is white, and the period is known to a year or so, not to a month as the undisturbed pendulum would have it.
start = {"x": cf.Normal(0, 4), "v": cf.Normal(0, 3)}
disturbed = cf.Model(
    {x: v, v: -pull * x - 2 / memory * v + s * w}, parameters=[level, period, memory, s], noises=[w], outputs=root
)
parameters = {
    "level": 6.0,
    "period": cf.Parameter(11.0, scale="log"),
    "memory": cf.Parameter(10.0, scale="log"),
    "s": cf.Parameter(1.0, scale="log"),
}
hit = cf.Experiment(data, time=YEARS, start=1749, sigma=cf.unknown(), initial=start)
pelted = cf.fit(cf.Problem(disturbed, hit, parameters=parameters))
print(pelted)

# %%
# What a blow does to a forecast
# ------------------------------
# Up to 1900 the numbers come in one by one; then nothing more is measured. The forecast swings on, and its band opens
# within half a cycle: nobody knows what the boys will throw. (Period, memory and blows are those of the whole series.)
estimator = cf.moving_horizon(pelted, horizon=20)
for year, value in zip(YEARS[YEARS <= 1900], data["root"], strict=False):
    estimator.step(year, {"root": value})
ahead = YEARS[YEARS > 1900]
steps = [estimator.step(year, {}) for year in ahead]
expected = pelted.values["level"] + np.array([step.states["x"] for step in steps])
deviation = np.hypot([step.deviations["x"] for step in steps], pelted.values["sigma(root)"])

figure, (above, below) = plt.subplots(2, figsize=(9, 5.4), layout="constrained")
above.plot(YEARS, data["root"], "k.", markersize=4, label="data")
above.plot(YEARS, superposed.predictions, color="tab:red", linewidth=1, label="undisturbed, with errors of measurement")
band = pelted.path("root")
above.fill_between(band.times, band.lower, band.upper, color="tab:blue", alpha=0.25)
above.plot(band.times, band.values, color="tab:blue", linewidth=1, label="pelted with peas")
above.set(ylabel="root of the number", ylim=(-1, 16), xlim=(1745, 1928))
above.legend(ncols=3, fontsize=8, loc="upper left")
below.plot(YEARS, data["root"], "k.", markersize=4, label="data")
below.fill_between(ahead, expected - 1.96 * deviation, expected + 1.96 * deviation, color="tab:blue", alpha=0.25)
below.plot(ahead, expected, color="tab:blue", label="forecast of 1900, with 95 % band")
below.axvline(1900, color="0.6", linestyle=":")
below.set(xlabel="year", ylabel="root of the number", xlim=(1870, 1928), ylim=(-1, 16))
below.legend(ncols=2, fontsize=8, loc="upper left")
plt.show()

period_estimate = pelted["period"]
assert superposed.diagnostics.outputs["root"].autocorrelation.grade == "shown"
assert pelted.success
assert period_estimate.interval[0] < 11.1 < period_estimate.interval[1], (
    period_estimate
)  # what was long known as the mean period
assert pelted.aic < superposed.aic - 100
inside = np.abs(np.sqrt(NUMBERS)[YEARS > 1900] - expected) < 1.96 * deviation
assert inside.mean() > 0.85
