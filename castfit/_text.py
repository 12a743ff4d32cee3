"""Numbers and tables in plain text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rounded(value: float, error: float) -> str:
    """Write a value to the third digit of its error."""
    if not (np.isfinite(value) and np.isfinite(error) and error > 0):
        return f"{value:.6g}"
    decimals = 2 - int(np.floor(np.log10(error)))
    if decimals >= 0 and 1e-3 <= max(abs(value), error) < 1e7:
        return f"{value:.{decimals}f}"
    digits = int(np.clip(decimals + np.floor(np.log10(abs(value) or 1.0)) + 1, 4, 12))
    return f"{value:.{digits}g}"


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Align columns to the left (<) or right (>), with a rule below the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
