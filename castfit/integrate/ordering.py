"""The order in which a sparse matrix is factorized, chosen once per model, and what that takes, as lists of positions.

M = I - H gamma J has the pattern of the model's Jacobian and of the identity, step after step.  So pivots, fill and
every operation of the elimination are known beforehand; esdirk.c runs through them without a search.

Pivots are the diagonal entries of the states and, of the algebraic equations, entries that match each to a state of its
own.  Of these the one comes next that can fill least, (r - 1)(c - 1) with r, c entries left in its row and column
(Markowitz 1957).  What a fixed order cannot foresee is seen during elimination: where a multiplier says that another
pivot would have been better, that matrix is factorized with pivoting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Places = NDArray[np.int32]

_EACH = 4.0  # what an operation on listed positions costs, where those of a row side by side cost 1


@dataclass(frozen=True)
class Elimination:
    """How to factorize M (n, n) as L U, both stored row by row in one array of values.

    rows, columns : (n,) the row and the column of M that the k-th pivot is in
    begin : (n + 1,) where each row's values begin;  pivot : (n,) where its pivot is, behind those of L, before U's
    at : (entries,) the column of M that each value belongs to;  earlier : (entries,) the row that it eliminates with
    entry : (nnz,) where each entry of the Jacobian goes;  one : (n_x,) where the identity's do
    targets : (operations,) where the products are subtracted, in the order of elimination
    """

    rows: Places
    columns: Places
    begin: Places
    pivot: Places
    at: Places
    earlier: Places
    entry: Places
    one: Places
    targets: Places


def elimination(n: int, n_x: int, row: Integers, column: Integers) -> Elimination | None:
    """Return the elimination for a Jacobian with entries at (row, column), (nnz,) each; None where none is cheaper.

    The first n_x of n rows are those of states.
    """
    pattern: list[set[int]] = [set() for _ in range(n)]
    for i, j in zip(cast("list[int]", row.tolist()), cast("list[int]", column.tolist()), strict=True):
        pattern[i].add(j)
    for i in range(n_x):
        pattern[i].add(i)
    partner = _partners(n, n_x, pattern)
    if partner is None:
        return None
    filled, order = _filled(pattern, partner)
    if filled is None:
        return None
    return _listed(n_x, row, column, filled, order, partner)


def _partners(n: int, n_x: int, pattern: list[set[int]]) -> list[int] | None:
    """Return the column of each row's pivot; None where the matrix is singular whatever its entries."""
    own = [[j - n_x for j in pattern[i] if j >= n_x] for i in range(n_x, n)]
    if not own:
        return list(range(n))
    indices = [j for of in own for j in of]
    begins = np.concatenate([[0], np.cumsum([len(of) for of in own])])
    matrix: Any = csr_array((np.ones(len(indices)), indices, begins), shape=(n - n_x, n - n_x))
    found = np.asarray(maximum_bipartite_matching(matrix, perm_type="column"))
    return None if (found < 0).any() else [*range(n_x), *(int(j) + n_x for j in found)]


def _filled(pattern: list[set[int]], partner: list[int]) -> tuple[list[set[int]] | None, list[int]]:
    """Return every row with its fill, and the order of rows; no rows where a dense factorization costs less."""
    n = len(pattern)
    rows = [set(of) for of in pattern]  # with what is left, then with what elimination leaves there
    holding = [{i for i in range(n) if j in rows[i]} for j in range(n)]  # rows still to come, per column
    width = [len(of) for of in rows]  # columns still to come, per row
    waiting, order, operations = set(range(n)), list[int](), 0
    done = set[int]()  # columns
    limit = (n**3 / 3 + 10 * n**2) / _EACH
    while waiting:
        k = min(waiting, key=lambda i: ((width[i] - 1) * (len(holding[partner[i]]) - 1), i))
        waiting.discard(k)
        order.append(k)
        column = partner[k]
        ahead = rows[k] - done
        for j in ahead:
            holding[j].discard(k)
        done.add(column)
        ahead.discard(column)
        operations += len(holding[column]) * len(ahead)
        if operations > limit:
            return None, order
        for i in holding[column]:
            new = ahead - rows[i]
            rows[i] |= new
            width[i] += len(new) - 1
            for j in new:
                holding[j].add(i)
    return rows, order


def _listed(
    n_x: int, row: Integers, column: Integers, filled: list[set[int]], order: list[int], partner: list[int]
) -> Elimination:
    """Write an elimination down as positions."""
    rank = {partner[i]: k for k, i in enumerate(order)}  # of columns
    place: dict[tuple[int, int], int] = {}
    begin, pivot, at, earlier = [0], list[int](), list[int](), list[int]()
    for k, i in enumerate(order):
        for j in sorted(filled[i], key=lambda j: rank[j]):
            if rank[j] == k:
                pivot.append(len(at))
            place[i, j] = len(at)
            at.append(j)
            earlier.append(rank[j])
        begin.append(len(at))
    targets = [
        place[i, at[u]]
        for k, i in enumerate(order)
        for position in range(begin[k], pivot[k])
        for u in range(pivot[earlier[position]] + 1, begin[earlier[position] + 1])
    ]
    lists = (
        order,
        [partner[i] for i in order],
        begin,
        pivot,
        at,
        earlier,
        [place[i, j] for i, j in zip(row.tolist(), column.tolist(), strict=True)],
        [place[i, i] for i in range(n_x)],
        targets,
    )
    return Elimination(*(np.array(of, dtype=np.int32) for of in lists))
