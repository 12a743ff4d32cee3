"""Matrices of which each chain's rows touch few columns, kept as blocks: time and memory linear in the chains.

  columns of chain 1   of chain 2    shared
|      B_1                             B_1 |
|                        B_2           B_2 |        blocks B_i (m_i, n_i) in columns_i
|                  tail                    |        further rows, sparse: priors, relations of quantities
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.sparse_rows import SparseRows, sparse_rows

if TYPE_CHECKING:
    from castfit.solve.staged import Array, Index


@dataclass(frozen=True)
class BlockRows:
    """A matrix (m, n) as blocks of rows.

    Attributes
    ----------
    columns : tuple of (n_i,) int arrays
        Where the columns of each block lie in the matrix; none twice.
    blocks : tuple of (m_i, n_i) arrays
        One below the other.
    tail : SparseRows (m_t, n)
        The last rows.
    """

    columns: tuple[Index, ...]
    blocks: tuple[Array, ...]
    tail: SparseRows

    @property
    def width(self) -> int:
        """Number of columns n."""
        return self.tail.shape[1]

    @cached_property
    def starts(self) -> Index:
        """Where the rows of each block begin, and those of the tail, (number of blocks + 1,)."""
        return np.concatenate([[0], np.cumsum([len(block) for block in self.blocks])]).astype(np.intp)

    @property
    def height(self) -> int:
        """Number of rows m."""
        return int(self.starts[-1]) + self.tail.shape[0]

    @cached_property
    def dense(self) -> Array:
        """The matrix itself."""
        matrix = np.zeros((self.height, self.width))
        for first, columns, block in zip(self.starts.tolist(), self.columns, self.blocks, strict=False):
            matrix[first : first + len(block), columns] = block
        matrix[int(self.starts[-1]) :] = self.tail.dense
        return matrix

    def times(self, x: Array) -> Array:
        """Return the product with x, (n,) -> (m,)."""
        pieces = [block @ x[columns] for columns, block in zip(self.columns, self.blocks, strict=True)]
        return np.concatenate([*pieces, self.tail @ x])

    def transposed(self, r: Array) -> Array:
        """Return the product of the transpose with r, (m,) -> (n,)."""
        out = r[int(self.starts[-1]) :] @ self.tail
        for first, columns, block in zip(self.starts.tolist(), self.columns, self.blocks, strict=False):
            out[columns] += r[first : first + len(block)] @ block
        return out

    def taken(self, chosen: Index) -> Array:
        """Return some rows, in ascending order, as a dense matrix (k, n)."""
        matrix = np.zeros((chosen.size, self.width))
        if not chosen.size:
            return matrix
        of = np.searchsorted(self.starts, chosen, side="right") - 1
        first = int(self.starts[-1])
        for i in np.unique(of[chosen < first]).tolist():
            here = np.flatnonzero((of == i) & (chosen < first))
            matrix[here[:, None], self.columns[i]] = self.blocks[i][chosen[here] - self.starts[i]]
        last = chosen >= first
        matrix[last] = self.tail.taken(chosen[last] - first).dense
        return matrix

    @property
    def places(self) -> tuple[tuple[Index, Index], Array]:
        """Rows and columns of all entries, and the entries."""
        first = int(self.starts[-1])
        rows = [
            np.repeat(np.arange(len(b)) + start, b.shape[1])
            for start, b in zip(self.starts.tolist(), self.blocks, strict=False)
        ]
        columns = [np.tile(c, len(b)) for c, b in zip(self.columns, self.blocks, strict=True)]
        entries = [block.ravel() for block in self.blocks]
        tail = self.tail
        return (
            (
                np.concatenate([*rows, tail.row + first]).astype(np.intp),
                np.concatenate([*columns, tail.column]).astype(np.intp),
            ),
            np.concatenate([*entries, tail.entry]),
        )

    @cached_property
    def norms(self) -> Array:
        """Lengths of the columns, (n,)."""
        squares = self.tail.squares()
        for columns, block in zip(self.columns, self.blocks, strict=True):
            squares[columns] += np.einsum("ij,ij->j", block, block)
        return np.sqrt(squares)

    def scaled(self, factors: Array) -> BlockRows:
        """Return the rows times factors (m,)."""
        blocks = [
            factors[first : first + len(block), None] * block
            for first, block in zip(self.starts.tolist(), self.blocks, strict=False)
        ]
        return BlockRows(self.columns, tuple(blocks), self.tail.scaled(factors[int(self.starts[-1]) :]))


def block_rows(blocks: Sequence[tuple[Index, Array]], width: int, tail: Array | SparseRows | None = None) -> BlockRows:
    """Put row blocks (m_i, n_i) and their columns together; the tail has at most `width` columns, the first ones."""
    last = sparse_rows(np.empty((0, width)) if tail is None else tail).widened(width)
    return BlockRows(tuple(columns for columns, _ in blocks), tuple(block for _, block in blocks), last)
