"""Time limit and Ctrl-C, checked in every long computation.

Long computations (integrations, building of functions, loops over them) lie below many signatures.  Instead of passing
a deadline through all of them, they call `check_deadline` before each piece of work.  It raises `StopRequested` once
the time is over or Ctrl-C was pressed.  The caller that opened the watch catches it and returns the best result so far.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import field
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from castfit._support.records import dataclass
from castfit._support.status import Status

P = ParamSpec("P")
T = TypeVar("T")


class StopRequested(BaseException):
    """The work was cut off; `status` is MAX_TIME or INTERRUPTED.  No `except Exception` takes it for a failure."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(status.value)


@dataclass
class Interrupt:
    """Within this context the first Ctrl-C only sets `requested`; a second one raises KeyboardInterrupt.

    Inside another such context, that context is entered again.
    """

    requested: bool = False
    _previous: Any = field(default=None, repr=False)

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
            if isinstance(owner, Interrupt):
                return owner
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def returns_on_interrupt(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that it can finish by itself, with its result, after Ctrl-C."""

    @wraps(function)
    def wrapped(*args: P.args, **options: P.kwargs) -> T:
        with Interrupt():
            return function(*args, **options)

    return wrapped


@dataclass(frozen=True)
class Deadline:
    """deadline, on the clock of time.perf_counter; interrupt."""

    deadline: float
    interrupt: Interrupt

    @property
    def cause(self) -> Status | None:
        """Why to stop, None if there is no reason."""
        if self.interrupt.requested:
            return Status.INTERRUPTED
        return Status.MAX_TIME if time.perf_counter() > self.deadline else None


class _CurrentDeadline(threading.local):
    watch: Deadline | None = None


_current = _CurrentDeadline()
at_look: list[Callable[[], None]] = []
"""What else is done at every look, such as to keep a line of progress moving."""


@contextmanager
def with_deadline(max_time: float = np.inf) -> Generator[Deadline, None, None]:
    """Watch the time, in seconds from now, and Ctrl-C; an outer watch's deadline holds too."""
    outer = _current.watch
    deadline = time.perf_counter() + max_time
    with Interrupt() as interrupt:
        watch = Deadline(deadline if outer is None else min(deadline, outer.deadline), interrupt)
        _current.watch = watch
        try:
            yield watch
        finally:
            _current.watch = outer


@contextmanager
def without_deadline() -> Generator[None, None, None]:
    """Suspend the active time limit and interrupt watch, so that the code inside can finish."""
    outer, _current.watch = _current.watch, None
    try:
        yield
    finally:
        _current.watch = outer


def check_deadline(ahead: float = 0.0) -> None:
    """Raise `StopRequested` if the limit is reached within `ahead` seconds; a call takes a tenth of a microsecond."""
    watch = _current.watch
    if watch is None:
        return
    if watch.interrupt.requested or time.perf_counter() + ahead > watch.deadline:
        raise StopRequested(watch.cause or Status.MAX_TIME)
    for act in at_look:
        act()
