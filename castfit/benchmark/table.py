"""What tables of the benchmarks have in common: numbers asked for, starts, progress, Ctrl-C, and what JSON gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from castfit._reading import option_mistakes
from castfit.drive.compare.result import MethodTrial, finite
from castfit.problems import Benchmark
from castfit.status import Status

Row = TypeVar("Row")
Progress = Callable[[str], object]  # told what is being done


def number_mistakes(*, seed: int | None = None, max_time: float = 1.0, **counts: int) -> list[str]:
    """Find counts below 1, a negative seed, and a time limit that is none."""
    return option_mistakes(
        *((name, count, count >= 1, "give at least 1") for name, count in counts.items()),
        ("seed", seed, seed is None or seed >= 0, "give a number that is not negative"),
        ("max_time", max_time, max_time > 0, "give a positive number of seconds"),
    )


def drawn_starts(benchmark: Benchmark, count: int, seed: int) -> list[dict[str, float]]:
    """Draw starts, each from a random stream of its own."""
    return [benchmark.draw_start(np.random.default_rng(s)) for s in np.random.SeedSequence(seed).spawn(count)]


def teller(what: str, total: int, progress: Progress) -> Callable[[MethodTrial], None]:
    """Return a callback of `castfit.compare` that tells how far it is."""
    done = iter(range(1, total + 1))
    progress(what)

    def tell(trial: MethodTrial) -> None:
        progress(f"{what}: {next(done)} of {total} fits, the last by {trial.method}")

    return tell


def collected(rows: Iterable[Row]) -> tuple[list[Row], dict[str, str]]:
    """Return the rows of a table until Ctrl-C, and what JSON says of that."""
    found: list[Row] = []
    try:
        for row in rows:
            found.append(row)
    except KeyboardInterrupt:
        return found, {"stopped": Status.INTERRUPTED.value}
    return found, {}


def record(table: str, rows: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return what JSON gets of a table: its name, how it was made, and the rows; None for what is not finite."""
    return {"table": table, **more, "rows": [{key: finite(value) for key, value in row.items()} for row in rows]}
