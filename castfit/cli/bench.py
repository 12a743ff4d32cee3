"""``castfit bench``: published tables, repeated and printed beside ours; see `castfit._bench.table.Kind`."""

from __future__ import annotations

import argparse

from castfit._support.status import Status, raise_if_mistakes, suggest
from castfit._support.text_tables import TextTable
from castfit.cli.command import INTERRUPTED, Command, argument, format_option, write_json

_OPTIONS = (
    "starts", "seed", "workers", "methods", "max_time", "tolerance", "data", "plot",
    "problems", "against", "folder", "pypesto", "pyomo", "jax", "rockit", "html", "species", "nominal",
)  # fmt: skip


def _bench(arguments: argparse.Namespace) -> int:
    """Run a table, whatever its kind."""
    from castfit.cli import console as screen
    from castfit.problems import import_sibling

    KINDS = import_sibling("castfit._bench", "bench").KINDS

    kinds_by_name = {name: kind for kind in KINDS for name in kind.names()}
    if arguments.list:
        rows = sorted((name, kind.says(name)) for name, kind in kinds_by_name.items())
        sheet = TextTable.from_items(rows, ("table", lambda row: row[0]), ("what it repeats", lambda row: row[1]))
        screen.make_console().print(screen.stack_tables(sheet))
        return 0
    name = arguments.table or ""
    raise_if_mistakes("bench", [] if name else ["TABLE is missing; castfit bench --list shows the tables"])
    raise_if_mistakes(
        "bench", [] if name in kinds_by_name else [f"unknown table '{name}': {suggest(name, kinds_by_name)}"]
    )
    kind, options = kinds_by_name[name], {o: value for o in _OPTIONS if (value := getattr(arguments, o)) is not None}
    raise_if_mistakes(
        "bench", [f"table '{name}' has no option {format_option(o)}; remove it" for o in options if o not in kind.takes]
    )
    with screen.show_progress() as show:
        report = kind.run(name, show, **options)
    screen.make_console(stderr=arguments.json == "-").print(screen.stack_tables(*report.shown))
    write_json(report.record, arguments.json)
    return INTERRUPTED if report.record.get("stopped") == Status.INTERRUPTED.value else 0


COMMAND = Command(
    "bench",
    "rerun a published table and print it next to the published values",
    _bench,
    dict.fromkeys(("json", *(o for o in _OPTIONS if o != "nominal"))),
    (
        argument("table", metavar="TABLE", nargs="?", help="a table of castfit bench --list"),
        argument("--list", action="store_true", help="list the tables"),
        argument(
            "--nominal",
            action="store_true",
            default=None,
            help="of PEtab problems: loading, objective and gradient at the nominal parameters only",
        ),
    ),
    (
        "castfit bench --list",
        "castfit bench iss-table2 --methods incremental,multiple --starts 20",
        "castfit bench petab --folder collection --nominal",
        "castfit bench petab --folder collection --html petab.html",
        "castfit bench sbml --folder sbml-test-suite/cases/semantic",
        "castfit bench petab --folder collection --problems Boehm --starts 10 --pypesto ~/amici/bin/python",
    ),
    problem=False,
    usage="castfit bench TABLE [options]",
)
