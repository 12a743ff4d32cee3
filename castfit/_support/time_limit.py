"""Time limit, Ctrl-C and SIGTERM, checked in every long computation, and the limit of memory.

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
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial, wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from castfit._support.records import dataclass
from castfit._support.status import InputError, Status

P = ParamSpec("P")
T = TypeVar("T")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CHECKED_MEMORY_BYTES = 1e8  # Arrays of this size and more are compared with the available memory.
# Files with the limit and the usage of a control group, in versions 2 and 1 of cgroups.
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_REPEATED_SIGNAL_SECONDS = 2.0  # time after a signal within which another one raises KeyboardInterrupt


class StopRequested(BaseException):
    """The work was cut off; `status` is MAX_TIME, INTERRUPTED or WORKERS_LOST.

    It is no Exception, so that no handler of failures catches it.
    """

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
        if stop.status is not Status.INTERRUPTED:
            raise RuntimeError(f"{name} has no result. {stop.status.message}") from None
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


def available_memory() -> float:
    """Return the available memory in bytes; inf if the system does not report it."""
    limits = [np.inf]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits.append(1024.0 * float(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
            limits.append(limit - float(pages) * resource.getpagesize())
    for limit_file, usage_file in _CGROUP_FILES:
        with suppress(OSError, ValueError):  # "max" is no limit
            limits.append(float(Path(limit_file).read_text("ascii")) - float(Path(usage_file).read_text("ascii")))
            # The kernel frees cached files first.
            lines = (Path(usage_file).parent / "memory.stat").read_text("ascii").splitlines()
            limits[-1] += sum(float(line.split()[1]) for line in lines if line.startswith("inactive_file"))
    return max(min(limits), 0.0)


def format_memory(memory: float) -> str:
    """Format an amount of memory in MB or GB."""
    size, unit = (memory / 1e9, "GB") if memory >= 1e9 else (memory / 1e6, "MB")
    return f"{size:.2g} {unit}" if size < 10.0 else f"{size:.0f} {unit}"


def require_memory(where: str, n_numbers: float, remedy: str) -> None:
    """Raise InputError if arrays with this number of entries exceed the available memory."""
    size = 8.0 * n_numbers
    limit = available_memory() if size > _CHECKED_MEMORY_BYTES else np.inf
    if size > limit:
        needed = f"at least {format_memory(size)} of memory are needed, but {format_memory(limit)} are available"
        raise InputError(where, [f"{needed}; {remedy}"])
