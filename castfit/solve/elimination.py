"""A second elimination of the nodes, for horizons over which the condensed product overflows or loses digits.

Condensing writes every node as a function of the first one, so G contains the product of all X_k.  With x'' = mu^2 x,
mu = 60 and a horizon of 1 that is e^60: the columns of E are parallel to 26 digits, though data over the horizon
determine everything.  Here two neighbouring matching conditions

    L_1 s_l + U_1 s_m       + b_1 = 0           left node l, middle m, right r
              L_2 s_m + U_2 s_r + b_2 = 0

are merged by the orthogonal factor of the middle column,  [U_1; L_2] = [Q_1 Q_2] [T; 0]:

    s_m = -Y [L_1 s_l + b_1; U_2 s_r + b_2]          Y = T^-1 Q_1^T
    0   =  N [L_1 s_l + b_1; U_2 s_r + b_2]          N = Q_2^T,     one condition between l and r

Decaying directions take their value from the left, growing ones from the right, each with a coefficient below one:
no product can grow.  Every other node is merged at once in a batch, then every other of the rest, ... down to one
condition between the first and the last node: structured orthogonal factorization by cyclic reduction (Wright 1992).
The first node follows from theta.  The last one stays unknown next to theta, tied to it by the n_s closure rows that
are left; data decide how to meet them.  A node whose |Y| is large is determined by neither side (growth followed by
decay) and stays unknown, too.

Choice of method.  Measured against a sparse LU of the whole KKT matrix (scipy's splu, columns scaled): ... 
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.condensing import Condensed, NodeElimination, Substitution, condense

if TYPE_CHECKING:
    from castfit.staged import Array, Chain, Index, Layout, Linearization

GROWTH_LIMIT = 1e6
"""Growth of node sensitivities over a horizon above which `choose` leaves condensing."""

DEPENDENCE_LIMIT = 1e4
"""Sensitivity of a node to its neighbours, in scaled states, above which it stays unknown."""


@dataclass(frozen=True)
class _Merge:
    """Nodes removed at one level: middle ones m between l and r, which pairs of conditions they merged, and how.

    left, middle, right : (n,) positions of nodes in the chain
    first : (n,) positions of the pairs among the conditions of this level; its partner is the next one
    Y, N : (n, n_s, 2 n_s)
    from_left, from_right : (n, n_s, n_s)  d s_m / d s_l, d s_m / d s_r
    """

    left: Index
    middle: Index
    right: Index
    first: Index
    Y: Array
    N: Array
    from_left: Array
    from_right: Array


class OrthogonalReduction(NodeElimination):
    """Cyclic reduction of one chain's matching conditions by orthogonal factors.

    Parameters
    ----------
    X : (K - 1, n_s, n_s) array
        Derivatives of stage ends with respect to stage starts; K > 1, n_s > 0.
    scale : (n_s,) array
        Typical magnitudes of the states, so that orthogonality compares like with like.
    """

    def __init__(self, X: Array, scale: Array) -> None:
        conditions, n_s, _ = X.shape
        self.X, self.scale = X, scale
        L = X * (scale / scale[:, None])
        U = np.broadcast_to(-np.eye(n_s), L.shape)
        nodes = np.arange(conditions + 1)
        stays = np.zeros(conditions + 1, dtype=bool)
        stays[[0, -1]] = True
        self.merges: list[_Merge] = []
        while not stays[nodes].all():
            middle = _every_other(~stays[nodes])
            Y, N = _orthogonal(np.concatenate([U[middle - 1], L[middle]], axis=1))
            clear = np.abs(Y).max(axis=(1, 2)) <= DEPENDENCE_LIMIT
            stays[nodes[middle[~clear]]] = True
            middle, Y, N = middle[clear], Y[clear], N[clear]
            first = middle - 1
            left, right = L[first], U[middle]
            self.merges.append(
                _Merge(
                    nodes[first],
                    nodes[middle],
                    nodes[middle + 1],
                    first,
                    Y,
                    N,
                    from_left=-Y[:, :, :n_s] @ left,
                    from_right=-Y[:, :, n_s:] @ right,
                )
            )
            L, U = L.copy(), U.copy()
            L[first], U[first] = N[:, :, :n_s] @ left, N[:, :, n_s:] @ right
            L, U, nodes = np.delete(L, middle, axis=0), np.delete(U, middle, axis=0), np.delete(nodes, middle)
        self.kept = nodes[1:]
        self.first_condition = L[0]
        count = self.kept.size
        closure = np.zeros((count, n_s, count, n_s))
        closure[np.arange(count), :, np.arange(count)] = U
        closure[np.arange(1, count), :, np.arange(count - 1)] = L[1:]
        self.closure = closure.reshape(count * n_s, count * n_s) / np.tile(scale, count)
        s = np.zeros((conditions + 1, n_s, count, n_s))
        s[self.kept, :, np.arange(count)] = np.eye(n_s)
        self.basis = self._descend(s.reshape(conditions + 1, n_s, count * n_s)) / np.tile(scale, count) * scale[:, None]

    def solve(self, b: Array) -> tuple[Array, Array]:
        """Merge the constants of the conditions, then find the nodes from coarse to fine."""
        n_s, p = b.shape[1:]
        b = b / self.scale[:, None]
        constants = b[1:].copy()
        pairs: list[Array] = []
        for m in self.merges:
            pairs.append(np.concatenate([constants[m.first], constants[m.first + 1]], axis=1))
            constants[m.first] = m.N @ pairs[-1]
            constants = np.delete(constants, m.first + 1, axis=0)
        constants[0] += self.first_condition @ b[0]
        s = np.zeros_like(b)
        s[0] = b[0]
        return self._descend(s, pairs) * self.scale[:, None], constants.reshape(-1, p)

    def adjoint(self, gradient: Array, closure: Array) -> Array:
        """Move the gradients to the nodes that stay, then split the multipliers of merged conditions."""
        n_s, p = gradient.shape[1:]
        moved = gradient * self.scale[:, None]
        for m in self.merges:
            moved[m.left] += m.from_left.swapaxes(1, 2) @ moved[m.middle]
            moved[m.right] += m.from_right.swapaxes(1, 2) @ moved[m.middle]
        found = closure.reshape(self.kept.size, n_s, p)
        for m in reversed(self.merges):
            merged = m.first - np.arange(m.first.size)  # the pair's condition, once earlier pairs have merged
            pair = m.N.swapaxes(1, 2) @ found[merged] - m.Y.swapaxes(1, 2) @ moved[m.middle]
            found = np.insert(found, merged + 1, pair[:, n_s:], axis=0)
            found[m.first] = pair[:, :n_s]
        matching = found / self.scale[:, None]
        initial = gradient[0] + self.X[0].T @ matching[0]
        return np.concatenate([initial[None], matching])

    def _descend(self, s: Array, pairs: list[Array] | None = None) -> Array:
        """Fill in the merged nodes, in scaled states, from those that stay."""
        for level in reversed(range(len(self.merges))):
            m = self.merges[level]
            s[m.middle] = m.from_left @ s[m.left] + m.from_right @ s[m.right]
            if pairs is not None:
                s[m.middle] -= m.Y @ pairs[level]
        return s


def _every_other(free: np.ndarray) -> Index:
    """Return positions of free entries, no two of them adjacent: the first, third, ... of every run."""
    position = np.arange(free.size)
    run_starts = np.maximum.accumulate(np.where(free, 0, position))
    return np.flatnonzero(free & ((position - run_starts) % 2 == 1))


def _orthogonal(column: Array) -> tuple[Array, Array]:
    """Return Y and N of every block column (n, 2 n_s, n_s); Y is infinite where the column is rank-deficient."""
    n_s = column.shape[2]
    Q, T = np.linalg.qr(column, mode="complete")
    T = T[:, :n_s]
    regular = (np.abs(np.diagonal(T, axis1=1, axis2=2)) > 1 / DEPENDENCE_LIMIT**2).all(axis=1)
    Y = np.full((len(column), n_s, 2 * n_s), np.inf)
    Y[regular] = np.linalg.solve(T[regular], Q[regular, :, :n_s].swapaxes(1, 2))
    return Y, Q[:, :, n_s:].swapaxes(1, 2)


def eliminate(layout: Layout, linearization: Linearization, scale: Array | None = None) -> Condensed:
    """Eliminate inner variables and nodes without ever forming the product of all X_k.

    Parameters
    ----------
    layout : Layout
    linearization : Linearization
    scale : (n_v,) array, optional
        Typical magnitudes of all variables; those of nodes are used.

    Returns
    -------
    Condensed
        Its unknowns are the step of theta and those of the last node of every chain, and of further nodes that
        neither of their neighbours determines.
    """
    magnitudes = np.ones(layout.n_v) if scale is None else scale

    def node_elimination(chain: Chain, X: Array) -> NodeElimination:
        return OrthogonalReduction(X, magnitudes[chain.nodes].max(axis=0)) if X.size else Substitution(X)

    return condense(layout, linearization, node_elimination=node_elimination)
