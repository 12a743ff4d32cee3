"""Largest, smallest and sorted values whose order does not depend on rounding.

Values that are equal in exact arithmetic differ in their last digits, and the sign of the difference depends on the
processor: argmax of numpy returns any of them.  The functions of this module treat two values as equal if

    |a - b| <= TIE_RTOL * max(|a|, |b|, scale)

where `scale` is the magnitude of the terms that a and b were computed from.  It matters for values near zero: the
difference of two numbers of magnitude 1 has an error of 1e-16, however small it is.  The first of equal values wins.
NaN counts as worse than every number, and an infinity is equal only to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

import numpy as np

from castfit._support.arrays import Array, Index

# Relative difference up to which two values count as equal: far above rounding (1e-16 times a condition number), below
# the relative accuracy of an integration (1e-8 to 1e-6).
TIE_RTOL = 1e-9


def first_argmax(values: Array | Sequence[float], scale: float = 0.0) -> int:
    """Return the first index whose value equals the maximum up to rounding; 0 if every value is NaN."""
    return first_argmin(-np.asarray(values, dtype=float), scale)


def first_argmin(values: Array | Sequence[float], scale: float = 0.0) -> int:
    """Return the first index whose value equals the minimum up to rounding; 0 if every value is NaN."""
    minimum = float(np.fmin.reduce(np.asarray(values, dtype=float)))
    return next((i for i, value in enumerate(values) if _are_equal(value, minimum, scale)), 0)


def stable_order(values: Array | Sequence[float], *, descending: bool = False, scale: float = 0.0) -> Index:
    """Return the indices (n,) that sort the values; values that are equal up to rounding keep their order.

    The first index is the one of `first_argmin`, or of `first_argmax` if descending.
    """
    keys: list[float] = (np.asarray(values, dtype=float) * (-1.0 if descending else 1.0)).tolist()
    order: list[int] = np.argsort(keys, kind="stable").tolist()
    ranks = np.zeros(len(keys), dtype=np.intp)
    rank = 0  # position in the sorted sequence of the first value that equals the current one
    for position, index in enumerate(order):
        rank = rank if _are_equal(keys[index], keys[order[rank]], scale) else position
        ranks[index] = rank
    return np.argsort(ranks, kind="stable")


def _are_equal(a: float, b: float, scale: float) -> bool:
    return isclose(a, b, rel_tol=TIE_RTOL, abs_tol=TIE_RTOL * scale)
