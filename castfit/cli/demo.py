"""``castfit demo``: two problems with measured data, by every transcription."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from castfit.cli.command import Command, add_options, check_outputs
from castfit.cli.fit import exit_status, fit_source, read_start
from castfit.cli.method import make_transcription
from castfit.cli.source import load
from castfit.fit.methods import TRANSCRIPTIONS
from castfit._support.status import Status

if TYPE_CHECKING:
    from castfit.result.result import Result


def _configure_demo(parser: argparse.ArgumentParser) -> None:
    add_options(parser, plot="castfit-demo.png")


def _demo(arguments: argparse.Namespace) -> int:
    """Fit two problems with measured data by every transcription."""
    from castfit import plots
    from castfit.cli import console as _console

    check_outputs(arguments)
    results: dict[str, dict[str, Result]] = {}
    for name in ("stat5", "alpha_pinene"):
        source = load(name, [])
        for kind in TRANSCRIPTIONS:
            transcription = make_transcription(source, kind, {})
            label = transcription.label.partition(" (")[0]
            result = fit_source(source, transcription, read_start(source, kind, None, 0), "gauss-newton")
            if result.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
            results.setdefault(name, {})[label] = result
    console = _console.console()
    console.print(_console.shown(_console.demonstration(results)))
    console.print(
        "alpha_pinene starts where the literature does: all rate constants 0.5, up to 25,000 times too large."
    )
    plots.gallery(results, arguments.plot)
    console.print(f"Data, models and residuals are in {arguments.plot}.", markup=False)
    return exit_status([result for group in results.values() for result in group.values()])


COMMAND = Command("demo", "fit two problems by every transcription, with a table and a picture", _configure_demo, _demo)
