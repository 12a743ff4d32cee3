"""Whenever time is over or Ctrl-C is pressed, a fit or a run returns its result, wherever castfit looks."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import castfit as cf
from castfit._support import time_limit
from castfit._support.status import Status
from tests.builders import decay_problem, everything, lotka_volterra, refused

OVER = 1e9  # seconds by which the clock jumps
LIMIT = 1e6  # seconds that a run is given, which no test takes


@dataclass
class Fault:
    """What happens at one of the places where castfit looks: by the stack of its own functions, first and last time.

    what : "max_time" or "Ctrl-C"
    at : the look before which it happens, from 1; 0 is never
    """

    what: str
    at: int = 0
    count: int = 0
    late: bool = False
    places: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)

    def look(self) -> None:
        self.count += 1
        if self.at == 0:
            self.places.setdefault(stack(), []).append(self.count)
        elif self.count == self.at and self.what == "max_time":
            self.late = True
        elif self.count == self.at:
            signal.raise_signal(signal.SIGINT)

    @property
    def looks(self) -> list[int]:
        """The first and the last look at every place."""
        return sorted({k for indices in self.places.values() for k in (indices[0], indices[-1])})


def stack() -> tuple[Any, ...]:
    frames, frame = [], sys._getframe(2)
    while frame is not None:
        if "/castfit/" in frame.f_code.co_filename:
            frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(frames)


@contextmanager
def injected(fault: Fault) -> Iterator[None]:
    """Count every look at a watch, and let the fault happen there; a clock that jumps does so for everybody."""
    original_time, original_perf_counter = time.time, time.perf_counter

    def perf_counter() -> float:
        if time_limit._current.watch is not None and sys._getframe(1).f_globals is vars(time_limit):
            fault.look()
        return original_perf_counter() + OVER * fault.late

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", perf_counter)
        patch.setattr(time, "time", lambda: original_time() + OVER * fault.late)
        yield


def mixed() -> Any:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    times = np.array([0.5, 1.0, 2.0, 4.0])
    animals = [cf.Experiment({"x": 10 * np.exp(-r * times)}, times, sigma=0.2) for r in (0.2, 0.3, 0.45)]
    problem = cf.Problem(model, animals, parameters={"k": cf.Parameter(0.8, local=True)})
    return cf.mixed_effects(problem, cf.Population({"k": cf.Individual(omega=0.2)}), max_time=LIMIT)


def dosed() -> cf.Problem:
    """A dose after a lag that is estimated: the times of events are."""
    x, k, lag = cf.symbols("x k lag")
    model = cf.Model({x: -k * x}, parameters=[k, lag])
    times = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
    data = np.where(times > 0.75, 2.0 * np.exp(-0.8 * (times - 0.7)), 0.1 * np.exp(-0.8 * times))
    experiment = cf.Experiment(
        {"x": data}, times, start=0.0, sigma=0.05, initial={"x": 0.1}, events=[cf.Doses(x, 2.0, times=0.0, lag=lag)]
    )
    parameters = {"k": cf.Parameter(0.5, lower=0.05, upper=5.0), "lag": cf.Parameter(0.6, lower=0.3, upper=0.95)}
    return cf.Problem(model, experiment, parameters=parameters)


def triggered() -> cf.Problem:
    """A tank that is emptied where it is full."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: k + 0 * x}, parameters=[k])
    experiment = cf.Experiment(
        {"x": [0.5, 0.2, 0.7, 0.4]}, [0.5, 1.2, 1.7, 2.4], start=0.0, sigma=0.05, initial={"x": 0.0},
        events=[cf.Event(changes={x: 0}, when=x > 1)],
    )  # fmt: skip
    return cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.9, lower=0.3, upper=3.0)})


def delayed() -> cf.Problem:
    x, k, tau = cf.symbols("x k tau")
    model = cf.Model({x: -k * cf.delay(x, tau)}, parameters=[k, tau], initial={x: 1.0})
    times = np.linspace(0.5, 4.0, 8)
    data = [0.72, 0.42, 0.13, -0.12, -0.28, -0.36, -0.36, -0.3]
    experiment = cf.Experiment({"x": data}, times, start=0.0, sigma=0.05)
    return cf.Problem(model, experiment, parameters={"k": 0.5, "tau": cf.Parameter(0.8, lower=0.2, upper=2.0)})


def noisy(noise: Any) -> cf.Problem:
    experiment = cf.Experiment(
        {"x": [1.0, 0.7, 0.5, 0.3, 0.2, 0.19]}, time=[0, 1, 2, 3, 4, 5], sigma=0.1, initial={"x": 1.0}, noise=noise
    )
    x, k = cf.symbols("x k")
    return cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 0.5})


def unknown() -> cf.Problem:
    experiment = cf.Experiment(
        {"x": [1.0, 0.7, 0.5, 0.3, 0.2]}, time=[0, 1, 2, 3, 4], sigma=cf.unknown(), initial={"x": 1.0}
    )
    x, k = cf.symbols("x k")
    return cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 0.5})


def two() -> cf.Problem:
    """A decay of which the start is estimated, too."""
    x, k, A = cf.symbols("x k A")
    experiment = cf.Experiment({"x": [1.0, 0.7, 0.5, 0.3, 0.2]}, time=[0, 1, 2, 3, 4], sigma=0.1)
    parameters = {"k": cf.Parameter(0.5, lower=0.1, upper=2.0), "A": cf.Parameter(1.0, lower=0.1, upper=3.0)}
    return cf.Problem(cf.Model({x: -k * x}, parameters=[k, A], initial={x: A}), experiment, parameters=parameters)


def fitted(problem: Any, *arguments: Any, **options: Any) -> Any:
    return lambda: cf.fit(problem(), *arguments, max_time=LIMIT, **options)


def of_fit(driver: Any, **options: Any) -> Any:
    results: list[Any] = []

    def run() -> Any:
        results[:] = results or [cf.fit(two(), "single")]
        return driver(results[0], max_time=LIMIT, **options)

    return run


def searched(driver: Any, **options: Any) -> Any:
    return lambda: driver(two(), max_time=LIMIT, **options)


def chosen_design(result: Any, **options: Any) -> Any:
    """Design a start as well as times."""
    state = next(iter(result.problem.posed.model.states))
    candidate = cf.Candidate(np.linspace(0.5, 4, 9), initial={state: cf.choose(0.5, 4.0)})
    return cf.design(result, candidate, budget=4, starts=3, **options)


EXACT = cf.Ipopt(hessian="exact")
KINDS: dict[str, Any] = {
    "default": fitted(lotka_volterra),
    "single": fitted(lotka_volterra, "single"),
    "multiple": fitted(lotka_volterra, cf.MultipleShooting(5)),
    "box": fitted(lotka_volterra, "single/box"),
    "levenberg": fitted(lotka_volterra, "multiple", cf.GaussNewton("levenberg_marquardt")),
    "single/ipopt": fitted(lotka_volterra, "single/ipopt"),
    "multiple/ipopt": fitted(lotka_volterra, "multiple/ipopt"),
    "collocation/ipopt": fitted(lotka_volterra, "collocation/ipopt"),
    "exact": fitted(decay_problem, "collocation", EXACT),
    "sqp": fitted(decay_problem, "multiple/sqp"),
    "everything": fitted(everything),
    "everything multiple": fitted(everything, "multiple"),
    "event times, single": fitted(dosed, "single"),
    "event times, multiple": fitted(dosed, "multiple"),
    "event times, collocation": fitted(dosed, "collocation"),
    "triggered": fitted(triggered, "single"),
    "delay": fitted(delayed),
    "student": fitted(lambda: noisy(cf.StudentT(df=4)), "multiple"),
    "laplace": fitted(lambda: noisy(cf.Laplace())),
    "unknown sigma": fitted(unknown, "single"),
    "matching": fitted(lotka_volterra, start="matching"),
    "soft": fitted(lotka_volterra, "multiple", start="soft"),
    "decomposed": fitted(lotka_volterra, start="decomposed"),
    "far": fitted(lambda: lotka_volterra((0.5, 0.5, 0.5, -0.2)), "multiple"),
    "multistart": searched(cf.multistart, starts=2, rng=0),
    "scatter_search": searched(cf.scatter_search, dim_refset=4, n_diverse=12, max_eval=60, rng=0),
    "estimate": searched(cf.estimate, rng=0, finds=1, strategies=["box"]),
    "incremental": searched(cf.incremental),
    "mixed_effects": mixed,
    "profile": of_fit(cf.profile),
    "contours": of_fit(lambda result, **o: cf.contours(result, "k", "A", **o)),
    "bootstrap": of_fit(cf.bootstrap, samples=8, rng=0),
    "leave_out": of_fit(lambda result, **o: cf.leave_out(result, "value", **o)),
    "select": searched(cf.select, choices={"k": [0.5, cf.estimated], "A": [1.0, cf.estimated]}),
    "coverage": of_fit(cf.coverage, samples=6, rng=0),
    "identifiability": of_fit(cf.identifiability),
    "design": of_fit(lambda result, **o: cf.design(result, cf.Candidate(np.linspace(0.5, 4, 9)), budget=4, **o)),
    "choose": of_fit(chosen_design),
    "doctor": searched(cf.doctor, starts=1, rng=0),
    "compare": searched(cf.compare, methods=["single"], starts=1, rng=0),
}


WITHOUT_EARLY_RESULT = ("design", "choose")  # the candidates are simulated first


def tried(kind: str, interruption: str, max_count: int) -> None:
    """Let something happen at every place where a kind of fit or run looks, or at some of them if that is too many."""
    run = KINDS[kind]
    run()  # what it begins with, such as a fit, is no part of it
    counted = Fault(interruption)
    with injected(counted):
        assert run() is not None
    assert len(counted.looks) > 5
    chosen = np.unique(np.linspace(0, len(counted.looks) - 1, max_count).astype(int))
    statuses, happened = set[Any](), 0
    for k in (counted.looks[int(i)] for i in chosen):
        fault = Fault(interruption, at=k)
        with injected(fault):
            try:
                result = run()
            except (KeyboardInterrupt, TimeoutError) as error:
                assert kind in WITHOUT_EARLY_RESULT
                result = str(error)
                assert "before it had a result" in result
        happened += fault.count >= k  # what was built before is not looked at again
        assert str(result), k
        statuses.add(getattr(result, "status", None))
    assert happened > 1
    if None not in statuses:
        assert {"max_time": Status.MAX_TIME, "Ctrl-C": Status.INTERRUPTED}[interruption] in statuses


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("interruption", ["max_time", "Ctrl-C"])
@pytest.mark.parametrize("kind", KINDS)
def test_run_stopped_at_any_check_returns_result(kind, interruption):
    tried(kind, interruption, 12 if kind == "contours" else 60)


@pytest.mark.parametrize(
    ("kind", "interruption"),
    [
        ("event times, multiple", "max_time"),
        ("event times, collocation", "Ctrl-C"),
        ("triggered", "Ctrl-C"),
        ("student", "max_time"),
        ("multistart", "Ctrl-C"),
        ("profile", "max_time"),
        ("mixed_effects", "Ctrl-C"),
    ],
)
def test_run_stopped_at_some_checks_returns_result(kind, interruption):
    tried(kind, interruption, 6)


HUGE = {
    "elements is 1099511627776; it must be a positive integer, at most 100000": lambda _: cf.IntegratorOptions(
        "collocation", elements=2**40
    ),
    "max_steps is 1099511627776; it must be a positive integer, at most 1000000000": lambda _: cf.IntegratorOptions(
        max_steps=2**40
    ),
    "elements is 10000000; give a positive integer": lambda _: cf.Collocation(elements=10**7),
    "intervals is 10000000; give a positive integer": lambda _: cf.MultipleShooting(10**7),
    "starts is 1000000000; expected a number from 1 to 1000000": lambda p: cf.multistart(p, starts=10**9),
    "screen is 1000000000; give at least 1, and at most 1000": lambda p: cf.estimate(p, screen=10**9),
    "dim_refset is 10000000; give an integer from 3 to 1000": lambda p: cf.scatter_search(p, dim_refset=10**7),
    "n_diverse is 10000000; give at least as many": lambda p: cf.scatter_search(p, n_diverse=10**7),
    "subranges is 10000000; give an integer from 1 to 10000": lambda p: cf.scatter_search(p, subranges=10**7),
    "samples is 1000000000; give at least 1, and at most 100000": lambda p: cf.bootstrap(
        cf.fit(p, "single"), samples=10**9
    ),
    "chains is 1000000000; give at least 1, and at most 1000": lambda p: cf.sample(cf.fit(p, "single"), chains=10**9),
}


@pytest.mark.parametrize("sentence", HUGE)
def test_more_than_a_machine_has_memory_and_time_for_is_refused(sentence):
    """Before it was tried: for minutes without a look at the clock, or until there was no memory."""
    with refused(sentence):
        HUGE[sentence](two())
