"""What a scatter search shows while it runs: a table that is rewritten on a terminal, or a line per generation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from castfit.drive.run.reporting import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from castfit.drive.scatter.result import Generation

Show = Callable[["Generation", str | None], None]
"""Told how far the search is after each block of work, with a sentence after each generation."""


@contextmanager
def view(verbose: int) -> Generator[Show, None, None]:
    """Yield a function that shows nothing (0), the state of the search (1), or one line per generation (2)."""
    if not verbose:
        yield lambda now, sentence: None
        return
    from rich.console import Console

    if verbose == 1 and sys.stderr.isatty():
        from rich.live import Live

        with terminal() as stream:
            own = Console(file=stream, force_terminal=True, highlight=False)
            with Live(console=own, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
                yield lambda now, sentence: live.update(_table(now), refresh=True)
        return
    lines = Console(highlight=False, markup=False, soft_wrap=True)

    def show(now: Generation, sentence: str | None) -> None:
        if sentence is not None and (verbose == 2 or _is_round(now.generation)):
            lines.print(sentence)

    yield show


def _is_round(generation: int) -> bool:
    """Whether a generation is worth a line in a file: 0, 1, 2, 5, 10, 20, 50, ..."""
    return generation == 0 or generation / 10 ** int(np.log10(generation)) in (1, 2, 5)


def _table(now: Generation) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    cells = {
        "generation": f"{now.generation}",
        "best chi2": f"{now.chi2:.8g}",
        "simulations": f"{now.simulations}",
        "local searches": f"{now.searches}",
        "time": f"{now.seconds:.1f} s",
    }
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(*cells.values())
    return table
