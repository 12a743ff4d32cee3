"""Distribution of lanes over threads, and over processes for integrators that hold the interpreter's lock.

Compiled integration does not hold the lock, so that threads integrate at once.  All other integration is divided among
workers: castfit's own processes, which are reused, or the user's executor, such as that of a Dask cluster.  Every
worker caches its integrators, so that a model is sent once; then only parameters, initial states and inputs of lanes
are sent, and states and sensitivities returned.  Measured values stay in this process.

If a worker does not have a task's integrator, for instance because it replaces one that died, the task is sent again
with the integrator.  Every lane is integrated by itself: the results are the same for any number of workers or threads.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

from castfit._support.arguments import is_count, shorten_repr
from castfit._support.blas_threads import one_blas_thread
from castfit._support.process_pool import LostTask, Tasks, WorkerPool
from castfit._support.records import dataclass
from castfit._support.status import InputError, Status
from castfit._support.time_limit import StopRequested, check_deadline

_SHARES_PER_WORKER = 3  # pieces of work for each process or thread, as some lanes take longer
_MIN_LANES_PER_SHARE = 4  # number of lanes that justify a piece of work for a thread
_DEADLINE_CHECK_SECONDS = 0.5  # seconds between two checks of the deadline while threads work
_DEFAULT_SHARES = 16  # pieces of work if the number of workers is unknown
_MAX_WORKER_OBJECTS = 64  # number of objects that a worker caches
_MIN_SECONDS_TO_START_WORKERS = 1.0  # seconds of integration here before processes are started, which takes as long


@dataclass(frozen=True)
class WorkerObject:
    """Object that workers cache: built by `make`, a function of a module, from the pickled arguments.

    `key` is a hash of these.
    """

    key: str
    make: Callable[..., Any]
    pickled_arguments: bytes


def make_worker_object(make: Callable[..., Any], *arguments: Any) -> WorkerObject:
    """Return the description of an object that workers cache."""
    frozen = pickle.dumps(arguments)
    return WorkerObject(sha256(f"{make.__module__}.{make.__qualname__}".encode() + frozen).hexdigest(), make, frozen)


RemoteCall = tuple[WorkerObject, str, tuple[Any, ...]]
"""A call of a method of a cached object: the object, the method name, the arguments."""


@dataclass
class IntegrationWorkers:
    """Workers among which lanes are divided.

    elsewhere : whether they are to do what threads of this process could do
    spent : seconds for which lanes were integrated here
    is_lost : whether the workers are gone, so that their calls, such as those at the best point, are done here
    """

    pool: WorkerPool
    replaces_threads: bool
    local_seconds: float = 0.0
    is_lost: bool = False

    @property
    def is_worthwhile(self) -> bool:
        """Whether workers are worth their start; a fit that is over in no time needs none.

        A process that is a worker itself cannot start any.
        """
        return self.replaces_threads or (
            self.local_seconds >= _MIN_SECONDS_TO_START_WORKERS and not multiprocessing.current_process().daemon
        )

    @contextmanager
    def count_local_work(self) -> Generator[None, None, None]:
        """Note how long a block takes in which workers have nothing to do."""
        start_time = time.perf_counter()
        yield
        self.local_seconds += time.perf_counter() - start_time

    def divide(self, size: int) -> list[slice]:
        """Divide lanes into pieces."""
        n_workers = self.pool.n_workers
        return [
            slice(*ends)
            for ends in _divide_lanes(
                size, min(_DEFAULT_SHARES if n_workers is None else _SHARES_PER_WORKER * n_workers, size)
            )
        ]

    def run(self, calls: Sequence[RemoteCall]) -> list[Any]:
        """Do calls of methods of what workers keep, and return their answers; `LostTask` where a worker was.

        What stands at the same place from round to round is given to the same worker, as long as there is one.

        Raises InputError: if workers cannot be started, or cannot do this at all.
        Raises StopRequested: when it is time to stop, and once when the workers are lost.
        """
        if self.is_lost:
            return [
                _run_task(remote.key, method, arguments, (remote.make, remote.pickled_arguments))
                for remote, method, arguments in calls
            ]
        try:
            return self._call_workers(calls)
        except StopRequested as stop:
            self.is_lost = stop.status is Status.WORKERS_LOST
            raise

    def _call_workers(self, calls: Sequence[RemoteCall]) -> list[Any]:
        tasks: Tasks = deque((k, (worker_object.key, *call, None)) for k, (worker_object, *call) in enumerate(calls))
        answers: list[Any] = [None] * len(tasks)
        for k, answer in self.pool.run(_run_task, tasks, idle=check_deadline, has_affinity=True):
            if isinstance(answer, _NotCached):
                worker_object, *call = calls[k]
                tasks.appendleft((k, (worker_object.key, *call, (worker_object.make, worker_object.pickled_arguments))))
            elif isinstance(answer, InputError):
                raise answer
            elif isinstance(answer, LostTask) and answer.cause == "not_run":
                raise InputError("workers", [answer.message])
            else:
                answers[k] = answer
        return answers


@dataclass(frozen=True)
class _NotCached:
    """Reply of a worker that does not hold the requested object."""


class _WorkerCache(threading.local):  # CasADi's functions are not shared between threads
    """Objects sent to this worker, by their hashes."""

    def __init__(self) -> None:
        self.objects: OrderedDict[str, Any] = OrderedDict()


_worker_cache = _WorkerCache()


def _run_task(
    key: str, method: str, arguments: tuple[Any, ...], constructor: tuple[Callable[..., Any], bytes] | None
) -> Any:
    """Run a task in a worker."""
    try:
        with one_blas_thread, np.errstate(all="ignore"):
            if key not in _worker_cache.objects:
                if constructor is None:
                    return _NotCached()
                make, frozen = constructor
                _worker_cache.objects[key] = make(*pickle.loads(frozen))
            _worker_cache.objects.move_to_end(key)
            while len(_worker_cache.objects) > _MAX_WORKER_OBJECTS:
                _worker_cache.objects.popitem(last=False)
            return getattr(_worker_cache.objects[key], method)(*arguments)
    except InputError as error:
        return error
    except Exception as error:
        return LostTask("error", f"{type(error).__name__}: {error}")


def _divide_lanes(size: int, count: int) -> list[tuple[int, int]]:
    """Divide lanes into at least one piece (first, last + 1)."""
    count = max(count, 1)
    return list(pairwise(k * size // count for k in range(count + 1)))


@dataclass(frozen=True)
class IntegrationThreads:
    """A pool of threads and their number."""

    pool: ThreadPoolExecutor
    count: int

    def run(self, function: Callable[[int, int], object], size: int) -> None:
        """Call a function for all pieces of lanes; after the deadline, finish only those that have begun."""
        shares = _divide_lanes(size, min(_SHARES_PER_WORKER * self.count, size // _MIN_LANES_PER_SHARE))
        pending = [self.pool.submit(function, *share) for share in shares]
        try:
            while pending:
                check_deadline()
                finished, unfinished = wait(pending, _DEADLINE_CHECK_SECONDS, FIRST_COMPLETED)
                for future in finished:
                    future.result()
                pending = list(unfinished)
        finally:
            for future in pending:
                future.cancel()
            wait(pending)


class _CurrentDivision(threading.local):
    workers: IntegrationWorkers | None = None
    threads: IntegrationThreads | None = None


_current = _CurrentDivision()


def workers() -> IntegrationWorkers | None:
    """Return the workers among which this thread divides lanes; None if there are none."""
    return _current.workers


def threads() -> IntegrationThreads | None:
    """Return the threads among which this thread divides lanes; None if there are none."""
    return _current.threads


@contextmanager
def lanes_divided(workers: int | Executor) -> Generator[None, None, None]:
    """Divide lanes among workers, for all integration of this thread inside the block.

    A number means threads for compiled integration, which does not hold the interpreter's lock, and processes for all
    other, which are started once that has taken as long as their start takes, and end with the block.
    """
    previous_workers, previous_threads = _current.workers, _current.threads
    if not isinstance(workers, Executor) and int(workers) == 1:
        yield
        return
    if previous_workers is not None and previous_workers.pool.workers == workers:  # those of the call around
        yield
        return
    count = None if isinstance(workers, Executor) else int(workers)
    with nullcontext() if count is None else ThreadPoolExecutor(count) as pool, WorkerPool(workers) as processes:
        _current.workers = IntegrationWorkers(processes, replaces_threads=pool is None)
        if pool is not None and count is not None:
            _current.threads = IntegrationThreads(pool, count)
        try:
            yield
        finally:
            _current.workers, _current.threads = previous_workers, previous_threads


def worker_mistakes(workers: Any) -> list[str]:
    """Return the error message for an invalid `workers` argument."""
    if isinstance(workers, Executor) or is_count(workers, 1):
        return []
    return [f"workers is {shorten_repr(workers)}; give a number, 1 or more, or a concurrent.futures.Executor"]
