"""Rank, covariance, numerical error and likelihood, on matrices alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg, stats
from scipy.optimize import curve_fit

from castfit.statistics import Information, information, information_criteria, neg2loglik, quantile

NOTHING = np.zeros((0, 0))


def inform(E: np.ndarray, *, at_bound: tuple[int, ...] = (), F: np.ndarray = NOTHING) -> Information:
    mask = np.zeros(E.shape[1], dtype=bool)
    mask[list(at_bound)] = True
    return information(E, F if F.size else np.zeros((0, E.shape[1])), mask)


def random_matrix(seed: int, m: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((m, n))


shapes = st.tuples(st.integers(0, 10**6), st.integers(8, 20), st.integers(1, 6))


@given(shapes)
def test_full_rank_is_the_textbook_inverse(case: tuple[int, int, int]) -> None:
    E = random_matrix(*case)
    found = inform(E)
    assert found.rank == E.shape[1]
    assert not found.undetermined.any()
    np.testing.assert_allclose(found.inverse, np.linalg.inv(E.T @ E), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.response, -np.linalg.pinv(E), rtol=1e-7, atol=1e-9)
    assert found.condition == pytest.approx(np.linalg.cond(E / linalg.norm(E, axis=0)))


@given(shapes, st.lists(st.floats(-12, 12), min_size=6, max_size=6))
def test_units_of_the_quantities_do_not_matter(case: tuple[int, int, int], exponents: list[float]) -> None:
    E = random_matrix(*case)
    E = np.column_stack([E, E[:, 0] * 3.0])  # one undetermined direction
    unit = 10.0 ** np.array((exponents * 2)[: E.shape[1]])
    ours, theirs = inform(E), inform(E * unit)
    assert ours.rank == theirs.rank == E.shape[1] - 1
    np.testing.assert_array_equal(ours.undetermined, theirs.undetermined)
    np.testing.assert_allclose(np.abs(ours.directions), np.abs(theirs.directions), atol=1e-6)
    determined = ~ours.undetermined
    np.testing.assert_allclose(
        ours.inverse[np.ix_(determined, determined)],
        (unit[:, None] * theirs.inverse * unit)[np.ix_(determined, determined)],
        rtol=1e-6,
        atol=1e-9,
    )


def test_product_is_named_and_leaves_the_others_alone() -> None:
    k1, k2, k3 = 2.0, 500.0, 0.3
    t = np.linspace(0.1, 3, 12)
    f = lambda k: k[0] * k[1] * np.exp(-k[2] * t)  # noqa: E731
    E = np.column_stack([f([1, k2, k3]), f([k1, 1, k3]), -t * f([k1, k2, k3])])
    found = inform(E)
    assert found.rank == 2
    assert found.condition == np.inf
    np.testing.assert_allclose(found.directions, [[np.sqrt(0.5), -np.sqrt(0.5), 0.0]], atol=1e-9)
    np.testing.assert_array_equal(found.undetermined, [True, True, False])
    reduced = np.column_stack([f([1, k2, k3]) / k2, -t * f([k1, k2, k3])])  # as a function of (k1 k2, k3)
    assert found.inverse[2, 2] == pytest.approx(np.linalg.inv(reduced.T @ reduced)[1, 1], rel=1e-9)


def test_directions_of_separate_products_are_kept_apart() -> None:
    A = random_matrix(1, 20, 3)
    E = np.column_stack([A[:, 0], A[:, 1], 5 * A[:, 0], A[:, 2], -0.1 * A[:, 1]])
    found = inform(E)
    participants = {tuple(np.flatnonzero(y)) for y in found.directions}
    assert participants == {(0, 2), (1, 4)}
    np.testing.assert_allclose(linalg.norm(found.directions, axis=1), 1.0)


def test_quantity_without_any_effect() -> None:
    E = random_matrix(2, 9, 3)
    E[:, 1] = 0.0
    found = inform(E)
    np.testing.assert_array_equal(found.directions, [[0.0, 1.0, 0.0]])
    np.testing.assert_array_equal(found.undetermined, [False, True, False])


def test_errors_of_derivatives_do_not_pass_for_information() -> None:
    E = random_matrix(3, 30, 2)
    E = np.column_stack([E, E[:, 0] + 1e-9 * random_matrix(4, 30, 1)[:, 0]])
    assert inform(E).rank == 2
    E[:, 2] = E[:, 0] + 1e-4 * random_matrix(4, 30, 1)[:, 0]
    assert inform(E).rank == 3


def test_quantity_at_its_bound_is_left_out() -> None:
    E = random_matrix(5, 15, 4)
    found = inform(E, at_bound=(1,))
    rest = [0, 2, 3]
    np.testing.assert_allclose(found.inverse[np.ix_(rest, rest)], np.linalg.inv(E[:, rest].T @ E[:, rest]))
    assert not found.inverse[1].any()
    assert found.rank == 3


def test_fewer_data_than_quantities() -> None:
    E = random_matrix(6, 2, 4)
    found = inform(E)
    assert found.rank == 2
    assert found.directions.shape == (2, 4)
    assert found.undetermined.all()
    np.testing.assert_allclose(E @ (found.directions / linalg.norm(E, axis=0)).T, 0.0, atol=1e-12)


def test_no_free_quantity() -> None:
    found = inform(random_matrix(7, 5, 2), at_bound=(0, 1))
    assert found.rank == 0
    assert found.condition == 1.0
    assert not found.inverse.any()
    assert not found.undetermined.any()


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_active_constraints_are_the_kkt_inverse(seed: int, n_f: int) -> None:
    E, F = random_matrix(seed, 15, 5), random_matrix(seed + 1, n_f, 5)
    F = np.vstack([F, 2.0 * F[:1]])  # a redundant row
    found = inform(E, F=F)
    kkt = np.block([[E.T @ E, F[:-1].T], [F[:-1], np.zeros((n_f, n_f))]])
    np.testing.assert_allclose(found.inverse, np.linalg.inv(kkt)[:5, :5], rtol=1e-6, atol=1e-8)
    assert found.rank == 5 - n_f


@pytest.mark.parametrize("absolute_sigma", [True, False])
def test_agrees_with_curve_fit(absolute_sigma: bool) -> None:
    rng = np.random.default_rng(8)
    t = np.linspace(0, 4, 25)
    sigma = 0.02 + 0.01 * t
    f = lambda t, a, b, c: a * np.exp(-b * t) + c  # noqa: E731
    y = f(t, 2.0, 1.3, 0.5) + 3 * sigma * rng.standard_normal(t.size)
    best, covariance = curve_fit(f, t, y, p0=[1, 1, 1], sigma=sigma, absolute_sigma=absolute_sigma, xtol=1e-14)
    a, b, _ = best
    E = np.column_stack([np.exp(-b * t), -t * a * np.exp(-b * t), np.ones(t.size)]) / sigma[:, None]
    chi2 = float((((f(t, *best) - y) / sigma) ** 2).sum())
    found = inform(E)
    variance = 1.0 if absolute_sigma else chi2 / (t.size - found.rank)
    np.testing.assert_allclose(variance * found.inverse, covariance, rtol=1e-4)


def test_quantiles_are_those_of_the_tables() -> None:
    assert quantile(0.95, np.inf) == pytest.approx(1.959964, abs=1e-6)
    assert quantile(0.95, 10) == pytest.approx(2.228139, abs=1e-6)  # Student 1908 as tabulated everywhere
    assert np.isnan(quantile(0.95, 0))


def test_likelihood_is_that_of_normal_errors() -> None:
    rng = np.random.default_rng(9)
    sigma = rng.uniform(0.1, 2.0, 12)
    residuals = rng.standard_normal(12)
    chi2 = float(residuals @ residuals)
    known = neg2loglik(chi2, np.log(sigma), absolute_sigma=True)
    assert known == pytest.approx(-2 * stats.norm.logpdf(residuals * sigma, scale=sigma).sum())
    profiled = neg2loglik(chi2, np.log(sigma), absolute_sigma=False)
    for factor in (0.9, 1.0, 1.1):
        scale = factor * np.sqrt(chi2 / 12) * sigma
        value = -2 * stats.norm.logpdf(residuals * sigma, scale=scale).sum()
        assert value == pytest.approx(profiled) if factor == 1.0 else value > profiled


def test_likelihood_does_not_depend_on_the_unit_of_weights_when_the_noise_is_unknown() -> None:
    weights = np.log([0.1, 0.3, 0.2])
    first = neg2loglik(4.0, weights, absolute_sigma=False)
    assert neg2loglik(4.0 / 25, weights + np.log(5.0), absolute_sigma=False) == pytest.approx(first)


def test_information_criteria() -> None:
    assert information_criteria(10.0, 20, 3) == pytest.approx((16.0, 10.0 + 3 * np.log(20)))
