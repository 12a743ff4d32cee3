"""A sparse matrix with the few operations that castfit needs: products, scaled rows, chosen rows, itself dense."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array, Index
from castfit._support.records import dataclass

# Share of the products of a dense matrix: a sparse product takes about 50 times longer per entry.
_MAX_SPARSE_SHARE = 0.02
_AT_ONCE = 2**20  # entries of rows that are written out


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A matrix (m, n) of which few entries are not zero.

    ``matrix @ x``, ``r @ matrix`` and ``matrix.T @ r`` work with vectors; ``numpy.asarray(matrix)`` is dense.

    shape (m, n)
    row, column (k,) : where the entries are, sorted by row; no place comes twice
    entry (k,)
    """

    shape: tuple[int, int]
    row: Index
    column: Index
    entry: Array

    __array_ufunc__ = None  # so that ``array @ matrix`` asks the matrix

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def T(self) -> SparseRows:
        """The transpose, whose entries are sorted by column."""
        return SparseRows((self.shape[1], self.shape[0]), self.column, self.row, self.entry)

    def __matmul__(self, x: Array | SparseRows) -> Array:
        """Return the product with a vector (n,), or, dense, with a matrix."""
        if isinstance(x, SparseRows) or x.ndim == 2:
            factor: Array = x.dense if isinstance(x, SparseRows) else x
            return self.dense @ factor
        return np.bincount(self.row, self.entry * x[self.column], minlength=self.shape[0]).astype(float, copy=False)

    def __rmatmul__(self, r: Array) -> Array:
        if r.ndim == 2:
            return r @ self.dense
        return np.bincount(self.column, self.entry * r[self.row], minlength=self.shape[1]).astype(float, copy=False)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self.dense if dtype is None else self.dense.astype(dtype)

    @property
    def dense(self) -> Array:
        """The matrix itself."""
        dense_matrix = np.zeros(self.shape)
        np.add.at(dense_matrix, (self.row, self.column), self.entry)
        return dense_matrix

    @cached_property
    def starts(self) -> Index:
        """Start of each row's entries, and the end of the last row, (m + 1,)."""
        return np.searchsorted(self.row, np.arange(self.shape[0] + 1)).astype(np.intp)

    def scaled(self, rows: Array | None = None, columns: Array | None = None) -> SparseRows:
        """Return the matrix with its rows (m,) and columns (n,) times factors."""
        entry = self.entry if rows is None else self.entry * rows[self.row]
        entry = entry if columns is None else entry * columns[self.column]
        return SparseRows(self.shape, self.row, self.column, entry)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return entries, as a dense array would."""
        return self.dense[key]

    def select_rows(self, rows: Index) -> SparseRows:
        """Return some rows, by position."""
        counts = np.diff(self.starts)[rows]
        row = np.repeat(np.arange(rows.size), counts)
        offsets = np.repeat(self.starts[:-1][rows] - np.concatenate([[0], np.cumsum(counts)[:-1]])[: rows.size], counts)
        positions = (offsets + np.arange(row.size)).astype(np.intp)
        return SparseRows((rows.size, self.shape[1]), row, self.column[positions], self.entry[positions])

    def widened(self, width: int) -> SparseRows:
        """Return the matrix with columns of zeros behind its own, `width` in all."""
        return self if width == self.shape[1] else SparseRows((len(self), width), self.row, self.column, self.entry)

    def squares(self) -> Array:
        """Return the squared lengths of the columns, (n,)."""
        return np.bincount(self.column, self.entry**2, minlength=self.shape[1]).astype(float, copy=False)

    def gram(self) -> Array:
        """Return  M^T M  of this matrix M as a dense one, (n, n), from its entries where they are few, else by rows."""
        m, n = self.shape
        if float(np.sum(np.diff(self.starts).astype(float) ** 2)) < _MAX_SPARSE_SHARE * m * n**2:
            products = self.product()
            sums = np.bincount(products.row * n + products.column, products.entry, minlength=n * n)
            return sums.astype(float).reshape(n, n)
        gram_matrix, rows = np.zeros((n, n)), max(1, _AT_ONCE // max(n, 1))
        for start_row in range(0, m, rows):
            block = self.select_rows(np.arange(start_row, min(start_row + rows, m))).dense
            gram_matrix += block.T @ block
        return gram_matrix

    def product(self) -> SparseRows:
        """Return  M^T M  of this matrix M, (n, n); places may come several times, and count together."""
        counts = np.diff(self.starts)
        pairs = counts**2
        owner = np.repeat(np.arange(counts.size), pairs)
        pair_index = np.arange(owner.size) - np.repeat(np.cumsum(pairs) - pairs, pairs)
        left_index, right_index = np.divmod(pair_index, np.maximum(counts[owner], 1))
        row_starts = self.starts[:-1][owner]
        a, b = (row_starts + left_index).astype(np.intp), (row_starts + right_index).astype(np.intp)
        n = self.shape[1]
        return SparseRows((n, n), self.column[a], self.column[b], self.entry[a] * self.entry[b])


def sparse_rows(matrix: Array | SparseRows) -> SparseRows:
    """Return a matrix as a sparse one."""
    if isinstance(matrix, SparseRows):
        return matrix
    row, column = np.nonzero(matrix)
    return SparseRows(cast("tuple[int, int]", matrix.shape), row, column, matrix[row, column])


def stack_rows(parts: Sequence[SparseRows], width: int) -> SparseRows:
    """Stack matrices of equal width vertically."""
    heights = [part.shape[0] for part in parts]
    row_offsets = np.cumsum([0, *heights])[:-1]
    rows = [part.row + start for part, start in zip(parts, row_offsets.tolist(), strict=True)]
    empty = np.empty(0, dtype=np.intp)
    return SparseRows(
        (sum(heights), width),
        np.concatenate([empty, *rows]).astype(np.intp),
        np.concatenate([empty, *(part.column for part in parts)]).astype(np.intp),
        np.concatenate([np.empty(0), *(part.entry for part in parts)]),
    )
