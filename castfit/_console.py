"""What the command line shows: tables on standard output, progress on standard error."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from castfit.drive.run.reporting import live

if TYPE_CHECKING:
    from castfit.benchmark import Scaling, TableResult
    from castfit.benchmark.searches import SearchRow, SearchTable
    from castfit.drive.compare.result import ComparisonResult, Row
    from castfit.drive.incremental.result import Horizon
    from castfit.problems import Benchmark, PublishedTable, Reference
    from castfit.result import Result

Item = TypeVar("Item")
Column = tuple[str, Callable[[Item], str]]
_WIDTH_IN_FILES = 120


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
    table = _filled(
        benchmarks,
        ("problem", lambda b: b.name),
        (">states", lambda b: f"{len(b.problem.model.states) + len(b.problem.model.algebraic_states)}"),
        (">estimated", lambda b: f"{len(b.problem.names)}"),
        (">data", lambda b: f"{b.problem.n_data}"),
        (">chi2", lambda b: f"{b.reference.objective:.5g}"),
        ("description", lambda b: re.split(r"[:.] (?=[^(])", b.description)[0]),
    )
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


def repeated(found: TableResult) -> Group:
    """Return a published table: the paper's rows, then ours; of a table with one start also the courses of the fits."""
    incremental = any(np.isfinite(row.equivalent_iterations) for row in found.rows)
    equivalent: Column[Row] = (">I_equiv", lambda row: _or_never(row.equivalent_iterations, ".1f", ""))
    ours = _filled(
        found.rows,
        ("ours", lambda row: row.method),
        *map(_case, found.table.cases[0]),
        *_COUNTS,
        *([equivalent] if incremental else []),
    )
    legend = _legend(found.cases[0].descriptions) if found.cases else ""
    optima = ", ".join(f"{chi2:.6g}" for chi2 in found.best)
    stopped = "" if found.stopped is None else found.stopped.sentence
    courses = (_course(method, course) for method, course in found.courses.items())
    return Group(_paper(found.table), "", ours, "", legend, _CORRECT.format(optima), stopped, *courses)


def _case(parameter: str) -> Column[Row]:
    return f">{parameter}", lambda row: f"{row.case[parameter]}"


def compared(found: ComparisonResult, title: str) -> Group:
    """Return what methods found from the same starts."""
    table = _filled(
        found.rows,
        ("method", lambda row: row.method),
        *_COUNTS,
        (">iterations", lambda row: f"{row.iterations:g}"),
        (">evaluations", lambda row: f"{row.evaluations:g}"),
    )
    table.title = title
    optimum = _CORRECT.format(f"{found.best_chi2:.6g}")
    return Group(table, "", _legend(found.descriptions), optimum, escape(found.message))


_COUNTS: tuple[Column[Row], ...] = (
    (">starts", lambda row: f"{row.starts}"),
    (">correct", lambda row: f"{row.correct}" + (f" ({100 * row.success_rate:.0f} %)" if row.starts else "")),
    (">wrong", lambda row: f"{row.wrong}"),
    (">integration", lambda row: f"{row.integration_error}"),
    (">other", lambda row: f"{row.optimization_error}"),
    (">median", lambda row: f"{row.median_time:.2f} s"),
    (">expected", lambda row: _or_never(row.expected_time, ".2f") + (" s" if np.isfinite(row.expected_time) else "")),
)
_CORRECT = "correct: chi2 = {} within 0.1 %; expected: mean time per start / success rate"


def _legend(descriptions: Mapping[str, str]) -> Table:
    table = _filled(descriptions.items(), ("", lambda entry: entry[0]), ("", lambda entry: entry[1]))
    table.show_header = False
    return table


def _course(method: str, horizons: Sequence[Horizon]) -> Table:
    """Return the estimates of an incremental fit, horizon by horizon."""
    table = _filled(
        horizons,
        (">horizon", lambda h: f"{h.horizon:g}"),
        (">iterations", lambda h: f"{h.iterations}"),
        *map(_estimate, horizons[0].estimates),
        (">chi2", lambda h: f"{h.chi2:.4g}"),
        ("", lambda h: h.fallback),
    )
    table.title = f"{method}: estimates per horizon"
    return table


def _estimate(name: str) -> Column[Horizon]:
    return f">{name}", lambda h: f"{h.estimates[name]:.4f}"


def searched(table: SearchTable, rows: Sequence[SearchRow], files: Iterable[str]) -> Group:
    """Return what a paper reports of global searches, and our rows."""

    def named(row: SearchRow) -> str:
        options = ", ".join(f"{k} = {v}" for k, v in row.options.items() if k != "data")
        return f"{row.problem}{f' ({options})' if options else ''}"

    ours = _filled(
        rows,
        ("problem", named),
        ("method", lambda row: row.method),
        (">reached", lambda row: f"{row.reached} of {len(row.runs)}"),
        (">best", lambda row: f"{min(run.chi2 for run in row.runs):.7g}"),
        (">worst", lambda row: f"{max(run.chi2 for run in row.runs):.5g}"),
        (">simulations", lambda row: _or_never(float(np.median([r.simulations_to_target for r in row.runs])), ".0f")),
        (">expected", lambda row: _or_never(row.expected_simulations, ".0f")),
        (">seconds", lambda row: _or_never(float(np.median([r.seconds_to_target for r in row.runs])), ".2f")),
        (">expected", lambda row: _or_never(row.expected_cpu, ".2f")),
        ("", lambda row: row.words),
    )
    ours.columns[0].min_width, ours.columns[1].min_width = 12, 10
    targets = ", ".join(dict.fromkeys(f"{row.problem} {row.target:.7g}" for row in rows))
    legend = (
        f"targets: {targets}; simulations and seconds: median to the target; expected: all simulations, and all CPU "
        "seconds, over the number of runs that reached it"
    )
    drawn = [f"The curves are in {file}." for file in files]
    return Group(*([_paper(table), ""] if table.paper else []), ours, "", escape(legend), *map(escape, drawn))


def _or_never(value: float, form: str, never: str = "never") -> str:
    return format(value, form) if np.isfinite(value) else never


def _paper(table: PublishedTable | SearchTable) -> Table:
    """Return what a paper reports."""
    shown = _filled(table.paper, ("paper", lambda row: row.method), ("", lambda row: row.figures))
    shown.title = escape(f"{table.name}: {table.source}")
    return shown


def scaling(found: Scaling) -> Table:
    """Return the times of a condensed step against the number of stages."""
    table = _filled(
        zip(found.stages, found.condensing, found.elimination, strict=True),
        (">stages", lambda times: f"{times[0]}"),
        (">condensing", lambda times: f"{1e3 * times[1]:.2f} ms"),
        (">orthogonal elimination", lambda times: f"{1e3 * times[2]:.2f} ms"),
    )
    table.add_section()
    table.add_row("slope", *(f"{slope:.2f}" for slope in found.slopes))
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


def _filled(rows: Iterable[Item], *columns: Column[Item]) -> Table:
    """Make a table of one line per row, from columns that are pairs of a head and a function from a row to its cell."""
    table = _table(*(head for head, _ in columns))
    for row in rows:
        table.add_row(*(escape(cell(row)) for _, cell in columns))
    return table


def _table(*columns: str) -> Table:
    """Make an empty table; a column whose name begins with > is aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if column != name else "left")
    return table
