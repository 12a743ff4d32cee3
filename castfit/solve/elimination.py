"""A second elimination of the nodes, for horizons over which the condensed product overflows or loses digits.

Condensing writes every node as a function of the first one, so G contains the product of all X_k.  With x'' = mu^2 x,
mu = 60 and a horizon of 1 this is e^60: the columns of E are parallel to 26 digits, although data over the horizon
determine everything.  Here two neighbouring matching conditions

    L_1 s_l + U_1 s_m       + b_1 = 0           left node l, middle m, right r
              L_2 s_m + U_2 s_r + b_2 = 0

are merged by the orthogonal factor of the middle column,  [U_1; L_2] = [Q_1 Q_2] [T; 0]:

    s_m = -Y [L_1 s_l + b_1; U_2 s_r + b_2]          Y = T^-1 Q_1^T
    0   =  N [L_1 s_l + b_1; U_2 s_r + b_2]          N = Q_2^T,     one condition between l and r

Decaying directions take their value from the left, growing ones from the right, each with a coefficient below one:
no product can grow.  Every other node is merged at once in a batch, then every other of the rest, ... down to one
condition between the first and the last node: structured orthogonal factorization by cyclic reduction (Wright 1992).
The first node follows from theta.  The last one stays unknown besides theta, coupled to it by the n_s remaining closure
rows; the data determine how they are satisfied.  A node with large |Y| is determined by neither side (growth followed
by decay) and stays unknown, too.

Measured against a sparse LU of the whole KKT matrix (scipy's splu): at a growth of e^60, where condensing has no digit
left, both are right to 1e-13, but theta's dense columns fill the LU: for K = 1000, n_s = 4, n_q = 11 it takes 1.2 s,
this 5 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from castfit._support.arrays import Array, Index, Mask
from castfit.solve.condensing import Condensed, NodeElimination, Substitution, condense
from castfit.solve.staged import Chain, Layout, Linearization

# Sensitivity of a node to its neighbours, in scaled states, above which it stays unknown.
DEPENDENCE_LIMIT = 1e4


def eliminate(
    layout: Layout, linearization: Linearization, scale: Array | None = None, *, chains: Sequence[int] | None = None
) -> Condensed:
    """Eliminate inner variables and nodes without ever forming the product of all X_k.

    `scale` (n_v,) are typical magnitudes, by default 1; `chains` selects the chains for this method, by default all:
    the others are condensed.  The unknowns are the step of theta, then for every chain the steps of its last node and
    of further nodes that neither neighbour determines.  The closure rows  e + F x = 0  are constraints of the dense
    problem, which is solved with its `scale`.
    """
    magnitudes = np.ones(layout.n_v) if scale is None else scale

    def node_elimination(chain: Chain, X: Array) -> NodeElimination:
        uses_reduction = chains is None or any(chain is layout.chains[i] for i in chains)
        return (
            OrthogonalReduction(X, magnitudes[chain.nodes].max(axis=0))
            if X.size and uses_reduction
            else Substitution(X)
        )

    condensed = condense(layout, linearization, scale, node_elimination=node_elimination)
    return replace(condensed, scale=magnitudes[condensed.positions])


@dataclass(frozen=True)
class _NodeConditions:
    """Conditions  L_i s_{nodes[i]} + U_i s_{nodes[i+1]} + b_i = 0  between successive nodes, in scaled states.

    nodes : (c + 1,);  L, U : (c, n_s, n_s)
    """

    nodes: Index
    L: Array
    U: Array


@dataclass(frozen=True)
class _ConditionMerge:
    """Nodes `middle` that left the conditions by merging condition i with i + 1, for i in `pairs`.

    left, middle, right : (n,) nodes of the chain;  pairs : (n,)
    Y, N : (n, n_s, 2 n_s)  as in the module's docstring
    from_left, from_right : (n, n_s, n_s)  d s_middle / d s_left, d s_middle / d s_right
    """

    left: Index
    middle: Index
    right: Index
    pairs: Index
    Y: Array
    N: Array
    from_left: Array
    from_right: Array


def _merge(conditions: _NodeConditions, pairs: Index, Y: Array, N: Array) -> tuple[_ConditionMerge, _NodeConditions]:
    n_s, middle = conditions.L.shape[1], pairs + 1
    L_left, U_right = conditions.L[pairs], conditions.U[middle]
    merge = _ConditionMerge(
        conditions.nodes[pairs],
        conditions.nodes[middle],
        conditions.nodes[middle + 1],
        pairs,
        Y,
        N,
        from_left=-Y[:, :, :n_s] @ L_left,
        from_right=-Y[:, :, n_s:] @ U_right,
    )
    L, U = conditions.L.copy(), conditions.U.copy()
    L[pairs], U[pairs] = N[:, :, :n_s] @ L_left, N[:, :, n_s:] @ U_right
    nodes = np.delete(conditions.nodes, middle)
    return merge, _NodeConditions(nodes, np.delete(L, middle, axis=0), np.delete(U, middle, axis=0))


class OrthogonalReduction(NodeElimination):
    """Cyclic reduction of one chain's matching conditions by orthogonal factors.

    X (K - 1, n_s, n_s) are derivatives of stage ends by stage starts, K > 1, n_s > 0; scale (n_s,) typical magnitudes
    of the states, so that orthogonality compares like with like.
    """

    def __init__(self, X: Array, scale: Array) -> None:
        count, n_s = len(X), len(scale)
        self.X, self.scale = X, scale[:, None]
        conditions = _NodeConditions(
            np.arange(count + 1), X * (scale / self.scale), np.tile(-np.eye(n_s), (count, 1, 1))
        )
        is_retained = np.zeros(count + 1, dtype=bool)
        is_retained[[0, -1]] = True
        self.merges: list[_ConditionMerge] = []
        while not is_retained[conditions.nodes].all():
            pairs = _every_other(~is_retained[conditions.nodes]) - 1
            Y, N = _orthogonal(np.concatenate([conditions.U[pairs], conditions.L[pairs + 1]], axis=1))
            is_determined = np.abs(Y).max(axis=(1, 2)) <= DEPENDENCE_LIMIT
            is_retained[conditions.nodes[pairs[~is_determined] + 1]] = True
            merge, conditions = _merge(conditions, pairs[is_determined], Y[is_determined], N[is_determined])
            self.merges.append(merge)
        self.kept_nodes = conditions.nodes[1:]
        self.from_first = conditions.L[0]
        n_e = self.kept_nodes.size * n_s
        unit = np.tile(scale, self.kept_nodes.size)
        closure = np.zeros((n_e, n_e))
        for i in range(self.kept_nodes.size):
            block = slice(i * n_s, (i + 1) * n_s)
            closure[block, block] = conditions.U[i]
            if i > 0:
                closure[block, (i - 1) * n_s : i * n_s] = conditions.L[i]
        self.closure = closure / unit
        s = np.zeros((count + 1, n_s, n_e))
        s[self.kept_nodes] = np.eye(n_e).reshape(-1, n_s, n_e)
        self.basis = self._descend(s, None) * self.scale / unit

    def solve(self, b: Array) -> tuple[Array, Array]:
        """Merge the constants of the conditions, then find the nodes from coarse to fine."""
        b = b / self.scale
        constants = b[1:].copy()
        merged_constants: list[Array] = []
        for m in self.merges:
            pair_constants = np.concatenate([constants[m.pairs], constants[m.pairs + 1]], axis=1)
            constants[m.pairs] = m.N @ pair_constants
            constants = np.delete(constants, m.pairs + 1, axis=0)
            merged_constants.append(pair_constants)
        constants[0] += self.from_first @ b[0]
        s = np.zeros_like(b)
        s[0] = b[0]
        return self._descend(s, merged_constants) * self.scale, constants.reshape(-1, b.shape[2])

    def adjoint(self, gradient: Array, closure: Array) -> Array:
        """Move the gradients to the nodes that stay, then split the multipliers of merged conditions."""
        _, n_s, p = gradient.shape
        node_gradients = gradient * self.scale
        for m in self.merges:
            node_gradients[m.left] += m.from_left.swapaxes(1, 2) @ node_gradients[m.middle]
            node_gradients[m.right] += m.from_right.swapaxes(1, 2) @ node_gradients[m.middle]
        condition_multipliers = closure.reshape(self.kept_nodes.size, n_s, p)
        for m in reversed(self.merges):
            positions = m.pairs - np.arange(m.pairs.size)  # the pair's condition, once earlier pairs have merged
            pair_multipliers = (
                m.N.swapaxes(1, 2) @ condition_multipliers[positions] - m.Y.swapaxes(1, 2) @ node_gradients[m.middle]
            )
            condition_multipliers = np.insert(condition_multipliers, positions + 1, pair_multipliers[:, n_s:], axis=0)
            condition_multipliers[m.pairs] = pair_multipliers[:, :n_s]
        matching = condition_multipliers / self.scale
        return np.concatenate([gradient[:1] + self.X[:1].swapaxes(1, 2) @ matching[:1], matching])

    def _descend(self, s: Array, merged_constants: list[Array] | None) -> Array:
        """Fill in the merged nodes, in scaled states, from those that stay and the merged constants."""
        for level in reversed(range(len(self.merges))):
            m = self.merges[level]
            s[m.middle] = m.from_left @ s[m.left] + m.from_right @ s[m.right]
            if merged_constants is not None:
                s[m.middle] -= m.Y @ merged_constants[level]
        return s


def _every_other(free: Mask) -> Index:
    """Return positions of free entries, none of them adjacent: the first, third, ... of every run."""
    position = np.arange(free.size)
    before_run = np.maximum.accumulate(np.where(free, 0, position))
    return np.flatnonzero(free & ((position - before_run) % 2 == 1))


def _orthogonal(columns: Array) -> tuple[Array, Array]:
    """Return Y and N of block columns (n, 2 n_s, n_s); Y is infinite if a column is rank-deficient."""
    n_s = columns.shape[2]
    Q, R = np.linalg.qr(columns, mode="complete")
    T = R[:, :n_s]
    regular = (np.abs(np.diagonal(T, axis1=1, axis2=2)) > DEPENDENCE_LIMIT**-2).all(axis=1)
    Y = np.full((len(columns), n_s, 2 * n_s), np.inf)
    Y[regular] = np.linalg.solve(T[regular], Q[regular, :, :n_s].swapaxes(1, 2))
    return Y, Q[:, :, n_s:].swapaxes(1, 2)
