# ruff: noqa: E501

# %% [markdown]
# # Unit 9: the next experiment
#
# A turns into B, and B into C: when should B be measured, to know both rates best? Box and Lucas asked in 1959. You will write the information of a design, the worth of
# each time, a method that improves a design, and the proof that it cannot be improved much more.
#
# Replace every `...` and run the cell; the check at its end says whether it is right, and gives a hint if not.

# %%
import numpy as np

import castfit as cf

K1, K2, SIGMA = 0.7, 0.2, 0.03
times = np.linspace(0.1, 20, 200)
first, second = np.exp(-K1 * times), np.exp(-K2 * times)
b = K1 / (K2 - K1) * (first - second)
by_k1 = b / K1 + b / (K2 - K1) - K1 / (K2 - K1) * times * first
by_k2 = -b / (K2 - K1) + K1 / (K2 - K1) * times * second
J = np.stack([by_k1, by_k2], axis=1) / SIGMA  # a row for each time
even = np.full(times.size, 1 / times.size)

# %% checks
# The checks: run this cell, look into it when you are done.
DOTS = "The dots are still there: replace them by your answer."
ROWS = np.random.default_rng(1).normal(size=(7, 3))
SHARES = np.array([0.3, 0.1, 0.2, 0.05, 0.05, 0.2, 0.1])


def check_information(information):
    answer = information(ROWS, SHARES)
    assert answer is not ..., DOTS
    assert np.shape(answer) == (3, 3), "Return a matrix with a row and a column for each parameter, here 3 x 3."
    assert np.allclose(answer, sum(w * np.outer(row, row) for w, row in zip(SHARES, ROWS, strict=True))), (
        "Every time adds its share, to the power of one, times the outer product of its row with itself."
    )
    print("Right.")


def check_worth(worth):
    M = ROWS.T @ (SHARES[:, None] * ROWS)
    answer = worth(M, ROWS)
    assert answer is not ..., DOTS
    assert np.shape(answer) == (7,), "Return one number for each row of J: what a little more of that time is worth."
    assert np.isclose(SHARES @ answer, 3), (
        "Averaged over the design the worth is the number of parameters: is M inverted?"
    )
    assert np.allclose(answer, [row @ np.linalg.inv(M) @ row for row in ROWS]), (
        "The worth of a time is the row times the inverse of M times the row again, for each row by itself."
    )
    print("Right.")


def check_improved(improved):
    for n in (3, 2):
        rows = ROWS[:, :n]
        worth = np.array([np.dot(row, np.linalg.solve(rows.T @ (SHARES[:, None] * rows), row)) for row in rows])
        answer = improved(SHARES, worth, n)
        assert answer is not ..., DOTS
        assert np.shape(answer) == (7,), "Return a new weight for each of the times that there were."
        assert np.isclose(np.sum(answer), 1), (
            "The shares have to sum up to 1 again, which they do if divided by n once."
        )
        assert np.allclose(answer, SHARES * worth / n), (
            "Every weight is multiplied by its own worth over the average worth, which is n."
        )
    print("Right.")


def check_efficiency(efficiency):
    for h, n in ((np.array([1.0, 2.5, 1.7]), 2), (np.array([3.0, 0.4, 2.9, 3.6]), 3)):
        answer = efficiency(h, n)
        assert answer is not ..., DOTS
        assert np.ndim(answer) == 0, "Return one number: the share of the best that is reached at least."
        assert 0 < answer <= 1, "An efficiency lies between 0 and 1: look at the sign of the gap in the exponent."
        assert np.isclose(answer, np.exp(1 - np.max(h) / n)), (
            "The gap is the largest worth minus n; the efficiency is at least exp(-gap / n)."
        )
    print("Right.")


# %% [markdown]
# ## 1. What a design tells
#
# Every time has a row of J and a share w of all measuring. What is the information M of the design?


# %%
def information(J, w):
    # solution: rows count as often as they are measured
    return J.T @ (w[:, None] * J)
    # end


check_information(information)


# %% [markdown]
# ## 2. What a little more is worth
#
# By how much does log det M grow with the weight of each time?


# %%
def worth(M, J):
    # solution: the variance of the prediction at each time, in units of the error
    return np.sum(J * np.linalg.solve(M, J.T).T, axis=1)
    # end


check_worth(worth)


# %% [markdown]
# ## 3. A better design
#
# What is worth more than the average gets more weight. How?


# %%
def improved(w, h, n):
    # solution: one step of the multiplicative method
    return w * h / n
    # end


check_improved(improved)


# %% [markdown]
# ## 4. How far from the best?
#
# From the worth h of all times, say which efficiency a design has at least, whatever the best one is.


# %%
def efficiency(h, n):
    # solution: from the gap
    gap = np.max(h) - n
    return np.exp(-gap / n)
    # end


check_efficiency(efficiency)
w = even
for step in range(2001):
    h = worth(information(J, w), J)
    if step in (0, 10, 100, 2000):
        print(f"after {step} steps at least {100 * efficiency(h, 2):.2f} % of the best")
    w = improved(w, h, 2)
print("measure at", times[w > 0.05], "with", w[w > 0.05])

# %% [markdown]
# ## All of it by castfit
#
# In whole numbers, and by a method that needs some twenty steps where this one needs thousands.

# %%
a, b, k1, k2 = cf.symbols("a b k1 k2")
model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1.0, b: 0.0})
pilot = cf.Experiment({"b": [0.45, 0.53]}, [1, 2], sigma=SIGMA)
guesses = {"k1": cf.Parameter(K1, scale="log"), "k2": cf.Parameter(K2, scale="log")}
design = cf.design(cf.Problem(model, pilot, parameters=guesses), cf.Candidate(times, ["b"]), budget=6)
print(design)
for t in design.table["time"]:
    assert np.sum(w[np.abs(times - t) < 0.25]) > 0.4

# %%
design.plot()
