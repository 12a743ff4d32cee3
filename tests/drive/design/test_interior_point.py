"""The relaxed design: published optima, the certificate, and invariances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from castfit.drive.design.criteria import ACriterion, DCriterion, ECriterion
from castfit.drive.design.interior_point import CandidatePool, DesignGoal, compute_tangent, optimize_weights
from tests.crossed import crossed
from tests.drive.design.models import offers


def one_compartment(times):
    """Slopes of theta3 (exp(-theta2 t) - exp(-theta1 t)) [Atkinson, Chaloner, Herzberg and Juritz 1993]."""
    a, b, c = 4.298, 0.05884, 21.80
    down, up = np.exp(-b * times), np.exp(-a * times)
    return np.stack([c * times * up, -c * times * down, down - up], -1)[:, None]


def chosen(times, w):
    """Return the support, neighbours put together, and the weights there."""
    indices = np.flatnonzero(w > 1e-3 * w.sum())
    groups = np.split(indices, np.flatnonzero(np.diff(indices) > 2) + 1)
    return (
        np.array([np.average(times[g], weights=w[g]) for g in groups]),
        np.array([w[g].sum() for g in groups]),
    )


GRID = np.unique(np.concatenate([np.arange(0.2, 0.26, 1e-4), np.arange(0.001, 2, 1e-3), np.arange(2, 40, 0.01)]))


def test_optimize_weights_for_one_compartment_matches_published_designs():
    solution = optimize_weights(DesignGoal(DCriterion(3)), offers(one_compartment(GRID)))
    times, weights = chosen(GRID, solution.w)
    np.testing.assert_allclose(times, [0.2288, 1.3886, 18.4168], rtol=5e-4)
    np.testing.assert_allclose(weights, 1 / 3, rtol=2e-4)
    assert 0 <= solution.gap <= 1e-6


def peak_time(theta):
    return np.log(theta[0] / theta[1]) / (theta[0] - theta[1])


def height(theta):
    t = peak_time(theta)
    return theta[2] * (np.exp(-theta[1] * t) - np.exp(-theta[0] * t))


@pytest.mark.parametrize(
    ("function", "times", "weights", "variance"),
    [
        (lambda p: p[2] / p[1] - p[2] / p[0], (0.2327, 17.634), (0.0135, 0.9865), 2193.88),
        (peak_time, (0.1793, 3.566), (0.606, 0.394), 0.028138),
        (height, (1.0122,), (1.0,), 1.000),
    ],
    ids=["area", "time of the peak", "height"],
)
def test_optimize_weights_c_optimal_matches_published_values(function, times, weights, variance):
    theta = np.array([4.298, 0.05884, 21.80])
    slope = np.array([np.imag(function(theta + 1e-30j * e)) / 1e-30 for e in np.eye(3)])
    J = one_compartment(GRID)
    solution = optimize_weights(DesignGoal(ACriterion(slope[:, None])), offers(J, M0=1e-12 * np.eye(3)))
    where, share = chosen(GRID, solution.w)
    np.testing.assert_allclose(where, times, rtol=2e-3)
    np.testing.assert_allclose(share, weights, atol=2e-3)
    assert solution.value == pytest.approx(variance, rel=1e-4)
    # Elfving's theorem (1952): the root of the variance is a linear program, the least sum of |a_i|, sum a_i J_i = c.
    rows = J[:, 0].T
    lp = linprog(np.ones(2 * rows.shape[1]), A_eq=np.hstack([rows, -rows]), b_eq=slope)
    assert solution.value == pytest.approx(lp.fun**2, rel=1e-6)


def test_optimize_weights_for_michaelis_menten_splits_evenly():
    s, K = np.linspace(0.1, 20, 200), 2.0
    J = np.stack([s / (K + s), -s / (K + s) ** 2], -1)[:, None]
    solution = optimize_weights(DesignGoal(DCriterion(2)), offers(J))
    where, share = chosen(s, solution.w)
    np.testing.assert_allclose(where, [1.7, 20], atol=0.051)  # K s / (2 K + s) = 1.6667, on a grid of 0.1
    np.testing.assert_allclose(share, 0.5, atol=1e-3)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 4), kind=st.sampled_from(["D", "A", "c", "E", "Ds"]))
def test_bound_is_below_random_designs(seed, n, kind):
    rng = np.random.default_rng(seed)
    N = 12
    criteria = {
        "D": DCriterion(n),
        "A": ACriterion(np.eye(n)),
        "c": ACriterion(rng.standard_normal((n, 1))),
        "E": ECriterion(n),
        "Ds": DCriterion(n, 1),
    }
    G = rng.standard_normal((n, n))
    cost = rng.uniform(0.5, 2, N)
    pool = offers(rng.standard_normal((N, 2, n)), 3.0, M0=0.1 * G @ G.T, cost=cost, u=rng.choice([0.4, np.inf], N))
    goal = DesignGoal(criteria[kind])
    solution = optimize_weights(goal, pool)
    assert pool.fits(solution.w)
    assert -1e-9 <= solution.gap <= 1e-6 * max(1.0, abs(solution.value))
    for _ in range(20):
        other = rng.exponential(size=N) * (rng.random(N) < 0.4)
        other = np.minimum(other * 3.0 / max(cost @ other, 1e-9), pool.u)
        assert goal.values(pool.information(other)) >= solution.bound - 1e-9 * abs(solution.bound)


@pytest.mark.parametrize("kind", [DCriterion(3), DCriterion(3, 1), ACriterion(np.eye(3)), ECriterion(3)])
def test_tangent_gradient_and_curvature_match_differences(kind):
    rng = np.random.default_rng(3)
    pool = offers(rng.standard_normal((5, 1, 3)), 5.0, M0=np.eye(3))
    goal, w, nu, h = DesignGoal(kind), rng.uniform(0.5, 1.5, 5), 0.1, 1e-4
    linearization = compute_tangent(goal, pool, w, nu)
    for i, e in enumerate(h * np.eye(5)):
        up, down = (compute_tangent(goal, pool, w + s * e, nu) for s in (1, -1))
        assert (up.smooth - down.smooth) / (2 * h) == pytest.approx(linearization.g[i], rel=1e-6)
        np.testing.assert_allclose(
            (up.g - down.g) / (2 * h), linearization.V @ linearization.V[i], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("seed", [1, 5, 10, 13])
def test_e_design_with_equal_eigenvalues_is_certified(seed):
    rng = np.random.default_rng(seed)
    n, N = int(rng.integers(2, 7)), int(rng.integers(20, 200))
    pool, goal = offers(rng.standard_normal((N, 1, n))), DesignGoal(ECriterion(n))
    solution = optimize_weights(goal, pool)
    values = np.linalg.eigvalsh(pool.information(solution.w)[0])
    np.testing.assert_allclose(values[:3], values[0], rtol=1e-4)
    assert pool.fits(solution.w)
    assert solution.value == pytest.approx(-values[0], rel=1e-12)
    assert -1e-12 <= solution.gap <= 1e-7 * values[0]
    for _ in range(200):
        other = rng.exponential(size=N) * (rng.random(N) < 0.1)
        assert goal.values(pool.information(other / max(other.sum(), 1e-9)))[...] >= solution.bound


@pytest.mark.parametrize(("seed", "worst"), crossed([1, 0, 5], [False, True]))
def test_e_design_over_samples_with_equal_eigenvalues_is_certified(seed, worst):
    rng = np.random.default_rng(seed)
    N, S, n = 60, 3 + 4 * seed, 3
    J = rng.standard_normal((N, 1, n)) + 0.3 * rng.standard_normal((S, N, 1, n))
    if worst:  # relative to the best value of each
        J /= np.sqrt([-optimize_weights(DesignGoal(ECriterion(n)), offers(each)).value for each in J])[
            :, None, None, None
        ]
    pool = CandidatePool(J, np.zeros((S, n, n)), np.ones((1, N)), np.ones(1), np.full(N, np.inf), np.zeros(N))
    goal = DesignGoal(ECriterion(n), np.full(S, -1.0) if worst else None, 30.0)
    solution = optimize_weights(goal, pool)
    assert pool.fits(solution.w)
    assert solution.value == pytest.approx(float(goal.values(pool.information(solution.w))), rel=1e-12)
    assert -1e-12 <= solution.gap <= 1e-6 * (1.0 if worst else abs(solution.value))
    for _ in range(100):
        other = rng.exponential(size=N) * (rng.random(N) < 0.1)
        assert goal.values(pool.information(other / max(other.sum(), 1e-9))) >= solution.bound


def test_d_design_is_independent_of_units():
    rng = np.random.default_rng(0)
    J = rng.standard_normal((40, 1, 3))
    one, other = (
        optimize_weights(DesignGoal(DCriterion(3)), offers(J * unit)) for unit in (1.0, np.array([1e-3, 1.0, 1e4]))
    )
    np.testing.assert_allclose(one.w, other.w, atol=1e-4)


def test_optimize_weights_with_several_budgets_uses_all():
    rng = np.random.default_rng(1)
    J = rng.standard_normal((20, 1, 3))
    A = np.zeros((2, 20))
    A[0, :10] = A[1, 10:] = 1.0
    pool = CandidatePool(J[None], np.zeros((1, 3, 3)), A, np.array([2.0, 1.0]), np.full(20, np.inf), np.zeros(20))
    solution = optimize_weights(DesignGoal(DCriterion(3)), pool)
    np.testing.assert_allclose(A @ solution.w, [2.0, 1.0], rtol=1e-6)
    assert 0 <= solution.gap <= 1e-6


def test_binding_budget_of_one_candidate_is_certified():
    J = np.random.default_rng(4).standard_normal((12, 1, 3))
    J[0] *= 5.0  # so good that its budget binds
    A = np.stack([np.ones(12), np.eye(12)[0]])
    pool = CandidatePool(J[None], np.zeros((1, 3, 3)), A, np.array([5.0, 1.0]), np.full(12, np.inf), np.zeros(12))
    solution = optimize_weights(DesignGoal(DCriterion(3)), pool)
    assert solution.w[0] == pytest.approx(1.0, rel=1e-6)
    assert 0 <= solution.gap <= 1e-6


def test_optimize_weights_with_many_candidates_takes_few_steps():
    solution = optimize_weights(
        DesignGoal(DCriterion(6)), offers(np.random.default_rng(0).standard_normal((1000, 1, 6)))
    )
    assert solution.steps <= 30
    assert solution.gap <= 1e-6


def test_maximin_design_is_within_its_bound():
    rng = np.random.default_rng(2)
    J = rng.standard_normal((3, 30, 1, 2))
    pool = CandidatePool(J, np.zeros((3, 2, 2)), np.ones((1, 30)), np.ones(1), np.full(30, np.inf), np.zeros(30))
    single_solutions = [optimize_weights(DesignGoal(DCriterion(2)), offers(each)) for each in J]
    goal = DesignGoal(DCriterion(2), np.array([a.value for a in single_solutions]), 300.0)
    solution = optimize_weights(goal, pool)
    each = goal.criterion.values(pool.information(solution.w)) - goal.best
    assert solution.value == pytest.approx(each.max())
    assert 0 <= solution.bound <= solution.value <= solution.bound + 0.02
    for a in single_solutions:  # the best of one sample is worse for another
        assert goal.values(pool.information(a.w)) > solution.value
