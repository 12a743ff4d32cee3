"""What is shown and suspected of residuals, and what is said where nothing is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit import plots, problems
from castfit.result.diagnostics import diagnose
from castfit.result.residual_tests import lag1_test

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
        "value": mean + r,
        "prediction": mean,
        "normalised": r,
    }


def joined(*tables):
    return {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}


NOISE = np.random.default_rng(5).standard_normal(100)
STEADY = NOISE / np.sqrt(np.mean(NOISE**2))


def test_diagnostics_no_deviation_reports_number_of_residuals():
    diagnostics = diagnose(table(NOISE), dof=98, is_sigma_known=True)
    assert not diagnostics.has_findings
    assert diagnostics.messages == ()
    assert diagnostics.sentence.startswith("Residual tests: no deviation from ")
    assert "in 100 residuals" in diagnostics.sentence
    assert diagnostics.outputs["y"].findings == ()
    assert "Neighbouring residuals of y: no evidence against independence (correlation " in str(
        diagnostics.outputs["y"]
    )
    assert "experiment 1" not in str(diagnostics)
    few = diagnose(table(NOISE[:5]), dof=3, is_sigma_known=True)
    assert few.sentence.startswith("Residual tests skipped: fewer than 6 residuals per output")


def test_three_grades():
    """A correlation of 0.46 in 30 values is suspected, that of a random walk shown; what is shown has no 'may'."""
    noise = np.random.default_rng(11).standard_normal((2000, 30))
    r = np.sum(noise[:, 1:] * noise[:, :-1], axis=1) / np.sum(noise**2, axis=1)
    check = diagnose(table(noise[np.argmin(abs(r - 0.46))]), dof=28, is_sigma_known=False).outputs["y"].autocorrelation
    assert check.grade == "suspected"
    assert "may be autocorrelated (correlation 0.46, p = 0.004). The model may be incomplete" in check.sentence
    assert check.sentence.endswith("may be too narrow by a factor of about 1.7.")
    walk = np.cumsum(noise[0]) - np.mean(np.cumsum(noise[0]))
    diagnostics = diagnose(table(walk), dof=28, is_sigma_known=False)
    assert diagnostics.outputs["y"].autocorrelation.grade == "significant"
    assert "Neighbouring residuals of y are autocorrelated (correlation 0." in diagnostics.sentence
    assert "the confidence intervals are too narrow by a factor of about" in diagnostics.sentence
    assert diagnostics.dependent == ("y",)


def test_diagnose_accounts_for_correlation_removed_by_fit():
    """With the hat matrix a parabola's residuals are suspected as often as noise should be, without far too rarely."""
    rng = np.random.default_rng(12)
    n = 20
    Q = np.linalg.qr(np.vander(np.linspace(-1, 1, n), 4))[0]
    with_hat = without = 0
    for _ in range(300):
        e = rng.standard_normal(n)
        r = e - Q @ (Q.T @ e)
        with_hat += lag1_test([r], [Q]).p_value < 0.2
        check = lag1_test([r])
        without += check.p_value < 0.2 and check.number > 0.0
    assert 40 <= with_hat <= 80
    assert without < 15


def test_diagnostics_many_local_quantities_agree_with_dense_leverage(monkeypatch, tmp_path):
    """Matrices over very many quantities are not written out: residuals were judged as if nothing had been fitted."""
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x}, initial={"x": 1.0})
    rng, times = np.random.default_rng(3), np.arange(5.0)
    data = 3 * np.exp(-0.5 * times) + 0.1 * rng.standard_normal((60, 5))
    experiments = [cf.Experiment({"y": y}, times, sigma=0.1) for y in data]
    parameters = {"k": cf.Parameter(0.4, scale="log"), "s": cf.Parameter(2.0, local=True)}
    problem = cf.Problem(model, experiments, parameters=parameters)
    written = cf.fit(problem, "single")
    monkeypatch.setattr("castfit.result.covariance.MAX_WRITTEN_OUT_QUANTITIES", 5)
    blocks = cf.fit(problem, "single")
    assert isinstance(blocks.covariance, cf.BlockMatrix)
    for name, figures in written.diagnostics.outputs["y"].checks.items():
        check = blocks.diagnostics.outputs["y"].checks[name]
        assert check.number == pytest.approx(figures.number, abs=1e-6)
        assert check.p_value == pytest.approx(figures.p_value, abs=1e-6)
    monkeypatch.setattr("castfit.result.result.MAX_WRITTEN_OUT_QUANTITIES", 5)
    blocks.save(tmp_path / "saved.json")  # without the derivatives
    loaded = cf.Result.load(tmp_path / "saved.json").with_problem(problem)
    assert not any(checks.tested for checks in loaded.diagnostics.outputs.values())
    assert "Residual tests skipped" in loaded.diagnostics.sentence


@pytest.mark.slow
def test_noise_of_one_or_many_outputs_is_suspected_in_one_fit_of_twenty():
    rng = np.random.default_rng(13)
    for outputs in (1, 5):
        suspected = 0
        for _ in range(400):
            fit = joined(
                *(table(rng.standard_normal(15), rng.uniform(1, 2, 15), output=f"y{k}") for k in range(outputs))
            )
            diagnostics = diagnose(fit, dof=15 * outputs, is_sigma_known=True, by_experiment=False)
            suspected += any(checks.findings for checks in diagnostics.outputs.values())
        assert suspected / 400 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


SLOW = np.sin(np.arange(100) / 8) + 0.3 * NOISE
TOOTH = np.arange(100) % 10
CASES = {
    "autocorrelation": (SLOW, None, "are autocorrelated (correlation 0."),
    "normality": (
        np.sign(NOISE) + 0.1 * NOISE[::-1],
        None,
        "are not normally distributed, even without outliers (Anderson-Darling A² = ",
    ),
    "with_prediction": (NOISE * (1 + TOOTH), TOOTH + 2.0, "increase with the prediction (rank correlation 0."),
    "with_time": (NOISE * np.arange(100)[::-1], None, "decrease with time (rank correlation -0."),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("known_sigma", [True, False])
def test_diagnose_significant_deviation_is_reported(name, known_sigma):
    r, prediction, phrase = CASES[name]
    r = r / np.sqrt(np.mean(r**2))
    diagnostics = diagnose(table(r, prediction), dof=98, is_sigma_known=known_sigma)
    check = diagnostics.outputs["y"].checks[name]
    assert check.grade == "significant"
    assert phrase in check.sentence
    assert check.sentence in diagnostics.outputs["y"].findings
    assert check.sentence in diagnostics.messages
    assert diagnostics.has_findings
    assert "**" in str(diagnostics)
    assert "* suspected (p < 0.05), ** significant (p < 0.001)" in str(diagnostics)


def test_signs_explain_and_are_no_test_of_their_own():
    check = diagnose(table(SLOW), dof=98, is_sigma_known=True).outputs["y"].runs
    assert not check.is_finding
    assert check.sentence.startswith("Signs of residuals of y change between ")


def test_only_the_output_and_the_experiment_that_fail_are_named():
    tables = [
        table(STEADY, experiment="day", output="a"),
        table(SLOW, experiment="day", output="b"),
        table(STEADY[::-1], experiment="night", output="a"),
        table(STEADY, experiment="night", output="b"),
    ]
    diagnostics = diagnose(joined(*tables), dof=390, is_sigma_known=True)
    assert diagnostics.sentence.startswith("Neighbouring residuals of b are autocorrelated (correlation ")
    assert diagnostics.dependent == ("b",)
    assert diagnostics.series["day", "b"].autocorrelation.grade == "significant"
    assert not diagnostics.series["night", "b"].autocorrelation.is_finding
    assert diagnostics.series["day", "b"].n == 100
    assert diagnostics.outputs["b"].n == 200
    assert "night" in str(diagnostics)


def test_outliers_are_named_by_experiment_output_and_time_and_hide_nothing():
    r = STEADY.copy()
    r[37] = -25.0
    diagnostics = diagnose(
        joined(table(r, experiment="day"), table(STEADY, experiment="night")), dof=195, is_sigma_known=True
    )
    (outlier,) = diagnostics.outliers
    assert (outlier.experiment, outlier.output, outlier.time, outlier.residual) == ("day", "y", 37.0, -25.0)
    assert str(outlier) == "y in day at t = 37 (-25 sigma)"
    assert outlier.value - outlier.prediction == -25.0
    assert diagnostics.messages == (f"Outliers that influence the fit: {outlier}. Check them first.",)
    slow = 3 * SLOW
    slow[50] = 60.0
    slow_diagnostics = diagnose(table(slow), dof=98, is_sigma_known=True)
    assert "Neighbouring residuals of y are autocorrelated" in slow_diagnostics.sentence
    assert [o.time for o in slow_diagnostics.outliers] == [50.0]
    many = STEADY.copy()
    many[[10, 20, 30, 40, 50]] = 30.0
    assert "and 2 more" in diagnose(table(many), dof=98, is_sigma_known=False).sentence


def test_replicates_have_no_order():
    """Neighbours at one time are the same error of the model, whatever their order: nothing is correlated here."""
    r = np.random.default_rng(6).standard_normal((40, 5)) + np.random.default_rng(8).standard_normal((40, 1))
    residual_table = table(r.ravel())
    residual_table["time"] = np.repeat(np.arange(40.0), 5)
    residual_table["replicate"] = np.tile(np.arange(5), 40)
    diagnostics = diagnose(residual_table, dof=198, is_sigma_known=False)
    assert not diagnostics.outputs["y"].autocorrelation.is_finding


@pytest.mark.parametrize("r", [np.full(50, np.nan), np.zeros(50), 1e-3 * SLOW[:50]])
def test_data_without_errors_are_not_examined(r):
    diagnostics = diagnose(table(r), dof=48, is_sigma_known=True)
    assert not diagnostics.has_findings
    assert "not tested" in diagnostics.outputs["y"].autocorrelation.sentence
    exact = diagnose(table(SLOW), dof=98, is_sigma_known=False, exact=["y"])
    assert not exact.has_findings


def test_only_normal_errors_must_be_normal():
    r = CASES["normality"][0]
    assert not diagnose(table(r), dof=98, is_sigma_known=False, not_normal=["y"]).outputs["y"].normality.is_finding


# Through a fit


def gasoil(shift: float) -> cf.Problem:
    """Return gasoil, with gasoline at one time moved by some standard deviations of the errors."""
    problem = problems.load("gasoil").problem
    (experiment,) = problem.experiments
    data = {name: (times, values.copy()) for name, (times, values) in experiment.data.items()}
    noise = 0.0116  # castfit's own estimate
    data["y2"][1][9] += shift * noise
    return cf.Problem(
        problem.model, cf.Experiment(data, name="run 1"), parameters=dict.fromkeys(("p1", "p2", "p3"), 5.0)
    )


@pytest.mark.parametrize("transcription", [cf.SingleShooting(), cf.MultipleShooting(4), cf.Collocation()])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_outlier_in_gasoil_is_named(transcription, sign):
    problem = gasoil(20.0 * sign)
    result = cf.fit(problem, transcription)
    outlier, second_outlier = result.diagnostics.outliers
    assert (outlier.experiment, outlier.output) == ("run 1", "y2")
    assert outlier.time == problem.experiments[0].data["y2"][0][9]
    assert sign * outlier.residual > 4
    assert (second_outlier.output, second_outlier.time) == ("y1", 0.025)
    assert f"Outliers that influence the fit: y2 at t = {outlier.time:g} (" in str(result)


def test_outlier_of_gasoil_agrees_with_a_fit_without_it():
    """The first value after the start, which is the mean of its neighbours, changes the squares as no other does."""
    problem = gasoil(0.0)
    result = cf.fit(problem, "single")
    (outlier,) = result.diagnostics.outliers
    assert (outlier.output, outlier.time) == ("y1", 0.025)
    (experiment,) = problem.experiments
    data = {**experiment.data, "y1": tuple(np.delete(part, 1) for part in experiment.data["y1"])}
    guesses = dict.fromkeys(("p1", "p2", "p3"), 5.0)
    refit = cf.fit(cf.Problem(problem.model, cf.Experiment(data, name="run 1"), parameters=guesses), "single")
    squares = np.sum(refit.residuals**2)
    t = np.sqrt((np.sum(result.residuals**2) - squares) * (result.dof - 1) / squares)
    assert 2 * result.n_data * stats.t.sf(t, result.dof - 1) < 1e-6


@pytest.mark.parametrize("n", [6, 8, 10])
def test_slipped_decimal_point_is_named_although_it_has_bent_the_fit(n):
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k])
    rng, times, n_named = np.random.default_rng(1), np.linspace(0, 5, n), 0
    for _ in range(20):
        values = 10 * np.exp(-0.3 * times) + 0.05 * rng.standard_normal(n)
        slipped = int(rng.integers(2, n - 1))
        values[slipped] /= 10
        data = cf.Experiment({"x": values}, time=times, initial={"x": cf.free(9.0)})
        result = cf.fit(cf.Problem(model, data, parameters={"k": 0.2}), "single")
        n_named += [o.time for o in result.diagnostics.outliers] == [times[slipped]]
    assert n_named >= 15


def decay(noise: float, *, sigma: float | None) -> cf.Problem:
    x, k = cf.symbols("x k")
    times = np.linspace(0.1, 5, 60)
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    values = 2.0 * np.exp(-0.7 * times) + noise * np.random.default_rng(8).standard_normal(60)
    return cf.Problem(model, cf.Experiment({"x": values}, times, sigma=sigma), parameters={"k": 1.0})


@pytest.mark.parametrize(("noise", "sigma"), [(0.05, 0.05), (0.05, None), (0.0, None), (0.0, 0.05)])
def test_summary_correct_model_has_no_findings(noise, sigma):
    result = cf.fit(decay(noise, sigma=sigma))
    assert not result.diagnostics.has_findings
    assert "Outliers" not in str(result)
    assert "correlated" not in str(result)


def test_residuals_of_a_wrong_model_are_correlated():
    x, k = cf.symbols("x k")
    times = np.linspace(0.1, 5, 60)
    values = 2.0 / (1 + 1.4 * times) + 0.01 * np.random.default_rng(8).standard_normal(60)
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    problem = cf.Problem(model, cf.Experiment({"x": values}, times), parameters={"k": 1.0})
    result = cf.fit(problem, cf.SingleShooting())
    assert result.diagnostics.dependent == ("x",)
    assert "Neighbouring residuals of x are autocorrelated (correlation " in str(result)
    assert "assuming that the model is correct" in str(result).splitlines()[0]
    assert "Assuming that the model is correct: k is well determined. The residuals contradict " in str(result)
    assert result.determination in str(result)
    assert result.is_contradicted
    assert not result.is_adequate
    assert "% of the variance of x unexplained, and the residuals show a pattern" in result.goodness.sentence


@pytest.mark.parametrize("noise", [cf.Huber(), cf.SoftL1(), cf.StudentT()])
@pytest.mark.parametrize("sigma", [0.0116, None])
def test_a_robust_fit_of_gasoil_hardly_moves_and_names_the_outlier(noise, sigma):
    clean, problem = cf.fit(gasoil(0.0), "single"), gasoil(20.0)
    (experiment,) = problem.experiments
    data = cf.Experiment(experiment.data, noise=noise, sigma=sigma, name="run 1")
    result = cf.fit(cf.Problem(problem.model, data, parameters=dict.fromkeys(("p1", "p2", "p3"), 5.0)), "single")
    for name, value in clean.parameters.items():
        assert abs(result.parameters[name] - value) < clean.standard_errors[name]
    outlier = result.diagnostics.outliers[0]
    assert (outlier.experiment, outlier.output, outlier.time) == ("run 1", "y2", experiment.data["y2"][0][9])
    assert "Outliers with little weight in this fit: y2 at t = " in str(result)
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
    assert "autocorrelated" not in result.diagnostics.sentence


def test_a_loaded_result_asks_for_its_problem(tmp_path):
    problem = gasoil(20.0)
    result = cf.fit(problem)
    result.save(tmp_path / "result.json")
    loaded = cf.Result.load(tmp_path / "result.json")
    with pytest.raises(cf.InputError, match=r"diagnostics.*\n.*with_problem"):
        _ = loaded.diagnostics
    assert "Outliers" not in str(loaded)
    assert "Residual tests need the problem: call result.with_problem(problem)." in str(loaded)
    assert loaded.with_problem(problem).diagnostics.outliers == result.diagnostics.outliers


def test_plots_residuals_marks_outliers(tmp_path):
    from matplotlib.text import Text

    result = cf.fit(gasoil(20.0), "single")
    figure = plots.residuals(result, tmp_path / "residuals.png")
    assert (tmp_path / "residuals.png").stat().st_size > 10_000
    assert len(figure.axes) == 8
    text = " ".join(t.get_text() for t in figure.findobj(Text)).replace("\n", " ")
    assert "Outliers that influence the fit: y2 at t = " in text
    rings = [line for axes in figure.axes for line in axes.lines if line.get_markersize() == 8]
    assert sum(line.get_xdata().size for line in rings) == 4  # two outliers in time, and by size of the prediction
    clean = plots.residuals(cf.fit(decay(0.05, sigma=0.05), "single"))
    assert "errors in 60 residuals." in " ".join(t.get_text() for t in clean.findobj(Text))


def test_diagnostics_bellman_autocorrelation_is_significant():
    result = cf.fit(problems.load("bellman").problem)
    message = (
        "Neighbouring residuals of z are autocorrelated (correlation 0.64, p = 0.0002). The model is probably "
        "incomplete, and the confidence intervals are too narrow by a factor of about 2.1."
    )
    assert result.diagnostics.sentence == message
    assert message in str(result).splitlines()
    assert result.is_adequate
    assert result.is_contradicted
    checkup = cf.doctor(result, starts=0)
    assert not checkup.ok
    assert checkup["residuals"].sentence == message
    assert "Use result.plot() to see where the model does not fit." in checkup["residuals"].advice
    assert "Assuming that the model is correct: all quantities" in checkup["identifiability"].sentence


def test_sizes_that_grow_are_suspected_in_few_values():
    """As of a fed-batch reactor: 20 values of an output that grows tenfold, with errors as of counts."""
    rng = np.random.default_rng(21)
    t = np.linspace(0.5, 10, 20)
    prediction = np.exp(0.23 * t)
    checks = diagnose(
        table(np.sqrt(prediction) * rng.standard_normal(20), prediction), dof=17, is_sigma_known=False
    ).outputs["y"]
    assert checks.with_prediction.grade == "suspected"
    assert "may increase with the prediction (rank correlation 0.69, p = 0.01)" in checks.with_prediction.sentence
    assert "sigma may depend on the prediction." in checks.with_prediction.sentence


@pytest.mark.slow
def test_report_suspected_chi2_not_called_noise(tmp_path):
    """The residuals of stat5 are somewhat large (p = 0.0028), so no part of the report may call them noise."""
    result = cf.fit(problems.load("stat5").problem, "multiple")
    assert result.goodness.grade == "suspected"
    assert "somewhat large" in result.goodness.sentence
    page = result.report(tmp_path / "stat5.html").read_text()
    assert "somewhat large" in page
    assert "like noise" not in page
    assert "agree with the model" not in page
