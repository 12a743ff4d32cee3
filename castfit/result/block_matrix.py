"""Symmetric matrices over all estimates of many experiments, kept as blocks.

Of n experiments with their own quantities a covariance has a block per experiment; between experiments it follows from
how own quantities answer to shared ones:

    cov(shared, shared)  = C
    cov(own_i, shared)   = L_i C + X_i
    cov(own_i, own_j)    = L_i C L_j^T + X_i L_j^T + L_i X_j^T  (+ P_i where i = j)

so that memory is linear in the number of experiments, and any few rows and columns are cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from castfit._support.arrays import Array, Index, Mask
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.renamed import with_old_names
from castfit._support.reprs import one_line
from castfit._support.status import InputError, raise_if_mistakes, suggest

MAX_WRITTEN_OUT_SIZE = 3000
"""Quantities up to which a matrix is written out: 72 megabytes."""


@with_old_names(further="extra_rows")
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class BlockMatrix(NDArrayOperatorsMixin):
    """A symmetric matrix (n, n) over quantities, in blocks of experiments.

    It can be indexed and computed with like an array.  Rows and columns are cheap; what needs the whole matrix, such as
    ``numpy.asarray(matrix)``, works for up to 3,000 quantities.  ``matrix.of("k1", "b[experiment 7]")`` is the block of
    quantities by name, ``numpy.diagonal`` is `diagonal`.

    Attributes
    ----------
    names : tuple of n str
    common : (n_b,) int array
        Positions of the shared quantities.
    own : (n_o,) int array
        Positions of the others, which belong to one experiment each.
    chain, position : (n_o,) int arrays
        To which experiment they belong, and as which of its own quantities.
    C : (n_b, n_b) array
    L, X : (n_o, n_b) arrays
    P : (n_o, w) array
        Entry (i, k) is that of own quantity i and the k-th of its experiment.
    factor : (n,) array
        By which rows and columns are multiplied.
    held, open : (n,) bool arrays
        Rows that are NaN; rows that are NaN but for infinity on the diagonal.
    further : (n, r) array
        further further^T is added.

    Examples
    --------
    >>> import castfit as cf
    >>> import numpy as np
    >>> x, k, a, b, c = cf.symbols("x k a b c")
    >>> outputs = {"u": a * x, "v": b * x, "w": c * x}
    >>> model = cf.Model({x: -k * x}, parameters=[k, a, b, c], outputs=outputs, initial={x: 1})
    >>> t = np.linspace(0.5, 4, 4)
    >>> experiments = [
    ...     cf.Experiment({y: np.exp(-0.5 * t) + 0.01 * np.cos(7 * i * t) for y in outputs}, time=t, sigma=0.01)
    ...     for i in range(167)
    ... ]
    >>> parameters = {"k": 0.5, **{name: cf.Parameter(1.0, local=True) for name in ("a", "b", "c")}}
    >>> result = cf.fit(cf.Problem(model, experiments, parameters=parameters), "single")
    >>> result.covariance
    BlockMatrix(502 quantities, 501 of them of single experiments)
    >>> block = result.covariance.of("k", "b[experiment 7]")
    >>> bool(np.isclose(np.sqrt(block[1, 1]), result.standard_errors["b[experiment 7]"]))
    True
    """

    names: tuple[str, ...]
    common: Index
    own: Index
    chain: Index
    position: Index
    C: Array
    L: Array
    X: Array
    P: Array
    factor: Array
    held: Mask
    open: Mask
    extra_rows: Array = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def shape(self) -> tuple[int, int]:
        """As of an array."""
        return len(self.names), len(self.names)

    @property
    def ndim(self) -> int:
        """As of an array."""
        return 2

    @property
    def size(self) -> int:
        """As of an array."""
        return len(self.names) ** 2

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return one_line(f"BlockMatrix({len(self)} quantities, {self.own.size} of them of single experiments)")

    @cached_property
    def _places(self) -> tuple[Index, Index]:
        """Positions of each quantity among the shared and among the own quantities; -1 if it is absent."""
        in_common, in_own = np.full(len(self), -1), np.full(len(self), -1)
        in_common[self.common], in_own[self.own] = np.arange(self.common.size), np.arange(self.own.size)
        return in_common, in_own

    def _sides(self, indices: Index) -> tuple[Array, Array]:
        """Return the rows (k, n_b) of L and X; a shared quantity has a row of the identity in L and zeros in X."""
        in_common, in_own = self._places
        L_rows, X_rows = np.zeros((indices.size, self.common.size)), np.zeros((indices.size, self.common.size))
        is_local = in_own[indices] >= 0
        L_rows[is_local], X_rows[is_local] = self.L[in_own[indices][is_local]], self.X[in_own[indices][is_local]]
        L_rows[np.flatnonzero(~is_local), in_common[indices][~is_local]] = 1.0
        return L_rows, X_rows

    def diagonal(self) -> Array:
        """Return the diagonal, (n,)."""
        values = np.empty(len(self))
        values[self.common] = np.diagonal(self.C)
        rows = np.arange(self.own.size)
        products = np.einsum("ij,ij->i", self.L @ self.C + 2.0 * self.X, self.L)
        values[self.own] = products + (self.P[rows, self.position] if self.own.size else 0.0)
        values *= self.factor**2
        if self.extra_rows.size:
            values += np.sum(self.extra_rows**2, axis=1)
        values[self.held] = np.nan
        values[self.open] = np.inf
        return values

    def entries(self, rows: Index, columns: Index) -> Array:
        """Return the rows and columns at some positions, (k, l)."""
        (L_i, X_i), (L_j, X_j) = self._sides(rows), self._sides(columns)
        block = (L_i @ self.C + X_i) @ L_j.T + L_i @ X_j.T
        _, in_own = self._places
        i, j = np.nonzero(self._chains[rows][:, None] == self._chains[columns])
        is_local_pair = (self._chains[rows][i] >= 0) if i.size else np.zeros(0, dtype=np.bool_)
        i, j = i[is_local_pair], j[is_local_pair]
        block[i, j] += self.P[in_own[rows[i]], self.position[in_own[columns[j]]]]
        block *= self.factor[rows][:, None] * self.factor[columns]
        if self.extra_rows.size:
            block += self.extra_rows[rows] @ self.extra_rows[columns].T
        is_undefined = (self.held | self.open)[rows][:, None] | (self.held | self.open)[columns]
        block[is_undefined] = np.nan
        block[(rows[:, None] == columns) & self.open[rows][:, None]] = np.inf
        return block

    @cached_property
    def _chains(self) -> Index:
        """Experiment index of every quantity, -1 for shared ones, (n,)."""
        chains = np.full(len(self), -1)
        chains[self.own] = self.chain
        return chains

    def family(self, j: int) -> Index:
        """Return the positions of the shared quantities and of the own quantities of quantity j's experiment."""
        local_indices = self.own[self.chain == self._chains[j]] if self._chains[j] >= 0 else self.own[:0]
        return np.concatenate([self.common, local_indices])

    def of(self, *names: str) -> Array:
        """Return the block of some quantities, (k, k), in their order.

        Raises
        ------
        InputError
            For an unknown name.
        """
        index_by_name = {name: j for j, name in enumerate(self.names)}
        raise_if_mistakes(
            "BlockMatrix.of",
            [f"'{n}' is not estimated: {suggest(n, self.names)}" for n in names if n not in index_by_name],
        )
        indices = np.array([index_by_name[name] for name in names], dtype=np.intp)
        return self.entries(indices, indices)

    def times(self, x: Array) -> Array:
        """Return the product with x (n,), without the held and open quantities."""
        scaled_x = np.where(self.held | self.open, 0.0, x) * self.factor
        b, o = scaled_x[self.common], scaled_x[self.own]
        of_border = b + self.L.T @ o
        product = np.zeros(len(self))
        product[self.common] = self.C @ of_border + self.X.T @ o
        product[self.own] = self.L @ product[self.common] + self.X @ of_border
        for k, i, j in self._neighbours():
            product[self.own[i]] += self.P[i, k] * o[j]
        product *= self.factor
        if self.extra_rows.size:
            product += self.extra_rows @ (self.extra_rows.T @ np.where(self.held | self.open, 0.0, x))
        product[self.held | self.open] = 0.0
        return product

    @cached_property
    def _experiment_starts(self) -> Index:
        """Position of the first own quantity of the same experiment, for each own quantity, (n_o,)."""
        return np.arange(self.own.size) - self.position

    def _neighbours(self) -> Iterator[tuple[int, Index, Index]]:
        """Yield, for every column k of P, the own quantities i and the k-th ones j of their experiments."""
        rows = np.arange(self.own.size)
        for k in range(self.P.shape[1]):
            partners = self._experiment_starts + k
            valid = partners < self.own.size
            valid[valid] = self.chain[partners[valid]] == self.chain[valid]
            yield k, rows[valid], partners[valid]

    def half(self, rows: Any) -> tuple[Array, Array]:
        """Return factors A (k, n_b) and B (k, w) of  rows M rows^T  for sparse rows (k, n), each of one experiment.

        The product is A A^T, plus B B^T for two rows of the same experiment.  The factors ignore quantities that are
        held or open, and the integration errors in X and `further`.
        """
        finite_factor = np.where(self.held | self.open, 0.0, np.nan_to_num(self.factor))
        scaled = rows.multiply(finite_factor).tocsc()
        local_columns = scaled[:, self.own].tocsr()
        roots = np.zeros_like(self.P)
        sizes = np.bincount(self.chain, minlength=1)[self.chain]
        for size in np.unique(sizes):
            first_rows = np.flatnonzero((sizes == size) & (self.position == 0))
            block_rows = first_rows[:, None] + np.arange(int(size))
            roots[block_rows, :size] = _root(self.P[block_rows, :size])
        return (scaled[:, self.common].toarray() + local_columns @ self.L) @ _root(self.C), np.asarray(
            local_columns @ roots
        )

    def strongest(self) -> tuple[Index, Array]:
        """Return per row the other column with the entry of largest magnitude, and that entry, (n,) each.

        The search covers shared quantities and quantities of the same experiment; an infinite entry counts as zero.
        """
        n, n_o, n_b = len(self), self.own.size, self.common.size
        factor = np.where(self.held | self.open, 0.0, np.nan_to_num(self.factor))
        further = self.extra_rows if self.extra_rows.size else np.zeros((n, 1))
        mixed = (self.L @ self.C + self.X) * factor[self.own][:, None] * factor[self.common]
        mixed = mixed + further[self.own] @ further[self.common].T
        of_common = self.C * factor[self.common][:, None] * factor[self.common]
        of_common = of_common + further[self.common] @ further[self.common].T
        np.fill_diagonal(of_common, 0.0)
        width, local_indices = self.P.shape[1], np.arange(n_o)
        neighbor_entries = np.zeros((n_o, width))
        for k, i, j in self._neighbours():
            value = np.einsum("ib,ib->i", self.L[i] @ self.C + self.X[i], self.L[j])
            value += np.einsum("ib,ib->i", self.L[i], self.X[j]) + self.P[i, k]
            value *= factor[self.own[i]] * factor[self.own[j]]
            value += np.einsum("ir,ir->i", further[self.own[i]], further[self.own[j]])
            neighbor_entries[i, k] = np.where(i == j, 0.0, value)
        partner, value = np.zeros(n, dtype=np.intp), np.zeros(n)
        if n_o and n_b + width:
            row_entries = np.concatenate([mixed, neighbor_entries], axis=1)
            best_columns = np.argmax(np.abs(row_entries), axis=1)
            positions = np.where(best_columns < n_b, 0, self._experiment_starts + best_columns - n_b)
            local_partners = self.own[np.clip(positions, 0, n_o - 1)]
            shared_partners = self.common[np.minimum(best_columns, n_b - 1)] if n_b else local_partners
            partner[self.own], value[self.own] = (
                np.where(best_columns < n_b, shared_partners, local_partners),
                row_entries[local_indices, best_columns],
            )
        if n_b:
            row_entries = np.concatenate([of_common, mixed.T], axis=1)
            best_columns = np.argmax(np.abs(row_entries), axis=1)
            of_own = self.own[np.clip(best_columns - n_b, 0, n_o - 1)] if n_o else self.common[best_columns]
            partner[self.common] = np.where(best_columns < n_b, self.common[np.minimum(best_columns, n_b - 1)], of_own)
            value[self.common] = row_entries[np.arange(n_b), best_columns]
        return partner, value

    def scaled(self, factor: Array) -> BlockMatrix:
        """Return the matrix with its rows and columns times factors (n,)."""
        further = self.extra_rows * factor[:, None] if self.extra_rows.size else self.extra_rows
        return replace(self, factor=self.factor * factor, extra_rows=further)

    def plus(self, other: BlockMatrix, weight: float = 1.0) -> BlockMatrix:
        """Return weight * this + other for a matrix with the same L and factors; `further` is that of `other` alone."""
        sums = {name: weight * getattr(self, name) + getattr(other, name) for name in ("C", "X", "P")}
        return replace(self, **sums, extra_rows=other.extra_rows)

    @property
    def dense(self) -> Array:
        """The matrix itself, (n, n).

        Raises
        ------
        InputError
            For more than 3,000 quantities.
        """
        n = len(self)
        if n > MAX_WRITTEN_OUT_SIZE:
            remedy = "ask for blocks: matrix.of(names), matrix[rows, columns], or for matrix.diagonal()"
            raise InputError(
                "BlockMatrix", [f"a matrix of {n} quantities needs {8e-9 * n * n:.2g} gigabytes; {remedy}"]
            )
        indices = np.arange(n)
        return self.entries(indices, indices)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        out = self.dense
        return out if dtype is None else out.astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [x.dense if isinstance(x, BlockMatrix) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __getitem__(self, key: Any) -> Any:
        """Return entries, as an array would: by position, slice, mask, or ``numpy.ix_`` of two lists."""
        rows, columns = cast("tuple[Any, Any]", key) if isinstance(key, tuple) else (key, slice(None))
        indices = np.arange(len(self))
        is_sliced = isinstance(rows, (int, np.integer, slice)) or isinstance(columns, (int, np.integer, slice))
        i, j = indices[rows], indices[columns]
        if is_sliced or (np.ndim(i) == 2 and np.ndim(j) == 2):
            block = self.entries(np.ravel(i), np.ravel(j))
            shape = (*np.shape(i), *np.shape(j)) if is_sliced else (np.size(i), np.size(j))
            values = block.reshape(shape)
            return float(values) if values.ndim == 0 else values
        i, j = np.broadcast_arrays(i, j)
        return np.array([self.entries(i[k : k + 1], j[k : k + 1])[0, 0] for k in range(i.size)])

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))


def _root(squares: Array) -> Array:
    """Compute a root of the positive part of each matrix of a stack (..., n, n)."""
    values, vectors = np.linalg.eigh(0.5 * (squares + squares.swapaxes(-1, -2)))
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
