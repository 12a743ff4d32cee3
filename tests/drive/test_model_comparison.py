"""Comparing models of the same data: criteria, likelihood ratios, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

import castfit as cf
from castfit.result.goodness_of_fit import Criteria
from tests.builders import refused

T = np.linspace(0.0, 5.0, 25)
NOISE = np.random.default_rng(2).standard_normal(T.size)


def polynomial(coefficients: str, *, fixed: str = "", bounds: Any = None, sigma: Any = 0.1, **changes: Any) -> Any:
    """x = a + b t + c t^2 by an ODE; what is not estimated is 0."""
    x, t, a, b, c = cf.symbols("x t a b c")
    model = cf.Model({x: b + 2 * c * t}, parameters=[a, b, c], time=t, initial={x: a})
    values = changes.get("values", 1 + 0.5 * T + 0.1 * NOISE)
    experiment = cf.Experiment({"x": values}, time=changes.get("time", T), sigma=sigma)
    parameters: dict[str, Any] = {n: cf.Parameter(0.0, fixed=True) for n in "abc" if n not in coefficients}
    parameters |= {n: cf.Parameter(0.1, bounds=bounds if n == "c" else None) for n in coefficients}
    return cf.Problem(model, experiment, parameters=parameters | {n: cf.Parameter(0.0, fixed=True) for n in fixed})


@cache
def fitted(coefficients: str, **options: Any) -> cf.Result:
    return cf.fit(polynomial(coefficients, **options))


def test_criteria_are_those_of_the_definition() -> None:
    criteria = Criteria(10.0, 20, 3)
    assert criteria.aic == 16.0
    assert criteria.aicc == pytest.approx(16.0 + 24 / 16)
    assert criteria.bic == pytest.approx(10.0 + 3 * np.log(20))
    assert np.isinf(Criteria(10.0, 4, 3).aicc)


def test_result_has_criteria() -> None:
    known_sigma_fit, unknown_sigma_fit = fitted("ab"), fitted("ab", sigma=None)
    assert (known_sigma_fit.criteria.k, unknown_sigma_fit.criteria.k) == (2, 3)  # the noise is estimated, too
    assert known_sigma_fit.criteria.aic == known_sigma_fit.aic
    assert known_sigma_fit.criteria.bic == known_sigma_fit.bic
    assert known_sigma_fit.aicc == pytest.approx(known_sigma_fit.aic + 2 * 2 * 3 / (25 - 3))
    r = known_sigma_fit.residuals
    assert known_sigma_fit.criteria.neg2loglik == pytest.approx(float(r @ r) + 25 * np.log(2 * np.pi * 0.01), rel=1e-6)


def test_criteria_exclude_quantities_at_bounds_or_undetermined() -> None:
    bounded_fit = fitted("abc", bounds=(0.02, 1.0))
    assert bounded_fit.active == {"c": "lower"}
    assert bounded_fit.criteria.k == 2
    x, t, a, b = cf.symbols("x t a b")
    model = cf.Model({x: a * b + 0 * t}, parameters=[a, b], time=t, initial={x: 1})
    experiment = cf.Experiment({"x": 1 + 0.5 * T + 0.1 * NOISE}, time=T, sigma=0.1)
    assert cf.fit(cf.Problem(model, experiment, parameters={"a": 0.4, "b": 1.0})).criteria.k == 1


@pytest.mark.parametrize(("n", "is_defined"), [(2, False), (3, False), (4, True)])
def test_aicc_needs_two_measurements_more_than_quantities(n: int, is_defined: bool) -> None:
    x, t, a, b = cf.symbols("x t a b")
    model = cf.Model({x: 0 * x}, parameters=[a, b], time=t, outputs={"y": a + b * t}, initial={x: 1})
    data = cf.Experiment({"y": [1.0, 2.1, 2.9, 4.2][:n]}, np.arange(1.0, n + 1), start=0, sigma=0.1)
    line = cf.fit(cf.Problem(model, data, parameters={"a": 1.0, "b": 1.0}))
    constant = cf.fit(cf.Problem(model, data, parameters={"a": 1.0, "b": cf.Parameter(1.0, fixed=True)}))
    text = str(cf.compare_models({"line": line, "constant": constant}))
    assert np.isfinite(line.aicc) == is_defined
    assert ("AICc of line" in text) != is_defined
    assert "as many quantities as" not in text


@pytest.mark.parametrize("deviation", [1e-3, 0.03, 1e3])
def test_priors_leave_part_of_the_parameters_to_be_estimated(deviation: float) -> None:
    """With an independent normal prior on c: k = tr(J C J^T), and the likelihood is that of the data."""
    problem = polynomial("abc")
    prior = cf.Parameter(0.0, prior=cf.Normal(0.0, deviation))
    result = cf.fit(problem.replace(parameters={**problem.parameters, "c": prior}))
    X = np.column_stack([np.ones_like(T), T, T**2]) / 0.1
    C = np.linalg.inv(X.T @ X + np.diag([0, 0, deviation**-2]))
    assert result.criteria.k == pytest.approx(np.trace(X @ C @ X.T), rel=1e-5)
    r = result.residuals[:25]
    assert result.criteria.neg2loglik == pytest.approx(float(r @ r) + 25 * np.log(2 * np.pi * 0.01), rel=1e-6)
    assert result.aic == pytest.approx(result.criteria.aic)


@pytest.mark.parametrize("is_sigma_known", [True, False])
def test_likelihood_ratio_is_that_of_linear_regression(is_sigma_known: bool) -> None:
    options = {} if is_sigma_known else {"sigma": None}
    small, large = fitted("ab", **options), fitted("abc", **options)
    test = cf.likelihood_ratio(small, large)
    y = 1 + 0.5 * T + 0.1 * NOISE
    squares = [float(np.sum((y - X @ np.linalg.lstsq(X, y)[0]) ** 2)) for X in (np.vander(T, 2), np.vander(T, 3))]
    assert test.dof == 1
    if is_sigma_known:
        assert test.statistic == pytest.approx((squares[0] - squares[1]) / 0.01, rel=1e-4)
        assert test.p_value == pytest.approx(stats.chi2.sf((squares[0] - squares[1]) / 0.01, 1), rel=1e-4)
        assert test.distribution == "chi2"
    else:
        F = (squares[0] - squares[1]) / (squares[1] / 22)
        assert test.distribution == "F"
        assert test.p_value == pytest.approx(stats.f.sf(F, 1, 22), rel=1e-4)
    assert test.sentence.startswith("The test does not reject the smaller model")


@pytest.mark.parametrize("sigma", [0.1, None])
@pytest.mark.parametrize("rounding", [-1e-9, 0.0, 1e-9])
def test_likelihood_ratio_of_quantity_at_bound_is_insensitive_to_rounding(sigma: Any, rounding: float) -> None:
    """Without the bound the curvature would be negative."""
    assert fitted("abc").values["c"] < 0.0
    small, bounded = fitted("ab", sigma=sigma), fitted("abc", sigma=sigma, bounds=(0.0, 1.0))
    small = replace(small, chi2=small.chi2 + rounding, neg2loglik=small.neg2loglik + rounding)
    test = cf.likelihood_ratio(small, bounded)
    assert test.at_bound == ("c",)
    assert test.p_value == pytest.approx(1.0, abs=1e-3)


def test_a_parameter_at_its_bound_counts_half() -> None:
    """With the curvature that the data have, it is half of the plain test."""
    values = 1 + 0.5 * T + 0.02 * T**2 + 0.1 * NOISE
    one, two, three = (
        cf.fit(polynomial(n, bounds=b, values=values)) for n, b in (("ab", None), ("abc", None), ("abc", (0, 1)))
    )
    interior_p_value, bound_p_value = cf.likelihood_ratio(one, two).p_value, cf.likelihood_ratio(one, three).p_value
    assert bound_p_value == pytest.approx(0.5 * interior_p_value, rel=1e-3)


@pytest.mark.parametrize("sigma", [0.1, None])
def test_an_equation_between_quantities_takes_one_away(sigma: Any) -> None:
    """As the same model with one quantity in the place of two, of which the one is three times the other."""
    x, t, a, b, c = cf.symbols("x t a b c")
    model = cf.Model({x: b + 2 * c * t}, parameters=[a, b, c], time=t, initial={x: a})
    guesses = {"a": 1.0, "b": 0.3, "c": 0.1}
    experiment = cf.Experiment({"x": 1 + 0.5 * T + 0.1 * NOISE}, time=T, sigma=sigma)
    full_fit = cf.fit(cf.Problem(model, experiment, parameters=guesses))
    constrained_fit = cf.fit(cf.Problem(model, experiment, parameters=guesses, constraints=[b == 3 * c]))
    reduced_model = cf.Model({x: 3 * c + 2 * c * t}, parameters=[a, c], time=t, initial={x: a})
    reduced_fit = cf.fit(cf.Problem(reduced_model, experiment, parameters={"a": 1.0, "c": 0.1}))
    test, expected = cf.likelihood_ratio(constrained_fit, full_fit), cf.likelihood_ratio(reduced_fit, full_fit)
    assert (test.dof, test.distribution) == (1, expected.distribution)
    assert test.p_value == pytest.approx(expected.p_value, rel=1e-3)


@pytest.mark.parametrize("sigma", [0.1, None])
@pytest.mark.parametrize("powers", [(1, 2), (1, 2, 3), (1, 2, 3, 4)])
def test_parameters_at_their_bounds_are_not_independent(powers: tuple[int, ...], sigma: float | None) -> None:
    """Whether a line of noise needs b t + c t^2 + ... with b, c, ... above 0: the chance of more, in 4,000 lines."""
    x, t, a = cf.symbols("x t a")
    rates = cf.symbols(" ".join(f"b{i}" for i in powers))
    rate = sum(i * b * t ** (i - 1) for i, b in zip(powers, rates, strict=True))
    values = 1 + 0.002 * T**2 + 0.1 * np.random.default_rng(4).standard_normal(T.size)
    experiment = cf.Experiment({"x": values}, time=T, sigma=sigma)
    model = cf.Model({x: rate}, parameters=[a, *rates], time=t, initial={x: a})
    small, large = (
        cf.fit(cf.Problem(model, experiment, parameters={"a": 0.5, **{b.name(): parameter for b in rates}}))
        for parameter in (cf.Parameter(0.0, fixed=True), cf.Parameter(0.1, lower=0))
    )
    X = T[:, None] ** np.array(powers)
    X -= X.mean(axis=0)
    X /= np.linalg.norm(X, axis=0)

    def statistic(y: Any) -> float:
        y = y - y.mean()
        left = optimize.nnls(X, y)[1] ** 2
        return (y @ y - left) / (0.01 if sigma else left)

    lines = 0.1 * np.random.default_rng(1).standard_normal((4000, T.size))
    chance = np.mean([statistic(line) >= statistic(values) for line in lines])
    test = cf.likelihood_ratio(small, large)
    assert 0.02 < chance < 0.3
    assert test.p_value == pytest.approx(chance, abs=4 * np.sqrt(chance / 4000))
    assert "which makes such a probability smaller" in test.sentence


@pytest.mark.slow
def test_likelihood_ratio_rejects_at_nominal_rate() -> None:
    """Of tests at a bound where the smaller model is right; without halving, half as many."""
    rng = np.random.default_rng(11)
    p_values = []
    for _ in range(120):
        values = 1 + 0.5 * T + 0.1 * rng.standard_normal(T.size)
        small, large = (
            cf.fit(polynomial(n, bounds=b, values=values), verify=False) for n, b in (("ab", None), ("abc", (0, 9)))
        )
        p_values.append(cf.likelihood_ratio(small, large).p_value)
    assert 0.04 < np.mean(np.array(p_values) < 0.1) < 0.18  # 120 draws: 0.1 +- 0.027


@pytest.mark.slow
def test_models_of_other_equations_are_found_to_be_nested_by_fitting() -> None:
    """Saturation contains first order in the limit, in which its parameters run away together; a sum does exactly."""
    x, k = cf.symbols("x k")
    data = np.exp(-0.6 * T) + 0.02 * NOISE
    experiment = cf.Experiment({"x": data}, time=T, sigma=0.02, initial={"x": 1.0})
    first_order_fit = cf.fit(cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 0.5}))
    a, b = cf.symbols("a b")
    mixed = cf.Model({x: -a * x - b * x**2}, parameters=[a, b])
    mixed_fit = cf.fit(cf.Problem(mixed, experiment, parameters={"a": 0.5, "b": 0.1}))
    test = cf.likelihood_ratio(first_order_fit, mixed_fit)
    assert test.dof == 1
    assert test.statistic == pytest.approx(first_order_fit.chi2 - mixed_fit.chi2, rel=1e-6)
    assert test.at_bound == ()
    bounded = cf.fit(cf.Problem(mixed, experiment, parameters={"a": 0.5, "b": cf.Parameter(0.1, lower=0)}))
    assert cf.likelihood_ratio(first_order_fit, bounded).at_bound == ("b",)
    other = cf.Model({x: -a - b * x**3}, parameters=[a, b])
    unrelated_fit = cf.fit(cf.Problem(other, experiment, parameters={"a": 0.2, "b": 0.1}))
    with refused("the models do not seem to be nested"):
        cf.likelihood_ratio(first_order_fit, unrelated_fit)
    assert cf.likelihood_ratio(first_order_fit, unrelated_fit, nested=True).p_value == 1.0


def test_likelihood_ratio_reports_larger_model_that_fits_worse() -> None:
    small, large = fitted("ab"), fitted("abc")
    worse = replace(large, neg2loglik=small.neg2loglik + 5)
    test = cf.likelihood_ratio(small, worse)
    assert test.p_value == 1.0
    assert test.sentence.startswith("The larger model fits worse")


def test_a_table_ranks_models() -> None:
    models = cf.compare_models({"constant": fitted("a"), "line": fitted("ab"), "parabola": fitted("abc")})
    assert models.best == "line"
    assert models.delta["line"] == 0.0
    assert sum(models.weights.values()) == pytest.approx(1.0)
    assert models.weights["parabola"] == pytest.approx(
        models.weights["line"] * np.exp(0.5 * (fitted("ab").aicc - fitted("abc").aicc)), rel=1e-6
    )
    assert set(models.tests) == {("constant", "line"), ("constant", "parabola"), ("line", "parabola")}
    assert models.tests["constant", "line"].p_value < 1e-6
    assert [row[0] for row in models.sheet.rows] == ["line", "parabola", "constant"]
    assert "constant: essentially no support" in str(models)
    assert models["line"] is fitted("ab")
    assert list(cf.compare_models([fitted("a"), fitted("ab")]).results) == ["model 1", "model 2"]


def test_noise_models_may_differ() -> None:
    models = cf.compare_models(
        {"known": fitted("ab"), "unknown": fitted("ab", sigma=None), "wrong": fitted("ab", sigma=0.01)}
    )
    assert models.delta["wrong"] > 100
    assert models.delta["unknown"] < 10


def test_units_of_the_data_do_not_matter() -> None:
    u = 1e-6
    values = u * (1 + 0.5 * T + 0.1 * NOISE)
    comparison = cf.compare_models([fitted("ab"), fitted("abc")])
    scaled_comparison = cf.compare_models([cf.fit(polynomial(n, values=values, sigma=0.1 * u)) for n in ("ab", "abc")])
    assert scaled_comparison.delta == pytest.approx(comparison.delta, abs=1e-6)
    for pair, test in comparison.tests.items():
        assert scaled_comparison.tests[pair].p_value == pytest.approx(test.p_value, rel=1e-4)


def test_failed_fits_are_shown_and_not_ranked() -> None:
    stopped_fit = cf.fit(polynomial("abc"), callback=lambda _: True)
    models = cf.compare_models({"line": fitted("ab"), "stopped": stopped_fit})
    assert models.best == "line"
    assert "stopped" not in models.delta
    assert "failed: stopped_by_callback" in str(models)
    with refused("the fit of the larger model failed"):
        cf.likelihood_ratio(fitted("ab"), stopped_fit)


def test_other_data_are_refused_by_name(tmp_path: Any) -> None:
    line = fitted("ab")
    shifted_fit = cf.fit(polynomial("ab", values=2 + T, time=T))
    with refused("the measurements of 'x' in 'experiment 1' differ between 'a' and 'b'"):
        cf.compare_models({"a": line, "b": shifted_fit})
    renamed = polynomial("ab")
    renamed = renamed.replace(experiments=[renamed.experiments[0].called("other")])
    with refused("experiment 'experiment 1' exists only in 'a'", "experiment 'other' exists only in 'b'"):
        cf.compare_models({"a": line, "b": cf.fit(renamed)})
    for name, result in (("line", line), ("moved", shifted_fit)):
        result.save(tmp_path / name)
    saved, other = (cf.Result.load(tmp_path / name) for name in ("line", "moved"))
    assert cf.compare_models([saved, fitted("abc")]).best == "model 1"
    with refused("data of 'experiment 1', or the noise that it is given, differs between 'model 1' and 'model 2'"):
        cf.compare_models([saved, other])


def test_misuse_is_refused() -> None:
    line = fitted("ab")
    with refused("fewer than two results"):
        cf.compare_models([line])
    with refused("results is Result("):
        cf.compare_models(line)  # pyright: ignore[reportArgumentType]
    with refused("'b' is 3; expected the result of a fit"):
        cf.compare_models({"a": line, "b": 3})  # pyright: ignore[reportArgumentType]
    with refused("smaller is 3; expected the result of a fit"):
        cf.likelihood_ratio(3, line)  # pyright: ignore[reportArgumentType]
    with refused("pass the model with fewer quantities first"):
        cf.likelihood_ratio(fitted("abc"), line)
    with refused("nested is 'yes'"):
        cf.likelihood_ratio(line, fitted("abc"), nested="yes")  # pyright: ignore[reportArgumentType]
    problem = polynomial("abc")
    prior = cf.fit(problem.replace(parameters={**problem.parameters, "c": cf.Parameter(0.0, prior=cf.Normal(0, 1))}))
    with refused("the larger model has priors"):
        cf.likelihood_ratio(line, prior)
