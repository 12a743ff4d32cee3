"""Time limit, Ctrl-C and SIGTERM, checked in every long computation.

Long computations (integrations, building of functions, loops over them) lie below many signatures.  Instead of passing
a deadline through all of them, they call `check_deadline` before each piece of work.  It raises `StopRequested` once
the time is over or a signal arrived.  The caller that opened the watch catches it and returns the best result so far.
Every public driver is `guarded`: the outermost one owns the signals, and those that it calls see the same request.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import field
from functools import partial, wraps
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from castfit._support.records import dataclass
from castfit._support.status import Status

P = ParamSpec("P")
T = TypeVar("T")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REPEATED_SIGNAL_SECONDS = 2.0  # time after a signal within which another one raises KeyboardInterrupt


class StopRequested(BaseException):
    """The work was cut off; `status` is MAX_TIME or INTERRUPTED.  No `except Exception` takes it for a failure."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(status.value)


@dataclass
class Interrupt:
    """Within this context the first Ctrl-C or SIGTERM only sets `requested`; a second one raises KeyboardInterrupt.

    The second one must follow within two seconds.  Inside another such context, that context is entered again.  Signals
    that are ignored stay ignored.
    """

    requested: bool = False
    _time: float = -np.inf
    _previous: dict[int, Any] = field(default_factory=dict[int, Any], repr=False)

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
            for handler in handlers.values():
                owner = getattr(handler, "__self__", None)
                if isinstance(owner, Interrupt):
                    return owner
            self._previous = {n: h for n, h in handlers.items() if h not in (None, signal.SIG_IGN)}
            for number in self._previous:
                signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_repeated, self._time = time.monotonic() - self._time < _REPEATED_SIGNAL_SECONDS, time.monotonic()
        self.requested = True
        if is_repeated:
            raise KeyboardInterrupt


@contextmanager
def guard(name: str, *, has_status: bool = True) -> Generator[None, None, None]:
    """Run the driver `name`, which ends by itself, with its result, after Ctrl-C or SIGTERM.

    If the outermost driver was stopped before it had a result, raise KeyboardInterrupt or TimeoutError with a message.
    Functions whose results have no status raise also if the signal arrived when they had finished.
    """
    is_nested, _current.is_guarded = _current.is_guarded, True
    try:
        with with_deadline():
            yield
            if not has_status:
                check_interrupt()
    except StopRequested as stop:
        if is_nested:
            raise
        if stop.status is Status.MAX_TIME:
            raise TimeoutError(f"{name} reached its time limit before it had a result; raise max_time") from None
        raise KeyboardInterrupt(f"{name} was interrupted before it had a result") from None
    finally:
        _current.is_guarded = is_nested


def guarded(function: Callable[P, T], *, has_status: bool = True) -> Callable[P, T]:
    """Decorate a driver with `guard`."""

    @wraps(function)
    def wrapped(*args: P.args, **options: P.kwargs) -> T:
        with guard(f"castfit.{function.__qualname__}", has_status=has_status):
            return function(*args, **options)

    return wrapped


interruptible = partial(guarded, has_status=False)
"""Decorator of functions whose results cannot say that they were interrupted."""


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
    is_guarded: bool = False


_current = _CurrentDeadline()
at_look: list[Callable[[], None]] = []
"""What else is done at every look, such as to keep a line of progress moving."""


@contextmanager
def with_deadline(max_time: float = np.inf) -> Generator[Deadline, None, None]:
    """Watch the time, in seconds from now, and signals; an outer watch's deadline holds too."""
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


def stop_cause() -> Status | None:
    """Return the status with which the active watch ends the work; None if the work may continue."""
    return None if _current.watch is None else _current.watch.cause


def is_interrupted() -> bool:
    """Whether a signal ends the work; see `stop_cause`."""
    return stop_cause() is Status.INTERRUPTED


def check_interrupt() -> None:
    """Raise `StopRequested` if a signal arrived, but not if only the time is over."""
    if is_interrupted():
        raise StopRequested(Status.INTERRUPTED)
