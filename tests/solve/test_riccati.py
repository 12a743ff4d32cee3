"""Riccati factors of chains of stages against the dense equations: steps, determinants, covariances, lengths."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

import numpy as np
import pytest

from castfit.solve.riccati import riccati, solve_recurrence

if TYPE_CHECKING:
    from castfit._support.arrays import Array


def drawn_chain(seed: int, K: int, n: int, m: int) -> tuple[Array, Array, Array, Array]:
    """Return F, H, end and S of a convex problem in which fewer free variables than states may move a stage."""
    rng = np.random.default_rng(seed)
    F = np.concatenate([0.8 * np.eye(n) + 0.2 * rng.normal(size=(K, n, n)), 0.3 * rng.normal(size=(K, n, m))], axis=2)
    root = rng.normal(size=(K, n + m, n + m))
    H = 0.03 * root @ root.swapaxes(1, 2)
    H[:, n:, n:] += np.eye(m)
    H[1::3, :n, :n] += 1e3 * np.eye(n)
    return F, H, np.diag(rng.uniform(0.0, 2.0, n)), rng.normal(size=(n, max(n - 1, 1)))


def solve_densely(F: Array, H: Array, end: Array, S: Array, *rows: Array) -> tuple[Array, Array, Array]:
    """Return states by the free variables with their constant part, and the Hessian by the free variables."""
    h, h_end, d, h_start = rows
    (K, n, _), r = F.shape, S.shape[1]
    m = F.shape[2] - n
    G, constants = np.zeros((K + 1, n, r + K * m)), np.zeros((K + 1, n))
    G[0, :, :r], constants[0] = S, d[0]
    for k in range(K):
        G[k + 1] = F[k, :, :n] @ G[k]
        G[k + 1, :, r + k * m : r + (k + 1) * m] += F[k, :, n:]
        constants[k + 1] = F[k, :, :n] @ constants[k] + d[k + 1]
    Q = np.eye(r + K * m)
    Q[r:, r:] = 0.0
    gradient = np.concatenate([h_start, np.zeros(K * m)])
    for k in range(K):
        u = np.zeros((m, r + K * m))
        u[:, r + k * m : r + (k + 1) * m] = np.eye(m)
        V = np.concatenate([G[k], u])
        Q += V.T @ H[k] @ V
        gradient += V.T @ (h[k] + H[k] @ np.concatenate([constants[k], np.zeros(m)]))
    Q += G[K].T @ end @ G[K]
    gradient += G[K].T @ (h_end + end @ constants[K])
    free = -np.linalg.solve(Q, gradient)
    return free, G @ free + constants, Q


@pytest.mark.parametrize("max_precision", [0.0, np.inf])  # with and without square roots
@pytest.mark.parametrize(
    ("K", "n", "m"), [(1, 2, 2), (2, 1, 2), (3, 3, 1), (8, 2, 4), (9, 3, 1), (21, 2, 3), (40, 4, 2)]
)
def test_factor_has_the_step_determinant_and_covariances_of_the_dense_equations(monkeypatch, K, n, m, max_precision):
    monkeypatch.setattr("castfit.solve.riccati._MAX_PLAIN_PRECISION", max_precision)
    F, H, end, S = drawn_chain(K, K, n, m)
    H[:, 0, 0] -= 0.05  # indefinite where nothing is measured
    rng, r = np.random.default_rng(1), S.shape[1]
    rows = rng.normal(size=(K, n + m)), rng.normal(size=n), rng.normal(size=(K + 1, n)), rng.normal(size=r)
    if max_precision == 0.0:
        monkeypatch.setattr("castfit.solve.riccati._recur", None)
    factor = riccati(F, H, end, S)
    assert factor is not None
    free, x, Q = solve_densely(F, H, end, S, *rows)
    step = factor.solve(*rows)
    np.testing.assert_allclose(np.concatenate([step.initial_variables, step.u.ravel()]), free, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(step.x, x, rtol=1e-8, atol=1e-9)
    assert factor.log_det == pytest.approx(np.linalg.slogdet(Q)[1], rel=1e-11)
    inverse = np.linalg.inv(Q)
    np.testing.assert_allclose(factor.start_inverse, inverse[:r, :r], rtol=1e-7, atol=1e-9)
    u_covariances = [inverse[r + k * m : r + (k + 1) * m, r + k * m : r + (k + 1) * m] for k in range(K)]
    np.testing.assert_allclose(factor.covariances[0][:, n:, n:], u_covariances, rtol=1e-7, atol=1e-9)
    # The Lagrangian is stationary: lam_k is what the rest of the chain costs per unit of x_k.
    v = np.concatenate([step.x[:-1], step.u], axis=1)
    stationary = np.einsum("kij,kj->ki", H, v) + rows[0] + np.einsum("kij,ki->kj", F, step.multipliers[1:])
    stationary[:, :n] -= step.multipliers[:-1]
    np.testing.assert_allclose(stationary, 0.0, atol=1e-6 * (1 + abs(step.multipliers).max()))


@pytest.mark.parametrize("max_precision", [0.0, np.inf])
@pytest.mark.parametrize("K", [1, 6, 33])
def test_a_chain_without_minimum_has_no_factor(monkeypatch, K, max_precision):
    monkeypatch.setattr("castfit.solve.riccati._MAX_PLAIN_PRECISION", max_precision)
    F, H, end, S = drawn_chain(3, K, 2, 2)
    H[K // 2, 2:, 2:] -= 1e5 * np.eye(2)
    assert riccati(F, H, end, S) is None


@pytest.mark.parametrize("K", [0, 1, 7, 8, 9, 16, 100, 101])
def test_recurrences_are_those_of_a_loop(K):
    rng = np.random.default_rng(K)
    P, e, Q = 0.7 * rng.normal(size=(K, 3, 3)), rng.normal(size=(K + 1, 3, 1)), rng.normal(size=(K + 1, 3, 3))
    y, C = [e[0]], [Q[0]]
    for k in range(K):
        y.append(P[k] @ y[-1] + e[k + 1])
        C.append(P[k] @ C[-1] @ P[k].T + Q[k + 1])
    np.testing.assert_allclose(solve_recurrence(P, e), y, rtol=1e-10, atol=1e-12 * abs(np.array(y)).max())
    scale = abs(np.array(C)).max()
    np.testing.assert_allclose(solve_recurrence(P, Q, is_congruence=True), C, rtol=1e-9, atol=1e-12 * scale)


def compute_exact_log_det(A: Array, B: Array, sigma: float, count: int) -> float:
    """Return sum log (S_k / sigma^2) of a Kalman filter in 80 digits, from P = I; the first state is measured."""
    with localcontext() as context:
        context.prec = 80
        size = range(len(A))
        a, b = ([[Decimal(float(v)) for v in row] for row in M] for M in (A, B))
        P = [[Decimal(int(i == j)) for j in size] for i in size]
        variance, total = Decimal(sigma) ** 2, Decimal(0)
        for _ in range(count):
            AP = [[sum(a[i][k] * P[k][j] for k in size) for j in size] for i in size]
            P = [[sum(AP[i][k] * a[j][k] for k in size) + sum(u * v for u, v in zip(b[i], b[j], strict=True))
                  for j in size] for i in size]  # fmt: skip
            spread = P[0][0] + variance
            total += (spread / variance).ln()
            P = [[P[i][j] - P[i][0] * P[0][j] / spread for j in size] for i in size]
        return float(total)


@pytest.mark.parametrize("sigma", [1e-2, 1e-5, 1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize("name", ["walk", "integrated walk"])
def test_the_determinant_keeps_its_digits_however_small_sigma_is(name, sigma):
    K, h = 30, 0.3
    A, B = np.eye(1), np.array([[0.1]])
    if name == "integrated walk":
        A = np.array([[1.0, h], [0.0, 1.0]])
        B = 0.1 * np.array([[h**1.5 / 2, h**1.5 / np.sqrt(12)], [h**0.5, 0.0]])
    n, m = B.shape
    F, H = np.tile(np.hstack([A, B]), (K, 1, 1)), np.zeros((K, n + m, n + m))
    H[:, n:, n:] = np.eye(m)
    H[1:, 0, 0] = 1 / sigma**2
    end = np.zeros((n, n))
    end[0, 0] = 1 / sigma**2
    factor = riccati(F, H, end, np.eye(n))
    assert factor is not None
    assert factor.log_det == pytest.approx(compute_exact_log_det(A, B, sigma, K), abs=1e-8)
