# ruff: noqa: E501

# %% [markdown]
# # Unit 8: optimal control
#
# A state grows if nothing is done, x' = x + u, and is brought down by an input that costs: the integral of Q x^2 + R u^2 shall be least. You will write the
# equations of the optimum, the feedback that follows from them, the gradient of a discretised problem, and the fastest way to rest.
#
# Replace every `...` and run the cell; the check at its end says whether it is right, and gives a hint if not.

# %%
import numpy as np

import castfit as cf

A_, B_, Q, R, X0, HORIZON = 1.0, 1.0, 1.0, 0.5, 1.0, 2.0

# Exercise 3: steps of length H with a constant input each, x[k+1] = PHI x[k] + GAMMA u[k]
STEPS = 20
H = HORIZON / STEPS
PHI, GAMMA = np.exp(A_ * H), B_ / A_ * (np.exp(A_ * H) - 1)


def states(u):
    x = [X0]
    for value in u:
        x.append(PHI * x[-1] + GAMMA * value)
    return np.array(x)


def cost(u):
    return H * np.sum(Q * states(u)[1:] ** 2 + R * u**2)


# %% checks
# The checks: run this cell, look into it when you are done.
DOTS = "The dots are still there: replace them by your answer."


def check_extremal(extremal):
    for x, lam, a, b, q, r in ((1.2, -0.7, 0.4, 1.5, 2.0, 0.3), (-0.5, 2.0, -1.1, 0.6, 0.9, 1.7)):
        answer = extremal(x, lam, a, b, q, r)
        assert answer is not ..., DOTS
        assert np.shape(answer) == (2,), "Return two numbers: the input, and the derivative of the costate by time."
        assert np.isclose(answer[0] * 2 * r, -lam * b), (
            "The input makes H = q x^2 + r u^2 + lam (a x + b u) least: set its derivative along u to zero."
        )
        assert np.isclose(answer[1] + lam * a, -2 * q * x), (
            "The costate obeys lam' = -dH/dx, and H contains x twice: in the cost, and in the model."
        )
    print("Right.")


def check_riccati(riccati):
    for P, a, b, q, r in ((0.8, 0.4, 1.5, 2.0, 0.3), (2.5, -1.1, 0.6, 0.9, 1.7)):
        answer = riccati(P, a, b, q, r)
        assert answer is not ..., DOTS
        assert np.shape(answer) == (2,), "Return two numbers: the gain K of u = -K x, and the derivative of P by time."
        assert np.isclose(answer[0] * r, b * P), (
            "With lam = 2 P x the input of the first exercise is proportional to x: put it in, the two cancels."
        )
        assert np.isclose(answer[1] + q, P * (b**2 * P / r - 2 * a)), (
            "Differentiate lam = 2 P x by time, 2 P' x + 2 P (a - b K) x, and compare with -2 q x - a 2 P x: P' is left."
        )
    print("Right.")


def check_gradient(gradient):
    for seed in (1, 2):
        u = np.random.default_rng(seed).normal(size=STEPS)
        answer = gradient(u)
        assert answer is not ..., DOTS
        assert np.shape(answer) == (STEPS,), (
            "Return one number for each step: the derivative of the cost along its input."
        )
        expected = np.array([(cost(u + e) - cost(u - e)) / 2e-3 for e in 1e-3 * np.eye(STEPS)])
        assert np.isclose(answer[-1], expected[-1]), (
            "Begin at the end: the last input has its own cost, 2 H R u, and changes the last state by GAMMA, which costs 2 H Q x."
        )
        assert np.allclose(answer, expected), (
            "A state costs itself, and changes all later ones: its costate is 2 H Q x plus PHI times the costate of the next."
        )
    print("Right.")


def check_fastest(fastest):
    speeds = (
        -2.5,
        -1.2,
        -0.3,
        0.4,
        1.0,
        1.9,
    )  # at rest when braked to x: a little before it, a little beyond, far away
    for x, v in [(short - v * abs(v) / 2, v) for v in speeds for short in (-0.02, 0.02, -1.0, 1.0)]:
        answer = fastest(x, v)
        assert answer is not ..., DOTS
        assert np.shape(answer) == (), "Return one number: the input now."
        assert abs(answer) == 1, (
            "Whoever is in a hurry accelerates or brakes as much as possible: the input is 1 or -1."
        )
        brakes = x + v * abs(v) / 2
        assert answer * brakes < 0, (
            f"At x = {x:.4g}, v = {v}: full braking comes to rest at x + v |v| / 2 = {brakes:.3g}. Beyond zero brake, otherwise go on towards it."
        )
    print("Right.")


# %% [markdown]
# ## 1. What holds at an optimum
#
# For x' = a x + b u and the cost q x^2 + r u^2: which input makes the Hamiltonian least, and what is the derivative of the costate?


# %%
def extremal(x, lam, a, b, q, r):
    # solution: dH/du = 0, and lam' = -dH/dx
    u = -b * lam / (2 * r)
    return u, -2 * q * x - a * lam
    # end


check_extremal(extremal)


# %% [markdown]
# ## 2. The feedback
#
# The costate is 2 P(t) x. Which gain K has u = -K x, and what is the derivative of P?


# %%
def riccati(P, a, b, q, r):
    # solution: the input of exercise 1, and the costate differentiated
    gain = b * P / r
    return gain, gain * b * P - 2 * a * P - q
    # end


check_riccati(riccati)

# %% [markdown]
# Nothing is paid at the end, so P is zero there. Backwards from there, by the midpoint rule, and the least cost is P(0) x(0)^2:

# %%
P, h = 0.0, HORIZON / 4000
for _ in range(4000):
    half = P - h / 2 * riccati(P, A_, B_, Q, R)[1]
    P = P - h * riccati(half, A_, B_, Q, R)[1]
least = P * X0**2
print(f"least cost: {least:.6f}")


# %% [markdown]
# ## 3. A gradient for the price of one simulation
#
# With constant inputs on steps the cost is a function of as many numbers, `cost(u)`, of the states `states(u)`. Its gradient comes from one sweep backwards: `lam` is what a
# change of x[k + 1] costs, in this step and in all later ones.


# %%
def gradient(u):
    x, g, lam = states(u), np.zeros(len(u)), 0.0
    for k in reversed(range(len(u))):
        # solution: first the costate of the state after this step, then the input's own cost and what it does to that state
        lam = 2 * H * Q * x[k + 1] + PHI * lam
        g[k] = 2 * H * R * u[k] + GAMMA * lam
        # end
    # solution: all of it
    return g
    # end


check_gradient(gradient)
inputs = np.zeros(STEPS)
for _ in range(300):
    inputs = inputs - 0.5 * gradient(inputs)
print(f"by descent: {cost(inputs):.6f}, largest entry of the gradient {np.max(np.abs(gradient(inputs))):.1e}")


# %% [markdown]
# ## 4. The fastest way to rest
#
# A point moves by x' = v, v' = u with inputs from -1 to 1, and shall rest at zero as soon as possible. Which input has it to have at x, v? (Not on the curve where braking now is just right.)


# %%
def fastest(x, v):
    # solution: where would braking as hard as possible end?
    stopping_position = x + v * abs(v) / 2
    return -np.sign(stopping_position)
    # end


check_fastest(fastest)

# %% [markdown]
# ## All of it by castfit
#
# Straight lines on 20 pieces are a little worse than the best of all inputs, and close to it.

# %%
x, v, u = cf.symbols("x v u")
growth = cf.Model({x: A_ * x + B_ * u}, inputs=[u], initial={x: X0})
plan = cf.control(
    growth,
    horizon=HORIZON,
    inputs={"u": cf.Input.free(STEPS, "linear")},
    minimise=cf.integral(Q * x**2 + R * u**2),
)
print(plan)
assert plan.success
assert least * (1 - 1e-5) < plan.objective < least * (1 + 1e-3)

# %%
plan.plot()

# %%
point = cf.Model({x: v, v: u}, inputs=[u], initial={x: -1, v: 0})
rest = cf.control(
    point,
    horizon=cf.free(3.0, lower=0.1),
    inputs={"u": cf.Input.free(20, bounds=(-1, 1))},
    minimise=cf.final_time(),
    constraints=[cf.at_end(x == 0), cf.at_end(v == 0)],
)
print(rest)
assert np.isclose(rest.horizon, 2.0)
for t, x_, v_ in zip(rest.times, rest.states["x"], rest.states["v"], strict=True):
    if abs(x_ + v_ * abs(v_) / 2) > 1e-3:  # before the switch: afterwards it stays on the curve
        assert np.isclose(rest.inputs["u"](t), fastest(x_, v_), atol=1e-4)
