"""``castfit bootstrap``: how the estimates of a problem scatter when its data are drawn anew."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from castfit._support.status import raise_if_mistakes
from castfit.cli.command import FAILED, Command, collect_keywords, print_line, write_json

_KINDS = ("residual", "wild", "parametric")


def _configure(parser: argparse.ArgumentParser) -> None:
    words = "how data are resampled (default: %(default)s)"
    parser.add_argument("--kind", choices=_KINDS, default="residual", help=words)
    parser.add_argument(
        "--samples", type=int, metavar="N", default=1000, help="number of data sets (default: %(default)s)"
    )


def _bootstrap(arguments: argparse.Namespace) -> int:
    """Fit, draw data about the fit, and fit these; return 1 if the first fit or every other one failed."""
    import castfit
    from castfit._support.json_codec import replace_nonfinite
    from castfit.cli import console as screen
    from castfit.cli.method import find_default_methods
    from castfit.cli.source import load

    source = load(arguments.name, arguments.option)
    method, solver = find_default_methods(source)
    from castfit.problem.problem import kind_mistakes

    raise_if_mistakes("bootstrap", kind_mistakes(source.problem))
    result: Any = castfit.fit(source.problem, method, solver, start=source.start)
    console = screen.make_console(stderr=arguments.json == "-")
    if not result.success:
        print_line(result.summary(), sys.stderr)
        return FAILED
    bootstrap_result = castfit.bootstrap(
        result,
        arguments.kind,
        transcription=method,
        solver=solver,
        **collect_keywords(arguments, "samples", "seed", "workers", "max_time"),
    )
    screen.print_report(console, bootstrap_result.summary())
    intervals = {
        "percentile": bootstrap_result.confidence_intervals(method="percentile"),
        "bca": bootstrap_result.confidence_intervals(),
    }
    figures = {
        "standard_errors": bootstrap_result.standard_errors,
        "bias": bootstrap_result.bias,
        "intervals": intervals,
    }
    counts = {
        "samples": len(bootstrap_result.rows),
        "fitted": len(bootstrap_result.solved),
        "failures": bootstrap_result.failures,
    }
    record = {
        "problem": source.name,
        "kind": bootstrap_result.kind,
        "level": result.confidence_level,
        **counts,
        **figures,
    }
    write_json(replace_nonfinite(record), arguments.json)
    if not bootstrap_result.solved:
        return FAILED
    if arguments.plot:
        bootstrap_result.plot(arguments.plot)
    if arguments.save:
        bootstrap_result.save(arguments.save)
    return 0


COMMAND = Command(
    "bootstrap",
    "compute standard errors and intervals by bootstrap",
    _bootstrap,
    {"json": None, "plot": None, "save": None, "max_time": math.inf, "seed": 0, "workers": 1},
    _configure,
    (
        "castfit bootstrap bellman --samples 200 --workers 2",
        "castfit bootstrap decay.py --kind wild --plot k.png",
    ),
)
