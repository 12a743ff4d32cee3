"""Elimination of local unknowns, which belong to single chains, by orthogonal factors, chain by chain.

Parameters of one experiment, its free initial state and its sigmas appear in the rows of one chain only.  Ordered by
chain, the condensed problem is an arrow.  A small QR factorization per chain leaves a triangle for its local unknowns
and a few rows over the border, the shared unknowns:

    local_1 local_2 local_3 border                     local_1 local_2 local_3 border
    | E_1                   S_1  |  u_1                | R_1                   B_1  |  c_1
    |        E_2            S_2  |  u_2                |        R_2            B_2  |  c_2
    |               E_3     S_3  |  u_3        -->     |               R_3     B_3  |  c_3
    |                        P   |  p                  |                        T   |  t

Time and memory are thus linear in the number of chains.  The border, the unknowns xi_b that several chains share, is
a dense problem (`castfit.solve.bounded_lsq`), and the local unknowns follow from it:

    xi_i = L_i xi_b + l_i,        L_i = -R_i^-1 B_i,   l_i = -R_i^-1 c_i

Local unknowns that are coupled to other chains (by a prior on several experiments, a relation of their quantities, or
active path constraints) belong to the border, with all others of their chain.  If this applies to many chains, the
problem is dense.

Notation
--------
N chains of a batch, m rows each, o local unknowns, s unknowns of the border on which they depend;  n_b  width of the
border
xi = x / D   scaled unknowns: columns of E D have unit length
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import scipy

from castfit._support.arrays import Array, Index, Mask, Signs
from castfit._support.sparse_rows import SparseRows
from castfit.solve.block_pivoting import solve_boxed_batch, with_held
from castfit.solve.matrices import MAX_DENSE_LOCAL_UNKNOWNS, BlockRows, positive_solution, triangle

# Row counts of chains are padded with zero rows to a multiple of this, so that they are factored together.
_ROW_COUNT_MULTIPLE = 8

# Iterations of the power method for the largest singular value.
_POWER_ITERATIONS = 12


@dataclass(frozen=True)
class ChainBatch:
    """N chains of one shape.

    local_unknowns (N, o) : positions of their local unknowns in x
    border_entries (N, s) : entries of the border on which they depend
    rows (N, m) : positions of their rows among the residuals; the number of residuals for padding
    E (N, m, o + s) : derivatives of these with respect to the scaled unknowns, local ones first
    """

    chains: Index
    local_unknowns: Index
    border_entries: Index
    rows: Index
    E: Array

    @property
    def o(self) -> int:
        """Number of local unknowns of each chain."""
        return self.local_unknowns.shape[1]


@dataclass(frozen=True)
class ArrowMatrix:
    """Residuals by unknowns as an arrow: batches of chains with local unknowns, and the rows of the border alone.

    border (n_b,) : positions in x of the unknowns that are not eliminated
    place (n_x,) : position of an unknown in the border, -1 for local ones
    scale (n_x,) : D
    border_rows (k, n_b) : rows of the border alone, in scaled unknowns
    border_row_indices (k,) : positions of these rows among the residuals
    free : per chain, whether its local unknowns are eliminated
    """

    batches: tuple[ChainBatch, ...]
    border: Index
    border_positions: Index
    scale: Array
    border_rows: Array
    border_row_indices: Index
    free: Mask

    @property
    def n_b(self) -> int:
        """Width of the border."""
        return self.border.size

    @property
    def is_trivial(self) -> bool:
        """Check whether there are too few local unknowns for elimination to be worthwhile."""
        return sum(batch.local_unknowns.size for batch in self.batches) <= MAX_DENSE_LOCAL_UNKNOWNS

    def factor_chains(self, u: Array) -> FactoredArrow:
        """Factor every chain with the residuals u (m,)."""
        residuals = np.append(u, 0.0)
        factors = [batched_qr(np.concatenate([b.E, residuals[b.rows][:, :, None]], axis=2)) for b in self.batches]
        return FactoredArrow(self, tuple(factors), np.column_stack([self.border_rows, u[self.border_row_indices]]))

    @cached_property
    def largest(self) -> float:
        """Largest singular value of the scaled matrix, to about a percent."""
        local_x = [np.ones(batch.local_unknowns.shape) for batch in self.batches]
        border, size = np.ones(self.n_b), 1.0
        for _ in range(_POWER_ITERATIONS):
            norm = np.sqrt(sum(float(np.vdot(x, x)) for x in local_x) + float(border @ border))
            if not norm > 0.0:
                return 0.0
            local_x, border = [x / norm for x in local_x], border / norm
            product = self.border_rows @ border
            new_border = self.border_rows.T @ product
            square = float(product @ product)
            for i, batch in enumerate(self.batches):
                chain_x = np.concatenate([local_x[i], border[batch.border_entries]], axis=1)
                rows = (batch.E @ chain_x[:, :, None])[:, :, 0]
                square += float(np.vdot(rows, rows))
                gradient = (batch.E.swapaxes(1, 2) @ rows[:, :, None])[:, :, 0]
                local_x[i] = gradient[:, : batch.o]
                np.add.at(new_border, batch.border_entries, gradient[:, batch.o :])
            border, size = new_border, np.sqrt(square)
        return float(size)


def arrow(rows: BlockRows, scale: Array, is_tied: Mask | None = None) -> ArrowMatrix:
    """Find the local unknowns of every chain, and assign the rows; chains marked by `is_tied` belong to the border.

    Rows of the tail that concern local unknowns of one chain only, and shared ones, are rows of that chain.
    """
    owner = _single_owners(rows.columns, rows.width)
    free = np.ones(len(rows.blocks), dtype=np.bool_) if is_tied is None else ~is_tied
    tail = rows.tail
    entry_rows, entry_owners = tail.row, owner[tail.column]
    first_owner, last_owner = np.full(tail.shape[0], len(free)), np.full(tail.shape[0], -1)
    own_entry = entry_owners >= 0
    np.minimum.at(first_owner, entry_rows[own_entry], entry_owners[own_entry])
    np.maximum.at(last_owner, entry_rows[own_entry], entry_owners[own_entry])
    couples_chains = (last_owner > first_owner)[entry_rows] & own_entry
    free[entry_owners[couples_chains]] = False
    owner[(owner >= 0) & ~free[owner]] = -1
    border = np.flatnonzero(owner < 0)
    column_positions = np.full(rows.width, -1, dtype=np.intp)
    column_positions[border] = np.arange(border.size)

    row_owner = np.where(last_owner >= 0, last_owner, -1)
    row_owner[(row_owner >= 0) & ~free[row_owner]] = -1
    tail_rows_by_chain: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(row_owner >= 0).tolist():
        tail_rows_by_chain[int(row_owner[row])].append(row)

    m, first_of_tail = rows.height, int(rows.starts[-1])
    groups: dict[tuple[int, int, int], list[tuple[int, Index, Index, Index, Array]]] = defaultdict(list)
    border_blocks: list[tuple[Index, Index, Array]] = []  # columns, positions of rows, block
    for i, (columns, block) in enumerate(zip(rows.columns, rows.blocks, strict=True)):
        row_positions: Index = np.arange(int(rows.starts[i]), int(rows.starts[i + 1]), dtype=np.intp)
        is_local = owner[columns] == i
        if not is_local.any():
            border_blocks.append((column_positions[columns], row_positions, block * scale[columns]))
            continue
        local_columns, border_columns = columns[is_local], column_positions[columns[~is_local]]
        combined_block = np.concatenate([block[:, is_local], block[:, ~is_local]], axis=1)
        tail_rows = tail_rows_by_chain.get(i)
        if tail_rows:
            combined_block, border_columns = _with_tail(
                combined_block, local_columns, border_columns, tail.select_rows(np.array(tail_rows)), column_positions
            )
            row_positions = np.concatenate([row_positions, first_of_tail + np.array(tail_rows, dtype=np.intp)])
        scaled = combined_block * scale[np.concatenate([local_columns, border[border_columns]])]
        height = -(-len(row_positions) // _ROW_COUNT_MULTIPLE) * _ROW_COUNT_MULTIPLE
        groups[height, local_columns.size, border_columns.size].append(
            (i, local_columns, border_columns, row_positions, scaled)
        )
    batches: list[ChainBatch] = []
    for (height, _, _), members in groups.items():
        width = members[0][4].shape[1]
        stacked = np.zeros((len(members), height, width))
        row_positions = np.full((len(members), height), m, dtype=np.intp)
        for n, (_, _, _, positions, block) in enumerate(members):
            stacked[n, : len(block)], row_positions[n, : len(block)] = block, positions
        chains, local_columns, border_columns = (
            np.array([member[k] for member in members], dtype=np.intp) for k in range(3)
        )
        batches.append(
            ChainBatch(chains, local_columns, border_columns.reshape(len(members), -1), row_positions, stacked)
        )
    common_rows = np.flatnonzero(row_owner < 0)
    common_tail = tail.select_rows(common_rows)
    tail_block = SparseRows(
        (common_rows.size, border.size), common_tail.row, column_positions[common_tail.column], common_tail.entry
    ).dense
    border_blocks.append((np.arange(border.size), first_of_tail + common_rows, tail_block * scale[border]))
    matrix = np.zeros((sum(len(block) for _, _, block in border_blocks), border.size))
    row_offset = 0
    for columns, _, block in border_blocks:
        matrix[row_offset : row_offset + len(block), columns] = block
        row_offset += len(block)
    positions = np.concatenate([positions for _, positions, _ in border_blocks])
    return ArrowMatrix(tuple(batches), border, column_positions, scale, matrix, positions, free)


def _single_owners(columns: Sequence[Index], n: int) -> Index:
    """Return the only chain to which an unknown belongs, (n,), or -1 if it belongs to several or to none."""
    count, owner = np.zeros(n, dtype=np.intp), np.full(n, -1, dtype=np.intp)
    for i, indices in enumerate(columns):
        count[indices] += 1
        owner[indices] = i
    owner[count != 1] = -1
    return owner


def _with_tail(
    block: Array, local_columns: Index, border_columns: Index, further: SparseRows, column_positions: Index
) -> tuple[Array, Index]:
    """Append rows (k, n_x) to the rows of a chain; they may depend on further entries of the border."""
    border_positions = column_positions[further.column]
    new_columns = np.setdiff1d(border_positions[border_positions >= 0], border_columns)
    new_rows = np.zeros((further.shape[0], block.shape[1] + new_columns.size))
    for positions, targets, offset in (
        (further.column, local_columns, 0),
        (border_positions, border_columns, local_columns.size),
        (border_positions, new_columns, local_columns.size + border_columns.size),
    ):
        is_match = positions[:, None] == targets
        entry, target_index = np.nonzero(is_match)
        new_rows[further.row[entry], offset + target_index] = further.entry[entry]
    wider = np.concatenate([block, np.zeros((len(block), new_columns.size))], axis=1)
    return np.concatenate([wider, new_rows]), np.concatenate([border_columns, new_columns])


def batched_qr(rows: Array) -> Array:
    """Return R (N, n, n) of rows (N, m, n) = Q R."""
    m, n = rows.shape[1:]
    if m < n:
        rows = np.concatenate([rows, np.zeros((len(rows), n - m, n))], axis=1)
    return cast("Array", np.linalg.qr(rows, mode="r"))


@dataclass(frozen=True)
class FactoredArrow:
    """Arrow with its residuals, every chain factored.

    factors (N, w, w) : per batch, triangles over (local, border entries, 1), w = o + s + 1
    border_rows (k, n_b + 1) : rows of the border alone, their residuals last
    """

    arrow: ArrowMatrix
    factors: tuple[Array, ...]
    border_rows: Array

    def with_rows(self, local_rows: Sequence[Array], border: Array) -> FactoredArrow:
        """Add rows of residual zero: over local unknowns per batch (N, k, o), and over the border with residuals."""
        factors: list[Array] = []
        for batch, R, batch_rows in zip(self.arrow.batches, self.factors, local_rows, strict=True):
            if not batch_rows.any():
                factors.append(R)
                continue
            padded_rows = np.zeros((len(R), batch_rows.shape[1], R.shape[2]))
            padded_rows[:, :, : batch.o] = batch_rows
            factors.append(batched_qr(np.concatenate([R, padded_rows], axis=1)))
        return FactoredArrow(self.arrow, tuple(factors), np.concatenate([self.border_rows, border]))

    def eliminate(self, signs: Sequence[Signs], lower: Sequence[Array], upper: Sequence[Array]) -> ArrowFactors:
        """Eliminate the local unknowns; those at bounds (N, o) are fixed there."""
        parts: list[EliminatedBatch] = []
        rows = [self.border_rows]
        for i, (batch, R) in enumerate(zip(self.arrow.batches, self.factors, strict=True)):
            o = batch.o
            top, below = R[:, :o], R[:, o:, o:]
            if signs[i].any():
                bound = np.where(signs[i] < 0, lower[i], np.where(signs[i] > 0, upper[i], 0.0))
                local_block, constant = with_held(top[:, :, :o], top[:, :, -1], signs[i] != 0, bound)
                other_columns = np.zeros((len(R), 2 * o, R.shape[2] - o))
                other_columns[:, :o, :-1], other_columns[:, :, -1] = top[:, :, o:-1], constant
                stacked_factor = batched_qr(np.concatenate([local_block, other_columns], axis=2))
                top, extra_rows = stacked_factor[:, :o], stacked_factor[:, o:, o:]
                below = np.concatenate([below, extra_rows], axis=1)
            parts.append(EliminatedBatch(batch, top[:, :, :o], top[:, :, o:-1], top[:, :, -1]))
            rows.append(at_border(below, batch.border_entries, self.arrow.n_b))
        return ArrowFactors(self.arrow, tuple(parts), triangle(np.concatenate(rows)))

    def minimise_locally(
        self, border: Array, lower: Sequence[Array], upper: Sequence[Array], guess: Sequence[Signs]
    ) -> tuple[float, list[Array], list[Signs]]:
        """Return the smallest half-square for a given border, and the local unknowns there."""
        square = float(np.sum((self.border_rows @ np.append(border, 1.0)) ** 2))
        xs: list[Array] = []
        signs: list[Signs] = []
        for i, (batch, R) in enumerate(zip(self.arrow.batches, self.factors, strict=True)):
            o = batch.o
            border_vector = np.concatenate([border[batch.border_entries], np.ones((len(R), 1))], axis=1)
            r = (R[:, :, o:] @ border_vector[:, :, None])[:, :, 0]
            x, sign = solve_boxed_batch(R[:, :o, :o], r[:, :o], lower[i], upper[i], guess[i])
            local_residual = r[:, :o] + (R[:, :o, :o] @ x[:, :, None])[:, :, 0]
            square += float(np.vdot(local_residual, local_residual)) + float(np.vdot(r[:, o:], r[:, o:]))
            xs.append(x)
            signs.append(sign)
        return 0.5 * square, xs, signs

    def pull(self, local_x: Sequence[Array], border: Array) -> list[Array]:
        """Return the gradient of the half-square with respect to local unknowns, per batch (N, o)."""
        gradients: list[Array] = []
        for batch, R, x in zip(self.arrow.batches, self.factors, local_x, strict=True):
            o = batch.o
            chain_x = np.concatenate([x, border[batch.border_entries], np.ones((len(R), 1))], axis=1)
            residual = (R[:, :o] @ chain_x[:, :, None])[:, :, 0]
            gradients.append((R[:, :o, :o].swapaxes(1, 2) @ residual[:, :, None])[:, :, 0])
        return gradients


def at_border(rows: Array, border_columns: Index, n_b: int) -> Array:
    """Write rows (N, k, s + 1) as rows over the whole border (rows, n_b + 1); fewer if all have the same entries."""
    if not len(rows):
        return np.zeros((0, n_b + 1))
    if (border_columns == border_columns[0]).all():
        merged_rows = triangle(rows.reshape(-1, rows.shape[2]))
        border_rows = np.zeros((len(merged_rows), n_b + 1))
        border_rows[:, np.append(border_columns[0], n_b)] = merged_rows
        return border_rows
    border_rows = np.zeros((len(rows), rows.shape[1], n_b + 1))
    columns = np.concatenate([border_columns, np.full((len(border_columns), 1), n_b)], axis=1)
    np.put_along_axis(border_rows, np.broadcast_to(columns[:, None], rows.shape), rows, axis=2)
    return border_rows.reshape(-1, n_b + 1)


@dataclass(frozen=True)
class EliminatedBatch:
    """Eliminated batch:  R xi + B xi_border[entries] + c = 0;  R (N, o, o), B (N, o, s), c (N, o)."""

    batch: ChainBatch
    R: Array
    B: Array
    c: Array

    @cached_property
    def inverse(self) -> Array:
        """R^-1, (N, o, o): the root of the covariance of local unknowns, given the shared ones."""
        return cast("Array", np.linalg.inv(self.R))

    @cached_property
    def response(self) -> Array:
        """L (N, o, s): derivatives of local unknowns with respect to the border."""
        return -(self.inverse @ self.B)

    @cached_property
    def offset(self) -> Array:
        """Values of local unknowns, (N, o), if the border is zero."""
        return -(self.inverse @ self.c[:, :, None])[:, :, 0]


@dataclass(frozen=True)
class ArrowFactors:
    """Result of elimination: one part per batch, and the border's rows (n_b + 1, n_b + 1), residuals last.

    In scaled unknowns.
    """

    arrow: ArrowMatrix
    parts: tuple[EliminatedBatch, ...]
    border: Array

    @cached_property
    def metric(self) -> Array:
        """I + sum_i L_i^T L_i, (n_b, n_b): squared length of a border direction with the local unknowns it implies."""
        M = np.eye(self.arrow.n_b)
        for part in self.parts:
            products = part.response.swapaxes(1, 2) @ part.response
            border_columns = part.batch.border_entries
            np.add.at(M, (border_columns[:, :, None], border_columns[:, None, :]), products)
        return M

    @cached_property
    def pull(self) -> Array:
        """sum_i L_i^T l_i, (n_b,)."""
        out = np.zeros(self.arrow.n_b)
        for part in self.parts:
            np.add.at(out, part.batch.border_entries, (part.response.swapaxes(1, 2) @ part.offset[:, :, None])[:, :, 0])
        return out

    def gather(self, local_x: Sequence[Array], border: Array) -> Array:
        """Return x (n_x,), not scaled, from scaled local unknowns per batch (N, o) and border (n_b,)."""
        x = np.zeros(self.arrow.scale.size)
        x[self.arrow.border] = border
        for part, values in zip(self.parts, local_x, strict=True):
            x[part.batch.local_unknowns] = values
        return x * self.arrow.scale


def solve_arrow(columns: Sequence[Index], blocks: Sequence[Array], K: SparseRows, diagonal: Array, b: Array) -> Array:
    """Solve (sum_i M_i + K + diagonal) x = b for x (n,); LinAlgError if the matrix is not positive definite.

    columns, blocks: positions and matrices (n_i, n_i) of the chains.  If many unknowns belong to single chains, the
    sparse matrix is factored with its pivots on the diagonal.
    """
    n = diagonal.size
    if np.count_nonzero(_single_owners(columns, n) >= 0) <= MAX_DENSE_LOCAL_UNKNOWNS:
        S = np.diag(diagonal)
        np.add.at(S, (K.row, K.column), K.entry)
        for indices, block in zip(columns, blocks, strict=True):
            S[np.ix_(indices, indices)] += block
        return positive_solution(S, b) if n else b
    row = np.concatenate([np.arange(n), K.row, *(np.repeat(indices, indices.size) for indices in columns)])
    column = np.concatenate([np.arange(n), K.column, *(np.tile(indices, indices.size) for indices in columns)])
    entry = np.concatenate([diagonal, K.entry, *(block.ravel() for block in blocks)])
    matrix = scipy.sparse.csc_array((entry, (row, column)), shape=(n, n))
    try:
        factors: Any = scipy.sparse.linalg.splu(matrix, "MMD_AT_PLUS_A", 0.0, options={"SymmetricMode": True})
    except RuntimeError as error:  # exactly singular
        raise np.linalg.LinAlgError(str(error)) from None
    if not (np.array_equal(factors.perm_r, factors.perm_c) and (factors.U.diagonal() > 0.0).all()):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return factors.solve(b)
