"""Limits in CPU seconds: while the clock of a process is its CPU time, a loaded machine changes no search.

Limits of castfit are seconds of real time.  What else runs on a machine takes a share of these, and a table that counts
what was found in time then measures the neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def cpu_timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returns, and its CPU seconds: what else the machine does must not count."""
    began = time.process_time()
    return call(), time.process_time() - began


@contextmanager
def cpu_clock(workers: int = 1) -> Generator[None]:
    """Let `time.time` and `time.perf_counter` go on by the CPU seconds of this process, within a ``with`` block.

    Both go on from where they are and jump to the present afterwards.  For searches in one process: others have clocks
    of their own, so that with several workers all clocks stay as they are.
    """
    if workers > 1:
        yield
        return
    real = time.time, time.perf_counter
    began, (since, counted) = time.process_time(), (clock() for clock in real)
    time.time = lambda: since + time.process_time() - began
    time.perf_counter = lambda: counted + time.process_time() - began
    try:
        yield
    finally:
        time.time, time.perf_counter = real
