# ruff: noqa: E501, PT018

# %% [markdown]
# # Unit 5: global search and bad starts
#
# A local method finds the valley that it begins in. You will see how many valleys a plain oscillation has, find the right one in two ways, by many starts and by a
# horizon that grows, and work out how many starts are enough.
#
# Replace every `...` and run the cell; the check at its end says whether it is right, and gives a hint if not.

# %%
import numpy as np
from scipy.optimize import least_squares

import castfit as cf

SIGMA, TRUTH = 0.05, 3.0
times = np.linspace(0.1, 10, 60)
measured = np.sin(TRUTH * times) + SIGMA * np.random.default_rng(2).standard_normal(times.size)


def residuals(w, n=60):
    """Return the weighted residuals of the first n data for x = sin(w t)."""
    return (np.sin(w * times[:n]) - measured[:n]) / SIGMA


# %% checks
# The checks: run this cell, look into it when you are done.
DOTS = "The dots are still there: replace them by your answer."


def check_draw(draw):
    points = draw(np.random.default_rng(0), np.array([1e-3, 1.0]), np.array([1e3, 10.0]), 4000)
    assert points is not ..., DOTS
    assert np.shape(points) == (4000, 2), "There is a row for each point and a column for each parameter."
    assert (
        np.all(points[:, 0] >= 1e-3)
        and np.all(points[:, 0] <= 1e3)
        and np.all(points <= [1e3, 10.0])
        and np.all(points >= [1e-3, 1.0])
    ), "Some points are outside the bounds: draw between log(lower) and log(upper), and take the exponential."
    small = np.mean(points[:, 0] < 1)
    assert 0.45 < small < 0.55, (
        f"Between 0.001 and 1000 half of the points should be below 1; of yours {small:.1%} are. Draw uniformly in the logarithm."
    )
    shares = np.histogram(np.log10(points[:, 0]), 6, (-3, 3))[0] / 4000
    assert np.abs(shares - 1 / 6).max() < 0.03, (
        "Each of the six decades between 0.001 and 1000 should get a sixth of the points: draw the logarithm uniformly."
    )
    assert 0.45 < np.mean(points[:, 1] < 10**0.5) < 0.55, (
        "The second parameter lies between 1 and 10: half of its points should be below the root of 10."
    )
    repeated_draw = draw(np.random.default_rng(1), np.array([1e-3, 1.0]), np.array([1e3, 10.0]), 4000)
    assert not np.allclose(points, repeated_draw), (
        "Draw with the generator `rng` that is given: another one, other points."
    )
    assert abs(np.corrcoef(np.log(points.T))[0, 1]) < 0.1, (
        "Parameters have to be drawn independently of each other: draw n x 2 random numbers."
    )
    print("Right.")


def check_starts(starts_needed):
    for share, confidence in ((0.1, 0.99), (0.37, 0.95)):
        n = starts_needed(share, confidence)
        assert n is not ..., DOTS
        assert n == int(n), "A number of starts is whole: round up."
        assert 1 - (1 - share) ** n >= confidence - 1e-9, (
            "That is too few. All n starts miss with probability (1 - share)^n; this has to be at most 1 - confidence."
        )
        assert 1 - (1 - share) ** (n - 1) < confidence, (
            "That is more than needed: solve (1 - share)^n = 1 - confidence for n, and round up."
        )
    assert starts_needed(0.5, 0.9) == 4, "For a share of one half and 90 % four starts are needed: 1 - 0.5^4 = 0.94."
    print("Right.")


def check_optima(optima):
    costs = np.array([7.0001, 3.0, 7.0, 3.00001, 9.0, 3.0, np.inf])
    answer = optima(costs, 1e-3)
    assert answer is not ..., DOTS
    assert len(answer) == 3, (
        "There are three different optima there, 3, 7 and 9: costs that agree to the tolerance count once, and a fit that failed (inf) is none."
    )
    assert np.allclose([cost for cost, _ in answer], [3, 7, 9], rtol=1e-3), (
        "List the optima by their cost, the best first."
    )
    assert [count for _, count in answer] == [3, 2, 1], (
        "Beside each cost stands how many starts ended there: 3, 2 and 1."
    )
    assert len(optima(np.array([2.0, 2.1, 5.0]), 0.1)) == 2 and len(optima(np.array([2.0, 2.1, 5.0]), 0.01)) == 3, (
        "What counts as one optimum is up to the tolerance that is given, relative to the cost."
    )
    print("Right.")


def check_grow(grow):
    w = grow(4.0)
    assert w is not ..., DOTS
    assert np.ndim(w) == 0 or np.size(w) == 1, "Return the frequency, one number."
    direct = least_squares(residuals, 4.0).x[0]
    assert not np.isclose(w, direct, rtol=1e-3), (
        "That is where the fit to all data ends. Fit the first few data first, and begin each fit where the one before ended."
    )
    assert np.isclose(w, TRUTH, rtol=0.01), (
        "That is not the right valley: begin with few data (five, say), add a few at a time, and end with all 60."
    )
    assert np.isclose(np.squeeze(w), least_squares(residuals, TRUTH).x[0], rtol=1e-5), (
        "Close, but the last fit has to use all 60 data."
    )
    print("Right.")


# %% [markdown]
# ## 1. Valleys
#
# Sixty values of $\sin(\omega t)$ were measured. The cost as a function of $\omega$ has a valley for about every period more or less within the horizon:

# %%
grid = np.linspace(0.5, 6, 2000)
costs = np.array([0.5 * np.sum(residuals(w) ** 2) for w in grid])
bottoms = (costs[1:-1] < costs[:-2]) & (costs[1:-1] < costs[2:])
print(f"{bottoms.sum()} valleys between 0.5 and 6; the deepest at {grid[costs.argmin()]:.2f}")
for n in (60, 20, 5):
    some = np.array([0.5 * np.sum(residuals(w, n) ** 2) for w in grid])
    print(f"with the first {n} data: {((some[1:-1] < some[:-2]) & (some[1:-1] < some[2:])).sum()} valleys")

# %% [markdown]
# ## 2. Where to start
#
# Of a rate constant one often knows the decade at best. Draw starts whose *logarithms* are uniform.


# %%
def draw(rng, lower, upper, n):
    """Return n points, (n, len(lower)), uniform in their logarithms."""
    # solution: rng.uniform(0, 1, ...) may help
    share = rng.uniform(size=(n, len(lower)))
    return np.exp(np.log(lower) + share * (np.log(upper) - np.log(lower)))
    # end


check_draw(draw)

# %% [markdown]
# ## 3. How many starts?
#
# A share of all starts leads to the best valley. How many are needed so that at least one of them does, with some confidence?


# %%
def starts_needed(share, confidence):
    # solution: the smallest whole number of starts
    return int(np.ceil(np.log(1 - confidence) / np.log(1 - share)))
    # end


check_starts(starts_needed)

# %% [markdown]
# ## 4. What many starts found
#
# List the different optima: cost, and how many starts ended there. Whether the best was found once or twenty times tells how far to trust it.


# %%
def optima(costs, tolerance):
    """Return pairs (cost, count), the best first; costs that differ relatively by less than the tolerance are one optimum."""
    # solution: sort, leave out what is infinite, and put together what agrees
    distinct_optima = []
    for cost in np.sort(costs[np.isfinite(costs)]):
        if distinct_optima and cost - distinct_optima[-1][0] <= tolerance * distinct_optima[-1][0]:
            distinct_optima[-1] = (distinct_optima[-1][0], distinct_optima[-1][1] + 1)
        else:
            distinct_optima.append((cost, 1))
    return distinct_optima
    # end


check_optima(optima)

# %%
starts = draw(np.random.default_rng(1), np.array([0.5]), np.array([6.0]), 40)
ended = np.array([least_squares(residuals, start).cost for start in starts])
for cost, count in optima(ended, 1e-3)[:5]:
    print(f"cost {cost:10.2f}   {count} starts")
share = optima(ended, 1e-3)[0][1] / 40
print(f"{share:.0%} of the starts found the best: {starts_needed(share, 0.99)} are enough for 99 %")

# %% [markdown]
# ## 5. A horizon that grows
#
# With few data there is one valley. Fit those first, and let the horizon grow; each fit begins where the one before ended.


# %%
def grow(w):
    """Return the frequency, from the start w, by fits to more and more data."""
    # solution: least_squares(residuals, start, args=(n,)).x[0] fits the first n data
    for n in range(5, 61, 5):
        w = least_squares(residuals, w, args=(n,)).x[0]
    return w
    # end


check_grow(grow)
print("from 4 all data at once lead to", least_squares(residuals, 4.0).x[0], "; growing, to", grow(4.0))

# %% [markdown]
# ## 6. castfit
#
# The same as a differential equation, $\ddot x = -\omega^2 x$: single shooting from a bad start, many starts, and a growing horizon.

# %%
x, v, w = cf.symbols("x v w")
model = cf.Model({x: v, v: -(w**2) * x}, parameters=[w], initial={x: 0, v: w})
problem = cf.Problem(
    model,
    cf.Experiment({"x": measured}, time=times, sigma=SIGMA),
    parameters={"w": cf.Parameter(4.0, lower=0.5, upper=6.0)},
)
single = cf.fit(problem, cf.SingleShooting(), second_start=False, retry=False)
many = cf.multistart(problem, cf.SingleShooting(), cf.GaussNewton(homotopy="never"), starts=8, rng=1)
grown = cf.incremental(problem)
print(f"single shooting   w = {single.parameters['w']:.4f}   chi2 = {single.chi2:.1f}")
print(f"eight starts      w = {many.best.parameters['w']:.4f}   chi2 = {many.best.chi2:.1f}")
print(f"growing horizon   w = {grown.result.parameters['w']:.4f}   chi2 = {grown.result.chi2:.1f}")
print(many)
assert np.isclose(many.best.parameters["w"], grow(4.0), rtol=1e-3)

# %% [markdown]
# How often the eight starts ended where:

# %%
cf.plots.waterfall(many)
