"""The minimum of a quadratic in a box: conditions of optimality, and agreement with another method."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from castfit.solve import block_pivoting
from castfit.solve.block_pivoting import minimize_in_box


def question(seed: int, n: int, spread: float) -> tuple[np.ndarray, ...]:
    """Return E (m, n) of singular values over `spread` decades, u (m,), and a box that contains 0."""
    rng = np.random.default_rng(seed)
    E = rng.standard_normal((n + 3, n)) * 10.0 ** rng.uniform(-spread, 0.0, n)
    lower, upper = -rng.uniform(0.0, 1.0, n), rng.uniform(0.0, 1.0, n)
    lower[rng.random(n) < 0.2] = 0.0
    upper[rng.random(n) < 0.1] = np.inf
    is_fixed = rng.random(n) < 0.1
    lower[is_fixed] = upper[is_fixed] = 0.0
    return E, rng.standard_normal(n + 3) * 3.0, lower, upper


def slack_of(H: np.ndarray, c: np.ndarray, x: np.ndarray) -> np.ndarray:
    return 1e-7 * (np.abs(c) + np.abs(H) @ np.abs(x)) + 1e-12


@given(st.integers(0, 10**6), st.integers(1, 25), st.floats(0.0, 3.0))
@settings(max_examples=80, deadline=None)
@pytest.mark.parametrize("start", [None, "zero", "anywhere"])
def test_no_other_point_of_the_box_is_lower(start: str | None, seed: int, n: int, spread: float) -> None:
    E, u, lower, upper = question(seed, n, spread)
    H, c = E.T @ E + 1e-8 * np.eye(n), E.T @ u
    if start is None:
        x = minimize_in_box(H, c, lower, upper)
    else:
        ends = np.array([np.zeros(n), lower, np.where(np.isfinite(upper), upper, 2.0)])
        end_indices = np.random.default_rng(seed).integers(0, 3, n) * (start == "anywhere")
        x = block_pivoting.by_active_set(H, c, lower, upper, ends[end_indices, np.arange(n)])
    assert ((x >= lower) & (x <= upper)).all()
    gradient, slack = c + H @ x, slack_of(H, c, x)
    moving = lower < upper
    assert (gradient[moving & (x < upper)] >= -slack[moving & (x < upper)]).all()  # nothing falls upwards
    assert (gradient[moving & (x > lower)] <= slack[moving & (x > lower)]).all()  # nor downwards


def test_minimize_in_box_agrees_with_bounded_least_squares() -> None:
    for seed in range(20):
        E, u, lower, upper = question(seed, 12, 1.0)
        lower = np.where(lower == upper, lower - 1e-3, lower)
        other = lsq_linear(E, -u, (lower, upper), method="bvls", tol=1e-14)
        x = minimize_in_box(E.T @ E, E.T @ u, lower, upper)
        assert 0.5 * np.sum((u + E @ x) ** 2) == pytest.approx(other.cost, rel=1e-9)


def test_a_guess_of_what_is_held_changes_nothing_but_the_work() -> None:
    for seed in range(40):
        E, u, lower, upper = question(seed, 12, 2.0)
        H, c = E.T @ E + 1e-8 * np.eye(12), E.T @ u
        x = minimize_in_box(H, c, lower, upper)
        ends = np.where(np.isfinite(upper), np.random.default_rng(seed).integers(-1, 2, 12), 0)
        for guess in (ends, np.where(x <= lower, -1, np.where(x >= upper, 1, 0))):
            other = minimize_in_box(H, c, lower, upper, guess)
            assert ((other >= lower) & (other <= upper)).all()
            np.testing.assert_allclose(c @ other + 0.5 * other @ H @ other, c @ x + 0.5 * x @ H @ x, rtol=1e-8)


def test_a_wrong_guess_is_noticed_where_rounding_hides_what_it_costs() -> None:
    E, u = np.array([[3e7, 3e7], [0.0, 1.0]]), np.array([0.0, 5.0])
    box = -np.ones(2), np.ones(2)
    assert minimize_in_box(E.T @ E, E.T @ u, *box, np.array([-1, 1])) == pytest.approx([1.0, -1.0], abs=1e-6)


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        minimize_in_box(-np.eye(2), np.ones(2), -np.ones(2), np.ones(2))
