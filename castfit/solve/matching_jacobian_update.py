"""Jacobian of matching conditions, updated by one product per stage with a normalised gradient.

As the square of a distance a matching condition has the gradient

    h_k = |D g_k|^2,    g_k = x_k(s_k, q) - s_{k+1},    grad h_k = 2 (D g_k)^T D G_k        D = 1 / magnitudes

It takes one backward integration for any n_s.  At a solution g_k = 0 and grad h_k = 0: the linearized constraint is
empty, no multipliers exist, and Newton's method halves the gap at best.  Divided by its length, the gradient is a row
of the Jacobian G_k along the unit vector  u = D g_k / |D g_k|,  and does not vanish.  Such rows update the Jacobian,

    D G  <-  D G + u (u^T D G_new - u^T D G)                     (Schlenkrich, Griewank and Walther 2010)

which is the smallest change that reproduces the newest row.  With these matrices the conditions are the vector g_k = 0
again, which has multipliers, and steps converge superlinearly at the cost of the scalar.  If a gap is closed, or keeps
its direction, unit vectors are used in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array
from castfit.solve.staged import Evaluation, Jacobians, Layout, Linearization, MatchingProducts, gaps

_MATCHING_TOLERANCE = 1e-7  # Gap, in units of the states, that may be an integration error.
_MAX_DIRECTION_COSINE = 0.7  # Cosine between two directions above which the second one adds no information.


def unit_directions(
    layout: Layout, evaluation: Evaluation, scale: Array, previous_directions: Sequence[Array] | None, turn: int
) -> tuple[Array, ...]:
    """Return the directions u of the gaps, in units of the states, (K, n_s) per chain; unit vectors in turn elsewhere.

    `previous_directions` are the directions of the last time; `turn` counts the calls.
    """
    directions: list[Array] = []
    for i, (chain, gap) in enumerate(zip(layout.chains, gaps(layout, evaluation), strict=True)):
        u = np.zeros((chain.n_stages, chain.n_s))
        u[:-1] = gap[1:] / scale[chain.nodes[1:]]
        length = np.linalg.norm(u, axis=1)
        is_usable = length > _MATCHING_TOLERANCE
        u[is_usable] /= length[is_usable, None]
        if previous_directions is not None:
            is_usable &= np.abs((u * previous_directions[i]).sum(axis=1)) < _MAX_DIRECTION_COSINE
        u[~is_usable] = np.eye(chain.n_s)[turn % chain.n_s]
        directions.append(u)
    return tuple(directions)


def products_along(layout: Layout, scale: Array, units: Sequence[Array]) -> tuple[Array, ...]:
    """Return the directions D u, by which the states at the ends of stages are multiplied, (K, n_s) per chain."""
    return tuple(u / _magnitudes(chain_nodes, scale) for u, chain_nodes in
                 zip(units, (chain.nodes for chain in layout.chains), strict=True))  # fmt: skip


def accumulate_products(
    layout: Layout, scale: Array, jacobians: Sequence[Jacobians], products: MatchingProducts, units: Sequence[Array]
) -> Linearization:
    """Update the Jacobians by rows from `linearize_along` with `products_along`."""
    updated_jacobians: list[Jacobians] = []
    for chain, previous_jacobian, product, u in zip(layout.chains, jacobians, products.jacobians, units, strict=True):
        magnitudes = _magnitudes(chain.nodes, scale)
        D_inverse_u = (magnitudes * u)[:, :, None]  # D^-1 u
        u_D = (u / magnitudes)[:, None]  # u^T D
        updated_jacobians.append(
            replace(
                product,
                X_s=previous_jacobian.X_s + D_inverse_u * (product.X_s - u_D @ previous_jacobian.X_s),
                X_w=previous_jacobian.X_w,
                X_q=previous_jacobian.X_q + D_inverse_u * (product.X_q - u_D @ previous_jacobian.X_q),
            )
        )
    return products.extended(Linearization, jacobians=tuple(updated_jacobians), information=products.information)


def from_gradients(
    layout: Layout, scale: Array, jacobians: Sequence[Jacobians], products: MatchingProducts
) -> tuple[Jacobians, ...]:
    """Update the Jacobians by the gradients of squared gaps, from `linearize_along` with 2 D^2 g_k.

    Closed gaps change nothing.
    """
    units: list[Array] = []
    rows: list[Jacobians] = []
    for chain, gap, product in zip(layout.chains, gaps(layout, products), products.jacobians, strict=True):
        u = np.zeros((chain.n_stages, chain.n_s))
        u[:-1] = gap[1:] / scale[chain.nodes[1:]]
        length = np.linalg.norm(u, axis=1)
        is_open = length > _MATCHING_TOLERANCE
        inverse = np.where(is_open, 1.0 / np.where(is_open, length, 1.0), 0.0)
        units.append(u * inverse[:, None])
        half = (0.5 * inverse)[:, None, None]
        rows.append(replace(product, X_s=half * product.X_s, X_q=half * product.X_q))
    return accumulate_products(layout, scale, jacobians, replace(products, jacobians=tuple(rows)), units).jacobians


def _magnitudes(nodes: NDArray[np.intp], scale: Array) -> Array:
    """Return the magnitudes of the states at the ends of stages, from the next node, (K, n_s)."""
    size = scale[nodes]
    return np.vstack([size[1:], size[-1:]])
