"""``castfit estimate`` and ``castfit multistart``: the best parameters between the bounds, from many starts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from castfit.cli.command import FAILED, INTERRUPTED, Command, add_options, add_problem, check_outputs, write_json
from castfit.cli.fit import fit_record
from castfit.cli.method import add_parts, make_solver, make_transcription, solver_name
from castfit.cli.source import Source, load
from castfit._support.status import Status, check

if TYPE_CHECKING:
    from castfit.result.result import Result


def _configure_estimate(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit estimate NAME|FILE.py|FILE.yaml [options]"
    add_problem(parser)
    add_options(parser, "json", "save", "plot", max_time=60.0, seed=0, workers=1)


def _estimate(arguments: argparse.Namespace) -> int:
    """Search by what suits the problem, and tell the story."""
    import castfit
    from castfit.cli import console as _console

    source = _source(arguments)
    with _console.progress() as show:
        found = castfit.estimate(
            source.problem,
            max_time=arguments.max_time,
            rng=arguments.seed,
            workers=arguments.workers,
            callback=lambda now: show(f"{source.name}: {now.sentence}"),
        )
    return _told(arguments, source, found, lambda: {"story": found.story})


def _configure_multistart(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit multistart NAME|FILE.py|FILE.yaml [options]"
    add_problem(parser)
    add_parts(parser)
    add_options(parser, starts=20, seed=0, workers=1, max_time=math.inf, start_max_time=60.0)
    add_options(parser, "json", "save", "plot")


def _multistart(arguments: argparse.Namespace) -> int:
    """Fit from drawn starts."""
    import castfit
    from castfit.cli import console as _console

    check("--starts", [f"starts is {arguments.starts}; give at least 1"] if arguments.starts < 1 else [])
    source = _source(arguments)
    kind = arguments.transcription or source.transcription
    transcription = make_transcription(source, kind, {})
    with _console.progress() as show:
        found = castfit.multistart(
            source.problem,
            transcription,
            make_solver(solver_name(source, kind, arguments.solver)),
            starts=arguments.starts,
            rng=arguments.seed,
            workers=arguments.workers,
            max_time=arguments.max_time,
            start_max_time=arguments.start_max_time,
            callback=lambda now: show(f"{source.name}: {now.finished} of {arguments.starts} starts"),
        )
    return _told(arguments, source, found, dict[str, Any])


def _source(arguments: argparse.Namespace) -> Source:
    check("--seed", [f"the seed is {arguments.seed}; give a number that is not negative"] if arguments.seed < 0 else [])
    check_outputs(arguments)
    return load(arguments.name, arguments.option)


def _told(arguments: argparse.Namespace, source: Source, found: Any, more: Callable[[], dict[str, Any]]) -> int:
    """Print what was found and write what was asked for; return the exit status."""
    from castfit.cli import console as _console

    console = _console.console(stderr=arguments.json == "-")
    console.print(str(found), markup=False, soft_wrap=True)
    best: Result | None = found.best
    if best is None:
        return FAILED
    write_json({**fit_record(source.name, best.solver, best), "seed": arguments.seed, **more()}, arguments.json)
    if arguments.plot:
        best.plot(arguments.plot)
    if arguments.save:
        best.save(arguments.save)
    if best.status is Status.INTERRUPTED:
        return INTERRUPTED
    return 0 if best.success else FAILED


ESTIMATE = Command(
    "estimate",
    "find the best parameters without choosing a method, and say how sure that is",
    _configure_estimate,
    _estimate,
    ("castfit estimate bellman", "castfit estimate problem.yaml --max-time 120 --seed 3 --save best.json"),
)
MULTISTART = Command(
    "multistart",
    "fit from many starts between the bounds, and list the optima",
    _configure_multistart,
    _multistart,
    ("castfit multistart bellman --starts 50", "castfit multistart problem.yaml --transcription single --workers 4"),
)
