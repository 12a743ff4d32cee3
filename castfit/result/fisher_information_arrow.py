"""Fisher information of a condensed problem if own quantities of many experiments are eliminated chain by chain.

The results agree with `castfit.result.fisher_information`, but no matrix over all of theta is built.  In scaled
unknowns (castfit.solve.arrow has the arrow and its notation), with the pseudo-inverse R^+ of a chain's triangle,

    L_i = -R_i^+ B_i                               response of local unknowns to the border
    T   = rows of the border, rows left by the chains, and (1 - R_i R_i^+) B_i
    M   = I + sum_i L_i^T L_i                      square lengths of the border's directions with their responses

    information on the border = T^T T, directions in the metric M;   C its inverse
    covariance of own_i       = R_i^+ R_i^+T + L_i C L_i^T            (castfit.result.block_matrix)

What the data leave open is either a direction of one chain's own quantities (a zero singular value of R_i), or one of
the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.result.block_matrix import BlockMatrix
from castfit.result.fisher_information import (
    MIN_DIRECTION_WEIGHT,
    RANK_TOLERANCE,
    FisherInformation,
    information,
    sparse_basis,
)
from castfit.solve.arrow import ArrowMatrix, at_border
from castfit.solve.condensing import Condensed, chain_adjoint
from castfit.solve.matrices import triangle

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.solve.matrices import BlockRows


MAX_DIRECTIONS_LISTED = 100
"""Undetermined directions that are listed; all quantities that take part in any are marked."""


@dataclass(frozen=True)
class _BatchFactors:
    """One batch: V / w and U of R = U w V^T, where w counts, and L; null (N, o, o) are directions that do not."""

    inverse: Array
    root: Array
    response: Array
    null: Array


@dataclass(frozen=True)
class BlockFisherInformation:
    """As `FisherInformation`, in blocks; n = n_theta, m rows.

    border : of the border, in scaled unknowns
    raw : the inverse in scaled unknowns, nothing left out
    inverse : of theta
    condition : an estimate: the largest singular value over the smallest of a chain's triangle, or of the border
    directions (k, n) : at most `MAX_DIRECTIONS_LISTED`
    scale (n,), undetermined (n,), leverage (m,)
    rows : derivatives of the residuals
    roots (N, o, o) : per batch, of the inverse of own unknowns, shared ones known; scaled
    """

    arrow: ArrowMatrix
    border: FisherInformation
    raw: BlockMatrix
    inverse: BlockMatrix
    rank: int
    condition: float
    directions: Array
    scale: Array
    undetermined: Mask
    leverage: Array
    rows: BlockRows
    roots: tuple[Array, ...]

    @property
    def root(self) -> Array:
        """A matrix (n, n_x) whose product with its transpose is the inverse; for few quantities."""
        raw, n = self.raw, self.scale.size
        local_root = np.zeros((self.arrow.scale.size, raw.own.size))
        offset = 0
        for batch, root in zip(self.arrow.batches, self.roots, strict=True):
            for indices, block in zip(batch.local_unknowns, root, strict=True):
                local_root[indices[:, None], offset + np.arange(batch.o)] = block
                offset += batch.o
        full_root = np.hstack([_followed(self.border.root, raw), local_root])
        if self.border.null.size:  # No response along undetermined directions.
            N = _followed(self.border.null, raw)
            full_root = full_root - N @ (N.T @ full_root)
        return (full_root * self.arrow.scale[:, None])[:n]

    def response(self, du: Array) -> Array:
        """Compute the response of theta to errors (m,) of the residuals, (n,)."""
        n = self.scale.size
        return -self.raw.times(self.rows.transposed(du) * self.arrow.scale)[:n] * self.arrow.scale[:n]

    def numerical(
        self, condensed: Condensed, errors: Sequence[Array], bounded: Index, path: Index, shift: Array | None
    ) -> BlockMatrix:
        """Return the covariance of theta that independent errors of the matching conditions cause.

        errors (K, n_s) per chain
        bounded, path : active bounds of eliminated variables (positions in v), and active path constraints
        shift (n,) : a known error of theta
        """
        arrow, raw = self.arrow, self.raw
        n_b, theta = arrow.n_b, self.scale.size
        shared, X, P = np.zeros((n_b, n_b)), np.zeros_like(raw.X), np.zeros_like(raw.P)
        position_of = np.full(arrow.border_positions.size, -1, dtype=np.intp)  # of own unknowns, among them
        position_of[raw.own] = np.arange(raw.own.size)
        n_e = condensed.e.size
        closure, bound, constraint = np.split(self.border.closure_response.T, [n_e, n_e + bounded.size])
        closure_offset = path_offset = 0
        for i, (part, error) in enumerate(zip(condensed.chains, errors, strict=True)):
            block = self.rows.blocks[i] * arrow.scale[part.columns]
            count, own_closure = len(block), slice(closure_offset, closure_offset + part.e.size)
            own_path = slice(path_offset, path_offset + part.chain.n_stages * part.chain.n_c)
            closure_offset, path_offset = own_closure.stop, own_path.stop
            if not error.size:
                continue
            is_local = arrow.border_positions[part.columns] < 0
            if is_local.any():
                adjoints = chain_adjoint(part, block) * error[:, :, None]
                flat_adjoints = adjoints.reshape(error.size, -1)
                local_indices, border_indices = (
                    position_of[part.columns[is_local]],
                    arrow.border_positions[part.columns[~is_local]],
                )
                local_adjoints, border_adjoints = flat_adjoints[:, is_local], np.zeros((error.size, n_b))
                border_adjoints[:, border_indices] = flat_adjoints[:, ~is_local]
                border_adjoints += local_adjoints @ raw.L[local_indices]
                direct = local_adjoints @ raw.P[local_indices][:, : local_indices.size].T
                border_response = border_adjoints @ raw.C
                P[local_indices, : local_indices.size] += direct.T @ direct
                X[local_indices] += direct.T @ border_response
                shared += border_response.T @ border_response
                continue
            border_block = np.zeros((count, n_b))
            border_block[:, arrow.border_positions[part.columns]] = block
            bound_multipliers = np.zeros((condensed.layout.n_v if bounded.size else 0, n_b))
            bound_multipliers[bounded] = bound
            paths = np.zeros((condensed.c.size, n_b))
            paths[path] = constraint
            adjoints = chain_adjoint(
                part, -border_block @ raw.C, bound_multipliers, paths[own_path], closure[own_closure]
            )
            rows = (adjoints * error[:, :, None]).reshape(error.size, n_b)
            shared += rows.T @ rows
        total = _of_theta(replace(raw, C=shared, X=X, P=P), arrow, self.inverse.names, theta)
        return total if shift is None else replace(total, extra_rows=shift[:, None])


def own_information(
    rows: BlockRows,
    arrow: ArrowMatrix,
    equations: Array,
    is_at_bound: Mask,
    names: tuple[str, ...],
    *,
    rank_tolerance: float = RANK_TOLERANCE,
) -> BlockFisherInformation:
    """Decide the rank chain by chain and of the border, and invert what can be inverted.

    rows : derivatives of the residuals
    arrow : the same, in unknowns scaled by 1/d
    equations (k, n_b) : derivatives of equations by the scaled border
    is_at_bound (n_x,) : unknowns at an active bound
    """
    largest, n_b, n_x = arrow.largest, arrow.n_b, arrow.scale.size
    limit = rank_tolerance * largest
    parts: list[_BatchFactors] = []
    border = [arrow.border_rows]
    factors = arrow.factor_chains(np.zeros(rows.height)).factors
    min_singular_value, rank, n_free = np.inf, 0, 0
    for batch, R in zip(arrow.batches, factors, strict=True):
        o, batch_at_bound = batch.o, is_at_bound[batch.local_unknowns]
        local_block, B = np.where(batch_at_bound[:, None, :], 0.0, R[:, :o, :o]), R[:, :o, o:-1]
        fixing = np.eye(o) * (batch_at_bound * max(largest, 1.0))[:, :, None]
        U, w, Vt = np.linalg.svd(np.concatenate([local_block, fixing], axis=1), full_matrices=False)
        is_determined = w > limit
        inverse_w = np.where(is_determined, 1.0 / np.where(is_determined, w, 1.0), 0.0)
        root = np.where(batch_at_bound[:, :, None], 0.0, Vt.swapaxes(1, 2) * inverse_w[:, None, :])
        inverse = root @ U[:, :o].swapaxes(1, 2)
        parts.append(
            _BatchFactors(inverse, root, -(inverse @ B), np.where(is_determined[:, None, :], 0.0, Vt.swapaxes(1, 2)))
        )
        border.append(at_border(R[:, o:, o:], batch.border_entries, n_b)[:, :-1])
        if batch_at_bound.any() or not is_determined.all():
            remaining_rows = np.concatenate([B + local_block @ parts[-1].response, np.zeros((*B.shape[:2], 1))], axis=2)
            border.append(at_border(remaining_rows, batch.border_entries, n_b)[:, :-1])
        rank += int(is_determined.sum()) - int(batch_at_bound.sum())
        n_free += int((~batch_at_bound).sum())
        min_singular_value = min(min_singular_value, float(w.min(initial=np.inf)))
    metric = np.eye(n_b)
    for batch, part in zip(arrow.batches, parts, strict=True):
        products = part.response.swapaxes(1, 2) @ part.response
        np.add.at(metric, (batch.border_entries[:, :, None], batch.border_entries[:, None, :]), products)
    border_information = information(
        triangle(np.concatenate(border)),
        equations,
        is_at_bound[arrow.border],
        scale=np.ones(n_b),
        rank_tolerance=rank_tolerance,
        metric=metric,
        largest=largest,
    )
    deficient = rank < n_free or border_information.rank < border_information.singular_values.size
    min_singular_value = min(min_singular_value, float(border_information.singular_values.min(initial=np.inf)))
    raw = _raw(arrow, parts, border_information.inverse, n_x)
    d = 1.0 / arrow.scale
    directions, undetermined = _undetermined_directions(arrow, parts, border_information, raw, len(names))
    return BlockFisherInformation(
        arrow,
        border_information,
        raw,
        _of_theta(raw, arrow, names, len(names)),
        rank + border_information.rank,
        np.inf if deficient else float(largest / min_singular_value) if np.isfinite(min_singular_value) else 1.0,
        directions,
        d[: len(names)],
        undetermined,
        _leverage(arrow, parts, border_information, rows.height),
        rows,
        tuple(part.root for part in parts),
    )


def of_squares(arrow: ArrowMatrix, names: tuple[str, ...]) -> BlockMatrix:
    """Return E^T E of an arrow in its own units, over theta."""
    local_indices, chain, position, width = _order(arrow)
    n_b = arrow.n_b
    C, X, P = (
        arrow.border_rows.T @ arrow.border_rows,
        np.zeros((local_indices.size, n_b)),
        np.zeros((local_indices.size, width)),
    )
    offset = 0
    for batch in arrow.batches:
        o, count = batch.o, batch.local_unknowns.size
        products = batch.E.swapaxes(1, 2) @ batch.E
        row_range = slice(offset, offset + count)
        P[row_range, :o] = products[:, :o, :o].reshape(-1, o)
        np.put_along_axis(
            X[row_range], np.repeat(batch.border_entries, o, axis=0), products[:, :o, o:].reshape(count, -1), axis=1
        )
        np.add.at(C, (batch.border_entries[:, :, None], batch.border_entries[:, None, :]), products[:, o:, o:])
        offset += count
    no_rows = np.zeros(arrow.scale.size, dtype=np.bool_)
    return BlockMatrix(
        names,
        arrow.border,
        local_indices,
        chain,
        position,
        C,
        np.zeros_like(X),
        X,
        P,
        1.0 / arrow.scale,
        no_rows,
        no_rows,
    )


def _order(arrow: ArrowMatrix) -> tuple[Index, Index, Index, int]:
    """Return own unknowns chain by chain: positions, chains, as which of their chain's; and the most of a chain."""
    none = np.empty(0, dtype=np.intp)
    local_indices = np.concatenate([none, *(batch.local_unknowns.ravel() for batch in arrow.batches)])
    chain = np.concatenate([none, *(np.repeat(batch.chains, batch.o) for batch in arrow.batches)])
    position = np.concatenate(
        [none, *(np.tile(np.arange(batch.o), len(batch.local_unknowns)) for batch in arrow.batches)]
    )
    return local_indices, chain, position, max((batch.o for batch in arrow.batches), default=0)


def _raw(arrow: ArrowMatrix, parts: Sequence[_BatchFactors], C: Array, n_x: int) -> BlockMatrix:
    """Return the inverse over all scaled unknowns."""
    local_indices, chain, position, width = _order(arrow)
    L, P = np.zeros((local_indices.size, arrow.n_b)), np.zeros((local_indices.size, width))
    offset = 0
    for batch, part in zip(arrow.batches, parts, strict=True):
        row_range = slice(offset, offset + batch.local_unknowns.size)
        response = part.response.reshape(batch.local_unknowns.size, -1)
        np.put_along_axis(L[row_range], np.repeat(batch.border_entries, batch.o, axis=0), response, axis=1)
        P[row_range, : batch.o] = (part.root @ part.root.swapaxes(1, 2)).reshape(-1, batch.o)
        offset += batch.local_unknowns.size
    no_rows = np.zeros(n_x, dtype=np.bool_)
    names = tuple(map(str, range(n_x)))
    return BlockMatrix(
        names, arrow.border, local_indices, chain, position, C, L, np.zeros_like(L), P, np.ones(n_x), no_rows, no_rows
    )


def _of_theta(raw: BlockMatrix, arrow: ArrowMatrix, names: tuple[str, ...], n: int) -> BlockMatrix:
    """Leave out nodes that stayed unknown, and return to units of theta."""
    is_theta = arrow.border < n
    no_rows = np.zeros(n, dtype=np.bool_)
    return replace(
        raw,
        names=names,
        common=raw.common[is_theta],
        C=raw.C[np.ix_(is_theta, is_theta)],
        L=raw.L[:, is_theta],
        X=raw.X[:, is_theta],
        factor=arrow.scale[:n],
        held=no_rows,
        open=no_rows,
    )


def _undetermined_directions(
    arrow: ArrowMatrix, parts: Sequence[_BatchFactors], border: FisherInformation, raw: BlockMatrix, n: int
) -> tuple[Array, Mask]:
    """Return the undetermined directions of theta, scaled, as far as they are listed, and who takes part in any."""
    shared = _followed(border.null, raw)
    squares = np.sum(shared**2, axis=1)
    directions: list[Array] = []
    for batch, part in zip(arrow.batches, parts, strict=True):
        squares[batch.local_unknowns] += np.sum(part.null**2, axis=2)
        undetermined_chains = np.flatnonzero(part.null.any(axis=(1, 2)))
        for c in undetermined_chains[: max(MAX_DIRECTIONS_LISTED - len(directions), 0)].tolist():
            vectors = part.null[c][:, part.null[c].any(axis=0)]
            for direction in sparse_basis(vectors):
                full_direction = np.zeros(n)
                full_direction[batch.local_unknowns[c]] = direction
                directions.append(full_direction)
    if border.null.size:
        directions += list(sparse_basis(shared[:n]))
    return np.array(directions).reshape(-1, n), np.sqrt(squares[:n]) > MIN_DIRECTION_WEIGHT


def _followed(border: Array, raw: BlockMatrix) -> Array:
    """Return directions (n_b, k) of the border with the resulting changes of own unknowns, (n_x, k)."""
    directions = np.zeros((len(raw), border.shape[1]))
    directions[raw.common], directions[raw.own] = border, raw.L @ border
    return directions


def _leverage(arrow: ArrowMatrix, parts: Sequence[_BatchFactors], border: FisherInformation, m: int) -> Array:
    """Compute the leverage of every row: |E_o R^+|^2 + |(E_b + E_o L) C^1/2|^2."""
    leverage = np.zeros(m + 1)
    for batch, part in zip(arrow.batches, parts, strict=True):
        E_o, E_b = batch.E[:, :, : batch.o], batch.E[:, :, batch.o :]
        shared = (E_b + E_o @ part.response) @ border.root[batch.border_entries]
        leverage[batch.rows] = np.sum((E_o @ part.root) ** 2, axis=2) + np.sum(shared**2, axis=2)
    leverage[arrow.border_row_indices] = np.sum((arrow.border_rows @ border.root) ** 2, axis=1)
    return leverage[:m]
