"""Lanes over threads: how many cores the compiled integrator uses, for whatever is integrated within a block of code.

Compiled integration does not hold the interpreter's lock, so that threads integrate at once.  Every lane is integrated
as it is alone: the numbers are the same for any number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from castfit._support.time_limit import look

_SHARES = 3  # pieces of work for each thread, as some lanes take longer
_LEAST = 4  # lanes that are worth a thread's attention
_PATIENCE = 0.5  # seconds between two looks at the watch


@dataclass(frozen=True)
class Threads:
    """A pool of threads and how many they are."""

    pool: ThreadPoolExecutor
    count: int

    def shares(self, lanes: int) -> list[tuple[int, int]]:
        """Divide lanes into pieces (first, behind the last)."""
        pieces = max(min(_SHARES * self.count, lanes // _LEAST), 1)
        ends = [k * lanes // pieces for k in range(pieces + 1)]
        return list(pairwise(ends))

    def run(self, function: Callable[[int, int], None], lanes: int) -> None:
        """Call a function for all pieces; when it is time to stop, for those that have begun."""
        waiting = [self.pool.submit(function, *share) for share in self.shares(lanes)]
        try:
            while waiting:
                look()
                done, rest = wait(waiting, _PATIENCE, FIRST_COMPLETED)
                for future in done:
                    future.result()
                waiting = list(rest)
        finally:
            for future in waiting:
                future.cancel()
            wait(waiting)


class _Current(threading.local):
    threads: Threads | None = None


_current = _Current()


def threads() -> Threads | None:
    """Return the threads that lanes are divided among here, None for none."""
    return _current.threads


@contextmanager
def lanes_in_threads(count: int) -> Generator[None, None, None]:
    """Divide lanes among threads, for what this thread integrates inside the block."""
    if count == 1:
        yield
        return
    before = _current.threads
    with ThreadPoolExecutor(count) as pool:
        _current.threads = Threads(pool, count)
        try:
            yield
        finally:
            _current.threads = before
