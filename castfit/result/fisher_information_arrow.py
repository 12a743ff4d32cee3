"""Fisher information of a condensed problem if own quantities of many experiments are eliminated chain by chain.

The same figures as those of `castfit.result.fisher_information`, without any matrix over all of theta.  In scaled
unknowns (castfit.solve.arrow has the arrow and its notation), with the pseudo-inverse R^+ of a chain's triangle,

    L_i = -R_i^+ B_i                               how own unknowns answer to the border
    T   = rows of the border, those that chains leave to it, and (1 - R_i R_i^+) B_i
    M   = I + sum_i L_i^T L_i                      square lengths of the border's directions, with what follows

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
from castfit.result.fisher_information import PARTICIPATION, RANK_TOLERANCE, Information, information, sparse_basis
from castfit.solve.arrow import Arrow, at_border
from castfit.solve.condensing import Condensed, chain_adjoint
from castfit.solve.matrices import triangle

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.solve.matrices import BlockRows


MOST = 100
"""Undetermined directions that are listed; all quantities that take part in any are marked."""


@dataclass(frozen=True)
class _Part:
    """One batch: V / w and U of R = U w V^T, where w counts, and L; null (N, o, o) are directions that do not."""

    inverse: Array
    root: Array
    response: Array
    null: Array


@dataclass(frozen=True)
class OwnInformation:
    """As `Information`, in blocks; n = n_theta, m rows.

    border : of the border, in scaled unknowns
    raw : the inverse in scaled unknowns, nothing left out
    inverse : of theta
    condition : an estimate: the largest singular value over the smallest of a chain's triangle, or of the border
    directions (k, n) : at most `MOST`
    scale (n,), undetermined (n,), leverage (m,)
    rows : derivatives of the residuals
    roots (N, o, o) : per batch, of the inverse of own unknowns, shared ones known; scaled
    """

    arrow: Arrow
    border: Information
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
        alone = np.zeros((self.arrow.scale.size, raw.own.size))
        first = 0
        for batch, root in zip(self.arrow.batches, self.roots, strict=True):
            for own, block in zip(batch.own, root, strict=True):
                alone[own[:, None], first + np.arange(batch.o)] = block
                first += batch.o
        both = np.hstack([_followed(self.border.root, raw), alone])
        if self.border.null.size:  # nothing along what is undetermined
            N = _followed(self.border.null, raw)
            both = both - N @ (N.T @ both)
        return (both * self.arrow.scale[:, None])[:n]

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
        of, raw = self.arrow, self.raw
        n_b, theta = of.n_b, self.scale.size
        shared, X, P = np.zeros((n_b, n_b)), np.zeros_like(raw.X), np.zeros_like(raw.P)
        place = np.full(of.place.size, -1, dtype=np.intp)  # of own unknowns, among them
        place[raw.own] = np.arange(raw.own.size)
        n_e = condensed.e.size
        closure, bound, constraint = np.split(self.border.closure_response.T, [n_e, n_e + bounded.size])
        unknown = first_path = 0
        for i, (part, error) in enumerate(zip(condensed.chains, errors, strict=True)):
            block = self.rows.blocks[i] * of.scale[part.columns]
            count, own_closure = len(block), slice(unknown, unknown + part.e.size)
            own_path = slice(first_path, first_path + part.chain.n_stages * part.chain.n_c)
            unknown, first_path = own_closure.stop, own_path.stop
            if not error.size:
                continue
            mine = of.place[part.columns] < 0
            if mine.any():
                found = chain_adjoint(part, block) * error[:, :, None]
                both = found.reshape(error.size, -1)
                at, seen = place[part.columns[mine]], of.place[part.columns[~mine]]
                of_own, of_border = both[:, mine], np.zeros((error.size, n_b))
                of_border[:, seen] = both[:, ~mine]
                of_border += of_own @ raw.L[at]
                direct = of_own @ raw.P[at][:, : at.size].T
                moved = of_border @ raw.C
                P[at, : at.size] += direct.T @ direct
                X[at] += direct.T @ moved
                shared += moved.T @ moved
                continue
            wide = np.zeros((count, n_b))
            wide[:, of.place[part.columns]] = block
            given = np.zeros((condensed.layout.n_v if bounded.size else 0, n_b))
            given[bounded] = bound
            paths = np.zeros((condensed.c.size, n_b))
            paths[path] = constraint
            found = chain_adjoint(part, -wide @ raw.C, given, paths[own_path], closure[own_closure])
            rows = (found * error[:, :, None]).reshape(error.size, n_b)
            shared += rows.T @ rows
        total = _of_theta(replace(raw, C=shared, X=X, P=P), of, self.inverse.names, theta)
        return total if shift is None else replace(total, further=shift[:, None])


def own_information(
    rows: BlockRows,
    of: Arrow,
    equations: Array,
    held: Mask,
    names: tuple[str, ...],
    *,
    rank_tolerance: float = RANK_TOLERANCE,
) -> OwnInformation:
    """Decide the rank chain by chain and of the border, and invert what can be inverted.

    rows : derivatives of the residuals
    of : the same, in unknowns scaled by 1/d
    equations (k, n_b) : derivatives of equations by the scaled border
    held (n_x,) : unknowns that a bound holds
    """
    largest, n_b, n_x = of.largest, of.n_b, of.scale.size
    limit = rank_tolerance * largest
    parts: list[_Part] = []
    border = [of.rest]
    factors = of.compressed(np.zeros(rows.height)).factors
    least, rank, free = np.inf, 0, 0
    for batch, R in zip(of.batches, factors, strict=True):
        o, still = batch.o, held[batch.own]
        own, B = np.where(still[:, None, :], 0.0, R[:, :o, :o]), R[:, :o, o:-1]
        fixing = np.eye(o) * (still * max(largest, 1.0))[:, :, None]
        U, w, Vt = np.linalg.svd(np.concatenate([own, fixing], axis=1), full_matrices=False)
        counts = w > limit
        inverse_w = np.where(counts, 1.0 / np.where(counts, w, 1.0), 0.0)
        root = np.where(still[:, :, None], 0.0, Vt.swapaxes(1, 2) * inverse_w[:, None, :])
        inverse = root @ U[:, :o].swapaxes(1, 2)
        parts.append(_Part(inverse, root, -(inverse @ B), np.where(counts[:, None, :], 0.0, Vt.swapaxes(1, 2))))
        border.append(at_border(R[:, o:, o:], batch.seen, n_b)[:, :-1])
        if still.any() or not counts.all():
            left = np.concatenate([B + own @ parts[-1].response, np.zeros((*B.shape[:2], 1))], axis=2)
            border.append(at_border(left, batch.seen, n_b)[:, :-1])
        rank += int(counts.sum()) - int(still.sum())
        free += int((~still).sum())
        least = min(least, float(w.min(initial=np.inf)))
    metric = np.eye(n_b)
    for batch, part in zip(of.batches, parts, strict=True):
        products = part.response.swapaxes(1, 2) @ part.response
        np.add.at(metric, (batch.seen[:, :, None], batch.seen[:, None, :]), products)
    of_border = information(
        triangle(np.concatenate(border)),
        equations,
        held[of.border],
        scale=np.ones(n_b),
        rank_tolerance=rank_tolerance,
        metric=metric,
        largest=largest,
    )
    deficient = rank < free or of_border.rank < of_border.singular_values.size
    least = min(least, float(of_border.singular_values.min(initial=np.inf)))
    raw = _raw(of, parts, of_border.inverse, n_x)
    d = 1.0 / of.scale
    directions, undetermined = _open(of, parts, of_border, raw, len(names))
    return OwnInformation(
        of,
        of_border,
        raw,
        _of_theta(raw, of, names, len(names)),
        rank + of_border.rank,
        np.inf if deficient else float(largest / least) if np.isfinite(least) else 1.0,
        directions,
        d[: len(names)],
        undetermined,
        _leverage(of, parts, of_border, rows.height),
        rows,
        tuple(part.root for part in parts),
    )


def of_squares(of: Arrow, names: tuple[str, ...]) -> BlockMatrix:
    """Return E^T E of an arrow in its own units, over theta."""
    own, chain, position, width = _order(of)
    n_b = of.n_b
    C, X, P = of.rest.T @ of.rest, np.zeros((own.size, n_b)), np.zeros((own.size, width))
    first = 0
    for batch in of.batches:
        o, count = batch.o, batch.own.size
        products = batch.E.swapaxes(1, 2) @ batch.E
        mine = slice(first, first + count)
        P[mine, :o] = products[:, :o, :o].reshape(-1, o)
        np.put_along_axis(X[mine], np.repeat(batch.seen, o, axis=0), products[:, :o, o:].reshape(count, -1), axis=1)
        np.add.at(C, (batch.seen[:, :, None], batch.seen[:, None, :]), products[:, o:, o:])
        first += count
    none = np.zeros(of.scale.size, dtype=np.bool_)
    return BlockMatrix(names, of.border, own, chain, position, C, np.zeros_like(X), X, P, 1.0 / of.scale, none, none)


def _order(of: Arrow) -> tuple[Index, Index, Index, int]:
    """Return own unknowns chain by chain: positions, chains, as which of their chain's; and the most of a chain."""
    none = np.empty(0, dtype=np.intp)
    own = np.concatenate([none, *(batch.own.ravel() for batch in of.batches)])
    chain = np.concatenate([none, *(np.repeat(batch.chains, batch.o) for batch in of.batches)])
    position = np.concatenate([none, *(np.tile(np.arange(batch.o), len(batch.own)) for batch in of.batches)])
    return own, chain, position, max((batch.o for batch in of.batches), default=0)


def _raw(of: Arrow, parts: Sequence[_Part], C: Array, n_x: int) -> BlockMatrix:
    """Return the inverse over all scaled unknowns."""
    own, chain, position, width = _order(of)
    L, P = np.zeros((own.size, of.n_b)), np.zeros((own.size, width))
    first = 0
    for batch, part in zip(of.batches, parts, strict=True):
        mine = slice(first, first + batch.own.size)
        response = part.response.reshape(batch.own.size, -1)
        np.put_along_axis(L[mine], np.repeat(batch.seen, batch.o, axis=0), response, axis=1)
        P[mine, : batch.o] = (part.root @ part.root.swapaxes(1, 2)).reshape(-1, batch.o)
        first += batch.own.size
    none = np.zeros(n_x, dtype=np.bool_)
    every = tuple(map(str, range(n_x)))
    return BlockMatrix(every, of.border, own, chain, position, C, L, np.zeros_like(L), P, np.ones(n_x), none, none)


def _of_theta(raw: BlockMatrix, of: Arrow, names: tuple[str, ...], n: int) -> BlockMatrix:
    """Leave out nodes that stayed unknown, and return to units of theta."""
    kept = of.border < n
    none = np.zeros(n, dtype=np.bool_)
    return replace(
        raw,
        names=names,
        common=raw.common[kept],
        C=raw.C[np.ix_(kept, kept)],
        L=raw.L[:, kept],
        X=raw.X[:, kept],
        factor=of.scale[:n],
        held=none,
        open=none,
    )


def _open(of: Arrow, parts: Sequence[_Part], border: Information, raw: BlockMatrix, n: int) -> tuple[Array, Mask]:
    """Return the undetermined directions of theta, scaled, as far as they are listed, and who takes part in any."""
    shared = _followed(border.null, raw)
    squares = np.sum(shared**2, axis=1)
    found: list[Array] = []
    for batch, part in zip(of.batches, parts, strict=True):
        squares[batch.own] += np.sum(part.null**2, axis=2)
        some = np.flatnonzero(part.null.any(axis=(1, 2)))
        for c in some[: max(MOST - len(found), 0)].tolist():
            vectors = part.null[c][:, part.null[c].any(axis=0)]
            for direction in sparse_basis(vectors):
                whole = np.zeros(n)
                whole[batch.own[c]] = direction
                found.append(whole)
    if border.null.size:
        found += list(sparse_basis(shared[:n]))
    return np.array(found).reshape(-1, n), np.sqrt(squares[:n]) > PARTICIPATION


def _followed(border: Array, raw: BlockMatrix) -> Array:
    """Return directions (n_b, k) of the border with the resulting changes of own unknowns, (n_x, k)."""
    whole = np.zeros((len(raw), border.shape[1]))
    whole[raw.common], whole[raw.own] = border, raw.L @ border
    return whole


def _leverage(of: Arrow, parts: Sequence[_Part], border: Information, m: int) -> Array:
    """Compute the leverage of every row: |E_o R^+|^2 + |(E_b + E_o L) C^1/2|^2."""
    out = np.zeros(m + 1)
    for batch, part in zip(of.batches, parts, strict=True):
        E_o, E_b = batch.E[:, :, : batch.o], batch.E[:, :, batch.o :]
        shared = (E_b + E_o @ part.response) @ border.root[batch.seen]
        out[batch.rows] = np.sum((E_o @ part.root) ** 2, axis=2) + np.sum(shared**2, axis=2)
    out[of.at] = np.sum((of.rest @ border.root) ** 2, axis=1)
    return out[:m]
