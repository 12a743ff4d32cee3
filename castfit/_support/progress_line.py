"""A line on the user's terminal that is rewritten, and how long something will go on, in words."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


def duration(seconds: float) -> str:
    """Say how long something takes: "12 s", "3 min", "2.5 h"; "0.4 s" where it is short."""
    if seconds < 9.5:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def time_left(seconds: float, done: int, left: int) -> str:
    """Say how long the rest of a run takes at the pace so far, as the end of a sentence; empty if nothing is left.

    seconds : for which it has been going on, in which `done` pieces of work ended
    """
    if left <= 0 or done <= 0 or not math.isfinite(seconds):
        return ""
    return f", about {duration(seconds / done * left)} left"


@contextmanager
def live(*, keep: bool = True) -> Generator[Callable[[str], None] | None, None, None]:
    """Yield a function that rewrites a line on standard error; None if that is no terminal.

    The last line stays if it is to be kept.  Solvers take the descriptor of standard error away while they run; a copy
    of it stays open.
    """
    if not sys.stderr.isatty():
        yield None
        return
    width = shutil.get_terminal_size().columns - 1
    with open(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="replace") as stream:

        def show(line: str) -> None:
            stream.write(f"\r\x1b[K{line[:width]}")
            stream.flush()

        try:
            yield show
        finally:
            stream.write("\n" if keep else "\r\x1b[K")
