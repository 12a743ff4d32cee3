from __future__ import annotations

import os
import signal
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import active_children, get_context

import pytest

from castfit._support import process_pool as pool
from castfit._support.blas_threads import one_blas_thread, openblas
from castfit._support.process_pool import LostTask, WorkerPool
from castfit._support.status import InputError
from tests.drive.errands import chore, leave_at_once, square
from tests.workers import no_time_passes_until

FOREVER = float("inf")


def tasks(*arguments):
    return deque((key, (argument,)) for key, argument in enumerate(arguments))


def outcomes(function, todo, workers, limit=FOREVER, deadline=FOREVER):
    with WorkerPool(workers) as staff:
        return dict(staff.run(function, todo, limit=limit, deadline=deadline))


def outcomes_beside_what_hangs(monkeypatch, function, todo, workers, hanging=1):
    """Return the outcomes; what hangs is late once all others have ended, and nothing before, however slow it is."""
    results, n_awaited = {}, len(todo) - hanging
    no_time_passes_until(lambda: len(results) >= n_awaited, monkeypatch)
    with WorkerPool(workers) as staff:
        for key, value in staff.run(function, todo, limit=60.0):
            results[key] = value
    return results


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def test_pool_runs_every_task_in_each_mode(two_workers):
    expected = {i: i * i for i in range(7)}
    for workers in (1, two_workers):
        assert outcomes(square, tasks(*range(7)), workers) == expected


def test_pool_runs_short_tasks_in_this_process(monkeypatch):
    """Whose work it was tells the process: that of the tests, or one of two others."""
    monkeypatch.setattr(pool, "MIN_PARALLEL_SECONDS", 10.0)

    def where(seconds, expected):
        """Work for so many seconds a task, by a clock that only tasks move."""
        clock = iter(seconds * k for k in range(100))
        monkeypatch.setattr(pool.time, "monotonic", lambda: next(clock))

        def run_elsewhere(function, todo, *_):
            for key, _arguments in todo:
                yield key, "others"

        with WorkerPool(2) as staff:
            monkeypatch.setattr(staff, "_on_processes", run_elsewhere)
            results = dict(staff.run(square, tasks(*range(6)), expected=expected))
        return ["others" if value == "others" else "here" for _, value in sorted(results.items())]

    assert where(seconds=1.0, expected=1.0) == ["here"] * 6
    assert where(seconds=9.0, expected=1.0) == ["here"] + ["others"] * 5  # it took longer than was thought
    assert where(seconds=1.0, expected=2.0) == ["others"] * 6
    assert where(seconds=1.0, expected=FOREVER) == ["others"] * 6


@pytest.mark.parametrize("where", ["here", "threads"])
def test_tasks_may_be_added_while_others_run(where, threads):
    todo, results = tasks(3), []
    with WorkerPool(1 if where == "here" else threads) as staff:
        for key, value in staff.run(square, todo):
            results.append((key, value))
            if len(results) < 4:
                todo.append((key, (value,)))
    assert results == [(0, 9), (0, 81), (0, 6561), (0, 6561**2)]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_worker_that_dies_or_hangs_costs_its_own_task(monkeypatch):
    """In no more processes than are lost: for further attempts and reasons see below, and test_disturbed.py."""
    monkeypatch.setattr(pool, "MAX_WORKERS_PER_TASK", 1)
    results = outcomes_beside_what_hangs(monkeypatch, chore, tasks(1, "die", 2, "hang"), 2)
    assert (results[0], results[2]) == (1, 2)
    assert results[1] == LostTask("worker_died", "The worker process died (SIGKILL).")
    assert results[3] == LostTask("worker_hung", "The worker process hung and was terminated.")
    assert not active_children()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_pool_replaces_workers_that_die_or_hang(monkeypatch):
    results = outcomes_beside_what_hangs(monkeypatch, chore, tasks(1, "die", 2, "hang", "leave", 3), 2)
    assert {key: value for key, value in results.items() if not isinstance(value, LostTask)} == {0: 1, 2: 2, 5: 3}
    assert results[1] == LostTask("worker_died", "The worker process died (SIGKILL).")
    assert results[3] == LostTask("worker_hung", "The worker process hung and was terminated.")
    assert results[4] == LostTask("worker_died", "Its worker process died (exit code 3).")


@pytest.mark.slow
def test_processes_are_ended_with_the_pool():
    with WorkerPool(2) as staff:
        assert next(staff.run(chore, tasks("hang", 1, 2))) == (1, 1)
        assert active_children()
    assert not active_children()


def test_processes_that_cannot_start_are_misuse(monkeypatch):
    monkeypatch.setattr(pool, "_serve", leave_at_once)
    with pytest.raises(InputError, match=r"exit code 1.*__main__"):
        outcomes(square, tasks(1, 2), 2)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_an_executor_that_breaks_costs_what_it_had():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        results = outcomes(chore, tasks("die", 1), executor)
        assert results[0].cause == "worker_died"
        assert "BrokenProcessPool" in results[0].message
        assert isinstance(results[1], LostTask)
        late_results = outcomes(square, tasks(2, 3), executor)
    assert [value.cause for value in late_results.values()] == ["not_run", "not_run"]


def test_an_executor_that_hangs_is_given_up(threads, monkeypatch):
    wake = threading.Event()

    def wait(task):
        return task if isinstance(task, int) else wake.wait(60)

    try:  # the last one waits behind those that hang
        results = outcomes_beside_what_hangs(monkeypatch, wait, tasks(1, "hang", 2, "hang", 3), threads, hanging=3)
    finally:
        wake.set()
    causes = {key: getattr(value, "cause", value) for key, value in results.items()}
    assert causes == {0: 1, 1: "worker_hung", 2: 2, 3: "worker_hung", 4: "not_run"}


def test_pool_deadline_abandons_a_hanging_executor(threads, monkeypatch):
    monkeypatch.setattr(pool, "HANG_MARGIN_SECONDS", 0.0)
    wake = threading.Event()
    try:
        results = outcomes(lambda _: wake.wait(60), tasks(1), threads, deadline=0.0)
    finally:
        wake.set()
    assert results[0].cause == "worker_hung"


def test_blas_uses_one_thread_inside_and_as_many_as_before_outside():
    libraries = openblas()
    if not libraries:
        pytest.skip("numpy is not built on its own OpenBLAS")
    thread_counts = [get() for get, _ in libraries]
    try:
        for _, put in libraries:
            put(2)
        with one_blas_thread:
            with one_blas_thread:
                assert {get() for get, _ in libraries} == {1}
            assert {get() for get, _ in libraries} == {1}
        assert {get() for get, _ in libraries} == {2}
    finally:
        for (_, put), count in zip(libraries, thread_counts, strict=True):
            put(count)


def test_exit_codes_are_described_by_signal_name():
    assert pool._describe_exit(-signal.SIGTERM) == "SIGTERM"
    assert pool._describe_exit(1) == "exit code 1"
