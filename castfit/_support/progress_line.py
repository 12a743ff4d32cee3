"""Progress line on the user's terminal, and durations as text."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from importlib import import_module
from typing import Any, cast

from castfit._support.silence import is_interactive, is_notebook
from castfit._support.time_limit import at_look

_AUTOMATIC_DELAY_SECONDS = 2.0  # seconds of computation after which a progress line appears if verbose was not set
_MIN_REFRESH_SECONDS = 0.1  # shortest time in seconds between two updates of the line
_TIMER_SECONDS = 1.0  # seconds after which the line is written again although the working thread reported nothing


def duration(seconds: float) -> str:
    """Format a duration: "12 s", "3 min", "2.5 h"; with one decimal, "0.4 s", below 9.5 s."""
    if seconds < 9.5:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def time_left(seconds: float, n_done: int, n_left: int) -> str:
    """Format the remaining time at the pace so far, as the end of a sentence; empty if nothing is left.

    seconds : for which it has been going on, in which `n_done` pieces of work ended
    """
    if n_left <= 0 or n_done <= 0 or not math.isfinite(seconds):
        return ""
    return f", about {duration(seconds / n_done * n_left)} left"


class _TerminalLine:
    """A line of standard error, of which a copy stays open: solvers take the descriptor away while they run."""

    def __init__(self) -> None:
        self._width = shutil.get_terminal_size().columns - 1
        self._stream = open(  # noqa: SIM115, `close` closes it
            os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="replace"
        )
        self._saved = (sys.stdout, sys.stderr)

    def guard(self, erase: Callable[[], None]) -> None:
        """Replace the standard streams, so that all further output erases the line first."""
        sys.stdout, sys.stderr = (cast("Any", _LineClearingStream(stream, erase)) for stream in self._saved)

    def put(self, line: str) -> None:
        self._write(f"\r\x1b[K{line[: self._width]}")

    def clear(self) -> None:
        self._write("\r\x1b[K")

    def close(self, *, keep: bool) -> None:
        if keep:
            self._write("\n")
        if isinstance(sys.stdout, _LineClearingStream) and isinstance(sys.stderr, _LineClearingStream):
            sys.stdout, sys.stderr = self._saved
        self._stream.close()

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._stream.write(text)
            self._stream.flush()


class _LineClearingStream:
    """A standard stream before which a line is erased."""

    def __init__(self, stream: Any, erase: Callable[[], None]) -> None:
        self._stream, self._erase = stream, erase

    def write(self, text: str) -> int:
        self._erase()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _NotebookOutput:
    """A place below a notebook's cell, empty at the end."""

    def __init__(self) -> None:
        self._display: Any = import_module("IPython.display").display
        self._place: Any = None

    def guard(self, erase: Callable[[], None]) -> None:
        """Do nothing: output has its own place in a notebook."""

    def put(self, line: str) -> None:
        self._show({"text/plain": line})

    def clear(self) -> None:
        self._show({"text/html": ""})

    def close(self, *, keep: bool) -> None:
        """Do nothing: the place has been cleared, or not."""

    def _show(self, data: Mapping[str, str]) -> None:
        if self._place is None:
            self._place = self._display(data, raw=True, display_id=True)
        else:
            self._place.update(data, raw=True)


def _find_line_target() -> _TerminalLine | _NotebookOutput | None:
    """Return the device with a rewritable line. Return None for files and for worker processes."""
    if multiprocessing.parent_process() is not None or not is_interactive():
        return None
    with suppress(OSError, ValueError, AttributeError):  # standard error may be a window without a descriptor
        return _NotebookOutput() if is_notebook() else _TerminalLine()
    return None


class _ProgressLine:
    """Rewritable progress line: the message of the outermost reporter, then messages of inner ones.

    It appears `after` so many seconds, with how long it has been going on, and again whenever it is `due`.  A thread of
    its own keeps it moving while functions are built, or a large model is integrated: what does that does not come
    by here, and leaves Python's lock to others.
    """

    def __init__(self, place: _TerminalLine | _NotebookOutput, delay: float) -> None:
        self.parts: list[str] = []
        self.thread = threading.get_ident()
        self._place = place
        self._began = time.perf_counter()
        self._due = self._began + delay
        self._visible = False
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._ticker = threading.Thread(target=copy_context().run, args=(self._tick,), daemon=True)  # a cell's own
        place.guard(self.erase)
        self._ticker.start()

    def show(self, depth: int, text: str) -> None:
        self.parts[depth] = text
        self.renew()

    def renew(self, pause: float = 0.0) -> None:
        """Rewrite the line if it has been due for at least `pause` seconds."""
        with self._lock:
            current_time = time.perf_counter()
            if current_time < self._due + pause:
                return
            self._due, self._visible = current_time + _MIN_REFRESH_SECONDS, True
            self._place.put(f"{duration(current_time - self._began)}: {'; '.join(filter(None, self.parts))}")

    def erase(self) -> None:
        """Erase the line before other output; it reappears at once afterwards."""
        with self._lock:
            if self._visible:
                self._place.clear()
                self._visible, self._due = False, time.perf_counter()

    def _tick(self) -> None:
        while not self._closing.wait(_TIMER_SECONDS):
            self.renew(0.5 * _TIMER_SECONDS)

    def close(self, *, keep: bool) -> None:
        self._closing.set()
        self._ticker.join()
        is_kept = keep and bool(self.parts[0])
        if is_kept:
            self._place.put(self.parts[0])
        else:
            self.erase()
        self._place.close(keep=is_kept)


_line: _ProgressLine | None = None
_muted = False


def renew() -> None:
    """Rewrite the line if it is due; call it from time to time during a long computation."""
    if _line is not None and _line.thread == threading.get_ident():
        _line.renew()


@contextmanager
def open_progress_line(*, keep: bool = True, delay: float = 0.0) -> Generator[Callable[[str], None] | None, None, None]:
    """Yield a function that rewrites a line on the user's terminal or in a notebook; None if there is none.

    There is one line in a process, which appears after so many seconds: what reports inside of another one is added to
    its line.  At the end it is gone, or its last state stays if it is to be kept.
    """
    global _line
    if _muted:
        yield None
        return
    place = _find_line_target() if _line is None else None
    owner = _line = _ProgressLine(place, delay) if place is not None else _line
    if owner is None or owner.thread != threading.get_ident():
        yield None
        return
    depth = len(owner.parts)
    if depth == 0:
        at_look.append(renew)
    owner.parts.append("")
    try:
        yield lambda text: owner.show(depth, text)
    finally:
        if depth == 0:
            _line = None
            at_look.remove(renew)
            owner.close(keep=keep)
        del owner.parts[depth:]


@contextmanager
def _no_line() -> Generator[None, None, None]:
    """Suppress the progress line for all code inside the context."""
    global _muted
    outer, _muted = _muted, True
    try:
        yield
    finally:
        _muted = outer


def progress_line(verbose: int | None, *, keep: bool) -> AbstractContextManager[Callable[[str], None] | None]:
    """Return `open_progress_line` for a verbosity; for None, the line appears after a delay and vanishes at the end."""
    if verbose is None:
        return open_progress_line(keep=False, delay=_AUTOMATIC_DELAY_SECONDS)
    return open_progress_line(keep=keep) if verbose == 1 else _no_line()


def print_progress(line: str) -> None:
    """Print a line of progress on standard output; only called when the user asked for it."""
    from rich.console import Console

    Console(highlight=False, markup=False, soft_wrap=True).print(line)
