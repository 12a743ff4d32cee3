"""Three intervals for one constant
================================

An enzyme uses up its substrate.  Eight noisy values say how fast it can be, but little about the concentration at which
it is half as fast.  What is the 95 % interval of that constant?  The *linear* interval believes that the model is a
straight line in its constants; a *profile* follows the best fit as the constant is held elsewhere; a *bootstrap* draws
data again and again, and looks where the estimates go.  Where a model is curved the last two agree, and the first does
not.
"""

import numpy as np

import castfit as cf

s, v_max, k_m = cf.symbols("s v_max k_m")
model = cf.Model({s: -v_max * s / (k_m + s)}, parameters=[v_max, k_m])
times = np.linspace(0.5, 7.0, 8)
truth = {"v_max": 1.0, "k_m": 0.5}
exact = cf.simulate(model, truth, times, initial={"s": 4.0})["s"]
values = exact + 0.1 * np.random.default_rng(1).standard_normal(times.size)

experiment = cf.Experiment({"s": values}, time=times, sigma=0.1, initial={"s": 4.0})
problem = cf.Problem(
    model, experiment, parameters={"v_max": cf.Parameter(0.8, lower=0.0), "k_m": cf.Parameter(1.0, lower=0.0)}
)
result = cf.fit(problem, "single")
print(result)

# %%
# The bootstrap: 250 data sets, drawn from the noise about the fit; a thousand would be better for limits.  BCa limits
# are its percentiles, corrected for bias and for a spread that grows with the constant.
bootstrap_result = cf.bootstrap(result, "parametric", samples=250, rng=0, transcription="single")
print(bootstrap_result)
figure = bootstrap_result.plot()

# %%
# The profile takes fewer fits, and each of its limits is exact for this one data set.
profiles = cf.profile(result)
print(profiles)

# %%
# All three side by side:
linear, bca, profile = result.confidence_intervals(), bootstrap_result.confidence_intervals(), profiles.limits(0.95)
print(f"{'':8}{'linear':>18}{'bootstrap, BCa':>18}{'profile':>18}")
for name in result.names:
    pairs = (linear[name], bca[name], profile[name])
    print(f"{name:8}" + "".join(f"{f'{low:.3f} to {high:.3f}':>18}" for low, high in pairs))

# The distribution of k_m has a long tail to the right; the linear interval knows nothing of it.
skew = {method: (pair[1] - result["k_m"]) / (result["k_m"] - pair[0]) for method, pair in
        {"linear": linear["k_m"], "BCa": bca["k_m"], "profile": profile["k_m"]}.items()}  # fmt: skip
print({method: round(float(s), 2) for method, s in skew.items()})
assert abs(skew["linear"] - 1.0) < 1e-6
assert skew["BCa"] > 1.1
assert skew["profile"] > 1.1
assert all(low < truth[name] < high for name, (low, high) in profile.items())

# %%
# The two constants go together: draws lie along a curve, of which the ellipse is the straight picture.
figure = cf.plots.pairs(bootstrap_result)

# %%
# On which value does the most depend?  Leaving each one out in turn tells.
print(cf.leave_out(result, "value", transcription="single"))

# %%
# What the draws say about the curve itself, and about new measurements:
figure = result.plot(bands=bootstrap_result, noise=True)
