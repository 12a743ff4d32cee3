# ruff: noqa: E501, PT018

# %% [markdown]
# # Unit 3: multiple shooting and Gauss-Newton
#
# $\dot x = k x^2$ explodes at $t = 1 / (k x_0)$. Its solution is known, $x(t) = s / (1 - k s t)$ from $x(0) = s$, so that you can write a
# multiple shooting method in a few lines and watch it work from a start for which the trajectory does not exist.
#
# Replace every `...` and run the cell; the check at its end says whether it is right, and gives a hint if not.

# %%
import numpy as np

import castfit as cf

K, H, SIGMA = 6, 0.2, 0.02  # stages, their length, the standard deviation of the data
times = H * np.arange(K + 1)
measured = 1 / (1 - 0.5 * times) + SIGMA * np.random.default_rng(3).standard_normal(K + 1)


def stage(k, s):
    """Return the end of stages that begin at s, and its derivatives by s and by k."""
    below = 1 - k * s * H
    return s / below, 1 / below**2, s**2 * H / below**2


# %% checks
# The checks: run this cell, look into it when you are done.
DOTS = "The dots are still there: replace them by your answer."


def check_gaps(gaps):
    for k, *s in np.random.default_rng(1).uniform(0.5, 1.5, size=(2, K + 2)):
        s = np.array(s)
        h = gaps(k, s)
        assert h is not ..., DOTS
        assert np.shape(h) == (K,), f"{K + 1} nodes have {K} gaps between them: the last node begins no stage."
        ends = s[:-1] / (1 - k * s[:-1] * H)
        assert not np.allclose(h, s[1:] - ends), "The sign: a gap is the end of a stage minus the node that follows."
        assert np.allclose(h, ends - s[1:]), (
            "Gap j is the end of stage j minus node j + 1; stage() gives all ends at once."
        )
    print("Right.")


def check_condense(condense):
    rng = np.random.default_rng(0)
    X, P, h = rng.standard_normal((3, K))
    answer = condense(X, P, h)
    assert answer is not ..., DOTS
    G, g = answer
    assert G is not ... and g is not ..., DOTS
    assert np.shape(G) == (K + 1, 2) and np.shape(g) == (K + 1,), (
        f"There are {K + 1} nodes: G is ({K + 1}, 2), g ({K + 1},)."
    )
    assert np.allclose(G[0], [0, 1]) and g[0] == 0, (
        "The first node is a quantity itself: its step is dq[1], whatever the gaps."
    )
    for dq in rng.standard_normal((2, 2)):
        ds = g + G @ dq
        left = X * ds[:-1] + P * dq[0] + h - ds[1:]
        assert np.abs(left).max() < 1e-9, (
            "The steps do not fulfil ds[j+1] = X[j] ds[j] + P[j] dk + h[j]: put ds[j] = g[j] + G[j] dq into it."
        )
    print("Right.")


def check_step(simplified):
    k, s = 1.2, measured.copy()
    _, X, P = stage(k, s[:-1])
    G = [np.array([0.0, 1.0])]
    for j in range(K):
        G.append(X[j] * G[-1] + np.array([P[j], 0.0]))
    for new_k, new_s in ((k, s), (1.3, 0.9 * s)):
        answer = simplified(k, s, new_k, new_s)
        assert answer is not ..., DOTS
        dk, ds = answer
        assert dk is not ... and ds is not ..., DOTS
        end = stage(new_k, new_s[:-1])[0]
        assert np.abs(X * ds[:-1] + P * dk + end - new_s[1:] - ds[1:]).max() < 1e-8, (
            "The steps of the nodes follow from dq by condensing: ds = g + G dq."
        )
        left = np.array(G).T @ (new_s - measured + ds)
        assert np.abs(left).max() < 1e-6, (
            "dq has to minimize |r + ds| with ds = g + G dq: a linear least-squares problem with the matrix G / SIGMA and the vector (new_s - measured + g) / SIGMA."
        )
    print("Right.")


def check_share(share):
    for damping in (0.25, 0.9):
        assert share(damping) is not ..., DOTS
        assert np.isclose(share(damping), 1 - damping), (
            "To first order a step of lambda dv leaves (1 - lambda) of every gap."
        )
    print("Right.")


def check_level(level):
    v = level(1.2, measured, 0.0)
    assert v is not ..., DOTS
    dk, ds = _step(1.2, measured, 1.2, measured)
    assert np.isclose(v, dk**2 + ds @ ds), (
        "At lambda = 0 the level is the squared length of the step itself, dk^2 + |ds|^2."
    )
    damped_step = _step(1.2, measured, 1.2 + 0.5 * dk, measured + 0.5 * ds)
    farther = _step(1.2, measured, 1.2 + 0.8 * dk, measured + 0.8 * ds)
    assert np.allclose(
        [level(1.2, measured, 0.5), level(1.2, measured, 0.8)], [w**2 + x @ x for w, x in (damped_step, farther)]
    ), (
        "Matrices stay those of the old point (k, s); only residuals and gaps are evaluated at the new one: simplified(k, s, new_k, new_s)."
    )
    print("Right.")


def _step(k, s, new_k, new_s):
    _, X, P = stage(k, s[:-1])
    h = stage(new_k, new_s[:-1])[0] - new_s[1:]
    A = np.zeros((K, K + 2))
    A[:, 0], A[np.arange(K), np.arange(1, K + 1)], A[np.arange(K), np.arange(2, K + 2)] = P, X, -1
    W = np.hstack([np.zeros((K + 1, 1)), np.eye(K + 1)])
    kkt = np.block([[W.T @ W, A.T], [A, np.zeros((K, K))]])
    v = np.linalg.solve(kkt, np.concatenate([-W.T @ (new_s - measured), -h]))
    return v[0], v[1 : K + 2]


# %% [markdown]
# ## 1. Gaps
#
# Every stage begins at a node of its own; at first the nodes are the measured values, and the trajectory is broken.


# %%
def gaps(k, s):
    """Return the gaps (K,) for the nodes s (K + 1,)."""
    # solution: the end of each stage minus the node that follows
    return stage(k, s[:-1])[0] - s[1:]
    # end


check_gaps(gaps)
print("with k = 1.2 the solution from the first node explodes at t =", round(1 / (1.2 * measured[0]), 2))
print("but every stage exists; the gaps are", gaps(1.2, measured).round(2))

# %% [markdown]
# ## 2. Condensing
#
# The linearized matching conditions are $\Delta s_{j+1} = X_j \Delta s_j + P_j \Delta k + h_j$. With $\Delta q = (\Delta k, \Delta s_0)$ every
# step is $\Delta s_j = g_j + G_j \Delta q$. Write the recursion.


# %%
def condense(X, P, h):
    """Return G (K + 1, 2) and g (K + 1,)."""
    # solution: the first row of G, then all others by the recursion
    G, g = np.zeros((K + 1, 2)), np.zeros(K + 1)
    G[0] = [0, 1]
    for j in range(K):
        G[j + 1] = X[j] * G[j] + np.array([P[j], 0])
        g[j + 1] = X[j] * g[j] + h[j]
    return G, g
    # end


check_condense(condense)

# %% [markdown]
# ## 3. The step
#
# The residuals are $(s_j - \eta_j) / \sigma$. What remains after condensing is a least-squares problem with two unknowns, however
# many stages there are.


# %%
def simplified(k, s, new_k, new_s):
    """Return the step for the residuals and gaps at (new_k, new_s), with the matrices of (k, s)."""
    _, X, P = stage(k, s[:-1])
    G, g = condense(X, P, gaps(new_k, new_s))
    # solution: dq from least squares, then dk and the steps ds of all nodes
    dq = np.linalg.lstsq(G / SIGMA, -(new_s - measured + g) / SIGMA, rcond=None)[0]
    dk, ds = dq[0], g + G @ dq
    # end
    return dk, ds


def step(k, s):
    return simplified(k, s, k, s)


check_step(simplified)

# %% [markdown]
# ## 4. What a damped step leaves
#
# Which share of every gap is left, to first order, after a part of the step, say a quarter?


# %%
def share(damping):
    # solution: a number between 0 and 1
    return 1 - damping
    # end


check_share(share)
dk, ds = step(1.2, measured)
print("shares that are left:", (gaps(1.2 + 0.25 * dk, measured + 0.25 * ds) / gaps(1.2, measured)).round(3))
print("of a much shorter step:", (gaps(1.2 + 0.01 * dk, measured + 0.01 * ds) / gaps(1.2, measured)).round(4))

# %% [markdown]
# ## 5. The natural level function
#
# How far to go? $T(\lambda)$ is the squared length of the step that would follow at $v + \lambda \Delta v$ if the matrices stayed as they are.


# %%
def level(k, s, damping):
    dk, ds = step(k, s)
    # solution: the squared length of the simplified correction at the damped point
    next_nodes, nodes = simplified(k, s, k + damping * dk, s + damping * ds)
    return next_nodes**2 + nodes @ nodes
    # end


check_level(level)

# %% [markdown]
# ## 6. All together, and castfit
#
# Halve the step until the level function falls by at least a quarter of what a linear problem would give.

# %%
k, s = 1.2, measured.copy()
for iteration in range(30):
    dk, ds = step(k, s)
    print(f"{iteration:2d}   k = {k:.6f}   largest gap {np.abs(gaps(k, s)).max():8.1e}   level {level(k, s, 0.0):8.1e}")
    if abs(dk) + np.abs(ds).max() < 1e-9:
        break
    damping = 1.0
    while level(k, s, damping) > (1 - damping / 4) * level(k, s, 0.0) and damping > 1e-3:
        damping /= 2
    k, s = k + damping * dk, s + damping * ds

x, rate = cf.symbols("x k")
model = cf.Model({x: rate * x**2}, parameters=[rate])
problem = cf.Problem(
    model, cf.Experiment({"x": measured}, time=times, sigma=SIGMA, initial={"x": cf.free(1.0)}), parameters={"k": 1.2}
)
result = cf.fit(problem, cf.MultipleShooting(K))
print(result)
assert np.isclose(k, result.parameters["k"], rtol=1e-5)

# %%
result.plot()
