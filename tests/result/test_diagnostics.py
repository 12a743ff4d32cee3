"""Residuals that look like noise, and five ways in which they do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit import plots, problems
from castfit.result.diagnostics import diagnose
from castfit.result.residuals import autocorrelation, normality, outliers, runs, trend

# The tests themselves


def test_figures_are_those_of_scipy():
    rng = np.random.default_rng(0)
    for n in (10, 50, 400):
        r, x = rng.standard_normal(n), rng.standard_normal(n)
        want = stats.anderson(r, "norm", method="interpolate")
        assert normality(r).number == pytest.approx(want.statistic * (1 + 0.75 / n + 2.25 / n**2))
        rank = stats.spearmanr(np.abs(r), x.round(1))
        assert trend(r, x.round(1)).number == pytest.approx(rank.statistic)
        assert trend(r, x.round(1)).p_value == pytest.approx(rank.pvalue)
        changes = int((r[1:] * r[:-1] < 0).sum())
        assert runs([r]).number == changes / (n - 1)
        assert runs([r]).p_value == pytest.approx(stats.binom.cdf(changes, n - 1, 0.5))


def test_the_probability_of_normal_residuals_is_uniform():
    rng = np.random.default_rng(1)
    for n in (12, 100):
        p = np.array([normality(rng.standard_normal(n)).p_value for _ in range(2000)])
        for level in (0.05, 0.2, 0.5, 0.9):
            assert np.mean(p < level) == pytest.approx(level, abs=0.03)


def test_the_autocorrelation_is_ljung_and_boxs():
    e = np.array([1.0, 2.0, -1.0, 0.5, 1.5, -2.0, -1.0, 0.3, 0.8, -0.2, 1.1, -0.6])
    n, lags = e.size, 2
    r = [np.sum(e[:-k] * e[k:]) / np.sum(e**2) for k in (1, 2)]
    Q = n * (n + 2) * sum(r[k] ** 2 / (n - k - 1) for k in range(lags))
    found = autocorrelation([e])
    assert found.number == pytest.approx(r[0])
    assert found.p_value == pytest.approx(stats.chi2.sf(Q, lags))
    halves = autocorrelation([e[:6], e[6:]])  # neighbours within an experiment only
    assert halves.number == pytest.approx((np.sum(e[:5] * e[1:6]) + np.sum(e[6:-1] * e[7:])) / np.sum(e**2))


def test_noise_is_hardly_ever_correlated():
    rng = np.random.default_rng(2)
    p = np.array([autocorrelation([rng.standard_normal(60)]).p_value for _ in range(2000)])
    assert np.mean(p < 0.05) == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize("known", [True, False])
def test_outliers_are_found_alone_and_together_and_rarely_in_noise(known):
    rng = np.random.default_rng(3)
    false = more = 0
    for _ in range(500):
        r = rng.standard_normal(40)
        false += outliers(r, 37.0, 1e-2, known=known).any()
        r[[3, 17]] = 12.0, -15.0
        unit = 1.0 if known else np.sqrt(np.sum(r**2) / 37)
        found = outliers(r / unit, 37.0, 1e-3, known=known)
        assert found[[3, 17]].all()
        more += found.sum() > 2
    assert false <= 15
    assert more <= 5


def test_no_residual_stands_out_where_sigma_is_far_too_small():
    r = 30 * np.random.default_rng(4).standard_normal(100)
    assert not outliers(r, 97.0, 1e-3, known=True).any()


def test_too_few_values_say_nothing():
    r = np.array([1.0, -2.0, 0.5])
    for figure in (autocorrelation([r]), runs([r]), normality(r), trend(r, r)):
        assert np.isnan(figure.p_value)
    assert np.isnan(normality(np.zeros(20)).p_value)
    assert not outliers(r, 0.0, 1e-3, known=False).any()


# What is said of a fit


def table(r, prediction=None, experiment="experiment 1", output="y"):
    n = r.size
    time = np.arange(n, dtype=float)
    mean = np.sin(time) if prediction is None else prediction
    return {
        "experiment": np.full(n, experiment),
        "output": np.full(n, output),
        "time": time,
        "replicate": np.zeros(n, dtype=int),
        "value": mean - r,
        "prediction": mean,
        "normalised": r,
    }


def joined(*tables):
    return {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}


NOISE = np.random.default_rng(5).standard_normal(100)
STEADY = NOISE / np.sqrt(np.mean(NOISE**2))


def test_noise_looks_like_noise():
    found = diagnose(table(NOISE), dof=98, known=True)
    assert not found.suspicious
    assert found.sentences == ()
    assert found.sentence == "The residuals look like noise."
    assert found.outputs["y"].found == ()
    assert "look independent" in str(found.outputs["y"])
    assert "experiment 1" not in str(found)


SLOW = np.sin(np.arange(100) / 8) + 0.3 * NOISE
TOOTH = np.arange(100) % 10
CASES = {
    "autocorrelation": (SLOW, None, "are correlated in time", "are correlated (correlation 0."),
    "runs": (np.sin(np.arange(100) / 8) * np.abs(NOISE), None, "", "change too rarely"),
    "normality": (np.sign(NOISE) + 0.1 * NOISE[::-1], None, "are not normal, even without outliers", "not normal (A²"),
    "with_prediction": (NOISE * (1 + TOOTH), TOOTH + 2.0, "sigma should depend on it", "grow"),
    "with_time": (NOISE * np.arange(100)[::-1], None, "change in size with time", "shrink"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("known", [True, False])
def test_each_failing_is_found_and_said(name, known):
    r, prediction, short, long = CASES[name]
    r = r / np.sqrt(np.mean(r**2))
    found = diagnose(table(r, prediction), dof=98, known=known)
    check = found.outputs["y"].checks[name]
    assert check.found
    assert check.p_value < 1e-4
    assert long in check.sentence
    assert check.sentence in found.outputs["y"].found
    assert short in found.sentence
    assert found.suspicious
    assert len(found.sentences) == 1


def test_only_the_output_and_the_experiment_that_fail_are_named():
    tables = [
        table(STEADY, experiment="day", output="a"),
        table(SLOW, experiment="day", output="b"),
        table(STEADY[::-1], experiment="night", output="a"),
        table(STEADY, experiment="night", output="b"),
    ]
    found = diagnose(joined(*tables), dof=390, known=True)
    assert found.sentence.startswith("The residuals are correlated in time, as where the model misses something (b)")
    assert found.series["day", "b"].autocorrelation.found
    assert not found.series["night", "b"].autocorrelation.found
    assert found.series["day", "b"].n == 100
    assert found.outputs["b"].n == 200
    assert "night" in str(found)


def test_outliers_are_named_by_experiment_output_and_time_and_hide_nothing():
    r = STEADY.copy()
    r[37] = -25.0
    found = diagnose(joined(table(r, experiment="day"), table(STEADY, experiment="night")), dof=195, known=True)
    (outlier,) = found.outliers
    assert (outlier.experiment, outlier.output, outlier.time, outlier.residual) == ("day", "y", 37.0, -25.0)
    assert str(outlier) == "y in day at t = 37 (-25 sigma)"
    assert outlier.prediction - outlier.value == -25.0
    assert found.sentences == (f"Outliers, which bend the fit, so look at them first: {outlier}.",)
    slow = 3 * SLOW
    slow[50] = 60.0
    both = diagnose(table(slow), dof=98, known=True)
    assert len(both.sentences) == 2
    assert [o.time for o in both.outliers] == [50.0]
    many = STEADY.copy()
    many[[10, 20, 30, 40, 50]] = 30.0
    assert "and 2 more" in diagnose(table(many), dof=98, known=False).sentence


def test_replicates_have_no_order():
    """Neighbours at one time are the same error of the model, whatever their order: nothing is correlated here."""
    r = np.random.default_rng(6).standard_normal((40, 5)) + np.random.default_rng(7).standard_normal((40, 1))
    given = table(r.ravel())
    given["time"] = np.repeat(np.arange(40.0), 5)
    given["replicate"] = np.tile(np.arange(5), 40)
    found = diagnose(given, dof=198, known=False)
    assert not found.outputs["y"].autocorrelation.found
    assert not found.outputs["y"].runs.found


@pytest.mark.parametrize("r", [np.full(50, np.nan), np.zeros(50), 1e-3 * SLOW[:50]])
def test_data_without_errors_are_not_examined(r):
    found = diagnose(table(r), dof=48, known=True)
    assert not found.suspicious
    assert "not tested" in found.outputs["y"].autocorrelation.sentence
    exact = diagnose(table(SLOW), dof=98, known=False, exact=["y"])
    assert not exact.suspicious


def test_only_normal_errors_must_be_normal():
    r = CASES["normality"][0]
    assert not diagnose(table(r), dof=98, known=False, not_normal=["y"]).outputs["y"].normality.found


# Through a fit


def gasoil(moved: float) -> cf.Problem:
    """Return gasoil, with gasoline at one time moved by some standard deviations of the errors."""
    problem = problems.load("gasoil").problem
    (experiment,) = problem.experiments
    data = {name: (times, values.copy()) for name, (times, values) in experiment.data.items()}
    noise = 0.0116  # castfit's own estimate
    data["y2"][1][9] += moved * noise
    return cf.Problem(
        problem.model, cf.Experiment(data, name="run 1"), parameters=dict.fromkeys(("p1", "p2", "p3"), 5.0)
    )


@pytest.mark.parametrize("transcription", [cf.SingleShooting(), cf.MultipleShooting(4), cf.Collocation()])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_outlier_in_gasoil_is_named(transcription, sign):
    problem = gasoil(20.0 * sign)
    result = cf.fit(problem, transcription)
    (outlier,) = result.diagnostics.outliers
    assert (outlier.experiment, outlier.output) == ("run 1", "y2")
    assert outlier.time == problem.experiments[0].data["y2"][0][9]
    assert -sign * outlier.residual > 4
    assert f"look at them first: y2 at t = {outlier.time:g} (" in str(result)


def test_gasoil_itself_has_no_outlier():
    result = cf.fit(gasoil(0.0))
    assert result.diagnostics.outliers == ()
    assert "Outliers" not in str(result)


def decay(noise: float, *, sigma: float | None) -> cf.Problem:
    x, k = cf.symbols("x k")
    times = np.linspace(0.1, 5, 60)
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    values = 2.0 * np.exp(-0.7 * times) + noise * np.random.default_rng(8).standard_normal(60)
    return cf.Problem(model, cf.Experiment({"x": values}, times, sigma=sigma), parameters={"k": 1.0})


@pytest.mark.parametrize(("noise", "sigma"), [(0.05, 0.05), (0.05, None), (0.0, None), (0.0, 0.05)])
def test_print_says_nothing_where_nothing_is_wrong(noise, sigma):
    result = cf.fit(decay(noise, sigma=sigma))
    assert not result.diagnostics.suspicious
    assert "Outliers" not in str(result)
    assert "correlated" not in str(result)


def test_residuals_of_a_wrong_model_are_correlated():
    x, k = cf.symbols("x k")
    times = np.linspace(0.1, 5, 60)
    values = 2.0 / (1 + 1.4 * times) + 0.01 * np.random.default_rng(8).standard_normal(60)
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    problem = cf.Problem(model, cf.Experiment({"x": values}, times), parameters={"k": 1.0})
    result = cf.fit(problem, cf.SingleShooting())
    assert result.diagnostics.outputs["x"].autocorrelation.found
    assert "The residuals are correlated in time, as where the model misses something (x)" in str(result)


@pytest.mark.parametrize("noise", [cf.Huber(), cf.SoftL1(), cf.StudentT()])
@pytest.mark.parametrize("sigma", [0.0116, None])
def test_a_robust_fit_of_gasoil_hardly_moves_and_names_the_outlier(noise, sigma):
    clean = cf.fit(gasoil(0.0))
    problem = gasoil(20.0)
    (experiment,) = problem.experiments
    data = cf.Experiment(experiment.data, noise=noise, sigma=sigma, name="run 1")
    result = cf.fit(cf.Problem(problem.model, data, parameters=dict.fromkeys(("p1", "p2", "p3"), 5.0)))
    for name, value in clean.parameters.items():
        assert abs(result.parameters[name] - value) < clean.standard_errors[name]
    first = result.diagnostics.outliers[0]
    assert (first.experiment, first.output, first.time) == ("run 1", "y2", experiment.data["y2"][0][9])
    assert "Outliers, which count little in this fit: y2 at t = " in str(result)
    assert result.goodness.described
    assert np.isnan(result.diagnostics.outputs["y2"].normality.p_value)


def test_rare_counts_are_no_outliers():
    """Of a thousand counts, expected to be 0.05, some are 1 or 2: residuals of 4 to 9 standard deviations."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 0.05})
    times = np.linspace(0, 0.1, 1000)
    counts = np.random.default_rng(9).poisson(0.05 * np.exp(-times)).astype(float)
    data = cf.Experiment({"x": counts}, times, noise=cf.Poisson())
    result = cf.fit(
        cf.Problem(model, data, parameters={"k": cf.Parameter(1.0, lower=-20, upper=20)}), cf.SingleShooting()
    )
    assert np.abs(result.normalised_residuals).max() > 4
    assert result.diagnostics.outliers == ()
    assert result.diagnostics.sentence == "The residuals look like noise."


def test_a_loaded_result_asks_for_its_problem(tmp_path):
    problem = gasoil(20.0)
    result = cf.fit(problem)
    result.save(tmp_path / "result.json")
    loaded = cf.Result.load(tmp_path / "result.json")
    with pytest.raises(cf.InputError, match=r"diagnostics.*\n.*with_problem"):
        _ = loaded.diagnostics
    assert "Outliers" not in str(loaded)
    assert loaded.with_problem(problem).diagnostics.outliers == result.diagnostics.outliers


def test_the_picture_rings_outliers(tmp_path):
    from matplotlib.text import Text

    result = cf.fit(gasoil(20.0))
    figure = plots.residuals(result, tmp_path / "residuals.png")
    assert (tmp_path / "residuals.png").stat().st_size > 10_000
    assert len(figure.axes) == 8
    said = " ".join(t.get_text() for t in figure.findobj(Text)).replace("\n", " ")
    assert "look at them first: y2 at t = " in said
    rings = [line for axes in figure.axes for line in axes.lines if line.get_markersize() == 8]
    assert sum(line.get_xdata().size for line in rings) == 2  # in time, and by size of the prediction
    clean = plots.residuals(cf.fit(decay(0.05, sigma=0.05)))
    assert "The residuals look like noise." in " ".join(t.get_text() for t in clean.findobj(Text))
