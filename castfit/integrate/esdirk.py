"""ESDIRK methods as tables: coefficients, error estimate, continuous extension, and how stages are predicted.

Notation: s stages, K_i the rates at stage i; a (s, s), b, c (s,), bhat the embedded method, gamma the diagonal.  The
first stage is explicit, the last one is the step itself (b is the last row of a).

Coefficients: ESDIRK4(3)6L[2]SA of Kennedy and Carpenter 2016, NASA/TM-2016-219173, and
ESDIRK5(4)7L[2]SA2 of the same authors 2019, Applied Numerical Mathematics 136: orders 4 and 5, embedded orders one
lower, stage order 2, L-stable.

**Between the ends** of a step, with th = (t - t_0) / h,

    y(th) = Hermite's cubic through y_0, y_1 with the slopes K_1, K_s  +  th^2 (1 - th)^2 H sum d_i K_i .

Hermite's cubic errs by th^2 (1 - th)^2 h^4 y'''' / 24 to leading order, which the last term has to equal.  With
stages of order 2 that takes, beside  sum d_i c_i^k = 0  for k = 0, 1, 2,

    sum d_i c_i^3 = 1/4,      sum d_i (sum_j a_ij c_j^2 - c_i^3 / 3) = 0 ,

five conditions on s unknowns, of which the smallest solution is taken.

**Predictions** of K_i are the polynomial through the K_j before it, at c_i.

**Their matrices**  M = I - H gamma J  have the pattern of the model's Jacobian and of the identity, step after step.
So pivots, fill and every operation of the elimination are known beforehand, once per model; esdirk.c runs through them
as lists of positions without a search.

Pivots are the diagonal entries of the states and, of the algebraic equations, entries that match each to a state of its
own.  Of these the one comes next that can fill least, (r - 1)(c - 1) with r, c entries left in its row and column
(Markowitz 1957).  Where most of what is left is full, all of it counts as full: no lists are needed there, and rows are
eliminated side by side, many times as fast.  What a fixed order cannot foresee is seen during elimination: where a
multiplier says that another pivot would have been better, that matrix is factorized with pivoting.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy

from castfit._support.records import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array

    Integers = NDArray[np.int64]
    Places = NDArray[np.int32]

_MIN_DENSE_ROWS = 16  # number of remaining rows from which their block may count as dense
_MIN_DENSE_SHARE = 0.7  # share of nonzero entries from which this block counts as dense
_LISTED_OPERATION_COST = 4.0  # cost of a product at listed positions, relative to one in a dense row


@dataclass(frozen=True, eq=False)
class Tableau:
    """A method: a (s, s), c (s,), the embedded weights bhat (s,), and the order of the embedded method.

    extension (s,) : the weights d of the continuous extension, where its stages are not all of order 2
    """

    a: Array
    c: Array
    bhat: Array
    embedded_order: int
    extension: Array | None = None

    @property
    def stages(self) -> int:
        """Number of stages s."""
        return self.c.size

    @property
    def gamma(self) -> float:
        """The diagonal."""
        return float(self.a[-1, -1])

    @property
    def b(self) -> Array:
        """The weights, which are the last stage's."""
        return self.a[-1]

    @cached_property
    def error(self) -> Array:
        """The weights of the error estimate, (s,)."""
        return self.a[-1] - self.bhat

    @cached_property
    def dense(self) -> Array:
        """The weights d of the continuous extension, (s,)."""
        if self.extension is not None:
            return self.extension
        c = self.c
        stage = self.a @ c**2 - c**3 / 3
        conditions = np.array([np.ones_like(c), c, c**2, c**3, stage])
        return np.asarray(np.linalg.lstsq(conditions, np.array([0.0, 0.0, 0.0, 0.25, 0.0]), rcond=None)[0], dtype=float)

    @cached_property
    def predict(self) -> Array:
        """Coefficients of the prediction of each K_i from the previous ones, (s, s)."""
        s, gamma = self.c.size, self.a[-1, -1]
        out = np.zeros((s, s))
        for i in range(1, s if gamma else 0):
            for j in range(i):
                other_nodes = np.delete(self.c[:i], j)
                out[i, j] = np.prod((self.c[i] - other_nodes) / (self.c[j] - other_nodes))
        return out


def _esdirk4() -> Tableau:
    r = np.sqrt(2.0)
    a = np.zeros((6, 6))
    a[1, :2] = 1 / 4
    a[2, :3] = (1 - r) / 8, (1 - r) / 8, 1 / 4
    a[3, :4] = (5 - 7 * r) / 64, (5 - 7 * r) / 64, 7 * (1 + r) / 32, 1 / 4
    coefficient = (-13796 - 54539 * r) / 125000
    a[4, :5] = coefficient, coefficient, (506605 + 132109 * r) / 437500, 166 * (-97 + 376 * r) / 109375, 1 / 4
    coefficient = (1181 - 987 * r) / 13782
    a[5, :3] = coefficient, coefficient, 47 * (-267 + 1783 * r) / 273343
    a[5, 3:] = -16 * (-22922 + 3525 * r) / 571953, -15625 * (97 + 376 * r) / 90749876, 1 / 4
    bhat = [
        -480923228411 / 4982971448372,
        -480923228411 / 4982971448372,
        6709447293961 / 12833189095359,
        3513175791894 / 6748737351361,
        -498863281070 / 6042575550617,
        2077005547802 / 8945017530137,
    ]
    c = np.array([0.0, 1 / 2, (2 - r) / 4, 5 / 8, 26 / 25, 1.0])
    return Tableau(a, c, np.array(bhat), 3)


ESDIRK4 = _esdirk4()
"""ESDIRK4(3)6L[2]SA."""


def _esdirk5() -> Tableau:
    a = np.zeros((7, 7))
    g = 23 / 125
    a[1, :2] = g
    a[2, :3] = 791020047304 / 3561426431547, 791020047304 / 3561426431547, g
    coefficient = -158159076358 / 11257294102345
    a[3, :4] = coefficient, coefficient, -85517644447 / 5003708988389, g
    coefficient = -1653327111580 / 4048416487981
    a[4, :5] = coefficient, coefficient, 1514767744496 / 9099671765375, 14283835447591 / 12247432691556, g
    coefficient = -4540011970825 / 8418487046959
    a[5, :3] = coefficient, coefficient, -1790937573418 / 7393406387169
    a[5, 3:6] = 10819093665085 / 7266595846747, 4109463131231 / 7386972500302, g
    coefficient = -188593204321 / 4778616380481
    a[6, :4] = coefficient, coefficient, 2809310203510 / 10304234040467, 1021729336898 / 2364210264653
    a[6, 4:] = 870612361811 / 2470410392208, -1307970675534 / 8059683598661, g
    bhat = [
        -582099335757 / 7214068459310,
        -582099335757 / 7214068459310,
        615023338567 / 3362626566945,
        3192122436311 / 6174152374399,
        6156034052041 / 14430468657929,
        -1011318518279 / 9693750372484,
        1914490192573 / 13754262428401,
    ]
    c = np.array(
        [0.0, 46 / 125, 7121331996143 / 11335814405378, 49 / 353, 3706679970760 / 5295570149437, 347 / 382, 1.0]
    )
    return Tableau(a, c, np.array(bhat), 4)


ESDIRK5 = _esdirk5()
"""ESDIRK5(4)7L[2]SA2."""


def _tsitouras5() -> Tableau:
    c = np.array([0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0, 1.0])
    a = np.zeros((7, 7))
    a[2, 1] = 0.3354806554923570
    a[3, 1:3] = -6.359448489975075, 4.362295432869581
    a[4, 1:4] = -11.74888356406283, 7.495539342889836, -0.09249506636175525
    a[5, 1:5] = -12.92096931784711, 8.159367898576159, -0.07158497328140100, -0.02826905039406838
    a[:6, 0] = c[:6] - a[:6].sum(axis=1)
    a[6, :6] = (
        0.09646076681806523,
        0.01,
        0.4798896504144996,
        1.379008574103742,
        -3.290069515436081,
        2.324710524099774,
    )
    difference = (
        -0.001780011052226,
        -0.000816434459657,
        0.007880878010262,
        -0.144711007173263,
        0.582357165452555,
        -0.458082105929187,
        1 / 66,
    )
    between = (
        -1.0530884977290216,
        0.1017,
        2.49062728565125,
        -16.548102889244903,
        47.37952196281928,
        -34.87065786149661,
        2.5,
    )
    return Tableau(a, c, a[6] + np.array(difference), 4, np.array(between))


TSITOURAS5 = _tsitouras5()
"""The explicit pair 5(4) of Tsitouras."""


@dataclass(frozen=True)
class Elimination:
    """Plan of the factorization of M (n, n) as L U, both stored row by row in one array of values.

    rows, columns : (n,) the row and the column of M that the k-th pivot is in
    begin : (n + 1,) where each row's values begin;  pivot : (n,) where its pivot is, behind those of L, before U's
    entry_columns : (entries,) the column of M that each value belongs to
    earlier : (entries,) the row that it eliminates with
    entry : (nnz,) where each entry of the Jacobian goes;  one : (n_x,) where the identity's do
    targets : (operations,) where the products are subtracted, in the order of elimination, up to the tail
    tail : rows from here on end in a dense block, in which products stand side by side
    """

    rows: Places
    columns: Places
    begin: Places
    pivot: Places
    entry_columns: Places
    earlier: Places
    entry: Places
    one: Places
    targets: Places
    tail: int

    @property
    def products(self) -> float:
        """Cost of the factorization, in products at listed places."""
        left = range(self.rows.size - self.tail)  # by a dense factorization
        return self.targets.size + sum(k * k for k in left) / _LISTED_OPERATION_COST


def elimination(n: int, n_x: int, row: Integers, column: Integers) -> Elimination | None:
    """Return the elimination for a Jacobian with entries at (row, column), (nnz,) each; None if none is cheaper.

    The first n_x of n rows are those of states.
    """
    return _compute_elimination(n, n_x, np.int64(row).tobytes(), np.int64(column).tobytes())


@lru_cache(maxsize=8)
def _compute_elimination(n: int, n_x: int, rows: bytes, columns: bytes) -> Elimination | None:
    row, column = np.frombuffer(rows, dtype=np.int64), np.frombuffer(columns, dtype=np.int64)
    pattern: list[set[int]] = [set() for _ in range(n)]
    for i, j in zip(cast("list[int]", row.tolist()), cast("list[int]", column.tolist()), strict=True):
        pattern[i].add(j)
    for i in range(n_x):
        pattern[i].add(i)
    partner = _match_pivots(n, n_x, pattern)
    if partner is None:
        return None
    filled, order, tail = _eliminate_symbolically(pattern, partner)
    if filled is None:
        return None
    return _list_positions(n_x, row, column, filled, order, partner, tail)


def _match_pivots(n: int, n_x: int, pattern: list[set[int]]) -> list[int] | None:
    """Return the column of each row's pivot; None if the matrix is structurally singular."""
    if n == n_x:
        return list(range(n))
    algebraic_columns = [[j - n_x for j in pattern[i] if j >= n_x] for i in range(n_x, n)]
    indices = np.array(
        [j for columns in algebraic_columns for j in columns], dtype=np.int32
    )  # older versions of SciPy's matching expect int32
    begins = np.concatenate([[0], np.cumsum([len(columns) for columns in algebraic_columns])]).astype(np.int32)
    matrix: Any = scipy.sparse.csr_array((np.ones(len(indices)), indices, begins), shape=(n - n_x, n - n_x))
    matching = np.asarray(scipy.sparse.csgraph.maximum_bipartite_matching(matrix, perm_type="column"))
    return None if (matching < 0).any() else [*range(n_x), *(int(j) + n_x for j in matching)]


def _eliminate_symbolically(
    pattern: list[set[int]], partner: list[int]
) -> tuple[list[set[int]] | None, list[int], int]:
    """Return every row with its fill, and the order of rows; no rows if a dense factorization costs less.

    The last entry is the number of rows that are eliminated before the rest counts as dense.
    """
    n = len(pattern)
    rows = [set(columns) for columns in pattern]  # remaining columns, then with fill
    rows_by_column: list[set[int]] = [set() for _ in range(n)]  # rows still to come, per column
    for i, columns in enumerate(rows):
        for j in columns:
            rows_by_column[j].add(i)
    width = [len(columns) for columns in rows]  # columns still to come, per row
    n_entries = sum(width)
    owner = [0] * n  # of each column, the row whose pivot lies there
    for i, j in enumerate(partner):
        owner[j] = i
    order, operations = list[int](), 0
    eliminated_columns, eliminated_rows = set[int](), set[int]()  # columns and rows
    limit = (n**3 / 3 + 10 * n**2) / _LISTED_OPERATION_COST

    costs = [0] * n
    for i in range(n):
        costs[i] = (width[i] - 1) * (len(rows_by_column[partner[i]]) - 1)
    queue = list(zip(costs, range(n), strict=True))
    heapify(queue)
    while len(order) < n:
        n_remaining = n - len(order)
        if n_remaining >= _MIN_DENSE_ROWS and n_entries >= _MIN_DENSE_SHARE * n_remaining**2:
            break
        cost, k = heappop(queue)
        if k in eliminated_rows or cost != costs[k]:  # an outdated entry: the cost has changed since
            continue
        eliminated_rows.add(k)
        order.append(k)
        n_entries -= width[k]
        column = partner[k]
        later_columns = rows[k] - eliminated_columns
        for j in later_columns:
            rows_by_column[j].discard(k)
        eliminated_columns.add(column)
        later_columns.discard(column)
        operations += len(rows_by_column[column]) * len(later_columns)
        if operations > limit:
            return None, order, 0
        for i in rows_by_column[column]:
            fill = later_columns - rows[i]
            rows[i] |= fill
            width[i] += len(fill) - 1
            n_entries += len(fill) - 1
            for j in fill:
                rows_by_column[j].add(i)
        for i in rows_by_column[column] | {owner[j] for j in later_columns}:
            costs[i] = (width[i] - 1) * (len(rows_by_column[partner[i]]) - 1)
            heappush(queue, (costs[i], i))
    tail = len(order)
    if operations + sum(k * k for k in range(n - tail)) > limit:  # a dense factorization can choose pivots as well
        return None, order, 0
    remaining = [i for i in range(n) if i not in eliminated_rows]
    for i in remaining:
        rows[i].update(partner[k] for k in remaining)
    return rows, [*order, *remaining], tail


def _list_positions(
    n_x: int,
    row: Integers,
    column: Integers,
    filled: list[set[int]],
    order: list[int],
    partner: list[int],
    tail: int,
) -> Elimination:
    """Convert an elimination to lists of positions."""
    n = len(order)
    columns, turn, rank = np.array(partner)[order], np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    turn[order] = rank[columns] = np.arange(n)
    row_ranks = [np.sort(rank[np.fromiter(filled[i], np.int64, len(filled[i]))]) for i in order]  # ranks, row by row
    begin = np.concatenate([[0], np.cumsum([len(positions) for positions in row_ranks])])
    pivot = begin[:-1] + np.array([np.searchsorted(positions, k) for k, positions in enumerate(row_ranks)])
    earlier = np.concatenate(row_ranks)
    keys = np.repeat(np.arange(n), np.diff(begin)) * n + earlier  # which ascend
    upper = [earlier[pivot[k] + 1 : begin[k + 1]] for k in range(tail)]
    place = np.empty(n, dtype=np.int64)
    targets = [np.empty(0, dtype=np.int64)]
    for k, ranks in enumerate(row_ranks):
        place[ranks] = np.arange(begin[k], begin[k + 1])
        targets += [place[upper[i]] for i in cast("list[int]", ranks[ranks < min(k, tail)].tolist())]
    lists = (
        np.array(order),
        columns,
        begin,
        pivot,
        columns[earlier],
        earlier,
        np.searchsorted(keys, turn[row] * n + rank[column]),
        np.searchsorted(keys, turn[:n_x] * n + rank[:n_x]),
        np.concatenate(targets),
    )
    return Elimination(*(positions.astype(np.int32) for positions in lists), tail=tail)
