"""``castfit bench``: published tables, repeated and printed beside ours; see `castfit.benchmark.table.Kind`."""

from __future__ import annotations

import argparse

from castfit.cli.command import INTERRUPTED, Command, add_options, check_outputs, option, write_json
from castfit.status import Status, check, suggest

_OPTIONS = ("starts", "seed", "workers", "methods", "max_time", "tolerance", "data", "plot", "problems", "against")


def _configure_bench(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit bench TABLE [options]"
    parser.add_argument(
        "table", metavar="TABLE", help="a published table such as calcium-table1; library; or condensing-scaling"
    )
    add_options(parser, "json", *_OPTIONS)


def _bench(arguments: argparse.Namespace) -> int:
    """Run a table, whatever its kind."""
    from castfit import _console
    from castfit.benchmark import KINDS

    check_outputs(arguments)
    known = {name: kind for kind in KINDS for name in kind.names()}
    name = arguments.table
    check("bench", [] if name in known else [f"there is no table '{name}': {suggest(name, known)}"])
    kind, given = known[name], {o: value for o in _OPTIONS if (value := getattr(arguments, o)) is not None}
    check("bench", [f"'{name}' takes no {option(o)}; leave it out" for o in given if o not in kind.takes])
    with _console.progress() as show:
        report = kind.run(name, show, **given)
    _console.console(stderr=arguments.json == "-").print(_console.shown(*report.shown))
    write_json(report.record, arguments.json)
    return INTERRUPTED if report.record.get("stopped") == Status.INTERRUPTED.value else 0


COMMAND = Command("bench", "repeat a published table and print it beside ours", _configure_bench, _bench)
