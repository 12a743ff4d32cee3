"""Condensing: the linearized staged problem as a small dense least-squares problem in the estimated quantities.

One chain of K = 3 stages, linearized (notation of `castfit.solve.staged`), and the remaining dense problem:

      dq   ds_0 dw_0  ds_1 dw_1  ds_2 dw_2                                           dq
    | A    -I                              |  a - s_0         ds_0 = g_0 + G_0 dq   | I |
    | D_q  D_s  D_w                        |  d_0
    | X_q  X_s  X_w   -I                   |  x_0 - s_1       ds_1 = g_1 + G_1 dq   | I |
    | D_q             D_s  D_w             |  d_1
    | X_q             X_s  X_w  -I         |  x_1 - s_2       ds_2 = g_2 + G_2 dq   | I |
    | D_q                       D_s  D_w   |  d_2
    |--------------------------------------|
    | R_q  R_s  R_w                        |  r_0                                   |   |
    | R_q             R_s  R_w             |  r_1             r = u + E dtheta      | E |
    | R_q                       R_s  R_w   |  r_2                                   |   |

1. Inner variables go first, all stages at once:  dw_k = h_k + W_s ds_k + W_q dq  with  W_s = -D_w^-1 D_s,
   W_q = -D_w^-1 D_q,  h = -D_w^-1 d.  They leave their stage as  X_s + X_w W_s,  R_s + R_w W_s  and so on.
2. The nodes follow (Peifer and Timmer 2007, Eq. 9):

       G_0 = A,        G_{k+1} = X_k G_k + P_k           with X_k, P_k = X_s, X_q of step 1
       g_0 = a - s_0,  g_{k+1} = X_k g_k + x_k - s_{k+1}

3. Rows become  E_k = R_s G_k + R_q,  u_k = r_k + R_s g_k,  and bounds on nodes are linear rows in dtheta.

G contains the product of all X_k, which loses digits, or overflows, if the model is unstable over the horizon;
`castfit.solve.elimination` eliminates the nodes differently and shares the other steps (see
docs/understand/condensing.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from castfit._support.arrays import Array, Index
from castfit._support.records import dataclass
from castfit._support.status import raise_if_mistakes
from castfit.solve.matrices import BlockLU, BlockRows, block_rows
from castfit.solve.staged import (
    Chain,
    ChainValues,
    Evaluation,
    Jacobians,
    Layout,
    Linearization,
    Multipliers,
    rows_in_units,
)


class NodeElimination(ABC):
    """Method to solve the linearized initial and matching conditions of one chain for its node steps.

    The conditions are  b_0 - ds_0 = 0  and  X_k ds_k - ds_{k+1} + b_{k+1} = 0  (k = 0 ... K-2).  Some nodes may stay
    unknown, `kept` (n_k,), with steps y (n_e,), n_e = n_k n_s.  The other nodes then depend on them, too, by `basis`
    (K, n_s, n_e), and as many closure rows remain, whose derivatives with respect to y are `closure` (n_e, n_e).
    """

    kept_nodes: Index
    basis: Array
    closure: Array

    @abstractmethod
    def solve(self, b: Array) -> tuple[Array, Array]:
        """Return, for b (K, n_s, p), the nodes (K, n_s, p) and closure rows (n_e, p) at y = 0; p right-hand sides."""

    @abstractmethod
    def adjoint(self, gradient: Array, closure: Array) -> Array:
        """Return the multipliers (K, n_s, p) of the conditions: the initial one, then the matching ones.

        With them  gradient (K, n_s, p) + multipliers^T conditions  is stationary in every node, given the multipliers
        (n_e, p) of the closure rows.
        """


class Substitution(NodeElimination):
    """Forward substitution: every node follows from its predecessor, and none stays unknown."""

    def __init__(self, X: Array) -> None:
        stages, n_s = X.shape[0] + 1, X.shape[2]
        self.X = X
        self.kept_nodes = np.empty(0, dtype=np.intp)
        self.basis = np.empty((stages, n_s, 0))
        self.closure = np.empty((0, 0))

    def solve(self, b: Array) -> tuple[Array, Array]:
        """Return ds_{k+1} = X_k ds_k + b_{k+1}; overflow gives infinite or NaN values."""
        s = b.copy()
        for X, node, next_node in zip(self.X, s[:-1], s[1:], strict=True):
            next_node += X.dot(node)
        return s, np.empty((0, b.shape[2]))

    def adjoint(self, gradient: Array, closure: Array) -> Array:
        """Return lambda_k = gradient_k + X_k^T lambda_{k+1}, the transposed substitution."""
        multipliers = gradient.copy()
        for X, multiplier, next_multiplier in zip(self.X[::-1], multipliers[-2::-1], multipliers[:0:-1], strict=True):
            multiplier += X.T.dot(next_multiplier)
        return multipliers


@dataclass(frozen=True)
class Stages:
    """The blocks of one chain after its inner variables are eliminated; the first axis is the stage.

    factors : those of D_w (K, n_w, n_w)
    h : (K, n_w)  -D_w^-1 d at the linearization
    W_s, W_q : (K, n_w, n_s | n_q)
    X, P : (K - 1, n_s, n_s | n_q)
    R_s, R_q, C_s, C_q : (K, n_r | n_c, n_s | n_q)
    singular : stages whose D_w is singular; there D_w^-1 is the pseudo-inverse, and dw the shortest least-squares step
    """

    factors: BlockLU
    h: Array
    W_s: Array
    W_q: Array
    X: Array
    P: Array
    R_s: Array
    R_q: Array
    C_s: Array
    C_q: Array
    singular: tuple[int, ...]


def eliminate_inner(jacobians: Jacobians, d: Array, unit: Array | None = None) -> Stages:
    """Solve the inner equations of every stage, with residuals d (K, n_w), for the inner variables.

    unit (K, n_w) : typical magnitudes of these
    """
    j = jacobians
    factors = BlockLU.factorize(j.D_w, unit)
    if not j.D_w.size:
        return Stages(factors, d, j.D_s, j.D_q, j.X_s[:-1], j.X_q[:-1], j.R_s, j.R_q, j.C_s, j.C_q, singular=())
    W = factors.solve(np.concatenate([j.D_s, j.D_q, d[:, :, None]], axis=2))
    np.negative(W, out=W)
    n_s = j.D_s.shape[2]
    W_s, W_q = W[:, :, :n_s], W[:, :, n_s:-1]
    return Stages(
        factors,
        W[:, :, -1],
        W_s,
        W_q,
        X=j.X_s[:-1] + j.X_w[:-1] @ W_s[:-1],
        P=j.X_q[:-1] + j.X_w[:-1] @ W_q[:-1],
        R_s=j.R_s + j.R_w @ W_s,
        R_q=j.R_q + j.R_w @ W_q,
        C_s=j.C_s + j.C_w @ W_s,
        C_q=j.C_q + j.C_w @ W_q,
        singular=factors.singular,
    )


@dataclass(frozen=True)
class CondensedChain:
    """One chain as affine functions of x' = x[columns] (n_x',), the entries of x on which it depends.

    ds_k = g_k + G_k x',    dw_k = h_k + W_s ds_k + W_q dq,    closure rows e + F x'

    g, G : (K, n_s), (K, n_s, n_x');  h : (K, n_w);  e, F : (n_e,), (n_e, n_x')
    """

    chain: Chain
    jacobians: Jacobians
    stages: Stages
    nodes: NodeElimination
    columns: Index
    G: Array
    F: Array
    g: Array
    h: Array
    e: Array

    def inner(self) -> tuple[Array, Array]:
        """Return the inner steps as affine functions of x': offsets (K, n_w), derivatives (K, n_w, n_x')."""
        stages = self.stages
        return self.h + _apply(stages.W_s, self.g), self.propagate_rows(stages.W_s, stages.W_q)

    def growth(self, scale: Array | None = None) -> float:
        """Return the growth of node sensitivities relative to the contributions of single stages.

        The largest over columns of  max_k |G_k| / max_k |contribution_k|,  where the contributions are A and the P_k;
        infinite if G overflows.
        """
        magnitude = 1.0 if scale is None else scale[self.chain.nodes][:, :, None]
        contributions = np.concatenate([self.jacobians.A[None], self.stages.P]) / magnitude
        largest_sum = np.abs(self.G[:, :, : self.chain.n_q] / magnitude).max(axis=(0, 1), initial=0.0)
        largest_contribution = np.abs(contributions).max(axis=(0, 1), initial=0.0)
        ratio = np.divide(
            largest_sum, largest_contribution, out=np.zeros_like(largest_sum), where=largest_contribution > 0
        )
        return float(np.where(np.isfinite(ratio), ratio, np.inf).max(initial=0.0))

    def propagate_rows(self, M_s: Array, M_q: Array) -> Array:
        """Return the derivative (K, rows, n_x') of rows  M_s ds_k + M_q dq."""
        if not self.chain.n_s:
            return M_q
        derivative = M_s @ self.G
        derivative[:, :, : self.chain.n_q] += M_q
        return derivative


@dataclass(frozen=True)
class Condensed:
    """Linearized staged problem in the unknowns x: the step of theta, then the steps of nodes that stay unknown.

    minimise 1/2 |u + E x|^2  subject to  e + F x = 0,  bounds of c + C x  and bounds of all variables.

    v (n_v,) : point from which steps are counted
    positions (n_x,) : positions of the unknowns in v
    u (m,) : residuals: the measured rows chain by chain and stage by stage, then the prior
    e (n_e,) : closure rows of the nodes that stay unknown; none after plain `condense`
    c (n_c,) : path constraints, padding included, chain by chain and stage by stage; relations of quantities last
    rows, closure, path : their derivatives by the unknowns as blocks; dense as E (m, n_x), F (n_e, n_x), C (n_c, n_x)
    sigma (n_groups,) : unknown sigmas by which the rows are divided, from the linearization
    scale (n_x,) : magnitudes of the unknowns, set if nodes stay unknown: the data alone may not determine them
    """

    layout: Layout
    v: Array
    chains: tuple[CondensedChain, ...]
    positions: Index
    rows: BlockRows
    closure: BlockRows
    path: BlockRows
    u: Array
    e: Array
    c: Array
    sigma: Array
    scale: Array | None = None

    @property
    def E(self) -> Array:
        """The derivative of the residuals as a dense matrix, (m, n_x)."""
        return self.rows.dense

    @property
    def F(self) -> Array:
        """The derivative of the closure rows as a dense matrix, (n_e, n_x)."""
        return self.closure.dense

    @property
    def C(self) -> Array:
        """The derivative of path constraints and relations as a dense matrix, (n_c, n_x)."""
        return self.path.dense

    @property
    def n_x(self) -> int:
        """Number of unknowns."""
        return self.positions.shape[0]

    @property
    def singular(self) -> tuple[tuple[str, int], ...]:
        """Chain and stage of every singular D_w: there the step does not satisfy the inner equations."""
        return tuple((part.chain.name, k) for part in self.chains for k in part.stages.singular)


def condense(
    layout: Layout,
    linearization: Linearization,
    scale: Array | None = None,
    *,
    node_elimination: Callable[[Chain, Array], NodeElimination] = lambda _, X: Substitution(X),
) -> Condensed:
    """Eliminate inner variables and nodes from a linearized staged problem, of which no stage may have failed.

    `scale` (n_v,) are typical magnitudes of all variables.
    `node_elimination` makes, from a chain and its X (K - 1, n_s, n_s), the `NodeElimination` to use.
    """
    _require_values("condense", linearization)
    parts: list[CondensedChain] = []
    n_x = layout.n_theta
    for chain, jacobians, values in zip(layout.chains, linearization.jacobians, linearization.values, strict=True):
        stages = eliminate_inner(jacobians, values.d, None if scale is None else scale[chain.inner])
        if not chain.n_s:  # rows depend on theta alone
            shape, nodes = (chain.n_stages, 0), Substitution(stages.X)
            empty_arrays = (
                np.empty((*shape, chain.n_q)),
                np.empty((0, chain.n_q)),
                np.empty(shape),
                stages.h,
                np.empty(0),
            )
            parts.append(CondensedChain(chain, jacobians, stages, nodes, chain.theta, *empty_arrays))
            continue
        nodes = node_elimination(chain, stages.X)
        gaps = _gaps(chain, jacobians, values, stages.h, linearization.v)
        S, closure = nodes.solve(np.concatenate([np.concatenate([jacobians.A[None], stages.P]), gaps], axis=2))
        columns = np.concatenate([chain.theta, np.arange(n_x, n_x + nodes.kept_nodes.size * chain.n_s)])
        G = np.concatenate([S[:, :, :-1], nodes.basis], axis=2)
        F = np.concatenate([closure[:, :-1], nodes.closure], axis=1)
        parts.append(
            CondensedChain(chain, jacobians, stages, nodes, columns, G, F, S[:, :, -1], stages.h, closure[:, -1])
        )
        n_x += nodes.kept_nodes.size * chain.n_s
    retained_positions = [part.chain.nodes[part.nodes.kept_nodes].ravel() for part in parts]
    residuals = [
        (part.columns, part.chain.whitened(part.propagate_rows(part.stages.R_s, part.stages.R_q))[part.chain.row_mask])
        for part in parts
    ]
    path = [(part.columns, _flat(part.propagate_rows(part.stages.C_s, part.stages.C_q))) for part in parts]
    return Condensed(
        layout,
        linearization.v,
        tuple(parts),
        positions=np.concatenate([np.arange(layout.n_theta), *retained_positions]),
        rows=block_rows(residuals, n_x, linearization.prior_jacobian),
        closure=block_rows([(part.columns, part.F) for part in parts], n_x),
        path=block_rows(path, n_x, _related(layout, linearization)),
        sigma=linearization.sigma,
        **_constants(layout, parts, linearization, linearization.sigma),
    )


def recondense(condensed: Condensed, evaluation: Evaluation) -> Condensed:
    """Replace the values of a condensed problem by the values at another point, with the same matrices and sigmas.

    Solving it gives the simplified correction of the natural level function (Peifer and Timmer 2007, Eq. 15).
    """
    _require_values("recondense", evaluation)
    parts: list[CondensedChain] = []
    for part, values in zip(condensed.chains, evaluation.values, strict=True):
        h = -part.stages.factors.solve(values.d[:, :, None])[:, :, 0] if values.d.size else values.d
        if part.chain.n_s:
            g, e = part.nodes.solve(_gaps(part.chain, part.jacobians, values, h, evaluation.v))
            parts.append(replace(part, g=g[:, :, 0], h=h, e=e[:, 0]))
        else:
            parts.append(replace(part, h=h) if h.size else part)
    constants = _constants(condensed.layout, parts, evaluation, condensed.sigma)
    return replace(condensed, v=evaluation.v, chains=tuple(parts), **constants)


def theta_rows(layout: Layout, linearization: Linearization) -> Array:
    """Return E (m, n_theta) of `condense` if theta is the only variable."""
    prior, offset = linearization.prior_jacobian, 0
    blocks = [
        chain.whitened(j.R_q)[chain.row_mask] for chain, j in zip(layout.chains, linearization.jacobians, strict=True)
    ]
    E = np.zeros((sum(map(len, blocks)) + linearization.prior.size, layout.n_theta))
    for chain, block in zip(layout.chains, blocks, strict=True):
        E[offset : offset + len(block), chain.theta] = block
        offset += len(block)
    E[offset:] = prior if isinstance(prior, np.ndarray) else prior.dense
    return E


def theta_residuals(layout: Layout, evaluation: Evaluation, sigma: Array | None = None) -> Array:
    """Return u (m,) of `condense` if theta is the only variable; sigmas (n_groups,) are by default its own."""
    rows = [values.r for values in evaluation.values] if sigma is None else rows_in_units(layout, evaluation, sigma)
    return np.concatenate(
        [*(r[chain.row_mask] for chain, r in zip(layout.chains, rows, strict=True)), evaluation.prior]
    )


def expand(condensed: Condensed, x: Array) -> Array:
    """Return the step dv (n_v,) of all variables that belongs to the unknowns x (n_x,)."""
    layout = condensed.layout
    if layout.n_v == layout.n_theta:
        return x
    nodes: list[Array] = []
    inner: list[Array] = []
    for part in condensed.chains:
        ds = part.g + part.G @ x[part.columns]
        dq = x[part.chain.theta]
        nodes.append(ds)
        inner.append(part.h + _apply(part.stages.W_s, ds) + part.stages.W_q @ dq)
    return layout.pack(x[: layout.n_theta], tuple(nodes), tuple(inner))


def multipliers(
    condensed: Condensed,
    residuals: Array,
    *,
    bounds: Array | None = None,
    path: Array | None = None,
    closure: Array | None = None,
) -> tuple[Multipliers, ...]:
    """Return the multipliers of all equations, given those of the condensed problem.

    They make the gradient of  1/2 |r|^2 + multipliers . constraints + bounds . v  vanish in every node and inner
    variable; in theta it vanishes if x is optimal.  Residuals (m,) are usually the predicted ones, u + E x; bounds
    (n_v,), path (n_c,) and closure (n_e,) are multipliers of these constraints, positive at an upper bound.
    """
    columns = (
        np.zeros((count, 1)) if multiplier is None else multiplier[:, None]
        for multiplier, count in (
            (bounds, condensed.layout.n_v),
            (path, condensed.c.size),
            (closure, condensed.e.size),
        )
    )
    chain_multipliers = adjoint(condensed, residuals[:, None], *columns)
    return tuple(
        Multipliers(m.initial[..., 0], m.inner[..., 0], m.matching[..., 0], m.path[..., 0]) for m in chain_multipliers
    )


def adjoint(
    condensed: Condensed, residuals: Array, bounds: Array, path: Array, closure: Array
) -> tuple[Multipliers, ...]:
    """Compute `multipliers` for p problems at once: every array, also in the result, has a last axis (p)."""
    result: list[Multipliers] = []
    row_offset = constraint_offset = closure_offset = 0
    for part in condensed.chains:
        count, n_c, n_e = int(part.chain.row_mask.sum()), part.chain.n_stages * part.chain.n_c, part.e.size
        chain_parts = (
            residuals[row_offset : row_offset + count],
            path[constraint_offset : constraint_offset + n_c],
            closure[closure_offset : closure_offset + n_e],
        )
        result.append(_chain_multipliers(part, chain_parts[0], bounds, chain_parts[1], chain_parts[2]))
        row_offset, constraint_offset, closure_offset = (
            row_offset + count,
            constraint_offset + n_c,
            closure_offset + n_e,
        )
    return tuple(result)


def _chain_multipliers(
    part: CondensedChain, residuals: Array, bounds: Array | None, path: Array | None, closure: Array
) -> Multipliers:
    """Compute the multipliers of one chain for p problems, from its own rows (m_i, p) and path constraints."""
    chain, j, p = part.chain, part.jacobians, residuals.shape[1]
    r = np.zeros((*chain.row_mask.shape, p))
    r[chain.row_mask] = residuals
    r = chain.unwhitened(r)
    mu = np.zeros((chain.n_stages, chain.n_c, p)) if path is None else path.reshape(chain.n_stages, chain.n_c, p)
    # Gradients in w and s, that in s with w eliminated.
    in_w = _t(j.R_w) @ r + _t(j.C_w) @ mu
    in_s = _t(j.R_s) @ r + _t(j.C_s) @ mu
    if bounds is not None:
        in_w, in_s = in_w + bounds[chain.inner], in_s + bounds[chain.nodes]
    in_s = in_s + _t(part.stages.W_s) @ in_w
    node_multipliers = part.nodes.adjoint(in_s, closure)
    in_w[:-1] += _t(j.X_w[:-1]) @ node_multipliers[1:]
    return Multipliers(node_multipliers[0], -part.stages.factors.solve_transposed(in_w), node_multipliers[1:], mu)


def chain_adjoint(
    part: CondensedChain,
    residuals: Array,
    bounds: Array | None = None,
    path: Array | None = None,
    closure: Array | None = None,
) -> Array:
    """Return the multipliers (K, n_s, p) of one chain's initial and matching conditions for p problems.

    residuals (m_i, p), bounds (n_v, p), path (K n_c, p), closure (n_e, p); without these they are zero.
    """
    zero_closure = np.zeros((part.e.size, residuals.shape[1]))
    limits = bounds if bounds is not None and len(bounds) else None
    chain_multipliers = _chain_multipliers(part, residuals, limits, path, zero_closure if closure is None else closure)
    return np.concatenate([chain_multipliers.initial[None], chain_multipliers.matching])


def _gaps(chain: Chain, jacobians: Jacobians, values: ChainValues, h: Array, v: Array) -> Array:
    """Return the defects of initial and matching conditions after inner variables have moved by h, (K, n_s, 1)."""
    ends = (values.x + _apply(jacobians.X_w, h))[:-1]
    return (np.concatenate([values.a[None], ends]) - v[chain.nodes])[:, :, None]


def _constants(layout: Layout, parts: list[CondensedChain], evaluation: Evaluation, sigma: Array) -> dict[str, Array]:
    """Return u, e and c of the condensed problem: the values of its rows at x = 0."""
    residuals: list[Array] = []
    path: list[Array] = []
    rows = rows_in_units(layout, evaluation, sigma)
    for part, values, residual_rows in zip(parts, evaluation.values, rows, strict=True):
        shift = _apply(part.jacobians.R_w, part.h) + _apply(part.stages.R_s, part.g)
        r = residual_rows + part.chain.whitened(shift)
        c = values.c + _apply(part.jacobians.C_w, part.h) + _apply(part.stages.C_s, part.g)
        residuals.append(r[part.chain.row_mask])
        path.append(c.ravel())
    return {
        "u": np.concatenate([*residuals, evaluation.prior]),
        "e": np.concatenate([part.e for part in parts]),
        "c": np.concatenate([*path, evaluation.related]),
    }


def _related(layout: Layout, linearization: Linearization) -> Array:
    return linearization.related_jacobian.reshape(linearization.related.size, layout.n_theta)


def _apply(M: Array, y: Array) -> Array:
    """Multiply matrices (K, i, j) by vectors (K, j)."""
    return (M @ y[:, :, None])[:, :, 0] if y.size else np.zeros(M.shape[:2])


def _t(M: Array) -> Array:
    return M.swapaxes(1, 2)


def _flat(rows: Array) -> Array:
    """Join the stages' rows: (K, i, j) to (K i, j)."""
    return rows.reshape(rows.shape[0] * rows.shape[1], rows.shape[2])


def _require_values(where: str, evaluation: Evaluation) -> None:
    """Raise an error if stages failed at a point."""
    raise_if_mistakes(
        where,
        [
            f"stage {failure.stage} of {failure.chain} failed ({failure.cause}); use a point where every stage can be "
            "evaluated"
            for failure in evaluation.failures
        ],
    )
