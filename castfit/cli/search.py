"""``castfit estimate``, ``multistart``, ``compare`` and ``select``: searches for optima, methods and models."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import castfit
from castfit._support.json_codec import replace_nonfinite
from castfit._support.status import Status, raise_if_mistakes
from castfit.cli.command import (
    FAILED,
    INTERRUPTED,
    PETAB_FILES,
    Command,
    argument,
    collect_keywords,
    verbose_argument,
    write_json,
    write_results,
)
from castfit.cli.fit import (
    PARTS,
    build_fit_record,
    choose_solver_name,
    find_exit_status,
    make_solver,
    make_transcription,
)
from castfit.cli.source import ProblemSource, load, run_script

if TYPE_CHECKING:
    from castfit.result.result import Result


def _estimate(arguments: argparse.Namespace) -> int:
    """Search by the ways that suit the problem, and print the result."""
    source = _load_source(arguments)
    search_result = castfit.estimate(source.problem, **collect_keywords(arguments, "max_time", "seed", "workers"))
    return _print_outcome(arguments, source, search_result, lambda: {"story": search_result.story})


def _multistart(arguments: argparse.Namespace) -> int:
    """Fit from drawn starts."""
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
    {
        "starts": 20, "seed": 0, "workers": 1, "max_time": math.inf, "fit_max_time": 60.0,
        "json": None, "save": None, "petab": None, "plot": None,
    },
    PARTS,
    ("castfit multistart bellman --starts 50", "castfit multistart problem.yaml --transcription single --workers 4"),
)  # fmt: skip


def _compare(arguments: argparse.Namespace) -> int:
    """Compare methods on a problem; of the library each with the settings that it recommends."""
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
    write_results(arguments, {"problem": source.name, "seed": seed, **comparison.record()}, comparison)
    if comparison.stopped is Status.INTERRUPTED:
        return INTERRUPTED
    return 0 if any(row.converged for row in comparison.rows) else FAILED


COMPARE = Command(
    "compare",
    "run several methods from the same starts of a problem",
    _compare,
    {
        "methods": "single,multiple,collocation,incremental", "starts": 20, "seed": 0, "workers": 1,
        "max_time": math.inf, "fit_max_time": 60.0, "json": None, "csv": None, "plot": None,
    },
    examples=(
        "castfit compare notorious --option mu=20",
        "castfit compare calcium --methods multiple,collocation --starts 10 --workers 2 --plot success.png",
    ),
)  # fmt: skip


def _select(arguments: argparse.Namespace) -> int:
    """Search, and print the order."""
    from castfit.cli import console as screen

    file = Path(arguments.file)
    common = collect_keywords(arguments, "seed", "workers", "max_time", "fit_max_time", "checkpoint", "resume")
    common |= {"verbose": min(arguments.verbose, 2) or None}
    options = {n: getattr(arguments, n) for n in ("criterion", "method") if getattr(arguments, n) is not None}
    if file.suffix in PETAB_FILES:
        raise_if_mistakes("select", [f"--{n} is what '{file}' says; leave it out" for n in options])
        selection = castfit.petab.select(file, folder=arguments.folder, **common)
    else:
        raise_if_mistakes("select", ["--folder is for PEtab Select problems; leave it out"] if arguments.folder else [])
        problems, choices = _read_problems(file)
        selection = castfit.select(problems, choices=choices, **options, **common)
    screen.print_report(screen.make_console(stderr=arguments.json == "-"), selection.summary())
    write_json(_build_record(str(file), selection), arguments.json)
    if arguments.plot:
        selection.plot(arguments.plot)
    if arguments.save and selection.best is not None:
        selection.best.save(arguments.save)
    if arguments.html:
        selection.report(arguments.html)
    return 0 if selection.complete and selection.names else FAILED


def _read_problems(file: Path) -> tuple[Any, Any]:
    """Return the problems, or the problem and its choices, that a Python file defines."""
    definitions = run_script(file)
    if "candidates" in definitions:
        return definitions["candidates"], None
    missing = [n for n in ("problem", "choices") if n not in definitions]
    remedy = "define candidates = {name: problem}, or problem and choices = {parameter: [0, castfit.estimated]}"
    raise_if_mistakes("file", [f"'{file}' does not define {' and '.join(missing)}; {remedy}"] if missing else [])
    return definitions["problem"], definitions["choices"]


def _build_record(name: str, selection: Any) -> dict[str, Any]:
    """Return the record for ``--json``. Non-finite numbers become None."""
    return replace_nonfinite(
        {
            "problem": name,
            "message": selection.message,
            "complete": selection.complete,
            "criterion": selection.criterion,
            "method": selection.method,
            "candidates": {
                n: {"criterion": selection.criteria[n], "weight": w, "values": selection.fits[n].result.values}
                for n, w in selection.weights.items()
            },
            "failed": {n: row.message for n, row in selection.fits.items() if n not in selection.names},
            "importance": selection.importance,
            "path": list(selection.path),
            "time": selection.time,
        }
    )  # fmt: skip


SELECT = Command(
    "select",
    "say which of several models the data ask for",
    _select,
    {"json": None, "plot": None, "save": None, "max_time": math.inf, "fit_max_time": math.inf, "seed": 0, "workers": 1},
    (
        argument(
            "file",
            metavar="FILE.yaml|FILE.py",
            help="the YAML file of a PEtab Select problem, or a Python file that defines candidates = {name: problem}, "
            "or problem and choices",
        ),
        argument("--criterion", metavar="C", help="AICc, AIC or BIC (default: AICc); a PEtab problem has its own"),
        argument("--method", metavar="M", help="all, forward, backward, forecast or famos (default: auto)"),
        argument("--folder", metavar="FOLDER", help="where PEtab Select writes its files"),
        argument("--html", metavar="FILE", help="write a page with the result"),
        argument("--checkpoint", metavar="FILE", help="write every finished fit there"),
        argument("--resume", action="store_true", help="continue the checkpoint if it exists"),
        verbose_argument("the run; twice: each fit"),
    ),
    ("castfit select petab_select_problem.yaml --workers 2 --folder found",
     "castfit select models.py --criterion BIC --plot models.png"),
    problem=False,
)  # fmt: skip
