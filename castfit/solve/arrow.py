"""Own unknowns, those of single chains, eliminated by orthogonal factors, chain by chain.

Parameters of one experiment, its free initial state, its sigmas appear in the rows of one chain only.  Ordered by chain
the condensed problem is an arrow; a small QR factorization per chain leaves a triangle for its own unknowns and a few
rows that border what is shared:

      own_1  own_2  own_3  border                        own_1  own_2  own_3  border
    | E_1                   S_1  |  u_1                | R_1                   B_1  |  c_1
    |        E_2            S_2  |  u_2                |        R_2            B_2  |  c_2
    |               E_3     S_3  |  u_3        -->     |               R_3     B_3  |  c_3
    |                        P   |  p                  |                        T   |  t

so that time and memory are linear in the number of chains.  The border, the unknowns xi_b that several chains share, is
a dense problem (`castfit.solve.bounded_lsq`), and own unknowns follow from it:

    xi_i = L_i xi_b + l_i,        L_i = -R_i^-1 B_i,   l_i = -R_i^-1 c_i

Own unknowns that something else ties to other chains (a prior on several experiments together, a relation of their
quantities, path constraints that are active) belong to the border, with all others of their chain.  If many do, the
problem is as dense as it is.

Notation
--------
N chains of a batch, m rows each, o own unknowns, s unknowns of the border that they see;  n_b  width of the border
xi = x / D   scaled unknowns: columns of E D have unit length
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy

from castfit._support.sparse_rows import SparseRows
from castfit.solve.block_pivoting import boxed, with_held
from castfit.solve.matrices import FEW, positive_solution, triangle

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask, Signs
    from castfit.solve.matrices import BlockRows

_ROWS = 8
"""Chains whose numbers of rows agree up to this are factored together, the shorter ones filled up with zeros."""

_POWER = 12
"""Steps of the power iteration for the largest singular value."""


@dataclass(frozen=True)
class Batch:
    """N chains of one shape.

    own (N, o) : positions of their own unknowns in x;  seen (N, s) : which entries of the border they depend on
    rows (N, m) : which residuals their rows are; the number of residuals where there is none
    E (N, m, o + s) : derivatives of these by the scaled unknowns, own ones first
    """

    chains: Index
    own: Index
    seen: Index
    rows: Index
    E: Array

    @property
    def o(self) -> int:
        """Number of own unknowns of each chain."""
        return self.own.shape[1]


@dataclass(frozen=True)
class Arrow:
    """Residuals by unknowns as an arrow: batches of chains with own unknowns, and the rows of the border alone.

    border (n_b,) : positions in x of the unknowns that are not eliminated
    place (n_x,) : where an unknown lies in the border, -1 for own ones;  scale (n_x,) : D
    rest (k, n_b) : rows of the border alone, by scaled unknowns;  at (k,) : which residuals these are
    free : per chain, whether its own unknowns are eliminated
    """

    batches: tuple[Batch, ...]
    border: Index
    place: Index
    scale: Array
    rest: Array
    at: Index
    free: Mask

    @property
    def n_b(self) -> int:
        """Width of the border."""
        return self.border.size

    @property
    def trivial(self) -> bool:
        """Check whether there are too few own unknowns for elimination to be worthwhile."""
        return sum(batch.own.size for batch in self.batches) <= FEW

    def compressed(self, u: Array) -> Compressed:
        """Factor every chain with the residuals u (m,)."""
        known = np.append(u, 0.0)
        factors = [triangles(np.concatenate([b.E, known[b.rows][:, :, None]], axis=2)) for b in self.batches]
        return Compressed(self, tuple(factors), np.column_stack([self.rest, u[self.at]]))

    @cached_property
    def largest(self) -> float:
        """The largest singular value of the scaled matrix, to a percent or so."""
        own = [np.ones(batch.own.shape) for batch in self.batches]
        border, size = np.ones(self.n_b), 1.0
        for _ in range(_POWER):
            norm = np.sqrt(sum(float(np.vdot(x, x)) for x in own) + float(border @ border))
            if not norm > 0.0:
                return 0.0
            own, border = [x / norm for x in own], border / norm
            product = self.rest @ border
            after = self.rest.T @ product
            square = float(product @ product)
            for i, batch in enumerate(self.batches):
                both = np.concatenate([own[i], border[batch.seen]], axis=1)
                rows = (batch.E @ both[:, :, None])[:, :, 0]
                square += float(np.vdot(rows, rows))
                back = (batch.E.swapaxes(1, 2) @ rows[:, :, None])[:, :, 0]
                own[i] = back[:, : batch.o]
                np.add.at(after, batch.seen, back[:, batch.o :])
            border, size = after, np.sqrt(square)
        return float(size)


def arrow(rows: BlockRows, scale: Array, tied: Mask | None = None) -> Arrow:
    """Find the own unknowns of every chain, and sort rows by them: those of `tied` chains belong to the border.

    Rows of the tail that concern own unknowns of one chain only, and shared ones, are rows of that chain.
    """
    owner = _single_owners(rows.columns, rows.width)
    free = np.ones(len(rows.blocks), dtype=np.bool_) if tied is None else ~tied
    tail = rows.tail
    of_row, of_entry = tail.row, owner[tail.column]
    first, last = np.full(tail.shape[0], len(free)), np.full(tail.shape[0], -1)
    own_entry = of_entry >= 0
    np.minimum.at(first, of_row[own_entry], of_entry[own_entry])
    np.maximum.at(last, of_row[own_entry], of_entry[own_entry])
    between = (last > first)[of_row] & own_entry
    free[of_entry[between]] = False
    owner[(owner >= 0) & ~free[owner]] = -1
    border = np.flatnonzero(owner < 0)
    place = np.full(rows.width, -1, dtype=np.intp)
    place[border] = np.arange(border.size)

    belongs = np.where(last >= 0, last, -1)
    belongs[(belongs >= 0) & ~free[belongs]] = -1
    of_tail: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(belongs >= 0).tolist():
        of_tail[int(belongs[row])].append(row)

    m, first_of_tail = rows.height, int(rows.starts[-1])
    groups: dict[tuple[int, int, int], list[tuple[int, Index, Index, Index, Array]]] = defaultdict(list)
    rest: list[tuple[Index, Index, Array]] = []  # columns, positions of rows, block
    for i, (columns, block) in enumerate(zip(rows.columns, rows.blocks, strict=True)):
        at: Index = np.arange(int(rows.starts[i]), int(rows.starts[i + 1]), dtype=np.intp)
        mine = owner[columns] == i
        if not mine.any():
            rest.append((place[columns], at, block * scale[columns]))
            continue
        own, seen = columns[mine], place[columns[~mine]]
        both = np.concatenate([block[:, mine], block[:, ~mine]], axis=1)
        further = of_tail.get(i)
        if further:
            both, seen = _with_tail(both, own, seen, tail.taken(np.array(further)), place)
            at = np.concatenate([at, first_of_tail + np.array(further, dtype=np.intp)])
        scaled = both * scale[np.concatenate([own, border[seen]])]
        height = -(-len(at) // _ROWS) * _ROWS
        groups[height, own.size, seen.size].append((i, own, seen, at, scaled))
    batches: list[Batch] = []
    for (height, _, _), members in groups.items():
        width = members[0][4].shape[1]
        stacked = np.zeros((len(members), height, width))
        at = np.full((len(members), height), m, dtype=np.intp)
        for n, (_, _, _, positions, block) in enumerate(members):
            stacked[n, : len(block)], at[n, : len(block)] = block, positions
        chains, own, seen = (np.array([member[k] for member in members], dtype=np.intp) for k in range(3))
        batches.append(Batch(chains, own, seen.reshape(len(members), -1), at, stacked))
    common = np.flatnonzero(belongs < 0)
    left = tail.taken(common)
    of_border = SparseRows((common.size, border.size), left.row, place[left.column], left.entry).dense
    rest.append((np.arange(border.size), first_of_tail + common, of_border * scale[border]))
    matrix = np.zeros((sum(len(block) for _, _, block in rest), border.size))
    begin = 0
    for columns, _, block in rest:
        matrix[begin : begin + len(block), columns] = block
        begin += len(block)
    positions = np.concatenate([positions for _, positions, _ in rest])
    return Arrow(tuple(batches), border, place, scale, matrix, positions, free)


def _single_owners(columns: Sequence[Index], n: int) -> Index:
    """Return the only chain that an unknown belongs to, (n,), -1 for those of several chains or of none."""
    count, owner = np.zeros(n, dtype=np.intp), np.full(n, -1, dtype=np.intp)
    for i, at in enumerate(columns):
        count[at] += 1
        owner[at] = i
    owner[count != 1] = -1
    return owner


def _with_tail(block: Array, own: Index, seen: Index, further: SparseRows, place: Index) -> tuple[Array, Index]:
    """Append rows (k, n_x) to those of a chain; they may depend on more of the border."""
    at = place[further.column]
    more = np.setdiff1d(at[at >= 0], seen)
    new = np.zeros((further.shape[0], block.shape[1] + more.size))
    for positions, known, first in (
        (further.column, own, 0),
        (at, seen, own.size),
        (at, more, own.size + seen.size),
    ):
        hit = positions[:, None] == known
        entry, which = np.nonzero(hit)
        new[further.row[entry], first + which] = further.entry[entry]
    wider = np.concatenate([block, np.zeros((len(block), more.size))], axis=1)
    return np.concatenate([wider, new]), np.concatenate([seen, more])


def triangles(rows: Array) -> Array:
    """Return R (N, n, n) of rows (N, m, n) = Q R."""
    m, n = rows.shape[1:]
    if m < n:
        rows = np.concatenate([rows, np.zeros((len(rows), n - m, n))], axis=1)
    return cast("Array", np.linalg.qr(rows, mode="r"))


@dataclass(frozen=True)
class Compressed:
    """An arrow with its residuals, every chain factored.

    factors (N, w, w) : per batch triangles over (own, seen, 1), w = o + s + 1
    rest (k, n_b + 1) : rows of the border alone, their residuals last
    """

    arrow: Arrow
    factors: tuple[Array, ...]
    rest: Array

    def with_rows(self, own: Sequence[Array], border: Array) -> Compressed:
        """Add rows of residual zero: of own unknowns per batch (N, k, o), and of the border with residuals."""
        factors: list[Array] = []
        for batch, R, extra in zip(self.arrow.batches, self.factors, own, strict=True):
            if not extra.any():
                factors.append(R)
                continue
            wide = np.zeros((len(R), extra.shape[1], R.shape[2]))
            wide[:, :, : batch.o] = extra
            factors.append(triangles(np.concatenate([R, wide], axis=1)))
        return Compressed(self.arrow, tuple(factors), np.concatenate([self.rest, border]))

    def factored(self, signs: Sequence[Signs], lower: Sequence[Array], upper: Sequence[Array]) -> OwnFactors:
        """Eliminate the own unknowns, those at bounds (N, o) fixed there."""
        parts: list[OwnPart] = []
        rows = [self.rest]
        for i, (batch, R) in enumerate(zip(self.arrow.batches, self.factors, strict=True)):
            o = batch.o
            top, below = R[:, :o], R[:, o:, o:]
            if signs[i].any():
                bound = np.where(signs[i] < 0, lower[i], np.where(signs[i] > 0, upper[i], 0.0))
                own, constant = with_held(top[:, :, :o], top[:, :, -1], signs[i] != 0, bound)
                others = np.zeros((len(R), 2 * o, R.shape[2] - o))
                others[:, :o, :-1], others[:, :, -1] = top[:, :, o:-1], constant
                whole = triangles(np.concatenate([own, others], axis=2))
                top, more = whole[:, :o], whole[:, o:, o:]
                below = np.concatenate([below, more], axis=1)
            parts.append(OwnPart(batch, top[:, :, :o], top[:, :, o:-1], top[:, :, -1]))
            rows.append(at_border(below, batch.seen, self.arrow.n_b))
        return OwnFactors(self.arrow, tuple(parts), triangle(np.concatenate(rows)))

    def best(
        self, border: Array, lower: Sequence[Array], upper: Sequence[Array], guess: Sequence[Signs]
    ) -> tuple[float, list[Array], list[Signs]]:
        """Return the least value of half the squares for a given border, and where own unknowns are then."""
        total = float(np.sum((self.rest @ np.append(border, 1.0)) ** 2))
        xs: list[Array] = []
        signs: list[Signs] = []
        for i, (batch, R) in enumerate(zip(self.arrow.batches, self.factors, strict=True)):
            o = batch.o
            given = np.concatenate([border[batch.seen], np.ones((len(R), 1))], axis=1)
            r = (R[:, :, o:] @ given[:, :, None])[:, :, 0]
            x, sign = boxed(R[:, :o, :o], r[:, :o], lower[i], upper[i], guess[i])
            left = r[:, :o] + (R[:, :o, :o] @ x[:, :, None])[:, :, 0]
            total += float(np.vdot(left, left)) + float(np.vdot(r[:, o:], r[:, o:]))
            xs.append(x)
            signs.append(sign)
        return 0.5 * total, xs, signs

    def pull(self, own: Sequence[Array], border: Array) -> list[Array]:
        """Return the gradient of half the squares by own unknowns, per batch (N, o)."""
        out: list[Array] = []
        for batch, R, x in zip(self.arrow.batches, self.factors, own, strict=True):
            o = batch.o
            whole = np.concatenate([x, border[batch.seen], np.ones((len(R), 1))], axis=1)
            residual = (R[:, :o] @ whole[:, :, None])[:, :, 0]
            out.append((R[:, :o, :o].swapaxes(1, 2) @ residual[:, :, None])[:, :, 0])
        return out


def at_border(rows: Array, seen: Index, n_b: int) -> Array:
    """Write rows (N, k, s + 1) as rows over the whole border (rows, n_b + 1), fewer if all see the same."""
    if not len(rows):
        return np.zeros((0, n_b + 1))
    if (seen == seen[0]).all():
        joined = triangle(rows.reshape(-1, rows.shape[2]))
        out = np.zeros((len(joined), n_b + 1))
        out[:, np.append(seen[0], n_b)] = joined
        return out
    out = np.zeros((len(rows), rows.shape[1], n_b + 1))
    columns = np.concatenate([seen, np.full((len(seen), 1), n_b)], axis=1)
    np.put_along_axis(out, np.broadcast_to(columns[:, None], rows.shape), rows, axis=2)
    return out.reshape(-1, n_b + 1)


@dataclass(frozen=True)
class OwnPart:
    """One batch, eliminated:  R xi + B xi_border[seen] + c = 0;  R (N, o, o), B (N, o, s), c (N, o)."""

    batch: Batch
    R: Array
    B: Array
    c: Array

    @cached_property
    def inverse(self) -> Array:
        """R^-1, (N, o, o): the root of the covariance of own unknowns, were shared ones known."""
        return cast("Array", np.linalg.inv(self.R))

    @cached_property
    def response(self) -> Array:
        """L (N, o, s): how own unknowns answer to those of the border."""
        return -(self.inverse @ self.B)

    @cached_property
    def offset(self) -> Array:
        """Values of own unknowns, (N, o), if those of the border are zero."""
        return -(self.inverse @ self.c[:, :, None])[:, :, 0]

    def own(self, border: Array) -> Array:
        """Return the scaled own unknowns (N, o) that belong to a border (n_b,)."""
        return self.offset + (self.response @ border[self.batch.seen][:, :, None])[:, :, 0]


@dataclass(frozen=True)
class OwnFactors:
    """Result of elimination: one part per batch, and the border's rows (n_b + 1, n_b + 1), residuals last.

    In scaled unknowns.
    """

    arrow: Arrow
    parts: tuple[OwnPart, ...]
    border: Array

    @cached_property
    def metric(self) -> Array:
        """I + sum_i L_i^T L_i, (n_b, n_b): the square length of a border's direction with what follows from it."""
        M = np.eye(self.arrow.n_b)
        for part in self.parts:
            products = part.response.swapaxes(1, 2) @ part.response
            seen = part.batch.seen
            np.add.at(M, (seen[:, :, None], seen[:, None, :]), products)
        return M

    @cached_property
    def pull(self) -> Array:
        """sum_i L_i^T l_i, (n_b,)."""
        out = np.zeros(self.arrow.n_b)
        for part in self.parts:
            np.add.at(out, part.batch.seen, (part.response.swapaxes(1, 2) @ part.offset[:, :, None])[:, :, 0])
        return out

    def gathered(self, own: Sequence[Array], border: Array) -> Array:
        """Return x (n_x,), not scaled, from scaled own unknowns per batch (N, o) and border (n_b,)."""
        x = np.zeros(self.arrow.scale.size)
        x[self.arrow.border] = border
        for part, values in zip(self.parts, own, strict=True):
            x[part.batch.own] = values
        return x * self.arrow.scale


def solve_arrow(columns: Sequence[Index], blocks: Sequence[Array], K: SparseRows, diagonal: Array, b: Array) -> Array:
    """Solve (sum_i M_i + K + diagonal) x = b for x (n,); LinAlgError if the matrix is not positive definite.

    columns, blocks: the chains' matrices (n_i, n_i), and where they lie.  Where many unknowns are those of single
    chains the sparse matrix is factored, its pivots on the diagonal.
    """
    n = diagonal.size
    if np.count_nonzero(_single_owners(columns, n) >= 0) <= FEW:
        S = np.diag(diagonal)
        np.add.at(S, (K.row, K.column), K.entry)
        for at, block in zip(columns, blocks, strict=True):
            S[np.ix_(at, at)] += block
        return positive_solution(S, b) if n else b
    row = np.concatenate([np.arange(n), K.row, *(np.repeat(at, at.size) for at in columns)])
    column = np.concatenate([np.arange(n), K.column, *(np.tile(at, at.size) for at in columns)])
    entry = np.concatenate([diagonal, K.entry, *(block.ravel() for block in blocks)])
    matrix = scipy.sparse.csc_array((entry, (row, column)), shape=(n, n))
    try:
        factors: Any = scipy.sparse.linalg.splu(matrix, "MMD_AT_PLUS_A", 0.0, options={"SymmetricMode": True})
    except RuntimeError as error:  # exactly singular
        raise np.linalg.LinAlgError(str(error)) from None
    if not (np.array_equal(factors.perm_r, factors.perm_c) and (factors.U.diagonal() > 0.0).all()):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return factors.solve(b)
