"""A Jacobian of matching conditions kept up by one product per stage: what a vanishing gradient still tells.

As the square of a distance a matching condition has the gradient

    h_k = |D g_k|^2,    g_k = x_k(s_k, q) - s_{k+1},    grad h_k = 2 (D g_k)^T D G_k        D = 1 / magnitudes

one backward integration, whatever n_s.  At a solution g_k = 0 and grad h_k = 0: linearized, the constraint says nothing
there, no multipliers exist, and Newton's method halves the gap at best.  But divided by its length it is a row of the
Jacobian G_k along the unit vector  u = D g_k / |D g_k|,  and does not vanish.  Such rows are collected,

    D G  <-  D G + u (u^T D G_new - u^T D G)                     (Schlenkrich, Griewank and Walther 2010)

the least change that has the newest one right.  With these matrices the conditions are the vector g_k = 0 again, which
has multipliers, and steps converge superlinearly at the price of the scalar.  Where a gap is closed, or keeps its
direction, unit vectors take turns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.staged import Evaluation, Jacobians, Layout, Linearization, MatchingProducts, gaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from castfit._support.arrays import Array


_CLOSED = 1e-7  # in units of the states: what is left may be errors of integration
_SAME = 0.7  # cosine from which a direction tells nothing new


def unit_directions(
    layout: Layout, at: Evaluation, scale: Array, before: Sequence[Array] | None, turn: int
) -> tuple[Array, ...]:
    """Return the directions u of the gaps, in units of the states, (K, n_s) per chain; unit vectors in turn elsewhere.

    `before` are the directions of the last time; `turn` counts the calls.
    """
    out: list[Array] = []
    for i, (chain, gap) in enumerate(zip(layout.chains, gaps(layout, at), strict=True)):
        u = np.zeros((chain.n_stages, chain.n_s))
        u[:-1] = gap[1:] / scale[chain.nodes[1:]]
        length = np.linalg.norm(u, axis=1)
        usual = length > _CLOSED
        u[usual] /= length[usual, None]
        if before is not None:
            usual &= np.abs((u * before[i]).sum(axis=1)) < _SAME
        u[~usual] = np.eye(chain.n_s)[turn % chain.n_s]
        out.append(u)
    return tuple(out)


def products_along(layout: Layout, scale: Array, units: Sequence[Array]) -> tuple[Array, ...]:
    """Return the directions D u, by which the states at the ends of stages are multiplied, (K, n_s) per chain."""
    return tuple(u / _magnitudes(chain_nodes, scale) for u, chain_nodes in
                 zip(units, (chain.nodes for chain in layout.chains), strict=True))  # fmt: skip


def collected(
    layout: Layout, scale: Array, known: Sequence[Jacobians], along: MatchingProducts, units: Sequence[Array]
) -> Linearization:
    """Update the known matrices by rows from `linearize_along` with `products_along`."""
    out: list[Jacobians] = []
    for chain, old, new, u in zip(layout.chains, known, along.jacobians, units, strict=True):
        size = _magnitudes(chain.nodes, scale)
        back = (size * u)[:, :, None]  # D^-1 u
        forth = (u / size)[:, None]  # u^T D
        out.append(
            replace(
                new,
                X_s=old.X_s + back * (new.X_s - forth @ old.X_s),
                X_w=old.X_w,
                X_q=old.X_q + back * (new.X_q - forth @ old.X_q),
            )
        )
    return along.extended(Linearization, jacobians=tuple(out), information=along.information)


def from_gradients(
    layout: Layout, scale: Array, known: Sequence[Jacobians], along: MatchingProducts
) -> tuple[Jacobians, ...]:
    """Update the known matrices by the gradients of squared gaps, from `linearize_along` with 2 D^2 g_k.

    Gaps that are closed change nothing.
    """
    units: list[Array] = []
    rows: list[Jacobians] = []
    for chain, gap, new in zip(layout.chains, gaps(layout, along), along.jacobians, strict=True):
        u = np.zeros((chain.n_stages, chain.n_s))
        u[:-1] = gap[1:] / scale[chain.nodes[1:]]
        length = np.linalg.norm(u, axis=1)
        open_ = length > _CLOSED
        inverse = np.where(open_, 1.0 / np.where(open_, length, 1.0), 0.0)
        units.append(u * inverse[:, None])
        half = (0.5 * inverse)[:, None, None]
        rows.append(replace(new, X_s=half * new.X_s, X_q=half * new.X_q))
    return collected(layout, scale, known, replace(along, jacobians=tuple(rows)), units).jacobians


def _magnitudes(nodes: NDArray[np.intp], scale: Array) -> Array:
    """Return the magnitudes of the states at the ends of stages, (K, n_s): those of the next node."""
    size = scale[nodes]
    return np.vstack([size[1:], size[-1:]])
