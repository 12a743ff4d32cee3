"""Blood cells with a delay (Mackey and Glass): simulated data of a delay differential equation.

    x' = beta x(t − τ) / (1 + x(t − τ)ⁿ) − gamma x,      x = 1.2 for t ≤ 0          (Mackey and Glass 1977, Eq. 4)

x is the density of mature cells relative to the one at which production falls off; cells take the time τ to mature.
At beta = 0.2, gamma = 0.1, n = 10 and τ = 17 days x is chaotic.  It is measured every two days up to day 120 with
normal errors of standard deviation 0.02, and all four parameters are estimated.

The truth is integrated by the method of steps: on every interval of length τ the delayed value is known from the
interval before, so that SciPy's integrators for ordinary equations solve it to ten digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.integrate import solve_ivp

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TRUTH = {"beta": 0.2, "gamma": 0.1, "n": 10.0, "tau": 17.0}
INITIAL_HISTORY = 1.2  # constant value of x before t = 0
TIMES = np.arange(2.0, 121.0, 2.0)
MEASUREMENT_SIGMA = 0.02  # standard deviation of the measurement errors
REFERENCE = Reference(
    parameters={"beta": 0.1998026028, "gamma": 0.0998965420, "n": 10.1538311936, "tau": 16.9238496401},
    objective=39.7871228237,
    standard_errors={"beta": 0.00226304, "gamma": 0.00138668, "n": 0.162542, "tau": 0.0784814},
    source="least squares with SciPy on the method of steps, derivatives by differences of fourth order",
)


def benchmark(*, order: int | str = "auto") -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    order : int or "auto"
        Nodes of the delay line, as `castfit.delay` takes them.
    """
    x, beta, gamma, n, tau = cf.symbols("x beta gamma n tau")
    delayed = cf.delay(x, tau, history=INITIAL_HISTORY, order=order)
    model = cf.Model(
        {x: beta * delayed / (1 + delayed**n) - gamma * x},
        parameters=[beta, gamma, n, tau],
        initial={x: INITIAL_HISTORY},
    )
    noise = np.random.default_rng(1977).standard_normal(TIMES.size)
    values = method_of_steps(**TRUTH)(TIMES) + MEASUREMENT_SIGMA * noise
    return Benchmark(
        name="mackey_glass",
        description=(
            "Density of blood cells that take 17 days to mature, after Mackey and Glass (1977): a delay differential "
            "equation in its chaotic regime, with all four parameters, the delay among them, from 60 simulated values."
        ),
        problem=cf.Problem(
            model,
            cf.Experiment({"x": values}, time=TIMES, sigma=MEASUREMENT_SIGMA),
            parameters={
                "beta": cf.Parameter(0.3, lower=0.01, upper=2),
                "gamma": cf.Parameter(0.15, lower=0.01, upper=1),
                "n": cf.Parameter(8.0, lower=1, upper=30),
                "tau": cf.Parameter(15.0, lower=1, upper=60),
            },
        ),
        reference=REFERENCE,
        sources=("Mackey and Glass 1977, Science 197, 287 (model and values)",),
        draw_start=Uniform.around(TRUTH, factor=1.5),
        notes=(
            "History, times, noise, bounds, start and the distribution of starts are ours. The kink between the "
            "history and the solution limits the order of a delay line: 33 nodes agree with the method of steps to "
            "1e-4 in chi2 and to 0.003 standard errors."
        ),
        transcriptions={"multiple": {"intervals": 4}},
    )


def method_of_steps(*, beta: float, gamma: float, n: float, tau: float) -> Callable[[Array], Array]:
    """Solve the equation up to the last measured time, interval by interval of length tau."""
    pieces: list[Any] = []
    value = INITIAL_HISTORY
    while len(pieces) * tau < TIMES[-1]:
        past = pieces[-1] if pieces else lambda t: np.array([INITIAL_HISTORY])
        start = len(pieces) * tau

        def rate(t, x, past=past):
            delayed = past(t - tau)[0]
            return [beta * delayed / (1 + delayed**n) - gamma * x[0]]

        solution = solve_ivp(
            rate, (start, start + tau), [value], method="DOP853", rtol=1e-11, atol=1e-13, dense_output=True
        )
        pieces.append(solution.sol)
        value = solution.y[0, -1]
    return lambda t: np.array([pieces[min(int(s // tau), len(pieces) - 1)](s)[0] for s in t])
