"""``castfit bench``: published tables, repeated and printed beside ours.

Each kind of table is a `Kind`: the names it answers to, and a function that runs one of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from castfit.cli.command import INTERRUPTED, Command, file_mistakes, picture_mistakes, write_json
from castfit.status import Status, check, suggest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from castfit.cli.command import Progress


_COMMON = ("starts", "seed", "workers", "methods", "max_time")
_OPTIONS = (*_COMMON, "tolerance", "data", "plot", "problems", "against")
_DEFAULTS = {"workers": 1, "max_time": 60.0}  # taken after it is known what was given


@dataclass(frozen=True)
class Kind:
    """A kind of table: cases of problems x methods x starts, told in rows.

    Attributes
    ----------
    names : callable
        Returns the names of all tables of this kind.
    takes : tuple of str
        The options that mean something to them, besides ``--json``.
    run : callable
        Runs the table ``arguments.table``, telling the second argument what is being done; returns what is shown and
        what JSON gets, which says ``"stopped": "interrupted"`` after Ctrl-C.
    """

    names: Callable[[], Iterable[str]]
    takes: tuple[str, ...]
    run: Callable[[argparse.Namespace, Progress], tuple[RenderableType, dict[str, Any]]]


def _configure_bench(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit bench TABLE [options]"
    parser.add_argument(
        "table", metavar="TABLE", help="a published table such as calcium-table1; library; or condensing-scaling"
    )
    parser.add_argument("--starts", type=int, metavar="N", help="number of starts (default: as many as the paper)")
    parser.add_argument("--seed", type=int, metavar="N", help="draws other noise and other starts")
    parser.add_argument("--workers", type=int, metavar="N", help=f"processes (default: {_DEFAULTS['workers']})")
    parser.add_argument("--methods", metavar="A,B", help="methods to run (default: those of the table)")
    parser.add_argument("--max-time", type=float, metavar="S", help=f"per start (default: {_DEFAULTS['max_time']} s)")
    parser.add_argument("--tolerance", type=float, metavar="T", help="relative tolerance of the integrator")
    parser.add_argument("--data", metavar="FILE", help="measurements of hiv_proteinase (default: simulated ones)")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves of a global search")
    parser.add_argument("--problems", metavar="A,B", help="problems of the library to fit (default: all of them)")
    parser.add_argument("--against", metavar="FILE", help="an earlier --json of the library, for ratios to it")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON; - is standard output")


def _bench(arguments: argparse.Namespace) -> int:
    """Run a table, whatever its kind."""
    from castfit import _console

    check("output", file_mistakes(arguments.json))
    known = {name: kind for kind in KINDS for name in kind.names()}
    name = arguments.table
    check("bench", [] if name in known else [f"there is no table '{name}': {suggest(name, known)}"])
    alien = [o for o in _OPTIONS if o not in known[name].takes and getattr(arguments, o) is not None]
    check("bench", [f"'{name}' takes no --{o.replace('_', '-')}; leave it out" for o in alien])
    for option, value in _DEFAULTS.items():
        if getattr(arguments, option) is None:
            setattr(arguments, option, value)
    with _console.progress() as show:
        table, record = known[name].run(arguments, show)
    _console.console(stderr=arguments.json == "-").print(table)
    write_json(record, arguments.json)
    return INTERRUPTED if record.get("stopped") == Status.INTERRUPTED.value else 0


def _published_names() -> Iterable[str]:
    from castfit import problems

    return problems.tables()


def _published(arguments: argparse.Namespace, show: Progress) -> tuple[RenderableType, dict[str, Any]]:
    """Repeat a table that a problem declares."""
    from castfit import _console, benchmark, problems

    found = benchmark.run_table(
        problems.tables()[arguments.table],
        methods=_listed(arguments.methods),
        starts=arguments.starts,
        seed=arguments.seed,
        workers=arguments.workers,
        max_time=arguments.max_time,
        tolerance=arguments.tolerance,
        progress=show,
    )
    return _console.repeated(found), found.record()


def _scaling(arguments: argparse.Namespace, show: Progress) -> tuple[RenderableType, dict[str, Any]]:
    """Time the linear algebra."""
    from castfit import _console, benchmark

    show(arguments.table)
    found = benchmark.condensing_scaling(rng=arguments.seed or 0)
    record = {"table": arguments.table, "rows": [vars(found) | {"slopes": found.slopes}]}
    return _console.scaling(found), record


def _searches_names() -> Iterable[str]:
    from castfit.benchmark.searches import TABLES

    return TABLES


def _searches(arguments: argparse.Namespace, show: Progress) -> tuple[RenderableType, dict[str, Any]]:
    """Compare global searches, and draw their curves if that was asked for."""
    from castfit import _console
    from castfit.benchmark.searches import TABLES, draw, run_searches

    check("output", picture_mistakes(arguments.plot))
    table, seed = TABLES[arguments.table], arguments.seed or 0
    rows = run_searches(
        table,
        methods=_listed(arguments.methods),
        runs=5 if arguments.starts is None else arguments.starts,
        seed=seed,
        workers=arguments.workers,
        max_time=arguments.max_time,
        data=arguments.data,
        progress=show,
    )
    files = () if arguments.plot is None else draw(rows, table, arguments.plot)
    record = {"table": table.name, "seed": seed, "rows": [row.record() for row in rows]}
    return _console.searched(table, rows, files), record


def _library(arguments: argparse.Namespace, show: Progress) -> tuple[RenderableType, dict[str, Any]]:
    """Fit every problem of the library by every method."""
    from rich.markup import escape

    from castfit.benchmark import library

    before = None if arguments.against is None else library.earlier(arguments.against)
    starts = 1 if arguments.starts is None else arguments.starts
    options = {"starts": starts, "seed": arguments.seed or 0, "max_time": arguments.max_time}
    names, methods = _listed(arguments.problems), _listed(arguments.methods)
    found: list[library.Entry] = []
    stopped: dict[str, str] = {}
    try:
        for entry in library.run_library(names=names, methods=methods, **options, progress=show):
            found.append(entry)
    except KeyboardInterrupt:
        stopped = {"stopped": Status.INTERRUPTED.value}
    return escape("\n".join(library.lines(found, before))), library.record(found, **options, **stopped)


def _listed(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",")]


KINDS = (
    Kind(_published_names, (*_COMMON, "tolerance"), _published),
    Kind(lambda: ("condensing-scaling",), ("seed",), _scaling),
    Kind(_searches_names, (*_COMMON, "data", "plot"), _searches),
    Kind(lambda: ("library",), ("starts", "seed", "methods", "max_time", "problems", "against"), _library),
)
COMMAND = Command("bench", "repeat a published table and print it beside ours", _configure_bench, _bench)
