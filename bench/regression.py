"""The table of the library, and its ratios to an earlier one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.status import InputError
from castfit._support.text_tables import Column, TextTable
from castfit.drive.search.compare.benchmarks import Progress

from .library import MAX_TIME, NAME, LibraryEntry, record, run_library
from .table import Kind, Report, collect_rows


def earlier(path: str) -> dict[tuple[str, str], LibraryEntry]:
    """Read the entries of a table that was written before.

    Raises
    ------
    InputError
        If the file is no such table.
    """
    try:
        content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        rows: list[dict[str, Any]] = [{**row, "ends": tuple(row["ends"])} for row in content["rows"]]
        entries = [LibraryEntry(**row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = f"'{path}' holds no such table ({type(error).__name__}: {error})"
        raise InputError("--against", [f"{message}; give a file that castfit bench {NAME} --json wrote"]) from error
    return {(entry.problem, entry.method): entry for entry in entries}


def build_tables(
    entries: Sequence[LibraryEntry], before: Mapping[tuple[str, str], LibraryEntry] | None = None
) -> tuple[TextTable | str, ...]:
    """Return one row per problem and method, with an earlier table the ratios to it, and sums."""
    earlier_entries = before or {}

    def old(entry: LibraryEntry) -> LibraryEntry | None:
        return earlier_entries.get((entry.problem, entry.method))

    since: tuple[Column[LibraryEntry], ...] = (
        (">before", lambda e: f"{o.success}, {o.correct}" if (o := old(e)) else ""),
        (">iterations", lambda e: _ratio(e.iterations, o.iterations) if (o := old(e)) else ""),
        (">CPU", lambda e: _ratio(e.cpu, o.cpu) if (o := old(e)) else ""),
    )
    sheet = TextTable.from_items(
        entries,
        ("problem", lambda e: e.problem),
        ("method", lambda e: e.method),
        (">success", lambda e: f"{e.success} of {e.starts}"),
        (">correct", lambda e: f"{e.correct}"),
        (">iterations", lambda e: f"{e.iterations:g}"),
        (">evaluations", lambda e: f"{e.evaluations:g}"),
        (">building", lambda e: f"{e.building:.2f} s"),
        (">CPU", lambda e: f"{e.cpu:.3f} s"),
        *(since if before is not None else ()),
        ("ends", lambda e: ", ".join(dict.fromkeys(end for end in e.ends if end != "converged"))[:60]),
    )
    return sheet, "", *_sums(entries, earlier_entries)


def _sums(entries: Sequence[LibraryEntry], before: Mapping[tuple[str, str], LibraryEntry]) -> list[str]:
    """Say what stands below the table: sums, and what changed since an earlier one."""
    fits = sum(entry.starts for entry in entries)
    n_successes, correct = sum(entry.success for entry in entries), sum(entry.correct for entry in entries)
    out = [
        f"{fits} fits: {n_successes} succeed, {correct} in the reference optimum; {_seconds(entries):.1f} s of CPU time"
    ]
    pairs = [(entry, before[key]) for entry in entries if (key := (entry.problem, entry.method)) in before]
    if not pairs:
        return out
    comparable_pairs = [(new, old) for new, old in pairs if new.correct == old.correct > 0]
    out.append(
        f"before: {sum(old.success for _, old in pairs)} succeed, {sum(old.correct for _, old in pairs)} in the "
        f"reference optimum; {_seconds(old for _, old in pairs):.1f} s"
    )
    if comparable_pairs:
        out.append(
            f"where both find the optimum ({len(comparable_pairs)} rows), geometric mean of new / old: "
            "iterations "
            f"{_mean(new.iterations / old.iterations for new, old in comparable_pairs if old.iterations):.3f}, "
            f"CPU {_mean(new.cpu / old.cpu for new, old in comparable_pairs):.3f}"
        )
    changed = [(new, old) for new, old in pairs if new.correct != old.correct]
    return out + [
        f"{new.problem}, {new.method}: {old.correct} correct before, {new.correct} now" for new, old in changed
    ]


def _seconds(entries: Iterable[LibraryEntry]) -> float:
    return sum(entry.cpu for entry in entries)


def _ratio(new: float, old: float) -> str:
    return f"{new / old:.2f}" if old else ""


def _mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log([max(ratio, 1e-9) for ratio in ratios]))))


def _report(
    name: str,
    progress: Progress,
    against: str | None = None,
    problems: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    **options: Any,
) -> Report:
    earlier_entries = None if against is None else earlier(against)
    entries, status = collect_rows(run_library(names=problems, methods=methods, progress=progress, **options))
    options_record = {"starts": 1, "seed": 0, "max_time": MAX_TIME, **options, **status}
    return Report(build_tables(entries, earlier_entries), record(entries, **options_record))


KIND = Kind(
    lambda: (NAME,),
    ("starts", "seed", "methods", "max_time", "problems", "against"),
    _report,
    lambda name: "every problem by every method",
)
