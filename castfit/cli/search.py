"""``castfit estimate`` and ``castfit multistart``: the best parameters between the bounds, from many starts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from castfit._support.status import raise_if_mistakes
from castfit.cli.command import FAILED, Command, collect_keywords, write_results
from castfit.cli.fit import build_fit_record, find_exit_status
from castfit.cli.method import add_parts, choose_solver_name, make_solver, make_transcription
from castfit.cli.source import ProblemSource, load

if TYPE_CHECKING:
    from castfit.result.result import Result


def _estimate(arguments: argparse.Namespace) -> int:
    """Search by the ways that suit the problem, and print the result."""
    import castfit

    source = _load_source(arguments)
    search_result = castfit.estimate(source.problem, **collect_keywords(arguments, "max_time", "seed", "workers"))
    return _print_outcome(arguments, source, search_result, lambda: {"story": search_result.story})


def _multistart(arguments: argparse.Namespace) -> int:
    """Fit from drawn starts."""
    import castfit

    raise_if_mistakes("--starts", [f"starts is {arguments.starts}; give at least 1"] if arguments.starts < 1 else [])
    source = _load_source(arguments)
    kind = arguments.transcription or source.transcription
    transcription = make_transcription(source, kind, {})
    search_result = castfit.multistart(
        source.problem,
        transcription,
        make_solver(choose_solver_name(source, kind, arguments.solver)),
        **collect_keywords(arguments, "starts", "seed", "workers", "max_time", "fit_max_time"),
    )
    return _print_outcome(arguments, source, search_result, dict[str, Any])


def _load_source(arguments: argparse.Namespace) -> ProblemSource:
    raise_if_mistakes(
        "--rng", [f"the seed is {arguments.seed}; give a number that is not negative"] if arguments.seed < 0 else []
    )
    return load(arguments.name, arguments.option)


def _print_outcome(
    arguments: argparse.Namespace,
    source: ProblemSource,
    search_result: Any,
    get_extra_fields: Callable[[], dict[str, Any]],
) -> int:
    """Print the result of a search, write the requested files, and return the exit status."""
    from castfit.cli import console as screen

    screen.print_report(screen.make_console(stderr=arguments.json == "-"), str(search_result))
    best: Result | None = search_result.best
    if best is None:
        return FAILED
    record = {**build_fit_record(source.name, best), "seed": arguments.seed, **get_extra_fields()}
    write_results(arguments, record, best)
    return find_exit_status([best])


_STARTS = {
    "starts": 20, "seed": 0, "workers": 1, "max_time": math.inf, "fit_max_time": 60.0,
    "json": None, "save": None, "petab": None, "plot": None,
}  # fmt: skip
ESTIMATE = Command(
    "estimate",
    "find the best parameters without choosing a method, and report how often they were found",
    _estimate,
    {"json": None, "save": None, "petab": None, "plot": None, "max_time": 60.0, "seed": 0, "workers": 1},
    examples=("castfit estimate bellman", "castfit estimate problem.yaml --max-time 120 --rng 3 --petab found"),
)
MULTISTART = Command(
    "multistart",
    "fit from many starts between the bounds, and list the optima",
    _multistart,
    _STARTS,
    add_parts,
    ("castfit multistart bellman --starts 50", "castfit multistart problem.yaml --transcription single --workers 4"),
)
