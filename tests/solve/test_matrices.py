"""A tall matrix factored once stands for itself in every least-squares problem, whatever the residuals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castfit.solve.matrices import TallFactors, euclidean_norm, orthogonal, thin, triangular_solution, upper_factor

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.integers(0, 1200), st.integers(0, 6))
def test_tall_factors_keep_the_change_of_the_square_by_a_step(seed, m, n):
    rng = np.random.default_rng(seed)
    E, u, x = rng.standard_normal((m, n)), rng.standard_normal(m), rng.standard_normal(n)
    matrix = TallFactors(E)
    assert matrix.R.shape == (min(m, n), n)
    assert np.array_equal(matrix.R, np.triu(matrix.R))
    # |u + E x|^2 - |u|^2, of the matrix and of its triangle
    full_change = np.sum((u + E @ x) ** 2) - np.sum(u**2)
    reduced_change = np.sum((matrix.project(u) + matrix.R @ x) ** 2) - np.sum(matrix.project(u) ** 2)
    assert reduced_change == pytest.approx(
        full_change, rel=1e-10, abs=1e-10 * (1 + np.sum(u**2) + np.sum((E @ x) ** 2))
    )


@given(seeds, st.integers(1, 12), st.integers(1, 12))
def test_factors_are_those_of_numpy(seed, f, q):
    q = min(f, q)
    N = np.random.default_rng(seed).standard_normal((f, q))
    Q, R = orthogonal(N)
    of_numpy = np.linalg.qr(N, mode="complete")
    assert np.allclose(Q, of_numpy[0], atol=1e-12)
    assert np.allclose(np.triu(R), of_numpy[1][:q], atol=1e-12)
    assert np.allclose(thin(N)[0] @ thin(N)[1], N, atol=1e-12)
    assert np.allclose(upper_factor(N), thin(N)[1], atol=1e-12)


@given(seeds, st.integers(1, 8), st.booleans())
def test_triangles_are_solved(seed, q, transposed):
    rng = np.random.default_rng(seed)
    R = np.triu(rng.standard_normal((q, q)), 1) + np.diag(1.0 + rng.random(q))
    x = rng.standard_normal(q)
    b = (R.T if transposed else R) @ x
    below = R + np.tril(rng.standard_normal((q, q)), -1)  # is not read
    assert np.allclose(triangular_solution(below, b, transposed=transposed), x, rtol=1e-7, atol=1e-7)
    assert euclidean_norm(x) == pytest.approx(np.linalg.norm(x))


def test_a_singular_triangle_is_refused():
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        triangular_solution(np.array([[1.0, 1.0], [0.0, 0.0]]), np.ones(2))
