"""Lanes over processes: for integrators that hold the interpreter's lock, and for other machines.

A crew is a pool of workers, processes of our own that stay from sweep to sweep or somebody's executor, such as that of
a Dask cluster.  Every worker keeps the integrators that it was sent, so that a model travels to it once; then travel
parameters, initial states and inputs of lanes there, and states and sensitivities back.  Measured values stay here.

A worker that does not know a task's integrator says so, and the task is sent again with it: who takes the place of a
worker that died learns in this way, too.  Lanes are integrated there as they are here, each by itself: the numbers are
the same for any number of workers.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

from castfit._support.blas_threads import one_blas_thread
from castfit._support.process_pool import Lost, Pool, Tasks
from castfit._support.arguments import is_count, text
from castfit._support.time_limit import look
from castfit.integrate.threads import lanes_in_threads
from castfit._support.status import InputError

_SHARES = 3  # pieces of work for each process, as some lanes take longer
_ON_EXECUTORS = 16  # pieces of work where the number of workers is not known
_KEPT = 64  # things that a worker keeps
_PATIENCE = 1.0  # seconds that integration takes here before processes are started, which takes as long


@dataclass(frozen=True)
class Held:
    """What workers keep: made from `frozen`, the pickled arguments of `make`, which is defined in a module.

    `key` is a hash of these.
    """

    key: str
    make: Callable[..., Any]
    frozen: bytes


def held(make: Callable[..., Any], *arguments: Any) -> Held:
    """Return what workers are to keep."""
    frozen = pickle.dumps(arguments)
    return Held(sha256(f"{make.__module__}.{make.__qualname__}".encode() + frozen).hexdigest(), make, frozen)


@dataclass(frozen=True)
class Asked:
    """A call of a method of what workers keep."""

    held: Held
    method: str
    arguments: tuple[Any, ...]


@dataclass
class Crew:
    """Workers.

    elsewhere : whether they are to do what threads of this process could do
    spent : seconds for which lanes were integrated here
    """

    pool: Pool
    elsewhere: bool
    spent: float = 0.0

    @property
    def pays(self) -> bool:
        """Whether workers are worth their start; a fit that is over in no time needs none.

        A process that is a worker itself cannot start any.
        """
        return self.elsewhere or (self.spent >= _PATIENCE and not multiprocessing.current_process().daemon)

    @contextmanager
    def resting(self) -> Generator[None, None, None]:
        """Note how long a block takes in which workers have nothing to do."""
        began = time.perf_counter()
        yield
        self.spent += time.perf_counter() - began

    def shares(self, size: int) -> list[slice]:
        """Divide lanes into pieces."""
        known = self.pool.known
        pieces = max(min(_ON_EXECUTORS if known is None else _SHARES * known, size), 1)
        ends = [k * size // pieces for k in range(pieces + 1)]
        return [slice(*pair) for pair in pairwise(ends)]

    def run(self, asked: Sequence[Asked]) -> list[Any]:
        """Do calls of methods of what workers keep, and return their answers; `Lost` where a worker was.

        What stands at the same place from round to round is given to the same worker, as long as there is one.

        Raises
        ------
        InputError
            If workers cannot be started, or cannot do this at all.
        castfit._watch.Stopped
            When it is time to stop.
        """
        tasks: Tasks = deque((k, (one.held.key, one.method, one.arguments, None)) for k, one in enumerate(asked))
        out: list[Any] = [None] * len(tasks)
        for k, found in self.pool.run(_call, tasks, idle=look, settled=True):
            if isinstance(found, _Unknown):
                one = asked[k]
                tasks.appendleft((k, (one.held.key, one.method, one.arguments, (one.held.make, one.held.frozen))))
            elif isinstance(found, InputError):
                raise found
            elif isinstance(found, Lost) and found.cause == "not_run":
                raise InputError("workers", [found.message])
            else:
                out[k] = Lost("error", found.text) if isinstance(found, _Wrong) else found
        return out


@dataclass(frozen=True)
class _Unknown:
    """What was asked for is not kept here."""


@dataclass(frozen=True)
class _Wrong:
    """An error, in words."""

    text: str


class _Kept(threading.local):  # CasADi's functions are not shared between threads
    """What was sent to this worker, by its hash."""

    def __init__(self) -> None:
        self.of: OrderedDict[str, Any] = OrderedDict()


_kept = _Kept()


def _call(key: str, method: str, arguments: tuple[Any, ...], given: tuple[Callable[..., Any], bytes] | None) -> Any:
    """Do a task, wherever this is."""
    try:
        with one_blas_thread, np.errstate(all="ignore"):
            if key not in _kept.of:
                if given is None:
                    return _Unknown()
                make, frozen = given
                _kept.of[key] = make(*pickle.loads(frozen))
            _kept.of.move_to_end(key)
            while len(_kept.of) > _KEPT:
                _kept.of.popitem(last=False)
            return getattr(_kept.of[key], method)(*arguments)
    except InputError as error:
        return error
    except Exception as error:
        return _Wrong(f"{type(error).__name__}: {error}")


class _Current(threading.local):
    crew: Crew | None = None


_current = _Current()


def crew() -> Crew | None:
    """Return the workers that lanes are divided among here, None for none."""
    return _current.crew


@contextmanager
def lanes_divided(workers: int | Executor) -> Generator[None, None, None]:
    """Divide lanes among workers, for what this thread integrates inside the block.

    A number means threads for compiled integration, which does not hold the interpreter's lock, and processes for all
    other, which are started once that has taken as long as their start takes, and end with the block.
    """
    before = _current.crew
    if not isinstance(workers, Executor) and int(workers) == 1:
        yield
        return
    if before is not None and before.pool.workers == workers:  # those of the call around
        yield
        return
    elsewhere = isinstance(workers, Executor)
    with nullcontext() if elsewhere else lanes_in_threads(int(workers)), Pool(workers) as pool:
        _current.crew = Crew(pool, elsewhere)
        try:
            yield
        finally:
            _current.crew = before


def worker_mistakes(workers: Any) -> list[str]:
    """Say what is wrong with workers."""
    if isinstance(workers, Executor) or is_count(workers, 1):
        return []
    return [f"workers is {text(workers)}; give a number, 1 or more, or a concurrent.futures.Executor"]
