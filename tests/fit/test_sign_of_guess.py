"""Fits of quantities without bounds whose search leaves the sign or the magnitude of the guesses."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf
from castfit.drive.search.portfolio.limits import build_search_region


def monod(seed: int, *, lower: float = -np.inf) -> cf.Problem:
    """Return growth on a substrate with 5 % noise, and guesses that are wrong by up to a factor of ten."""
    X, S, u, K, Y = cf.symbols("X S u K Y")
    rate = u * S * X / (K + S)
    model = cf.Model({X: rate, S: -rate / Y}, parameters=[u, K, Y], initial={X: 0.1, S: 5})
    times, truth = np.linspace(1, 10, 10), {"u": 0.4, "K": 1.0, "Y": 0.5}
    rng, exact = np.random.default_rng(seed), cf.simulate(model, truth, times)
    data = {name: exact[name] * (1 + 0.05 * rng.standard_normal(10)) for name in "XS"}
    guesses = {name: cf.Parameter(value * 10 ** rng.uniform(-1, 1), lower=lower) for name, value in truth.items()}
    return cf.Problem(model, cf.Experiment(data, time=times, sigma=cf.unknown()), parameters=guesses)


def growth(rate: float, guess: float) -> cf.Problem:
    x, a = cf.symbols("x a")
    times = np.linspace(0, 1, 12)
    values = 2 * np.exp(rate * times) + 0.01 * np.random.default_rng(0).standard_normal(12)
    model = cf.Model({x: a * x}, parameters=[a], initial={x: 2})
    return cf.Problem(model, cf.Experiment({"x": values}, time=times), parameters={"a": guess})


@pytest.mark.parametrize("guess", [1.0, 10.0])
def test_fit_optimum_at_a_negative_value_is_found_from_a_positive_guess(guess):
    result = cf.fit(growth(-3.0, guess))
    assert result.success
    assert result["a"] == pytest.approx(-3.0, abs=0.05)
    assert "logarithmic scale" not in result.message


def test_fit_correlated_errors_of_parameters_without_bounds():
    problem = growth(-3.0, 1.0)
    (experiment,) = problem.experiments
    correlated = cf.Experiment(experiment.data, sigma=cf.correlated(time=cf.unknown()))
    result = cf.fit(cf.Problem(problem.model, correlated, parameters={"a": 1.0}))
    assert result.success
    assert result["a"] == pytest.approx(-3.0, abs=0.05)


def test_fit_ratio_that_left_the_sign_of_its_guesses_returns_the_lower_optimum_and_names_both():
    result = cf.fit(monod(3))
    assert result.success
    assert min(result.parameters.values()) > 0
    assert result.neg2loglik <= cf.fit(monod(3, lower=0.0)).neg2loglik + 0.02
    assert "left the guesses and ended at u = -" in result.message
    assert f"found this result (-2 log L = {result.neg2loglik:.6g})" in result.message
    assert "left the guesses" not in cf.fit(monod(3), retry=False).message


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_fit_ratio_without_bounds_is_not_worse_than_with_positive_values(seed):
    assert cf.fit(monod(seed)).neg2loglik <= cf.fit(monod(seed, lower=0.0)).neg2loglik + 0.02


@pytest.mark.parametrize("method", ["single", "multiple", "collocation", "single/ipopt"])
def test_fit_quantity_that_becomes_zero_on_a_log_scale_is_no_success(method):
    """The data ask for a negative source, so that its logarithm has no optimum; with lower=0 it is at its bound."""
    x, a, source = cf.symbols("x a source")
    model = cf.Model({x: source - a * x}, parameters=[a, source], initial={x: 2.0})
    times = np.linspace(0.5, 5, 10)
    values = 2 * np.exp(-0.7 * times) - 0.02 + 0.01 * np.random.default_rng(0).standard_normal(10)
    experiment = cf.Experiment({"x": values}, time=times, sigma=0.01)

    def with_source(**options):
        return cf.Problem(model, experiment, parameters={"a": 1.0, "source": cf.Parameter(0.1, **options)})

    result = cf.fit(with_source(scale="log"), method)
    assert result["source"] > 0.0 or not result.success
    bounded = cf.fit(with_source(lower=0.0), method)
    assert bounded.success
    assert bounded["source"] == pytest.approx(0.0, abs=1e-9)
    assert cf.fit(with_source(scale="log", lower=1e-6), method).success


def test_fit_underflow_of_a_logarithm_is_named():
    x, a, source = cf.symbols("x a source")
    model = cf.Model({x: source - a * x}, parameters=[a, source], initial={x: 2.0})
    times = np.linspace(0.5, 5, 10)
    experiment = cf.Experiment({"x": 2 * np.exp(-0.7 * times) - 0.02}, time=times, sigma=0.01)
    guesses = {"a": cf.Parameter(1.0, scale="log"), "source": cf.Parameter(0.1, scale="log")}
    result = cf.fit(cf.Problem(model, experiment, parameters=guesses), "single", retry=False)
    assert result["source"] == 0.0
    assert result.status == "diverging"
    assert "source became 0" in result.message


def test_search_region_draws_half_of_the_candidates_on_a_log_scale_without_bounds():
    rng, region = np.random.default_rng(0), build_search_region(growth(-3.0, 2.0).posed, None)
    draws = np.array([region.for_candidate(rng).draw(rng)[0] for _ in range(2000)])
    assert draws.min() < -17  # evenly from -18 to 22 ...
    small = np.mean((draws > 2e-3) & (draws < 2e-1))  # ... or from 2e-3 to 22, four decades, of which these are two
    assert small == pytest.approx(0.5 * np.log(100) / np.log(22 / 2e-3), abs=0.04)
    bounded = cf.Problem(
        growth(-3.0, 2.0).model, growth(-3.0, 2.0).experiments, parameters={"a": cf.Parameter(2.0, lower=-9, upper=9)}
    )
    assert build_search_region(bounded.posed, None).log_lower is None
