# ruff: noqa: E501

# %% [markdown]
# # Unit 7: when the model errs
#
# A level walks at random, x[k+1] = x[k] + w[k] with var w = Q, and is measured with errors, y[k] = x[k] + v[k] with var v = R. You will write the filter
# that follows it, the likelihood that finds Q, the smoother that looks back, and the arrival cost of a moving horizon.
#
# Replace every `...` and run the cell; the check at its end says whether it is right, and gives a hint if not.

# %%
import numpy as np

import castfit as cf

Q, R, M0, P0 = 0.5, 0.8, 0.0, 4.0
rng = np.random.default_rng(6)
level = rng.normal(M0, np.sqrt(P0)) + np.cumsum(np.append(0.0, rng.normal(0, np.sqrt(Q), 39)))
y = level + rng.normal(0, np.sqrt(R), level.size)

# %% checks
# The checks: run this cell, look into it when you are done.
DOTS = "The dots are still there: replace them by your answer."


def check_update(update):
    for m, P, value, R_ in ((1.0, 2.0, 3.0, 0.5), (-0.4, 0.3, 0.2, 1.7)):
        answer = update(m, P, value, R_)
        assert answer is not ..., DOTS
        assert np.shape(answer) == (2,), "Return two numbers: the mean after the measurement, and its variance."
        assert np.isclose(answer[1], 1 / (1 / P + 1 / R_)), (
            "Information adds up: the variance after a measurement is 1 / (1 / P + 1 / R), smaller than both."
        )
        assert np.isclose(answer[0], (m / P + value / R_) / (1 / P + 1 / R_)), (
            "The mean moves towards the value by the gain P / (P + R), the share of the variance that is the state's."
        )
    print("Right.")


def check_likelihood(neg2loglik):
    answer = neg2loglik(y, Q, R)
    assert answer is not ..., DOTS
    assert np.ndim(answer) == 0, "Return one number, -2 log L of all data."
    k = np.arange(y.size)
    for q, r in ((Q, R), (0.1, 2.0)):
        C = P0 + q * np.minimum(k[:, None], k) + r * np.eye(y.size)
        expected = y @ np.linalg.solve(C, y) + np.linalg.slogdet(2 * np.pi * C)[1]
        assert np.isclose(neg2loglik(y, q, r), expected), (
            "Every value adds innovation^2 / S + log(2 pi S), with the innovation y - m before the update and S = P + R; then the state goes on, P + Q."
        )
    print("Right.")


def check_smoother(smooth):
    for m, P, m_next, P_next, q in ((1.0, 0.5, 2.0, 0.4, 0.3), (0.0, 1.5, -1.0, 0.7, 2.0)):
        answer = smooth(m, P, m_next, P_next, q)
        assert answer is not ..., DOTS
        assert np.shape(answer) == (2,), "Return two numbers: the smoothed mean and its variance."
        G = P / (P + q)
        assert np.isclose(answer[0], m + G * (m_next - m)), (
            "The smoothed mean is the filtered one plus the gain P / (P + Q) times what the next smoothed state differs by from what was predicted, m."
        )
        assert np.isclose(answer[1], P + G**2 * (P_next - (P + q))), (
            "The variance is P + G^2 (next smoothed variance - predicted variance), where P + Q was predicted."
        )
    print("Right.")


def check_arrival(arrival):
    for m, P, value, q, r in ((0.0, 4.0, 1.0, 0.5, 0.8), (2.0, 0.3, -1.0, 1.5, 0.2)):
        answer = arrival(m, P, value, q, r)
        assert answer is not ..., DOTS
        assert np.shape(answer) == (2,), "Return two numbers: mean and variance of the prior on the next node."
        inside = 1 / (1 / P + 1 / r)
        assert not np.isclose(answer[1], P + q), "Its own measurement leaves the window with the node: it counts, once."
        assert np.isclose(answer[1], inside + q), (
            "First what is known of the old node, by its prior and its measurement, then one step of the model, which adds Q."
        )
        assert np.isclose(answer[0], inside * (m / P + value / r)), (
            "The mean of the prior on the next node is that of the old one after its measurement: a random walk stays."
        )
    print("Right.")


# %% [markdown]
# ## 1. A measurement arrives
#
# Before it the state has mean m and variance P. What are both after a value with an error of variance R?


# %%
def update(m, P, value, R):
    # solution: the gain is the share of the variance that is the state's
    gain = P / (P + R)
    return m + gain * (value - m), (1 - gain) * P
    # end


check_update(update)


# %% [markdown]
# ## 2. The likelihood, one value at a time
#
# Begin at mean M0 and variance P0, with the first value. What each value differs by from what was expected is independent of all others.


# %%
def neg2loglik(values, Q, R):
    m, P, total = M0, P0, 0.0
    for value in values:
        # solution: what was not expected, and how far that may be; then update and go on
        S = P + R
        total += (value - m) ** 2 / S + np.log(2 * np.pi * S)
        gain = P / S
        m, P = m + gain * (value - m), (1 - gain) * P + Q
        # end
    # solution: all of it
    return total
    # end


check_likelihood(neg2loglik)
grid = np.linspace(0.05, 2.0, 40)
print("the likeliest Q:", grid[np.argmin([neg2loglik(y, q, R) for q in grid])])


# %% [markdown]
# ## 3. Looking back
#
# The filter knows the past only. From the filtered mean and variance (m, P) of a state, and the smoothed ones of the next, follow the smoothed ones of the state.


# %%
def smooth(m, P, m_next, P_next, Q):
    # solution: Rauch, Tung and Striebel
    gain = P / (P + Q)
    return m + gain * (m_next - m), P + gain**2 * (P_next - P - Q)
    # end


check_smoother(smooth)


# %% [markdown]
# ## 4. A horizon moves on
#
# The oldest node of the window has the prior (m, P) and was measured once. It leaves. Which prior stands on the next node then, so that no datum is lost or counted twice?


# %%
def arrival(m, P, value, Q, R):
    # solution: its own measurement, then one step of the model
    variance = 1 / (1 / P + 1 / R)
    return variance * (m / P + value / R), variance + Q
    # end


check_arrival(arrival)

# %% [markdown]
# ## All of it by castfit
#
# The same data, with a model in continuous time whose noise has the intensity s: in a unit of time it adds the variance s^2 = Q.

# %%
x, w, s = cf.symbols("x w s")
model = cf.Model({x: s * w}, parameters=[s], noises=[w])
experiment = cf.Experiment(
    {"x": y}, time=np.arange(y.size), sigma=np.sqrt(R), initial={"x": cf.Normal(M0, np.sqrt(P0))}
)
result = cf.fit(cf.Problem(model, experiment, parameters={"s": cf.Parameter(0.5, scale="log")}))
print(result)
assert np.isclose(-2 * result.log_likelihood, neg2loglik(y, result["s"].value ** 2, R), rtol=1e-6)

# %%
result.plot()
