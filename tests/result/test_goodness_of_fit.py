"""Whether the model describes the data is judged in figures and in words."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit.result.goodness_of_fit import goodness
from castfit.result.residuals import ResidualSeries


def series(
    residuals: np.ndarray, output: str = "y", experiment: str = "experiment 1", signal: float = 10.0
) -> ResidualSeries:
    values = signal * np.sin(np.arange(residuals.size))
    return ResidualSeries(experiment, output, residuals, values, np.ones(residuals.size))


def test_probabilities_are_those_of_chi2_and_of_the_binomial_distribution() -> None:
    r = np.random.default_rng(0).standard_normal(100)
    found = goodness([series(r)], float(r @ r), 98, absolute_sigma=True)
    assert found.described
    assert found.p_value == pytest.approx(stats.chi2.sf(r @ r, 98))
    assert found.chi2_per_datum["y"] == pytest.approx(np.mean(r**2))
    changes = int((r[1:] * r[:-1] < 0).sum())
    assert found.runs["y"] == pytest.approx(stats.binom.cdf(changes, 99, 0.5))
    assert "agree with the model" in found.sentence
    rare = goodness([series(1.2 * r)], float(1.44 * r @ r), 98, absolute_sigma=True)
    assert 1e-3 < rare.p_value < 0.05
    assert "rather large" in rare.sentence


def test_true_models_are_hardly_ever_doubted() -> None:
    rng = np.random.default_rng(1)
    doubted = 0
    for _ in range(300):
        r = rng.standard_normal((2, 40))
        for known in (True, False):
            found = goodness([series(r[0]), series(r[1], "z")], float(np.sum(r**2)), 78, absolute_sigma=known)
            assert found.described
            doubted += "misses" in found.sentence or "than sigma says" in found.sentence
    assert doubted <= 6


@pytest.mark.parametrize(
    ("factor", "says", "described"),
    [
        (10.0, "The model does not describe the data: chi2/n = ", False),
        (1.4, "The residuals are larger than sigma says: chi2/n = ", True),
        (0.1, "Sigma seems about 10", True),
    ],
)
def test_chi2_in_words(factor: float, says: str, described: bool) -> None:
    r = np.random.default_rng(2).standard_normal(200)
    r *= factor / np.sqrt(np.mean(r**2))
    found = goodness([series(r), series(0.1 * r, "z", "night")], 1.01 * float(r @ r), 200, absolute_sigma=True)
    assert says in found.sentence
    assert found.described is described
    assert ("look at y in experiment 1, which has 99 % of it" in found.sentence) is (factor > 1)


def test_unknown_sigma_is_judged_by_what_is_left_and_whether_it_looks_like_noise() -> None:
    noise = np.random.default_rng(3).standard_normal(100)
    wave = 5.0 * np.sin(np.arange(100) / 10)

    def judge(r: np.ndarray) -> Any:
        return goodness([series(r)], float(r @ r), 98, absolute_sigma=False)

    assert judge(noise).described
    assert judge(noise).sentence == "The model leaves 2.28 % of the variance of y unexplained."
    assert not judge(wave).described
    assert "% of the variance of y unexplained. The residuals of y (p = " in judge(wave).sentence
    assert judge(0.1 * wave).described
    assert "the model misses something there" in judge(0.1 * wave).sentence
    assert "it looks like noise" in judge(6.0 * noise).sentence
    assert judge(6.0 * noise).described
    assert judge(1e-9 * wave).sentence.endswith("unexplained.")  # rounding has a pattern, too
    assert np.isnan(judge(noise).p_value)


def pendulum() -> cf.Problem:
    x, v, g = cf.symbols("x v g")
    model = cf.Model({x: v, v: -g * ca.sin(x)}, parameters=[g])
    times = np.linspace(0.1, 10, 100)
    blank = cf.Experiment({"x": 0 * times, "v": 0 * times}, time=times, initial={"x": 2.0, "v": 0.0})
    exact = cf.simulate(cf.Problem(model, blank, parameters={"g": 9.8}))["experiment 1"]
    data = cf.Experiment({"x": exact["x"], "v": exact["v"]}, times, sigma=0.02, initial={"x": 2.0, "v": 0.0})
    return cf.Problem(model, data, parameters={"g": cf.Parameter(2.0, upper=3.0)})


def test_an_optimum_that_does_not_describe_the_data_is_no_plain_success() -> None:
    result = cf.fit(pendulum(), cf.SingleShooting())
    assert result.success
    assert result.chi2 > 1e5
    text = str(result)
    assert "Success" not in text
    assert "The model does not describe the data: chi2/n = " in text
    assert "look at v, which has" in text
    many = cf.multistart(pendulum(), cf.SingleShooting(), starts=[{"g": 2.0}, {"g": 2.5}])
    assert "No optimum that was found describes the data. The model does not describe the data" in str(many)
    several = cf.compare(pendulum(), ["single"], starts=[{"g": 2.0}])
    assert "The model does not describe the data" in str(several)
