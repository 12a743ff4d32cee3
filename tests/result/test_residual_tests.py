"""Probabilities of tests of residuals, against SciPy, permutations, and draws."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from scipy import stats

from castfit.result.residual_tests import (
    _beta_tail,
    _exact_tail,
    adjust_p_values,
    lag1_test,
    normality,
    outliers,
    trend,
)
from castfit.result.residuals import NO_FINDING, SIGNIFICANT, SUSPECTED, grade, runs


def test_figures_are_those_of_scipy():
    rng = np.random.default_rng(0)
    new = {"method": "interpolate"} if "method" in inspect.signature(stats.anderson).parameters else {}  # SciPy 1.17
    for n in (10, 50, 400):
        r, x = rng.standard_normal(n), rng.standard_normal(n)
        want = stats.anderson(r, "norm", **new)
        assert normality(r).number == pytest.approx(want.statistic * (1 + 0.75 / n + 2.25 / n**2))
        rank = stats.spearmanr(np.abs(r), x.round(1))
        assert trend(r, x.round(1)).number == pytest.approx(rank.statistic)
        changes = int((r[1:] * r[:-1] < 0).sum())
        assert runs([r]).number == changes / (n - 1)
        assert runs([r]).p_value == pytest.approx(stats.binom.cdf(changes, n - 1, 0.5))


def test_the_probability_of_normal_residuals_is_uniform():
    rng = np.random.default_rng(1)
    for n in (12, 100):
        p = np.array([normality(rng.standard_normal(n)).p_value for _ in range(2000)])
        for level in (0.05, 0.2, 0.5, 0.9):
            assert np.mean(p < level) == pytest.approx(level, abs=0.03)


def test_neighbours_are_those_within_an_experiment() -> None:
    e = np.array([1.0, 2.0, -1.0, 0.5, 1.5, -2.0, -1.0, 0.3, 0.8, -0.2, 1.1, -0.6])
    assert lag1_test([e]).number == pytest.approx(np.sum(e[:-1] * e[1:]) / np.sum(e**2))
    halves = lag1_test([e[:6], e[6:], np.empty(0)])
    assert halves.number == pytest.approx((np.sum(e[:5] * e[1:6]) + np.sum(e[6:-1] * e[7:])) / np.sum(e**2))


def test_the_probability_of_alike_neighbours_is_that_of_all_permutations() -> None:
    """Of normal values, hardly anything depends on which they are; permutations need no normal distribution."""
    rng = np.random.default_rng(14)
    e = rng.standard_normal((12, 12))
    e -= e.mean(axis=1, keepdims=True)  # as permutations do not see the mean, a constant was fitted
    constant = np.full((12, 1), 1 / np.sqrt(12))
    permutations = rng.permuted(np.broadcast_to(e[:, None], (12, 20000, 12)), axis=2)
    correlations = np.sum(permutations[..., 1:] * permutations[..., :-1], axis=2) / np.sum(e**2, axis=1)[:, None]
    for r in (0.2, 0.35, 0.5):
        exact = _exact_tail(r, np.ones(11), [constant])
        assert np.mean(correlations >= r) == pytest.approx(exact, rel=0.15)


@pytest.mark.parametrize(("n", "k"), [(6, 0), (6, 3), (14, 2), (30, 3), (100, 5)])
def test_the_probability_of_alike_neighbours_is_exact(n: int, k: int) -> None:
    rng, linked = np.random.default_rng(15), np.ones(n - 1)
    linked[n // 2] = 0.0
    Q = np.linalg.qr(np.vander(np.linspace(-1, 1, n), k))[0] if k else np.zeros((n, 0))
    e = rng.standard_normal((20000, n))
    e -= (e @ Q) @ Q.T
    r = np.sum(linked * e[:, 1:] * e[:, :-1], axis=1) / np.sum(e**2, axis=1)
    for level in (0.5, 0.05, 0.01):
        p = _exact_tail(float(np.quantile(r, 1 - level)), linked, [Q])
        assert p == pytest.approx(level, abs=4 * np.sqrt(level / 20000))


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_columns_of_each_series_are_those_of_one_matrix(shared):
    rng, sizes = np.random.default_rng(4), (5, 7, 6)
    parts = [0.3 * rng.standard_normal((n, shared + 2)) / np.sqrt(n) for n in sizes]
    local_columns = [np.zeros((n, 6)) for n in sizes]
    for i, (Q, Z) in enumerate(zip(parts, local_columns, strict=True)):
        Z[:, 2 * i : 2 * i + 2] = Q[:, shared:]
    matrix = np.hstack([np.concatenate([Q[:, :shared] for Q in parts]), np.concatenate(local_columns)])
    linked = np.ones(17)
    linked[[4, 11]] = 0.0
    for tail in (_exact_tail, _beta_tail):
        for r in (-0.2, 0.1, 0.4):
            assert tail(r, linked, parts, shared) == pytest.approx(tail(r, linked, [matrix]), rel=1e-10)


def test_the_beta_distribution_of_many_values_agrees_with_the_integral() -> None:
    n = 101
    Q = np.linalg.qr(np.vander(np.linspace(-1, 1, n), 5))[0]
    for r in (-0.2, 0.0, 0.15, 0.25, 0.35):
        assert _beta_tail(r, np.ones(n - 1), [Q]) == pytest.approx(_exact_tail(r, np.ones(n - 1), [Q]), rel=0.06)


@pytest.mark.parametrize("draw", ["laplace", "standard_exponential", "uniform"])
def test_lag1_test_non_normal_noise_keeps_level(draw: str) -> None:
    rng = np.random.default_rng(16)
    e = getattr(rng, draw)(size=(2000, 20))
    e -= {"laplace": 0.0, "standard_exponential": 1.0, "uniform": 0.5}[draw]
    p = np.array([lag1_test([r]).p_value for r in e])
    assert np.mean(p < 0.05) < 0.065
    assert np.mean(p < 0.01) < 0.02


def test_alternating_neighbours_are_found_too() -> None:
    e = np.resize([1.0, -1.0], 14) + 0.1 * np.random.default_rng(17).standard_normal(14)
    check = lag1_test([e])
    assert check.number < -0.8
    assert check.p_value < 1e-3


@pytest.mark.parametrize("n", [6, 8, 9, 12, 40])
def test_the_rank_correlation_is_that_of_permutations(n: int) -> None:
    rng = np.random.default_rng(18)
    r, covariate = rng.standard_normal(n), rng.standard_normal(n)
    r[np.argsort(covariate)] = np.sort(np.abs(r)) + rng.normal(0, 0.5, n)
    check = trend(r, covariate)
    a = stats.rankdata(np.abs(r)) - (n + 1) / 2
    b = stats.rankdata(covariate) - (n + 1) / 2
    rank_sums = rng.permuted(np.broadcast_to(a, (100000, n)), axis=1) @ b
    p = np.mean(np.abs(rank_sums) >= abs(a @ b) - 1e-9)
    assert check.p_value == pytest.approx(p, rel=0.2, abs=3e-4)
    assert np.isnan(trend(r, np.full(n, np.inf)).p_value)


@pytest.mark.parametrize("known_sigma", [True, False])
def test_outliers_are_found_alone_and_together_and_rarely_in_noise(known_sigma):
    rng = np.random.default_rng(3)
    n_false = n_extra = 0
    for _ in range(500):
        r = rng.standard_normal(40)
        n_false += outliers(r, 37.0, 1e-2, is_sigma_known=known_sigma).any()
        r[[3, 17]] = 12.0, -15.0
        unit = 1.0 if known_sigma else np.sqrt(np.sum(r**2) / 37)
        is_outlier = outliers(r / unit, 37.0, 1e-3, is_sigma_known=known_sigma)
        assert is_outlier[[3, 17]].all()
        n_extra += is_outlier.sum() > 2
    assert n_false <= 15
    assert n_extra <= 5


@pytest.mark.parametrize("known_sigma", [True, False])
@pytest.mark.parametrize("n", [6, 8, 10, 20])
def test_outliers_of_fitted_lines_are_rare_in_noise(n, known_sigma):
    """Compare the share of lines fitted to noise that have an outlier with the level of 1 %."""
    rng, n_false = np.random.default_rng(13), 0
    Q = np.linalg.qr(np.vander(np.arange(n), 2))[0]
    for _ in range(400):
        e = rng.standard_normal(n)
        r = e - Q @ (Q.T @ e)
        r /= 1.0 if known_sigma else np.sqrt(r @ r / (n - 2))
        n_false += outliers(r, n - 2.0, 1e-2, is_sigma_known=known_sigma, hat=Q).any()
    assert n_false <= 10


def test_outliers_single_value_agrees_with_the_line_through_the_others():
    """The statistic is that of the line fitted without the value: its error over the standard error of prediction."""
    rng = np.random.default_rng(14)
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 12.0])
    y = 1.0 + 0.5 * x + 0.1 * rng.standard_normal(6)
    X = np.vander(x, 2)
    line, _, _, _ = np.linalg.lstsq(X[:5], y[:5])
    s = np.sqrt(np.sum((y[:5] - X[:5] @ line) ** 2) / 3)
    error = s * np.sqrt(1 + X[5] @ np.linalg.solve(X[:5].T @ X[:5], X[5]))
    Q = np.linalg.qr(X)[0]
    limit = stats.t.isf(1e-3 / 12, 3)
    for factor in (0.99, 1.01):
        y[5] = X[5] @ line + factor * limit * error
        assert outliers(y - Q @ (Q.T @ y), 4.0, 1e-3, is_sigma_known=False, hat=Q)[5] == (factor > 1)


def test_outliers_own_columns_of_experiments_agree_with_the_full_hat_matrix():
    rng = np.random.default_rng(15)
    columns = np.vander(np.linspace(-1, 1, 8), 3)
    local_columns = np.linalg.qr(columns[:, 1:])[0]
    shared = np.concatenate([columns[:, 0]] * 2) - np.kron(np.eye(2), local_columns @ local_columns.T) @ np.concatenate(
        [columns[:, 0]] * 2
    )
    shared /= np.linalg.norm(shared)
    full = np.column_stack([shared, np.kron(np.eye(2), local_columns)])
    r = 3.0 * rng.standard_normal(16)
    r[[2, 11]] += 40.0, -35.0
    r -= full @ (full.T @ r)
    expected = outliers(r, 11.0, 1e-3, is_sigma_known=False, hat=full)
    compact = np.column_stack([shared, np.concatenate([local_columns, local_columns])])
    owners = np.repeat([0, 1], 8)
    is_outlier = outliers(r, 11.0, 1e-3, is_sigma_known=False, hat=compact, shared=1, owners=owners)
    assert np.flatnonzero(is_outlier).tolist() == np.flatnonzero(expected).tolist() == [2, 11]


def test_no_residual_stands_out_where_sigma_is_far_too_small():
    r = 30 * np.random.default_rng(4).standard_normal(100)
    assert not outliers(r, 97.0, 1e-3, is_sigma_known=True).any()


def test_residual_tests_too_few_values_untested():
    r = np.array([1.0, -2.0, 0.5])
    for figure in (lag1_test([r]), runs([r]), normality(r), trend(r, r)):
        assert np.isnan(figure.p_value)
    assert np.isnan(normality(np.zeros(20)).p_value)
    assert not outliers(r, 0.0, 1e-3, is_sigma_known=False).any()


# Grades of many tests together


def test_equal_weights_are_those_of_benjamini_and_hochberg() -> None:
    p = np.random.default_rng(0).uniform(size=12) ** 3
    assert adjust_p_values(p, np.ones(12)) == pytest.approx(stats.false_discovery_control(p))
    p_values = np.insert(p, 4, np.nan)
    adjusted_p_values = adjust_p_values(p_values, np.full(13, 0.7))
    assert np.isnan(adjusted_p_values[4])
    assert np.delete(adjusted_p_values, 4) == pytest.approx(stats.false_discovery_control(p))


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (0.8, 0.1, 0.05, 0.05)])
def test_noise_is_suspected_at_the_level_whatever_the_weights(weights: tuple[float, ...]) -> None:
    p = np.random.default_rng(1).uniform(size=(4000, 4))
    rate = np.mean([adjust_p_values(row, np.array(weights)).min() < 0.05 for row in p])
    assert rate == pytest.approx(0.05, abs=0.011)


def test_weights_decide_how_soon_a_test_is_believed() -> None:
    p = np.array([0.05, 0.8, 0.9])
    assert adjust_p_values(p, np.array([0.9, 0.05, 0.05]))[0] == pytest.approx(0.05 / 0.9)
    assert adjust_p_values(p, np.array([0.1, 0.8, 0.1]))[0] > 0.4


def test_three_grades() -> None:
    assert [grade(p) for p in (0.0, 9e-4, 1e-3, 0.049, 0.05, np.nan)] == [
        SIGNIFICANT, SIGNIFICANT, SUSPECTED, SUSPECTED, NO_FINDING, NO_FINDING,
    ]  # fmt: skip
