"""Regeneration: an exhausted reference set keeps its best members and gets others that open new directions."""

from __future__ import annotations

import numpy as np

from castfit._support.arrays import Array


def kept(b: int, *, aggressive: bool) -> int:
    """Return how many of b members stay: all but g = b/2, or but g = b - 1."""
    return 1 if aggressive else b - b // 2


def segments(R: Array) -> Array:
    """Return the segments from every other member to the best one, x_1 - x_k (Eq. 31), (h - 1, n)."""
    return R[0] - R[1:]


def largest_products(X: Array, R: Array) -> Array:
    """Return for each candidate x_v the largest scalar product of x_1 - x_v with a segment, msp (Eq. 32), (k,).

    Without any segment all directions are new, and the products are zero.
    """
    M = segments(R)
    return ((R[0] - X) @ M.T).max(axis=1) if len(M) else np.zeros(len(X))


def new_directions(X: Array, R: Array, count: int) -> list[int]:
    """Return which candidates X (k, n), one after the other, point away most from all segments of R (Eq. 33)."""
    chosen: list[int] = []
    for _ in range(min(count, len(X))):
        products = largest_products(X, np.vstack([R, X[chosen]]))
        products[chosen] = np.inf
        chosen.append(int(np.argmin(products)))
    return chosen
