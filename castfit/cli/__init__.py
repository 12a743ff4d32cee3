"""Command line of castfit.

Input: the arguments of ``castfit COMMAND``.  Output: tables on standard output, progress on standard error, files, and
an exit status: 0 for success, 1 for a fit that failed or does not describe its data, 2 for misuse, 130 for an
interrupt.  A `Command` has a name, arguments, and a function that runs it.  This function imports its packages only
when it runs, so ``castfit --help`` answers at once.  Read ``command.py`` first, then ``fit.py``.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

import castfit
from castfit._support.status import CastfitError
from castfit.cli import bench, design, examples, fit, report, search, uncertainty
from castfit.cli.command import INTERRUPTED, MISUSE, check_outputs, print_line

COMMANDS = (
    examples.LIST,
    fit.COMMAND,
    search.ESTIMATE,
    search.MULTISTART,
    uncertainty.PROFILE,
    uncertainty.BOOTSTRAP,
    search.COMPARE,
    search.SELECT,
    design.COMMAND,
    uncertainty.DOCTOR,
    report.REPORT,
    report.EXPLORE,
    bench.COMMAND,
    examples.NEW,
    examples.DEMO,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.
    """
    namespace = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # descriptions hold letters that a terminal may not have
            stream.reconfigure(errors="replace")
    try:
        check_outputs(namespace)
        return namespace.run(namespace)
    except (CastfitError, OSError) as error:
        print_line(str(error) if isinstance(error, CastfitError) else f"castfit: {error}", sys.stderr)
        return MISUSE
    except KeyboardInterrupt:
        print_line("castfit: interrupted", sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="castfit", description="Estimate parameters of ODE and DAE models from measured time courses."
    )
    parser.add_argument("--version", action="version", version=f"castfit {castfit.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        examples = "\n  ".join(["examples:", *command.examples]) if command.examples else None
        subparser = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.summary,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_to(subparser)
        subparser.set_defaults(run=command.run)
    return parser
