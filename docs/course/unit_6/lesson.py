# ruff: noqa: E501, PT018

# %% [markdown]
# # Unit 6: uncertainty, identifiability, design
#
# An estimate without an error is worth little. You will compute standard errors and intervals from a Jacobian, find out which combination of parameters
# the data do not know, draw a profile, and choose the next measurement.
#
# Replace every `...` and run the cell; the check at its end says whether it is right, and gives a hint if not.

# %%
import numpy as np
from scipy import stats
from scipy.optimize import least_squares

import castfit as cf

SIGMA = 0.05
times = np.array([1.0, 2.0, 3.0, 4.0, 6.0, 8.0])


def concentration(theta, t):
    """Return the concentration after a dose: absorbed at the rate ka, eliminated at the rate ke."""
    ka, ke = theta
    return 5 * ka / (ka - ke) * (np.exp(-ke * t) - np.exp(-ka * t))


def jacobian(theta, t):
    """Return the derivatives of the weighted residuals by ka and ke, (len(t), 2)."""
    h = 1e-6
    columns = [(concentration(theta + h * e, t) - concentration(theta - h * e, t)) / (2 * h * SIGMA) for e in np.eye(2)]
    return np.array(columns).T


measured = concentration(np.array([2.0, 0.3]), times) + SIGMA * np.random.default_rng(4).standard_normal(times.size)
best = least_squares(lambda theta: (concentration(theta, times) - measured) / SIGMA, [1.0, 0.5], xtol=1e-12, ftol=1e-12)
theta = best.x
print("ka, ke =", theta)

# %% checks
# The checks: run this cell, look into it when you are done.
DOTS = "The dots are still there: replace them by your answer."


def check_covariance(covariance):
    for J in np.random.default_rng(5).uniform(0.5, 2.0, size=(2, 4, 2)):
        C = covariance(J)
        assert C is not ..., DOTS
        assert np.shape(C) == (2, 2), "The covariance has a row and a column for each parameter, not for each datum."
        assert not np.allclose(C, J.T @ J), (
            "That is the information J^T J; more information has to mean less variance. Take its inverse."
        )
        assert np.allclose(C @ (J.T @ J), np.eye(2)), (
            "For residuals with variance 1 the covariance is the inverse of J^T J."
        )
    print("Right.")


def check_intervals(intervals):
    answer = intervals(np.array([2.0, 1.0]), np.diag([0.25, 0.01]), 0.95)
    assert answer is not ..., DOTS
    assert np.shape(answer) == (2, 2), "There is a row (lower, upper) for each parameter."
    half = (np.asarray(answer)[:, 1] - np.asarray(answer)[:, 0]) / 2
    assert np.allclose(np.mean(answer, axis=1), [2.0, 1.0]), (
        "An interval lies around its estimate: estimate minus and plus a half width."
    )
    assert not np.allclose(half, 1.6449 * np.array([0.5, 0.1]), rtol=1e-3), (
        "That leaves 5 % on either side. Leave half of what is left out on each: the quantile at (1 + level) / 2."
    )
    assert np.allclose(half, 1.95996 * np.array([0.5, 0.1]), rtol=1e-3), (
        "The half width is the normal quantile at (1 + level) / 2, 1.96 for 95 %, times the standard error, the root of the variance."
    )
    answer = intervals(np.array([-3.0, 0.2]), np.array([[4.0, 0.3], [0.3, 0.09]]), 0.68)
    assert np.allclose(answer, [[-4.98892, -1.01108], [-0.09834, 0.49834]], rtol=1e-3), (
        "The level is an argument, and only the diagonal of the covariance counts."
    )
    print("Right.")


def check_unknown(unknown):
    for share in (1.0, -0.4):
        J = np.array([[1.0, 1.0, 0.5], [2.0, 2.0, -1.0], [0.5, 0.5, 3.0], [1.0, 1.0, 1.0]])
        J[:, 1] = share * J[:, 0] + (1 - share) * J[:, 2]
        direction = unknown(J)
        assert direction is not ..., DOTS
        assert np.shape(direction) == (3,), "The direction has an entry for each parameter."
        assert np.isclose(np.linalg.norm(direction), 1), "Return a direction of length one."
        assert np.abs(J @ direction).max() < 1e-9, (
            "Along the direction nothing may happen to the residuals, J @ direction = 0: it belongs to the smallest singular value, the last row of V^T."
        )
    print("Right.")


def check_profile(profile):
    for ka in (1.5, 2.6):
        value = profile(ka)
        assert value is not ..., DOTS
        assert np.ndim(value) == 0, "Return one number, the smallest sum of squares."
        expected = min(
            np.sum((concentration(np.array([ka, ke]), times) - measured) ** 2) / SIGMA**2
            for ke in np.linspace(0.2, 0.5, 3001)
        )
        fixed = np.sum((concentration(np.array([ka, theta[1]]), times) - measured) ** 2) / SIGMA**2
        assert not np.isclose(value, fixed, rtol=1e-6), (
            "You left ke where it was. The profile follows it: for every ka the other parameters are fitted again."
        )
        assert not np.isclose(value, expected / 2, rtol=1e-3), (
            "That is half the sum of squares (the cost of least_squares); the sum itself is asked for."
        )
        assert np.isclose(value, expected, rtol=1e-4), (
            f"At ka = {ka} fit ke alone, and return the sum of squares of the weighted residuals there."
        )
    print("Right.")


def check_next(next_time):
    for theta_, candidates in ((theta, np.linspace(0.1, 12, 120)), (np.array([0.3, 0.6]), np.linspace(0.05, 9, 80))):
        t = next_time(theta_, candidates)
        assert t is not ..., DOTS
        assert np.ndim(t) == 0 and np.any(np.isclose(candidates, t)), "Return one of the candidates, the time itself."
        variances = []
        for candidate in candidates:
            J = np.vstack([jacobian(theta_, times), jacobian(theta_, np.array([candidate]))])
            variances.append(np.linalg.inv(J.T @ J)[0, 0])
        assert not np.isclose(t, candidates[np.argmax(variances)]), (
            "That is the worst time: the variance of ka has to be small."
        )
        assert np.isclose(t, candidates[np.argmin(variances)]), (
            "For each candidate put its row below the Jacobian of the data that there are, and take the variance of ka, the first on the diagonal of the covariance; the smallest wins."
        )
    print("Right.")


# %% [markdown]
# ## 1. The covariance
#
# Residuals are divided by their standard deviations, so that their variance is 1. What is the covariance of the estimates, to first order?


# %%
def covariance(J):
    # solution: from the Jacobian of the weighted residuals
    return np.linalg.inv(J.T @ J)
    # end


check_covariance(covariance)
errors = np.sqrt(np.diag(covariance(jacobian(theta, times))))
print("standard errors of ka and ke:", errors)

# %% [markdown]
# castfit says the same:

# %%
gut, blood, ka, ke = cf.symbols("gut blood ka ke")
model = cf.Model({gut: -ka * gut, blood: ka * gut - ke * blood}, parameters=[ka, ke], initial={gut: 5, blood: 0})
problem = cf.Problem(
    model, cf.Experiment({"blood": measured}, time=times, sigma=SIGMA), parameters={"ka": 1.0, "ke": 0.5}
)
result = cf.fit(problem)
print(result)
assert np.allclose(list(result.standard_errors.values()), errors, rtol=0.01)

# %% [markdown]
# ## 2. Intervals


# %%
def intervals(estimates, C, level):
    """Return lower and upper limits, (n, 2)."""
    # solution: stats.norm.ppf(p) is the normal quantile
    half = stats.norm.ppf((1 + level) / 2) * np.sqrt(np.diag(C))
    return np.column_stack([estimates - half, estimates + half])
    # end


check_intervals(intervals)
print(intervals(theta, covariance(jacobian(theta, times)), 0.95))

# %% [markdown]
# ## 3. What the data do not know
#
# Of the dose only the part $F$ may arrive, in an unknown volume $V$: the concentration depends on $F / V$ alone, and $J^T J$ has no inverse.
# Find the direction in which nothing happens.


# %%
def unknown(J):
    """Return the direction (n,), of length one, along which the residuals do not change."""
    # solution: the singular value decomposition knows it
    return np.linalg.svd(J)[2][-1]
    # end


check_unknown(unknown)

# With logarithms of F and V as parameters, their columns in J are each other's opposite.
c = concentration(theta, times)[:, None] / SIGMA
with_both = np.hstack([jacobian(theta, times), c, -c])
print("in (ka, ke, log F, log V):", unknown(with_both).round(3), " - F and V may grow by the same factor")

# %% [markdown]
# ## 4. A profile
#
# A standard error is the curvature at the optimum. A profile asks again at every value: how well can the data be described if $k_a$ is *this*?


# %%
def profile(ka):
    """Return the smallest sum of squared weighted residuals for this ka."""
    # solution: fit ke alone; least_squares gives half the sum of squares as .cost
    fitted = least_squares(
        lambda ke: (concentration(np.array([ka, ke[0]]), times) - measured) / SIGMA, theta[1:], xtol=1e-12
    )
    return 2 * fitted.cost
    # end


check_profile(profile)
grid = np.linspace(0.7 * theta[0], 1.6 * theta[0], 91)
inside = grid[[profile(ka) - 2 * best.cost <= stats.chi2.ppf(0.95, 1) for ka in grid]]
print(f"95 % by the profile:         {inside.min():.2f} to {inside.max():.2f}")
print(
    "95 % by the standard error:  {:.2f} to {:.2f}".format(
        *intervals(theta, covariance(jacobian(theta, times)), 0.95)[0]
    )
)
found = cf.profile(result, ["ka"])
print(found)

# %%
found.plot()

# %% [markdown]
# ## 5. What to measure next
#
# One more sample can be paid for. At which time does it make the variance of $k_a$ smallest?


# %%
def next_time(theta, candidates):
    # solution: the best of the candidates
    rows = [np.vstack([jacobian(theta, times), jacobian(theta, np.array([t]))]) for t in candidates]
    return candidates[np.argmin([covariance(J)[0, 0] for J in rows])]
    # end


check_next(next_time)
t = next_time(theta, np.linspace(0.1, 12, 120))
more = np.vstack([jacobian(theta, times), jacobian(theta, np.array([t]))])
print(f"at t = {t:.1f}: the standard error of ka falls from {errors[0]:.3f} to {np.sqrt(covariance(more)[0, 0]):.3f}")
