"""A fit ends in time, and at Ctrl-C, with its best point: nothing loops for ever and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import castfit as cf
from castfit._support.status import Status
from castfit._support.time_limit import (
    Interrupt,
    StopRequested,
    check_deadline,
    guarded,
    interruptible,
    with_deadline,
    without_deadline,
)
from castfit.solve.solution import SolveControl
from castfit.transcribe.shooting_problem import ShootingProblem
from tests.builders import decay_problem, lotka_volterra

TRANSCRIPTIONS = [cf.SingleShooting(), cf.MultipleShooting(3), cf.Collocation()]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("value", [1e-300, 1e300, *(pytest.param(v, marks=pytest.mark.slow) for v in (1e-150, 1e150))])
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=lambda t: t.label)
def test_a_start_whose_square_underflows_or_overflows_ends(transcription, value):
    """The natural level function divided by the square of the step, and then shortened the step by NaN for ever."""
    result = cf.fit(decay_problem(), transcription, start={"k": value}, second_start=False, max_time=5.0)
    assert result.parameters["k"] == pytest.approx(0.378100, rel=1e-4) or not result.success


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.GaussNewton("levenberg_marquardt"), cf.Ipopt()])
@pytest.mark.parametrize("limit", [40.0, 1e-9])
def test_max_time_holds_within_an_evaluation(monkeypatch, clock, solver, limit):
    """Every evaluation takes 10 s here; the start is far enough for step controls to try several points."""
    original_integrate = ShootingProblem._integrate

    def slow(self, *arguments):
        clock.sleep(10.0)
        return original_integrate(self, *arguments)

    monkeypatch.setattr(ShootingProblem, "_integrate", slow)
    result = cf.fit(lotka_volterra((2.5, 0.1, 4.0, 3.0)), cf.MultipleShooting(5), solver, max_time=limit)
    assert limit < clock.now <= limit + 30.0
    assert result.status is Status.MAX_TIME
    assert np.isfinite(result.chi2)


def test_max_time_holds_in_refinement_and_at_the_start(monkeypatch, clock):
    import castfit.transcribe.collocation as module

    def late(*arguments):
        clock.sleep(30.0)
        check_deadline()
        return original_function(*arguments)

    original_function = module.estimated_errors
    monkeypatch.setattr(module, "estimated_errors", late)
    result = cf.fit(decay_problem(), "collocation", max_time=25.0)
    assert result.status is Status.MAX_TIME
    assert "not checked" in result.message
    assert result.parameters["k"] == pytest.approx(0.3781, rel=1e-3)
    for start in ("matching", "decomposed"):
        early_result = cf.fit(lotka_volterra(), "collocation", start=start, max_time=1e-6)
        assert early_result.status is Status.MAX_TIME


def test_an_outer_watch_limits_the_inner_one_and_can_be_lifted():
    with with_deadline(0.0), with_deadline(100.0):
        time.sleep(0.001)
        with pytest.raises(StopRequested) as error:
            check_deadline()
        assert error.value.status is Status.MAX_TIME
        with without_deadline():
            check_deadline()
    check_deadline()


def test_interrupts_are_shared_and_handlers_restored():
    original_handler = signal.getsignal(signal.SIGINT)
    with Interrupt() as outer, Interrupt() as inner:
        signal.raise_signal(signal.SIGINT)
        assert inner.requested
        assert outer.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is original_handler


def test_sigterm_counts_as_ctrl_c_and_ignored_signals_stay_ignored():
    original_handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Interrupt() as outer, Interrupt() as inner:
            assert inner is outer
            signal.raise_signal(signal.SIGINT)
            assert not outer.requested
            signal.raise_signal(signal.SIGTERM)
            assert outer.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, original_handlers[0])
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == original_handlers


def test_signal_long_after_another_one_raises_nothing(monkeypatch):
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        original_time = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: original_time() + 2.5)
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested


def test_guard_names_the_driver_that_has_no_result():
    @guarded
    def search(*, is_late: bool) -> None:
        if not is_late:
            signal.raise_signal(signal.SIGTERM)
        with with_deadline(-1.0 if is_late else 100.0):
            check_deadline()

    @guarded
    def outer_search() -> str:
        with pytest.raises(StopRequested):
            search(is_late=True)
        return "partial"

    with pytest.raises(KeyboardInterrupt, match="search was interrupted"):
        search(is_late=False)
    with pytest.raises(TimeoutError, match="search reached its time limit"):
        search(is_late=True)
    assert outer_search() == "partial"


def test_function_without_status_raises_if_it_had_finished():
    @interruptible
    def compute() -> int:
        signal.raise_signal(signal.SIGINT)
        return 1

    with pytest.raises(KeyboardInterrupt):
        compute()


def test_a_solver_alone_returns_its_start_when_there_is_no_time():
    problem = lotka_volterra()
    staged = cf.SingleShooting().transcribe(problem, problem.guess)
    for solver in (cf.GaussNewton(), cf.Ipopt()):
        solution = solver.solve(staged, SolveControl(max_time=-1.0))
        assert solution.status is Status.MAX_TIME
        np.testing.assert_array_equal(solution.v, staged.start)


SCRIPT = """
import sys, time, signal, threading, traceback, os
import castfit as cf
from tests.builders import lotka_volterra
transcription = {"single": cf.SingleShooting(), "multiple": cf.MultipleShooting(7), "collocation": cf.Collocation()}
solver = {"gn": cf.GaussNewton(), "ipopt": cf.Ipopt()}
delays = [float(d) for d in sys.argv[3:]]
cf.fit  # imported before anybody presses Ctrl-C
for delay in delays:
    problem = lotka_volterra()  # built anew, so that functions are built within the fit
    sent, result, where = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)), None, "before"
    try:
        sent.start()
        result = cf.fit(problem, transcription[sys.argv[1]], solver[sys.argv[2]])
        sent.join()
        time.sleep(0.002)
    except KeyboardInterrupt as error:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        where = "within" if any(name.endswith("castfit/fit/fit.py") for name in files) else "before"
        sent.join()
    print(where if result is None else result.status.value)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
@pytest.mark.parametrize(
    ("transcription", "solver", "times"),
    [
        ("multiple", "gn", 8),
        ("collocation", "ipopt", 8),
        *(
            pytest.param(transcription, solver, 25, marks=pytest.mark.slow)
            for transcription in ("single", "multiple", "collocation")
            for solver in ("gn", "ipopt")
        ),
    ],
)
def test_ctrl_c_in_the_first_tenth_of_a_second_never_loses_the_fit(transcription, solver, times):
    delays = [f"{delay:.4f}" for delay in np.geomspace(2e-4, 0.15, times)]
    command = [sys.executable, "-c", SCRIPT, transcription, solver, *delays]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr[-2000:]
    ends = process.stdout.split()
    assert len(ends) == len(delays)
    assert set(ends) <= {"converged", "acceptable", "interrupted", "before"}, ends
    assert "interrupted" in ends
