"""Evidences: Laplace's formula and bridge sampling against integrals that are known or found by quadrature."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy
from scipy import stats

import castfit as cf
from castfit.drive.model_comparison.evidence import bridge_estimate
from tests.builders import refused

T = np.linspace(0.5, 5.0, 10)
Y = 1 + 0.5 * T + 0.3 * np.random.default_rng(11).standard_normal(T.size)
SIGMA = 0.3


@cache
def line(scale: float = 1.0) -> cf.SelectionResult:
    """x = a + b t with normal priors, in units of the data in which all is `scale` times larger."""
    x, a, b = cf.symbols("x a b")
    data = cf.Experiment({"x": scale * Y}, time=T, sigma=scale * SIGMA)
    model = cf.Model({x: b}, parameters=[a, b], initial={x: a})
    priors = {"a": cf.Normal(0.0, 2.0 * scale), "b": cf.Normal(0.0, scale)}
    problem = cf.Problem(model, data, parameters={n: cf.Parameter(0.1, prior=p) for n, p in priors.items()})
    return cf.select(problem, "single", choices={"b": [0, cf.estimated]})


def exact(slope: bool) -> float:
    """The data are normal, with the covariance of noise and priors together."""
    G = np.column_stack([np.ones_like(T), T])
    prior = np.diag([4.0, float(slope)])
    return float(stats.multivariate_normal.logpdf(Y, np.zeros_like(T), SIGMA**2 * np.eye(T.size) + G @ prior @ G.T))


def test_laplace_is_exact_for_a_line_with_normal_priors() -> None:
    evidence = line().evidence()
    assert evidence["b"].log == pytest.approx(exact(slope=True), abs=1e-6)
    assert evidence["(none)"].log == pytest.approx(exact(slope=False), abs=1e-6)
    assert evidence.log_bayes_factor("b", "(none)") == pytest.approx(exact(slope=True) - exact(slope=False), abs=1e-6)
    assert evidence.weights["b"] > 0.999


def level(values: Any, sigma: float, *, unit: float = 1.0, constraints: Any = (), **options: Any) -> Any:
    """The evidence of y = a, with a wider prior as the other candidate."""
    x, a = cf.symbols("x a")
    data = cf.Experiment({"x": unit * np.asarray(values)}, time=np.arange(1.0, len(values) + 1), sigma=unit * sigma)
    model = cf.Model({x: 0 * a}, parameters=[a], initial={x: a})
    rules = [rule(a) for rule in constraints]
    problem = cf.Problem(model, data, parameters={"a": cf.Parameter(0.5 * unit, **options)}, constraints=rules)
    wider = {"a": cf.Parameter(0.5 * unit, prior=cf.Normal(0.0, 100 * unit))}
    pair = {"one": problem, "other": problem.replace(constraints=[], parameters=wider)}
    return cf.select(pair, "single", criterion="BIC").evidence()["one"]


@pytest.mark.parametrize("unit", [1.0, 1e-4])
@pytest.mark.parametrize("mean", [2.0, 0.3, 0.05, 0.001, 9.98])
def test_mass_beyond_a_bound_of_a_uniform_prior_is_left_out(mean: float, unit: float) -> None:
    values, s = mean + np.array([-1.0, 1.0, -0.5, 0.5]), 0.5
    inside = stats.norm.cdf((10 - mean) / s) - stats.norm.cdf(-mean / s)
    exact_log = stats.norm.logpdf(values, mean, 1).sum() + np.log(np.sqrt(2 * np.pi) * s * inside / 10)
    evidence = level(values, 1.0, unit=unit, bounds=(0, 10 * unit))
    assert evidence.log == pytest.approx(exact_log - 4 * np.log(unit), abs=1e-5)


def test_mass_beyond_bounds_of_a_normal_prior_and_constraints_is_left_out() -> None:
    values = 0.4 + np.array([-1.0, 1.0, -0.5, 0.5])
    grid = np.linspace(0.0, 0.7, 20001)
    heights = np.exp(stats.norm.logpdf(values[:, None], grid, 1.0).sum(axis=0)) * stats.norm.pdf(grid, 0.5, 2.0)
    exact_log = np.log(scipy.integrate.trapezoid(heights, grid))
    prior = cf.Normal(0.5, 2.0)
    assert level(values, 1.0, bounds=(0.0, 0.7), prior=prior).log == pytest.approx(exact_log, abs=1e-5)
    rules = [lambda a: a <= 0.7]
    one = level(values, 1.0, lower=0.0, prior=prior, constraints=rules)
    assert one.log == pytest.approx(exact_log, abs=1e-5)


def test_mass_beyond_two_bounds_of_dependent_quantities_is_left_out() -> None:
    x, a, b = cf.symbols("x a b")
    times = np.linspace(0.5, 5.0, 8)
    values = 0.15 + 0.03 * times + 0.3 * np.random.default_rng(4).standard_normal(8)
    data = cf.Experiment({"x": values}, time=times, sigma=0.3)
    parameters = {n: cf.Parameter(0.1, bounds=(0, 2)) for n in "ab"}
    problem = cf.Problem(cf.Model({x: b}, parameters=[a, b], initial={x: a}), data, parameters=parameters)
    selection = cf.select(problem, "single", choices={"b": [0, cf.estimated]})
    assert not selection["b"].active
    grid = np.linspace(0, 2, 2001)
    intercept, slope = np.meshgrid(grid, grid)
    log_heights = sum(stats.norm.logpdf(y, intercept + slope * t, 0.3) for t, y in zip(times, values, strict=True))
    mass = scipy.integrate.trapezoid(scipy.integrate.trapezoid(np.exp(log_heights) / 4, grid), grid)
    assert selection.evidence()["b"].log == pytest.approx(np.log(mass), abs=1e-4)


def test_ratios_of_evidences_depend_on_no_unit() -> None:
    small, large = line().evidence(), line(1e3).evidence()
    assert large["b"].log - small["b"].log == pytest.approx(-T.size * np.log(1e3), abs=1e-6)
    assert large.log_bayes_factor("b", "(none)") == pytest.approx(small.log_bayes_factor("b", "(none)"), abs=1e-6)


@cache
def curved(on: str = "log", scale: str = "log") -> cf.SelectionResult:
    """Two values of A exp(-k t); log k and log A are standard normal beforehand."""
    x, k, A = cf.symbols("x k A")
    data = cf.Experiment({"x": [0.9, 0.4]}, time=[0.5, 2.0], sigma=0.2)
    model = cf.Model({x: -k * x}, parameters=[k, A], initial={x: A})
    prior = cf.Normal(0.0, 1.0, on="log") if on == "log" else cf.priors.LogNormal(0.0, 1.0)
    parameters = {n: cf.Parameter(1.0, lower=1e-6, upper=1e6, scale=scale, prior=prior) for n in ("k", "A")}
    return cf.select(cf.Problem(model, data, parameters=parameters), "single", criterion="AIC",
                     choices={"k": [1.0, cf.estimated]})  # fmt: skip


def quadrature() -> float:
    """The same by an integral over log k and log A."""

    def height(lk: Any, la: Any) -> Any:
        predicted = [np.exp(la - np.exp(lk) * t) for t in (0.5, 2.0)]
        density = stats.norm.pdf(lk) * stats.norm.pdf(la)
        for y, mu in zip((0.9, 0.4), predicted, strict=True):
            density = density * stats.norm.pdf(y, mu, 0.2)
        return density

    grid = np.linspace(-7, 7, 1401)
    lk, la = np.meshgrid(grid, grid)
    return float(np.log(scipy.integrate.trapezoid(scipy.integrate.trapezoid(height(lk, la), grid), grid)))


def test_laplace_is_near_for_a_curved_problem() -> None:
    assert curved().evidence()["k"].log == pytest.approx(quadrature(), abs=0.15)


@pytest.mark.parametrize("draws", [400, pytest.param(8000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("on", "scale"), [("log", "log"), pytest.param("value", "linear", marks=pytest.mark.slow),
                                           pytest.param("value", "log", marks=pytest.mark.slow)])  # fmt: skip
def test_bridge_sampling_is_within_its_errors_for_a_curved_problem(draws: int, on: str, scale: str) -> None:
    pytest.importorskip("emcee")
    evidence = curved(on, scale).evidence(sampling=True, draws=draws, candidates=["k"], rng=1)["k"]
    assert 0.0 < evidence.error < 0.1
    assert abs(evidence.log - quadrature()) < 3 * evidence.error  # one of six cases is beyond two with probability 1/4


def test_bridge_sampling_from_exact_draws_has_the_error_that_it_says() -> None:
    rng, misses = np.random.default_rng(5), []
    for _ in range(40):  # a normal density without its constant, log of the integral known
        draws = rng.standard_normal((600, 2))

        def density(u: Any) -> tuple[float, None]:
            return -0.5 * float(u @ u), None

        heights = np.array([density(u)[0] for u in draws[300:]])
        log, error = bridge_estimate(draws[:300] * [1.2, 0.9], draws[300:], heights, density, 300.0, rng)
        misses.append((log - np.log(2 * np.pi)) / error)
    assert np.std(misses) == pytest.approx(1.0, abs=0.35)
    assert abs(np.mean(misses)) < 0.5


def test_an_unknown_sigma_is_integrated_over() -> None:
    x, a = cf.symbols("x a")
    values = np.array([1.1, 0.8, 1.3, 1.0, 0.9])
    data = cf.Experiment({"x": values}, time=np.arange(1.0, 6.0), sigma=cf.unknown())
    model = cf.Model({x: 0}, parameters=[a], initial={x: a})
    problem = cf.Problem(model, data, parameters={"a": cf.Parameter(1.0, bounds=(0.0, 2.0))})
    evidence = cf.select(problem, "single", criterion="BIC", choices={"a": [1.0, cf.estimated]}).evidence()
    sse = float(np.sum((values - 1.0) ** 2))
    by_hand = scipy.integrate.quad(lambda s: s**-6 * np.exp(-0.5 * sse / s**2) * (2 * np.pi) ** -2.5, 0.01, 5)[0]
    assert evidence["(none)"].log == pytest.approx(np.log(by_hand), abs=1e-6)


def test_evidence_of_improper_or_constrained_model_raises_or_is_nan() -> None:
    x, a, b = cf.symbols("x a b")
    data = cf.Experiment({"x": Y}, time=T, sigma=SIGMA)
    model = cf.Model({x: b}, parameters=[a, b], initial={x: a})
    problem = cf.Problem(model, data, parameters={"a": cf.Parameter(0.1, bounds=(-9, 9)), "b": 0.1})
    selection = cf.select(problem, "single", choices={"b": [0, cf.estimated]})
    with refused("'b' has neither a prior nor two finite bounds"):
        selection.evidence()
    with refused("draws is 3; expected at least 100", "'c' is not a fitted candidate"):
        selection.evidence(sampling=True, draws=3, candidates=["c"])
    bound = problem.replace(parameters={"a": cf.Parameter(0.1, bounds=(-9, 9)), "b": cf.Parameter(0, bounds=(-1, 0))})
    bounded_evidence = cf.select(bound, "single", choices={"b": [0, cf.estimated]}).evidence()
    assert np.isnan(bounded_evidence["b"].log)
    assert "the Laplace approximation is not valid: b at a bound; use sampling=True" in str(bounded_evidence)
    wide = problem.replace(parameters={n: cf.Parameter(0.1, bounds=(-9, 9)) for n in "ab"})
    below, choices = wide.replace(constraints=[a + b <= -1.0]), {"b": [0, cf.estimated]}
    limited_evidence = cf.select(below, "single", choices=choices).evidence()
    assert np.isnan(
        limited_evidence["b"].log
    )  # half of the peak or less is left, which the formula counts as a whole one
    assert "the Laplace approximation is not valid: 'a+b <= -1' " in str(limited_evidence)
    equality_selection = cf.select(wide.replace(constraints=[a + b == 1.0]), "single", choices=choices)
    for sampling in (False, True):
        assert "no evidence: 'a+b == 1' ties quantities" in str(equality_selection.evidence(sampling=sampling))
