# ruff: noqa: E501

# %% [markdown]
# # Unit 1: modelling, simulation, stiffness
#
# An enzyme $E$ binds a substrate $S$; the complex $C$ decays into enzyme and product, or back. You will write the model,
# integrate it by hand with both of Euler's methods, and see why one of them needs thousands of steps.
#
# Replace every `...` and run the cell; the check at its end says whether it is right, and gives a hint if not.

# %%
import casadi as ca
import numpy as np

import castfit as cf

# %% checks
# The checks: run this cell, look into it when you are done.
DOTS = "The dots are still there: replace them by your answer."
TRUTH = {"k_on": 1000.0, "k_off": 500.0, "k_cat": 500.0}
E0, S0 = 0.01, 1.0


def anywhere(*shape):
    """Return random numbers between 1/2 and 2: checks hold answers against two such points, not against round ones."""
    return np.random.default_rng(sum(shape)).uniform(0.5, 2.0, size=shape)


def check_model(model):
    assert model is not ..., DOTS
    slopes = model.system.function("f", model.system.ode)
    for s, bound, *rates in anywhere(2, 5):
        c = E0 * bound / 3
        answer = slopes(0, [s, c], [], rates, []).full()[:, 0]
        binding, back, production = rates[0] * (E0 - c) * s, rates[1] * c, rates[2] * c
        assert np.isclose(answer[0], back - binding), (
            "Substrate is not right: it is lost by binding, k_on (E0 - c) s, and comes back with the rate k_off c."
        )
        assert np.isclose(answer[1], binding - back - production), (
            "Complex is not right: it is made by binding, and lost in two ways, k_off c and k_cat c."
        )
    begin = cf.simulate(model, TRUTH, [0, 0.5])
    assert np.allclose([begin["s"][0], begin["c"][0]], [S0, 0]), (
        "At first there is S0 of the substrate, and no complex."
    )
    print("Right.")


def check_explicit(explicit):
    one = explicit(lambda x: -x, np.array([1.0]), 0.1)
    assert one is not ..., DOTS
    assert np.shape(one) == (1,), "The step takes an array of states and has to return one of the same shape."
    assert np.isclose(one[0], 0.9), (
        "From x' = -x, x = 1, h = 0.1 the step leads to 0.9: the slope at the old point, times h."
    )
    for x, h in anywhere(2, 2):
        assert np.isclose(explicit(lambda x: x**2, np.array([x]), h)[0], x + h * x**2), (
            "Use f, at the old point, and add h times it to x."
        )
    print("Right.")


def check_implicit(implicit):
    for A, x, h in zip(-anywhere(2, 2, 2) * [[1, 0.1], [0.1, 1000]], anywhere(2, 2), (0.1, 0.3), strict=True):
        one = implicit(A, x, h)
        assert one is not ..., DOTS
        assert np.shape(one) == (2,), "The step takes an array of states and has to return one of the same shape."
        assert np.allclose(one - x - h * A @ one, 0, atol=1e-10), (
            "The new x has to fulfil x_new = x + h A x_new: solve a linear system with the matrix I - h A."
        )
    print("Right.")


def check_largest_step(largest_step):
    h = largest_step(-50.0)
    assert h is not ..., DOTS
    assert h > 0, "A step is positive, an eigenvalue that decays negative: take its size."
    assert np.isclose(h, 2 / 50), (
        "The error is multiplied by 1 + h lambda in every step. It does not grow while |1 + h lambda| <= 1."
    )
    for size in anywhere(2):
        assert np.isclose(largest_step(-4 * size), 0.5 / size), (
            "The answer depends on lambda: the faster the decay, the shorter the step."
        )
    print("Right.")


def check_michaelis(michaelis):
    for rates in anywhere(2, 3):
        K_M = michaelis(*rates)
        assert K_M is not ..., DOTS
        assert np.isclose(K_M, (rates[1] + rates[2]) / rates[0]), (
            "Set c' = 0, with E0 - c free enzyme, and solve for c: K_M is what stands beside s, (k_off + k_cat) / k_on."
        )
    print("Right.")


# %% [markdown]
# ## 1. The model
#
# Binding takes place at the rate $k_{\rm on} (E_0 - c)\, s$, its reverse at $k_{\rm off}\, c$, the reaction at $k_{\rm cat}\, c$.
# What are $\dot s$ and $\dot c$?

# %%
s, c = cf.symbols("s c")
k_on, k_off, k_cat = cf.symbols("k_on k_off k_cat")

# solution: a cf.Model with the right-hand sides of s and c; E0 and S0 are numbers, s begins at S0 and c at 0
model = cf.Model(
    {s: -k_on * (E0 - c) * s + k_off * c, c: k_on * (E0 - c) * s - (k_off + k_cat) * c},
    parameters=[k_on, k_off, k_cat],
    initial={s: S0, c: 0},
)
# end

check_model(model)

# %% [markdown]
# ## 2. An explicit step
#
# Euler's explicit method goes along the slope at the old point: $x_{n+1} = x_n + h f(x_n)$.


# %%
def explicit(f, x, h):
    # solution: the state after one explicit step of length h
    return x + h * f(x)
    # end


check_explicit(explicit)

# %% [markdown]
# How exact is it? Halve the step, and look what becomes of the error: this is the *order* of a method.

# %%
for n in (10, 20, 40, 80):
    x = np.array([1.0])
    for _ in range(n):
        x = explicit(lambda x: -x, x, 1 / n)
    print(f"{n:3d} steps   error {abs(x[0] - np.exp(-1)):.5f}")

# %% [markdown]
# ## 3. How long may a step be?
#
# For $\dot x = \lambda x$ with $\lambda < 0$ the solution decays, and so must every error of the numerical one.
# What is the largest step for which Euler's explicit method does not let it grow?


# %%
def largest_step(eigenvalue):
    # solution: the largest stable step for a negative eigenvalue
    return 2 / abs(eigenvalue)
    # end


check_largest_step(largest_step)

# %% [markdown]
# Our model has a fast eigenvalue (binding) and a slow one (the reaction). `cf.stiffness` follows them along the trajectory.

# %%
found = cf.stiffness(model, TRUTH, np.linspace(0, 0.5, 51))
print(found)
fastest = found.eigenvalues[25, 0].real
print(f"half a second takes {0.5 / largest_step(fastest):.0f} explicit steps, however smooth the solution is")

f = model.system.function("f", model.system.ode)
values = list(TRUTH.values())
for share in (0.9, 1.1):
    h, x = share * largest_step(fastest), np.array([S0, 0.0])
    with np.errstate(all="ignore"):
        for _ in range(int(0.05 / h)):
            x = explicit(lambda x: f(0, x, [], values, []).full()[:, 0], x, h)
    print(f"with {share} of the largest step: s = {x[0]:.4g}, c = {x[1]:.4g}")

# %%
found.plot()

# %% [markdown]
# ## 4. An implicit step
#
# The implicit method takes the slope at the *new* point, $x_{n+1} = x_n + h f(x_{n+1})$. For a linear system $\dot x = A x$
# this is a linear system of equations for $x_{n+1}$.


# %%
def implicit(A, x, h):
    # solution: the state after one implicit step of length h
    return np.linalg.solve(np.eye(len(x)) - h * A, x)
    # end


check_implicit(implicit)

# %% [markdown]
# For the nonlinear model Newton's method linearizes in every step; one of its steps already gives a stable method. Twenty steps do now
# what took thousands before:

# %%
jacobian = model.system.function("jacobian", ca.densify(ca.jacobian(model.system.ode, model.system.x)))
x, h = np.array([S0, 0.0]), 0.5 / 20
for _ in range(20):
    A = jacobian(0, x, [], values, []).full()
    slope = f(0, x, [], values, []).full()[:, 0]
    x = x + h * implicit(A, slope, h)
exact = cf.simulate(model, TRUTH, [0, 0.5])
print(f"s(0.5) = {x[0]:.4f} by twenty steps, {exact['s'][-1]:.4f} by CVODES with error control")
assert abs(x[0] - exact["s"][-1]) < 0.03

# %% [markdown]
# ## 5. Without the fast part
#
# After the first moment binding and decay balance each other, $\dot c \approx 0$. Solve that for $c$: what remains is
# $\dot s = -k_{\rm cat} E_0\, s / (K_M + s)$, the law of Michaelis and Menten, which is not stiff. What is $K_M$ here?


# %%
def michaelis(k_on, k_off, k_cat):
    # solution: K_M from the rate constants
    return (k_off + k_cat) / k_on
    # end


check_michaelis(michaelis)

# %%
K_M = michaelis(**TRUTH)
slow = cf.Model({s: -k_cat * E0 * s / (K_M + s)}, parameters=[k_cat], initial={s: S0})
times = np.linspace(0, 0.5, 6)
print("full model   ", cf.simulate(model, TRUTH, times)["s"].round(4))
print("without c    ", cf.simulate(slow, {"k_cat": TRUTH["k_cat"]}, times)["s"].round(4))
print(cf.stiffness(slow, {"k_cat": TRUTH["k_cat"]}, times))
