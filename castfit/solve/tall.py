"""A tall matrix factored once, for many vectors of residuals.

    E = Q R,        1/2 |u + E x|^2 = 1/2 |Q^T u + R x|^2 + constant

A step, its correction from every trial point and the singular directions all ask for R; only Q^T u is new.  Slices of
rows that fit the cache are factored first, then what is left of them, and so on.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.lapack import thin

if TYPE_CHECKING:
    from castfit.solve.staged import Array


class Tall:
    """The factors of E (m, n).

    Attributes
    ----------
    m : int
    R : (k, n) array
        Upper triangle, k the lesser of m and n.
    """

    def __init__(self, E: Array) -> None:
        self.m, n = E.shape
        rows = max(256, 4 * n)
        self._slices: list[Array] = []
        left = E
        while (slices := left.shape[0] // rows) > 1:
            Q, tops = np.linalg.qr(left[: slices * rows].reshape(slices, rows, n))
            self._slices.append(Q)
            left = np.concatenate([tops.reshape(slices * n, n), left[slices * rows :]])
        self._Q, self.R = thin(left)
        self._svd: tuple[bytes, tuple[Array, Array, Array]] | None = None

    @cached_property
    def alone(self) -> Tall:
        """The triangle itself, as the tall matrix that it is."""
        return Tall(self.R)

    def svd(self, scale: Array) -> tuple[Array, Array, Array]:
        """Return U, S and V^T of R D with column scaling D (n,), computed once for one scaling after the other."""
        key = scale.tobytes()
        if self._svd is None or self._svd[0] != key:
            U, S, Vt = np.linalg.svd(self.R * scale)
            self._svd = key, (U, S, Vt)
        return self._svd[1]

    def seen(self, u: Array) -> Array:
        """Return Q^T u (k,): what E can change of u (m,)."""
        for Q in self._slices:
            of_slices = Q.shape[0] * Q.shape[1]
            inside = u[:of_slices].reshape(Q.shape[0], 1, -1) @ Q
            u = np.concatenate([inside.ravel(), u[of_slices:]])
        return self._Q.T @ u
