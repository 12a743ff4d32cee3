"""Residuals are observed minus predicted: in results, tables, plots, reports, and in files of earlier versions."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import castfit as cf
from castfit.result.residuals import scores

TIMES = np.arange(1.0, 9.0)
MEAN = 10 * np.exp(-0.3 * TIMES)
HIGH = 3
"""Index of the value that is moved above the curve."""


def decay(values, *, parameter=0.5, **options) -> cf.Problem:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10})
    return cf.Problem(model, cf.Experiment({"x": values}, time=TIMES, **options), parameters={"k": parameter})


def with_high_value(size: float = 1.0, values=MEAN):
    moved = np.array(values, dtype=float)
    moved[HIGH] += size
    return moved


@pytest.mark.parametrize(
    "options",
    [
        {"sigma": 0.2}, {}, {"noise": {"x": cf.LogNormal(0.1)}}, {"noise": {"x": cf.StudentT(0.2)}},
        {"noise": {"x": cf.Laplace(0.2)}}, {"noise": {"x": cf.Gaussian(0.2, below=0.1)}},
        {"sigma": cf.correlated(0.2, time=2.0)},
    ],
    ids=["known", "unknown", "log-normal", "student", "laplace", "censored", "correlated"],
)  # fmt: skip
def test_a_value_above_the_curve_has_a_positive_residual(options):
    result = cf.fit(decay(with_high_value(), **options))
    table = result.residual_table()
    assert table["value"][HIGH] > table["prediction"][HIGH]
    for residuals in (result.residuals, result.normalised_residuals, table["residual"], table["normalised"]):
        assert residuals[HIGH] > 0.5
    below = table["value"] < table["prediction"]
    assert below.any()
    assert (table["residual"][below] < 0.0).all()


@pytest.mark.parametrize("transcription", ["single", "multiple", "collocation"])
def test_residuals_agree_with_data_minus_prediction(transcription):
    data = with_high_value()
    result = cf.fit(decay(data, sigma=0.2), transcription)
    np.testing.assert_allclose(result.residuals, (data - 10 * np.exp(-result["k"] * TIMES)) / 0.2, atol=1e-4)


@pytest.mark.parametrize("noise", [cf.Poisson(), cf.NegativeBinomial(0.1)], ids=["poisson", "negative-binomial"])
def test_counts_above_the_curve_have_positive_residuals_and_scores(noise):
    counts = with_high_value(20, np.round(3 * MEAN))
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 30})
    problem = cf.Problem(model, cf.Experiment({"x": counts}, TIMES, noise={"x": noise}), parameters={"k": 0.5})
    result = cf.fit(problem)
    assert result.residuals[HIGH] > 2.0
    assert scores(problem.posed, result.residual_table())[HIGH] > 1.5


def test_the_jacobian_is_the_derivative_of_the_residuals():
    data = with_high_value()
    prior = cf.Parameter(0.5, prior=cf.Normal(0.4, 0.05))
    result = cf.fit(decay(data, sigma=0.2, parameter=prior))
    k, h = result["k"], 1e-5
    slope = [(data - 10 * np.exp(-(k + side * h) * TIMES)) / 0.2 for side in (-1, 1)]
    np.testing.assert_allclose(result.jacobian[:-1, 0], (slope[1] - slope[0]) / (2 * h), rtol=1e-4)
    all_residuals = np.append(result.residuals, (0.4 - k) / 0.05)
    np.testing.assert_allclose(result.jacobian.T @ all_residuals, result.gradient, atol=1e-3)
    assert abs(result.gradient[0]) < 1e-3


def test_plots_and_report_show_a_positive_residual(tmp_path):
    data = MEAN + 0.1 * np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 30.0])
    result = cf.fit(decay(data, sigma=0.2))
    for figure in (result.plot(), cf.plots.residuals(result)):
        series = [line.get_ydata() for axes in figure.axes for line in axes.lines if len(line.get_ydata()) == 8]
        assert any(np.array_equal(np.asarray(y, dtype=float), result.normalised_residuals) for y in series)
    (outlier,) = result.diagnostics.outliers
    assert outlier.residual == result.normalised_residuals[-1] > 5.0
    assert re.search(r"x at t = 8 \(\+[\d.]+ sigma\)", str(result))
    page = result.report(tmp_path / "page.html").read_text()
    assert re.search(rf">\s*{outlier.residual:.2f}\s*<", page)
    assert f"{-outlier.residual:.2f}" not in page


def test_a_value_left_out_moves_the_estimate_as_the_refit_does():
    data = with_high_value(0.3)
    result = cf.fit(decay(data, sigma=0.2))
    data_without = data.copy()
    data_without[HIGH] = np.nan
    refit = cf.fit(decay(data_without, sigma=0.2))
    assert result.influence.shifts[HIGH, 0] * result.standard_errors["k"] == pytest.approx(
        refit["k"] - result["k"], rel=0.05
    )


@pytest.mark.parametrize("version", [1, 2, 3])
def test_residuals_of_older_files_change_their_sign(version, tmp_path):
    result = cf.fit(decay(with_high_value(), sigma=0.2))
    content = result.to_dict() | {"castfit_result": version}
    (tmp_path / "old.json").write_text(json.dumps(content))
    old = cf.Result.load(tmp_path / "old.json")
    for name in ("residuals", "normalised_residuals", "jacobian"):
        np.testing.assert_array_equal(getattr(old, name), -getattr(result, name))
    old.save(tmp_path / "new.json")
    np.testing.assert_array_equal(cf.Result.load(tmp_path / "new.json").residuals, old.residuals)
