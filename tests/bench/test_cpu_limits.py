"""Limits of benchmarks are CPU seconds: what else runs on a machine changes no table."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

import castfit as cf
from castfit._bench import library, searches, textbook
from castfit._bench.baselines import Budget
from castfit._bench.cpu_clock import cpu_clock

REAL = time.perf_counter


@pytest.fixture
def looks():
    return list[bool]()


def test_a_run_of_the_textbook_is_limited_by_its_cpu_time(looks):
    def method(problem, start, seed, max_time):
        looks.append(time.perf_counter is not REAL)
        return cf.Status.CONVERGED, 1.0

    assert textbook._run(method, None, {}, 0, 1.0).chi2 == 1.0
    assert looks == [True]
    assert time.perf_counter is REAL


def test_a_fit_of_the_library_is_limited_by_its_cpu_time(looks, monkeypatch):
    def fit(*_, **__):
        looks.append(time.perf_counter is not REAL)
        return SimpleNamespace(status=cf.Status.CONVERGED)

    monkeypatch.setattr(cf, "fit", fit)
    library._timed(SimpleNamespace(problem=None), "default", {}, 1.0)
    assert looks == [True]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_search_is_limited_by_its_cpu_time_where_it_is_one_process(looks, workers):
    def searcher(problem, *, seed, workers, budget):
        looks.append(time.perf_counter is not REAL)
        return SimpleNamespace(history=(), simulations=0)

    searches._run(searcher, None, 0, workers, Budget(1, 1.0, 0.0))
    assert looks == [workers == 1]


def test_clocks_of_several_workers_stay_as_they_are():
    with cpu_clock(2):
        assert time.perf_counter is REAL
