"""Bounds as users give them."""

from __future__ import annotations

from typing import Any

import numpy as np

from castfit._support.arguments import is_one_of, read_real, read_sequence, shorten_repr
from castfit._support.status import raise_if_mistakes


def both_bounds(where: str, lower: Any, upper: Any, bounds: Any) -> tuple[Any, Any]:
    """Return the bounds, which may be given one by one or as a pair."""
    if bounds is None:
        return lower, upper
    pair = read_sequence(bounds)
    is_duplicate = not (is_one_of(lower, -np.inf) and is_one_of(upper, np.inf))
    mistakes = ["lower or upper cannot be combined with bounds; remove one of them"] if is_duplicate else []
    if pair is None or len(pair) != 2:
        mistakes.append(f"bounds is {shorten_repr(bounds)}; give (lower, upper), infinite for none")
    raise_if_mistakes(where, mistakes)
    assert pair is not None
    return pair[0], pair[1]


def bound_mistakes(label: str, guess: Any, lower: Any, upper: Any, scale: Any) -> list[str]:
    """Check a guess against its bounds and its scale."""
    mistakes: list[str] = []
    if not is_one_of(scale, "linear", "log"):
        mistakes.append(f"{label}: scale is {shorten_repr(scale)}; choose 'linear' or 'log'")
    value, low, high, is_log = read_real(guess), read_real(lower), read_real(upper), is_one_of(scale, "log")
    if value is None or not np.isfinite(value):
        mistakes.append(f"{label}: the guess is {shorten_repr(guess)}; expected a finite number")
    if low is None or high is None or np.isnan(low) or np.isnan(high):
        mistakes.append(
            f"{label}: the bounds are {shorten_repr(lower)} and {shorten_repr(upper)}; give numbers, infinite for none"
        )
    elif low > high:
        mistakes.append(f"{label}: the bounds [{low:g}, {high:g}] are empty; swap or widen them")
    elif is_log and -np.inf < low < 0:
        mistakes.append(f"{label}: scale='log' needs a non-negative lower bound, got {low:g}")
    if mistakes or value is None or low is None or high is None:
        return mistakes
    if not low <= value <= high:
        mistakes.append(f"{label}: the guess {value:g} is outside its bounds [{low:g}, {high:g}]; change one of them")
    elif is_log and value <= 0:
        mistakes.append(f"{label}: scale='log' needs a positive guess; it is {value:g}")
    return mistakes
