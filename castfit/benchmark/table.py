"""What all tables of the benchmarks have in common: the numbers that they are asked for, and what JSON gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from castfit._reading import option_mistakes
from castfit.drive.compare.result import finite

Progress = Callable[[str], object]  # told what is being done


def number_mistakes(*, seed: int | None = None, max_time: float = 1.0, **counts: int) -> list[str]:
    """Find counts below 1, a negative seed, and a time limit that is none."""
    return option_mistakes(
        *((name, count, count >= 1, "give at least 1") for name, count in counts.items()),
        ("seed", seed, seed is None or seed >= 0, "give a number that is not negative"),
        ("max_time", max_time, max_time > 0, "give a positive number of seconds"),
    )


def record(table: str, rows: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return what JSON gets of a table: its name, how it was made, and the rows; None for what is not finite."""
    return {"table": table, **more, "rows": [{key: finite(value) for key, value in row.items()} for row in rows]}
