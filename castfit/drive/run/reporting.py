"""Lines that say how far a run is: one that is rewritten on a terminal, or many."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TextIO

Report = Callable[[int, int, str, str], None]
"""Told after each task: how many are finished, of how many, the state of the run, and what the last one did."""


@contextmanager
def reporter(verbose: int) -> Generator[Report, None, None]:
    """Yield a function that shows how far a run is: never, by a line about its state, or by one about every task."""
    if not verbose:
        yield lambda finished, total, state, last: None
        return
    from rich.console import Console

    lines = Console(highlight=False, markup=False, soft_wrap=True)
    with _live() if verbose == 1 else nullcontext() as show:

        def report(finished: int, total: int, state: str, last: str) -> None:
            tenth = 10 * finished // total > 10 * (finished - 1) // total
            if verbose == 2:
                lines.print(last)
            if show is not None:
                show("" if finished == total else state)
            if finished == total or (tenth and verbose == 1 and show is None):
                lines.print(state)

        yield report


def terminal() -> TextIO:
    """Open standard error for what is shown live.

    Solvers take its descriptor away while they run; a copy of it stays.
    """
    return open(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="replace")


@contextmanager
def _live() -> Generator[Callable[[str], None] | None, None, None]:
    """Yield a function that rewrites a line on standard error; None if that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with terminal() as stream:

        def show(line: str) -> None:
            stream.write(f"\r\x1b[K{line}")
            stream.flush()

        try:
            yield show
        finally:
            show("")
