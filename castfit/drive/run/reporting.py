"""How far a run is, on the user's terminal: one line that is rewritten there, or many."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Protocol

from castfit._support.progress_line import live


class Reporter(Protocol):
    """Told how far a run is."""

    def __call__(self, state: str, last: str = "", *, milestone: bool = False) -> None:
        """Take the state of the run, what was done last, if anything, and whether that is worth a line in a file."""
        ...


@contextmanager
def reporter(verbose: int) -> Generator[Reporter, None, None]:
    """Yield a function that shows how far a run is: never (0), by its state (1), or by everything that was done (2).

    On a terminal the state is rewritten in place; elsewhere it is told at milestones.
    """
    if not verbose:
        yield _silence
        return
    from rich.console import Console

    lines = Console(highlight=False, markup=False, soft_wrap=True)
    with live() if verbose == 1 else nullcontext() as show:

        def report(state: str, last: str = "", *, milestone: bool = False) -> None:
            if verbose == 2 and last:
                lines.print(last)
            elif verbose == 1 and show is not None:
                show(state)
            elif verbose == 1 and milestone:
                lines.print(state)

        yield report


def _silence(state: str, last: str = "", *, milestone: bool = False) -> None:
    """Show nothing."""


def is_tenth(finished: int, total: int) -> bool:
    """Whether another tenth of a run has just been finished."""
    return 10 * finished // total > 10 * (finished - 1) // total


def is_round(number: int) -> bool:
    """Whether a number is 0, 1, 2, 5, 10, 20, 50, ..., of which a run without known end tells."""
    return number == 0 or f"{number}".rstrip("0") in ("1", "2", "5")
