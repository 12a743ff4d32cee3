"""Silence and record what native code writes to the standard streams.

CasADi and its solvers write warnings to file descriptors 1 and 2 and, from C++, through ``sys.stdout`` and
``sys.stderr``.  `capture_output` sends all of it to one temporary file that is kept for the life of the process:

    with capture_output() as log:
        solver(...)
    log.tail(3)       # the last lines, for a message

The redirection belongs to the process, not to a thread: the first block that is entered sets it up, the last one
that is left takes it down, and blocks in between (nested, or in other threads) only note where they began.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, cast

_STANDARD = (1, 2)
_MAX_KEPT_BYTES = 1 << 16  # number of bytes of a capture that can still be read after it ended
_MAX_FILE_BYTES = 1 << 22  # file size in bytes above which the file is emptied before its next use


def capture_output() -> CapturedOutput:
    """Return a context manager that silences and records both standard streams; read the record with `tail`."""
    return CapturedOutput()


@contextlib.contextmanager
def release_output() -> Generator[None, None, None]:
    """Give the streams back for the length of a block inside a capture, for instance to a user's callback."""
    redirection = _current
    depth = redirection.suspend()
    try:
        yield
    finally:
        redirection.resume(depth)


def is_notebook() -> bool:
    """Check whether displayed objects appear below a notebook's cell."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def is_interactive() -> bool:
    """Check whether standard error is visible at once to a user: on a terminal, or in a notebook."""
    try:
        return is_notebook() or (sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


class CapturedOutput:
    """The record of one ``with capture_output()`` block."""

    def __init__(self) -> None:
        self._redirection: _RedirectionState | None = None
        self._start = 0
        self._text = b""

    def __enter__(self) -> CapturedOutput:
        self._redirection = _current
        self._start = self._redirection.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        redirection, self._redirection = self._redirection, None
        if redirection is not None:
            self._text = redirection.leave(self._start)

    def restart(self) -> None:
        """Discard the output recorded in the block so far."""
        if self._redirection is not None:
            self._start = self._redirection.position()

    def tail(self, n: int = 5) -> list[str]:
        """Return the last n lines written in the block that are not blank; inside the block, those so far."""
        text = self._text if self._redirection is None else self._redirection.read(self._start)
        lines = [line.rstrip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-n:] if n > 0 else []


class _RedirectionState:
    """The state of the process: how many blocks are open, where the streams go, and what to restore."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._sink = -1
        self._recorder: io.TextIOWrapper | None = None
        self._saved: dict[int, int | None] = {}  # descriptor -> its copy, None where it was closed
        self._streams: tuple[Any, Any] | None = None

    def enter(self) -> int:
        """Open a block; return the position in the file where its record begins."""
        with self._lock:
            if self._depth == 0:
                try:
                    if self._sink >= 0 and os.fstat(self._sink).st_size > _MAX_FILE_BYTES:
                        os.ftruncate(self._sink, 0)
                    self._redirect()
                except BaseException:
                    self.restore()
                    raise
            else:
                _flush_native()
            self._depth += 1
            return os.fstat(self._sink).st_size

    def leave(self, start: int) -> bytes:
        """Close a block; return its record."""
        with self._lock:
            try:
                return self.read(start)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.restore()

    def position(self) -> int:
        """Return the current end position in the record file."""
        with self._lock:
            _flush_native()
            return os.fstat(self._sink).st_size

    def suspend(self) -> int:
        """Give the streams back although blocks are open; return how many."""
        with self._lock:
            depth, self._depth = self._depth, 0
            self.restore()
            return depth

    def resume(self, depth: int) -> None:
        """Take the streams again for the blocks that were open at `suspend`."""
        with self._lock:
            if depth and self._depth == 0:
                self._redirect()
            self._depth += depth

    def read(self, start: int) -> bytes:
        """Return the output recorded since `start`, at most its last `_MAX_KEPT_BYTES` bytes."""
        with self._lock:
            _flush_native()
            end = os.fstat(self._sink).st_size
            if end <= start:
                return b""
            begin = max(start, end - _MAX_KEPT_BYTES)
            if hasattr(os, "pread"):
                return os.pread(self._sink, end - begin, begin)
            os.lseek(self._sink, begin, os.SEEK_SET)  # Windows, where another thread's write may come between
            return os.read(self._sink, end - begin)

    def _redirect(self) -> None:
        if self._recorder is None:
            self._sink = _open_sink()
            raw = io.FileIO(self._sink, "w", closefd=False)
            self._recorder = io.TextIOWrapper(cast("Any", raw), "utf-8", "backslashreplace", write_through=True)
        _flush_python()
        _flush_native()
        for descriptor in _STANDARD:
            try:
                self._saved[descriptor] = _above_standard(os.dup(descriptor))
            except OSError:  # the stream is closed
                self._saved[descriptor] = None
            os.dup2(self._sink, descriptor)
        self._streams = (sys.stdout, sys.stderr)
        sys.stdout = sys.stderr = self._recorder

    def restore(self) -> None:
        """Give the streams back; does nothing where they were not taken."""
        if not self._saved:
            return
        if self._streams is not None:
            sys.stdout, sys.stderr = self._streams
            self._streams = None
        _flush_python()
        _flush_native()
        while self._saved:
            descriptor, copy = self._saved.popitem()
            if copy is None:
                os.close(descriptor)
            else:
                os.dup2(copy, descriptor)
                os.close(copy)


def _open_sink() -> int:
    """Open a file without a name, in append mode so that no writer can overwrite another."""
    descriptor, path = tempfile.mkstemp(prefix="castfit_")
    os.close(descriptor)
    delete_at_close = getattr(os, "O_TEMPORARY", 0)  # Windows, where an open file cannot be unlinked
    sink = os.open(path, os.O_RDWR | os.O_APPEND | delete_at_close)
    if not delete_at_close:
        os.unlink(path)
    return _above_standard(sink)


def _above_standard(descriptor: int) -> int:
    """Move a descriptor out of the way of 0, 1 and 2, which the system hands out when they are closed."""
    if descriptor > 2:
        return descriptor
    higher = _above_standard(os.dup(descriptor))
    os.close(descriptor)
    return higher


def _flush_python() -> None:
    """Flush Python's streams that write to the redirected descriptors; others (Jupyter's) are slow to flush."""
    for stream in {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}:
        with contextlib.suppress(Exception):  # None, closed, or without a descriptor
            if cast("Any", stream).fileno() in _STANDARD:
                cast("Any", stream).flush()


def _native_flush() -> Callable[[], object]:
    """Return C's ``fflush(NULL)``, or a function that does nothing where it cannot be found."""
    try:
        flush = ctypes.CDLL("msvcrt" if os.name == "nt" else None).fflush
    except (OSError, AttributeError, TypeError):
        return lambda: None
    return lambda: flush(None)


_flush_native = _native_flush()
_current = _RedirectionState()


def _after_fork() -> None:
    """Reset the redirection in a forked child, which must not share the parent's file, lock or redirection."""
    global _current
    _current.restore()
    _current = _RedirectionState()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
