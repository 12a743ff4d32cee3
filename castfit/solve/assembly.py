"""Sparse matrices from stage blocks: the position of every entry of a staged problem is computed once.

The constraints of all chains form one vector g, the blocks of their Jacobian one sparse matrix dg/dv, the blocks of the
Hessian one upper triangle.  An index map per matrix places a whole evaluation by one indexed assignment.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array, Index
from castfit.solve.staged import Chain, ChainValues, Evaluation, Jacobians, Layout, Linearization, Multipliers, gaps


class ConstraintRows:
    """Constraint vector g: per chain the initial state, inner equations, matching, and real path constraints.

    Relations of quantities come last.  Constraints are scaled by their units.

    With `scalar` matching conditions there is one per stage, h_k = |(x_k - s_{k+1}) / scale|^2, with the gradient
        direction . (dx_k - ds_{k+1}),  direction = 2 (x_k - s_{k+1}) / scale^2.
    """

    def __init__(self, layout: Layout, scale: Array | None = None, *, scalar: bool = False) -> None:
        self.layout, self.scalar = layout, scalar
        self._scale = np.ones(layout.n_v) if scale is None else scale
        offset = 0
        self.initial: list[Index] = []
        self.inner: list[Index] = []
        self.matching: list[Index] = []
        self.path: list[Index] = []  # -1 where a row is padding
        lower: list[Array] = []
        upper: list[Array] = []
        unit: list[Array] = []
        for chain in layout.chains:
            stages = chain.n_stages
            is_row = np.isfinite(chain.constraint_lower) | np.isfinite(chain.constraint_upper)
            path = np.full(is_row.shape, -1, dtype=np.intp)
            per_stage = min(chain.n_s, 1) if scalar else chain.n_s
            sizes = (chain.n_s, stages * chain.n_w, (stages - 1) * per_stage, int(is_row.sum()))
            starts = [offset, *(offset + s for s in itertools.accumulate(sizes))]
            path[is_row] = starts[3] + np.arange(sizes[3])
            self.initial.append(starts[0] + np.arange(sizes[0]))
            self.inner.append((starts[1] + np.arange(sizes[1])).reshape(stages, chain.n_w))
            self.matching.append((starts[2] + np.arange(sizes[2])).reshape(stages - 1, per_stage))
            self.path.append(path)
            offset = starts[4]
            zeros, ones = np.zeros(sum(sizes[:3])), np.ones(sum(sizes[:3]))
            lower += [zeros, chain.constraint_lower[is_row]]
            upper += [zeros, chain.constraint_upper[is_row]]
            unit += [ones, chain.constraint_unit[is_row]]
        relations = layout.relations
        self.related = offset + np.arange(len(relations.names), dtype=np.intp)
        lower, upper, unit = [*lower, relations.lower], [*upper, relations.upper], [*unit, relations.unit]
        self.count = offset + self.related.size
        self.unit = np.concatenate(unit)
        self.lower, self.upper = np.concatenate(lower) / self.unit, np.concatenate(upper) / self.unit

    def values(self, values: Sequence[ChainValues], v: Array, related: Array) -> Array:
        """Evaluate g from the chains' values and the relations (n_h,)."""
        g = np.empty(self.count)
        g[self.related] = related
        for i, (chain, value) in enumerate(zip(self.layout.chains, values, strict=True)):
            s = v[chain.nodes]
            g[self.initial[i]] = value.a - s[0]
            g[self.inner[i]] = value.d
            gap = value.x[:-1] - s[1:]
            if self.scalar and chain.n_s:
                gap = np.sum((gap / self._scale[chain.nodes[1:]]) ** 2, axis=1, keepdims=True)
            g[self.matching[i]] = gap
            is_row = self.path[i] >= 0
            g[self.path[i][is_row]] = value.c[is_row]
        return g / self.unit

    def directions(self, evaluation: Evaluation) -> tuple[Array, ...]:
        """Return the directions of scalar matching conditions, per chain (K, n_s), 0 at the last stage."""
        directions: list[Array] = []
        for chain, gap in zip(self.layout.chains, gaps(self.layout, evaluation), strict=True):
            direction = np.zeros(gap.shape)
            direction[:-1] = 2.0 * gap[1:] / self._scale[chain.nodes[1:]] ** 2
            directions.append(direction)
        return tuple(directions)

    def multipliers(self, lam: Array) -> tuple[Multipliers, ...]:
        """Sort the multipliers of g by chain, in constraints' own units; scalar matching has (K - 1, 1)."""
        lam = lam / self.unit
        multipliers_by_chain: list[Multipliers] = []
        for i in range(len(self.layout.chains)):
            path = np.where(self.path[i] >= 0, lam[np.maximum(self.path[i], 0)] if lam.size else 0.0, 0.0)
            multipliers_by_chain.append(
                Multipliers(lam[self.initial[i]], lam[self.inner[i]], lam[self.matching[i]], path)
            )
        return tuple(multipliers_by_chain)

    def describe(self, row: int) -> str:
        """Return a description of the constraint in a row of g."""
        if row in self.related:
            return f"'{self.layout.relations.names[row - int(self.related[0])]}'"
        for i, chain in enumerate(self.layout.chains):
            for kind, index in (("inner equation", self.inner[i]), ("path constraint", self.path[i])):
                matches = np.argwhere(index == row)
                if matches.size:
                    k, j = (int(h) for h in matches[0])
                    if kind == "path constraint":
                        return chain.describe_constraint(k, j)
                    return f"{kind} {j + 1} near t = {chain.times[k]:g} ({chain.name})"
            matches = np.argwhere(self.matching[i] == row)
            if matches.size:
                k, j = (int(h) for h in matches[0])
                if self.scalar:
                    return f"squared gap at t = {chain.times[k + 1]:g} ({chain.name})"
                return f"continuity of {chain.state_names[j]} at t = {chain.times[k + 1]:g} ({chain.name})"
            matches = np.argwhere(self.initial[i] == row)
            if matches.size:
                return f"initial value of {chain.state_names[int(matches[0][0])]} ({chain.name})"
        raise IndexError(row)


def _stage_positions(chain: Chain) -> Index:
    """Return the positions in v of each stage's variables in the order (s, w, q), (K, n_s + n_w + n_q)."""
    q = np.broadcast_to(chain.theta, (chain.n_stages, chain.n_q))
    return np.concatenate([chain.nodes, chain.inner, q], axis=1, dtype=np.intp)


class EntryScatter:
    """Sums values into the nonzeros of a sparse matrix, whose pattern is the union of all their positions."""

    def __init__(self, rows: Index, columns: Index, shape: tuple[int, int]) -> None:
        key = columns * shape[0] + rows  # column-major order, as CasADi stores nonzeros
        unique, self._slot = np.unique(key, return_inverse=True)
        self._count = unique.size
        self._has_unique_entries = self._count == key.size
        column, row = np.divmod(unique, max(shape[0], 1))
        starts = np.searchsorted(column, np.arange(shape[1] + 1))
        self.sparsity = ca.Sparsity(shape[0], shape[1], starts.tolist(), row.tolist())

    def __call__(self, values: Array) -> Array:
        """Return the nonzeros of the matrix of these values."""
        if self._has_unique_entries:
            nonzeros = np.empty(self._count)
            nonzeros[self._slot] = values
            return nonzeros
        return np.bincount(self._slot, values, minlength=self._count).astype(float, copy=False)

    def graph(self, values: ca.MX) -> ca.MX:
        """Sum values of a CasADi graph: return the sparse matrix."""
        if self._has_unique_entries:
            return ca.MX(self.sparsity, values[np.argsort(self._slot).tolist()])
        order = np.arange(self._slot.size)
        adds = ca.DM.triplet(self._slot.tolist(), order.tolist(), ca.DM.ones(order.size), self._count, order.size)
        return ca.MX(self.sparsity, ca.mtimes(ca.MX(adds), values))


class JacobianMap:
    """Scatters Jacobian blocks into dg/dv, columns in units of the scale."""

    def __init__(self, layout: Layout, rows: ConstraintRows, scale: Array) -> None:
        self._layout = layout
        entry_positions: list[tuple[Index, Index]] = []
        self._real: list[NDArray[np.bool_]] = []
        for i, chain in enumerate(layout.chains):
            positions = _stage_positions(chain)
            q = np.broadcast_to(chain.theta, (chain.n_s, chain.n_q))
            entry_positions.append((np.repeat(rows.initial[i], chain.n_q), q.ravel()))
            entry_positions.append((rows.initial[i], chain.nodes[0]))
            entry_positions.append(_outer(rows.inner[i], positions))
            entry_positions.append(_outer(rows.matching[i], positions[:-1]))
            matching_rows = np.broadcast_to(rows.matching[i], (chain.n_stages - 1, chain.n_s))
            entry_positions.append((matching_rows.ravel(), chain.nodes[1:].ravel()))
            is_row = rows.path[i] >= 0
            self._real.append(is_row)
            path_at = np.broadcast_to(positions[:, None, :], (*is_row.shape, positions.shape[1]))[is_row]
            entry_positions.append((np.repeat(rows.path[i][is_row], positions.shape[1]), path_at.ravel()))
        entry_positions.append(
            (np.repeat(rows.related, layout.n_theta), np.tile(np.arange(layout.n_theta), rows.related.size))
        )
        row = np.concatenate([r for r, _ in entry_positions])
        column = np.concatenate([c for _, c in entry_positions])
        self._scatter = EntryScatter(row, column, (rows.count, layout.n_v))
        self._units = scale[column] / rows.unit[row]
        self.sparsity = self._scatter.sparsity

    def nonzeros(
        self, jacobians: Sequence[Jacobians], related: Array, directions: Sequence[Array] | None = None
    ) -> Array:
        """Place the blocks of all chains and of relations (n_h, n_theta); entries come in the order of `sparsity`.

        Scalar matching conditions need their directions, (K, n_s) per chain, as do matching products.
        """
        pieces: list[Array] = []
        chains = self._layout.chains
        by_next = [np.ones((c.n_stages, c.n_s)) for c in chains] if directions is None else directions
        for chain, is_row, j, direction in zip(chains, self._real, jacobians, by_next, strict=True):
            pieces += [
                j.A.ravel(),
                np.full(chain.n_s, -1.0),
                np.concatenate([j.D_s, j.D_w, j.D_q], axis=2).ravel(),
                np.concatenate([j.X_s, j.X_w, j.X_q], axis=2)[:-1].ravel(),
                -direction[:-1].ravel(),
                np.concatenate([j.C_s, j.C_w, j.C_q], axis=2)[is_row].ravel(),
            ]
        return self._scatter(np.concatenate([*pieces, related.ravel()]) * self._units)


def _outer(rows: Index, columns: Index) -> tuple[Index, Index]:
    """Pair every row of a stage with every column of it: rows (K, m), columns (K, n) -> two (K * m * n,)."""
    shape = (rows.shape[0], rows.shape[1], columns.shape[1])
    return np.broadcast_to(rows[:, :, None], shape).ravel(), np.broadcast_to(columns[:, None, :], shape).ravel()


class HessianMap:
    """Scatters Hessian blocks over (s, w, q) of each stage into the upper triangle.

    With `scalar` there are blocks of the squared gaps as well, over (s_k, w_k, q, s_{k+1}).  The part of priors and
    relations over theta is a full matrix, or has entries in the rows and columns `of_theta`, few for many experiments.
    """

    def __init__(
        self, layout: Layout, scale: Array, *, scalar: bool = False, of_theta: tuple[Index, Index] | None = None
    ) -> None:
        entry_positions: list[tuple[Index, Index]] = []
        for chain in layout.chains:
            positions = _stage_positions(chain)
            entry_positions.append(_outer(positions, positions))
            entry_positions.append(_outer(chain.theta[None], chain.theta[None]))
        for chain in layout.chains if scalar else ():
            pair_positions = np.concatenate([_stage_positions(chain)[:-1], chain.nodes[1:]], axis=1)
            entry_positions.append(_outer(pair_positions, pair_positions))
        self._coupled = [_coupled_places(layout, chain) for chain in layout.chains if chain.whitening is not None]
        entry_positions += [divmod(keys, layout.n_v) for keys in self._coupled]
        theta = np.arange(layout.n_theta)[None]
        entry_positions.append(_outer(theta, theta) if of_theta is None else of_theta)
        row = np.concatenate([r for r, _ in entry_positions])
        column = np.concatenate([c for _, c in entry_positions])
        self._upper = row <= column
        row, column = row[self._upper], column[self._upper]
        self._scatter = EntryScatter(row, column, (layout.n_v, layout.n_v))
        self._units = scale[row] * scale[column]
        self.sparsity = self._scatter.sparsity

    def coupled(self, layout: Layout, jacobians: Sequence[Jacobians], weight: Array) -> list[Array]:
        """Return the entries of R^T W^T D W R of chains whose errors are correlated across stages."""
        whitened_chains = [(c, j) for c, j in zip(layout.chains, jacobians, strict=True) if c.whitening is not None]
        entries_by_chain: list[Array] = []
        for keys, (chain, j) in zip(self._coupled, whitened_chains, strict=True):
            R = chain.whitening @ _sparse_rows(layout, chain, np.concatenate([j.R_s, j.R_w, j.R_q], axis=2))
            product = (R.T @ (R * weight[chain.group].reshape(-1, 1))).tocoo()
            entries = np.zeros(keys.size)
            positions: Index = np.searchsorted(keys, np.asarray(product.row * layout.n_v + product.col, dtype=np.int64))
            np.add.at(entries, positions, product.data)
            entries_by_chain.append(entries)
        return entries_by_chain

    def nonzeros(self, blocks: Sequence[tuple[Array, Array]], prior: Array, squares: Sequence[Array] = ()) -> Array:
        """Assemble matrix entries from the blocks of all chains, squared gaps, coupled rows and theta.

        The block of theta is full or has its entries only.
        """
        pieces = [part.ravel() for block in blocks for part in block] + [block.ravel() for block in squares]
        flat = np.concatenate([*pieces, prior.ravel()])
        return self._scatter(flat[self._upper] * self._units)


def _sparse_rows(layout: Layout, chain: Chain, R: Array) -> Any:
    """Return the rows of one chain with their blocks R (K, n_r, m) in place, sparse (K n_r, n_v)."""
    from scipy.sparse import csr_array

    K, n_r, m = R.shape
    columns = np.repeat(_stage_positions(chain), n_r, axis=0)
    is_row = chain.row_mask.ravel()
    rows = np.repeat(np.flatnonzero(is_row), m)
    return csr_array(
        (R.reshape(K * n_r, m)[is_row].ravel(), (rows, columns[is_row].ravel())), shape=(K * n_r, layout.n_v)
    )


def _coupled_places(layout: Layout, chain: Chain) -> Index:
    """Return the positions where correlated rows couple variables, as row * n_v + column, sorted."""
    ones = np.ones((*chain.row_mask.shape, chain.n_s + chain.inner.shape[1] + chain.n_q))
    R = abs(chain.whitening) @ _sparse_rows(layout, chain, ones)
    product = (R.T @ R).tocoo()
    return np.unique(product.row.astype(np.intp) * layout.n_v + product.col)


def gauss_newton_blocks(layout: Layout, jacobians: Sequence[Jacobians], weight: Array) -> list[tuple[Array, Array]]:
    """Return R^T W R per stage over (s, w, q), and nothing for the initial state; W as in `cost_gradient`."""
    blocks: list[tuple[Array, Array]] = []
    for chain, j in zip(layout.chains, jacobians, strict=True):
        R = np.concatenate([j.R_s, j.R_w, j.R_q], axis=2)
        row_weight = (
            weight[chain.group] if chain.whitening is None else np.zeros(chain.group.shape)
        )  # see HessianMap.coupled
        weighted = R * row_weight[:, :, None]
        blocks.append((weighted.transpose(0, 2, 1) @ R, np.zeros((j.R_q.shape[2],) * 2)))
    return blocks


def squares_blocks(
    layout: Layout, scale: Array, jacobians: Sequence[Jacobians], all_multipliers: Sequence[Multipliers]
) -> list[Array]:
    """Return  2 lambda_k G_k^T D^2 G_k  per chain, (K - 1, m, m), with the Jacobians G_k of the gaps."""
    blocks: list[Array] = []
    for chain, j, chain_multipliers in zip(layout.chains, jacobians, all_multipliers, strict=True):
        next_ = np.broadcast_to(-np.eye(chain.n_s), (chain.n_stages - 1, chain.n_s, chain.n_s))
        state_block = np.concatenate([j.X_s, j.X_w, j.X_q], axis=2)[:-1]
        G = np.concatenate([state_block, next_], axis=2) / scale[chain.nodes[1:]][:, :, None]
        blocks.append(2.0 * chain_multipliers.matching[:, :, None] * (G.transpose(0, 2, 1) @ G))
    return blocks


def cost_gradient(layout: Layout, linear: Linearization, weight: Array) -> Array:
    """Return the gradient of  sum_g weight_g 1/2 |r_g|^2  with respect to v, (n_v,), at fixed unknown sigmas.

    weight (n_groups + 1,) : weight of the rows of each group; last, that of known sigmas and priors
    """
    gradient = np.zeros(layout.n_v)
    gradient[: layout.n_theta] = weight[-1] * (linear.prior_jacobian.T @ linear.prior)
    for chain, values, j in zip(layout.chains, linear.values, linear.jacobians, strict=True):
        r = chain.unwhitened(values.r * weight[chain.group])
        gradient[chain.nodes] += np.einsum("kr,krs->ks", r, j.R_s)
        gradient[chain.inner] += np.einsum("kr,krw->kw", r, j.R_w)
        gradient[chain.theta] += np.einsum("kr,krq->q", r, j.R_q)
    return gradient
