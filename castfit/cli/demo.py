"""``castfit list`` and ``castfit demo``: the problem library, and two of its problems by every transcription."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from castfit._support.status import Status
from castfit.cli.command import Command
from castfit.cli.fit import FitCall, find_exit_status, read_start
from castfit.cli.method import make_transcription
from castfit.cli.source import load
from castfit.fit.methods import TRANSCRIPTIONS

if TYPE_CHECKING:
    from castfit.result.result import Result


def _list(arguments: argparse.Namespace) -> int:
    """Show the problem library."""
    from castfit import problems
    from castfit.cli import console as screen

    screen.make_console().print(screen.build_library_table(problems.load(name) for name in problems.names()))
    screen.make_console().print(
        screen.build_control_table(problems.load_control(name) for name in problems.control_names())
    )
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    """Fit two problems with measured data by every transcription."""
    from castfit import plots
    from castfit.cli import console as screen

    results: dict[str, dict[str, Result]] = {}
    for name in ("stat5", "alpha_pinene"):
        source = load(name, [])
        for kind in TRANSCRIPTIONS:
            transcription = make_transcription(source, kind, {})
            label = transcription.label.partition(" (")[0]
            result = FitCall(source, transcription, "gauss-newton", read_start(source, kind, None, 0)).run()
            if result.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
            results.setdefault(name, {})[label] = result
    console = screen.make_console()
    console.print(screen.stack_tables(screen.build_demonstration_table(results)))
    console.print(
        "alpha_pinene starts as in the literature: all rate constants 0.5, up to 25,000 times too large. Its sigma is "
        "unknown, so its objective is -2 log L; the objective of stat5 is chi2."
    )
    plots.gallery(results, arguments.plot)
    console.print(f"Data, models and residuals are in {arguments.plot}.", markup=False)
    return find_exit_status([result for group in results.values() for result in group.values()])


LIST = Command("list", "list the problems of the library", _list, problem=False)
DEMO = Command(
    "demo",
    "fit two problems with every transcription; print a table, write a figure",
    _demo,
    {"plot": "castfit-demo.png"},
    problem=False,
)
