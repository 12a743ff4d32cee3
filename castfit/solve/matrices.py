"""Matrices of solvers: blocks of rows, and factors that serve many right-hand sides.

A working set changes a dozen times in every step.  LAPACK factors 12 rows and 5 columns in 3 microseconds;
numpy.linalg.qr and numpy.linalg.solve need thirty to check their arguments.  Therefore LAPACK is called directly for
matrices with few rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from math import sqrt
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy

from castfit._support.arrays import Array, Index
from castfit._support.records import dataclass
from castfit._support.sparse_rows import SparseRows, sparse_rows

# Ratio of units above which the matrix is scaled, because the units would decide on the pivots.
_MAX_UNIT_RATIO = 2.0**20

# Number of local unknowns up to which a dense factorization is as fast, and nothing is eliminated.
MAX_DENSE_LOCAL_UNKNOWNS = 48

# Singular values below this fraction of the matrix's norm count as zero.
RANK_TOLERANCE = 1e-12

# Singular value of null directions, relative to the matrix norm.
NULL_STIFFNESS = 1e-7


def _lapack() -> Any:
    """Return SciPy's LAPACK module alone: importing `scipy.linalg` takes as long as four small fits."""
    with suppress(ImportError):
        library_spec = PathFinder.find_spec("_flapack", [str(Path(scipy.__file__).parent / "linalg")])
        if library_spec is not None and library_spec.origin is not None:
            spec: Any = spec_from_file_location("scipy.linalg._flapack", library_spec.origin)
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return scipy.linalg.lapack


LAPACK = _lapack()
_GEQRF, _ORGQR, _TRTRS = LAPACK.dgeqrf, LAPACK.dorgqr, LAPACK.dtrtrs
_GETRF, _GETRS, _GESDD, _POSV = LAPACK.dgetrf, LAPACK.dgetrs, LAPACK.dgesdd, LAPACK.dposv


@dataclass(frozen=True)
class BlockRows:
    """A matrix (m, n) of which each chain's rows touch few columns: time and memory are linear in the chains.

      columns of chain 1   of chain 2    shared
    |      B_1                             B_1 |
    |                        B_2           B_2 |        blocks B_i (m_i, n_i) in columns_i (n_i,), none twice
    |                  tail                    |        further rows (m_t, n): priors, relations of quantities
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
        """Index of the first row of each block, and of the tail, (number of blocks + 1,)."""
        return np.concatenate([[0], np.cumsum([len(block) for block in self.blocks])]).astype(np.intp)

    @property
    def height(self) -> int:
        """Number of rows m."""
        return int(self.starts[-1]) + self.tail.shape[0]

    @cached_property
    def dense(self) -> Array:
        """The matrix itself."""
        offset, count = 0, sum(map(len, self.blocks))
        n_tail, width = self.tail.shape
        matrix = np.zeros((count + n_tail, width))
        for columns, block in zip(self.columns, self.blocks, strict=True):
            matrix[offset : offset + len(block), columns] = block
            offset += len(block)
        matrix[count:] = self.tail.dense
        return matrix

    def times(self, x: Array) -> Array:
        """Return the product with x, (n,) -> (m,)."""
        pieces = [block @ x[columns] for columns, block in zip(self.columns, self.blocks, strict=True)]
        return np.concatenate([*pieces, self.tail @ x])

    def transposed(self, r: Array) -> Array:
        """Return the product of the transpose with r, (m,) -> (n,)."""
        product = r[int(self.starts[-1]) :] @ self.tail
        for start, columns, block in zip(self.starts.tolist(), self.columns, self.blocks, strict=False):
            product[columns] += r[start : start + len(block)] @ block
        return product

    def take_rows(self, rows: Index) -> Array:
        """Return some rows, in ascending order, as a dense matrix (k, n)."""
        matrix = np.zeros((rows.size, self.tail.shape[1]))
        if not rows.size:
            return matrix
        block_indices = np.searchsorted(self.starts, rows, side="right") - 1
        tail_start = int(self.starts[-1])
        for i in np.unique(block_indices[rows < tail_start]).tolist():
            positions = np.flatnonzero((block_indices == i) & (rows < tail_start))
            matrix[positions[:, None], self.columns[i]] = self.blocks[i][rows[positions] - self.starts[i]]
        is_tail = rows >= tail_start
        matrix[is_tail] = self.tail.select_rows(rows[is_tail] - tail_start).dense
        return matrix

    @property
    def places(self) -> tuple[tuple[Index, Index], Array]:
        """Rows and columns of all entries, and the entries."""
        tail_start = int(self.starts[-1])
        rows = [
            np.repeat(np.arange(len(b)) + start, b.shape[1])
            for start, b in zip(self.starts.tolist(), self.blocks, strict=False)
        ]
        columns = [np.tile(c, len(b)) for c, b in zip(self.columns, self.blocks, strict=True)]
        entries = [block.ravel() for block in self.blocks]
        tail = self.tail
        return (
            (
                np.concatenate([*rows, tail.row + tail_start]).astype(np.intp),
                np.concatenate([*columns, tail.column]).astype(np.intp),
            ),
            np.concatenate([*entries, tail.entry]),
        )

    @property
    def own_count(self) -> int:
        """Number of columns in a single block only: the maximum number of unknowns eliminated with it."""
        counts = np.bincount(np.concatenate([np.empty(0, dtype=np.intp), *self.columns]), minlength=self.width)
        return int(np.count_nonzero(counts == 1))

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
            factors[start : start + len(block), None] * block
            for start, block in zip(self.starts.tolist(), self.blocks, strict=False)
        ]
        return BlockRows(self.columns, tuple(blocks), self.tail.scaled(factors[int(self.starts[-1]) :]))


def block_rows(blocks: Sequence[tuple[Index, Array]], width: int, tail: Array | SparseRows | None = None) -> BlockRows:
    """Combine row blocks (m_i, n_i) with their columns; the tail covers at most `width` columns, the first ones."""
    tail_rows = _no_rows(width) if tail is None else sparse_rows(tail).widened(width)
    return BlockRows(tuple(columns for columns, _ in blocks), tuple(block for _, block in blocks), tail_rows)


@cache
def _no_rows(width: int) -> SparseRows:
    return sparse_rows(np.empty((0, width)))


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
    """Return R (k, n) of  E = Q R,  without Q."""
    m, n = E.shape
    return _GEQRF(E)[0][:n] * _upper(min(m, n), n) if min(m, n) else np.zeros((0, n))


@cache
def _upper(k: int, n: int) -> Array:
    return np.triu(np.ones((k, n)))


def full_svd(M: Array) -> tuple[Array, Array, Array]:
    """Return U (m, m), S (k,) and V^T (n, n) of the singular value decomposition of M (m, n), k the lesser of both."""
    if not M.size:
        return np.linalg.svd(M)
    U, S, Vt, info = _GESDD(M)
    if info != 0:
        raise np.linalg.LinAlgError("SVD did not converge")
    return U, S, Vt


def triangular_solution(R: Array, b: Array, *, transposed: bool = False) -> Array:
    """Return x of  R x = b  or  R^T x = b;  only the upper triangle of R (q, q) is read."""
    x, info = _TRTRS(R, b, trans=int(transposed))
    if info != 0:
        raise np.linalg.LinAlgError("Singular matrix")
    return x


def positive_solution(H: Array, b: Array) -> Array:
    """Return x of  H x = b;  LinAlgError if H (n, n), of which the upper triangle is read, is not positive definite."""
    _, x, info = _POSV(H, b)
    if info != 0 or not np.isfinite(x).all():
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return x


def euclidean_norm(x: Array) -> float:
    """Return the Euclidean norm of a vector (n,) of moderate numbers."""
    return sqrt(float(x @ x))


def triangle(matrix: Array) -> Array:
    """Return R of matrix = Q R, by slices of rows that fit the cache: five times faster for 40,000 rows of 12."""
    n = matrix.shape[1]
    rows = max(256, 4 * n)
    while (slices := matrix.shape[0] // rows) > 1:
        tops = _factor(matrix[: slices * rows].reshape(slices, rows, n))
        matrix = np.concatenate([tops.reshape(-1, n), matrix[slices * rows :]])
    return _factor(matrix)


def _factor(M: Array) -> Array:
    return upper_factor(M) if M.ndim == 2 else cast("Array", np.linalg.qr(M, mode="r"))


def numerical_rank(singular_values: Array, matrix: Array) -> int:
    """Count the singular values that are not zero up to rounding of the matrix they come from."""
    return int(np.count_nonzero(singular_values > RANK_TOLERANCE * np.linalg.norm(matrix)))


@dataclass(frozen=True)
class UnitCoordinates:
    """Coordinates y in which  1/2 |u + M Z T y|^2 = 1/2 |y - target(u)|^2 + constant,  for matrices M (m, n), Z (n, f).

    T (f, f);  rank : of M Z;  U (m, rank) : its left singular vectors
    """

    T: Array
    U: Array
    rank: int

    @classmethod
    def from_matrix(
        cls, M: Array, Z: Array | None = None, decomposition: tuple[Array, Array, Array] | None = None
    ) -> UnitCoordinates:
        """Compute the coordinates; without Z for all directions.

        `decomposition` is the singular value decomposition of M Z.
        """
        free = M.shape[1] if Z is None else Z.shape[1]
        U, S, Vt = full_svd(M if Z is None else M @ Z) if decomposition is None else decomposition
        norm = euclidean_norm(S) if Z is None else float(np.linalg.norm(M))
        rank = int(np.count_nonzero(norm * RANK_TOLERANCE < S))
        stiffness = np.full(free, NULL_STIFFNESS * (norm or 1.0))
        stiffness[:rank] = S[:rank]
        return cls(Vt.T / stiffness, U[:, :rank], rank)

    def target(self, u: Array) -> Array:
        """Return the lowest y for residuals u (m,), (f,)."""
        y = np.zeros(len(self.T))
        y[: self.rank] = -self.U.T @ u
        return y


class TallFactors:
    """Factors E = Q R of a tall matrix E (m, n), for many vectors of residuals; R (k, n), k the lesser of m and n.

    1/2 |u + E x|^2 = 1/2 |Q^T u + R x|^2 + constant

    A step, its correction from every trial point and the singular directions all use R; only Q^T u is new.  Slices of
    rows that fit the cache are factored first, then their triangles, and so on.
    """

    def __init__(self, E: Array, *, triangular: bool = False) -> None:
        self.m, n = E.shape
        rows = max(256, 4 * n)
        self._slices: list[Array] = []
        remaining_rows = E
        while (slices := remaining_rows.shape[0] // rows) > 1:
            Q, tops = np.linalg.qr(remaining_rows[: slices * rows].reshape(slices, rows, n))
            self._slices.append(Q)
            remaining_rows = np.concatenate([tops.reshape(slices * n, n), remaining_rows[slices * rows :]])
        self._Q, self.R = (None, E) if triangular else thin(remaining_rows)
        self._svd: tuple[bytes, tuple[Array, Array, Array]] | None = None
        self._whitened: tuple[bytes, UnitCoordinates] | None = None

    @cached_property
    def triangle_factors(self) -> TallFactors:
        """The triangle R as a tall matrix."""
        return TallFactors(self.R, triangular=True)

    def svd(self, scale: Array) -> tuple[Array, Array, Array]:
        """Return U, S and V^T of R D with column scaling D (n,), computed once for one scaling after the other."""
        key = scale.tobytes()
        if self._svd is None or self._svd[0] != key:
            self._svd = key, full_svd(self.R * scale)
        return self._svd[1]

    def whitened(self, scale: Array) -> UnitCoordinates:
        """Return the coordinates in which R D is the identity, with column scaling D (n,), computed once likewise."""
        key = scale.tobytes()
        if self._whitened is None or self._whitened[0] != key:
            self._whitened = key, UnitCoordinates.from_matrix(self.R * scale, decomposition=self.svd(scale))
        return self._whitened[1]

    def project(self, u: Array) -> Array:
        """Return Q^T u (k,): the part of u (m,) in the column space of E."""
        for Q in self._slices:
            of_slices = Q.shape[0] * Q.shape[1]
            projections = u[:of_slices].reshape(Q.shape[0], 1, -1) @ Q
            u = np.concatenate([projections.ravel(), u[of_slices:]])
        return u if self._Q is None else self._Q.T @ u


@dataclass(frozen=True, eq=False)
class BlockLU:
    """LU factors of matrices D (K, n, n): those by which the inner variables of all stages are eliminated.

    Factors take a third of the operations of an inverse, and every later right-hand side costs as much as a product
    with the inverse.  LAPACK factorizes the transposes, rows of C being columns of Fortran, in place:

        D^T = L U,        D x = b   is   U^T L^T x = b

    For a singular matrix the pseudo-inverse is used, so that x is the shortest least-squares solution.  Pivots are
    compared within columns, whose entries may have units that differ by decades; in this case R^-1 D C is factored,
    with R, C powers of two.

    Measured for 275 matrices of 36 rows and 19 right-hand sides: 3.1 ms, numpy.linalg.inv and a product 5.5 ms,
    numpy.linalg.solve 4.3 ms; for 40 of 6 rows 0.07 ms against 0.03 ms.

    lu (K, n, n), pivots (K, n) as LAPACK leaves them, by columns; pseudo: the pseudo-inverses (n, n) of singular ones
    units : the diagonals of R and C, (K, n) each; None where they are 1
    """

    lu: Array
    pivots: Any
    pseudo: Mapping[int, Array]
    units: tuple[Array, Array] | None = None

    @classmethod
    def factorize(cls, D: Array, unit: Array | None = None) -> BlockLU:
        """Factorize D (K, n, n); `unit` (K, n) are typical magnitudes of x."""
        if unit is not None and unit.size and unit.max() > _MAX_UNIT_RATIO * unit.min():
            C = np.exp2(np.round(np.log2(unit)))
            largest = np.abs(D * C[:, None]).max(axis=2)
            R = np.exp2(np.round(np.log2(np.where((largest > 0.0) & np.isfinite(largest), largest, 1.0))))
            return replace(cls.factorize(D * C[:, None] / R[:, :, None]), units=(R, C))
        count, n = D.shape[:2]
        work, pivots, failed = np.array(D, order="C"), np.zeros((count, n), dtype=np.int32), False
        for k in range(count if n else 0):
            _, pivots[k], info = _GETRF(work[k].T, overwrite_a=1)
            failed |= info > 0
        pseudo: dict[int, Array] = {}
        if failed:  # a pivot is zero: other pivots may be rounding errors
            singular = np.linalg.matrix_rank(D) < n
            pseudo = {int(k): np.linalg.pinv(D[k]) for k in np.flatnonzero(singular)}
        return cls(work, pivots, pseudo)

    @property
    def singular(self) -> tuple[int, ...]:
        """Positions of the matrices that are singular."""
        return tuple(self.pseudo)

    def solve(self, b: Array) -> Array:
        """Return x (K, n, m) of D x = b (K, n, m)."""
        return self._solved(b, transposed=False)

    def solve_transposed(self, b: Array) -> Array:
        """Return x (K, n, m) of D^T x = b (K, n, m)."""
        return self._solved(b, transposed=True)

    def _solved(self, b: Array, *, transposed: bool) -> Array:
        if not self.lu.size or b.shape[2] == 0:
            return np.zeros(b.shape)
        if self.units is not None:
            R, C = (unit[:, :, None] for unit in self.units)
            left_units, right_units = (C, 1.0 / R) if transposed else (1.0 / R, C)
            return right_units * replace(self, units=None)._solved(left_units * b, transposed=transposed)
        rows = np.array(b.swapaxes(1, 2), order="C")  # a row is a right-hand side, overwritten by its solution
        kind = 0 if transposed else 1
        for lu, pivots, row in zip(self.lu, self.pivots, rows, strict=True):
            _GETRS(lu.T, pivots, row.T, trans=kind, overwrite_b=1)
        x = rows.swapaxes(1, 2)
        for k, inverse in self.pseudo.items():
            x[k] = (inverse.T if transposed else inverse) @ b[k]
        return x
