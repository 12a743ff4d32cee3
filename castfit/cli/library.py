"""``castfit list``: the problem library."""

from __future__ import annotations

import argparse

from castfit.cli.command import Command


def _list(arguments: argparse.Namespace) -> int:
    """Show the problem library."""
    from castfit import problems
    from castfit.cli import console as _console

    _console.console().print(_console.library(problems.load(name) for name in problems.names()))
    return 0


COMMAND = Command("list", "list the problems of the library", lambda parser: None, _list)
