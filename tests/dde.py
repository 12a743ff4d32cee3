"""Delay differential equations by the method of steps: what delay lines are tested against."""

from __future__ import annotations

import bisect
from itertools import pairwise

import numpy as np
from scipy.integrate import solve_ivp

from castfit import problems


def method_of_steps(rate, history, start, lag, end, *, kinks=(), levels=8):
    """Solve x' = rate(t, x, past) with past(t) = x(t - lag); return a function of times (n,) -> (n, n_x).

    Pieces end at all times at which a derivative may jump: the start and `kinks`, and `levels` lags after each.
    """
    jumps = {round(t + j * lag, 12) for t in (0.0, *kinks) for j in range(levels) if 0.0 < t + j * lag < end}
    whole = {j * lag for j in range(1, int(end / lag) + 1) if j * lag < end}
    every = sorted({0.0, end, *jumps, *whole})
    edges = [every[0], *(b for a, b in pairwise(every) if b - a > 1e-9)]
    pieces, begins = [], []

    def at(t, side="right"):
        if t < 0.0 or (t <= 0.0 and side == "left"):
            return np.atleast_1d(history(t))
        find = bisect.bisect_right if side == "right" else bisect.bisect_left
        return pieces[max(find(begins, t) - 1, 0)](t)

    state = np.atleast_1d(np.asarray(start, dtype=float))
    for left, right in pairwise(edges):
        found = solve_ivp(
            lambda t, x, left=left, right=right: rate(
                min(max(t, left * (1 + 1e-15)), right), x, lambda s: at(s, "left" if t == right else "right")
            ),
            (left, right), state, method="DOP853", rtol=1e-12, atol=1e-14, dense_output=True,
        )  # fmt: skip
        pieces.append(found.sol)
        begins.append(left)
        state = found.y[:, -1]
    return lambda times: np.array([at(t, "left") if t > 0.0 else pieces[0](0.0) for t in times])


def five_point(function, x, step):
    """Return the derivative of a function of a number by differences of fourth order."""
    f = [np.asarray(function(x + m * step)) for m in (-2, -1, 1, 2)]
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)


def stat5(k1, k2, tau, x1, times):
    """Return y1 and y2 of the problem stat5 with the delay itself, (n, 2)."""
    signal = problems.load("stat5").problem.conditions[0].inputs[0]

    def rate(t, x, past):
        u, delayed = float(signal(t)), past(t - tau)[2]
        return [-k1 * x[0] * u + k2 * delayed, -(x[1] ** 2) + k1 * x[0] * u, -k2 * x[2] + x[1] ** 2,
                k2 * (x[2] - delayed)]  # fmt: skip

    kinks = signal.times.tolist()
    x = method_of_steps(rate, lambda t: np.zeros(4), [x1, 0, 0, 0], tau, kinks[-1], kinks=kinks, levels=4)(times)
    return np.column_stack([0.33 * (x[:, 1] + x[:, 2]), 0.26 * (x[:, 0] + x[:, 1] + x[:, 2])])
