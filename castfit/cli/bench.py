"""``castfit bench``: published tables, repeated and printed beside ours.

Each kind of table is a `Kind`: the names it answers to, the options it takes, and a function that runs one of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from castfit.cli.command import INTERRUPTED, Command, add_options, check_outputs, option, write_json
from castfit.status import Status, check, suggest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from castfit.cli.command import Progress

_COMMON = ("starts", "seed", "workers", "methods", "max_time")
_SPECIAL = (*_COMMON, "tolerance", "data", "plot", "problems", "against")


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
        Runs the table of a name, telling the second argument what is being done, with those options that were given as
        keywords; returns what is shown and what JSON gets, which says ``"stopped": "interrupted"`` after Ctrl-C.
    """

    names: Callable[[], Iterable[str]]
    takes: tuple[str, ...]
    run: Callable[..., tuple[RenderableType, dict[str, Any]]]


def _configure_bench(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit bench TABLE [options]"
    parser.add_argument(
        "table", metavar="TABLE", help="a published table such as calcium-table1; library; or condensing-scaling"
    )
    add_options(parser, "json", *_SPECIAL)


def _bench(arguments: argparse.Namespace) -> int:
    """Run a table, whatever its kind."""
    from castfit import _console

    check_outputs(arguments)
    known = {name: kind for kind in KINDS for name in kind.names()}
    name = arguments.table
    check("bench", [] if name in known else [f"there is no table '{name}': {suggest(name, known)}"])
    kind, given = known[name], {o: value for o in _SPECIAL if (value := getattr(arguments, o)) is not None}
    check("bench", [f"'{name}' takes no {option(o)}; leave it out" for o in given if o not in kind.takes])
    with _console.progress() as show:
        table, record = kind.run(name, show, **given)
    _console.console(stderr=arguments.json == "-").print(table)
    write_json(record, arguments.json)
    return INTERRUPTED if record.get("stopped") == Status.INTERRUPTED.value else 0


def _published_names() -> Iterable[str]:
    from castfit import problems

    return problems.tables()


def _published(name: str, show: Progress, **options: Any) -> tuple[RenderableType, dict[str, Any]]:
    """Repeat a table that a problem declares."""
    from castfit import _console, benchmark, problems

    found = benchmark.run_table(problems.tables()[name], progress=show, **options)
    return _console.repeated(found), found.record()


def _scaling(name: str, show: Progress, seed: int = 0) -> tuple[RenderableType, dict[str, Any]]:
    """Time the linear algebra."""
    from castfit import _console, benchmark
    from castfit.benchmark.table import record

    show(name)
    found = benchmark.condensing_scaling(rng=seed)
    return _console.scaling(found), record(name, [vars(found) | {"slopes": found.slopes}])


def _searches_names() -> Iterable[str]:
    from castfit.benchmark.searches import TABLES

    return TABLES


def _searches(
    name: str, show: Progress, starts: int = 5, seed: int = 0, plot: str | None = None, **options: Any
) -> tuple[RenderableType, dict[str, Any]]:
    """Compare global searches, and draw their curves if that was asked for."""
    from castfit import _console
    from castfit.benchmark.searches import TABLES, draw, run_searches
    from castfit.benchmark.table import collected, record

    rows, stopped = collected(run_searches(TABLES[name], runs=starts, seed=seed, progress=show, **options))
    files = draw(rows, TABLES[name], plot) if plot and rows else ()
    made = record(name, [row.record() for row in rows], seed=seed, **stopped)
    return _console.searched(TABLES[name], rows, files), made


def _library(
    name: str, show: Progress, against: str | None = None, problems: list[str] | None = None, **options: Any
) -> tuple[RenderableType, dict[str, Any]]:
    """Fit every problem of the library by every method."""
    from rich.markup import escape

    from castfit.benchmark import library
    from castfit.benchmark.table import collected

    before = None if against is None else library.earlier(against)
    found, stopped = collected(library.run_library(names=problems, progress=show, **options))
    kept = {"starts": 1, "seed": 0, "max_time": library.MAX_TIME, **options, **stopped}
    kept.pop("methods", None)
    return escape("\n".join(library.lines(found, before))), library.record(found, **kept)


KINDS = (
    Kind(_published_names, (*_COMMON, "tolerance"), _published),
    Kind(lambda: ("condensing-scaling",), ("seed",), _scaling),
    Kind(_searches_names, (*_COMMON, "data", "plot"), _searches),
    Kind(lambda: ("library",), ("starts", "seed", "methods", "max_time", "problems", "against"), _library),
)
COMMAND = Command("bench", "repeat a published table and print it beside ours", _configure_bench, _bench)
