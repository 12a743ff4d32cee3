"""Tables of ``castfit bench`` that compare global searches."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.cli.command import picture_mistakes
from castfit.status import check

if TYPE_CHECKING:
    from rich.console import RenderableType

    from castfit.benchmark.searches import SearchRow, SearchTable
    from castfit.cli.command import Progress


def names() -> Iterable[str]:
    """Return the names of these tables."""
    from castfit.benchmark.searches import TABLES

    return TABLES


def run(arguments: argparse.Namespace, show: Progress) -> tuple[RenderableType, dict[str, Any]]:
    """Run a table, and draw its curves if that was asked for."""
    from castfit.benchmark.searches import TABLES, draw, run_searches

    check("output", picture_mistakes(arguments.plot))
    table = TABLES[arguments.table]
    rows = run_searches(
        table,
        methods=arguments.methods.split(",") if arguments.methods else None,
        runs=5 if arguments.starts is None else arguments.starts,
        seed=arguments.seed or 0,
        workers=arguments.workers,
        max_time=arguments.max_time,
        data=arguments.data,
        progress=show,
    )
    files = () if arguments.plot is None else draw(rows, table, arguments.plot)
    record = {"table": table.name, "seed": arguments.seed or 0, "rows": [row.record() for row in rows]}
    return shown(table, rows, files), record


def shown(table: SearchTable, rows: Iterable[SearchRow], files: Iterable[str]) -> RenderableType:
    """Return what the paper reports, and our rows."""
    from rich import box
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    paper = Table(title=escape(f"{table.name}: {table.source}"), box=box.SIMPLE_HEAD, show_edge=False)
    paper.add_column("paper")
    paper.add_column("")
    for line in table.paper:
        paper.add_row(escape(line.method), escape(line.figures))
    ours = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    ours.add_column("problem", min_width=12)
    ours.add_column("method", min_width=10)
    for column in ("reached", "best", "worst", "simulations", "expected", "seconds", "expected"):
        ours.add_column(column, justify="right")
    ours.add_column("")
    for row in rows:
        chi2 = [run.chi2 for run in row.runs]
        options = ", ".join(f"{k} = {v}" for k, v in row.options.items() if k != "data")
        ours.add_row(
            escape(f"{row.problem}{f' ({options})' if options else ''}"),
            escape(row.method),
            f"{row.reached} of {len(row.runs)}",
            f"{min(chi2):.7g}",
            f"{max(chi2):.5g}",
            _median([run.simulations_to_target for run in row.runs], ".0f"),
            _number(row.expected_simulations, ".0f"),
            _median([run.seconds_to_target for run in row.runs], ".2f"),
            _number(row.expected_cpu, ".2f"),
            escape(row.words),
        )
    targets = ", ".join(dict.fromkeys(f"{row.problem} {row.target:.7g}" for row in rows))
    legend = (
        f"targets: {targets}; simulations and seconds: median to the target; expected: all simulations, and all CPU "
        "seconds, over the number of runs that reached it"
    )
    drawn = [f"The curves are in {file}." for file in files]
    return Group(*([paper, ""] if table.paper else []), ours, "", escape(legend), *map(escape, drawn))


def _median(values: list[float], form: str) -> str:
    return _number(float(np.median(values)), form)


def _number(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else "never"
