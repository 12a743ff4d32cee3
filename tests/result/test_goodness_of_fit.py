"""Whether the model describes the data is judged in figures and in words."""

from __future__ import annotations

import re
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
    ones = np.ones(residuals.size)
    return ResidualSeries(experiment, output, residuals, values, ones, np.arange(residuals.size) * 1.0, ones > 0)


def test_probabilities_are_those_of_chi2_and_of_the_binomial_distribution() -> None:
    r = np.random.default_rng(0).standard_normal(100)
    quality = goodness([series(r)], float(r @ r), 98, absolute_sigma=True)
    assert quality.described
    assert quality.p_value == pytest.approx(stats.chi2.sf(r @ r, 98))
    assert quality.chi2_per_datum["y"] == pytest.approx(np.mean(r**2))
    changes = int((r[1:] * r[:-1] < 0).sum())
    assert quality.runs["y"] == pytest.approx(stats.binom.cdf(changes, 99, 0.5))
    assert quality.sentence.startswith("The residuals are consistent with sigma (chi-squared test): chi2/n = ")
    assert quality.grade == "none"
    rare = goodness([series(1.2 * r)], float(1.44 * r @ r), 98, absolute_sigma=True)
    assert 1e-3 < rare.p_value < 0.05
    assert "somewhat large" in rare.sentence
    assert rare.grade == "suspected"


def test_true_models_are_hardly_ever_doubted() -> None:
    rng = np.random.default_rng(1)
    doubted = 0
    for _ in range(300):
        r = rng.standard_normal((2, 40))
        for absolute_sigma in (True, False):
            quality = goodness(
                [series(r[0]), series(r[1], "z")], float(np.sum(r**2)), 78, absolute_sigma=absolute_sigma
            )
            assert quality.described
            doubted += "than sigma implies" in quality.sentence
    assert doubted <= 6


@pytest.mark.parametrize(
    ("factor", "says", "described"),
    [
        (10.0, "The model does not fit the data: chi2/n = ", False),
        (1.4, "The residuals are larger than sigma implies: chi2/n = ", True),
        (0.1, "seems too large by a factor of about 10.", True),
    ],
)
def test_chi2_in_words(factor: float, says: str, described: bool) -> None:
    r = np.random.default_rng(2).standard_normal(200)
    r *= factor / np.sqrt(np.mean(r**2))
    quality = goodness([series(r), series(0.1 * r, "z", "night")], 1.01 * float(r @ r), 200, absolute_sigma=True)
    assert says in quality.sentence
    assert quality.described is described
    assert ("y in experiment 1 contributes 99 % of chi2" in quality.sentence) is (factor > 1)


def test_goodness_unknown_sigma_uses_unexplained_variance_and_dependence() -> None:
    noise = np.random.default_rng(3).standard_normal(100)

    def judge(r: np.ndarray) -> Any:
        return goodness([series(r)], float(r @ r), 98, absolute_sigma=False)

    assert judge(noise).described
    assert judge(noise).sentence == "The model leaves 2.28 % of the variance of y unexplained."
    missed = judge(50.0 * noise).sentence
    assert missed.startswith("The model does not fit the data: it leaves 57 times the variance of y unexplained")
    assert judge(noise).doubtful == ()
    assert judge(noise).with_dependence(["y"]).described
    large = judge(5.0 * noise)
    assert large.described
    assert large.sentence.endswith("unexplained, most of it.")
    assert large.doubtful == ("y",)
    assert large.with_dependence([]) is large
    worse = large.with_dependence(["y"])
    assert not worse.described
    assert worse.sentence.startswith("The model does not fit the data: it leaves 57 % of the variance of y")
    assert not judge(10.0 * noise).described
    assert np.isnan(judge(noise).p_value)


def test_a_fit_that_leaves_a_wave_does_not_describe_the_data() -> None:
    x, k = cf.symbols("x k")
    times = np.linspace(0.0, 10.0, 40)
    values = np.exp(-0.3 * times) + 0.2 * np.sin(2 * times)
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    result = cf.fit(cf.Problem(model, cf.Experiment({"x": values}, times), parameters={"k": 0.5}), cf.SingleShooting())
    assert result.success
    assert not result.is_adequate
    assert "and the residuals show a pattern" in result.goodness.sentence
    assert "Assuming that the model is correct: k is well determined. The residuals contradict " in str(result)


def steady(values: list[float], doses: list[float]) -> cf.Problem:
    x, k, u = cf.symbols("x k u")
    model = cf.Model({x: u - k * x}, parameters=[k], inputs=[u], initial={x: 0.0})
    data = [
        cf.Experiment({"x": [v]}, [np.inf], inputs={"u": d}, name=f"dose {d:g}")
        for v, d in zip(values, doses, strict=True)
    ]
    return cf.Problem(model, data, parameters={"k": 1.5})


def test_data_without_a_time_course_are_judged_between_experiments() -> None:
    """Values that do not vary with the dose are described as well as by a constant, as far as four values tell."""
    same = cf.fit(steady([1.0, 1.3, 0.8, 1.1], [1.0, 1.05, 1.1, 1.15]))
    assert same.goodness.unexplained["x"] > 1.0
    assert same.is_adequate
    assert "x differ too little between experiments to test the fit" in same.goodness.sentence
    fine = cf.fit(steady([0.52, 1.01, 1.95, 4.1], [1.0, 2.0, 4.0, 8.0]))
    assert fine.goodness.sentence.startswith("The model leaves 0.")
    assert "not tested" in fine.diagnostics.outputs["x"].autocorrelation.sentence  # neighbours in dose are none in time


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
    assert result.success
    assert not result.is_adequate
    assert "all quantities are well determined" not in text or "Assuming that the model is correct: " in text
    assert "assuming that the model is correct" in text.splitlines()[0]
    assert "The model does not fit the data: chi2/n = " in text
    assert re.search(r"v contributes \d+ % of chi2", text)
    many = cf.multistart(pendulum(), cf.SingleShooting(), starts=[{"g": 2.0}, {"g": 2.5}])
    assert "The model does not fit the data" in str(many)
    several = cf.compare(pendulum(), ["single"], starts=[{"g": 2.0}])
    assert "The model does not fit the data" in str(several)


def test_search_summary_reports_chi2_of_best_optimum() -> None:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    times = np.linspace(0.2, 6, 40)
    values = 2 * np.exp(-0.5 * times) + 0.1 * np.random.default_rng(0).standard_normal(40)

    def searches(sigma: float) -> tuple[Any, ...]:
        data = cf.Experiment({"x": values}, times, sigma=sigma)
        problem = cf.Problem(model, data, parameters={"k": cf.Parameter(0.4, bounds=(0.01, 5))})
        return cf.multistart(problem, "single", starts=2), cf.estimate(problem, max_time=5, rng=0)

    for right, doubtful in zip(searches(0.08), searches(0.05), strict=True):
        assert "than sigma implies" not in str(right)
        assert doubtful.best.is_adequate  # chi2/n = 2: sigmas are seldom known so well
        assert str(doubtful).count("The residuals are larger than sigma implies: chi2/n = ") == 2
        assert "No optimum" not in str(doubtful)


@pytest.mark.parametrize(("sigma", "phrase"), [(0.02, "chi2/n = "), (None, "the variance of x unexplained")])
def test_summary_poor_optimum_is_named_in_last_line(sigma, phrase, capsys):
    x, y, w = cf.symbols("x y w")
    model = cf.Model({x: y, y: -(w**2) * x}, parameters=[w], initial={x: 1.0, y: 0.0})
    times = np.linspace(0.2, 10.0, 50)
    values = np.cos(3 * times) + 0.02 * np.random.default_rng(0).standard_normal(50)
    data = cf.Experiment({"x": values}, times, sigma=cf.unknown() if sigma is None else sigma)
    problem = cf.Problem(model, data, parameters={"w": 1.6})
    poor, good = (
        cf.fit(problem, "single", start={"w": start}, retry=False, second_start=False, verbose=1)
        for start in (1.6, 2.95)
    )
    assert poor.success
    assert not poor.is_adequate
    last_line = str(poor).splitlines()[-1]
    assert last_line.startswith(f"A poor optimum: {phrase}" if sigma else "A poor optimum: ")
    assert phrase in last_line
    assert "cf.estimate(problem)" in last_line
    first_line, second_line = (line for line in capsys.readouterr().out.splitlines() if f"{poor.measure} = " in line)
    assert first_line.endswith(", a poor optimum")
    assert "poor" not in second_line
    assert good.is_adequate
    assert "poor" not in str(good)
    assert "Success: " in str(good)


def test_goodness_constant_data_explained_variance_undefined() -> None:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    result = cf.fit(cf.Problem(model, cf.Experiment({"x": [0.5] * 4}, time=[1, 2, 3, 4]), parameters={"k": 0.3}))
    assert result.is_adequate
    assert "The measurements of x are constant, so the explained variance is undefined." in str(result)


def test_goodness_sigma_far_too_small_is_suggested() -> None:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    data = {"x": np.exp(-0.3 * np.arange(1, 9)) + 0.1 * np.cos(5.0 * np.arange(8))}
    result = cf.fit(cf.Problem(model, cf.Experiment(data, np.arange(1, 9), sigma=0.01), parameters={"k": 0.3}))
    assert not result.is_adequate
    assert "check whether sigma is too small" in str(result)
    assert "the model is probably inadequate, or sigma is too small." in str(result)


@pytest.mark.parametrize("noise", [cf.StudentT(0.1), cf.Huber(0.1), cf.Cauchy(0.1)], ids=lambda n: type(n).__name__)
def test_an_outlier_that_the_noise_model_expects_does_not_refute_the_model(noise: Any) -> None:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    times = np.arange(0.5, 4.1, 0.5)
    values = 2 * np.exp(-0.5 * times) + 0.05 * np.array([1, -1, 1, 1, -1, 0, 1, -1])
    values[4] = 4.5

    def fitted(values: np.ndarray) -> cf.Result:
        data = cf.Experiment({"x": values}, time=times, noise={"x": noise})
        return cf.fit(cf.Problem(model, data, parameters={"k": 0.6}), "single", retry=False)

    result = fitted(values)
    assert result.is_adequate
    assert result.goodness.unexplained["x"] < 0.1
    assert "1 outlier is excluded" in result.goodness.sentence
    assert not fitted(2 - values).is_adequate  # where most are far away nothing is set aside


def test_a_loss_that_is_no_likelihood_has_no_criteria() -> None:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    data = {"x": [1.6, 1.2, 0.9, 0.7, 0.6, 0.4]}

    def fitted(f_scale: float) -> cf.Result:
        noise = {"x": cf.Cauchy(sigma=0.1, f_scale=f_scale)}
        data_of = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise=noise)
        return cf.fit(cf.Problem(model, data_of, parameters={"k": 0.6}), "single", retry=False)

    loss, density = fitted(1.0), fitted(2.0)
    assert np.isnan([loss.aic, loss.bic, loss.aicc]).all()
    assert loss.measure == "2 loss"
    assert "AIC" not in str(loss)
    assert "information criteria are not defined" in str(loss.criteria)
    r = (density.predictions - data["x"]) / 0.1  # Student's t of 3 degrees of freedom, of scale sigma 2 / sqrt 3
    by_hand = -2 * stats.t.logpdf(r * np.sqrt(3) / 2, 3).sum() + 2 * 6 * np.log(0.1 * 2 / np.sqrt(3))
    assert density.aic == pytest.approx(by_hand + 2, rel=1e-6)
    for compare in (cf.compare_models, lambda fits: cf.likelihood_ratio(*fits)):
        with pytest.raises(cf.InputError, match="no likelihood"):
            compare([loss, density])
    assert loss.problem is not None
    assert density.problem is not None
    with pytest.raises(cf.InputError, match="no likelihood"):
        cf.select({"one": loss.problem, "two": density.problem})


def test_parameters_of_the_noise_count_however_they_are_written() -> None:
    """An unknown sigma is one number more, eliminated, estimated, of a law, or of values beyond a limit."""
    x, k, b = cf.symbols("x k b")
    times = np.linspace(0.2, 4.0, 16)
    values = 2 * np.exp(-0.5 * times) + 0.05 * np.random.default_rng(0).standard_normal(16)
    plain_model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    declared_model = cf.Model({x: -k * x}, parameters=[k, b], initial={x: 2.0})

    def fitted(model: cf.Model, extra_parameters: dict[str, Any] | None = None, **noise: Any) -> cf.Result:
        data = cf.Experiment({"x": values}, time=times, **noise)
        parameters = {"k": 0.6, **(extra_parameters or {})}
        return cf.fit(cf.Problem(model, data, parameters=parameters), "single", retry=False)

    one = cf.Parameter(0.1, lower=1e-3)
    known_sigma, unknown_sigma = fitted(plain_model, sigma=0.05), fitted(plain_model, sigma=cf.unknown())
    laws = [fitted(model, {"b": one}, sigma={"x": b}) for model in (plain_model, declared_model)]
    assert [f.n_estimated for f in (known_sigma, unknown_sigma, *laws)] == [1, 2, 2, 2]
    for law in laws:
        assert law.aic == pytest.approx(unknown_sigma.aic, abs=1e-6)
        assert not law.absolute_sigma
        assert np.isnan(law.goodness.p_value)  # its size is what was estimated
    values = np.maximum(values, 0.6)
    assert fitted(plain_model, noise={"x": cf.Gaussian(0.05, below=0.6)}).n_estimated == 1
    assert fitted(plain_model, noise={"x": cf.Gaussian(below=0.6)}).n_estimated == 2
    prior = cf.Parameter(0.1, lower=1e-3, prior=cf.Normal(0.1, 1e3))  # which says nothing
    assert fitted(plain_model, {"b": prior}, sigma={"x": b}).n_estimated == pytest.approx(2, abs=1e-6)


def test_as_many_quantities_as_data_have_no_criteria() -> None:
    """With unknown sigma the likelihood is that of rounding errors then: AIC was -86."""
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x}, initial={x: 1.0})
    values, guess = {"y": [0.5, 0.3]}, {"k": 1.0, "s": 1.0}
    unknown_result = cf.fit(cf.Problem(model, cf.Experiment(values, time=[1.0, 2.0]), parameters=guess))
    assert not unknown_result.has_criteria
    assert "AIC" not in str(unknown_result)
    known_result = cf.fit(cf.Problem(model, cf.Experiment(values, time=[1.0, 2.0], sigma=0.1), parameters=guess))
    assert known_result.has_criteria
    assert f"AIC = {known_result.aic:.6g}" in str(known_result)


def test_values_beyond_a_limit_of_detection_are_no_small_residuals():
    """Half of the values are below the limit: chi2 counted them, and every third sigma "seemed too large"."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    times, p_values = np.linspace(0.5, 10, 40), list[float]()
    for seed in range(20):
        noisy_values = 2 * np.exp(-0.5 * times) + 0.05 * np.random.default_rng(seed).standard_normal(40)
        values = np.maximum(noisy_values, 0.15)
        experiment = cf.Experiment({"x": values}, times, noise=cf.Gaussian(0.05, below=0.15))
        result = cf.fit(cf.Problem(model, experiment, parameters={"k": 0.7}), "single")
        assert "smaller than sigma implies" not in result.goodness.sentence
        p_values.append(result.goodness.p_value)
    n_detected = np.count_nonzero(values > 0.15)
    residuals = (result.predict()["x"] - values)[values > 0.15] / 0.05
    assert result.goodness.p_value == pytest.approx(stats.chi2.sf(residuals @ residuals, n_detected - 1), rel=1e-4)
    assert 0.3 < np.mean(p_values) < 0.7
    none = cf.Experiment({"x": [0.5, 0.3]}, [1, 2], noise=cf.Gaussian(0.1, below=9.0))
    message = cf.fit(cf.Problem(model, none, parameters={"k": 0.7}), "single").goodness.sentence
    assert "No degrees of freedom are left" in message
