"""Callbacks between two ends of fits, so that a long fit does not look like one that hangs."""

from __future__ import annotations

import pytest

import castfit as cf
from castfit.drive.run import loop
from tests.drive.interrupts.drivers import decay_problem


@pytest.fixture
def frequent(monkeypatch):
    monkeypatch.setattr(loop, "_CALLBACK_SECONDS", 0.0)


def test_callback_is_called_before_the_first_fit_ends(frequent):
    finished: list[int] = []
    cf.multistart(decay_problem(), starts=2, rng=0, callback=lambda progress: finished.append(progress.finished))
    assert finished[0] == 0
    assert finished[-1] == 2
    assert len(finished) > 2


@pytest.mark.parametrize("driver", ["multistart", "estimate", "select", "bootstrap", "profile", "scatter_search"])
def test_callback_between_two_fits_stops_the_run(frequent, driver):
    calls: list[object] = []

    def stop(progress: object) -> bool:
        calls.append(progress)
        return True

    problem = decay_problem()
    runs = {
        "multistart": lambda: cf.multistart(problem, starts=50, rng=0, callback=stop),
        "estimate": lambda: cf.estimate(problem, rng=0, finds=9, callback=stop),
        "select": lambda: cf.select(problem, choices={"q": [0.0, cf.estimated]}, callback=stop),
        "bootstrap": lambda: cf.bootstrap(cf.fit(problem), samples=50, rng=0, callback=stop),
        "profile": lambda: cf.profile(cf.fit(problem), callback=stop),
        "scatter_search": lambda: cf.scatter_search(problem, rng=0, callback=stop),
    }
    result = runs[driver]()
    assert len(calls) == 1
    assert "Stopped by the callback." in str(result)


def test_error_of_a_callback_between_two_fits_is_raised(frequent):
    def fail(progress: object) -> bool:
        raise ZeroDivisionError("of the callback")

    with pytest.raises(ZeroDivisionError, match="of the callback"):
        cf.multistart(decay_problem(), starts=3, rng=0, callback=fail)
