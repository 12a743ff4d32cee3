"""LAPACK for matrices of a few rows, without what NumPy and SciPy do around it.

A working set changes a dozen times in every step, and a factorization of 12 rows and 5 columns takes 3 microseconds;
numpy.linalg.qr and numpy.linalg.solve need thirty to look at their arguments.
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import lapack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_LAPACK: Any = lapack
_GEQRF, _ORGQR, _TRTRS = _LAPACK.dgeqrf, _LAPACK.dorgqr, _LAPACK.dtrtrs


def orthogonal(N: Array) -> tuple[Array, Array]:
    """Return Q (f, f) and R (q, q) of  N = Q [R; 0]  for N (f, q) of at least as many rows as columns, q > 0.

    Below its diagonal R holds what LAPACK leaves there.
    """
    f, q = N.shape
    Q = np.zeros((f, f), order="F")
    reflectors, tau, _, _ = _GEQRF(N)
    Q[:, :q] = reflectors
    return _ORGQR(Q, tau, overwrite_a=1)[0], reflectors[:q]


def thin(E: Array) -> tuple[Array, Array]:
    """Return Q (m, k) and R (k, n) of  E = Q R  for E (m, n), k the lesser of m and n."""
    m, n = E.shape
    if min(m, n) == 0:
        return np.zeros((m, 0)), np.zeros((0, n))
    reflectors, tau, _, _ = _GEQRF(E)
    R = reflectors[:n] * _upper(min(m, n), n)
    return _ORGQR(reflectors[:, :m], tau)[0], R


def upper_factor(E: Array) -> Array:
    """Return R (k, n) of the same, where Q is not wanted."""
    m, n = E.shape
    return _GEQRF(E)[0][:n] * _upper(min(m, n), n) if min(m, n) else np.zeros((0, n))


@cache
def _upper(k: int, n: int) -> Array:
    """Return a mask (k, n) of the upper triangle."""
    return np.triu(np.ones((k, n)))


def triangular_solution(R: Array, b: Array, *, transposed: bool = False) -> Array:
    """Return x of  R x = b  or  R^T x = b,  of which R (q, q) only the upper triangle is read.

    Raises
    ------
    numpy.linalg.LinAlgError
        If an entry on the diagonal is zero.
    """
    x, info = _TRTRS(R, b, trans=int(transposed))
    if info != 0:
        raise np.linalg.LinAlgError("Singular matrix")
    return x


def length(x: Array) -> float:
    """Return the Euclidean norm of a vector (n,) of moderate numbers."""
    return sqrt(float(x @ x))
