"""Quadratic problems over a chain of stages with free variables, by a Riccati recursion, linear in the length.

    min   1/2 |u_0|^2 + h_0' u_0 + sum_k (1/2 v_k' H_k v_k + h_k' v_k) + 1/2 x_K' H_K x_K + h_K' x_K,   v_k = (x_k, u_k)
    s.t.  x_0 = S u_0 + d_0,   x_{k+1} = F_k v_k + d_{k+1},   F_k = (A_k, B_k)

With free variables u_k that are noise this is smoothing, with controls it is optimal control.  What stages k ... K cost
at best is a quadratic in x_k with the Hessian V_k  (Anderson and Moore 1990, section 2.4; Rao, Wright and Rawlings
1998):

    M_k = H_k + F_k' V_{k+1} F_k = ( .    G' ),     V_k = M_xx - G' R^-1 G,     u_k = K_k x_k + kappa_k,   K_k = -R^-1 G
                                   ( G    R  )

The matrix of second derivatives by everything that is free, u_0 and all u_k, has the determinant  |R_0| prod |R_k|,
with  R_0 = I + S' V_0 S.  Its inverse is the covariance of a normal density with this exponent; with Phi = A + B K

    C_0 = S R_0^-1 S',    C_{k+1} = Phi_k C_k Phi_k' + B_k R_k^-1 B_k',      cov(v_k) from C_k and K_k,

and the derivative of half the logarithm of the determinant is  1/2 cov(v_k)  by H_k  and  V_{k+1} F_k cov(v_k)  by F_k.
The recursions for V_k, x_k and C_k run by cyclic reduction: neighbouring stages are merged into one, all pairs at once.
If data are far more precise than the noise of a stage, V_k is represented by square roots (`_recur_with_roots`).

Notation
--------
n, m, r   states, free variables of a stage, free variables of the start; K stages, K + 1 nodes
F (K, n, n + m),  H (K, n + m, n + m),  end (n, n) = H_K,  S (n, r)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from castfit._support.arrays import Array

_cholesky: Any = np.linalg.cholesky
_inverse: Any = np.linalg.inv
_solve: Any = np.linalg.solve
_qr: Any = np.linalg.qr
_MAX_PLAIN_PRECISION, _ROUNDING = 1e8, 1e-14  # precision above which roots are used; relative size of rounding errors
_MAX_LOOP_STAGES = 8  # stages of a linear recurrence that are faster one by one


@dataclass(frozen=True)
class ChainStep:
    """A solution: states x (K + 1, n), free variables u (K, m) and `first` (r,), multipliers (K + 1, n).

    multipliers : of the equations for x_k; what the objective gains per unit of d_k
    """

    x: Array
    u: Array
    initial_variables: Array
    multipliers: Array


@dataclass(frozen=True)
class RiccatiFactor:
    """The factored problem: V (K + 1, n, n), K as `gain` (K, m, n), R_k^-1 (K, m, m), R_0^-1 (r, r).

    log_det : log of the determinant of the second derivatives by what is free
    precision : about the largest second derivative by a free variable of a stage; steps lose as many digits
    """

    F: Array
    S: Array
    V: Array
    gain: Array
    inverse: Array
    start_inverse: Array
    log_det: float
    precision: float

    @cached_property
    def _closed(self) -> Array:
        """Phi_k, (K, n, n)."""
        n = self.S.shape[0]
        return self.F[:, :, :n] + self.F[:, :, n:] @ self.gain

    def solve(self, h: Array, h_end: Array, d: Array, h_start: Array) -> ChainStep:
        """Solve for gradients h (K, n + m), h_end (n,), h_start (r,) and constants d (K + 1, n)."""
        n = self.S.shape[0]
        B, Vd = self.F[:, :, n:], np.einsum("kij,kj->ki", self.V, d)
        b = h[:, :n] + np.einsum("kmn,km->kn", self.gain, h[:, n:])
        b += np.einsum("kij,ki->kj", self._closed, Vd[1:])
        right = np.concatenate([h_end[None], b[::-1]])
        v = solve_recurrence(self._closed[::-1].swapaxes(1, 2), right[..., None])[::-1, :, 0]
        gradient = h[:, n:] + np.einsum("kim,ki->km", B, Vd[1:] + v[1:])
        kappa = -np.einsum("kij,kj->ki", self.inverse, gradient)
        u_start = -self.start_inverse @ (h_start + self.S.T @ (Vd[0] + v[0]))
        start = self.S @ u_start + d[0]
        e = np.concatenate([start[None], np.einsum("kim,km->ki", B, kappa) + d[1:]])
        x = solve_recurrence(self._closed, e[..., None])[..., 0]
        u = np.einsum("kmn,kn->km", self.gain, x[:-1]) + kappa
        return ChainStep(x, u, u_start, np.einsum("kij,kj->ki", self.V, x) + v)

    @cached_property
    def state_covariances(self) -> Array:
        """The covariances of all states, (K + 1, n, n)."""
        B = self.F[:, :, self.S.shape[0] :]
        start = self.S @ self.start_inverse @ self.S.T
        noise_covariances = B @ self.inverse @ B.swapaxes(1, 2)
        return solve_recurrence(self._closed, np.concatenate([start[None], noise_covariances]), is_congruence=True)

    @cached_property
    def covariances(self) -> tuple[Array, Array]:
        """The covariances of v_k, (K, n + m, n + m), and of all states, (K + 1, n, n)."""
        n, (K, _, width), C = self.S.shape[0], self.F.shape, self.state_covariances
        joint = np.empty((K, width, width))
        joint[:, :n, :n] = C[:-1]
        joint[:, n:, :n] = cross = self.gain @ C[:-1]
        joint[:, :n, n:] = cross.swapaxes(1, 2)
        joint[:, n:, n:] = cross @ self.gain.swapaxes(1, 2) + self.inverse
        return joint, C

    def draws(self, rng: np.random.Generator, count: int) -> tuple[Array, Array, tuple[Array, Array]]:
        """Draw standard normal numbers for u_0 (count, r) and u_k (K, count, m); return them with roots of R^-1.

        u_0 from N(0, R_0^-1), then u_k from N(K_k x_k, R_k^-1), are a draw from the normal density of the exponent.
        """
        roots: tuple[Array, Array] = _cholesky(self.start_inverse), _cholesky(self.inverse)
        shape = self.gain.shape[0], count, self.gain.shape[1]
        return rng.standard_normal((count, self.S.shape[1])), rng.standard_normal(shape), roots


def solve_recurrence(P: Array, e: Array, *, is_congruence: bool = False) -> Array:
    """Solve  y_0 = e_0, y_{k+1} = P_k y_k + e_{k+1},  or with P_k y_k P_k', by cyclic reduction.

    P (K, n, n), e (K + 1, n, .); pairs of stages are merged, all at once, until few are left.
    """

    def transfer(P: Array, y: Array) -> Array:
        return P @ y @ P.swapaxes(-1, -2) if is_congruence else P @ y

    K, y = P.shape[0], e.copy()
    if K <= _MAX_LOOP_STAGES:
        for k in range(K):
            y[k + 1] += transfer(P[k], y[k])
        return y
    pairs = K // 2
    merged_e = np.concatenate([e[:1], transfer(P[1::2], e[1::2][:pairs]) + e[2::2]])
    y[::2] = solve_recurrence(P[1::2] @ P[::2][:pairs], merged_e, is_congruence=is_congruence)
    y[1::2] += transfer(P[::2], y[::2][: K - pairs])
    return y


def _costs_to_go(A: Array, C: Array, J: Array, end: Array) -> Array:
    """Return V (K + 1, n, n), V_0 = end, V_{k+1} = J_k + A_k' (I + V_k C_k)^-1 V_k A_k, by cyclic reduction.

    Stages are in reverse order.  Stage 2 and stage 1, which precedes it in time, are one stage with
    D = (I + C_1 J_2)^-1,  A = A_2 D A_1,  C = A_2 D C_1 A_2' + C_2,  J = J_1 + A_1' J_2 D A_1
    (Sarkka and Garcia-Fernandez 2023).
    """
    (K, n, _), identity = A.shape, np.eye(A.shape[1])
    V = np.empty((K + 1, n, n))
    V[0] = end
    if K:
        pairs = K // 2
        (A2, A1), (C2, C1), (J2, J1) = ((a[::2][:pairs], a[1::2]) for a in (A, C, J))
        D = _solve(identity + C1 @ J2, np.concatenate([A1, C1], axis=2))
        merged_C = A2 @ D[..., n:] @ A2.swapaxes(1, 2) + C2
        V[::2] = _costs_to_go(A2 @ D[..., :n], merged_C, J1 + A1.swapaxes(1, 2) @ J2 @ D[..., :n], end)
        V_even = V[::2][: K - pairs]
        V[1::2] = J[::2] + A[::2].swapaxes(1, 2) @ _solve(identity + V_even @ C[::2], V_even @ A[::2])
    return V


def _recur(F: Array, H: Array, end: Array, S: Array) -> tuple[Array, Array, Array, Array]:
    """Return V, roots of R_k, (root of R_k)^-1 G and the root of R_0."""
    n, reverse = S.shape[0], slice(None, None, -1)
    A, B, H_xu, H_uu = F[:, :, :n], F[:, :, n:], H[:, :n, n:], H[:, n:, n:]
    # u's answer without the stages after it is eliminated first, so that a stage has n states alone.
    answer = np.concatenate([H_xu.swapaxes(1, 2), B.swapaxes(1, 2)], axis=2)
    if not np.all(H_uu == np.eye(H_uu.shape[1])):
        answer = _solve(H_uu, answer)
    by_x, by_end = answer[..., :n], answer[..., n:]
    J = H[:, :n, :n] - H_xu @ by_x
    costs = _costs_to_go((A - B @ by_x)[reverse], (B @ by_end)[reverse], J[reverse], end)
    V: Array = 0.5 * (costs + costs.swapaxes(1, 2))[reverse]
    M: Array = H + F.swapaxes(1, 2) @ V[1:] @ F
    roots: Array = _cholesky(M[:, n:, n:])
    cross: Array = _solve(roots, M[:, n:, :n])
    return V, roots, cross, _cholesky(np.eye(S.shape[1]) + S.T @ V[0] @ S)


def _split_rows(H: Array) -> tuple[Array, Array]:
    """Return rows W_+ and W_- of a symmetric matrix  H = W_+' W_+ - W_-' W_-,  without what rounding leaves."""
    scale = np.sqrt(np.abs(np.diag(H)))
    scale[scale == 0.0] = 1.0
    values, vectors = np.linalg.eigh(H / np.outer(scale, scale))
    limit = _ROUNDING * np.abs(values).max(initial=0.0)
    rows = np.sqrt(np.abs(values))[:, None] * vectors.T * scale
    return rows[values > limit], rows[values < -limit]


def _recur_with_roots(F: Array, H: Array, end: Array, S: Array) -> tuple[Array, Array, Array, Array]:
    """Return V, roots of R_k, (root of R_k)^-1 G and the root of R_0, of a problem with very large second derivatives.

    V_k = U_k' U_k + E_k,  with large entries in U_k alone (`rows`) and an indefinite `rest` E_k; orthogonal
    transformations of rows of (u_k, x_k) keep all digits of U_k.
    """
    (K, n, width), V = F.shape, np.empty((F.shape[0] + 1, *end.shape))
    m = width - n
    roots, cross = np.empty((K, m, m)), np.empty((K, m, n))

    def orthogonalize(large: Array, Q: Array, r: int) -> tuple[Array, Array]:
        """Return the triangle of all rows, which include the first r columns of Q, and the remainder of Q."""
        root: Array = _cholesky(Q[:r, :r])
        side: Array = _solve(root, Q[:r, r:])
        return _qr(np.concatenate([large, np.hstack([root.T, side])]), mode="r"), Q[r:, r:] - side.T @ side

    (rows, negative), order = _split_rows(end), [*range(n, width), *range(n)]
    remainder, V[K] = -negative.T @ negative, end
    for k in range(K - 1, -1, -1):
        data, negative = _split_rows(H[k, :n, :n])
        f, Q = F[k][:, order], H[k].copy()
        Q[:n, :n] = -negative.T @ negative
        triangle, remainder = orthogonalize(rows @ f, Q[np.ix_(order, order)] + f.T @ remainder @ f, m)
        roots[k], cross[k] = triangle[:m, :m].T, triangle[:m, m:]
        rows = _qr(np.concatenate([data, triangle[m:, m:]]), mode="r")
        V[k] = rows.T @ rows + remainder
    r = S.shape[1]
    return V, roots, cross, orthogonalize(rows @ S, np.eye(r) + S.T @ remainder @ S, r)[0].T


def riccati(F: Array, H: Array, end: Array, S: Array) -> RiccatiFactor | None:
    """Factor the problem; None where it has no minimum: some R_k is not positive definite."""
    n = S.shape[0]
    nodes = np.concatenate([H[1:, :n, :n], end[None]])
    sizes = np.abs(F[:, :, n:]).swapaxes(1, 2) @ np.sqrt(np.abs(np.diagonal(nodes, axis1=1, axis2=2)))[..., None]
    precision = 1.0 + float(sizes.max(initial=0.0)) ** 2
    for recur in (_recur_with_roots, _recur)[precision <= _MAX_PLAIN_PRECISION :]:
        try:
            V, roots, cross, start = recur(F, H, end, S)
            break
        except np.linalg.LinAlgError:
            continue
    else:
        return None
    diagonals = [np.diagonal(roots, axis1=1, axis2=2).ravel(), np.diag(start)]
    log_det = 2.0 * float(sum(np.sum(np.log(np.abs(d))) for d in diagonals))
    if not np.isfinite(log_det):
        return None
    inverse_roots, inverse_root = _inverse(roots), _inverse(start)
    transposed = inverse_roots.swapaxes(1, 2)
    gain, inverse = -transposed @ cross, transposed @ inverse_roots
    return RiccatiFactor(F, S, V, gain, inverse, inverse_root.T @ inverse_root, log_det, precision)
