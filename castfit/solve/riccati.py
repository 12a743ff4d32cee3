"""Quadratic problems over a chain of stages with free variables, by a backward Riccati recursion, linear in the length.

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
from castfit.solve.matrices import LAPACK

_potrf: Any = LAPACK.dpotrf
_potrs: Any = LAPACK.dpotrs
_cholesky: Any = np.linalg.cholesky
_inverse: Any = np.linalg.inv


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
    """

    F: Array
    S: Array
    V: Array
    gain: Array
    inverse: Array
    start_inverse: Array
    log_det: float

    @cached_property
    def _closed(self) -> Array:
        """Phi_k, (K, n, n)."""
        n = self.S.shape[0]
        return self.F[:, :, :n] + self.F[:, :, n:] @ self.gain

    def solve(self, h: Array, h_end: Array, d: Array, h_start: Array) -> ChainStep:
        """Solve for gradients h (K, n + m), h_end (n,), h_start (r,) and constants d (K + 1, n)."""
        n, (K, _, _) = self.S.shape[0], self.F.shape
        B, Vd = self.F[:, :, n:], np.einsum("kij,kj->ki", self.V, d)
        b = h[:, :n] + np.einsum("kmn,km->kn", self.gain, h[:, n:])
        b += np.einsum("kij,ki->kj", self._closed, Vd[1:])
        v = np.empty((K + 1, n))
        v[K] = vector = h_end
        for k in range(K - 1, -1, -1):
            v[k] = vector = b[k] + vector.dot(self._closed[k])
        gradient = h[:, n:] + np.einsum("kim,ki->km", B, Vd[1:] + v[1:])
        kappa = -np.einsum("kij,kj->ki", self.inverse, gradient)
        u_start = -self.start_inverse @ (h_start + self.S.T @ (Vd[0] + v[0]))
        e = np.einsum("kim,km->ki", B, kappa) + d[1:]
        x = np.empty((K + 1, n))
        x[0] = vector = self.S @ u_start + d[0]
        for k in range(K):
            x[k + 1] = vector = self._closed[k].dot(vector) + e[k]
        u = np.einsum("kmn,kn->km", self.gain, x[:-1]) + kappa
        return ChainStep(x, u, u_start, np.einsum("kij,kj->ki", self.V, x) + v)

    @cached_property
    def state_covariances(self) -> Array:
        """The covariances of all states, (K + 1, n, n)."""
        n, (K, _, _) = self.S.shape[0], self.F.shape
        B = self.F[:, :, n:]
        noise_covariances = B @ self.inverse @ B.swapaxes(1, 2)
        C = np.empty((K + 1, n, n))
        C[0] = covariance = self.S @ self.start_inverse @ self.S.T
        for k in range(K):
            closed_loop = self._closed[k]
            C[k + 1] = covariance = closed_loop.dot(covariance).dot(closed_loop.T) + noise_covariances[k]
        return C

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


def riccati(F: Array, H: Array, end: Array, S: Array) -> RiccatiFactor | None:
    """Factor the problem; None where it has no minimum: some R_k is not positive definite."""
    n, (K, _, width) = S.shape[0], F.shape
    m = width - n
    V, gain, roots = np.empty((K + 1, n, n)), np.zeros((K, m, n)), np.empty((K, m, m))
    V[K] = V_next = end
    for k in range(K - 1, -1, -1):
        f = F[k]
        M = H[k] + f.T.dot(V_next.dot(f))
        R, failed = _potrf(M[n:, n:], lower=1)
        if failed:
            return None
        gain[k] = g = -_potrs(R, M[n:, :n], lower=1)[0] if m else gain[k]
        V_next = M[:n, :n] + M[:n, n:].dot(g)
        V[k] = V_next = 0.5 * (V_next + V_next.T)
        roots[k] = R
    try:
        start: Array = _cholesky(np.eye(S.shape[1]) + S.T @ V[0] @ S)
    except np.linalg.LinAlgError:
        return None
    roots = np.tril(roots)
    diagonals = [np.diagonal(roots, axis1=1, axis2=2).ravel(), np.diag(start)]
    inverse_roots: Array = _inverse(roots)
    inverse_root: Array = _inverse(start)
    log_det = 2.0 * float(sum(np.sum(np.log(d)) for d in diagonals))
    if not np.isfinite(log_det):
        return None
    return RiccatiFactor(
        F, S, V, gain, inverse_roots.swapaxes(1, 2) @ inverse_roots, inverse_root.T @ inverse_root, log_det
    )
