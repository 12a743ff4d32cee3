"""Runs of every driver, long enough to be stopped, for `tests.drive.interrupts`; also a script.

``python -m tests.drive.interrupts.drivers DRIVER SIGNAL SECONDS WORKERS`` sends a signal to its own process after some
seconds; for signal 0 they are the time limit of the run.  It prints the seconds from then to the end on the wall clock
and of this process, and the text of the result or of the error.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from functools import cache
from typing import Any

import numpy as np

import castfit as cf

TIMES = np.linspace(0.2, 5, 25)


def decay_problem(**options: Any) -> cf.Problem:
    """x' = -k x + q with noisy data: quick fits."""
    x, k, q = cf.symbols("x k q")
    values = 2 * np.exp(-0.7 * TIMES) + 0.3 + 0.05 * np.random.default_rng(0).standard_normal(TIMES.size)
    model = cf.Model({x: -k * x + q}, parameters=[k, q], initial={x: 2.0})
    parameters = {"k": cf.Parameter(0.5, 1e-3, 10), "q": cf.Parameter(0.1, 0, 5)}
    return cf.Problem(model, cf.Experiment({"x": values}, TIMES, sigma=0.05, **options), parameters=parameters)


def population() -> tuple[cf.Problem, cf.Population]:
    """Subjects with their own rate constants."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    rng, times = np.random.default_rng(1), np.linspace(0.5, 6.0, 6)
    rates = 0.3 * np.exp(0.4 * rng.standard_normal(300))
    subjects = [
        cf.Experiment({"x": 10 * np.exp(-r * times) + 0.2 * rng.standard_normal(6)}, times, sigma=cf.unknown())
        for r in rates
    ]
    problem = cf.Problem(model, subjects, parameters={"k": cf.Parameter(0.5, local=True)})
    return problem, cf.Population({"k": cf.Individual(omega=0.5)})


def noisy_problem(n: int) -> cf.Problem:
    """A random walk with a drift that is estimated."""
    x, w, k = cf.symbols("x w k")
    times = np.linspace(0.05, 20.0, n)
    values = np.cumsum(np.random.default_rng(2).standard_normal(n)) * 0.1
    model = cf.Model({x: -k * x**3 + w}, parameters=[k], noises=[w])
    experiment = cf.Experiment({"x": values}, times, sigma=0.1, start=0.0, initial={"x": cf.Normal(0.0, 1.0)})
    return cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.2, 1e-3, 10)})


@cache
def decay_fit() -> cf.Result:
    return cf.fit(decay_problem())


@cache
def noisy_fit(n: int) -> Any:
    return cf.fit(noisy_problem(n))


@cache
def wide_fit() -> cf.Result:
    """A fit of ten quantities, whose profiles take long."""
    return cf.fit(cf.problems.load("repressilator").problem, max_time=20)


@cache
def decay_design() -> Any:
    return cf.design(decay_fit(), cf.Candidate(TIMES, ["x"]), budget=8)


def choose(**options: Any) -> Any:
    candidate = cf.Candidate(np.linspace(0.2, 5, 25), ["x"], initial={"x": cf.choose(1.0, 5.0)})
    return cf.design(decay_fit(), candidate, budget=8, starts=200, **options)


def doses(**options: Any) -> Any:
    """A plan with many elements."""
    x, u = cf.symbols("x u")
    model = cf.Model({x: -x + u}, inputs=[u])
    levels = cf.Input.free(40, bounds=(0.0, 1.0))
    minimise = cf.integral((x - 0.5) ** 2)
    return cf.control(
        model, horizon=5.0, inputs={"u": levels}, minimise=minimise, initial={"x": 1.0}, starts=200, rng=0, **options
    )


def filtered_stream(**_: Any) -> Any:
    """Steps of a moving horizon."""
    result = noisy_fit(60)
    observer = cf.moving_horizon(result, horizon=40)
    while True:
        observer.step(observer.now.time + 0.1 if observer.now else 0.1, {"x": 0.1})


def simulated(**_: Any) -> Any:
    """Simulations in an endless loop."""
    problem = cf.problems.load("goodwin").problem
    while True:
        cf.simulate(problem)


def filtered(**_: Any) -> Any:
    while True:
        cf.kalman(noisy_fit(60))


CHOICES = {
    "q": [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, cf.estimated],
    "k": [*np.linspace(0.3, 1.2, 20).tolist(), cf.estimated],
}

DRIVERS: dict[str, Any] = {
    "fit": lambda **o: cf.fit(noisy_problem(2000), **o),
    "fit of sums of squares": lambda **o: cf.fit(cf.problems.load("goodwin").problem, **o),
    "fit by Ipopt": lambda **o: cf.fit(cf.problems.load("hiv_proteinase").problem, "collocation/ipopt", **o),
    "fit by Sqp": lambda **o: cf.fit(cf.problems.load("repressilator").problem, "multiple/sqp", **o),
    "fit from blocks": lambda **o: cf.fit(cf.problems.load("three_step").problem, start="decomposed", **o),
    "multistart": lambda **o: cf.multistart(decay_problem(), starts=4000, rng=0, **o),
    "estimate": lambda **o: cf.estimate(cf.problems.load("goodwin").problem, rng=0, finds=50, **o),
    "scatter_search": lambda **o: cf.scatter_search(decay_problem(), rng=0, max_eval=10**6, vtr=-1.0, **o),
    "incremental": lambda **o: cf.incremental(cf.problems.load("repressilator").problem, **o),
    "compare": lambda **o: cf.compare(decay_problem(), ["single", "collocation"], starts=1000, rng=0, **o),
    "select": lambda **o: cf.select(decay_problem(), choices=CHOICES, **o),
    "mixed_effects": lambda **o: cf.mixed_effects(*population(), integrator=cf.IntegratorOptions("cvodes"), **o),
    "profile": lambda **o: cf.profile(wide_fit(), **o),
    "contours": lambda **o: cf.contours(decay_fit(), "k", "q", slices=200, **o),
    "bootstrap": lambda **o: cf.bootstrap(decay_fit(), samples=20000, rng=0, **o),
    "leave_out": lambda **o: cf.leave_out(wide_fit(), "value", **o),
    "coverage": lambda **o: cf.coverage(decay_fit(), samples=20000, rng=0, **o),
    "profile coverage": lambda **o: cf.coverage(decay_fit(), samples=2000, intervals="profile", rng=0, **o),
    "verify": lambda **o: decay_design().verify(samples=20000, rng=0, **o),
    "sample": lambda **o: cf.sample(decay_fit(), draws=10**6, rng=0, **o),
    "identifiability": lambda **o: cf.identifiability(cf.problems.load("three_step").problem, **o),
    "doctor": lambda **o: cf.doctor(cf.problems.load("goodwin").problem, starts=500, **{"max_time": 600.0, **o}),
    "design": lambda **o: cf.design(decay_fit(), cf.Candidate(np.linspace(0.1, 5, 4000), ["x"]), budget=1e9, **o),
    "choose": choose,
    "control": doses,
    "kalman": filtered,
    "moving_horizon": filtered_stream,
    "simulate": simulated,
}
WITH_WORKERS = (
    "multistart", "estimate", "scatter_search", "compare", "select", "mixed_effects", "profile", "contours",
    "bootstrap", "leave_out", "coverage", "verify", "sample",
)  # fmt: skip
WITHOUT_LIMIT = ("kalman", "moving_horizon", "simulate")
PREPARED = {
    "profile": wide_fit, "leave_out": wide_fit, "verify": decay_design, "kalman": lambda: noisy_fit(60),
    "moving_horizon": lambda: noisy_fit(60),
}  # fmt: skip


def main(name: str, number: int, seconds: float, workers: int) -> None:
    """Run a driver that is stopped after some seconds, and write its result or error."""
    import scipy.stats  # noqa: F401 - takes seconds on a loaded machine

    PREPARED.get(name, decay_fit)()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background ignore it
    stop_times: list[float] = []
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    def stop() -> None:
        while signal.getsignal(signal.SIGINT) in handlers:  # the driver has not begun
            time.sleep(1e-3)
        time.sleep(seconds)
        stop_times.extend((time.perf_counter(), time.process_time()))
        if number:
            os.kill(os.getpid(), number)

    options: dict[str, Any] = {"workers": workers} if workers > 1 else {}
    threading.Thread(target=stop, daemon=True).start()
    try:
        text = str(DRIVERS[name](**options, **({} if number else {"max_time": seconds})))
    except (KeyboardInterrupt, TimeoutError) as error:
        text = f"{type(error).__name__}: {error}"
    end_times = time.perf_counter(), time.process_time()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not multiprocessing.active_children()
    wall, cpu = (end - stop for end, stop in zip(end_times, stop_times or end_times, strict=True))
    sys.stdout.write(f"{wall:.3f} {cpu:.3f} {text}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
