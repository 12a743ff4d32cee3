"""``castfit compare``: several methods from the same starts of one problem."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from castfit.cli.command import (
    FAILED,
    INTERRUPTED,
    Command,
    add_problem,
    file_mistakes,
    listed,
    load,
    picture_mistakes,
    write_json,
)
from castfit.status import Status, check

_METHODS = "single,multiple,collocation,incremental"


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit compare NAME [options]"
    add_problem(parser)
    parser.add_argument(
        "--methods",
        metavar="A,B",
        default=_METHODS,
        help="transcription, transcription/solver, driver, driver/transcription (default: %(default)s)",
    )
    parser.add_argument("--starts", type=int, default=20, metavar="N", help="number of starts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the starts (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--max-time", type=float, default=math.inf, metavar="S", help="stop after S seconds")
    parser.add_argument(
        "--start-max-time", type=float, default=60.0, metavar="S", help="per fit (default: %(default)s s)"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write the rows as JSON; - is standard output")
    output.add_argument("--csv", metavar="FILE", help="write the rows as a table")
    output.add_argument("--plot", metavar="FILE", help="write a figure; the ending decides on the format")


def _compare(arguments: argparse.Namespace) -> int:
    """Compare methods on a problem of the library, each with the settings that it recommends."""
    import castfit
    from castfit import _console
    from castfit.benchmark import recommended
    from castfit.benchmark.table import drawn_starts, teller
    from castfit.drive.compare.methods import methods_from

    check("output", [*file_mistakes(arguments.json, arguments.csv), *picture_mistakes(arguments.plot)])
    benchmark = load(arguments.name, arguments.option)
    mistakes: list[str] = []
    methods = methods_from(listed(arguments.methods), mistakes, recommended(benchmark))
    seed, starts = arguments.seed, arguments.starts
    mistakes += [f"--seed is {seed}; give a number that is not negative"] if seed < 0 else []
    mistakes += [f"--starts is {starts}; give at least 1"] if starts < 1 else []
    check("compare", mistakes)
    with _console.progress() as show:
        found = castfit.compare(
            benchmark.problem,
            methods,
            starts=drawn_starts(benchmark, starts, seed),
            reference=benchmark.reference.objective,
            workers=arguments.workers,
            max_time=arguments.max_time,
            start_max_time=arguments.start_max_time,
            callback=teller(arguments.name, starts * len(methods), show),
        )
    console = _console.console(stderr=arguments.json == "-")
    console.print(_console.compared(found, f"{arguments.name}, {starts} starts, seed {seed}"))
    write_json({"problem": arguments.name, "seed": seed, **found.record()}, arguments.json)
    if arguments.csv:
        found.to_csv(Path(arguments.csv))
    if arguments.plot:
        found.plot(arguments.plot)
    if found.stopped is Status.INTERRUPTED:
        return INTERRUPTED
    return 0 if any(row.converged for row in found.rows) else FAILED


COMMAND = Command("compare", "run several methods from the same starts of a problem", _configure, _compare)
