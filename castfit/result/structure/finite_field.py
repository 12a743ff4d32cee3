"""Linear algebra over the field of integers modulo a prime p, on arrays of 64-bit integers.

The primes are just below 2^27, so that a sum of 512 products of two residues fits into 63 bits.  They are 3 modulo 4,
so that a square root is a power.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Residues = NDArray[np.int64]

PRIMES = (134217487, 134217467, 134217439, 134217403)
MAX_TERMS = 512  # number of products of residues whose sum fits into a 64-bit integer
_HALF_BITS = 14  # bits of the lower half of a residue
_MAX_RATIO_TERM = 1000  # largest numerator or denominator of a residue that is read as a ratio


class RedrawError(ArithmeticError):
    """A draw of residues at which a denominator is zero, or a number has no square root."""


@lru_cache(maxsize=65536)
def to_residue(number: float, p: int) -> int:
    """Return the fraction that the shortest decimal form of a number means, modulo p."""
    fraction = Fraction(repr(float(number))) if math.isfinite(number) else Fraction(0)
    return fraction.numerator % p * pow(fraction.denominator, -1, p) % p


def to_residues(numbers: NDArray[np.float64], p: int) -> Residues:
    """Convert an array of numbers; those that are not finite become 0."""
    return np.array([to_residue(v, p) for v in numbers.ravel().tolist()], dtype=np.int64).reshape(numbers.shape)


def power(base: Residues, exponent: int, p: int) -> Residues:
    """Return base**exponent for each residue."""
    result = np.ones_like(base)
    while exponent:
        result = result * base % p if exponent & 1 else result
        base, exponent = base * base % p, exponent >> 1
    return result


def inverse(values: Residues, p: int) -> Residues:
    """Return 1 / values. Zero is a RedrawError."""
    if not values.all():
        raise RedrawError
    return power(values, p - 2, p)


def square_root(values: Residues, p: int) -> Residues:
    """Return square roots. A residue without one is a RedrawError."""
    roots = power(values, (p + 1) // 4, p)
    if (roots * roots % p != values).any():
        raise RedrawError
    return roots


def multiply(a: Residues, b: Residues, p: int) -> Residues:
    """Return the matrix product a b modulo p; it is computed by two exact products of floating-point numbers."""
    right = b.astype(np.float64)
    high, low = ((part.astype(np.float64) @ right) for part in (a >> _HALF_BITS, a & ((1 << _HALF_BITS) - 1)))
    return ((high.astype(np.int64) % p << _HALF_BITS) + low.astype(np.int64)) % p


def reduce_rows(matrix: Residues, p: int) -> tuple[Residues, list[int]]:
    """Return the nonzero rows of the reduced echelon form of a matrix (m, n), and their pivot columns."""
    rows, pivots = matrix.copy() % p, list[int]()
    for column in range(rows.shape[1]):
        candidates = np.flatnonzero(rows[len(pivots) :, column])
        if not candidates.size:
            continue
        r = len(pivots)
        rows[[r, r + candidates[0]]] = rows[[r + candidates[0], r]]
        rows[r] = rows[r] * pow(int(rows[r, column]), -1, p) % p
        targets = np.flatnonzero(rows[:, column])
        targets = targets[targets != r]
        rows[targets] = (rows[targets] - rows[targets, column, None] * rows[r]) % p
        pivots.append(column)
        if len(pivots) == rows.shape[0]:
            break
    return rows[: len(pivots)], pivots


def null_space(matrix: Residues, p: int) -> Residues:
    """Return a basis of the vectors v with matrix v = 0, as the columns of a matrix (n, n - rank)."""
    rows, pivots = reduce_rows(matrix, p)
    free = np.array([j for j in range(matrix.shape[1]) if j not in pivots], dtype=np.intp)
    basis = np.zeros((matrix.shape[1], free.size), dtype=np.int64)
    basis[free, np.arange(free.size)] = 1
    basis[pivots] = -rows[:, free] % p
    return basis


def to_ratio(residue: int, p: int) -> Fraction | None:
    """Return the ratio of small integers that a residue is, by the Euclidean algorithm; None if there is none."""
    (a, s), (b, t) = (p, 0), (residue % p, 1)
    while b > _MAX_RATIO_TERM:
        (a, s), (b, t) = (b, t), (a % b, s - a // b * t)
    return Fraction(b, t) if 0 < abs(t) <= _MAX_RATIO_TERM else None
