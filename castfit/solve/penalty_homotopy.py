"""Relaxed problems: the first stations of a homotopy for hard starts.

    Phi(v) = 1/2 sum_i |f_i r_i|^2 + rho/2 (|D gap|^2 + |D d|^2),      f_i = 1 / max(1, floor * signal_i)

No measurement counts as more accurate than a fraction `floor` of the mean measured value, and trajectories may be
discontinuous, with a penalty rho in units of the states' magnitudes D^-1.  Growing rho and decreasing floors lead to
the exact problem, which `castfit.solve.gauss_newton` solves (see docs/understand/homotopies.md).

Either homotopy alone loses starts that both together solve.  Calcium, 60 starts in [0, 1]^11, 25 intervals, one pass
through the stations: both 58; floors alone, with rho = 1 throughout, 55; rho alone, without floors, 49.

Bounds are enforced by projection, path constraints only in the exact problem.

A step is a Levenberg-Marquardt step with Marquardt's scaling.  Inner variables are eliminated per stage; the nodes'
normal matrix is block tridiagonal with a border of theta: banded Cholesky and a Schur complement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, cast

import numpy as np
import scipy

from castfit._support.arrays import Array
from castfit._support.records import dataclass
from castfit._support.sparse_rows import sparse_rows
from castfit.solve.solution import CountingProblem
from castfit.solve.staged import (
    Chain,
    Evaluation,
    Index,
    Jacobians,
    Layout,
    Linearization,
    Mask,
    StagedProblem,
    gap_of,
    gaps,
    rows_in_units,
)

# Relative gap whose penalty equals that of one standard deviation at rho = 1.
UNIT_PENALTY_RELATIVE_GAP = 0.065


@dataclass(frozen=True)
class RelaxationLevel:
    """Station: weights floored at `floor` of the mean measured value, equations with penalty `rho`."""

    floor: float
    rho: float


@dataclass(frozen=True)
class RelaxedStep:
    """Levenberg-Marquardt step on a relaxed problem.

    to : the new point, None if there is none
    value, decrease : Phi there, and its relative decrease
    damping : mu for the next step
    held_back : mu of this step
    """

    new_point: Evaluation | None
    value: float
    decrease: float
    damping: float
    used_damping: float


class StepEquations(Protocol):
    """Interface of normal equations for a step; see `NormalEquations`."""

    gradient: Array

    def decrease(self, dv: Array) -> float:
        """Decrease of Phi that the quadratic model predicts for a step."""
        ...

    def solve(self, mu: float, is_fixed: Mask) -> Array | None:
        """Return the step for damping mu with fixed variables, or None if the matrix is not definite."""
        ...


class RelaxedProblem:
    """Staged problem at one station.

    `noise`, a number or (K, n_r) per chain, is the expected standard deviation of residuals, in units of the weights of
    the data.  It makes data without known standard deviations comparable to gaps.  Unknown sigmas are constant at this
    value, because profiled ones would follow the residuals of a poor model.
    """

    def __init__(self, staged: StagedProblem, station: RelaxationLevel, noise: Sequence[Array] | float = 1.0) -> None:
        self.staged, self.station = staged, station
        noise_by_chain = [noise] * len(staged.signal) if isinstance(noise, (int, float)) else noise
        self._weights = [
            1.0 / np.maximum(e, station.floor * s) for e, s in zip(noise_by_chain, staged.signal, strict=True)
        ]
        root = np.sqrt(station.rho) / UNIT_PENALTY_RELATIVE_GAP
        self._gap_weights = [root / staged.scale[chain.nodes] for chain in staged.layout.chains]
        self._inner_weights = [root / staged.scale[chain.inner] for chain in staged.layout.chains]

    def value(self, evaluation: Evaluation) -> float:
        """Phi, infinite if a stage failed."""
        if not evaluation.ok:
            return np.inf
        square = float(evaluation.prior @ evaluation.prior) + 2.0 * evaluation.prior_excess
        residual_rows = rows_in_units(self.staged.layout, evaluation)
        for i, (gap, values) in enumerate(zip(gaps(self.staged.layout, evaluation), evaluation.values, strict=True)):
            for weight, part in (
                (self._weights[i], residual_rows[i]),
                (self._gap_weights[i], gap),
                (self._inner_weights[i], values.d),
            ):
                square += float(np.sum((weight * part) ** 2))
        return 0.5 * square

    def step(self, ledger: CountingProblem, evaluation: Evaluation, mu: float) -> RelaxedStep:
        """Take one accepted step, raising mu until Phi decreases."""
        staged, v = self.staged, evaluation.v
        current_value = self.value(evaluation)
        normal_equations = self.equations(evaluation)
        gradient = normal_equations.gradient
        is_fixed = ((v <= staged.lower) & (gradient >= 0)) | ((v >= staged.upper) & (gradient <= 0))
        is_fixed |= staged.lower == staged.upper
        growth = 2.0
        for _ in range(15):
            dv = normal_equations.solve(mu, is_fixed)
            if dv is not None:
                new_v = np.clip(v + dv, staged.lower, staged.upper)
                trial = ledger.evaluate(new_v)
                value = self.value(trial)
                predicted_decrease = normal_equations.decrease(new_v - v)
                gain = (current_value - value) / max(predicted_decrease, 1e-300)
                # The next step needs sensitivities at the new point.
                if value < current_value and gain > 1e-4 and self.has_derivatives(ledger, new_v):
                    shrink = max(1.0 / 3.0, 1.0 - (2.0 * min(gain, 2.0) - 1.0) ** 3)
                    return RelaxedStep(
                        trial, value, (current_value - value) / current_value, max(mu * shrink, 1e-12), mu
                    )
            mu *= growth
            growth *= 2.0
        return RelaxedStep(None, current_value, 0.0, mu, mu)

    def has_derivatives(self, ledger: CountingProblem, v: Array) -> bool:
        """Whether there are derivatives at v."""
        return ledger.linearize(v).ok

    def equations(self, evaluation: Evaluation) -> StepEquations:
        """Linearize a point, and return the normal equations there."""
        assert isinstance(evaluation, Linearization)
        layout = self.staged.layout
        return NormalEquations(
            layout, evaluation, (self._rows(i, chain, evaluation) for i, chain in enumerate(layout.chains))
        )

    def weighted(self, i: int, evaluation: Evaluation) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
        """Return weights and weighted values of the residuals of chain i, gaps to the next node, and inner equations.

        All are (K, m); the last stage has no next node, and zeros.
        """
        chain, values = self.staged.layout.chains[i], evaluation.values[i]
        w_next, next_gaps = np.zeros((2, chain.n_stages, chain.n_s))
        w_next[:-1] = self._gap_weights[i][1:]
        next_gaps[:-1] = w_next[:-1] * gap_of(chain, evaluation, i)[1:]
        w_r, w_d = self._weights[i] * np.append(evaluation.sigma, 1.0)[chain.group], self._inner_weights[i]
        return (w_r, w_next, w_d), (w_r * values.r, next_gaps, w_d * values.d)

    def initial(self, i: int, evaluation: Evaluation) -> tuple[Array, Array]:
        """Return the weight of the initial condition of chain i, and its weighted value, (n_s,)."""
        weight = self._gap_weights[i][0]
        return weight, weight * gap_of(self.staged.layout.chains[i], evaluation, i)[0]

    def _rows(self, i: int, chain: Chain, linear: Linearization) -> WeightedRows:
        j: Jacobians = linear.jacobians[i]
        (w_r, w_next, w_d), parts = self.weighted(i, linear)
        weight, start = self.initial(i, linear)
        residual = np.concatenate(parts, axis=1)
        jacobian = stage_jacobian(
            (j.R_s, j.R_w, j.R_q), (j.X_s, j.X_w, j.X_q), (j.D_s, j.D_w, j.D_q), w_r, w_next, w_next, w_d
        )
        return residual, jacobian, (weight, start, weight[:, None] * j.A)


WeightedRows = tuple[Array, Array, tuple[Array, Array, Array]]
"""Of a chain over (s_k, w_k, q, s_{k+1}): residuals (K, m), derivatives (K, m, n), and the initial condition.

Of that: weight (n_s,), residual (n_s,), derivative by q (n_s, n_q).
"""


def stage_jacobian(
    row_blocks: tuple[Array, ...], end_blocks: tuple[Array, ...], inner_blocks: tuple[Array, ...],
    w_r: Array, w_x: Array, w_next: Array, w_d: Array,
) -> Array:  # fmt: skip
    """Return derivatives of weighted rows, gaps to the next node, and inner equations over (s_k, w_k, q, s_{k+1}).

    The derivatives of each are ordered by (s, w, q), with weights (K, m); `w_next` (K, n_s) weights the next node.
    """
    K, n_s = w_next.shape
    rows, end, inner = (
        np.concatenate(blocks, axis=2) * w[:, :, None]
        for blocks, w in ((row_blocks, w_r), (end_blocks, w_x), (inner_blocks, w_d))
    )
    next_block = np.concatenate(
        [np.zeros((K, w_r.shape[1], n_s)), -w_next[:, :, None] * np.eye(n_s), np.zeros((K, w_d.shape[1], n_s))], axis=1
    )
    return np.concatenate([np.concatenate([rows, end, inner], axis=1), next_block], axis=2)


class NormalEquations:
    """Normal equations of a relaxed problem, per chain as stage blocks over (s_k, w_k, q, s_{k+1}).

    gradient, diagonal : (n_v,) of Phi and of its Gauss-Newton matrix
    """

    def __init__(self, layout: Layout, linear: Linearization, rows: Iterable[WeightedRows]) -> None:
        self.layout = layout
        self.blocks: list[Array] = []
        self.corner: list[tuple[Array, Array]] = []  # initial condition: weight, derivative by q
        n_theta = self.layout.n_theta
        self.gradient = np.zeros(self.layout.n_v)
        self.diagonal = np.zeros(self.layout.n_v)
        self.theta = sparse_rows(linear.prior_jacobian).product()
        self.gradient[:n_theta] = linear.prior_jacobian.T @ linear.prior
        on = self.theta.row == self.theta.column
        np.add.at(self.diagonal, self.theta.row[on], self.theta.entry[on])
        for chain, (residual, jacobian, (weight, start, A)) in zip(layout.chains, rows, strict=True):
            block = jacobian.transpose(0, 2, 1) @ jacobian
            slope = (jacobian.transpose(0, 2, 1) @ residual[:, :, None])[:, :, 0]
            self.blocks.append(block)
            self.corner.append((weight, A))
            for positions, columns in self._places(chain):
                np.add.at(self.gradient, positions, slope[: positions.shape[0], columns])
                np.add.at(self.diagonal, positions, np.einsum("kii->ki", block)[: positions.shape[0], columns])
            if chain.n_s:
                self.gradient[chain.nodes[0]] -= weight * start
                self.diagonal[chain.nodes[0]] += weight**2
            self.gradient[chain.theta] += A.T @ start
            self.diagonal[chain.theta] += (A**2).sum(axis=0)
        self.diagonal = np.maximum(self.diagonal, 1e-300)

    @staticmethod
    def _places(chain: Chain) -> list[tuple[Index, slice]]:
        n_s, n_w, n_q = chain.n_s, chain.n_w, chain.n_q
        q = np.broadcast_to(chain.theta, (chain.n_stages, n_q))
        return [
            (chain.nodes, slice(0, n_s)),
            (chain.inner, slice(n_s, n_s + n_w)),
            (q, slice(n_s + n_w, n_s + n_w + n_q)),
            (chain.nodes[1:], slice(n_s + n_w + n_q, 2 * n_s + n_w + n_q)),
        ]

    def decrease(self, dv: Array) -> float:
        """Decrease of Phi that the quadratic model predicts for a step."""
        n_theta = self.layout.n_theta
        curvature = float(dv[:n_theta] @ (self.theta @ dv[:n_theta]))
        for chain, block, (weight, A) in zip(self.layout.chains, self.blocks, self.corner, strict=True):
            x = self._gather(chain, dv)
            curvature += float(np.einsum("ki,kij,kj->", x, block, x))
            start = A @ dv[chain.theta] - (weight * dv[chain.nodes[0]] if chain.n_s else 0.0)
            curvature += float(start @ start)
        return -float(self.gradient @ dv) - 0.5 * curvature

    @staticmethod
    def _gather(chain: Chain, v: Array) -> Array:
        next_states = np.zeros((chain.n_stages, chain.n_s))
        next_states[:-1] = v[chain.nodes[1:]]
        q = np.broadcast_to(v[chain.theta], (chain.n_stages, chain.n_q))
        return np.concatenate([v[chain.nodes], v[chain.inner], q, next_states], axis=1)

    def solve(self, mu: float, is_fixed: Mask, damping_diagonal: Array | None = None) -> Array | None:
        """Return the step for damping mu with fixed variables, or None if the matrix is not definite.

        mu multiplies `damping_diagonal` (n_v,), by default the diagonal of the matrix.
        """
        layout, n_theta = self.layout, self.layout.n_theta
        free = np.where(is_fixed, 0.0, 1.0)
        right_side = -self.gradient * free
        # A fixed variable gets the equation 1 * step = 0.
        added_diagonal = np.where(is_fixed, 1.0, mu * (self.diagonal if damping_diagonal is None else damping_diagonal))
        held_theta = self.theta.scaled(free[:n_theta], free[:n_theta])
        columns = [chain.theta for chain in layout.chains]
        blocks: list[Array] = []
        reduced_chains: list[_ReducedNormalEquations] = []
        try:
            for chain, block, (weight, A) in zip(layout.chains, self.blocks, self.corner, strict=True):
                mask = self._gather(chain, free)
                part = _reduce(chain, block * mask[:, :, None] * mask[:, None, :], added_diagonal, right_side)
                a = A * free[chain.theta]
                part.theta += a.T @ a
                if chain.n_s:
                    initial_weights = weight * free[chain.nodes[0]]
                    part.diagonal[0] += np.diag(initial_weights**2)
                    part.border[0] -= initial_weights[:, None] * a
                reduced_chains.append(part)
            node_solutions = [
                _solve_nodes(part, right_side[chain.nodes])
                for chain, part in zip(layout.chains, reduced_chains, strict=True)
            ]
            b = right_side[:n_theta].copy()
            for chain, part, node_solution in zip(layout.chains, reduced_chains, node_solutions, strict=True):
                border = part.border.reshape(-1, chain.n_q)
                blocks.append(part.theta - border.T @ node_solution[:, :-1])
                b[chain.theta] += part.shift_theta - border.T @ node_solution[:, -1]
            from castfit.solve.arrow import solve_arrow

            step_theta = solve_arrow(columns, blocks, held_theta, added_diagonal[:n_theta], b)
        except (scipy.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
            return None
        dv = np.zeros(layout.n_v)
        dv[:n_theta] = step_theta
        for chain, part, node_solution in zip(layout.chains, reduced_chains, node_solutions, strict=True):
            dq = step_theta[chain.theta]
            dv[chain.nodes] = (node_solution[:, -1] - node_solution[:, :-1] @ dq).reshape(chain.nodes.shape)
            outer = self._gather(chain, dv)[:, _outer(chain)]
            dv[chain.inner] = part.inner - (part.inner_by_outer @ outer[:, :, None])[:, :, 0]
        return dv


@dataclass
class _ReducedNormalEquations:
    """Normal equations of a chain without its inner variables.

    diagonal (K, n_s, n_s), below (K - 1, n_s, n_s), border (K, n_s, n_q), theta (n_q, n_q) : the matrix
    shift (K, n_s), shift_theta (n_q,) : contribution of the elimination to the right-hand side
    inner (K, n_w), inner_by_outer (K, n_w, n_o) : recovery,  dw = inner - inner_by_outer (ds, dq, ds+)
    """

    diagonal: Array
    below: Array
    border: Array
    theta: Array
    shift: Array
    shift_theta: Array
    inner: Array
    inner_by_outer: Array


def _outer(chain: Chain) -> Index:
    """Columns of a stage block that are not inner: s_k, q, s_{k+1}."""
    width = 2 * chain.n_s + chain.n_w + chain.n_q
    return np.concatenate([np.arange(chain.n_s), np.arange(chain.n_s + chain.n_w, width)])


def _reduce(chain: Chain, M: Array, added_diagonal: Array, right_side: Array) -> _ReducedNormalEquations:
    """Eliminate the inner variables of every stage, and sort the rest by node."""
    K, n_s, n_w, n_q = chain.n_stages, chain.n_s, chain.n_w, chain.n_q
    o, w = _outer(chain), slice(n_s, n_s + n_w)
    M_o = M[:, o[:, None], o[None, :]]
    shift = np.zeros((K, o.size))
    inner: Array = np.empty((K, 0))
    inner_by_outer: Array = np.empty((K, 0, o.size))
    if n_w:
        M_w = M[:, w, w] + added_diagonal[chain.inner][:, :, None] * np.eye(n_w)
        coupling = M[:, w, :][:, :, o]
        right_sides = np.concatenate([coupling, right_side[chain.inner][:, :, None]], axis=2)
        solution = cast("Array", np.linalg.solve(M_w, right_sides))
        inner_by_outer, inner = solution[:, :, :-1], solution[:, :, -1]
        M_o = M_o - coupling.transpose(0, 2, 1) @ inner_by_outer
        shift = -(coupling.transpose(0, 2, 1) @ inner[:, :, None])[:, :, 0]
    s, q, t = slice(0, n_s), slice(n_s, n_s + n_q), slice(n_s + n_q, None)
    diagonal = M_o[:, s, s] + added_diagonal[chain.nodes][:, :, None] * np.eye(n_s)
    diagonal[1:] += M_o[:-1, t, t]
    border = M_o[:, s, q].copy()
    border[1:] += M_o[:-1, t, q]
    by_node = shift[:, s].copy()
    by_node[1:] += shift[:-1, t]
    return _ReducedNormalEquations(
        diagonal,
        M_o[:-1, t, s],
        border,
        M_o[:, q, q].sum(axis=0),
        by_node,
        shift[:, q].sum(axis=0),
        inner,
        inner_by_outer,
    )


def _solve_nodes(part: _ReducedNormalEquations, right_side: Array) -> Array:
    """Solve the block tridiagonal node equations for the border and the right-hand side, (K n_s, n_q + 1)."""
    K, n, n_q = part.border.shape
    if n == 0:
        return np.empty((0, n_q + 1))
    band = np.zeros((2 * n, K * n))  # lower form: band[i - j, j]
    for i in range(n):
        for j in range(n):
            if i >= j:
                band[i - j, j::n] = part.diagonal[:, i, j]
            band[n + i - j, j::n][: K - 1] = part.below[:, i, j]
    right_sides = np.concatenate([part.border, (right_side + part.shift)[:, :, None]], axis=2).reshape(K * n, n_q + 1)
    return scipy.linalg.cho_solve_banded((scipy.linalg.cholesky_banded(band, lower=True), True), right_sides)
