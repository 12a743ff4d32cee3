"""Diversification with a frequency memory: new points lie where few points have been.

The range of every unknown is divided into p subranges; f[i, j] counts how often unknown i lay in subrange j.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array

Counts = NDArray[np.intp]


def compute_subranges(p: int) -> tuple[Array, Array]:
    """Return the lower and upper ends of p equal subranges of [0, 1], each (p,) (Eqs. 18 and 19)."""
    return np.arange(p) / p, np.arange(1, p + 1) / p


def draw_first_points(n: int, p: int, rng: np.random.Generator) -> Array:
    """Draw p points, the j-th with all its components in subrange j, so that all counts are one (Eq. 20), (p, n)."""
    lower, upper = compute_subranges(p)
    return lower[:, None] + (upper - lower)[:, None] * rng.random((p, n))


def compute_probabilities(frequency: Counts) -> Array:
    """Return the probability of each subrange, inverse to how often it was visited (Eq. 21), (n, p)."""
    inverse = 1.0 / frequency
    return inverse / inverse.sum(axis=1, keepdims=True)


def choose_subranges(probability: Array, rnd: Array) -> Counts:
    """Return the first subrange a with  rnd <= sum over j <= a of its probability (n, p)  (Eq. 22), (n,) from 0."""
    is_reached = rnd[:, None] <= np.cumsum(probability, axis=1)
    is_reached[:, -1] = True  # whatever rounding leaves of the sum
    return np.argmax(is_reached, axis=1)


def draw_diverse(count: int, frequency: Counts, rng: np.random.Generator) -> tuple[Array, Counts]:
    """Draw points (count, n) by the frequency memory (n, p), and return the memory that has seen them.

    An empty memory, all zeros, begins with `draw_first_points`.
    """
    n, p = int(frequency.shape[0]), int(frequency.shape[1])
    lower, upper = compute_subranges(p)
    initial_points = draw_first_points(n, p, rng)[:count] if not frequency.any() else np.empty((0, n))
    frequency = frequency + (1 if initial_points.size else 0)
    draws = [*initial_points]
    for _ in range(count - len(initial_points)):
        a = choose_subranges(compute_probabilities(frequency), rng.random(n))
        draws.append(lower[a] + (upper[a] - lower[a]) * rng.random(n))
        frequency = frequency.copy()
        frequency[np.arange(n), a] += 1
    return np.array(draws).reshape(count, n), frequency
