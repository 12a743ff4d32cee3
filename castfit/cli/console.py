"""Output of the command line: tables on standard output, progress on standard error."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from castfit._support.progress_line import open_progress_line
from castfit._support.text_tables import Column, TextTable
from castfit.problem.compiled_problem import CHI2
from castfit.problems import Benchmark, ControlBenchmark, Reference
from castfit.result.result import Result

_FILE_WIDTH = 120  # width of the output in characters if it is not a terminal
_MAX_UNBROKEN_WIDTH = 20  # width in characters of a cell whose words are not broken


def make_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or wide enough for our tables in a file."""
    rich_console = Console(stderr=stderr, highlight=False)
    if not rich_console.is_terminal and "COLUMNS" not in os.environ:
        rich_console.width = _FILE_WIDTH
    return rich_console


def print_report(console: Console, text: str) -> None:
    """Print sentences and tables as they are."""
    console.print(text, markup=False, soft_wrap=True)


@contextmanager
def show_progress(*, silent: bool = False) -> Generator[Callable[[str], None], None, None]:
    """Yield a function that displays progress messages. It is silent unless standard error is a terminal."""
    with nullcontext() if silent else open_progress_line(keep=False) as show:
        yield (lambda text: None) if show is None else show


def build_library_table(benchmarks: Iterable[Benchmark]) -> Table:
    """Return the table of all problems."""
    return _build_problem_table(
        benchmarks,
        ("problem", lambda b: b.name),
        (">states", lambda b: f"{len(b.problem.model.states) + len(b.problem.model.algebraic_states)}"),
        (">estimated", lambda b: f"{len(b.problem.names)}"),
        (">data", lambda b: f"{b.problem.n_data}"),
        (">chi2", lambda b: f"{b.reference.objective:.5g}"),
    )


def build_control_table(benchmarks: Iterable[ControlBenchmark]) -> Table:
    """Return the table of all problems of optimal control."""
    return _build_problem_table(
        benchmarks,
        ("problem of control", lambda b: b.name),
        (">states", lambda b: f"{len(b.model.states)}"),
        (">inputs", lambda b: f"{len(b.model.inputs)}"),
        (">objective", lambda b: f"{b.objective:.7g}"),
    )


def _build_problem_table(benchmarks: Iterable[Any], *columns: Column[Any]) -> Table:
    """Return a table of problems that ends with their descriptions."""
    descriptions: Column[Any] = ("description", lambda b: re.split(r"[:.] (?=[^(])", b.description)[0])
    table = _build_table(TextTable.from_items(benchmarks, *columns, descriptions))
    table.expand = table.columns[-1].no_wrap = True  # the last column takes the width that is left
    table.columns[-1].ratio, table.columns[-1].min_width = 1, None
    return table


def compare_with_reference(result: Result, reference: Reference) -> tuple[str, TextTable]:
    """Return a sentence on whether a fit reached the reference optimum, and the table that shows it."""

    def row(name: str, value: float, expected: float, tolerance: float, ok: bool) -> tuple[str, ...]:
        difference = (value - expected) / (abs(expected) or 1.0)
        numbers = (f"{value:.7g}", f"{expected:.7g}", f"{difference:+.1e}", f"{tolerance:.1e}")
        return name, *numbers, "" if ok else "differs"

    rows: list[tuple[str, ...]] = []
    for name, expected in reference.parameters.items():
        value, tolerance = result.values[name], reference.parameter_tolerance
        rows.append(row(name, value, expected, tolerance, abs(value - expected) <= tolerance * (abs(expected) or 1.0)))
    is_reached = reference.is_reached(result.chi2)
    rows.append(row(*_compute_compared_objectives(result, reference), is_reached))
    sheet = TextTable(("", ">this fit", ">reference", ">difference", ">tolerance", ""), tuple(rows))
    if is_reached and reference.is_matched(result.values):
        return "The reference optimum is reached.", sheet
    if is_reached:
        return "The objective equals the reference, but the estimates differ.", sheet
    return "The reference optimum is not reached.", sheet


def _compute_compared_objectives(result: Result, reference: Reference) -> tuple[str, float, float, float]:
    """Return the label of the measure, its value in the fit and in the reference, and the relative tolerance.

    Of a sigma that is unknown the library knows sums of squares: n log of these is what -2 log L differs by.
    """
    expected, tolerance = reference.objective, reference.objective_tolerance
    if result.measure == CHI2:
        return CHI2, result.chi2, expected, tolerance
    if len(result.sigmas) > 1 or min(expected, result.chi2) <= 0.0:
        return "sum of squares", result.chi2, expected, tolerance
    expected_objective = result.neg2loglik + result.n_data * math.log(expected / result.chi2)
    return (
        result.measure,
        result.objective,
        expected_objective,
        result.n_data * math.log1p(tolerance) / abs(expected_objective),
    )


def build_demonstration_table(results: Mapping[str, Mapping[str, Result]]) -> TextTable:
    """Return the table of the demonstration: problem -> transcription -> result."""

    def estimates(result: Result) -> str:
        return " ".join(
            f"{name}={format_with_error(v, result.standard_errors[name])}" for name, v in result.values.items()
        )

    return TextTable.from_items(
        [(problem, *pair) for problem, group in results.items() for pair in group.items()],
        ("problem", lambda row: row[0]),
        ("transcription", lambda row: row[1]),
        ("ok", lambda row: "yes" if row[2].success else f"no: {row[2].status.value}"),
        (">objective", lambda row: f"{row[2].objective:.5g}"),
        ("estimates (standard error)", lambda row: estimates(row[2])),
        (">iter.", lambda row: f"{row[2].iterations}"),
        (">time", lambda row: f"{row[2].time:.2f} s"),
    )


def stack_tables(*parts: TextTable | str) -> Group:
    """Return sheets and lines one below the other."""
    return Group(*(escape(part) if isinstance(part, str) else _build_table(part) for part in parts))


def _build_table(sheet: TextTable) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.show_header, table.title = any(sheet.heads), escape(sheet.title) or None
    for j, head in enumerate(sheet.heads):
        min_width = max((len(row[j]) for row in sheet.rows), default=0)
        if min_width > _MAX_UNBROKEN_WIDTH:  # then no word is broken
            min_width = max(len(word) for row in sheet.rows for word in row[j].split())
        side = "right" if head.startswith(">") else "left"
        table.add_column(head.removeprefix(">"), justify=side, min_width=min_width)
    for row in sheet.rows:
        table.add_row(*map(escape, row))
    return table


def format_with_error(value: float, error: float) -> str:
    """Write a value with the standard error of its last two digits in brackets, as in 2.079(160)."""
    if not np.isfinite(error) or error <= 0 or not np.isfinite(value):
        return f"{value:.4g}"
    if error > abs(value):
        return f"{value:.2g}({error:.1g})"
    last_power = int(np.floor(np.log10(error))) - 1  # power of ten of the error's second digit
    if error / 10.0**last_power >= 99.5:
        last_power += 1
    leading_power = int(np.floor(np.log10(abs(value))))
    exponent = 0 if -3 <= leading_power < 6 and last_power <= 0 else leading_power
    mantissa, digits = value / 10.0**exponent, max(exponent - last_power, 0)
    error_digits = round(error / 10.0**last_power)
    return f"{mantissa:.{digits}f}({error_digits})" + (f"e{exponent:+d}" if exponent else "")
