"""``castfit compare``: several methods from the same starts of one problem."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from castfit._support.status import Status, raise_if_mistakes
from castfit.cli.command import FAILED, INTERRUPTED, Command, collect_keywords, write_json
from castfit.cli.source import load

_OPTIONS = {
    "methods": "single,multiple,collocation,incremental", "starts": 20, "seed": 0, "workers": 1,
    "max_time": math.inf, "fit_max_time": 60.0, "json": None, "csv": None, "plot": None,
}  # fmt: skip


def _compare(arguments: argparse.Namespace) -> int:
    """Compare methods on a problem; of the library each with the settings that it recommends."""
    import castfit
    from castfit.cli import console as screen
    from castfit.drive.run.optima import ObjectiveMeasure
    from castfit.drive.search.compare.benchmarks import drawn_starts, progress_callback
    from castfit.drive.search.compare.methods import methods_from
    from castfit.drive.search.compare.result import count_correct, legend

    source = load(arguments.name, arguments.option)
    mistakes: list[str] = []
    methods = methods_from(arguments.methods, mistakes, source.recommended)
    seed, starts = arguments.seed, arguments.starts
    mistakes += [f"--rng is {seed}; give a number that is not negative"] if seed < 0 else []
    mistakes += [f"--starts is {starts}; give at least 1"] if starts < 1 else []
    raise_if_mistakes("compare", mistakes)
    with screen.show_progress() as show:
        comparison = castfit.compare(
            source.problem,
            methods,
            starts=drawn_starts(source.draw_start, starts, seed),
            reference=None
            if source.reference is None
            else ObjectiveMeasure.from_problem(source.problem).at_height(source.reference.objective),
            **collect_keywords(arguments, "workers", "max_time", "fit_max_time"),
            callback=progress_callback(source.name, starts * len(methods), show),
            verbose=0,
        )
    console = screen.make_console(stderr=arguments.json == "-")
    sheet = comparison.sheet(f"{source.name}, {starts} starts, seed {seed}")
    footer = (
        legend(comparison.descriptions),
        count_correct(comparison.best_objective, merit=comparison.merit),
        comparison.message,
    )
    console.print(screen.stack_tables(sheet, "", *footer))
    write_json({"problem": source.name, "seed": seed, **comparison.record()}, arguments.json)
    if arguments.csv:
        comparison.to_csv(Path(arguments.csv))
    if arguments.plot:
        comparison.plot(arguments.plot)
    if comparison.stopped is Status.INTERRUPTED:
        return INTERRUPTED
    return 0 if any(row.converged for row in comparison.rows) else FAILED


COMMAND = Command(
    "compare",
    "run several methods from the same starts of a problem",
    _compare,
    _OPTIONS,
    examples=(
        "castfit compare notorious --option mu=20",
        "castfit compare calcium --methods multiple,collocation --starts 10 --workers 2 --plot success.png",
    ),
)
