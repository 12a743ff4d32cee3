"""Positive definite systems over the estimated quantities of many chains, own ones eliminated chain by chain.

    (sum_i M_i + K + diag(d)) x = b        M_i (n_i, n_i) of chain i, K of priors, sparse

With own quantities o and a border b that chains share, a Cholesky factor of M_oo per chain gives

    x_o = M_oo^-1 (b_o - M_ob x_b),     (M_bb - M_bo M_oo^-1 M_ob) x_b = b_b - M_bo M_oo^-1 b_o

so that time and memory are linear in the number of chains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from castfit.solve.own import FEW

if TYPE_CHECKING:
    from castfit._support.sparse_rows import SparseRows
    from castfit.solve.staged import Array, Index


def solve_arrow(columns: Sequence[Index], blocks: Sequence[Array], K: SparseRows, diagonal: Array, b: Array) -> Array:
    """Solve for x (n,).

    Parameters
    ----------
    columns, blocks : sequences of (n_i,) int arrays and (n_i, n_i) arrays
        The chains' matrices, and where they lie.
    K : SparseRows (n, n)
        Entries that ties own quantities of different chains keep these in the border.
    diagonal, b : (n,) arrays

    Raises
    ------
    scipy.linalg.LinAlgError
        If the matrix is not positive definite.
    """
    owner = _owners(columns, K)
    border = np.flatnonzero(owner < 0)
    if owner.size - border.size <= FEW:
        owner[:], border = -1, np.arange(owner.size)
    place = np.full(owner.size, -1)
    place[border] = np.arange(border.size)
    S, right = np.diag(diagonal[border]), b[border].copy()
    of_entry = np.maximum(owner[K.row], owner[K.column])
    outside = of_entry < 0
    np.add.at(S, (place[K.row[outside]], place[K.column[outside]]), K.entry[outside])
    entries: dict[int, list[int]] = defaultdict(list)
    for k in np.flatnonzero(~outside).tolist():
        entries[int(of_entry[k])].append(k)
    back: list[tuple[Index, Index, Array]] = []
    for i, (at, block) in enumerate(zip(columns, blocks, strict=True)):
        mine = owner[at] == i
        if not mine.any():
            S[np.ix_(place[at], place[at])] += block
            continue
        own, seen = at[mine], place[at[~mine]]
        M_oo = block[np.ix_(mine, mine)] + np.diag(diagonal[own])
        M_ob = block[np.ix_(mine, ~mine)]
        if i in entries:
            M_oo, M_ob, seen = _with_entries(M_oo, M_ob, own, seen, K, np.array(entries[i], dtype=np.intp), place)
        solved = linalg.cho_solve(linalg.cho_factor(M_oo), np.column_stack([M_ob, b[own]]))
        S[np.ix_(seen, seen)] -= M_ob.T @ solved[:, :-1]
        S[np.ix_(place[at[~mine]], place[at[~mine]])] += block[np.ix_(~mine, ~mine)]
        right[seen] -= M_ob.T @ solved[:, -1]
        back.append((own, seen, solved))
    x = np.empty(owner.size)
    shared = linalg.cho_solve(linalg.cho_factor(S), right) if border.size else right
    x[border] = shared
    for own, seen, solved in back:
        x[own] = solved[:, -1] - solved[:, :-1] @ shared[seen]
    return x


def _owners(columns: Sequence[Index], K: SparseRows) -> Index:
    """Return the only chain that a quantity belongs to, -1 for those of several and those tied to others', (n,)."""
    n = K.shape[0]
    count, owner = np.zeros(n, dtype=np.intp), np.full(n, -1, dtype=np.intp)
    for i, at in enumerate(columns):
        count[at] += 1
        owner[at] = i
    owner[count != 1] = -1
    one, other = owner[K.row], owner[K.column]
    between = (one >= 0) & (other >= 0) & (one != other)
    tied = np.zeros(len(columns) + 1, dtype=np.bool_)
    tied[one[between]] = tied[other[between]] = True
    owner[(owner >= 0) & tied[owner]] = -1
    return owner


def _with_entries(
    M_oo: Array, M_ob: Array, own: Index, seen: Index, K: SparseRows, entries: Index, place: Index
) -> tuple[Array, Array, Index]:
    """Add entries of K in rows of own quantities; they may see more of the border."""
    row, column, entry = K.row[entries], K.column[entries], K.entry[entries]
    local = {int(j): k for k, j in enumerate(own)}
    mine = np.array([int(j) in local for j in row], dtype=np.bool_)  # the others are the mirrored ones
    row, column, entry = row[mine], column[mine], entry[mine]
    at = place[column]
    more = np.setdiff1d(at[at >= 0], seen)
    seen = np.concatenate([seen, more]).astype(np.intp)
    of_border = {int(j): k for k, j in enumerate(seen)}
    oo, ob = M_oo.copy(), np.concatenate([M_ob, np.zeros((own.size, more.size))], axis=1)
    for i, j, p, value in zip(row.tolist(), column.tolist(), at.tolist(), entry.tolist(), strict=True):
        if p >= 0:
            ob[local[i], of_border[p]] += value
        else:
            oo[local[i], local[j]] += value
    return oo, ob, seen
