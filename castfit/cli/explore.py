"""``castfit explore``: fit a problem, and write a page with sliders."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import castfit
from castfit._support.status import Status
from castfit.cli.command import Command, print_line
from castfit.cli.fit import FitCall, add_fit


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE.html", help="output page (default: NAME-model.html)")
    parser.add_argument("--title", metavar="TEXT", help="above the page (default: NAME)")
    parser.add_argument("--guess", action="store_true", help="do not fit; set the sliders to the guesses")
    add_fit(parser)


def _run(arguments: argparse.Namespace) -> int:
    """Fit unless told not to, and write the page; where a fit fails, without an estimate."""
    fit_call = FitCall.from_arguments(arguments)
    name = Path(fit_call.source.name).name
    stem = name.replace(".py", "").replace(".yaml", "").replace(".yml", "").replace(":", "-")
    result = None if arguments.guess else fit_call.run(max_time=arguments.max_time)
    if result is not None and result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    is_fitted = result is not None and result.success
    if result is not None:
        print_line(f"{result!r}", sys.stdout)
    target = arguments.out or f"{stem}-model.html"
    fit_or_problem = result if result is not None and is_fitted else fit_call.source.problem
    castfit.explore(fit_or_problem, target, title=arguments.title or stem)
    print_line(f"Created {target}{'' if is_fitted else ' (without estimates)'}.", sys.stdout)
    return 0


COMMAND = Command(
    "explore",
    "write an HTML page with sliders that integrates the model in the browser",
    _run,
    {"max_time": math.inf, "seed": 0},
    _configure,
    ("castfit explore lotka_volterra", "castfit explore decay.py --guess --out decay.html"),
)
