"""Delays
======

Delays: how accurate a delay line is, and what the delay of STAT5 is when it is no longer a chain.

1. The logistic equation with a delay, x' = r x(t) (1 − x(t − tau)): the error of delay lines and of linear chains of
   growing order, against the method of steps.
2. STAT5 (Swameye et al. 2003): a chain of 8 filters stands for the delay in the published model.  With more stages the
   fit gets a little worse and the delay a little longer, up to what the delay itself gives.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import solve_ivp

import castfit as cf
from castfit import problems

R, TAU, START = 1.8, 1.0, 0.1
TIMES = np.linspace(0, 12, 61)


def logistic(**options) -> cf.Model:
    x, r, tau = cf.symbols("x r tau")
    delayed = cf.delay(x, tau, history=START, **options)
    return cf.Model({x: r * x * (1 - delayed)}, parameters=[r, tau], initial={x: START})


def method_of_steps() -> np.ndarray:
    """Solve the delay equation on one interval of length tau after the other: the past is known there."""
    pieces = [lambda t: np.array([START])]
    for k in range(12):
        past, x0 = pieces[-1], pieces[-1](k * TAU)
        solution = solve_ivp(lambda t, x, past=past: R * x * (1 - past(t - TAU)), (k * TAU, (k + 1) * TAU), x0,
                          method="DOP853", rtol=1e-12, atol=1e-14, dense_output=True)  # fmt: skip
        pieces.append(solution.sol)
    return np.array([pieces[min(int(t // TAU), 11) + 1](t)[0] for t in TIMES])


def accuracy() -> None:
    exact = method_of_steps()
    errors = {}
    for method, orders in (("spectral", (4, 8, 15, 30)), ("chain", (8, 50, 200))):
        for order in orders:
            trajectory = cf.simulate(logistic(method=method, order=order), {"r": R, "tau": TAU}, TIMES)["x"]
            errors[method, order] = np.abs(trajectory - exact).max()
            print(f"{method:8s} {order:4d}   largest error {errors[method, order]:.1e}")
    picture(errors)
    assert errors["spectral", 8] < 1e-3 < errors["chain", 200]
    assert errors["spectral", 30] < 1e-5


def picture(errors: dict[tuple[str, int], float]) -> None:
    """Draw errors against the number of nodes, or stages."""
    _, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for method, words in (("spectral", "delay line"), ("chain", "chain of first-order stages")):
        points = [(order, error) for (name, order), error in errors.items() if name == method]
        axes.loglog(*zip(*points, strict=True), "o-", label=words)
    axes.set(xlabel="nodes or stages", ylabel="largest error")
    axes.legend()


def stat5() -> None:
    print("\nSTAT5      chi2      tau  (standard error)")
    taus = {}
    for delay in (8, 20, 50, "line"):
        benchmark = problems.load("stat5", delay=delay)
        result = cf.fit(benchmark.problem, "single", start=benchmark.reference.parameters)
        assert result.success
        assert benchmark.reference.is_reached(result.chi2)
        taus[delay] = result.parameters["tau"]
        print(f"{delay!s:>5}   {result.chi2:8.4f}   {taus[delay]:.4f}  ({result.standard_errors['tau']:.2f})")
    print(result.message)
    assert abs(taus[50] - taus["line"]) < abs(taus[8] - taus["line"])


if __name__ == "__main__":
    accuracy()
    stat5()
