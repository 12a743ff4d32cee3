# ruff: noqa: E501, PT018

# %% [markdown]
# # Unit 2: single shooting and sensitivities
#
# A population grows: $\dot x = r x (1 - x / K)$. From eleven counts you will estimate $r$ and $K$ with a Gauss-Newton method of your
# own, whose derivatives come from sensitivity equations, and compare it with castfit's.
#
# Replace every `...` and run the cell; the check at its end says whether it is right, and gives a hint if not.

# %%
import numpy as np
from scipy.integrate import solve_ivp

import castfit as cf

X0, SIGMA = 0.1, 0.02
times = np.linspace(0, 5, 11)
rng = np.random.default_rng(7)
measured = 1.5 / (1 + (1.5 / X0 - 1) * np.exp(-2.0 * times)) + SIGMA * rng.standard_normal(times.size)

# %% checks
# The checks: run this cell, look into it when you are done.
DOTS = "The dots are still there: replace them by your answer."


def logistic(r, K, t=times):
    """Return the solution, which is known in closed form."""
    return K / (1 + (K / X0 - 1) * np.exp(-r * t))


def check_augmented(augmented):
    for x, S_r, S_K, r, K in np.random.default_rng(1).uniform(0.5, 2.0, size=(2, 5)):
        slopes = augmented(0.0, np.array([x, S_r, S_K]), r, K)
        assert slopes is not ..., DOTS
        assert np.shape(slopes) == (3,), "Three slopes are asked for: of x, of dx/dr, of dx/dK."
        assert np.isclose(slopes[0], r * x * (1 - x / K)), "The first slope is the model's own, r x (1 - x / K)."
        growth = r - 2 * r * x / K
        assert np.isclose(slopes[1], growth * S_r + x * (1 - x / K)), (
            "dx/dr obeys S' = f_x S + f_r, with f_x = r (1 - 2 x / K) and f_r = x (1 - x / K): is either missing?"
        )
        assert np.isclose(slopes[2], growth * S_K + r * x**2 / K**2), (
            "dx/dK obeys S' = f_x S + f_K; f_K = r x^2 / K^2 is positive."
        )
    print("Right.")


def check_residuals(residuals):
    for a, b in np.random.default_rng(2).uniform(0.5, 2.0, size=(2, 2)):
        answer = residuals(np.array([a, b]))
        assert answer is not ..., DOTS
        r, J = answer
        assert r is not ... and J is not ..., DOTS
        assert np.shape(r) == (times.size,), f"There are {times.size} data, and so as many residuals."
        assert np.shape(J) == (times.size, 2), "J has a row for each datum and a column for each parameter."
        assert np.allclose(r, (logistic(a, b) - measured) / SIGMA, atol=1e-3), (
            "A residual is the model minus the measured value, divided by SIGMA."
        )
        h = 1e-5
        slopes = [
            (logistic(a + h, b) - logistic(a - h, b)) / (2 * h * SIGMA),
            (logistic(a, b + h) - logistic(a, b - h)) / (2 * h * SIGMA),
        ]
        assert np.allclose(J, np.transpose(slopes), atol=1e-2), (
            "J does not agree with finite differences: its columns are the sensitivities of r and K, divided by SIGMA like the residuals."
        )
    print("Right.")


def check_step(gauss_newton_step):
    rng = np.random.default_rng(0)
    J, r = rng.standard_normal((6, 2)), rng.standard_normal(6)
    step = gauss_newton_step(r, J)
    assert step is not ..., DOTS
    assert np.shape(step) == (2,), "The step has an entry for each parameter."
    assert np.abs(r + J @ step).max() > 0 and np.linalg.norm(r + J @ step) < np.linalg.norm(r), (
        "The step has to make |r + J step| small; yours does not even lower it. Is a sign missing?"
    )
    assert np.abs(J.T @ (r + J @ step)).max() < 1e-10, (
        "At the minimum of |r + J step| the gradient J^T (r + J step) is zero; np.linalg.lstsq(J, -r) finds it."
    )
    print("Right.")


def check_damped(damped):
    calls = []

    def residuals(x):
        calls.append(x)
        assert len(calls) < 1000, (
            "That does not end: where no step helps (x = 3, step 1e-3), stop halving after some times."
        )
        return np.array([np.arctan(x[0])]), np.array([[1 / (1 + x[0] ** 2)]])

    for step, halvings in ((-12.5, 2), (-5.0, 0), (-5.5, 0), (-7.0, 1), (-100.0, 5), (-1e4, 11)):
        new = damped(residuals, np.array([3.0]), np.array([step]))
        assert new is not ..., DOTS
        assert np.shape(new) == (1,), "Return the new parameters, an array like the old ones."
        assert abs(new[0]) < 3, (
            f"Your step raises the sum of squares: from x = 3 the full step {step} leads to {3 + step}. Halve until it falls."
        )
        assert np.isclose(new[0], 3 + step / 2**halvings), (
            f"Halve only as long as the sum of squares does not fall: from x = 3 the step {step} is to be halved {halvings} times."
        )
    assert abs(damped(residuals, np.array([3.0]), np.array([1e-3]))[0] - 3) < 1e-3, "A step uphill is to become short."
    print("Right.")


# %% [markdown]
# ## 1. The sensitivity equations
#
# $S_r = \partial x / \partial r$ and $S_K = \partial x / \partial K$ obey differential equations of their own,
# $\dot S_p = f_x S_p + f_p$, which are integrated together with the model.


# %%
def augmented(t, y, r, K):
    """Return the slopes of x, S_r, S_K at y = (x, S_r, S_K)."""
    x, S_r, S_K = y
    # solution: an array of three slopes
    f_x = r * (1 - 2 * x / K)
    return np.array([r * x * (1 - x / K), f_x * S_r + x * (1 - x / K), f_x * S_K + r * x**2 / K**2])
    # end


check_augmented(augmented)

# %% [markdown]
# ## 2. Residuals and their Jacobian
#
# One integration gives both. The initial state is known, so that its sensitivities begin at zero.


# %%
def explodes(t, y, r, K):
    """Become zero where the solution grows beyond all reason; the integration ends there."""
    return 1e8 - np.abs(y).max()


explodes.terminal = True


def residuals(theta):
    """Return the weighted residuals (11,) and their Jacobian (11, 2) at theta = (r, K)."""
    options = {"args": tuple(theta), "events": explodes, "rtol": 1e-9, "atol": 1e-9}
    y = solve_ivp(augmented, (times[0], times[-1]), [X0, 0.0, 0.0], "LSODA", times, **options).y
    if y.shape[1] < times.size:  # there is no solution to the end
        return np.full(times.size, np.inf), np.zeros((times.size, 2))
    # solution: both from the rows of y, which are x, S_r and S_K at the measured times
    r = (y[0] - measured) / SIGMA
    J = y[1:].T / SIGMA
    # end
    return r, J


check_residuals(residuals)

# %% [markdown]
# ## 3. The Gauss-Newton step
#
# It minimizes $|r + J \Delta\theta|^2$, the sum of squares of the linearized residuals.


# %%
def gauss_newton_step(r, J):
    # solution: the step
    return np.linalg.lstsq(J, -r, rcond=None)[0]
    # end


check_step(gauss_newton_step)

# %% [markdown]
# ## 4. Damping
#
# A full step may lead too far. The simplest remedy: halve it until the sum of squares falls.


# %%
def damped(residuals, theta, step):
    """Return theta + step, theta + step / 2, ...: the first of them at which the sum of squares is smaller than at theta."""
    # solution: halve until the sum of squares falls, but at most thirty times: there may be no way down
    old = np.sum(residuals(theta)[0] ** 2)
    for _ in range(30):
        if np.sum(residuals(theta + step)[0] ** 2) < old:
            break
        step = step / 2
    return theta + step
    # end


check_damped(damped)

# %% [markdown]
# ## 5. All together, and castfit
#
# Here is your method, from a start that is wrong by a factor of two.

# %%
theta = np.array([1.0, 3.0])
for iteration in range(12):
    r, J = residuals(theta)
    step = gauss_newton_step(r, J)
    print(f"{iteration:2d}   r = {theta[0]:.6f}   K = {theta[1]:.6f}   sum of squares {r @ r:12.5f}")
    if np.abs(step).max() < 1e-7:
        break
    theta = damped(residuals, theta, step)

x, rate, capacity = cf.symbols("x r K")
model = cf.Model({x: rate * x * (1 - x / capacity)}, parameters=[rate, capacity], initial={x: X0})
problem = cf.Problem(model, cf.Experiment({"x": measured}, time=times, sigma=SIGMA), parameters={"r": 1.0, "K": 3.0})
result = cf.fit(problem, cf.SingleShooting())
print(result)
assert np.allclose(theta, result.theta, rtol=1e-4)

# %%
result.plot()

# %% [markdown]
# ## 6. Where single shooting ends
#
# It needs the trajectory over the whole horizon. If there is none for the parameters of the start, it fails before its first iteration, as
# it does for the predators and prey of the next unit:

# %%
lotka_volterra = cf.problems.load("lotka_volterra")
failed = cf.fit(
    lotka_volterra.problem, cf.SingleShooting(), cf.GaussNewton(homotopy="never"), start=lotka_volterra.starts["pole"],
    second_start=False, retry=False,
)  # fmt: skip
print(failed.status, "-", failed.message)
assert not failed.success
