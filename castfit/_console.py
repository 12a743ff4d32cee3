"""What the command line shows: tables on standard output, progress on standard error."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext

import numpy as np
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from castfit.benchmark.table import Sheet
from castfit.drive.run.reporting import live
from castfit.problems import Benchmark, Reference
from castfit.result import Result

_WIDTH_IN_FILES = 120
_NAME = 12


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or wide enough for our tables in a file."""
    shown = Console(stderr=stderr, highlight=False)
    if not shown.is_terminal and "COLUMNS" not in os.environ:
        shown.width = _WIDTH_IN_FILES
    return shown


@contextmanager
def progress(*, silent: bool = False) -> Generator[Callable[[str], None], None, None]:
    """Yield a function that shows what is being done; always silent unless standard error is a terminal."""
    with nullcontext() if silent else live(keep=False) as show:
        yield (lambda text: None) if show is None else show


def library(benchmarks: Iterable[Benchmark]) -> Table:
    """Return the table of all problems."""
    sheet = Sheet.of(
        benchmarks,
        ("problem", lambda b: b.name),
        (">states", lambda b: f"{len(b.problem.model.states) + len(b.problem.model.algebraic_states)}"),
        (">estimated", lambda b: f"{len(b.problem.names)}"),
        (">data", lambda b: f"{b.problem.n_data}"),
        (">chi2", lambda b: f"{b.reference.objective:.5g}"),
        ("description", lambda b: re.split(r"[:.] (?=[^(])", b.description)[0]),
    )
    table = _shown(sheet)
    table.expand = table.columns[-1].no_wrap = True  # the last column takes the width that is left
    table.columns[-1].ratio = 1
    return table


def against_reference(result: Result, reference: Reference) -> tuple[str, Table]:
    """Return a sentence on whether a fit reached the reference optimum, and the table that shows it."""
    table = _table("", ">this fit", ">reference", ">difference", ">tolerance", "")

    def row(name: str, value: float, expected: float, tolerance: float, ok: bool) -> None:
        difference = (value - expected) / (abs(expected) or 1.0)
        shown = (f"{value:.7g}", f"{expected:.7g}", f"{difference:+.1e}", f"{tolerance:.1e}")
        table.add_row(escape(name), *shown, "" if ok else "differs")

    for name, expected in reference.parameters.items():
        value, tolerance = result.values[name], reference.parameter_tolerance
        row(name, value, expected, tolerance, abs(value - expected) <= tolerance * (abs(expected) or 1.0))
    reached = reference.is_reached(result.chi2)
    row("chi2", result.chi2, reference.objective, reference.objective_tolerance, reached)
    matched = reference.is_matched(result.values)
    if reached and matched:
        sentence = "The reference optimum is reached."
    elif reached:
        sentence = "The objective of the reference is reached, with other values."
    else:
        sentence = "The reference optimum is not reached."
    return sentence, table


def demonstration(results: Mapping[str, Mapping[str, Result]]) -> Table:
    """Return the table of the demonstration: problem -> transcription -> result."""
    table = _table("problem", "transcription", "ok", ">chi2", "estimates (standard error)", ">iter.", ">time")
    # Narrow terminals break between estimates, never inside one or a name.
    table.columns[1].min_width = max(len(transcription) for group in results.values() for transcription in group)
    for problem, group in results.items():
        for i, (transcription, result) in enumerate(group.items()):
            estimates = [
                f"{escape(name)}={concise(value, result.standard_errors[name])}"
                for name, value in result.values.items()
            ]
            table.columns[4].min_width = max(table.columns[4].min_width or 0, *(len(e) for e in estimates))
            table.add_row(
                problem if i == 0 else "",
                transcription,
                "yes" if result.success else f"no: {result.status.value}",
                f"{result.chi2:.5g}",
                " ".join(estimates),
                str(result.iterations),
                f"{result.time:.2f} s",
                end_section=i == len(group) - 1,
            )
    return table


def shown(*parts: Sheet | str) -> Group:
    """Return sheets and lines one below the other."""
    return Group(*(escape(part) if isinstance(part, str) else _shown(part) for part in parts))


def _shown(sheet: Sheet) -> Table:
    table = _table(*sheet.heads)
    table.show_header = any(sheet.heads)
    table.title = escape(sheet.title) or None
    for row in sheet.rows:
        table.add_row(*map(escape, row))
    for column, cells in zip(table.columns[:2], zip(*sheet.rows, strict=True), strict=False):
        column.min_width = min(_NAME, max(map(len, cells)))  # names are not broken
    return table


def concise(value: float, error: float) -> str:
    """Write a value with the standard error of its last two digits in brackets, as in 2.079(160)."""
    if not np.isfinite(error) or error <= 0 or not np.isfinite(value):
        return f"{value:.4g}"
    if error > abs(value):
        return f"{value:.2g}({error:.1g})"
    last = int(np.floor(np.log10(error))) - 1  # power of ten of the error's second digit
    if error / 10.0**last >= 99.5:
        last += 1
    largest = int(np.floor(np.log10(abs(value))))
    exponent = 0 if -3 <= largest < 6 and last <= 0 else largest
    shown, digits = value / 10.0**exponent, max(exponent - last, 0)
    bracket = round(error / 10.0**last)
    return f"{shown:.{digits}f}({bracket})" + (f"e{exponent:+d}" if exponent else "")


def _table(*columns: str) -> Table:
    """Make an empty table; a column whose name begins with > is aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if column != name else "left")
    return table
